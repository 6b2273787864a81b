//! Servers of one transport, driven by one thread: the vocabulary of the suite's cases.

use std::collections::HashMap;
use std::time::Duration;

use weir_core::types::Rank;
use weir_fabric::{CallError, CallId, Event, Fabric, Message, RefusalCounters, Timing, Token};

/// The guard of everything here, by the transport's clock: it ends a test that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The timing of cases in which no server is lost. On a busy machine it may take some seconds until
/// a running server is reached. Cases about time have their own timing.
pub const SLOW_TIMING: Timing = Timing {
    deadline: Duration::from_secs(50),
    give_up: Duration::from_secs(20),
    handshake: Duration::from_secs(20),
};

/// The error in a stranger's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Not this protocol.
    Malformed,
    /// Another version.
    Version,
    /// Another instance.
    Instance,
    /// Another server's rank.
    Rank,
    /// A wrong secret.
    Secret,
}

/// A transport under test: a network with positions for some servers. Dropping an end kills that
/// server; starting it again reuses its position.
pub trait Transport {
    /// A server's end.
    type End: Fabric;

    /// Its clock is simulated: nothing but the transport's own waits takes time.
    const IS_SIMULATED: bool = false;
    /// Strangers can send to its servers.
    const OPEN: bool = true;

    /// Creates a network without faults and without running servers.
    fn new(servers: u16, timing: Timing) -> Self;

    /// Creates a network that loses connections or messages, and repeats messages, all the time.
    fn troubled(servers: u16, timing: Timing) -> Self;

    /// Starts a server.
    fn start(&mut self, rank: Rank, incarnation: u64) -> Self::End;

    /// The time of this network's clock, from any origin.
    fn now(&self) -> Duration;

    /// Returns when an end may have an event, or after a little while.
    fn pass(&mut self);

    /// A stranger sends to a running server.
    fn stranger(&mut self, to: Rank, wrong: Wrong);
}

/// A server's handling of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conduct {
    /// Replies with the request's message.
    Echo,
    /// Keeps the request.
    Hold,
}

/// A running server.
pub struct Server<E> {
    pub end: E,
    pub conduct: Conduct,
    /// Calls that ended.
    done: HashMap<CallId, Result<Message, CallError>>,
    /// Lost peers, in order.
    pub lost: Vec<Rank>,
    /// Requests received.
    pub asked: usize,
    /// Requests without bulk. A request with bulk is carried out again if its connection breaks.
    pub acted: usize,
    /// Kept requests.
    pub held: Vec<(Token, Message)>,
}

/// All running servers.
pub struct Servers<T: Transport> {
    pub net: T,
    running: HashMap<Rank, Server<T::End>>,
}

impl<T: Transport> Servers<T> {
    /// Starts `count` servers that echo, on a network without faults.
    pub fn run(count: u16) -> Self {
        Self::on(T::new(count, SLOW_TIMING), count)
    }

    /// Starts `count` servers that echo on `net`, which may have more positions.
    pub fn on(net: T, count: u16) -> Self {
        let running = HashMap::new();
        let mut servers = Servers { net, running };
        for rank in 0..count {
            servers.start(rank, 1);
        }
        servers
    }

    pub fn start(&mut self, rank: u16, incarnation: u64) {
        let server = Server {
            end: self.net.start(Rank(rank), incarnation),
            conduct: Conduct::Echo,
            done: HashMap::new(),
            lost: Vec::new(),
            asked: 0,
            acted: 0,
            held: Vec::new(),
        };
        assert!(self.running.insert(Rank(rank), server).is_none());
    }

    pub fn kill(&mut self, rank: u16) {
        assert!(self.running.remove(&Rank(rank)).is_some());
    }

    pub fn server(&mut self, rank: u16) -> &mut Server<T::End> {
        self.running.get_mut(&Rank(rank)).expect("it runs")
    }

    pub fn call(&mut self, from: u16, to: u16, message: Message) -> CallId {
        self.server(from).end.call(Rank(to), message)
    }

    /// Waits for the end of a call.
    pub fn wait(&mut self, at: u16, id: CallId) -> Result<Message, CallError> {
        self.until("a call ends", |all| all.server(at).done.contains_key(&id));
        self.server(at).done.remove(&id).expect("it has ended")
    }

    /// Calls and waits.
    pub fn ask(&mut self, from: u16, to: u16, message: Message) -> Result<Message, CallError> {
        let id = self.call(from, to, message);
        self.wait(from, id)
    }

    /// Replies to the requests that a server kept.
    pub fn answer_held(&mut self, rank: u16) {
        let server = self.server(rank);
        for (token, message) in std::mem::take(&mut server.held) {
            server.end.reply(token, message);
        }
    }

    pub fn counters(&mut self, rank: u16) -> RefusalCounters {
        self.server(rank).end.counters()
    }

    pub fn since(&self, begin: Duration) -> Duration {
        self.net.now().saturating_sub(begin)
    }

    /// Checks that less than `limit` has passed since `begin`, if the clock is simulated. A real one
    /// also shows the other work of the machine, so that no test asserts a time by it.
    #[track_caller]
    pub fn check_time(&self, begin: Duration, limit: Duration) {
        let took = self.since(begin);
        assert!(!T::IS_SIMULATED || took < limit, "{took:?} of {limit:?}");
    }

    /// Runs until `so` is true.
    pub fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let begin = self.net.now();
        loop {
            self.handle_events();
            if so(self) {
                return;
            }
            assert!(self.since(begin) < TIME_LIMIT, "not in time: {what}");
            self.net.pass();
        }
    }

    /// Handles all events of all servers.
    fn handle_events(&mut self) {
        for server in self.running.values_mut() {
            while let Some(event) = server.end.poll() {
                match event {
                    Event::Request(token, message) => {
                        server.asked += 1;
                        server.acted += usize::from(message.bulk.is_empty());
                        match server.conduct {
                            Conduct::Echo => server.end.reply(token, message),
                            Conduct::Hold => server.held.push((token, message)),
                        }
                    }
                    Event::Done(id, result) => {
                        let before = server.done.insert(id, result);
                        assert!(before.is_none(), "a call ends once");
                    }
                    Event::PeerLost(rank) => server.lost.push(rank),
                }
            }
        }
    }
}
