//! Notes: messages of clients that do not wait for an answer.

use std::sync::Arc;

use weir_core::node::ring::Note;
use weir_core::types::{ClientId, SegmentId};

use crate::node::{ClientMemory, Node, Platform};

impl<P: Platform> Node<'_, P> {
    /// Takes the notes of all clients.
    pub(in crate::cluster) fn take_all_notes(&mut self) {
        for id in self.clients.ids() {
            self.take_notes(id);
        }
    }

    /// Takes a client's notes. True if there were any.
    pub(in crate::cluster) fn take_notes(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(id) else {
            return false;
        };
        let memory = Arc::clone(&client.memory);
        let ring = memory.notes();
        let waiting = ring.waiting();
        let mut sweep = false;
        for _ in 0..waiting {
            let Some(note) = ring.pop() else { break };
            let good = note.is_some_and(|note| {
                sweep |= matches!(note, Note::Orphan(_) | Note::Closed(_));
                self.take_note(id, note)
            });
            if !good {
                self.stats
                    .reject("note", || format!("client {}: {note:?}", id.0));
            }
        }
        if sweep {
            self.sweep();
        }
        waiting > 0
    }

    /// Acts on a note; false if it is invalid.
    fn take_note(&mut self, id: ClientId, note: Note) -> bool {
        match note {
            Note::Detach(cell) => {
                let own = self.extents.has_cell(id, cell);
                if own {
                    self.writes().detach_cell(cell);
                }
                own
            }
            Note::Refused(segment) => {
                let segment = SegmentId(segment);
                self.segments.refused(&self.clients, id, segment)
            }
            Note::Release(segment) => self.end_lease(id, SegmentId(segment)),
            Note::Closed(index) => self.ofd_closed(index),
            // The sweep finds the orphans by itself.
            Note::Orphan(_) => true,
        }
    }
}
