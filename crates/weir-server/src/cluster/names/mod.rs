//! Names: entries, directories, links and renames.
//!
//! Keeps: the directories of this server, and the servers that hold entries of them; the placements
//! of directories; names of other servers, kept from earlier requests; renames under way.
//!
//! Invariant: an entry has one home at a time. A name is changed at its home, under its lock.
//!
//! May use: [`NamesNeeds`], [`FilesForNames`], [`NameSteps`].
//!
//! Interface: [`InstanceNames`], the names of all servers as this one knows them; `NodeNames` beside this room, those of this server,
//! with its inodes; `NamesState` for the journal.
//!
//! | file | subject |
//! | --- | --- |
//! | `requests` | requests of this node's clients |
//! | `home` | finding, making, removing and linking names at their home |
//! | `here` | the same where no other server and no other request is concerned |
//! | `rename`, `moves` | renames: their leader, and the homes of both names |
//! | `history` | the renames and removals of this server, for a drain that walks a tree |
//! | `placements` | the home of each name |
//! | `directories` | directories with entries at several servers |
//! | `entries` | names of other servers, kept here |
//! | `lost` | directories whose home is lost |
//! | `tables` | operations that change them and other tables at once |
//! | `memory` | memory behind the tables of names |
//! | `known` | the table in shared memory that shows programs names of other servers |

use std::cell::RefCell;

