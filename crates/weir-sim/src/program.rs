//! The operations of a client on a few names and files, drawn from its seed. Each is recorded with
//! its result.

use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::placement::SLICE_BYTES;
use weir_core::proto::{self, WriteState};
use weir_core::types::{Ino, Rank};
use weir_fabric::sim::rng::SeededRng;

use crate::bytes::{Block, Read, Span, BLOCK};
use crate::executor::Executor;
use crate::linear::Call;
use crate::locks::{Lock, LockId, LockOwnerKind};
use crate::model::{DirName, NameOp, Outcome};
use crate::plan::{LaminationUse, Plan, Workload};
use crate::process::{Access, File, Process};
use crate::record::Record;

/// Names in a directory that programs use.
const NAMES: u64 = 4;
/// Blocks of a file that they use, in each of a few slices.
const BLOCKS: u64 = 24;
/// Slices of a file that they use.
pub(crate) const SLICES: [u64; 4] = [0, 0, 1, 5];
/// The most files that a program has open.
const OPEN: usize = 3;
/// The time limit of an operation under all faults.
const OPERATION_MAX: Duration = Duration::from_secs(70);

/// A process that carries out operations and records them.
pub struct Actor<'f> {
    /// Its number.
    pub number: usize,
    /// Its node.
    pub rank: Rank,
    /// Its process.
    pub process: Process<'f>,
    /// The record of operations.
    pub record: Rc<Record>,
    /// The clock.
    pub executor: Executor,
    /// Errors that are expected in this run.
    pub tolerates: ToleratedErrors,
}

/// Errors that are not failures of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToleratedErrors {
    /// EIO, and its consequences.
    pub lost: bool,
    /// ENOSPC.
    pub full: bool,
}

/// Returns true for the namespace's own refusals.
fn refuses(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::INVAL
    )
}

/// A file that a program has open.
#[derive(Clone, Copy, Debug)]
pub struct OpenedFile {
    /// The file.
    pub file: File,
    /// The event at which the program began to open it.
    pub since: u64,
    /// True if it is open for writing.
    pub writes: bool,
}

