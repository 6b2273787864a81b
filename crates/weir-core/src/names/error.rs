//! The reasons for refusing an operation on the namespace.
//!
//! Each variant says which `errno` it is meant for; the mapping itself is the client's.

use super::{NAME_MAX, SYMLINK_MAX};
use crate::types::Ino;
use serde::{Deserialize, Serialize};

/// The reasons for refusing an operation. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum NamesError {
    /// There is no entry of that name, or its directory was removed (ENOENT).
    #[error("no such entry")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("the name is taken")]
    Exists,
    /// A directory is needed (ENOTDIR).
    #[error("not a directory")]
    NotADirectory,
    /// A directory is not allowed here (EISDIR).
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name above [`NAME_MAX`] or a link target above [`SYMLINK_MAX`] bytes (ENAMETOOLONG).
    #[error("longer than {NAME_MAX} (name) or {SYMLINK_MAX} (symbolic link) bytes")]
    NameTooLong,
    /// Empty, `.`, `..`, or with a slash or NUL in it (EINVAL; ENOENT for an empty target).
    #[error("not a name")]
    InvalidName,
    /// The tables are full (ENOSPC).
    #[error("the namespace's tables are full")]
    NoSpace,
    /// The inode has the most links that can be counted (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// A directory would become its own descendant (EINVAL).
    #[error("a directory cannot be moved into itself")]
    WouldLoop,
    /// Directories have no second name (EPERM).
    #[error("a directory cannot be linked")]
    LinkToDirectory,
    /// The operation is not one for this type of file (EINVAL).
    #[error("wrong type of file")]
    WrongType,
    /// The inode number is from an earlier life of its slot, or of no slot (ESTALE).
    #[error("inode {0:?} is gone")]
    Stale(Ino),
    /// The root, or an inode that still has a name, cannot be released (EBUSY).
    #[error("inode {0:?} is in use")]
    Busy(Ino),
}
