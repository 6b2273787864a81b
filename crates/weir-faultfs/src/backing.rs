//! The directory below a mount, by the kernel's numbers of nodes and handles.
//!
//! A node is a descriptor (O_PATH), so it stays what it is when its name changes. All calls go by
//! `/proc/thread-self/fd`, which leads to the node itself: symbolic links at the end are not followed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo, TimeOrNow};
use rustix::fs::{
    AtFlags, Mode, OFlags, StatVfs, Timespec, Timestamps, CWD, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;

/// The kernel's number of the root.
const ROOT: u64 = 1;

/// A directory and all below it, on one file system.
#[derive(Debug)]
pub(crate) struct BackingTree {
    /// The path of the root, as the kernel tells it.
    root_path: PathBuf,
    root_number: u64,
    nodes: Mutex<HashMap<u64, BackingNode>>,
    handles: Mutex<HashMap<u64, BackingHandle>>,
    next_handle: AtomicU64,
}

#[derive(Debug)]
struct BackingNode {
    file: Arc<File>,
    /// The look-ups that the kernel has not forgotten.
    lookups: u64,
}

#[derive(Clone, Debug)]
enum BackingHandle {
    File(Arc<File>),
    Directory(Arc<Vec<ListedEntry>>),
}

/// A name of a directory.
#[derive(Debug)]
pub(crate) struct ListedEntry {
    pub number: INodeNo,
    pub kind: FileType,
    pub name: OsString,
}

/// New attributes of a node.
#[derive(Debug, Default)]
pub(crate) struct NewAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn proc_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))
}

fn open_node(path: &Path, flags: OFlags) -> io::Result<File> {
    let fd = rustix::fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(fd))
}

impl BackingTree {
    pub(crate) fn open(root: &Path) -> io::Result<BackingTree> {
        let root = open_node(root, OFlags::DIRECTORY)?;
        let tree = BackingTree {
            root_path: fs::read_link(proc_path(&root))?,
            root_number: root.metadata()?.ino(),
            nodes: Mutex::default(),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
        };
        let node = BackingNode {
            file: Arc::new(root),
            lookups: 1,
        };
        lock(&tree.nodes).insert(ROOT, node);
        Ok(tree)
    }

    fn node(&self, number: INodeNo) -> io::Result<Arc<File>> {
        let nodes = lock(&self.nodes);
        let node = nodes.get(&number.0).ok_or(Errno::STALE)?;
        Ok(Arc::clone(&node.file))
    }

    /// Calls `act` with the path of a node.
    fn at<T>(&self, number: INodeNo, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let node = self.node(number)?;
        act(&proc_path(&node))
    }

    /// The path below the root that a node has now; the old one if it has none any more.
    pub(crate) fn path_of(&self, number: INodeNo) -> PathBuf {
        let path = self.at(number, |path| fs::read_link(path));
        let path = path.unwrap_or_default().into_os_string().into_vec();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
        let path = PathBuf::from(OsString::from_vec(path.to_owned()));
        path.strip_prefix(&self.root_path)
            .map_or_else(|_| path.clone(), Path::to_owned)
    }

    fn attributes(&self, found: &Metadata) -> FileAttr {
        let number = match found.ino() == self.root_number {
            true => ROOT,
            false => found.ino(),
        };
        FileAttr {
            ino: INodeNo(number),
            size: found.size(),
            blocks: found.blocks(),
            atime: time_of(found.atime(), found.atime_nsec()),
            mtime: time_of(found.mtime(), found.mtime_nsec()),
            ctime: time_of(found.ctime(), found.ctime_nsec()),
            crtime: UNIX_EPOCH,
            kind: FileType::from_std(found.file_type()).unwrap_or(FileType::RegularFile),
            perm: u16::try_from(found.mode() & 0o7777).expect("12 bits"),
            nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: u32::try_from(found.blksize()).unwrap_or(u32::MAX),
            flags: 0,
        }
    }

    /// Notes that the kernel knows a node.
    fn note_look_up(&self, node: File) -> io::Result<FileAttr> {
        let attributes = self.attributes(&node.metadata()?);
        let mut nodes = lock(&self.nodes);
        let known = nodes.get(&attributes.ino.0).map_or(0, |node| node.lookups);
        // The descriptor of the name that was used last: the path of requests is that one's.
        let node = BackingNode {
            file: Arc::new(node),
            lookups: known + 1,
        };
        nodes.insert(attributes.ino.0, node);
        Ok(attributes)
    }