impl Actor<'_> {
    /// Waits.
    pub fn wait<T>(&self, future: impl std::future::Future<Output = T>) -> T {
        self.process.wait(future)
    }

    pub(crate) fn begin(&self) -> (u64, Duration) {
        (self.record.event(), self.executor.now())
    }

    /// Records the result of an operation; returns its time.
    pub(crate) fn record_result<T: std::fmt::Debug>(
        &self,
        began: (u64, Duration),
        what: &impl std::fmt::Debug,
        result: &Result<T, Errno>,
        usual: bool,
    ) -> u64 {
        let (number, now) = (self.number, self.executor.now());
        let rank = self.rank.0;
        self.record.line(
            now,
            format_args!("client {number} at {rank}: {what:?} -> {result:?}"),
        );
        let lost = matches!(result, Err(Errno::IO | Errno::SHUTDOWN));
        self.record.count(lost);
        let borne = match result {
            Ok(_) => true,
            Err(Errno::NOSPC) => self.tolerates.full,
            Err(_) => usual || self.tolerates.lost,
        };
        if !borne {
            let error = result.as_ref().err();
            self.record
                .fault(format!("client {number} at {rank}: {what:?} -> {error:?}"));
        }
        if now.checked_sub(began.1).unwrap() > OPERATION_MAX {
            let took = now.checked_sub(began.1).unwrap();
            self.record
                .fault(format!("client {number} at {rank}: {what:?} took {took:?}"));
        }
        self.record.event()
    }

    /// Notes an operation on names.
    fn named<T: std::fmt::Debug>(
        &self,
        op: &NameOp,
        act: impl FnOnce() -> Result<T, Errno>,
        seen: impl FnOnce(&T) -> Option<(Ino, FileType)>,
    ) -> Result<T, Errno> {
        let began = self.begin();
        let at = {
            // Recorded before it ends: a killed caller may have done it.
            let mut calls = self.record.calls.borrow_mut();
            calls.push(Call {
                client: self.number,
                began: began.0,
                ended: None,
                op: op.clone(),
                outcome: Outcome::Unknown,
            });
            calls.len() - 1
        };
        let result = act();
        // It was made, and removed before it was opened.
        let gone = matches!(result, Err(Errno::CANCELED));
        let usual = gone || matches!(&result, Err(error) if refuses(*error));
        let ended = self.record_result(began, op, &result, usual);
        // A killed server may have changed its tables without committing the change.
        let uncommitted = matches!(op, NameOp::Find(_)) && self.process.is_orphaned();
        let mut calls = self.record.calls.borrow_mut();
        calls[at].ended = Some(ended);
        calls[at].outcome = match &result {
            Ok(_) if uncommitted => Outcome::Unknown,
            Ok(value) => Outcome::Done(seen(value)),
            Err(error) if refuses(*error) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        result
    }

    /// Makes a directory.
    pub fn mkdir(&self, at: DirName) -> Result<Ino, Errno> {
        let op = proto::Mkdir {
            parent: at.dir,
            name: vec![at.name],
            mode: 0o755,
            uid: 0,
            gid: 0,
        };
        let make = NameOp::Make {
            at,
            kind: FileType::Dir,
            exclusive: true,
        };
        self.named(
            &make,
            || self.process.call(op),
            |ino| Some((*ino, FileType::Dir)),
        )
    }

    /// Looks a name up.
    pub fn find(&self, at: DirName) -> Result<Option<(Ino, FileType)>, Errno> {
        let (dir, name) = (at.dir, at.name);
        self.named(
            &NameOp::Find(at),
            || self.process.find(dir, &[name]),
            |found| *found,
        )
    }

    /// Removes a name.
    pub fn remove(&self, at: DirName, is_dir: bool) -> Result<(), Errno> {
        let (parent, name) = (at.dir, vec![at.name]);
        if is_dir {
            let op = NameOp::Rmdir(at);
            let rmdir = proto::Rmdir { parent, name };
            self.named(&op, || self.process.call(rmdir), |()| None)
        } else {
            let op = NameOp::Unlink(at);
            let unlink = proto::Unlink { parent, name };
            self.named(&op, || self.process.call(unlink), |()| None)
        }
    }

    fn rename(&self, from: DirName, to: DirName, flags: u32) -> Result<(), Errno> {
        let op = proto::Rename {
            parent: from.dir,
            name: vec![from.name],
            new_parent: to.dir,
            new_name: vec![to.name],
            flags,
        };
        let rename = NameOp::Rename { from, to, flags };
        self.named(&rename, || self.process.call(op), |()| None)
    }

    fn link(&self, ino: Ino, at: DirName) -> Result<(), Errno> {
        let op = proto::Link {
            ino,
            parent: at.dir,
            name: vec![at.name],
        };
        self.named(
            &NameOp::Link { ino, at },
            || self.process.call(op),
            |()| None,
        )
    }

    fn create(&self, at: DirName, exclusive: bool) -> Result<(Ino, Option<(File, Access)>), Errno> {
        let (dir, name) = (at.dir, at.name);
        let make = NameOp::Make {
            at,
            kind: FileType::File,
            exclusive,
        };
        self.named(
            &make,
            || self.process.create(dir, &[name], exclusive),
            |(ino, file)| match file {
                Some(_) => Some((*ino, FileType::File)),
                None => Some((*ino, FileType::Dir)),
            },
        )
    }

    /// Opens a file.
    pub fn open(&self, ino: Ino, access: Access) -> Result<OpenedFile, Errno> {
        let began = self.begin();
        let noted = &self.record.bytes;
        let all = 0..u64::MAX;
        let cut = access.truncates.then(|| {
            let mut noted = noted.borrow_mut();
            noted.begin_change(ino, self.rank, began.0, all.clone(), Block::Empty)
        });
        let result = self.process.open(ino, access);
        // The name may have been removed since the lookup, and may have been a directory.
        let sealed = noted.borrow().may_be_laminated(ino);
        let usual = matches!(&result, Err(error) if refuses(*error))
            || (result == Err(Errno::ROFS) && access.writes && sealed);
        let ended = self.record_result(began, &("open", ino, access), &result, usual);
        if let Some(cut) = cut.filter(|_| result.is_ok()) {
            noted.borrow_mut().end_change(cut, ended, all);
        }
        result.map(|file| OpenedFile {
            file,
            since: began.0,
            writes: access.writes,
        })
    }

    /// Writes blocks, each with the tag of this write.
    fn write(&self, file: File, first: u64, count: u64, append: bool) {
        let began = self.begin();
        let tag = began.0;
        let bytes = Block::bytes(tag).repeat(usize::try_from(count).expect("few"));
        let most = if append {
            0..u64::MAX
        } else {
            first..first + count
        };
        // Recorded before it ends: a killed writer may have done some of it.
        let noted = &self.record.bytes;
        let begun =
            noted
                .borrow_mut()
                .begin_change(file.home, self.rank, tag, most, Block::Tag(tag));
        let behind = self.process.is_left_behind();
        let (result, first) = if append {
            let done = self.process.append(file, &bytes);
            let at = done.as_ref().map_or(0, |(at, _)| at / BLOCK);
            (done.map(|(_, n)| n), at)
        } else {
            (self.process.write(file, first * BLOCK, &bytes), first)
        };
        let how = if append { "append" } else { "write" };
        let what = (how, file.home, first, count, tag);
        let ended = self.record_result(began, &what, &result, false);
        if let Ok(done) = result {
            // A restarted server may not know of the write: the bytes may be there or not, and the
            // close returns EIO.
            if self.process.is_left_behind() {
                if behind {
                    self.record.fault(format!("{what:?} is nobody's"));
                }
                return;
            }
            let done = first..first + done as u64 / BLOCK;
            let mut noted = noted.borrow_mut();
            match append {
                true => noted.end_append(begun, ended, done),
                false => noted.end_change(begun, ended, done),
            }
        }
    }

    /// Reads blocks.
    pub fn read(&self, opened: OpenedFile, first: u64, count: u64) -> Vec<Block> {
        let (began, file) = (self.begin(), opened.file);
        let mut bytes = vec![0xEE; usize::try_from(count * BLOCK).expect("few")];
        let result = self.process.read(file, first * BLOCK, &mut bytes);
        let got = result.as_ref().map_or(0, |n| *n as u64);
        let blocks = result.map(|n| {
            let (size, rest) = bytes.split_at_mut(n);
            rest.fill(0);
            let whole = size
                .len()
                .next_multiple_of(usize::try_from(BLOCK).expect("small"));
            assert!(whole <= count.try_into().unwrap_or(usize::MAX) * 64);
            bytes
                .chunks(usize::try_from(BLOCK).expect("small"))
                .map(Block::from_bytes)
                .collect::<Vec<_>>()
        });
        let what = ("read", file.home, first, count);
        let ended = self.record_result(began, &what, &blocks, false);
        let Ok(blocks) = blocks else {
            return Vec::new();
        };
        let read = Read {
            rank: self.rank,
            opened: opened.since,
            span: Span {
                began: began.0,
                ended,
            },
            reached: first + got.div_ceil(BLOCK),
        };
        let mut note = self.record.bytes.borrow_mut();
        note.read(file.home, read, first, blocks.clone());
        blocks
    }

    fn sync(&self, file: File) {
        let began = self.begin();
        let result = self.process.sync(file);
        let ended = self.record_result(began, &("fsync", file.home), &result, false);
        self.published(file, began.0, ended, result.is_ok());
    }

    fn published(&self, file: File, began: u64, ended: u64, done: bool) {
        if done {
            let span = Span { began, ended };
            let mut note = self.record.bytes.borrow_mut();
            note.published(file.home, self.rank, span);
        }
    }

    fn truncate(&self, file: File, blocks: u64) {
        let began = self.begin();
        let all = blocks..u64::MAX;
        let noted = &self.record.bytes;
        let begun = noted.borrow_mut().begin_change(
            file.home,
            self.rank,
            began.0,
            all.clone(),
            Block::Empty,
        );
        let result = self.process.truncate(file, blocks * BLOCK);
        let ended = self.record_result(began, &("truncate", file.home, blocks), &result, false);
        if result.is_ok() {
            noted.borrow_mut().end_change(begun, ended, all);
        }
    }

    /// Takes a lock of a file; returns `None` if others held it for too long, or if the call
    /// failed.
    pub fn lock(&self, file: File, lock: Lock) -> Option<LockId> {
        self.record.locks.borrow_mut().asked(file.home);
        self.record.bytes.borrow_mut().locking(file.home);
        let began = self.begin();
        let result = self.process.lock(file, &lock);
        let usual = result == Err(Errno::AGAIN);
        let ended = self.record_result(began, &("lock", file.home, lock), &result, usual);
        result.ok()?;
        self.record.bytes.borrow_mut().locked(file.home, ended);
        let mut locks = self.record.locks.borrow_mut();
        Some(locks.granted(self.number, self.rank, file.home, lock, ended))
    }

    /// Releases a lock.
    pub fn unlock(&self, file: File, lock: Lock, granted: LockId) {
        let began = self.begin();
        self.record.locks.borrow_mut().given_back(granted, began.0);
        let result = self.process.unlock(file, &lock);
        self.record_result(began, &("unlock", file.home, lock), &result, false);
    }

    /// Closes a file.
    pub fn close(&self, file: File) {
        let began = self.begin();
        let result = self.process.close(file);
        let ended = self.record_result(began, &("close", file.home), &result, false);
        self.published(file, began.0, ended, result == Ok(true));
    }

    /// Lists the entries of a directory.
    pub fn list(&self, dir: Ino) -> Result<Vec<proto::Entry>, Errno> {
        let began = self.begin();
        let result = self.process.readdir(dir);
        let usual = matches!(&result, Err(error) if refuses(*error));
        let names = result.as_ref().map(|entries| {
            let names = entries.iter().map(|entry| (entry.name.clone(), entry.ino));
            names.collect::<Vec<_>>()
        });
        self.record_result(began, &("readdir", dir), &names.map_err(|e| *e), usual);
        result
    }

    /// Changes the mode. Removing the last write permission laminates the file.
    fn chmod(&self, ino: Ino, mode: u32) {
        let began = self.begin();
        let writable = mode & 0o222 != 0;
        if !writable {
            self.record.bytes.borrow_mut().laminating(ino, began.0);
        }
        let op = proto::SetAttr {
            mode: Some(mode),
            ..proto::SetAttr::nothing(ino)
        };
        let result = self.process.call(op);
        let sealed = self.record.bytes.borrow().may_be_laminated(ino);
        let usual = matches!(&result, Err(error) if refuses(*error))
            || (result == Err(Errno::ROFS) && writable && sealed);
        self.record_result(began, &("chmod", ino, mode), &result, usual);
    }

    /// Laminates a file, at once or when its last writer has closed it.
    fn laminate(&self, ino: Ino) {
        let began = self.begin();
        let noted = &self.record.bytes;
        noted.borrow_mut().laminating(ino, began.0);
        let cause = proto::Cause::Request;
        let result = self.process.call(proto::Laminate { ino, cause });
        let usual = matches!(&result, Err(error) if refuses(*error));
        let ended = self.record_result(began, &("laminate", ino), &result, usual);
        if result == Ok(true) {
            noted.borrow_mut().laminated(ino, ended);
        }
    }

    /// Asks how far the writing of a file is. `writes`: this program has it open for writing.
    fn write_state(&self, ino: Ino, writes: bool) {
        let began = self.begin();
        let result = self.process.call(proto::GetWriteState { ino });
        let usual = matches!(&result, Err(error) if refuses(*error));
        let ended = self.record_result(began, &("write_state", ino), &result, usual);
        let is_closed = matches!(result, Ok(WriteState::Written | WriteState::Hidden));
        if writes && is_closed {
            self.record.fault(format!(
                "{ino:?} is open for writing, and was told to be {result:?}"
            ));
        }
        if result == Ok(WriteState::Written) {
            let span = Span {
                began: began.0,
                ended,
            };
            self.record
                .bytes
                .borrow_mut()
                .published_everywhere(ino, span);
        }
    }
}

