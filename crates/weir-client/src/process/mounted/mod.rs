//! The calls of a kernel mount, and of weir's own tools: by inode, each with the credentials of its
//! requester.
//!
//! A mount is one process that serves all programs of the node that reach the tree through the
//! kernel. So nothing here uses the process's own credentials, umask, current directory or
//! descriptor table; the kernel has applied the umask and has followed links before it asks.
//! The kernel keeps descriptors and offsets: an [`OpenFile`] has an entry of the table of open file
//! descriptions and no placeholder.
//!
//! | file | subject |
//! | --- | --- |
//! | this one | looking: names, attributes, links, the whole file system |
//! | `names` | creating, removing, renaming, listing |
//! | `open` | open files; reading, writing, syncing them |
//! | `attr` | setting attributes, sizes |
//! | `locks` | record locks and flock, by the kernel's lock owners |
//! | `evicted` | files whose bytes are on the parallel file system alone |
//! | `prefetch` | files of the parallel file system that are taken before programs ask for them |
//! | `placement` | the servers, and the bytes that they have |
//! | `whiteouts` | names that were removed from an elevated tree |
//!
//! Left out: the sticky look of the walk for links that lead out of weir, which the kernel follows.

mod attr;
mod evicted;
mod locks;
mod names;
mod open;
mod placement;
mod prefetch;
mod whiteouts;

use core::fmt;
use core::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::thread::futex;
pub use weir_core::elevated;
use weir_core::elevated::root_of_tree;
use weir_core::names::{FileType, NAME_MAX, SYMLINK_MAX};
pub use weir_core::proto::{
    beneath, ContentVersion, CopyUse, HistoryPosition, NameHistory, ReportRelief, RoomOutlook,
    RoomState, SettledExtents, WriteState,
};
use weir_core::proto::{ClientKind, GetWriteState, SetMapped};
pub use weir_core::types::{Ino, Rank};

use super::descriptors::Descriptors;
use super::elevated::FileTakeUp;
use super::inodes::InodeOperations;
use super::io::IoCalls;
use super::opener::InodeOpener;
use super::paths::PathLookup;
use super::server_link::ServerLink;
use super::{Process, ProcessState};
use crate::operation;
use crate::path::walk::{retry_if_gone, Names};
use crate::path::{access, Credentials, Guard, Prefix, ResolvedPath, Roots, Walk};
use crate::types::{Stat, StatFs};
pub use attr::Changes;
pub use evicted::EvictedFile;
pub use locks::{LockOwner, Wish};
pub use names::{DirEntry, DirListing};
pub use open::{Followed, OpenFile};
pub use whiteouts::{Cover, Whiteout};

/// The process that asked the kernel for a call.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    /// Its effective user, as the kernel's file system checks see it.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Reads its supplementary groups, which few checks need.
    pub groups: &'a dyn Fn() -> Vec<u32>,
}

impl fmt::Debug for Requester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl Requester<'_> {
    /// The credentials, with the supplementary groups if a check of `guard` depends on them.
    fn credentials(&self, guard: Guard) -> Credentials {
        let decided = self.uid == 0 || guard.uid == self.uid || guard.gid == self.gid;
        Credentials {
            uid: self.uid,
            gid: self.gid,
            groups: if decided { Vec::new() } else { (self.groups)() },
        }
    }

    /// EACCES if the requester may not do all of `want` to the object of `guard`.
    fn check(&self, guard: impl Into<Guard>, want: u32) -> Result<(), Errno> {
        let guard = guard.into();
        self.credentials(guard).check(guard, want)
    }
}

/// The parts and components of a process that the calls on a tree may touch. Of descriptors they use the handles
/// alone.
#[derive(Debug)]
pub(super) struct TreeComponents {
    paths: PathLookup,
    take_up: FileTakeUp,
    opener: InodeOpener,
    descriptors: Descriptors,
    io: IoCalls,
    inodes: InodeOperations,
    server: &'static ServerLink,
}

impl TreeComponents {
    pub(super) const fn over(state: &'static ProcessState) -> TreeComponents {
        TreeComponents {
            paths: PathLookup::over(state),
            take_up: FileTakeUp::over(state),
            opener: InodeOpener::over(state),
            descriptors: Descriptors::over(state),
            io: IoCalls::over(state),
            inodes: InodeOperations::over(state),
            server: &state.server,
        }
    }
}

/// The tree of an instance, as a kernel mount serves it.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    parts: &'static TreeComponents,
    /// The number of the elevated tree, if it is one.
    elevated: Option<usize>,
    /// Servers of the instance are lost: what cannot be found may be there.
    lacks_servers: bool,
}

impl Tree {
    /// Connects to the instance with this run directory. Lives as long as the process.
    pub fn attach(run_dir: &[u8]) -> Result<Tree, Errno> {
        let process = Process::attached(run_dir, None, ClientKind::Mount)?;
        Ok(Tree {
            parts: &process.tree,
            elevated: None,
            lacks_servers: false,
        })
    }

    /// The elevated tree with this number, without what is below it; `None`: there are not so many.
    pub fn elevated(self, number: usize) -> Option<Tree> {
        let instance = self.parts.server.connection.instance()?;
        instance.roots.elevated.get(number)?;
        Some(Tree {
            elevated: Some(number),
            ..self
        })
    }

    /// The tree of an instance of which servers are lost. What they had is not known; calls that can do without it do not
    /// fail.
    #[must_use]
    pub fn without_lost_servers(self) -> Tree {
        Tree {
            lacks_servers: true,
            ..self
        }
    }

    /// `None` in place of what lost servers may have.
    fn unless_lost<T>(self, found: Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
        match found {
            Err(Errno::IO) if self.lacks_servers => Ok(None),
            found => found,
        }
    }

