//! Conversions between weir's values and those of the kernel's protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use weir_client::process::mounted::Ino;
use weir_client::types::{Stat, Time, UTIME_NOW};

const S_IFMT: u32 = 0o170_000;

/// Converts an inode number. Both sides count the root as 1.
pub fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// Converts an error number.
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// The type of a file, from the bits of `st_mode`.
pub fn kind(mode: u32) -> FileType {
    match mode & S_IFMT {
        0o040_000 => FileType::Directory,
        0o120_000 => FileType::Symlink,
        0o010_000 => FileType::NamedPipe,
        0o140_000 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// Converts attributes.
pub fn attributes(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime),
        mtime: system_time(stat.mtime),
        ctime: system_time(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(stat.mode),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: 0,
        blksize: stat.blksize,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nsec.unsigned_abs());
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    match time.sec < 0 {
        false => UNIX_EPOCH + seconds + nanoseconds,
        true => UNIX_EPOCH - seconds + nanoseconds,
    }
}

/// Converts a time set by a program.
pub fn time(time: TimeOrNow) -> Time {
    let at = match time {
        TimeOrNow::Now => {
            return Time {
                sec: 0,
                nsec: UTIME_NOW,
            }
        }
        TimeOrNow::SpecificTime(at) => at,
    };
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nsec: i64::from(since.subsec_nanos()),
        },
        // A time before 1970: the protocol's crate subtracts its nanoseconds, which count forward.
        Err(before) => {
            let before = before.duration();
            Time {
                sec: i64::try_from(before.as_secs()).map_or(i64::MIN, |whole| -whole),
                nsec: i64::from(before.subsec_nanos()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that the protocol's crate makes of what the kernel sends.
    fn sent(at: Time) -> SystemTime {
        let nsec = u32::try_from(at.nsec).unwrap();
        match u64::try_from(at.sec) {
            Ok(sec) => UNIX_EPOCH + Duration::new(sec, nsec),
            Err(_) => UNIX_EPOCH - Duration::new(at.sec.unsigned_abs(), nsec),
        }
    }

    #[test]
    fn times_survive_both_ways() {
        for (sec, nsec) in [(0, 0), (1, 5), (-1, 5), (-1, 0), (-7, 999_999_999)] {
            let wanted = Time { sec, nsec };
            assert_eq!(time(TimeOrNow::SpecificTime(sent(wanted))), wanted);
            let before = UNIX_EPOCH.duration_since(system_time(wanted));
            if let Ok(before) = before.map(|before| before.as_nanos().cast_signed()) {
                assert_eq!(-before, i128::from(sec) * 1_000_000_000 + i128::from(nsec));
            }
        }
        assert_eq!(time(TimeOrNow::Now).nsec, UTIME_NOW);
    }

    #[test]
    fn kinds_are_told_by_the_mode() {
        assert_eq!(kind(0o100_644), FileType::RegularFile);
        assert_eq!(kind(0o040_755), FileType::Directory);
        assert_eq!(kind(0o120_777), FileType::Symlink);
    }
}
