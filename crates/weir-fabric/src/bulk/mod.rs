//! The bulk plane: bytes of servers' logs, past the service threads of both ends.
//!
//! ```text
//!  reader                                             target
//!   BulkReader::read(rank, pieces, landing)
//!     `weir-land`: READ             ---connection-->   `weir-send`: queue of requests
//!                                                        memory: straight from the mapping
//!                                                        storage: read by `weir-device`
//!                  landing.receive  <--------------      BYTES
//!                  landing.end
//! ```
//!
//! The owner of a server gives the fabric a [`LogSource`], from which the bytes are sent, and with
//! each read a [`Landing`], into which they are received. Both work on raw memory that processes
//! share, so this crate need neither copy nor trust it. A transport without sockets uses
//! [`LogSource::copy`] and [`Landing::put`].
//!
//! Invariants:
//! - A read ends once, with [`Landing::finish`]: when all its bytes have arrived, or with an error.
//!   Reading twice is harmless, so a read is repeated after a connection broke.
//! - Sizes that a peer sends are checked before memory is allocated: pieces and bytes of a READ,
//!   the waiting READs of a connection (`serve`), the bytes of a BYTES by the request.
//! - One slow device delays only requests for bytes on devices.
//!
//! One thread cannot fill a fast link, so there are several [`lanes`]: each has a reading and a
//! sending thread, and its own connections, made at the first use. A read goes to the lane with the
//! fewest bytes under way from that server, the first of several. So a node that reads little wakes
//! one lane, and a node that reads much from several servers keeps equally many connections busy
//! with each. With more than [`SPREAD_MAX`] servers each server has one lane: the other servers
//! keep the lanes busy, and more connections would be too many.
//!
//! | file | subject |
//! | --- | --- |
//! | `ask` | the reading thread |
//! | `serve` | the sending thread |
//! | `queue` | the order of service (pure) |
//! | `device` | reads from storage |

mod ask;
mod device;
pub mod queue;
mod request;
mod serve;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_core::types::Rank;

use self::request::SenderCommand;
use crate::command::IoCommand;
use crate::frame::{Malformed, PIECES_MOST, PIECE_BYTES, READ_MOST};
use crate::mailbox::MailboxSender;
use crate::{CallError, CallId, Timing};

/// A range of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    /// The slab.
    pub slab: u32,
    /// The number of bytes, at least one.
    pub len: u32,
    /// The offset in the slab.
    pub pos: u64,
}

/// The storage medium of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Memory: sent directly.
    Memory,
    /// Storage: read first.
    Storage,
}

/// The bytes that a server has for others. All arguments come from other servers: a piece that does
/// not exist is an error, never more.
pub trait LogSource: Send + Sync {
    /// The medium of a piece; `None` if there is no such piece.
    fn find(&self, piece: &Piece) -> Option<Medium>;

    /// Writes to a socket, without waiting, as much as possible of `head` and then of pieces in
    /// memory, like one write(2).
    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize>;

    /// Copies a piece; `out` is as long as the piece.
    fn copy(&self, piece: &Piece, out: &mut [u8]) -> io::Result<()>;
}

/// A source without bytes.
#[derive(Clone, Copy, Debug)]
pub struct EmptyLogSource;

impl LogSource for EmptyLogSource {
    fn find(&self, _: &Piece) -> Option<Medium> {
        None
    }

    fn send(
        &self,
        _: BorrowedFd<'_>,
        _: &[u8],
        _: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn copy(&self, _: &Piece, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// The error of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The other server cannot be called.
    #[error("{0}")]
    Call(#[from] CallError),
    /// The server has no such bytes, or cannot read them.
    #[error("the server cannot read these bytes")]
    Refused,
    /// The read is empty or exceeds a limit.
    #[error("not a read that can be asked for")]
    Malformed,
}

/// The destination of one read: its own memory, as long as all its pieces.
pub trait Landing: Send {
    /// Reads from a socket to `at`, without waiting, up to `most` bytes, like one read(2).
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize>;

    /// Puts bytes at `at`.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Ends the read.
    fn finish(self: Box<Self>, result: Result<(), ReadError>);
}

/// The largest number of lanes.
const LANES_MAX: usize = 4;

/// With up to this many servers, each lane reads from every server.
const SPREAD_MAX: usize = 64;

/// The largest number of bulk connections of a server, in both directions.
pub fn connections_most(servers: usize) -> usize {
    let others = servers.saturating_sub(1);
    let each = if servers > SPREAD_MAX { 1 } else { LANES_MAX };
    2 * each * others
}

/// The number of lanes: one a core, up to [`LANES_MAX`].
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(LANES_MAX))
}

/// The threads of a lane.
#[derive(Debug)]
struct LaneThreads {
    reader: MailboxSender<ask::ReaderCommand>,
    server: MailboxSender<SenderCommand>,
    threads: [JoinHandle<()>; 2],
}

/// All lanes, for the I/O thread, which hands over their connections.
#[derive(Debug)]
pub struct BulkPlane {
    lanes: Vec<LaneThreads>,
    /// The lanes that wait for a connection to a server: any new connection serves any of them.
    dialling: HashMap<Rank, VecDeque<usize>>,
    /// The number of connections accepted from a server, to spread them over the lanes.
    served: HashMap<Rank, usize>,
}

/// A lane, for readers.
#[derive(Clone, Debug)]
struct LaneHandle {
    thread: MailboxSender<ask::ReaderCommand>,
    /// Bytes requested and not yet received, by the server's rank.
    loads: Arc<[AtomicUsize]>,
}

impl LaneHandle {
    fn load(&self, rank: Rank) -> usize {
        let load = self.loads.get(usize::from(rank.0));
        load.map_or(0, |load| load.load(Ordering::Relaxed))
    }
}

/// A share in the load of a lane, until it is dropped.
#[derive(Debug)]
struct LaneLoad {
    loads: Arc<[AtomicUsize]>,
    rank: Rank,
    bytes: usize,
}

impl LaneLoad {
    fn new(lane: &LaneHandle, rank: Rank, bytes: usize) -> LaneLoad {
        let loads = Arc::clone(&lane.loads);
        let load = LaneLoad { loads, rank, bytes };
        if let Some(all) = load.counter() {
            all.fetch_add(bytes, Ordering::Relaxed);
        }
        load
    }