    pub(crate) fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let node = self.at(parent, |dir| open_node(&dir.join(name), OFlags::NOFOLLOW))?;
        self.note_look_up(node)
    }

    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get_mut(&number.0) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && number.0 != ROOT {
                nodes.remove(&number.0);
            }
        }
    }

    pub(crate) fn get_attributes(&self, number: INodeNo) -> io::Result<FileAttr> {
        Ok(self.attributes(&self.node(number)?.metadata()?))
    }

    pub(crate) fn set_attributes(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
        new: &NewAttributes,
    ) -> io::Result<FileAttr> {
        self.at(number, |path| {
            if let Some(mode) = new.mode {
                fs::set_permissions(path, Permissions::from_mode(mode & 0o7777))?;
            }
            if new.uid.is_some() || new.gid.is_some() {
                std::os::unix::fs::chown(path, new.uid, new.gid)?;
            }
            if let Some(size) = new.size {
                match handle.and_then(|handle| self.file(handle).ok()) {
                    Some(file) => file.set_len(size)?,
                    None => OpenOptions::new().write(true).open(path)?.set_len(size)?,
                }
            }
            if new.atime.is_some() || new.mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec_of(new.atime),
                    last_modification: timespec_of(new.mtime),
                };
                rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
            }
            Ok(())
        })?;
        self.get_attributes(number)
    }

    pub(crate) fn read_link(&self, number: INodeNo) -> io::Result<Vec<u8>> {
        let node = self.node(number)?;
        let target = rustix::fs::readlinkat(&*node, "", Vec::new())?;
        Ok(target.into_bytes())
    }

    pub(crate) fn make_directory(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
    ) -> io::Result<FileAttr> {
        let make = |dir: &Path| {
            let mut new = fs::DirBuilder::new();
            new.mode(mode & 0o7777).create(dir.join(name))
        };
        self.at(parent, make)?;
        self.look_up(parent, name)
    }

    pub(crate) fn make_symlink(
        &self,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
    ) -> io::Result<FileAttr> {
        self.at(parent, |dir| {
            std::os::unix::fs::symlink(target, dir.join(name))
        })?;
        self.look_up(parent, name)
    }

    pub(crate) fn make_link(
        &self,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> io::Result<FileAttr> {
        self.at(number, |old| {
            self.at(parent, |dir| {
                let follow = AtFlags::SYMLINK_FOLLOW;
                Ok(rustix::fs::linkat(CWD, old, CWD, dir.join(name), follow)?)
            })
        })?;
        self.look_up(parent, name)
    }

    pub(crate) fn unlink(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        self.at(parent, |dir| fs::remove_file(dir.join(name)))
    }

    pub(crate) fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        self.at(parent, |dir| fs::remove_dir(dir.join(name)))
    }

    pub(crate) fn rename(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags);
        self.at(parent, |dir| {
            self.at(new_parent, |new_dir| {
                let (old, new) = (dir.join(name), new_dir.join(new_name));
                Ok(rustix::fs::renameat_with(CWD, old, CWD, new, flags)?)
            })
        })
    }

    fn add_handle(&self, handle: BackingHandle) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        lock(&self.handles).insert(number, handle);
        FileHandle(number)
    }

    pub(crate) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        match lock(&self.handles).get(&handle.0) {
            Some(BackingHandle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Errno::BADF.into()),
        }
    }

    pub(crate) fn listing(&self, handle: FileHandle) -> io::Result<Arc<Vec<ListedEntry>>> {
        match lock(&self.handles).get(&handle.0) {
            Some(BackingHandle::Directory(names)) => Ok(Arc::clone(names)),
            _ => Err(Errno::BADF.into()),
        }
    }

    pub(crate) fn release(&self, handle: FileHandle) {
        lock(&self.handles).remove(&handle.0);
    }

    /// The flags with which a file below is opened. Offsets are the kernel's, and so is its page cache.
    fn open_flags(flags: i32) -> OFlags {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        (flags - (OFlags::APPEND | OFlags::DIRECT | OFlags::NOCTTY)) | OFlags::CLOEXEC
    }

    pub(crate) fn open_file(&self, number: INodeNo, flags: i32) -> io::Result<FileHandle> {
        // The path is a symbolic link to the node.
        let not_of_it = OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC;
        let flags = Self::open_flags(flags) - not_of_it;
        let file = self.at(number, |path| {
            Ok(rustix::fs::open(path, flags, Mode::empty())?)
        })?;
        Ok(self.add_handle(BackingHandle::File(Arc::new(File::from(file)))))
    }

    pub(crate) fn create(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let flags = Self::open_flags(flags) | OFlags::CREATE;
        let mode = Mode::from_bits_retain(mode & 0o7777);
        let file = self.at(parent, |dir| {
            Ok(rustix::fs::open(dir.join(name), flags, mode)?)
        })?;
        let file = File::from(file);
        let attributes = self.note_look_up(open_node(&proc_path(&file), OFlags::empty())?)?;
        let handle = self.add_handle(BackingHandle::File(Arc::new(file)));
        Ok((attributes, handle))
    }

    pub(crate) fn open_directory(&self, number: INodeNo) -> io::Result<FileHandle> {
        let entries = self.at(number, |path| {
            let entries = fs::read_dir(path)?.map(|entry| {
                let entry = entry?;
                let kind = FileType::from_std(entry.file_type()?);
                Ok(ListedEntry {
                    number: INodeNo(entry.ino()),
                    kind: kind.unwrap_or(FileType::RegularFile),
                    name: entry.file_name(),
                })
            });
            entries.collect::<io::Result<Vec<_>>>()
        })?;
        Ok(self.add_handle(BackingHandle::Directory(Arc::new(entries))))
    }

    pub(crate) fn sync_directory(&self, number: INodeNo) -> io::Result<()> {
        self.at(number, |path| File::open(path)?.sync_all())
    }

    pub(crate) fn space(&self, number: INodeNo) -> io::Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(&*self.node(number)?)?)
    }

    pub(crate) fn set_xattr(
        &self,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> io::Result<()> {
        let flags = rustix::fs::XattrFlags::from_bits_retain(flags.cast_unsigned());
        self.at(number, |path| {
            Ok(rustix::fs::setxattr(path, name, value, flags)?)
        })
    }

    /// The value of an attribute, or its size if the buffer is to have none.
    pub(crate) fn get_xattr(
        &self,
        number: INodeNo,
        name: &OsStr,
        size: u32,
    ) -> io::Result<XattrReply> {
        self.at(number, |path| {
            read_sized(
                size,
                || rustix::fs::getxattr_query(path, name),
                |buffer| rustix::fs::getxattr(path, name, buffer),
            )
        })
    }

    pub(crate) fn list_xattrs(&self, number: INodeNo, size: u32) -> io::Result<XattrReply> {
        self.at(number, |path| {
            read_sized(
                size,
                || rustix::fs::listxattr_query(path),
                |buffer| rustix::fs::listxattr(path, buffer),
            )
        })
    }

    pub(crate) fn remove_xattr(&self, number: INodeNo, name: &OsStr) -> io::Result<()> {
        self.at(number, |path| Ok(rustix::fs::removexattr(path, name)?))
    }
}

