//! The listener, all handshakes and all calls of a server, in one poll. Either a thread runs it and
//! sleeps in between, or the caller does ([`crate::tcp`]).
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | the state, and one turn of it; the calls' logic is in [`crate::links`] |
//! | `sockets` | connections: their bytes, frames, stages, end |
//! | `handshake` | identification of the other end |
//!
//! Both ends use a connection, so that all requests and replies of a turn to one server are sent by
//! one write. If both ends dial at once both connections stay; each end calls by the one that the
//! server of the lower rank dialled, and replies by the one that the call came by.
//!
//! A connection of the bulk plane stays here until both ends have proved their identity; then it
//! goes to the threads of [`crate::bulk`].

mod handshake;
mod sockets;

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
use crate::command::IoCommand;
use crate::conn::{ConnectionError, Incoming, Outgoing};
use crate::frame::{FrameKind, Greeting, Plane};
use crate::links::{Links, TransportAction};
use crate::mailbox::{mailbox, MailboxReceiver, MailboxSender};
use crate::{CallId, Event, Membership, Message, RefusalCounters, Timing, Token};

const LISTENER: Key = Key(0);
const WAKER: Key = Key(1);
const BELL: Key = Key(2);
const FIRST: usize = 3;
/// The limit of connections that have not proved their identity.
const UNPROVEN_MAX: usize = 256;
/// The interval of deadline checks while something is awaited.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The limit of log messages of one kind of refusal, for the thread's life.
const LOGGED_MAX: u64 = 10;

/// The receiver of events.
pub struct EventSink {
    pub events: Sender<Event>,
    pub wake: Box<dyn Fn() + Send + 'static>,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopState {
    /// It goes on.
    Running,
    /// It was told to end, or cannot go on.
    Ended,
}

/// The stage of a connection.
#[derive(Debug)]
enum ConnectionStage {
    /// Dialled here: connecting.
    Dialling(Rank, Plane),
    /// Dialled here: greeted, waits for the challenge.
    Greeted(Rank, Plane, Greeting),
    /// Accepted: waits for the greeting.
    Accepted,
    /// Accepted: challenged, waits for the proof.
    Challenged(Greeting, Greeting),
    /// Both ends have proved their identity and may call.
    Open(PeerLife, Dialled),
    /// A connection of the bulk plane, to be handed over.
    Bulk(Rank, Dialled),
}

/// One incarnation of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PeerLife {
    rank: Rank,
    incarnation: u64,
}

/// The end that dialled a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dialled {
    ByUs,
    ByThem,
}

#[derive(Debug)]
struct PeerConnection {
    socket: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
    stage: ConnectionStage,
    /// The time limit of the handshake.
    until: Option<Instant>,
    /// The poll watches for room to write.
    writing: bool,
}

/// The state.
pub struct Io {
    poll: Poll,
    listener: TcpListener,
    me: Membership,
    timing: Timing,
    poll_events: Events,
    commands: MailboxReceiver<IoCommand>,
    bulk: BulkPlane,
    counters: Arc<Mutex<RefusalCounters>>,
    conns: HashMap<Key, PeerConnection>,
    next_key: usize,
    /// The calls, and the actions for them.
    links: Links,
    begun: Instant,
    /// Connections for calls that are being made.
    dials: HashMap<Rank, Key>,
    /// The connection for calls to each server.
    asks: HashMap<Rank, Key>,
    /// The connection by which each server called last.
    asked_by: HashMap<Rank, Key>,
    unproven: usize,
    /// A handshake may be under way.
    proving: bool,
    /// The watched descriptor became readable.
    rung: bool,
    /// The time of the last check of deadlines.
    checked_at: Duration,
}

