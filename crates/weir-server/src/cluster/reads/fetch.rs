//! Bytes of other nodes for clients of this one.
//!
//! A client requests reads, each from one server. A read gets a place in the node's pool and a slot of
//! the client's region. The fabric receives the bytes into the place and counts them in the slot, and
//! the client copies them from there: they do not pass this thread. The fabric and the client finish
//! with a place independently. When both have, the next look finds the place free; the server looks when
//! places are asked for.
//!
//! Bytes of laminated files stay in the pool ([`crate::cluster::reads::kept`]) until their room is
//! needed.
//!
//! The pool is bounded. Reads ahead of readers may use three quarters of it. A read that finds no
//! place takes back the places of reads ahead that no client uses yet. If that is not enough, it
//! waits until a place is free.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use futures_channel::oneshot;
use weir_core::node::landing::{LandingSlot, LANDINGS_AHEAD};
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::{self, FsError, Landing, FETCH_BYTES, FETCH_PIECES};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fabric::bulk::{self, ReadError};

use crate::cluster::reads::kept::CachedReads;
use crate::cluster::reads::pool::Pool;
use crate::cluster::reads::{ReadsNeeds, RemoteReads};
use crate::node::ClientMemory;

/// The bytes of the pool that have memory from the beginning, so that reads go on when other
/// programs fill the file system.
pub(super) const POOL_FIRST: usize = 2 << 20;
/// Bytes of laminated files are kept in at most one part in this many of the pool: a half.
const KEPT_SHARE: u64 = 2;

/// A place of the pool that a client was lent.
#[derive(Debug)]
struct LentPlace<M> {
    client: Arc<M>,
    slot: u16,
    serial: u32,
    ahead: bool,
    at: u32,
    len: u32,
    /// True once the fabric has finished with the place.
    over: Arc<AtomicBool>,
    what: LoanKind,
}

/// The kind of a place.
#[derive(Debug)]
enum LoanKind {
    /// A place that was taken for this read.
    Own,
    /// A place that was taken for a read of a laminated file. It is kept once all bytes came.
    ToKeep {
        ino: Ino,
        ranges: Vec<LogRange>,
        whole: Arc<AtomicBool>,
    },
    /// A part of a kept entry.
    Kept(u64),
}

/// A read that reports its end.
struct WatchedLanding<T> {
    landing: Box<dyn bulk::Landing>,
    told: T,
}

/// Wraps a read, so that it calls `told` first when it ends: with true if all bytes came.
pub(super) fn watched<T>(landing: Box<dyn bulk::Landing>, told: T) -> Box<dyn bulk::Landing>
where
    T: FnOnce(bool) + Send + 'static,
{
    Box::new(WatchedLanding { landing, told })
}

impl<T: FnOnce(bool) + Send> bulk::Landing for WatchedLanding<T> {
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize> {
        self.landing.receive(from, at, most)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.landing.put(at, bytes);
    }

    fn finish(self: Box<Self>, result: Result<(), ReadError>) {
        (self.told)(result.is_ok());
        self.landing.finish(result);
    }
}

impl<M: ClientMemory> LentPlace<M> {
    fn slot(&self) -> Option<&LandingSlot> {
        self.client.landings().get(usize::from(self.slot))
    }

    /// Returns true if neither the fabric nor the client uses the place. A client that is gone does
    /// not use it.
    fn is_free(&self, now: Option<&Arc<M>>) -> bool {
        let gone = !now.is_some_and(|now| Arc::ptr_eq(now, &self.client));
        let done = || self.slot().is_some_and(|slot| slot.is_over(self.serial));
        self.over.load(Ordering::Acquire) && (gone || done())
    }

    /// Takes the place back if it was read ahead and is not in use.
    fn take_back(&self) {
        if let Some(slot) = self.slot().filter(|_| self.ahead) {
            slot.take_back(self.serial);
        }
    }
}

/// The node's pool, and the places of it that clients were lent.
#[derive(Debug)]
pub struct Fetches<M> {
    pool: Pool,
    kept: CachedReads,
    lent: HashMap<ClientId, Vec<LentPlace<M>>>,
    /// Serial numbers of lent places go on from here.
    next_serial: u32,
    /// The tasks that wait for a place.
    waiting: VecDeque<oneshot::Sender<()>>,
}

