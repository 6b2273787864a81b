//! Finds the bytes of a file that cannot be read, since the node that had them is lost, or its storage is broken. The user
//! needs the ranges to decide how to go on without them.
//!
//! Ranges are exact, with one exception: fewer readable bytes than [`STEP`] between two unreadable ones count as
//! unreadable.

use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::copy::fill;
use crate::error::MoveError;
use crate::stripe::IO_BYTES;
use crate::tree::{failed_with, FileTree};

/// The distance between the bytes that are tried after one that cannot be read.
const STEP: u64 = 64 << 10;
/// The longest search in a file, and in all files of a stage: each read may take as long as it takes to detect that a
/// server is gone.
const FILE_TIME: Duration = Duration::from_secs(30);
const STAGE_TIME: Duration = Duration::from_secs(300);
/// The most ranges that a text names.
const MOST_NAMED: usize = 16;

/// The ranges of a file that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct UnreadableRanges {
    /// In order, without overlaps.
    ranges: Vec<Range<u64>>,
    /// The offset up to which the list is complete.
    known_to: u64,
}

/// Looks for the ranges of files that a stage could not read.
#[derive(Debug)]
pub(crate) struct UnreadableSearch {
    /// The time that is left.
    left: Mutex<Duration>,
}

impl Default for UnreadableSearch {
    fn default() -> UnreadableSearch {
        let left = Mutex::new(STAGE_TIME);
        UnreadableSearch { left }
    }
}

impl UnreadableSearch {
    /// The text of an error of a file. If bytes of the file could not be read, the text names their ranges.
    pub(crate) fn describe<T: FileTree>(&self, tree: &T, path: &Path, error: &MoveError) -> String {
        let is_unreadable = matches!(error, MoveError::Io { step: "reading", path: of, source }
            if of == path && failed_with(source, Errno::IO));
        if !is_unreadable {
            return error.to_string();
        }
        // One file at a time.
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let found = find_in_file(tree, path, begun + FILE_TIME.min(*left));
        *left = left.saturating_sub(begun.elapsed());
        match found {
            Ok((found, size)) => describe_ranges(error, &found, size),
            Err(_) => error.to_string(),
        }
    }
}

fn describe_ranges(error: &MoveError, found: &UnreadableRanges, size: u64) -> String {
    let mut text = error.to_string();
    let ranges = &found.ranges;
    if !ranges.is_empty() {
        let named = ranges.iter().take(MOST_NAMED);
        let named = named.map(|range| format!("{} to {}", range.start, range.end));
        let named = named.collect::<Vec<_>>().join(", ");
        let _ = write!(text, "; these bytes cannot be read: {named}");
    }
    let more = ranges.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let _ = write!(text, " and {more} more ranges, {all} bytes in all");
    }
    if found.known_to < size {
        let _ = write!(
            text,
            "; the bytes behind byte {} were not tried",
            found.known_to
        );
    }
    text
}

/// Looks for the ranges of a file until a point in time; also returns the size of the file.
fn find_in_file<T: FileTree>(
    tree: &T,
    path: &Path,
    until: Instant,
) -> io::Result<(UnreadableRanges, u64)> {
    let file = tree.open(path)?;
    let size = tree.stat(&file)?.size;
    let mut buffer = Vec::new();
    let can_read = |range: Range<u64>| {
        let length = usize::try_from(range.end - range.start).expect("a few megabytes");
        buffer.resize(length.max(buffer.len()), 0);
        match fill(tree, &file, range.start, &mut buffer[..length]) {
            Ok(_) => Ok(true),
            Err(error) if failed_with(&error, Errno::IO) => Ok(false),
            Err(error) => Err(error),
        }
    };
    let next_data = |within: Range<u64>| match tree.next_data(&file, within.clone()) {
        Ok(data) => data.map_or(within.end, |data| data.start),
        // The holes of the file are not known: try every byte.
        Err(_) => within.start,
    };
    let found = find_ranges(size, can_read, next_data, || Instant::now() < until)?;
    Ok((found, size))
}

