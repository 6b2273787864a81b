//! Directory entries in the arena, and the walk along a bucket.
//!
//! ```text
//!  word 0   parent inode number
//!  word 1   child inode number
//!           63            32 31             0
//!  word 2  | hash           | next in bucket |   granules; 0 ends the bucket
//!           63            16 15  14   8 7       0
//!  word 3  | sequence       | R | type | length  |   sequence: position in the directory's order
//!  word 4.. name, little-endian, padded with zeros
//! ```
//!
//! R: a rename between servers has locked the name, and may soon take it away.
//!
//! Granules are 16 bytes, so a name of up to 16 bytes takes 48 bytes, 12 of them the name in the
//! usual case. Functions here accept any words: a reader may be walking memory that is just being
//! reused (its stripe will tell it so), or nonsense.

use super::hash::{words, EntryKey};
use super::layout::{Tables, STRIPES};
use super::{FileType, NAME_MAX};
use crate::types::Ino;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Words in a granule.
pub(super) const GRANULE_WORDS: usize = 2;
/// Words before the name.
const HEAD: usize = 4;
/// Word 3: the bit R.
const RENAMING: u64 = 1 << 15;
/// Longest walk. At a load of one entry a bucket, real ones stay below 20.
const MAX_WALK: usize = 4096;

/// An entry that was found: its position and its words.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundEntry {
    /// Its granule.
    pub(super) at: u32,
    pub(super) child: Ino,
    pub(super) kind: FileType,
    pub(super) is_renaming: bool,
}

/// Returns the bucket of `hash` among `count`, by linear hashing (Litwin, VLDB 1980): the first
/// `count` of a power of two buckets exist, the others are still part of their lower half's.
#[inline]
pub(super) fn bucket_of(hash: u32, count: u32) -> u32 {
    let mask = count.max(1).checked_next_power_of_two().unwrap_or(0);
    let mask = mask.wrapping_sub(1);
    let bucket = hash & mask;
    if bucket >= count {
        bucket & (mask >> 1)
    } else {
        bucket
    }
}

/// Returns the sequence counter of a hash's bucket.
#[inline]
pub(super) fn stripe<'a>(tables: &Tables<'a>, hash: u32) -> &'a AtomicU64 {
    &tables.header.stripes[hash as usize % STRIPES]
}

/// A view of one entry's words, at least its head.
#[derive(Clone, Copy)]
pub(super) struct Dentry<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Dentry<'a> {
    /// Returns the entry at granule `at`; `None` where the arena has no room for one.
    #[inline]
    pub(super) fn at(arena: &'a [AtomicU64], at: u32) -> Option<Self> {
        let words = arena.get(at as usize * GRANULE_WORDS..)?;
        (at != 0 && words.len() >= HEAD).then_some(Dentry { words })
    }

    pub(super) fn parent(self) -> Ino {
        Ino(self.words[0].load(Relaxed))
    }

    pub(super) fn child(self) -> Ino {
        Ino(self.words[1].load(Relaxed))
    }

    pub(super) fn hash(self) -> u32 {
        (self.words[2].load(Relaxed) >> 32) as u32
    }

    pub(super) fn next(self) -> u32 {
        (self.words[2].load(Relaxed) & 0xFFFF_FFFF) as u32
    }

    pub(super) fn set_next(self, next: u32) {
        let hash = self.words[2].load(Relaxed) & !0xFFFF_FFFF;
        self.words[2].store(hash | u64::from(next), Relaxed);
    }

    pub(super) fn sequence(self) -> u64 {
        self.words[3].load(Relaxed) >> 16
    }

    pub(super) fn kind(self) -> Option<FileType> {
        kind_of((self.words[3].load(Relaxed) >> 8 & 0x7F) as u8)
    }

    pub(super) fn is_renaming(self) -> bool {
        self.words[3].load(Relaxed) & RENAMING != 0
    }

    pub(super) fn set_renaming(self, is_renaming: bool) {
        let rest = self.words[3].load(Relaxed) & !RENAMING;
        let mark = if is_renaming { RENAMING } else { 0 };
        self.words[3].store(rest | mark, Relaxed);
    }

    /// Makes the entry name another inode. No rename is to take the name any more.
    pub(super) fn set_child(self, child: Ino, kind: FileType) {
        let rest = self.words[3].load(Relaxed) & !0xFF00;
        self.words[1].store(child.0, Relaxed);
        self.words[3].store(rest | u64::from(code(kind)) << 8, Relaxed);
    }

    /// Writes all of the entry but `next`. The block has room for its [`granules`].
    pub(super) fn fill(self, key: &EntryKey<'_>, child: Ino, kind: FileType, sequence: u64) {
        let tail = sequence << 16 | u64::from(code(kind)) << 8 | key.name.len() as u64;
        let head = [key.parent.0, child.0, u64::from(key.hash) << 32, tail];
        for (word, value) in self
            .words
            .iter()
            .zip(head.into_iter().chain(words(key.name)))
        {
            word.store(value, Relaxed);
        }
    }

    /// Copies the name; returns its length, or `None` if the words hold no name.
    pub(super) fn name(self, out: &mut [u8; NAME_MAX]) -> Option<usize> {
        let len = usize::from((self.words[3].load(Relaxed) & 0xFF) as u8);
        copy_bytes(self.words.get(HEAD..)?, out.get_mut(..len)?)?;
        (len > 0).then_some(len)
    }

    #[inline]
    fn matches(self, key: &EntryKey<'_>) -> bool {
        let len = (self.words[3].load(Relaxed) & 0xFF) as usize;
        let count = len.div_ceil(8);
        self.hash() == key.hash
            && self.parent() == key.parent
            && len == key.name.len()
            && self.words.len() >= HEAD + count
            && self.words[HEAD..]
                .iter()
                .zip(words(key.name))
                .all(|(ours, theirs)| ours.load(Relaxed) == theirs)
    }
}

