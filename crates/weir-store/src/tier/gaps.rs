//! Lending what is dead between living bytes, the longest gaps first.
//!
//! To know the longest gap at every moment would cost something at every write. So a heap of
//! the gaps is made when one is asked for, and made anew when half of it was used: a look at
//! each gap, once or twice for each that is lent. What is in the heap may be lent or alive
//! meanwhile, and is looked at again before it is lent.
//!
//! Of a unit one gap is lent at a time, for a segment is known by its unit.

use std::collections::BinaryHeap;

use weir_core::types::ClientId;

use super::{Grant, Tiers};
use crate::backing::Backing;
use crate::live::Gap;
use crate::slab::{SlabId, Tier, UNIT_BYTES};

/// Of memory a gap counts as longer than any of a storage directory, from here on: below it,
/// what each piece costs its writer outweighs where it lies.
const LONG_BYTES: u32 = 4096;

/// Gaps as they were when the heap was made.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    heap: BinaryHeap<Entry>,
    made: usize,
}

/// Whether it is long and of memory; its length; the slab's number, the unit, where in it.
type Entry = (bool, u32, u32, u32, u32);

impl<B: Backing> Tiers<B> {
    /// Lends the longest gap there is, whatever its length; `None` if there is none.
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

    /// The first of the heap that may be lent still; whether its pages are there.
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
