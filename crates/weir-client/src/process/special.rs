//! Fifos and Unix sockets: names and attributes are weir's, the objects behind them the kernel's.
//!
//! The kernel's fifo or socket lies in a directory of the node's server, under the number of the
//! inode. The first process that opens a fifo makes it there; bind(2) makes a socket. The server
//! removes it with the inode. If there is a kernel mount, a fifo is the kernel's own in it, for
//! programs without the interposer too; sockets connect interposed programs only. So they connect
//! the programs of one server: programs of another have another fifo behind the same name, and no
//! listener at the same socket.
//!
//! A process that opens a fifo has a descriptor of the kernel's, with which weir has no more to do:
//! fstat shows the kernel's inode.

use rustix::fs::{FileType as KernelType, Mode, CWD};
use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::node::region::SPECIAL;
use weir_core::proto::beneath::name_of;
use weir_core::proto::{MakeSpecial, Unlink};
use weir_core::types::Ino;

use super::inodes::InodeOperations;
use super::names::NameCalls;
use super::open_flags::{O_CREAT, O_DIRECTORY, O_EXCL, O_PATH};
use super::outcome::{done, ours};
use super::paths::{NameInParent, PathLookup, ResolvedFile};
use super::server_link::ServerLink;
use super::user::ProcessUser;
use super::{outside, Outcome, ProcessState};
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;
use crate::path::{access, Name};

/// Bytes of a path that a Unix socket's address holds, with its NUL.
const ADDRESS_BYTES: usize = 108;
/// Permissions are checked by weir; the directory is closed to others.
const FOR_ALL: u32 = 0o666;
/// The suffix behind the number of a socket's inode: a link to the path by which it was bound.
const NAME_SUFFIX: &[u8] = b".name";