/// A client's knowledge.
// Each is a choice of its own.
#[allow(clippy::struct_excessive_bools)]
pub struct Program<'a, 'f> {
    /// The actor.
    pub actor: &'a Actor<'f>,
    /// The generator of its operations.
    pub rng: SeededRng,
    /// Directories seen so far.
    pub dirs: Vec<Ino>,
    workload: Workload,
    locks: bool,
    laminates: bool,
    asks_states: bool,
    elevates: bool,
    strides: bool,
    /// It moves files, and does nothing else.
    evicts: bool,
    open: Vec<OpenedFile>,
    files: Vec<Ino>,
    progression: Option<Progression>,
}

/// Pieces of a file at equal distances that are still to be written, in blocks.
struct Progression {
    file: File,
    first: u64,
    /// Of all but the last piece, which may be shorter.
    length: u64,
    stride: u64,
    pieces: u64,
}

impl<'a, 'f> Program<'a, 'f> {
    /// Creates a program that knows these directories.
    pub fn new(
        actor: &'a Actor<'f>,
        rng: SeededRng,
        plan: &Plan,
        dirs: Vec<Ino>,
    ) -> Program<'a, 'f> {
        Program {
            actor,
            rng,
            dirs,
            workload: plan.workload,
            locks: plan.locks,
            laminates: plan.laminations != LaminationUse::None,
            asks_states: plan.asks_states,
            elevates: plan.elevates,
            strides: plan.strides,
            evicts: plan.evicts
                && plan
                    .clients
                    .first()
                    .is_some_and(|first| first.number == actor.number),
            open: Vec::new(),
            files: Vec::new(),
            progression: None,
        }
    }

