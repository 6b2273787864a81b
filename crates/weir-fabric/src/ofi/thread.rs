//! The thread that drives an endpoint: it carries out what `links` and `lines` want, seals and
//! opens packets, and sleeps while nothing is asked and nothing comes.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_core::types::Rank;

use super::endpoint::Endpoint;
use super::lines::{Heard, Lines, Step};
use super::offers::{Offers, Parts};
use super::packet::{open, seal, Head, Key, Part, Refused, Word};
use super::peers::Peers;
use super::pulls::{Of, Outcome, Pulls};
use super::transfer::Completion;
use super::Bell;
use crate::links::{Links, Order};
use crate::{CallId, Counters, Event, Membership, Message, Timing, Token};

/// How often the queue is looked at while something is under way, whatever its descriptor says:
/// not every provider rings for everything.
const BUSY_LOOK: Duration = Duration::from_millis(100);
/// How often it is while nothing is.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// Before a provider that had no room is tried again, if it does not ring.
const FULL_LOOK: Duration = Duration::from_millis(1);
/// Completions that are taken before anything else is looked at.
const ROUND: usize = 256;
/// Messages of one kind of refusal that are logged, at most, a thread's life long.
const LOGGED: u64 = 10;

/// What the service thread asks of this one.
#[derive(Debug)]
pub enum Command {
    /// Ask another server.
    Call {
        to: Rank,
        id: CallId,
        message: Message,
        /// See [`crate::Fabric::call_surely`].
        surely: bool,
    },
    /// Answer another server.
    Reply { token: Token, message: Message },
    /// The end.
    End,
}

/// What the thread is given.
pub struct Ends {
    pub commands: Receiver<Command>,
    pub events: Sender<Event>,
    pub wake: Box<dyn Fn() + Send + 'static>,
    pub counters: Arc<Mutex<Counters>>,
    pub bell: Bell,
}

/// The thread's state.
pub struct Thread {
    endpoint: Endpoint,
    me: Membership,
    key: Key,
    timing: Timing,
    ends: Ends,
    begun: Instant,
    links: Links,
    lines: Lines,
    pulls: Pulls,
    peers: Peers,
    offers: Offers,
    /// The provider has no room for what is to be done.
    full: bool,
}

impl Thread {
    /// Works for one server among those of `names`.
    pub fn new(
        endpoint: Endpoint,
        me: Membership,
        names: Vec<Vec<u8>>,
        timing: Timing,
        ends: Ends,
    ) -> Thread {
        let servers = names.len();
        let own = usize::from(me.rank.0);
        let moved = names.get(own).is_some_and(|name| name != endpoint.name());
        let name = endpoint.name().to_vec();
        let mut lines = Lines::new(me.incarnation, name, timing);
        if moved {
            // The others look for this server where its former life was.
            for rank in (0..)
                .map(Rank)
                .take(servers)
                .filter(|rank| *rank != me.rank)
            {
                lines.announce(rank);
            }
        }
        Thread {
            endpoint,
            key: Key::of(&me.secret),
            links: Links::new(me.rank, servers, timing),
            me,
            timing,
            ends,
            begun: Instant::now(),
            lines,
            pulls: Pulls::default(),
            peers: Peers::new(names),
            offers: Offers::default(),
            full: false,
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Works until told to end.
    pub fn run(mut self) {
        loop {
            let taken = match self.take_completions() {
                Ok(taken) => taken,
                Err(code) => {
                    let error = self.endpoint.library.error(code);
                    tracing::error!(error, "libfabric has failed; this server is cut off");
                    self.links.end();
                    self.tell();
                    return (self.ends.wake)();
                }
            };
            self.ends.bell.silence();
            if !self.obey() {
                return;
            }
            let now = self.now();
            self.links.look(now);
            let links = &self.links;
            self.lines.look(now, |rank| links.awaits(rank));
            self.look_at_memory(now);
            self.work();
            if self.tell() {
                (self.ends.wake)();
            }
            if taken < ROUND {
                let timeout = self.next_look();
                let bell = self.ends.bell.clone();
                self.endpoint.wait(bell.fd(), Some(timeout));
            }
        }
    }

    /// How long nothing has to be looked at, if nothing comes.
    fn next_look(&self) -> Duration {
        let now = self.now();
        let dues = [self.links.due(), self.lines.due()].into_iter().flatten();
        let due = dues.map(|due| due.saturating_sub(now)).min();
        let quiet = self.pulls.is_empty() && self.offers.has_no_replies() && due.is_none();
        let most = match (self.full, quiet) {
            (true, _) => FULL_LOOK,
            (false, true) => IDLE_LOOK,
            (false, false) => BUSY_LOOK,
        };
        due.map_or(most, |due| due.min(most))
    }

    /// Does what was asked for; false at the end.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.ends.commands.try_recv() {
            match command {
                Command::Call {
                    to,
                    id,
                    message,
                    surely,
                } => {
                    let now = self.now();
                    match surely {
                        true => self.links.ask_surely(now, to, id, message),
                        false => self.links.ask(now, to, id, message),
                    }
                }
                Command::Reply { token, message } => self.links.answer(token, message),
                Command::End => return false,
            }
        }
        true
    }

