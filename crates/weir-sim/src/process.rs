//! A client process: the data path of `weir-client` over the simulated node, and its decisions
//! about names, files and descriptors as far as several servers come in.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use weir_client::data::{file_state, FileState, Host, Log, Tables, Vnode};
use weir_client::errno::errno_of;
use weir_core::names::{Attr, FileType, ViewError};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell as WriterCell;
use weir_core::node::claim::Claim;
use weir_core::node::known::KnownNames;
use weir_core::node::landing::LandingSlot;
use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::node::region::Counter;
use weir_core::node::ring::{Note, Record};
use weir_core::placement::home_of_entry;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{self, Attached, Child, Landing, Lent, Located, Operation};
use weir_core::types::{ClientId, Ino};
use weir_server::cluster::ROOT;
use weir_server::node::ClientMemory;
use weir_store::slabmap::{SlabMap, Window};

use crate::fiber::Waiter;
use crate::locks::{Lock, Of};
use crate::machine::Memory;
use crate::site::Site;

/// How often the server is asked to get done with a change of the tables.
const PATIENCE: u32 = 1000;

/// How often a program that waits for bytes of other nodes looks for them.
const ARRIVING: Duration = Duration::from_micros(100);

/// How often a program that waits for a lock asks for it, and how many times: here no signal tells
/// it that it may be free.
const LOCKING: (Duration, u32) = (Duration::from_millis(20), 50);

/// `F_RDLCK`, `F_WRLCK` and `F_UNLCK` of fcntl(2).
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = 2;

/// A look at a file is repeated less often than this until it is of one moment: here nothing else
/// runs meanwhile.
const LOOKS: u32 = 10_000;

/// A file that the process has open.
struct Open {
    vnode: Vnode,
    /// Its description's place in the table.
    ofd: u32,
    /// True once a lock of the description was asked for.
    locked: Cell<bool>,
    /// True once a record lock of the process was asked for.
    record_locks: Cell<bool>,
}

/// One process.
pub struct Process<'f> {
    site: Rc<Site>,
    id: ClientId,
    memory: Arc<Memory>,
    waiter: &'f Waiter<'f>,
    log: Log,
    ofds: Cell<(u32, u32)>,
    free_ofds: RefCell<Vec<u32>>,
    files: RefCell<BTreeMap<Ino, Rc<Open>>>,
    /// Whether the last close published what the node wrote.
    published: Cell<bool>,
    /// Looks at files since it waited last.
    looks: Cell<u32>,
}

/// An open file: its number in the node's table, and everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    local: Ino,
    /// Its number everywhere.
    pub home: Ino,
}

