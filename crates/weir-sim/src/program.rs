//! What a client does: operations on a few names and files, drawn from its seed, each noted
//! with what came of it.

use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::placement::SLICE_BYTES;
use weir_core::proto;
use weir_core::types::{Ino, Rank};
use weir_fabric::sim::rng::SeededRng;

use crate::bytes::{Block, Read, Span, BLOCK};
use crate::executor::Executor;
use crate::linear::Call;
use crate::locks::{Granted, Lock, Of};
use crate::model::{NameOp, Outcome, Seat};
use crate::plan::{Habit, Laminations, Plan};
use crate::process::{Access, File, Process};
use crate::record::Record;

/// Names in a directory that programs use.
const NAMES: u64 = 4;
/// Blocks of a file that they use, in each of a few slices.
const BLOCKS: u64 = 24;
/// Slices of a file that they use.
const SLICES: [u64; 4] = [0, 0, 1, 5];
/// Files that a program has open, at most.
const OPEN: usize = 3;
/// No operation may take longer, whatever happens.
const LONGEST: Duration = Duration::from_secs(70);

/// Who does operations and notes them.
pub struct Actor<'f> {
    /// Its number.
    pub number: usize,
    /// Its node.
    pub rank: Rank,
    /// Its process.
    pub process: Process<'f>,
    /// Where it notes.
    pub record: Rc<Record>,
    /// The clock.
    pub executor: Executor,
    /// Whether calls may fail for want of a server, and for want of room.
    pub bears: Bears,
}

/// Which errors are no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bears {
    /// EIO, and what comes of it.
    pub lost: bool,
    /// ENOSPC.
    pub full: bool,
}

/// Reasons of the namespace.
fn refuses(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::INVAL
    )
}

