//! Plain arguments and results of calls, independent of any libc's layout.

use rustix::io::Errno;

/// The result of a call; `None`: it does not concern weir, and the kernel shall do it.
pub type Outcome<T> = Option<Result<T, Errno>>;

/// A point in time, as `struct timespec`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// And nanoseconds, or, for setting a time, [`UTIME_NOW`] or [`UTIME_OMIT`].
    pub nsec: i64,
}

impl Time {
    /// The point in time at these ns since 1970.
    pub const fn from_epoch_ns(ns: i64) -> Time {
        Time {
            sec: ns.div_euclid(1_000_000_000),
            nsec: ns.rem_euclid(1_000_000_000),
        }
    }

    /// In ns since 1970, as far as they go.
    pub const fn since_epoch_ns(self) -> i64 {
        self.sec
            .saturating_mul(1_000_000_000)
            .saturating_add(self.nsec)
    }
}

/// "Now", in [`Time::nsec`].
pub const UTIME_NOW: i64 = 0x3fff_ffff;
/// "Leave as it is", in [`Time::nsec`].
pub const UTIME_OMIT: i64 = 0x3fff_fffe;

/// The result of stat(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Device; the same for all files of an instance.
    pub dev: u64,
    /// The mount; `None`: not looked up.
    pub mount: Option<u64>,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size, bytes.
    pub size: u64,
    /// The preferred unit of I/O, bytes.
    pub blksize: u32,
    /// Stored units of 512 bytes.
    pub blocks: u64,
    /// Last access (as far as it is kept: reading does not change it).
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Time of creation; `None`: not known.
    pub btime: Option<Time>,
}

/// The result of statfs(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// The type's magic number.
    pub kind: u32,
    /// The unit of `blocks` and its like, bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks, also for this user.
    pub bfree: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Identifies the instance.
    pub fsid: u64,
    /// The longest name, bytes.
    pub namelen: u32,
}

/// `struct flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockRange {
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: i16,
    /// SEEK_SET, SEEK_CUR or SEEK_END.
    pub whence: i16,
    /// First byte.
    pub start: i64,
    /// Bytes; 0: to the end; negative: the bytes before `start`.
    pub len: i64,
    /// The process that holds it, for F_GETLK.
    pub pid: i32,
}
