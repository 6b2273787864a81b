//! A tree of files, as a source or a target of moves: the parallel file system (PFS) or an instance.
//!
//! Paths are those of the tree: absolute ones, which for an instance begin at its root. Symbolic links on the way are
//! followed, one at the end of a path is not.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use weir_client::process::mounted::elevated::TargetCopy;
use weir_client::process::mounted::{
    ContentVersion, CopyUse, Cover, EvictedFile, HistoryPosition, Ino, SettledExtents, Whiteout,
    WriteState,
};
use weir_client::types::{Stat, Time};

use crate::stripe::StripeSize;

const TYPE_MASK: u32 = 0o170_000;
/// The permission bits of a part while it is written: with these other processes can open it, and detect that it is in use.
pub(crate) const PART_MODE: u32 = 0o600;

/// The kind of a node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, fifo or socket, which is not moved.
    Special,
}

/// The kind of the node that has these attributes.
pub fn kind_of(stat: &Stat) -> NodeKind {
    match stat.mode & TYPE_MASK {
        0o100_000 => NodeKind::File,
        0o040_000 => NodeKind::Directory,
        0o120_000 => NodeKind::Symlink,
        _ => NodeKind::Special,
    }
}

/// The attributes that a moved node keeps, besides its contents and extended attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptAttributes {
    /// Permission bits, set-id bits and the sticky bit.
    pub mode: u32,
    /// The group. It is kept unless it is the primary group of the user who moves the node: the target's directory may
    /// replace that one, as for any new file.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
}

impl From<&Stat> for KeptAttributes {
    fn from(stat: &Stat) -> Self {
        Self {
            mode: stat.mode & 0o7777,
            gid: stat.gid,
            atime: stat.atime,
            mtime: stat.mtime,
        }
    }
}

impl KeptAttributes {
    /// True if a node with the group `there` must get this one.
    pub(crate) fn changes_group(gid: u32, there: u32) -> bool {
        !is_primary_group(gid) && gid != there
    }
}

/// True for the primary group of the user who moves files.
fn is_primary_group(gid: u32) -> bool {
    gid == rustix::process::getegid().as_raw()
}

/// Gives a node a group, unless it may keep the one that it has (`there`). The group also stays if this user is not in the
/// new one, or the file system has no groups.
pub(crate) fn give_group(
    gid: u32,
    there: impl FnOnce() -> io::Result<u32>,
    give: impl FnOnce() -> Result<(), Errno>,
) -> io::Result<()> {
    if is_primary_group(gid) || there()? == gid {
        return Ok(());
    }
    match give() {
        Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
        given => given.map_err(io_error),
    }
}

/// An error number as std's error.
pub(crate) fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

/// The size from which on a server is asked for the holder of a file's bytes, and the number of bytes in the question.
const ASKED_BYTES: u64 = 1 << 20;

/// The rank of the server that has the bytes of a file of an instance. If the file is small, or asking is off, this is a
/// guess.
pub(crate) fn holder_of_file<S: FileTree>(
    tree: &S,
    path: &Path,
    ino: u64,
    size: u64,
    is_asked: bool,
) -> u16 {
    let is_asked = is_asked && size >= ASKED_BYTES;
    let holder = is_asked.then(|| tree.holder_of(path, 0..ASKED_BYTES));
    // The server of the inode number: often the file was made there, or its name is there.
    let made_at = Ino(ino).rank().0;
    holder.and_then(Result::ok).flatten().unwrap_or(made_at)
}

/// True if a call failed with this error number.
pub(crate) fn failed_with(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// True if a call failed with one of these error numbers.
pub(crate) fn failed_with_any(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| failed_with(error, *errno))
}

/// True if a path leads to a directory, also by a symbolic link at its end. False if this cannot be found out.
pub(crate) fn leads_to_directory<T: FileTree>(tree: &T, path: &Path) -> bool {
    let inside = tree.look_up(&path.join("."));
    inside.is_ok_and(|found| found.is_some_and(|stat| kind_of(&stat) == NodeKind::Directory))
}

/// The result of a call, for which an error of this kind counts as success: it was done before.
pub(crate) fn unless(done: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == kind => Ok(()),
        done => done,
    }
}

/// The device and the number of an inode.
pub(crate) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.dev, stat.ino)
}

/// The first range of data in `within`. `seek` is lseek(2) with SEEK_DATA, or with SEEK_HOLE if its
/// second argument is true; `None` stands for ENXIO.
pub(crate) fn find_data(
    within: Range<u64>,
    seek: impl Fn(i64, bool) -> io::Result<Option<i64>>,
) -> io::Result<Option<Range<u64>>> {
    let seek = |from: u64, hole| {
        let from = i64::try_from(from).map_err(|_| io_error(Errno::INVAL))?;
        Ok::<_, io::Error>(seek(from, hole)?.map(i64::unsigned_abs))
    };
    let Some(begin) = seek(within.start, false)?.filter(|begin| *begin < within.end) else {
        return Ok(None);
    };
    let end = seek(begin, true)?.unwrap_or(within.end);
    Ok(Some(begin..end.min(within.end)))
}