    /// True if it is an elevated tree.
    pub fn is_elevated(self) -> bool {
        self.elevated.is_some()
    }

    fn roots(self) -> Option<&'static Roots> {
        let instance = self.parts.server.connection.instance()?;
        Some(&instance.roots)
    }

    /// The path below which interposed programs see the tree.
    pub fn prefix(self) -> &'static [u8] {
        let prefix = self.roots().map(|roots| match self.elevated {
            Some(number) => &roots.elevated[number].target,
            None => &roots.main,
        });
        prefix.map_or(&[], Prefix::bytes)
    }

    /// True if the server can still be asked.
    pub fn is_served(self) -> bool {
        self.parts.server.is_served()
    }

    /// Blocks until the server has ended.
    pub fn wait_for_end(self) {
        if let Ok(session) = self.parts.server.session() {
            session.wait_for_end();
        }
    }

    /// The root directory.
    pub fn root(self) -> Result<Ino, Errno> {
        match self.elevated {
            Some(number) => Ok(root_of_tree(number)),
            None => Ok(self.parts.inodes.view()?.root()),
        }
    }

    /// The end of a path below the root, whatever the modes of directories on the way. `follow`: a symbolic
    /// link at the end, too.
    pub fn walk(self, path: &[u8], follow: bool) -> Result<ResolvedPath, Errno> {
        let _call = operation::begin();
        let view = self.parts.inodes.view()?;
        let walk = Walk {
            names: &view,
            roots: self.roots().ok_or(Errno::SHUTDOWN)?,
            credentials: &Credentials::default(),
            to_the_end: true,
        };
        walk.walk(self.root()?, path, follow)
    }

    /// The attributes of an inode as of now; ENOENT: it is gone.
    pub fn stat(self, ino: Ino) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.parts.inodes.stat_of(ino)
    }

    /// How far the writing of a file is, on all nodes. EHOSTUNREACH: a node that may have a writer does
    /// not answer.
    pub fn write_state(self, ino: Ino) -> Result<WriteState, Errno> {
        let _call = operation::begin();
        self.parts.server.session()?.call(GetWriteState { ino })
    }

    /// The attributes of the inode that a directory's name refers to.
    pub fn lookup(self, who: &Requester<'_>, dir: Ino, name: &[u8]) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.search(who, dir, access::EXECUTE)?;
        check_name(name)?;
        retry_if_gone(|gone| {
            let (ino, _) = self.find(dir, name)?.ok_or(Errno::NOENT)?;
            *gone = Some(ino);
            self.parts.inodes.stat_of(ino)
        })
    }

    /// The target of a symbolic link.
    pub fn readlink(self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let mut target = [0; SYMLINK_MAX];
        let length = self.parts.inodes.view()?.target(ino, &mut target)?;
        Ok(target[..length].to_vec())
    }

    /// access(2), chdir(2): EACCES if the requester may not do all of `want` (R_OK and its like).
    pub fn access(self, who: &Requester<'_>, ino: Ino, want: u32) -> Result<(), Errno> {
        let attr = self.parts.inodes.attr(ino)?;
        who.check(&attr, want)
    }

    /// The attributes of the inode whose number is a name of the root directory; see
    /// [`weir_core::proto::beneath`].
    pub fn lookup_inode(self, ino: Ino) -> Result<Stat, Errno> {
        self.parts.inodes.stat_of(ino)
    }

    /// Tells the server if the kernel keeps pages of a file.
    pub fn set_mapped(self, ino: Ino, mapped: bool) -> Result<(), Errno> {
        self.parts.server.session()?.call(SetMapped { ino, mapped })
    }

    /// True if there are other nodes, whose changes the kernel does not see.
    pub fn has_other_nodes(self) -> bool {
        self.parts
            .server
            .node()
            .is_ok_and(|node| node.several().is_some())
    }

    /// A word that changes, among other times, when another node changed a file of which the kernel
    /// keeps pages.
    pub fn news(self) -> Result<u32, Errno> {
        Ok(self.parts.server.session()?.event().load(Ordering::Acquire))
    }

    /// Blocks until [`Tree::news`] may differ from `seen`.
    pub fn wait_for_news(self, seen: u32) -> Result<(), Errno> {
        let event = self.parts.server.session()?.event();
        match futex::wait(event, futex::Flags::empty(), seen, None) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A number of a file that changes with the positions of its bytes. The server reports the next
    /// change after it was asked for this one.
    pub fn generation(self, ino: Ino) -> Result<u64, Errno> {
        Ok(self.parts.inodes.attr(ino)?.index_generation)
    }

    /// The kernel's number of an inode.
    pub fn number(self, ino: Ino) -> Result<u64, Errno> {
        Ok(self.parts.inodes.attr(ino)?.home.0)
    }

    /// The state of the file system as a whole.
    pub fn statfs(self) -> Result<StatFs, Errno> {
        self.parts.inodes.state_of_all()
    }

    /// The inode of a name in a directory.
    fn find(self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        self.parts.inodes.view()?.lookup(dir, name)
    }

    /// Checks that the requester may do `want` to a directory; ENOENT: it is gone.
    fn search(self, who: &Requester<'_>, dir: Ino, want: u32) -> Result<(), Errno> {
        let guard = self
            .parts
            .inodes
            .view()?
            .passage(dir)?
            .ok_or(Errno::NOENT)?;
        if !guard.is_of_dir() {
            return Err(Errno::NOTDIR);
        }
        who.check(guard, want)
    }
}

/// ENAMETOOLONG: the name is too long.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        0..=NAME_MAX => Ok(()),
        _ => Err(Errno::NAMETOOLONG),
    }
}