impl<'f> Process<'f> {
    /// A process that the server took in.
    pub fn new(
        site: Rc<Site>,
        (id, memory): (ClientId, Arc<Memory>),
        waiter: &'f Waiter<'f>,
    ) -> Process<'f> {
        Process {
            site,
            id,
            memory,
            waiter,
            log: Log::new(),
            ofds: Cell::new((0, 0)),
            free_ofds: RefCell::default(),
            files: RefCell::default(),
            published: Cell::new(false),
            looks: Cell::new(0),
        }
    }

    /// Waits.
    pub fn wait<T>(&self, future: impl std::future::Future<Output = T>) -> T {
        self.looks.set(0);
        self.waiter.wait(future)
    }

    /// Whether the server that took it in was killed.
    pub fn is_orphaned(&self) -> bool {
        !self.site.lives()
    }

    /// Whether another server has come after that one.
    pub fn is_left_behind(&self) -> bool {
        self.site.open.hub.stopped.load(SeqCst) != 0
    }

    /// Has the server do `op`.
    pub fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        let mut request = Vec::new();
        proto::request(op, &mut request);
        let asked = Rc::clone(&self.site).ask(self.id, request);
        let reply = self.waiter.wait(asked).ok_or(Errno::SHUTDOWN)?;
        proto::reply::<O>(&reply).map_err(|error| errno_of(O::NAME, error))
    }

    fn settled<T>(&self, ask: impl Fn() -> Result<T, ViewError>) -> Result<T, Errno> {
        for _ in 0..PATIENCE {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(ViewError::BufferTooSmall) => return Err(Errno::NAMETOOLONG),
                Err(ViewError::Unsettled) => self.call(proto::Ping {})?,
            }
        }
        Err(Errno::IO)
    }

    /// What a name names. With `ask`, by a request also where the entry is this node's.
    pub fn find(&self, dir: Ino, name: &[u8], ask: bool) -> Result<Option<Child>, Errno> {
        if !ask {
            let found = self.settled(|| self.site.names.lookup(dir, name))?;
            let which = &self.site.which;
            let known = self.known();
            // Nothing else runs between the look at the table and this one.
            let is_all = match dir == ROOT {
                true => home_of_entry(dir, name, which.servers) == which.rank,
                false => known.is_some_and(|known| known.all_here(dir).is_some()),
            };
            let found = found.or_else(|| known?.entry(dir, name));
            if found.is_some() || is_all {
                return Ok(found.map(|(ino, kind)| Child { ino, kind }));
            }
        }
        let name = name.to_vec();
        match self.call(proto::Find { dir, name }) {
            Err(Errno::NOENT) => Ok(None),
            found => found,
        }
    }

    /// The table of known names, unless that is in doubt.
    fn known(&self) -> Option<KnownNames<'static>> {
        let open = &self.site.open;
        let doubted = open.hub.is_in_doubt(|| self.site.now_ns().unsigned_abs());
        (!doubted).then(|| KnownNames::new(open.hub, open.known))
    }

    /// The attributes of a file of another server, if the table of this node has them.
    fn stand_in_attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        let Some(local) = self.known().and_then(|known| known.stand_in(ino)) else {
            return Ok(None);
        };
        let attr = self.settled(|| self.site.names.attr(local))?;
        Ok(attr.filter(|attr| attr.is_believed_of(ino) && !self.doubts(attr)))
    }

    /// The attributes, with all that several servers know.
    pub fn attr(&self, ino: Ino) -> Result<Attr, Errno> {
        if ino.rank() == self.site.which.rank {
            let mut attr = self.settled(|| self.site.names.attr(ino))?;
            if attr.is_some_and(|attr| !attr.fresh) {
                self.call(proto::Lease { ino })?;
                attr = self.settled(|| self.site.names.attr(ino))?;
            }
            match attr {
                None => return Err(Errno::NOENT),
                Some(attr) if attr.file_type() != FileType::Dir => return Ok(attr),
                Some(_) => {}
            }
        }
        match self.stand_in_attr(ino)? {
            Some(attr) => Ok(attr),
            None => self.call(proto::GetAttr { ino }),
        }
    }

    /// Makes a file and opens it; if there was one already, its number alone. `ECANCELED`: it
    /// was made, and could not be opened.
    pub fn create(
        &self,
        dir: Ino,
        name: &[u8],
        exclusive: bool,
    ) -> Result<(Ino, Option<File>), Errno> {
        let op = proto::Create {
            parent: dir,
            name: name.to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive,
            attach: true,
        };
        let made = loop {
            let made = self.call(op.clone())?;
            if made.new || !made.held {
                break made;
            }
            // By its number in this node's table, which others do not know.
            let attr = self.settled(|| self.site.names.attr(made.ino))?;
            if let Some(attr) = attr {
                return Ok((attr.home, None));
            }
            // It has gone meanwhile.
        };
        if !made.new {
            return Ok((made.ino, None));
        }
        let opened = self.open_made(made.ino);
        match (made.attached, &opened) {
            (Some(at), Ok(file)) => {
                let open = self.opened(*file)?;
                open.vnode.attached(self, at.block, at.cell);
            }
            (Some(at), Err(_)) => self.note(Note::Detach(at.cell)),
            (None, _) => return Err(Errno::IO),
        }
        let opened = opened.map(|file| (file.home, Some(file)));
        opened.map_err(|_| Errno::CANCELED)
    }

    fn open_made(&self, local: Ino) -> Result<File, Errno> {
        let attr = self.settled(|| self.site.names.attr(local))?;
        self.open_known(&attr.ok_or(Errno::NOENT)?)
    }

    /// Opens a file.
    pub fn open(&self, ino: Ino) -> Result<File, Errno> {
        let attr = self.call(proto::Hold { ino, write: true })?;
        self.open_known(&attr)
    }

    fn open_known(&self, attr: &Attr) -> Result<File, Errno> {
        if attr.file_type() != FileType::File {
            return Err(Errno::ISDIR);
        }
        let file = File {
            local: attr.ino,
            home: attr.home,
        };
        if self.files.borrow().contains_key(&file.local) {
            return Ok(file);
        }
        let ofd = self.take_ofd()?;
        self.description(ofd)?.open(file.local.0, 0);
        let alive = self.settled(|| self.site.names.attr(file.local));
        if !matches!(alive, Ok(Some(_))) {
            self.give_ofd(ofd);
            return Err(Errno::NOENT);
        }
        let vnode = Vnode::new();
        vnode.open(file.local);
        let open = Rc::new(Open {
            vnode,
            ofd,
            locked: Cell::new(false),
            record_locks: Cell::new(false),
        });
        self.files.borrow_mut().insert(file.local, open);
        Ok(file)
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

    /// write(2) with O_APPEND; where, and how much.
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
        self.call(proto::Truncate { ino, size })
    }

    /// flock(2) and fcntl(2): takes a lock. Waits for one that others have, but not for ever:
    /// `EAGAIN`.
    pub fn lock(&self, file: File, lock: &Lock) -> Result<(), Errno> {
        let open = self.opened(file)?;
        match lock.of {
            Of::Process => open.record_locks.set(true),
            Of::Whole | Of::Description => open.locked.set(true),
        }
        let kind = if lock.exclusive { WRITE } else { READ };
        for _ in 0..LOCKING.1 {
            match self.set_lock(file, open.ofd, lock, kind) {
                Err(Errno::AGAIN) => self.wait(self.site.pause(LOCKING.0)),
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Gives a lock back.
    pub fn unlock(&self, file: File, lock: &Lock) -> Result<(), Errno> {
        let open = self.opened(file)?;
        self.set_lock(file, open.ofd, lock, UNLOCK)
    }

    fn set_lock(&self, file: File, ofd: u32, lock: &Lock, kind: u32) -> Result<(), Errno> {
        let (ino, wait) = (file.local, kind != UNLOCK);
        if lock.of == Of::Whole {
            // LOCK_SH, LOCK_EX, LOCK_UN
            let operation = [1, 2, 8][kind as usize];
            return self.call(proto::Flock {
                ino,
                ofd,
                operation,
                wait,
            });
        }
        self.call(proto::RecordLock {
            ino,
            ofd: (lock.of == Of::Description).then_some(ofd),
            kind,
            start: lock.start,
            end: lock.end,
            wait,
        })
    }

    /// close(2); whether what the node wrote is published by it.
    pub fn close(&self, file: File) -> Result<bool, Errno> {
        let open = self.opened(file)?;
        let give_back = |of| {
            // The server frees what it does not hear of.
            let _ = self.set_lock(file, open.ofd, &Lock::of_all(of), UNLOCK);
        };
        if open.record_locks.get() {
            give_back(Of::Process);
        }
        // A process that wrote nothing publishes nothing, neither what others of its node wrote.
        self.published.set(false);
        let detached = open.vnode.publish_written(self);
        open.vnode.detach(self);
        self.files.borrow_mut().remove(&file.local);
        if open.locked.get() {
            give_back(Of::Description);
            give_back(Of::Whole);
        }
        self.give_ofd(open.ofd);
        let named = self.settled(|| self.site.names.attr(file.local));
        if !matches!(named, Ok(Some(attr)) if attr.nlink > 0) {
            self.note(Note::Orphan(file.local.0));
        }
        detached.map(|()| self.published.get())
    }

    /// The path of a directory, as getcwd(2) has it.
    pub fn path(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.call(proto::PathOf { ino })
    }

    /// Entries of a directory, as getdents(2) is asked for them until there are no more.
    pub fn readdir(&self, dir: Ino) -> Result<Vec<proto::Entry>, Errno> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let op = proto::Readdir {
                ino: dir,
                cookie,
                budget_bytes: 120,
            };
            let some = self.call(op)?;
            match some.last() {
                Some(last) => cookie = last.cookie,
                None => return Ok(all),
            }
            all.extend(some);
        }
    }
}

