//! Entries of a log that may be moved into the file in one request, in any order.
//!
//! This is the log's part of the two-level order of the paper (section 4.3). Entries of one request must not overlap, or the older
//! one might win. Two entries are compared only if the ranges from their first to their last elements intersect. Within a request
//! PnetCDF sorts entries by their first bytes, and flattens those that interleave.

use std::collections::{BTreeMap, HashMap};

use crate::definitions::{FileDefinitions, Variable};
use crate::log::LogEntry;
use crate::subarray::Subarray;

/// The most entries of a batch.
const MAX_ENTRIES: usize = 1 << 16;
/// The most spans that an entry is compared with. With more of them a new batch begins, which is always correct.
const MAX_COMPARED: usize = 1024;

/// Joins each entry to the one before it if it continues that one, both in the variable and in the log.
pub fn joined<'a>(entries: impl Iterator<Item = &'a LogEntry>) -> Vec<LogEntry> {
    let mut all: Vec<LogEntry> = Vec::new();
    for entry in entries {
        match all
            .last_mut()
            .and_then(|last| join(last, entry).map(|part| (last, part)))
        {
            Some((last, part)) => last.part = part,
            None => all.push(entry.clone()),
        }
    }
    all
}

fn join(last: &LogEntry, next: &LogEntry) -> Option<Subarray> {
    let is_next = last.variable == next.variable
        && last.memory == next.memory
        && last.bytes().and_then(|bytes| bytes.checked_add(last.data)) == Some(next.data);
    is_next.then(|| last.part.joined(&next.part))?
}

/// Splits entries into batches. A batch has at most `max_bytes`, or a single entry, and no two of its entries overlap. Returns for
/// each batch the index behind its last entry. The entries must lie within their variables.
pub fn batch_ends(
    definitions: &FileDefinitions,
    entries: &[LogEntry],
    max_bytes: u64,
) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut batch = EntryBatch::default();
    for (index, entry) in entries.iter().enumerate() {
        let bytes = entry.bytes().unwrap_or(u64::MAX);
        let is_full = batch.bytes.saturating_add(bytes) > max_bytes || batch.entries == MAX_ENTRIES;
        let variable = &definitions.variables[entry.variable as usize];
        let span = EntrySpan::new(variable, &entry.part);
        if batch.entries > 0 && (is_full || batch.may_overlap(entries, entry, span)) {
            ends.push(index);
            batch = EntryBatch::default();
        }
        batch.add(entry.variable, span, index, bytes);
    }
    if !entries.is_empty() {
        ends.push(entries.len());
    }
    ends
}

/// The positions of a part's first and last element in its variable. A part without elements has the position of its start.
#[derive(Clone, Copy, Debug)]
struct EntrySpan {
    first: u64,
    last: u64,
}

impl EntrySpan {
    fn new(variable: &Variable, part: &Subarray) -> EntrySpan {
        let mut step = 1_u64;
        let (mut first, mut last) = (0_u64, 0_u64);
        for (range, length) in part.0.iter().zip(&variable.shape).rev() {
            let end = range.end_index().unwrap_or(u64::MAX).saturating_sub(1);
            first = first.saturating_add(range.start.saturating_mul(step));
            last = last.saturating_add(end.max(range.start).saturating_mul(step));
            step = step.saturating_mul(*length);
        }
        EntrySpan { first, last }
    }
}

/// The entries of one batch.
#[derive(Debug, Default)]
struct EntryBatch {
    entries: usize,
    bytes: u64,
    variables: HashMap<u32, KnownSpans>,
}

/// The spans of a variable's entries in a batch.
#[derive(Debug, Default)]
struct KnownSpans {
    /// The distance from the first to the last position of the longest span.
    longest: u64,
    /// The indexes of entries by the first and last positions of their spans.
    indexes: BTreeMap<(u64, u64), Vec<usize>>,
}

