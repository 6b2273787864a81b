//! The one place where weir's errors become errno values.

use rustix::io::Errno;
use weir_core::proto::FsError;

/// The errno that POSIX programs expect for an error of the server.
pub const fn errno(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotADirectory => Errno::NOTDIR,
        FsError::IsADirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::Invalid | FsError::WouldLoop => Errno::INVAL,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::Busy => Errno::BUSY,
        FsError::Stale => Errno::STALE,
        FsError::ReadOnly => Errno::ROFS,
        FsError::NotPermitted => Errno::PERM,
        FsError::NoSpace => Errno::NOSPC,
        FsError::TooBig => Errno::FBIG,
        FsError::WouldBlock => Errno::AGAIN,
        FsError::Deadlock => Errno::DEADLK,
        FsError::NoLocks => Errno::NOLCK,
        FsError::Io | FsError::Unreachable | FsError::NewSession => Errno::IO,
        FsError::NotSupported => Errno::OPNOTSUPP,
        FsError::Malformed => Errno::PROTO,
        FsError::Stopped => Errno::SHUTDOWN,
    }
}

/// The errno of an operation. That an inode is gone is ESTALE only for those whose callers look
/// for it: a program gets ENOENT where it named something, as if it had come later, and EIO where
/// it has something open, for that lives unless its server was started anew without it.
pub fn errno_of(op: &str, error: FsError) -> Errno {
    const LOOKING: [&str; 6] = ["find", "get_attr", "passage", "hold", "create", "lease"];
    const NAMING: [&str; 12] = [
        "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "readlink", "readdir", "path_of",
        "set_attr", "truncate", "laminate",
    ];
    match error {
        FsError::Stale if NAMING.contains(&op) => Errno::NOENT,
        FsError::Stale if !LOOKING.contains(&op) => Errno::IO,
        error => errno(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_estale_for_look_ups_alone() {
        assert_eq!(errno_of("get_attr", FsError::Stale), Errno::STALE);
        assert_eq!(errno_of("rename", FsError::Stale), Errno::NOENT);
        assert_eq!(errno_of("locate", FsError::Stale), Errno::IO);
        assert_eq!(errno_of("locate", FsError::NoSpace), Errno::NOSPC);
    }

    #[test]
    fn every_error_has_the_errno_its_text_promises() {
        let all = [
            (FsError::NotFound, 2),
            (FsError::Exists, 17),
            (FsError::NotADirectory, 20),
            (FsError::IsADirectory, 21),
            (FsError::NotEmpty, 39),
            (FsError::NameTooLong, 36),
            (FsError::Invalid, 22),
            (FsError::WouldLoop, 22),
            (FsError::TooManyLinks, 31),
            (FsError::Busy, 16),
            (FsError::Stale, 116),
            (FsError::ReadOnly, 30),
            (FsError::NotPermitted, 1),
            (FsError::NoSpace, 28),
            (FsError::TooBig, 27),
            (FsError::WouldBlock, 11),
            (FsError::Deadlock, 35),
            (FsError::NoLocks, 37),
            (FsError::Io, 5),
            (FsError::Unreachable, 5),
            (FsError::NotSupported, 95),
            (FsError::Malformed, 71),
            (FsError::Stopped, 108),
        ];
        for (error, number) in all {
            assert_eq!(errno(error).raw_os_error(), number, "{error}");
        }
    }
}
