//! Locks of files across nodes: all locks of a file are at its home.
//!
//! A node tells the home which of its processes or descriptions takes a lock, remembers that, and
//! tells the home when that owner is gone. A waiting client asks again several times a second: the
//! home wakes only the clients of its own node. A circular wait over several nodes is not detected
//! (fcntl(2) allows that: EDEADLK is for circles that are detected).
//!
//! Invariant: a lock that a program was refused, or has given back, does not stay. The node repeats
//! the release until the home has heard it. If the home does not answer a wish in time, it is
//! unknown if the lock was or will be granted: the node takes the wish back by its number, unless
//! its owner holds some of these bytes anyway. The owner's next wish waits for that.

use std::collections::{BTreeMap, BTreeSet};

use futures_channel::oneshot;
use futures_util::future::join_all;
use weir_core::proto::peer::{self, LockOwner, LockWish};
use weir_core::proto::{self, FsError, HeldLock};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::locks::requests::NodeLocks;
use crate::cluster::locks::table::{Family, Owner, Wish, UNLOCK};
use crate::cluster::locks::{InstanceLocks, LocksNeeds};

/// Locks between nodes.
#[derive(Debug, Default)]
pub struct LocksElsewhere {
    /// Owners of this node that have locks at other homes, by file, with the bytes that they were
    /// granted.
    owners: BTreeMap<Ino, BTreeMap<LockOwner, Vec<Bytes>>>,
    /// Owners that are gone, of which the files' homes are being told.
    dropping: BTreeMap<Ino, BTreeSet<LockOwner>>,
    /// Wishes that other nodes have taken back, by their numbers there, with the time until
    /// which they are remembered, ns since 1970.
    taken_back: BTreeMap<(Rank, u64), i64>,
}

impl LocksElsewhere {
    /// Moves the owners that are gone to those that are being dropped; returns them. Forgets
    /// wishes that cannot be on their way any more.
    fn bury(
        &mut self,
        now_ns: i64,
        lives: impl Fn(LockOwner) -> bool,
    ) -> Vec<(Ino, Vec<LockOwner>)> {
        self.taken_back.retain(|_, until_ns| now_ns < *until_ns);
        let mut dead = Vec::new();
        self.owners.retain(|ino, owners| {
            let all = owners.keys().copied();
            let gone: Vec<LockOwner> = all.filter(|owner| !lives(*owner)).collect();
            owners.retain(|owner, _| !gone.contains(owner));
            if !gone.is_empty() {
                dead.push((*ino, gone));
            }
            !owners.is_empty()
        });
        for (ino, gone) in &dead {
            self.dropping.entry(*ino).or_default().extend(gone);
        }
        dead
    }

    /// The bytes that an owner was granted; registers the owner if it is new.
    fn held_by(&mut self, ino: Ino, owner: LockOwner) -> &mut Vec<Bytes> {
        let owners = self.owners.entry(ino).or_default();
        owners.entry(owner).or_default()
    }
}

/// A range of bytes (the end is one past the last byte), by kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bytes {
    whole: bool,
    start: u64,
    end: u64,
}

impl From<&LockWish> for Bytes {
    fn from(wish: &LockWish) -> Bytes {
        let LockWish {
            whole, start, end, ..
        } = *wish;
        Bytes { whole, start, end }
    }
}

impl Bytes {
    fn overlaps(&self, other: &Bytes) -> bool {
        self.whole == other.whole && self.start < other.end && other.start < self.end
    }

    fn contains(&self, other: &Bytes) -> bool {
        self.whole == other.whole && self.start <= other.start && other.end <= self.end
    }
}

/// A wish that was taken back may be on its way for this many times its asker's wait.
const TAKEN_BACK_TIMES: i64 = 3;

/// An owner as other nodes know it; `None` if it is itself of another node.
fn told(owner: Owner) -> Option<LockOwner> {
    match owner {
        Owner::Client(id) => Some(LockOwner::Client(id.0)),
        Owner::Ofd { index, generation } => Some(LockOwner::Ofd { index, generation }),
        Owner::Remote(..) => None,
    }
}

