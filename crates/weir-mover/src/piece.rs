//! A piece of a large file, which a process on another node copies into the part that the drain has made.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_client::types::Stat;

use crate::content::ContentStamp;
use crate::copy::OpenCopy;
use crate::error::MoveError;
use crate::stage::StageProgress;
use crate::tree::FileTree;

/// A piece, and the version of the file that it is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FilePiece {
    /// The file.
    #[serde(serialize_with = "path_to_bytes", deserialize_with = "path_from_bytes")]
    pub source: PathBuf,
    /// The part.
    #[serde(serialize_with = "path_to_bytes", deserialize_with = "path_from_bytes")]
    pub part: PathBuf,
    /// The first byte.
    pub begin: u64,
    /// The byte behind the last.
    pub end: u64,
    content: ContentStamp,
}

impl FilePiece {
    /// A piece of a file with these attributes.
    pub fn new(source: &Path, stat: &Stat, part: &Path, (begin, end): (u64, u64)) -> FilePiece {
        FilePiece {
            source: source.to_owned(),
            part: part.to_owned(),
            begin,
            end,
            content: ContentStamp::from(stat),
        }
    }
}

/// Copies a piece; it is on storage then. `progress` counts its bytes.
pub fn copy_piece<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    piece: &FilePiece,
    buffer: &mut Vec<u8>,
    progress: &StageProgress,
) -> Result<(), MoveError> {
    let (source, part) = (&*piece.source, &*piece.part);
    let input = from
        .open(source)
        .map_err(MoveError::io("opening", source))?;
    let check = || {
        let now = from
            .stat(&input)
            .map_err(MoveError::io("reading", source))?;
        match piece.content == ContentStamp::from(&now) {
            true => Ok(()),
            false => Err(MoveError::SourceChanged(source.to_owned())),
        }
    };
    check()?;
    let output = to.open_part(part).map_err(MoveError::io("opening", part))?;
    let copy = OpenCopy {
        trees: (from, to),
        input: &input,
        output: &output,
        source,
        part,
    };
    let tell = |bytes| {
        progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        !progress.stop.load(Ordering::Relaxed)
    };
    copy.copy(piece.begin..piece.end, buffer, &|_, _| (), &tell)?;
    // Written elsewhere, the bytes are in this node's cache until then.
    to.sync(&output).map_err(MoveError::io("writing", part))?;
    check()
}

fn path_to_bytes<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(serializer)
}

fn path_from_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let bytes = Vec::<u8>::deserialize(deserializer)?;
    Ok(OsString::from_vec(bytes).into())
}