    fn counter(&self) -> Option<&AtomicUsize> {
        self.loads.get(usize::from(self.rank.0))
    }
}

impl Drop for LaneLoad {
    fn drop(&mut self) {
        if let Some(all) = self.counter() {
            all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// The handle by which any thread reads other servers' logs.
#[derive(Clone, Debug)]
pub struct BulkReader {
    lanes: Vec<LaneHandle>,
    /// Every lane reads from every server.
    spread: bool,
    next: Arc<AtomicU64>,
    deadline: Duration,
}

impl BulkPlane {
    /// Starts the threads of one of `servers` servers.
    pub fn start(
        source: Arc<dyn LogSource>,
        servers: usize,
        timing: Timing,
        dial: MailboxSender<IoCommand>,
    ) -> io::Result<(BulkPlane, BulkReader)> {
        let mut bulk = BulkPlane {
            lanes: Vec::new(),
            dialling: HashMap::new(),
            served: HashMap::new(),
        };
        let (device, lost_servers) = (Arc::default(), Arc::default());
        let mut lanes = Vec::new();
        let parts = std::iter::repeat_n((source, dial), self::lanes());
        for (lane, (source, dial)) in parts.enumerate() {
            let (reader, ask) =
                ask::ReaderThread::new(lane, timing, dial, Arc::clone(&lost_servers))?;
            let (server, serve) = serve::SenderThread::new(source, Arc::clone(&device))?;
            let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let threads = [
                spawn("weir-land").spawn(move || ask.run())?,
                spawn("weir-send").spawn(move || serve.run())?,
            ];
            lanes.push(LaneHandle {
                thread: reader.clone(),
                loads: (0..servers).map(|_| AtomicUsize::new(0)).collect(),
            });
            bulk.lanes.push(LaneThreads {
                reader,
                server,
                threads,
            });
        }
        let reads = BulkReader {
            lanes,
            spread: servers <= SPREAD_MAX,
            next: Arc::new(AtomicU64::new(1)),
            deadline: timing.deadline,
        };
        Ok((bulk, reads))
    }

    /// Records that a server is being dialled for a lane.
    pub fn note_dial(&mut self, rank: Rank, lane: usize) {
        self.dialling.entry(rank).or_default().push_back(lane);
    }

    /// Passes on a connection that was made.
    pub fn reached(&mut self, rank: Rank, socket: TcpStream) {
        if let Some(reader) = self.next_dialling_lane(rank) {
            let _ = reader.send(ask::ReaderCommand::Reached(rank, socket));
        }
    }

    /// Passes on that no connection could be made.
    pub fn not_reached(&mut self, rank: Rank) {
        if let Some(reader) = self.next_dialling_lane(rank) {
            let _ = reader.send(ask::ReaderCommand::NotReached(rank));
        }
    }

    /// The lane that waited longest for a connection to a server.
    fn next_dialling_lane(&mut self, rank: Rank) -> Option<&MailboxSender<ask::ReaderCommand>> {
        let waiting = self.dialling.get_mut(&rank)?;
        let lane = waiting.pop_front()?;
        self.lanes.get(lane).map(|lane| &lane.reader)
    }

    /// Serves the reads of a server that dialled.
    pub fn serve(&mut self, rank: Rank, socket: TcpStream) {
        let served = self.served.entry(rank).or_default();
        let lane = (usize::from(rank.0) + *served) % self.lanes.len();
        *served = served.wrapping_add(1);
        let server = &self.lanes[lane].server;
        let _ = server.send(SenderCommand::Serve(rank, socket));
    }
}

impl Drop for BulkPlane {
    /// Ends the threads; reads under way fail.
    fn drop(&mut self) {
        for lane in &self.lanes {
            let _ = lane.reader.send(ask::ReaderCommand::End);
            let _ = lane.server.send(SenderCommand::End);
        }
        for thread in self.lanes.drain(..).flat_map(|lane| lane.threads) {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl BulkReader {
    /// The lane for a read from a server.
    fn lane(&self, to: Rank) -> Option<&LaneHandle> {
        if self.spread {
            return self.lanes.iter().min_by_key(|lane| lane.load(to));
        }
        self.lanes.get(usize::from(to.0) % self.lanes.len().max(1))
    }

    /// Reads bytes of another server's log into `landing`, which receives the result.
    pub fn read(&self, to: Rank, pieces: &[Piece], landing: Box<dyn Landing>) {
        let Ok(bytes) = total_bytes(pieces) else {
            return landing.finish(Err(ReadError::Malformed));
        };
        let Some(lane) = self.lane(to) else {
            return landing.finish(Err(CallError::Ended.into()));
        };
        let read = ask::PendingRead {
            id: CallId(self.next.fetch_add(1, Ordering::Relaxed)),
            body: encode(pieces),
            bytes,
            landing,
            deadline: Instant::now() + self.deadline,
            load: LaneLoad::new(lane, to, bytes),
        };
        if let Err(ask::ReaderCommand::Read(_, read)) =
            lane.thread.send(ask::ReaderCommand::Read(to, read))
        {
            read.finish(Err(CallError::Ended.into()));
        }
    }
}

/// The number of bytes of all pieces, if a read may have them.
fn total_bytes(pieces: &[Piece]) -> Result<usize, Malformed> {
    let mut bytes = 0;
    for piece in pieces {
        let len = usize::try_from(piece.len).map_err(|_| Malformed)?;
        bytes += len;
        if len == 0 || bytes > READ_MOST {
            return Err(Malformed);
        }
    }
    let count = (1..=PIECES_MOST).contains(&pieces.len());
    count.then_some(bytes).ok_or(Malformed)
}

fn encode(pieces: &[Piece]) -> Vec<u8> {
    let mut body = Vec::with_capacity(pieces.len() * PIECE_BYTES);
    for piece in pieces {
        body.extend_from_slice(&piece.slab.to_le_bytes());
        body.extend_from_slice(&piece.len.to_le_bytes());
        body.extend_from_slice(&piece.pos.to_le_bytes());
    }
    body
}

/// Decodes the pieces of a READ's body, and counts their bytes.
fn decode(body: &[u8]) -> Result<(Vec<Piece>, usize), Malformed> {
    let (pieces, rest) = body.as_chunks::<PIECE_BYTES>();
    if !rest.is_empty() || pieces.len() > PIECES_MOST {
        return Err(Malformed);
    }
    let part =
        |bytes: &[u8; PIECE_BYTES], at| -> [u8; 4] { core::array::from_fn(|i| bytes[at + i]) };
    let pieces: Vec<Piece> = pieces
        .iter()
        .map(|bytes| Piece {
            slab: u32::from_le_bytes(part(bytes, 0)),
            len: u32::from_le_bytes(part(bytes, 4)),
            pos: u64::from(u32::from_le_bytes(part(bytes, 8)))
                | u64::from(u32::from_le_bytes(part(bytes, 12))) << 32,
        })
        .collect();
    let bytes = total_bytes(&pieces)?;
    Ok((pieces, bytes))
}

/// The pieces that remain after the first `done` bytes.
fn remaining(pieces: &[Piece], mut done: usize) -> impl Iterator<Item = Piece> + '_ {
    pieces.iter().filter_map(move |piece| {
        let len = piece.len as usize;
        let skip = done.min(len);
        done -= skip;
        // It is less than `piece.len`, so it fits.
        let skip = u32::try_from(skip).unwrap_or(piece.len);
        (skip < piece.len).then(|| Piece {
            len: piece.len - skip,
            pos: piece.pos + u64::from(skip),
            ..*piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (any::<u32>(), 1..200_u32, 0..u64::MAX / 2);
        let piece = piece.prop_map(|(slab, len, pos)| Piece { slab, len, pos });
        proptest::collection::vec(piece, 1..40)
    }

    proptest! {
        #[test]
        fn pieces_survive(pieces in pieces()) {
            let bytes = pieces.iter().map(|p| p.len as usize).sum::<usize>();
            prop_assert_eq!(decode(&encode(&pieces)), Ok((pieces, bytes)));
        }

        #[test]
        fn garbage_is_no_request_of_more_than_may_be(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((pieces, bytes)) = decode(&body) {
                prop_assert!(bytes <= READ_MOST && pieces.iter().all(|p| p.len > 0));
            }
        }

        #[test]
        fn the_rest_goes_on_where_a_write_ended(pieces in pieces(), done in 0..9000_usize) {
            let bytes = |pieces: &[Piece]| -> Vec<(u32, u64)> {
                let each = |p: &Piece| (0..u64::from(p.len)).map(move |i| (p.slab, p.pos + i)).collect::<Vec<_>>();
                pieces.iter().flat_map(|p| { let p = *p; each(&p) }).collect()
            };
            let all = bytes(&pieces);
            let left: Vec<Piece> = remaining(&pieces, done).collect();
            prop_assert_eq!(bytes(&left), &all[done.min(all.len())..]);
        }
    }
}
