//! The asker's thread: sends READs, and receives what comes into its landing.
//!
//! A connection to a server is made when something is first read from it, by the I/O thread,
//! which knows the handshake. While none is to be had it is tried again, for
//! [`Timing::give_up`]; a server that was given up is not waited for a second time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream as StdStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token as Key};
use weir_core::types::Rank;

use super::{Landing, Load, NotRead};
use crate::conn::{Broken, Outgoing};
use crate::frame::{Garbage, Head, Kind, HEAD_BYTES};
use crate::io::{is_silence, Command as Order, SILENCE};
use crate::post::{post, Letters, Post};
use crate::{CallId, Lost, Message, Timing};

const WAKER: Key = Key(0);
const FIRST: usize = 1;
/// How often deadlines are looked at while something is awaited.
const LOOK: Duration = Duration::from_millis(100);
/// Before a server that could not be reached is tried again.
const RETRY: Duration = Duration::from_millis(30);
/// A lost server from which no word comes is dialled so often ([`crate::links`]), for so long
/// after it was last read from.
const PROBE: Duration = Duration::from_millis(500);
const PROBING: Duration = Duration::from_secs(30);
/// A refusal comes sooner.
const WORD: Duration = Duration::from_millis(100);
/// Bytes that nobody waits for any more are read so many at a time.
const SCRATCH_BYTES: usize = 64 << 10;

/// A read that is asked for.
pub struct Read {
    /// Its number.
    pub id: CallId,
    /// READ's body.
    pub body: Vec<u8>,
    /// Bytes that are to come.
    pub bytes: usize,
    /// Where they go.
    pub landing: Box<dyn Landing>,
    /// When it is lost.
    pub deadline: Instant,
    /// What it is of the lane's load.
    pub load: Load,
}

impl Read {
    /// It is over. Who hears of it and reads again finds the lane without it.
    pub fn end(self, result: Result<(), NotRead>) {
        drop(self.load);
        self.landing.end(result);
    }
}

/// What others ask of the thread.
pub enum Command {
    /// Read from a server.
    Read(Rank, Read),
    /// A server was reached.
    Reached(Rank, StdStream),
    /// It was not.
    NotReached(Rank),
    /// The end.
    End,
}

/// Servers that one lane or another gave up and none has reached since: none waits for them anew.
#[derive(Debug, Default)]
pub struct GivenUp(Mutex<BTreeSet<Rank>>);

impl GivenUp {
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

/// How far the connection to a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Link {
    #[default]
    None,
    Dialling,
    /// Not reached: to be dialled again then.
    Again(Instant),
    Up(Key),
}

/// A server that is read from.
#[derive(Default)]
struct Peer {
    link: Link,
    /// Reads whose bytes have not begun to come.
    reads: BTreeMap<CallId, Read>,
    failing_since: Option<Instant>,
    /// It was given up by this lane and not reached since.
    lost: bool,
    /// When it was last dialled, and whether that ended without a word from there.
    dialled: Option<Instant>,
    silent: bool,
    /// When it was last read from.
    asked: Option<Instant>,
}

impl Peer {
    /// Whether it is lost and being looked for, so that nobody is to wait for it.
    fn is_shunned(&self) -> bool {
        self.lost && self.silent && matches!(self.link, Link::Again(_) | Link::Dialling)
    }
}

/// A message whose bytes are coming.
struct Arriving {
    /// `None`: nobody waits for it any more.
    read: Option<Read>,
    at: usize,
    bytes: usize,
}

struct Conn {
    socket: TcpStream,
    rank: Rank,
    outgoing: Outgoing,
    head: [u8; HEAD_BYTES],
    got: usize,
    arriving: Option<Arriving>,
}

/// The thread's state.
pub struct Thread {
    poll: Poll,
    letters: Letters<Command>,
    /// Which lane it is, for connections.
    lane: usize,
    dial: Post<Order>,
    given_up: Arc<GivenUp>,
    timing: Timing,
    peers: HashMap<Rank, Peer>,
    conns: HashMap<Key, Conn>,
    next_key: usize,
    /// Connections that may have bytes.
    ready: VecDeque<Key>,
    scratch: Vec<u8>,
    looked: Instant,
}

