//! A network without one: in one thread, with a clock of its own, its weather from a seed.
//!
//! Servers ask each other through [`Links`], as over TCP; what is simulated is what carries
//! them. A connection delivers what is sent, in order unless the weather says otherwise, until
//! it breaks; then both ends notice, each at its time, and what was under way is lost. While
//! two servers are cut off from each other what they send is held, as TCP holds it, and after
//! [`SILENCE`] each takes the connection for broken.
//!
//! Whoever drives it lets time pass ([`Network::run_until`]) and polls the ends. The same seed
//! and the same calls give the same run.
//!
//! | module | subject |
//! | --- | --- |
//! | `wire` | connections and frames |
//! | [`rng`] | numbers from a seed |

pub mod rng;
mod wire;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use weir_core::types::Rank;

use crate::frame::{BODY_MOST, BULK_MOST};
use crate::links::Links;
use crate::{CallError, CallId, Event, Fabric, Message, RefusalCounters, Timing, Token};
use rng::SeededRng;
use wire::{Conn, Frame, Packet};

/// A server that acknowledges nothing for so long is taken for gone.
pub const SILENCE: Duration = Duration::from_secs(2);

/// What happens to messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkFaults {
    /// A message takes at least and at most so long.
    pub delay: (Duration, Duration),
    /// Of 1000 messages so many let their connection break, with all that is under way.
    pub breaks_per_mille: u32,
    /// Each end notices that within so long.
    pub notice: Duration,
    /// So many come twice.
    pub twice_per_mille: u32,
    /// So many may overtake those before them.
    pub overtakes_per_mille: u32,
}

impl NetworkFaults {
    /// Nothing goes wrong.
    pub const NONE: NetworkFaults = NetworkFaults {
        delay: (Duration::from_micros(20), Duration::from_micros(80)),
        breaks_per_mille: 0,
        notice: SILENCE,
        twice_per_mille: 0,
        overtakes_per_mille: 0,
    };
}

/// What happened to messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCounts {
    /// Sent.
    pub sent: u64,
    /// Connections that broke under a message.
    pub broken: u64,
    /// Came twice.
    pub twice: u64,
    /// May have overtaken others.
    pub overtook: u64,
    /// Were held by a cut.
    pub held: u64,
}

/// A network, and the time.
#[derive(Clone, Debug)]
pub struct Network(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    timing: Timing,
    faults: NetworkFaults,
    rng: SeededRng,
    now: Duration,
    servers: Vec<Option<Server>>,
    /// Servers whose whole node is gone: nobody even refuses a connection there.
    silent: BTreeSet<Rank>,
    /// How many times as long messages from and to a server take.
    slow: BTreeMap<Rank, u32>,
    /// Pairs that are cut off from each other, with when that began.
    cuts: BTreeMap<(Rank, Rank), Duration>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    /// What arrives, by when, in the order of sending.
    wire: BTreeMap<(Duration, u64), Packet>,
    next_packet: u64,
    count: MessageCounts,
}

/// A server that runs.
#[derive(Debug)]
struct Server {
    incarnation: u64,
    links: Links,
    next_call: u64,
    events: VecDeque<Event>,
    /// The connection by which each server is asked.
    asks: BTreeMap<Rank, u64>,
    /// The newest connection by which each server asks.
    asked_by: BTreeMap<Rank, u64>,
    counters: RefusalCounters,
}

impl Network {
    /// With places for so many servers, none of which runs.
    pub fn new(servers: u16, timing: Timing, faults: NetworkFaults, seed: u64) -> Network {
        Network(Rc::new(RefCell::new(State {
            timing,
            faults,
            rng: SeededRng::new(seed),
            now: Duration::ZERO,
            servers: (0..servers).map(|_| None).collect(),
            silent: BTreeSet::new(),
            slow: BTreeMap::new(),
            cuts: BTreeMap::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            wire: BTreeMap::new(),
            next_packet: 0,
            count: MessageCounts::default(),
        })))
    }

    /// Starts a server in one of its lives; it dies when the end is dropped.
    pub fn start(&self, rank: Rank, incarnation: u64) -> Endpoint {
        let mut state = self.0.borrow_mut();
        state.silent.remove(&rank);
        let links = Links::new(rank, state.servers.len(), state.timing);
        let server = Server {
            incarnation,
            links,
            next_call: 1,
            events: VecDeque::new(),
            asks: BTreeMap::new(),
            asked_by: BTreeMap::new(),
            counters: RefusalCounters::default(),
        };
        let place = &mut state.servers[usize::from(rank.0)];
        assert!(place.is_none(), "one life at a time");
        *place = Some(server);
        drop(state);
        Endpoint {
            network: self.clone(),
            rank,
        }
    }

    /// The time, from the network's beginning.
    pub fn now(&self) -> Duration {
        self.0.borrow().now
    }

    /// When something happens next, if nobody does anything.
    pub fn due(&self) -> Option<Duration> {
        let state = self.0.borrow();
        let arrives = state.wire.keys().next().map(|(at, _)| *at);
        let running = state.servers.iter().flatten();
        let looks = running.filter_map(|server| server.links.due());
        looks.chain(arrives).min().map(|due| due.max(state.now))
    }

    /// Lets all happen that happens up to a time, and lets it be that time.
    pub fn run_until(&self, at: Duration) {
        while let Some(due) = self.due().filter(|due| *due <= at) {
            self.0.borrow_mut().step(due);
        }
        let mut state = self.0.borrow_mut();
        state.now = state.now.max(at);
    }

