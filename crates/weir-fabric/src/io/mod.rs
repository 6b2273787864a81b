//! The I/O thread: the listener, all handshakes and all calls of a server, in one poll(2)-like
//! loop. It sleeps while nothing is asked and nothing comes.
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | the thread's state and loop; the calls' logic is in [`crate::links`] |
//! | `sockets` | connections: their bytes, frames, stages, end |
//! | `shake` | who is at the other end |
//!
//! A connection of the bulk plane is this thread's until both have proved who they are; then it
//! goes to the threads of [`crate::bulk`].

mod shake;
mod sockets;

pub(crate) use sockets::{is_silence, SILENCE};

use std::collections::{BTreeSet, HashMap};
use std::net::TcpListener as StdListener;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
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
const FIRST: usize = 2;
/// Connections that have not proved anything yet.
const STRANGERS: usize = 256;
/// How often deadlines are looked at while something is awaited.
const LOOK: Duration = Duration::from_millis(100);
/// Messages of one kind of refusal that are logged, at most, a thread's life long.
const LOGGED: u64 = 10;

/// What the service thread asks of this one.
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
    /// Connect to a server for the bulk plane.
    Dial(Rank),
    /// The end.
    End,
}

/// What the thread is given: where events go, and whom to wake for them.
pub type Ends = (Sender<Event>, Box<dyn Fn() + Send + 'static>);

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
    /// Ours: may ask.
    Asking(Rank),
    /// Theirs: may ask, as that life of that server.
    Asked(Rank, u64),
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

/// The thread's state.
pub struct Io {
    poll: Poll,
    listener: TcpListener,
    me: Membership,
    timing: Timing,
    orders: Letters<Command>,
    ends: Ends,
    bulk: Bulk,
    counters: Arc<Mutex<Counters>>,
    conns: HashMap<Key, Conn>,
    next_key: usize,
    /// The calls, and what is to be done for them.
    links: Links,
    begun: Instant,
    /// The connection by which each server is asked.
    asks: HashMap<Rank, Key>,
    /// The newest connection by which each server asks.
    asked_by: HashMap<Rank, Key>,
    strangers: usize,
}

impl Io {
    /// Takes over a bound listener.
    pub fn new(
        listener: StdListener,
        me: Membership,
        timing: Timing,
        ends: Ends,
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
            orders,
            ends,
            bulk: bulk(commands.clone())?,
            counters,
            conns: HashMap::new(),
            next_key: FIRST,
            links,
            begun: Instant::now(),
            asks: HashMap::new(),
            asked_by: HashMap::new(),
            strangers: 0,
        };
        Ok((io, commands))
    }

    /// Works until told to end.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.next_look();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the fabric cannot wait for its sockets");
                    return;
                }
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    key => self.ready(key),
                }
            }
            if !self.obey() {
                return;
            }
            self.look();
            self.work();
            if self.tell() {
                (self.ends.1)();
            }
        }
    }

    /// How long nothing has to be looked at, if nothing comes.
    fn next_look(&self) -> Option<Duration> {
        let due = self.links.due();
        let due = due.map(|due| due.saturating_sub(self.begun.elapsed()));
        let proving = self.conns.values().any(|conn| conn.until.is_some());
        due.into_iter().chain(proving.then_some(LOOK)).min()
    }

    /// Passes on what has happened; whether anything has.
    fn tell(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.links.next_event() {
            any = true;
            // Nobody to tell: the end is near.
            let _ = self.ends.0.send(event);
        }
        any
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
                } => {
                    let now = self.begun.elapsed();
                    match surely {
                        true => self.links.ask_surely(now, to, id, message),
                        false => self.links.ask(now, to, id, message),
                    }
                }
                Command::Reply { token, message } => self.links.answer(token, message),
                Command::Dial(to) => self.dial_bulk(to),
                Command::End => return false,
            }
        }
        true
    }

    /// Does what is to be done for the calls.
    fn work(&mut self) {
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
        self.links.look(self.begun.elapsed());
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