impl<M> Fetches<M> {
    /// A pool of `pool_bytes` bytes, none of them lent; `present` of them have memory.
    pub fn new(pool_bytes: usize, present: usize) -> Fetches<M> {
        let mut pool = Pool::new(pool_bytes);
        pool.allow(present);
        Fetches {
            pool,
            kept: CachedReads::default(),
            lent: HashMap::new(),
            next_serial: 0,
            waiting: VecDeque::new(),
        }
    }
}

/// The reply to the client, and the landing for the fabric.
type LentLanding = (Landing, Box<dyn bulk::Landing>);

/// A checked read of a client.
struct CheckedRead {
    /// The file, if it is laminated.
    keep: Option<Ino>,
    ino: Ino,
    ahead: bool,
    to: Rank,
    ranges: Vec<LogRange>,
    bytes: u32,
}

impl<S: ReadsNeeds> RemoteReads<S> {
    /// Starts reads for a client; see [`proto::Fetch`].
    pub(in crate::cluster) async fn fetch_for(
        &self,
        id: ClientId,
        op: proto::Fetch,
    ) -> Result<Vec<Landing>, FsError> {
        if self.server.has_all_extents() {
            return Err(FsError::Invalid); // there are no other nodes
        }
        let pieces: usize = op.reads.iter().map(Vec::len).sum();
        if pieces > FETCH_PIECES {
            return Err(FsError::TooBig);
        }
        let (ahead, keep) = (op.ahead, self.server.laminated_here(op.ino));
        let reads = op.reads.into_iter();
        let reads = reads.map(|ranges| self.checked(ranges, ahead, op.ino, keep));
        let reads: Vec<CheckedRead> = reads.collect::<Result<_, _>>()?;
        loop {
            let client = self.server.memory_of(id);
            let client = client.ok_or(FsError::NotPermitted)?;
            let mut landings = Vec::new();
            for read in &reads {
                if let Some(landing) = self.lend_kept(id, &client, read) {
                    landings.push(landing);
                    continue;
                }
                match self.lend(id, &client, read)? {
                    Some((landing, to)) => {
                        landings.push(landing);
                        self.read(read, to);
                    }
                    None => break,
                }
            }
            if !landings.is_empty() || reads.is_empty() || ahead {
                return Ok(landings);
            }
            let (room, found) = oneshot::channel();
            self.state().fetches.borrow_mut().waiting.push_back(room);
            // The sender is dropped only with the server.
            let _ = found.await;
        }
    }