    /// One of the names that programs use.
    fn pick_name(&self) -> DirName {
        let dir = self.dirs[self.rng.pick(self.dirs.len())];
        let name = b'a' + u8::try_from(self.rng.below(NAMES)).expect("few");
        DirName { dir, name }
    }

    /// A range of blocks: the first one, and their number.
    fn pick_blocks(&self) -> (u64, u64) {
        let slice = SLICES[self.rng.pick(SLICES.len())];
        let first = slice * SLICE_BYTES / BLOCK + self.rng.below(BLOCKS);
        (first, 1 + self.rng.below(BLOCKS))
    }

    /// Carries out one operation.
    pub fn step(&mut self) {
        let (actor, rng) = (self.actor, self.rng.clone());
        if self.evicts {
            return self.evict();
        }
        if self.strides && self.write_next_piece() {
            return;
        }
        if self.locks && !self.open.is_empty() && rng.chance(250) {
            return self.use_locked();
        }
        if self.laminates && !self.files.is_empty() && rng.chance(40) {
            return self.laminate();
        }
        if self.asks_states && !self.files.is_empty() && rng.chance(60) {
            let ino = self.files[rng.pick(self.files.len())];
            let mut open = self.open.iter();
            let writes = open.any(|opened| opened.file.home == ino && opened.writes);
            return actor.write_state(ino, writes);
        }
        if self.elevates && rng.chance(100) {
            return match rng.chance(300) {
                true => actor.take_up(),
                false => actor.find_taken_up(&rng),
            };
        }
        match self.workload {
            Workload::Logs if !rng.chance(150) => return self.log(),
            Workload::Cuts if !rng.chance(50) => return self.write_or_cut(),
            Workload::Moves if !rng.chance(50) => return self.make_or_move(),
            _ => {}
        }
        let drawn = rng.below(100);
        if drawn < 55 && !self.open.is_empty() {
            return self.use_file();
        }
        match rng.below(100) {
            0..22 => {
                let exclusive = rng.chance(500);
                self.create(self.pick_name(), exclusive);
            }
            22..32 => {
                if let Ok(dir) = actor.mkdir(self.pick_name()) {
                    self.know_dir(dir);
                }
            }
            32..44 => self.look_up(),
            44..56 => drop(actor.remove(self.pick_name(), rng.chance(250))),
            56..82 => {
                let flags = [0, 0, 0, 1, 2][rng.pick(5)];
                let _ = actor.rename(self.pick_name(), self.pick_name(), flags);
            }
            82..90 => {
                if let Some(ino) = self.files.get(rng.pick(self.files.len())).copied() {
                    let _ = actor.link(ino, self.pick_name());
                }
            }
            90..94 => {
                if let Some(ino) = self.files.get(rng.pick(self.files.len())).copied() {
                    actor.chmod(ino, 0o600 + u32::try_from(rng.below(8)).expect("few"));
                }
            }
            _ => self.list(),
        }
    }

