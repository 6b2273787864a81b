//! The parts of the server that files need.

use weir_core::names::Attr;
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::abilities::{InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::clients::parties::NodeParties;
use crate::cluster::extents::{ExtentsNeeds, PublishedExtents, WriteTables};
use crate::cluster::files::descriptions::OpenDescriptions;
use crate::cluster::files::{FilesState, NodeFiles};

/// The parts of the server that files need.
pub(in crate::cluster) trait FilesNeeds:
    InodeNumbers + Journals + OwnTables<Node: FileSteps>
{
    /// The server as its published extents need it.
    type Extents: ExtentsNeeds;
    /// The names.
    type Names: NamesForFiles;

    /// The state of this room.
    fn files_state(&self) -> &FilesState;
    /// The extents of all files, as their slices' homes know them.
    fn extents(&self) -> PublishedExtents<Self::Extents>;
    /// The names of all servers, as this one knows them.
    fn names(&self) -> Self::Names;
    /// Notes that a program of this node cannot read a file that it has open, because its home
    /// cannot be reached.
    fn miss_file(&self, ino: Ino);
}

/// The parts of the names that files use.
pub(in crate::cluster) trait NamesForFiles {
    /// The path of a directory, from the homes of its names.
    async fn path_by_homes(&self, ino: Ino) -> Result<PathInTree, FsError>;
    /// True if the home of an inode is lost for as long as this server lives.
    fn has_lost_home(&self, ino: Ino) -> bool;
    /// The attributes of a directory whose home is lost, from the other servers: its mode and owner, and its links and
    /// times without the lost server's share. `Unreachable`: no server knows any.
    async fn attr_without_home(&self, dir: Ino) -> Result<Attr, FsError>;
    /// A directory's attributes, combined from all servers that hold entries of it.
    async fn dir_attr(&self, attr: Attr) -> Result<Attr, FsError>;
    /// Tells the servers that hold entries of a directory its mode and group, which new files in it may inherit, and
    /// the time set on it, which overrides their earlier changes.
    async fn tell_dir(&self, attr: &Attr, mtime_ns: Option<i64>);
    /// The number below which this server leads no rename any more.
    fn oldest_rename(&self) -> u64;
}

/// The parts of this server's own tables that files use. Programs see a change of several tables as one change. Files
/// have their numbers of this server's table.
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
    /// Wakes the mounts that have pages of a file, so that they drop them: another node changed it.
    fn wake_mounts(&self, ino: Ino);
}
