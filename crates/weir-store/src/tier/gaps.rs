//! Lending the dead bytes between living ones, the longest gaps first.
//!
//! To know the longest gap at every moment would cost something at every write. So a heap of the
//! gaps is made when one is asked for, and made anew when half of it was used: a look at each gap,
//! once or twice for each that is lent. A gap in the heap may be lent or alive meanwhile, and is
//! checked again before it is lent.
//!
//! One gap of a unit is lent at a time, because a segment is identified by its unit.

use std::collections::BinaryHeap;

use weir_core::types::ClientId;

use super::{Grant, Tiers};
use crate::backing::Backing;
use crate::live::Gap;
use crate::slab::{SlabId, Tier, UNIT_BYTES};

/// A gap of memory from this length on counts as longer than any of a storage directory. Below it,
/// the writer's cost for each piece outweighs the speed of the place.
const LONG_BYTES: u32 = 4096;

/// Gaps at the time when the heap was made.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    heap: BinaryHeap<Entry>,
    made: usize,
}

/// True if it is long and of memory; its length; the slab's number, the unit, the offset in it.
type Entry = (bool, u32, u32, u32, u32);

impl<B: Backing> Tiers<B> {
    /// Lends the longest gap, of any length; `None` if there is none.
    pub fn grant_gap(&mut self, client: ClientId) -> Option<Grant> {
        let no_memory = self.has_no_memory();
        let made_now = self.gaps.heap.len() <= self.gaps.made / 2;
        if made_now {
            self.collect_gaps();
        }
        let found = self.next_gap(no_memory);
        if found.is_none() && !made_now {
            self.collect_gaps();
            let found = self.next_gap(no_memory)?;
            return Some(self.lend_gap(found, client));
        }
        Some(self.lend_gap(found?, client))
    }

    fn collect_gaps(&mut self) {
        let mut heap = Vec::new();
        for place in self.places.iter().filter_map(|place| place.usable()) {
            for (index, slab) in (0..).zip(&place.slabs) {
                let id = SlabId::new(place.place, index);
                heap.extend(slab.gaps().map(|(unit, (from, len))| {
                    let first = id.tier() == Tier::Memory && len >= LONG_BYTES;
                    (first, len, id.raw(), unit, from)
                }));
            }
        }
        self.gaps.made = heap.len();
        self.gaps.heap = heap.into();
    }

    /// The first gap of the heap that may still be lent, and true if its pages are present.
    fn next_gap(&mut self, no_memory: bool) -> Option<(SlabId, u32, Gap, bool)> {
        while let Some((_, len, slab, unit, from)) = self.gaps.heap.pop() {
            let id = SlabId::from_raw(slab)?;
            let is_memory = id.tier() == Tier::Memory;
            let warm = is_memory && self.board.warm(id.index()) >> unit & 1 == 1;
            let there = self.places[id.place().number()].usable().is_some()
                && self.account(id).is_gap(unit, (from, len));
            if there && !(is_memory && !warm && no_memory) {
                return Some((id, unit, (from, len), warm));
            }
        }
        None
    }

    fn lend_gap(
        &mut self,
        (slab, unit, (from, len), warm): (SlabId, u32, Gap, bool),
        client: ClientId,
    ) -> Grant {
        self.account(slab).lend_gap(unit, client, warm);
        self.refresh(slab);
        Grant {
            segment: slab.segment(unit),
            slab,
            pos: u64::from(unit) * UNIT_BYTES + u64::from(from),
            len: u64::from(len),
            warm,
        }
    }
}
