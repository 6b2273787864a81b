//! The records of weir-core that lie in shared memory.
//!
//! Each type named here is `repr(C)` and made only of atomics, all the way down: that
//! is the promise behind the `unsafe` of [`crate::shm_record`]; the files of weir-core
//! that define them keep it.

use weir_core::names::{InodeRecord, NamesHeader};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::channel::Channel;
use weir_core::node::known::KnownSlot;
use weir_core::node::landing::LandingSlot;
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{ClientHeader, Hub};
use weir_core::node::ring::{NoteSlot, RecordSlot};

// Not with weir-core's feature `explore`, whose atomics are of another size.
const _: () = assert!(size_of::<RecordSlot>() == 64 && size_of::<LandingSlot>() == 64);

crate::shm_record!(NamesHeader, InodeRecord);
crate::shm_record!(Hub, Ofd, FileBlock, Cell, KnownSlot);
crate::shm_record!(ClientHeader, RecordSlot, NoteSlot, Channel, LandingSlot);
