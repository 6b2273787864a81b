//! The node's storage: the choice of segments to lend, and the accounts of free space.
//!
//! The order of preference is that of speed: warm memory, cold memory, the storage directories, and
//! then [`StoreError::NoSpace`]. Within each, the wanted size is tried first, and halved down to the
//! least size. A tier grows by a slab at a time until its budget is used up; slabs stay until
//! the instance ends, so that their memory stays warm, and freed space can be lent again at once.
//! When no unit is wholly free, [`Tiers::grant_gap`] lends the dead bytes between living ones
//! (`gaps`): nothing is moved, so no extent changes, and only living bytes can use up a budget.
//!
//! Invariants: the usable units of a directory's slabs never exceed its budget; a directory whose device
//! fails is retired, and its contents stay readable.
//!
//! Left out: making slabs warm (`pool`), the files themselves (`backing`), the choice of living
//! bytes (the extent index calls [`Tiers::add_live`] and [`Tiers::remove_live`]). One thread owns a
//! `Tiers`; it waits for nothing but the creation of a file.

mod directory;
mod gaps;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustix::io::Errno;
use weir_core::types::{ClientId, SegmentId};

use self::directory::DirectorySlabs;
pub use self::directory::{StorageFailure, Usage};
use self::gaps::Gaps;
use crate::backing::Backing;
use crate::board::WarmBoard;
use crate::slab::{
    unit_bits, AccountError, Slab, SlabDirectory, SlabId, Tier, MAX_DIRECTORIES, SLAB_BYTES,
    SLAB_UNITS, UNIT_BYTES,
};

/// The budgets of a node's storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// The memory tier's budget in bytes; rounded down to whole MiB.
    pub memory_budget_bytes: u64,
    /// The amount of free memory to keep warm, within that budget.
    pub warm_bytes: u64,
    /// The budgets of the storage directories (at most 15), in bytes.
    pub storage_budgets_bytes: Vec<u64>,
}

/// A segment lent to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Its number, for [`Tiers::release`].
    pub segment: SegmentId,
    /// Its slab.
    pub slab: SlabId,
    /// Its offset in the slab, in bytes; a multiple of `len`, or for a gap of 64.
    pub pos: u64,
    /// Its length in bytes, a power of two unless it is a gap.
    pub len: u64,
    /// True if its pages are present: then store into the mapping, else use pwrite (which makes
    /// pages at 1.7 GiB/s, while faulting a mapping makes 0.6).
    pub warm: bool,
}

impl Grant {
    /// The tier it lies in.
    pub fn tier(&self) -> Tier {
        self.slab.tier()
    }
}

/// The reasons for which storage cannot be lent or accounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No tier has a segment of the least length asked for.
    #[error("no segment of {min_bytes} bytes left, {free_bytes} bytes free in all{}", describe_failure(.failure.as_ref()))]
    NoSpace {
        /// The least length asked for.
        min_bytes: u64,
        /// The free bytes of all directories that are in use.
        free_bytes: u64,
        /// The failure that keeps a directory from being used, if there is one.
        failure: Option<StorageFailure>,
    },
    /// A slab that does not exist.
    #[error("no slab {0:?}")]
    NoSlab(SlabId),
    /// The accounts of a slab disagree with a request.
    #[error("slab {slab:?}: {error}")]
    Account {
        /// The slab.
        slab: SlabId,
        /// The disagreement.
        error: AccountError,
    },
}

fn describe_failure(failure: Option<&StorageFailure>) -> String {
    failure.map_or_else(String::new, |failure| format!("; {failure}"))
}

/// The storage of a node.
#[derive(Debug)]
pub struct Tiers<B> {
    directories: Vec<DirectorySlabs>,
    warm_target_units: u64,
    /// True from the time when the warm stock falls below half of the target until it is full again.
    /// Otherwise the warmers leave the processors and the memory's bandwidth to the job.
    is_refilling: bool,
    /// True if a client met a full tmpfs: then absent pages cannot be allocated.
    is_memory_full: bool,
    gaps: Gaps,
    backing: B,
    board: Arc<WarmBoard>,
}

impl<B: Backing> Tiers<B> {
    /// Storage by `config`, its files made by `backing`. The first slabs are made, and
    /// queued for warming on [`Tiers::board`].
    pub fn new(config: &TierConfig, backing: B) -> Tiers<B> {
        Tiers::with_slabs(config, backing, &[])
    }

