//! The calls between this server and the others: repetition, results, and incarnations of the
//! called servers. It has no socket and no clock, so that all transports and the simulator share
//! it.
//!
//! ```text
//!              ask, answer           next_action: dial, send
//!  server  ------------------> Links ------------------------> transport
//!          <------------------       <------------------------
//!               next_event            connected, broken, admit, asked, replied, look
//! ```
//!
//! A call goes over a connection that this server dialled, or, where a transport uses connections
//! both ways, over one that the other server dialled. A reply goes over the connection by which the
//! other server called last. A connection delivers a message whole or breaks; it may deliver a
//! message twice and out of order. The transport carries out actions in their order and may drop
//! any action for which it has no connection: calls and replies are sent again.
//!
//! Times are durations since a moment that the transport chooses, and never decrease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use crate::received::{Disposition, ReceivedCalls};
use crate::{CallError, CallId, Event, Message, Timing, Token};

/// The delay before another attempt to reach a server.
const RETRY_INTERVAL: Duration = Duration::from_millis(30);
/// The delay for a lost server that still has calls without a deadline, and for a lost server that
/// sends nothing, not even a refusal. So no call waits to find out that such a server is still
/// gone.
const RETRY_LOST_INTERVAL: Duration = Duration::from_millis(500);
/// Attempts to reach a lost server end when no call to it was made for this long: an idle server
/// sleeps.
const PROBE_PERIOD: Duration = Duration::from_secs(30);

/// An action for the transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransportAction {
    /// Connect to a server, and report by [`Links::connected`] or [`Links::broken`].
    Dial(Rank),
    /// Send a call over the connection for calls to that server.
    Request {
        /// The called server.
        to: Rank,
        /// The call's id.
        call: CallId,
        /// All calls to it below this one have ended.
        ended_below: u64,
        /// The call.
        message: Message,
    },
    /// Send a reply over the connection by which that server called last.
    Reply {
        /// The calling server.
        to: Rank,
        /// Its call.
        call: CallId,
        /// The reply.
        message: Message,
    },
}

/// The state of the connection for calls to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LineState {
    #[default]
    Down,
    Dialling,
    Up,
}

/// A call without a reply.
#[derive(Debug)]
struct Call {
    message: Message,
    deadline: Duration,
    sent: bool,
}

/// The time that a call may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitLimit {
    Bounded,
    Unbounded,
}

/// The calls to one server.
#[derive(Debug, Default)]
struct Peer {
    line: LineState,
    calls: BTreeMap<CallId, Call>,
    /// Calls without a deadline; their `deadline` is ignored.
    owed: BTreeMap<CallId, Call>,
    incarnation: Option<u64>,
    unreachable_since: Option<Duration>,
    retry_at: Option<Duration>,
    /// The server was given up and not reached since: one more failure ends a call.
    lost: bool,
    /// A connection with the server broke, so this server checks whether it still exists. A server
    /// that is gone may have left locks here.
    suspect: bool,
    /// The last connection to the server broke, or failed, without any packet from there.
    silent: bool,
    /// The time of the last call.
    asked: Duration,
    /// The server's entry in [`Links::due`].
    listed: Option<Duration>,
}

impl Peer {
    fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.owed.is_empty()
    }

    /// The first call without a reply.
    fn first_call(&self) -> Option<CallId> {
        let both = [&self.calls, &self.owed];
        both.into_iter()
            .filter_map(|calls| calls.keys().next().copied())
            .min()
    }

    /// Schedules the next attempt to reach a lost server: while calls without a deadline wait, and
    /// while it is silent and was called recently.
    fn schedule_probe(&mut self, now: Duration) {
        let probed = self.silent && now < self.asked + PROBE_PERIOD;
        self.unreachable_since = None;
        self.retry_at = (probed || !self.owed.is_empty()).then(|| now + RETRY_LOST_INTERVAL);
    }

    /// Returns true if the server is lost and is being dialled, so that no call is to wait for it.
    fn is_shunned(&self) -> bool {
        let looked_for = self.retry_at.is_some() || self.line == LineState::Dialling;
        self.lost && self.silent && looked_for
    }

    /// The time of the next deadline or attempt.
    fn due(&self, timing: &Timing) -> Option<Duration> {
        // Calls are in the order of their deadlines.
        let deadline = self.calls.values().next().map(|call| call.deadline);
        let since = self
            .unreachable_since
            .filter(|_| self.line == LineState::Down);
        let give_up = since.map(|since| since + timing.give_up);
        [deadline, give_up, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }
}

