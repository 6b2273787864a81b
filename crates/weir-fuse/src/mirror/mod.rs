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
//! | this file | open files, and what requests do |
//! | `requests` | the kernel's requests |
//! | `nodes` | files by the kernel's numbers, and their paths |
//! | `locks` | record locks and flock(2) |
//! | `xattr` | extended attributes |
//!
//! Left out: extended attributes of a file whose last name is gone; O_TMPFILE (EOPNOTSUPP), which the protocol's crate does not
//! know; the coherence of maps with writes of programs that do not use the mirror.

mod locks;
mod nodes;
mod requests;
mod xattr;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use fuser::{FileAttr, FileHandle, FileType, INodeNo};
use nix::errno::Errno;
use nix::fcntl::{OFlag, AT_FDCWD};
use nix::sys::stat::{Mode, UtimensatFlags};
use nix::sys::time::TimeSpec;
use weir_client::process::mounted::Changes;
use weir_client::types::{Stat, Time};

use crate::convert::attributes;
use locks::MirrorLocks;
use nodes::{MirrorName, MirrorNodes};

/// The file system, as the kernel calls it.
#[derive(Debug)]
pub struct MirrorFs {
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
    /// `file` was opened with O_APPEND.
    appends: bool,
    /// The same with O_APPEND, or without, once it is needed: a program may change that flag at any time (F_SETFL).
    other: Arc<OnceLock<File>>,
    /// The owners of locks that came by it.
    lock_owners: Arc<Mutex<BTreeSet<u64>>>,
    node: INodeNo,
    may_read: bool,
    may_write: bool,
}

impl OpenMirrorFile {
    /// The file, so that writes append whatever their offset (pwrite(2), BUGS), or do not.
    fn for_writing(&self, appends: bool) -> io::Result<&File> {
        if appends == self.appends {
            return Ok(&self.file);
        }
        if let Some(known) = self.other.get() {
            return Ok(known);
        }
        let mut options = OpenOptions::new();
        let opened = options
            .write(true)
            .append(appends)
            .open(link_to(&self.file))?;
        // Another thread may have been faster.
        Ok(self.other.get_or_init(|| opened))
    }
}

#[derive(Debug)]
struct ListedName {
    number: INodeNo,
    kind: FileType,
    name: OsString,
}

fn raw_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn errno_of(error: &io::Error) -> fuser::Errno {
    fuser::Errno::from_i32(raw_errno(error) as i32)
}

/// The path by which an open file is opened anew, whatever its name is now.
fn link_to(file: &File) -> String {
    format!("/proc/thread-self/fd/{}", file.as_raw_fd())
}

fn attributes_of(number: INodeNo, found: &Metadata) -> FileAttr {
    let time = |sec, nsec| Time { sec, nsec };
    let mut attributes = attributes(&Stat {
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
    });
    // The PFS may have devices, which the mount does not let anybody open.
    if let Some(kind) = FileType::from_std(found.file_type()) {
        attributes.kind = kind;
        attributes.rdev = u32::try_from(found.rdev()).unwrap_or(0);
    }
    attributes
}

fn timespec_of(new: Option<Time>) -> TimeSpec {
    new.map_or(TimeSpec::UTIME_OMIT, |new| TimeSpec::new(new.sec, new.nsec))
}