fn own(owner: LockOwner) -> Owner {
    match owner {
        LockOwner::Client(id) => Owner::Client(ClientId(id)),
        LockOwner::Ofd { index, generation } => Owner::Ofd { index, generation },
    }
}

impl<S: LocksNeeds> InstanceLocks<S> {
    pub(in crate::cluster) async fn flock_for_client(
        &self,
        from: ClientId,
        op: proto::Flock,
    ) -> Result<(), FsError> {
        let ino = self.server.resolve(op.ino)?;
        if ino.rank() == self.server.rank() {
            let wish = self.on_node(|locks| locks.flock_wish(from, &op))?;
            let unlocks = wish.kind == UNLOCK;
            return self
                .lock_here(ino, unlocks, |locks| locks.lock_file(from, &op))
                .await;
        }
        let wish = self.on_node(|locks| locks.flock_wish(from, &op))?;
        self.lock_elsewhere(ino, wish).await
    }

    pub(in crate::cluster) async fn record_lock_for_client(
        &self,
        from: ClientId,
        op: proto::RecordLock,
    ) -> Result<(), FsError> {
        let ino = self.server.resolve(op.ino)?;
        if ino.rank() == self.server.rank() {
            return self
                .lock_here(ino, op.kind == UNLOCK, |locks| locks.lock_record(from, &op))
                .await;
        }
        let wish = self.on_node(|locks| locks.record_wish(from, &op))?;
        self.lock_elsewhere(ino, wish).await
    }

    pub(in crate::cluster) async fn test_lock_for_client(
        &self,
        from: ClientId,
        op: proto::TestLock,
    ) -> Result<Option<HeldLock>, FsError> {
        let ino = self.server.resolve(op.ino)?;
        if ino.rank() == self.server.rank() {
            return self.on_node(|locks| locks.find_lock(from, &op));
        }
        let wish = self.on_node(|locks| locks.test_wish(from, &op))?;
        let wish = travelling(wish)?;
        self.server
            .call(ino.rank(), peer::TestLock { ino, wish })
            .await
    }

    async fn lock_elsewhere(&self, ino: Ino, wish: Wish) -> Result<(), FsError> {
        let (home, wish) = (ino.rank(), travelling(wish)?);
        if wish.kind == UNLOCK {
            return self.unlock_elsewhere(ino, wish).await;
        }
        let (given_back, key) = (&self.state().giving_back, (ino, wish.owner));
        if given_back.is_held(&key) {
            self.server.peers().session_in_time(home).await?;
            drop(self.server.peers().hold_in_time(given_back, key).await?);
        }
        self.state().elsewhere.borrow_mut().held_by(ino, wish.owner);
        let number = self.server.peers().token().number;
        let done = self
            .server
            .call(home, peer::Lock { ino, wish, number })
            .await;
        let bytes = Bytes::from(&wish);
        let mut locks = self.state().elsewhere.borrow_mut();
        // Register it once more: if the owner died meanwhile, the home may have heard of its end too early.
        let held = locks.held_by(ino, wish.owner);
        match done {
            Ok(()) if !held.iter().any(|one| one.contains(&bytes)) => held.push(bytes),
            Err(FsError::Unreachable) if !held.iter().any(|one| one.overlaps(&bytes)) => {
                drop(locks);
                let unlock = LockWish {
                    kind: UNLOCK,
                    ..wish
                };
                drop(self.give_lock_back(ino, unlock, number));
            }
            _ => {}
        }
        done
    }

    /// Waits, as long as for any call, until the home has dropped a lock; the release continues if
    /// it takes longer.
    async fn unlock_elsewhere(&self, ino: Ino, wish: LockWish) -> Result<(), FsError> {
        let home = ino.rank();
        let has_asked = {
            let locks = self.state().elsewhere.borrow();
            let owners = locks.owners.get(&ino);
            owners.is_some_and(|owners| owners.contains_key(&wish.owner))
        };
        if !has_asked {
            return Ok(());
        }
        let given_back = self.give_lock_back(ino, wish, 0);
        self.server.peers().session_in_time(home).await?;
        self.server.peers().told_or_lost(home, given_back).await
    }