impl EntryBatch {
    fn may_overlap(&self, all: &[LogEntry], entry: &LogEntry, span: EntrySpan) -> bool {
        let Some(known) = self.variables.get(&entry.variable) else {
            return false;
        };
        let from = (span.first.saturating_sub(known.longest), 0);
        let near = known.indexes.range(from..=(span.last, u64::MAX));
        near.enumerate().any(|(compared, ((_, last), indexes))| {
            let mut indexes = indexes.iter();
            let overlaps = |index: &usize| all[*index].part.overlaps(&entry.part);
            compared >= MAX_COMPARED || *last >= span.first && indexes.any(overlaps)
        })
    }

    fn add(&mut self, variable: u32, span: EntrySpan, index: usize, bytes: u64) {
        let known = self.variables.entry(variable).or_default();
        known.longest = known.longest.max(span.last - span.first);
        let at = known.indexes.entry((span.first, span.last));
        at.or_default().push(index);
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;
    use crate::subarray::Range;
    use proptest::prelude::*;

    fn definitions() -> FileDefinitions {
        let variable = Variable {
            name: "v".into(),
            external: ElementType::U8,
            shape: vec![8, 8],
            is_record: false,
            begin: 0,
            fill: vec![0],
        };
        FileDefinitions {
            is_cdf5: true,
            record_bytes: 0,
            variables: vec![variable.clone(), variable],
        }
    }

    fn entries() -> impl Strategy<Value = Vec<LogEntry>> {
        let range = || {
            (0_u64..8, 0_u64..5, 1_u64..3).prop_map(|(start, count, stride)| Range {
                start,
                count: count.min((7 - start) / stride + 1),
                stride,
            })
        };
        let entry = (0_u32..2, range(), range()).prop_map(|(variable, y, x)| LogEntry {
            variable,
            memory: ElementType::U8,
            part: Subarray([y, x].into()),
            data: 0,
            stamp_ns: 0,
        });
        prop::collection::vec(entry, 0..40).prop_map(|mut entries| {
            let mut data = 0;
            for entry in &mut entries {
                entry.data = data;
                data += entry.bytes().unwrap();
            }
            entries
        })
    }

    /// The place in the log of each element of the file, after entries were moved in their order.
    fn moved(entries: &[LogEntry]) -> [[u64; 64]; 2] {
        let mut file = [[u64::MAX; 64]; 2];
        let definitions = definitions();
        for entry in entries {
            let variable = &definitions.variables[entry.variable as usize];
            let placed = variable.for_file_runs(0, &entry.part, |run| {
                for next in 0..run.count {
                    let at = usize::try_from(run.offset + next).unwrap();
                    file[entry.variable as usize][at] = entry.data + run.first + next;
                }
            });
            placed.unwrap();
        }
        file
    }

    proptest! {
        #[test]
        fn batches_in_any_order_give_the_same_file(entries in entries()) {
            let joined = joined(entries.iter());
            prop_assert_eq!(moved(&joined), moved(&entries));
            let mut turned = Vec::new();
            let mut start = 0;
            for end in batch_ends(&definitions(), &joined, 20) {
                let batch = &joined[start..end];
                let bytes: u64 = batch.iter().map(|entry| entry.bytes().unwrap()).sum();
                prop_assert!(batch.len() == 1 || bytes <= 20);
                turned.extend(batch.iter().rev().cloned());
                start = end;
            }
            prop_assert_eq!(start, joined.len());
            prop_assert_eq!(moved(&turned), moved(&entries));
        }
    }

    #[test]
    fn writes_of_the_same_part_are_compared_with_few() {
        let one = LogEntry {
            variable: 0,
            memory: ElementType::U8,
            part: Subarray([Range::new(0, 1), Range::new(0, 1)].into()),
            data: 0,
            stamp_ns: 0,
        };
        let ends = batch_ends(&definitions(), &vec![one; 1000], 1 << 20);
        assert_eq!(ends.len(), 1000);
    }
}
