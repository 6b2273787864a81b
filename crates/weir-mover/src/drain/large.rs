//! A large file that all movers copy together, each a piece at a time.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_client::process::mounted::WriteState;
use weir_client::types::Stat;

use super::team::DrainTeam;
use crate::content::refuse_other_content;
use crate::copy::{likeness, FileCopy, Likeness};
use crate::error::MoveError;
use crate::mover::{FileMover, FileToMove, MovedSource};
use crate::piece::FilePiece;
use crate::publish::check_replaceable;
use crate::queue::TaskQueue;
use crate::side::MoveSide;
use crate::stage::StageProgress;
use crate::tree::FileTree;

/// The bytes of a piece, rounded up to whole stripes.
const PIECE_BYTES: u64 = 128 << 20;

/// The pieces, and the first failure.
struct PieceQueue {
    pieces: TaskQueue<Range<u64>>,
    failed: Mutex<Option<MoveError>>,
}

impl PieceQueue {
    fn failed(&self) -> MutexGuard<'_, Option<MoveError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: MoveError) {
        self.failed().get_or_insert(error);
    }

    /// Copies pieces in a worker of this rank until all are copied, or one has failed.
    fn work(&self, rank: u16, mut copy: impl FnMut(Range<u64>) -> Result<(), Range<u64>>) {
        self.pieces.work(rank, |piece| {
            let has_failed = self.failed().is_some();
            match has_failed {
                true => Ok(()),
                false => copy(piece),
            }
        });
    }
}

/// Moves a large file by `threads` of this process and by all movers.
pub(super) fn move_large<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    team: &DrainTeam,
    file: &FileToMove,
    threads: usize,
    progress: &StageProgress,
) -> Result<MovedSource, MoveError> {
    let looking = |path: &Path| MoveError::io("looking for", path);
    let (source, target) = (&*file.pair.source, &*file.pair.target);
    let there = to.tree.look_up(target).map_err(looking(target))?;
    let found = from.tree.look_up(source).map_err(looking(source))?;
    if let (Some(stat), Some(there)) = (&found, &there) {
        // If a doubt remains, the bytes are not compared but copied again.
        if likeness(stat, there) == Likeness::Same {
            refuse_other_content(file.content, source, stat)?;
            return Ok(MovedSource::Found(*stat));
        }
    }
    check_replaceable(target, there.as_ref(), |there| file.replaces.allows(there))?;
    let copy = FileCopy::begin(from.tree, to.tree, source, target, there)?;
    let stat = *copy.copied();
    refuse_other_content(file.content, source, &stat)?;
    progress.files_found.fetch_add(1, Ordering::Relaxed);
    progress.bytes_found.fetch_add(stat.size, Ordering::Relaxed);
    let piece_bytes = copy.stripe().round_up(PIECE_BYTES);
    let begins = (0..stat.size).step_by(usize::try_from(piece_bytes).expect("64 bits"));
    let pieces = begins.map(|begin| {
        let piece = begin..(begin + piece_bytes).min(stat.size);
        let holder = from.tree.holder_of(source, piece.clone());
        (holder.ok().flatten().unwrap_or(team.rank), piece)
    });
    let queue = PieceQueue {
        pieces: team.queue_tasks(pieces),
        failed: Mutex::default(),
    };
    let copy_here = || {
        let mut buffer = Vec::new();
        queue.work(team.rank, |piece| {
            let tell = |bytes| {
                progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
                !progress.stop.load(Ordering::Relaxed) && queue.failed().is_none()
            };
            if let Err(error) = copy.copy(piece, &mut buffer, &tell) {
                queue.fail(error);
            }
            Ok(())
        });
    };
    let copy_elsewhere = |mover: &dyn FileMover| {
        share_pieces(mover, &queue, source, &stat, copy.part(), progress);
    };
    team.work(&queue.pieces, threads, copy_elsewhere, copy_here);
    if let Some(error) = queue.failed().take() {
        return Err(error);
    }
    publish_closed(from, to, file, copy, progress)?;
    Ok(MovedSource::Copied(stat))
}

/// Gives the copy of a large file its name, unless a program has opened the file for writing, and syncs the name.
pub(super) fn publish_closed<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    file: &FileToMove,
    copy: FileCopy<'_, S, T>,
    progress: &StageProgress,
) -> Result<(), MoveError> {
    let (source, target) = (&*file.pair.source, &*file.pair.target);
    // The program may have opened it before the copy began: then the copy may have a part of a version.
    if matches!(from.tree.write_state(source), Ok(WriteState::Open)) {
        return Err(MoveError::Open(source.to_owned()));
    }
    copy.publish(false, &mut Vec::new())?;
    let dir = target.parent().unwrap_or(&to.path);
    let synced = to.tree.sync_directory(dir);
    synced.map_err(MoveError::io("syncing", dir))?;
    progress.files_done.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Gives pieces to a mover until none is left, or the mover is lost.
fn share_pieces(
    mover: &dyn FileMover,
    queue: &PieceQueue,
    source: &Path,
    stat: &Stat,
    part: &Path,
    progress: &StageProgress,
) {
    queue.work(mover.rank(), |piece| {
        match mover.move_piece(&FilePiece::new(source, stat, part, piece.clone())) {
            Ok(Ok(())) => {
                let bytes = piece.end - piece.start;
                progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
            }
            Ok(Err(failure)) => queue.fail(MoveError::Elsewhere(failure.reason)),
            Err(_) => return Err(piece),
        }
        if progress.stop.load(Ordering::Relaxed) {
            queue.fail(MoveError::Stopped);
        }
        Ok(())
    });
}
