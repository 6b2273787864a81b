//! Locks on files: BSD locks (flock) and record locks (fcntl), of one node.
//!
//! An owner is an open file description (flock, F_OFD_SETLK) or a client process (F_SETLK). A dead
//! description is found when another owner asks for its locks: the caller passes a test that an
//! owner lives. A lock that is not available is refused; a caller that waits is told by its
//! region's event when any lock of the file was given up, and asks again. So nothing is queued, and
//! a killed waiter leaves nothing but a word.
//!
//! Deadlocks are looked for among waiting processes only, as Linux does.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_core::proto::peer::LockOwner;
use weir_core::proto::{FsError, HeldLock};
use weir_core::types::{ClientId, Ino};

/// F_RDLCK of Linux.
pub const READ: u32 = 0;
/// F_WRLCK of Linux.
pub const WRITE: u32 = 1;
/// F_UNLCK of Linux.
pub const UNLOCK: u32 = 2;

/// The most ranges that one file's locks may have: ENOLCK beyond.
const MAX_RANGES: usize = 1 << 16;

/// The owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// An open file description, in one generation of its entry.
    Ofd {
        /// The number of the entry.
        index: u32,
        /// The generation of the entry.
        generation: u32,
    },
    /// A process.
    Client(ClientId),
    /// An owner of another node, whose server says when it is gone.
    Remote(u16, LockOwner),
}

/// The two kinds of locks, which do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// flock(2): the whole file.
    Whole,
    /// fcntl(2): ranges.
    Record,
}

/// A held range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HeldRange {
    family: Family,
    owner: Owner,
    kind: u32,
    start: u64,
    end: u64,
}

/// A request: `READ`, `WRITE` or `UNLOCK` of `[start, end)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// The kind of locks.
    pub family: Family,
    /// The owner that asks.
    pub owner: Owner,
    /// READ, WRITE or UNLOCK.
    pub kind: u32,
    /// First byte.
    pub start: u64,
    /// The end: one past the last byte.
    pub end: u64,
}

#[derive(Debug, Default)]
struct FileLocks {
    held: Vec<HeldRange>,
    waiters: BTreeSet<ClientId>,
}

/// All locks of a server.
#[derive(Debug, Default)]
pub struct LockTable {
    files: BTreeMap<Ino, FileLocks>,
    /// The wish that each process waits for, since it was last refused.
    waiting: HashMap<ClientId, (Ino, Wish)>,
}

impl Wish {
    fn conflicts(&self, held: &HeldRange) -> bool {
        self.family == held.family
            && self.owner != held.owner
            && (self.kind == WRITE || held.kind == WRITE)
            && self.start < held.end
            && held.start < self.end
    }
}

impl LockTable {
    /// Takes, changes or gives up a lock. Returns the clients that may now get the lock they waited
    /// for. A conflicting lock is dropped if `alive` is false for its owner.
    pub fn set(
        &mut self,
        ino: Ino,
        wish: &Wish,
        alive: impl Fn(Owner) -> bool,
    ) -> Result<BTreeSet<ClientId>, FsError> {
        if let Owner::Client(id) = wish.owner {
            self.waiting.remove(&id);
        }
        let Some(file) = self.files.get_mut(&ino) else {
            if wish.kind != UNLOCK {
                self.files.entry(ino).or_default().replace(wish);
            }
            return Ok(BTreeSet::new());
        };
        if wish.kind != UNLOCK {
            file.bury(wish, alive);
            if file.held.iter().any(|held| wish.conflicts(held)) {
                return Err(FsError::WouldBlock);
            }
            if file.held.len() >= MAX_RANGES {
                return Err(FsError::NoLocks);
            }
        }
        let less = file.replace(wish);
        let woken = if less {
            std::mem::take(&mut file.waiters)
        } else {
            BTreeSet::new()
        };
        self.tidy(ino);
        Ok(woken)
    }

    /// Notes that `client` waits for `wish`, which was refused; `Deadlock` if the holder waits for
    /// `client`.
    pub fn wait(&mut self, ino: Ino, client: ClientId, wish: &Wish) -> Result<(), FsError> {
        if wish.owner == Owner::Client(client) {
            if self.would_deadlock(ino, client, wish) {
                return Err(FsError::Deadlock);
            }
            self.waiting.insert(client, (ino, *wish));
        }
        self.files.entry(ino).or_default().waiters.insert(client);
        Ok(())
    }

