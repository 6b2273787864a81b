//! Locks of files across nodes: all of a file's are at its home.
//!
//! A node tells the home which of its processes or descriptions takes a lock, remembers that,
//! and tells it when that one is no more. Whoever waits asks again several times a second: the
//! home wakes only those of its own node. A wait in a circle over nodes is not found out
//! (fcntl(2) allows that: EDEADLK is for circles that are detected).

use std::collections::{BTreeMap, BTreeSet};

use weir_core::proto::peer::{self, LockOwner, LockWish};
use weir_core::proto::{self, Caller, FsError, HeldLock};
use weir_core::types::{ClientId, Ino, Rank};

use super::Cluster;
use crate::node::{Family, Node, Owner, Platform, Wish, UNLOCK};

/// Owners of this node that have locks at other homes, by file.
#[derive(Debug, Default)]
pub struct LocksElsewhere {
    owners: BTreeMap<Ino, BTreeSet<LockOwner>>,
}

/// How the owner is known to other nodes; `None`: it is of another one itself.
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

impl<P: Platform> Cluster<P> {
    pub(super) async fn flock(&self, from: Caller, op: proto::Flock) -> Result<(), FsError> {
        let ino = self.global(op.ino);
        if ino.rank() == self.rank() {
            let wish = self.node(|node| node.flock_wish(from, &op))?;
            let unlocks = wish.kind == UNLOCK;
            return self
                .lock_here(ino, unlocks, |node| node.lock_file(from, &op))
                .await;
        }
        let wish = self.node(|node| node.flock_wish(from, &op))?;
        self.lock_elsewhere(ino, wish).await
    }

    pub(super) async fn record_lock(
        &self,
        from: Caller,
        op: proto::RecordLock,
    ) -> Result<(), FsError> {
        let ino = self.global(op.ino);
        if ino.rank() == self.rank() {
            return self
                .lock_here(ino, op.kind == UNLOCK, |node| node.lock_record(from, &op))
                .await;
        }
        let wish = self.node(|node| node.record_wish(from, &op))?;
        self.lock_elsewhere(ino, wish).await
    }

    pub(super) async fn test_lock(
        &self,
        from: Caller,
        op: proto::TestLock,
    ) -> Result<Option<HeldLock>, FsError> {
        let ino = self.global(op.ino);
        if ino.rank() == self.rank() {
            return self.node(|node| node.find_lock(from, &op));
        }
        let wish = self.node(|node| node.test_wish(from, &op))?;
        let wish = travelling(wish)?;
        self.call(ino.rank(), peer::TestLock { ino, wish }).await
    }

    async fn lock_elsewhere(&self, ino: Ino, wish: Wish) -> Result<(), FsError> {
        let wish = travelling(wish)?;
        let note = || {
            if wish.kind != UNLOCK {
                let mut locks = self.inner.locks.borrow_mut();
                locks.owners.entry(ino).or_default().insert(wish.owner);
            }
        };
        note();
        let done = self.call(ino.rank(), peer::Lock { ino, wish }).await;
        // Again: if the owner died meanwhile, its end may have been told too early.
        note();
        done
    }

    pub(super) async fn lock_for(&self, from: Rank, op: &peer::Lock) -> Result<(), FsError> {
        let wish = arrived(from, &op.wish)?;
        let unlocks = wish.kind == UNLOCK;
        self.lock_here(op.ino, unlocks, |node| node.set_remote_lock(op.ino, &wish))
            .await
    }

    /// Takes a lock of a file of this server; if another is in its way, once more when its
    /// owner turns out to be no more. From the first lock on the file is raw, so that what was
    /// written before a lock was given back is seen by whoever takes it next.
    async fn lock_here(
        &self,
        ino: Ino,
        unlocks: bool,
        lock: impl Fn(&mut Node<'static, P>) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        if !unlocks {
            self.share_by_locks(ino).await?;
        }
        match self.node(&lock) {
            Err(FsError::WouldBlock) if self.ask_for_dead(ino).await => self.node(&lock),
            done => done,
        }
    }

    /// Asks the nodes whose owners hold locks of a file which of them are no more, and drops
    /// theirs; whether there were any.
    async fn ask_for_dead(&self, ino: Ino) -> bool {
        let mut any = false;
        for rank in self.node(|node| node.lock_ranks(ino)) {
            let asked = self.call(Rank(rank), peer::DeadOwners { ino }).await;
            let owners = asked.unwrap_or_default();
            any |= !owners.is_empty();
            self.drop_locks(Rank(rank), &peer::DropLocks { ino, owners });
        }
        any
    }

    pub(super) fn dead_owners(&self, ino: Ino) -> Vec<LockOwner> {
        let locks = self.inner.locks.borrow();
        let node = self.inner.node.borrow();
        let owners = locks.owners.get(&ino).into_iter().flatten().copied();
        owners.filter(|o| !node.owner_lives(own(*o))).collect()
    }

    pub(super) fn test_for(
        &self,
        from: Rank,
        op: &peer::TestLock,
    ) -> Result<Option<HeldLock>, FsError> {
        let wish = arrived(from, &op.wish)?;
        Ok(self.node(|node| node.lock_in_the_way(op.ino, &wish)))
    }

    pub(super) fn drop_locks(&self, from: Rank, op: &peer::DropLocks) {
        let gone: BTreeSet<LockOwner> = op.owners.iter().copied().collect();
        self.node(|node| {
            node.drop_remote_locks(
                |owner| matches!(owner, Owner::Remote(rank, o) if rank == from.0 && gone.contains(&o)),
            );
        });
    }

    /// A server is lost, and with it whoever had locks there.
    pub(super) fn drop_locks_of(&self, rank: Rank) {
        self.node(|node| {
            node.drop_remote_locks(|owner| matches!(owner, Owner::Remote(of, _) if of == rank.0));
        });
    }

    /// Tells the homes of locks which owners of this node are no more.
    pub(super) fn tell_dead_owners(&self) {
        let mut dead: Vec<(Ino, Vec<LockOwner>)> = Vec::new();
        {
            let mut locks = self.inner.locks.borrow_mut();
            let node = self.inner.node.borrow();
            locks.owners.retain(|ino, owners| {
                let gone: Vec<_> = owners
                    .iter()
                    .copied()
                    .filter(|owner| !node.owner_lives(own(*owner)))
                    .collect();
                owners.retain(|owner| !gone.contains(owner));
                if !gone.is_empty() {
                    dead.push((*ino, gone));
                }
                !owners.is_empty()
            });
        }
        for (ino, owners) in dead {
            let this = self.clone();
            self.spawn(async move {
                // A home that is lost has lost its locks.
                let _ = this.call(ino.rank(), peer::DropLocks { ino, owners }).await;
            });
        }
    }

    pub(super) fn has_locks_elsewhere(&self) -> bool {
        !self.inner.locks.borrow().owners.is_empty()
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
