//! The I/O thread: all sockets of a server, in one poll(2)-like loop. It sleeps while nothing
//! is asked and nothing comes.

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token as Key, Waker};
use socket2::{SockRef, TcpKeepalive};
use weir_core::types::Rank;

use crate::conn::{Broken, Incoming, Outgoing};
use crate::frame::{
    proof, Garbage, Greeting, Head, Kind, Role, GREETING_BYTES, PROOF_BYTES, VERSION,
};
use crate::links::{Links, Order};
use crate::{CallId, Counters, Event, Membership, Message, Timing, Token};

const LISTENER: Key = Key(0);
const WAKER: Key = Key(1);
const FIRST: usize = 2;
/// Connections that have not proved anything yet.
const STRANGERS: usize = 256;
/// How often deadlines are looked at while something is awaited.
const LOOK: Duration = Duration::from_millis(100);
/// A server that acknowledges nothing for so long is taken for gone.
const SILENCE: Duration = Duration::from_secs(2);
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
    },
    /// Answer another server.
    Reply {
        /// Whom, and which call.
        token: Token,
        /// What.
        message: Message,
    },
    /// The end.
    End,
}

/// What the thread is given: orders, where events go, and whom to wake for them.
pub type Ends = (
    Receiver<Command>,
    Sender<Event>,
    Box<dyn Fn() + Send + 'static>,
);

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// Ours: connecting.
    Dialling(Rank),
    /// Ours: greeted, waits for the challenge.
    Greeted(Rank, Greeting),
    /// Theirs: waits for the greeting.
    Stranger,
    /// Theirs: challenged, waits for the proof.
    Challenged(Greeting, Greeting),
    /// Ours: may ask.
    Asking(Rank),
    /// Theirs: may ask, as that life of that server.
    Asked(Rank, u64),
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
    ends: Ends,
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
    ) -> std::io::Result<(Io, Arc<Waker>)> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(registry, WAKER)?);
        let links = Links::new(me.rank, me.addresses.len(), timing);
        let io = Io {
            poll,
            listener,
            me,
            timing,
            ends,
            counters,
            conns: HashMap::new(),
            next_key: FIRST,
            links,
            begun: Instant::now(),
            asks: HashMap::new(),
            asked_by: HashMap::new(),
            strangers: 0,
        };
        Ok((io, waker))
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
                (self.ends.2)();
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
            let _ = self.ends.1.send(event);
        }
        any
    }

    /// Does what was asked for; false at the end.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.ends.0.try_recv() {
            match command {
                Command::Call { to, id, message } => {
                    self.links.ask(self.begun.elapsed(), to, id, message);
                }
                Command::Reply { token, message } => self.links.answer(token, message),
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

    fn address(&self, rank: Rank) -> Option<SocketAddr> {
        self.me.addresses.get(usize::from(rank.0)).copied()
    }

    fn dial(&mut self, to: Rank) {
        let socket = self.address(to).map(TcpStream::connect);
        let key = match socket {
            Some(Ok(socket)) => self.adopt(socket, Stage::Dialling(to)),
            _ => None,
        };
        match key {
            Some(key) => drop(self.asks.insert(to, key)),
            None => self.links.broken(self.begun.elapsed(), to),
        }
    }

    /// Takes a socket into the poll.
    fn adopt(&mut self, mut socket: TcpStream, stage: Stage) -> Option<Key> {
        let key = Key(self.next_key);
        self.next_key += 1;
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut socket, key, both)
            .inspect_err(|error| tracing::warn!(%error, "a socket cannot be polled"))
            .ok()?;
        // Small messages go at once; a server that fell silent is noticed.
        let _ = socket.set_nodelay(true);
        let options = SockRef::from(&socket);
        let probes = TcpKeepalive::new()
            .with_time(SILENCE / 2)
            .with_interval(SILENCE / 4)
            .with_retries(2);
        let _ = options.set_tcp_user_timeout(Some(SILENCE));
        let _ = options.set_tcp_keepalive(&probes);
        let conn = Conn {
            socket,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            stage,
            until: Some(Instant::now() + self.timing.handshake),
            writing: true,
        };
        self.conns.insert(key, conn);
        Some(key)
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) if self.strangers < STRANGERS => {
                    if self.adopt(socket, Stage::Stranger).is_some() {
                        self.strangers += 1;
                    }
                }
                Ok(_) => self.refuse(|counters| &mut counters.slow, "too many strangers"),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    return;
                }
            }
        }
    }

    fn refuse(&self, which: impl Fn(&mut Counters) -> &mut u64, why: &str) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = which(&mut counters);
        *count += 1;
        if *count <= LOGGED {
            tracing::warn!(count = *count, "refused a connection: {why}");
        }
    }

    /// A socket has bytes, or room, or an error.
    fn ready(&mut self, key: Key) {
        if let Err(broken) = self.serve(key) {
            self.close(key, &broken);
        }
    }

    fn serve(&mut self, key: Key) -> Result<(), Broken> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        if let Stage::Dialling(to) = conn.stage {
            if let Some(error) = conn.socket.take_error().map_err(Broken::Ended)? {
                return Err(Broken::Ended(error));
            }
            if conn.socket.peer_addr().is_err() {
                return Ok(()); // not yet
            }
            self.greet(key, to)?;
        }
        loop {
            let Some(conn) = self.conns.get_mut(&key) else {
                return Ok(());
            };
            let Some((head, message)) = conn.incoming.read_from(&mut conn.socket)? else {
                break;
            };
            self.take(key, &head, message)?;
        }
        self.flush(key)
    }

    fn greeting(&self, to: Rank) -> Result<Greeting, Broken> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|_| Broken::Ended(std::io::ErrorKind::Other.into()))?;
        Ok(Greeting {
            version: VERSION,
            instance: self.me.instance,
            from: self.me.rank,
            to,
            incarnation: self.me.incarnation,
            nonce,
        })
    }

    fn greet(&mut self, key: Key, to: Rank) -> Result<(), Broken> {
        let greeting = self.greeting(to)?;
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Greeted(to, greeting);
        }
        self.say(key, Kind::Hello, greeting.encode().to_vec());
        Ok(())
    }

    fn say(&mut self, key: Key, kind: Kind, body: Vec<u8>) {
        self.push(key, kind, CallId(0), &[], Message { body, bulk: vec![] });
    }

    fn push(&mut self, key: Key, kind: Kind, call: CallId, prefix: &[u8], message: Message) {
        if let Some(conn) = self.conns.get_mut(&key) {
            let head = Head {
                kind,
                call,
                body: prefix.len() + message.body.len(),
                bulk: message.bulk.len(),
            };
            conn.outgoing.push(&head, prefix, message);
        }
    }

    /// Writes what goes without waiting.
    fn flush(&mut self, key: Key) -> Result<(), Broken> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        if matches!(conn.stage, Stage::Dialling(_)) {
            return Ok(());
        }
        let all = conn.outgoing.write_to(&mut conn.socket)?;
        if conn.writing == all {
            conn.writing = !all;
            let mut interest = Interest::READABLE;
            if conn.writing {
                interest |= Interest::WRITABLE;
            }
            let registry = self.poll.registry();
            registry
                .reregister(&mut conn.socket, key, interest)
                .map_err(Broken::Ended)?;
        }
        Ok(())
    }

    /// A frame came.
    fn take(&mut self, key: Key, head: &Head, message: Message) -> Result<(), Broken> {
        let Some(conn) = self.conns.get(&key) else {
            return Ok(());
        };
        match (&conn.stage, head.kind) {
            (Stage::Stranger, Kind::Hello) => self.challenge(key, &message.body),
            (Stage::Greeted(to, greeting), Kind::Challenge) => {
                let (to, greeting) = (*to, *greeting);
                self.prove(key, to, &greeting, &message.body)
            }
            (Stage::Challenged(theirs, ours), Kind::Proof) => {
                let (theirs, ours) = (*theirs, *ours);
                self.admit(key, &theirs, &ours, &message.body)
            }
            (Stage::Asking(to), Kind::Reply) => {
                self.links.replied(*to, head.call, message);
                Ok(())
            }
            (Stage::Asked(from, incarnation), Kind::Request) => {
                let token = Token {
                    from: *from,
                    incarnation: *incarnation,
                    call: head.call,
                };
                self.asked(token, message)
            }
            _ => Err(Garbage.into()),
        }
    }

    /// A stranger greets: who is it, and whom does it look for?
    fn challenge(&mut self, key: Key, body: &[u8]) -> Result<(), Broken> {
        let theirs = self.check(body)?;
        if self.address(theirs.from).is_none() || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "for another server");
            return Err(Garbage.into());
        }
        let ours = self.greeting(theirs.from)?;
        let proof = proof(&self.me.secret, Role::Acceptor, &theirs, &ours);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Challenged(theirs, ours);
        }
        let body = [&ours.encode()[..], proof.as_bytes()].concat();
        self.say(key, Kind::Challenge, body);
        Ok(())
    }

    /// A greeting of this version and instance.
    fn check(&self, body: &[u8]) -> Result<Greeting, Broken> {
        let greeting = body.first_chunk::<GREETING_BYTES>().ok_or(Garbage)?;
        let greeting = Greeting::decode(greeting);
        if greeting.version != VERSION {
            self.refuse(|counters| &mut counters.version, "another version");
            return Err(Garbage.into());
        }
        if greeting.instance != self.me.instance {
            self.refuse(|counters| &mut counters.instance, "another instance");
            return Err(Garbage.into());
        }
        Ok(greeting)
    }

    /// Who was dialled proves itself; then we do.
    fn prove(&mut self, key: Key, to: Rank, ours: &Greeting, body: &[u8]) -> Result<(), Broken> {
        let theirs = self.check(body)?;
        if theirs.from != to || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "another server answers");
            return Err(Garbage.into());
        }
        self.check_proof(Role::Acceptor, ours, &theirs, &body[GREETING_BYTES..])?;
        let proof = proof(&self.me.secret, Role::Dialler, ours, &theirs);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Asking(to);
            conn.until = None;
        }
        self.say(key, Kind::Proof, proof.as_bytes().to_vec());
        self.links.connected(to, theirs.incarnation);
        Ok(())
    }

    fn check_proof(
        &self,
        role: Role,
        dialler: &Greeting,
        acceptor: &Greeting,
        given: &[u8],
    ) -> Result<(), Broken> {
        let given = given.first_chunk::<PROOF_BYTES>().ok_or(Garbage)?;
        if proof(&self.me.secret, role, dialler, acceptor) != *given {
            self.refuse(|counters| &mut counters.secret, "the secret is wrong");
            return Err(Garbage.into());
        }
        Ok(())
    }

    /// A dialler proved itself.
    fn admit(
        &mut self,
        key: Key,
        theirs: &Greeting,
        ours: &Greeting,
        body: &[u8],
    ) -> Result<(), Broken> {
        self.check_proof(Role::Dialler, theirs, ours, body)?;
        let (from, incarnation) = (theirs.from, theirs.incarnation);
        if !self.links.admit(from, incarnation) {
            return Err(Garbage.into()); // a life that has ended
        }
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Asked(from, incarnation);
            conn.until = None;
            self.strangers -= 1;
        }
        // The proof of an older one may come late; what is asked comes over the newest.
        let newest = self.asked_by.entry(from).or_insert(key);
        *newest = key.max(*newest);
        Ok(())
    }

    /// A request came, behind the number below which all have ended.
    fn asked(&mut self, token: Token, mut message: Message) -> Result<(), Broken> {
        let ended_below = message.body.first_chunk::<8>().ok_or(Garbage)?;
        let ended_below = u64::from_le_bytes(*ended_below);
        message.body.drain(..8);
        let lives = self.links.asked(token, ended_below, message);
        lives.then_some(()).ok_or_else(|| Garbage.into())
    }

    fn close(&mut self, key: Key, broken: &Broken) {
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let _ = self.poll.registry().deregister(&mut conn.socket);
        if matches!(broken, Broken::Garbage(_)) {
            self.refuse(|counters| &mut counters.garbage, "what came makes no sense");
        }
        match conn.stage {
            Stage::Dialling(to) | Stage::Greeted(to, _) | Stage::Asking(to) => {
                if self.asks.get(&to) == Some(&key) {
                    self.asks.remove(&to);
                    self.links.broken(self.begun.elapsed(), to);
                }
            }
            Stage::Stranger | Stage::Challenged(..) => self.strangers -= 1,
            Stage::Asked(from, _) => {
                if self.asked_by.get(&from) == Some(&key) {
                    self.asked_by.remove(&from);
                }
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
}
