//! A tree of files, as a source or a target of moves: the parallel file system (PFS) or an instance.
//!
//! Paths are those of the tree: absolute, for an instance below its root. Symbolic links on the way
//! are followed, one at the end of a path is not.

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
/// The permission bits that a part has as long as it is written: those with which other processes open it, and find out
/// that it is in use.
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

/// The attributes that a moved node keeps, beside its contents and extended attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptAttributes {
    /// Permission bits, set-id bits and the sticky bit.
    pub mode: u32,
    /// The group. It is kept only if it is not the primary one of the user who moves the node: that one the target's
    /// directory may replace, as for any new file.
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
    /// True if a node that has the group `there` is to get this one.
    pub(crate) fn changes_group(gid: u32, there: u32) -> bool {
        !is_primary_group(gid) && gid != there
    }
}

/// True for the primary group of the user who moves files.
fn is_primary_group(gid: u32) -> bool {
    gid == rustix::process::getegid().as_raw()
}

/// Gives a node a group, unless it is to keep the one that it has (`there`). A user who is not in the group, and a file system
/// without groups, leave that as it is.
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

/// The size from which on a server is asked who has the bytes of a file, and the bytes that it is asked for.
const ASKED_BYTES: u64 = 1 << 20;

/// The rank of the server that has the bytes of a file of an instance, as far as it is worth the question.
pub(crate) fn holder_of_file<S: FileTree>(
    tree: &S,
    path: &Path,
    ino: u64,
    size: u64,
    is_asked: bool,
) -> u16 {
    let is_asked = is_asked && size >= ASKED_BYTES;
    let holder = is_asked.then(|| tree.holder_of(path, 0..ASKED_BYTES));
    // Often where it was made, or where its name is.
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

/// True if a path leads to a directory, symbolic links at its end too. Not if it cannot be seen.
pub(crate) fn leads_to_directory<T: FileTree>(tree: &T, path: &Path) -> bool {
    let inside = tree.look_up(&path.join("."));
    inside.is_ok_and(|found| found.is_some_and(|stat| kind_of(&stat) == NodeKind::Directory))
}

/// The result of a call that may find that it was done before: an error of this kind is none.
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

/// The extended attributes that are kept: `list` is listxattr(2), `get` getxattr(2).
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
            // Removed since they were listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(io_error(error)),
        }
    }
    Ok(found)
}

/// A value of a call that tells its length if the buffer is empty; it may grow in between.
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
    /// For each server the numbers of renames that it has begun, and that have ended: of directories, and from one directory to
    /// another.
    pub counts: Vec<(u64, u64)>,
    /// The inode numbers of the directories that were renamed.
    pub directories: Vec<u64>,
    /// Some of these are not known any more.
    pub is_cut: bool,
    /// The names that files and symbolic links have lost, of each server in the order of their times, if it still knows them.
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
    /// Another inode has the name since then.
    pub is_replaced: bool,
}

/// The evicted files of an elevated tree.
pub trait EvictionTable {
    /// All of them, also those of which a part is evicted, and files that were evicted.
    fn list(&self) -> io::Result<Vec<EvictedFile>>;
    /// True if there are any.
    fn has_evicted(&self) -> bool {
        self.list().map_or(true, |files| !files.is_empty())
    }
    /// The part of a file that its copy alone has; none, if the file is gone.
    fn copy_use(&self, file: Ino) -> io::Result<CopyUse>;
    /// The copy of a file, if there is one.
    fn copy_of(&self, file: Ino) -> io::Result<Option<TargetCopy>>;
    /// Frees the storage of a file whose copy is on the target; false: it is not this version, or in use.
    fn evict(&self, file: &EvictedFile, version: ContentVersion) -> io::Result<bool>;
    /// Notes that the copy of a file has another path.
    fn put_copy(&self, file: &EvictedFile) -> io::Result<()>;
    /// Settles a file: what is written later becomes new extents. `None`: ranges of files cannot be evicted.
    fn settle_extents(&self, file: Ino) -> io::Result<Option<SettledExtents>>;
    /// The ranges in `within` whose bytes the instance has, or the server of a rank, sorted, and the offset up to which
    /// these are all.
    fn stored_ranges(
        &self,
        file: Ino,
        within: Range<u64>,
        at: Option<u16>,
    ) -> io::Result<(Vec<Range<u64>>, u64)>;
    /// Frees the storage of ranges of a file that its copy has, as they were when its extents were settled.
    /// Returns the bytes of those that have not changed since.
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

/// A tree of files. Errors are those of the system calls of the same names; ENOENT where nothing has
/// the name, unless it says otherwise.
pub trait FileTree: Sync + Debug {
    /// An open file; closed when it is dropped.
    type File: Send + Sync + Debug;

