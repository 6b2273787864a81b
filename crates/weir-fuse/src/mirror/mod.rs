//! A mirror: a directory, as the C library shows it to this process, as a file system of the kernel.
//!
//! The process has the interposer, so that an elevated directory is here the one tree that it is to all programs of the
//! instance: names and bytes of the buffer and of the parallel file system (PFS), changes of names through the ledger.
//! Programs that the interposer cannot be in (static ones) reach that tree by the mirror.
//!
//! Invariants:
//! - each request is a call of the C library, never of the kernel alone: std and nix call it, rustix would not;
//! - the kernel keeps no name and no attribute, so that each call sees the changes of programs that do not use the mirror; it
//!   keeps pages, so that maps of programs that do are one with what they write, until a file is opened or has another size
//!   or mtime;
//! - only the user of the instance may enter (FUSE's default), for the process acts with that user's rights.
//!
//! | file | subject |
//! | --- | --- |
//! | this file | the kernel's requests |
//! | `nodes` | files by the kernel's numbers, and their paths |
//! | `locks` | record locks and flock(2) |
//! | `xattr` | extended attributes |
//!
//! Left out: extended attributes of a file whose last name is gone; O_TMPFILE (EOPNOTSUPP), which the protocol's crate does not
//! know; the coherence of maps with writes of programs that do not use the mirror.

mod locks;
mod nodes;
mod xattr;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, AT_FDCWD};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags as NixAccess, Whence};
use weir_client::process::mounted::beneath::MIRROR_MARK;
use weir_client::types::{Stat, Time};

use crate::convert::{attributes, time};
use crate::filesystem::{GENERATION, NEVER};
use locks::{MirrorLocks, RecordLock};
use nodes::{MirrorName, MirrorNodes};
use xattr::SizedReply;

/// The `whence` of lseek for data; the other one that the kernel sends is that for holes.
const SEEK_DATA: i32 = 3;

/// The file system, as the kernel calls it.
#[derive(Debug)]
pub struct MirrorFs {
    /// The run directory of the instance.
    run_dir: PathBuf,
    nodes: MirrorNodes,
    open: RwLock<HashMap<u64, OpenMirrorNode>>,
    next_handle: AtomicU64,
    locks: MirrorLocks,
}

#[derive(Clone, Debug)]
enum OpenMirrorNode {
    File(OpenMirrorFile),
    Directory(OpenMirrorDirectory),
}

/// An open directory.
#[derive(Clone, Debug)]
struct OpenMirrorDirectory {
    /// Its attributes are to be had after it was removed.
    file: Arc<File>,
    /// The names, as they were when its listing was begun.
    names: Arc<[ListedName]>,
}

/// An open file.
#[derive(Clone, Debug)]
struct OpenMirrorFile {
    file: Arc<File>,
    /// The same opened with O_APPEND, once a program appends: it may set that flag at any time (F_SETFL).
    appending: Arc<OnceLock<File>>,
    node: INodeNo,
    may_read: bool,
    may_write: bool,
}

impl OpenMirrorFile {
    /// The file, so that writes append, whatever their offset (pwrite(2), BUGS).
    fn appending(&self) -> io::Result<&File> {
        if let Some(known) = self.appending.get() {
            return Ok(known);
        }
        let same = format!("/proc/thread-self/fd/{}", self.file.as_raw_fd());
        let opened = OpenOptions::new().append(true).open(same)?;
        // Another thread may have been faster.
        Ok(self.appending.get_or_init(|| opened))
    }
}

#[derive(Debug)]
struct ListedName {
    number: INodeNo,
    kind: FileType,
    name: OsString,
}

fn errno_of(error: &io::Error) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}

/// Sends a result, or the error.
macro_rules! answer {
    ($reply:expr, $result:expr, $value:pat => $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno_of(&error)),
        }
    };
}

fn attributes_of(number: INodeNo, found: &Metadata) -> FileAttr {
    let time = |sec, nsec| Time { sec, nsec };
    attributes(&Stat {
        dev: found.dev(),
        mount: None,
        ino: number.0,
        mode: found.mode(),
        nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        blksize: u32::try_from(found.blksize()).unwrap_or(u32::MAX),
        blocks: found.blocks(),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        btime: None,
    })
}

fn timespec_of(new: Option<TimeOrNow>) -> TimeSpec {
    let Some(new) = new else {
        return TimeSpec::UTIME_OMIT;
    };
    let Time { sec, nsec } = time(new);
    TimeSpec::new(sec, nsec)
}