    /// Checks that a read is of another server and not too large.
    fn checked(
        &self,
        ranges: Vec<LogRange>,
        ahead: bool,
        ino: Ino,
        keep: Option<Ino>,
    ) -> Result<CheckedRead, FsError> {
        let to = ranges.first().ok_or(FsError::Malformed)?.rank;
        let bytes = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add);
        let whole = ranges.iter().all(|r| r.rank == to && r.len > 0);
        if !whole || to >= self.server.peers().servers() || to == self.server.rank().0 {
            return Err(FsError::Malformed);
        }
        if bytes > FETCH_BYTES {
            return Err(FsError::TooBig);
        }
        Ok(CheckedRead {
            keep,
            ino,
            ahead,
            to: Rank(to),
            ranges,
            bytes: u32::try_from(bytes).map_err(|_| FsError::TooBig)?,
        })
    }

    /// Lends a slot of the client and a place of the pool, if both are free.
    fn lend(
        &self,
        id: ClientId,
        client: &Arc<S::Memory>,
        read: &CheckedRead,
    ) -> Result<Option<LentLanding>, FsError> {
        let Some((slot, at)) = self.find_room(id, client, read) else {
            let fits = self.state().fetches.borrow().pool.may_fit(read.bytes);
            return if fits {
                Ok(None)
            } else {
                Err(FsError::NoSpace)
            };
        };
        let mut fetches = self.state().fetches.borrow_mut();
        let fetches = &mut *fetches;
        // A serial has 30 bits.
        fetches.next_serial = (fetches.next_serial + 1) & (u32::MAX >> 2);
        let serial = fetches.next_serial;
        let over = Arc::new(AtomicBool::new(false));
        let landing = Landing { slot, at, serial };
        client.landings()[usize::from(slot)].lend(serial, read.ahead);
        let len = read.bytes;
        let to = self.server.landing(client, landing, len, &over);
        let Some(to) = to else {
            fetches.pool.give_back(at, len);
            return Err(FsError::Invalid); // this node cannot receive
        };
        let (what, to) = match read.keep {
            Some(ino) => {
                let whole = Arc::new(AtomicBool::new(false));
                let came = Arc::clone(&whole);
                let to = watched(to, move |all| came.store(all, Ordering::Release));
                let ranges = read.ranges.clone();
                (LoanKind::ToKeep { ino, ranges, whole }, to)
            }
            None => (LoanKind::Own, to),
        };
        fetches.lent.entry(id).or_default().push(LentPlace {
            client: Arc::clone(client),
            slot,
            serial,
            ahead: read.ahead,
            at,
            len,
            over,
            what,
        });
        Ok(Some((landing, to)))
    }

    /// Lends a slot of the client and the kept place that has the bytes of a read, if both exist.
    fn lend_kept(
        &self,
        id: ClientId,
        client: &Arc<S::Memory>,
        read: &CheckedRead,
    ) -> Option<Landing> {
        let ino = read.keep?;
        let mut fetches = self.state().fetches.borrow_mut();
        let Fetches {
            pool,
            kept,
            lent,
            next_serial,
            ..
        } = &mut *fetches;
        if !kept.has(ino, &read.ranges) {
            // A client may have finished with it just now.
            self.make_room(pool, kept, lent, false);
        }
        let own = lent.entry(id).or_default();
        give_back(own, pool, kept, Some(client));
        let slot = free_slot(own, client)?;
        let (entry, at) = kept.find(ino, &read.ranges)?;
        *next_serial = (*next_serial + 1) & (u32::MAX >> 2);
        let serial = *next_serial;
        let shared = &client.landings()[usize::from(slot)];
        shared.lend(serial, read.ahead);
        // No client was told of the slot yet, so no client sleeps on it.
        shared.arrive(read.bytes);
        own.push(LentPlace {
            client: Arc::clone(client),
            slot,
            serial,
            ahead: read.ahead,
            at,
            len: read.bytes,
            over: Arc::new(AtomicBool::new(true)),
            what: LoanKind::Kept(entry),
        });
        Some(Landing { slot, at, serial })
    }

    /// Finds a free slot of the client, and takes a place for it.
    fn find_room(
        &self,
        id: ClientId,
        client: &Arc<S::Memory>,
        read: &CheckedRead,
    ) -> Option<(u16, u32)> {
        let mut fetches = self.state().fetches.borrow_mut();
        let Fetches {
            pool, kept, lent, ..
        } = &mut *fetches;
        let own = lent.entry(id).or_default();
        give_back(own, pool, kept, Some(client));
        if read.ahead {
            while !pool.has_plenty(read.bytes) && evict_kept(pool, kept) {}
            let ahead = own.iter().filter(|lent| lent.ahead).count();
            if ahead >= LANDINGS_AHEAD || !pool.has_plenty(read.bytes) {
                return None;
            }
        }
        let mut slot = free_slot(own, client);
        if slot.is_none() && !read.ahead {
            own.iter().for_each(LentPlace::take_back);
            give_back(own, pool, kept, Some(client));
            slot = free_slot(own, client);
        }
        let slot = slot?;
        let at = pool.take_place(read.bytes);
        let at = at
            .or_else(|| self.take_grown(pool, read.bytes))
            .or_else(|| {
                take_place(pool, kept, read.bytes).or_else(|| {
                    self.make_room(pool, kept, lent, !read.ahead);
                    take_place(pool, kept, read.bytes)
                })
            });
        at.map(|at| (slot, at))
    }

    /// Takes a place in memory that the pool had not used before, if there is any.
    fn take_grown(&self, pool: &mut Pool, bytes: u32) -> Option<u32> {
        let wanted = pool.wants(bytes)?;
        pool.allow(self.server.pool_memory(wanted));
        pool.take_place(bytes)
    }

    /// Takes back the places that are no longer used, and if necessary those of reads ahead.
    fn make_room(
        &self,
        pool: &mut Pool,
        kept: &mut CachedReads,
        lent: &mut HashMap<ClientId, Vec<LentPlace<S::Memory>>>,
        need: bool,
    ) {
        for (id, lent) in lent.iter_mut() {
            if need {
                lent.iter().for_each(LentPlace::take_back);
            }
            let now = self.server.memory_of(*id);
            give_back(lent, pool, kept, now.as_ref());
        }
        lent.retain(|_, lent| !lent.is_empty());
    }

    fn read(&self, read: &CheckedRead, to: Box<dyn bulk::Landing>) {
        let to = self.watch_file(read.ino, read.to, to);
        // If the fabric cannot read past the other server's logic, a call brings the bytes.
        let Some(mut to) = self.server.peers().net().read(read.to, &read.ranges, to) else {
            self.server.peers().count_moved(1, read.bytes as usize);
            return;
        };
        let (this, rank) = (self.clone(), read.to);
        let (ranges, bytes) = (read.ranges.clone(), read.bytes as usize);
        self.server.peers().spawn(async move {
            let answer = this
                .server
                .call_for_bytes(rank, peer::Fetch { ranges })
                .await;
            match answer {
                Ok(((), bulk)) if bulk.len() == bytes => {
                    to.put(0, &bulk);
                    to.finish(Ok(()));
                }
                _ => to.finish(Err(ReadError::Refused)),
            }
        });
    }

    /// Wakes the tasks that wait for a place, so that they look again. Returns true if there were
    /// any.
    pub fn look_for_room(&self) -> bool {
        let waiting = std::mem::take(&mut self.state().fetches.borrow_mut().waiting);
        let any = !waiting.is_empty();
        for one in waiting {
            let _ = one.send(());
        }
        any
    }

    /// Returns true if a task waits for a place in the pool.
    pub fn awaits_room(&self) -> bool {
        !self.state().fetches.borrow().waiting.is_empty()
    }

    /// The bytes of the pool that are lent, and the bytes of the whole pool.
    pub fn pool_use(&self) -> (usize, usize) {
        let fetches = self.state().fetches.borrow();
        (fetches.pool.used_bytes(), fetches.pool.bytes())
    }

    /// The bytes of laminated files that are kept in the pool, and the number of reads that they
    /// saved.
    pub fn kept(&self) -> (u64, u64) {
        let fetches = self.state().fetches.borrow();
        (fetches.kept.bytes(), fetches.kept.hits())
    }
}

