//! One place's slabs: the memory tier's or a storage directory's.
//!
//! Invariants: the usable units of the slabs never exceed the budget, and only the last
//! slab is shorter than the others; `with_room` holds just the slabs with a free unit.

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::board::WarmBoard;
use crate::slab::{Place, Slab, MAX_SLABS, SLAB_UNITS, UNIT_BYTES};

/// The failure of a place that cannot be used, or not more of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// The place: memory, or a storage directory.
    pub place: Place,
    /// The error of the last attempt to use it.
    pub errno: Errno,
    /// True if it is given up for good (`EIO` and the like); a full file system is not.
    pub retired: bool,
}

impl core::fmt::Display for Trouble {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = if self.retired {
            "is retired"
        } else {
            "cannot grow"
        };
        write!(f, "place {} {kind}: {}", self.place.number(), self.errno)
    }
}

/// The use of a place's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The place.
    pub place: Place,
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
    pub trouble: Option<Trouble>,
}

/// The slabs of one place.
#[derive(Debug)]
pub(super) struct PlaceState {
    pub(super) place: Place,
    pub(super) budget_units: u64,
    pub(super) slabs: Vec<Slab>,
    /// The slabs with a free unit.
    with_room: BTreeSet<u32>,
    pub(super) trouble: Option<Trouble>,
}

impl PlaceState {
    /// Place `number` (0: memory) with a budget, and no slabs yet.
    pub(super) fn new(number: usize, budget_bytes: u64) -> PlaceState {
        let place = match number.checked_sub(1) {
            None => Place::MEMORY,
            Some(dir) => Place::storage(dir).expect("at most 15 storage directories"),
        };
        let most = u64::from(MAX_SLABS) * u64::from(SLAB_UNITS);
        PlaceState {
            place,
            budget_units: (budget_bytes / UNIT_BYTES).min(most),
            slabs: Vec::new(),
            with_room: BTreeSet::new(),
            trouble: None,
        }
    }

    /// Itself, unless it is retired.
    pub(super) fn usable(&self) -> Option<&PlaceState> {
        (!self.is_retired()).then_some(self)
    }

    fn is_retired(&self) -> bool {
        self.trouble.is_some_and(|trouble| trouble.retired)
    }

    /// The slabs with free units.
    pub(super) fn room(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.with_room
            .iter()
            .map(|&index| (index, &self.slabs[index as usize]))
    }

    /// Brings `with_room` up to date with slab `index`.
    pub(super) fn note_room(&mut self, index: u32) {
        if self.slabs[index as usize].free() == 0 {
            self.with_room.remove(&index);
        } else {
            self.with_room.insert(index);
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
        self.with_room.insert(self.index_of_next());
        self.slabs.push(slab);
        self.trouble = None;
    }

    /// Adds existing slabs. They keep their bytes even if the budget has become smaller.
    pub(super) fn adopt(&mut self, count: u32) {
        for _ in 0..count.min(MAX_SLABS) {
            let units = self.growth_units().unwrap_or(SLAB_UNITS);
            self.add(Slab::new(units));
        }
    }

    /// Notes that a slab could not be made. If there is merely no room now, later attempts are
    /// made; any other error retires the place.
    pub(super) fn failed(&mut self, errno: Errno) {
        let transient = [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::NFILE,
            Errno::INTR,
        ];
        self.trouble = Some(Trouble {
            place: self.place,
            errno,
            retired: !transient.contains(&errno),
        });
    }

    /// Gives the place up: its device failed.
    pub(super) fn retire(&mut self, errno: Errno) {
        self.trouble = Some(Trouble {
            place: self.place,
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
        let is_memory = self.place == Place::MEMORY;
        let created_bytes = units(Slab::usable);
        let free_bytes = units(Slab::free) + self.budget_units * UNIT_BYTES - created_bytes;
        Usage {
            place: self.place,
            capacity_bytes: self.budget_units * UNIT_BYTES,
            created_bytes,
            held_bytes: units(Slab::held),
            live_bytes: self.slabs.iter().map(Slab::live_bytes).sum(),
            warm_bytes: if is_memory {
                self.room().map(warm).sum::<u64>() * UNIT_BYTES
            } else {
                0
            },
            free_bytes: if self.is_retired() { 0 } else { free_bytes },
            gap_bytes: match self.is_retired() {
                true => 0,
                false => self.slabs.iter().map(Slab::gap_bytes).sum(),
            },
            trouble: self.trouble,
        }
    }
}
