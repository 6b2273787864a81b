//! The operations on locks: their owners, and the clients that they wake.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use weir_core::proto::{self, FsError, HeldLock};
use weir_core::types::{ClientId, Ino};

use crate::cluster::locks::table::{Family, Owner, Wish, READ, UNLOCK, WRITE};
use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform};

impl<P: Platform> Node<'_, P> {
    pub(super) fn lock_file(&mut self, from: ClientId, op: &proto::Flock) -> Result<(), FsError> {
        let wish = self.flock_wish(from, op)?;
        self.set_lock(from, op.ino, &wish, op.wait)
    }

    pub(super) fn flock_wish(&self, from: ClientId, op: &proto::Flock) -> Result<Wish, FsError> {
        let kind = match op.operation {
            1 => READ,
            2 => WRITE,
            8 => UNLOCK,
            _ => return Err(FsError::Invalid),
        };
        Ok(Wish {
            family: Family::Whole,
            owner: self.ofd_owner(from, op.ofd, op.ino)?,
            kind,
            start: 0,
            end: u64::MAX,
        })
    }

    pub(super) fn lock_record(
        &mut self,
        from: ClientId,
        op: &proto::RecordLock,
    ) -> Result<(), FsError> {
        let wish = self.record_wish(from, op)?;
        self.set_lock(from, op.ino, &wish, op.wait)
    }

    pub(super) fn record_wish(
        &self,
        from: ClientId,
        op: &proto::RecordLock,
    ) -> Result<Wish, FsError> {
        if op.kind > UNLOCK || op.start >= op.end {
            return Err(FsError::Invalid);
        }
        Ok(Wish {
            family: Family::Record,
            owner: self.record_owner(from, op.ofd, op.ino)?,
            kind: op.kind,
            start: op.start,
            end: op.end,
        })
    }

    pub(super) fn find_lock(
        &mut self,
        from: ClientId,
        op: &proto::TestLock,
    ) -> Result<Option<HeldLock>, FsError> {
        let wish = self.test_wish(from, op)?;
        Ok(self.lock_in_the_way(op.ino, &wish))
    }

    pub(super) fn test_wish(&self, from: ClientId, op: &proto::TestLock) -> Result<Wish, FsError> {
        if op.kind == UNLOCK {
            return Err(FsError::Invalid);
        }
        let lock = proto::RecordLock {
            ino: op.ino,
            ofd: op.ofd,
            kind: op.kind,
            start: op.start,
            end: op.end,
            wait: false,
        };
        self.record_wish(from, &lock)
    }

    /// The lock that prevents a wish.
    pub(super) fn lock_in_the_way(&mut self, ino: Ino, wish: &Wish) -> Option<HeldLock> {
        let mut locks = std::mem::take(&mut self.locks);
        let found = locks.test(ino, wish, |owner| self.owner_lives(owner));
        self.locks = locks;
        found.map(|(owner, held)| HeldLock {
            pid: match owner {
                Owner::Client(id) => self.client_pid(id).unwrap_or(0),
                Owner::Ofd { .. } | Owner::Remote(..) => 0,
            },
            ..held
        })
    }

    /// Sets a lock of another node's owner.
    pub(super) fn set_remote_lock(&mut self, ino: Ino, wish: &Wish) -> Result<(), FsError> {
        self.names.attr(ino).map_err(refusal)?;
        let mut locks = std::mem::take(&mut self.locks);
        let done = locks.set(ino, wish, |owner| self.owner_lives(owner));
        self.locks = locks;
        self.wake_waiters(&done?);
        Ok(())
    }

    /// The other nodes whose owners hold locks of a file.
    pub(super) fn lock_ranks(&self, ino: Ino) -> BTreeSet<u16> {
        self.locks.ranks_of(ino)
    }

    /// Drops the locks of owners of other nodes that are gone.
    pub(super) fn drop_remote_locks(&mut self, gone: impl Fn(Owner) -> bool) {
        let mut locks = std::mem::take(&mut self.locks);
        let woken = locks.drop_dead(|owner| !gone(owner));
        self.locks = locks;
        self.wake_waiters(&woken);
    }

    fn set_lock(
        &mut self,
        from: ClientId,
        ino: Ino,
        wish: &Wish,
        wait: bool,
    ) -> Result<(), FsError> {
        self.names.attr(ino).map_err(refusal)?;
        let mut locks = std::mem::take(&mut self.locks);
        let mut done = locks.set(ino, wish, |owner| self.owner_lives(owner));
        if done == Err(FsError::WouldBlock) && wait {
            if let Err(deadlock) = locks.wait(ino, from, wish) {
                done = Err(deadlock);
            }
        }
        self.locks = locks;
        self.wake_waiters(&done?);
        Ok(())
    }

    /// The description `index` as an owner, if the caller has it open on `ino`.
    fn ofd_owner(&self, from: ClientId, index: u32, ino: Ino) -> Result<Owner, FsError> {
        let ofd = self.used_ofd(from, index).ok_or(FsError::Invalid)?;
        if ofd.ino.load(Ordering::Acquire) != ino.0 {
            return Err(FsError::Invalid);
        }
        Ok(Owner::Ofd {
            index,
            generation: ofd.generation.load(Ordering::Acquire),
        })
    }

    fn record_owner(&self, from: ClientId, ofd: Option<u32>, ino: Ino) -> Result<Owner, FsError> {
        match ofd {
            Some(index) => self.ofd_owner(from, index, ino),
            None => Ok(Owner::Client(from)),
        }
    }

    pub(super) fn owner_lives(&self, owner: Owner) -> bool {
        match owner {
            Owner::Client(id) => self.clients.get(id).is_some(),
            Owner::Remote(..) => true,
            Owner::Ofd { index, generation } => {
                let ofd = &self.open.ofds[index as usize];
                ofd.ino.load(Ordering::Acquire) != 0
                    && ofd.generation.load(Ordering::Acquire) == generation
                    && (!self.is_shared(index) || self.platform.ofd_alive(index))
            }
        }
    }

    /// Drops the locks of dead owners, and wakes the clients that waited for them.
    pub(in crate::cluster) fn drop_dead_locks(&mut self) {
        if self.locks.is_empty() {
            return;
        }
        let mut locks = std::mem::take(&mut self.locks);
        let woken = locks.drop_dead(|owner| self.owner_lives(owner));
        self.locks = locks;
        self.wake_waiters(&woken);
    }
}
