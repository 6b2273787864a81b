//! Patterns of paths, matched without memory, locks or compiled state.
//!
//! A process matches them when it creates a file in an elevated directory, also in a signal handler, and
//! most processes match few. So no regular expression is made of them; the tools, which match whole trees, use
//! the globset crate, and a test compares both. The syntax is that of globset with literal separators:
//!
//! | pattern | fits |
//! | --- | --- |
//! | `?` | any byte but a slash |
//! | `*` | any bytes but slashes |
//! | `/**/` | one slash, or whole components |
//! | `/**` at the end | all that is below |
//! | `[a-z]`, `[!a-z]` | a byte of the class, or another one, but no slash (with globset also a slash) |
//! | `{a,b}` | one of the alternatives |
//! | `\x` | `x` |
//!
//! Braces are expanded when a list is made, so that no alternative is nested in another one.

use serde::{Deserialize, Serialize};

/// A list of patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathGlobs(Vec<Vec<u8>>);

/// A choice of paths: all, or those that patterns name, without those that others name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathChoice {
    /// None: all paths.
    pub only: PathGlobs,
    /// Paths that are not chosen.
    pub skip: PathGlobs,
}

impl PathChoice {
    /// True if there is no pattern.
    pub fn is_everything(&self) -> bool {
        self.only.is_empty() && self.skip.is_empty()
    }

    /// True if a file or link is among the chosen paths.
    pub fn takes(&self, path: &[u8]) -> bool {
        let is_named = self.only.is_empty() || self.only.fit_at_or_above(path);
        is_named && !self.skip.fit_at_or_above(path)
    }
}

impl PathGlobs {
    /// The patterns of a list, which are checked by its caller. Of one that is not well-formed any part may be
    /// taken literally.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<[u8]>>) -> PathGlobs {
        let patterns = patterns.into_iter();
        PathGlobs(
            patterns
                .flat_map(|pattern| expand_braces(pattern.as_ref()))
                .collect(),
        )
    }

    /// True if there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a pattern fits the path, or a directory above it.
    pub fn fit_at_or_above(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = slashes.map(|(at, _)| &path[..at.max(1)]);
        let mut paths = above.chain(core::iter::once(path));
        paths.any(|path| self.0.iter().any(|pattern| fits(pattern, path)))
    }
}

/// The pattern that only a text fits.
pub fn escape(text: &str) -> String {
    let escaped = |byte: char| {
        ['\\', '*', '?', '[', ']', '{', '}']
            .contains(&byte)
            .then_some('\\')
    };
    let parts = text
        .chars()
        .flat_map(|byte| escaped(byte).into_iter().chain([byte]));
    parts.collect()
}

/// The patterns that one with braces stands for.
fn expand_braces(pattern: &[u8]) -> Vec<Vec<u8>> {
    let Some((open, close)) = find_braces(pattern) else {
        return vec![pattern.to_vec()];
    };
    let alternatives = split_alternatives(&pattern[open + 1..close]);
    let (before, behind) = (&pattern[..open], &pattern[close + 1..]);
    // As with globset an alternative is not empty.
    let alternatives = alternatives.into_iter().filter(|one| !one.is_empty());
    let whole = alternatives.flat_map(|one| expand_braces(&[before, one, behind].concat()));
    whole.collect()
}

/// The first opening brace and the one that closes it.
fn find_braces(pattern: &[u8]) -> Option<(usize, usize)> {
    let mut open = None;
    let mut depth = 0_usize;
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'{' => {
                open.get_or_insert(at);
                depth += 1;
            }
            b'}' if depth == 1 => return Some((open?, at)),
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += length_of_item(&pattern[at..]);
    }
    None
}

