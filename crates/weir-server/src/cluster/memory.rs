//! The memory that the server shares with its clients: slices of records made of atomics.
//!
//! Nothing read from here is believed before it was checked. Only the server's private tables say
//! which client holds a block, cell or segment.

use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::channel::{Channel, CHANNELS};
use weir_core::node::known::KnownSlot;
use weir_core::node::landing::{LandingSlot, LANDINGS};
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{client_layout, ClientHeader, Hub, NOTE_SLOTS, RECORD_SLOTS};
use weir_core::node::ring::{NoteRing, RecordRing};
use weir_store::shm::ShmRecord;

/// The parts of the `open` region.
#[derive(Clone, Copy, Debug)]
pub struct OpenRegion<'m> {
    /// Doorbells and the server's state.
    pub hub: &'m Hub,
    /// Open file descriptions.
    pub ofds: &'m [Ofd],
    /// Files open for writing.
    pub blocks: &'m [FileBlock],
    /// Growing records.
    pub cells: &'m [Cell],
    /// The table of known names of other servers.
    pub known: &'m [KnownSlot],
}

/// A client's region.
pub trait ClientMemory {
    /// Returns `count` records of the region from byte `offset` on. Both are of [`client_layout`].
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T];

    /// The header of the region.
    fn header(&self) -> &ClientHeader {
        &self.part(0, 1)[0]
    }

    /// Its request channels. The first one always has memory, the others if that was asked for.
    fn channels(&self) -> &[Channel] {
        self.part(client_layout().channels, CHANNELS)
    }

    /// Its slots for bytes of other nodes.
    fn landings(&self) -> &[LandingSlot] {
        self.part(client_layout().landings, LANDINGS)
    }

    /// Its ring of records.
    fn records(&self) -> RecordRing<'_> {
        RecordRing {
            ends: &self.header().records,
            slots: self.part(client_layout().records, RECORD_SLOTS),
        }
    }

    /// Its ring of notes.
    fn notes(&self) -> NoteRing<'_> {
        NoteRing {
            ends: &self.header().notes,
            slots: self.part(client_layout().notes, NOTE_SLOTS),
        }
    }
}
