//! Extents: where the bytes of files are.
//!
//! Keeps: the blocks and cells of files that are open for writing, the index of unpublished writes of this node's
//! clients, the published extents of the slices that live here, and the answers of other slices' homes.
//!
//! Invariants: a byte of a log counts as living exactly while an index refers to it. The newest
//! publish wins. Every holder of cached extents sees the inode's generation change before the freed
//! bytes are used again.
//!
//! May use: [`ExtentsNeeds`] and [`ExtentSteps`]; of this server's own tables, those that [`NodeWrites`] borrows. Only
//! the lending of a cell (`attach_client`) needs others: the watched files of `files`, a commit, and the notes of
//! clients if no cell is free.
//!
//! Interface: [`NodeWriters`] (`size_of`, `mtime_of`, `shared_block`: files as their writers change them); [`NodeWrites`]
//! (`harvest`, `detach_cell`, `set_size`: the index and the cells); `attach_client`; [`PublishedExtents`] (`publish`,
//! `erase_everywhere`, `give_back`: the homes of slices; `hold_publishing`: no publish meanwhile); `ExtentsState` and
//! `ExtentTables` for the journal.
//!
//! | file | subject |
//! | --- | --- |
//! | `harvest`, `applied` | reading cells and rings into the index |
//! | `attach`, `writers` | files that are open for writing, and their writers' cells |
//! | `table`, `ranges` | the index of each file, and operations on its ranges |
//! | `copies` | extents that are bytes of a file's copy |
//! | `pending` | unpublished extents |
//! | `recover` | the extents and writers of a killed server |
//! | `publish` | telling the homes of slices; the requests of clients that begin with it |
//! | `publishes`, `slices` | publishes under way to the homes, and the extents that the homes have |
//! | `locate` | finding extents, of any server |

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use weir_core::extent::{ExtentIndex, MAX_OFFSET};
use weir_core::journal::{self, Item, PublishedBytes};
use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::{Attached, FsError};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::{InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::changes::NotedChanges;
use crate::cluster::clients::stats::Stats;
use crate::cluster::clients::table::Clients;
use crate::cluster::keyed::Keyed;
use crate::cluster::net::LogBytes;
use crate::cluster::node_names::NodeNames;
use crate::cluster::slots::Slots;
use crate::cluster::storage::SegmentTables;
use crate::node::{Node, OpenRegion, Platform, SnapshotPosition, Visit};

mod applied;
mod attach;
mod copies;
mod harvest;
pub(super) mod locate;
mod pending;
pub(super) mod publish;
mod publishes;
pub(super) mod ranges;
mod recover;
mod slices;
mod table;
#[cfg(test)]
mod tests;
mod writers;

/// The parts of the server that published extents need.
pub(in crate::cluster) trait ExtentsNeeds:
    InodeNumbers + Journals + OwnTables<Node: ExtentSteps>
{
    /// The state of this room.
    fn extents_state(&self) -> &ExtentsState;
    /// The bytes of this server's log.
    fn log(&self) -> &dyn LogBytes;

    /// Returns true if this node may publish its bytes of a file now.
    fn may_publish(&self, ino: Ino, local: Ino) -> Result<bool, FsError>;
    /// True if this node, to its knowledge, must not publish its bytes of a file yet.
    fn holds_back(&self, ino: Ino) -> bool;
    /// Prepares a file for being open here; returns its attributes, with its number here.
    async fn hold_here(&self, ino: Ino, write: bool) -> Result<Attr, FsError>;
    /// Brings a stand-in up to date, and keeps it so until it is recalled.
    async fn lease_here(&self, ino: Ino) -> Result<(), FsError>;
    /// Notes that a client of this node was attached to a file.
    fn attached_here(&self, ino: Ino, local: Ino);
    /// Makes other nodes publish their bytes in this range of a raw file.
    async fn end_other_writes(&self, ino: Ino, claim: &Claim) -> Result<(), FsError>;
    /// The offset at which a file ends for readers here. Extents behind it may still be known, but
    /// are being erased.
    fn erased_from(&self, ino: Ino) -> u64;
    /// Stops believing this node's copy of a file's state: another node, or a publish of this one, has changed the
    /// file.
    fn recall_here(&self, ino: Ino);
    /// Notes that a server will not repeat any publish to a file.
    fn forget_counted(&self, from: Rank, ino: Ino);
    /// Stops believing answers that the home gave before this node's publish reached it.
    fn doubt_answers(&self, ino: Ino);
}

/// Tables with the writes of this node's programs. Files have their numbers of this server's table.
pub(in crate::cluster) trait WriteTables {
    /// The kernel and storage of this server.
    type Platform: Platform;
    /// The writers, and the files with their current writes.
    fn writers(&self) -> NodeWriters<'_, 'static>;
    /// The writes, to take them into the index and to change it.
    fn writes(&mut self) -> NodeWrites<'_, 'static, Self::Platform>;
}

/// The parts of this server's own tables that publishing uses.
pub(in crate::cluster) trait ExtentSteps: NameTables + WriteTables {
    /// Lets a client write a file.
    fn attach_client(&mut self, id: ClientId, local: Ino) -> Result<Attached, FsError>;
}

/// The extents of all files, as their slices' homes know them; and their publishing.
#[derive(Clone)]
pub(in crate::cluster) struct PublishedExtents<S> {
    server: S,
}

impl<S: ExtentsNeeds> PublishedExtents<S> {
    pub(in crate::cluster) fn new(server: &S) -> PublishedExtents<S> {
        PublishedExtents {
            server: server.clone(),
        }
    }

    fn state(&self) -> &ExtentsState {
        self.server.extents_state()
    }
}

/// The tables of this room.
pub(in crate::cluster) struct ExtentTables {
    /// Files that are open for writing.
    blocks: Slots<writers::OpenFile>,
    /// Their writers.
    cells: Slots<writers::Writer>,
    indexes: table::FileTable,
    /// Files whose index changed in the current call.
    changed: Vec<Ino>,
    /// Stored bytes of files, beside those in their indexes here.
    stored: HashMap<Ino, u64>,
    /// The published part of the log.
    published_log: PublishedBytes,
}

/// The position of a snapshot in the indexes of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::cluster) struct ExtentPosition {
    /// The slot of the file.
    slot: u32,
    /// The offset in the file, bytes.
    offset: u64,
}

