//! The thread that drives an endpoint: it carries out the actions of `links` and `lines`, encodes
//! and decodes packets, and sleeps while nothing is pending and nothing comes.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_core::types::Rank;

use super::endpoint::{Completion, Endpoint};
use super::lines::{LineAction, LineCheck, Lines, MessageCounts};
use super::offers::{MessageParts, Offers, ReplyId};
use super::packet::{open, seal, MacKey, PacketContent, PacketHead, PacketPart, Refused};
use super::peers::Peers;
use super::pulls::{MessageId, PullOutcome, Pulls};
use super::Bell;
use crate::links::{Links, TransportAction};
use crate::{CallId, Event, Membership, Message, RefusalCounters, Timing, Token};

/// The interval of looking at the queue while something is pending, whatever its descriptor says:
/// some providers do not signal everything.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// The interval while nothing is pending.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before another attempt with a provider that had no room.
const FULL_INTERVAL: Duration = Duration::from_millis(1);
/// Completions handled before anything else is checked.
const COMPLETIONS_MAX: usize = 256;
/// The limit of log messages of one kind of refusal, for the thread's life.
const LOGGED_MAX: u64 = 10;

/// Commands from the service thread.
#[derive(Debug)]
pub enum Command {
    /// Call another server.
    Call {
        to: Rank,
        id: CallId,
        message: Message,
        /// See [`crate::Fabric::call_without_deadline`].
        unbounded: bool,
    },
    /// Reply to another server.
    Reply { token: Token, message: Message },
    /// End the thread.
    End,
}

/// The thread's channels.
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
    key: MacKey,
    timing: Timing,
    ends: ThreadChannels,
    begun: Instant,
    links: Links,
    lines: Lines,
    pulls: Pulls,
    peers: Peers,
    offers: Offers,
    /// The provider has no room for pending operations.
    full: bool,
}

impl EndpointThread {
    /// Creates the thread's state for one server among those of `names`.
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
            // The others look for this server at its former incarnation's address.
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
            key: MacKey::derive(&me.secret),
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

    /// Runs until told to end.
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

    /// The time until the next check, if nothing comes.
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

    /// Carries out commands; returns false at the end.
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

    /// Passes events on; returns true if there was one.
    fn pass_on_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.links.next_event() {
            any = true;
            if let Event::Done(id, _) = &event {
                self.offers.ended(&mut self.endpoint, *id);
            }
            // Without a receiver the end is near.
            let _ = self.ends.events.send(event);
        }
        any
    }

    /// Carries out all pending actions.
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
                let Some(MessageParts { body, bulk }) = parts else {
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
                let Some(MessageParts { body, bulk }) = parts else {
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
        let head = PacketHead {
            instance: self.me.instance,
            from: self.me.rank,
            to,
            from_life: self.me.incarnation,
            to_life,
            line,
        };
        // A packet that is not sent before its line breaks is useless.
        let until = self.now() + self.timing.give_up;
        self.peers
            .enqueue(to, until, seal(&self.key, &head, content));
    }

    /// Requests bytes from remote memory; they arrive asynchronously. Returns true if a transfer
    /// failed.
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

    /// Sends queued packets; returns true if a line broke.
    fn flush(&mut self) -> bool {
        let now = self.now();
        let (failed, full) = self.peers.flush(&mut self.endpoint, now);
        self.full |= full;
        for rank in &failed {
            self.lines.break_off(now, *rank);
        }
        !failed.is_empty()
    }

    /// Handles completed operations; returns their number.
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
            Refused::Malformed => (&mut counters.garbage, "malformed packet"),
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

    /// Handles a packet of a server of this instance.
    fn handle_packet(&mut self, now: Duration, head: &PacketHead, content: PacketContent) {
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
            // The following packets belong to an incarnation, not to a line.
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

    fn greeted(&mut self, head: &PacketHead, name: Vec<u8>) {
        if name.len() != self.endpoint.name().len() {
            return self.refuse(Refused::Malformed);
        }
        let known = self.peers.set_name(head.from, head.from_life, name);
        self.lines.greeted(head, known);
    }

    /// Returns true if a packet from a caller is to be handled.
    fn admits(&mut self, head: &PacketHead) -> bool {
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

    fn begin(&mut self, now: Duration, from: Rank, of: MessageId, parts: [PacketPart; 2]) {
        if let Some(message) = self.pulls.begin(now, from, of, parts) {
            self.deliver(from, of, message);
        }
    }

    /// Completes a message if all its bytes have arrived.
    fn try_finish(&mut self, now: Duration, id: u64) {
        let Some((from, of, outcome)) = self.pulls.finish(&mut self.endpoint, id) else {
            return;
        };
        self.lines.alive(now, from);
        match outcome {
            PullOutcome::Whole(message) => {
                if let MessageId::Reply(call) = of {
                    if let Some((life, line)) = self.lines.to_ask(from) {
                        self.send_packet(from, life, line, &PacketContent::Got(call));
                    }
                }
                self.deliver(from, of, message);
            }
            PullOutcome::Failed => self.failed(from, of),
        }
    }

    fn deliver(&mut self, from: Rank, of: MessageId, message: Message) {
        match of {
            MessageId::Request(token, ended_below) => {
                // `links` ignores a request of an incarnation that has ended meanwhile.
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

    /// A message cannot be completed: the caller sends its request again.
    fn failed(&mut self, from: Rank, of: MessageId) {
        match of {
            MessageId::Request(..) => self.lines.not_received(from),
            MessageId::Reply(_) => self.lines.break_off(self.now(), from),
        }
    }

    /// Fails transfers that have stalled, and releases replies that no caller read.
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
