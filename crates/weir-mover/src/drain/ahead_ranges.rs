//! The choice of the ranges of a file that go ahead ([`ahead`](super::ahead)).
//!
//! Whole stripes of the target go first; small pieces only if there is nothing else. Each search begins behind the last
//! range, so that a file of any size costs few calls.

use std::ops::Range;

use weir_client::process::mounted::Ino;

use crate::stripe::StripeSize;
use crate::tree::EvictionTable;

/// The bytes that are copied before they are synced and their storage is freed.
const BATCH_BYTES: u64 = 256 << 20;
/// The most ranges that are evicted at once.
const MOST_RANGES: usize = 256;

/// The storage that is to be freed.
#[derive(Clone, Copy)]
pub(super) struct WantedRoom {
    /// The rank of the server that has it.
    pub rank: u16,
    pub bytes: u64,
}

/// A search for ranges of a file.
#[derive(Clone, Copy)]
pub(super) struct RangeSearch {
    /// The offset at which it begins.
    pub begun: u64,
    /// The size of the file.
    pub size: u64,
    pub room: WantedRoom,
}

/// The ranges of a part of a file that go ahead.
pub(super) struct ChosenRanges {
    ranges: Vec<Range<u64>>,
    /// They are whole stripes.
    are_stripes: bool,
}

/// The ranges of a file that go ahead next: whole stripes, or smaller pieces if there is none. Searches from an offset to
/// the end; if there are no stripes, also before the offset.
pub(super) fn choose_ranges(
    table: &dyn EvictionTable,
    ino: Ino,
    search: RangeSearch,
    stripe: StripeSize,
) -> std::io::Result<Vec<Range<u64>>> {
    let RangeSearch { begun, size, room } = search;
    let chosen = choose_within(table, ino, begun..size, room, stripe)?;
    if chosen.are_stripes || begun == 0 {
        return Ok(chosen.ranges);
    }
    let before = choose_within(table, ino, 0..begun, room, stripe)?;
    Ok(match before.are_stripes || chosen.ranges.is_empty() {
        true => before.ranges,
        false => chosen.ranges,
    })
}

/// The same for a part of the file.
fn choose_within(
    table: &dyn EvictionTable,
    ino: Ino,
    within: Range<u64>,
    room: WantedRoom,
    stripe: StripeSize,
) -> std::io::Result<ChosenRanges> {
    let unit = stripe.unit();
    let wanted = room.bytes.min(BATCH_BYTES);
    let (mut stripes, mut others) = (Vec::new(), Vec::new());
    let (mut bytes, mut other_bytes, mut at) = (0, 0, within.start);
    while at < within.end && bytes < wanted && stripes.len() < MOST_RANGES {
        let (stored, end) = table.stored_ranges(ino, at..within.end, Some(room.rank))?;
        for range in stored {
            let whole = stripe.round_up(range.start)..range.end - range.end % unit;
            if whole.start < whole.end {
                let end = whole.start.saturating_add(stripe.round_up(wanted - bytes));
                let end = end.min(whole.end);
                bytes += end - whole.start;
                stripes.push(whole.start..end);
            } else if other_bytes < wanted {
                other_bytes += range.end - range.start;
                others.push(range);
            }
            if bytes >= wanted {
                break;
            }
        }
        at = end.max(at + 1);
    }
    let are_stripes = !stripes.is_empty();
    let mut ranges = if are_stripes { stripes } else { others };
    ranges.truncate(MOST_RANGES);
    Ok(ChosenRanges {
        ranges,
        are_stripes,
    })
}

/// The parts of a range between sorted ranges.
pub(super) fn gaps(ranges: &[Range<u64>], within: Range<u64>) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = within.start;
    for range in ranges {
        if at < range.start {
            gaps.push(at..range.start);
        }
        at = range.end;
    }
    if at < within.end {
        gaps.push(at..within.end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_ranges_leave() {
        let check = |ranges: &[(u64, u64)], left: &[(u64, u64)]| {
            let ranges: Vec<Range<u64>> = ranges.iter().map(|&(from, to)| from..to).collect();
            let gaps = gaps(&ranges, 3..9).into_iter();
            assert_eq!(
                gaps.map(|gap| (gap.start, gap.end)).collect::<Vec<_>>(),
                left
            );
        };
        check(&[], &[(3, 9)]);
        check(&[(3, 5), (7, 9)], &[(5, 7)]);
        check(&[(4, 5)], &[(3, 4), (5, 9)]);
        check(&[(3, 9)], &[]);
    }
}
