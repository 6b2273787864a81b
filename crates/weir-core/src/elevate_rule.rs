//! The rule of an elevated directory: which files of it the instance takes, and how.
//!
//! The server of each node writes the rule into a file of its run directory ([`RULE_FILE`]), unless it is the
//! default. Programs' processes read it there when they start, as they read the links to the directories, and
//! so do the processes that drain: all follow the rule with which the instance was started.
//!
//! Paths are those below the directory, and begin with a slash.

use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::path_globs::{PathChoice, PathGlobs};

/// In the run directory, followed by the number of a tree: its rule.
pub const RULE_FILE: &str = "elevate-rule";

/// The way of a file that the PFS has when a program opens it to change a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateMode {
    /// The program changes it on the PFS.
    #[default]
    Pass,
    /// It is copied into the instance first.
    Take,
}

/// Files of the PFS that are taken before the command of a run begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchRule {
    /// The files.
    pub files: PathChoice,
    /// The sizes of those that are taken, bytes.
    pub sizes: RangeInclusive<u64>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElevateRule {
    /// The new files that are created in the instance. The others are created on the PFS.
    pub new_files: PathChoice,
    /// The new directories that are created on the PFS, with all that is in them.
    pub passed_directories: PathGlobs,
    /// The way of files of the PFS that are opened to be changed.
    pub update: UpdateMode,
    /// The sizes of the files that are taken for it, bytes.
    pub take_sizes: RangeInclusive<u64>,
    /// Patterns of files that are not evicted.
    pub keep: Vec<String>,
    /// Patterns of files that are moved before all others.
    pub first: Vec<String>,
    /// The files that are taken before programs ask for them.
    pub prefetch: Vec<PrefetchRule>,
}

impl Default for ElevateRule {
    fn default() -> ElevateRule {
        ElevateRule {
            new_files: PathChoice::default(),
            passed_directories: PathGlobs::default(),
            update: UpdateMode::Pass,
            take_sizes: 0..=u64::MAX,
            keep: Vec::new(),
            first: Vec::new(),
            prefetch: Vec::new(),
        }
    }
}

impl ElevateRule {
    /// True if a file of the PFS with this size is taken before programs ask for it. One that is not chosen as a new
    /// file is the PFS's.
    pub fn takes_ahead(&self, path: &[u8], size: u64) -> bool {
        let takes = |rule: &PrefetchRule| rule.sizes.contains(&size) && rule.files.takes(path);
        self.new_files.takes(path) && self.prefetch.iter().any(takes)
    }

    /// The content of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The rule in a file; the default, if its content is anything else.
    pub fn from_bytes(bytes: &[u8]) -> ElevateRule {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let rule = ElevateRule {
            new_files: PathChoice {
                only: PathGlobs::new(["/{a,b}/*.h5"]),
                skip: PathGlobs::new(["/**/*.log"]),
            },
            passed_directories: PathGlobs::new(["/scratch"]),
            update: UpdateMode::Take,
            take_sizes: 5..=7,
            keep: vec!["/a".to_owned()],
            first: vec!["/ckpt.*".to_owned()],
            prefetch: vec![PrefetchRule {
                files: PathChoice::default(),
                sizes: 0..=9,
            }],
        };
        assert_eq!(ElevateRule::from_bytes(&rule.to_bytes()), rule);
        for bad in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(ElevateRule::from_bytes(bad), ElevateRule::default());
        }
    }
}
