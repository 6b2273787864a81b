//! A process's connection to its node's server.
//!
//! A session is the client's own region (channel, rings, counters), the socket that shows each side
//! that the other lives, and the node's shared memory. It belongs to one process: a forked child
//! makes its own.
//!
//! A call is a message in one of the channels, so that threads of a process need not wait for each
//! other's replies: there are [`CHANNELS`]. The process asks for all but the first when a thread
//! first finds that one taken. The caller spins briefly if the server runs on another CPU, then
//! sleeps; from time to time it checks that the server lives, so a dead server gives ESHUTDOWN
//! within [`LOOK_MS`], never a hang.
//!
//! Locks are taken in this order: `push_lock`, `note_lock`, one of `calls`.
//!
//! | file | subject |
//! | --- | --- |
//! | `host`, `node_client` | the session as [`crate::data`] and [`crate::view`] use it |
//! | `mapped` | files of which the kernel keeps pages |

mod host;
mod mapped;
mod node_client;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{futex, membarrier, sched_getcpu, MembarrierCommand};
use rustix::time::{clock_gettime, ClockId, Timespec};
use weir_core::names::NamesView;
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::channel::{Channel, ALL_CHANNELS, CHANNELS, FIRST_CHANNEL, REQUEST, WIDEN};
use weir_core::node::landing::{LandingSlot, LANDINGS};
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{
    client_layout, ClientHeader, Counter, Hub, BELL, MAGIC, NOTE_SLOTS, RECORD_SLOTS,
    REFUSAL_NAMES, SLEEPS_AT_BELL,
};
use weir_core::node::ring::{Note, NoteRing, Record, RecordRing};
use weir_core::proto::{self, ClientKind, HarvestRing, Operation, Role, Welcome};
use weir_core::types::ClientId;
use weir_store::map::{MapError, Region};
use weir_store::slabmap::SlabMap;

use crate::data::Log;
use crate::errno::errno_of;
use crate::internal::{Internal, InternalSlot};
use crate::kernel::{self, Fd};
use crate::lock::SlowLock;
use crate::neighbour::KernelIdentity;
use crate::node::{map_file, Node};
use crate::operation;
use crate::slots::{Slot, Slots};
use crate::socket;

/// The interval at which a sleeping caller checks that the server lives, in ms.
pub const LOOK_MS: u64 = 100;

/// One process's connection.
#[derive(Debug)]
pub struct Session {
    node: &'static Node,
    welcome: Welcome,
    socket: Internal,
    /// The directory that all placeholders are descriptions of, opened with O_PATH.
    placeholder: InternalSlot,
    placeholder_identity: KernelIdentity,
    /// The run directory of the instance.
    run_dir: Vec<u8>,
    /// Wakes a server that also waits for other servers.
    bell: Option<Internal>,
    header: &'static ClientHeader,
    records: RecordRing<'static>,
    notes: NoteRing<'static>,
    channels: &'static [Channel],
    /// The reads on their way from other nodes.
    landings: &'static [LandingSlot],
    /// The threads that use channels.
    calls: Slots<CHANNELS>,
    note_lock: SlowLock,
    push_lock: SlowLock,
    slabs: &'static SlabMap,
    log: Log,
    fences: bool,
    /// True if the server was found dead or the channel broken: then no more requests are sent.
    dead: AtomicBool,
}

/// The descriptors of a session.
#[derive(Clone, Copy)]
struct SessionDescriptors {
    socket: Internal,
    placeholder: Internal,
    bell: Option<Internal>,
}

impl SessionDescriptors {
    fn close(self) {
        self.socket.close();
        self.placeholder.close();
        self.bell.into_iter().for_each(Internal::close);
    }
}

impl Session {
    /// Connects to the instance with this run directory and maps its memory.
    pub fn connect(run_dir: &[u8], kind: ClientKind) -> Result<Session, Errno> {
        Session::connect_with(run_dir, kind, |welcome| {
            let node = Node::map(welcome.shm_dir.as_bytes())?;
            Ok(Box::leak(Box::new(node)))
        })
    }

    /// As [`Session::connect`], if the node's memory is mapped already.
    pub fn connect_to(
        run_dir: &[u8],
        node: &'static Node,
        kind: ClientKind,
    ) -> Result<Session, Errno> {
        Session::connect_with(run_dir, kind, |_| Ok(node))
    }

