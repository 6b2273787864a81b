//! The bulk plane: bytes of servers' logs, past the service threads of both ends.
//!
//! ```text
//!  asker                                              target
//!   Asker::read(rank, pieces, landing)
//!     `weir-land`: READ             ---connection-->   `weir-send`: queue of requests
//!                                                        memory: straight from the mapping
//!                                                        storage: read by `weir-device`
//!                  landing.receive  <--------------      BYTES
//!                  landing.end
//! ```
//!
//! Whoever runs a server gives the fabric a [`LogSource`], from which the bytes are sent, and with
//! each read a [`Landing`], into which they are received. Both work on raw memory that
//! processes share, so this crate needs neither to copy nor to trust it; a transport that does
//! not write to sockets uses [`LogSource::copy`] and [`Landing::put`].
//!
//! Invariants:
//! - A read ends once, with [`Landing::end`]: when all its bytes are there, or with why not.
//!   Reading twice does no harm, so after a broken connection it is simply asked for again.
//! - What a peer says is bounded before memory is taken for it: pieces and bytes of a READ, the
//!   READs of a connection that wait ([`serve`]), the bytes of a BYTES by what was asked for.
//! - One slow device holds up only what must be read from devices.
//!
//! One thread moves less than a fast link takes, so there are [`lanes`]: each has an asker's and a
//! target's thread, and connections of its own, made when it is first used. A read goes to the
//! lane that has the fewest bytes under way from that server, the first of several: so a node that
//! reads little wakes one, and of one that reads much from several, none has more connections
//! busy, and so more of the link, than another. Of more than [`SPREAD_MAX`] servers each has one
//! lane, for the others keep those busy, and connections would be too many.
//!
//! | file | subject |
//! | --- | --- |
//! | `ask` | the asker's thread |
//! | `serve` | the target's thread |
//! | `queue` | which request is served next (pure) |
//! | `device` | what must be read from storage first |

mod ask;
mod device;
pub mod queue;
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

use crate::frame::{Malformed, PIECES_MOST, PIECE_BYTES, READ_MOST};
use crate::io::Command;
use crate::mailbox::MailboxSender;
use crate::{CallError, CallId, Timing};

/// Bytes of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    /// The slab.
    pub slab: u32,
    /// How many, at least one.
    pub len: u32,
    /// Where in the slab they begin.
    pub pos: u64,
}

/// Where bytes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// In memory: they are sent as they are.
    Memory,
    /// On storage: they are read first.
    Storage,
}

/// The bytes that a server has for others. Whatever is asked of it comes from another server:
/// pieces that are not there are an error, never more.
pub trait LogSource: Send + Sync {
    /// Where a piece is kept; `None`: there is no such piece.
    fn find(&self, piece: &Piece) -> Option<Medium>;

    /// Writes to a socket, without waiting, what goes of `head` and of pieces in memory behind
    /// it, as one write(2) does.
    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize>;

    /// Copies a piece; `out` is as long as the piece.
    fn copy(&self, piece: &Piece, out: &mut [u8]) -> io::Result<()>;
}

/// Nothing for others.
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

/// Why a read brought nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// The other server is not to be asked.
    #[error("{0}")]
    Call(#[from] CallError),
    /// It has no such bytes, or cannot read them.
    #[error("the server cannot read these bytes")]
    Refused,
    /// More, or in more pieces, than a read may ask for, or nothing.
    #[error("not a read that can be asked for")]
    Malformed,
}

/// Where the bytes of one read go: memory of its own, as long as all its pieces.
pub trait Landing: Send {
    /// Reads from a socket, without waiting, up to `most` bytes to `at`, as one read(2) does.
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize>;

    /// Puts bytes at `at`.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// The read is over.
    fn end(self: Box<Self>, result: Result<(), ReadError>);
}

/// The most lanes.
const LANES_MAX: usize = 4;

/// Up to so many servers each is asked by all lanes, over a connection for each.
const SPREAD_MAX: usize = 64;

/// How many connections of the bulk plane a server has at most, those that others made included.
pub fn connections_most(servers: usize) -> usize {
    let others = servers.saturating_sub(1);
    let each = if servers > SPREAD_MAX { 1 } else { LANES_MAX };
    2 * each * others
}

/// How many lanes there are: as many as cores, since more could not run, up to [`LANES_MAX`].
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(LANES_MAX))
}

/// A lane, as the I/O thread sees it.
#[derive(Debug)]
struct LaneThreads {
    asker: MailboxSender<ask::Command>,
    server: MailboxSender<serve::Command>,
    threads: [JoinHandle<()>; 2],
}

/// All lanes, for the I/O thread, which hands over their connections.
#[derive(Debug)]
pub struct BulkPlane {
    lanes: Vec<LaneThreads>,
    /// Which lanes wait for a connection to a server: any that is made does for any of them.
    dialling: HashMap<Rank, VecDeque<usize>>,
    /// How many connections of a server were taken, so that those of one go to several lanes.
    served: HashMap<Rank, usize>,
}

/// A lane, as askers see it.
#[derive(Clone, Debug)]
struct LaneHandle {
    thread: MailboxSender<ask::Command>,
    /// Bytes that were asked for and have not come, by the server's rank.
    loads: Arc<[AtomicUsize]>,
}

