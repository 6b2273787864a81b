//! Transfers of bodies and bulk too long for a packet: the receiver reads them from the sender's
//! memory and checks their hash before the message counts as received.
//!
//! Messages are received in the order in which they came, at most [`LANDING_MAX_BYTES`] at a time,
//! which bounds the memory that peers can occupy. A transfer that stalls, or whose hash is wrong,
//! fails; the caller has it sent again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::{Address, Endpoint, RemoteMemory};
use super::packet::{OfferedMemory, PacketContent, PacketPart, PIECE_MOST};
use crate::{CallId, Message, Token};

/// The limit of bytes being received, except for a single message.
const LANDING_MAX_BYTES: usize = 64 << 20;
/// The size of one remote read.
const READ_MOST: usize = 1 << 20;
/// The limit of remote reads under way for one part.
const READS_MAX: usize = 4;
/// The limit of requested pieces of one part.
const PIECES_MAX: usize = 16;

/// The message that parts belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageId {
    /// A request, and the id below which all calls have ended.
    Request(Token, u64),
    /// The reply to a call of this server.
    Reply(CallId),
}

/// The result of a transfer.
#[derive(Debug)]
pub enum PullOutcome {
    /// The whole message.
    Whole(Message),
    /// It failed.
    Failed,
}

#[derive(Debug)]
enum PartState {
    Here(Vec<u8>),
    Remote(RemotePart),
}

#[derive(Debug)]
struct RemotePart {
    offered: OfferedMemory,
    /// The landing's number, once there is room.
    landing: Option<u64>,
    /// Everything below this offset was requested.
    next: usize,
    /// Remote reads under way.
    reads: usize,
    /// The offsets of requested pieces.
    pieces: BTreeSet<usize>,
}

impl RemotePart {
    fn is_here(&self) -> bool {
        let nothing_awaited = self.reads == 0 && self.pieces.is_empty();
        self.landing.is_some() && self.next == self.offered.len && nothing_awaited
    }
}

#[derive(Debug)]
struct Pull {
    from: Rank,
    of: MessageId,
    /// Its bytes count as being received.
    started: bool,
    parts_state: [PartState; 2],
}

impl Pull {
    fn coming(&mut self) -> impl Iterator<Item = &mut RemotePart> {
        self.parts_state.iter_mut().filter_map(|half| match half {
            PartState::Remote(coming) => Some(coming),
            PartState::Here(_) => None,
        })
    }

    fn bytes(&mut self) -> usize {
        self.coming().map(|coming| coming.offered.len).sum()
    }
}

/// Messages that are not whole yet.
#[derive(Debug, Default)]
pub struct Pulls {
    /// The next message's id; its landings have the numbers 2 id and 2 id + 1.
    next: u64,
    all: BTreeMap<u64, Pull>,
    /// Messages without landings yet.
    waiting: VecDeque<u64>,
    landing_bytes: usize,
    /// The last progress of each server with a transfer.
    progress: BTreeMap<Rank, Duration>,
}

impl Pulls {
    /// Returns true if there is no transfer.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Begins a transfer; returns the message if it is whole already.
    pub fn begin(
        &mut self,
        now: Duration,
        from: Rank,
        of: MessageId,
        parts: [PacketPart; 2],
    ) -> Option<Message> {
        let mut coming = false;
        let parts_state = parts.map(|part| match part {
            PacketPart::Inline(bytes) => PartState::Here(bytes),
            PacketPart::Offered(offered) => {
                coming = true;
                PartState::Remote(RemotePart {
                    offered,
                    landing: None,
                    next: 0,
                    reads: 0,
                    pieces: BTreeSet::new(),
                })
            }
        });
        let parts_state = match (coming, parts_state) {
            (false, [PartState::Here(body), PartState::Here(bulk)]) => {
                return Some(Message { body, bulk })
            }
            (_, parts_state) => parts_state,
        };
        if self.contains(from, of) {
            return None; // it was sent again, and is on its way already
        }
        let id = self.next;
        self.next += 1;
        let started = false;
        let pull = Pull {
            from,
            of,
            started,
            parts_state,
        };
        self.all.insert(id, pull);
        self.waiting.push_back(id);
        self.progress.entry(from).or_insert(now);
        None
    }

