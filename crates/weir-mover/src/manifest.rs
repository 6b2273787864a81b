//! Manifests: `source destination` on each line, as UnifyFS's stage reads them.
//!
//! Words are separated by blanks or tabs. A word with blanks is in single or double quotes; between double quotes, and
//! outside of quotes, a backslash stands before a quote, a blank or a backslash. An empty line is skipped. A `#` at the
//! beginning of a word begins a comment.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::sources::StagePair;
use crate::tree::{leads_to_directory, FileTree};

/// A line that is not `source destination`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// The reason, for people.
    pub reason: String,
}

/// A manifest that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// The pairs of the good lines, each with the number of its line.
    pub pairs: Vec<(usize, StagePair)>,
    /// The other lines.
    pub bad: Vec<BadLine>,
}

/// Reads a manifest.
pub fn parse(text: impl AsRef<[u8]>) -> Manifest {
    let (mut pairs, mut bad) = (Vec::new(), Vec::new());
    for (index, text) in text.as_ref().split(|byte| *byte == b'\n').enumerate() {
        let line = index + 1;
        let mut refuse = |reason: String| bad.push(BadLine { line, reason });
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let words = match std::str::from_utf8(text) {
            Ok(text) => words(text),
            Err(_) => Err("it is not UTF-8"),
        };
        match words {
            Err(reason) => refuse(reason.to_owned()),
            Ok(words) => match <[String; 2]>::try_from(words) {
                Ok([source, target]) if !source.is_empty() && !target.is_empty() => {
                    let pair = StagePair {
                        source: PathBuf::from(source),
                        target: PathBuf::from(target),
                    };
                    pairs.push((line, pair));
                }
                Ok(_) => refuse("an empty path".to_owned()),
                Err(words) if words.is_empty() => {}
                Err(words) if words.len() == 1 => refuse("it has no destination".to_owned()),
                Err(words) => refuse(format!(
                    "{} words, not a source and a destination: quote a path with blanks",
                    words.len()
                )),
            },
        }
    }
    Manifest { pairs, bad }
}

/// The lines whose targets two sources would get: a target that is that of another line, or that is below it and that the
/// source of the other line fills, too. `pairs` have paths of the trees, and the numbers of their lines.
pub fn find_clashes<S: FileTree>(from: &S, pairs: &[(usize, StagePair)]) -> Vec<BadLine> {
    let mut first: HashMap<&Path, &(usize, StagePair)> = HashMap::new();
    let mut bad = Vec::new();
    for pair in pairs {
        let target = pair.1.target.as_path();
        if let Some((other, _)) = first.get(target) {
            bad.push(BadLine {
                line: pair.0,
                reason: format!(
                    "{} is the destination of line {other}, too",
                    target.display()
                ),
            });
        } else {
            first.insert(target, pair);
        }
    }
    for (line, pair) in pairs {
        let above = pair.target.ancestors().skip(1);
        let clash = above
            .filter_map(|above| first.get(above))
            .find(|(_, other)| fills(from, other, &pair.target));
        if let Some((other, _)) = clash {
            bad.push(BadLine {
                line: *line,
                reason: format!(
                    "line {other} has something else for {}, too",
                    pair.target.display()
                ),
            });
        }
    }
    bad
}

/// True if the source of a pair has a node for a path below its target, or a file above that node.
fn fills<S: FileTree>(from: &S, pair: &StagePair, path: &Path) -> bool {
    let below = path.strip_prefix(&pair.target).unwrap_or(path);
    let mut source = pair.source.clone();
    for name in below {
        if !leads_to_directory(from, &source) {
            return true;
        }
        source.push(name);
        match from.look_up(&source) {
            Ok(Some(_)) => {}
            // The move reports the error.
            Ok(None) | Err(_) => return false,
        }
    }
    true
}

/// The words of a line.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, behind) = first_word(rest)?;
        words.push(word);
        rest = behind.trim_start();
    }
    Ok(words)
}

/// The first word of a line that does not begin with a blank, and the rest.
fn first_word(line: &str) -> Result<(String, &str), &'static str> {
    let mut word = String::new();
    let mut quote = None;
    let mut chars = line.char_indices();
    while let Some((at, char)) = chars.next() {
        match (char, quote) {
            ('\\', None | Some('"')) => match chars.next() {
                Some((_, escaped)) if "\\\"' \t#".contains(escaped) => word.push(escaped),
                Some((_, other)) => word.extend(['\\', other]),
                None => return Err("a backslash at its end"),
            },
            (char, Some(open)) if char == open => quote = None,
            ('"' | '\'', None) => quote = Some(char),
            (' ' | '\t', None) => return Ok((word, &line[at..])),
            (char, _) => word.push(char),
        }
    }
    match quote {
        None => Ok((word, "")),
        Some(_) => Err("a quote is not closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(usize, String, String)> {
        let parsed = parse(text);
        assert_eq!(parsed.bad, []);
        let shown = |path: &PathBuf| path.to_str().unwrap().to_owned();
        parsed
            .pairs
            .iter()
            .map(|(line, pair)| (*line, shown(&pair.source), shown(&pair.target)))
            .collect()
    }

    #[test]
    fn quotes_comments_and_blanks_are_understood() {
        let text = "# a comment\n\n  /a /b # behind\n\"/with blank\"\t'/it''s \"here\"'\n/a\\ b /c\\\\d\n/x#y /z\n";
        let expected = [
            (3, "/a", "/b"),
            (4, "/with blank", "/its \"here\""),
            (5, "/a b", "/c\\d"),
            (6, "/x#y", "/z"),
        ];
        let expected = expected.map(|(line, a, b)| (line, a.to_owned(), b.to_owned()));
        assert_eq!(pairs(text), expected);
    }

    #[test]
    fn all_bad_lines_are_named() {
        let bad = parse(b"/a\n/b /c\n/d /e /f\n\"/g /h\n/i \\\n'' /j\r\n\xff /k\n").bad;
        let lines: Vec<usize> = bad.iter().map(|bad| bad.line).collect();
        assert_eq!(lines, [1, 3, 4, 5, 6, 7]);
        assert_eq!(bad[5].to_string(), "line 7: it is not UTF-8");
        assert_eq!(bad[0].to_string(), "line 1: it has no destination");
        assert_eq!(bad[2].to_string(), "line 4: a quote is not closed");
    }

    proptest! {
        #[test]
        fn quoted_paths_are_read_back(names in proptest::collection::vec("[^\n\r\0]{1,12}", 2)) {
            let quoted: Vec<String> = names
                .iter()
                .map(|name| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")))
                .collect();
            let parsed = pairs(&quoted.join(" "));
            prop_assert_eq!(parsed, [(1, names[0].clone(), names[1].clone())]);
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,80}") {
            let _ = parse(&text);
        }
    }
}