impl Tables for Process<'_> {
    fn attr(&self, ino: Ino) -> Result<Option<Attr>, ViewError> {
        self.site.names.attr(ino)
    }

    fn doubts(&self, attr: &Attr) -> bool {
        let now_ns = || self.site.now_ns().unsigned_abs();
        self.site.open.hub.doubts(attr, now_ns)
    }

    fn lease(&self, ino: Ino) -> Result<(), Errno> {
        self.call(proto::Lease { ino })
    }

    fn settle(&self) -> Result<(), Errno> {
        self.call(proto::Ping {})
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

    fn segment(&self, min_bytes: u64, want_bytes: u64) -> Result<Lent, Errno> {
        self.call(proto::Segment {
            min_bytes,
            want_bytes,
        })
    }

    fn locate(&self, ino: Ino, offset: u64, length: u64) -> Result<Located, Errno> {
        self.call(proto::Locate {
            ino,
            offset,
            length,
        })
    }

    fn rank(&self) -> u16 {
        self.site.which.rank.0
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
        show: &mut dyn FnMut(usize, Window),
    ) -> Result<usize, Errno> {
        let slot = self.slot(landing).ok_or(Errno::IO)?;
        loop {
            let arrived = slot.arrived().map_err(|_| Errno::IO)? as usize;
            let upto = part.end.min(arrived).max(part.start);
            if upto > part.start {
                let place = self.site.pool().part(landing.at as usize, part.end);
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
        self.memory.arriving().get(usize::from(landing.slot))
    }

    fn now_us(&self) -> u64 {
        self.site.now_ns().unsigned_abs() / 1_000
    }

    fn is_left_behind(&self) -> bool {
        Process::is_left_behind(self)
    }

    fn publish(&self, ino: Ino) -> Result<(), Errno> {
        let done = self.call(proto::Flush { ino });
        self.published.set(done.is_ok());
        done
    }

    fn push(&self, record: &Record) -> Result<(), Errno> {
        if self.memory.records().push(record).is_ok() {
            return Ok(());
        }
        self.call(proto::Publish {})?;
        self.memory.records().push(record).map_err(|_| Errno::IO)
    }

    fn note(&self, note: Note) {
        if self.memory.notes().push(note).is_err() && self.call(proto::Publish {}).is_ok() {
            let _ = self.memory.notes().push(note);
        }
    }

    fn slabs(&self) -> &SlabMap {
        self.site.storage.slabs()
    }

    fn count(&self, _: Counter, _: u64) {}
}