/// Copies bytes kept as words; returns `None` if there are fewer words.
pub(super) fn copy_bytes(from: &[AtomicU64], out: &mut [u8]) -> Option<()> {
    if from.len() * 8 < out.len() {
        return None;
    }
    for (word, bytes) in from.iter().zip(out.chunks_mut(8)) {
        bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..bytes.len()]);
    }
    Some(())
}

/// Returns the granules of an entry with a name of `len` bytes.
pub(super) fn granules(len: usize) -> usize {
    (HEAD + len.div_ceil(8)).div_ceil(GRANULE_WORDS)
}

const fn code(kind: FileType) -> u8 {
    match kind {
        FileType::File => 1,
        FileType::Dir => 2,
        FileType::Symlink => 3,
        FileType::Fifo => 4,
        FileType::Socket => 5,
    }
}

const fn kind_of(code: u8) -> Option<FileType> {
    match code {
        1 => Some(FileType::File),
        2 => Some(FileType::Dir),
        3 => Some(FileType::Symlink),
        4 => Some(FileType::Fifo),
        5 => Some(FileType::Socket),
        _ => None,
    }
}

/// Finds the entry of `key` in its bucket. The answer is valid only under its stripe (or in the
/// writer).
#[inline]
pub(super) fn find(tables: &Tables<'_>, key: &EntryKey<'_>) -> Option<FoundEntry> {
    let count = tables.header.bucket_count.0.load(Relaxed);
    let bucket = bucket_of(key.hash, count);
    // Acquire: pairs with the release that linked the newest entry, and so with everything written
    // before it: the older entries and their inodes.
    let mut at = tables.buckets.get(bucket as usize)?.load(Acquire);
    for _ in 0..MAX_WALK {
        let entry = Dentry::at(tables.arena, at)?;
        if entry.matches(key) {
            return Some(FoundEntry {
                at,
                child: entry.child(),
                kind: entry.kind()?,
                is_renaming: entry.is_renaming(),
            });
        }
        at = entry.next();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_linear_hashing() {
        // 5 buckets: hashes ending in 0 (mod 4) are already split into 0 and 4.
        let got: Vec<u32> = (0..9).map(|hash| bucket_of(hash, 5)).collect();
        assert_eq!(got, [0, 1, 2, 3, 4, 1, 2, 3, 0]);
        assert_eq!(bucket_of(77, 0), 0);
        for count in [1, 2, 1024, 1025, u32::MAX] {
            assert!(bucket_of(u32::MAX, count) < count);
        }
    }

    #[test]
    fn an_entry_keeps_what_it_was_given() {
        let arena: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(u64::MAX)).collect();
        let key = EntryKey::for_lookup(Ino(9), b"results.nc").unwrap();
        let entry = Dentry::at(&arena, 1).unwrap();
        entry.fill(&key, Ino(77), FileType::Symlink, 1 << 40);
        entry.set_next(5);
        entry.set_child(Ino(78), FileType::Dir);
        assert_eq!((entry.parent(), entry.child()), (Ino(9), Ino(78)));
        assert_eq!((entry.next(), entry.sequence()), (5, 1 << 40));
        assert_eq!(
            (entry.hash(), entry.kind()),
            (key.hash, Some(FileType::Dir))
        );
        let mut name = [0; NAME_MAX];
        let len = entry.name(&mut name).unwrap();
        assert_eq!(&name[..len], b"results.nc");
        assert!(entry.matches(&key));
        assert!(!entry.matches(&EntryKey::for_lookup(Ino(9), b"results.nd").unwrap()));
        assert_eq!(granules(10), 3);
    }
}