/// One server's calls to and from all others.
#[derive(Debug)]
pub struct Links {
    me: Rank,
    servers: usize,
    timing: Timing,
    next_call: u64,
    peers: BTreeMap<Rank, Peer>,
    /// The servers with a deadline or attempt to come: few of thousands.
    due: BTreeSet<(Duration, Rank)>,
    seen: BTreeMap<Rank, ReceivedCalls>,
    actions: VecDeque<TransportAction>,
    events: VecDeque<Event>,
}

impl Links {
    /// Creates the links of server `me` of `servers`.
    pub fn new(me: Rank, servers: usize, timing: Timing) -> Links {
        Links {
            me,
            servers,
            timing,
            next_call: 0,
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
            seen: BTreeMap::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The next action for the transport.
    pub fn next_action(&mut self) -> Option<TransportAction> {
        self.actions.pop_front()
    }

    /// The next event for the server.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The time at which [`Links::check_deadlines`] has something to do next.
    pub fn due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Updates a server's entry in `due` after its state changed.
    fn reschedule(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let due = peer.due(&self.timing);
        let before = std::mem::replace(&mut peer.listed, due);
        if before != due {
            before.map(|before| self.due.remove(&(before, rank)));
            due.map(|due| self.due.insert((due, rank)));
        }
    }

    /// Returns true if a server owes a reply.
    pub fn awaits(&self, from: Rank) -> bool {
        let peer = self.peers.get(&from);
        peer.is_some_and(|peer| !peer.is_idle())
    }

    /// Calls another server. Ids only grow.
    pub fn ask(&mut self, now: Duration, to: Rank, id: CallId, message: Message) {
        self.add(now, to, id, message, WaitLimit::Bounded);
    }

    /// Calls another server; the call fails only if that server was restarted after it was sent.
    pub fn ask_without_deadline(&mut self, now: Duration, to: Rank, id: CallId, message: Message) {
        self.add(now, to, id, message, WaitLimit::Unbounded);
    }

    fn add(&mut self, now: Duration, to: Rank, id: CallId, message: Message, limit: WaitLimit) {
        self.add_call(now, to, id, message, limit);
        self.reschedule(to);
    }

    fn add_call(
        &mut self,
        now: Duration,
        to: Rank,
        id: CallId,
        message: Message,
        limit: WaitLimit,
    ) {
        self.next_call = self.next_call.max(id.0 + 1);
        if usize::from(to.0) >= self.servers || to == self.me {
            let ended = Event::Done(id, Err(CallError::Unreachable));
            return self.events.push_back(ended);
        }
        let peer = self.peers.entry(to).or_default();
        peer.asked = now;
        if peer.is_shunned() && limit == WaitLimit::Bounded {
            let ended = Event::Done(id, Err(CallError::Unreachable));
            return self.events.push_back(ended);
        }
        // All earlier calls were sent when the connection was made, or later.
        let sent = peer.line == LineState::Up;
        if sent {
            self.actions.push_back(TransportAction::Request {
                to,
                call: id,
                ended_below: peer.first_call().unwrap_or(id).0.min(id.0),
                message: message.clone(),
            });
        }
        let call = Call {
            message,
            deadline: now + self.timing.deadline,
            sent,
        };
        match limit {
            WaitLimit::Bounded => peer.calls.insert(id, call),
            WaitLimit::Unbounded => peer.owed.insert(id, call),
        };
        let waits = peer.retry_at.is_some() && !(peer.lost && limit == WaitLimit::Bounded);
        if peer.line == LineState::Down && !waits {
            self.dial(to);
        }
    }

    fn dial(&mut self, to: Rank) {
        let peer = self.peers.entry(to).or_default();
        peer.retry_at = None;
        peer.line = LineState::Dialling;
        self.actions.push_back(TransportAction::Dial(to));
    }

    /// A connection with a server was made, in this incarnation: sends all calls without a reply.
    pub fn connected(&mut self, to: Rank, incarnation: u64) {
        self.mark_connected(to, incarnation, true);
    }

    /// As [`Links::connected`], for a connection over which an admitted server calls, too. A new
    /// incarnation is reported once, which [`Links::admit`] did.
    pub fn opened(&mut self, with: Rank, incarnation: u64) {
        let told = |seen: &ReceivedCalls| seen.incarnation == incarnation && seen.follows;
        let told = self.seen.get(&with).is_some_and(told);
        self.mark_connected(with, incarnation, !told);
    }

    fn mark_connected(&mut self, to: Rank, incarnation: u64, tell: bool) {
        let peer = self.peers.entry(to).or_default();
        let before = peer.incarnation.replace(incarnation);
        (peer.unreachable_since, peer.retry_at) = (None, None);
        (peer.lost, peer.suspect, peer.silent) = (false, false, false);
        peer.line = LineState::Up;
        if before.is_some_and(|before| before != incarnation) {
            // The former incarnation may have carried out the calls that were sent to it.
            let mut lost = BTreeSet::new();
            for calls in [&mut peer.calls, &mut peer.owed] {
                lost.extend(
                    calls
                        .iter()
                        .filter(|(_, call)| call.sent)
                        .map(|(id, _)| *id),
                );
                calls.retain(|_, call| !call.sent);
            }
            let ended = lost.into_iter();
            let ended = ended.map(|id| Event::Done(id, Err(CallError::Restarted)));
            self.events.extend(ended);
            if tell {
                self.events.push_back(Event::PeerLost(to));
            }
        }
        self.send_calls(to);
        self.reschedule(to);
    }

    /// One of several connections with a server has ended, perhaps with calls or replies on it:
    /// sends all calls without a reply over another one.
    pub fn other_broken(&mut self, to: Rank) {
        if self
            .peers
            .get(&to)
            .is_some_and(|peer| peer.line == LineState::Up)
        {
            self.send_calls(to);
        }
    }

    /// Sends all calls that have no reply.
    fn send_calls(&mut self, to: Rank) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let ended_below = peer.first_call().map_or(self.next_call, |id| id.0);
        for (id, call) in peer.calls.iter_mut().chain(&mut peer.owed) {
            call.sent = true;
            self.actions.push_back(TransportAction::Request {
                to,
                call: *id,
                ended_below,
                message: call.message.clone(),
            });
        }
    }

    /// The connection for calls to a server has ended, or could not be made.
    pub fn broken(&mut self, now: Duration, to: Rank) {
        self.broken_since(now, now, to);
    }

    /// As [`Links::broken`], for a server from which nothing was received since `since`.
    pub fn broken_since(&mut self, now: Duration, since: Duration, to: Rank) {
        self.mark_broken(now, since, to);
        self.reschedule(to);
    }

    fn mark_broken(&mut self, now: Duration, since: Duration, to: Rank) {
        let peer = self.peers.entry(to).or_default();
        peer.suspect |= std::mem::take(&mut peer.line) == LineState::Up;
        peer.silent = since < now;
        if peer.lost {
            peer.schedule_probe(now);
            let ended = std::mem::take(&mut peer.calls).into_keys();
            let ended = ended.map(|id| Event::Done(id, Err(CallError::Unreachable)));
            return self.events.extend(ended);
        }
        if peer.suspect || !peer.is_idle() {
            peer.unreachable_since.get_or_insert(since);
            peer.retry_at = Some(now + RETRY_INTERVAL);
        } else {
            // No call needs the server: the next call finds out whether it can be reached.
            (peer.unreachable_since, peer.retry_at) = (None, None);
        }
    }

    /// The connection by which a server calls has ended. If that server is gone for good, its locks
    /// here must not outlive it, even if no call is ever made to it.
    pub fn asker_left(&mut self, now: Duration, from: Rank) {
        let peer = self.peers.entry(from).or_default();
        if peer.line == LineState::Down && !peer.lost && peer.retry_at.is_none() {
            peer.suspect = true;
            peer.unreachable_since.get_or_insert(now);
            self.dial(from);
        }
        self.reschedule(from);
    }

    /// Admits calls of one incarnation of a server; returns false if that incarnation has ended.
    pub fn admit(&mut self, from: Rank, incarnation: u64) -> bool {
        let known = self.seen.get(&from).map(|seen| seen.incarnation);
        if known.is_some_and(|known| known > incarnation) {
            return false;
        }
        if known != Some(incarnation) {
            let mut seen = ReceivedCalls::new(incarnation);
            seen.follows = known.is_some();
            self.seen.insert(from, seen);
            if known.is_some() {
                self.events.push_back(Event::PeerLost(from));
            }
        }
        if let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.silent) {
            // The server sent something after all: calls wait for it again.
            (peer.lost, peer.silent, peer.retry_at) = (false, false, None);
            self.reschedule(from);
        }
        true
    }

