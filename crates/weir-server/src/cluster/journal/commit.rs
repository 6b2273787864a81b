//! Noting and committing changes: a change is in the journal before anybody is told of it.
//!
//! A change is noted at the place and in the order in which it is made. Noted changes are *committed*
//! together: by the task that is about to tell somebody (a client, a tool, another server), and at the
//! latest when the server has nothing else to do. So everything that was told is in the journal, and an
//! operation is in it as a whole or not at all.
//!
//! When the journal is long the server begins it anew, with a snapshot in steps: one step between
//! two requests, so that none waits for long ([`Node::renew_journal`]).
//!
//! Records of clients stay in their rings until they are committed. Only then does the server give
//! the entries of the ring back, and lend a cell again. The record that a cell still shows is not
//! noted each time it grows, only when the cell moves on.

use weir_core::journal::{encode, Item};
use weir_core::names::TableCursor;
use weir_core::types::Ino;

use crate::cluster::extents::ExtentPosition;
use crate::node::{ClientMemory, Node, Platform, SnapshotPosition, Visit};

/// The journal of a server.
pub trait Journal {
    /// Appends items, as one record.
    fn append(&mut self, items: &[u8]);
    /// Returns true if it is so long that it should be begun anew.
    fn is_long(&self) -> bool;
    /// Returns true if all appended items are in the journal. If not, no server can take over from
    /// this one.
    fn is_whole(&self) -> bool;
    /// Begins another journal beside this one. Items appended from now on go to both. Returns false
    /// if that is impossible, or not possible now.
    fn begin_anew(&mut self) -> bool;
    /// Adds a part of a snapshot to the other journal; false: there is no other journal any more.
    fn add(&mut self, items: &[u8]) -> bool;
    /// Makes the other journal, which is whole, the journal from now on.
    fn take_over(&mut self);
    /// Does some of the work that is left after that; false if there was none.
    fn tidy(&mut self) -> bool;
}

/// Shows some items of the tables that servers share, from a position on, and returns the next
/// position. `None` shows at once the items that belong at the end of the snapshot.
pub type ShowShared<'v> =
    &'v dyn Fn(Option<SnapshotPosition>, Visit<'_>) -> Option<SnapshotPosition>;

/// The progress of a snapshot.
#[derive(Clone, Copy, Debug)]
enum Progress {
    Names(TableCursor),
    Extents(ExtentPosition),
    /// The inode whose extended attributes were shown last.
    Xattrs(Option<Ino>),
    Shared(SnapshotPosition),
    Last,
}

/// Inodes and entries that one step shows.
const NAMES: usize = 512;
/// Runs that one step shows.
pub(super) const RUNS: usize = 2048;
/// Extended attributes that one step shows.
const XATTRS: usize = 256;
/// The approximate size of a part of a snapshot, bytes.
const PART_BYTES: usize = 256 << 10;

/// The journal of this server, if it keeps one.
#[derive(Default)]
pub(in crate::cluster) struct NodeJournal {
    file: Option<Box<dyn Journal>>,
    /// The snapshot that is being taken.
    progress: Option<Progress>,
    /// A limit for the entries of one step, if it is lower than the usual one.
    most: Option<usize>,
}

impl NodeJournal {
    /// Returns true if a server that is killed now can be started again.
    pub(in crate::cluster) fn is_recoverable(&self) -> bool {
        let journal = self.file.as_ref();
        journal.is_some_and(|journal| journal.is_whole())
    }
}

impl<P: Platform> Node<'_, P> {
    /// Notes all changes from now on in `journal`, which already has the present state.
    pub fn keep_journal(&mut self, journal: Box<dyn Journal>) {
        self.names.note_changes();
        self.changes.keep();
        self.journal.file = Some(journal);
    }

    /// Appends the noted changes to the journal.
    pub(crate) fn commit(&mut self) {
        self.names_memory.make_room(&mut self.names, &self.platform);
        if let Some(journal) = &mut self.journal.file {
            let items = self.changes.items();
            self.names.take_changes(items);
            if !items.is_empty() {
                journal.append(items);
                items.clear();
            }
        }
        for id in self.changes.take_drained() {
            if let Some(client) = self.clients.get_mut(id) {
                let taken = std::mem::take(&mut client.taken);
                client.memory.header().records.consumed(taken);
            }
        }
    }

    /// Limits a step of beginning the journal anew to `most` inodes, entries or runs.
    pub fn set_snapshot_step(&mut self, most: usize) {
        self.journal.most = Some(most);
    }

    /// Does a step of beginning the journal anew, if it is long. Returns true if there is more to
    /// do at once. `shared` shows the tables that servers share.
    pub fn renew_journal(&mut self, shared: ShowShared<'_>) -> bool {
        let Some(journal) = &mut self.journal.file else {
            return false;
        };
        let Some(progress) = self.journal.progress else {
            if journal.tidy() {
                return true;
            }
            if !journal.is_long() || !journal.begin_anew() {
                return false;
            }
            self.journal.progress = Some(Progress::Names(TableCursor::default()));
            return true;
        };
        // The snapshot must not be ahead of the changes in the journal.
        self.commit();
        let Some(mut journal) = self.journal.file.take() else {
            return false;
        };
        let (mut items, mut good) = (Vec::new(), true);
        let next = self.show_some(progress, shared, &mut |item| {
            encode(item, &mut items);
            if items.len() >= PART_BYTES {
                good &= journal.add(&items);
                items.clear();
            }
        });
        if next.is_none() {
            encode(&Item::SnapshotEnd, &mut items);
        }
        good = good && (items.is_empty() || journal.add(&items));
        if good && next.is_none() {
            journal.take_over();
        }
        self.journal.progress = next.filter(|_| good);
        self.journal.file = Some(journal);
        good
    }

    /// Shows the items of one step. Returns the beginning of the next step.
    fn show_some(
        &self,
        from: Progress,
        shared: ShowShared<'_>,
        visit: Visit<'_>,
    ) -> Option<Progress> {
        let most = |usual: usize| self.journal.most.unwrap_or(usual).min(usual);
        match from {
            Progress::Names(place) => Some(
                match self.names.visit_items_from(place, most(NAMES), visit) {
                    Some(place) => Progress::Names(place),
                    None => Progress::Extents(ExtentPosition::default()),
                },
            ),
            Progress::Extents(from) => {
                let next = self.extents.show_some(&self.names, from, most(RUNS), visit);
                Some(next.map_or(Progress::Xattrs(None), Progress::Extents))
            }
            Progress::Xattrs(after) => {
                Some(match self.files.show_xattrs(after, most(XATTRS), visit) {
                    Some(last) => Progress::Xattrs(Some(last)),
                    None => Progress::Shared(SnapshotPosition::FIRST),
                })
            }
            Progress::Shared(place) => Some(match shared(Some(place), visit) {
                Some(place) => Progress::Shared(place),
                None => Progress::Last,
            }),
            Progress::Last => {
                visit(&Item::SnapshotReset);
                self.show_lending(visit);
                shared(None, visit);
                None
            }
        }
    }

    /// Shows the whole state of the node as items.
    pub fn for_each_item(&self, visit: Visit<'_>) {
        self.names.for_each_item(visit);
        self.files.show_xattrs(None, usize::MAX, visit);
        self.extents.show_files(&self.names, visit);
        self.show_lending(visit);
    }

    /// Shows the clients, everything that they were lent, and the published part of the log.
    fn show_lending(&self, visit: Visit<'_>) {
        self.admitted_users.show_users(visit);
        self.clients.show_clients(visit);
        self.extents
            .show_writers(self.identity.is_of_several(), visit);
    }
}