/// The extended attributes that are kept. `list` is listxattr(2), `get` is getxattr(2).
pub(crate) fn read_xattrs(
    list: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut get: impl FnMut(&[u8], &mut [u8]) -> Result<usize, Errno>,
    is_kept: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let names = match sized(list) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        names => names.map_err(io_error)?,
    };
    let names = names.split(|byte| *byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| !name.is_empty() && is_kept(name)) {
        match sized(|buffer| get(name, buffer)) {
            Ok(value) => found.push((OsString::from_vec(name.to_vec()), value)),
            // The attribute was removed after it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(io_error(error)),
        }
    }
    Ok(found)
}

/// The value of a call that returns its length if the buffer is empty. It may grow in between.
fn sized(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    loop {
        let mut value = vec![0; call(&mut [])?];
        if value.is_empty() {
            return Ok(value);
        }
        match call(&mut value) {
            Err(Errno::RANGE) => {}
            length => {
                value.truncate(length?);
                return Ok(value);
            }
        }
    }
}

/// The names that programs have changed in a tree since the last answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeHistory {
    /// For each server, the numbers of renames that have begun and that have ended. Counted are renames of directories, and
    /// those from one directory to another.
    pub counts: Vec<(u64, u64)>,
    /// The inode numbers of the directories that were renamed.
    pub directories: Vec<u64>,
    /// The servers have forgotten some of these.
    pub is_cut: bool,
    /// The names that files and symbolic links have lost, as far as the servers remember them; for each server in the order
    /// of their times.
    pub lost: Vec<LostName>,
}

/// A name that a file or symbolic link has lost: it was removed, or renamed, or another one was renamed to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostName {
    /// The inode number of the directory.
    pub dir: u64,
    /// The name.
    pub name: OsString,
    /// The inode number of the file or link.
    pub ino: u64,
    /// The time.
    pub at: Time,
    /// Another inode got the name in the same step.
    pub is_replaced: bool,
}

/// The evicted files of an elevated tree.
pub trait EvictionTable {
    /// All evicted files, including those evicted in part, and those that were evicted before.
    fn list(&self) -> io::Result<Vec<EvictedFile>>;
    /// True if there are any.
    fn has_evicted(&self) -> bool {
        self.list().map_or(true, |files| !files.is_empty())
    }
    /// The part of a file that only its copy has; none if the file is gone.
    fn copy_use(&self, file: Ino) -> io::Result<CopyUse>;
    /// The copy of a file, if there is one.
    fn copy_of(&self, file: Ino) -> io::Result<Option<TargetCopy>>;
    /// Frees the storage of a file whose copy is on the target; false: it is not this version, or in use.
    fn evict(&self, file: &EvictedFile, version: ContentVersion) -> io::Result<bool>;
    /// Notes that the copy of a file has another path.
    fn put_copy(&self, file: &EvictedFile) -> io::Result<()>;
    /// Settles a file: later writes become new extents. `None`: ranges of files cannot be evicted.
    fn settle_extents(&self, file: Ino) -> io::Result<Option<SettledExtents>>;
    /// The ranges in `within` whose bytes the instance has, or only the server `at`, in order, and the offset up to which
    /// the list is complete.
    fn stored_ranges(
        &self,
        file: Ino,
        within: Range<u64>,
        at: Option<u16>,
    ) -> io::Result<(Vec<Range<u64>>, u64)>;
    /// Frees the storage of ranges that the copy of a file has. Bytes that were written after the extents were settled
    /// stay. Returns the number of bytes freed.
    fn evict_ranges(
        &self,
        file: &EvictedFile,
        settled: SettledExtents,
        ranges: &[Range<u64>],
    ) -> io::Result<u64>;
    /// Forgets the copy of a file, unless the file needs it.
    fn forget_copy(&self, file: Ino) -> io::Result<()>;
    /// The absolute path of a path below the target.
    fn absolute(&self, below: &Path) -> Vec<u8>;
    /// The path of a copy below the target; `None`: it is elsewhere.
    fn path_below(&self, copy: &TargetCopy) -> Option<PathBuf>;
}

/// A tree of files. Errors are those of the system calls of the same names; ENOENT if no node has the name, unless noted
/// otherwise.
pub trait FileTree: Sync + Debug {
    /// An open file; closed when it is dropped.
    type File: Send + Sync + Debug;