/// Slots of files that one step of a snapshot looks at.
const SLOTS: u32 = 1024;

impl ExtentTables {
    pub(in crate::cluster) fn new(open: &OpenRegion<'_>) -> ExtentTables {
        ExtentTables {
            blocks: Slots::new(open.blocks.len()),
            cells: Slots::new(open.cells.len()),
            indexes: table::FileTable::default(),
            changed: Vec::new(),
            stored: HashMap::new(),
            published_log: PublishedBytes::default(),
        }
    }

    /// Forgets all writers: another region is open, in which nothing is lent.
    pub(in crate::cluster) fn reopen(&mut self, open: &OpenRegion<'_>) {
        self.blocks = Slots::new(open.blocks.len());
        self.cells = Slots::new(open.cells.len());
    }

    /// The writers, and the files with their current writes.
    pub(in crate::cluster) fn writers<'a, 'm>(
        &'a self,
        names: &'a NodeNames<'m>,
        open: &'a OpenRegion<'m>,
    ) -> NodeWriters<'a, 'm> {
        NodeWriters {
            tables: self,
            names,
            open,
        }
    }

    /// Returns true if a client has a cell.
    pub(in crate::cluster) fn has_cell(&self, client: ClientId, cell: u32) -> bool {
        self.cells
            .get(cell)
            .is_some_and(|writer| writer.client == client)
    }

    /// The blocks of files that are open for writing.
    pub(in crate::cluster) fn open_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|(block, _)| block)
    }

    /// The end of the data in a file's index, bytes.
    pub(in crate::cluster) fn end_of_data(&self, ino: Ino) -> u64 {
        self.indexes.get(ino).map_or(0, ExtentIndex::last_data)
    }

    /// Returns true if a file has extents here.
    fn has_extents(&self, ino: Ino) -> bool {
        self.indexes.get(ino).is_some_and(|index| !index.is_empty())
    }

    /// The number of runs of all files.
    pub(in crate::cluster) fn run_count(&self) -> usize {
        self.indexes.iter().map(ExtentIndex::run_count).sum()
    }

    /// Keeps the number of a file's stored bytes, beside those in its index.
    pub(in crate::cluster) fn keep_stored(&mut self, ino: Ino, bytes: u64) {
        match bytes {
            0 => self.stored.remove(&ino),
            bytes => self.stored.insert(ino, bytes),
        };
    }

    /// Visits some of the runs of all files, at most `most`, from a position on. Returns the next
    /// position.
    pub(in crate::cluster) fn show_some(
        &self,
        names: &NodeNames<'_>,
        from: ExtentPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<ExtentPosition> {
        let ExtentPosition {
            mut slot,
            mut offset,
        } = from;
        let mut left = most;
        let used = names.used().inodes;
        let end = slot.saturating_add(SLOTS).min(used);
        while slot < end && left > 0 {
            let index = self.indexes.get(names.ino_at(slot));
            if let Some(index) = index.filter(|index| !index.is_empty()) {
                let mut runs = Vec::new();
                let upto = index.runs_in(offset, MAX_OFFSET, left, &mut runs).hi;
                left = left.saturating_sub(runs.len());
                visit(&Item::IndexRuns(names.ino_at(slot), runs));
                if upto < MAX_OFFSET {
                    return Some(ExtentPosition { slot, offset: upto });
                }
            }
            (slot, offset) = (slot + 1, 0);
        }
        (slot < used).then_some(ExtentPosition { slot, offset })
    }

    /// Visits the runs of all files.
    pub(in crate::cluster) fn show_files(&self, names: &NodeNames<'_>, visit: Visit<'_>) {
        for slot in self.indexes.not_empty() {
            let ino = names.ino_at(slot);
            let mut runs = Vec::new();
            if let Some(index) = self.indexes.get(ino) {
                index.for_each_run(&mut |run| runs.push(run));
            }
            visit(&Item::IndexRuns(ino, runs));
        }
    }

    /// Visits the lent cells, if `noted` with the noted parts of their records, and the published part of the log.
    pub(in crate::cluster) fn show_writers(&self, noted: bool, visit: Visit<'_>) {
        for (cell, writer) in self.cells.iter() {
            if let Some(file) = self.blocks.get(writer.block) {
                visit(&Item::CellAttached {
                    cell,
                    client: writer.client,
                    ino: file.ino,
                    block: writer.block,
                });
                if noted && writer.noted.stamp != 0 {
                    // All noted records are in the index shown above, or were taken out of it.
                    visit(&Item::CellMarked(cell, writer.noted.mark()));
                }
            }
        }
        self.published_log.items().for_each(|item| visit(&item));
    }
}