    fn connect_with(
        run_dir: &[u8],
        kind: ClientKind,
        node: impl FnOnce(&Welcome) -> Result<&'static Node, Errno>,
    ) -> Result<Session, Errno> {
        let _signals = kernel::block_signals();
        let connected = socket::connect(run_dir, Role::Client(kind))?;
        let welcome = connected.welcome;
        let node = node(&welcome)?;
        let name = format!("client-{}", welcome.client.0);
        let region = map_file(welcome.shm_dir.as_bytes(), &name)?;
        let socket = Internal::adopt(kernel::into_number(connected.socket))?;
        let placeholder = Internal::adopt(kernel::into_number(connected.placeholder))
            .inspect_err(|_| socket.close())?;
        // Registers this process for the server's barriers, once for its memory.
        let fences = welcome.servers > 1
            && (welcome.fences || membarrier(MembarrierCommand::RegisterGlobalExpedited).is_err());
        let bell = if welcome.servers > 1 {
            // Not every server has one.
            let bell = open_bell(welcome.shm_dir.as_bytes());
            bell.and_then(Internal::adopt).ok()
        } else {
            None
        };
        let descriptors = SessionDescriptors {
            socket,
            placeholder,
            bell,
        };
        Session::over(node, welcome, descriptors, region, run_dir, fences).map_err(|_| {
            descriptors.close();
            Errno::PROTO
        })
    }

    fn over(
        node: &'static Node,
        welcome: Welcome,
        descriptors: SessionDescriptors,
        region: Region,
        run_dir: &[u8],
        fences: bool,
    ) -> Result<Session, MapError> {
        let SessionDescriptors {
            socket,
            placeholder,
            bell,
        } = descriptors;
        let layout = client_layout();
        let header: &ClientHeader = region.record(0)?;
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.id.load(Ordering::Relaxed) == welcome.client.0;
        Ok(Session {
            node,
            socket,
            placeholder_identity: placeholder.identity(),
            placeholder: InternalSlot::holding(placeholder),
            bell,
            run_dir: run_dir.to_vec(),
            header,
            records: RecordRing {
                ends: &header.records,
                slots: region.slice(layout.records, RECORD_SLOTS)?,
            },
            notes: NoteRing {
                ends: &header.notes,
                slots: region.slice(layout.notes, NOTE_SLOTS)?,
            },
            channels: region.slice(layout.channels, CHANNELS)?,
            landings: region.slice(layout.landings, LANDINGS)?,
            calls: Slots::new(),
            note_lock: SlowLock::new(),
            push_lock: SlowLock::new(),
            slabs: node.slabs(&welcome.storage_dirs),
            log: Log::new(),
            welcome,
            fences,
            dead: AtomicBool::new(!ours),
        })
    }

