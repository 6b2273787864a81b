//! Connections of the simulated network, and the frames on them.

use std::time::Duration;

use weir_core::types::Rank;

use super::NetworkState;
use crate::links::TransportAction;
use crate::{CallId, Message, Token};

/// The sides of a connection.
const DIALLER: usize = 0;
const ACCEPTOR: usize = 1;

/// A frame that arrives, or a timer that expires.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    /// The dialler greets.
    Hello,
    /// The acceptor answers with its incarnation.
    Challenge(u64),
    /// The dialler has proved its identity.
    Proof,
    Request {
        call: CallId,
        ended_below: u64,
        message: Message,
    },
    Reply {
        call: CallId,
        message: Message,
    },
    /// The other side closed the connection, or the network broke it.
    Closed,
    /// The time limit of the handshake.
    Late,
    /// Nothing was acknowledged since the cut that began at this time, if it lasts.
    Silence(Duration),
}

impl Frame {
    /// Returns true if the frame goes over the wire; the others are timers of the side itself.
    fn travels(&self) -> bool {
        !matches!(self, Frame::Late | Frame::Silence(_))
    }

    /// Returns true if the frame may arrive twice and overtake others, which [`crate::links`] must
    /// tolerate.
    fn is_call(&self) -> bool {
        matches!(self, Frame::Request { .. } | Frame::Reply { .. })
    }
}

/// A frame under way to one side of a connection.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    conn: u64,
    to: usize,
    frame: Frame,
}

impl Packet {
    pub(super) fn new(conn: u64, to: usize, frame: Frame) -> Packet {
        Packet { conn, to, frame }
    }
}

#[derive(Debug)]
pub(super) struct SimulatedConnection {
    /// The dialler and the acceptor.
    pub(super) ends: [Rank; 2],
    /// Their incarnations.
    lives: [u64; 2],
    /// Each side's view of the connection.
    pub(super) open: [bool; 2],
    /// The dialler may call.
    proved: bool,
    /// The time of the break: nothing arrives after it.
    breaks_at: Option<Duration>,
    /// The arrival time of the last frame to each side, to keep their order.
    last: [Duration; 2],
    /// The arrival time of the last handshake frame to each side: no call overtakes it.
    shaken: [Duration; 2],
    /// Packets that a cut holds.
    pub(super) held: Vec<Packet>,
}

impl SimulatedConnection {
    pub(super) fn joins(&self, a: Rank, b: Rank) -> bool {
        self.ends == [a, b] || self.ends == [b, a]
    }
}

impl NetworkState {
    /// Carries out the actions of a server's calls.
    pub(super) fn run_actions(&mut self, rank: Rank) {
        loop {
            let server = self.servers[usize::from(rank.0)].as_mut();
            let Some(order) = server.and_then(|server| server.links.next_action()) else {
                return;
            };
            match order {
                TransportAction::Dial(to) => self.dial(rank, to),
                TransportAction::Request {
                    to,
                    call,
                    ended_below,
                    message,
                } => {
                    let frame = Frame::Request {
                        call,
                        ended_below,
                        message,
                    };
                    if let Some(conn) = self.server(rank).asks.get(&to).copied() {
                        self.send(conn, ACCEPTOR, frame);
                    }
                }
                TransportAction::Reply { to, call, message } => {
                    if let Some(conn) = self.server(rank).asked_by.get(&to).copied() {
                        self.send(conn, DIALLER, Frame::Reply { call, message });
                    }
                }
            }
        }
    }

    fn dial(&mut self, from: Rank, to: Rank) {
        let id = self.next_conn;
        self.next_conn += 1;
        let life = self.server(from).incarnation;
        let conn = SimulatedConnection {
            ends: [from, to],
            lives: [life, 0],
            open: [true, true],
            proved: false,
            breaks_at: None,
            last: [self.now; 2],
            shaken: [self.now; 2],
            held: Vec::new(),
        };
        self.conns.insert(id, conn);
        self.server(from).asks.insert(to, id);
        self.send(id, ACCEPTOR, Frame::Hello);
        let late = self.now + self.timing.handshake;
        self.arrives_at(late, Packet::new(id, DIALLER, Frame::Late));
    }

