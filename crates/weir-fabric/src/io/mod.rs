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

mod shake;
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

use crate::bulk::Bulk;
use crate::conn::{Broken, Incoming, Outgoing};
use crate::frame::{Greeting, Kind, Plane};
use crate::links::{Links, Order};
use crate::post::{post, Letters, Post};
use crate::{CallId, Counters, Event, Membership, Message, Timing, Token};

const LISTENER: Key = Key(0);
const WAKER: Key = Key(1);
const BELL: Key = Key(2);
const FIRST: usize = 3;
/// Connections that have not proved anything yet.
const STRANGERS: usize = 256;
/// How often deadlines are looked at while something is awaited.
const LOOK: Duration = Duration::from_millis(100);
/// Messages of one kind of refusal that are logged, at most, a thread's life long.
const LOGGED: u64 = 10;

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
        /// See [`crate::Fabric::call_surely`].
        surely: bool,
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

/// What a thread that turns it over is given: where events go, and whom to wake for them.
pub type Ends = (Sender<Event>, Box<dyn Fn() + Send + 'static>);

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It goes on.
    On,
    /// It was told to end, or cannot go on.
    End,
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// Ours: connecting.
    Dialling(Rank, Plane),
    /// Ours: greeted, waits for the challenge.
    Greeted(Rank, Plane, Greeting),
    /// Theirs: waits for the greeting.
    Stranger,
    /// Theirs: challenged, waits for the proof.
    Challenged(Greeting, Greeting),
    /// Both have proved who they are, and may ask: with which life of which server.
    Open(Rank, u64, Dialled),
    /// Of the bulk plane, and to be handed over: dialled by us or not.
    Bulk(Rank, Dialled),
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
    happened: Events,
    orders: Letters<Command>,
    bulk: Bulk,
    counters: Arc<Mutex<Counters>>,
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
    strangers: usize,
    /// Whether a handshake may be under way.
    proving: bool,
    /// The watched descriptor became readable.
    rung: bool,
    /// When deadlines were looked at last.
    looked: Duration,
}

impl Io {
    /// Takes over a bound listener.
    pub fn new(
        listener: StdListener,
        me: Membership,
        timing: Timing,
        counters: Arc<Mutex<Counters>>,
        bulk: impl FnOnce(Post<Command>) -> std::io::Result<Bulk>,
    ) -> std::io::Result<(Io, Post<Command>)> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let (commands, orders) = post(&poll, WAKER)?;
        let links = Links::new(me.rank, me.addresses.len(), timing);
        let io = Io {
            poll,
            listener,
            me,
            timing,
            happened: Events::with_capacity(256),
            orders,
            bulk: bulk(commands.clone())?,
            counters,
            conns: HashMap::new(),
            next_key: FIRST,
            links,
            begun: Instant::now(),
            dials: HashMap::new(),
            asks: HashMap::new(),
            asked_by: HashMap::new(),
            strangers: 0,
            proving: false,
            rung: false,
            looked: Duration::ZERO,
        };
        Ok((io, commands))
    }

    /// Works until told to end, and passes on what has happened.
    pub fn run(mut self, ends: &Ends) {
        while self.turn(None) == Turn::On {
            let mut any = false;
            while let Some(event) = self.next_event() {
                any = true;
                // Nobody to tell: the end is near.
                let _ = ends.0.send(event);
            }
            if any {
                ends.1();
            }
        }
    }

    /// What has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.links.next_event()
    }

    /// Asks another server; `surely`: see [`crate::Fabric::call_surely`].
    pub fn ask(&mut self, to: Rank, id: CallId, message: Message, surely: bool) {
        let now = self.begun.elapsed();
        if surely {
            self.links.ask_surely(now, to, id, message);
        } else {
            self.links.ask(now, to, id, message);
        }
    }

    /// A call is not to be made: its end is an event.
    pub fn refuse_call(&mut self, id: CallId) {
        self.links.refuse(id);
    }

    /// What was refused so far.
    pub fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers another server.
    pub fn answer(&mut self, token: Token, message: Message) {
        self.links.answer(token, message);
    }

    /// Whether the watched descriptor became readable since this was asked last.
    pub fn take_rung(&mut self) -> bool {
        std::mem::take(&mut self.rung)
    }

    /// Has the readiness of another descriptor end a turn: it is not read here.
    pub fn watch(&self, bell: RawFd) -> std::io::Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&bell), BELL, Interest::READABLE)
    }

    /// Sends what is to be sent, waits until something happens, but no longer than that, and
    /// does what follows of it.
    pub fn turn(&mut self, most: Option<Duration>) -> Turn {
        self.work();
        let turn = self.take_in(most);
        self.work();
        turn
    }

    /// Waits until something happens, but no longer than that, and takes in what came.
    pub fn take_in(&mut self, most: Option<Duration>) -> Turn {
        // Who only polls is not to pay for a look at all servers each time.
        let timeout = match most {
            Some(Duration::ZERO) => most,
            most => self.next_look().into_iter().chain(most).min(),
        };
        match self.poll.poll(&mut self.happened, timeout) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Turn::On,
            Err(error) => {
                tracing::error!(%error, "the fabric cannot wait for its sockets");
                return Turn::End;
            }
        }
        let happened = std::mem::replace(&mut self.happened, Events::with_capacity(0));
        for event in &happened {
            match event.token() {
                LISTENER => self.accept(),
                WAKER => {}
                BELL => self.rung = true,
                key => self.ready(key, event.is_read_closed()),
            }
        }
        self.happened = happened;
        if !self.obey() {
            return Turn::End;
        }
        let now = self.begun.elapsed();
        if most != Some(Duration::ZERO) || now >= self.looked + LOOK / 10 {
            self.looked = now;
            self.look();
        }
        Turn::On
    }

    /// How long nothing has to be looked at, if nothing comes.
    fn next_look(&self) -> Option<Duration> {
        let due = self.links.due();
        let due = due.map(|due| due.saturating_sub(self.begun.elapsed()));
        due.into_iter().chain(self.proving.then_some(LOOK)).min()
    }

    /// Does what was asked for; false at the end.
    fn obey(&mut self) -> bool {
        self.orders.look();
        while let Some(command) = self.orders.next() {
            match command {
                Command::Call {
                    to,
                    id,
                    message,
                    surely,
                } => self.ask(to, id, message, surely),
                Command::Reply { token, message } => self.answer(token, message),
                Command::Dial(to, lane) => self.dial_bulk(to, lane),
                Command::End => return false,
            }
        }
        true
    }

    /// Does what is to be done for the calls: sends what is to be sent.
    pub fn work(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(order) = self.links.next_order() {
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
    fn carry_out(&mut self, order: Order) -> Option<Key> {
        match order {
            Order::Dial(to) => {
                self.dial(to);
                None
            }
            Order::Request {
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
            Order::Reply { to, call, message } => {
                let key = self.asked_by.get(&to).copied()?;
                self.push(key, Kind::Reply, call, &[], message);
                Some(key)
            }
        }
    }

    /// Looks at what has taken too long.
    fn look(&mut self) {
        self.links.look(self.begun.elapsed());
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
            self.close(key, &Broken::Ended(timed_out));
        }
        self.proving = self.conns.values().any(|conn| conn.until.is_some());
    }

    fn refuse(&self, which: impl Fn(&mut Counters) -> &mut u64, why: &str) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = which(&mut counters);
        *count += 1;
        if *count <= LOGGED {
            tracing::warn!(count = *count, "refused a connection: {why}");
        }
    }
}
