//! Messages between servers, the queues in which they wait, and the links they take.
//!
//! Each server has one thread that serves requests in the order in which they come, and a link
//! each way. Servers of one machine ([`Machines::One`]) share its cores and have no links.
//! A link lets nothing pass sooner than all bytes that it took before could have: what waits in
//! it is not kept in order, for replies are reckoned when their requests are sent.
//!
//! Requests of a step are sent one behind the other in the order of time over all who ask, so
//! that a queue is filled as it would be. Replies are taken in by the asking server: what is
//! not yet taken in when the last one comes takes its time then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_core::types::Rank;

use crate::{real, Costs, Load};

/// What the servers run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machines {
    /// Each on a node of its own.
    Each,
    /// All on one with so many cores.
    One {
        /// How many.
        cores: u32,
    },
}

/// A request and its reply.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message {
    /// Who is asked.
    pub to: Rank,
    /// How many requests this stands for, one behind the other, with one wait for all.
    pub calls: u64,
    /// They are reads of a log: what serves them is the bulk plane's thread, past the one that
    /// serves requests, and they count as none.
    pub bulk: bool,
    /// How long they take it beside what any request takes, ns.
    pub work_ns: f64,
    /// Bytes there.
    pub request_bytes: u64,
    /// Bytes back.
    pub reply_bytes: u64,
}

impl Message {
    /// Lets it stand for so many messages like it.
    pub fn stand_for(&mut self, count: u64) {
        self.calls *= count;
        self.work_ns *= real(count);
        self.request_bytes *= count;
        self.reply_bytes *= count;
    }
}

/// Who asks: a process or a node, through its node's server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asker {
    /// Its node.
    pub node: Rank,
    /// When it goes on, ns.
    pub now_ns: f64,
}

#[derive(Clone, Debug, Default)]
struct Server {
    /// When its thread is free, ns.
    thread_ns: f64,
    /// When the thread that sends bytes of its log is free, ns.
    bulk_ns: f64,
    /// How long its outgoing and its incoming link were taken, ns.
    out_ns: f64,
    in_ns: f64,
    /// Requests served, and what that took, ns.
    requests: u64,
    work_ns: f64,
    /// Bytes of its link, both ways.
    wire_bytes: u64,
}

/// The servers at work.
#[derive(Debug)]
pub struct Engine<'c> {
    costs: &'c Costs,
    servers: Vec<Server>,
    /// When each core is free, if all share one machine.
    cores: Vec<f64>,
    /// When the counting began, ns.
    begun_ns: f64,
}

/// Bytes of a frame's head and a request's tag, before and behind.
const FRAME_BYTES: u64 = 24 + 8;