    /// The present time of the clock that stamps the nodes, since 1970.
    fn now(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default()
    }
    /// True if a call for this path hangs.
    fn hangs_at(&self, _path: &Path) -> bool {
        false
    }
    /// The error of all calls for this path, if it is avoided.
    fn check_avoided(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// The attributes of a node (lstat); `None`: no node has this name.
    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>>;
    /// The names in a directory, without `.` and `..`, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// The extended attributes that users may set.
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;

    /// The directory of the target that a directory of an elevated tree covers. A covering directory was not made by the
    /// job, and its times are not those of the covered one.
    fn cover_of(&self, _path: &Path) -> io::Result<Cover> {
        Ok(Cover::Nothing)
    }
    /// Makes a directory of an elevated tree cover one of the target, with these permission bits, if it covers none yet.
    fn cover(&self, _target: &Path, _path: &Path, _mode: u32) -> io::Result<()> {
        Ok(())
    }
    /// Notes the permission bits that the covered directory has been given.
    fn note_covered_mode(&self, _path: &Path, _mode: u32) -> io::Result<()> {
        Ok(())
    }
    /// The names that were removed from an elevated tree, and that its target may still have.
    fn whiteouts(&self) -> io::Result<Vec<Whiteout>> {
        Ok(Vec::new())
    }
    /// The time at which a name was removed from an elevated tree; `None`: it is not known.
    fn removed_at(&self, _whiteout: &Whiteout) -> io::Result<Option<Time>> {
        Ok(None)
    }
    /// Forgets the whiteout of a name that the target does not have any more.
    fn forget(&self, _whiteout: &Whiteout) -> io::Result<()> {
        Ok(())
    }

    /// The rank of the server that has most of the bytes of a range of a file; `None`: it is not known.
    fn holder_of(&self, _path: &Path, _range: Range<u64>) -> io::Result<Option<u16>> {
        Ok(None)
    }

    /// The evicted files; `None`: it is not an elevated tree.
    fn evictions(&self) -> Option<&dyn EvictionTable> {
        None
    }

    /// The changes of names by programs since `known`, which is updated: for each server, the last changes that the caller
    /// knows. A tree that does not see its programs reports none.
    fn name_history(&self, _known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        Ok(TreeHistory::default())
    }

    /// The state of the writing of a regular file. If a tree does not know its writers, each file counts as written.
    fn write_state(&self, _path: &Path) -> io::Result<WriteState> {
        Ok(WriteState::Written)
    }
    /// Makes a file read-only for good, so that its bytes can be read from here; EBUSY: a program has it
    /// open for writing.
    fn laminate(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Opens a regular file for reading.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// The attributes of an open file.
    fn stat(&self, file: &Self::File) -> io::Result<Stat>;
    /// Reads up to `bytes.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// The first range in `within` that may have data; `None`: all of it is a hole.
    fn next_data(&self, file: &Self::File, within: Range<u64>) -> io::Result<Option<Range<u64>>>;

    /// Makes an empty file that only this process writes, with these permission bits as far as the file system and the
    /// umask allow. A file that a dead process left under this name is removed; EBUSY: another living process writes it.
    fn create_part(&self, path: &Path, mode: u32) -> io::Result<Self::File>;
    /// Opens a part that another process has made, for writing. EOPNOTSUPP: the tree has one writing process only.
    fn open_part(&self, _path: &Path) -> io::Result<Self::File> {
        Err(io_error(Errno::OPNOTSUPP))
    }
    /// Locks a part that this process has opened, like one that it has made: the lock says that the process lives. A hint.
    fn lock_part(&self, _file: &Self::File) {}
    /// The stripes of a part.
    fn stripe_of(&self, _part: &Self::File) -> StripeSize {
        StripeSize::default()
    }
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Sets the size.
    fn set_size(&self, file: &Self::File, size: u64) -> io::Result<()>;
    /// Starts to write the file to storage, without waiting for it. A hint.
    fn begin_sync(&self, file: &Self::File);
    /// Returns when the file is on storage (fsync). The next read comes from storage, if the system allows that.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Sets the permission bits of an open file (fchmod), even if another file has its name meanwhile.
    fn set_mode(&self, file: &Self::File, mode: u32) -> io::Result<()>;
    /// Gives an open file its group (fchown), if the group is kept ([`KeptAttributes::gid`]) and this user may do so. The
    /// call may clear set-id bits.
    fn set_group(&self, _file: &Self::File, _gid: u32) -> io::Result<()> {
        Ok(())
    }
    /// Sets the times of an open file (futimens).
    fn set_times(&self, file: &Self::File, kept: &KeptAttributes) -> io::Result<()>;
    /// Sets the attributes of a directory or a file, or the times of a symbolic link.
    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()>;
    /// Removes an extended attribute. ENODATA: there is none.
    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()>;
    /// Makes a directory with these permission bits.
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes a symbolic link.
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()>;
    /// Gives a file a further name.
    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()>;
    /// Renames a node. `replace`: a node with the new name is replaced; otherwise EEXIST.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()>;
    /// Exchanges the names of two nodes. EOPNOTSUPP, ENOSYS or EINVAL: the tree has no such call.
    fn exchange(&self, _one: &Path, _other: &Path) -> io::Result<()> {
        Err(io_error(Errno::OPNOTSUPP))
    }
    /// Removes a name of a node that is not a directory.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory; ENOTEMPTY or EEXIST if it is not.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Returns when the names of a directory are on storage.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}
