//! The identity of a file's content: a move can refuse to copy any other content.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_client::types::{Stat, Time};

use crate::error::MoveError;

/// The attributes that tell two contents of a file apart. The ctime is not among them: an analysis may keep its result in
/// an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentStamp {
    ino: u64,
    size: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
}

impl ContentStamp {
    /// `mtime`: the last change of the contents.
    pub fn new(ino: u64, size: u64, mtime: Time) -> ContentStamp {
        ContentStamp {
            ino,
            size,
            mtime: (mtime.sec, mtime.nsec),
        }
    }
}

impl From<&Stat> for ContentStamp {
    fn from(stat: &Stat) -> ContentStamp {
        ContentStamp::new(stat.ino, stat.size, stat.mtime)
    }
}

/// Fails if the content of a file is not the one that was analysed.
pub(crate) fn refuse_other_content(
    content: Option<ContentStamp>,
    source: &Path,
    found: &Stat,
) -> Result<(), MoveError> {
    match content.is_none_or(|content| content == ContentStamp::from(found)) {
        true => Ok(()),
        false => Err(MoveError::NotAnalysed(source.to_owned())),
    }
}
