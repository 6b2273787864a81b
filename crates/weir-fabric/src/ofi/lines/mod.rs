//! Lines: connections over an endpoint that has none. No endpoint and no clock of its own.
//!
//! Libfabric's endpoints send to any peer at any time. A send to a server that is gone may succeed,
//! a read from one that hangs never ends, and packets under way when the provider's own connection
//! broke are lost while later ones arrive. So a server greets another before the first call; the
//! answer has the other's incarnation and opens a line. While calls on a line have no reply, its
//! dialler sends a ping from time to time, and the answer counts the received messages. A line
//! breaks when the other server is silent, when it reports another incarnation, when the provider
//! cannot send, or when a message has not arrived by the second ping after it. Then the dialler
//! greets anew, under the next number, and [`crate::links`] sends all calls without a reply again.
//!
//! Nothing is sent over a line without pending calls: an idle server sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::packet::{PacketContent, PacketHead};
use crate::Timing;

/// The interval between unanswered greetings.
const GREET_AGAIN: Duration = Duration::from_millis(50);
/// The shortest silence that breaks a line, for busy machines.
const SILENCE_LEAST: Duration = Duration::from_millis(300);
/// The longest silence.
const SILENCE_MOST: Duration = Duration::from_secs(1);

/// An action for the endpoint's thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LineAction {
    /// Send a packet.
    Send {
        /// The receiver.
        to: Rank,
        /// Its incarnation.
        life: u64,
        /// The line.
        line: u64,
        /// The content.
        content: PacketContent,
    },
    /// A dialled server answered, in this incarnation.
    Connected(Rank, u64),
    /// A dialled server cannot be reached since this time.
    ConnectionError(Rank, Duration),
}

/// The line of a packet from a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineCheck {
    /// The caller's present line.
    Current,
    /// A new line: [`Lines::accept`] it if its incarnation has not ended.
    New,
    /// A line of a former incarnation of this server, or an abandoned line.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LineStage {
    Greeting { until: Duration, again: Duration },
    Up,
}

/// A line that this server dialled.
#[derive(Debug)]
struct DialledLine {
    line: u64,
    stage: LineStage,
    /// The other server's incarnation, once it is known.
    life: u64,
    sent: u64,
    answered: u64,
    /// Calls on the line have no reply yet.
    busy: bool,
    /// The time of the last sign of life, or of dialling.
    heard: Duration,
    pinged: Duration,
    ping: u64,
    /// Requests sent before the last ping.
    sent_by_ping: u64,
    /// The messages that must have arrived by now.
    expected: MessageCounts,
}

/// Messages of one line, as a PONG counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCounts {
    pub requests: u64,
    pub replies: u64,
}

/// A line that another server dialled.
#[derive(Debug)]
struct AcceptedLine {
    line: u64,
    life: u64,
    received: u64,
    replied: u64,
}

/// One server's lines.
#[derive(Debug)]
pub struct Lines {
    life: u64,
    /// The name by which this server is reached, for greetings.
    name: Vec<u8>,
    timing: Timing,
    next_line: u64,
    looked: Duration,
    outward: BTreeMap<Rank, DialledLine>,
    inward: BTreeMap<Rank, AcceptedLine>,
    actions: VecDeque<LineAction>,
}