    /// Writes the next piece of a progression, or draws a new one; false: the step is for something else. Its bytes may be
    /// read before the last piece, and the file be written elsewhere behind it, which closes the record.
    fn write_next_piece(&mut self) -> bool {
        let rng = &self.rng;
        let Some(progression) = &mut self.progression else {
            let writable = self.open.iter().filter(|opened| opened.writes);
            let writable: Vec<File> = writable.map(|opened| opened.file).collect();
            if !writable.is_empty() && rng.chance(150) {
                let (first, length) = (self.pick_blocks().0, 1 + rng.below(4));
                self.progression = Some(Progression {
                    file: writable[rng.pick(writable.len())],
                    first,
                    length,
                    stride: length + rng.below(3),
                    pieces: 2 + rng.below(5),
                });
            }
            return false;
        };
        let file = progression.file;
        let opened = self.open.iter().find(|opened| opened.file == file);
        let Some(opened) = opened.filter(|_| progression.pieces > 0) else {
            self.progression = None;
            return false;
        };
        if rng.chance(300) {
            return false;
        }
        progression.pieces -= 1;
        let (first, length) = (progression.first, progression.length);
        progression.first += progression.stride;
        let is_last = progression.pieces == 0;
        let count = match is_last {
            true => 1 + rng.below(length),
            false => length,
        };
        if is_last && rng.chance(500) {
            self.actor.read(*opened, first, count);
        }
        self.actor.write(file, first, count, false);
        if is_last && rng.chance(500) {
            self.actor.write(file, first + 2 * length, 1, false);
        }
        true
    }