impl LaneHandle {
    fn load(&self, rank: Rank) -> usize {
        let load = self.loads.get(usize::from(rank.0));
        load.map_or(0, |load| load.load(Ordering::Relaxed))
    }
}

/// A share in the load of a lane, as long as this lives.
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

/// Where reads are asked for, by any thread.
#[derive(Clone, Debug)]
pub struct BulkReader {
    lanes: Vec<LaneHandle>,
    /// Whether all are for all servers.
    spread: bool,
    next: Arc<AtomicU64>,
    deadline: Duration,
}

impl BulkPlane {
    /// Starts the threads of one of so many servers.
    pub fn start(
        shelf: Arc<dyn LogSource>,
        servers: usize,
        timing: Timing,
        dial: MailboxSender<Command>,
    ) -> io::Result<(BulkPlane, BulkReader)> {
        let mut bulk = BulkPlane {
            lanes: Vec::new(),
            dialling: HashMap::new(),
            served: HashMap::new(),
        };
        let (device, lost_servers) = (Arc::default(), Arc::default());
        let mut lanes = Vec::new();
        let parts = std::iter::repeat_n((shelf, dial), self::lanes());
        for (lane, (shelf, dial)) in parts.enumerate() {
            let (asker, ask) =
                ask::ReaderThread::new(lane, timing, dial, Arc::clone(&lost_servers))?;
            let (server, serve) = serve::SenderThread::new(shelf, Arc::clone(&device))?;
            let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let threads = [
                spawn("weir-land").spawn(move || ask.run())?,
                spawn("weir-send").spawn(move || serve.run())?,
            ];
            lanes.push(LaneHandle {
                thread: asker.clone(),
                loads: (0..servers).map(|_| AtomicUsize::new(0)).collect(),
            });
            bulk.lanes.push(LaneThreads {
                asker,
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

    /// A server is dialled for a lane.
    pub fn note_dial(&mut self, rank: Rank, lane: usize) {
        self.dialling.entry(rank).or_default().push_back(lane);
    }

    /// A server that was to be dialled is there.
    pub fn reached(&mut self, rank: Rank, socket: TcpStream) {
        if let Some(asker) = self.next_dialling_lane(rank) {
            let _ = asker.send(ask::Command::Reached(rank, socket));
        }
    }

    /// It is not.
    pub fn not_reached(&mut self, rank: Rank) {
        if let Some(asker) = self.next_dialling_lane(rank) {
            let _ = asker.send(ask::Command::NotReached(rank));
        }
    }

    /// Who waited longest for a connection to a server.
    fn next_dialling_lane(&mut self, rank: Rank) -> Option<&MailboxSender<ask::Command>> {
        let waiting = self.dialling.get_mut(&rank)?;
        let lane = waiting.pop_front()?;
        self.lanes.get(lane).map(|lane| &lane.asker)
    }

    /// A server has dialled, to ask.
    pub fn serve(&mut self, rank: Rank, socket: TcpStream) {
        let served = self.served.entry(rank).or_default();
        let lane = (usize::from(rank.0) + *served) % self.lanes.len();
        *served = served.wrapping_add(1);
        let server = &self.lanes[lane].server;
        let _ = server.send(serve::Command::Serve(rank, socket));
    }
}

impl Drop for BulkPlane {
    /// Ends the threads; reads under way end as lost.
    fn drop(&mut self) {
        for lane in &self.lanes {
            let _ = lane.asker.send(ask::Command::End);
            let _ = lane.server.send(serve::Command::End);
        }
        for thread in self.lanes.drain(..).flat_map(|lane| lane.threads) {
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

impl BulkReader {
    /// Where a server is to be asked.
    fn lane(&self, to: Rank) -> Option<&LaneHandle> {
        if self.spread {
            return self.lanes.iter().min_by_key(|lane| lane.load(to));
        }
        self.lanes.get(usize::from(to.0) % self.lanes.len().max(1))
    }

    /// Reads bytes of another server's log into `landing`, which is told the end.
    pub fn read(&self, to: Rank, pieces: &[Piece], landing: Box<dyn Landing>) {
        let Ok(bytes) = total_bytes(pieces) else {
            return landing.end(Err(ReadError::Malformed));
        };
        let Some(lane) = self.lane(to) else {
            return landing.end(Err(CallError::Ended.into()));
        };
        let read = ask::PendingRead {
            id: CallId(self.next.fetch_add(1, Ordering::Relaxed)),
            body: encode(pieces),
            bytes,
            landing,
            deadline: Instant::now() + self.deadline,
            load: LaneLoad::new(lane, to, bytes),
        };
        if let Err(ask::Command::Read(_, read)) = lane.thread.send(ask::Command::Read(to, read)) {
            read.finish(Err(CallError::Ended.into()));
        }
    }
}

/// Bytes of all pieces, if that can be asked for.
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

/// The pieces of a READ's body, and how many bytes they are.
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

/// What is left of pieces when the first `done` bytes are out.
fn remaining(pieces: &[Piece], mut done: usize) -> impl Iterator<Item = Piece> + '_ {
    pieces.iter().filter_map(move |piece| {
        let len = piece.len as usize;
        let skip = done.min(len);
        done -= skip;
        // Less than `piece.len`, so it fits.
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