    /// A call came from an admitted server; returns false if that incarnation has ended.
    pub fn asked(&mut self, token: Token, ended_below: u64, message: Message) -> bool {
        let Some(seen) = self.seen.get_mut(&token.from) else {
            return false;
        };
        if seen.incarnation != token.incarnation {
            return false;
        }
        match seen.receive(token.call, ended_below) {
            Disposition::New => self.events.push_back(Event::Request(token, message)),
            Disposition::Answered(reply) => self.actions.push_back(TransportAction::Reply {
                to: token.from,
                call: token.call,
                message: reply,
            }),
            Disposition::Pending | Disposition::Ended => {}
        }
        true
    }

    /// Ends a call that cannot be made.
    pub fn refuse_call(&mut self, id: CallId) {
        self.events
            .push_back(Event::Done(id, Err(CallError::Ended)));
    }

    /// Sends the reply to a call.
    pub fn answer(&mut self, token: Token, message: Message) {
        let Some(seen) = self.seen.get_mut(&token.from) else {
            return;
        };
        if seen.incarnation != token.incarnation {
            return; // the caller's incarnation has ended
        }
        seen.record_reply(token.call, &message);
        self.actions.push_back(TransportAction::Reply {
            to: token.from,
            call: token.call,
            message,
        });
    }