impl Io {
    /// Takes over a bound listener.
    pub fn new(
        listener: StdListener,
        me: Membership,
        timing: Timing,
        counters: Arc<Mutex<RefusalCounters>>,
        bulk: impl FnOnce(MailboxSender<IoCommand>) -> std::io::Result<BulkPlane>,
    ) -> std::io::Result<(Io, MailboxSender<IoCommand>)> {
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

    /// Runs until told to end, and passes events on.
    pub fn run(mut self, sink: &EventSink) {
        while self.turn(None) == LoopState::Running {
            let mut any = false;
            while let Some(event) = self.next_event() {
                any = true;
                // Without a receiver the end is near.
                let _ = sink.events.send(event);
            }
            if any {
                (sink.wake)();
            }
        }
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.links.next_event()
    }

    /// Calls another server; `unbounded`: see [`crate::Fabric::call_without_deadline`].
    pub fn ask(&mut self, to: Rank, id: CallId, message: Message, unbounded: bool) {
        let now = self.begun.elapsed();
        if unbounded {
            self.links.ask_without_deadline(now, to, id, message);
        } else {
            self.links.ask(now, to, id, message);
        }
    }

    /// Refuses a call: its end is an event.
    pub fn refuse_call(&mut self, id: CallId) {
        self.links.refuse_call(id);
    }

    /// The refusals so far.
    pub fn counters(&self) -> RefusalCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replies to another server.
    pub fn answer(&mut self, token: Token, message: Message) {
        self.links.answer(token, message);
    }

    /// Returns true if the watched descriptor became readable since the last call.
    pub fn take_bell(&mut self) -> bool {
        std::mem::take(&mut self.rung)
    }

    /// Lets the readiness of another descriptor end a turn; the descriptor is not read here.
    pub fn watch(&self, bell: RawFd) -> std::io::Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&bell), BELL, Interest::READABLE)
    }

    /// Sends pending messages, waits until something happens or `most` has passed, and sends what
    /// follows from it.
    pub fn turn(&mut self, most: Option<Duration>) -> LoopState {
        self.send_pending();
        let turn = self.poll_sockets(most);
        self.send_pending();
        turn
    }

    /// Waits until something happens or `most` has passed, and receives.
    pub fn poll_sockets(&mut self, most: Option<Duration>) -> LoopState {
        // A caller that only polls should not pay for a check of all servers each time.
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

    /// The time until the next check, if nothing comes.
    fn next_check(&self) -> Option<Duration> {
        let due = self.links.due();
        let due = due.map(|due| due.saturating_sub(self.begun.elapsed()));
        due.into_iter()
            .chain(self.proving.then_some(CHECK_INTERVAL))
            .min()
    }

    /// Carries out commands; returns false at the end.
    fn run_commands(&mut self) -> bool {
        self.commands.mark_awake();
        while let Some(command) = self.commands.next() {
            match command {
                IoCommand::Call {
                    to,
                    id,
                    message,
                    unbounded,
                } => self.ask(to, id, message, unbounded),
                IoCommand::Reply { token, message } => self.answer(token, message),
                IoCommand::Dial(to, lane) => self.dial_bulk(to, lane),
                IoCommand::End => return false,
            }
        }
        true
    }

    /// Carries out the actions of the calls, and sends.
    pub fn send_pending(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(order) = self.links.next_action() {
                touched.extend(self.carry_out(order));
            }
            // A connection that breaks here may be dialled again.
            let Some(key) = touched.pop_first() else {
                return;
            };
            if let Err(broken) = self.flush(key) {
                self.close(key, &broken);
            }
        }
    }

    /// Carries out an action; returns the connection that has bytes to send. Actions are carried
    /// out in their order: one for a connection that broke comes before the next dialling, and
    /// finds no connection.
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
                self.push(key, FrameKind::Request, call, &prefix, message);
                Some(key)
            }
            TransportAction::Reply { to, call, message } => {
                let key = self.asked_by.get(&to).copied()?;
                self.push(key, FrameKind::Reply, call, &[], message);
                Some(key)
            }
        }
    }

    /// Closes connections whose handshake takes too long, and checks the deadlines of calls.
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
