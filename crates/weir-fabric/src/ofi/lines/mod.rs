//! Lines: what stands for connections where there are none. No endpoint and no clock of its
//! own.
//!
//! Libfabric's endpoints send to anyone at any time. A send to a server that is gone may
//! succeed, a read from one that hangs never ends, and what was on its way when the provider's
//! own connection broke is lost while what follows arrives. So a server that asks another first
//! greets it; the answer tells its life and makes a line. While something is asked over a line,
//! its dialler sends a ping now and then, and the answer counts what came. A line is broken when
//! the other is silent, when it says that it is of another life, when the provider cannot send,
//! or when something that was sent has not come by the second ping after it. Then the dialler
//! greets anew, under the next number, and [`crate::links`] sends what has no reply again.
//!
//! Nothing is sent over a line that nobody waits for: an idle server sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::packet::{Head, PacketContent};
use crate::Timing;

/// Between greetings that are not answered.
const GREET_AGAIN: Duration = Duration::from_millis(50);
/// The shortest silence by which a line is broken, for machines that are busy.
const SILENCE_LEAST: Duration = Duration::from_millis(300);
/// The longest.
const SILENCE_MOST: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LineAction {
    /// Send this.
    Send {
        /// To whom.
        to: Rank,
        /// In which life of it.
        life: u64,
        /// On which line.
        line: u64,
        /// What.
        content: PacketContent,
    },
    /// A dialled server is there, in this life.
    Connected(Rank, u64),
    /// A dialled server is not, or no longer, since then.
    ConnectionError(Rank, Duration),
}

/// Whether what came over the line of one that asks is to be heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineCheck {
    /// On the line that it has.
    Current,
    /// On a new line: [`Lines::accept`] it if its life has not ended.
    New,
    /// For a former life of this server, or on a line that was left.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Greeting { until: Duration, again: Duration },
    Up,
}

/// A line that was dialled here.
#[derive(Debug)]
struct DialledLine {
    line: u64,
    stage: Stage,
    /// The other's life, once it is known.
    life: u64,
    sent: u64,
    answered: u64,
    /// Whether something is asked over it.
    busy: bool,
    /// When something came of which the other must have been alive, or it was dialled.
    heard: Duration,
    pinged: Duration,
    ping: u64,
    /// Requests that had been sent at the last ping.
    sent_by_ping: u64,
    /// What must have come by now: requests there, replies here.
    expected: MessageCounts,
}

/// Messages of one line, as a PONG counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCounts {
    pub requests: u64,
    pub replies: u64,
}

/// A line that another dialled.
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
    /// What a greeting says: by which name this server is reached.
    name: Vec<u8>,
    timing: Timing,
    next_line: u64,
    looked: Duration,
    outward: BTreeMap<Rank, DialledLine>,
    inward: BTreeMap<Rank, AcceptedLine>,
    actions: VecDeque<LineAction>,
}

impl Lines {
    /// Of a server in one of its lives.
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

