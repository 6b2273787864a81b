//! A rectangular part of a variable, with strides, and the intersection of two of them.
//!
//! The elements of a part are in the order of C: the last dimension is the fastest.

use serde::{Deserialize, Serialize};

/// The indexes of one dimension: `start`, `start + stride`, and so on, `count` of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// The first index.
    pub start: u64,
    /// The number of indexes.
    pub count: u64,
    /// 1 or more.
    pub stride: u64,
}

/// A part of a variable: one range for each dimension. A variable without dimensions has one element.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subarray(pub Box<[Range]>);

/// The indexes that two ranges have in common, as positions in each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Common {
    count: u64,
    first: [u64; 2],
    step: [u64; 2],
}

/// A run of elements that are contiguous in two parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonRun {
    /// The position of the first one in each part.
    pub first: [u64; 2],
    /// The number of elements.
    pub count: u64,
}

impl Range {
    /// All indexes from `start` on.
    pub fn new(start: u64, count: u64) -> Range {
        Range {
            start,
            count,
            stride: 1,
        }
    }

    /// The index behind the last one; `start` if there are none. `None`: it overflows.
    pub fn end_index(self) -> Option<u64> {
        match self.count.checked_sub(1) {
            None => Some(self.start),
            Some(last) => last
                .checked_mul(self.stride)?
                .checked_add(self.start)?
                .checked_add(1),
        }
    }

    fn common(self, other: Range) -> Option<Common> {
        let (end, other_end) = (self.end_index()?, other.end_index()?);
        let (from, to) = (self.start.max(other.start), end.min(other_end));
        if from >= to {
            return None;
        }
        // The first common index at or after `from`. If there is one, it is among the next `short.stride` indexes of the range with
        // the longer stride.
        let (long, short) = match self.stride >= other.stride {
            true => (self, other),
            false => (other, self),
        };
        let skipped = (from - long.start).div_ceil(long.stride);
        let candidates = (0..short.stride).map(|step| {
            let index = (skipped.checked_add(step)?).checked_mul(long.stride)?;
            index.checked_add(long.start)
        });
        let first = candidates
            .map_while(|index| index.filter(|index| *index < to))
            .find(|index| (index - short.start) % short.stride == 0)?;
        let step = long.stride / greatest_divisor(long.stride, short.stride);
        let step = step.saturating_mul(short.stride);
        Some(Common {
            count: (to - 1 - first) / step + 1,
            first: [self, other].map(|range| (first - range.start) / range.stride),
            step: [self, other].map(|range| step / range.stride),
        })
    }
}

fn greatest_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Subarray {
    /// The number of elements; `None`: it overflows.
    pub fn elements(&self) -> Option<u64> {
        let mut counts = self.0.iter().map(|range| range.count);
        counts.try_fold(1_u64, u64::checked_mul)
    }

    /// True if two parts of one variable have an element in common.
    pub fn overlaps(&self, other: &Subarray) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        pairs.all(|(range, other)| range.common(*other).is_some())
    }

    /// Visits the runs of elements that both parts have, in order. Both must be parts of one variable.
    pub fn for_common_runs(&self, other: &Subarray, mut visit: impl FnMut(CommonRun)) {
        let commons = self.0.iter().zip(&other.0);
        let commons: Option<Vec<Common>> = commons.map(|(a, b)| a.common(*b)).collect();
        let Some(commons) = commons else {
            return;
        };
        let strides = [self, other].map(Subarray::steps);
        let Some((last, outer)) = commons.split_last() else {
            visit(CommonRun {
                first: [0, 0],
                count: 1,
            });
            return;
        };
        let mut at = vec![0_u64; outer.len()];
        loop {
            let mut first = last.first;
            for (dimension, common) in outer.iter().enumerate() {
                for (side, first) in first.iter_mut().enumerate() {
                    let position = common.first[side] + at[dimension] * common.step[side];
                    *first += position * strides[side][dimension];
                }
            }
            if last.step == [1, 1] {
                visit(CommonRun {
                    first,
                    count: last.count,
                });
            } else {
                for index in 0..last.count {
                    let first = [0, 1].map(|side: usize| first[side] + index * last.step[side]);
                    visit(CommonRun { first, count: 1 });
                }
            }
            if !advance(&mut at, |dimension| outer[dimension].count) {
                return;
            }
        }
    }

    /// For each dimension: the distance between neighbours in the part, in elements.
    fn steps(&self) -> Vec<u64> {
        let mut steps = vec![1; self.0.len()];
        for dimension in (1..self.0.len()).rev() {
            steps[dimension - 1] = steps[dimension] * self.0[dimension].count;
        }
        steps
    }

    /// The part with the elements of both, one after the other. `None`: `next` does not continue this part. It does if the two
    /// differ in one dimension only, `next` begins there where this part ends, and all slower dimensions have a single index.
    pub fn joined(&self, next: &Subarray) -> Option<Subarray> {
        if self.0.len() != next.0.len() {
            return None;
        }
        let differs = |dimension: &usize| self.0[*dimension] != next.0[*dimension];
        let dimension = (0..self.0.len()).find(differs)?;
        let (own, other) = (self.0[dimension], next.0[dimension]);
        let is_slowest = self.0[..dimension].iter().all(|range| range.count == 1);
        let is_same_behind = self.0[dimension + 1..] == next.0[dimension + 1..];
        let goes_on = own.stride == 1 && other.stride == 1 && own.end_index() == Some(other.start);
        if !is_slowest || !is_same_behind || !goes_on {
            return None;
        }
        let mut joined = self.clone();
        joined.0[dimension].count = own.count.checked_add(other.count)?;
        Some(joined)
    }
}

