//! Bytes of other nodes for clients of this one.
//!
//! A client asks for reads, each of one server. A read gets a place in the node's pool and a
//! slot of the client's; the fabric receives into the one and says so in the other, and the
//! client copies from there: nothing of it passes this thread again. Client and fabric are done
//! with a place each in its time; when both are, it is found to be free at the next look, which
//! is taken when places are asked for.
//!
//! The pool is bounded: who finds no place waits until one is free.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use futures_channel::oneshot;
use weir_core::node::landing::{LANDINGS, POOL_BYTES};
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::{self, Caller, FsError, Landing, FETCH_BYTES, FETCH_PIECES};
use weir_core::types::{ClientId, Rank};
use weir_fabric::bulk::{self, NotRead};

use super::pool::Pool;
use super::Cluster;
use crate::node::{ClientMemory, Platform};

/// A place that a client was lent.
#[derive(Debug)]
struct Lent<M> {
    client: Arc<M>,
    slot: u16,
    at: u32,
    len: u32,
    /// Whether the fabric is done with it.
    over: Arc<AtomicBool>,
}

/// What of the pool is lent to whom.
#[derive(Debug)]
pub struct Fetches<M> {
    pool: Pool,
    lent: HashMap<ClientId, Vec<Lent<M>>>,
    /// Who waits for a place.
    waiting: VecDeque<oneshot::Sender<()>>,
}

impl<M> Default for Fetches<M> {
    fn default() -> Self {
        Fetches {
            pool: Pool::new(POOL_BYTES),
            lent: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }
}

/// What the client is told, and what the fabric is given.
type Way = (Landing, Box<dyn bulk::Landing>);

/// A read as a client asks for it, looked at.
struct Read {
    to: Rank,
    ranges: Vec<LogRange>,
    bytes: u32,
}

impl<P: Platform> Cluster<P> {
    /// Has bytes come for a client; see [`proto::Fetch`].
    pub(super) async fn fetch_for(
        &self,
        from: Caller,
        op: proto::Fetch,
    ) -> Result<Vec<Landing>, FsError> {
        let Caller::Client(id) = from else {
            return Err(FsError::NotPermitted);
        };
        let pieces: usize = op.reads.iter().map(Vec::len).sum();
        if pieces > FETCH_PIECES {
            return Err(FsError::TooBig);
        }
        let reads = op.reads.into_iter().map(|ranges| self.checked(ranges));
        let reads: Vec<Read> = reads.collect::<Result<_, _>>()?;
        loop {
            let client = self.node(|node| node.memory_of(id));
            let client = client.ok_or(FsError::NotPermitted)?;
            let mut landings = Vec::new();
            for read in &reads {
                match self.lend(id, &client, read.bytes)? {
                    Some((landing, to)) => {
                        landings.push(landing);
                        self.read(read, to);
                    }
                    None => break,
                }
            }
            if !landings.is_empty() || reads.is_empty() {
                return Ok(landings);
            }
            let (room, found) = oneshot::channel();
            self.inner.fetches.borrow_mut().waiting.push_back(room);
            // It is dropped only with the server.
            let _ = found.await;
        }
    }

    /// A read of another server, not too large.
    fn checked(&self, ranges: Vec<LogRange>) -> Result<Read, FsError> {
        let to = ranges.first().ok_or(FsError::Malformed)?.rank;
        let bytes = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add);
        let whole = ranges.iter().all(|r| r.rank == to && r.len > 0);
        if !whole || to >= self.inner.servers || to == self.rank().0 {
            return Err(FsError::Malformed);
        }
        if bytes > FETCH_BYTES {
            return Err(FsError::TooBig);
        }
        Ok(Read {
            to: Rank(to),
            ranges,
            bytes: u32::try_from(bytes).map_err(|_| FsError::TooBig)?,
        })
    }