    /// Passes on what has happened; whether anything has.
    fn tell(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.links.next_event() {
            any = true;
            if let Event::Done(id, _) = &event {
                self.offers.ended(&mut self.endpoint, *id);
            }
            // Nobody to tell: the end is near.
            let _ = self.ends.events.send(event);
        }
        any
    }

    /// Does all that is to be done, until nothing is.
    fn work(&mut self) {
        loop {
            while let Some(order) = self.links.next_order() {
                self.carry_out(order);
            }
            if let Some(step) = self.lines.next_step() {
                self.step(step);
                continue;
            }
            let failed = self.advance();
            let failed = failed | self.flush();
            if !failed {
                return;
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        let now = self.now();
        match order {
            Order::Dial(to) => self.lines.dial(now, to),
            Order::Request {
                to,
                call,
                ended_below,
                message,
            } => {
                let Some((life, line)) = self.lines.to_ask(to) else {
                    return; // it is sent again when there is a line
                };
                let parts = self.offers.request(&mut self.endpoint, call, message);
                let Some(Parts { body, bulk }) = parts else {
                    return self.lines.break_off(now, to);
                };
                self.lines.asked(now, to);
                let word = Word::Request {
                    call,
                    ended_below,
                    body,
                    bulk,
                };
                self.say(to, life, line, &word);
            }
            Order::Reply { to, call, message } => {
                let Some((life, line)) = self.lines.to_answer(to) else {
                    return;
                };
                let (of, until) = ((to, life, call), now + self.timing.deadline);
                let endpoint = &mut self.endpoint;
                let parts = self.offers.reply(endpoint, of, message, until);
                let Some(Parts { body, bulk }) = parts else {
                    return; // it is missed, and asked for again
                };
                self.lines.replied(to);
                self.say(to, life, line, &Word::Reply { call, body, bulk });
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Say {
                to,
                life,
                line,
                word,
            } => self.say(to, life, line, &word),
            Step::Connected(to, life) => self.links.connected(to, life),
            Step::Broken(to, since) => {
                for id in self.pulls.replies_of(to) {
                    self.pulls.fail(&mut self.endpoint, id);
                }
                self.links.broken(since, to);
            }
        }
    }

    fn say(&mut self, to: Rank, to_life: u64, line: u64, word: &Word) {
        let head = Head {
            instance: self.me.instance,
            from: self.me.rank,
            to,
            from_life: self.me.incarnation,
            to_life,
            line,
        };
        // What does not go out before its line is broken has no reader.
        let until = self.now() + self.timing.give_up;
        self.peers.post(to, until, seal(&self.key, &head, word));
    }

    /// Has bytes read that are to come; whether something failed that is now to be dealt with.
    fn advance(&mut self) -> bool {
        let now = self.now();
        let (peers, mut words) = (&mut self.peers, Vec::new());
        let (failed, full) = self.pulls.advance(
            now,
            &mut self.endpoint,
            |endpoint, rank| peers.address(endpoint, rank),
            |rank, word| words.push((rank, word)),
        );
        self.full = full;
        for (rank, word) in words {
            let life = self.lines.life_of(rank);
            self.say(rank, life, 0, &word);
        }
        let any = !failed.is_empty();
        for id in failed {
            self.fail(id);
        }
        any
    }

    /// Sends what goes; whether a line broke by it.
    fn flush(&mut self) -> bool {
        let now = self.now();
        let (failed, full) = self.peers.flush(&mut self.endpoint, now);
        self.full |= full;
        for rank in &failed {
            self.lines.break_off(now, *rank);
        }
        !failed.is_empty()
    }

    /// Takes what has ended; how much that was.
    fn take_completions(&mut self) -> Result<usize, core::ffi::c_int> {
        for taken in 0..ROUND {
            let Some(completion) = self.endpoint.next()? else {
                return Ok(taken);
            };
            let now = self.now();
            match completion {
                Completion::Received(packet) => self.received(now, &packet),
                Completion::Sent { good: true, .. } => {}
                Completion::Sent { to, good: false } => self.lines.break_off(now, to),
                Completion::Read { landing, good } => {
                    if let Some((id, failed)) = self.pulls.read(now, landing, good) {
                        if failed {
                            self.fail(id);
                        } else {
                            self.came(now, id);
                        }
                    }
                }
            }
        }
        Ok(ROUND)
    }

    fn received(&mut self, now: Duration, packet: &[u8]) {
        let me = (self.me.rank, self.peers.len());
        match open(&self.key, self.me.instance, me, packet) {
            Ok((head, word)) => self.hear(now, &head, word),
            Err(why) => self.refuse(why),
        }
    }

    fn refuse(&self, why: Refused) {
        let counters = &self.ends.counters;
        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, why) = match why {
            Refused::Garbage => (&mut counters.garbage, "it makes no sense"),
            Refused::Version => (&mut counters.version, "another version"),
            Refused::Instance => (&mut counters.instance, "another instance"),
            Refused::Rank => (&mut counters.rank, "for another server"),
            Refused::Secret => (&mut counters.secret, "the secret is wrong"),
        };
        *count += 1;
        if *count <= LOGGED {
            tracing::warn!(count = *count, "refused a packet: {why}");
        }
    }

    /// A packet of a server of this instance.
    fn hear(&mut self, now: Duration, head: &Head, word: Word) {
        match word {
            Word::Hello(name) => self.greeted(head, name),
            Word::Welcome => self.lines.welcomed(now, head),
            Word::Redial => self.lines.redial(now, head),
            Word::Request {
                call,
                ended_below,
                body,
                bulk,
            } => {
                if self.admits(head) {
                    self.lines.received(head.from);
                    let asks = (head.from_life, CallId(ended_below));
                    self.offers.asks(&mut self.endpoint, head.from, asks);
                    let token = Token {
                        from: head.from,
                        incarnation: head.from_life,
                        call,
                    };
                    let of = Of::Request(token, ended_below);
                    self.begin(now, head.from, of, [body, bulk]);
                }
            }
            Word::Reply { call, body, bulk } => {
                if self.lines.answered(now, head) {
                    self.begin(now, head.from, Of::Reply(call), [body, bulk]);
                }
            }
            Word::Ping { number, .. } => {
                if self.admits(head) {
                    self.lines.pinged(head, number);
                }
            }
            Word::Pong {
                number,
                received,
                replied,
            } => self.lines.ponged(now, head, number, (received, replied)),
            // What follows is of no line, but of a life.
            _ if head.to_life != self.me.incarnation => {}
            Word::Got(call) => self.offers.was_read(&mut self.endpoint, head.from, call),
            Word::Pull {
                ticket,
                key,
                offset,
                len,
            } => {
                let piece = self.endpoint.offered(key, offset, len);
                if let Some(bytes) = piece.map(<[u8]>::to_vec) {
                    let word = Word::Piece {
                        ticket,
                        offset,
                        bytes,
                    };
                    self.say(head.from, head.from_life, 0, &word);
                }
            }
            Word::Piece {
                ticket,
                offset,
                bytes,
            } => {
                let (endpoint, place) = (&mut self.endpoint, (ticket, offset));
                let piece = self.pulls.piece(now, endpoint, head.from, place, &bytes);
                if let Some(id) = piece {
                    self.came(now, id);
                }
            }
        }
    }

    fn greeted(&mut self, head: &Head, name: Vec<u8>) {
        if name.len() != self.endpoint.name().len() {
            return self.refuse(Refused::Garbage);
        }
        let known = self.peers.named(head.from, head.from_life, name);
        self.lines.greeted(head, known);
    }

    /// Whether one that asks is to be heard.
    fn admits(&mut self, head: &Head) -> bool {
        match self.lines.hear(head) {
            Heard::Yes => true,
            Heard::No => false,
            Heard::New => {
                if !self.links.admit(head.from, head.from_life) {
                    return false;
                }
                self.lines.accept(head);
                true
            }
        }
    }

    fn begin(&mut self, now: Duration, from: Rank, of: Of, parts: [Part; 2]) {
        if let Some(message) = self.pulls.begin(now, from, of, parts) {
            self.whole(from, of, message);
        }
    }

    /// More of a message is here.
    fn came(&mut self, now: Duration, id: u64) {
        let Some((from, of, outcome)) = self.pulls.finish(&mut self.endpoint, id) else {
            return;
        };
        self.lines.alive(now, from);
        match outcome {
            Outcome::Whole(message) => {
                if let Of::Reply(call) = of {
                    if let Some((life, line)) = self.lines.to_ask(from) {
                        self.say(from, life, line, &Word::Got(call));
                    }
                }
                self.whole(from, of, message);
            }
            Outcome::Failed => self.failed(from, of),
        }
    }

    fn whole(&mut self, from: Rank, of: Of, message: Message) {
        match of {
            Of::Request(token, ended_below) => {
                // Of a life that has ended meanwhile it is nothing.
                self.links.asked(token, ended_below, message);
            }
            Of::Reply(call) => self.links.replied(from, call, message),
        }
    }

    fn fail(&mut self, id: u64) {
        if let Some((from, of)) = self.pulls.fail(&mut self.endpoint, id) {
            self.failed(from, of);
        }
    }

    /// A message cannot be had: the asker sends its request again.
    fn failed(&mut self, from: Rank, of: Of) {
        match of {
            Of::Request(..) => self.lines.not_received(from),
            Of::Reply(_) => self.lines.break_off(self.now(), from),
        }
    }

    /// Gives up what does not come, and takes back what nobody came for.
    fn look_at_memory(&mut self, now: Duration) {
        if let Some(since) = now.checked_sub(self.timing.give_up) {
            let stalled = self.pulls.stalled(since);
            for id in stalled {
                self.fail(id);
            }
        }
        self.offers.look(&mut self.endpoint, now);
    }
}
