//! The kernel's requests to a mirror.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, AT_FDCWD};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{AccessFlags as NixAccess, Whence};

use weir_client::process::mounted::Changes;

use super::locks::RecordLock;
use super::nodes::MirrorName;
use super::xattr::{self, SizedReply};
use super::{errno_of, MirrorFs, OpenMirrorNode};
use crate::convert::time;
use crate::filesystem::{GENERATION, NEVER};

/// The `whence` of lseek for data; the other one that the kernel sends is that for holes.
const SEEK_DATA: i32 = 3;

/// Sends a result, or the error.
macro_rules! answer {
    ($reply:expr, $result:expr, $value:pat => $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno_of(&error)),
        }
    };
}

fn send_entry(reply: ReplyEntry, found: io::Result<FileAttr>) {
    answer!(reply, found, found => reply.entry(&NEVER, &found, GENERATION));
}

fn send_attributes(reply: ReplyAttr, found: io::Result<FileAttr>) {
    answer!(reply, found, found => reply.attr(&NEVER, &found));
}

fn send_done(reply: ReplyEmpty, done: io::Result<()>) {
    answer!(reply, done, () => reply.ok());
}

fn send_xattr(reply: ReplyXattr, found: io::Result<SizedReply>) {
    answer!(reply, found, found => match found {
        SizedReply::Size(size) => reply.size(size),
        SizedReply::Bytes(bytes) => reply.data(&bytes),
    });
}

fn flags_of(flags: i32) -> OFlag {
    OFlag::from_bits_retain(flags)
}

