//! The rest of the server, as far as files concern it.

use std::collections::BTreeSet;

use weir_core::extent::Run;
use weir_core::names::Attr;
use weir_core::proto::peer::{LogRange, PeerOperation};
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::{InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::clients::parties::NodeParties;
use crate::cluster::extents::locate::ExtentMap;
use crate::cluster::extents::publish::PublishCause;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::descriptions::OpenDescriptions;
use crate::cluster::files::{FilesState, NodeFiles};
use crate::cluster::keyed::Guard;

/// The rest of the server, as far as files concern it.
pub(in crate::cluster) trait FilesNeeds:
    InodeNumbers + Journals + OwnTables<Node: FileSteps>
{
    /// The published extents.
    type Extents: ExtentsForFiles;
    /// The names.
    type Names: NamesForFiles;

    /// The state of this room.
    fn files_state(&self) -> &FilesState;
    /// The extents of all files, as their slices' homes know them.
    fn extents(&self) -> Self::Extents;
    /// The names of all servers, as this one knows them.
    fn names(&self) -> Self::Names;
    /// Notes that a program of this node cannot read a file that it has open, because its home
    /// cannot be reached.
    fn miss_file(&self, ino: Ino);
}

/// The published extents, as far as files use them.
pub(in crate::cluster) trait ExtentsForFiles {
    /// Returns true if extents of a file are on their way.
    fn is_in_flight(&self, ino: Ino) -> bool;
    /// Drops the known extents of a file, unless it is laminated.
    fn forget_map(&self, ino: Ino);
    /// Publishes the extents that this node wrote to a file. Runs that could not be sent are sent
    /// later.
    async fn flush(&self, ino: Ino) -> Result<(), FsError>;
    /// Stops sending extents of a file. Returns the end of what was sent, and the ranges that
    /// become free.
    fn end_sending(&self, ino: Ino) -> (u64, Vec<LogRange>);
    /// Removes the map of a file. Returns true if the file was laminated: then other servers may
    /// have its map too.
    fn is_kept(&self, ino: Ino) -> bool;
    /// Gives bytes back to the servers whose logs have them.
    async fn give_back(&self, freed: Vec<LogRange>);
    /// The servers whose slices `[from, to)` touches.
    fn homes_of(&self, ino: Ino, from: u64, to: u64) -> BTreeSet<Rank>;
    /// Asks the homes of slices for an operation that frees bytes of logs; returns these.
    async fn free_in_slices<O>(
        &self,
        ino: Ino,
        homes: BTreeSet<Rank>,
        op: O,
    ) -> Result<Vec<LogRange>, FsError>
    where
        O: PeerOperation<Reply = Vec<LogRange>> + Clone + 'static;
    /// The runs that are on their way to the slices' homes, for readers of this node.
    fn in_flight(&self, ino: Ino) -> Vec<Run>;
    /// The files of which this node has something to publish.
    fn dirty(&self) -> Vec<Ino>;
    /// Erases `[from, old size)` at all homes of its slices.
    async fn erase_everywhere(
        &self,
        ino: Ino,
        from: u64,
        old_size: u64,
    ) -> Result<Vec<LogRange>, FsError>;
    /// Keeps the map of a laminated file for good, if there is room.
    fn keep_map(&self, ino: Ino, map: ExtentMap);
    /// Drops the known extents of a file that is gone.
    fn forget_here(&self, ino: Ino);
    /// Erases all bytes from `from` on at the servers that can be reached. A lost node may have
    /// sent such bytes before it told the file's home how long the file is.
    async fn erase_untold(&self, ino: Ino, from: u64);
    /// Gives back bytes that were erased by an operation that failed as a whole, once no reader
    /// believes any more that they belong to the file.
    fn give_back_late(&self, ino: Ino, freed: Vec<LogRange>);
    /// The end of the file according to the runs that are on their way to the slices' homes.
    fn end_in_flight(&self, ino: Ino) -> u64;
    /// Cuts the batches that are on their way to the slices' homes or could not be sent.
    fn cut_in_flight(&self, ino: Ino, size: u64);
    /// As [`ExtentsForFiles::flush`], for a reason.
    async fn flush_as(&self, ino: Ino, cause: PublishCause) -> Result<(), FsError>;
    /// Waits, in time, until no task of this node publishes a file; none does while the guard
    /// lives.
    async fn hold_publishing(&self, ino: Ino) -> Result<Guard<'_, Ino>, FsError>;
    /// As [`ExtentsForFiles::hold_publishing`], for as long as that takes.
    async fn hold_publishing_surely(&self, ino: Ino) -> Guard<'_, Ino>;
}

/// The names, as far as files use them.
pub(in crate::cluster) trait NamesForFiles {
    /// The path of a directory, from the homes of its names.
    async fn path_by_homes(&self, ino: Ino) -> Result<PathInTree, FsError>;
    /// True if the home of an inode is lost for as long as this server lives.
    fn has_lost_home(&self, ino: Ino) -> bool;
    /// The attributes of a directory whose home is lost, as far as the other servers know them: its mode and owner,
    /// and its links and times without what the lost one had. `Unreachable`: none knows any.
    async fn attr_without_home(&self, dir: Ino) -> Result<Attr, FsError>;
    /// A directory's attributes, combined from all servers that hold entries of it.
    async fn dir_attr(&self, attr: Attr) -> Result<Attr, FsError>;
    /// Tells the servers that hold entries of a directory its mode and group, which new files in it
    /// may inherit; and the time set on it, before which none of their changes counts.
    async fn tell_dir(&self, attr: &Attr, mtime_ns: Option<i64>);
    /// The number below which this server leads no rename.
    fn oldest_rename(&self) -> u64;
}

/// This server's own tables, as far as files use them. Programs see a change of several tables as
/// one change. Files have their numbers of this server's table.
pub(in crate::cluster) trait FileSteps: NameTables + WriteTables {
    /// The files, to change them.
    fn files(&mut self) -> NodeFiles<'_, 'static>;
    /// The open file descriptions, to look at.
    fn opened(&self) -> OpenDescriptions<'_, 'static>;
    /// The programs of this node that are clients, to describe them.
    fn parties(&self) -> NodeParties<'_, Self::Platform>;
    /// Takes the notes of all clients.
    fn take_all_notes(&mut self);
    /// Frees one orphan, if no program has it open.
    fn sweep_one(&mut self, ino: Ino);
    /// Takes in everything that the clients of a file wrote and closed.
    fn take_in(&mut self, ino: Ino);
    /// Lets a file of this server go, which no other node has open any more.
    fn unpin(&mut self, ino: Ino);
    /// Wakes the mounts that have pages of a file, which drop them: another node changed it.
    fn wake_mounts(&self, ino: Ino);
}