impl MirrorFs {
    /// Mirrors a directory of the instance in `run_dir`. The umask of the process is taken away: the kernel has applied the programs'.
    pub fn new(run_dir: &Path, root: &Path) -> io::Result<MirrorFs> {
        nix::sys::stat::umask(Mode::empty());
        Ok(MirrorFs {
            run_dir: run_dir.to_owned(),
            nodes: MirrorNodes::new(root)?,
            open: RwLock::default(),
            next_handle: AtomicU64::new(1),
            locks: MirrorLocks::default(),
        })
    }

    fn insert(&self, open: OpenMirrorNode) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let mut all = self.open.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(number, open);
        FileHandle(number)
    }

    fn remove(&self, handle: FileHandle) -> Option<OpenMirrorNode> {
        let mut all = self.open.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&handle.0)
    }

    fn file(&self, handle: FileHandle) -> io::Result<OpenMirrorFile> {
        let all = self.open.read().unwrap_or_else(PoisonError::into_inner);
        match all.get(&handle.0) {
            Some(OpenMirrorNode::File(open)) => Ok(open.clone()),
            _ => Err(Errno::EBADF.into()),
        }
    }

    fn look_up(&self, name: MirrorName<'_>) -> io::Result<FileAttr> {
        let found = self
            .nodes
            .at_name(name, |path| fs::symlink_metadata(path))?;
        Ok(attributes_of(self.nodes.note_look_up(name, &found), &found))
    }

    /// Makes a name by `make`, and looks it up.
    fn make(
        &self,
        name: MirrorName<'_>,
        make: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        self.nodes.at_name(name, make)?;
        self.look_up(name)
    }

    /// The attributes of a node. ESTALE: its name is another file's by now; the kernel looks it up again.
    fn stat(&self, node: INodeNo) -> io::Result<FileAttr> {
        // An open file is the node's, whatever has its name.
        if let Some(open) = self.nodes.find_open(node) {
            return Ok(attributes_of(node, &open.metadata()?));
        }
        let found = self
            .nodes
            .at_node(node, |path| fs::symlink_metadata(path))?;
        self.check_same(node, &found)?;
        Ok(attributes_of(node, &found))
    }

    fn check_same(&self, node: INodeNo, found: &Metadata) -> io::Result<()> {
        match self.nodes.number_of(found) == node {
            true => Ok(()),
            false => Err(Errno::ESTALE.into()),
        }
    }

    fn set_attributes(
        &self,
        node: INodeNo,
        handle: Option<FileHandle>,
        new: &MirrorChanges,
    ) -> io::Result<FileAttr> {
        if let Some(mode) = new.mode {
            let mode = Permissions::from_mode(mode & 0o7777);
            self.nodes
                .at(node, |path| fs::set_permissions(path, mode.clone()))?;
        }
        if new.uid.is_some() || new.gid.is_some() {
            let change = |path: &Path| std::os::unix::fs::lchown(path, new.uid, new.gid);
            self.nodes.at_node(node, change)?;
        }
        if let Some(size) = new.size {
            match handle.map(|handle| self.file(handle)) {
                Some(open) => open?.file.set_len(size)?,
                None => self.nodes.at_node(node, |path| {
                    let signed = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
                    Ok(nix::unistd::truncate(path, signed)?)
                })?,
            }
        }
        if new.atime.is_some() || new.mtime.is_some() {
            let (atime, mtime) = (timespec_of(new.atime), timespec_of(new.mtime));
            self.nodes.at_node(node, |path| {
                let no_follow = UtimensatFlags::NoFollowSymlink;
                let set = nix::sys::stat::utimensat(AT_FDCWD, path, &atime, &mtime, no_follow);
                Ok(set?)
            })?;
        }
        self.stat(node)
    }

    /// Opens the file at a path. Offsets and pages are the kernel's.
    fn open_at(path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
        let flags = (flags - (OFlag::O_APPEND | OFlag::O_DIRECT | OFlag::O_NOCTTY))
            | OFlag::O_CLOEXEC
            | OFlag::O_NOFOLLOW;
        let mode = Mode::from_bits_truncate(mode);
        Ok(File::from(nix::fcntl::open(path, flags, mode)?))
    }

    fn note_open(&self, node: INodeNo, file: File, flags: OFlag) -> FileHandle {
        let file = Arc::new(file);
        self.nodes.note_open(node, &file);
        let access = flags & OFlag::O_ACCMODE;
        self.insert(OpenMirrorNode::File(OpenMirrorFile {
            file,
            appending: Arc::default(),
            node,
            may_read: access != OFlag::O_WRONLY,
            may_write: access != OFlag::O_RDONLY,
        }))
    }

    fn open_node(&self, node: INodeNo, flags: OFlag) -> io::Result<FileHandle> {
        let flags = flags - (OFlag::O_CREAT | OFlag::O_EXCL);
        let file = self
            .nodes
            .at_node(node, |path| Self::open_at(path, flags, 0))?;
        // A file of the PFS that is truncated is a new one of the instance.
        if !flags.contains(OFlag::O_TRUNC) {
            self.check_same(node, &file.metadata()?)?;
        }
        Ok(self.note_open(node, file, flags))
    }

    fn create_node(
        &self,
        name: MirrorName<'_>,
        flags: OFlag,
        mode: u32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let flags = flags | OFlag::O_CREAT;
        let create = |path: &Path| Self::open_at(path, flags, mode);
        let file = self.nodes.at_name(name, create)?;
        let found = file.metadata()?;
        let node = self.nodes.note_look_up(name, &found);
        Ok((
            attributes_of(node, &found),
            self.note_open(node, file, flags),
        ))
    }

    /// Lists a directory, with the names of itself and of the one above.
    fn list(&self, node: INodeNo) -> io::Result<Arc<[ListedName]>> {
        let own = |name: &str| ListedName {
            number: node,
            kind: FileType::Directory,
            name: name.into(),
        };
        self.nodes.at_node(node, |path| {
            let found = fs::read_dir(path)?.map(|entry| {
                let entry = entry?;
                let kind = FileType::from_std(entry.file_type()?);
                Ok(ListedName {
                    number: INodeNo(entry.ino()),
                    kind: kind.unwrap_or(FileType::RegularFile),
                    name: entry.file_name(),
                })
            });
            let own = [own("."), own("..")].into_iter().map(Ok);
            own.chain(found).collect()
        })
    }

    /// The listing of an open directory, begun anew at offset 0.
    fn listing(
        &self,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
    ) -> io::Result<Arc<[ListedName]>> {
        if offset > 0 {
            let all = self.open.read().unwrap_or_else(PoisonError::into_inner);
            return match all.get(&handle.0) {
                Some(OpenMirrorNode::Directory(open)) => Ok(Arc::clone(&open.names)),
                _ => Err(Errno::EBADF.into()),
            };
        }
        let names = self.list(node)?;
        let mut all = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(OpenMirrorNode::Directory(open)) = all.get_mut(&handle.0) {
            open.names = Arc::clone(&names);
        }
        Ok(names)
    }

    fn open_directory(&self, node: INodeNo) -> io::Result<FileHandle> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let file = Arc::new(
            self.nodes
                .at_node(node, |path| Self::open_at(path, flags, 0))?,
        );
        self.nodes.note_open(node, &file);
        let names = Arc::default();
        Ok(self.insert(OpenMirrorNode::Directory(OpenMirrorDirectory {
            file,
            names,
        })))
    }
}