    /// A slot of the client and a place of the pool, if there are such.
    fn lend(
        &self,
        id: ClientId,
        client: &Arc<P::Memory>,
        bytes: u32,
    ) -> Result<Option<Way>, FsError> {
        let slots = client.landings().len().min(LANDINGS);
        let mut fetches = self.inner.fetches.borrow_mut();
        let fetches = &mut *fetches;
        let lent = fetches.lent.entry(id).or_default();
        give_back(lent, &mut fetches.pool, |lent| {
            !Arc::ptr_eq(&lent.client, client)
        });
        let free = |slot: &u16| lent.iter().all(|lent| lent.slot != *slot);
        let Some(slot) = (0..u16::try_from(slots).unwrap_or(u16::MAX)).find(free) else {
            return Ok(None);
        };
        let mut at = fetches.pool.take(bytes);
        if at.is_none() {
            for (id, lent) in &mut fetches.lent {
                let now = self.node(|node| node.memory_of(*id));
                let gone = |lent: &Lent<P::Memory>| {
                    !now.as_ref()
                        .is_some_and(|now| Arc::ptr_eq(now, &lent.client))
                };
                give_back(lent, &mut fetches.pool, gone);
            }
            fetches.lent.retain(|_, lent| !lent.is_empty());
            at = fetches.pool.take(bytes);
        }
        let Some(at) = at else {
            return Ok(None);
        };
        let over = Arc::new(AtomicBool::new(false));
        let landing = Landing { slot, at };
        client.landings()[usize::from(slot)].lend();
        let to = self.node(|node| node.platform().landing(client, landing, bytes, &over));
        let Some(to) = to else {
            fetches.pool.give_back(at, bytes);
            return Err(FsError::Invalid); // a node that cannot receive
        };
        fetches.lent.entry(id).or_default().push(Lent {
            client: Arc::clone(client),
            slot,
            at,
            len: bytes,
            over,
        });
        Ok(Some((landing, to)))
    }

    fn read(&self, read: &Read, to: Box<dyn bulk::Landing>) {
        // Where the fabric has no shorter way, a call brings them.
        let Some(mut to) = self.inner.net.read(read.to, &read.ranges, to) else {
            self.count_moved(1, read.bytes as usize);
            return;
        };
        let (this, rank) = (self.clone(), read.to);
        let (ranges, bytes) = (read.ranges.clone(), read.bytes as usize);
        self.spawn(async move {
            let answer = this.call_for_bytes(rank, peer::Fetch { ranges }).await;
            match answer {
                Ok(((), bulk)) if bulk.len() == bytes => {
                    to.put(0, &bulk);
                    to.end(Ok(()));
                }
                _ => to.end(Err(NotRead::Refused)),
            }
        });
    }

    /// Lets those look again who wait for a place; whether there were any. Whoever runs the
    /// cluster calls this from time to time while [`Cluster::awaits_room`].
    pub fn look_for_room(&self) -> bool {
        let waiting = std::mem::take(&mut self.inner.fetches.borrow_mut().waiting);
        let any = !waiting.is_empty();
        for one in waiting {
            let _ = one.send(());
        }
        any
    }

    /// Whether somebody waits for a place in the pool.
    pub fn awaits_room(&self) -> bool {
        !self.inner.fetches.borrow().waiting.is_empty()
    }

    /// Bytes of the pool that are lent, and of how many.
    pub fn pool_use(&self) -> (usize, usize) {
        let fetches = self.inner.fetches.borrow();
        (fetches.pool.used_bytes(), POOL_BYTES)
    }
}

/// Takes back what both fabric and client are done with; a client that is gone is.
fn give_back<M: ClientMemory>(
    lent: &mut Vec<Lent<M>>,
    pool: &mut Pool,
    gone: impl Fn(&Lent<M>) -> bool,
) {
    lent.retain(|lent| {
        let done = || {
            let slot = lent.client.landings().get(usize::from(lent.slot));
            gone(lent) || slot.is_some_and(weir_core::node::landing::LandingSlot::is_released)
        };
        let free = lent.over.load(Ordering::Acquire) && done();
        if free {
            pool.give_back(lent.at, lent.len);
        }
        !free
    });
}
