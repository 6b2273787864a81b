//! The reading thread: sends READs and receives the bytes into their landings.
//!
//! The I/O thread, which does the handshake, makes a connection to a server at the first read from
//! it. While that fails it is tried again for [`Timing::give_up`]; later reads do not wait for a
//! server that was given up.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream as StdStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token as Key};
use weir_core::types::Rank;

use super::{Landing, LaneLoad, ReadError};
use crate::command::IoCommand;
use crate::conn::{is_silence, ConnectionError, Outgoing, SILENCE};
use crate::frame::{FrameHead, FrameKind, Malformed, HEAD_BYTES};
use crate::mailbox::{mailbox, MailboxReceiver, MailboxSender};
use crate::{CallError, CallId, Message, Timing};

const WAKER: Key = Key(0);
const FIRST: usize = 1;
/// The interval of deadline checks while a reply is awaited.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The delay before another attempt to reach a server.
const RETRY_INTERVAL: Duration = Duration::from_millis(30);
/// The interval between attempts to reach a lost server that sends nothing ([`crate::links`]), and
/// how long after the last read they go on.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
const PROBE_PERIOD: Duration = Duration::from_secs(30);
/// A refused connection fails faster than this.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// The read size for bytes that no read waits for any more.
const SCRATCH_BYTES: usize = 64 << 10;

/// A read under way.
pub struct PendingRead {
    /// Its id.
    pub id: CallId,
    /// READ's body.
    pub body: Vec<u8>,
    /// The number of bytes asked for.
    pub bytes: usize,
    /// The destination.
    pub landing: Box<dyn Landing>,
    /// The time at which it fails.
    pub deadline: Instant,
    /// Its share of the lane's load.
    pub load: LaneLoad,
}

impl PendingRead {
    /// Ends the read. The load is released first, so that a receiver that reads again sees the lane
    /// without it.
    pub fn finish(self, result: Result<(), ReadError>) {
        drop(self.load);
        self.landing.finish(result);
    }
}

/// Commands to the thread.
pub enum ReaderCommand {
    /// Read from a server.
    Read(Rank, PendingRead),
    /// A server was reached.
    Reached(Rank, StdStream),
    /// A server was not reached.
    NotReached(Rank),
    /// End the thread.
    End,
}

/// Servers that a lane gave up and no lane has reached since: no lane waits for them again.
#[derive(Debug, Default)]
pub struct LostServers(Mutex<BTreeSet<Rank>>);

impl LostServers {
    fn set(&self) -> MutexGuard<'_, BTreeSet<Rank>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, rank: Rank) {
        self.set().insert(rank);
    }

    fn reached(&self, rank: Rank) {
        self.set().remove(&rank);
    }

    fn has(&self, rank: Rank) -> bool {
        self.set().contains(&rank)
    }
}

/// The state of the connection to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LinkState {
    #[default]
    None,
    Dialling,
    /// Not reached: to be dialled again at this time.
    RetryAt(Instant),
    Up(Key),
}

/// A server that is read from.
#[derive(Default)]
struct Peer {
    link: LinkState,
    /// Reads without a reply.
    reads: BTreeMap<CallId, PendingRead>,
    failing_since: Option<Instant>,
    /// This lane gave the server up and has not reached it since.
    lost: bool,
    /// The time of the last attempt, and whether it ended without any packet from there.
    dialled: Option<Instant>,
    silent: bool,
    /// The time of the last read.
    asked: Option<Instant>,
}

impl Peer {
    /// Returns true if the server is lost and is being dialled, so that no read is to wait for it.
    fn is_shunned(&self) -> bool {
        self.lost && self.silent && matches!(self.link, LinkState::RetryAt(_) | LinkState::Dialling)
    }
}

/// A reply being received.
struct IncomingReply {
    /// `None`: no read waits for it any more.
    read: Option<PendingRead>,
    at: usize,
    bytes: usize,
}