    /// Sends a frame to one side, subject to faults.
    fn send(&mut self, id: u64, to: usize, frame: Frame) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.open[1 - to]) else {
            return;
        };
        let whole = conn.breaks_at.is_none();
        self.count.sent += 1;
        if whole && self.rng.chance(self.faults.breaks_per_mille) {
            self.break_soon(id);
        }
        if frame.is_call() && self.rng.chance(self.faults.twice_per_mille) {
            self.count.twice += 1;
            self.travel(Packet::new(id, to, frame.clone()));
        }
        self.travel(Packet::new(id, to, frame));
    }

    /// Breaks a connection while the message just sent is under way, or a little later.
    fn break_soon(&mut self, id: u64) {
        self.count.broken += 1;
        let soon = self.faults.delay.1 * 2;
        let at = self.now + self.rng.duration(Duration::ZERO, soon);
        for side in [DIALLER, ACCEPTOR] {
            let notices = at + self.rng.duration(Duration::ZERO, self.faults.notice);
            self.arrives_at(notices, Packet::new(id, side, Frame::Closed));
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.breaks_at = Some(at);
        }
    }

    /// Schedules the arrival of a packet.
    pub(super) fn travel(&mut self, packet: Packet) {
        let Some(conn) = self.conns.get(&packet.conn) else {
            return;
        };
        let slow = conn.ends.iter().filter_map(|end| self.slow.get(end));
        let slow = slow.copied().max().unwrap_or(1);
        let (least, most) = self.faults.delay;
        let mut at = self.now + self.rng.duration(least, most) * slow;
        if packet.frame.is_call() && self.rng.chance(self.faults.overtakes_per_mille) {
            self.count.overtook += 1;
            at = at.max(conn.shaken[packet.to]);
        } else {
            at = at.max(conn.last[packet.to]);
        }
        if let Some(conn) = self.conns.get_mut(&packet.conn) {
            let last = &mut conn.last[packet.to];
            *last = at.max(*last);
            if !packet.frame.is_call() {
                conn.shaken[packet.to] = at;
            }
        }
        self.arrives_at(at, packet);
    }

    pub(super) fn arrives_at(&mut self, at: Duration, packet: Packet) {
        self.next_packet += 1;
        self.wire.insert((at, self.next_packet), packet);
    }

    /// Delivers a packet, unless a cut holds it.
    pub(super) fn arrive(&mut self, packet: Packet) {
        let (id, side) = (packet.conn, packet.to);
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.open[side]) else {
            return;
        };
        let (ends, lives, proved) = (conn.ends, conn.lives, conn.proved);
        let broken = conn.breaks_at.is_some_and(|breaks| breaks <= self.now);
        if broken && packet.frame.travels() && !matches!(packet.frame, Frame::Closed) {
            return;
        }
        // Both sides notice a break without the network.
        if packet.frame.travels() && !broken && self.is_cut(ends) {
            self.count.held += 1;
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.held.push(packet);
            }
            return;
        }
        let at = ends[side];
        if self.servers[usize::from(at.0)].is_none() {
            // A node without the server refuses; from a node that is gone nothing comes back.
            if !self.silent.contains(&at) {
                self.close(id, side);
            }
            return;
        }
        match packet.frame {
            Frame::Hello => {
                let life = self.server(at).incarnation;
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.lives[ACCEPTOR] = life;
                }
                self.send(id, DIALLER, Frame::Challenge(life));
            }
            Frame::Challenge(life) => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.proved = true;
                }
                self.send(id, ACCEPTOR, Frame::Proof);
                self.server(at).links.connected(ends[ACCEPTOR], life);
            }
            Frame::Proof => {
                let from = ends[DIALLER];
                if self.server(at).links.admit(from, lives[DIALLER]) {
                    let newest = self.server(at).asked_by.entry(from).or_insert(id);
                    *newest = id.max(*newest);
                } else {
                    self.close(id, side);
                }
            }
            Frame::Request {
                call,
                ended_below,
                message,
            } => {
                let token = Token {
                    from: ends[DIALLER],
                    incarnation: lives[DIALLER],
                    call,
                };
                if !self.server(at).links.asked(token, ended_below, message) {
                    self.close(id, side);
                }
            }
            Frame::Reply { call, message } => {
                self.server(at).links.replied(ends[ACCEPTOR], call, message);
            }
            Frame::Closed => self.closed(id, side),
            Frame::Late if !proved => self.close(id, side),
            Frame::Silence(cut) => {
                let since = self.cuts.get(&super::pair(ends[0], ends[1]));
                // The cut may be older than a new connection's first frame.
                if since.is_some_and(|since| *since <= cut) {
                    self.close(id, side);
                }
            }
            Frame::Late => {}
        }
        self.run_actions(at);
    }

    /// Closes one side, and tells the other.
    fn close(&mut self, id: u64, side: usize) {
        let closed = Packet::new(id, 1 - side, Frame::Closed);
        self.travel(closed);
        self.closed(id, side);
    }

    /// Closes a connection for one side; it is removed once both sides have closed it.
    fn closed(&mut self, id: u64, side: usize) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.open[side] = false;
        let ends = conn.ends;
        if conn.open == [false, false] {
            self.conns.remove(&id);
        }
        let (at, other) = (ends[side], ends[1 - side]);
        let now = self.now;
        let Some(server) = &mut self.servers[usize::from(at.0)] else {
            return;
        };
        if side == DIALLER {
            if server.asks.get(&other) == Some(&id) {
                server.asks.remove(&other);
                server.links.broken(now, other);
            }
        } else if server.asked_by.get(&other) == Some(&id) {
            server.asked_by.remove(&other);
            server.links.asker_left(now, other);
        }
    }
}
