//! The slabs of one directory: that of the memory tier, or a storage directory.
//!
//! Invariants: the usable units of the slabs never exceed the budget, and only the last
//! slab is shorter than the others; `slabs_with_room` holds just the slabs with a free unit.

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::board::WarmBoard;
use crate::slab::{Slab, SlabDirectory, MAX_SLABS, SLAB_UNITS, UNIT_BYTES};

/// The failure that keeps a directory from being used, or from growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageFailure {
    /// The directory: memory, or a storage directory.
    pub directory: SlabDirectory,
    /// The error of the last attempt to use it.
    pub errno: Errno,
    /// True if it is given up for good (`EIO` and the like); a full file system is not.
    pub retired: bool,
}

impl core::fmt::Display for StorageFailure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = if self.retired {
            "is retired"
        } else {
            "cannot grow"
        };
        write!(
            f,
            "place {} {kind}: {}",
            self.directory.number(),
            self.errno
        )
    }
}

/// The use of a directory's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The directory.
    pub directory: SlabDirectory,
    /// Its budget.
    pub capacity_bytes: u64,
    /// The size of its slabs so far.
    pub created_bytes: u64,
    /// The bytes that clients hold.
    pub held_bytes: u64,
    /// The living bytes.
    pub live_bytes: u64,
    /// The warm bytes that could be lent at once (memory only).
    pub warm_bytes: u64,
    /// The bytes that could be lent: free in its slabs, and its possible growth.
    pub free_bytes: u64,
    /// The bytes that could be lent beside living ones: see [`super::Tiers::grant_gap`].
    pub gap_bytes: u64,
    /// The failure that keeps it from being used, if there is one.
    pub failure: Option<StorageFailure>,
}

/// The slabs of one directory.
#[derive(Debug)]
pub(super) struct DirectorySlabs {
    pub(super) directory: SlabDirectory,
    pub(super) budget_units: u64,
    pub(super) slabs: Vec<Slab>,
    /// The slabs with a free unit.
    slabs_with_room: BTreeSet<u32>,
    pub(super) failure: Option<StorageFailure>,
}

impl DirectorySlabs {
    /// Makes directory `number` (0: memory) with a budget, and no slabs yet.
    pub(super) fn new(number: usize, budget_bytes: u64) -> DirectorySlabs {
        let directory = match number.checked_sub(1) {
            None => SlabDirectory::MEMORY,
            Some(dir) => SlabDirectory::storage(dir).expect("at most 15 storage directories"),
        };
        let most = u64::from(MAX_SLABS) * u64::from(SLAB_UNITS);
        DirectorySlabs {
            directory,
            budget_units: (budget_bytes / UNIT_BYTES).min(most),
            slabs: Vec::new(),
            slabs_with_room: BTreeSet::new(),
            failure: None,
        }
    }

    /// Returns the directory, unless it is retired.
    pub(super) fn usable(&self) -> Option<&DirectorySlabs> {
        (!self.is_retired()).then_some(self)
    }

    fn is_retired(&self) -> bool {
        self.failure.is_some_and(|failure| failure.retired)
    }

    /// Returns the slabs with free units.
    pub(super) fn slabs_with_room(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.slabs_with_room
            .iter()
            .map(|&index| (index, &self.slabs[index as usize]))
    }

    /// Updates `slabs_with_room` after a change of slab `index`.
    pub(super) fn note_room(&mut self, index: u32) {
        if self.slabs[index as usize].free() == 0 {
            self.slabs_with_room.remove(&index);
        } else {
            self.slabs_with_room.insert(index);
        }
    }

    /// The number of slabs that the budget allows.
    pub(super) fn max_slabs(&self) -> u32 {
        u32::try_from(self.budget_units.div_ceil(u64::from(SLAB_UNITS))).expect("bounded in new")
    }

    /// The index that the next slab gets.
    pub(super) fn index_of_next(&self) -> u32 {
        u32::try_from(self.slabs.len()).expect("bounded by max_slabs")
    }

    /// The number of units that another slab may have; `None` if the budget is used up. Only the
    /// last slab is shorter than the others.
    pub(super) fn growth_units(&self) -> Option<u32> {
        let used = self.slabs.len() as u64 * u64::from(SLAB_UNITS);
        let left = self.budget_units.saturating_sub(used);
        let units = u32::try_from(left).unwrap_or(u32::MAX).min(SLAB_UNITS);
        (units > 0 && !self.is_retired()).then_some(units)
    }

    /// Adds a slab that was just made; an earlier failure to grow is over.
    pub(super) fn add(&mut self, slab: Slab) {
        self.slabs_with_room.insert(self.index_of_next());
        self.slabs.push(slab);
        self.failure = None;
    }

    /// Adds existing slabs. They keep their bytes even if the budget has become smaller.
    pub(super) fn adopt(&mut self, count: u32) {
        for _ in 0..count.min(MAX_SLABS) {
            let units = self.growth_units().unwrap_or(SLAB_UNITS);
            self.add(Slab::new(units));
        }
    }

    /// Notes that a slab could not be made. After a lack of room it is tried again later; any other
    /// error retires the directory.
    pub(super) fn failed(&mut self, errno: Errno) {
        let transient = [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::NFILE,
            Errno::INTR,
        ];
        self.failure = Some(StorageFailure {
            directory: self.directory,
            errno,
            retired: !transient.contains(&errno),
        });
    }

    /// Retires the directory: its device failed.
    pub(super) fn retire(&mut self, errno: Errno) {
        self.failure = Some(StorageFailure {
            directory: self.directory,
            errno,
            retired: true,
        });
    }

    /// The use of its bytes.
    pub(super) fn usage(&self, board: &WarmBoard) -> Usage {
        let units = |bits: fn(&Slab) -> u64| -> u64 {
            let count = |slab| u64::from(bits(slab).count_ones());
            self.slabs.iter().map(count).sum::<u64>() * UNIT_BYTES
        };
        let warm =
            |(index, slab): (u32, &Slab)| u64::from((slab.free() & board.warm(index)).count_ones());
        let is_memory = self.directory == SlabDirectory::MEMORY;
        let created_bytes = units(Slab::usable);
        let free_bytes = units(Slab::free) + self.budget_units * UNIT_BYTES - created_bytes;
        Usage {
            directory: self.directory,
            capacity_bytes: self.budget_units * UNIT_BYTES,
            created_bytes,
            held_bytes: units(Slab::held),
            live_bytes: self.slabs.iter().map(Slab::live_bytes).sum(),
            warm_bytes: if is_memory {
                self.slabs_with_room().map(warm).sum::<u64>() * UNIT_BYTES
            } else {
                0
            },
            free_bytes: if self.is_retired() { 0 } else { free_bytes },
            gap_bytes: match self.is_retired() {
                true => 0,
                false => self.slabs.iter().map(Slab::gap_bytes).sum(),
            },
            failure: self.failure,
        }
    }
}