fn split_alternatives(inner: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let (mut begin, mut depth, mut at) = (0, 0_usize, 0);
    while at < inner.len() {
        match inner[at] {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&inner[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += length_of_item(&inner[at..]);
    }
    parts.push(&inner[begin..]);
    parts
}

/// The bytes of a class, of an escaped byte, or of one that stands for itself.
fn length_of_item(pattern: &[u8]) -> usize {
    match pattern {
        [b'\\', _, ..] => 2,
        [b'[', ..] => class_of(pattern).map_or(1, |class| class.length),
        _ => 1,
    }
}

/// `[a-z]`.
struct ByteClass<'p> {
    is_negated: bool,
    /// Between the brackets, without the negation.
    items: &'p [u8],
    /// With its brackets.
    length: usize,
}

impl ByteClass<'_> {
    fn has(&self, byte: u8) -> bool {
        let mut items = self.items;
        let mut is_in = false;
        while let [first, rest @ ..] = items {
            items = rest;
            let mut last = first;
            if let [b'-', end, rest @ ..] = items {
                last = end;
                items = rest;
            }
            is_in |= (*first..=*last).contains(&byte);
        }
        is_in != self.is_negated && byte != b'/'
    }
}

/// The class at the beginning of a pattern, which begins with a bracket.
fn class_of(pattern: &[u8]) -> Option<ByteClass<'_>> {
    let is_negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let begin = 1 + usize::from(is_negated);
    // A bracket that closes and comes first stands for itself.
    let behind = pattern.get(begin + 1..)?;
    let end = begin + 1 + behind.iter().position(|byte| *byte == b']')?;
    Some(ByteClass {
        is_negated,
        items: &pattern[begin..end],
        length: end + 1,
    })
}

/// A place to go on from where a pattern fails: the rest of the pattern, and where in the path it was tried.
type Retry = Option<(usize, usize)>;

/// True if a pattern without braces fits a whole path.
fn fits(pattern: &[u8], path: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Of several stars only the last one can take more; of those of a component none takes a slash.
    let mut star: Retry = None;
    let mut any_depth: Retry = None;
    loop {
        let (rest, left) = (&pattern[at..], &path[seen..]);
        match rest {
            [] if left.is_empty() => return true,
            b"/**" if left.first() == Some(&b'/') => return true,
            b"**" if at == 0 => return true,
            [b'/', b'*', b'*', b'/', ..] if left.first() == Some(&b'/') => {
                // `/**/**/` is `/**/`.
                at += 3;
                if !pattern[at..].starts_with(b"/**/") && &pattern[at..] != b"/**" {
                    at += 1;
                    seen += 1;
                    (any_depth, star) = (Some((at, seen)), None);
                }
                continue;
            }
            [b'*', b'*', b'/', ..] if at == 0 => {
                at = 3;
                seen += usize::from(left.first() == Some(&b'/'));
                (any_depth, star) = (Some((at, seen)), None);
                continue;
            }
            [b'*', ..] => {
                at += 1;
                star = Some((at, seen));
                continue;
            }
            _ => {
                if let Some(length) = fits_one(rest, left) {
                    at += length;
                    seen += 1;
                    continue;
                }
            }
        }
        if let Some((behind, tried)) = star.filter(|(_, tried)| {
            let byte = path.get(*tried);
            byte.is_some_and(|byte| *byte != b'/')
        }) {
            (at, seen) = (behind, tried + 1);
            star = Some((at, seen));
            continue;
        }
        let Some((behind, tried)) = any_depth else {
            return false;
        };
        let Some(slash) = path[tried..].iter().position(|byte| *byte == b'/') else {
            return false;
        };
        (at, seen) = (behind, tried + slash + 1);
        (any_depth, star) = (Some((at, seen)), None);
    }
}