    /// Has the storage of a file freed that it knows, or that has one of the names.
    fn evict(&mut self) {
        match self.actor.find(self.pick_name()) {
            Ok(Some((dir, FileType::Dir))) => self.know_dir(dir),
            Ok(Some((ino, _))) => self.know_file(ino),
            _ => {}
        }
        if !self.files.is_empty() {
            let ino = self.files[self.rng.pick(self.files.len())];
            self.actor.evict(ino, &self.rng);
        }
    }

    /// Makes and renames, mostly directories.
    fn make_or_move(&mut self) {
        let (actor, rng) = (self.actor, self.rng.clone());
        match rng.below(100) {
            0..15 => {
                if let Ok(dir) = actor.mkdir(self.pick_name()) {
                    self.know_dir(dir);
                }
            }
            15..25 => {
                if let Ok((_, Some((file, _)))) = actor.create(self.pick_name(), true) {
                    actor.close(file);
                }
            }
            25..32 => drop(actor.remove(self.pick_name(), rng.chance(700))),
            32..45 => {
                if let Ok(Some((dir, FileType::Dir))) = actor.find(self.pick_name()) {
                    self.know_dir(dir);
                }
            }
            _ => {
                let flags = [0, 0, 0, 1, 2][rng.pick(5)];
                let _ = actor.rename(self.pick_name(), self.pick_name(), flags);
            }
        }
    }

    /// A file that is open for writing. If none is, this opens one of two files that all programs
    /// use, or makes it.
    fn shared_file(&mut self) -> Option<OpenedFile> {
        let open = self.open.iter().filter(|opened| opened.writes);
        let open: Vec<OpenedFile> = open.copied().collect();
        let opened = open.get(self.rng.pick(open.len())).copied();
        if opened.is_none() {
            let dir = self.dirs[0];
            let name = b'a' + u8::try_from(self.rng.below(2)).expect("few");
            self.create(DirName { dir, name }, false);
        }
        opened
    }

    fn close(&mut self, file: File) {
        self.open.retain(|known| known.file != file);
        self.actor.close(file);
    }

    /// Appends to one of two files shared by all programs, and syncs from time to time.
    fn log(&mut self) {
        let rng = self.rng.clone();
        let Some(opened) = self.shared_file() else {
            return;
        };
        let file = opened.file;
        match rng.below(100) {
            0..70 => self.actor.write(file, 0, 1 + rng.below(4), true),
            70..85 => self.actor.sync(file),
            85..93 => drop(self.actor.read(opened, 0, 64)),
            _ => self.close(file),
        }
    }

    /// Writes one of two files shared by all programs, and truncates it from time to time.
    fn write_or_cut(&mut self) {
        let rng = self.rng.clone();
        let Some(opened) = self.shared_file() else {
            return;
        };
        let file = opened.file;
        let (first, count) = self.pick_blocks();
        match rng.below(100) {
            0..40 => self.actor.write(file, first, count, false),
            40..45 => self.actor.write(file, 0, 1 + count % 4, true),
            45..60 => drop(self.actor.read(opened, first, count)),
            60..70 => self.actor.sync(file),
            70..90 => self.truncate(file, first),
            _ => self.close(file),
        }
    }

    /// Truncates a file to nothing, or to `blocks` blocks.
    fn truncate(&self, file: File, blocks: u64) {
        let blocks = if self.rng.chance(500) { 0 } else { blocks };
        self.actor.truncate(file, blocks);
    }

    fn know_dir(&mut self, dir: Ino) {
        if !self.dirs.contains(&dir) {
            self.dirs.push(dir);
        }
    }

    fn know_file(&mut self, ino: Ino) {
        if !self.files.contains(&ino) {
            self.files.push(ino);
        }
    }

