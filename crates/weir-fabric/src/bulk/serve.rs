//! The sending thread: receives READs, lets the queue choose among them, and sends the bytes.
//!
//! Three stages overlap: [`DeviceReaders`] read bytes on storage while others are being sent; bytes
//! in memory skip that stage and go from the mapping to the socket. Little is chosen ahead for a
//! connection ([`OUT_MAX_BYTES`]), so that the choice is made late.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::TcpStream as StdStream;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token as Key};
use weir_core::types::Rank;

use super::device::DeviceReaders;
use super::queue::Queue;
use super::request::{ReadRequest, SenderCommand};
use super::{decode, remaining, LogSource, Medium, Piece};
use crate::conn::{ConnectionError, Incoming};
use crate::frame::{FrameHead, FrameKind, Malformed, HEAD_BYTES};
use crate::mailbox::{mailbox, MailboxReceiver, MailboxSender};

const WAKER: Key = Key(0);
const FIRST: usize = 1;
/// The limit of waiting READs of one connection; beyond it the connection is not read.
const WAITING_MAX: usize = 1024;
/// The limit of bytes chosen for sending on one connection.
const OUT_MAX_BYTES: usize = 2 << 20;
/// The limit of requests that are being read from storage, or were and are not sent yet.
const STAGED_MAX: usize = 16;

/// A reply being sent.
struct QueuedReply {
    head: [u8; HEAD_BYTES],
    bytes: ReplyBytes,
    sent: usize,
    /// The bytes including the head.
    total: usize,
}

enum ReplyBytes {
    Mapped(Vec<Piece>),
    Staged(Vec<u8>),
}

struct ServedConnection {
    socket: TcpStream,
    rank: Rank,
    incoming: Incoming,
    /// Requests that wait, are being read, or are being sent.
    waiting: usize,
    out: VecDeque<QueuedReply>,
    out_bytes: usize,
}

/// The thread's state.
pub struct SenderThread {
    poll: Poll,
    commands: MailboxReceiver<SenderCommand>,
    own: MailboxSender<SenderCommand>,
    source: Arc<dyn LogSource>,
    device: Arc<OnceLock<DeviceReaders>>,
    staged: usize,
    queue: Queue<ReadRequest>,
    conns: HashMap<Key, ServedConnection>,
    next_key: usize,
    /// Connections that may have bytes.
    readable: BTreeSet<Key>,
    /// Connections with replies that may accept bytes.
    writable: BTreeSet<Key>,
    begin: Instant,
}

impl SenderThread {
    /// Creates the thread and its mailbox.
    ///
    /// All lanes share `device`, which is started at the first read from storage.
    pub fn new(
        source: Arc<dyn LogSource>,
        device: Arc<OnceLock<DeviceReaders>>,
    ) -> std::io::Result<(MailboxSender<SenderCommand>, SenderThread)> {
        let poll = Poll::new()?;
        let (own, commands) = mailbox(&poll, WAKER)?;
        let thread = SenderThread {
            poll,
            commands,
            own: own.clone(),
            source,
            device,
            staged: 0,
            queue: Queue::default(),
            conns: HashMap::new(),
            next_key: FIRST,
            readable: BTreeSet::new(),
            writable: BTreeSet::new(),
            begin: Instant::now(),
        };
        Ok((own, thread))
    }