    fn would_deadlock(&self, ino: Ino, client: ClientId, wish: &Wish) -> bool {
        let mut seen = BTreeSet::new();
        let mut todo = vec![(ino, *wish)];
        while let Some((ino, wish)) = todo.pop() {
            let held = self.files.get(&ino).map_or(&[][..], |file| &file.held);
            for holder in held.iter().filter(|held| wish.conflicts(held)) {
                let Owner::Client(id) = holder.owner else {
                    continue;
                };
                if id == client {
                    return true;
                }
                if seen.insert(id) {
                    todo.extend(self.waiting.get(&id).copied());
                }
            }
        }
        false
    }

    /// The first lock that would prevent `wish`.
    pub fn test(
        &mut self,
        ino: Ino,
        wish: &Wish,
        alive: impl Fn(Owner) -> bool,
    ) -> Option<(Owner, HeldLock)> {
        let file = self.files.get_mut(&ino)?;
        file.bury(wish, alive);
        let held = file
            .held
            .iter()
            .filter(|held| wish.conflicts(held))
            .min_by_key(|held| held.start)?;
        Some((
            held.owner,
            HeldLock {
                kind: held.kind,
                start: held.start,
                end: held.end,
                pid: 0,
            },
        ))
    }

    /// Forgets a client that is gone; [`LockTable::drop_dead`] returns the clients that waited for
    /// it.
    pub fn drop_client(&mut self, id: ClientId) {
        self.waiting.remove(&id);
        for file in self.files.values_mut() {
            file.waiters.remove(&id);
        }
    }

    /// Drops the locks of all dead owners; returns the clients that waited for them.
    pub fn drop_dead(&mut self, alive: impl Fn(Owner) -> bool) -> BTreeSet<ClientId> {
        let mut woken = BTreeSet::new();
        self.files.retain(|_, file| {
            let before = file.held.len();
            file.held.retain(|held| alive(held.owner));
            if file.held.len() < before {
                woken.append(&mut file.waiters);
            }
            !file.held.is_empty() || !file.waiters.is_empty()
        });
        woken
    }

    /// The other nodes whose owners hold locks of a file.
    pub fn ranks_of(&self, ino: Ino) -> BTreeSet<u16> {
        let held = self.files.get(&ino).into_iter().flat_map(|file| &file.held);
        held.filter_map(|held| match held.owner {
            Owner::Remote(rank, _) => Some(rank),
            _ => None,
        })
        .collect()
    }

    /// Forgets a file that is gone.
    pub fn forget_file(&mut self, ino: Ino) {
        self.files.remove(&ino);
    }

    /// Returns true if there are no locks.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn tidy(&mut self, ino: Ino) {
        let unused = |file: &FileLocks| file.held.is_empty() && file.waiters.is_empty();
        if self.files.get(&ino).is_some_and(unused) {
            self.files.remove(&ino);
        }
    }
}

impl FileLocks {
    /// Drops the locks of dead owners that conflict with `wish`.
    fn bury(&mut self, wish: &Wish, alive: impl Fn(Owner) -> bool) {
        self.held
            .retain(|held| !wish.conflicts(held) || alive(held.owner));
    }

