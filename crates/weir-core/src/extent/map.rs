//! A sorted map of things with a file offset, in chunks.
//!
//! Intuition: a B-tree of two levels. Things lie sorted in chunks of at most [`CHUNK`]; the first
//! offsets of all chunks are in one flat array, so that a look-up is a binary search in that array
//! (a few cache lines, mostly hot) and one in a chunk. That one begins where the thing would be if
//! offsets were spread evenly: mostly it is there or next to it, so that a look-up in a big map
//! misses the cache once or twice. An insertion moves half a chunk, a split moves the array of
//! chunks once in `CHUNK / 2` insertions. Things that arrive in ascending order fill their chunks
//! wholly.
//!
//! Invariants: no chunk is empty; offsets ascend strictly over all chunks; `firsts[i]` is the
//! offset of `chunks[i][0]`. Keys must not be changed in place but by [`OffsetMap::get_mut`] users
//! that leave the offset as it is.

/// Most things in a chunk; few in tests, so that small cases have several.
pub(super) const CHUNK: usize = if cfg!(test) { 16 } else { 128 };

/// The key by which the map is sorted.
pub(super) trait Keyed: Copy {
    fn offset(&self) -> u64;
}

/// A position in the map: valid until the next change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct At {
    chunk: usize,
    index: usize,
}

/// Returns the last of `things` at `offset` or before it, where `first`, the offset of the first of
/// them, is not behind `offset`. `upto` is the offset at which the next chunk begins.
///
/// Interpolation search: guess, widen the guess in doubling steps until it holds the answer, halve.
/// For any distribution of the offsets it costs at most twice the steps of a binary search.
fn floor_in<T: Keyed>(things: &[T], offset: u64, first: u64, upto: Option<u64>) -> usize {
    let count = things.len();
    let before = |index: usize| things[index].offset() <= offset;
    let guess = upto.map_or(count - 1, |upto| {
        // Scaled down, so that the product fits.
        let scale = (u64::BITS - (upto - first).leading_zeros()).saturating_sub(48);
        let (distance, span) = ((offset - first) >> scale, (upto - first) >> scale);
        usize::try_from(distance * count as u64 / span)
            .unwrap_or(count)
            .min(count - 1)
    });
    let mut step = 1;
    let (low, high) = if before(guess) {
        let mut low = guess;
        while low + step < count && before(low + step) {
            low += step;
            step *= 2;
        }
        (low, count.min(low + step))
    } else {
        let mut high = guess;
        while high > step && !before(high - step) {
            high -= step;
            step *= 2;
        }
        (high.saturating_sub(step), high)
    };
    // things[low] is before or at `offset` (the first of all is), things[high] is not.
    low + things[low..high].partition_point(|thing| thing.offset() <= offset) - 1
}