    /// What is to be done next.
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
        // Whoever is gone must be known to be well before the calls to it are given up.
        let patience = self.timing.handshake.min(self.timing.give_up / 2);
        let outward = DialledLine {
            line: self.next_line,
            stage: Stage::Greeting {
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

    /// Tells a server where this one is, without a line. Who was started anew may have another
    /// name than the one that others know.
    pub fn announce(&mut self, to: Rank) {
        self.actions.push_back(LineAction::Send {
            to,
            life: 0,
            line: 0,
            content: PacketContent::Hello(self.name.clone()),
        });
    }

    /// A server greets; `known` is the newest life of it that is known.
    pub fn greeted(&mut self, head: &Head, known: Option<u64>) {
        if known.is_none_or(|known| known <= head.from_life) {
            self.answer(head, PacketContent::Welcome);
        }
    }

    fn answer(&mut self, head: &Head, content: PacketContent) {
        self.actions.push_back(LineAction::Send {
            to: head.from,
            life: head.from_life,
            line: head.line,
            content,
        });
    }

    /// A greeting was answered.
    pub fn welcomed(&mut self, now: Duration, head: &Head) {
        let Some(outward) = self.outward.get_mut(&head.from) else {
            return;
        };
        let greeting = matches!(outward.stage, Stage::Greeting { .. });
        if greeting && outward.line == head.line && head.to_life == self.life {
            outward.stage = Stage::Up;
            outward.life = head.from_life;
            outward.heard = now;
            tracing::debug!(rank = head.from.0, line = head.line, "a line stands");
            let connected = LineAction::Connected(head.from, head.from_life);
            self.actions.push_back(connected);
        }
    }

    /// Who was asked says that the line is not one of its life.
    pub fn redial(&mut self, now: Duration, head: &Head) {
        let line = self.outward.get(&head.from).map(|outward| outward.line);
        if line == Some(head.line) && head.to_life == self.life {
            self.break_off(now, head.from);
        }
    }

    /// The line over which a server is asked: its life and the line's number.
    pub fn to_ask(&self, to: Rank) -> Option<(u64, u64)> {
        let outward = self.outward.get(&to)?;
        (outward.stage == Stage::Up).then_some((outward.life, outward.line))
    }

    /// The line by which a server asks.
    pub fn to_answer(&self, to: Rank) -> Option<(u64, u64)> {
        let inward = self.inward.get(&to)?;
        Some((inward.life, inward.line))
    }

    /// The life of a server that a line goes to or comes from.
    pub fn life_of(&self, rank: Rank) -> u64 {
        let asked = self.to_ask(rank).or_else(|| self.to_answer(rank));
        asked.map_or(0, |(life, _)| life)
    }

    /// A request goes out.
    pub fn asked(&mut self, now: Duration, to: Rank) {
        if let Some(outward) = self.outward.get_mut(&to) {
            outward.sent += 1;
            if !outward.busy {
                outward.busy = true;
                (outward.heard, outward.pinged) = (now, now);
            }
        }
    }

    /// A reply goes out.
    pub fn replied(&mut self, to: Rank) {
        if let Some(inward) = self.inward.get_mut(&to) {
            inward.replied += 1;
        }
    }

    /// A reply came; false: over no line that stands.
    pub fn answered(&mut self, now: Duration, head: &Head) -> bool {
        let Some(outward) = self.outward_of(head) else {
            return false;
        };
        outward.answered += 1;
        outward.heard = now;
        true
    }

    fn outward_of(&mut self, head: &Head) -> Option<&mut DialledLine> {
        let life = self.life;
        let outward = self.outward.get_mut(&head.from)?;
        let same = outward.line == head.line && outward.life == head.from_life;
        (same && outward.stage == Stage::Up && head.to_life == life).then_some(outward)
    }

    /// Bytes came that a server was asked for.
    pub fn alive(&mut self, now: Duration, rank: Rank) {
        if let Some(outward) = self.outward.get_mut(&rank) {
            outward.heard = now;
        }
    }

    /// Something came from one that asks.
    pub fn check_line(&mut self, head: &Head) -> LineCheck {
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

    /// From now on this is the line by which a server asks.
    pub fn accept(&mut self, head: &Head) {
        let inward = AcceptedLine {
            line: head.line,
            life: head.from_life,
            received: 0,
            replied: 0,
        };
        self.inward.insert(head.from, inward);
    }

    /// A request came.
    pub fn received(&mut self, from: Rank) {
        if let Some(inward) = self.inward.get_mut(&from) {
            inward.received += 1;
        }
    }

    /// A request that came cannot be had whole: it is to be sent again.
    pub fn not_received(&mut self, from: Rank) {
        if let Some(inward) = self.inward.get_mut(&from) {
            inward.received = inward.received.saturating_sub(1);
        }
    }

    /// Who asks wants to know what came.
    pub fn pinged(&mut self, head: &Head, number: u64) {
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

    /// What came there.
    pub fn ponged(&mut self, now: Duration, head: &Head, number: u64, counts: MessageCounts) {
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

    /// The provider cannot send to a server, or what was read from it is not what it said; or
    /// nothing was heard of it since then.
    pub fn break_off(&mut self, since: Duration, to: Rank) {
        if let Some(outward) = self.outward.remove(&to) {
            tracing::debug!(rank = to.0, line = outward.line, "a line is broken");
            self.actions
                .push_back(LineAction::ConnectionError(to, since));
        }
    }

    /// When [`Lines::look`] has something to do, if nothing happens before.
    pub fn due(&self) -> Option<Duration> {
        let due = |outward: &DialledLine| match outward.stage {
            Stage::Greeting { until, again } => Some(until.min(again)),
            Stage::Up => outward.busy.then(|| outward.pinged + self.between_pings()),
        };
        self.outward.values().filter_map(due).min()
    }

    /// Greets and pings again, and breaks what is silent. `awaited` says from whom a reply is.
    pub fn check_deadlines(&mut self, now: Duration, awaited: impl Fn(Rank) -> bool) {
        let (silence, between_pings) = (self.silence(), self.between_pings());
        let (mut greet, mut broken) = (Vec::new(), Vec::new());
        // While this thread did not run it heard nobody. Asleep it is awakened by the next ping
        // at the latest, so what is much longer is no sleep.
        let away = now.saturating_sub(self.looked);
        let deaf = match away > between_pings * 2 {
            true => away,
            false => Duration::ZERO,
        };
        self.looked = now;
        for (rank, outward) in &mut self.outward {
            outward.heard = now.min(outward.heard + deaf);
            match &mut outward.stage {
                Stage::Greeting { until, .. } if *until <= now => {
                    broken.push((*rank, outward.heard));
                }
                Stage::Greeting { again, .. } if *again <= now => {
                    *again = now + GREET_AGAIN;
                    greet.push(*rank);
                }
                Stage::Up if outward.busy && !awaited(*rank) => outward.busy = false,
                Stage::Up if outward.busy && now >= outward.heard + silence => {
                    broken.push((*rank, outward.heard));
                }
                Stage::Up if outward.busy && now >= outward.pinged + between_pings => {
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
                Stage::Greeting { .. } | Stage::Up => {}
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