    /// Applies the wish to the owner's part of the range. Returns true if less is locked than
    /// before, or less strictly.
    fn replace(&mut self, wish: &Wish) -> bool {
        let mut less = false;
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        let mut new = (wish.start, wish.end);
        for held in self.held.drain(..) {
            let own = held.family == wish.family && held.owner == wish.owner;
            let touches = held.start <= wish.end && wish.start <= held.end;
            if !own || !touches {
                kept.push(held);
            } else if held.kind == wish.kind {
                new = (new.0.min(held.start), new.1.max(held.end));
            } else {
                less |= wish.kind != WRITE && held.start < wish.end && wish.start < held.end;
                for (start, end) in [
                    (held.start, held.end.min(wish.start)),
                    (held.start.max(wish.end), held.end),
                ] {
                    if start < end {
                        kept.push(HeldRange { start, end, ..held });
                    }
                }
            }
        }
        if wish.kind != UNLOCK {
            kept.push(HeldRange {
                family: wish.family,
                owner: wish.owner,
                kind: wish.kind,
                start: new.0,
                end: new.1,
            });
        }
        self.held = kept;
        less
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn wish(client: u32, kind: u32, start: u64, end: u64) -> Wish {
        Wish {
            family: Family::Record,
            owner: Owner::Client(ClientId(client)),
            kind,
            start,
            end,
        }
    }

    fn set(table: &mut LockTable, wish: Wish) -> Result<Vec<u32>, FsError> {
        let woken = table.set(INO, &wish, |_| true)?;
        Ok(woken.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut table = LockTable::default();
        assert_eq!(set(&mut table, wish(1, READ, 0, 10)), Ok(vec![]));
        assert_eq!(set(&mut table, wish(2, READ, 5, 15)), Ok(vec![]));
        assert_eq!(
            set(&mut table, wish(2, WRITE, 5, 15)),
            Err(FsError::WouldBlock)
        );
        assert_eq!(set(&mut table, wish(2, WRITE, 10, 15)), Ok(vec![]));
        assert_eq!(
            set(&mut table, wish(1, READ, 12, 13)),
            Err(FsError::WouldBlock)
        );
        assert_eq!(set(&mut table, wish(2, UNLOCK, 0, u64::MAX)), Ok(vec![]));
        assert_eq!(set(&mut table, wish(1, UNLOCK, 0, u64::MAX)), Ok(vec![]));
        assert!(table.is_empty());
    }

    #[test]
    fn unlocking_the_middle_leaves_two_locks_and_wakes() {
        let mut table = LockTable::default();
        set(&mut table, wish(1, WRITE, 0, 30)).unwrap();
        assert_eq!(
            set(&mut table, wish(2, WRITE, 10, 20)),
            Err(FsError::WouldBlock)
        );
        table
            .wait(INO, ClientId(2), &wish(2, WRITE, 10, 20))
            .unwrap();
        assert_eq!(set(&mut table, wish(1, UNLOCK, 10, 20)), Ok(vec![2]));
        assert_eq!(set(&mut table, wish(2, WRITE, 10, 20)), Ok(vec![]));
        assert_eq!(
            set(&mut table, wish(2, WRITE, 9, 10)),
            Err(FsError::WouldBlock)
        );
        assert_eq!(
            set(&mut table, wish(2, WRITE, 20, 21)),
            Err(FsError::WouldBlock)
        );
        let found = table
            .test(INO, &wish(3, READ, 0, u64::MAX), |_| true)
            .unwrap();
        assert_eq!((found.1.start, found.1.end), (0, 10));
    }

    #[test]
    fn two_that_wait_for_each_other_are_told() {
        let mut table = LockTable::default();
        set(&mut table, wish(1, WRITE, 0, 1)).unwrap();
        set(&mut table, wish(2, WRITE, 1, 2)).unwrap();
        assert!(set(&mut table, wish(1, WRITE, 1, 2)).is_err());
        table.wait(INO, ClientId(1), &wish(1, WRITE, 1, 2)).unwrap();
        assert!(set(&mut table, wish(2, WRITE, 0, 1)).is_err());
        let refused = table.wait(INO, ClientId(2), &wish(2, WRITE, 0, 1));
        assert_eq!(refused, Err(FsError::Deadlock));
    }

    #[test]
    fn the_dead_hold_nothing() {
        let mut table = LockTable::default();
        let flock = |index, kind| Wish {
            family: Family::Whole,
            owner: Owner::Ofd {
                index,
                generation: 0,
            },
            kind,
            start: 0,
            end: u64::MAX,
        };
        table.set(INO, &flock(1, WRITE), |_| true).unwrap();
        set(&mut table, wish(1, WRITE, 0, 1)).expect("the families do not see each other");
        let blocked = table.set(INO, &flock(2, READ), |_| true);
        assert_eq!(blocked, Err(FsError::WouldBlock));
        table.wait(INO, ClientId(5), &flock(2, READ)).unwrap();
        let dead = Owner::Ofd {
            index: 1,
            generation: 0,
        };
        assert_eq!(
            table.drop_dead(|owner| owner != dead),
            BTreeSet::from([ClientId(5)])
        );
        assert_eq!(
            table.set(INO, &flock(2, READ), |_| true),
            Ok(BTreeSet::new())
        );
    }
}