/// New attributes of a node.
#[derive(Debug)]
struct MirrorChanges {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
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

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        send_attributes(reply, self.stat(node));
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
        let new = MirrorChanges {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
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
        send_done(
            reply,
            self.nodes.at_name(name, |path| fs::remove_file(path)),
        );
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = MirrorName { parent, name };
        send_done(reply, self.nodes.at_name(name, |path| fs::remove_dir(path)));
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
        // What was written before an error is said; the next call says the error.
        let written = self.file(handle).and_then(|open| match appends {
            true => open.appending()?.write_at(bytes, offset),
            false => open.file.write_at(bytes, offset),
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
            self.locks.end_owner(&open, owner.0);
            if !open.may_write {
                return Ok(());
            }
            let both = std::iter::once(&*open.file).chain(open.appending.get());
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
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(OpenMirrorNode::File(open)) = self.remove(handle) {
            // Of flock(2), whose owner is the open file description.
            if let Some(owner) = owner {
                self.locks.end_owner(&open, owner.0);
            }
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
        node: INodeNo,
        _handle: FileHandle,
        _is_data_only: bool,
        reply: ReplyEmpty,
    ) {
        send_done(
            reply,
            self.nodes
                .at_node(node, |path| File::open(path)?.sync_all()),
        );
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let space = self
            .nodes
            .at(node, |path| Ok(nix::sys::statvfs::statvfs(path)?));
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
        let value = self.run_dir.as_os_str().as_bytes();
        let length = u32::try_from(value.len()).expect("a path");
        match (name == MIRROR_MARK, size) {
            // The kernel asks before each write; no file of the tree has any.
            _ if name == "security.capability" => reply.error(fuser::Errno::EOPNOTSUPP),
            (false, _) => {
                let get = |path: &Path| xattr::get(path, name, size);
                send_xattr(reply, self.nodes.at_node(node, get));
            }
            (true, 0) => reply.size(length),
            (true, room) if room < length => reply.error(fuser::Errno::ERANGE),
            (true, _) => reply.data(value),
        }
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