/// The files that programs of this node write, and their writers. Nothing here changes a table; the
/// blocks and cells are atomics in memory that is shared with the writers.
#[derive(Clone, Copy)]
pub(in crate::cluster) struct NodeWriters<'a, 'm> {
    tables: &'a ExtentTables,
    names: &'a NodeNames<'m>,
    open: &'a OpenRegion<'m>,
}

/// The writes of this node's programs: the tables of this room, and those parts of other rooms that
/// change with them: sizes and times of files, living bytes of slabs, and the cells and rings of
/// clients.
pub(in crate::cluster) struct NodeWrites<'a, 'm, P: Platform> {
    tables: &'a mut ExtentTables,
    names: &'a mut NodeNames<'m>,
    segments: &'a mut SegmentTables<P::Space>,
    clients: &'a mut Clients<P::Memory>,
    stats: &'a mut Stats,
    changes: &'a mut NotedChanges,
    open: &'a OpenRegion<'m>,
    platform: &'a P,
    /// This server's rank, which its bytes in the index have.
    rank: u16,
}

impl<'m, P: Platform> NodeWrites<'_, 'm, P> {
    /// The writers, and the files with their current writes.
    fn writers(&self) -> NodeWriters<'_, 'm> {
        self.tables.writers(self.names, self.open)
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// The writers, and the files with their current writes.
    pub(in crate::cluster) fn writers(&self) -> NodeWriters<'_, 'm> {
        self.extents.writers(&self.names, &self.open)
    }

    /// The writes, to take them into the index and to change it.
    pub(in crate::cluster) fn writes(&mut self) -> NodeWrites<'_, 'm, P> {
        NodeWrites {
            tables: &mut self.extents,
            names: &mut self.names,
            segments: &mut self.segments,
            clients: &mut self.clients,
            stats: &mut self.stats,
            changes: &mut self.changes,
            open: &self.open,
            platform: &self.platform,
            rank: self.identity.rank.0,
        }
    }
}

/// The state of this room that concerns several servers.
#[derive(Default)]
pub(in crate::cluster) struct ExtentsState {
    publishes: RefCell<publishes::Publishes>,
    /// Files that are being published from here.
    publishing: Keyed<Ino>,
    slices: RefCell<slices::SliceExtents>,
    /// The known published extents of files that programs of this node read.
    maps: RefCell<BTreeMap<Ino, locate::ExtentMap>>,
}

impl ExtentsState {
    /// Restores the state from the journal.
    pub(in crate::cluster) fn take_up(&self, state: &mut journal::Cluster) {
        let in_flight = std::mem::take(&mut state.in_flight);
        self.publishes.borrow_mut().take_up(in_flight);
        let indexes = std::mem::take(&mut state.slices);
        let answered = std::mem::take(&mut state.answered);
        let mut slices = self.slices.borrow_mut();
        slices.take_up(indexes, state.slices_stamp, answered);
    }

    /// Visits some of the published extents of this server's slices; returns the position to go on
    /// from.
    pub(in crate::cluster) fn show_slices(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.slices.borrow().show_extents(from, most, visit)
    }

    /// Visits the publishes under way, and the answers to those of other servers.
    pub(in crate::cluster) fn show_publishes(&self, visit: Visit<'_>) {
        self.publishes.borrow().show_batches(visit);
        self.slices.borrow().show_answers(visit);
    }

    /// Returns true if a task of this node is publishing a file.
    pub(in crate::cluster) fn is_publishing(&self, ino: Ino) -> bool {
        self.publishing.is_held(&ino)
    }
}