impl Lines {
    /// Creates the lines of one incarnation of a server.
    pub fn new(life: u64, name: Vec<u8>, timing: Timing) -> Lines {
        Lines {
            life,
            name,
            timing,
            next_line: 1,
            looked: Duration::ZERO,
            outward: BTreeMap::new(),
            inward: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// The next action.
    pub fn next_action(&mut self) -> Option<LineAction> {
        self.actions.pop_front()
    }

    fn silence(&self) -> Duration {
        (self.timing.give_up / 2).clamp(SILENCE_LEAST, SILENCE_MOST)
    }

    fn between_pings(&self) -> Duration {
        self.silence() / 4
    }

    /// Greets a server.
    pub fn dial(&mut self, now: Duration, to: Rank) {
        // A server that is gone must be known to be gone well before the calls to it are given up.
        let patience = self.timing.handshake.min(self.timing.give_up / 2);
        let outward = DialledLine {
            line: self.next_line,
            stage: LineStage::Greeting {
                until: now + patience,
                again: now + GREET_AGAIN,
            },
            life: 0,
            sent: 0,
            answered: 0,
            busy: false,
            heard: now,
            pinged: now,
            ping: 0,
            sent_by_ping: 0,
            expected: MessageCounts::default(),
        };
        self.next_line += 1;
        self.outward.insert(to, outward);
        self.greet(to);
    }

    fn greet(&mut self, to: Rank) {
        if let Some(outward) = self.outward.get(&to) {
            self.actions.push_back(LineAction::Send {
                to,
                life: 0,
                line: outward.line,
                content: PacketContent::Hello(self.name.clone()),
            });
        }
    }

    /// Sends this server's name to another server, without a line. A restarted server may have
    /// another name than the others know.
    pub fn announce(&mut self, to: Rank) {
        self.actions.push_back(LineAction::Send {
            to,
            life: 0,
            line: 0,
            content: PacketContent::Hello(self.name.clone()),
        });
    }

    /// Answers a greeting; `known` is the newest known incarnation of the sender.
    pub fn greeted(&mut self, head: &PacketHead, known: Option<u64>) {
        if known.is_none_or(|known| known <= head.from_life) {
            self.answer(head, PacketContent::Welcome);
        }
    }

    fn answer(&mut self, head: &PacketHead, content: PacketContent) {
        self.actions.push_back(LineAction::Send {
            to: head.from,
            life: head.from_life,
            line: head.line,
            content,
        });
    }

    /// Opens a line whose greeting was answered.
    pub fn welcomed(&mut self, now: Duration, head: &PacketHead) {
        let Some(outward) = self.outward.get_mut(&head.from) else {
            return;
        };
        let greeting = matches!(outward.stage, LineStage::Greeting { .. });
        if greeting && outward.line == head.line && head.to_life == self.life {
            outward.stage = LineStage::Up;
            outward.life = head.from_life;
            outward.heard = now;
            tracing::debug!(rank = head.from.0, line = head.line, "a line stands");
            let connected = LineAction::Connected(head.from, head.from_life);
            self.actions.push_back(connected);
        }
    }

    /// Breaks a line that belongs to another incarnation of the other server.
    pub fn redial(&mut self, now: Duration, head: &PacketHead) {
        let line = self.outward.get(&head.from).map(|outward| outward.line);
        if line == Some(head.line) && head.to_life == self.life {
            self.break_off(now, head.from);
        }
    }

    /// The incarnation and number of the line for calls to a server.
    pub fn to_ask(&self, to: Rank) -> Option<(u64, u64)> {
        let outward = self.outward.get(&to)?;
        (outward.stage == LineStage::Up).then_some((outward.life, outward.line))
    }

    /// The incarnation and number of the line by which a server calls.
    pub fn to_answer(&self, to: Rank) -> Option<(u64, u64)> {
        let inward = self.inward.get(&to)?;
        Some((inward.life, inward.line))
    }

    /// The incarnation of a server on its line in either direction, or 0.
    pub fn life_of(&self, rank: Rank) -> u64 {
        let asked = self.to_ask(rank).or_else(|| self.to_answer(rank));
        asked.map_or(0, |(life, _)| life)
    }

    /// Counts a request that is sent.
    pub fn asked(&mut self, now: Duration, to: Rank) {
        if let Some(outward) = self.outward.get_mut(&to) {
            outward.sent += 1;
            if !outward.busy {
                outward.busy = true;
                (outward.heard, outward.pinged) = (now, now);
            }
        }
    }

    /// Counts a reply that is sent.
    pub fn replied(&mut self, to: Rank) {
        if let Some(inward) = self.inward.get_mut(&to) {
            inward.replied += 1;
        }
    }

    /// Counts a received reply; returns false if its line is not open.
    pub fn answered(&mut self, now: Duration, head: &PacketHead) -> bool {
        let Some(outward) = self.outward_of(head) else {
            return false;
        };
        outward.answered += 1;
        outward.heard = now;
        true
    }

    fn outward_of(&mut self, head: &PacketHead) -> Option<&mut DialledLine> {
        let life = self.life;
        let outward = self.outward.get_mut(&head.from)?;
        let same = outward.line == head.line && outward.life == head.from_life;
        (same && outward.stage == LineStage::Up && head.to_life == life).then_some(outward)
    }

    /// Notes that requested bytes came from a server.
    pub fn alive(&mut self, now: Duration, rank: Rank) {
        if let Some(outward) = self.outward.get_mut(&rank) {
            outward.heard = now;
        }
    }

    /// Checks the line of a packet from a caller.
    pub fn check_line(&mut self, head: &PacketHead) -> LineCheck {
        if head.to_life != self.life {
            self.answer(head, PacketContent::Redial);
            return LineCheck::Stale;
        }
        match self.inward.get(&head.from) {
            Some(inward) if inward.life == head.from_life => match head.line.cmp(&inward.line) {
                std::cmp::Ordering::Less => LineCheck::Stale,
                std::cmp::Ordering::Equal => LineCheck::Current,
                std::cmp::Ordering::Greater => LineCheck::New,
            },
            _ => LineCheck::New,
        }
    }

    /// Makes a line the one by which a server calls.
    pub fn accept(&mut self, head: &PacketHead) {
        let inward = AcceptedLine {
            line: head.line,
            life: head.from_life,
            received: 0,
            replied: 0,
        };
        self.inward.insert(head.from, inward);
    }

    /// Counts a received request.
    pub fn received(&mut self, from: Rank) {
        if let Some(inward) = self.inward.get_mut(&from) {
            inward.received += 1;
        }
    }

    /// Uncounts a received request that cannot be completed, so that it is sent again.
    pub fn not_received(&mut self, from: Rank) {
        if let Some(inward) = self.inward.get_mut(&from) {
            inward.received = inward.received.saturating_sub(1);
        }
    }

    /// Answers a ping with the counts.
    pub fn pinged(&mut self, head: &PacketHead, number: u64) {
        let Some(inward) = self.inward.get(&head.from) else {
            return;
        };
        let content = PacketContent::Pong {
            number,
            received: inward.received,
            replied: inward.replied,
        };
        self.answer(head, content);
    }

    /// Compares a pong's counts with the messages sent; breaks the line if one was lost.
    pub fn ponged(&mut self, now: Duration, head: &PacketHead, number: u64, counts: MessageCounts) {
        let Some(outward) = self.outward_of(head) else {
            return;
        };
        if number != outward.ping {
            return; // of an earlier ping
        }
        outward.heard = now;
        let expected = outward.expected;
        if counts.requests < expected.requests || outward.answered < expected.replies {
            tracing::debug!(rank = head.from.0, "something was lost on the way");
            return self.break_off(now, head.from);
        }
        outward.expected = MessageCounts {
            requests: outward.sent_by_ping,
            replies: counts.replies,
        };
    }

    /// Breaks a line: the provider cannot send to the server, its offered memory had other bytes
    /// than announced, or nothing came from it since then.
    pub fn break_off(&mut self, since: Duration, to: Rank) {
        if let Some(outward) = self.outward.remove(&to) {
            tracing::debug!(rank = to.0, line = outward.line, "a line is broken");
            self.actions
                .push_back(LineAction::ConnectionError(to, since));
        }
    }

    /// The time at which [`Lines::check_deadlines`] has something to do next.
    pub fn due(&self) -> Option<Duration> {
        let due = |outward: &DialledLine| match outward.stage {
            LineStage::Greeting { until, again } => Some(until.min(again)),
            LineStage::Up => outward.busy.then(|| outward.pinged + self.between_pings()),
        };
        self.outward.values().filter_map(due).min()
    }

    /// Repeats greetings and pings, and breaks silent lines. `awaited` is true for a server that
    /// owes a reply.
    pub fn check_deadlines(&mut self, now: Duration, awaited: impl Fn(Rank) -> bool) {
        let (silence, between_pings) = (self.silence(), self.between_pings());
        let (mut greet, mut broken) = (Vec::new(), Vec::new());
        // This thread receives nothing while it does not run. A sleep ends with the next ping at
        // the latest, so a much longer gap is not a sleep.
        let away = now.saturating_sub(self.looked);
        let deaf = match away > between_pings * 2 {
            true => away,
            false => Duration::ZERO,
        };
        self.looked = now;
        for (rank, outward) in &mut self.outward {
            outward.heard = now.min(outward.heard + deaf);
            match &mut outward.stage {
                LineStage::Greeting { until, .. } if *until <= now => {
                    broken.push((*rank, outward.heard));
                }
                LineStage::Greeting { again, .. } if *again <= now => {
                    *again = now + GREET_AGAIN;
                    greet.push(*rank);
                }
                LineStage::Up if outward.busy && !awaited(*rank) => outward.busy = false,
                LineStage::Up if outward.busy && now >= outward.heard + silence => {
                    broken.push((*rank, outward.heard));
                }
                LineStage::Up if outward.busy && now >= outward.pinged + between_pings => {
                    outward.pinged = now;
                    outward.ping += 1;
                    outward.sent_by_ping = outward.sent;
                    self.actions.push_back(LineAction::Send {
                        to: *rank,
                        life: outward.life,
                        line: outward.line,
                        content: PacketContent::Ping {
                            number: outward.ping,
                            sent: outward.sent,
                        },
                    });
                }
                LineStage::Greeting { .. } | LineStage::Up => {}
            }
        }
        for rank in greet {
            self.greet(rank);
        }
        for (rank, since) in broken {
            self.break_off(since, rank);
        }
    }
}

#[cfg(test)]
mod tests;
