//! The records of the shared tables, their positions in the file, and the check that a mapped file
//! holds tables of weir's.
//!
//! ```text
//!  file, each section aligned to 4096 bytes; sparse, sized for the maximum
//! +--------+---------------------+----------------------------+--------------+
//! | header | inodes              | arena                      | buckets      |
//! | 1      | InodeRecord[max+1]  | u64[]: entries, link       | u32[]: first |
//! |        | (slot 0 is unused)  | targets (see `dentry`)     | entry        |
//! +--------+---------------------+----------------------------+--------------+
//! ```
//!
//! All of it is atomics, in the machine's byte order (the file never leaves its node),
//! and all-zero memory is an empty table, so that a fresh sparse file needs no pass over it.
//! Entry references are `u32` granules of 16 bytes from the arena's start; 0 is none.
//!
//! Invariant: a reader uses nothing here before [`Tables::open`] has checked it, and the slices'
//! lengths, not the header's numbers, bound every access.

use super::ROOT_INDEX;
use crate::types::{Ino, Rank};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// "weirname": the first eight bytes of the tables.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weirname");

/// The format's version; another one is refused.
pub const VERSION: u32 = 5;

/// The number of sequence counters that the hash buckets share; bucket `b` uses `b % STRIPES`.
pub const STRIPES: usize = 1024;

/// The hash table starts at one bucket a stripe, so that an entry's stripe never changes.
#[allow(clippy::cast_possible_truncation)] // 1024
pub const MIN_BUCKETS: u32 = STRIPES as u32;

/// Bytes of arena for each inode of the maximum: an entry with a name of 64 bytes.
const ARENA_BYTES_PER_INODE: u64 = 96;

/// Arena kept even for the smallest tables.
const ARENA_MIN_BYTES: u64 = 4 << 20;

const ALIGN: u64 = 4096;

/// A group of words on cache lines of its own.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct CacheLine<T>(pub(super) T);

/// The words that never change once the magic is there.
#[repr(C)]
#[derive(Default)]
pub(super) struct FixedWords {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) rank: AtomicU32,
    pub(super) max_inodes: AtomicU32,
}

/// Numbers that the writer keeps for other programs (`weir status`, `statfs`).
#[repr(C)]
#[derive(Default)]
pub(super) struct NamesCounters {
    pub(super) files: AtomicU64,
    pub(super) dirs: AtomicU64,
    pub(super) symlinks: AtomicU64,
    pub(super) entries: AtomicU64,
    pub(super) inode_high: AtomicU64,
    pub(super) arena_high_words: AtomicU64,
}

/// The head of the tables.
#[repr(C)]
pub struct NamesHeader {
    pub(super) fixed: CacheLine<FixedWords>,
    /// Buckets in use; linear hashing adds one at a time.
    pub(super) bucket_count: CacheLine<AtomicU32>,
    /// Odd while a directory is moved: a path read meanwhile may mix old and new.
    pub(super) moves: CacheLine<AtomicU64>,
    pub(super) counters: CacheLine<NamesCounters>,
    pub(super) stripes: [AtomicU64; STRIPES],
}

impl Default for NamesHeader {
    fn default() -> Self {
        NamesHeader {
            fixed: CacheLine::default(),
            bucket_count: CacheLine::default(),
            moves: CacheLine::default(),
            counters: CacheLine::default(),
            stripes: [const { AtomicU64::new(0) }; STRIPES],
        }
    }
}

impl NamesHeader {
    /// Returns the maximum of inodes that the tables were made for, not yet checked; with
    /// [`layout`] it gives the part of the file to map.
    pub fn max_inodes(&self) -> u32 {
        self.fixed.0.max_inodes.load(Ordering::Relaxed)
    }
}