impl MirrorFs {
    /// Mirrors an elevated directory. The umask of the process is taken away: the kernel has applied the programs'.
    pub fn new(root: &Path) -> io::Result<MirrorFs> {
        nix::sys::stat::umask(Mode::empty());
        Ok(MirrorFs {
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
        let find = |path: &Path| fs::symlink_metadata(path);
        let (node, found) = self.nodes.look_up(name, find)?;
        Ok(attributes_of(node, &found))
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

    /// An open file of a node: it is the node's, whatever has its name.
    fn find_open(&self, node: INodeNo, handle: Option<FileHandle>) -> Option<Arc<File>> {
        let own = handle.and_then(|handle| Some(self.file(handle).ok()?.file));
        own.or_else(|| self.nodes.find_open(node))
    }

    /// The attributes of a node. ESTALE: its name is gone, or of another type of file; the kernel looks it up again.
    fn stat(&self, node: INodeNo, handle: Option<FileHandle>) -> io::Result<FileAttr> {
        if let Some(open) = self.find_open(node, handle) {
            return Ok(attributes_of(node, &open.metadata()?));
        }
        let found = self
            .nodes
            .at_node(node, |path| fs::symlink_metadata(path))?;
        self.nodes.check_kind(node, &found)?;
        Ok(attributes_of(node, &found))
    }

    fn set_attributes(
        &self,
        node: INodeNo,
        handle: Option<FileHandle>,
        new: &Changes,
    ) -> io::Result<FileAttr> {
        let open = self.find_open(node, handle);
        if let Some(mode) = new.mode {
            let mode = Permissions::from_mode(mode & 0o7777);
            match &open {
                Some(open) => open.set_permissions(mode)?,
                None => self
                    .nodes
                    .at_node(node, |path| fs::set_permissions(path, mode.clone()))?,
            }
        }
        if new.uid.is_some() || new.gid.is_some() {
            match &open {
                Some(open) => std::os::unix::fs::fchown(open, new.uid, new.gid)?,
                None => self.nodes.at_node(node, |path| {
                    std::os::unix::fs::lchown(path, new.uid, new.gid)
                })?,
            }
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
            match &open {
                Some(open) => nix::sys::stat::futimens(open, &atime, &mtime)?,
                None => self.nodes.at_node(node, |path| {
                    let no_follow = UtimensatFlags::NoFollowSymlink;
                    let set = nix::sys::stat::utimensat(AT_FDCWD, path, &atime, &mtime, no_follow);
                    Ok(set?)
                })?,
            }
        }
        self.stat(node, handle)
    }

    /// Opens the file at a path. Offsets and pages are the kernel's.
    fn open_at(path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
        let flags =
            (flags - (OFlag::O_DIRECT | OFlag::O_NOCTTY)) | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let mode = Mode::from_bits_truncate(mode);
        Ok(File::from(nix::fcntl::open(path, flags, mode)?))
    }

    fn note_open(&self, node: INodeNo, file: File, flags: OFlag) -> FileHandle {
        let file = Arc::new(file);
        self.nodes.note_open(node, &file);
        let access = flags & OFlag::O_ACCMODE;
        self.insert(OpenMirrorNode::File(OpenMirrorFile {
            file,
            appends: flags.contains(OFlag::O_APPEND),
            other: Arc::default(),
            lock_owners: Arc::default(),
            node,
            may_read: access != OFlag::O_WRONLY,
            may_write: access != OFlag::O_RDONLY,
        }))
    }

    fn open_node(&self, node: INodeNo, flags: OFlag) -> io::Result<FileHandle> {
        let flags = flags - (OFlag::O_CREAT | OFlag::O_EXCL);
        // By a link of /proc to a descriptor, for example.
        if let Some(open) = self
            .nodes
            .find_open(node)
            .filter(|_| self.nodes.is_replaced(node))
        {
            let flags = (flags - OFlag::O_NOFOLLOW) | OFlag::O_CLOEXEC;
            let file = File::from(nix::fcntl::open(&*link_to(&open), flags, Mode::empty())?);
            return Ok(self.note_open(node, file, flags));
        }
        let file = self
            .nodes
            .at_node(node, |path| Self::open_at(path, flags, 0))?;
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
        let own = || [own("."), own("..")];
        let listed = self.nodes.at_node(node, |path| {
            let mut names = Vec::from(own());
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let kind = entry.file_type().ok().and_then(FileType::from_std);
                names.push(ListedName {
                    number: INodeNo(entry.ino()),
                    // stat(2) says more, if it is still there.
                    kind: kind.unwrap_or(FileType::RegularFile),
                    name: entry.file_name(),
                });
            }
            Ok(names.into())
        });
        match listed {
            // The directory was removed: it is empty.
            Err(error) if error.raw_os_error() == Some(Errno::ESTALE as i32) => Ok(own().into()),
            listed => listed,
        }
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
            match all.get(&handle.0) {
                Some(OpenMirrorNode::Directory(open)) if open.names.is_empty() => {}
                Some(OpenMirrorNode::Directory(open)) => return Ok(Arc::clone(&open.names)),
                _ => return Err(Errno::EBADF.into()),
            }
        }
        let names = self.list(node)?;
        let mut all = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(OpenMirrorNode::Directory(open)) = all.get_mut(&handle.0) {
            open.names = Arc::clone(&names);
        }
        Ok(names)
    }

    fn sync_directory(&self, handle: FileHandle) -> io::Result<()> {
        let file = match self
            .open
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&handle.0)
        {
            Some(OpenMirrorNode::Directory(open)) => Arc::clone(&open.file),
            _ => return Err(Errno::EBADF.into()),
        };
        file.sync_all()
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
