//! The tail of a client's segment: no byte belongs to the client and to the server.
//!
//! The client begins segments and takes from them; the server looks at the segment and the tail, checks
//! them against the lease, and takes the unused part, or all of a segment that no file uses
//! (`take_tails` of weir-server does what [`take_unused`] does here).

use std::ops::Range;
use std::sync::Arc;

use loom::thread;
use weir_core::node::tail::{Tail, TailWords};

use super::explore;

const SEGMENT: Range<u64> = 0..8;
const UNIT: u64 = 2;

/// Reserves bytes (client).
fn reserve(tail: &TailWords, bytes: u64) -> Option<Range<u64>> {
    let reserved = tail.update(|now| {
        (now.room() >= bytes).then_some(Tail {
            pos: now.pos + bytes,
            in_use: true,
            ..now
        })
    })?;
    Some(reserved.pos - bytes..reserved.pos)
}

/// Gives a reservation back, and with it the use of the segment (client).
fn give_back(tail: &TailWords, reserved: &Range<u64>) {
    tail.update(|now| {
        let unused = now.pos == reserved.end && !now.gone;
        Some(Tail {
            pos: if unused { reserved.start } else { now.pos },
            in_use: false,
            ..now
        })
    });
}

/// Takes the unused part of the client's segment, which must be one of `leases` (server). Returns the
/// segment and the part.
fn take_unused(tail: &TailWords, leases: &[u32]) -> Option<(u32, Range<u64>)> {
    let (segment, seen) = tail.current()?;
    if !leases.contains(&segment) || seen.end > SEGMENT.end {
        return None;
    }
    if !seen.in_use {
        return tail
            .take(&seen, seen.pos, true)
            .then_some((segment, SEGMENT));
    }
    let end = seen.pos.max(1).next_multiple_of(UNIT);
    (end < seen.end && tail.take(&seen, end, false)).then_some((segment, end..SEGMENT.end))
}

#[track_caller]
fn assert_apart(taken: Option<&(u32, Range<u64>)>, segment: u32, reserved: Option<&Range<u64>>) {
    if let (Some((of, taken)), Some(reserved)) = (taken, reserved) {
        let apart = taken.end <= reserved.start || reserved.end <= taken.start;
        assert!(
            *of != segment || apart,
            "{taken:?} and {reserved:?} of {segment}"
        );
    }
}

#[test]
fn reserved_bytes_are_not_taken() {
    explore(3, || {
        let tail = Arc::new(TailWords::default());
        tail.begin(7, SEGMENT.start, SEGMENT.end);
        let client = thread::spawn({
            let tail = Arc::clone(&tail);
            move || {
                let first = reserve(&tail, 1);
                if let Some(first) = &first {
                    give_back(&tail, first);
                }
                (first, reserve(&tail, 3))
            }
        });
        let taken = [take_unused(&tail, &[7]), take_unused(&tail, &[7])];
        let (first, second) = client.join().unwrap();
        for taken in &taken {
            assert_apart(taken.as_ref(), 7, second.as_ref());
        }
        let all_taken = matches!(&taken[0], Some((7, all)) if *all == SEGMENT);
        assert!(first.is_some() || all_taken);
    });
}

/// The server looks while the client goes on with another segment; files use the first one, or do not.
/// That the second one keeps its tail is no part of this: loom lets a plain store come before a swap that
/// it follows, so a load may see what the swap wrote. The count of the tail has a unit test.
fn begin_the_next(uses_first: bool) {
    explore(3, move || {
        let tail = Arc::new(TailWords::default());
        tail.begin(7, SEGMENT.start, SEGMENT.end);
        let first = uses_first.then(|| reserve(&tail, 1).unwrap());
        let client = thread::spawn({
            let tail = Arc::clone(&tail);
            move || {
                tail.begin(8, SEGMENT.start, SEGMENT.end);
                reserve(&tail, 3)
            }
        });
        let taken = take_unused(&tail, &[7, 8]);
        let second = client.join().unwrap();
        assert_apart(taken.as_ref(), 7, first.as_ref());
        assert_apart(taken.as_ref(), 8, second.as_ref());
    });
}

#[test]
fn a_segment_that_begins_is_not_taken() {
    begin_the_next(false);
}

#[test]
fn a_used_segment_is_not_taken_when_another_one_begins() {
    begin_the_next(true);
}

#[test]
fn a_segment_that_is_lent_again_is_not_taken_by_its_old_tail() {
    explore(3, || {
        let tail = Arc::new(TailWords::default());
        tail.begin(7, SEGMENT.start, SEGMENT.end);
        assert!(take_unused(&tail, &[7]).is_some());
        // The server lends it to the same client again.
        tail.forget_taken();
        let client = thread::spawn({
            let tail = Arc::clone(&tail);
            move || {
                tail.begin(7, SEGMENT.start, SEGMENT.end);
                reserve(&tail, 3)
            }
        });
        let taken = take_unused(&tail, &[7]);
        let reserved = client.join().unwrap();
        assert_apart(taken.as_ref(), 7, reserved.as_ref());
    });
}
