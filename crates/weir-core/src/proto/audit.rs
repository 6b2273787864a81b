//! The findings of the audit: reads that came too early.
//!
//! If a file's writes are seen after a sync or a lamination, a program that reads bytes that
//! another node has written and not yet made known gets the earlier ones. Often such a program
//! works by luck. The audit names it.

use serde::{Deserialize, Serialize};

/// Ranges that a finding lists separately; beyond, those nearest to each other are joined.
const RANGES: usize = 16;

/// A program at a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Party {
    /// The node's server.
    pub rank: u16,
    /// Its process; 0: it has ended.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
}

/// The event that was missing before the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Missing {
    /// The writer's fsync or close.
    Sync,
    /// The lamination of the file.
    Lamination,
}

/// Bytes of a file that a node wrote and that others cannot see.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unseen {
    /// Ranges, first byte and the one behind the last.
    pub ranges: Vec<(u64, u64)>,
    /// The program that has the file open for writing there.
    pub writers: Vec<Party>,
    /// The event that would make them visible.
    pub missing: Missing,
}

/// A program read bytes of a file before the program that wrote them made them known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// The bytes: ascending ranges, apart from each other.
    pub ranges: Vec<(u64, u64)>,
    /// The program that read.
    pub reader: Party,
    /// The programs that may have written.
    pub writers: Vec<Party>,
    /// The event that was missing.
    pub missing: Missing,
    /// The number of times.
    pub reads: u64,
}

impl Finding {
    /// Returns true if another finding is of the same file and programs.
    pub fn is_like(&self, other: &Finding) -> bool {
        let programs = |finding: &Finding| -> Vec<(u16, String)> {
            let all = finding.writers.iter();
            all.map(|writer| (writer.rank, writer.program.clone()))
                .collect()
        };
        self.path == other.path
            && self.missing == other.missing
            && (self.reader.rank, &self.reader.program)
                == (other.reader.rank, &other.reader.program)
            && programs(self) == programs(other)
    }

    /// Merges another finding like it.
    pub fn add(&mut self, other: &Finding) {
        self.reads = self.reads.saturating_add(other.reads);
        self.ranges.extend_from_slice(&other.ranges);
        self.ranges = united(std::mem::take(&mut self.ranges));
    }
}

/// Ranges in order, those that touch as one; not more than a few.
pub fn united(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(from, to)| from < to);
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (from, to) in ranges {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    while out.len() > RANGES {
        let gap = |at: &usize| out[at + 1].0 - out[*at].1;
        let Some(at) = (0..out.len() - 1).min_by_key(gap) else {
            break;
        };
        out[at].1 = out[at + 1].1;
        out.remove(at + 1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn united_ranges_cover_what_was_given(
            ranges in proptest::collection::vec((0u64..1000, 0u64..50), 0..60),
        ) {
            let given: Vec<_> = ranges.iter().map(|(from, len)| (*from, from + len)).collect();
            let united = united(given.clone());
            prop_assert!(united.len() <= RANGES);
            prop_assert!(united.windows(2).all(|two| two[0].1 < two[1].0));
            for (from, to) in given.into_iter().filter(|(from, to)| from < to) {
                prop_assert!(united.iter().any(|(f, t)| *f <= from && to <= *t));
            }
        }
    }

    #[test]
    fn findings_of_the_same_programs_are_one() {
        let party = |rank, pid, program: &str| Party {
            rank,
            pid,
            program: program.to_owned(),
        };
        let mut one = Finding {
            path: "/f".to_owned(),
            ranges: vec![(0, 10)],
            reader: party(1, 7, "plot"),
            writers: vec![party(0, 8, "sim")],
            missing: Missing::Sync,
            reads: 1,
        };
        let again = Finding {
            ranges: vec![(10, 20)],
            reader: party(1, 9, "plot"),
            ..one.clone()
        };
        assert!(one.is_like(&again));
        one.add(&again);
        assert_eq!((one.reads, &one.ranges[..]), (2, &[(0, 20)][..]));
        let elsewhere = Finding {
            reader: party(2, 9, "plot"),
            ..one.clone()
        };
        assert!(!one.is_like(&elsewhere));
    }
}