/// An inode. 104 bytes; every word may be read at any time, and several of them belong
/// together only under an even, unchanged `seq`.
#[repr(C)]
#[derive(Default)]
pub struct InodeRecord {
    /// Odd while the record is changed; never goes back, not even at reuse.
    pub(super) seq: AtomicU64,
    /// The life of the slot; [`Ino`] carries its low 16 bits.
    pub(super) generation: AtomicU32,
    /// `st_mode` in the low half; 0 while the slot is free. The high half is described in
    /// `policy`.
    pub(super) mode: AtomicU32,
    pub(super) uid: AtomicU32,
    pub(super) gid: AtomicU32,
    pub(super) nlink: AtomicU32,
    /// The node's `FileBlock` while the file is open for writing; 0 is none.
    pub(super) block: AtomicU32,
    pub(super) size: AtomicU64,
    pub(super) allocated: AtomicU64,
    pub(super) atime: AtomicI64,
    pub(super) mtime: AtomicI64,
    pub(super) ctime: AtomicI64,
    pub(super) btime: AtomicI64,
    /// Never goes back, not even at reuse: caches of an earlier life are void.
    pub(super) index_generation: AtomicU64,
    /// The directory of `entry`. In a free slot: the next free one. In a file's
    /// stand-in: the inode it stands in for.
    pub(super) parent: AtomicU64,
    /// The entry that names the inode (of several hard links, one of them), or 0.
    pub(super) entry: AtomicU32,
    /// Symbolic link: its target in the arena. Directory: the writer's own number for it.
    /// File: 0, or of a stand-in `STALE` or `LEASED`.
    pub(super) aux: AtomicU32,
}

const _: () = assert!(size_of::<InodeRecord>() == 104);
const _: () = assert!(size_of::<NamesHeader>() as u64 <= 3 * ALIGN);

/// The position of one table in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Its first byte, a multiple of 4096.
    pub offset_bytes: u64,
    /// Its number of elements.
    pub len: usize,
}

/// The positions of all tables in a file made for some maximum of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The maximum that it was computed for.
    pub max_inodes: u32,
    /// One [`NamesHeader`].
    pub header: Section,
    /// [`InodeRecord`]s, `max_inodes + 1`.
    pub inodes: Section,
    /// `u64` words.
    pub arena: Section,
    /// `u32` bucket heads, a power of two.
    pub buckets: Section,
    /// The file's length.
    pub file_bytes: u64,
}

/// Returns the layout for `max_inodes` (at least 1) inodes. The file is sparse: unused parts cost
/// nothing.
pub fn layout(max_inodes: u32) -> Layout {
    let max_inodes = max_inodes.max(1);
    let mut end = 0;
    let mut place = |count: u64, element_bytes: usize| {
        let section = Section {
            offset_bytes: end,
            len: usize::try_from(count).expect("tables fit the address space"),
        };
        end += (count * element_bytes as u64).next_multiple_of(ALIGN);
        section
    };
    let max = u64::from(max_inodes);
    let arena_bytes = (max * ARENA_BYTES_PER_INODE)
        .max(ARENA_MIN_BYTES)
        .next_multiple_of(ALIGN);
    let buckets = max
        .next_power_of_two()
        .clamp(u64::from(MIN_BUCKETS), 1 << 31);
    Layout {
        max_inodes,
        header: place(1, size_of::<NamesHeader>()),
        inodes: place(max + 1, size_of::<InodeRecord>()),
        arena: place(arena_bytes / 8, 8),
        buckets: place(buckets, 4),
        file_bytes: end,
    }
}

/// The reasons for refusing memory as tables of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TablesError {
    /// Other contents, or not yet formatted.
    #[error("not a table of names (it begins with {0:#018x})")]
    Magic(u64),
    /// Written by another release.
    #[error("tables of names of version {found}, this program reads {VERSION}")]
    Version {
        /// The version in the header.
        found: u32,
    },
    /// The slices are not those of the header's maximum.
    #[error("tables for {max_inodes} inodes, but mapped with other sizes")]
    Sizes {
        /// The maximum in the header.
        max_inodes: u32,
    },
}

/// The tables, as slices of shared memory.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    pub(super) header: &'a NamesHeader,
    pub(super) inodes: &'a [InodeRecord],
    pub(super) arena: &'a [AtomicU64],
    pub(super) buckets: &'a [AtomicU32],
}