use weir_core::journal;
use weir_core::names::{Attr, FileType, Owner, Policy};
use weir_core::proto::peer::{self, Unnamed};
use weir_core::proto::{self, Attached, Caller, Child, Created, Entry, FsError, Listing};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::{InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::files::FileNews;
use crate::cluster::keyed::Keyed;
use crate::node::{SnapshotPosition, Visit};

mod directories;
mod entries;
mod here;
mod history;
mod home;
mod known;
mod lost;
mod memory;
mod moves;
mod placements;
mod rename;
pub(super) mod requests;
mod tables;
#[cfg(test)]
mod tests;

pub(super) use memory::NamesMemory;

/// The parts of the server that names need.
pub(in crate::cluster) trait NamesNeeds:
    FilesForNames + Journals + OwnTables<Node: NameSteps>
{
    /// The state of this room.
    fn names_state(&self) -> &NamesState;
    /// Notes the name by which programs of this node found a file, for messages.
    fn note_file_name(&self, ino: Ino, dir: Ino, name: &[u8]);
}

/// The parts of the instance's files that names need.
pub(in crate::cluster) trait FilesForNames: InodeNumbers {
    /// The path of an entry, if a rule for new files may name it.
    async fn path_for_rules(&self, dir: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, FsError>;
    /// The counts of news about files now.
    fn news(&self) -> FileNews;
    /// Returns true if no news since `before` has outdated a home's answer that this node holds a file. `is_new`: the
    /// home made the file for the same request.
    fn holds_since(&self, before: &FileNews, is_new: bool) -> bool;

    /// Notes that a server has a file of this one open.
    fn add_holder(&self, ino: Ino, holder: Rank);
    /// Adds a node that may write a file of this server.
    async fn add_writer(&self, ino: Ino, writer: Rank);
    /// Notes that a file of this server is open at `from`.
    async fn hold_for(&self, from: Rank, ino: Ino, write: bool) -> Result<Attr, FsError>;
    /// Grants the maker of a new file of this server all of it, if it is raw.
    fn grant_new(&self, maker: Rank, attr: &Attr) -> bool;
    /// Recalls all leases of a file of this server, except that of `writer`.
    async fn recall_leases(&self, ino: Ino, writer: Option<Rank>);
    /// Frees a file of this server that lost its last name, unless a program has it open. If `asker` holds the file,
    /// the reply tells it.
    async fn end_unnamed(&self, ino: Ino, asker: Rank) -> Option<Unnamed>;

    /// Prepares a file for being open here; returns its attributes, with its number here.
    async fn hold_here(&self, ino: Ino, write: bool) -> Result<Attr, FsError>;
    /// Makes or refreshes the stand-in for a file; returns the attributes as seen here.
    fn stand_in_for(&self, attr: &Attr) -> Result<Attr, FsError>;
    /// Tells the home of a file, for which there is no stand-in here, that this node does not hold
    /// it.
    fn leave_unknown(&self, ino: Ino);
    /// Notes that programs of this node write a foreign file, as requested at `asked_ns`.
    fn may_reserve(&self, ino: Ino, asked_ns: i64);
    /// Notes that a client of this node was attached to a file.
    fn attached_here(&self, ino: Ino, local: Ino);
    /// The number of times that this node gave up tokens.
    fn revocations(&self) -> u64;
    /// Notes that this node may write all of a file that it has made, as requested at `asked_ns`.
    fn hold_new(&self, ino: Ino, asked_ns: i64);
    /// Handles the reply that this node's request took the last name of a file that it holds.
    async fn lost_its_name(&self, unnamed: Unnamed);

    /// Returns true if no other server has a file of this one open, or believes its state.
    fn is_private(&self, ino: Ino) -> bool;
    /// Returns true if this server knows all servers that may write its files.
    fn knows_all_writers(&self) -> bool;
    /// Notes that a file was made here by a program of this node, which `writes` it.
    fn note_maker(&self, ino: Ino, writes: bool);
    /// Handles a change of the names of a private file, which may have none any more.
    fn note_new_names(&self, ino: Ino);
    /// Returns true if files of this server have ended whose bytes are not free yet.
    fn has_gone(&self) -> bool;
    /// Frees these bytes, at all servers.
    async fn erase_gone(&self);
}

/// This server's own tables. Programs see a change of names and of other tables as one change.
pub(in crate::cluster) trait NameSteps: NameTables {
    /// Makes all entries of the table of known names void.
    fn forget_known(&self);
    /// Makes a file, or finds the file that has the name, and attaches the client if it requests
    /// that.
    fn create_file(&mut self, from: Caller, op: &proto::Create) -> Result<Created, FsError>;
    /// Makes a file without a name, as in a directory with these attributes. The client may write
    /// it at once, so the file has an opener that keeps it.
    fn create_unnamed_file(
        &mut self,
        id: ClientId,
        op: &proto::CreateUnnamed,
        dir: &Attr,
    ) -> Result<Created, FsError>;
    /// Lets a client write a file.
    fn attach_client(&mut self, id: ClientId, ino: Ino) -> Result<Attached, FsError>;
    /// Returns true if new files get a policy by their paths.
    fn has_path_rules(&self) -> bool;
    /// Gives a new file the policy that the rules say for its path; returns it.
    fn apply_rules_of(&mut self, path: &[u8], file: &Attr) -> Result<Policy, FsError>;
    /// Makes an entry of a directory, with its inode.
    fn make(&mut self, dir: Ino, op: &peer::Make, owner: Owner) -> Result<Ino, FsError>;
    /// Adds an entry.
    fn enter(&mut self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError>;
    /// Gives a file another name.
    fn make_link(&mut self, op: &proto::Link) -> Result<(), FsError>;
    /// Adds or removes a link of an inode of this server.
    fn relink(&mut self, ino: Ino, add: bool) -> Result<FileType, FsError>;
    /// Removes a name that is not a directory's; returns the inode.
    fn remove_name(&mut self, parent: Ino, name: &[u8]) -> Result<Ino, FsError>;
    /// Removes an empty directory.
    fn remove_dir(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError>;
    /// Ends a directory of this server that was removed.
    fn end_dir(&mut self, dir: Ino) -> Result<(), FsError>;
    /// Renames an entry, both of whose directories are here.
    fn rename_entry(&mut self, op: &proto::Rename) -> Result<(), FsError>;
    /// Lists entries of a directory.
    fn list(&self, op: &proto::Readdir) -> Result<Listing, FsError>;
    /// The entry to which a path leads.
    fn walk(&self, components: &[Vec<u8>]) -> Result<Entry, FsError>;
}

/// The names of all servers, as this one knows them.
#[derive(Clone)]
pub(in crate::cluster) struct InstanceNames<S> {
    server: S,
}

impl<S: NamesNeeds> InstanceNames<S> {
    pub(in crate::cluster) fn new(server: &S) -> InstanceNames<S> {
        InstanceNames {
            server: server.clone(),
        }
    }

    fn state(&self) -> &NamesState {
        self.server.names_state()
    }
}

/// A name in a directory, as a key in the tables of this room. Two names are locked in the order of their keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::cluster) struct NameKey {
    dir: Ino,
    name: Vec<u8>,
}

impl NameKey {
    pub(in crate::cluster) fn new(dir: Ino, name: Vec<u8>) -> NameKey {
        NameKey { dir, name }
    }
}

/// The state of this room that concerns several servers.
pub(in crate::cluster) struct NamesState {
    /// Names of this server that are being changed.
    name_locks: Keyed<NameKey>,
    /// Directories of this server that are being removed.
    burials: Keyed<Ino>,
    /// Directories whose stand-ins here are being made or ended.
    stands: Keyed<Ino>,
    /// The permit for moving directories (rank 0).
    dir_moves: Keyed<()>,
    renames: moves::RenameSteps,
    history: history::HistoryLog,
    dirs: RefCell<directories::DirectoryTable>,
    entries: RefCell<entries::EntryCache>,
    placements: RefCell<placements::Placements>,
    /// Directories of this server whose entries are being placed.
    placing: Keyed<Ino>,
    /// Directories with all entries here that are being split.
    splitting: Keyed<Ino>,
}

impl NamesState {
    pub(in crate::cluster) fn new(rank: Rank, servers: u16) -> NamesState {
        NamesState {
            name_locks: Keyed::default(),
            burials: Keyed::default(),
            stands: Keyed::default(),
            dir_moves: Keyed::default(),
            renames: moves::RenameSteps::default(),
            history: history::HistoryLog::default(),
            dirs: RefCell::new(directories::DirectoryTable::new(rank, servers)),
            entries: RefCell::default(),
            placements: RefCell::default(),
            placing: Keyed::default(),
            splitting: Keyed::default(),
        }
    }

    /// Stops requests from waiting for a locked name, until its lock is released.
    pub(in crate::cluster) fn stick_name(&self, key: &NameKey) {
        self.name_locks.stick(key);
    }

    /// Restores the state from the journal.
    pub(in crate::cluster) fn take_up(&self, state: &mut journal::Cluster) {
        self.renames.take_up(state);
        self.placements.borrow_mut().take_up(state);
        self.dirs.borrow_mut().take_up(state);
    }

    /// Restores, from the journal, the names that files have lost.
    pub(in crate::cluster) fn take_up_history(&self, state: &mut journal::Cluster) {
        self.history.take_up(state);
    }

    /// Visits some of the servers that hold entries of this server's directories; returns the
    /// position to go on from.
    pub(in crate::cluster) fn show_enrolled(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.dirs.borrow().show_enrolled(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the names of directories whose entry is at another
    /// server.
    pub(in crate::cluster) fn show_moved(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.dirs.borrow().show_moved(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the placements of this server's directories.
    pub(in crate::cluster) fn show_placements(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.placements.borrow().show_own(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the names that files and links have lost.
    pub(in crate::cluster) fn show_lost_names(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.history.show_lost_names(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the directories that have all their entries here.
    pub(in crate::cluster) fn show_all_here(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.placements.borrow().show_all_here(from, most, visit)
    }

    /// Visits the renames that are under way.
    pub(in crate::cluster) fn show_renames(&self, visit: Visit<'_>) {
        self.renames.show_steps(visit);
    }
}