#[derive(Clone, Debug)]
pub(super) struct OffsetMap<T> {
    firsts: Vec<u64>,
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for OffsetMap<T> {
    fn default() -> Self {
        OffsetMap {
            firsts: Vec::new(),
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T: Keyed> OffsetMap<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first thing at `offset` or behind it.
    pub(super) fn lower_bound(&self, offset: u64) -> At {
        match offset.checked_sub(1).and_then(|before| self.floor(before)) {
            Some(before) => self.next(before),
            None => At { chunk: 0, index: 0 },
        }
    }

    /// The last thing at `offset` or before it.
    pub(super) fn floor(&self, offset: u64) -> Option<At> {
        let chunk = self
            .firsts
            .partition_point(|first| *first <= offset)
            .checked_sub(1)?;
        let upto = self.firsts.get(chunk + 1);
        let index = floor_in(
            &self.chunks[chunk],
            offset,
            self.firsts[chunk],
            upto.copied(),
        );
        Some(At { chunk, index })
    }

    pub(super) fn get(&self, at: At) -> Option<&T> {
        self.chunks.get(at.chunk)?.get(at.index)
    }

    /// Returns the thing at `at`, whose offset must not change.
    pub(super) fn get_mut(&mut self, at: At) -> Option<&mut T> {
        self.chunks.get_mut(at.chunk)?.get_mut(at.index)
    }

    /// The thing whose offset is exactly `offset`.
    pub(super) fn find(&self, offset: u64) -> Option<&T> {
        let at = self.floor(offset)?;
        self.get(at).filter(|thing| thing.offset() == offset)
    }

    pub(super) fn next(&self, at: At) -> At {
        if self
            .chunks
            .get(at.chunk)
            .is_some_and(|chunk| at.index + 1 < chunk.len())
        {
            At {
                chunk: at.chunk,
                index: at.index + 1,
            }
        } else {
            At {
                chunk: at.chunk + 1,
                index: 0,
            }
        }
    }

    pub(super) fn previous(&self, at: At) -> Option<At> {
        if at.index > 0 {
            return Some(At {
                chunk: at.chunk,
                index: at.index - 1,
            });
        }
        let chunk = at.chunk.checked_sub(1)?;
        Some(At {
            chunk,
            index: self.chunks[chunk].len() - 1,
        })
    }

    pub(super) fn last(&self) -> Option<At> {
        self.previous(At {
            chunk: self.chunks.len(),
            index: 0,
        })
    }

    /// All things from `at` on.
    pub(super) fn iter_from(&self, at: At) -> impl Iterator<Item = &T> + '_ {
        let first = self
            .chunks
            .get(at.chunk)
            .map_or(&[][..], |chunk| &chunk[at.index.min(chunk.len())..]);
        let rest = self.chunks.get(at.chunk + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flatten())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + '_ {
        self.chunks.iter().flatten()
    }

    /// Inserts a thing whose offset is not there yet.
    pub(super) fn insert(&mut self, thing: T) {
        self.insert_at(self.lower_bound(thing.offset()), thing);
    }

    /// Inserts a thing before the one at `at`, which is its position in the order.
    pub(super) fn insert_at(&mut self, at: At, thing: T) {
        self.len += 1;
        let key = thing.offset();
        let At {
            mut chunk,
            mut index,
        } = at;
        if index == 0 && chunk > 0 {
            // Between two chunks: behind the first, where nothing has to move.
            chunk -= 1;
            index = self.chunks[chunk].len();
        }
        if self.chunks.is_empty() {
            self.firsts.push(key);
            self.chunks.push(Vec::new());
        }
        if self.chunks[chunk].len() == CHUNK {
            // At the very end nothing is split, so that ascending insertions leave full chunks.
            let at_end = chunk + 1 == self.chunks.len() && index == CHUNK;
            let middle = if at_end { CHUNK } else { CHUNK / 2 };
            let mut right = Vec::with_capacity(CHUNK);
            right.extend(self.chunks[chunk].drain(middle..));
            self.firsts
                .insert(chunk + 1, right.first().map_or(key, Keyed::offset));
            self.chunks.insert(chunk + 1, right);
            if index > middle || at_end {
                chunk += 1;
                index -= middle;
            }
        }
        if index == 0 {
            self.firsts[chunk] = key;
        }
        self.chunks[chunk].insert(index, thing);
    }

    /// Replaces the thing at `at` by `thing`; it lies between the same neighbours.
    pub(super) fn advance(&mut self, at: At, thing: T) {
        if at.index == 0 {
            self.firsts[at.chunk] = thing.offset();
        }
        self.chunks[at.chunk][at.index] = thing;
    }

    /// Removes the thing at `at`.
    pub(super) fn remove(&mut self, at: At) -> T {
        self.len -= 1;
        let thing = self.chunks[at.chunk].remove(at.index);
        self.tidy(at.chunk);
        thing
    }

    /// Removes all things with offsets in `[start, end)`, and returns them in order.
    pub(super) fn drain(&mut self, start: u64, end: u64, taken: &mut dyn FnMut(T)) {
        let (low, high) = (self.lower_bound(start), self.lower_bound(end));
        let before = self.len;
        for chunk in low.chunk..self.chunks.len().min(high.chunk + 1) {
            let things = &mut self.chunks[chunk];
            let from = if chunk == low.chunk { low.index } else { 0 };
            let to = if chunk == high.chunk {
                high.index
            } else {
                things.len()
            };
            self.len -= to.saturating_sub(from);
            things.drain(from..to.max(from)).for_each(&mut *taken);
        }
        if self.len == before {
            return;
        }
        // Whole chunks between the ends are now empty: they go at once.
        if high.chunk > low.chunk + 1 {
            self.firsts.drain(low.chunk + 1..high.chunk);
            self.chunks.drain(low.chunk + 1..high.chunk);
        }
        self.tidy(low.chunk + 1);
        self.tidy(low.chunk);
    }

    /// Restores the invariants of a chunk that lost things, and joins it to a neighbour where both are small.
    fn tidy(&mut self, chunk: usize) {
        let Some(things) = self.chunks.get(chunk) else {
            return;
        };
        let Some(first) = things.first() else {
            self.firsts.remove(chunk);
            self.chunks.remove(chunk);
            return;
        };
        self.firsts[chunk] = first.offset();
        if things.len() > CHUNK / 8 {
            return;
        }
        let left = if chunk + 1 < self.chunks.len() {
            chunk
        } else {
            chunk.saturating_sub(1)
        };
        if left + 1 < self.chunks.len()
            && self.chunks[left].len() + self.chunks[left + 1].len() <= CHUNK / 2
        {
            let right = self.chunks.remove(left + 1);
            self.firsts.remove(left + 1);
            self.chunks[left].extend(right);
        }
        let things = &mut self.chunks[left];
        if things.capacity() > 4 * things.len() {
            things.shrink_to(2 * things.len());
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let things: usize = self.chunks.iter().map(Vec::capacity).sum();
        things * size_of::<T>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
            + self.firsts.capacity() * 8
    }

    /// Gives back the unused memory that growth left.
    pub(super) fn shrink(&mut self) {
        self.firsts.shrink_to_fit();
        self.chunks.shrink_to_fit();
        self.chunks.iter_mut().for_each(Vec::shrink_to_fit);
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.firsts.len(), self.chunks.len());
        assert_eq!(self.len, self.chunks.iter().map(Vec::len).sum::<usize>());
        assert!(self
            .chunks
            .iter()
            .zip(&self.firsts)
            .all(|(chunk, first)| chunk[0].offset() == *first));
        assert!(self.chunks.iter().all(|chunk| chunk.len() <= CHUNK));
        assert!(self
            .iter()
            .zip(self.iter().skip(1))
            .all(|(a, b)| a.offset() < b.offset()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Keyed for u64 {
        fn offset(&self) -> u64 {
            *self
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        Drain(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Clusters near 0 and near the end, so that guesses are bad.
        let key = prop_oneof![
            0_u64..300,
            (0_u64..300).prop_map(|key| u64::MAX / 2 - key),
            any::<u64>()
        ]
        .boxed();
        prop_oneof![
            8 => key.clone().prop_map(Step::Insert),
            2 => key.clone().prop_map(Step::Remove),
            1 => (key.clone(), key).prop_map(|(a, b)| Step::Drain(a.min(b), a.max(b))),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(steps in prop::collection::vec(step(), 1..400), probe: u64) {
            let mut map = OffsetMap::<u64>::default();
            let mut set = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(key) => {
                        if set.insert(key) {
                            map.insert(key);
                        }
                    }
                    Step::Remove(key) => {
                        if let Some(next) = set.range(key..).next().copied() {
                            set.remove(&next);
                            prop_assert_eq!(map.remove(map.lower_bound(key)), next);
                        }
                    }
                    Step::Drain(start, end) => {
                        let mut taken = Vec::new();
                        map.drain(start, end, &mut |key| taken.push(key));
                        prop_assert_eq!(&taken, &set.range(start..end).copied().collect::<Vec<_>>());
                        set.retain(|key| !(start..end).contains(key));
                    }
                }
                map.check();
            }
            prop_assert!(map.iter().eq(set.iter()));
            for key in [0, 150, probe, u64::MAX / 2 - 150, u64::MAX] {
                let floor = map.floor(key).and_then(|at| map.get(at));
                prop_assert_eq!(floor, set.range(..=key).next_back());
                prop_assert!(map.iter_from(map.lower_bound(key)).eq(set.range(key..)));
                prop_assert_eq!(map.find(key), set.get(&key));
            }
        }
    }
}
