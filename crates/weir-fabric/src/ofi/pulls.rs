//! Bodies and bulk that are too long for a packet: the receiver gets them from the sender's
//! memory, checks their hash, and only then is there a message.
//!
//! Messages are taken up in the order in which they came, as long as what is to land is within
//! [`LANDING_MOST`], so that what peers offer bounds no memory but that. What does not come, or
//! is not what was said, fails; the caller has it sent again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::{Address, Endpoint};
use super::packet::{Offered, Part, Word, PIECE_MOST};
use crate::{CallId, Message, Token};

/// Bytes that may be landing at once, or one message.
const LANDING_MOST: usize = 64 << 20;
/// Bytes of one remote read.
const READ_MOST: usize = 1 << 20;
/// Remote reads of one part under way.
const READS: usize = 4;
/// Pieces of one part asked for and not here.
const PIECES: usize = 16;

/// Of which message the parts are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
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
enum Half {
    Here(Vec<u8>),
    Coming(Coming),
}

#[derive(Debug)]
struct Coming {
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

impl Coming {
    fn is_here(&self) -> bool {
        let nothing_awaited = self.reads == 0 && self.pieces.is_empty();
        self.landing.is_some() && self.next == self.offered.len && nothing_awaited
    }
}

#[derive(Debug)]
struct Pull {
    from: Rank,
    of: Of,
    /// Whether its bytes count as landing.
    started: bool,
    halves: [Half; 2],
}

impl Pull {
    fn coming(&mut self) -> impl Iterator<Item = &mut Coming> {
        self.halves.iter_mut().filter_map(|half| match half {
            Half::Coming(coming) => Some(coming),
            Half::Here(_) => None,
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
        of: Of,
        parts: [Part; 2],
    ) -> Option<Message> {
        let mut coming = false;
        let halves = parts.map(|part| match part {
            Part::Inline(bytes) => Half::Here(bytes),
            Part::Offered(offered) => {
                coming = true;
                Half::Coming(Coming {
                    offered,
                    landing: None,
                    next: 0,
                    reads: 0,
                    pieces: BTreeSet::new(),
                })
            }
        });
        let halves = match (coming, halves) {
            (false, [Half::Here(body), Half::Here(bulk)]) => return Some(Message { body, bulk }),
            (_, halves) => halves,
        };
        if self.is_of(from, of) {
            return None; // it was sent again, and is on its way already
        }
        let id = self.next;
        self.next += 1;
        let started = false;
        let pull = Pull {
            from,
            of,
            started,
            halves,
        };
        self.all.insert(id, pull);
        self.waiting.push_back(id);
        self.progress.entry(from).or_insert(now);
        None
    }

    fn is_of(&self, from: Rank, of: Of) -> bool {
        let same = |pull: &Pull| {
            pull.from == from
                && match (pull.of, of) {
                    (Of::Request(a, _), Of::Request(b, _)) => a == b,
                    (Of::Reply(a), Of::Reply(b)) => a == b,
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
        mut say: impl FnMut(Rank, Word),
    ) -> (Vec<u64>, bool) {
        let mut failed = Vec::new();
        while let Some(id) = self.waiting.front().copied() {
            let Some(pull) = self.all.get_mut(&id) else {
                self.waiting.pop_front();
                continue;
            };
            let bytes = pull.bytes();
            if self.landing_bytes > 0 && self.landing_bytes + bytes > LANDING_MOST {
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
                    coming.ask_for_pieces(landing, |word| say(rank, word));
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
        (ticket, offset): (u64, u64),
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

    fn find(&mut self, landing: u64) -> Option<(u64, &mut Coming)> {
        let id = landing / 2;
        let mut coming = self.all.get_mut(&id)?.coming();
        let found = coming.find(|coming| coming.landing == Some(landing))?;
        Some((id, found))
    }

    /// Takes a message out if all of it is here.
    pub fn finish(&mut self, endpoint: &mut Endpoint, id: u64) -> Option<(Rank, Of, Outcome)> {
        let pull = self.all.get_mut(&id)?;
        if !pull.coming().all(|coming| coming.is_here()) {
            return None;
        }
        let pull = self.take(id)?;
        let (from, of) = (pull.from, pull.of);
        let parts = pull.halves.map(|half| match half {
            Half::Here(bytes) => Some(bytes),
            Half::Coming(coming) => {
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
    pub fn fail(&mut self, endpoint: &mut Endpoint, id: u64) -> Option<(Rank, Of)> {
        let mut pull = self.take(id)?;
        for coming in pull.coming() {
            if let Some(landing) = coming.landing {
                endpoint.give_up(landing);
            }
        }
        Some((pull.from, pull.of))
    }

    fn take(&mut self, id: u64) -> Option<Pull> {
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
        let of = |pull: &Pull| pull.from == rank && matches!(pull.of, Of::Reply(_));
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

impl Coming {
    /// Begins reads; false when there is no room for more now.
    fn read_on(
        &mut self,
        landing: u64,
        endpoint: &mut Endpoint,
        from: Address,
    ) -> Result<bool, core::ffi::c_int> {
        while self.reads < READS && self.next < self.offered.len {
            let end = self.offered.len.min(self.next + READ_MOST);
            let address = self.offered.address.wrapping_add(self.next as u64);
            let place = (address, self.offered.key);
            if !endpoint.read(from, landing, self.next..end, place)? {
                return Ok(false);
            }
            self.next = end;
            self.reads += 1;
        }
        Ok(true)
    }

    fn ask_for_pieces(&mut self, ticket: u64, mut say: impl FnMut(Word)) {
        while self.pieces.len() < PIECES && self.next < self.offered.len {
            let len = PIECE_MOST.min(self.offered.len - self.next);
            say(Word::Pull {
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