struct LaneConnection {
    socket: TcpStream,
    rank: Rank,
    outgoing: Outgoing,
    head: [u8; HEAD_BYTES],
    got: usize,
    arriving: Option<IncomingReply>,
}

/// The thread's state.
pub struct ReaderThread {
    poll: Poll,
    commands: MailboxReceiver<ReaderCommand>,
    /// The lane's number, for connections.
    lane: usize,
    dial: MailboxSender<IoCommand>,
    lost_servers: Arc<LostServers>,
    timing: Timing,
    peers: HashMap<Rank, Peer>,
    conns: HashMap<Key, LaneConnection>,
    next_key: usize,
    /// Connections that may have bytes.
    ready: VecDeque<Key>,
    scratch: Vec<u8>,
    checked_at: Instant,
}

impl ReaderThread {
    /// Creates the thread of a lane and its mailbox. Connections are requested at `dial`.
    pub fn new(
        lane: usize,
        timing: Timing,
        dial: MailboxSender<IoCommand>,
        lost_servers: Arc<LostServers>,
    ) -> std::io::Result<(MailboxSender<ReaderCommand>, ReaderThread)> {
        let poll = Poll::new()?;
        let (sender, commands) = mailbox(&poll, WAKER)?;
        let thread = ReaderThread {
            poll,
            commands,
            lane,
            dial,
            lost_servers,
            timing,
            peers: HashMap::new(),
            conns: HashMap::new(),
            next_key: FIRST,
            ready: VecDeque::new(),
            scratch: Vec::new(),
            checked_at: Instant::now(),
        };
        Ok((sender, thread))
    }

