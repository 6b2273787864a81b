//! The meaning of a process's calls: its descriptors, its current directory, its files.
//!
//! Every method is one call of POSIX or Linux and returns [`Outcome`]: `None` if the call does not
//! concern weir and the kernel shall do it as if weir were not there. Without an instance (no
//! `WEIR_INSTANCE`) every call returns `None`.
//!
//! [`Process`] has the calls. They use a [`ProcessState`], of parts with private fields, so that the type
//! of a method says what it may touch:
//!
//! | part | holds |
//! | --- | --- |
//! | `InstanceConnection` | the instance, its memory, the session |
//! | `ForkWatch` | the process that the state is of |
//! | `ProcessUser` | credentials, umask |
//! | `CurrentDir` | the current directory |
//! | `OpenFileTable` | handles, files, descriptions that the server lent |
//! | `Neighbours` | other servers of this machine |
//! | `ServerLink` | the first two, and the lock |
//! | `InodeOperations` | nothing of its own: for what needs no descriptor and no path |
//! | `FirstCall` | nothing of its own: for what the first call of the process finds |
//!
//! Calls are in components, each a type with references to the parts and the components that it may touch:
//!
//! | component | calls | touches |
//! | --- | --- | --- |
//! | `Descriptors` | on descriptors: close, dup, fcntl; the handle of one | `ServerLink`, `OpenFileTable`, `FirstCall` |
//! | `IoCalls` | on the bytes of open files | `Descriptors`, `InodeOperations`, `ServerLink` |
//! | `PathLookup` | that ask about paths; the entry of a path | `CurrentDir`, `ProcessUser`, `InodeOperations`, `ServerLink`, `FirstCall` |
//! | `AttributeCalls` | on attributes, by path and by descriptor | `PathLookup`, `Descriptors`, `ProcessUser`, `InodeOperations` |
//! | `InodeOpener` | none; it opens inodes for those that do | `OpenFileTable`, `Descriptors`, `InodeOperations`, `ServerLink` |
//! | `FileTakeUp` | none; it takes files of the PFS into an elevated tree | `PathLookup`, `InodeOpener`, `Descriptors`, `IoCalls`, `AttributeCalls`, `ProcessUser`, `InodeOperations`, `ServerLink` |
//! | `NameCalls` | that make, remove, rename and link names | `PathLookup`, `FileTakeUp`, `ProcessUser`, `InodeOperations`, `ServerLink` |
//! | `SocketCalls` | on names of sockets | `PathLookup`, `NameCalls`, `ProcessUser`, `InodeOperations`, `ServerLink` |
//! | `OpenCalls` | that open files by path, make them, cut them | `PathLookup`, `FileTakeUp`, `InodeOpener`, `ProcessUser`, `InodeOperations` |
//! | `ListingCalls` | that list directories | `Descriptors`, `LowerListings`, `InodeOperations`, `ServerLink` |
//! | `CurrentDirCalls` | on the current directory | `CurrentDir`, `PathLookup`, `Descriptors`, `ProcessUser`, `InodeOperations`, `ServerLink`, `FirstCall` |
//! | `Inheritance` | that receive descriptors; it adopts inherited ones | `OpenFileTable`, `CurrentDir`, `Neighbours`, `InodeOpener`, `Descriptors`, `InodeOperations`, `ServerLink`, `FirstCall` |
//! | `ForkCalls` | around fork and exec | `Descriptors`, `CurrentDirCalls`, `InodeOperations`, `ServerLink` |
//!
//! The lock of the process guards what several calls change; the parts say which of their methods are
//! called under it.
//!
//! Paths are bytes without a NUL; flags and modes are Linux's numbers. A path of weir
//! that leads out of it again (`/weir/../etc`, a link to elsewhere) is a path for the
//! kernel, but not the one that the program gave: such calls are done here (`outside`).
//!
//! | file | subject |
//! | --- | --- |
//! | `instance`, `environment` | the instance and the session; the variables that name it |
//! | `server_link`, `inodes` | the way to the server; operations on inodes, which need no descriptor |
//! | `first_call`, `start` | the first call, for those that need it; its steps |
//! | `share`, `inherit` | fork and exec; inherited state |
//! | `forks` | the process that the state is of |
//! | `user`, `admit` | credentials and umask; another user's programs |
//! | `attached`, `middleware` | of a library ([`crate::library`]): its own state; its questions about a path |
//! | `table`, `open_files` | the table of descriptors; the handles and files behind it |
//! | `descriptors/` | close, dup, fcntl; descriptors closed unseen, and shared ones |
//! | `open`, `open_flags` | open and creation, and its flags; `opener`: of an inode |
//! | `io/` | reading and writing, sizes, copies between descriptors, locks |
//! | `paths/` | from a path to its entry; links of /proc; `outside`: paths that lead out of weir |
//! | `attributes/` | looking at attributes, setting them; extended attributes |
//! | `names`, `dir` | names, listing |
//! | `cwd`, `current_dir` | the calls of the current directory; its state |
//! | `special` | fifos and Unix sockets |
//! | `map` | mapping; `program_copies`: programs that are run from copies; `refuse`: calls that are not supported |
//! | [`mounted`] | the calls of a kernel mount: by inode, for other processes |
//!
//! Deviations from POSIX are documented in the code that makes them. The most visible: reading does
//! not change access times (as with the mount option noatime).