/// The length of the item of a pattern that fits the next byte; `None`: it fits not.
fn fits_one(pattern: &[u8], path: &[u8]) -> Option<usize> {
    let byte = *path.first()?;
    let (is_fit, length) = match pattern {
        [b'?', ..] => (byte != b'/', 1),
        [b'\\', escaped, ..] => (byte == *escaped, 2),
        [b'[', ..] => match class_of(pattern) {
            Some(class) => (class.has(byte), class.length),
            None => (byte == b'[', 1),
        },
        [literal, ..] => (byte == *literal, 1),
        [] => return None,
    };
    is_fit.then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use globset::GlobBuilder;
    use proptest::prelude::*;

    fn fit(pattern: &str, path: &str) -> bool {
        let globs = PathGlobs::new([pattern]);
        globs.0.iter().any(|one| fits(one, path.as_bytes()))
    }

    fn globset_fits(pattern: &str, path: &str) -> Option<bool> {
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        Some(glob.ok()?.compile_matcher().is_match(path))
    }

    #[test]
    fn patterns_fit_what_those_of_the_tools_fit() {
        let patterns = [
            "/*.h5",
            "/**/*.h5",
            "/**",
            "**",
            "**/a",
            "/a/**/b",
            "/a/**/**/b",
            "/a/*/b",
            "/a?c",
            "/[a-c]x",
            "/[!a-c]x",
            "/[]]x",
            "/{a,b/c}.h5",
            "/{a,{b,c}d}",
            "/a{,b}",
            "/\\*x",
            "/\\{a",
            "/a**b",
            "/*a*b*c",
            "/**/a/**/b/*",
            "/[{]x",
            "/a/**",
            "/a*/**/c",
            "/[a-c-]x",
            "/**/**",
        ];
        let paths = [
            "/",
            "/a",
            "/b",
            "/a.h5",
            "/x/a.h5",
            "/x/y/a.h5",
            "/a/b",
            "/a/x/b",
            "/a/x/y/b",
            "/abc",
            "/a/c",
            "/ax",
            "/dx",
            "/]x",
            "/b/c.h5",
            "/bd",
            "/cd",
            "/ab",
            "/*x",
            "/{a",
            "/{x",
            "/aab/c",
            "/xaybzc",
            "/a/b/c/a/b/d",
            "/-x",
            "/a\nb",
            "/a/",
            "a",
            "x/a",
            "/axb",
            "/a/q/c",
            "/a1/q/r/c",
        ];
        for pattern in patterns {
            for path in paths {
                let expected = globset_fits(pattern, path).unwrap_or_else(|| panic!("{pattern}"));
                assert_eq!(fit(pattern, path), expected, "{pattern} {path}");
            }
        }
    }

    #[test]
    fn a_directory_that_fits_is_for_all_that_is_in_it() {
        let choice = PathChoice {
            only: PathGlobs::new(["/ckpt.*", "/**/*.h5"]),
            skip: PathGlobs::new(["/ckpt.*/scratch"]),
        };
        for path in ["/ckpt.8", "/ckpt.8/a/b", "/a/b.h5"] {
            assert!(choice.takes(path.as_bytes()), "{path}");
        }
        for path in ["/log", "/ckpt.8/scratch", "/ckpt.8/scratch/x.h5"] {
            assert!(!choice.takes(path.as_bytes()), "{path}");
        }
        assert!(PathChoice::default().is_everything() && PathChoice::default().takes(b"/x"));
        assert!(
            PathGlobs::new(["/"]).fit_at_or_above(b"/x"),
            "the root is above"
        );
    }

    #[test]
    fn an_escaped_text_fits_itself_alone() {
        let text = "/a*[b]{c,d}?\\";
        assert!(fit(&escape(text), text) && !fit(&escape(text), "/ab[b]{c,d}?\\"));
    }

    #[test]
    fn many_stars_take_no_long_time() {
        let pattern = format!("/{}b", "a*".repeat(40));
        assert!(!fit(&pattern, &format!("/{}", "a".repeat(250))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn random_patterns_fit_what_those_of_the_tools_fit(
            pattern in r"(/(\*\*|[?ab]{0,2}\*?[?ab]{1,2}|a\*|\*|\[ab\]\*?)){1,5}",
            path in "(/[ab]{1,3}){1,5}",
        ) {
            if let Some(expected) = globset_fits(&pattern, &path) {
                prop_assert_eq!(fit(&pattern, &path), expected, "{} {}", pattern, path);
            }
        }

        #[test]
        fn any_bytes_end(pattern in proptest::collection::vec(any::<u8>(), 0..20), path in "/[a-c/]{0,8}") {
            let _ = PathGlobs::new([pattern]).fit_at_or_above(path.as_bytes());
        }
    }
}
