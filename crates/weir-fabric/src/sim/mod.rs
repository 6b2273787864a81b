//! A simulated network, in one thread, with its own clock and faults drawn from a seed.
//!
//! Servers call each other through [`Links`], as over TCP; only the transport is simulated. A
//! connection delivers messages, in order unless a fault reorders them, until it breaks. Then both
//! ends notice, each at its own time, and the messages under way are lost. While two servers are
//! cut off from each other, their messages are held, as TCP holds them, and after [`SILENCE`] each
//! takes the connection for broken.
//!
//! The driver advances the time ([`Network::run_until`]) and polls the endpoints. The same seed and
//! the same calls give the same run.
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
use wire::{Frame, Packet, SimulatedConnection};

/// A server that acknowledges nothing for this long counts as gone.
pub const SILENCE: Duration = Duration::from_secs(2);

/// The faults of a network, each with its probability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkFaults {
    /// The least and the greatest delay of a message.
    pub delay: (Duration, Duration),
    /// Messages of 1000 under which the connection breaks, with everything under way.
    pub breaks_per_mille: u32,
    /// Each end notices a break within this time.
    pub notice: Duration,
    /// Messages of 1000 that arrive twice.
    pub twice_per_mille: u32,
    /// Messages of 1000 that may overtake earlier ones.
    pub overtakes_per_mille: u32,
}

impl NetworkFaults {
    /// No faults.
    pub const NONE: NetworkFaults = NetworkFaults {
        delay: (Duration::from_micros(20), Duration::from_micros(80)),
        breaks_per_mille: 0,
        notice: SILENCE,
        twice_per_mille: 0,
        overtakes_per_mille: 0,
    };
}

/// Counts of messages and faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkCounts {
    /// Sent.
    pub sent: u64,
    /// Connections that broke under a message.
    pub broken: u64,
    /// Arrived twice.
    pub twice: u64,
    /// May have overtaken others.
    pub overtook: u64,
    /// Were held by a cut.
    pub held: u64,
}

/// A simulated network with its clock.
#[derive(Clone, Debug)]
pub struct Network(Rc<RefCell<NetworkState>>);

#[derive(Debug)]
struct NetworkState {
    timing: Timing,
    faults: NetworkFaults,
    rng: SeededRng,
    now: Duration,
    servers: Vec<Option<Server>>,
    /// Servers whose whole node is gone: it does not even refuse connections.
    silent: BTreeSet<Rank>,
    /// The factor by which messages from and to a server are slower.
    slow: BTreeMap<Rank, u32>,
    /// Pairs of servers that are cut off from each other, with the time at which the cut began.
    cuts: BTreeMap<(Rank, Rank), Duration>,
    conns: BTreeMap<u64, SimulatedConnection>,
    next_conn: u64,
    /// Packets under way, by arrival time and then in the order of sending.
    wire: BTreeMap<(Duration, u64), Packet>,
    next_packet: u64,
    count: NetworkCounts,
}

/// A running server.
#[derive(Debug)]
struct Server {
    incarnation: u64,
    links: Links,
    next_call: u64,
    events: VecDeque<Event>,
    /// The connection for calls to each server.
    asks: BTreeMap<Rank, u64>,
    /// The newest connection by which each server calls.
    asked_by: BTreeMap<Rank, u64>,
    counters: RefusalCounters,
}

impl Network {
    /// Creates a network for `servers` servers, none of which runs.
    pub fn new(servers: u16, timing: Timing, faults: NetworkFaults, seed: u64) -> Network {
        Network(Rc::new(RefCell::new(NetworkState {
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
            count: NetworkCounts::default(),
        })))
    }

    /// Starts one incarnation of a server; the server dies when the endpoint is dropped.
    pub fn start(&self, rank: Rank, incarnation: u64) -> SimulatedEndpoint {
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
        SimulatedEndpoint {
            network: self.clone(),
            rank,
        }
    }

    /// The time since the network's creation.
    pub fn now(&self) -> Duration {
        self.0.borrow().now
    }

    /// The time of the next event, if no server does anything.
    pub fn due(&self) -> Option<Duration> {
        let state = self.0.borrow();
        let arrives = state.wire.keys().next().map(|(at, _)| *at);
        let running = state.servers.iter().flatten();
        let looks = running.filter_map(|server| server.links.due());
        looks.chain(arrives).min().map(|due| due.max(state.now))
    }

    /// Runs all events up to a time, and sets the clock to it.
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

    /// Makes messages from and to a server slower by a factor.
    pub fn slow(&self, rank: Rank, times: u32) {
        self.0.borrow_mut().slow.insert(rank, times.max(1));
    }

    /// Makes a server's node disappear: when its endpoint is dropped, no other server is told.
    pub fn vanish(&self, rank: Rank) {
        self.0.borrow_mut().silent.insert(rank);
    }

    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// The counts so far.
    pub fn count(&self) -> NetworkCounts {
        self.0.borrow().count
    }
}

/// A server's end of the network. Dropping it kills the server.
#[derive(Debug)]
pub struct SimulatedEndpoint {
    network: Network,
    rank: Rank,
}

impl SimulatedEndpoint {
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

impl Fabric for SimulatedEndpoint {
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

impl Drop for SimulatedEndpoint {
    fn drop(&mut self) {
        self.network.0.borrow_mut().died(self.rank);
    }
}

impl NetworkState {
    /// A running server: its endpoint exists.
    fn server(&mut self, rank: Rank) -> &mut Server {
        let server = self.servers[usize::from(rank.0)].as_mut();
        server.expect("a server lives as long as its end")
    }

    /// Runs the next event.
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

    /// Lets each end notice a cut that began at `cut`, if it lasts.
    fn await_silence(&mut self, conn: u64, cut: Duration) {
        for side in 0..2 {
            let late = self.rng.duration(Duration::ZERO, SILENCE / 4);
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

    /// Removes a server whose process or node is gone.
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