    /// As [`Tiers::new`], with existing slabs: their number by directory. They are free until
    /// [`Tiers::restore_segment`] and [`Tiers::restore_live`] are called for each segment and range;
    /// [`Tiers::finish_restore`] comes last.
    pub fn with_slabs(config: &TierConfig, backing: B, slabs: &[u32]) -> Tiers<B> {
        assert!(config.storage_budgets_bytes.len() < MAX_DIRECTORIES);
        let budgets = std::iter::once(&config.memory_budget_bytes);
        let mut directories: Vec<_> = budgets
            .chain(&config.storage_budgets_bytes)
            .enumerate()
            .map(|(number, &bytes)| DirectorySlabs::new(number, bytes))
            .collect();
        for (directory, slabs) in directories.iter_mut().zip(slabs) {
            directory.adopt(*slabs);
        }
        let adopted = u32::try_from(directories[0].slabs.len()).unwrap_or(u32::MAX);
        let memory_slabs = directories[0].max_slabs().max(adopted);
        let mut tiers = Tiers {
            warm_target_units: (config.warm_bytes / UNIT_BYTES).min(directories[0].budget_units),
            directories,
            is_refilling: true,
            is_memory_full: false,
            gaps: Gaps::default(),
            backing,
            board: Arc::new(WarmBoard::new(memory_slabs)),
        };
        if slabs.is_empty() {
            while tiers.replenish() {}
        }
        tiers
    }

    /// Restores a segment of `len` bytes, which `client` may be writing into.
    pub fn restore_segment(
        &mut self,
        segment: SegmentId,
        len: u64,
        client: ClientId,
    ) -> Result<(), StoreError> {
        let id = SlabId::from_segment(segment);
        let slab = self.slab(id)?;
        let lent = slab.restore_segment(segment.0 % SLAB_UNITS, len.div_ceil(UNIT_BYTES), client);
        lent.ok_or(StoreError::Account {
            slab: id,
            error: AccountError::NotHeld(segment),
        })
    }

    /// Restores bytes that files refer to as alive.
    pub fn restore_live(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        self.slab(slab)?.restore_live(pos, len).map_err(account)
    }

    /// As [`Tiers::restore_live`], if only the amount of living bytes of the unit at `pos` is known.
    pub fn restore_amount(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        self.slab(slab)?.restore_amount(pos, len).map_err(account)
    }

    /// Ends the restoring of existing slabs: their accounts are complete.
    pub fn finish_restore(&mut self) {
        for id in self.slabs().map(|(id, _)| id).collect::<Vec<_>>() {
            if id.tier() == Tier::Memory {
                let usable = self.account(id).usable();
                self.board.queue(id.index(), usable);
            }
            self.refresh(id);
        }
        while self.replenish() {}
    }

    /// The board from which the warmers work.
    pub fn board(&self) -> &Arc<WarmBoard> {
        &self.board
    }

    /// The greatest number of slabs of each directory (memory, then the storage directories); clients
    /// size their tables by it.
    pub fn max_slabs(&self) -> Vec<u32> {
        self.directories
            .iter()
            .map(DirectorySlabs::max_slabs)
            .collect()
    }

    /// Lends a segment of `want_bytes`, or the nearest size of at least `min_bytes` (both rounded
    /// up to a power of two of MiB, at most a slab).
    pub fn grant(
        &mut self,
        min_bytes: u64,
        want_bytes: u64,
        client: ClientId,
    ) -> Result<Grant, StoreError> {
        let (min, want) = (units_for(min_bytes), units_for(want_bytes));
        let sizes = || Halving(want.max(min), min);
        // Clients are spread over the storage directories, hence over the devices.
        let dirs = self.directories.len() - 1;
        let first_dir = client.0 as usize;
        let found = self
            .find_warm(sizes())
            .or_else(|| self.find_cold_memory(sizes()))
            .or_else(|| {
                (0..dirs).find_map(|dir| self.find_cold(1 + (first_dir + dir) % dirs, sizes()))
            });
        let Some(FreeSegment {
            slab,
            unit,
            units,
            warm,
        }) = found
        else {
            return Err(StoreError::NoSpace {
                min_bytes: u64::from(min) * UNIT_BYTES,
                free_bytes: self.usage().iter().map(|usage| usage.free_bytes).sum(),
                failure: self
                    .directories
                    .iter()
                    .rev()
                    .find_map(|directory| directory.failure),
            });
        };
        self.account(slab).lend(unit, units, client, warm);
        self.refresh(slab);
        self.replenish();
        Ok(Grant {
            segment: slab.segment(unit),
            slab,
            pos: u64::from(unit) * UNIT_BYTES,
            len: u64::from(units) * UNIT_BYTES,
            warm,
        })
    }

