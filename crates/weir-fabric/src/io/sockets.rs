//! Connections: their bytes, frames, stages and end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Token as Key};
use socket2::{SockRef, TcpKeepalive};
use weir_core::types::Rank;

use super::{ConnectionStage, Dialled, Io, PeerConnection, PeerLife, UNPROVEN_MAX};
use crate::conn::{is_silence, ConnectionError, Incoming, Outgoing, SILENCE};
use crate::frame::{FrameHead, FrameKind, Malformed, Plane};
use crate::{CallId, Message, Token};

/// The interval of probes on an idle connection. The kernel counts these in whole seconds.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl Io {
    pub(super) fn address(&self, rank: Rank) -> Option<SocketAddr> {
        self.me.addresses.get(usize::from(rank.0)).copied()
    }

    pub(super) fn dial(&mut self, to: Rank) {
        if self.asks.contains_key(&to) {
            return; // the other server dialled meanwhile
        }
        let socket = self.address(to).map(TcpStream::connect);
        let key = match socket {
            Some(Ok(socket)) => self.adopt(socket, ConnectionStage::Dialling(to, Plane::Control)),
            _ => None,
        };
        match key {
            Some(key) => drop(self.dials.insert(to, key)),
            None => self.links.broken(self.begun.elapsed(), to),
        }
    }

    /// Connects to a server for a lane of the bulk plane, and tells its thread the result.
    pub(super) fn dial_bulk(&mut self, to: Rank, lane: usize) {
        self.bulk.note_dial(to, lane);
        let address = self.address(to).filter(|_| to != self.me.rank);
        let socket = address.and_then(|address| TcpStream::connect(address).ok());
        let key = socket
            .and_then(|socket| self.adopt(socket, ConnectionStage::Dialling(to, Plane::Bulk)));
        if key.is_none() {
            self.bulk.not_reached(to);
        }
    }

    /// Adds a socket to the poll.
    pub(super) fn adopt(&mut self, mut socket: TcpStream, stage: ConnectionStage) -> Option<Key> {
        let key = Key(self.next_key);
        self.next_key += 1;
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut socket, key, both)
            .inspect_err(|error| tracing::warn!(%error, "a socket cannot be polled"))
            .ok()?;
        // Small messages are sent at once; the loss of a silent server is noticed.
        let _ = socket.set_nodelay(true);
        let options = SockRef::from(&socket);
        let probes = TcpKeepalive::new()
            .with_time(PROBE_INTERVAL)
            .with_interval(PROBE_INTERVAL)
            .with_retries(2);
        let noticed = options
            .set_tcp_user_timeout(Some(SILENCE))
            .and_then(|()| options.set_tcp_keepalive(&probes));
        if let Err(error) = noticed {
            tracing::warn!(%error, "a silent connection will not be noticed");
        }
        // A server that does not accept a connection is as silent as one that acknowledges nothing.
        let patience = match stage {
            ConnectionStage::Dialling(..) => self.timing.give_up.min(self.timing.handshake),
            _ => self.timing.handshake,
        };
        let conn = PeerConnection {
            socket,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            stage,
            until: Some(Instant::now() + patience),
            writing: true,
        };
        self.conns.insert(key, conn);
        self.proving = true;
        Some(key)
    }

    pub(super) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) if self.unproven < UNPROVEN_MAX => {
                    if self.adopt(socket, ConnectionStage::Accepted).is_some() {
                        self.unproven += 1;
                    }
                }
                Ok(_) => self.refuse(
                    |counters| &mut counters.slow,
                    "too many unproven connections",
                ),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    return;
                }
            }
        }
    }

    /// A socket is readable, writable, broken or closed.
    pub(super) fn ready(&mut self, key: Key, closed: bool) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.incoming.happened(closed);
        }
        if let Err(broken) = self.serve(key) {
            self.close(key, &broken);
        }
    }

    fn serve(&mut self, key: Key) -> Result<(), ConnectionError> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        if let ConnectionStage::Dialling(to, plane) = conn.stage {
            if let Some(error) = conn.socket.take_error().map_err(ConnectionError::Ended)? {
                return Err(ConnectionError::Ended(error));
            }
            if conn.socket.peer_addr().is_err() {
                return Ok(()); // not yet
            }
            self.greet(key, to, plane)?;
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.until = Some(Instant::now() + self.timing.handshake);
            }
        }
        loop {
            let Some(conn) = self.conns.get_mut(&key) else {
                return Ok(());
            };
            let Some((head, message)) = conn.incoming.read_from(&mut conn.socket)? else {
                break;
            };
            self.handle_frame(key, &head, message)?;
            self.flush(key)?;
            self.hand_over(key);
        }
        self.flush(key)
    }

    /// Gives a connection of the bulk plane to its thread once the handshake is sent. Bytes after
    /// the handshake are still in the socket: frames are read one by one, and none beyond its end.
    fn hand_over(&mut self, key: Key) {
        let Some(ConnectionStage::Bulk(rank, dialled)) =
            self.conns.get(&key).map(|conn| &conn.stage)
        else {
            return;
        };
        let (rank, dialled) = (*rank, *dialled);
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let registry = self.poll.registry();
        let taken = registry.deregister(&mut conn.socket);
        if !conn.outgoing.is_empty() || taken.is_err() {
            // A proof that does not fit an empty socket buffer: the connection is not worth
            // keeping.
            if dialled == Dialled::ByUs {
                self.bulk.not_reached(rank);
            }
            return;
        }
        match dialled {
            Dialled::ByUs => self.bulk.reached(rank, conn.socket.into()),
            Dialled::ByThem => self.bulk.serve(rank, conn.socket.into()),
        }
    }

    pub(super) fn send_handshake(&mut self, key: Key, kind: FrameKind, body: Vec<u8>) {
        self.push(key, kind, CallId(0), &[], Message { body, bulk: vec![] });
    }

    pub(super) fn push(
        &mut self,
        key: Key,
        kind: FrameKind,
        call: CallId,
        prefix: &[u8],
        message: Message,
    ) {
        if let Some(conn) = self.conns.get_mut(&key) {
            let head = FrameHead {
                kind,
                call,
                body: prefix.len() + message.body.len(),
                bulk: message.bulk.len(),
            };
            conn.outgoing.push(&head, prefix, message);
        }
    }

    /// Writes as much as possible without waiting.
    pub(super) fn flush(&mut self, key: Key) -> Result<(), ConnectionError> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        if matches!(conn.stage, ConnectionStage::Dialling(..)) {
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
                .map_err(ConnectionError::Ended)?;
        }
        Ok(())
    }

    /// Handles a frame.
    fn handle_frame(
        &mut self,
        key: Key,
        head: &FrameHead,
        message: Message,
    ) -> Result<(), ConnectionError> {
        let Some(conn) = self.conns.get(&key) else {
            return Ok(());
        };
        match (&conn.stage, head.kind) {
            (ConnectionStage::Accepted, FrameKind::Hello) => self.challenge(key, &message.body),
            (ConnectionStage::Greeted(to, plane, greeting), FrameKind::Challenge) => {
                let (to, plane, greeting) = (*to, *plane, *greeting);
                self.answer_challenge(key, to, plane, &greeting, &message.body)
            }
            (ConnectionStage::Challenged(theirs, ours), FrameKind::Proof) => {
                let (theirs, ours) = (*theirs, *ours);
                self.accept_proof(key, &theirs, &ours, &message.body)
            }
            (ConnectionStage::Open(with, _), FrameKind::Reply) => {
                self.links.replied(with.rank, head.call, message);
                Ok(())
            }
            (ConnectionStage::Open(with, _), FrameKind::Request) => {
                let token = Token {
                    from: with.rank,
                    incarnation: with.incarnation,
                    call: head.call,
                };
                // The reply goes by a connection that the caller still had when it called.
                self.asked_by.insert(token.from, key);
                self.asked(token, message)
            }
            _ => Err(Malformed.into()),
        }
    }

    /// Handles a request, which follows the id below which all calls have ended.
    fn asked(&mut self, token: Token, mut message: Message) -> Result<(), ConnectionError> {
        let ended_below = message.body.first_chunk::<8>().ok_or(Malformed)?;
        let ended_below = u64::from_le_bytes(*ended_below);
        message.body.drain(..8);
        let lives = self.links.asked(token, ended_below, message);
        lives.then_some(()).ok_or_else(|| Malformed.into())
    }

    /// The known time since the last bytes over a connection that broke.
    fn silent_for(&self, stage: &ConnectionStage, broken: &ConnectionError) -> Duration {
        match (stage, broken) {
            (ConnectionStage::Dialling(..), ConnectionError::Ended(error)) if is_silence(error) => {
                self.timing.give_up.min(self.timing.handshake)
            }
            (ConnectionStage::Open(..), ConnectionError::Ended(error)) if is_silence(error) => {
                SILENCE
            }
            _ => Duration::ZERO,
        }
    }

    pub(super) fn close(&mut self, key: Key, broken: &ConnectionError) {
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let _ = self.poll.registry().deregister(&mut conn.socket);
        if matches!(broken, ConnectionError::Malformed(_)) {
            self.refuse(|counters| &mut counters.garbage, "malformed frame");
        }
        match conn.stage {
            ConnectionStage::Dialling(to, Plane::Bulk)
            | ConnectionStage::Greeted(to, Plane::Bulk, _)
            | ConnectionStage::Bulk(to, Dialled::ByUs) => self.bulk.not_reached(to),
            ConnectionStage::Bulk(_, Dialled::ByThem) => {}
            ConnectionStage::Dialling(to, _) | ConnectionStage::Greeted(to, ..) => {
                let current = self.dials.get(&to) == Some(&key);
                if current {
                    self.dials.remove(&to);
                }
                if current && !self.asks.contains_key(&to) {
                    self.note_broken(to, self.silent_for(&conn.stage, broken));
                }
            }
            ConnectionStage::Accepted | ConnectionStage::Challenged(..) => self.unproven -= 1,
            ConnectionStage::Open(with, _) => {
                let silent = self.silent_for(&conn.stage, broken);
                self.connection_ended(key, with, silent);
            }
        }
    }

    fn note_broken(&mut self, with: Rank, silent: Duration) {
        let now = self.begun.elapsed();
        let since = now.saturating_sub(silent);
        self.links.broken_since(now, since, with);
    }

    /// Opens a connection whose ends have both proved their identity.
    pub(super) fn open(&mut self, key: Key, with: PeerLife, dialled: Dialled) {
        let PeerLife { rank, incarnation } = with;
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = ConnectionStage::Open(with, dialled);
            conn.incoming.admit(true);
            conn.until = None;
        }
        if self.dials.get(&rank) == Some(&key) {
            self.dials.remove(&rank);
        }
        let before = self.asks.get(&rank);
        let known = before.is_some_and(|before| self.is_open(*before, with));
        if let Some(best) = self.preferred(with) {
            self.asks.insert(rank, best);
        }
        if !known {
            self.links.opened(rank, incarnation);
        }
    }

    /// Closes connections with former incarnations of a server.
    pub(super) fn close_former_lives(&mut self, with: PeerLife) {
        let other = |conn: &PeerConnection| {
            let ConnectionStage::Open(peer, _) = conn.stage else {
                return false;
            };
            peer.rank == with.rank && peer.incarnation != with.incarnation
        };
        let others = self.conns.iter().filter(|(_, conn)| other(conn));
        let others: Vec<Key> = others.map(|(key, _)| *key).collect();
        for key in others {
            let reset = std::io::ErrorKind::ConnectionReset.into();
            self.close(key, &ConnectionError::Ended(reset));
        }
    }

    /// A connection with that incarnation of a server has ended.
    fn connection_ended(&mut self, key: Key, with: PeerLife, silent: Duration) {
        let rank = with.rank;
        if self.asked_by.get(&rank) == Some(&key) {
            self.asked_by.remove(&rank);
        }
        if self.asks.get(&rank) == Some(&key) {
            self.asks.remove(&rank);
            match self.preferred(with) {
                Some(other) => drop(self.asks.insert(rank, other)),
                None => return self.note_broken(rank, silent),
            }
        }
        self.links.other_broken(rank);
    }

    fn is_open(&self, key: Key, with: PeerLife) -> bool {
        let stage = self.conns.get(&key).map(|conn| &conn.stage);
        matches!(stage, Some(ConnectionStage::Open(peer, _)) if *peer == with)
    }

    /// The connection by which both ends call: the newest that the lower rank dialled, if there is
    /// one.
    fn preferred(&self, with: PeerLife) -> Option<Key> {
        let of_lower = |dialled: Dialled| (dialled == Dialled::ByUs) == (self.me.rank < with.rank);
        let open = self
            .conns
            .iter()
            .filter_map(|(key, conn)| match conn.stage {
                ConnectionStage::Open(peer, dialled) if peer == with => {
                    Some((of_lower(dialled), *key))
                }
                _ => None,
            });
        open.max().map(|(_, key)| key)
    }
}