/// Advances to the next combination of indexes, the last one fastest. False: there is none.
pub fn advance(at: &mut [u64], counts: impl Fn(usize) -> u64) -> bool {
    for dimension in (0..at.len()).rev() {
        at[dimension] += 1;
        if at[dimension] < counts(dimension) {
            return true;
        }
        at[dimension] = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn range() -> impl Strategy<Value = Range> {
        (0_u64..12, 0_u64..6, 1_u64..5).prop_map(|(start, count, stride)| Range {
            start,
            count,
            stride,
        })
    }

    fn subarray() -> impl Strategy<Value = [Subarray; 2]> {
        (0_usize..4).prop_flat_map(|rank| {
            let part =
                || prop::collection::vec(range(), rank).prop_map(|ranges| Subarray(ranges.into()));
            [part(), part()]
        })
    }

    /// The elements of a part, with their positions.
    fn elements(part: &Subarray) -> BTreeMap<Vec<u64>, u64> {
        let mut found = BTreeMap::new();
        if part.elements() == Some(0) {
            return found;
        }
        let mut at = vec![0; part.0.len()];
        loop {
            let index = at
                .iter()
                .zip(&part.0)
                .map(|(at, range)| range.start + at * range.stride);
            let position = found.len() as u64;
            found.insert(index.collect(), position);
            if !advance(&mut at, |dimension| part.0[dimension].count) {
                return found;
            }
        }
    }

    proptest! {
        #[test]
        fn common_elements_are_those_of_both([a, b] in subarray()) {
            let (in_a, in_b) = (elements(&a), elements(&b));
            let wanted: Vec<[u64; 2]> = in_a.iter().filter_map(|(index, at)| Some([*at, *in_b.get(index)?])).collect();
            let mut found = Vec::new();
            a.for_common_runs(&b, |run| {
                found.extend((0..run.count).map(|next| run.first.map(|first| first + next)));
            });
            prop_assert_eq!(a.overlaps(&b), !wanted.is_empty());
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn a_joined_part_has_the_elements_of_both_in_their_order([a, b] in subarray()) {
            if let Some(joined) = a.joined(&b) {
                let (in_a, in_b) = (elements(&a), elements(&b));
                let mut wanted = in_a.clone();
                wanted.extend(in_b.into_iter().map(|(index, at)| (index, at + in_a.len() as u64)));
                prop_assert_eq!(elements(&joined), wanted);
            }
        }
    }

    #[test]
    fn rows_are_joined() {
        let row = |start| Subarray([Range::new(start, 1), Range::new(0, 8)].into());
        let joined = row(0).joined(&row(1)).unwrap();
        assert_eq!(joined.0[0], Range::new(0, 2));
        assert_eq!(joined.joined(&row(3)), None);
    }

    #[test]
    fn numbers_that_are_too_large_do_not_overflow() {
        let vast = Range {
            start: u64::MAX - 1,
            count: u64::MAX,
            stride: u64::MAX,
        };
        assert_eq!(vast.end_index(), None);
        assert!(!Subarray([vast].into()).overlaps(&Subarray([Range::new(0, 4)].into())));
        assert_eq!(Subarray([vast, vast].into()).elements(), None);
    }
}
