//! The order of each directory's entries: the writer's private index for `readdir`.
//!
//! An entry gets the next sequence number of its directory when it is made; that number is the
//! cookie of a scan that has reached it. So a scan meets every entry that stays throughout exactly
//! once, in spite of other changes, and the removal of an entry disturbs no scan.
//!
//! A directory is a queue of chunks of up to 128 (sequence, granule) pairs, sorted: new
//! pairs only come at the end, so a chunk fills up whole, and neighbours that became
//! sparse are merged. 8 bytes an entry, against about 25 in a `BTreeMap`.

use super::shard::FIRST_COOKIE;
use super::NamesError;
use std::collections::VecDeque;

const CHUNK: usize = 128;
/// Two neighbours with no more than this together become one.
const MERGE: usize = CHUNK * 3 / 4;

/// The greatest sequence number that an entry has room for.
const MAX_SEQUENCE: u64 = (1 << 48) - 1;

/// Pairs of sequences from `base` on.
struct OrderChunk {
    base: u64,
    pairs: Vec<(u32, u32)>,
}

/// One directory's entries in order.
pub(super) struct EntryOrder {
    next: u64,
    len: u64,
    chunks: VecDeque<OrderChunk>,
}

impl Default for EntryOrder {
    fn default() -> Self {
        EntryOrder {
            next: FIRST_COOKIE,
            len: 0,
            chunks: VecDeque::new(),
        }
    }
}

impl EntryOrder {
    /// Entries in the directory.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds the entry at granule `at`; returns its sequence number.
    pub(super) fn push(&mut self, at: u32) -> u64 {
        let sequence = self.next;
        self.next += 1;
        self.len += 1;
        if let Some(last) = self.chunks.back_mut() {
            if let (true, Ok(delta)) = (
                last.pairs.len() < CHUNK,
                u32::try_from(sequence - last.base),
            ) {
                last.pairs.push((delta, at));
                return sequence;
            }
        }
        self.chunks.push_back(OrderChunk {
            base: sequence,
            pairs: vec![(0, at)],
        });
        sequence
    }

    /// Sets the sequence number of the next entry, which is greater than all existing ones.
    pub(super) fn skip_to(&mut self, sequence: u64) -> Result<(), NamesError> {
        if sequence < self.next || sequence > MAX_SEQUENCE {
            return Err(NamesError::InvalidName);
        }
        self.next = sequence;
        Ok(())
    }

    /// Removes the entry with this sequence number, which must be there.
    pub(super) fn remove(&mut self, sequence: u64) {
        let index = self.chunk_of(sequence);
        let chunk = &mut self.chunks[index];
        let place = chunk.search(sequence).expect("an entry is in its order");
        chunk.pairs.remove(place);
        self.len -= 1;
        if chunk.pairs.is_empty() {
            self.chunks.remove(index);
        } else if chunk.pairs.len() <= MERGE / 2 {
            self.merge(index);
        }
    }

    /// Returns the cookie of the last entry that was made; less than any other if there was none.
    pub(super) fn last_cookie(&self) -> u64 {
        self.next - 1
    }

    /// Returns the entries (sequence, granule) after `cookie`, in order.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let first = self.chunk_of(cookie);
        self.chunks
            .iter()
            .skip(first)
            .flat_map(|chunk| {
                let base = chunk.base;
                chunk
                    .pairs
                    .iter()
                    .map(move |(d, at)| (base + u64::from(*d), *at))
            })
            .skip_while(move |(sequence, _)| *sequence <= cookie)
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let pairs: usize = self.chunks.iter().map(|c| c.pairs.capacity() * 8).sum();
        size_of::<Self>() + self.chunks.capacity() * size_of::<OrderChunk>() + pairs
    }

    /// Returns the chunk in which `sequence` is or would be (0 if it is before them all).
    fn chunk_of(&self, sequence: u64) -> usize {
        self.chunks
            .partition_point(|chunk| chunk.base <= sequence)
            .saturating_sub(1)
    }

    /// Joins chunk `index` with a neighbour, if they are small together.
    fn merge(&mut self, index: usize) {
        let left = if index > 0 && self.can_merge(index - 1) {
            index - 1
        } else if self.can_merge(index) {
            index
        } else {
            return;
        };
        let Some(right) = self.chunks.remove(left + 1) else {
            return;
        };
        let chunk = &mut self.chunks[left];
        let shift = right.base - chunk.base;
        let moved = right
            .pairs
            .iter()
            .filter_map(|(delta, at)| Some((u32::try_from(u64::from(*delta) + shift).ok()?, *at)));
        chunk.pairs.extend(moved);
    }

    fn can_merge(&self, left: usize) -> bool {
        let (Some(a), Some(b)) = (self.chunks.get(left), self.chunks.get(left + 1)) else {
            return false;
        };
        let last = b.base + b.pairs.last().map_or(0, |(delta, _)| u64::from(*delta));
        a.pairs.len() + b.pairs.len() <= MERGE && u32::try_from(last - a.base).is_ok()
    }
}

impl OrderChunk {
    fn search(&self, sequence: u64) -> Option<usize> {
        let delta = u32::try_from(sequence.checked_sub(self.base)?).ok()?;
        self.pairs.binary_search_by_key(&delta, |(d, _)| *d).ok()
    }
}

/// All directories' orders, by number. Freed numbers are used again.
#[derive(Default)]
pub(super) struct EntryOrders {
    orders: Vec<EntryOrder>,
    free: Vec<u32>,
}

impl EntryOrders {
    pub(super) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.orders.push(EntryOrder::default());
            u32::try_from(self.orders.len() - 1).expect("fewer directories than inodes")
        })
    }

    pub(super) fn remove(&mut self, number: u32) {
        *self.get_mut(number) = EntryOrder::default();
        self.free.push(number);
    }

    pub(super) fn get(&self, number: u32) -> &EntryOrder {
        &self.orders[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut EntryOrder {
        &mut self.orders[number as usize]
    }

    /// Private memory, in bytes.
    pub(super) fn private_bytes(&self) -> usize {
        let spare = self.orders.capacity() - self.orders.len();
        let orders: usize = self.orders.iter().map(EntryOrder::bytes).sum();
        orders + spare * size_of::<EntryOrder>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_sorted_map() {
        let mut order = EntryOrder::default();
        let mut model = BTreeMap::new();
        let mut random = 7_u64;
        for round in 0..60_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let pick = random >> 33;
            // Grow, then shrink to a tenth, then grow again.
            let grow = if (round / 20_000) % 2 == 0 { 70 } else { 20 };
            if pick % 100 < grow || model.is_empty() {
                model.insert(order.push(round), round);
            } else {
                let from = FIRST_COOKIE + pick % (order.next - FIRST_COOKIE);
                let key = model.range(from..).chain(&model).next().map(|(k, _)| *k);
                model.remove(&key.unwrap());
                order.remove(key.unwrap());
            }
            if round % 500 == 0 {
                let cookie = pick % order.next;
                let want: Vec<_> = model.range(cookie + 1..).map(|(k, v)| (*k, *v)).collect();
                assert_eq!(order.after(cookie).collect::<Vec<_>>(), want);
            }
            assert_eq!(order.len(), model.len() as u64);
        }
        assert!(order.bytes() < model.len() * 24 + 4096);
    }
}