    /// Runs until told to end.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let busy = !self.readable.is_empty() || !self.writable.is_empty();
            let timeout = busy.then_some(Duration::ZERO);
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the fabric cannot wait for its sockets");
                    return;
                }
            }
            for event in &events {
                let key = event.token();
                if event.is_readable() || event.is_error() {
                    self.listen_to(key);
                }
                if event.is_writable() && self.conns.get(&key).is_some_and(|c| !c.out.is_empty()) {
                    self.writable.insert(key);
                }
            }
            self.commands.mark_awake();
            while let Some(command) = self.commands.next() {
                match command {
                    SenderCommand::Serve(rank, socket) => self.adopt(rank, socket),
                    SenderCommand::Staged(job, bytes) => self.staged(&job, bytes),
                    SenderCommand::End => return,
                }
            }
            for key in std::mem::take(&mut self.readable) {
                if let Err(broken) = self.read_requests(key) {
                    self.close(key, &broken);
                }
            }
            self.choose_next();
            for key in std::mem::take(&mut self.writable) {
                if let Err(broken) = self.send(key) {
                    self.close(key, &broken);
                }
            }
            self.choose_next();
        }
    }

    fn listen_to(&mut self, key: Key) {
        if key != WAKER && self.conns.contains_key(&key) {
            self.readable.insert(key);
        }
    }

    fn adopt(&mut self, rank: Rank, socket: StdStream) {
        let key = Key(self.next_key);
        self.next_key += 1;
        let mut socket = TcpStream::from_std(socket);
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut socket, key, both) {
            tracing::warn!(%error, "a socket cannot be polled");
            return;
        }
        let mut incoming = Incoming::default();
        incoming.admit(false);
        let conn = ServedConnection {
            socket,
            rank,
            incoming,
            waiting: 0,
            out: VecDeque::new(),
            out_bytes: 0,
        };
        self.conns.insert(key, conn);
    }

    /// Receives requests, up to the limit of the connection.
    fn read_requests(&mut self, key: Key) -> Result<(), ConnectionError> {
        while let Some(conn) = self.conns.get_mut(&key) {
            if conn.waiting >= WAITING_MAX {
                return Ok(()); // read again when one of them was sent
            }
            let Some((head, message)) = conn.incoming.read_from(&mut conn.socket)? else {
                return Ok(());
            };
            if head.kind != FrameKind::Read {
                return Err(Malformed.into());
            }
            let (pieces, bytes) = decode(&message.body)?;
            conn.waiting += 1;
            let job = ReadRequest {
                key,
                id: head.call,
                pieces,
                bytes,
            };
            let now_us = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.queue.push(now_us, bytes, job);
        }
        Ok(())
    }

    /// Chooses the next requests to send or to read from storage.
    fn choose_next(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let now_us = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        loop {
            let (conns, staged) = (&self.conns, self.staged);
            let can = |job: &ReadRequest| {
                let room = conns
                    .get(&job.key)
                    .is_some_and(|c| c.out_bytes < OUT_MAX_BYTES);
                room && (staged < STAGED_MAX
                    || medium(&*self.source, &job.pieces) != Some(Medium::Storage))
            };
            let Some(job) = self.queue.pop(now_us, can) else {
                return;
            };
            match medium(&*self.source, &job.pieces) {
                None => self.refuse(&job),
                Some(Medium::Memory) => {
                    let bytes = job.bytes;
                    self.push(
                        &job,
                        FrameKind::Bytes,
                        bytes,
                        ReplyBytes::Mapped(job.pieces.clone()),
                    );
                }
                Some(Medium::Storage) => self.stage(job),
            }
        }
    }

    fn stage(&mut self, job: ReadRequest) {
        let device = match self.device() {
            Ok(device) => device,
            Err(error) => {
                tracing::error!(%error, "no thread to read from storage");
                return self.refuse(&job);
            }
        };
        if let Some(conn) = self.conns.get_mut(&job.key) {
            // The bytes count as chosen from now on, so that one peer does not fill the stage.
            conn.out_bytes += job.bytes;
        }
        self.staged += 1;
        device.read(job, self.own.clone());
    }

    fn device(&self) -> std::io::Result<DeviceReaders> {
        if let Some(device) = self.device.get() {
            return Ok(device.clone());
        }
        let device = DeviceReaders::start(&self.source)?;
        // Another lane may have been faster; the threads of this one then end.
        Ok(self.device.get_or_init(|| device).clone())
    }

    fn staged(&mut self, job: &ReadRequest, bytes: Option<Vec<u8>>) {
        let Some(conn) = self.conns.get_mut(&job.key) else {
            self.staged -= 1;
            return;
        };
        conn.out_bytes -= job.bytes;
        if let Some(bytes) = bytes {
            self.push(job, FrameKind::Bytes, job.bytes, ReplyBytes::Staged(bytes));
        } else {
            self.staged -= 1;
            self.refuse(job);
        }
    }

    fn refuse(&mut self, job: &ReadRequest) {
        if let (Some(conn), Some(piece)) = (self.conns.get(&job.key), job.pieces.first()) {
            tracing::warn!(
                rank = conn.rank.0,
                ?piece,
                "refused to read bytes of the log"
            );
        }
        self.push(job, FrameKind::Refused, 0, ReplyBytes::Mapped(Vec::new()));
    }

    fn push(&mut self, job: &ReadRequest, kind: FrameKind, bulk: usize, bytes: ReplyBytes) {
        let Some(conn) = self.conns.get_mut(&job.key) else {
            return;
        };
        let head = FrameHead {
            kind,
            call: job.id,
            body: 0,
            bulk,
        };
        conn.out_bytes += bulk;
        conn.out.push_back(QueuedReply {
            head: head.encode(),
            bytes,
            sent: 0,
            total: HEAD_BYTES + bulk,
        });
        self.writable.insert(job.key);
    }

    /// Writes once.
    fn send(&mut self, key: Key) -> Result<(), ConnectionError> {
        let Some(conn) = self.conns.get_mut(&key) else {
            return Ok(());
        };
        let Some(first) = conn.out.front_mut() else {
            return Ok(());
        };
        let head = first.head.get(first.sent..).unwrap_or_default();
        let done = first.sent.saturating_sub(HEAD_BYTES);
        let wrote = match &first.bytes {
            ReplyBytes::Mapped(pieces) => {
                let mut left = remaining(pieces, done);
                self.source.send(conn.socket.as_fd(), head, &mut left)
            }
            ReplyBytes::Staged(bytes) => {
                let slices = [
                    std::io::IoSlice::new(head),
                    std::io::IoSlice::new(&bytes[done..]),
                ];
                conn.socket.write_vectored(&slices)
            }
        };
        match wrote {
            Ok(0) => return Err(ConnectionError::Ended(ErrorKind::WriteZero.into())),
            Ok(wrote) => first.sent += wrote,
            // The poll reports when there is room again.
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(ConnectionError::Ended(e)),
        }
        if first.sent >= first.total {
            conn.out_bytes -= first.total - HEAD_BYTES;
            self.staged -= usize::from(matches!(first.bytes, ReplyBytes::Staged(_)));
            conn.out.pop_front();
            conn.waiting -= 1;
            if conn.waiting + 1 == WAITING_MAX {
                self.readable.insert(key);
            }
        }
        if !conn.out.is_empty() {
            self.writable.insert(key);
        }
        Ok(())
    }

    fn close(&mut self, key: Key, broken: &ConnectionError) {
        let Some(mut conn) = self.conns.remove(&key) else {
            return;
        };
        let _ = self.poll.registry().deregister(&mut conn.socket);
        let staged = conn
            .out
            .iter()
            .filter(|s| matches!(s.bytes, ReplyBytes::Staged(_)));
        self.staged -= staged.count();
        self.queue.retain(|job| job.key != key);
        if matches!(broken, ConnectionError::Malformed(_)) {
            tracing::warn!(rank = conn.rank.0, "a server sent a malformed read");
        }
    }
}

/// The medium of a request: storage if one of its pieces is there; `None` if a piece does not
/// exist.
fn medium(source: &dyn LogSource, pieces: &[Piece]) -> Option<Medium> {
    let mut all = Medium::Memory;
    for piece in pieces {
        if source.find(piece)? == Medium::Storage {
            all = Medium::Storage;
        }
    }
    Some(all)
}