mod admit;
mod attached;
mod attributes;
mod current_dir;
mod cwd;
mod descriptors;
mod dir;
mod dirents;
mod elevated;
mod environment;
mod first_call;
mod forks;
mod inherit;
mod inodes;
mod instance;
mod io;
mod known_paths;
mod map;
mod middleware;
pub mod mounted;
mod names;
mod open;
mod open_files;
mod open_flags;
mod opener;
mod outcome;
mod outside;
mod paths;
mod program_copies;
mod refuse;
mod server_link;
mod share;
mod special;
mod start;
mod table;
mod user;

use core::sync::atomic::AtomicU32;

use crate::neighbour::Neighbours;
pub use crate::types::Outcome;
use attributes::AttributeCalls;
use current_dir::CurrentDir;
use cwd::CurrentDirCalls;
use descriptors::Descriptors;
use dir::ListingCalls;
use elevated::{FileTakeUp, LowerListings};
pub use environment::{INSTANCE_VARIABLE, NOTHING_VARIABLE};
use first_call::FirstCall;
pub use forks::own_pid;
use inherit::Inheritance;
use inodes::InodeOperations;
use io::IoCalls;
pub use map::Mapping;
pub use middleware::FileInfo;
use names::NameCalls;
use open::OpenCalls;
use open_files::OpenFileTable;
use opener::InodeOpener;
use paths::PathLookup;
pub use program_copies::path_of_copy;
use server_link::ServerLink;
use share::ForkCalls;
use special::SocketCalls;
use user::ProcessUser;

/// The state that the calls of a process share. There is one of [`process`]; a library in a program
/// that the interposer is not in has its own, [`Process::attached`].
#[derive(Debug)]
struct ProcessState {
    /// The progress of the start.
    progress: AtomicU32,
    /// The way to the server, and with it the lock that guards the tables.
    server: ServerLink,
    user: ProcessUser,
    cwd: CurrentDir,
    open_files: OpenFileTable,
    /// Servers of this machine from which something was inherited.
    neighbours: Neighbours,
    /// Listings of directories of the PFS below elevated ones.
    listings: LowerListings,
}

impl ProcessState {
    /// A state in which nothing was looked at yet.
    const fn new() -> ProcessState {
        ProcessState {
            progress: AtomicU32::new(first_call::UNKNOWN),
            server: ServerLink::new(),
            user: ProcessUser::new(),
            cwd: CurrentDir::new(),
            open_files: OpenFileTable::new(),
            neighbours: Neighbours::new(),
            listings: LowerListings::new(),
        }
    }
}

/// The calls of a process.
#[derive(Debug)]
pub struct Process {
    /// Its descriptors.
    pub descriptors: Descriptors,
    /// Reading and writing.
    pub io: IoCalls,
    /// Its paths.
    pub paths: PathLookup,
    /// Attributes.
    pub attributes: AttributeCalls,
    /// Making, removing, renaming, linking.
    pub names: NameCalls,
    /// Names of Unix sockets.
    pub sockets: SocketCalls,
    /// Opening files.
    pub opening: OpenCalls,
    /// Listing directories.
    pub listing: ListingCalls,
    /// The current directory.
    pub current_dir: CurrentDirCalls,
    /// Fork and exec.
    pub forks: ForkCalls,
    /// Descriptors of other programs.
    pub inheritance: Inheritance,
    first_call: FirstCall,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    cwd: &'static CurrentDir,
    open_files: &'static OpenFileTable,
    inodes: InodeOperations,
    opener: InodeOpener,
    take_up: FileTakeUp,
}

static STATE: ProcessState = ProcessState::new();
static PROCESS: Process = Process::over(&STATE);

/// This process.
#[inline]
pub fn process() -> &'static Process {
    &PROCESS
}

impl Process {
    /// The calls that use this state.
    const fn over(state: &'static ProcessState) -> Process {
        Process {
            descriptors: Descriptors::over(state),
            io: IoCalls::over(state),
            paths: PathLookup::over(state),
            attributes: AttributeCalls::over(state),
            names: NameCalls::over(state),
            sockets: SocketCalls::over(state),
            opening: OpenCalls::over(state),
            listing: ListingCalls::over(state),
            current_dir: CurrentDirCalls::over(state),
            forks: ForkCalls::over(state),
            inheritance: Inheritance::over(state),
            first_call: FirstCall::over(state),
            server: &state.server,
            user: &state.user,
            cwd: &state.cwd,
            open_files: &state.open_files,
            inodes: InodeOperations::over(state),
            opener: InodeOpener::over(state),
            take_up: FileTakeUp::over(state),
        }
    }
}
