//! The memory that the server shares with its clients, as the logic sees it: slices of
//! records made of atomics. The runtime makes them out of mappings, tests out of vectors.
//!
//! Nothing read from here is believed before it was checked; who holds which block,
//! cell or segment is known from the server's private tables alone.

use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::channel::Channel;
use weir_core::node::landing::LandingSlot;
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{ClientHeader, Hub};
use weir_core::node::ring::{NoteRing, NoteSlot, RecordRing, RecordSlot};

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
}

/// A client's region.
pub trait ClientMemory {
    /// Its head.
    fn header(&self) -> &ClientHeader;
    /// The slots of its ring of records.
    fn record_slots(&self) -> &[RecordSlot];
    /// The slots of its ring of notes.
    fn note_slots(&self) -> &[NoteSlot];
    /// Its request channel.
    fn channel(&self) -> &Channel;
    /// Its slots for bytes of other nodes.
    fn landings(&self) -> &[LandingSlot] {
        &[]
    }

    /// Its ring of records.
    fn records(&self) -> RecordRing<'_> {
        RecordRing {
            ends: &self.header().records,
            slots: self.record_slots(),
        }
    }

    /// Its ring of notes.
    fn notes(&self) -> NoteRing<'_> {
        NoteRing {
            ends: &self.header().notes,
            slots: self.note_slots(),
        }
    }
}