impl Thread {
    /// The thread of a lane, and where it is told what to do. Connections are asked for at `dial`.
    pub fn new(
        lane: usize,
        timing: Timing,
        dial: Post<Order>,
        given_up: Arc<GivenUp>,
    ) -> std::io::Result<(Post<Command>, Thread)> {
        let poll = Poll::new()?;
        let (commands, letters) = post(&poll, WAKER)?;
        let thread = Thread {
            poll,
            letters,
            lane,
            dial,
            given_up,
            timing,
            peers: HashMap::new(),
            conns: HashMap::new(),
            next_key: FIRST,
            ready: VecDeque::new(),
            scratch: Vec::new(),
            looked: Instant::now(),
        };
        Ok((commands, thread))
    }

    /// Works until told to end.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let awaits = self.conns.values().any(|conn| conn.arriving.is_some())
                || self
                    .peers
                    .values()
                    .any(|peer| !peer.reads.is_empty() || matches!(peer.link, Link::Again(_)));
            let timeout = match (self.ready.is_empty(), awaits) {
                (false, _) => Some(Duration::ZERO),
                (true, true) => Some(self.next_look()),
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
                    self.happened(event.token(), event.is_writable());
                }
            }
            if !self.obey() {
                break;
            }
            self.turn();
            self.look();
        }
        for peer in std::mem::take(&mut self.peers).into_values() {
            end_all(peer.reads, Lost::Ended);
        }
        for conn in std::mem::take(&mut self.conns).into_values() {
            if let Some(read) = conn.arriving.and_then(|arriving| arriving.read) {
                read.end(Err(Lost::Ended.into()));
            }
        }
    }

    fn next_look(&self) -> Duration {
        let now = Instant::now();
        let again = self.peers.values().filter_map(|peer| match peer.link {
            Link::Again(at) => Some(at.saturating_duration_since(now)),
            _ => None,
        });
        again.min().unwrap_or(LOOK).min(LOOK)
    }

    fn happened(&mut self, key: Key, writable: bool) {
        if writable {
            self.flush(key);
        }
        if !self.ready.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Does what was asked for; false at the end.
    fn obey(&mut self) -> bool {
        self.letters.look();
        while let Some(command) = self.letters.next() {
            match command {
                Command::Read(to, read) => self.ask(to, read),
                Command::Reached(rank, socket) => self.reached(rank, socket),
                Command::NotReached(rank) => self.not_reached(rank),
                Command::End => return false,
            }
        }
        true
    }

    fn ask(&mut self, to: Rank, read: Read) {
        let peer = self.peers.entry(to).or_default();
        peer.asked = Some(Instant::now());
        if peer.is_shunned() {
            return read.end(Err(Lost::Unreachable.into()));
        }
        match peer.link {
            Link::Up(key) => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    push(&mut conn.outgoing, &read);
                }
                peer.reads.insert(read.id, read);
                self.flush(key);
            }
            link => {
                peer.reads.insert(read.id, read);
                if link == Link::None {
                    self.dial(to);
                }
            }
        }
    }

    fn dial(&mut self, to: Rank) {
        let peer = self.peers.entry(to).or_default();
        peer.link = Link::Dialling;
        peer.dialled = Some(Instant::now());
        peer.failing_since.get_or_insert_with(Instant::now);
        if self.dial.send(Order::Dial(to, self.lane)).is_err() {
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
        peer.link = Link::Up(key);
        (peer.failing_since, peer.lost, peer.silent) = (None, false, false);
        self.given_up.reached(rank);
        let mut outgoing = Outgoing::default();
        for read in peer.reads.values() {
            push(&mut outgoing, read);
        }
        let conn = Conn {
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
        peer.silent = peer.dialled.is_some_and(|at| now.duration_since(at) > WORD);
        let lost = peer.lost || self.given_up.has(rank);
        if lost || now.duration_since(since) >= give_up {
            self.given_up.add(rank);
            let asked = peer.asked.map(|at| now.duration_since(at) < PROBING);
            peer.link = match peer.silent && asked == Some(true) {
                true => Link::Again(now + PROBE),
                false => Link::None,
            };
            (peer.failing_since, peer.lost) = (None, true);
            end_all(std::mem::take(&mut peer.reads), Lost::Unreachable);
        } else if peer.reads.is_empty() {
            (peer.link, peer.failing_since) = (Link::None, None);
        } else {
            peer.link = Link::Again(now + RETRY);
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

    /// Each connection that may have bytes is read from once.
    fn turn(&mut self) {
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

    /// Reads once; false when there is no more for now. A read that brings less than it could
    /// have taken has emptied the socket: what comes later is told by the poll.
    fn receive(&mut self, key: Key) -> Result<bool, Broken> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(false);
        };
        let (most, took) = match &mut conn.arriving {
            None => {
                let rest = &mut conn.head[conn.got..];
                (rest.len(), conn.socket.read(rest))
            }
            Some(Arriving { read, at, bytes }) => {
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
            Ok(0) => return Err(Broken::Ended(ErrorKind::UnexpectedEof.into())),
            Ok(took) => took,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(e) => return Err(Broken::Ended(e)),
        };
        match &mut conn.arriving {
            None => {
                conn.got += took;
                if conn.got == HEAD_BYTES {
                    conn.got = 0;
                    let head = Head::decode(&conn.head)?;
                    self.begin(key, &head)?;
                }
            }
            Some(arriving) => {
                arriving.at += took;
                if arriving.at == arriving.bytes {
                    let read = conn.arriving.take().and_then(|arriving| arriving.read);
                    if let Some(read) = read {
                        read.end(Ok(()));
                    }
                }
            }
        }
        Ok(took == most)
    }

    /// A head came.
    fn begin(&mut self, key: Key, head: &Head) -> Result<(), Broken> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        let peer = self.peers.entry(conn.rank).or_default();
        let read = peer.reads.remove(&head.call);
        match head.kind {
            Kind::Bytes => {
                let wrong = read.as_ref().is_some_and(|read| read.bytes != head.bulk);
                conn.arriving = Some(Arriving {
                    read,
                    at: 0,
                    bytes: head.bulk,
                });
                if wrong {
                    return Err(Garbage.into());
                }
            }
            Kind::Refused => {
                if let Some(read) = read {
                    read.end(Err(NotRead::Refused));
                }
            }
            _ => return Err(Garbage.into()),
        }
        Ok(())
    }

    /// A connection broke: what was asked for by it is asked for again.
    fn close(&mut self, key: Key, broken: &Broken) {
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let _ = self.poll.registry().deregister(&mut conn.socket);
        tracing::debug!(rank = conn.rank.0, %broken, "a connection of the bulk plane ended");
        let peer = self.peers.entry(conn.rank).or_default();
        if let Some(read) = conn.arriving.and_then(|arriving| arriving.read) {
            peer.reads.insert(read.id, read);
        }
        if peer.link == Link::Up(key) {
            peer.link = Link::None;
            if !peer.reads.is_empty() {
                if matches!(broken, Broken::Ended(error) if is_silence(error)) {
                    peer.failing_since = Instant::now().checked_sub(SILENCE);
                }
                self.dial(conn.rank);
            }
        }
    }

    /// Looks at what has taken too long, and dials again.
    fn look(&mut self) {
        let now = Instant::now();
        let again: Vec<Rank> = self
            .peers
            .iter()
            .filter(|(_, peer)| matches!(peer.link, Link::Again(at) if at <= now))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in again {
            self.dial(rank);
        }
        if now.duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        for peer in self.peers.values_mut() {
            let late = |read: &Read| read.deadline <= now;
            let ids: Vec<CallId> = peer
                .reads
                .values()
                .filter(|r| late(r))
                .map(|r| r.id)
                .collect();
            for read in ids.iter().filter_map(|id| peer.reads.remove(id)) {
                read.end(Err(Lost::Deadline.into()));
            }
        }
        for conn in self.conns.values_mut() {
            if let Some(arriving) = &mut conn.arriving {
                // What still comes of it is thrown away.
                if let Some(read) = arriving.read.take_if(|read| read.deadline <= now) {
                    read.end(Err(Lost::Deadline.into()));
                }
            }
        }
    }
}

fn push(outgoing: &mut Outgoing, read: &Read) {
    let head = Head {
        kind: Kind::Read,
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

fn end_all(reads: BTreeMap<CallId, Read>, why: Lost) {
    for read in reads.into_values() {
        read.end(Err(why.into()));
    }
}