    /// Keeps a file open.
    fn keep_open(&mut self, opened: OpenedFile) {
        self.know_file(opened.file.home);
        // A file that is already open keeps its earlier state.
        if let Some(known) = self.open.iter_mut().find(|known| known.file == opened.file) {
            known.writes |= opened.writes;
            return;
        }
        self.open.push(opened);
        if self.open.len() > OPEN {
            let oldest = self.open.remove(0);
            self.actor.close(oldest.file);
        }
    }

    fn create(&mut self, at: DirName, exclusive: bool) {
        let since = self.actor.record.event();
        match self.actor.create(at, exclusive) {
            Ok((_, Some((file, access)))) => self.keep_open(OpenedFile {
                file,
                since,
                writes: access.writes,
            }),
            Ok((dir, None)) => self.know_dir(dir),
            Err(_) => {}
        }
    }

    fn open_file(&mut self, ino: Ino) {
        let access = match self.rng.below(100) {
            0..40 => Access::READ,
            40..45 => Access {
                truncates: true,
                ..Access::WRITE
            },
            _ => Access::WRITE,
        };
        if let Ok(opened) = self.actor.open(ino, access) {
            self.keep_open(opened);
        }
    }

    fn look_up(&mut self) {
        match self.actor.find(self.pick_name()) {
            Ok(Some((dir, FileType::Dir))) => self.know_dir(dir),
            Ok(Some((ino, _))) => self.open_file(ino),
            _ => {}
        }
    }

    fn list(&self) {
        let dir = self.dirs[self.rng.pick(self.dirs.len())];
        // A name that is removed and made again meanwhile may appear twice.
        let _ = self.actor.list(dir);
    }

    fn use_file(&mut self) {
        let (actor, rng) = (self.actor, self.rng.clone());
        let at = rng.pick(self.open.len());
        let opened = self.open[at];
        let OpenedFile { file, writes, .. } = opened;
        let (first, count) = self.pick_blocks();
        match rng.below(100) {
            0..86 if !writes => drop(actor.read(opened, first, count)),
            0..30 => actor.write(file, first, count, false),
            30..38 => actor.write(file, 0, 1 + count % 4, true),
            38..70 => drop(actor.read(opened, first, count)),
            70..80 => actor.sync(file),
            80..86 => self.truncate(file, first),
            _ => {
                self.open.remove(at);
                actor.close(file);
            }
        }
    }

    /// Laminates a file, by request or by its mode; may close it first.
    fn laminate(&mut self) {
        let (actor, rng) = (self.actor, self.rng.clone());
        let ino = self.files[rng.pick(self.files.len())];
        let open = self.open.iter().position(|opened| opened.file.home == ino);
        if let Some(at) = open.filter(|_| rng.chance(700)) {
            let opened = self.open.remove(at);
            actor.close(opened.file);
        }
        if rng.chance(700) {
            actor.laminate(ino);
        } else {
            actor.chmod(ino, 0o444);
        }
    }

    /// Reads a part of a file under a lock, and writes it; then releases the lock, or closes the
    /// file.
    fn use_locked(&mut self) {
        let (actor, rng) = (self.actor, self.rng.clone());
        let at = rng.pick(self.open.len());
        let opened = self.open[at];
        let OpenedFile { file, writes, .. } = opened;
        let (first, count) = self.pick_blocks();
        let of = [
            LockOwnerKind::Whole,
            LockOwnerKind::Process,
            LockOwnerKind::Description,
        ][rng.pick(3)];
        let (start, end) = match of {
            LockOwnerKind::Whole => (0, u64::MAX),
            LockOwnerKind::Process | LockOwnerKind::Description => {
                (first * BLOCK, (first + count) * BLOCK)
            }
        };
        let lock = Lock {
            of,
            exclusive: writes && rng.chance(700),
            start,
            end,
        };
        let Some(granted) = actor.lock(file, lock) else {
            return;
        };
        actor.read(opened, first, count);
        if lock.exclusive {
            actor.write(file, first, count, false);
        }
        if rng.chance(850) {
            return actor.unlock(file, lock, granted);
        }
        let event = actor.record.event();
        actor.record.locks.borrow_mut().given_back(granted, event);
        self.open.remove(at);
        actor.close(file);
    }

    /// Closes all open files.
    pub fn finish(&mut self) {
        for opened in std::mem::take(&mut self.open) {
            self.actor.close(opened.file);
        }
    }
}
