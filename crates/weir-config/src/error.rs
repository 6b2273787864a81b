//! Errors in settings, each with its origin, reason and remedy.
//!
//! All errors of a start are collected and shown together, so that a user does not see them one run
//! at a time.

use std::fmt;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum ValueOrigin {
    /// The default.
    Default,
    /// `weir.toml`, with the line of the key (counted from 1).
    File {
        /// The path of the file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// `--set` or an option of its own.
    CommandLine,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// An error in a setting, with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The origin of the offending text.
    pub origin: ValueOrigin,
    /// The error, in one line.
    pub what: String,
    /// The nearest valid name or word, if one is near.
    pub nearest: Option<String>,
}

impl Problem {
    pub(crate) fn new(origin: ValueOrigin, what: impl Into<String>) -> Self {
        Self {
            origin,
            what: what.into(),
            nearest: None,
        }
    }

    pub(crate) fn nearest(mut self, nearest: Option<String>) -> Self {
        self.nearest = nearest;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.what)?;
        match &self.nearest {
            Some(name) => write!(f, " (did you mean `{name}`?)"),
            None => Ok(()),
        }
    }
}

/// The reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file was named, by an option or by `WEIR_CONFIG`, and cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Refused settings; never empty.
    #[error("{}", lines(.0))]
    Refused(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let all: Vec<String> = problems.iter().map(Problem::to_string).collect();
    all.join("\n")
}

/// The candidate nearest to `word`, if one is near.
///
/// Damerau-Levenshtein counts a swap of neighbours as one slip. A distance of a third of the word's
/// length is the most that still looks like a slip rather than another word.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let most = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_not_other_words() {
        let names = ["budget", "warm", "directory", "huge_pages"];
        assert_eq!(nearest("bugdet", names).as_deref(), Some("budget"));
        assert_eq!(nearest("hugepages", names).as_deref(), Some("huge_pages"));
        assert_eq!(nearest("wram", names).as_deref(), Some("warm"));
        assert_eq!(nearest("colour", names), None);
    }

    #[test]
    fn problems_say_place_reason_and_remedy() {
        let origin = ValueOrigin::File {
            path: "weir.toml".into(),
            line: 3,
        };
        let problem = Problem::new(origin, "unknown key `bugdet`").nearest(Some("budget".into()));
        assert_eq!(
            problem.to_string(),
            "weir.toml:3: unknown key `bugdet` (did you mean `budget`?)"
        );
    }
}