/// The reply to getxattr and listxattr.
#[derive(Debug)]
pub(crate) enum XattrReply {
    Size(u32),
    Bytes(Vec<u8>),
}

impl XattrReply {
    /// A value, or its size if the buffer is to have none; ERANGE: the buffer is too small.
    pub(crate) fn for_value(value: &[u8], size: u32) -> io::Result<XattrReply> {
        let copy = |buffer: &mut [u8]| {
            let room = buffer
                .get_mut(..value.len())
                .ok_or(rustix::io::Errno::RANGE)?;
            room.copy_from_slice(value);
            Ok(value.len())
        };
        read_sized(size, || Ok(value.len()), copy)
    }
}

fn read_sized(
    size: u32,
    query: impl FnOnce() -> rustix::io::Result<usize>,
    read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<XattrReply> {
    if size == 0 {
        return Ok(XattrReply::Size(
            u32::try_from(query()?).unwrap_or(u32::MAX),
        ));
    }
    let mut buffer = vec![0; usize::try_from(size).expect("64 bits")];
    let length = read(&mut buffer)?;
    buffer.truncate(length);
    Ok(XattrReply::Bytes(buffer))
}

fn time_of(seconds: i64, nanoseconds: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let rest = Duration::from_nanos(nanoseconds.unsigned_abs());
    match seconds < 0 {
        false => UNIX_EPOCH + whole + rest,
        true => UNIX_EPOCH - whole + rest,
    }
}

fn timespec_of(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let time = match time {
        None => return special(UTIME_OMIT),
        Some(TimeOrNow::Now) => return special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => time,
    };
    let seconds = |whole: u64| i64::try_from(whole).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec {
            tv_sec: seconds(since.as_secs()),
            tv_nsec: since.subsec_nanos().into(),
        },
        // A time before 1970, whose nanoseconds count forward.
        Err(before) => {
            let before = before.duration();
            let part = i64::from(before.subsec_nanos() > 0);
            Timespec {
                tv_sec: -seconds(before.as_secs()) - part,
                tv_nsec: part * 1_000_000_000 - i64::from(before.subsec_nanos()),
            }
        }
    }
}
