//! Known faults, counted: their numbers may fall, and never rise.
//!
//! `crates/xtask/tidy.toml` has a table for each rule, and in it the number of faults of each crate (or
//! folder, or name). A number greater than that is an error. So is a smaller one, because a fault
//! that was mended must not come back: `cargo xtask tidy --lower` writes the smaller numbers, and never a greater one.
//!
//! A rule that counts several things apart under one key (the sizes of a folder's cycles) has a list,
//! the greatest first. A list is greater than another if it is longer or any of its numbers is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{bail, Context, Result};

/// Where the numbers are, below the root of the workspace.
pub const FILE: &str = "crates/xtask/tidy.toml";

const HEADER: &str = "\
# The faults that `cargo xtask tidy` knows of, counted. No number here may rise; where one falls,
# `cargo xtask tidy --lower` writes the new one. After a conflict of a merge: take either side, and
# run it. The rules are in crates/xtask/src/tidy/, the words in docs/glossary.md.
";

/// The faults of one rule under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultCount {
    /// The rule: the name of a table of the file.
    pub rule: &'static str,
    /// The crate, folder or name.
    pub key: String,
    /// How many, the greatest first; without faults there is no count.
    pub numbers: Vec<usize>,
    /// Each fault, as `path:line: fault`.
    pub faults: Vec<String>,
}

impl FaultCount {
    /// The count of the given faults, each of which counts one.
    pub fn of_each(rule: &'static str, key: String, faults: Vec<String>) -> Self {
        FaultCount {
            rule,
            key,
            numbers: vec![faults.len()],
            faults,
        }
    }
}

type Numbers = BTreeMap<String, BTreeMap<String, Vec<usize>>>;

/// The numbers that are allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ratchet {
    allowed: Numbers,
}

impl Ratchet {
    /// Reads the text of the file.
    pub fn parse(text: &str) -> Result<Self> {
        let number = |value: &toml::Value| -> Result<usize> {
            let number = value.as_integer().context("not a number")?;
            Ok(usize::try_from(number)?)
        };
        let mut allowed = Numbers::new();
        for (rule, table) in text.parse::<toml::Table>()? {
            let Some(table) = table.as_table() else {
                bail!("{rule} is no table");
            };
            for (key, value) in table {
                let numbers = match value.as_array() {
                    Some(list) => list.iter().map(number).collect::<Result<_>>(),
                    None => number(value).map(|one| vec![one]),
                };
                let numbers = numbers.with_context(|| format!("{rule}: {key}"))?;
                let rule = allowed.entry(rule.clone()).or_default();
                rule.insert(key.clone(), numbers);
            }
        }
        Ok(Ratchet { allowed })
    }

    /// The numbers that are greater than allowed, and the allowed ones that are greater than needed.
    pub fn check(&self, counts: &[FaultCount]) -> Vec<String> {
        let mut errors = Vec::new();
        for count in counts {
            let allowed = self.allowed(count.rule, &count.key);
            if exceeds(&count.numbers, allowed) {
                let mut error = format!(
                    "{}: {}: {} found, {} allowed ({FILE}); mend the one that is new:",
                    count.rule,
                    count.key,
                    shown(&count.numbers),
                    shown(allowed)
                );
                for fault in &count.faults {
                    let _ = write!(error, "\n    {fault}");
                }
                errors.push(error);
            }
        }
        let lower = self.lowered(counts);
        for (rule, table) in &self.allowed {
            for (key, allowed) in table {
                let left = lower.allowed(rule, key);
                if left != allowed {
                    errors.push(format!(
                        "{rule}: {key}: {} allowed, {} left: run `cargo xtask tidy --lower`",
                        shown(allowed),
                        shown(left)
                    ));
                }
            }
        }
        errors
    }

    /// The same with smaller numbers, where the counts are smaller.
    #[must_use]
    pub fn lowered(&self, counts: &[FaultCount]) -> Self {
        let mut lowered = Numbers::new();
        for (rule, table) in &self.allowed {
            for (key, allowed) in table {
                let count = counts.iter().find(|c| c.rule == rule && c.key == *key);
                let numbers = match count {
                    None => continue,
                    Some(count) if exceeds(&count.numbers, allowed) => allowed,
                    Some(count) => &count.numbers,
                };
                let table = lowered.entry(rule.clone()).or_default();
                table.insert(key.clone(), numbers.clone());
            }
        }
        Ratchet { allowed: lowered }
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        for (rule, table) in &self.allowed {
            let _ = write!(text, "\n[{rule}]\n");
            for (key, numbers) in table {
                let _ = writeln!(text, "{key:?} = {}", shown(numbers));
            }
        }
        text
    }

    fn allowed(&self, rule: &str, key: &str) -> &[usize] {
        let table = self.allowed.get(rule);
        table
            .and_then(|table| table.get(key))
            .map_or(&[], Vec::as_slice)
    }
}

fn exceeds(found: &[usize], allowed: &[usize]) -> bool {
    let at = |index| allowed.get(index).copied().unwrap_or(0);
    found.iter().enumerate().any(|(index, n)| *n > at(index))
}

fn shown(numbers: &[usize]) -> String {
    match numbers {
        [] => "0".to_owned(),
        [one] => one.to_string(),
        several => format!("{several:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(key: &str, numbers: &[usize]) -> FaultCount {
        FaultCount {
            rule: "words",
            key: key.to_owned(),
            numbers: numbers.to_vec(),
            faults: vec!["a.rs:1: `Place`".to_owned()],
        }
    }

    fn ratchet(text: &str) -> Ratchet {
        Ratchet::parse(text).unwrap()
    }

    #[test]
    fn as_many_as_allowed_are() {
        let known = ratchet("[words]\na = 2\nb = [3, 2]");
        let counts = [count("a", &[2]), count("b", &[3, 2])];
        assert_eq!(known.check(&counts), [""; 0]);
    }

    #[test]
    fn more_are_an_error_that_names_them() {
        let known = ratchet("[words]\na = 2\nb = [5, 3]");
        let errors = known.check(&[count("a", &[3]), count("b", &[5, 3]), count("c", &[1])]);
        assert_eq!(errors.len(), 2);
        assert!(errors[0].starts_with("words: a: 3 found, 2 allowed"));
        assert!(errors[0].ends_with("\n    a.rs:1: `Place`"));
        assert!(errors[1].starts_with("words: c: 1 found, 0 allowed"));
        assert_eq!(known.check(&[count("a", &[2]), count("b", &[8])]).len(), 1);
    }

    #[test]
    fn fewer_are_an_error_until_the_number_is_lowered() {
        let known = ratchet("[words]\na = 2\nb = 7\n[more]\nc = 1");
        let counts = [count("a", &[1])];
        assert_eq!(
            known.check(&counts),
            [
                "more: c: 1 allowed, 0 left: run `cargo xtask tidy --lower`",
                "words: a: 2 allowed, 1 left: run `cargo xtask tidy --lower`",
                "words: b: 7 allowed, 0 left: run `cargo xtask tidy --lower`",
            ]
        );
        let lowered = known.lowered(&counts);
        assert_eq!(lowered, ratchet("[words]\na = 1"));
        assert_eq!(lowered.check(&counts), [""; 0]);
    }

    #[test]
    fn lowering_never_raises() {
        let known = ratchet("[words]\na = 2");
        assert_eq!(known.lowered(&[count("a", &[3]), count("b", &[1])]), known);
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let known = ratchet("[cycles]\n\"crates/a/src\" = [5, 3]\n[words]\na = 2");
        assert_eq!(ratchet(&known.text()), known);
    }
}
