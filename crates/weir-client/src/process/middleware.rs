//! A library's questions about a path that POSIX has no calls for.
//!
//! Paths are interpreted as in libc, and links are followed. A path that is not below the mount is
//! refused (EXDEV); the kernel never does the call instead.

use core::ops::Range;

use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_core::extent::Layout;
use weir_core::names::{Attr, FileType, Visibility};
use weir_core::proto::{Hold, Locate};
use weir_core::types::{Ino, Rank};

use super::current_dir::CurrentDir;
use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::open::OpenCalls;
use super::paths::{PathLookup, ResolvedFile};
use super::server_link::{LazyClient, ServerLink};
use super::user::ProcessUser;
use super::{Outcome, ProcessState};
use crate::kernel::{self, Fd, AT_FDCWD};
use crate::operation;
use crate::path::{access, ResolvedPath};
use crate::session::Session;
use crate::types::Stat;
use crate::view::View;

/// A file's attributes and the servers that keep it.
#[derive(Clone, Copy, Debug)]
pub struct FileInfo {
    /// The attributes of stat(2).
    pub stat: Stat,
    /// The attributes that its server knows.
    pub attr: Attr,
    /// The server that keeps the inode.
    pub home: Rank,
    /// The caller's server.
    pub here: Rank,
    /// The number of servers.
    pub servers: u16,
}

/// The flags that [`LibraryCalls::open_at`] takes.
const OPEN_FLAGS: OFlags = OFlags::RWMODE
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::APPEND)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC);

fn ours_only<T>(outcome: Outcome<T>) -> Result<T, Errno> {
    outcome.unwrap_or(Err(Errno::XDEV))
}

/// The calls of a library on paths. They may touch the look-up of paths, the opening of files, descriptors, the
/// user, inodes and the server; and the current directory, whose changes nothing reports.
#[derive(Debug)]
pub struct LibraryCalls {
    cwd: &'static CurrentDir,
    paths: PathLookup,
    opening: OpenCalls,
    descriptors: Descriptors,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl LibraryCalls {
    pub(super) const fn over(state: &'static ProcessState) -> LibraryCalls {
        LibraryCalls {
            cwd: &state.cwd,
            paths: PathLookup::over(state),
            opening: OpenCalls::over(state),
            descriptors: Descriptors::over(state),
            server: &state.server,
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// Does something to the file that a path names.
    fn with_named<T>(
        &self,
        path: &[u8],
        act: impl Fn(Ino, FileType) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.cwd.forget_kernels();
        ours_only(
            self.paths
                .with_existing(AT_FDCWD, path, true, false, |found| match found {
                    ResolvedFile::Inode(ino, kind) => act(ino, kind),
                    ResolvedFile::Outside(_) => Err(Errno::XDEV),
                }),
        )
    }

    /// The same, to a regular file.
    fn with_file<T>(&self, path: &[u8], act: impl Fn(Ino) -> Result<T, Errno>) -> Result<T, Errno> {
        self.with_named(path, |ino, kind| match kind {
            FileType::File => act(ino),
            FileType::Dir => Err(Errno::ISDIR),
            FileType::Symlink | FileType::Fifo | FileType::Socket => Err(Errno::INVAL),
        })
    }

    /// Makes a file read-only for good; EBUSY: it is due, and happens when the last process that
    /// has it open for writing closes it.
    pub fn laminate_at(&self, path: &[u8]) -> Result<(), Errno> {
        let _call = operation::begin();
        self.with_file(path, |ino| {
            self.inodes.check_owner(ino)?;
            self.inodes.laminate(ino)
        })
    }

    /// Makes the bytes that programs of this node wrote to a file visible to other nodes, and as
    /// durable as its tier.
    pub fn sync_at(&self, path: &[u8]) -> Result<(), Errno> {
        let _call = operation::begin();
        self.with_file(path, |ino| {
            let (_, attr) = self.inodes.whole(ino)?;
            if !self.user.credentials().may(&attr, access::READ)
                && !self.user.credentials().may(&attr, access::WRITE)
            {
                return Err(Errno::ACCESS);
            }
            self.server.session()?.sync_file(ino)
        })
    }

    /// Sets the time at which other nodes see the bytes written to a file, or to files made in a
    /// directory.
    pub fn set_visibility_at(&self, path: &[u8], visibility: Visibility) -> Result<(), Errno> {
        let _call = operation::begin();
        let value = visibility.name().as_bytes();
        self.with_named(path, |ino, _| {
            self.inodes.set_xattr_of(
                self.user.credentials(),
                ino,
                b"user.weir.visibility",
                value,
                0,
            )
        })
    }

    /// The attributes of a file or directory, and its servers.
    pub fn file_info(&self, path: &[u8]) -> Result<FileInfo, Errno> {
        let _call = operation::begin();
        self.with_named(path, |ino, _| {
            let stat = self.inodes.stat_of(ino)?;
            let (_, attr) = self.inodes.whole(ino)?;
            let (here, servers) = self.server.node()?.several().unwrap_or((ino.rank(), 1));
            Ok(FileInfo {
                stat,
                attr,
                home: ino.rank(),
                here,
                servers,
            })
        })
    }

    /// The number of a file's bytes at each server: of all published bytes, and of those that
    /// programs of this node wrote.
    pub fn layout_at(&self, path: &[u8]) -> Result<Layout, Errno> {
        let _call = operation::begin();
        let session = self.server.session()?;
        let write = false;
        let held = self.with_file(path, |ino| session.call(Hold { ino, write }))?;
        layout_of(session, held.ino, 0..held.size)
    }

    /// open(2) of a file of weir's; EINVAL: a flag that is not in [`OPEN_FLAGS`]. Always
    /// close-on-exec.
    pub fn open_at(&self, path: &[u8], flags: i32, mode: u32) -> Result<Fd, Errno> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if !OPEN_FLAGS.contains(flags) {
            return Err(Errno::INVAL);
        }
        self.cwd.forget_kernels();
        let follow = !flags.intersects(OFlags::NOFOLLOW | OFlags::EXCL);
        if self.paths.magic_link_target(AT_FDCWD, path).is_none() {
            if let ResolvedPath::Outside(_) = ours_only(self.paths.resolve(AT_FDCWD, path, follow))?
            {
                return Err(Errno::XDEV);
            }
        }
        let flags = (flags | OFlags::CLOEXEC).bits().cast_signed();
        let fd = ours_only(self.opening.openat(AT_FDCWD, path, flags, mode))?;
        if self.descriptors.is_ours(fd) {
            return Ok(fd);
        }
        // A link was put there in between.
        let _ = kernel::close(fd);
        Err(Errno::XDEV)
    }
}

/// The number of bytes of a range of a file that this node knows of, at each server.
pub(super) fn layout_of(session: &Session, ino: Ino, range: Range<u64>) -> Result<Layout, Errno> {
    let mut layout = Layout::default();
    let mut offset = range.start;
    while offset < range.end {
        let length = range.end - offset;
        let located = session.call(Locate {
            ino,
            offset,
            length,
        })?;
        let end = located.known_to.min(range.end);
        if end <= offset {
            return Err(Errno::IO);
        }
        layout.add(&located.runs, offset, end);
        offset = end;
    }
    Ok(layout)
}

impl InodeOperations {
    fn whole(self, ino: Ino) -> Result<(View<LazyClient>, Attr), Errno> {
        let view = self.view()?;
        let attr = view.whole_attr(ino)?.ok_or(Errno::NOENT)?;
        Ok((view, attr))
    }
}