    /// Cuts two servers off from each other.
    pub fn cut(&self, a: Rank, b: Rank) {
        self.0.borrow_mut().cut(a, b);
    }

    /// Ends a cut.
    pub fn heal(&self, a: Rank, b: Rank) {
        self.0.borrow_mut().heal(a, b);
    }

    /// Lets messages from and to a server take so many times as long.
    pub fn slow(&self, rank: Rank, times: u32) {
        self.0.borrow_mut().slow.insert(rank, times.max(1));
    }

    /// A server's node is no more: when its end is dropped, nobody is told.
    pub fn vanish(&self, rank: Rank) {
        self.0.borrow_mut().silent.insert(rank);
    }

    /// Changes what happens to messages from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// What happened to messages so far.
    pub fn count(&self) -> MessageCounts {
        self.0.borrow().count
    }
}

/// What a server holds. Dropping it kills the server.
#[derive(Debug)]
pub struct Endpoint {
    network: Network,
    rank: Rank,
}

impl Endpoint {
    fn ask(&self, to: Rank, message: Message, unbounded: bool) -> CallId {
        let mut state = self.network.0.borrow_mut();
        let now = state.now;
        let server = state.server(self.rank);
        let id = CallId(server.next_call);
        server.next_call += 1;
        if message.body.len() > BODY_MOST - 8 || message.bulk.len() > BULK_MOST {
            let ended = Event::Done(id, Err(CallError::Ended));
            server.events.push_back(ended);
        } else {
            match unbounded {
                true => server.links.ask_without_deadline(now, to, id, message),
                false => server.links.ask(now, to, id, message),
            }
            state.run_actions(self.rank);
        }
        id
    }
}

impl Fabric for Endpoint {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, true)
    }

    fn reply(&self, token: Token, message: Message) {
        let mut state = self.network.0.borrow_mut();
        state.server(self.rank).links.answer(token, message);
        state.run_actions(self.rank);
    }

    fn poll(&self) -> Option<Event> {
        let mut state = self.network.0.borrow_mut();
        let server = state.server(self.rank);
        let event = server.events.pop_front();
        event.or_else(|| server.links.next_event())
    }

    fn counters(&self) -> RefusalCounters {
        self.network.0.borrow_mut().server(self.rank).counters
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.network.0.borrow_mut().died(self.rank);
    }
}

impl State {
    /// A server that runs: its end is there.
    fn server(&mut self, rank: Rank) -> &mut Server {
        let server = self.servers[usize::from(rank.0)].as_mut();
        server.expect("a server lives as long as its end")
    }

    /// The next thing happens.
    fn step(&mut self, due: Duration) {
        self.now = due;
        for at in 0..self.servers.len() {
            let Some(server) = &mut self.servers[at] else {
                continue;
            };
            if server.links.due().is_some_and(|look| look <= due) {
                server.links.check_deadlines(due);
                self.run_actions(Rank(u16::try_from(at).expect("a rank")));
                return;
            }
        }
        if let Some(((at, _), packet)) = self.wire.pop_first() {
            assert!(at <= due, "the earliest is what was due");
            self.arrive(packet);
        }
    }

    fn is_cut(&self, [a, b]: [Rank; 2]) -> bool {
        self.cuts.contains_key(&pair(a, b))
    }

    fn cut(&mut self, a: Rank, b: Rank) {
        let now = self.now;
        if self.cuts.insert(pair(a, b), now).is_some() {
            return;
        }
        let crossing = self.conns.iter().filter(|(_, conn)| conn.joins(a, b));
        let crossing: Vec<u64> = crossing.map(|(id, _)| *id).collect();
        for id in crossing {
            self.await_silence(id, now);
        }
    }

    /// Each end finds out, if the cut that began at `cut` lasts.
    fn await_silence(&mut self, conn: u64, cut: Duration) {
        for side in 0..2 {
            let late = self.rng.duration((Duration::ZERO, SILENCE / 4));
            self.arrives_at(
                cut + SILENCE + late,
                Packet::new(conn, side, Frame::Silence(cut)),
            );
        }
    }

    fn heal(&mut self, a: Rank, b: Rank) {
        self.cuts.remove(&pair(a, b));
        let mut held = Vec::new();
        for conn in self.conns.values_mut().filter(|conn| conn.joins(a, b)) {
            held.append(&mut conn.held);
        }
        for packet in held {
            self.travel(packet);
        }
    }

    /// A server's process or node is no more.
    fn died(&mut self, rank: Rank) {
        self.servers[usize::from(rank.0)] = None;
        let silent = self.silent.contains(&rank);
        let its: Vec<(u64, usize)> = self
            .conns
            .iter()
            .flat_map(|(id, conn)| [(*id, 0, conn.ends[0]), (*id, 1, conn.ends[1])])
            .filter(|(_, _, end)| *end == rank)
            .map(|(id, side, _)| (id, side))
            .collect();
        for (id, side) in its {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            conn.open[side] = false;
            let closed = Packet::new(id, 1 - side, Frame::Closed);
            if silent {
                self.arrives_at(self.now + SILENCE, closed);
            } else {
                self.travel(closed);
            }
        }
    }
}

fn pair(a: Rank, b: Rank) -> (Rank, Rank) {
    (a.min(b), a.max(b))
}

#[cfg(test)]
mod tests;
