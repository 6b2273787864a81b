//! The one place where weir's errors become errno values.

use rustix::io::Errno;
use weir_core::proto::{FsError, OperationObject};

/// A file that was evicted is to be written. No program sees it: its bytes are brought back first.
pub const EVICTED: Errno = Errno::TXTBSY;

/// The errno that POSIX programs expect if an operation fails with an error of the server.
///
/// An inode that is gone is never ESTALE. A named one counts as not found, as if it had been named
/// later (ENOENT); an open one lives, unless its server was started anew without it (EIO).
pub fn errno_of(object: OperationObject, error: FsError) -> Errno {
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
        FsError::Stale if object == OperationObject::Named => Errno::NOENT,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Evicted => EVICTED,
        FsError::NotPermitted => Errno::PERM,
        FsError::NoSpace => Errno::NOSPC,
        FsError::TooBig => Errno::FBIG,
        FsError::WouldBlock => Errno::AGAIN,
        FsError::Deadlock => Errno::DEADLK,
        FsError::NoLocks => Errno::NOLCK,
        FsError::Stale
        | FsError::Io
        | FsError::Unreachable
        | FsError::NewSession
        | FsError::Elsewhere => Errno::IO,
        FsError::NotSupported => Errno::OPNOTSUPP,
        FsError::Malformed => Errno::PROTO,
        FsError::Stopped => Errno::SHUTDOWN,
        FsError::NoAttribute => Errno::NODATA,
    }
}

/// The result of a look at an open file, which cannot be gone; see [`errno_of`].
pub fn of_open<T>(result: Result<T, Errno>) -> Result<T, Errno> {
    result.map_err(|error| match error {
        Errno::NOENT => Errno::IO,
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (FsError::Stale, 2),
            (FsError::NewSession, 5),
            (FsError::ReadOnly, 30),
            (FsError::Evicted, 26),
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
            (FsError::NoAttribute, 61),
        ];
        for (error, number) in all {
            assert_eq!(
                errno_of(OperationObject::Named, error).raw_os_error(),
                number,
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_gone_is_never_estale() {
        assert_eq!(
            errno_of(OperationObject::Named, FsError::Stale),
            Errno::NOENT
        );
        assert_eq!(errno_of(OperationObject::Open, FsError::Stale), Errno::IO);
        assert_eq!(of_open::<()>(Err(Errno::NOENT)), Err(Errno::IO));
        assert_eq!(of_open::<()>(Err(Errno::SHUTDOWN)), Err(Errno::SHUTDOWN));
    }
}
