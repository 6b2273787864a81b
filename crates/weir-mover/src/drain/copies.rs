//! The copies of evicted files: how a node of the target is known as one, and hidden names for them.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{ContentVersion, Ino};
use weir_client::types::Stat;

use super::snapshot::FileVersion;
use crate::copy::is_kept_time;
use crate::publish::part_of;
use crate::tree::{kind_of, EvictionTable, NodeKind};

/// An evicted file, and its copy.
pub(super) struct DisplacedFile {
    pub ino: Ino,
    /// The path of the copy below the target.
    pub at: PathBuf,
    /// How it is known.
    pub identity: CopyIdentity,
    /// The names of the file.
    pub names: Vec<PathBuf>,
    /// Its copy was to make way for another one.
    pub is_aside: bool,
}

/// The hidden name of a base of a file in a directory. No two instances choose the same.
pub(super) fn hidden_name(dir: &Path, ino: Ino, is_ahead: bool) -> PathBuf {
    let unique = RandomState::new().hash_one(ino.0);
    let suffix = if is_ahead { "-ahead" } else { "" };
    part_of(&dir.join(OsString::from(format!("{:x}-{unique:x}{suffix}", ino.0))))
}

/// The copy that a node of the target is.
pub(super) fn copy_at(table: &dyn EvictionTable, path: &Path, there: &Stat) -> TargetCopy {
    TargetCopy {
        path: table.absolute(path),
        identity: CopyIdentity::Content {
            size: there.size,
            mtime_ns: there.mtime.since_epoch_ns(),
        },
    }
}

/// True if a node of the target is what a move of this version makes.
pub(super) fn is_copy(version: &FileVersion, there: &Stat) -> bool {
    kind_of(there) == NodeKind::File
        && there.size == version.size
        && is_kept_time(version.mtime, there.mtime)
}

pub(super) fn content_of(version: &FileVersion) -> ContentVersion {
    ContentVersion {
        size: version.size,
        mtime_ns: version.mtime.since_epoch_ns(),
        ctime_ns: version.ctime.since_epoch_ns(),
    }
}