    /// Releases a lock at its home, without a time limit, and voids the wish of that number. Does nothing if too many
    /// such calls wait.
    fn give_lock_back(
        &self,
        ino: Ino,
        wish: LockWish,
        number: u64,
    ) -> oneshot::Receiver<Result<(), FsError>> {
        let bytes = Bytes::from(&wish);
        let mut locks = self.state().elsewhere.borrow_mut();
        let held = locks.owners.get_mut(&ino);
        if let Some(held) = held.and_then(|owners| owners.get_mut(&wish.owner)) {
            held.retain(|one| !bytes.contains(one));
        }
        drop(locks);
        let (sender, done) = oneshot::channel();
        if !self.server.peers().is_asked_enough(ino.rank()) {
            let (this, key, token) = (self.clone(), (ino, wish.owner), self.server.peers().token());
            // If no task has the turn, this one has it before the owner asks for anything else.
            self.state().giving_back.take_free(key, token);
            self.server.peers().spawn(async move {
                let _turn = this.state().giving_back.hold(key, token).await;
                let op = peer::Lock { ino, wish, number };
                // A home that was restarted has no locks.
                let told = this.server.surely_told(ino.rank(), op).await;
                let _ = sender.send(told.unwrap_or(Ok(())));
            });
        }
        done
    }

    pub(in crate::cluster) async fn lock_for(
        &self,
        from: Rank,
        op: &peer::Lock,
    ) -> Result<(), FsError> {
        let wish = arrived(from, &op.wish)?;
        let unlocks = wish.kind == UNLOCK;
        let request = (from, op.number);
        if unlocks && op.number > 0 {
            let until_ns =
                self.server.peers().now_ns() + TAKEN_BACK_TIMES * self.server.peers().longest();
            let mut locks = self.state().elsewhere.borrow_mut();
            locks.taken_back.insert(request, until_ns);
        }
        let is_taken_back = || {
            self.state()
                .elsewhere
                .borrow()
                .taken_back
                .contains_key(&request)
        };
        // This server may lose the asker while it tells others that the file is raw. The asker's
        // successor knows nothing of the lock and would never give it back.
        let is_void = || is_taken_back() || self.server.peers().check_session_of(from).is_err();
        self.lock_here(op.ino, unlocks, |locks| match !unlocks && is_void() {
            true => Err(FsError::Unreachable),
            false => locks.set_remote_lock(op.ino, &wish),
        })
        .await
    }

    /// Takes a lock of a file of this server. If another lock conflicts and other nodes have owners of locks of the
    /// file, asks these nodes for dead owners, and tries once more. From the first lock on the file is raw, so that the
    /// next owner of a lock sees everything written before it was given back.
    async fn lock_here(
        &self,
        ino: Ino,
        unlocks: bool,
        lock: impl Fn(&mut NodeLocks<'_>) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        if !unlocks {
            self.server.share_by_locks(ino).await?;
        }
        match self.on_node(&lock) {
            Err(FsError::WouldBlock) if self.ask_for_dead(ino).await => self.on_node(&lock),
            done => done,
        }
    }

    /// Asks the nodes with owners of locks of a file for the owners that are gone, and drops their locks. Returns true
    /// if there are such nodes: a conflicting lock may also have been given back meanwhile.
    async fn ask_for_dead(&self, ino: Ino) -> bool {
        let ranks = self.on_node(|locks| locks.lock_ranks(ino));
        for rank in &ranks {
            let asked = self
                .server
                .call(Rank(*rank), peer::DeadOwners { ino })
                .await;
            let owners = asked.unwrap_or_default();
            self.drop_locks(Rank(*rank), &peer::DropLocks { ino, owners });
        }
        !ranks.is_empty()
    }