impl<'c> Engine<'c> {
    /// Idle servers.
    pub fn new(servers: u16, machines: Machines, costs: &'c Costs) -> Engine<'c> {
        let cores = match machines {
            Machines::Each => 0,
            Machines::One { cores } => cores.max(1) as usize,
        };
        Engine {
            costs,
            servers: vec![Server::default(); usize::from(servers)],
            cores: vec![0.0; cores],
            begun_ns: 0.0,
        }
    }

    /// Each asker sends its messages and goes on when all are answered.
    pub fn step(&mut self, askers: &mut [Asker], messages: impl Fn(usize) -> Vec<Message>) {
        // The next to send: when, who, and which of its messages.
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut waiting: Vec<Waiting> = Vec::with_capacity(askers.len());
        for (index, asker) in askers.iter().enumerate() {
            let list = messages(index);
            if !list.is_empty() {
                next.push(Reverse((key(asker.now_ns), index)));
            }
            waiting.push(Waiting {
                messages: list.into_iter(),
                first_ns: f64::INFINITY,
                last_ns: asker.now_ns,
                work_ns: 0.0,
            });
        }
        while let Some(Reverse((at, index))) = next.pop() {
            let asker = &mut askers[index];
            let one = &mut waiting[index];
            let Some(message) = one.messages.next() else {
                continue;
            };
            asker.now_ns = asker.now_ns.max(f64::from_bits(at));
            let (sent_ns, answered_ns) = self.exchange(asker.node, asker.now_ns, &message);
            one.first_ns = one.first_ns.min(answered_ns);
            one.last_ns = one.last_ns.max(answered_ns);
            if message.to != asker.node {
                one.work_ns += self.costs.reply_ns * real(message.calls);
            }
            if one.messages.len() > 0 {
                asker.now_ns = sent_ns;
                next.push(Reverse((key(sent_ns), index)));
            }
        }
        for (asker, one) in askers.iter_mut().zip(&waiting) {
            if one.first_ns.is_finite() {
                let busy = self.compute(one.first_ns, one.work_ns);
                asker.now_ns = one.last_ns.max(busy) + self.costs.reply_ns;
            }
        }
    }

    /// Each asker sends a message when the one before was answered, until `next` has none.
    pub fn chain(
        &mut self,
        askers: &mut [Asker],
        mut next: impl FnMut(usize, u64) -> Option<Message>,
    ) {
        let begin = |(index, asker): (usize, &Asker)| Reverse((key(asker.now_ns), index, 0));
        let mut queue: BinaryHeap<Reverse<(u64, usize, u64)>> =
            askers.iter().enumerate().map(begin).collect();
        while let Some(Reverse((_, index, done))) = queue.pop() {
            let asker = &mut askers[index];
            let Some(message) = next(index, done) else {
                continue;
            };
            let (_, answered) = self.exchange(asker.node, asker.now_ns, &message);
            let reply_ns = self.costs.reply_ns * real(message.calls);
            asker.now_ns = self.compute(answered, reply_ns);
            queue.push(Reverse((key(asker.now_ns), index, done + 1)));
        }
    }

    /// One message, there and back: when the asker can send the next, and when it has the reply.
    fn exchange(&mut self, from: Rank, now_ns: f64, message: &Message) -> (f64, f64) {
        let Message {
            to,
            calls,
            bulk,
            work_ns,
            request_bytes,
            reply_bytes,
        } = *message;
        let local = from == to;
        let (request, reply) = (
            request_bytes + FRAME_BYTES * calls,
            reply_bytes + FRAME_BYTES * calls,
        );
        let (sent, arrived) = match local {
            true => (now_ns, now_ns),
            false => self.carry(from, to, request, now_ns),
        };
        let each_ns = if local { 0.0 } else { self.costs.request_ns };
        let work_ns = work_ns + each_ns * real(calls);
        let server = &self.servers[usize::from(to.0)];
        let free = if bulk {
            server.bulk_ns
        } else {
            server.thread_ns
        };
        let done = self.compute(arrived.max(free), work_ns);
        let server = &mut self.servers[usize::from(to.0)];
        if bulk {
            server.bulk_ns = done;
        } else {
            server.thread_ns = done;
            server.requests += calls;
            server.work_ns += work_ns;
        }
        let answered = match local {
            true => done,
            false => self.carry(to, from, reply, done).1,
        };
        (sent, answered)
    }

    /// Bytes over the links: when they have left, and when they are there.
    fn carry(&mut self, from: Rank, to: Rank, bytes: u64, now_ns: f64) -> (f64, f64) {
        let takes_ns = match self.cores.is_empty() {
            true => real(bytes) / self.costs.link_bytes_per_s * 1e9,
            false => 0.0,
        };
        let begun_ns = self.begun_ns;
        let sender = &mut self.servers[usize::from(from.0)];
        sender.out_ns += takes_ns;
        sender.wire_bytes += bytes;
        let left = (now_ns + takes_ns).max(begun_ns + sender.out_ns);
        let receiver = &mut self.servers[usize::from(to.0)];
        receiver.in_ns += takes_ns;
        receiver.wire_bytes += bytes;
        let there = left.max(begun_ns + receiver.in_ns);
        (left, there + self.costs.latency_ns)
    }

    /// Work that begins at `begun_ns` at the earliest: when it is done. On one machine it waits
    /// for a core.
    pub fn compute(&mut self, begun_ns: f64, work_ns: f64) -> f64 {
        let free = self.cores.iter_mut().min_by(|a, b| a.total_cmp(b));
        match free {
            None => begun_ns + work_ns,
            Some(core) => {
                *core = core.max(begun_ns) + work_ns;
                *core
            }
        }
    }

    /// Lets all be idle until `now_ns`, and forgets what was counted.
    pub fn begin(&mut self, now_ns: f64) {
        for server in &mut self.servers {
            *server = Server {
                thread_ns: now_ns,
                bulk_ns: now_ns,
                ..Server::default()
            };
        }
        self.cores.fill(now_ns);
        self.begun_ns = now_ns;
    }

    /// Requests a server.
    pub fn requests(&self) -> Load {
        Load::of(self.servers.iter().map(|server| real(server.requests)))
    }

    /// Requests of each server.
    pub fn requests_of_each(&self) -> Vec<u64> {
        self.servers.iter().map(|server| server.requests).collect()
    }

    /// Bytes of each server's link, both ways.
    pub fn wire_bytes(&self) -> Load {
        Load::of(self.servers.iter().map(|server| real(server.wire_bytes)))
    }

    /// How long each server's thread worked, s.
    pub fn work_s(&self) -> Load {
        Load::of(self.servers.iter().map(|server| server.work_ns / 1e9))
    }
}

/// What an asker has sent and waits for.
struct Waiting {
    messages: std::vec::IntoIter<Message>,
    first_ns: f64,
    last_ns: f64,
    work_ns: f64,
}

/// Times are not negative, so their bits are in their order.
fn key(time_ns: f64) -> u64 {
    time_ns.max(0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs {
            latency_ns: 100.0,
            request_ns: 10.0,
            reply_ns: 1.0,
            link_bytes_per_s: 1e9,
            ..Costs::default()
        }
    }

    fn ask(to: u16) -> Message {
        Message {
            to: Rank(to),
            calls: 1,
            bulk: false,
            work_ns: 5.0,
            request_bytes: 68,
            reply_bytes: 168,
        }
    }

    #[test]
    fn one_message_takes_the_sum_of_its_parts() {
        let costs = costs();
        let mut engine = Engine::new(2, Machines::Each, &costs);
        let mut askers = [Asker {
            node: Rank(0),
            now_ns: 1000.0,
        }];
        engine.step(&mut askers, |_| vec![ask(1)]);
        // 100 bytes there, 200 back, at a byte a ns; the reply is taken in as the last.
        let expected = 1000.0 + (100.0 + 100.0) + 15.0 + (200.0 + 100.0) + 1.0 + 1.0;
        assert!((askers[0].now_ns - expected).abs() <= 1.0, "{askers:?}");
        assert_eq!(engine.requests_of_each(), [0, 1]);
    }

    #[test]
    fn a_hot_server_makes_all_wait() {
        let costs = costs();
        let mut engine = Engine::new(101, Machines::Each, &costs);
        let asker = |node| Asker {
            node: Rank(node),
            now_ns: 0.0,
        };
        let mut askers: Vec<Asker> = (1..=100).map(asker).collect();
        engine.step(&mut askers, |_| vec![ask(0)]);
        let last = askers.iter().map(|a| a.now_ns).fold(0.0, f64::max);
        // Its incoming link takes 100 x 100 ns, its outgoing one 100 x 200 ns.
        assert!((20_000.0..21_000.0).contains(&last), "{last}");
        assert!((engine.requests().most - 100.0).abs() < 0.5);
        assert!((engine.requests().mean - 100.0 / 101.0).abs() < 0.01);
    }

    #[test]
    fn a_few_who_wait_in_turn_keep_servers_busy() {
        let costs = costs();
        let mut engine = Engine::new(4, Machines::Each, &costs);
        let asker = |index: u16| Asker {
            node: Rank(index % 4),
            now_ns: 0.0,
        };
        let mut askers: Vec<Asker> = (0..32).map(asker).collect();
        engine.chain(&mut askers, |index, done| {
            let to = (index as u64 * 7 + done * 3 + done / 5) % 4;
            let message = Message {
                work_ns: 10_000.0,
                ..ask(u16::try_from(to).unwrap_or(0))
            };
            (done < 100).then_some(message)
        });
        let last = askers.iter().map(|a| a.now_ns).fold(0.0, f64::max);
        // 32 x 100 messages of 10 us on 4 servers are 8 ms, if none is ever idle.
        assert!((8e6..9.6e6).contains(&last), "{last}");
    }

    #[test]
    fn servers_of_one_machine_share_its_cores() {
        let costs = costs();
        let mut engine = Engine::new(8, Machines::One { cores: 2 }, &costs);
        let mut askers: Vec<Asker> = (0..4)
            .map(|node| Asker {
                node: Rank(node),
                now_ns: 0.0,
            })
            .collect();
        let long = |index: usize| Message {
            work_ns: 1e6,
            ..ask(u16::try_from(index).unwrap_or(0) + 4)
        };
        engine.step(&mut askers, |index| vec![long(index)]);
        let last = askers.iter().map(|a| a.now_ns).fold(0.0, f64::max);
        assert!((2e6..2.01e6).contains(&last), "{last}");
    }
}
