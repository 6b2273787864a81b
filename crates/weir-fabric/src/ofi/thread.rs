//! The thread that drives an endpoint: it carries out what `links` and `lines` want, seals and
//! opens packets, and sleeps while nothing is asked and nothing comes.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_core::types::Rank;

use super::endpoint::Endpoint;
use super::lines::{LineAction, LineCheck, Lines, MessageCounts};
use super::offers::{Offers, Parts, ReplyId};
use super::packet::{open, seal, Head, Key, PacketContent, Part, Refused};
use super::peers::Peers;
use super::pulls::{MessageId, Outcome, Pulls};
use super::transfer::Completion;
use super::Bell;
use crate::links::{Links, TransportAction};
use crate::{CallId, Event, Membership, Message, RefusalCounters, Timing, Token};

/// How often the queue is looked at while something is under way, whatever its descriptor says:
/// not every provider rings for everything.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is while nothing is.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Before a provider that had no room is tried again, if it does not ring.
const FULL_INTERVAL: Duration = Duration::from_millis(1);
/// Completions that are taken before anything else is looked at.
const COMPLETIONS_MAX: usize = 256;
/// Messages of one kind of refusal that are logged, at most, a thread's life long.
const LOGGED_MAX: u64 = 10;

/// What the service thread asks of this one.
#[derive(Debug)]
pub enum Command {
    /// Ask another server.
    Call {
        to: Rank,
        id: CallId,
        message: Message,
        /// See [`crate::Fabric::call_without_deadline`].
        unbounded: bool,
    },
    /// Answer another server.
    Reply { token: Token, message: Message },
    /// The end.
    End,
}

/// What the thread is given.
pub struct ThreadChannels {
    pub commands: Receiver<Command>,
    pub events: Sender<Event>,
    pub wake: Box<dyn Fn() + Send + 'static>,
    pub counters: Arc<Mutex<RefusalCounters>>,
    pub bell: Bell,
}

/// The thread's state.
pub struct EndpointThread {
    endpoint: Endpoint,
    me: Membership,
    key: Key,
    timing: Timing,
    ends: ThreadChannels,
    begun: Instant,
    links: Links,
    lines: Lines,
    pulls: Pulls,
    peers: Peers,
    offers: Offers,
    /// The provider has no room for what is to be done.
    full: bool,
}

