//! The order of puts of several processes.
//!
//! A process knows only its own puts. But all processes make collective calls in the same order. So if all processes know, for each
//! collective call, the range of the file in which the puts of all of them lie ([`FileSpan`]), they all compute the same *waves*.
//! Puts of one wave may be written in any order, but only after those of all earlier waves. Two calls whose spans overlap are in
//! different waves, in their order. A span also covers bytes that are not written (between two rows of a block lie others), so
//! there may be an extra wave, never a missing one.

use std::collections::BTreeMap;

/// The bytes of a file from the first to the last one of some puts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSpan {
    /// The offset of the first one.
    pub first: u64,
    /// The offset behind the last one.
    pub end: u64,
}

impl FileSpan {
    /// The span of no puts.
    pub const EMPTY: FileSpan = FileSpan {
        first: u64::MAX,
        end: 0,
    };

    /// The span of puts that may be anywhere.
    pub const ALL: FileSpan = FileSpan {
        first: 0,
        end: u64::MAX,
    };

    /// True if it has no byte.
    pub fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// The span of the puts of both.
    #[must_use]
    pub fn joined(self, other: FileSpan) -> FileSpan {
        FileSpan {
            first: self.first.min(other.first),
            end: self.end.max(other.end),
        }
    }
}

/// The waves of the calls so far, by the bytes that they write.
#[derive(Debug, Default)]
pub struct Waves {
    /// Ranges of the file by their first bytes: the offset behind the range, and the last wave that writes it.
    last: BTreeMap<u64, (u64, u32)>,
    count: u32,
}

impl Waves {
    /// Adds the next call. Returns its wave.
    pub fn add(&mut self, span: FileSpan) -> u32 {
        self.count = self.count.max(1);
        if span.is_empty() {
            return 0;
        }
        let before = self.last.range(..span.first).next_back();
        let before = before.map(|(first, (end, wave))| (*first, *end, *wave));
        let before = before.filter(|(_, end, _)| *end > span.first);
        let within = self.last.range(span.first..span.end);
        let within: Vec<(u64, u64, u32)> = within
            .map(|(first, (end, wave))| (*first, *end, *wave))
            .collect();
        let mut wave = 0;
        for (first, end, earlier) in before.into_iter().chain(within) {
            wave = wave.max(earlier + 1);
            self.last.remove(&first);
            if first < span.first {
                self.last.insert(first, (span.first, earlier));
            }
            if end > span.end {
                self.last.insert(span.end, (end, earlier));
            }
        }
        self.last.insert(span.first, (span.end, wave));
        self.count = self.count.max(wave + 1);
        wave
    }

    /// The number of waves.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waves(spans: &[(u64, u64)]) -> Vec<u32> {
        let mut waves = Waves::default();
        let spans = spans.iter().map(|(first, end)| FileSpan {
            first: *first,
            end: *end,
        });
        spans.map(|span| waves.add(span)).collect()
    }

    #[test]
    fn calls_that_overlap_are_in_waves_of_their_own() {
        // Two halves of each record, of which the parts of the processes interleave.
        let records = [(0, 90), (10, 100), (100, 190), (110, 200)];
        assert_eq!(waves(&records), [0, 1, 0, 1]);
        assert_eq!(
            waves(&[(0, 10), (0, 0), (10, 20), (5, 15), (0, 5)]),
            [0, 0, 0, 1, 1]
        );
        assert_eq!(waves(&[(0, 10), (0, 10), (0, 10)]), [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn later_calls_are_in_later_waves(
            spans in prop::collection::vec((0_u64..40, 0_u64..12), 0..60)
        ) {
            let spans: Vec<(u64, u64)> = spans.iter().map(|(at, length)| (*at, at + length)).collect();
            let found = waves(&spans);
            for (later, (first, end)) in spans.iter().enumerate() {
                let earlier = spans[..later].iter().zip(&found).filter(|((other, other_end), _)| {
                    first < other_end && other < end && first < end && other < other_end
                });
                // No more waves than are needed.
                let expected = earlier.map(|(_, wave)| wave + 1).max().unwrap_or(0);
                prop_assert_eq!(found[later], expected);
            }
        }
    }
}