    /// A reply came.
    pub fn replied(&mut self, to: Rank, call: CallId, message: Message) {
        let peer = self.peers.entry(to).or_default();
        if peer
            .calls
            .remove(&call)
            .or_else(|| peer.owed.remove(&call))
            .is_some()
        {
            self.events.push_back(Event::Done(call, Ok(message)));
            self.reschedule(to);
        }
    }

    /// Ends all calls: the transport has ended.
    pub fn end_all(&mut self) {
        for peer in self.peers.values_mut() {
            let calls = std::mem::take(&mut peer.calls).into_keys();
            let ended = calls.chain(std::mem::take(&mut peer.owed).into_keys());
            let ended = ended.map(|id| Event::Done(id, Err(CallError::Ended)));
            self.events.extend(ended);
            peer.listed = None;
        }
        self.due.clear();
    }

    /// Ends calls whose deadline has passed, and dials servers whose attempt is due.
    pub fn check_deadlines(&mut self, now: Duration) {
        let late = self.due.iter().take_while(|(due, _)| *due <= now);
        let late: Vec<Rank> = late.map(|(_, rank)| *rank).collect();
        for rank in late {
            self.check_peer(rank, now);
            self.reschedule(rank);
        }
    }

    fn check_peer(&mut self, rank: Rank, now: Duration) {
        let give_up = self.timing.give_up;
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let gone = |since: Duration| since + give_up <= now;
        let mut lost: Vec<(CallId, CallError)> = Vec::new();
        if peer.line == LineState::Down && peer.unreachable_since.is_some_and(gone) {
            lost.extend(peer.calls.keys().map(|id| (*id, CallError::Unreachable)));
            peer.schedule_probe(now);
            (peer.lost, peer.suspect) = (true, false);
            self.events.push_back(Event::PeerLost(rank));
        } else {
            let late = peer.calls.iter().filter(|(_, call)| call.deadline <= now);
            lost.extend(late.map(|(id, _)| (*id, CallError::Deadline)));
        }
        for (id, why) in lost {
            peer.calls.remove(&id);
            self.events.push_back(Event::Done(id, Err(why)));
        }
        if peer.is_idle() && peer.line == LineState::Down && !peer.suspect && !peer.lost {
            (peer.unreachable_since, peer.retry_at) = (None, None);
        }
        if peer.retry_at.is_some_and(|at| at <= now) {
            self.dial(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Rank = Rank(0);
    const THERE: Rank = Rank(1);

    fn links() -> Links {
        Links::new(HERE, 2, Timing::default())
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn actions(links: &mut Links) -> Vec<TransportAction> {
        std::iter::from_fn(|| links.next_action()).collect()
    }

    fn events(links: &mut Links) -> Vec<Event> {
        std::iter::from_fn(|| links.next_event()).collect()
    }

    fn body(byte: u8) -> Message {
        Message {
            body: vec![byte],
            bulk: Vec::new(),
        }
    }

    fn request(call: u64, ended_below: u64) -> TransportAction {
        TransportAction::Request {
            to: THERE,
            call: CallId(call),
            ended_below,
            message: body(u8::try_from(call).unwrap()),
        }
    }

    #[test]
    fn silence_before_the_break_counts() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.connected(THERE, 1);
        actions(&mut links);
        // Nothing was acknowledged for the whole time limit: the server is lost at once.
        links.broken_since(ms(5_000), ms(3_500), THERE);
        links.check_deadlines(ms(5_000));
        let lost = Event::Done(CallId(1), Err(CallError::Unreachable));
        assert_eq!(events(&mut links), [Event::PeerLost(THERE), lost]);
    }

    #[test]
    fn nobody_waits_for_who_is_silent_until_it_is_found_again() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.broken_since(ms(1_500), ms(0), THERE);
        links.check_deadlines(ms(1_500));
        assert!(events(&mut links).contains(&Event::PeerLost(THERE)));
        actions(&mut links);
        let lost = |call| Event::Done(CallId(call), Err(CallError::Unreachable));
        links.ask(ms(1_600), THERE, CallId(2), body(2));
        assert_eq!(events(&mut links), [lost(2)]);
        // The server is dialled meanwhile, without a call that waits.
        assert_eq!(links.due(), Some(ms(2_000)));
        links.check_deadlines(ms(2_000));
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.ask(ms(2_100), THERE, CallId(3), body(3));
        assert_eq!(events(&mut links), [lost(3)]);
        links.connected(THERE, 1);
        links.ask(ms(2_200), THERE, CallId(4), body(4));
        assert_eq!(actions(&mut links), [request(4, 4)]);
    }

    #[test]
    fn who_is_lost_and_not_asked_is_not_looked_for_for_ever() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.broken_since(ms(1_500), ms(0), THERE);
        links.check_deadlines(ms(1_500));
        let mut now = ms(1_500);
        while let Some(due) = links.due() {
            links.check_deadlines(due);
            now = due + ms(1_500);
            links.broken_since(now, due, THERE);
            assert!(now < ms(60_000));
        }
        actions(&mut links);
        events(&mut links);
        // The next call waits for one attempt.
        links.ask(now, THERE, CallId(2), body(2));
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        assert_eq!(events(&mut links), []);
    }

    #[test]
    fn calls_are_sent_again_with_their_numbers_until_they_have_a_reply() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.ask(ms(0), THERE, CallId(2), body(2));
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.connected(THERE, 1);
        assert_eq!(actions(&mut links), [request(1, 1), request(2, 1)]);
        links.replied(THERE, CallId(1), body(9));
        links.replied(THERE, CallId(1), body(9)); // a duplicate
        assert_eq!(events(&mut links), [Event::Done(CallId(1), Ok(body(9)))]);
        links.broken(ms(10), THERE);
        links.ask(ms(11), THERE, CallId(3), body(3));
        assert_eq!(actions(&mut links), [], "it is tried again a little later");
        links.check_deadlines(links.due().unwrap());
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.connected(THERE, 1);
        assert_eq!(actions(&mut links), [request(2, 2), request(3, 2)]);
        assert_eq!(events(&mut links), []);
    }

