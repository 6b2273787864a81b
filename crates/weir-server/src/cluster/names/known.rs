//! The table in shared memory that shows this node's programs names of other servers.

use std::sync::atomic::Ordering;

use weir_core::node::known::KnownNames;

use crate::node::{Node, OpenRegion, Platform, Table};

/// The least time between two tries to get memory for the table of known names, ns. The file system
/// may be full.
const KNOWN_AGAIN_NS: i64 = 1_000_000_000;

impl<'m, P: Platform> Node<'m, P> {
    /// The table of known names of other servers, to look up and to remove names.
    pub(in crate::cluster) fn known(&self) -> KnownNames<'m> {
        KnownNames::new(self.open.hub, self.open.known)
    }

    /// The same table, to add a name. The first call gets memory for the table, if there is any.
    pub(in crate::cluster) fn known_to_keep(&mut self) -> KnownNames<'m> {
        let OpenRegion { hub, known, .. } = self.open;
        let is_due = self.time() - self.names_memory.known_tried_ns >= KNOWN_AGAIN_NS;
        if hub.known.load(Ordering::Relaxed) == 0 && is_due {
            self.names_memory.known_tried_ns = self.time();
            if self.platform.present(Table::Known, known.len()) >= known.len() {
                let slots = u32::try_from(known.len()).unwrap_or(0);
                hub.known.store(slots, Ordering::Release);
            }
        }
        self.known()
    }
}
