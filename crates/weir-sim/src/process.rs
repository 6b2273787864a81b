//! A client process: the view and the data path of `weir-client` over the simulated node. This file adds
//! descriptors, which in a real process are the kernel's, and waiting.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use weir_client::data::{file_state, FileState, Host, Log, SegmentSource, Vnode};
use weir_client::errno::errno_of;
use weir_client::path::Names;
use weir_client::view::locks::{end_description_locks, end_process_locks, F_UNLCK, LOCK_UN};
use weir_client::view::open::{OpenAccess, Opening, Target};
use weir_client::view::{NodeClient, View};
use weir_core::elevated::{name_of_inode, EVICTED};
use weir_core::names::{Attr, FileType, NamesView};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell as WriterCell;
use weir_core::node::claim::Claim;
use weir_core::node::known::KnownNames;
use weir_core::node::landing::LandingSlot;
use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::node::region::{Counter, Hub};
use weir_core::node::ring::{Note, Record};
use weir_core::proto::peer::LogRange;
use weir_core::proto::{self, Attached, Landing, Lent, Located, Operation};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fakes::FakeClientMemory;
use weir_server::node::ClientMemory;
use weir_store::slabmap::{ReadWindow, SlabMap};

use crate::fiber::Waiter;
use crate::locks::{Lock, LockOwnerKind};
use crate::site::Site;
use crate::target::TargetFiles;

/// The maximum number of lookups of a file that other programs create and remove.
const PATIENCE: u32 = 1000;

/// The interval at which a program looks for bytes that it awaits from other nodes.
const ARRIVING: Duration = Duration::from_micros(100);

/// The interval and number of requests of a program that waits for a lock: here no signal tells it that
/// the lock may be free.
const LOCKING: (Duration, u32) = (Duration::from_millis(20), 50);

/// `F_RDLCK`, `F_WRLCK` and `F_UNLCK` of fcntl(2).
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = F_UNLCK;

/// Access modes of open(2).
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;

/// The maximum number of repeated reads of a file's state until it is consistent: here no other task
/// runs meanwhile.
const LOOKS: u32 = 10_000;

/// A file that the process has open.
struct Open {
    vnode: Vnode,
    /// The indices of its descriptions in the table, each with true if it may write.
    ofds: RefCell<Vec<(u32, bool)>>,
    /// True once the program asked for a lock of the description.
    locked: Cell<bool>,
    /// True once the program asked for a record lock.
    record_locks: Cell<bool>,
}

impl Open {
    fn new(ino: Ino) -> Open {
        let vnode = Vnode::new();
        vnode.open(ino);
        Open {
            vnode,
            ofds: RefCell::default(),
            locked: Cell::new(false),
            record_locks: Cell::new(false),
        }
    }

    /// The description that owns the locks.
    fn first_ofd(&self) -> u32 {
        self.ofds.borrow()[0].0
    }
}

/// The purpose for which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// True if also for writing.
    pub writes: bool,
    /// True if to be truncated.
    pub truncates: bool,
}

impl Access {
    /// For reading alone.
    pub const READ: Access = Access {
        writes: false,
        truncates: false,
    };
    /// For reading and writing.
    pub const WRITE: Access = Access {
        writes: true,
        truncates: false,
    };
}

/// One process.
pub struct Process<'f> {
    site: Rc<Site>,
    id: ClientId,
    memory: Arc<FakeClientMemory>,
    waiter: &'f Waiter<'f>,
    target: Rc<TargetFiles>,
    log: Log,
    ofds: Cell<(u32, u32)>,
    free_ofds: RefCell<Vec<u32>>,
    files: RefCell<BTreeMap<Ino, Rc<Open>>>,
    /// True if the last close published the node's writes.
    published: Cell<bool>,
    /// The number of reads of a file's state since the process last waited.
    looks: Cell<u32>,
}

/// An open file: its number in the node's table, and its global inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    local: Ino,
    /// Its global inode number.
    pub home: Ino,
}