    /// The node's slabs.
    #[inline]
    pub fn slabs(&self) -> &'static SlabMap {
        self.slabs
    }

    /// The process's log.
    #[inline]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The node's shared memory.
    #[inline]
    pub fn node(&self) -> &'static Node {
        self.node
    }

    /// The head of the `open` region.
    #[inline]
    pub fn hub(&self) -> &'static Hub {
        self.node.hub()
    }

    /// The open file descriptions.
    #[inline]
    pub fn ofds(&self) -> &'static [Ofd] {
        self.node.ofds()
    }

    /// The blocks of files open for writing.
    #[inline]
    pub fn blocks(&self) -> &'static [FileBlock] {
        self.node.blocks()
    }

    /// The writers' cells.
    #[inline]
    pub fn cells(&self) -> &'static [Cell] {
        self.node.cells()
    }

    /// The namespace.
    #[inline]
    pub fn names(&self) -> NamesView<'static> {
        self.node.names()
    }

    /// The run directory of the instance.
    pub fn run_dir(&self) -> &[u8] {
        &self.run_dir
    }

    /// The head of the client's region: counters.
    #[inline]
    pub fn header(&self) -> &'static ClientHeader {
        self.header
    }

    /// The client's number.
    #[inline]
    pub fn client_id(&self) -> ClientId {
        self.welcome.client
    }

    /// The server's greeting.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The kernel's identity of the placeholder directory.
    pub fn placeholder_identity(&self) -> KernelIdentity {
        self.placeholder_identity
    }

    /// The placeholder directory, opened with O_PATH.
    pub fn placeholder(&self) -> Fd {
        self.placeholder.get().map_or(-1, Internal::number)
    }

    /// The same, if the descriptor still refers to the directory that the server gave.
    pub fn sure_placeholder(&self) -> Option<Fd> {
        self.placeholder.get().and_then(Internal::sure)
    }

    /// Asks the server for it again: it was closed behind our back. One caller at a time.
    pub fn renew_placeholder(&self, run_dir: &[u8]) -> Result<(), Errno> {
        let _signals = kernel::block_signals();
        let connected = socket::connect(run_dir, Role::Control)?;
        let placeholder = Internal::adopt(kernel::into_number(connected.placeholder))?;
        if let Some(lost) = self.placeholder.take_descriptor() {
            lost.close();
        }
        self.placeholder.set(placeholder);
        Ok(())
    }

    /// The word that changes when a lock that a thread of this process waits for may be free; a
    /// futex shared with the server.
    pub fn event(&self) -> &'static AtomicU32 {
        &self.header.event
    }

    /// The slots of the reads on their way from other nodes.
    pub fn landings(&self) -> &'static [LandingSlot] {
        self.landings
    }

    /// True if a writer of a raw file must execute a barrier after each write, because the server
    /// cannot make this process execute one.
    pub fn fences(&self) -> bool {
        self.fences
    }

    /// True if there is one server, and no written bytes can be in the file tier: then a sync has
    /// nothing to do.
    pub fn is_all_in_memory(&self) -> bool {
        self.welcome.servers <= 1 && self.hub().uses_files.load(Ordering::Acquire) == 0
    }

    /// True if the server is gone.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Adds to a counter of the report.
    #[inline]
    pub fn count(&self, counter: Counter, n: u64) {
        self.header.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a call that was refused, by its name in [`REFUSAL_NAMES`] ("other" if it
    /// has none).
    pub fn refuse(&self, name: &str) {
        let at = REFUSAL_NAMES.iter().position(|known| *known == name);
        let at = at.unwrap_or(REFUSAL_NAMES.len() - 1);
        self.header.refused[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the server to do `op`. ESHUTDOWN: the server is gone; EDEADLK: called from within other
    /// calls of the same thread, which have all channels.
    pub fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        // Once for all locks below.
        let _signals = kernel::block_signals();
        let slot = self.free_channel();
        let slot = slot.or_else(|| self.calls.hold(self.usable()));
        self.call_in(slot.ok_or(Errno::DEADLK)?.place(), op)
    }

    /// As [`Session::call`], or `None` if that would have to wait for other threads' calls. For
    /// callers that hold resources that others wait for.
    pub fn call_at_once<O: Operation>(&self, op: O) -> Option<Result<O::Reply, Errno>> {
        let slot = self.free_channel()?;
        Some(self.call_in(slot.place(), op))
    }

    /// A channel that no thread uses, if there is one.
    fn free_channel(&self) -> Option<Slot<'_, CHANNELS>> {
        self.calls.try_hold(self.usable()).or_else(|| {
            self.widen();
            self.calls.try_hold(self.usable())
        })
    }

    /// Calls through a channel that the caller holds.
    fn call_in<O: Operation>(&self, place: usize, op: O) -> Result<O::Reply, Errno> {
        let mut bytes = Vec::with_capacity(512);
        proto::request(op, &mut bytes);
        self.exchange(place, &mut bytes)?;
        proto::reply::<O>(&bytes).map_err(|error| errno_of(O::OBJECT, error))
    }

    /// Hands a closed record to the server; waits for room if the ring is full.
    pub fn push(&self, record: &Record) -> Result<(), Errno> {
        let _held = self.push_lock.hold();
        if self.records.push(record).is_ok() {
            return Ok(());
        }
        self.call(HarvestRing {})?;
        self.records.push(record).map_err(|_| Errno::IO)
    }

    /// Sends the server a note without waiting for it (unless the ring is full).
    pub fn note(&self, note: Note) {
        let _held = self.note_lock.hold();
        if self.notes.push(note).is_err() {
            // If even that fails, the server is gone, and the note is pointless.
            if self.call(HarvestRing {}).is_ok() {
                let _ = self.notes.push(note);
            }
        } else if self.notes.waiting() > NOTE_SLOTS / 2 {
            self.ring();
        }
    }

    /// Closes the socket: the session is over, or belongs to the parent of this process.
    pub fn hang_up(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.socket.close();
        self.placeholder
            .take_descriptor()
            .into_iter()
            .for_each(Internal::close);
        self.bell.into_iter().for_each(Internal::close);
    }

    /// The number of channels that may be used.
    fn usable(&self) -> usize {
        match self.header.channels.load(Ordering::Acquire) {
            ALL_CHANNELS => CHANNELS,
            _ => 1,
        }
    }

    /// Asks for the use of all channels, unless that was done already, and waits for the answer.
    fn widen(&self) {
        let channels = &self.header.channels;
        if self.is_dead() || channels.load(Ordering::Acquire) != FIRST_CHANNEL {
            return;
        }
        self.header.asked.fetch_or(WIDEN, Ordering::SeqCst);
        self.ring();
        while channels.load(Ordering::Acquire) == FIRST_CHANNEL {
            let slept = sleep_on(channels, FIRST_CHANNEL);
            if slept == Err(Errno::TIMEDOUT) && self.server_gone() {
                return;
            }
        }
    }

    /// Sends `bytes` through a channel that the caller holds and fills them with the reply.
    fn exchange(&self, place: usize, bytes: &mut Vec<u8>) -> Result<(), Errno> {
        let channel = &self.channels[place];
        if self.is_dead() || !channel.is_idle() {
            self.dead.store(true, Ordering::Relaxed);
            return Err(Errno::SHUTDOWN);
        }
        channel
            .put_request(bytes, operation::spent_ms())
            .map_err(|_| Errno::NAMETOOLONG)?;
        self.header.asked.fetch_or(1 << place, Ordering::SeqCst);
        self.count(Counter::Requests, 1);
        self.ring();
        self.await_reply(channel)?;
        bytes.clear();
        channel.take_reply(bytes);
        Ok(())
    }

    /// Rings the server's bell and wakes it if it sleeps.
    fn ring(&self) {
        let hub = self.hub();
        if !hub.ring(self.client_id().0) {
            return;
        }
        // The word is cleared so that a server about to sleep on it does not.
        match hub.server_sleeps.swap(0, Ordering::SeqCst) {
            0 => {}
            SLEEPS_AT_BELL => self.ring_bell(),
            _ => {
                let _ = futex::wake(&hub.server_sleeps, futex::Flags::empty(), 1);
            }
        }
    }

    /// Wakes a server that also waits for other servers.
    #[cold]
    fn ring_bell(&self) {
        let bell = self.bell.and_then(Internal::sure).map(kernel::borrow);
        if let Some(Ok(bell)) = bell {
            match rustix::io::write(bell, &[1]) {
                // If the pipe is full, others have rung.
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(_) => {}
            }
        }
        // The program closed ours: open another one, for this once.
        if let Ok(number) = open_bell(self.node.shm_dir()) {
            if let Ok(bell) = kernel::borrow(number) {
                let _ = rustix::io::write(bell, &[1]);
            }
            let _ = kernel::close(number);
        }
    }

    fn await_reply(&self, channel: &Channel) -> Result<(), Errno> {
        if self.spin(channel) {
            return Ok(());
        }
        let begin_ns = now_ns();
        channel.begin_sleep();
        let mut outcome = Ok(());
        while !channel.has_reply() {
            if sleep_on(channel.word(), REQUEST) == Err(Errno::TIMEDOUT) && self.server_gone() {
                // It may have answered just before.
                if !channel.has_reply() {
                    self.dead.store(true, Ordering::Relaxed);
                    outcome = Err(Errno::SHUTDOWN);
                }
                break;
            }
        }
        channel.end_sleep();
        operation::waited(now_ns().saturating_sub(begin_ns));
        outcome
    }

    /// Waits for the reply without sleeping, if the server can run meanwhile.
    fn spin(&self, channel: &Channel) -> bool {
        let here = u32::try_from(sched_getcpu()).unwrap_or(u32::MAX);
        if self.hub().server_cpu.load(Ordering::Relaxed) == here {
            return channel.has_reply();
        }
        let end = now_ns() + u64::from(self.welcome.spin_us) * 1_000;
        loop {
            for _ in 0..16 {
                if channel.has_reply() {
                    return true;
                }
                core::hint::spin_loop();
            }
            if now_ns() >= end {
                return false;
            }
        }
    }

    /// True if nobody holds the lock that a server holds while it lives. For programs that closed
    /// the socket unseen: the server keeps them for as long as they live.
    fn is_unguarded(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(self.node.shm_dir(), flags, Mode::empty()) {
            Ok(dir) => kernel::into_number(dir),
            // A failure to open it now (no descriptor is left) proves nothing.
            Err(error) => return matches!(error, Errno::NOENT | Errno::NOTDIR),
        };
        let locked = kernel::borrow(dir)
            .and_then(|dir| rustix::fs::flock(dir, FlockOperation::NonBlockingLockShared));
        let _ = kernel::close(dir);
        locked.is_ok()
    }

    /// Blocks until the server has closed the session: it has stopped or died.
    pub fn wait_for_end(&self) {
        while !self.server_gone() {
            let Some(Ok(socket)) = self.socket.sure().map(kernel::borrow) else {
                return;
            };
            let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
            let _ = poll(&mut fds, None);
        }
    }

    /// True if the server has stopped or died.
    pub fn server_gone(&self) -> bool {
        if self.is_dead() || self.hub().stopped.load(Ordering::Acquire) != 0 {
            return true;
        }
        let Some(Ok(socket)) = self.socket.sure().map(kernel::borrow) else {
            return self.is_unguarded();
        };
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..) if fds[0].revents().intersects(gone))
    }
}

/// Opens the server's bell: for reading too, so that a dead server causes no SIGPIPE.
fn open_bell(shm_dir: &[u8]) -> Result<Fd, Errno> {
    let path = [shm_dir, b"/", BELL.as_bytes()].concat();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(kernel::into_number)
}

/// Sleeps on a futex shared with the server for at most [`LOOK_MS`].
pub fn sleep_on(word: &AtomicU32, seen: u32) -> Result<(), Errno> {
    let limit = Duration::from_millis(LOOK_MS);
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().into(),
    };
    futex::wait(word, futex::Flags::empty(), seen, Some(&limit))
}

pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}