    /// Counts bytes of a slab as alive: an extent now points to them.
    pub fn add_live(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        let accounts = self.slab(slab)?;
        let free_before = accounts.free();
        accounts.add_live(pos, len).map_err(account)?;
        if accounts.free() != free_before {
            self.refresh(slab);
        }
        Ok(())
    }

    /// Counts bytes of a slab as dead: no extent points to them any more.
    pub fn remove_live(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        let accounts = self.slab(slab)?;
        let free_before = accounts.free();
        accounts.remove_live(pos, len).map_err(account)?;
        if accounts.free() != free_before {
            self.refresh(slab);
        }
        Ok(())
    }

    /// True if all of a range was lent to `client`: a client's record is not believed without this.
    pub fn is_lent_to(&self, slab: SlabId, pos: u64, len: u64, client: ClientId) -> bool {
        let directory = self.directories.get(slab.directory().number());
        let slab = directory.and_then(|directory| directory.slabs.get(slab.index() as usize));
        slab.is_some_and(|slab| slab.is_lent_to(client, pos, len))
    }

    /// Takes a segment back: its client writes into it no more. Its units without living bytes can
    /// be lent again at once.
    pub fn release(&mut self, segment: SegmentId) -> Result<(), StoreError> {
        let slab = SlabId::from_segment(segment);
        let released = self.slab(slab)?.release(segment.0 % SLAB_UNITS);
        self.refresh(slab);
        released.map(|_| ()).ok_or(StoreError::Account {
            slab,
            error: AccountError::NotHeld(segment),
        })
    }