impl Actor<'_> {
    /// Waits.
    pub fn wait<T>(&self, future: impl std::future::Future<Output = T>) -> T {
        self.process.wait(future)
    }

    fn begin(&self) -> (u64, Duration) {
        (self.record.event(), self.executor.now())
    }

    /// Notes the end of an operation; when that was.
    fn end<T: std::fmt::Debug>(
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
            Err(Errno::NOSPC) => self.bears.full,
            Err(_) => usual || self.bears.lost,
        };
        if !borne {
            let error = result.as_ref().err();
            self.record
                .fault(format!("client {number} at {rank}: {what:?} -> {error:?}"));
        }
        if now.checked_sub(began.1).unwrap() > LONGEST {
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
            // Noted before it ends: who is killed over it may have done it.
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
        // It was made, and taken away before it was opened.
        let gone = matches!(result, Err(Errno::CANCELED));
        let usual = gone || matches!(&result, Err(error) if refuses(*error));
        let ended = self.end(began, op, &result, usual);
        // A server that was killed may have changed its tables and not committed the change.
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
    pub fn mkdir(&self, at: Seat) -> Result<Ino, Errno> {
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

    /// What a name names.
    pub fn find(&self, at: Seat) -> Result<Option<(Ino, FileType)>, Errno> {
        let (dir, name) = (at.dir, at.name);
        self.named(
            &NameOp::Find(at),
            || self.process.find(dir, &[name]),
            |found| *found,
        )
    }

    /// Takes a name.
    pub fn remove(&self, at: Seat, is_dir: bool) -> Result<(), Errno> {
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

    fn rename(&self, from: Seat, to: Seat, flags: u32) -> Result<(), Errno> {
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

    fn link(&self, ino: Ino, at: Seat) -> Result<(), Errno> {
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

    fn create(&self, at: Seat, exclusive: bool) -> Result<(Ino, Option<(File, Access)>), Errno> {
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

    /// Opens a file; with when that began.
    pub fn open(&self, ino: Ino, access: Access) -> Result<(File, u64), Errno> {
        let began = self.begin();
        let noted = &self.record.bytes;
        let all = (0, u64::MAX);
        let cut = access.truncates.then(|| {
            let by = (self.rank, began.0);
            noted.borrow_mut().begin(ino, by, all, Block::Empty)
        });
        let result = self.process.open(ino, access);
        // It may have been removed since it was found, and what was found may be a directory.
        let sealed = noted.borrow().may_be_laminated(ino);
        let usual = matches!(&result, Err(error) if refuses(*error))
            || (result == Err(Errno::ROFS) && access.writes && sealed);
        let ended = self.end(began, &("open", ino, access), &result, usual);
        if let Some(cut) = cut.filter(|_| result.is_ok()) {
            noted.borrow_mut().end(cut, ended, all);
        }
        result.map(|file| (file, began.0))
    }

    /// Writes blocks, each with the tag of this write.
    fn write(&self, file: File, first: u64, count: u64, append: bool) {
        let began = self.begin();
        let tag = began.0;
        let bytes = Block::bytes(tag).repeat(usize::try_from(count).expect("few"));
        let most = if append {
            (0, u64::MAX)
        } else {
            (first, first + count)
        };
        let by = (self.rank, began.0);
        // Noted before it ends: who is killed over it may have done some of it.
        let noted = &self.record.bytes;
        let begun = noted
            .borrow_mut()
            .begin(file.home, by, most, Block::Tag(tag));
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
        let ended = self.end(began, &what, &result, false);
        if let Ok(done) = result {
            // Behind the back of a server that has come meanwhile: it may be there or not, and
            // the close says EIO.
            if self.process.is_left_behind() {
                if behind {
                    self.record.fault(format!("{what:?} is nobody's"));
                }
                return;
            }
            let done = (first, first + done as u64 / BLOCK);
            let mut noted = noted.borrow_mut();
            match append {
                true => noted.end_append(begun, ended, done),
                false => noted.end(begun, ended, done),
            }
        }
    }

    /// Reads blocks.
    pub fn read(&self, (file, opened): (File, u64), first: u64, count: u64) -> Vec<Block> {
        let began = self.begin();
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
                .map(Block::of)
                .collect::<Vec<_>>()
        });
        let what = ("read", file.home, first, count);
        let ended = self.end(began, &what, &blocks, false);
        let Ok(blocks) = blocks else {
            return Vec::new();
        };
        let read = Read {
            rank: self.rank,
            opened,
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
        let ended = self.end(began, &("fsync", file.home), &result, false);
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
        let all = (blocks, u64::MAX);
        let by = (self.rank, began.0);
        let noted = &self.record.bytes;
        let begun = noted.borrow_mut().begin(file.home, by, all, Block::Empty);
        let result = self.process.truncate(file, blocks * BLOCK);
        let ended = self.end(began, &("truncate", file.home, blocks), &result, false);
        if result.is_ok() {
            noted.borrow_mut().end(begun, ended, all);
        }
    }

    /// Takes a lock of a file; `None`: others had it for too long, or it failed.
    pub fn lock(&self, file: File, lock: Lock) -> Option<Granted> {
        self.record.locks.borrow_mut().asked(file.home);
        self.record.bytes.borrow_mut().locking(file.home);
        let began = self.begin();
        let result = self.process.lock(file, &lock);
        let usual = result == Err(Errno::AGAIN);
        let ended = self.end(began, &("lock", file.home, lock), &result, usual);
        result.ok()?;
        self.record.bytes.borrow_mut().locked(file.home, ended);
        let mut locks = self.record.locks.borrow_mut();
        Some(locks.granted((self.number, self.rank), (file.home, lock), ended))
    }

    /// Gives it back.
    pub fn unlock(&self, file: File, lock: Lock, granted: Granted) {
        let began = self.begin();
        self.record.locks.borrow_mut().given_back(granted, began.0);
        let result = self.process.unlock(file, &lock);
        self.end(began, &("unlock", file.home, lock), &result, false);
    }

    /// Closes a file.
    pub fn close(&self, file: File) {
        let began = self.begin();
        let result = self.process.close(file);
        let ended = self.end(began, &("close", file.home), &result, false);
        self.published(file, began.0, ended, result == Ok(true));
    }

    /// Entries of a directory.
    pub fn list(&self, dir: Ino) -> Result<Vec<proto::Entry>, Errno> {
        let began = self.begin();
        let result = self.process.readdir(dir);
        let usual = matches!(&result, Err(error) if refuses(*error));
        let names = result.as_ref().map(|entries| {
            let names = entries.iter().map(|entry| (entry.name.clone(), entry.ino));
            names.collect::<Vec<_>>()
        });
        self.end(began, &("readdir", dir), &names.map_err(|e| *e), usual);
        result
    }

    /// Changes the mode. To take the last permission to write laminates a file.
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
        self.end(began, &("chmod", ino, mode), &result, usual);
    }

    /// Makes a file read-only for good, at once or once nobody has it open for writing.
    fn laminate(&self, ino: Ino) {
        let began = self.begin();
        let noted = &self.record.bytes;
        noted.borrow_mut().laminating(ino, began.0);
        let cause = proto::Cause::Request;
        let result = self.process.call(proto::Laminate { ino, cause });
        let usual = matches!(&result, Err(error) if refuses(*error));
        let ended = self.end(began, &("laminate", ino), &result, usual);
        if result == Ok(true) {
            noted.borrow_mut().laminated(ino, ended);
        }
    }
}

/// What a client knows.
pub struct Program<'a, 'f> {
    /// Who does it.
    pub actor: &'a Actor<'f>,
    /// What it draws from.
    pub dice: SeededRng,
    /// Directories that it has seen.
    pub dirs: Vec<Ino>,
    habit: Habit,
    locks: bool,
    laminates: bool,
    open: Vec<Opened>,
    files: Vec<Ino>,
}

/// A file that a program has open.
#[derive(Clone, Copy)]
struct Opened {
    file: File,
    /// The event at which it began to open it.
    since: u64,
    writes: bool,
}

impl<'a, 'f> Program<'a, 'f> {
    /// One that knows these directories.
    pub fn new(
        actor: &'a Actor<'f>,
        dice: SeededRng,
        plan: &Plan,
        dirs: Vec<Ino>,
    ) -> Program<'a, 'f> {
        Program {
            actor,
            dice,
            dirs,
            habit: plan.habit,
            locks: plan.locks,
            laminates: plan.laminations != Laminations::None,
            open: Vec::new(),
            files: Vec::new(),
        }
    }

    fn seat(&self) -> Seat {
        let dir = self.dirs[self.dice.pick(self.dirs.len())];
        let name = b'a' + u8::try_from(self.dice.below(NAMES)).expect("few");
        Seat { dir, name }
    }

    fn blocks(&self) -> (u64, u64) {
        let slice = SLICES[self.dice.pick(SLICES.len())];
        let first = slice * SLICE_BYTES / BLOCK + self.dice.below(BLOCKS);
        (first, 1 + self.dice.below(BLOCKS))
    }

    /// Does one operation.
    pub fn step(&mut self) {
        let (actor, dice) = (self.actor, self.dice.clone());
        if self.locks && !self.open.is_empty() && dice.chance(250) {
            return self.use_locked();
        }
        if self.laminates && !self.files.is_empty() && dice.chance(40) {
            return self.laminate();
        }
        match self.habit {
            Habit::Logs if !dice.chance(150) => return self.log(),
            Habit::Cuts if !dice.chance(50) => return self.write_or_cut(),
            Habit::Moves if !dice.chance(50) => return self.make_or_move(),
            _ => {}
        }
        let drawn = dice.below(100);
        if drawn < 55 && !self.open.is_empty() {
            return self.use_file();
        }
        match dice.below(100) {
            0..22 => {
                let exclusive = dice.chance(500);
                self.create(self.seat(), exclusive);
            }
            22..32 => {
                if let Ok(dir) = actor.mkdir(self.seat()) {
                    self.know_dir(dir);
                }
            }
            32..44 => self.look(),
            44..56 => drop(actor.remove(self.seat(), dice.chance(250))),
            56..82 => {
                let flags = [0, 0, 0, 1, 2][dice.pick(5)];
                let _ = actor.rename(self.seat(), self.seat(), flags);
            }
            82..90 => {
                if let Some(ino) = self.files.get(dice.pick(self.files.len())).copied() {
                    let _ = actor.link(ino, self.seat());
                }
            }
            90..94 => {
                if let Some(ino) = self.files.get(dice.pick(self.files.len())).copied() {
                    actor.chmod(ino, 0o600 + u32::try_from(dice.below(8)).expect("few"));
                }
            }
            _ => self.list(),
        }
    }

    /// Makes and renames, directories above all.
    fn make_or_move(&mut self) {
        let (actor, dice) = (self.actor, self.dice.clone());
        match dice.below(100) {
            0..15 => {
                if let Ok(dir) = actor.mkdir(self.seat()) {
                    self.know_dir(dir);
                }
            }
            15..25 => {
                if let Ok((_, Some((file, _)))) = actor.create(self.seat(), true) {
                    actor.close(file);
                }
            }
            25..32 => drop(actor.remove(self.seat(), dice.chance(700))),
            32..45 => {
                if let Ok(Some((dir, FileType::Dir))) = actor.find(self.seat()) {
                    self.know_dir(dir);
                }
            }
            _ => {
                let flags = [0, 0, 0, 1, 2][dice.pick(5)];
                let _ = actor.rename(self.seat(), self.seat(), flags);
            }
        }
    }

    /// A file that is open for writing. If none is, this opens one of two files that all programs
    /// use, or makes it.
    fn shared_file(&mut self) -> Option<Opened> {
        let open = self.open.iter().filter(|opened| opened.writes);
        let open: Vec<Opened> = open.copied().collect();
        let opened = open.get(self.dice.pick(open.len())).copied();
        if opened.is_none() {
            let dir = self.dirs[0];
            let name = b'a' + u8::try_from(self.dice.below(2)).expect("few");
            self.create(Seat { dir, name }, false);
        }
        opened
    }

    fn close(&mut self, file: File) {
        self.open.retain(|known| known.file != file);
        self.actor.close(file);
    }

    /// Appends to one of two files that all append to, and syncs that now and then.
    fn log(&mut self) {
        let dice = self.dice.clone();
        let Some(Opened { file, since, .. }) = self.shared_file() else {
            return;
        };
        match dice.below(100) {
            0..70 => self.actor.write(file, 0, 1 + dice.below(4), true),
            70..85 => self.actor.sync(file),
            85..93 => drop(self.actor.read((file, since), 0, 64)),
            _ => self.close(file),
        }
    }

    /// Writes one of two files that all write, and cuts it now and then.
    fn write_or_cut(&mut self) {
        let dice = self.dice.clone();
        let Some(Opened { file, since, .. }) = self.shared_file() else {
            return;
        };
        let (first, count) = self.blocks();
        match dice.below(100) {
            0..40 => self.actor.write(file, first, count, false),
            40..45 => self.actor.write(file, 0, 1 + count % 4, true),
            45..60 => drop(self.actor.read((file, since), first, count)),
            60..70 => self.actor.sync(file),
            70..90 => self.truncate(file, first),
            _ => self.close(file),
        }
    }

    /// Cuts a file to nothing, or to `blocks` blocks.
    fn truncate(&self, file: File, blocks: u64) {
        let blocks = if self.dice.chance(500) { 0 } else { blocks };
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

    fn keep(&mut self, (file, since): (File, u64), writes: bool) {
        self.know_file(file.home);
        // A file that is open already keeps what it knew.
        if let Some(known) = self.open.iter_mut().find(|known| known.file == file) {
            known.writes |= writes;
            return;
        }
        self.open.push(Opened {
            file,
            since,
            writes,
        });
        if self.open.len() > OPEN {
            let oldest = self.open.remove(0);
            self.actor.close(oldest.file);
        }
    }

    fn create(&mut self, at: Seat, exclusive: bool) {
        let since = self.actor.record.event();
        match self.actor.create(at, exclusive) {
            Ok((_, Some((file, access)))) => self.keep((file, since), access.writes),
            Ok((dir, None)) => self.know_dir(dir),
            Err(_) => {}
        }
    }

    fn open_file(&mut self, ino: Ino) {
        let access = match self.dice.below(100) {
            0..40 => Access::READ,
            40..45 => Access {
                truncates: true,
                ..Access::WRITE
            },
            _ => Access::WRITE,
        };
        if let Ok(opened) = self.actor.open(ino, access) {
            self.keep(opened, access.writes);
        }
    }

    fn look(&mut self) {
        match self.actor.find(self.seat()) {
            Ok(Some((dir, FileType::Dir))) => self.know_dir(dir),
            Ok(Some((ino, _))) => self.open_file(ino),
            _ => {}
        }
    }

    fn list(&self) {
        let dir = self.dirs[self.dice.pick(self.dirs.len())];
        // A name that is taken and made anew meanwhile may come twice.
        let _ = self.actor.list(dir);
    }

    fn use_file(&mut self) {
        let (actor, dice) = (self.actor, self.dice.clone());
        let at = dice.pick(self.open.len());
        let Opened {
            file,
            since,
            writes,
        } = self.open[at];
        let (first, count) = self.blocks();
        match dice.below(100) {
            0..86 if !writes => drop(actor.read((file, since), first, count)),
            0..30 => actor.write(file, first, count, false),
            30..38 => actor.write(file, 0, 1 + count % 4, true),
            38..70 => drop(actor.read((file, since), first, count)),
            70..80 => actor.sync(file),
            80..86 => self.truncate(file, first),
            _ => {
                self.open.remove(at);
                actor.close(file);
            }
        }
    }

    /// Laminates a file, by request or by its mode; first it may close it.
    fn laminate(&mut self) {
        let (actor, dice) = (self.actor, self.dice.clone());
        let ino = self.files[dice.pick(self.files.len())];
        let open = self.open.iter().position(|opened| opened.file.home == ino);
        if let Some(at) = open.filter(|_| dice.chance(700)) {
            let opened = self.open.remove(at);
            actor.close(opened.file);
        }
        if dice.chance(700) {
            actor.laminate(ino);
        } else {
            actor.chmod(ino, 0o444);
        }
    }

    /// Reads a part of a file under a lock, and writes it; then gives the lock back, or closes the
    /// file over it.
    fn use_locked(&mut self) {
        let (actor, dice) = (self.actor, self.dice.clone());
        let at = dice.pick(self.open.len());
        let Opened {
            file,
            since,
            writes,
        } = self.open[at];
        let (first, count) = self.blocks();
        let of = [Of::Whole, Of::Process, Of::Description][dice.pick(3)];
        let (start, end) = match of {
            Of::Whole => (0, u64::MAX),
            Of::Process | Of::Description => (first * BLOCK, (first + count) * BLOCK),
        };
        let lock = Lock {
            of,
            exclusive: writes && dice.chance(700),
            start,
            end,
        };
        let Some(granted) = actor.lock(file, lock) else {
            return;
        };
        actor.read((file, since), first, count);
        if lock.exclusive {
            actor.write(file, first, count, false);
        }
        if dice.chance(850) {
            return actor.unlock(file, lock, granted);
        }
        let event = actor.record.event();
        actor.record.locks.borrow_mut().given_back(granted, event);
        self.open.remove(at);
        actor.close(file);
    }

    /// Closes all that is open.
    pub fn finish(&mut self) {
        for opened in std::mem::take(&mut self.open) {
            self.actor.close(opened.file);
        }
    }
}
