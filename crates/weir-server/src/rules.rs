//! Rules by path: how files are shared between nodes.
//!
//! A rule applies to a file when it is made. Of the rules that match, the one with the longest
//! pattern wins. A file that no rule matches keeps the policy of its directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use weir_core::names::{LaminateOn, Policy, Visibility};

/// The settings for files whose path matches a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A glob over paths below the mount, which begin with a slash; `*` stops at slashes,
    /// `**` does not.
    pub pattern: String,
    /// The visibility: when other nodes see a write.
    pub visibility: Option<Visibility>,
    /// The event that laminates a file.
    pub laminate_on: Option<LaminateOn>,
}

/// The sharing of files: the policy of the root directory, and the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// The policy where no rule and no directory says otherwise.
    pub policy: Policy,
    /// The rules, in any order.
    pub rules: Vec<Rule>,
}

/// An invalid pattern.
#[derive(Debug, thiserror::Error)]
#[error("the pattern {pattern}: {error}")]
pub struct BadPattern {
    /// The pattern.
    pub pattern: String,
    /// The error.
    pub error: globset::Error,
}

/// Rules, ready to be applied.
#[derive(Debug, Default)]
pub struct Rules(Vec<(GlobMatcher, Rule)>);

impl Rules {
    /// Prepares rules.
    pub fn new(rules: &[Rule]) -> Result<Rules, BadPattern> {
        let mut ready = Vec::new();
        for rule in rules {
            let glob = GlobBuilder::new(&rule.pattern)
                .literal_separator(true)
                .build()
                .map_err(|error| BadPattern {
                    pattern: rule.pattern.clone(),
                    error,
                })?;
            ready.push((glob.compile_matcher(), rule.clone()));
        }
        // The longest pattern comes first.
        ready.sort_by_key(|(_, rule)| std::cmp::Reverse(rule.pattern.len()));
        Ok(Rules(ready))
    }

    /// Returns true if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies the rules to the policy that a new file inherits from its directory.
    pub fn apply(&self, path: &[u8], inherited: Policy) -> Policy {
        let path = Path::new(OsStr::from_bytes(path));
        let matching = || self.0.iter().filter(|(glob, _)| glob.is_match(path));
        let visibility = matching().find_map(|(_, rule)| rule.visibility);
        let laminate_on = matching().find_map(|(_, rule)| rule.laminate_on);
        Policy {
            visibility: visibility.unwrap_or(inherited.visibility),
            laminate_on: laminate_on.unwrap_or(inherited.laminate_on),
        }
    }
}

/// The path of an entry of a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"/" => [b"/", name].concat(),
        dir => [dir, b"/", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, visibility: Visibility) -> Rule {
        Rule {
            pattern: pattern.to_owned(),
            visibility: Some(visibility),
            laminate_on: None,
        }
    }

    #[test]
    fn the_longest_pattern_wins_and_the_rest_is_inherited() {
        let close = Rule {
            laminate_on: Some(LaminateOn::Close),
            visibility: None,
            ..rule("/ckpt/**", Visibility::ReadAfterSync)
        };
        let rules = Rules::new(&[
            rule("/ckpt/**", Visibility::ReadAfterLaminate),
            rule("/ckpt/*.log", Visibility::ReadAfterWrite),
            close,
        ])
        .unwrap();
        let of = |path: &str| {
            let policy = rules.apply(path.as_bytes(), Policy::default());
            (policy.visibility.name(), policy.laminate_on.name())
        };
        assert_eq!(of("/ckpt/a/b.h5"), ("ral", "close"));
        assert_eq!(of("/ckpt/x.log"), ("raw", "close"));
        assert_eq!(of("/ckpt/a/x.log"), ("ral", "close"), "* stops at slashes");
        assert_eq!(of("/other"), ("ras", "chmod"));
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/d", b"x"), b"/d/x");
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        let error = Rules::new(&[rule("/a[", Visibility::ReadAfterSync)]).unwrap_err();
        assert!(
            error.to_string().starts_with("the pattern /a[: "),
            "{error}"
        );
    }
}
