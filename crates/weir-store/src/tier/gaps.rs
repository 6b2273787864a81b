//! Lending the dead bytes between living ones, the longest gaps first.
//!
//! To track the longest gap all the time would cost each write. So a heap of the gaps is made when
//! one is needed, and made anew when half of it is used. A gap in the heap may be lent or alive by
//! now, so each is checked again before it is lent.
//!
//! One gap of a unit is lent at a time, because a segment is identified by its unit.

use std::collections::BinaryHeap;

use weir_core::types::ClientId;

use super::{Grant, Tiers};
use crate::backing::Backing;
use crate::live::Gap;
use crate::slab::{SlabId, Tier, UNIT_BYTES};

/// A gap of the memory tier of at least this length comes before any of a storage directory. For
/// shorter ones, the writer's cost for each piece outweighs the speed of memory.
const LONG_BYTES: u32 = 4096;

/// The heap of gaps, and their number when it was made.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    heap: BinaryHeap<HeapGap>,
    made: usize,
}

/// A gap of the heap. Of two gaps the greater one is lent first: fields compare in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeapGap {
    is_long_memory: bool,
    len: u32,
    /// [`SlabId::raw`].
    slab: u32,
    unit: u32,
    /// Its offset in the unit.
    offset: u32,
}

/// A gap that may be lent.
#[derive(Clone, Copy, Debug)]
struct FreeGap {
    slab: SlabId,
    unit: u32,
    gap: Gap,
    /// True if its pages are present.
    warm: bool,
}

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
        for directory in self
            .directories
            .iter()
            .filter_map(|directory| directory.usable())
        {
            for (index, slab) in (0..).zip(&directory.slabs) {
                let id = SlabId::new(directory.directory, index);
                heap.extend(slab.gaps().map(|(unit, gap)| HeapGap {
                    is_long_memory: id.tier() == Tier::Memory && gap.len >= LONG_BYTES,
                    len: gap.len,
                    slab: id.raw(),
                    unit,
                    offset: gap.offset,
                }));
            }
        }
        self.gaps.made = heap.len();
        self.gaps.heap = heap.into();
    }

    /// Returns the first gap of the heap that may still be lent.
    fn next_gap(&mut self, no_memory: bool) -> Option<FreeGap> {
        while let Some(found) = self.gaps.heap.pop() {
            let unit = found.unit;
            let gap = Gap {
                offset: found.offset,
                len: found.len,
            };
            let slab = SlabId::from_raw(found.slab)?;
            let is_memory = slab.tier() == Tier::Memory;
            let warm = is_memory && self.board.warm(slab.index()) >> unit & 1 == 1;
            let there = self.directories[slab.directory().number()]
                .usable()
                .is_some()
                && self.account(slab).is_gap(unit, gap);
            if there && !(is_memory && !warm && no_memory) {
                return Some(FreeGap {
                    slab,
                    unit,
                    gap,
                    warm,
                });
            }
        }
        None
    }

    fn lend_gap(&mut self, free: FreeGap, client: ClientId) -> Grant {
        let FreeGap {
            slab,
            unit,
            gap,
            warm,
        } = free;
        self.account(slab).lend_gap(unit, client, warm);
        self.refresh(slab);
        Grant {
            segment: slab.segment(unit),
            slab,
            pos: u64::from(unit) * UNIT_BYTES + u64::from(gap.offset),
            len: u64::from(gap.len),
            warm,
        }
    }
}