/// The calls on names of sockets. They may touch the look-up of paths, names, the user, inodes and the server.
#[derive(Debug)]
pub struct SocketCalls {
    paths: PathLookup,
    names: NameCalls,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl SocketCalls {
    pub(super) const fn over(state: &'static ProcessState) -> SocketCalls {
        SocketCalls {
            paths: PathLookup::over(state),
            names: NameCalls::over(state),
            server: &state.server,
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// bind(2) of a Unix socket: makes the name. Returns the path for the kernel to bind; if that
    /// fails, the caller must call [`SocketCalls::unbind`].
    pub fn bind(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let _call = operation::begin();
        let (parent, name) = match ours!(self.paths.resolve_parent(AT_FDCWD, path, false)) {
            NameInParent::Outside(path) => return Some(Ok(path)),
            NameInParent::Dir
            | NameInParent::Below { .. }
            | NameInParent::Name { found: Some(_), .. } => return Some(Err(Errno::ADDRINUSE)),
            NameInParent::Name { slash: true, .. } => return Some(Err(Errno::NOENT)),
            NameInParent::Name { parent, name, .. } => (parent, name),
        };
        let made = self
            .inodes
            .make_special(parent, &name, FileType::Socket, 0o777);
        let ino = done!(made.map_err(|error| match error {
            Errno::EXIST => Errno::ADDRINUSE,
            error => error,
        }));
        let bound = self.inodes.special_path(ino).and_then(|kernels| {
            let name = [&kernels[..], NAME_SUFFIX].concat();
            rustix::fs::symlink(path, name)?;
            as_address(kernels)
        });
        if bound.is_err() {
            let name = name.to_vec();
            let _ = done!(self.server.session()).call(Unlink { parent, name });
        }
        Some(bound)
    }

    /// Removes the name that [`SocketCalls::bind`] made for a socket that the kernel did not bind.
    pub fn unbind(&self, path: &[u8]) {
        let _ = self.names.unlinkat(AT_FDCWD, path, 0);
    }

    /// The path by which the kernel reaches the socket of a name, for connect(2) and its kin.
    pub fn socket_path(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, true, false, |found| match found {
                ResolvedFile::Outside(path) => Ok(path),
                ResolvedFile::Inode(ino, FileType::Socket) => {
                    self.user
                        .credentials()
                        .check(&self.inodes.attr(ino)?, access::WRITE)?;
                    let kernels = self.inodes.special_path(ino)?;
                    // A socket that a program at another server has bound does not exist here.
                    rustix::fs::lstat(&kernels[..]).map_err(|_| Errno::CONNREFUSED)?;
                    as_address(kernels)
                }
                ResolvedFile::Inode(..) => Err(Errno::CONNREFUSED),
            })
    }

    /// The path by which a socket was bound, if the kernel's path is of one of weir's.
    pub fn name_of_socket(&self, kernels: &[u8]) -> Option<Vec<u8>> {
        let instance = self.server.connection.instance()?;
        let rest = kernels.strip_prefix(&instance.shm_dir[..])?;
        rest.strip_prefix(b"/")?
            .strip_prefix(SPECIAL.as_bytes())?
            .strip_prefix(b"/")?;
        let name = rustix::fs::readlink([kernels, NAME_SUFFIX].concat(), Vec::new());
        Some(name.ok()?.into_bytes())
    }
}

impl InodeOperations {
    /// Makes the name of a fifo or a socket.
    pub(super) fn make_special(
        self,
        parent: Ino,
        name: &Name,
        kind: FileType,
        mode: u32,
    ) -> Result<Ino, Errno> {
        self.check_parent(parent)?;
        self.server.session()?.call(MakeSpecial {
            parent,
            name: name.to_vec(),
            kind,
            mode: self.user.apply_umask(mode & 0o7777),
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
        })
    }

    /// Opens a fifo, which may wait for its other side; ENXIO for a socket.
    pub(super) fn open_special(self, ino: Ino, kind: FileType, flags: i32) -> Result<Fd, Errno> {
        if flags & O_DIRECTORY != 0 {
            return Err(Errno::NOTDIR);
        }
        self.check_mode(&self.attr(ino)?, flags)?;
        if kind == FileType::Socket && flags & O_PATH == 0 {
            return Err(Errno::NXIO);
        }
        let flags = flags & !(O_CREAT | O_EXCL);
        if let Some(opened) = self.open_beneath(ino, kind, flags) {
            return opened;
        }
        let path = self.special_path(ino)?;
        match outside::open(&path, flags, 0) {
            Err(Errno::NOENT) if kind == FileType::Fifo => {
                make_fifo(&path)?;
                outside::open(&path, flags, 0)
            }
            opened => opened,
        }
    }

    /// Opens a fifo of the kernel mount, if there is one, so that it is the same for programs
    /// without the interposer.
    fn open_beneath(self, ino: Ino, kind: FileType, flags: i32) -> Option<Result<Fd, Errno>> {
        if kind != FileType::Fifo {
            return None;
        }
        let mount = self.server.mount()?;
        let home = self.attr(ino).ok()?.home;
        let path = [&mount[..], b"/", name_of(home).as_bytes()].concat();
        match outside::open(&path, flags, 0) {
            Err(Errno::NOTCONN | Errno::NOENT) => None,
            opened => Some(opened),
        }
    }

    /// The path of the kernel's part of a fifo or socket.
    fn special_path(self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let instance = self.server.instance().ok_or(Errno::SHUTDOWN)?;
        // Its instance-wide number, not that of this node's table.
        let home = self.attr(ino)?.home;
        let number = format!("/{SPECIAL}/{:016x}", home.0);
        Ok([&instance.shm_dir, number.as_bytes()].concat())
    }
}

fn make_fifo(path: &[u8]) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(FOR_ALL);
    match rustix::fs::mknodat(CWD, path, KernelType::Fifo, mode, 0) {
        // The program's umask applies.
        Ok(()) => rustix::fs::chmod(path, mode),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

fn as_address(path: Vec<u8>) -> Result<Vec<u8>, Errno> {
    match path.len() < ADDRESS_BYTES {
        true => Ok(path),
        false => Err(Errno::NAMETOOLONG),
    }
}
