//! Bodies and bulk that are too long for a packet: the receiver gets them from the sender's
//! memory, checks their hash, and only then is there a message.
//!
//! Messages are taken up in the order in which they came, as long as what is to land is within
//! [`LANDING_MAX_BYTES`], so that what peers offer bounds no memory but that. What does not come, or
//! is not what was said, fails; the caller has it sent again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::{Address, Endpoint, RemoteMemory};
use super::packet::{Offered, PacketContent, Part, PIECE_MOST};
use crate::{CallId, Message, Token};

/// Bytes that may be landing at once, or one message.
const LANDING_MAX_BYTES: usize = 64 << 20;
/// Bytes of one remote read.
const READ_MOST: usize = 1 << 20;
/// Remote reads of one part under way.
const READS_MAX: usize = 4;
/// Pieces of one part asked for and not here.
const PIECES_MAX: usize = 16;

/// Of which message the parts are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageId {
    /// A request, and below which number all calls have ended.
    Request(Token, u64),
    /// The reply to a call of ours.
    Reply(CallId),
}

/// What has become of a message.
#[derive(Debug)]
pub enum Outcome {
    /// It is whole.
    Whole(Message),
    /// It cannot be had.
    Failed,
}

#[derive(Debug)]
enum PartState {
    Here(Vec<u8>),
    Remote(RemotePart),
}

#[derive(Debug)]
struct RemotePart {
    offered: Offered,
    /// Where it lands, once there is room.
    landing: Option<u64>,
    /// What is below was asked for.
    next: usize,
    /// Remote reads under way.
    reads: usize,
    /// Where pieces begin that were asked for.
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
    /// Whether its bytes count as landing.
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
    /// Twice it, and twice it and one, are the numbers of its landings.
    next: u64,
    all: BTreeMap<u64, Pull>,
    /// Those that nothing lands for yet.
    waiting: VecDeque<u64>,
    landing_bytes: usize,
    /// When something came from a server that something is awaited from.
    progress: BTreeMap<Rank, Duration>,
}

impl Pulls {
    /// Whether nothing is awaited.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A message that is whole already, or `None` when it is to be awaited.
    pub fn begin(
        &mut self,
        now: Duration,
        from: Rank,
        of: MessageId,
        parts: [Part; 2],
    ) -> Option<Message> {
        let mut coming = false;
        let parts_state = parts.map(|part| match part {
            Part::Inline(bytes) => PartState::Here(bytes),
            Part::Offered(offered) => {
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

    /// Asks for what there is room for. Gives what failed at once; `true` when the endpoint has
    /// no room for more now.
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

    /// A remote read ended; gives the message it is of, and whether that has failed.
    pub fn read(&mut self, now: Duration, landing: u64, good: bool) -> Option<(u64, bool)> {
        let (id, coming) = self.find(landing)?;
        coming.reads -= 1;
        let rank = self.all.get(&id)?.from;
        self.progress.insert(rank, now);
        Some((id, !good))
    }

    /// A piece came from a server; gives the message it is of.
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

    /// Takes a message out if all of it is here.
    pub fn finish(
        &mut self,
        endpoint: &mut Endpoint,
        id: u64,
    ) -> Option<(Rank, MessageId, Outcome)> {
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
            Outcome::Whole(Message { body, bulk })
        } else {
            tracing::warn!(rank = from.0, "what was read is not what was offered");
            Outcome::Failed
        };
        Some((from, of, outcome))
    }

    /// Gives a message up; whose it was.
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

    /// Replies that are awaited from a server.
    pub fn replies_of(&self, rank: Rank) -> Vec<u64> {
        let of = |pull: &Pull| pull.from == rank && matches!(pull.of, MessageId::Reply(_));
        let all = self.all.iter().filter(|(_, pull)| of(pull));
        all.map(|(id, _)| *id).collect()
    }

    /// What comes from servers of which nothing has come since `since`.
    pub fn stalled(&self, since: Duration) -> Vec<u64> {
        let stalls = |rank| self.progress.get(rank).is_some_and(|then| *then <= since);
        let all = self.all.iter().filter(|(_, pull)| stalls(&pull.from));
        all.map(|(id, _)| *id).collect()
    }
}

impl RemotePart {
    /// Begins reads; false when there is no room for more now.
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
