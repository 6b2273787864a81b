//! The content of a file, for those that have seen it and want no other one to be copied.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_client::types::{Stat, Time};

use crate::error::MoveError;

/// The attributes that differ between two contents of a file. The time at which its attributes changed is not
/// among them: an analysis may keep its result in an extended attribute.
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

/// The failure of the copy of a file whose content is not the one that was analysed.
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