    #[test]
    fn a_server_that_is_not_reached_is_given_up_once_and_then_at_the_first_failure() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        let mut now = ms(0);
        while events(&mut links).is_empty() {
            for order in actions(&mut links) {
                assert_eq!(order, TransportAction::Dial(THERE));
                links.broken(now, THERE);
            }
            now = links.due().unwrap();
            links.check_deadlines(now);
            if now >= ms(1500) {
                break;
            }
        }
        assert_eq!(now, Timing::default().give_up);
        let lost = |id| Event::Done(CallId(id), Err(CallError::Unreachable));
        assert_eq!(events(&mut links), [Event::PeerLost(THERE), lost(1)]);
        assert_eq!(links.due(), None);
        links.ask(now, THERE, CallId(2), body(2));
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.broken(now, THERE);
        assert_eq!(events(&mut links), [lost(2)]);
    }

    /// A connection that broke while no call needed it once started the time limit, so that a call
    /// long after failed at the first attempt.
    #[test]
    fn a_server_whose_connection_breaks_is_looked_for_at_once() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.connected(THERE, 1);
        links.replied(THERE, CallId(1), body(1));
        links.broken(ms(100), THERE);
        actions(&mut links);
        events(&mut links);
        links.check_deadlines(links.due().unwrap());
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.connected(THERE, 1);
        assert_eq!((links.due(), events(&mut links)), (None, Vec::new()));
        links.broken(ms(60_000), THERE);
        links.check_deadlines(ms(61_499));
        links.broken(ms(61_499), THERE);
        assert_eq!(events(&mut links), []);
        links.check_deadlines(ms(61_500));
        assert_eq!(events(&mut links), [Event::PeerLost(THERE)]);
        assert_eq!(links.due(), None);
    }

    /// A server that died had locks here, and no call to it was made: the locks stayed.
    #[test]
    fn who_asked_and_is_gone_is_found_out() {
        let mut links = links();
        links.admit(THERE, 1);
        links.asker_left(ms(10), THERE);
        links.asker_left(ms(10), THERE);
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.broken(ms(20), THERE);
        while let Some(due) = links.due() {
            links.check_deadlines(due);
            if !actions(&mut links).is_empty() {
                links.broken(due, THERE);
            }
        }
        assert_eq!(events(&mut links), [Event::PeerLost(THERE)]);
        links.asker_left(ms(5000), THERE);
        assert_eq!(actions(&mut links), [], "it is known");
    }

    #[test]
    fn a_new_life_was_not_asked_what_the_old_one_was() {
        let mut links = links();
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.connected(THERE, 1);
        links.broken(ms(5), THERE);
        links.ask(ms(6), THERE, CallId(2), body(2));
        actions(&mut links);
        links.connected(THERE, 2);
        let restarted = Event::Done(CallId(1), Err(CallError::Restarted));
        assert_eq!(events(&mut links), [restarted, Event::PeerLost(THERE)]);
        assert_eq!(actions(&mut links), [request(2, 2)]);
    }

    #[test]
    fn what_is_asked_twice_acts_once_and_only_for_the_life_that_lives() {
        let mut links = links();
        let token = |incarnation| Token {
            from: THERE,
            incarnation,
            call: CallId(7),
        };
        assert!(!links.asked(token(1), 7, body(7)), "nobody was admitted");
        assert!(links.admit(THERE, 1));
        assert!(links.asked(token(1), 7, body(7)));
        assert!(links.asked(token(1), 7, body(7)));
        assert_eq!(events(&mut links), [Event::Request(token(1), body(7))]);
        let reply = TransportAction::Reply {
            to: THERE,
            call: CallId(7),
            message: body(8),
        };
        links.answer(token(1), body(8));
        assert!(links.asked(token(1), 7, body(7)));
        assert_eq!(actions(&mut links), [reply.clone(), reply]);
        assert!(links.admit(THERE, 2));
        assert_eq!(events(&mut links), [Event::PeerLost(THERE)]);
        assert!(!links.admit(THERE, 1));
        assert!(!links.asked(token(1), 7, body(7)));
        links.answer(token(1), body(8));
        assert_eq!(actions(&mut links), []);
    }

    #[test]
    fn of_two_connections_either_may_break() {
        let mut links = links();
        assert!(links.admit(THERE, 1));
        links.opened(THERE, 1);
        links.ask(ms(0), THERE, CallId(1), body(1));
        links.ask_without_deadline(ms(0), THERE, CallId(2), body(2));
        let asked = [request(1, 1), request(2, 1)];
        assert_eq!(actions(&mut links), asked);
        links.other_broken(THERE);
        assert_eq!(actions(&mut links), asked, "they may have gone by that one");
        // The next incarnation is reported once, though both connections are new.
        assert!(links.admit(THERE, 2));
        links.opened(THERE, 2);
        let restarted = |call| Event::Done(CallId(call), Err(CallError::Restarted));
        let told = [Event::PeerLost(THERE), restarted(1), restarted(2)];
        assert_eq!(events(&mut links), told);
        links.other_broken(THERE);
        assert_eq!(actions(&mut links), []);
    }

    #[test]
    fn what_is_owed_outlasts_giving_up_and_is_sent_with_its_number() {
        let mut links = links();
        links.connected(THERE, 1);
        links.ask_without_deadline(ms(0), THERE, CallId(1), body(1));
        links.ask(ms(0), THERE, CallId(2), body(2));
        actions(&mut links);
        links.broken(ms(1), THERE);
        let mut now = ms(1);
        while events(&mut links).is_empty() {
            now = links.due().unwrap();
            links.check_deadlines(now);
            links.broken(now, THERE);
        }
        actions(&mut links);
        // The server is dialled again at longer intervals; a call with a deadline ends at the first
        // failure.
        links.ask(now, THERE, CallId(3), body(3));
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.broken(now, THERE);
        let lost = Event::Done(CallId(3), Err(CallError::Unreachable));
        assert_eq!(events(&mut links), [lost]);
        now = links.due().unwrap();
        links.check_deadlines(now);
        assert_eq!(actions(&mut links), [TransportAction::Dial(THERE)]);
        links.connected(THERE, 1);
        assert_eq!(actions(&mut links), [request(1, 1)]);
        links.broken(now, THERE);
        links.connected(THERE, 2);
        let lost = Event::Done(CallId(1), Err(CallError::Restarted));
        assert_eq!(events(&mut links), [lost, Event::PeerLost(THERE)]);
    }

    #[test]
    fn a_call_ends_at_its_deadline_though_its_server_is_there() {
        let mut links = links();
        links.ask(ms(3), THERE, CallId(1), body(1));
        links.connected(THERE, 1);
        let due = links.due().unwrap();
        assert_eq!(due, ms(3) + Timing::default().deadline);
        links.check_deadlines(due);
        let late = Event::Done(CallId(1), Err(CallError::Deadline));
        assert_eq!(events(&mut links), [late]);
        links.replied(THERE, CallId(1), body(1));
        assert_eq!(events(&mut links), []);
    }
}