    /// Takes back all of a segment behind its first `keep_bytes`, in whole units: its client writes
    /// there no more. True if there was anything to take.
    pub fn trim(&mut self, segment: SegmentId, keep_bytes: u64) -> bool {
        let id = SlabId::from_segment(segment);
        let keep = u32::try_from(keep_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let Ok(slab) = self.slab(id) else {
            return false;
        };
        let trimmed = slab.trim(segment.0 % SLAB_UNITS, keep);
        if trimmed {
            self.refresh(id);
        }
        trimmed
    }

    /// Notes that a client could not write into a cold segment for lack of room: others have filled
    /// the tmpfs. No cold memory is lent until there is room again. (The segment itself is given
    /// back when nothing is written into it any more.)
    pub fn refused(&mut self, segment: SegmentId) {
        let directory = SlabId::from_segment(segment).directory();
        if let Some(state) = self.directories.get_mut(directory.number()) {
            state.failed(Errno::NOSPC);
        }
        self.is_memory_full |= directory == SlabDirectory::MEMORY;
    }

    /// Retires a directory whose device failed (also called when a client reports that). Its contents
    /// stay readable; nothing more is lent from it.
    pub fn retire(&mut self, directory: SlabDirectory, errno: Errno) {
        if let Some(state) = self.directories.get_mut(directory.number()) {
            state.retire(errno);
        }
    }

    /// Returns the use of the bytes of every directory.
    pub fn usage(&self) -> Vec<Usage> {
        self.directories
            .iter()
            .map(|directory| directory.usage(&self.board))
            .collect()
    }

    /// Adds a slab to the warm stock if that is low and the budget allows; true if one was added.
    fn replenish(&mut self) -> bool {
        let stock: u64 = self.directories[0]
            .slabs_with_room()
            .filter(|&(index, slab)| {
                self.board.is_under_way(index) || slab.usable() & !self.board.warm(index) == 0
            })
            .map(|(_, slab)| u64::from(slab.free().count_ones()))
            .sum();
        self.is_refilling |= stock < self.warm_target_units / 2;
        self.is_refilling &= stock < self.warm_target_units;
        self.is_refilling && self.grow(0).is_some()
    }

    /// Makes another slab in a directory.
    fn grow(&mut self, directory: usize) -> Option<SlabId> {
        let state = &mut self.directories[directory];
        let units = state.growth_units()?;
        let slab = SlabId::new(state.directory, state.index_of_next());
        match self.backing.create(slab, u64::from(units) * UNIT_BYTES) {
            Ok(()) => state.add(Slab::new(units)),
            Err(errno) => {
                state.failed(errno);
                return None;
            }
        }
        if slab.tier() == Tier::Memory {
            self.board.queue(slab.index(), unit_bits(0, units));
        }
        Some(slab)
    }

    fn find_warm(&self, mut sizes: Halving) -> Option<FreeSegment> {
        let memory = self.directories[0].usable()?;
        sizes.find_map(|units| {
            memory.slabs_with_room().find_map(|(index, slab)| {
                let unit = slab.find_first(units, self.board.warm(index))?;
                Some(FreeSegment {
                    slab: SlabId::new(SlabDirectory::MEMORY, index),
                    unit,
                    units,
                    warm: true,
                })
            })
        })
    }

    fn find_cold_memory(&mut self, sizes: Halving) -> Option<FreeSegment> {
        if self.has_no_memory() {
            return None;
        }
        self.find_cold(0, sizes)
    }

    /// Returns true if absent pages cannot be allocated.
    fn has_no_memory(&mut self) -> bool {
        if self.is_memory_full {
            let room_bytes = self.backing.room_bytes(SlabDirectory::MEMORY).unwrap_or(0);
            self.is_memory_full = room_bytes < SLAB_BYTES;
        }
        self.is_memory_full
    }

    /// Finds a segment that is not (known to be) warm: of an existing slab, else of a new one.
    fn find_cold(&mut self, directory: usize, sizes: Halving) -> Option<FreeSegment> {
        for units in sizes {
            let state = self.directories[directory].usable()?;
            let found = state.slabs_with_room().find_map(|(index, slab)| {
                let unit = find_cold_unit(state.directory, slab, units)?;
                Some(FreeSegment {
                    slab: SlabId::new(state.directory, index),
                    unit,
                    units,
                    warm: false,
                })
            });
            if found.is_some() {
                return found;
            }
            if let Some(slab) = self.grow(directory) {
                let directory = slab.directory();
                if let Some(unit) = find_cold_unit(directory, self.account(slab), units) {
                    return Some(FreeSegment {
                        slab,
                        unit,
                        units,
                        warm: false,
                    });
                }
            }
        }
        None
    }

    /// Updates the set of slabs with room, and the board, after a change of a slab.
    fn refresh(&mut self, id: SlabId) {
        let state = &mut self.directories[id.directory().number()];
        state.note_room(id.index());
        let slab = &state.slabs[id.index() as usize];
        if id.tier() == Tier::Memory {
            let was_busy = self.board.set_busy(id.index(), slab.cold());
            if was_busy & !slab.cold() != 0 {
                // Warmers have passed these units over. Units that were filled cold are read twice
                // as fast once they lie in huge pages.
                self.board.queue(id.index(), slab.usable());
            }
        }
    }

    fn slab(&mut self, id: SlabId) -> Result<&mut Slab, StoreError> {
        let directory = self.directories.get_mut(id.directory().number());
        let slab = directory.and_then(|directory| directory.slabs.get_mut(id.index() as usize));
        slab.ok_or(StoreError::NoSlab(id))
    }

    /// A slab known to exist.
    fn account(&mut self, id: SlabId) -> &mut Slab {
        self.slab(id).expect("a slab just found")
    }

    fn slabs(&self) -> impl Iterator<Item = (SlabId, &Slab)> {
        self.directories.iter().flat_map(|directory| {
            (0..)
                .zip(&directory.slabs)
                .map(|(index, slab)| (SlabId::new(directory.directory, index), slab))
        })
    }
}

/// A free segment.
struct FreeSegment {
    slab: SlabId,
    /// Its first unit.
    unit: u32,
    units: u32,
    /// True if its pages are present.
    warm: bool,
}

/// Finds a cold segment at the end of a memory slab, because a warmer begins at its front, and at the
/// front of a file, because devices and file systems prefer files written in order.
fn find_cold_unit(directory: SlabDirectory, slab: &Slab, units: u32) -> Option<u32> {
    match directory.tier() {
        Tier::Memory => slab.find_last(units, u64::MAX),
        Tier::File => slab.find_first(units, u64::MAX),
    }
}

/// Sizes in units, from the first down to the last by halves.
struct Halving(u32, u32);

impl Iterator for Halving {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let units = self.0;
        self.0 /= 2;
        (units >= self.1).then_some(units)
    }
}

/// The least segment that holds `bytes`, in units; a whole slab at most.
fn units_for(bytes: u64) -> u32 {
    let units = bytes.clamp(1, SLAB_BYTES).div_ceil(UNIT_BYTES);
    u32::try_from(units)
        .expect("at most a slab")
        .next_power_of_two()
}
