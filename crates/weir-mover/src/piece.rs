//! A piece of a large file, which a process on another node copies into the part that a drain or a stage has made.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_client::types::Stat;

use crate::content::ContentStamp;
use crate::copy::{stripe_of, OpenCopy};
use crate::error::MoveError;
use crate::progress::StageProgress;
use crate::stripe::StripeSize;
use crate::tree::FileTree;

/// A piece, and the version of its file.
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
    /// The offset behind the last byte.
    pub end: u64,
    content: ContentStamp,
}

impl FilePiece {
    /// A piece of a file with these attributes.
    pub fn new(source: &Path, stat: &Stat, part: &Path, range: Range<u64>) -> FilePiece {
        FilePiece {
            source: source.to_owned(),
            part: part.to_owned(),
            begin: range.start,
            end: range.end,
            content: ContentStamp::from(stat),
        }
    }
}

/// The options for the copy of a piece.
#[derive(Clone, Copy, Debug)]
pub struct PieceOptions {
    /// The number of threads; 0 is one.
    pub threads: usize,
    /// Read it back and compare.
    pub verify: bool,
}

/// Copies a piece, and syncs it. `progress` counts its bytes.
pub fn copy_piece<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    piece: &FilePiece,
    options: PieceOptions,
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
        stripe: stripe_of(to, &output, piece.end - piece.begin),
    };
    let sums = Mutex::new(Vec::new());
    let note_sum = |range, sum| {
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.push((range, sum));
    };
    let failed = Mutex::new(None);
    let tell = |bytes| {
        progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        !progress.stop.load(Ordering::Relaxed)
    };
    std::thread::scope(|scope| {
        for share in shares(piece.begin..piece.end, copy.stripe, options.threads) {
            let (copy, note_sum, failed, tell) = (&copy, &note_sum, &failed, &tell);
            scope.spawn(move || {
                if let Err(error) = copy.copy(share, &mut Vec::new(), note_sum, tell) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                }
            });
        }
    });
    let failed = failed.into_inner();
    if let Some(error) = failed.unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    // Until then the bytes are only in this node's cache, and another node publishes the file.
    to.sync(&output).map_err(MoveError::io("writing", part))?;
    if options.verify {
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        copy.read_back(&sums, &mut Vec::new())?;
    }
    check()
}

/// Cuts a range into one part for each thread, at boundaries of the target's stripes.
fn shares(whole: Range<u64>, stripe: StripeSize, threads: usize) -> Vec<Range<u64>> {
    let bytes = whole.end.saturating_sub(whole.start);
    let each = bytes.div_ceil(threads.max(1) as u64);
    let each = stripe.round_up(each.max(1));
    let mut shares = Vec::new();
    let mut at = whole.start;
    while at < whole.end {
        let end = at.saturating_add(each).min(whole.end);
        shares.push(at..end);
        at = end;
    }
    shares
}

fn path_to_bytes<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(serializer)
}

fn path_from_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let bytes = Vec::<u8>::deserialize(deserializer)?;
    Ok(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_whole() {
        for (whole, threads, wanted) in [
            (0..0, 4, 0),
            (0..1, 4, 1),
            (0..64 << 20, 4, 4),
            (64 << 20..(128 << 20) + 5, 16, 9),
            (7..9 << 20, 0, 1),
            (u64::MAX - 9..u64::MAX, 3, 1),
        ] {
            let shares = shares(whole.clone(), StripeSize::default(), threads);
            assert_eq!(shares.len(), wanted, "{whole:?} {threads}");
            let ends = shares.iter().map(|share| share.end);
            let begins = shares.iter().map(|share| share.start);
            assert!(begins.skip(1).eq(ends.take(wanted.saturating_sub(1))));
            if let (Some(first), Some(last)) = (shares.first(), shares.last()) {
                assert_eq!(first.start..last.end, whole);
            }
        }
    }
}
