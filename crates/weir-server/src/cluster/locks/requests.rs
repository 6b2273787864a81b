//! The operations on locks of this server's files: their owners, and the clients that they wake.

use std::collections::BTreeSet;

use weir_core::proto::{self, FsError, HeldLock};
use weir_core::types::{ClientId, Ino};

use crate::cluster::locks::table::{Family, LockTable, Owner, Wish, READ, UNLOCK, WRITE};

/// The owners of this node's locks, and the clients that wait for locks.
pub(in crate::cluster) trait LockOwners {
    /// True if an owner of this node lives; an owner of another node does until its server says
    /// that it is gone.
    fn lives(&self, owner: Owner) -> bool;
    /// The description `index` as the owner of a lock of a file, if the client has it open on that
    /// file.
    fn description(&self, from: ClientId, index: u32, ino: Ino) -> Option<Owner>;
    /// The process of a client.
    fn pid(&self, id: ClientId) -> Option<u32>;
    /// Fails if a file of this server is not there.
    fn check_file(&self, ino: Ino) -> Result<(), FsError>;
    /// Wakes clients that wait for a lock.
    fn wake(&self, clients: &BTreeSet<ClientId>);
}

/// The locks of this server's files, and the owners of this node.
pub(in crate::cluster) struct NodeLocks<'a> {
    table: &'a mut LockTable,
    owners: &'a dyn LockOwners,
}

impl<'a> NodeLocks<'a> {
    pub(in crate::cluster) fn new(
        table: &'a mut LockTable,
        owners: &'a dyn LockOwners,
    ) -> NodeLocks<'a> {
        NodeLocks { table, owners }
    }

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
        let owners = self.owners;
        let found = self.table.test(ino, wish, |owner| owners.lives(owner));
        found.map(|(owner, held)| HeldLock {
            pid: match owner {
                Owner::Client(id) => owners.pid(id).unwrap_or(0),
                Owner::Ofd { .. } | Owner::Remote(..) => 0,
            },
            ..held
        })
    }

    /// Sets a lock of another node's owner.
    pub(super) fn set_remote_lock(&mut self, ino: Ino, wish: &Wish) -> Result<(), FsError> {
        self.owners.check_file(ino)?;
        let done = self.set(ino, wish);
        self.owners.wake(&done?);
        Ok(())
    }

    /// The other nodes whose owners hold locks of a file.
    pub(super) fn lock_ranks(&self, ino: Ino) -> BTreeSet<u16> {
        self.table.ranks_of(ino)
    }

    /// Drops the locks of owners of other nodes that are gone.
    pub(super) fn drop_remote_locks(&mut self, gone: impl Fn(Owner) -> bool) {
        let woken = self.table.drop_dead(|owner| !gone(owner));
        self.owners.wake(&woken);
    }

    fn set_lock(
        &mut self,
        from: ClientId,
        ino: Ino,
        wish: &Wish,
        wait: bool,
    ) -> Result<(), FsError> {
        self.owners.check_file(ino)?;
        let mut done = self.set(ino, wish);
        if done == Err(FsError::WouldBlock) && wait {
            if let Err(deadlock) = self.table.wait(ino, from, wish) {
                done = Err(deadlock);
            }
        }
        self.owners.wake(&done?);
        Ok(())
    }

    /// Returns the clients that may now get the lock they waited for.
    fn set(&mut self, ino: Ino, wish: &Wish) -> Result<BTreeSet<ClientId>, FsError> {
        let owners = self.owners;
        self.table.set(ino, wish, |owner| owners.lives(owner))
    }

    /// The description `index` as an owner, if the caller has it open on `ino`.
    fn ofd_owner(&self, from: ClientId, index: u32, ino: Ino) -> Result<Owner, FsError> {
        let owner = self.owners.description(from, index, ino);
        owner.ok_or(FsError::Invalid)
    }

    fn record_owner(&self, from: ClientId, ofd: Option<u32>, ino: Ino) -> Result<Owner, FsError> {
        match ofd {
            Some(index) => self.ofd_owner(from, index, ino),
            None => Ok(Owner::Client(from)),
        }
    }

    pub(super) fn owner_lives(&self, owner: Owner) -> bool {
        self.owners.lives(owner)
    }

    /// Drops the locks of dead owners, and wakes the clients that waited for them.
    pub(in crate::cluster) fn drop_dead_locks(&mut self) {
        if self.table.is_empty() {
            return;
        }
        let owners = self.owners;
        let woken = self.table.drop_dead(|owner| owners.lives(owner));
        owners.wake(&woken);
    }
}