impl<'f> Process<'f> {
    /// A process that the server admitted.
    pub fn new(
        site: Rc<Site>,
        id: ClientId,
        memory: Arc<FakeClientMemory>,
        waiter: &'f Waiter<'f>,
        target: Rc<TargetFiles>,
    ) -> Process<'f> {
        Process {
            site,
            id,
            memory,
            waiter,
            target,
            log: Log::new(),
            ofds: Cell::new((0, 0)),
            free_ofds: RefCell::default(),
            files: RefCell::default(),
            published: Cell::new(false),
            looks: Cell::new(0),
        }
    }

    /// The parallel file system.
    pub fn target(&self) -> &TargetFiles {
        &self.target
    }

    /// Waits.
    pub fn wait<T>(&self, future: impl std::future::Future<Output = T>) -> T {
        self.looks.set(0);
        self.waiter.wait(future)
    }

    /// True if the server that admitted the process was killed.
    pub fn is_orphaned(&self) -> bool {
        !self.site.lives()
    }

    /// True if a new server has taken over from that one.
    pub fn is_left_behind(&self) -> bool {
        std::sync::atomic::fence(SeqCst);
        self.site.open.hub.stopped.load(SeqCst) != 0
    }

    /// Lets the server execute `op`.
    pub fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        let mut request = Vec::new();
        proto::request(op, &mut request);
        let asked = Rc::clone(&self.site).ask(self.id, request);
        let reply = self.waiter.wait(asked).ok_or(Errno::SHUTDOWN)?;
        proto::reply::<O>(&reply).map_err(|error| errno_of(O::OBJECT, error))
    }

    /// The file system as the process sees it.
    fn view(&self) -> View<&Process<'f>> {
        View::new(self)
    }

    /// The inode that a name refers to.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        self.view().lookup(dir, name)
    }

    /// stat(2): the attributes, and the size.
    pub fn stat(&self, ino: Ino) -> Result<(Attr, u64), Errno> {
        let cells = self.site.open.cells;
        self.view().at_once(ino, |attr, block| {
            (*attr, block.map_or(attr.size, |block| block.size(cells)))
        })
    }

    /// open(2) with O_CREAT. If the name is a directory's, it is returned but not opened; a laminated
    /// file is opened for reading. `ECANCELED`: a file was created, but could not be opened.
    pub fn create(
        &self,
        dir: Ino,
        name: &[u8],
        exclusive: bool,
    ) -> Result<(Ino, Option<(File, Access)>), Errno> {
        let op = proto::Create {
            parent: dir,
            name: name.to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive,
            attach: true,
        };
        for _ in 0..PATIENCE {
            let target = match self.view().create(op.clone())? {
                Some(target) => target,
                None => match self.find(dir, name)? {
                    Some((ino, FileType::File)) => Target::existing(ino, FileType::File),
                    Some((ino, _)) => return Ok((ino, None)),
                    None => continue, // it has gone meanwhile
                },
            };
            let (mut access, mut opened) =
                (Access::WRITE, self.open_target(&target, Access::WRITE));
            if opened == Err(Errno::ROFS) && !target.new {
                access = Access::READ;
                opened = self.open_target(&target, access);
            }
            match opened {
                Err(Errno::NOENT) if !target.new => {}
                Err(_) if target.new => return Err(Errno::CANCELED),
                opened => return opened.map(|file| (file.home, Some((file, access)))),
            }
        }
        Err(Errno::IO)
    }

    /// Opens a file.
    pub fn open(&self, ino: Ino, access: Access) -> Result<File, Errno> {
        self.open_target(&Target::existing(ino, FileType::File), access)
    }

    fn open_target(&self, target: &Target, access: Access) -> Result<File, Errno> {
        let process = self;
        self.view().update(target.ino, || {
            self.view().open(target, &Descriptor { process, access })
        })
    }

    fn open_known(&self, attr: &Attr, by_name: bool, access: Access) -> Result<File, Errno> {
        let (local, home) = (attr.ino, attr.home);
        let ofd = self.take_ofd()?;
        let flags = if access.writes { O_RDWR } else { O_RDONLY };
        let access_of_view = match access.writes {
            true => OpenAccess::Update,
            false => OpenAccess::Read,
        };
        let shown = self.description(ofd).and_then(|shown| {
            self.view()
                .show_open(shown, local, by_name, flags, access_of_view)
        });
        if let Err(error) = shown {
            self.free_ofds.borrow_mut().push(ofd);
            return Err(error);
        }
        let mut files = self.files.borrow_mut();
        let open = files
            .entry(local)
            .or_insert_with(|| Rc::new(Open::new(local)));
        open.ofds.borrow_mut().push((ofd, access.writes));
        Ok(File { local, home })
    }

    fn description(&self, ofd: u32) -> Result<&'static Ofd, Errno> {
        self.site.open.ofds.get(ofd as usize).ok_or(Errno::NFILE)
    }

    fn take_ofd(&self) -> Result<u32, Errno> {
        if let Some(ofd) = self.free_ofds.borrow_mut().pop() {
            return Ok(ofd);
        }
        if self.ofds.get().0 == self.ofds.get().1 {
            let first = self.call(proto::OfdBatch {})?;
            self.ofds.set((first, first + BATCH));
        }
        let (next, end) = self.ofds.get();
        self.ofds.set((next + 1, end));
        Ok(next)
    }

    fn give_ofd(&self, ofd: u32) {
        if let Ok(description) = self.description(ofd) {
            description.close();
        }
        self.free_ofds.borrow_mut().push(ofd);
    }

    fn opened(&self, file: File) -> Result<Rc<Open>, Errno> {
        let files = self.files.borrow();
        files.get(&file.local).cloned().ok_or(Errno::BADF)
    }

    /// pwrite(2).
    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.opened(file)?.vnode.write_at(self, offset, bytes)
    }

    /// write(2) with O_APPEND; returns the offset and the number of bytes written.
    pub fn append(&self, file: File, bytes: &[u8]) -> Result<(u64, usize), Errno> {
        self.opened(file)?.vnode.append(self, bytes)
    }

    /// pread(2).
    pub fn read(&self, file: File, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.opened(file)?.vnode.read_at(self, offset, bytes)
    }

    /// fsync(2).
    pub fn sync(&self, file: File) -> Result<(), Errno> {
        self.call(proto::Sync { ino: file.local }).map(drop)
    }

    /// ftruncate(2).
    pub fn truncate(&self, file: File, size: u64) -> Result<(), Errno> {
        let ino = file.local;
        self.view()
            .update(ino, || self.call(proto::Truncate { ino, size }))
    }

    /// flock(2) and fcntl(2): takes a lock. Waits while other programs hold it, up to a limit: `EAGAIN`.
    pub fn lock(&self, file: File, lock: &Lock) -> Result<(), Errno> {
        let open = self.opened(file)?;
        let ofd = open.first_ofd();
        match lock.of {
            LockOwnerKind::Process => open.record_locks.set(true),
            LockOwnerKind::Whole | LockOwnerKind::Description => open.locked.set(true),
        }
        let kind = if lock.exclusive { WRITE } else { READ };
        for _ in 0..LOCKING.1 {
            match self.set_lock(file, ofd, lock, kind) {
                Err(Errno::AGAIN) => self.wait(self.site.pause(LOCKING.0)),
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Releases a lock.
    pub fn unlock(&self, file: File, lock: &Lock) -> Result<(), Errno> {
        let open = self.opened(file)?;
        self.set_lock(file, open.first_ofd(), lock, UNLOCK)
    }

    fn set_lock(&self, file: File, ofd: u32, lock: &Lock, kind: u32) -> Result<(), Errno> {
        let (ino, wait) = (file.local, kind != UNLOCK);
        if lock.of == LockOwnerKind::Whole {
            // LOCK_SH, LOCK_EX, LOCK_UN
            let operation = [1, 2, LOCK_UN][kind as usize];
            return self.call(proto::Flock {
                ino,
                ofd,
                operation,
                wait,
            });
        }
        self.call(proto::RecordLock {
            ino,
            ofd: (lock.of == LockOwnerKind::Description).then_some(ofd),
            kind,
            start: lock.start,
            end: lock.end,
            wait,
        })
    }

    /// close(2) of all descriptors of a file; returns true if it published the node's writes.
    pub fn close(&self, file: File) -> Result<bool, Errno> {
        let open = self.opened(file)?;
        if open.record_locks.get() {
            // The server frees the locks of a release that it does not receive.
            let _ = end_process_locks(self, file.local);
        }
        // A process that wrote nothing publishes nothing, not even the writes of other processes of its
        // node.
        self.published.set(false);
        let detached = open.vnode.publish_written(self);
        open.vnode.detach(self);
        self.files.borrow_mut().remove(&file.local);
        for (ofd, writes) in open.ofds.take() {
            if open.locked.get() {
                let _ = end_description_locks(self, file.local, ofd);
            }
            self.give_ofd(ofd);
            self.view().tell_end(file.local, writes);
        }
        detached.map(|()| self.published.get())
    }

    /// close(2) of the last descriptor, of a file that may have others.
    fn close_last(&self, file: File) -> Result<(), Errno> {
        let open = self.opened(file)?;
        if open.ofds.borrow().len() == 1 {
            return self.close(file).map(drop);
        }
        if let Some((ofd, writes)) = open.ofds.borrow_mut().pop() {
            self.give_ofd(ofd);
            self.view().tell_end(file.local, writes);
        }
        Ok(())
    }

    /// The path of a directory, as from getcwd(2).
    pub fn path(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        Ok(self.call(proto::PathOf { ino })?.path)
    }

    /// The entries of a directory, read as with repeated getdents(2).
    pub fn readdir(&self, dir: Ino) -> Result<Vec<proto::Entry>, Errno> {
        let (mut all, mut cookie, mut until) = (Vec::new(), 0, 0);
        loop {
            let op = proto::Readdir {
                ino: dir,
                cookie,
                until: Some(until),
                budget_bytes: 120,
            };
            let some = self.call(op)?;
            match some.entries.last() {
                Some(last) => cookie = last.cookie,
                None => return Ok(all),
            }
            until = some.until;
            all.extend(some.entries);
        }
    }
}

impl NodeClient for Process<'_> {
    fn names(&self) -> NamesView<'static> {
        self.site.names
    }

    fn known(&self) -> KnownNames<'static> {
        KnownNames::new(self.site.open.hub, self.site.open.known)
    }

    fn hub(&self) -> &'static Hub {
        self.site.open.hub
    }

    fn blocks(&self) -> &'static [FileBlock] {
        self.site.open.blocks
    }

    fn several(&self) -> Option<(Rank, u16)> {
        Some((self.site.params.rank, self.site.params.servers))
    }

    fn now_ns(&self) -> u64 {
        self.site.now_ns().unsigned_abs()
    }

    fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        Process::call(self, op)
    }

    fn note(&self, note: Note) {
        if self.memory.notes().push(note).is_err() && self.call(proto::HarvestRing {}).is_ok() {
            let _ = self.memory.notes().push(note);
        }
    }
}