    pub(in crate::cluster) fn dead_owners(&self, ino: Ino) -> Vec<LockOwner> {
        let locks = self.state().elsewhere.borrow();
        let owners = locks.owners.get(&ino).into_iter().flatten();
        let owners = owners.map(|(owner, _)| *owner);
        let mut dead: Vec<LockOwner> = self.on_node(|node| {
            owners
                .filter(|owner| !node.owner_lives(own(*owner)))
                .collect()
        });
        dead.extend(locks.dropping.get(&ino).into_iter().flatten());
        dead
    }

    pub(in crate::cluster) fn test_for(
        &self,
        from: Rank,
        op: &peer::TestLock,
    ) -> Result<Option<HeldLock>, FsError> {
        let wish = arrived(from, &op.wish)?;
        Ok(self.on_node(|locks| locks.lock_in_the_way(op.ino, &wish)))
    }

    pub(in crate::cluster) fn drop_locks(&self, from: Rank, op: &peer::DropLocks) {
        let gone: BTreeSet<LockOwner> = op.owners.iter().copied().collect();
        self.on_node(|locks| {
            locks.drop_remote_locks(
                |owner| matches!(owner, Owner::Remote(rank, o) if rank == from.0 && gone.contains(&o)),
            );
        });
    }

    /// Drops the locks of a lost server's owners.
    pub(in crate::cluster) fn drop_locks_of(&self, rank: Rank) {
        self.on_node(|locks| {
            locks.drop_remote_locks(|owner| matches!(owner, Owner::Remote(of, _) if of == rank.0));
        });
        let mut locks = self.state().elsewhere.borrow_mut();
        // The lost server does not know of any lock that it granted either.
        for (_, owners) in locks
            .owners
            .iter_mut()
            .filter(|(ino, _)| ino.rank() == rank)
        {
            owners.values_mut().for_each(Vec::clear);
        }
    }

    /// Tells the homes of locks which owners of this node are gone.
    pub(in crate::cluster) fn tell_dead_owners(&self) {
        let now_ns = self.server.peers().now_ns();
        let dead = {
            let mut locks = self.state().elsewhere.borrow_mut();
            self.on_node(|node| locks.bury(now_ns, |owner| node.owner_lives(own(owner))))
        };
        for (ino, owners) in dead {
            let this = self.clone();
            self.server.peers().spawn(async move {
                // Take the turns before another owner with the same number asks.
                let turn = |owner: &LockOwner| {
                    let key = (ino, *owner);
                    this.state()
                        .giving_back
                        .hold(key, this.server.peers().token())
                };
                let _turns = join_all(owners.iter().map(turn)).await;
                // A home that was restarted has no locks.
                let drop_locks = peer::DropLocks {
                    ino,
                    owners: owners.clone(),
                };
                let _ = this.server.surely(ino.rank(), drop_locks).await;
                let mut locks = this.state().elsewhere.borrow_mut();
                if let Some(dropping) = locks.dropping.get_mut(&ino) {
                    dropping.retain(|owner| !owners.contains(owner));
                    if dropping.is_empty() {
                        locks.dropping.remove(&ino);
                    }
                }
            });
        }
    }

    pub(in crate::cluster) fn has_locks_elsewhere(&self) -> bool {
        !self.state().elsewhere.borrow().owners.is_empty()
    }
}

fn travelling(wish: Wish) -> Result<LockWish, FsError> {
    Ok(LockWish {
        whole: wish.family == Family::Whole,
        owner: told(wish.owner).ok_or(FsError::Invalid)?,
        kind: wish.kind,
        start: wish.start,
        end: wish.end,
    })
}

/// A wish of another node, checked.
fn arrived(from: Rank, wish: &LockWish) -> Result<Wish, FsError> {
    if wish.kind > UNLOCK || wish.start >= wish.end {
        return Err(FsError::Malformed);
    }
    Ok(Wish {
        family: if wish.whole {
            Family::Whole
        } else {
            Family::Record
        },
        owner: Owner::Remote(from.0, wish.owner),
        kind: wish.kind,
        start: wish.start,
        end: wish.end,
    })
}
