//! The errors of operations, as they travel; `weir-client` maps each to an errno.

use serde::{Deserialize, Serialize};

/// The reasons for refusing an operation. Mapped to errno in `weir-client`, one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum FsError {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("file exists")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsADirectory,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// ENAMETOOLONG.
    #[error("file name too long")]
    NameTooLong,
    /// EINVAL.
    #[error("invalid argument")]
    Invalid,
    /// EINVAL: a directory moved below itself.
    #[error("a directory cannot be moved below itself")]
    WouldLoop,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// EBUSY: the root.
    #[error("device or resource busy")]
    Busy,
    /// ENOENT for a file that was named, EIO for an open one: the inode is gone.
    #[error("stale inode")]
    Stale,
    /// EROFS: the file is laminated.
    #[error("the file is laminated: read-only for good")]
    ReadOnly,
    /// ETXTBSY, which no program sees: the file was evicted, and a client brings its bytes back first.
    #[error("the file was evicted")]
    Evicted,
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// ENOSPC: neither memory nor file tier has room, or a table is full.
    #[error("no space left in the instance")]
    NoSpace,
    /// EFBIG.
    #[error("file too large")]
    TooBig,
    /// EAGAIN: a lock is held by another.
    #[error("the lock is held by another")]
    WouldBlock,
    /// EDEADLK.
    #[error("the lock would deadlock")]
    Deadlock,
    /// ENOLCK.
    #[error("no locks available")]
    NoLocks,
    /// EIO: storage failed.
    #[error("input/output error")]
    Io,
    /// EOPNOTSUPP: weir does not support it.
    #[error("operation not supported")]
    NotSupported,
    /// EPROTO: the request could not be understood.
    #[error("malformed request")]
    Malformed,
    /// EIO: a server of the instance does not answer.
    #[error("a server of the instance does not answer")]
    Unreachable,
    /// Between servers: the asker's session has ended, and nothing was done.
    #[error("the session between two servers has ended")]
    NewSession,
    /// ESHUTDOWN: the instance has stopped.
    #[error("the instance has stopped")]
    Stopped,
    /// Between servers: the asked server is not the home of the entry, and nothing was done.
    #[error("the entry's home is another server")]
    Elsewhere,
    /// ENODATA: there is no such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
}
