//! Ranges that go ahead: the drain copies ranges of files that programs still write, when the instance has little room.
//!
//! Such a file is not moved before it is closed, and it may be larger than the instance. So the drain copies written ranges
//! of it into a hidden file of the target, its base (`parts`), syncs this, and frees their storage; programs read these
//! ranges from the base. Bytes that a program writes over a range while it is copied stay in the instance. Once the file is
//! closed, the drain writes the rest to the base, and gives the base the file's name as a second one: no byte is written
//! twice.
//!
//! The base also keeps its hidden name until the link of the file names the other one, so that programs find it meanwhile.
//! From then on nothing is written to it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{CopyUse, EvictedFile, Ino, WriteState};
use weir_client::types::Stat;

use super::ahead_ranges::{choose_ranges, gaps, RangeSearch, WantedRoom};
use super::copies::{hidden_name, EvictedCopies, FileBase};
use super::copy_links::CopyLinks;
use super::large::publish_closed;
use super::round_state::RoundState;
use super::snapshot::SeenNode;
use super::{Drain, EvictedBytes};
use crate::content::refuse_other_content;
use crate::copy::{FileCopy, KnownPart, OpenCopy};
use crate::error::MoveError;
use crate::publish::check_replaceable;
use crate::side::MoveSide;
use crate::stage::StageProgress;
use crate::stripe::StripeSize;
use crate::tree::{FileTree, NodeKind, PART_MODE};

/// The bytes that a thread copies at a time.
const PIECE_BYTES: u64 = 32 << 20;

/// The result of copying ranges ahead.
#[derive(Debug, Default)]
pub struct AheadResult {
    /// The storage that was freed, and the number of its files.
    pub evicted: EvictedBytes,
    /// Files whose ranges could not be copied, by the path below the source, with the reasons.
    pub failed: HashMap<PathBuf, String>,
}

/// A base into which ranges of a file are written.
struct OpenBase<'d, S: FileTree, T: FileTree> {
    input: &'d S::File,
    output: Arc<T::File>,
    /// The stripes of the base.
    stripe: StripeSize,
    file: EvictedFile,
    source: PathBuf,
    target: PathBuf,
}

/// Copies ranges of files into their bases, and maintains the table of bases.
struct AheadMover<'d, 't, S: FileTree, T: FileTree> {
    from: &'d MoveSide<'t, S>,
    links: CopyLinks<'d, 't, T>,
    copies: &'d mut EvictedCopies<T::File>,
    progress: &'d StageProgress,
}

impl<S: FileTree, T: FileTree> AheadMover<'_, '_, S, T> {
    /// Copies ranges of a file, and frees their storage; returns the bytes.
    fn move_file(
        &mut self,
        path: &Path,
        ino: Ino,
        wanted: WantedRoom,
        threads: usize,
    ) -> Result<u64, MoveError> {
        let table = self.links.table;
        let source = self.from.join(path);
        let reading = || MoveError::io("reading", &source);
        let input = self.from.tree.open(&source).map_err(reading())?;
        let mut base: Option<OpenBase<'_, S, T>> = None;
        let mut freed = 0;
        while freed < wanted.bytes {
            let found = self.from.tree.stat(&input).map_err(reading())?;
            if found.ino != ino.0 {
                break;
            }
            let settled = table.settle_extents(ino).map_err(reading())?;
            let begun = self.copies.end_of_last_range(ino.0);
            let search = RangeSearch {
                begun: begun.min(found.size),
                size: found.size,
                room: WantedRoom {
                    bytes: wanted.bytes - freed,
                    ..wanted
                },
            };
            let open = base.as_ref().map(|open| open.stripe);
            let stripe = open.unwrap_or_else(|| self.stripe_of_base(ino));
            let ranges = choose_ranges(table, ino, search, stripe);
            let (Some(settled), ranges) = (settled, ranges.map_err(reading())?) else {
                break;
            };
            // The next search begins behind the last range.
            let end = ranges.last().map_or(0, |last| last.end);
            self.copies.note_gone_ahead(ino.0, end);
            if ranges.is_empty() {
                break;
            }
            let open = match base.take() {
                Some(open) => open,
                None => self.open_base(path, ino, &input, found.size)?,
            };
            let open = base.insert(open);
            self.copy_ranges(open, &ranges, threads)?;
            let writing = || MoveError::io("writing", &open.target);
            self.links.to.tree.sync(&open.output).map_err(writing())?;
            let evicted = table.evict_ranges(&open.file, settled, &ranges);
            let evicted = evicted.map_err(MoveError::io("evicting", &source))?;
            if evicted == 0 {
                break;
            }
            freed += evicted;
        }
        Ok(freed)
    }