/// The context in which a process opens a file.
struct Descriptor<'p, 'f> {
    process: &'p Process<'f>,
    access: Access,
}

impl Opening for Descriptor<'_, '_> {
    type Opened = File;

    fn writes(&self) -> bool {
        self.access.writes
    }

    fn truncates(&self) -> bool {
        self.access.truncates
    }

    fn check(&self, attr: &Attr) -> Result<(), Errno> {
        match attr.file_type() {
            FileType::File => Ok(()),
            _ => Err(Errno::ISDIR),
        }
    }

    fn open(&self, attr: &Attr, by_name: bool) -> Result<File, Errno> {
        self.process.open_known(attr, by_name, self.access)
    }

    fn attach(&self, file: &File, at: Attached) -> bool {
        let Ok(open) = self.process.opened(*file) else {
            return false;
        };
        open.vnode.attached(self.process, at.block, at.cell);
        true
    }

    fn close(&self, file: File) {
        // The caller gets the error of the open.
        let _ = self.process.close_last(file);
    }
}

impl SegmentSource for Process<'_> {
    fn segment(&self, min_bytes: u64, want_bytes: u64) -> Result<Lent, Errno> {
        self.call(proto::Segment {
            min_bytes,
            want_bytes,
        })
    }

    fn note(&self, note: Note) {
        NodeClient::note(self, note);
    }

    fn slabs(&self) -> &SlabMap {
        &self.site.machine.slabs
    }
}

