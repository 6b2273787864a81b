//! The meaning of a process's calls: its descriptors, its current directory, its files.
//!
//! Every method is one call of POSIX or Linux and returns [`Outcome`]: `None` if the call does not
//! concern weir and the kernel shall do it as if weir were not there. Without an instance (no
//! `WEIR_INSTANCE`) every call returns `None`.
//!
//! The state is in parts with private fields:
//!
//! | part | holds |
//! | --- | --- |
//! | `InstanceConnection` | the instance, its memory, the session |
//! | `ForkWatch` | the process that the state is of |
//! | `ServerLink` | these two, and the lock |
//! | `ProcessUser` | credentials, umask |
//! | `CurrentDir` | the current directory |
//! | `OpenFileTable` | handles, files, descriptions that the server lent |
//! | `Neighbours` | other servers of this machine |
//! | `LowerListings` | listings of directories of the PFS |
//!
//! The calls are in components. A component has references to the parts that it may touch, and the components
//! that it may call. Its `over` gets them from the state, which only the first call keeps, and only its own file
//! or folder sees them. So a reader finds in its type what its calls may touch. Two things are open to all
//! files here: the fields of `InodeOperations`, whose methods are in the files of their subjects, and `table`, a static
//! of the whole program, as the kernel's descriptors are. Each component calls only those above it:
//!
//! | component | calls |
//! | --- | --- |
//! | `FirstCall` | none: what the first call of the process finds |
//! | `InodeOperations` | none: what needs no descriptor and no path |
//! | `Descriptors` | on descriptors: close, dup, fcntl; the handle of one |
//! | `IoCalls` | on the bytes of open files |
//! | `PathLookup` | that ask about paths; the entry of one |
//! | `AttributeCalls` | on attributes, by path and by descriptor |
//! | `InodeOpener` | none: descriptions and descriptors for inodes |
//! | `FileTakeUp` | none: files of the PFS that are taken into an elevated tree |
//! | `NameCalls` | that make, remove, rename and link names |
//! | `SocketCalls` | on names of sockets |
//! | `OpenCalls` | that open files by path, make them, cut them |
//! | `ListingCalls` | that list directories |
//! | `CurrentDirCalls` | on the current directory |
//! | `MappingCalls` | that map files |
//! | `ProgramCalls` | on files that become programs |
//! | `RefusedCalls` | that are not supported |
//! | `LibraryCalls` | of a library, on paths |
//! | `UserCalls` | that change user, umask and limits |
//! | `Inheritance` | that receive descriptors; the adoption of inherited ones |
//! | `ForkCalls` | around fork and exec |
//! | `TreeComponents` | none: what the calls of a kernel mount use |
//!
//! [`Process`] has the components, and little of its own: its start, and the state of an attached library. The
//! components of [`process`] are built by the compiler, which resolves their references.
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
//! | `user`, `user_calls`, `admit` | credentials and umask; their changes; another user's programs |
//! | `attached`, `middleware` | of a library ([`crate::library`]): its own state; its calls on paths |
//! | `table`, `open_files` | the table of descriptors; the handles and files behind it |
//! | `descriptors/` | close, dup, fcntl; descriptors closed unseen, and shared ones |
//! | `open`, `open_flags` | open and creation, and its flags; `opener`: of an inode |
//! | `io/` | reading and writing, sizes, copies between descriptors, locks |
//! | `paths/` | from a path to its entry; links of /proc; `outside`: paths that lead out of weir |
//! | `attributes/` | looking at attributes, setting them; extended attributes |
//! | `names`, `dir` | names, listing |
//! | `cwd`, `current_dir` | the calls of the current directory; its state |
//! | `special` | fifos and Unix sockets |
//! | `map` | mapping; `refuse`: calls that are not supported |
//! | `programs`, `program_copies` | files that become programs; the copies that these are run from |
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
mod programs;
mod refuse;
mod server_link;
mod share;
mod special;
mod start;
mod table;
mod user;
mod user_calls;

use core::sync::atomic::AtomicU32;

pub use crate::beneath::sees_mirrors;
use crate::neighbour::Neighbours;
pub use crate::types::Outcome;
use attributes::AttributeCalls;
use current_dir::CurrentDir;
use cwd::CurrentDirCalls;
use descriptors::Descriptors;
use dir::ListingCalls;
use elevated::LowerListings;
pub use environment::{INSTANCE_VARIABLE, MIRROR_VARIABLE, NOTHING_VARIABLE};
use first_call::FirstCall;
pub use forks::own_pid;
use inherit::Inheritance;
use io::IoCalls;
pub use map::Mapping;
use map::MappingCalls;
pub use middleware::FileInfo;
use middleware::LibraryCalls;
use mounted::TreeComponents;
use names::NameCalls;
use open::OpenCalls;
use open_files::OpenFileTable;
use paths::PathLookup;
pub use program_copies::path_of_copy;
use programs::ProgramCalls;
use refuse::RefusedCalls;
use server_link::ServerLink;
use share::ForkCalls;
use special::SocketCalls;
use user::ProcessUser;
use user_calls::UserCalls;

/// The state that the components of a process share. There is one of [`process`]; a library in a program
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

/// The components of a process, over one state.
#[derive(Debug)]
pub struct Process {
    /// Descriptors.
    pub descriptors: Descriptors,
    /// Reading and writing.
    pub io: IoCalls,
    /// Paths.
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
    /// Mapping files.
    pub mappings: MappingCalls,
    /// Running programs, loading libraries.
    pub programs: ProgramCalls,
    /// Calls that are not supported.
    pub refusals: RefusedCalls,
    /// The calls of a library on paths.
    pub library: LibraryCalls,
    /// The user, the umask, the limits.
    pub user: UserCalls,
    /// Fork and exec.
    pub forks: ForkCalls,
    /// Descriptors that others left, or sent.
    pub inheritance: Inheritance,
    first_call: FirstCall,
    server: &'static ServerLink,
    /// The components of [`mounted::Tree`].
    tree: TreeComponents,
}

static STATE: ProcessState = ProcessState::new();
static PROCESS: Process = Process::over(&STATE);

/// This process.
#[inline]
pub fn process() -> &'static Process {
    &PROCESS
}

impl Process {
    /// The components over this state.
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
            mappings: MappingCalls::over(state),
            programs: ProgramCalls::over(state),
            refusals: RefusedCalls::over(state),
            library: LibraryCalls::over(state),
            user: UserCalls::over(state),
            forks: ForkCalls::over(state),
            inheritance: Inheritance::over(state),
            first_call: FirstCall::over(state),
            server: &state.server,
            tree: TreeComponents::over(state),
        }
    }
}