impl Filesystem for MirrorFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            // Writes clear set-id bits where they are done. Otherwise the kernel requests an attribute before each.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wanted {
            // A kernel that does not know it does without.
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        send_entry(reply, self.look_up(MirrorName { parent, name }));
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        send_attributes(reply, self.stat(node, handle));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let new = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        send_attributes(reply, self.set_attributes(node, handle, &new));
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let target = self.nodes.at_node(node, |path| fs::read_link(path));
        answer!(reply, target, target => reply.data(target.as_os_str().as_bytes()));
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let kind = SFlag::from_bits_truncate(mode);
        let permissions = Mode::from_bits_truncate(mode);
        let make = |path: &Path| Ok(nix::sys::stat::mknod(path, kind, permissions, rdev.into())?);
        send_entry(reply, self.make(MirrorName { parent, name }, make));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let make = |path: &Path| DirBuilder::new().mode(mode & 0o7777).create(path);
        send_entry(reply, self.make(MirrorName { parent, name }, make));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = MirrorName { parent, name };
        send_done(reply, self.nodes.remove(name, |path| fs::remove_file(path)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = MirrorName { parent, name };
        send_done(reply, self.nodes.remove(name, |path| fs::remove_dir(path)));
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = |path: &Path| std::os::unix::fs::symlink(target, path);
        send_entry(reply, self.make(MirrorName { parent, name }, make));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let old = MirrorName { parent, name };
        let new = MirrorName {
            parent: new_parent,
            name: new_name,
        };
        let flags = nix::fcntl::RenameFlags::from_bits_retain(flags.bits());
        let is_exchange = flags.contains(nix::fcntl::RenameFlags::RENAME_EXCHANGE);
        let rename = |old: &Path, new: &Path| match flags.is_empty() {
            true => fs::rename(old, new),
            false => Ok(nix::fcntl::renameat2(AT_FDCWD, old, AT_FDCWD, new, flags)?),
        };
        send_done(reply, self.nodes.rename(old, new, is_exchange, rename));
    }

    fn link(
        &self,
        _: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = MirrorName {
            parent: new_parent,
            name: new_name,
        };
        let link = |new: &Path| self.nodes.at_node(node, |old| fs::hard_link(old, new));
        send_entry(reply, self.make(name, link));
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.open_node(node, flags_of(flags.0));
        answer!(reply, opened, handle => reply.opened(handle, FopenFlags::empty()));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.create_node(MirrorName { parent, name }, flags_of(flags), mode);
        answer!(reply, created, (found, handle) => {
            reply.created(&NEVER, &found, GENERATION, handle, FopenFlags::empty());
        });
    }

    fn read(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.file(handle).and_then(|open| {
            let mut bytes = vec![0; usize::try_from(size).expect("64 bits")];
            let mut filled = 0;
            while filled < bytes.len() {
                match open
                    .file
                    .read_at(&mut bytes[filled..], offset + filled as u64)
                {
                    Ok(0) => break,
                    Ok(more) => filled += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        });
        answer!(reply, read, bytes => reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_of_map = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = flags_of(flags.0).contains(OFlag::O_APPEND) && !is_of_map;
        // A write that an error cuts short returns its count, and the next one the error.
        let written = self.file(handle).and_then(|open| {
            let file = open.for_writing(appends)?;
            file.write_at(bytes, offset)
        });
        answer!(reply, written, written => {
            reply.written(u32::try_from(written).expect("at most a request"));
        });
    }

    /// A close(2) of a program publishes, and ends its record locks.
    fn flush(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flushed = self.file(handle).and_then(|open| {
            self.locks.end_closer(&open, owner.0);
            if !open.may_write {
                return Ok(());
            }
            let both = std::iter::once(&*open.file).chain(open.other.get());
            both.into_iter()
                .try_for_each(|file| Ok(nix::unistd::close(file.try_clone()?)?))
        });
        send_done(reply, flushed);
    }

    fn release(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(OpenMirrorNode::File(open)) = self.remove(handle) {
            self.locks.end_handle(&open);
            self.nodes.note_closed(open.node, &open.file);
        }
        reply.ok();
    }

    fn fsync(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        is_data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.file(handle).and_then(|open| match is_data_only {
            true => open.file.sync_data(),
            false => open.file.sync_all(),
        });
        send_done(reply, synced);
    }

    fn opendir(&self, _: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.open_directory(node);
        answer!(reply, opened, handle => reply.opened(handle, FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        answer!(reply, self.listing(node, handle, offset), names => {
            let first = usize::try_from(offset).unwrap_or(usize::MAX);
            for (index, listed) in names.iter().enumerate().skip(first) {
                if reply.add(listed.number, index as u64 + 1, listed.kind, &listed.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if let Some(OpenMirrorNode::Directory(open)) = self.remove(handle) {
            self.nodes.note_closed(node, &open.file);
        }
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _is_data_only: bool,
        reply: ReplyEmpty,
    ) {
        send_done(reply, self.sync_directory(handle));
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let space_at = |path: &Path| Ok(nix::sys::statvfs::statvfs(path)?);
        let space = self.nodes.at_node(node, space_at);
        // Of a file whose name is gone.
        let space = space.or_else(|_| self.nodes.at_node(INodeNo::ROOT, space_at));
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        answer!(reply, space, space => reply.statfs(
            space.blocks(),
            space.blocks_free(),
            space.blocks_available(),
            space.files(),
            space.files_free(),
            small(space.block_size()),
            small(space.name_max()),
            small(space.fragment_size()),
        ));
    }

    fn access(&self, _: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let mask = NixAccess::from_bits_truncate(mask.bits());
        let asked = self
            .nodes
            .at(node, |path| Ok(nix::unistd::access(path, mask)?));
        send_done(reply, asked);
    }

    fn setxattr(
        &self,
        _: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = |path: &Path| xattr::set(path, name, value, flags);
        send_done(reply, self.nodes.at_node(node, set));
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let get = |path: &Path| xattr::get(path, name, size);
        send_xattr(reply, self.nodes.at_node(node, get));
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let list = |path: &Path| xattr::list(path, size);
        send_xattr(reply, self.nodes.at_node(node, list));
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |path: &Path| xattr::remove(path, name);
        send_done(reply, self.nodes.at_node(node, remove));
    }

    fn getlk(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let asked = RecordLock { kind, start, last };
        let found = self
            .file(handle)
            .and_then(|open| self.locks.test(&open, owner.0, asked));
        answer!(reply, found, found => reply.locked(found.start, found.last, found.kind, 0));
    }

    fn setlk(
        &self,
        request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let lock = RecordLock { kind, start, last };
        let waiter = sleep.then(|| request.pid());
        answer!(reply, self.file(handle), open => self.locks.set(&open, owner.0, lock, waiter, reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.file(handle).and_then(|open| {
            let signed = |number: u64| i64::try_from(number).map_err(|_| Errno::EFBIG);
            let mode = FallocateFlags::from_bits_retain(mode);
            Ok(nix::fcntl::fallocate(
                &*open.file,
                mode,
                signed(offset)?,
                signed(length)?,
            )?)
        });
        send_done(reply, allocated);
    }

    fn lseek(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let whence = match whence {
            SEEK_DATA => Whence::SeekData,
            _ => Whence::SeekHole,
        };
        let found = self
            .file(handle)
            .and_then(|open| Ok(nix::unistd::lseek(&*open.file, offset, whence)?));
        answer!(reply, found, position => reply.offset(position));
    }
}