/// Takes back the places that both the fabric and the client have finished with. `now` is the
/// client that has its number now. Bytes of laminated files are kept.
fn give_back<M: ClientMemory>(
    lent: &mut Vec<LentPlace<M>>,
    pool: &mut Pool,
    kept: &mut CachedReads,
    now: Option<&Arc<M>>,
) {
    lent.retain(|lent| {
        let free = lent.is_free(now);
        if free {
            end_loan(lent, pool, kept);
        }
        !free
    });
}

fn end_loan<M>(lent: &LentPlace<M>, pool: &mut Pool, kept: &mut CachedReads) {
    let keeps = match &lent.what {
        LoanKind::Kept(entry) => return kept.release(*entry),
        LoanKind::ToKeep { ino, ranges, whole } if whole.load(Ordering::Acquire) => {
            let most = pool.bytes() as u64 / KEPT_SHARE;
            while kept.bytes() + u64::from(lent.len) > most && evict_kept(pool, kept) {}
            kept.bytes() + u64::from(lent.len) <= most && kept.keep(*ino, ranges, lent.at, lent.len)
        }
        _ => false,
    };
    if !keeps {
        pool.give_back(lent.at, lent.len);
    }
}

/// Evicts the kept entry that was unused for the longest time. Returns false if there is none.
fn evict_kept(pool: &mut Pool, kept: &mut CachedReads) -> bool {
    let gone = kept.evict();
    if let Some((at, len)) = gone {
        pool.give_back(at, len);
    }
    gone.is_some()
}

/// Takes a place, if necessary that of a kept entry.
fn take_place(pool: &mut Pool, kept: &mut CachedReads, bytes: u32) -> Option<u32> {
    loop {
        let at = pool.take_place(bytes);
        if at.is_some() || !evict_kept(pool, kept) {
            return at;
        }
    }
}

fn free_slot<M: ClientMemory>(own: &[LentPlace<M>], client: &Arc<M>) -> Option<u16> {
    let slots = u16::try_from(client.landings().len()).unwrap_or(u16::MAX);
    let is_free = |slot: &u16| own.iter().all(|lent| lent.slot != *slot);
    (0..slots).find(is_free)
}