    /// The time by which nodes are stamped now, since 1970.
    fn now(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default()
    }
    /// True if a call for this path hangs.
    fn hangs_at(&self, _path: &Path) -> bool {
        false
    }
    /// The attributes of a node (lstat); `None`: nothing has this name.
    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>>;
    /// The names in a directory, without `.` and `..`, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// The extended attributes that users may set.
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;

    /// The directory of the target that a directory of an elevated tree covers. One that covers one was not made
    /// here, and its times are not those of the target's.
    fn cover_of(&self, _path: &Path) -> io::Result<Cover> {
        Ok(Cover::Nothing)
    }
    /// Has a directory of an elevated tree cover one of the target, with these permission bits, if it covers none yet.
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
    /// Forgets a removed name that the target does not have any more.
    fn forget(&self, _whiteout: &Whiteout) -> io::Result<()> {
        Ok(())
    }

    /// The rank of the server that has most of the bytes of a range of a file; `None`: it is not known.
    fn holder_of(&self, _path: &Path, _range: Range<u64>) -> io::Result<Option<u16>> {
        Ok(None)
    }

    /// The evicted files, if it is an elevated tree.
    fn evictions(&self) -> Option<&dyn EvictionTable> {
        None
    }

    /// The changes of names by programs. `known`: for each server the last ones that the caller knows, which is changed. A tree
    /// that does not know its programs has none.
    fn name_history(&self, _known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        Ok(TreeHistory::default())
    }

    /// How far the writing of a regular file is. A tree that does not know its writers takes each file
    /// for written.
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
    /// The first range that may have data in `within`, cut to it; `None`: it is a hole.
    fn next_data(&self, file: &Self::File, within: Range<u64>) -> io::Result<Option<Range<u64>>>;

    /// Makes an empty file that this process alone writes, with these permission bits as far as the file system and the
    /// umask let a new file have them. What a dead process left under this name is removed; EBUSY: another living process
    /// writes it.
    fn create_part(&self, path: &Path, mode: u32) -> io::Result<Self::File>;
    /// Opens a part that another process has made, for writing. EOPNOTSUPP: a tree that one process writes.
    fn open_part(&self, _path: &Path) -> io::Result<Self::File> {
        Err(io_error(Errno::OPNOTSUPP))
    }
    /// Says that this process lives and needs a part that it has opened, as one that it has made. A hint.
    fn lock_part(&self, _file: &Self::File) {}
    /// The stripes of a part.
    fn stripe_of(&self, _part: &Self::File) -> StripeSize {
        StripeSize::default()
    }
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Sets the size.
    fn set_size(&self, file: &Self::File, size: u64) -> io::Result<()>;
    /// Has the system begin to write the file to storage, without waiting for it. A hint.
    fn begin_sync(&self, file: &Self::File);
    /// Returns when the file is on storage (fsync), and has the next read come from there if the
    /// system allows.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Sets the permission bits of an open file (fchmod), whatever has its name meanwhile.
    fn set_mode(&self, file: &Self::File, mode: u32) -> io::Result<()>;
    /// Gives an open file its group (fchown), as far as it is kept ([`KeptAttributes::gid`]) and this user may. Set-id
    /// bits may go.
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
    /// Renames a node. `replace`: over what has the new name; else EEXIST if something has it.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()>;
    /// Has two nodes exchange their names. EOPNOTSUPP, ENOSYS or EINVAL: the tree knows no such step.
    fn exchange(&self, _one: &Path, _other: &Path) -> io::Result<()> {
        Err(io_error(Errno::OPNOTSUPP))
    }
    /// Removes a name that is not a directory's.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory; ENOTEMPTY or EEXIST if it is not.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Returns when the names of a directory are on storage.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}