impl EndpointThread {
    /// Works for one server among those of `names`.
    pub fn new(
        endpoint: Endpoint,
        me: Membership,
        names: Vec<Vec<u8>>,
        timing: Timing,
        ends: ThreadChannels,
    ) -> EndpointThread {
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
        EndpointThread {
            endpoint,
            key: Key::derive(&me.secret),
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
                    self.links.end_all();
                    self.pass_on_events();
                    return (self.ends.wake)();
                }
            };
            self.ends.bell.clear();
            if !self.run_commands() {
                return;
            }
            let now = self.now();
            self.links.check_deadlines(now);
            let links = &self.links;
            self.lines.check_deadlines(now, |rank| links.awaits(rank));
            self.check_transfers(now);
            self.send_pending();
            if self.pass_on_events() {
                (self.ends.wake)();
            }
            if taken < COMPLETIONS_MAX {
                let timeout = self.next_check();
                let bell = self.ends.bell.clone();
                self.endpoint.wait(bell.fd(), Some(timeout));
            }
        }
    }

    /// How long nothing has to be looked at, if nothing comes.
    fn next_check(&self) -> Duration {
        let now = self.now();
        let dues = [self.links.due(), self.lines.due()].into_iter().flatten();
        let due = dues.map(|due| due.saturating_sub(now)).min();
        let quiet = self.pulls.is_empty() && self.offers.has_no_replies() && due.is_none();
        let most = match (self.full, quiet) {
            (true, _) => FULL_INTERVAL,
            (false, true) => IDLE_INTERVAL,
            (false, false) => BUSY_INTERVAL,
        };
        due.map_or(most, |due| due.min(most))
    }

    /// Does what was asked for; false at the end.
    fn run_commands(&mut self) -> bool {
        while let Ok(command) = self.ends.commands.try_recv() {
            match command {
                Command::Call {
                    to,
                    id,
                    message,
                    unbounded,
                } => {
                    let now = self.now();
                    match unbounded {
                        true => self.links.ask_without_deadline(now, to, id, message),
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
    fn pass_on_events(&mut self) -> bool {
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
    fn send_pending(&mut self) {
        loop {
            while let Some(order) = self.links.next_action() {
                self.carry_out(order);
            }
            if let Some(step) = self.lines.next_action() {
                self.run_line_action(step);
                continue;
            }
            let failed = self.advance();
            let failed = failed | self.flush();
            if !failed {
                return;
            }
        }
    }

    fn carry_out(&mut self, order: TransportAction) {
        let now = self.now();
        match order {
            TransportAction::Dial(to) => self.lines.dial(now, to),
            TransportAction::Request {
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
                let content = PacketContent::Request {
                    call,
                    ended_below,
                    body,
                    bulk,
                };
                self.send_packet(to, life, line, &content);
            }
            TransportAction::Reply { to, call, message } => {
                let Some((life, line)) = self.lines.to_answer(to) else {
                    return;
                };
                let id = ReplyId { to, life, call };
                let until = now + self.timing.deadline;
                let endpoint = &mut self.endpoint;
                let parts = self.offers.reply(endpoint, id, message, until);
                let Some(Parts { body, bulk }) = parts else {
                    return; // it is missed, and asked for again
                };
                self.lines.replied(to);
                self.send_packet(to, life, line, &PacketContent::Reply { call, body, bulk });
            }
        }
    }

    fn run_line_action(&mut self, step: LineAction) {
        match step {
            LineAction::Send {
                to,
                life,
                line,
                content,
            } => self.send_packet(to, life, line, &content),
            LineAction::Connected(to, life) => self.links.connected(to, life),
            LineAction::ConnectionError(to, since) => {
                for id in self.pulls.replies_of(to) {
                    self.pulls.fail(&mut self.endpoint, id);
                }
                self.links.broken(since, to);
            }
        }
    }

    fn send_packet(&mut self, to: Rank, to_life: u64, line: u64, content: &PacketContent) {
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
        self.peers
            .enqueue(to, until, seal(&self.key, &head, content));
    }

    /// Has bytes read that are to come; whether something failed that is now to be dealt with.
    fn advance(&mut self) -> bool {
        let now = self.now();
        let (peers, mut words) = (&mut self.peers, Vec::new());
        let (failed, full) = self.pulls.advance(
            now,
            &mut self.endpoint,
            |endpoint, rank| peers.address(endpoint, rank),
            |rank, content| words.push((rank, content)),
        );
        self.full = full;
        for (rank, content) in words {
            let life = self.lines.life_of(rank);
            self.send_packet(rank, life, 0, &content);
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
        for taken in 0..COMPLETIONS_MAX {
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
                            self.try_finish(now, id);
                        }
                    }
                }
            }
        }
        Ok(COMPLETIONS_MAX)
    }

    fn received(&mut self, now: Duration, packet: &[u8]) {
        let servers = self.peers.len();
        match open(&self.key, self.me.instance, self.me.rank, servers, packet) {
            Ok((head, content)) => self.handle_packet(now, &head, content),
            Err(why) => self.refuse(why),
        }
    }

    fn refuse(&self, why: Refused) {
        let counters = &self.ends.counters;
        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, why) = match why {
            Refused::Malformed => (&mut counters.garbage, "it makes no sense"),
            Refused::Version => (&mut counters.version, "another version"),
            Refused::Instance => (&mut counters.instance, "another instance"),
            Refused::Rank => (&mut counters.rank, "for another server"),
            Refused::Secret => (&mut counters.secret, "the secret is wrong"),
        };
        *count += 1;
        if *count <= LOGGED_MAX {
            tracing::warn!(count = *count, "refused a packet: {why}");
        }
    }

    /// A packet of a server of this instance.
    fn handle_packet(&mut self, now: Duration, head: &Head, content: PacketContent) {
        match content {
            PacketContent::Hello(name) => self.greeted(head, name),
            PacketContent::Welcome => self.lines.welcomed(now, head),
            PacketContent::Redial => self.lines.redial(now, head),
            PacketContent::Request {
                call,
                ended_below,
                body,
                bulk,
            } => {
                if self.admits(head) {
                    self.lines.received(head.from);
                    self.offers.end_replies(
                        &mut self.endpoint,
                        head.from,
                        head.from_life,
                        CallId(ended_below),
                    );
                    let token = Token {
                        from: head.from,
                        incarnation: head.from_life,
                        call,
                    };
                    let of = MessageId::Request(token, ended_below);
                    self.begin(now, head.from, of, [body, bulk]);
                }
            }
            PacketContent::Reply { call, body, bulk } => {
                if self.lines.answered(now, head) {
                    self.begin(now, head.from, MessageId::Reply(call), [body, bulk]);
                }
            }
            PacketContent::Ping { number, .. } => {
                if self.admits(head) {
                    self.lines.pinged(head, number);
                }
            }
            PacketContent::Pong {
                number,
                received,
                replied,
            } => self.lines.ponged(
                now,
                head,
                number,
                MessageCounts {
                    requests: received,
                    replies: replied,
                },
            ),
            // What follows is of no line, but of a life.
            _ if head.to_life != self.me.incarnation => {}
            PacketContent::Got(call) => {
                self.offers
                    .retract_reply(&mut self.endpoint, head.from, call);
            }
            PacketContent::Pull {
                ticket,
                key,
                offset,
                len,
            } => {
                let piece = self.endpoint.read_offered(key, offset, len);
                if let Some(bytes) = piece.map(<[u8]>::to_vec) {
                    let content = PacketContent::Piece {
                        ticket,
                        offset,
                        bytes,
                    };
                    self.send_packet(head.from, head.from_life, 0, &content);
                }
            }
            PacketContent::Piece {
                ticket,
                offset,
                bytes,
            } => {
                let endpoint = &mut self.endpoint;
                let piece = self
                    .pulls
                    .piece(now, endpoint, head.from, ticket, offset, &bytes);
                if let Some(id) = piece {
                    self.try_finish(now, id);
                }
            }
        }
    }

    fn greeted(&mut self, head: &Head, name: Vec<u8>) {
        if name.len() != self.endpoint.name().len() {
            return self.refuse(Refused::Malformed);
        }
        let known = self.peers.set_name(head.from, head.from_life, name);
        self.lines.greeted(head, known);
    }

    /// Whether one that asks is to be heard.
    fn admits(&mut self, head: &Head) -> bool {
        match self.lines.check_line(head) {
            LineCheck::Current => true,
            LineCheck::Stale => false,
            LineCheck::New => {
                if !self.links.admit(head.from, head.from_life) {
                    return false;
                }
                self.lines.accept(head);
                true
            }
        }
    }

    fn begin(&mut self, now: Duration, from: Rank, of: MessageId, parts: [Part; 2]) {
        if let Some(message) = self.pulls.begin(now, from, of, parts) {
            self.deliver(from, of, message);
        }
    }

    /// More of a message is here.
    fn try_finish(&mut self, now: Duration, id: u64) {
        let Some((from, of, outcome)) = self.pulls.finish(&mut self.endpoint, id) else {
            return;
        };
        self.lines.alive(now, from);
        match outcome {
            Outcome::Whole(message) => {
                if let MessageId::Reply(call) = of {
                    if let Some((life, line)) = self.lines.to_ask(from) {
                        self.send_packet(from, life, line, &PacketContent::Got(call));
                    }
                }
                self.deliver(from, of, message);
            }
            Outcome::Failed => self.failed(from, of),
        }
    }

    fn deliver(&mut self, from: Rank, of: MessageId, message: Message) {
        match of {
            MessageId::Request(token, ended_below) => {
                // Of a life that has ended meanwhile it is nothing.
                self.links.asked(token, ended_below, message);
            }
            MessageId::Reply(call) => self.links.replied(from, call, message),
        }
    }

    fn fail(&mut self, id: u64) {
        if let Some((from, of)) = self.pulls.fail(&mut self.endpoint, id) {
            self.failed(from, of);
        }
    }

    /// A message cannot be had: the asker sends its request again.
    fn failed(&mut self, from: Rank, of: MessageId) {
        match of {
            MessageId::Request(..) => self.lines.not_received(from),
            MessageId::Reply(_) => self.lines.break_off(self.now(), from),
        }
    }

    /// Gives up what does not come, and takes back what nobody came for.
    fn check_transfers(&mut self, now: Duration) {
        if let Some(since) = now.checked_sub(self.timing.give_up) {
            let stalled = self.pulls.stalled(since);
            for id in stalled {
                self.fail(id);
            }
        }
        self.offers.expire_replies(&mut self.endpoint, now);
    }
}
