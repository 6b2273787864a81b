//! The table in shared memory in which this node's programs see names of other servers.

use std::sync::atomic::Ordering;

use weir_core::node::known::KnownNames;

use crate::cluster::names::NamesMemory;
use crate::node::{OpenRegion, Platform, Table};

/// The least time between two tries to get memory for the table of known names, ns. The file system
/// may be full.
const KNOWN_AGAIN_NS: i64 = 1_000_000_000;

impl NamesMemory {
    /// The table of known names of other servers, to add a name. The first call gets memory for the
    /// table, if there is any.
    pub(in crate::cluster) fn known_to_keep<'m>(
        &mut self,
        open: &OpenRegion<'m>,
        platform: &impl Platform,
        now_ns: i64,
    ) -> KnownNames<'m> {
        let OpenRegion { hub, known, .. } = open;
        let is_due = now_ns - self.known_tried_ns >= KNOWN_AGAIN_NS;
        if hub.known.load(Ordering::Relaxed) == 0 && is_due {
            self.known_tried_ns = now_ns;
            if platform.present(Table::Known, known.len()) >= known.len() {
                let slots = u32::try_from(known.len()).unwrap_or(0);
                hub.known.store(slots, Ordering::Release);
            }
        }
        KnownNames::new(hub, known)
    }
}