    /// Opens the base of a file, or creates it.
    fn open_base<'d>(
        &mut self,
        path: &Path,
        ino: Ino,
        input: &'d S::File,
        size: u64,
    ) -> Result<OpenBase<'d, S, T>, MoveError> {
        let source = self.from.join(path);
        let table = self.links.table;
        let before = self.copies.find_base(ino.0).cloned();
        let known = before
            .clone()
            .filter(|base| base.is_writable(self.links.to));
        // A program may have begun to write over its evicted bytes since the round looked for such files.
        let used = table.copy_use(ino);
        let used = used.map_err(MoveError::io("looking for the copy of", &source))?;
        if before.is_none() && used != CopyUse::None {
            return Err(MoveError::SourceChanged(source));
        }
        let dir = path.parent().unwrap_or(Path::new(""));
        let at = match &known {
            Some(base) => base.at.clone(),
            None => hidden_name(dir, ino, true),
        };
        let target = self.links.to.join(&at);
        let opening = || MoveError::io("creating", &target);
        let kept = self
            .copies
            .find_open_base(ino.0)
            .filter(|_| known.is_some());
        let output = match (&known, kept) {
            (_, Some(kept)) => Arc::clone(kept),
            (Some(_), None) => {
                let output = self.links.to.tree.open_part(&target).map_err(opening())?;
                self.links.to.tree.lock_part(&output);
                Arc::new(output)
            }
            (None, None) => Arc::new(
                self.links
                    .to
                    .tree
                    .create_part(&target, PART_MODE)
                    .map_err(opening())?,
            ),
        };
        let inode = self.links.to.tree.stat(&output).map_err(opening())?.ino;
        if known.is_some_and(|base| base.inode != Some(inode)) {
            return Err(MoveError::TargetChanged(target));
        }
        // It is locked as long as it is open, so that nobody takes it for a dead process's.
        self.copies.keep_open(ino.0, Arc::clone(&output));
        let size = before.as_ref().map(|_| size);
        let copy = TargetCopy {
            path: table.absolute(&at),
            identity: CopyIdentity::Inode(inode),
        };
        let file = EvictedFile { ino, copy };
        let stripe = self.links.to.tree.stripe_of(&output);
        let open = OpenBase {
            input,
            output,
            stripe,
            file,
            source,
            target,
        };
        if before.as_ref().is_some_and(|base| base.at == at) {
            return Ok(open);
        }
        let begun = self.begin_base(&open, size, &at);
        if let Err(error) = begun {
            self.copies.close_base(ino.0);
            // The base may be noted despite the error: then it stays.
            let known = table.copy_of(ino);
            if known.is_ok_and(|known| known.as_ref() != Some(&open.file.copy)) {
                let _ = self.links.to.tree.remove(&open.target);
            }
            return Err(error);
        }
        let inode = Some(inode);
        self.copies.add_base(ino.0, FileBase { at, inode });
        if let Some(before) = before {
            self.copies.forget_hidden(&before.at);
            self.links.remove_base(&before.at)?;
        }
        Ok(open)
    }

    /// Copies this many bytes of the old base, if there is one, into a new base, and notes the new one.
    fn begin_base(
        &self,
        open: &OpenBase<'_, S, T>,
        size: Option<u64>,
        at: &Path,
    ) -> Result<(), MoveError> {
        if let Some(size) = size {
            self.copy_base(open, size)?;
        }
        self.links.note_base(open.file.ino, at).map(drop)
    }

    /// Copies the content of a file's base into another one.
    fn copy_base(&self, open: &OpenBase<'_, S, T>, size: u64) -> Result<(), MoveError> {
        let mut at = 0;
        while at < size {
            let stored = self
                .links
                .table
                .stored_ranges(open.file.ino, at..size, None);
            let (stored, end) = stored.map_err(MoveError::io("reading", &open.source))?;
            let between = gaps(&stored, at..end);
            self.copy_ranges(open, &between, 1)?;
            at = end;
        }
        let writing = MoveError::io("writing", &open.target);
        self.links.to.tree.sync(&open.output).map_err(writing)
    }

    /// The stripes of the open base of a file; if it has none yet, the default ones.
    fn stripe_of_base(&self, ino: Ino) -> StripeSize {
        let base = self.copies.find_open_base(ino.0);
        base.map_or_else(StripeSize::default, |base| {
            self.links.to.tree.stripe_of(base)
        })
    }

    fn copy_ranges(
        &self,
        open: &OpenBase<'_, S, T>,
        ranges: &[Range<u64>],
        threads: usize,
    ) -> Result<(), MoveError> {
        let copy = OpenCopy {
            trees: (self.from.tree, self.links.to.tree),
            input: open.input,
            output: &open.output,
            source: &open.source,
            part: &open.target,
            stripe: open.stripe,
        };
        copy_by_threads(&copy, ranges, threads, self.progress)
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Copies ranges of files that programs have open for writing, the largest first, and frees their storage, until
    /// this many bytes are free at the server of this rank.
    pub fn evict_open_files(
        &mut self,
        rank: u16,
        bytes: u64,
        threads: usize,
        progress: &StageProgress,
    ) -> AheadResult {
        let mut result = AheadResult::default();
        if self.from.tree.evictions().is_none() {
            return result;
        }
        let snapshot = Arc::clone(&self.seen);
        let files = snapshot.of_kind(NodeKind::File);
        let mut chosen: Vec<(&PathBuf, &SeenNode)> = files
            .filter(|(path, node)| {
                !node.has_links
                    && !self.target.relocated.is_relocated(path)
                    && !self.choice.is_kept(path)
                    && !self.target.copies.is_evicted(node.version.ino)
                    && !self.target.moved.has_version(path, node)
            })
            .collect();
        chosen.sort_by_key(|(path, node)| (std::cmp::Reverse(node.version.size), *path));
        for (path, node) in chosen {
            if result.evicted.bytes >= bytes || progress.stop.load(Ordering::Relaxed) {
                break;
            }
            let source = self.from.join(path);
            if !matches!(self.from.tree.write_state(&source), Ok(WriteState::Open)) {
                continue;
            }
            let wanted = WantedRoom {
                rank,
                bytes: bytes - result.evicted.bytes,
            };
            let is_first = !self.target.copies.has_base(node.version.ino);
            let mut mover = AheadMover {
                from: &self.from,
                links: CopyLinks::find(&self.from, &self.to).expect("it has evictions"),
                copies: &mut self.target.copies,
                progress,
            };
            match mover.move_file(path, Ino(node.version.ino), wanted, threads) {
                Ok(freed) => {
                    result.evicted.files += u64::from(freed > 0 && is_first);
                    result.evicted.bytes += freed;
                }
                // A program has changed the file, or the drain is stopped.
                Err(MoveError::SourceChanged(_) | MoveError::Stopped) => {}
                Err(_) if matches!(self.from.tree.look_up(&source), Ok(None)) => {}
                // The path of its base is too long to be kept.
                Err(error) if error.is_of_long_name() => {}
                Err(error) => drop(result.failed.insert(path.clone(), error.to_string())),
            }
        }
        result
    }

    /// True if ranges of a file went ahead into a base that is still written to.
    pub(super) fn has_gone_ahead(&self, node: &SeenNode) -> bool {
        let base = self.target.copies.find_base(node.version.ino);
        base.is_some_and(|base| base.is_writable(&self.to))
    }

    /// Moves a file whose ranges went ahead: writes the rest to its base, and gives that the name. EXDEV: the target cannot
    /// give the base a second name.
    pub(super) fn finish_ahead(
        &self,
        round: &RoundState,
        path: &Path,
        node: &SeenNode,
        progress: &StageProgress,
    ) -> Result<Stat, MoveError> {
        let file = self.file_to_move(path, node);
        let (source, target) = (&*file.pair.source, &*file.pair.target);
        let ino = Ino(node.version.ino);
        let looking = MoveError::io("looking for", target);
        let there = self.to.tree.look_up(target).map_err(looking)?;
        check_replaceable(target, there.as_ref(), |there| file.replaces.allows(there))?;
        let base = self.target.copies.find_base(node.version.ino);
        let base = base.expect("ranges of it went ahead");
        let part = KnownPart {
            path: &self.to.join(&base.at),
            inode: base.inode.unwrap_or_default(),
        };
        let copy = FileCopy::resume(self.from.tree, self.to.tree, &file.pair, part, there)?;
        let stat = *copy.copied();
        if stat.ino != node.version.ino {
            return Err(MoveError::SourceChanged(source.to_owned()));
        }
        refuse_other_content(file.content, source, &stat)?;
        progress.files_found.fetch_add(1, Ordering::Relaxed);
        let table = self.from.tree.evictions().expect("it has one");
        let mut at = 0;
        while at < stat.size {
            let stored = table.stored_ranges(ino, at..stat.size, None);
            let (stored, end) = stored.map_err(MoveError::io("reading", source))?;
            copy_by_threads(&copy.open(), &stored, round.threads, progress)?;
            for gap in gaps(&stored, at..end) {
                copy.clear_holes(gap)?;
            }
            at = end;
        }
        publish_closed(&self.from, &self.to, &file, copy, progress)?;
        Ok(stat)
    }
}

/// Copies ranges by several threads.
fn copy_by_threads<S: FileTree, T: FileTree>(
    copy: &OpenCopy<'_, S, T>,
    ranges: &[Range<u64>],
    threads: usize,
    progress: &StageProgress,
) -> Result<(), MoveError> {
    let piece_bytes = copy.stripe.round_up(PIECE_BYTES);
    let pieces = ranges.iter().flat_map(|range| {
        let begins =
            (range.start..range.end).step_by(usize::try_from(piece_bytes).expect("64 bits"));
        begins.map(|begin| begin..(begin + piece_bytes).min(range.end))
    });
    let left = Mutex::new((pieces.collect::<Vec<_>>(), None));
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    progress.bytes_found.fetch_add(total, Ordering::Relaxed);
    // The lock is not held while a piece is copied.
    let next = || lock().0.pop();
    let work = || {
        let mut buffer = Vec::new();
        while let Some(piece) = next() {
            let tell = |bytes| {
                progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
                !progress.stop.load(Ordering::Relaxed)
            };
            if let Err(error) = copy.copy(piece, &mut buffer, &|_, _| (), &tell) {
                let mut state = lock();
                state.0.clear();
                state.1.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let failed = lock().1.take();
    failed.map_or(Ok(()), Err)
}