/// Looks for the ranges of a file of this size. `can_read`: true if all bytes of a range can be read. `next_data`: the
/// beginning of the next data in a range, or its end. `goes_on`: true while there is time.
fn find_ranges(
    size: u64,
    mut can_read: impl FnMut(Range<u64>) -> io::Result<bool>,
    next_data: impl Fn(Range<u64>) -> u64,
    goes_on: impl Fn() -> bool,
) -> io::Result<UnreadableRanges> {
    let mut found = UnreadableRanges::default();
    while found.known_to < size && goes_on() {
        let at = next_data(found.known_to..size);
        let piece = at..size.min(at.saturating_add(IO_BYTES));
        if piece.is_empty() || can_read(piece.clone())? {
            found.known_to = piece.end;
            continue;
        }
        let first = find_first(piece.start, piece.end, |middle| {
            can_read(piece.start..middle + 1).map(|can| !can)
        })?;
        let mut last = first;
        let end = loop {
            let next = last.saturating_add(STEP).min(size - 1);
            if next == last {
                break size;
            }
            if !goes_on() {
                break last + 1;
            }
            if can_read(next..next + 1)? {
                break find_first(last + 1, next, |middle| can_read(middle..middle + 1))?;
            }
            last = next;
        };
        found.ranges.push(first..end);
        found.known_to = end;
    }
    Ok(found)
}

/// The first number from `low` on for which `is_true` holds. It must hold for all later numbers, too, and for `high`.
fn find_first(
    mut low: u64,
    mut high: u64,
    mut is_true: impl FnMut(u64) -> io::Result<bool>,
) -> io::Result<u64> {
    while low < high {
        let middle = low + (high - low) / 2;
        match is_true(middle)? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(size: u64, lost: &[Range<u64>]) -> UnreadableRanges {
        let can_read = |range: Range<u64>| {
            let meets = |lost: &Range<u64>| range.start < lost.end && lost.start < range.end;
            Ok(!lost.iter().any(meets))
        };
        find_ranges(size, can_read, |within| within.start, || true).unwrap()
    }

    #[test]
    fn files_that_are_whole_empty_or_lost_have_none_or_one() {
        assert_eq!(find(0, &[]).ranges, []);
        assert_eq!(find(9 << 20, &[]).ranges, []);
        for size in [1, STEP, STEP + 1, 9 << 20] {
            let all = 0..size;
            assert_eq!(find(size, std::slice::from_ref(&all)).ranges, [all]);
        }
    }

    #[test]
    fn holes_are_not_read_and_a_search_that_takes_too_long_says_how_far_it_came() {
        let size = 1 << 62;
        let data = 1 << 40..size - 1;
        let next_data = |within: Range<u64>| within.start.max(data.start).min(within.end);
        let looks = std::cell::Cell::new(3);
        let goes_on = || looks.replace(looks.get() - 1) > 0;
        let found = find_ranges(size, |_| Ok(true), next_data, goes_on).unwrap();
        assert_eq!(found.ranges, []);
        assert_eq!(found.known_to, data.start + 3 * IO_BYTES);
    }

    proptest! {
        #[test]
        fn the_ranges_are_those_that_are_lost(
            lengths in proptest::collection::vec(1_u64..3 << 20, 0..9),
            begins_lost in any::<bool>(),
        ) {
            let (mut lost, mut at) = (Vec::new(), 0);
            for (number, length) in lengths.iter().enumerate() {
                // Readable ranges of less than a step count as lost.
                let is_lost = (number % 2 == 0) == begins_lost;
                let length = if is_lost { *length } else { length + STEP };
                if is_lost {
                    lost.push(at..at + length);
                }
                at += length;
            }
            let found = find(at, &lost);
            prop_assert_eq!(found.ranges, lost);
            prop_assert_eq!(found.known_to, at);
        }
    }
}
