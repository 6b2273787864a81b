//! The listener, all handshakes and all calls of a server, in one poll. Either a thread of its own
//! turns it over and sleeps in between, or whoever asks and answers does ([`crate::tcp`]).
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | its state, and one turn of it; the calls' logic is in [`crate::links`] |
//! | `sockets` | connections: their bytes, frames, stages, end |
//! | `shake` | who is at the other end |
//!
//! A connection is used both ways, so that what a turn has to say to another server, requests and
//! replies, goes by one write. Two that are made at once are both kept; each end asks by that which
//! the server of the lower rank dialled, and answers by that by which it was asked.
//!
//! A connection of the bulk plane is handled here until both have proved who they are; then it
//! goes to the threads of [`crate::bulk`].

mod handshake;
mod sockets;

pub(crate) use sockets::{is_silence, SILENCE};

use std::collections::{BTreeSet, HashMap};
use std::net::TcpListener as StdListener;
use std::os::fd::RawFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token as Key};
use weir_core::types::Rank;

use crate::bulk::BulkPlane;
use crate::conn::{ConnectionError, Incoming, Outgoing};
use crate::frame::{Greeting, Kind, Plane};
use crate::links::{Links, TransportAction};
use crate::mailbox::{mailbox, MailboxReceiver, MailboxSender};
use crate::{CallId, Event, Membership, Message, RefusalCounters, Timing, Token};

const LISTENER: Key = Key(0);
const WAKER: Key = Key(1);
const BELL: Key = Key(2);
const FIRST: usize = 3;
/// Connections that have not proved anything yet.
const UNPROVEN_MAX: usize = 256;
/// How often deadlines are looked at while something is awaited.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Messages of one kind of refusal that are logged, at most, a thread's life long.
const LOGGED_MAX: u64 = 10;

/// What other threads ask of it.
#[derive(Debug)]
pub enum Command {
    /// Ask another server.
    Call {
        /// Whom.
        to: Rank,
        /// The call's number.
        id: CallId,
        /// What.
        message: Message,
        /// See [`crate::Fabric::call_without_deadline`].
        unbounded: bool,
    },
    /// Answer another server.
    Reply {
        /// Whom, and which call.
        token: Token,
        /// What.
        message: Message,
    },
    /// Connect to a server for a lane of the bulk plane.
    Dial(Rank, usize),
    /// The end.
    End,
}

/// The receiver of events.
pub struct EventSink {
    /// Receives the events.
    pub events: Sender<Event>,
    /// Wakes the receiver.
    pub wake: Box<dyn Fn() + Send + 'static>,
}

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopState {
    /// It goes on.
    Running,
    /// It was told to end, or cannot go on.
    Ended,
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// Ours: connecting.
    Dialling(Rank, Plane),
    /// Ours: greeted, waits for the challenge.
    Greeted(Rank, Plane, Greeting),
    /// Theirs: waits for the greeting.
    Accepted,
    /// Theirs: challenged, waits for the proof.
    Challenged(Greeting, Greeting),
    /// Both have proved who they are, and may ask: with which life of which server.
    Open(PeerLife, Dialled),
    /// Of the bulk plane, and to be handed over: dialled by us or not.
    Bulk(Rank, Dialled),
}

/// One life of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PeerLife {
    rank: Rank,
    incarnation: u64,
}

/// Who dialled a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dialled {
    ByUs,
    ByThem,
}

#[derive(Debug)]
struct Conn {
    socket: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
    stage: Stage,
    /// When the handshake must be over.
    until: Option<Instant>,
    /// Whether the poll looks for room to write.
    writing: bool,
}

/// Its state.
pub struct Io {
    poll: Poll,
    listener: TcpListener,
    me: Membership,
    timing: Timing,
    poll_events: Events,
    commands: MailboxReceiver<Command>,
    bulk: BulkPlane,
    counters: Arc<Mutex<RefusalCounters>>,
    conns: HashMap<Key, Conn>,
    next_key: usize,
    /// The calls, and what is to be done for them.
    links: Links,
    begun: Instant,
    /// Connections to be asked over that are being made.
    dials: HashMap<Rank, Key>,
    /// The connection by which each server is asked.
    asks: HashMap<Rank, Key>,
    /// The connection by which each server asked last.
    asked_by: HashMap<Rank, Key>,
    unproven: usize,
    /// Whether a handshake may be under way.
    proving: bool,
    /// The watched descriptor became readable.
    rung: bool,
    /// When deadlines were looked at last.
    checked_at: Duration,
}

