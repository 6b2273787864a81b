//! Bytes of laminated files that came from other nodes and stay in the node's pool, so that a
//! second program that reads them moves nothing.
//!
//! An entry is known by the file and the position of its bytes in a log. A laminated file's bytes
//! never change and never move, and no other file ever gets its number. So an entry stays right,
//! and the server need not learn that the file was removed and its log reused. When room is needed,
//! the entries go first that were unused for the longest time. At most half of the pool is kept.
//!
//! Not covered: reads whose bytes are still on their way for another client, and reads that are
//! kept in part, or in two places. They are fetched.

use std::collections::{BTreeMap, HashMap};

use weir_core::proto::peer::LogRange;
use weir_core::types::Ino;

/// The file, and the position of its first byte in a log: server, slab, position.
type Key = (Ino, u16, u32, u64);

/// A place of the pool that keeps the bytes of a read.
#[derive(Debug)]
struct Entry {
    key: Key,
    ranges: Vec<LogRange>,
    at: u32,
    len: u32,
    users: u32,
    /// The time of its last use, if it is not in use.
    idle_since: u64,
}

/// The kept bytes of laminated files.
#[derive(Debug, Default)]
pub struct CachedReads {
    entries: HashMap<u64, Entry>,
    by_place: BTreeMap<Key, u64>,
    /// The entries that are not in use, by the time of their last use.
    idle: BTreeMap<u64, u64>,
    next: u64,
    bytes: u64,
    hits: u64,
}

impl CachedReads {
    /// Returns true if all bytes of a read are kept.
    pub fn has(&self, ino: Ino, ranges: &[LogRange]) -> bool {
        self.place_of(ino, ranges).is_some()
    }

    /// Finds the entry that has all bytes of a read, and its position in the pool. It stays until
    /// [`CachedReads::release`].
    pub fn find(&mut self, ino: Ino, ranges: &[LogRange]) -> Option<(u64, u32)> {
        let (id, offset) = self.place_of(ino, ranges)?;
        let entry = self.entries.get_mut(&id)?;
        if entry.users == 0 {
            self.idle.remove(&entry.idle_since);
        }
        entry.users += 1;
        self.hits += 1;
        Some((id, entry.at + offset))
    }

    fn place_of(&self, ino: Ino, ranges: &[LogRange]) -> Option<(u64, u32)> {
        let wanted = merged(ranges);
        let key = key_of(ino, wanted.first()?);
        let (found, id) = self.by_place.range(..=key).next_back()?;
        let near = (found.0, found.1, found.2) == (key.0, key.1, key.2);
        let entry = self.entries.get(id).filter(|_| near)?;
        let end = |range: &LogRange| range.pos.saturating_add(range.len);
        let offset = match (&entry.ranges[..], &wanted[..]) {
            (has, wants) if has == wants => 0,
            ([has], [wants]) if end(wants) <= end(has) => wants.pos - has.pos,
            _ => return None,
        };
        Some((*id, u32::try_from(offset).ok()?))
    }

    /// Ends one use of an entry that was found.
    pub fn release(&mut self, id: u64) {
        self.next += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.users -= 1;
            if entry.users == 0 {
                entry.idle_since = self.next;
                self.idle.insert(self.next, id);
            }
        }
    }

    /// Keeps the `len` bytes at `at` of the pool, which are those of a read; false if they are kept
    /// already.
    pub fn keep(&mut self, ino: Ino, ranges: &[LogRange], at: u32, len: u32) -> bool {
        let ranges = merged(ranges);
        let Some(key) = ranges.first().map(|first| key_of(ino, first)) else {
            return false;
        };
        if self.by_place.contains_key(&key) {
            return false;
        }
        self.next += 1;
        let id = self.next;
        self.by_place.insert(key, id);
        self.idle.insert(id, id);
        self.bytes += u64::from(len);
        self.entries.insert(
            id,
            Entry {
                key,
                ranges,
                at,
                len,
                users: 0,
                idle_since: id,
            },
        );
        true
    }

    /// Drops the entry that was unused for the longest time. Returns its place, which is now free.
    pub fn evict(&mut self) -> Option<(u32, u32)> {
        let (_, id) = self.idle.pop_first()?;
        let entry = self.entries.remove(&id)?;
        self.by_place.remove(&entry.key);
        self.bytes -= u64::from(entry.len);
        Some((entry.at, entry.len))
    }

    /// The number of kept bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of reads that were answered from kept bytes.
    pub fn hits(&self) -> u64 {
        self.hits
    }
}

fn key_of(ino: Ino, first: &LogRange) -> Key {
    (ino, first.rank, first.slab, first.pos)
}

/// The same bytes in as few ranges as possible.
fn merged(ranges: &[LogRange]) -> Vec<LogRange> {
    let mut out: Vec<LogRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last)
                if (last.rank, last.slab) == (range.rank, range.slab)
                    && last.pos.checked_add(last.len) == Some(range.pos) =>
            {
                last.len = last.len.saturating_add(range.len);
            }
            _ => out.push(*range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::Rank;

    const FILE: Ino = Ino::new(Rank(1), 5, 1);
    const OTHER: Ino = Ino::new(Rank(1), 5, 2);

    fn range(pos: u64, len: u64) -> LogRange {
        LogRange {
            rank: 1,
            slab: 3,
            pos,
            len,
        }
    }

    #[test]
    fn what_is_kept_is_found_whole_or_in_part_and_for_its_file_only() {
        let mut kept = CachedReads::default();
        assert!(kept.keep(FILE, &[range(100, 50), range(150, 50)], 4096, 100));
        assert!(!kept.keep(FILE, &[range(100, 10)], 0, 10), "it is there");
        let found =
            |kept: &mut CachedReads, ino, ranges: &[LogRange]| kept.find(ino, ranges).map(|f| f.1);
        assert_eq!(found(&mut kept, FILE, &[range(100, 100)]), Some(4096));
        assert_eq!(found(&mut kept, FILE, &[range(130, 60)]), Some(4126));
        assert_eq!(found(&mut kept, FILE, &[range(130, 71)]), None);
        assert_eq!(found(&mut kept, FILE, &[range(99, 5)]), None);
        assert_eq!(found(&mut kept, OTHER, &[range(100, 100)]), None);
        assert!(kept.keep(FILE, &[range(500, 8), range(900, 8)], 0, 16));
        let two = [range(500, 8), range(900, 8)];
        assert_eq!(found(&mut kept, FILE, &two), Some(0));
        assert_eq!(found(&mut kept, FILE, &two[..1]), None, "left out");
        assert_eq!((kept.bytes(), kept.hits()), (116, 3));
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_what_is_used_stays() {
        let mut kept = CachedReads::default();
        for at in 0..4_u32 {
            assert!(kept.keep(FILE, &[range(u64::from(at) * 100, 10)], at, 10));
        }
        let (first, _) = kept.find(FILE, &[range(0, 10)]).unwrap();
        let (second, _) = kept.find(FILE, &[range(100, 10)]).unwrap();
        kept.release(second);
        assert_eq!(kept.evict(), Some((2, 10)));
        assert_eq!(kept.evict(), Some((3, 10)));
        assert_eq!(kept.evict(), Some((1, 10)));
        assert_eq!(kept.evict(), None);
        kept.release(first);
        assert_eq!(kept.evict(), Some((0, 10)));
        assert_eq!(kept.bytes(), 0);
    }
}