impl Host for Process<'_> {
    fn token(&self, ino: Ino, needed: &Claim, wished: &Claim) -> Result<Claim, Errno> {
        self.call(proto::Token {
            ino,
            needed: *needed,
            wished: *wished,
        })
    }

    fn append(&self, ino: Ino, length: u64, reserved: Option<u64>) -> Result<u64, Errno> {
        self.call(proto::Append {
            ino,
            length,
            reserved,
        })
    }

    fn open_copy(&self, ino: Ino) -> Result<i32, Errno> {
        let file = self.view().at_once(ino, |attr, _| attr.home)?;
        match self.view().text_at(EVICTED, &name_of_inode(file))? {
            Some(_) => self.target.open(file),
            None => Err(Errno::STALE),
        }
    }

    fn audits(&self) -> bool {
        false
    }

    fn audit(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno> {
        self.call(proto::Audit {
            ino,
            offset,
            length,
        })
    }

    fn cells(&self) -> &'static [WriterCell] {
        self.site.open.cells
    }

    fn blocks(&self) -> &'static [FileBlock] {
        self.site.open.blocks
    }

    fn file(&self, ino: Ino) -> Result<FileState, Errno> {
        self.looks.set(self.looks.get() + 1);
        assert!(
            self.looks.get() < LOOKS,
            "looks at {ino:?} are never of one moment"
        );
        file_state(self, ino)
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn attach(&self, ino: Ino) -> Result<Attached, Errno> {
        self.call(proto::Attach { ino })
    }

    fn locate(&self, ino: Ino, offset: u64, length: u64) -> Result<Located, Errno> {
        self.call(proto::Locate {
            ino,
            offset,
            length,
        })
    }

    fn rank(&self) -> u16 {
        self.site.params.rank.0
    }

    fn ask(&self, ino: Ino, reads: &[Vec<LogRange>], ahead: bool) -> Result<Vec<Landing>, Errno> {
        let reads = reads.to_vec();
        self.call(proto::Fetch { ino, reads, ahead })
    }

    fn arrive(
        &self,
        landing: Landing,
        part: Range<usize>,
        wait: bool,
        show: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno> {
        let slot = self.slot(landing).ok_or(Errno::IO)?;
        loop {
            let arrived = slot.arrived().map_err(|_| Errno::IO)? as usize;
            let upto = part.end.min(arrived).max(part.start);
            if upto > part.start {
                let place = self
                    .site
                    .machine
                    .pool
                    .for_reading()
                    .part(landing.at as usize, part.end);
                let came = place.and_then(|place| place.part(part.start, upto - part.start));
                show(part.start, came.ok_or(Errno::IO)?);
            } else if wait && !part.is_empty() {
                if !self.site.lives() {
                    return Err(Errno::SHUTDOWN);
                }
                self.wait(self.site.pause(ARRIVING));
                continue;
            }
            return Ok(upto);
        }
    }

    fn slot(&self, landing: Landing) -> Option<&LandingSlot> {
        self.memory.landings().get(usize::from(landing.slot))
    }

    fn now_us(&self) -> u64 {
        self.site.now_ns().unsigned_abs() / 1_000
    }

    fn is_left_behind(&self) -> bool {
        Process::is_left_behind(self)
    }

    fn publish(&self, ino: Ino) -> Result<(), Errno> {
        let done = self.call(proto::Publish { ino });
        self.published.set(done.is_ok());
        done
    }

    fn push(&self, record: &Record) -> Result<(), Errno> {
        if self.memory.records().push(record).is_ok() {
            return Ok(());
        }
        self.call(proto::HarvestRing {})?;
        self.memory.records().push(record).map_err(|_| Errno::IO)
    }

    fn count(&self, _: Counter, _: u64) {}
}