    fn contains(&self, from: Rank, of: MessageId) -> bool {
        let same = |pull: &Pull| {
            pull.from == from
                && match (pull.of, of) {
                    (MessageId::Request(a, _), MessageId::Request(b, _)) => a == b,
                    (MessageId::Reply(a), MessageId::Reply(b)) => a == b,
                    _ => false,
                }
        };
        self.all.values().any(same)
    }

    /// Requests bytes as far as there is room. Returns the transfers that failed at once, and true
    /// if the endpoint has no room for more now.
    pub fn advance(
        &mut self,
        now: Duration,
        endpoint: &mut Endpoint,
        mut address: impl FnMut(&mut Endpoint, Rank) -> Option<Address>,
        mut say: impl FnMut(Rank, PacketContent),
    ) -> (Vec<u64>, bool) {
        let mut failed = Vec::new();
        while let Some(id) = self.waiting.front().copied() {
            let Some(pull) = self.all.get_mut(&id) else {
                self.waiting.pop_front();
                continue;
            };
            let bytes = pull.bytes();
            if self.landing_bytes > 0 && self.landing_bytes + bytes > LANDING_MAX_BYTES {
                break;
            }
            self.waiting.pop_front();
            self.landing_bytes += bytes;
            pull.started = true;
            self.progress.insert(pull.from, now);
            for (coming, landing) in pull.coming().zip(2 * id..) {
                match endpoint.land(landing, coming.offered.len) {
                    Ok(()) => coming.landing = Some(landing),
                    Err(code) => {
                        let error = endpoint.library.error(code);
                        tracing::warn!(error, "memory for a message cannot be registered");
                        failed.push(id);
                    }
                }
            }
        }
        let mut full = false;
        for (id, pull) in &mut self.all {
            let Some(from) = address(endpoint, pull.from) else {
                failed.push(*id);
                continue;
            };
            let rank = pull.from;
            for coming in pull.coming() {
                let Some(landing) = coming.landing else {
                    continue;
                };
                if !endpoint.reads() {
                    coming.ask_for_pieces(landing, |content| say(rank, content));
                    continue;
                }
                match coming.read_on(landing, endpoint, from) {
                    Ok(true) => {}
                    Ok(false) => full = true,
                    Err(code) => {
                        let error = endpoint.library.error(code);
                        tracing::debug!(error, "a remote read was refused");
                        failed.push(*id);
                    }
                }
            }
        }
        (failed, full)
    }

    /// Records the end of a remote read; returns its message, and true if the read failed.
    pub fn read(&mut self, now: Duration, landing: u64, good: bool) -> Option<(u64, bool)> {
        let (id, coming) = self.find(landing)?;
        coming.reads -= 1;
        let rank = self.all.get(&id)?.from;
        self.progress.insert(rank, now);
        Some((id, !good))
    }

