//! The server's view of the node's storage: the choice of segments to lend, and the free space.
//!
//! The order of preference is that of speed: warm memory, cold memory, the storage directories, and
//! then [`StoreError::NoSpace`]. Within each, the size wanted is tried first and halved down to the
//! least that helps. A tier grows by a slab at a time until its budget is used up; slabs stay until
//! the instance ends, so that their memory stays warm, and freed space can be lent again at once.
//! When no unit is wholly free, [`Tiers::grant_gap`] lends the dead bytes between living ones
//! (`gaps`): nothing is moved, so no extent changes, and only living bytes can use up a budget.
//!
//! Invariants: the usable units of a place's slabs never exceed its budget; a place whose device
//! fails is retired, and its contents stay readable.
//!
//! Left out: making slabs warm (`pool`), the files themselves (`backing`), the choice of living
//! bytes (the extent index calls [`Tiers::add_live`] and [`Tiers::freed`]). One thread owns a
//! `Tiers`; it waits for nothing but the creation of a file.

mod gaps;
mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustix::io::Errno;
use weir_core::types::{ClientId, SegmentId};

use self::gaps::Gaps;
use self::place::PlaceState;
pub use self::place::{Trouble, Usage};
use crate::backing::Backing;
use crate::board::WarmBoard;
use crate::slab::{
    run, AccountError, Place, Slab, SlabId, Tier, MAX_PLACES, SLAB_BYTES, SLAB_UNITS, UNIT_BYTES,
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

/// The reasons that storage could not be lent or accounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No tier has a segment of the least length asked for.
    #[error("no segment of {min_bytes} bytes left, {free_bytes} bytes free in all{}", because(.trouble.as_ref()))]
    NoSpace {
        /// The least length asked for.
        min_bytes: u64,
        /// The free bytes of all places that are in use.
        free_bytes: u64,
        /// The failure that keeps a place from being used, if there is one.
        trouble: Option<Trouble>,
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

fn because(trouble: Option<&Trouble>) -> String {
    trouble.map_or_else(String::new, |trouble| format!("; {trouble}"))
}

/// The storage of a node.
#[derive(Debug)]
pub struct Tiers<B> {
    places: Vec<PlaceState>,
    warm_target_units: u64,
    /// True from the time when the stock sank below half of the target until it is full again.
    /// Until it sinks so far, the warmers leave the processors and the memory's bandwidth to the
    /// job.
    is_refilling: bool,
    /// True if a client met a full tmpfs: then pages that are not there yet cannot be had.
    is_memory_full: bool,
    gaps: Gaps,
    backing: B,
    board: Arc<WarmBoard>,
}

impl<B: Backing> Tiers<B> {
    /// Storage by `config`, its files made by `backing`. The first slabs are made, and
    /// queued for warming on [`Tiers::board`].
    pub fn new(config: &TierConfig, backing: B) -> Tiers<B> {
        Tiers::over(config, backing, &[])
    }

    /// As [`Tiers::new`], with existing slabs: their number by place. Nothing of them is lent or
    /// alive before [`Tiers::hold`] and [`Tiers::revive`] say so; then [`Tiers::resume`] is called.
    pub fn over(config: &TierConfig, backing: B, slabs: &[u32]) -> Tiers<B> {
        assert!(config.storage_budgets_bytes.len() < MAX_PLACES);
        let budgets = std::iter::once(&config.memory_budget_bytes);
        let mut places: Vec<_> = budgets
            .chain(&config.storage_budgets_bytes)
            .enumerate()
            .map(|(number, &bytes)| PlaceState::new(number, bytes))
            .collect();
        for (place, slabs) in places.iter_mut().zip(slabs) {
            place.adopt(*slabs);
        }
        let adopted = u32::try_from(places[0].slabs.len()).unwrap_or(u32::MAX);
        let memory_slabs = places[0].max_slabs().max(adopted);
        let mut tiers = Tiers {
            warm_target_units: (config.warm_bytes / UNIT_BYTES).min(places[0].budget_units),
            places,
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

    /// Notes that `client` may be writing into an earlier segment of `len` bytes.
    pub fn hold(
        &mut self,
        segment: SegmentId,
        len: u64,
        client: ClientId,
    ) -> Result<(), StoreError> {
        let id = SlabId::of(segment);
        let slab = self.slab(id)?;
        let lent = slab.lend_again(segment.0 % SLAB_UNITS, len.div_ceil(UNIT_BYTES), client);
        lent.ok_or(StoreError::Account {
            slab: id,
            error: AccountError::NotHeld(segment),
        })
    }

    /// Counts bytes as alive to which earlier files refer.
    pub fn revive(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        self.slab(slab)?.revive(pos, len).map_err(account)
    }

    /// As [`Tiers::revive`], if only the amount of living bytes of the unit at `pos` is known.
    pub fn revive_amount(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        self.slab(slab)?.revive_amount(pos, len).map_err(account)
    }

    /// Ends the taking over of earlier slabs: their accounts are complete.
    pub fn resume(&mut self) {
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

    /// The greatest number of slabs of each place (memory, then the storage directories); clients
    /// size their tables by it.
    pub fn max_slabs(&self) -> Vec<u32> {
        self.places.iter().map(PlaceState::max_slabs).collect()
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
        let dirs = self.places.len() - 1;
        let first_dir = client.0 as usize;
        let found = self
            .find_warm(sizes())
            .or_else(|| self.find_cold_memory(sizes()))
            .or_else(|| {
                (0..dirs).find_map(|dir| self.find_cold(1 + (first_dir + dir) % dirs, sizes()))
            });
        let Some((slab, unit, units, warm)) = found else {
            return Err(StoreError::NoSpace {
                min_bytes: u64::from(min) * UNIT_BYTES,
                free_bytes: self.usage().iter().map(|usage| usage.free_bytes).sum(),
                trouble: self.places.iter().rev().find_map(|place| place.trouble),
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
    pub fn freed(&mut self, slab: SlabId, pos: u64, len: u64) -> Result<(), StoreError> {
        let account = |error| StoreError::Account { slab, error };
        let accounts = self.slab(slab)?;
        let free_before = accounts.free();
        accounts.freed(pos, len).map_err(account)?;
        if accounts.free() != free_before {
            self.refresh(slab);
        }
        Ok(())
    }

    /// True if all of a range was lent to `client`: a client's record is not believed without this.
    pub fn is_lent_to(&self, slab: SlabId, pos: u64, len: u64, client: ClientId) -> bool {
        let place = self.places.get(slab.place().number());
        let slab = place.and_then(|place| place.slabs.get(slab.index() as usize));
        slab.is_some_and(|slab| slab.is_lent_to(client, pos, len))
    }

    /// Takes a segment back: its client writes into it no more. Its units without living bytes can
    /// be lent again at once.
    pub fn release(&mut self, segment: SegmentId) -> Result<(), StoreError> {
        let slab = SlabId::of(segment);
        let released = self.slab(slab)?.release(segment.0 % SLAB_UNITS);
        self.refresh(slab);
        released.map(|_| ()).ok_or(StoreError::Account {
            slab,
            error: AccountError::NotHeld(segment),
        })
    }

    /// Takes back all segments of `client`, which is gone; returns their number.
    pub fn release_client(&mut self, client: ClientId) -> usize {
        let held: Vec<SegmentId> = self
            .slabs()
            .flat_map(|(id, slab)| slab.held_by(client).map(move |unit| id.segment(unit)))
            .collect();
        for &segment in &held {
            let released = self.release(segment);
            debug_assert!(released.is_ok());
        }
        held.len()
    }

    /// Takes back all of a segment behind its first `keep_bytes`, in whole units: its client writes
    /// there no more. True if there was anything to take.
    pub fn trim(&mut self, segment: SegmentId, keep_bytes: u64) -> bool {
        let id = SlabId::of(segment);
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
        let place = SlabId::of(segment).place();
        if let Some(state) = self.places.get_mut(place.number()) {
            state.failed(Errno::NOSPC);
        }
        self.is_memory_full |= place == Place::MEMORY;
    }

    /// Gives a place up: its device failed (also called when a client reports that). Its contents
    /// stay readable; nothing more is lent from it.
    pub fn retire(&mut self, place: Place, errno: Errno) {
        if let Some(state) = self.places.get_mut(place.number()) {
            state.retire(errno);
        }
    }

    /// The use of the bytes of every place.
    pub fn usage(&self) -> Vec<Usage> {
        self.places
            .iter()
            .map(|place| place.usage(&self.board))
            .collect()
    }

    /// Adds a slab to the warm stock if it has sunk and the budget allows; true if one was added.
    fn replenish(&mut self) -> bool {
        let stock: u64 = self.places[0]
            .room()
            .filter(|&(index, slab)| {
                self.board.is_under_way(index) || slab.usable() & !self.board.warm(index) == 0
            })
            .map(|(_, slab)| u64::from(slab.free().count_ones()))
            .sum();
        self.is_refilling |= stock < self.warm_target_units / 2;
        self.is_refilling &= stock < self.warm_target_units;
        self.is_refilling && self.grow(0).is_some()
    }

    /// Makes another slab in a place.
    fn grow(&mut self, place: usize) -> Option<SlabId> {
        let state = &mut self.places[place];
        let units = state.growth_units()?;
        let slab = SlabId::new(state.place, state.index_of_next());
        match self.backing.create(slab, u64::from(units) * UNIT_BYTES) {
            Ok(()) => state.add(Slab::new(units)),
            Err(errno) => {
                state.failed(errno);
                return None;
            }
        }
        if slab.tier() == Tier::Memory {
            self.board.queue(slab.index(), run(0, units));
        }
        Some(slab)
    }

    fn find_warm(&self, mut sizes: Halving) -> Option<Found> {
        let memory = self.places[0].usable()?;
        sizes.find_map(|units| {
            memory.room().find_map(|(index, slab)| {
                let unit = slab.find_first(units, self.board.warm(index))?;
                Some((SlabId::new(Place::MEMORY, index), unit, units, true))
            })
        })
    }

    fn find_cold_memory(&mut self, sizes: Halving) -> Option<Found> {
        if self.has_no_memory() {
            return None;
        }
        self.find_cold(0, sizes)
    }

    /// True if pages that are not there cannot be had.
    fn has_no_memory(&mut self) -> bool {
        if self.is_memory_full {
            let room_bytes = self.backing.room_bytes(Place::MEMORY).unwrap_or(0);
            self.is_memory_full = room_bytes < SLAB_BYTES;
        }
        self.is_memory_full
    }

    /// Finds a segment that is not (known to be) warm: of an existing slab, else of a new one.
    fn find_cold(&mut self, place: usize, sizes: Halving) -> Option<Found> {
        for units in sizes {
            let state = self.places[place].usable()?;
            let found = state.room().find_map(|(index, slab)| {
                let unit = find_cold_unit(state.place, slab, units)?;
                Some((SlabId::new(state.place, index), unit, units, false))
            });
            if found.is_some() {
                return found;
            }
            if let Some(slab) = self.grow(place) {
                let place = slab.place();
                if let Some(unit) = find_cold_unit(place, self.account(slab), units) {
                    return Some((slab, unit, units, false));
                }
            }
        }
        None
    }

    /// Updates the data that is kept elsewhere about a slab.
    fn refresh(&mut self, id: SlabId) {
        let state = &mut self.places[id.place().number()];
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
        let place = self.places.get_mut(id.place().number());
        let slab = place.and_then(|place| place.slabs.get_mut(id.index() as usize));
        slab.ok_or(StoreError::NoSlab(id))
    }

    /// A slab known to exist.
    fn account(&mut self, id: SlabId) -> &mut Slab {
        self.slab(id).expect("a slab just found")
    }

    fn slabs(&self) -> impl Iterator<Item = (SlabId, &Slab)> {
        self.places.iter().flat_map(|place| {
            (0..)
                .zip(&place.slabs)
                .map(|(index, slab)| (SlabId::new(place.place, index), slab))
        })
    }
}

/// A free piece: slab, first unit, units, and true if it is warm.
type Found = (SlabId, u32, u32, bool);

/// Chooses the end of a memory slab, because a warmer begins at its front, and the front of a file,
/// because devices and file systems prefer files written in order.
fn find_cold_unit(place: Place, slab: &Slab, units: u32) -> Option<u32> {
    match place.tier() {
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
