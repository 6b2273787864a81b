//! Servers of one transport, driven by one thread: what the cases of the suite are written in.

use std::collections::HashMap;
use std::time::Duration;

use weir_core::types::Rank;
use weir_fabric::{CallError, CallId, Event, Fabric, Message, RefusalCounters, Timing, Token};

/// Longer than anything here may take, by the transport's clock.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of cases in which no server is lost. On a busy machine it may take some seconds until one that is
/// there is reached; cases that are about the time say another.
pub const PATIENT: Timing = Timing {
    deadline: Duration::from_secs(50),
    give_up: Duration::from_secs(20),
    handshake: Duration::from_secs(20),
};

/// What is wrong with someone who speaks to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It does not speak the protocol at all.
    Malformed,
    /// Another version of it.
    Version,
    /// It is of another instance.
    Instance,
    /// It looks for another server.
    Rank,
    /// It does not know the secret.
    Secret,
}

/// A transport under test: a network with places for some servers. Dropping an end kills that
/// server; starting it again gives it the place it had.
pub trait Transport {
    /// What a server holds.
    type End: Fabric;

    /// Whether anyone else can speak to its servers.
    const OPEN: bool = true;

    /// A network on which nothing goes wrong, and no server runs yet.
    fn new(servers: u16, timing: Timing) -> Self;

    /// One that loses connections or messages, and repeats messages, all the time.
    fn troubled(servers: u16, timing: Timing) -> Self;

    /// Starts a server.
    fn start(&mut self, rank: Rank, incarnation: u64) -> Self::End;

    /// The time of this network's clock, from any origin.
    fn now(&self) -> Duration;

    /// Returns when an end may have an event, or after a little while.
    fn pass(&mut self);

    /// Someone who is not of the instance speaks to a running server.
    fn stranger(&mut self, to: Rank, wrong: Wrong);
}

/// What a server does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conduct {
    /// Answers with what it was asked.
    Echo,
    /// Keeps it.
    Hold,
}

/// A server that runs.
pub struct Server<E> {
    pub end: E,
    pub conduct: Conduct,
    /// Calls that ended.
    done: HashMap<CallId, Result<Message, CallError>>,
    /// Whom it lost, in order.
    pub lost: Vec<Rank>,
    /// Requests that came.
    pub asked: usize,
    /// Those without bulk. What is answered with bulk is done again if its connection breaks.
    pub acted: usize,
    /// Those that it keeps.
    pub held: Vec<(Token, Message)>,
}

/// All of them.
pub struct Servers<T: Transport> {
    pub net: T,
    running: HashMap<Rank, Server<T::End>>,
}

impl<T: Transport> Servers<T> {
    /// `count` servers that echo, on a good network.
    pub fn run(count: u16) -> Self {
        Self::on(T::new(count, PATIENT), count)
    }

    /// `count` servers that echo on `net`, which may have more places.
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

    /// Waits for a call's end.
    pub fn wait(&mut self, at: u16, id: CallId) -> Result<Message, CallError> {
        self.until("a call ends", |all| all.server(at).done.contains_key(&id));
        self.server(at).done.remove(&id).expect("it has ended")
    }

    /// Asks and waits.
    pub fn ask(&mut self, from: u16, to: u16, message: Message) -> Result<Message, CallError> {
        let id = self.call(from, to, message);
        self.wait(from, id)
    }

    /// Answers what a server kept.
    pub fn let_go(&mut self, rank: u16) {
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

    /// Lets things happen until `so`.
    pub fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let begin = self.net.now();
        loop {
            self.take();
            if so(self) {
                return;
            }
            assert!(self.since(begin) < PATIENCE, "not in time: {what}");
            self.net.pass();
        }
    }

    /// Takes in what happened at all servers.
    fn take(&mut self) {
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