impl<'a> Tables<'a> {
    /// Checks tables that another process wrote, for reading.
    pub fn open(
        header: &'a NamesHeader,
        inodes: &'a [InodeRecord],
        arena: &'a [AtomicU64],
        buckets: &'a [AtomicU32],
    ) -> Result<Self, TablesError> {
        let magic = header.fixed.0.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(TablesError::Magic(magic));
        }
        let found = header.fixed.0.version.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(TablesError::Version { found });
        }
        let tables = Tables {
            header,
            inodes,
            arena,
            buckets,
        };
        tables.check_sizes(header.max_inodes())?;
        Ok(tables)
    }

    /// Makes empty tables of all-zero memory laid out by [`layout`]`(max_inodes)`.
    pub fn format(
        header: &'a NamesHeader,
        inodes: &'a [InodeRecord],
        arena: &'a [AtomicU64],
        buckets: &'a [AtomicU32],
        rank: Rank,
    ) -> Result<Self, TablesError> {
        let tables = Tables {
            header,
            inodes,
            arena,
            buckets,
        };
        let max_inodes = u32::try_from(inodes.len().saturating_sub(1)).unwrap_or(u32::MAX);
        tables.check_sizes(max_inodes)?;
        let fixed = &header.fixed.0;
        fixed.version.store(VERSION, Ordering::Relaxed);
        fixed.rank.store(u32::from(rank.0), Ordering::Relaxed);
        fixed.max_inodes.store(max_inodes, Ordering::Relaxed);
        header.bucket_count.0.store(MIN_BUCKETS, Ordering::Relaxed);
        fixed.magic.store(MAGIC, Ordering::Release);
        Ok(tables)
    }

    fn check_sizes(&self, max_inodes: u32) -> Result<(), TablesError> {
        let want = layout(max_inodes);
        let fits = max_inodes == want.max_inodes
            && self.inodes.len() == want.inodes.len
            && self.arena.len() == want.arena.len
            && self.buckets.len() == want.buckets.len;
        fits.then_some(()).ok_or(TablesError::Sizes { max_inodes })
    }

    /// Returns the rank of the server that the tables belong to.
    pub fn rank(&self) -> Rank {
        let low = self.header.fixed.0.rank.load(Ordering::Relaxed) & 0xFFFF;
        Rank(u16::try_from(low).unwrap_or(0))
    }

    /// The root directory.
    pub fn root(&self) -> Ino {
        Ino::new(self.rank(), 0, ROOT_INDEX)
    }

    /// Returns the record in `ino`'s slot, in any life; `None` for other ranks' inodes.
    pub(super) fn record(&self, ino: Ino) -> Option<&'a InodeRecord> {
        if ino.index() == 0 || ino.rank() != self.rank() {
            return None;
        }
        self.inodes.get(ino.index() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::memory::Memory;

    #[test]
    fn sections_are_aligned_and_do_not_overlap() {
        for max in [0, 1, 1000, 1 << 20, 16 << 20] {
            let l = layout(max);
            let ends = [
                (l.header, size_of::<NamesHeader>()),
                (l.inodes, 96),
                (l.arena, 8),
                (l.buckets, 4),
            ];
            let mut end = 0;
            for (section, element) in ends {
                assert_eq!(section.offset_bytes % ALIGN, 0);
                assert!(section.offset_bytes >= end);
                end = section.offset_bytes + (section.len * element) as u64;
            }
            assert!(l.file_bytes >= end && l.file_bytes.is_multiple_of(ALIGN));
        }
    }

    #[test]
    fn what_is_not_a_table_is_refused() {
        let m = Memory::new(100);
        let open = |inodes| Tables::open(&m.header, inodes, &m.arena, &m.buckets).err();
        assert_eq!(open(&m.inodes), Some(TablesError::Magic(0)));
        m.format(Rank(3));
        assert_eq!(open(&m.inodes), None);
        assert_eq!(
            open(&m.inodes[1..]),
            Some(TablesError::Sizes { max_inodes: 100 })
        );
        m.header.fixed.0.version.store(9, Ordering::Relaxed);
        assert_eq!(open(&m.inodes), Some(TablesError::Version { found: 9 }));
    }

    #[test]
    fn format_of_the_tables() {
        use crate::node::format::check_format;
        check_format!(NamesHeader: fixed bucket_count moves counters stripes);
        check_format!(InodeRecord: seq generation mode uid gid nlink block size allocated atime mtime ctime btime index_generation parent entry aux);
    }
}
