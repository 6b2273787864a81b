//! The choice of paths by patterns: all paths or those that some patterns match, without those that others match.

use std::path::{Component, Path};

use globset::{Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

use crate::tree::NodeKind;

/// A choice of paths below the root of a tree. A pattern that matches a directory also stands for everything below it; `*`
/// does not match a slash, `**` does.
#[derive(Clone, Debug, Default)]
pub struct PathFilter {
    /// `None`: all.
    only: Option<OnlyPatterns>,
    skip: GlobSet,
}

#[derive(Clone, Debug)]
struct OnlyPatterns {
    all: GlobSet,
    /// For each pattern, the matchers of its components up to the first one that may match several components.
    beginnings: Vec<Vec<GlobMatcher>>,
}

impl PathFilter {
    /// Patterns begin with a slash. An empty `only` stands for all paths.
    pub fn new(only: &[String], skip: &[String]) -> Result<PathFilter, globset::Error> {
        let only = match only {
            [] => None,
            patterns => Some(OnlyPatterns {
                all: glob_set(patterns)?,
                beginnings: patterns
                    .iter()
                    .map(|pattern| beginning(pattern))
                    .collect::<Result<_, _>>()?,
            }),
        };
        Ok(PathFilter {
            only,
            skip: glob_set(skip)?,
        })
    }

    /// True if there is no pattern.
    pub fn is_everything(&self) -> bool {
        self.only.is_none() && self.skip.is_empty()
    }

    /// True if a file or link is among the chosen paths.
    pub fn takes(&self, path: &Path) -> bool {
        let is_meant = |set: &GlobSet| path.ancestors().any(|above| set.is_match(above));
        self.only.as_ref().is_none_or(|only| is_meant(&only.all)) && !is_meant(&self.skip)
    }

    /// True if a node is among the chosen paths, or is a directory that may have some in it.
    pub fn takes_kind(&self, path: &Path, kind: NodeKind) -> bool {
        match kind {
            NodeKind::Directory => self.enters(path),
            _ => self.takes(path),
        }
    }

    /// True if a directory may have chosen paths in it, or is chosen.
    pub fn enters(&self, dir: &Path) -> bool {
        if self.takes(dir) {
            return true;
        }
        let is_skipped = dir.ancestors().any(|above| self.skip.is_match(above));
        let only = self.only.as_ref();
        !is_skipped && only.is_some_and(|only| only.beginnings.iter().any(|one| begins(one, dir)))
    }
}

fn glob(pattern: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(pattern).literal_separator(true).build()
}

fn glob_set(patterns: &[String]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern)?);
    }
    set.build()
}

fn beginning(pattern: &str) -> Result<Vec<GlobMatcher>, globset::Error> {
    let components = pattern.split('/').filter(|component| !component.is_empty());
    let is_one =
        |component: &&str| *component != "**" && !component.contains(['{', '}', '[', ']', '\\']);
    let beginning = components.take_while(is_one);
    beginning
        .map(|component| Ok(glob(component)?.compile_matcher()))
        .collect()
}

/// True if a pattern with this beginning may match a directory, or a path below it.
fn begins(beginning: &[GlobMatcher], dir: &Path) -> bool {
    let names = dir.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    names.zip(beginning).all(|(name, part)| part.is_match(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(only: &[&str], skip: &[&str]) -> PathFilter {
        let owned = |patterns: &[&str]| {
            patterns
                .iter()
                .map(|one| (*one).to_owned())
                .collect::<Vec<_>>()
        };
        PathFilter::new(&owned(only), &owned(skip)).unwrap()
    }

    #[test]
    fn no_pattern_is_for_everything() {
        let all = filter(&[], &[]);
        assert!(all.is_everything());
        assert!(all.takes(Path::new("/a/b")) && all.enters(Path::new("/a")));
    }

    #[test]
    fn a_directory_that_fits_is_for_all_that_is_in_it() {
        let some = filter(
            &["/ckpt.*", "/out/*/data"],
            &["/ckpt.*/scratch", "/**/*.tmp"],
        );
        for path in ["/ckpt.8", "/ckpt.8/a/b", "/out/1/data", "/out/1/data/x"] {
            assert!(some.takes(Path::new(path)), "{path}");
        }
        for path in [
            "/log",
            "/ckpt.8/scratch",
            "/ckpt.8/scratch/x",
            "/ckpt.8/x.tmp",
            "/out/1/log",
            "/out",
        ] {
            assert!(!some.takes(Path::new(path)), "{path}");
        }
        for dir in ["/ckpt.8", "/out", "/out/1", "/out/1/data/x"] {
            assert!(some.enters(Path::new(dir)), "{dir}");
        }
        for dir in [
            "/other",
            "/ckpt.8/scratch",
            "/ckpt.8/scratch/x",
            "/out/1/log",
        ] {
            assert!(!some.enters(Path::new(dir)), "{dir}");
        }
    }

    #[test]
    fn a_pattern_of_any_depth_enters_all_directories() {
        let some = filter(&["/**/*.h5"], &["/scratch"]);
        assert!(some.enters(Path::new("/a/b")) && some.takes(Path::new("/a/b/c.h5")));
        assert!(!some.takes(Path::new("/a/b/c")) && !some.enters(Path::new("/scratch")));
        let braces = filter(&["/{a/b,c}/x"], &[]);
        assert!(braces.enters(Path::new("/a")) && braces.takes(Path::new("/a/b/x")));
    }
}