    /// Runs until told to end.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let awaits = self.conns.values().any(|conn| conn.arriving.is_some())
                || self.peers.values().any(|peer| {
                    !peer.reads.is_empty() || matches!(peer.link, LinkState::RetryAt(_))
                });
            let timeout = match (self.ready.is_empty(), awaits) {
                (false, _) => Some(Duration::ZERO),
                (true, true) => Some(self.next_check()),
                (true, false) => None,
            };
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the fabric cannot wait for its sockets");
                    break;
                }
            }
            for event in &events {
                if event.token() != WAKER {
                    self.note_ready(event.token(), event.is_writable());
                }
            }
            if !self.run_commands() {
                break;
            }
            self.receive_all();
            self.check_deadlines();
        }
        for peer in std::mem::take(&mut self.peers).into_values() {
            fail_all(peer.reads, CallError::Ended);
        }
        for conn in std::mem::take(&mut self.conns).into_values() {
            if let Some(read) = conn.arriving.and_then(|arriving| arriving.read) {
                read.finish(Err(CallError::Ended.into()));
            }
        }
    }

    fn next_check(&self) -> Duration {
        let now = Instant::now();
        let again = self.peers.values().filter_map(|peer| match peer.link {
            LinkState::RetryAt(at) => Some(at.saturating_duration_since(now)),
            _ => None,
        });
        again.min().unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL)
    }

    fn note_ready(&mut self, key: Key, writable: bool) {
        if writable {
            self.flush(key);
        }
        if !self.ready.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Carries out commands; returns false at the end.
    fn run_commands(&mut self) -> bool {
        self.commands.mark_awake();
        while let Some(command) = self.commands.next() {
            match command {
                ReaderCommand::Read(to, read) => self.ask(to, read),
                ReaderCommand::Reached(rank, socket) => self.reached(rank, socket),
                ReaderCommand::NotReached(rank) => self.not_reached(rank),
                ReaderCommand::End => return false,
            }
        }
        true
    }

    fn ask(&mut self, to: Rank, read: PendingRead) {
        let peer = self.peers.entry(to).or_default();
        peer.asked = Some(Instant::now());
        if peer.is_shunned() {
            return read.finish(Err(CallError::Unreachable.into()));
        }
        match peer.link {
            LinkState::Up(key) => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    push(&mut conn.outgoing, &read);
                }
                peer.reads.insert(read.id, read);
                self.flush(key);
            }
            link => {
                peer.reads.insert(read.id, read);
                if link == LinkState::None {
                    self.dial(to);
                }
            }
        }
    }

    fn dial(&mut self, to: Rank) {
        let peer = self.peers.entry(to).or_default();
        peer.link = LinkState::Dialling;
        peer.dialled = Some(Instant::now());
        peer.failing_since.get_or_insert_with(Instant::now);
        if self.dial.send(IoCommand::Dial(to, self.lane)).is_err() {
            self.not_reached(to);
        }
    }

    fn reached(&mut self, rank: Rank, socket: StdStream) {
        let key = Key(self.next_key);
        self.next_key += 1;
        let mut socket = TcpStream::from_std(socket);
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        if let Err(error) = registry.register(&mut socket, key, both) {
            tracing::warn!(%error, "a socket cannot be polled");
            return self.not_reached(rank);
        }
        let peer = self.peers.entry(rank).or_default();
        peer.link = LinkState::Up(key);
        (peer.failing_since, peer.lost, peer.silent) = (None, false, false);
        self.lost_servers.reached(rank);
        let mut outgoing = Outgoing::default();
        for read in peer.reads.values() {
            push(&mut outgoing, read);
        }
        let conn = LaneConnection {
            socket,
            rank,
            outgoing,
            head: [0; HEAD_BYTES],
            got: 0,
            arriving: None,
        };
        self.conns.insert(key, conn);
        self.flush(key);
    }

    fn not_reached(&mut self, rank: Rank) {
        let now = Instant::now();
        let give_up = self.timing.give_up;
        let peer = self.peers.entry(rank).or_default();
        let since = *peer.failing_since.get_or_insert(now);
        peer.silent = peer
            .dialled
            .is_some_and(|at| now.duration_since(at) > REFUSAL_TIME);
        let lost = peer.lost || self.lost_servers.has(rank);
        if lost || now.duration_since(since) >= give_up {
            self.lost_servers.add(rank);
            let asked = peer.asked.map(|at| now.duration_since(at) < PROBE_PERIOD);
            peer.link = match peer.silent && asked == Some(true) {
                true => LinkState::RetryAt(now + PROBE_INTERVAL),
                false => LinkState::None,
            };
            (peer.failing_since, peer.lost) = (None, true);
            fail_all(std::mem::take(&mut peer.reads), CallError::Unreachable);
        } else if peer.reads.is_empty() {
            (peer.link, peer.failing_since) = (LinkState::None, None);
        } else {
            peer.link = LinkState::RetryAt(now + RETRY_INTERVAL);
        }
    }

    fn flush(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(&key) else {
            return;
        };
        if let Err(broken) = conn.outgoing.write_to(&mut conn.socket) {
            self.close(key, &broken);
        }
    }

    /// Reads once from each connection that may have bytes.
    fn receive_all(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else {
                return;
            };
            match self.receive(key) {
                Ok(true) => self.ready.push_back(key),
                Ok(false) => {}
                Err(broken) => self.close(key, &broken),
            }
        }
    }

    /// Reads once; returns false if no more bytes are there now. A short read has emptied the
    /// socket, and the poll reports later bytes.
    fn receive(&mut self, key: Key) -> Result<bool, ConnectionError> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(false);
        };
        let (most, took) = match &mut conn.arriving {
            None => {
                let rest = &mut conn.head[conn.got..];
                (rest.len(), conn.socket.read(rest))
            }
            Some(IncomingReply { read, at, bytes }) => {
                if let Some(read) = read {
                    let most = *bytes - *at;
                    (most, read.landing.receive(conn.socket.as_fd(), *at, most))
                } else {
                    let most = (*bytes - *at).min(SCRATCH_BYTES);
                    self.scratch.resize(SCRATCH_BYTES, 0);
                    (most, conn.socket.read(&mut self.scratch[..most]))
                }
            }
        };
        let took = match took {
            Ok(0) => return Err(ConnectionError::Ended(ErrorKind::UnexpectedEof.into())),
            Ok(took) => took,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(e) => return Err(ConnectionError::Ended(e)),
        };
        match &mut conn.arriving {
            None => {
                conn.got += took;
                if conn.got == HEAD_BYTES {
                    conn.got = 0;
                    let head = FrameHead::decode(&conn.head)?;
                    self.begin_reply(key, &head)?;
                }
            }
            Some(arriving) => {
                arriving.at += took;
                if arriving.at == arriving.bytes {
                    let read = conn.arriving.take().and_then(|arriving| arriving.read);
                    if let Some(read) = read {
                        read.finish(Ok(()));
                    }
                }
            }
        }
        Ok(took == most)
    }

    /// Begins a reply whose head came.
    fn begin_reply(&mut self, key: Key, head: &FrameHead) -> Result<(), ConnectionError> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        let peer = self.peers.entry(conn.rank).or_default();
        let read = peer.reads.remove(&head.call);
        match head.kind {
            FrameKind::Bytes => {
                let wrong = read.as_ref().is_some_and(|read| read.bytes != head.bulk);
                conn.arriving = Some(IncomingReply {
                    read,
                    at: 0,
                    bytes: head.bulk,
                });
                if wrong {
                    return Err(Malformed.into());
                }
            }
            FrameKind::Refused => {
                if let Some(read) = read {
                    read.finish(Err(ReadError::Refused));
                }
            }
            _ => return Err(Malformed.into()),
        }
        Ok(())
    }

    /// Closes a connection; asks again for its pending reads.
    fn close(&mut self, key: Key, broken: &ConnectionError) {
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let _ = self.poll.registry().deregister(&mut conn.socket);
        tracing::debug!(rank = conn.rank.0, %broken, "a connection of the bulk plane ended");
        let peer = self.peers.entry(conn.rank).or_default();
        if let Some(read) = conn.arriving.and_then(|arriving| arriving.read) {
            peer.reads.insert(read.id, read);
        }
        if peer.link == LinkState::Up(key) {
            peer.link = LinkState::None;
            if !peer.reads.is_empty() {
                if matches!(broken, ConnectionError::Ended(error) if is_silence(error)) {
                    peer.failing_since = Instant::now().checked_sub(SILENCE);
                }
                self.dial(conn.rank);
            }
        }
    }

    /// Ends reads whose deadline has passed, and dials again.
    fn check_deadlines(&mut self) {
        let now = Instant::now();
        let again: Vec<Rank> = self
            .peers
            .iter()
            .filter(|(_, peer)| matches!(peer.link, LinkState::RetryAt(at) if at <= now))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in again {
            self.dial(rank);
        }
        if now.duration_since(self.checked_at) < CHECK_INTERVAL {
            return;
        }
        self.checked_at = now;
        for peer in self.peers.values_mut() {
            let late = |read: &PendingRead| read.deadline <= now;
            let ids: Vec<CallId> = peer
                .reads
                .values()
                .filter(|r| late(r))
                .map(|r| r.id)
                .collect();
            for read in ids.iter().filter_map(|id| peer.reads.remove(id)) {
                read.finish(Err(CallError::Deadline.into()));
            }
        }
        for conn in self.conns.values_mut() {
            if let Some(arriving) = &mut conn.arriving {
                // The rest of the reply is discarded.
                if let Some(read) = arriving.read.take_if(|read| read.deadline <= now) {
                    read.finish(Err(CallError::Deadline.into()));
                }
            }
        }
    }
}

fn push(outgoing: &mut Outgoing, read: &PendingRead) {
    let head = FrameHead {
        kind: FrameKind::Read,
        call: read.id,
        body: read.body.len(),
        bulk: 0,
    };
    let message = Message {
        body: read.body.clone(),
        bulk: Vec::new(),
    };
    outgoing.push(&head, &[], message);
}

fn fail_all(reads: BTreeMap<CallId, PendingRead>, why: CallError) {
    for read in reads.into_values() {
        read.finish(Err(why.into()));
    }
}