    /// Records a piece from a server; returns its message.
    pub fn piece(
        &mut self,
        now: Duration,
        endpoint: &mut Endpoint,
        from: Rank,
        ticket: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Option<u64> {
        let rank = self.all.get(&(ticket / 2))?.from;
        let (id, coming) = self.find(ticket)?;
        let offset = usize::try_from(offset).ok()?;
        let awaited = coming.offered.len.saturating_sub(offset).min(PIECE_MOST);
        if rank != from || bytes.len() != awaited || !coming.pieces.remove(&offset) {
            return None;
        }
        if !endpoint.fill(ticket, offset, bytes) {
            return None;
        }
        self.progress.insert(from, now);
        Some(id)
    }

    fn find(&mut self, landing: u64) -> Option<(u64, &mut RemotePart)> {
        let id = landing / 2;
        let mut coming = self.all.get_mut(&id)?.coming();
        let found = coming.find(|coming| coming.landing == Some(landing))?;
        Some((id, found))
    }

    /// Removes and returns a message if all of it has arrived.
    pub fn finish(
        &mut self,
        endpoint: &mut Endpoint,
        id: u64,
    ) -> Option<(Rank, MessageId, PullOutcome)> {
        let pull = self.all.get_mut(&id)?;
        if !pull.coming().all(|coming| coming.is_here()) {
            return None;
        }
        let pull = self.remove(id)?;
        let (from, of) = (pull.from, pull.of);
        let parts = pull.parts_state.map(|half| match half {
            PartState::Here(bytes) => Some(bytes),
            PartState::Remote(coming) => {
                let bytes = coming.landing.and_then(|id| endpoint.landed(id))?;
                (blake3::hash(&bytes) == coming.offered.hash).then_some(bytes)
            }
        });
        let outcome = if let [Some(body), Some(bulk)] = parts {
            PullOutcome::Whole(Message { body, bulk })
        } else {
            tracing::warn!(rank = from.0, "what was read is not what was offered");
            PullOutcome::Failed
        };
        Some((from, of, outcome))
    }

    /// Gives a transfer up; returns its message.
    pub fn fail(&mut self, endpoint: &mut Endpoint, id: u64) -> Option<(Rank, MessageId)> {
        let mut pull = self.remove(id)?;
        for coming in pull.coming() {
            if let Some(landing) = coming.landing {
                endpoint.give_up(landing);
            }
        }
        Some((pull.from, pull.of))
    }

    fn remove(&mut self, id: u64) -> Option<Pull> {
        let mut pull = self.all.remove(&id)?;
        if pull.started {
            self.landing_bytes -= pull.bytes();
        }
        let from = pull.from;
        if !self.all.values().any(|pull| pull.from == from) {
            self.progress.remove(&from);
        }
        Some(pull)
    }

    /// The replies awaited from a server.
    pub fn replies_of(&self, rank: Rank) -> Vec<u64> {
        let of = |pull: &Pull| pull.from == rank && matches!(pull.of, MessageId::Reply(_));
        let all = self.all.iter().filter(|(_, pull)| of(pull));
        all.map(|(id, _)| *id).collect()
    }

    /// The transfers from servers without progress since `since`.
    pub fn stalled(&self, since: Duration) -> Vec<u64> {
        let stalls = |rank| self.progress.get(rank).is_some_and(|then| *then <= since);
        let all = self.all.iter().filter(|(_, pull)| stalls(&pull.from));
        all.map(|(id, _)| *id).collect()
    }
}

impl RemotePart {
    /// Begins remote reads; returns false if there is no room for more now.
    fn read_on(
        &mut self,
        landing: u64,
        endpoint: &mut Endpoint,
        from: Address,
    ) -> Result<bool, core::ffi::c_int> {
        while self.reads < READS_MAX && self.next < self.offered.len {
            let end = self.offered.len.min(self.next + READ_MOST);
            let place = RemoteMemory {
                key: self.offered.key,
                address: self.offered.address.wrapping_add(self.next as u64),
            };
            if !endpoint.read(from, landing, self.next..end, place)? {
                return Ok(false);
            }
            self.next = end;
            self.reads += 1;
        }
        Ok(true)
    }

    fn ask_for_pieces(&mut self, ticket: u64, mut say: impl FnMut(PacketContent)) {
        while self.pieces.len() < PIECES_MAX && self.next < self.offered.len {
            let len = PIECE_MOST.min(self.offered.len - self.next);
            say(PacketContent::Pull {
                ticket,
                key: self.offered.key,
                offset: self.next as u64,
                len,
            });
            self.pieces.insert(self.next);
            self.next += len;
        }
    }
}