impl Io {
    /// Takes over a bound listener.
    pub fn new(
        listener: StdListener,
        me: Membership,
        timing: Timing,
        counters: Arc<Mutex<RefusalCounters>>,
        bulk: impl FnOnce(MailboxSender<Command>) -> std::io::Result<BulkPlane>,
    ) -> std::io::Result<(Io, MailboxSender<Command>)> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let (sender, commands) = mailbox(&poll, WAKER)?;
        let links = Links::new(me.rank, me.addresses.len(), timing);
        let io = Io {
            poll,
            listener,
            me,
            timing,
            poll_events: Events::with_capacity(256),
            commands,
            bulk: bulk(sender.clone())?,
            counters,
            conns: HashMap::new(),
            next_key: FIRST,
            links,
            begun: Instant::now(),
            dials: HashMap::new(),
            asks: HashMap::new(),
            asked_by: HashMap::new(),
            unproven: 0,
            proving: false,
            rung: false,
            checked_at: Duration::ZERO,
        };
        Ok((io, sender))
    }

    /// Works until told to end, and passes on what has happened.
    pub fn run(mut self, sink: &EventSink) {
        while self.turn(None) == LoopState::Running {
            let mut any = false;
            while let Some(event) = self.next_event() {
                any = true;
                // Nobody to tell: the end is near.
                let _ = sink.events.send(event);
            }
            if any {
                (sink.wake)();
            }
        }
    }

    /// What has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.links.next_event()
    }

    /// Asks another server; `unbounded`: see [`crate::Fabric::call_without_deadline`].
    pub fn ask(&mut self, to: Rank, id: CallId, message: Message, unbounded: bool) {
        let now = self.begun.elapsed();
        if unbounded {
            self.links.ask_without_deadline(now, to, id, message);
        } else {
            self.links.ask(now, to, id, message);
        }
    }

    /// A call is not to be made: its end is an event.
    pub fn refuse_call(&mut self, id: CallId) {
        self.links.refuse_call(id);
    }

    /// What was refused so far.
    pub fn counters(&self) -> RefusalCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers another server.
    pub fn answer(&mut self, token: Token, message: Message) {
        self.links.answer(token, message);
    }

    /// Whether the watched descriptor became readable since this was asked last.
    pub fn take_bell(&mut self) -> bool {
        std::mem::take(&mut self.rung)
    }

    /// Has the readiness of another descriptor end a turn: it is not read here.
    pub fn watch(&self, bell: RawFd) -> std::io::Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&bell), BELL, Interest::READABLE)
    }

    /// Sends what is to be sent, waits until something happens, but no longer than that, and
    /// does what follows of it.
    pub fn turn(&mut self, most: Option<Duration>) -> LoopState {
        self.send_pending();
        let turn = self.poll_sockets(most);
        self.send_pending();
        turn
    }

    /// Waits until something happens, but no longer than that, and takes in what came.
    pub fn poll_sockets(&mut self, most: Option<Duration>) -> LoopState {
        // Who only polls is not to pay for a look at all servers each time.
        let timeout = match most {
            Some(Duration::ZERO) => most,
            most => self.next_check().into_iter().chain(most).min(),
        };
        match self.poll.poll(&mut self.poll_events, timeout) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return LoopState::Running,
            Err(error) => {
                tracing::error!(%error, "the fabric cannot wait for its sockets");
                return LoopState::Ended;
            }
        }
        let happened = std::mem::replace(&mut self.poll_events, Events::with_capacity(0));
        for event in &happened {
            match event.token() {
                LISTENER => self.accept(),
                WAKER => {}
                BELL => self.rung = true,
                key => self.ready(key, event.is_read_closed()),
            }
        }
        self.poll_events = happened;
        if !self.run_commands() {
            return LoopState::Ended;
        }
        let now = self.begun.elapsed();
        if most != Some(Duration::ZERO) || now >= self.checked_at + CHECK_INTERVAL / 10 {
            self.checked_at = now;
            self.check_deadlines();
        }
        LoopState::Running
    }

    /// How long nothing has to be looked at, if nothing comes.
    fn next_check(&self) -> Option<Duration> {
        let due = self.links.due();
        let due = due.map(|due| due.saturating_sub(self.begun.elapsed()));
        due.into_iter()
            .chain(self.proving.then_some(CHECK_INTERVAL))
            .min()
    }

    /// Does what was asked for; false at the end.
    fn run_commands(&mut self) -> bool {
        self.commands.mark_awake();
        while let Some(command) = self.commands.next() {
            match command {
                Command::Call {
                    to,
                    id,
                    message,
                    unbounded,
                } => self.ask(to, id, message, unbounded),
                Command::Reply { token, message } => self.answer(token, message),
                Command::Dial(to, lane) => self.dial_bulk(to, lane),
                Command::End => return false,
            }
        }
        true
    }

    /// Does what is to be done for the calls: sends what is to be sent.
    pub fn send_pending(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(order) = self.links.next_action() {
                touched.extend(self.carry_out(order));
            }
            // What breaks may be dialled again.
            let Some(key) = touched.pop_first() else {
                return;
            };
            if let Err(broken) = self.flush(key) {
                self.close(key, &broken);
            }
        }
    }

    /// The connection that has something to send by it. Orders are carried out in their order:
    /// one for a connection that broke comes before the dialling of the next, and meets none.
    fn carry_out(&mut self, order: TransportAction) -> Option<Key> {
        match order {
            TransportAction::Dial(to) => {
                self.dial(to);
                None
            }
            TransportAction::Request {
                to,
                call,
                ended_below,
                message,
            } => {
                let key = self.asks.get(&to).copied()?;
                let prefix = ended_below.to_le_bytes();
                self.push(key, Kind::Request, call, &prefix, message);
                Some(key)
            }
            TransportAction::Reply { to, call, message } => {
                let key = self.asked_by.get(&to).copied()?;
                self.push(key, Kind::Reply, call, &[], message);
                Some(key)
            }
        }
    }

    /// Looks at what has taken too long.
    fn check_deadlines(&mut self) {
        self.links.check_deadlines(self.begun.elapsed());
        if !self.proving {
            return;
        }
        let now = Instant::now();
        let late: Vec<Key> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.until.is_some_and(|until| until <= now))
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            self.refuse(|counters| &mut counters.slow, "the proof took too long");
            let timed_out = std::io::ErrorKind::TimedOut.into();
            self.close(key, &ConnectionError::Ended(timed_out));
        }
        self.proving = self.conns.values().any(|conn| conn.until.is_some());
    }

    fn refuse(&self, which: impl Fn(&mut RefusalCounters) -> &mut u64, why: &str) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = which(&mut counters);
        *count += 1;
        if *count <= LOGGED_MAX {
            tracing::warn!(count = *count, "refused a connection: {why}");
        }
    }
}
