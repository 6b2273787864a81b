//! The check that locks of files exclude one another: no program is granted a lock while another
//! program holds one that conflicts with it. A program holds a lock from the return of the call that
//! takes it to the call that gives it back.
//!
//! Exempt are the locks of programs whose node a fault may cut off or whose server it may kill, and
//! locks of files whose home a fault may affect. A restarted home has no locks, and a home that was
//! cut off drops those of the other side (docs/SEMANTICS.md).

use std::collections::BTreeSet;

use weir_core::types::{Ino, Rank};

/// The kind of a lock's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwnerKind {
    /// An open file description, with a lock of the whole file: flock(2).
    Whole,
    /// A process: F_SETLK of fcntl(2).
    Process,
    /// An open file description: F_OFD_SETLK.
    Description,
}

/// A lock that a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The owner.
    pub of: LockOwnerKind,
    /// True for a lock for writing, which excludes all others.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
}

impl Lock {
    /// A write lock of all bytes of a file.
    pub fn of_all(of: LockOwnerKind) -> Lock {
        Lock {
            of,
            exclusive: true,
            start: 0,
            end: u64::MAX,
        }
    }

    fn conflicts(&self, other: &Lock) -> bool {
        (self.of == LockOwnerKind::Whole) == (other.of == LockOwnerKind::Whole)
            && (self.exclusive || other.exclusive)
            && self.start < other.end
            && other.start < self.end
    }
}

/// A lock that was granted.
#[derive(Clone, Copy, Debug)]
struct Held {
    client: usize,
    ino: Ino,
    lock: Lock,
    /// The event of the call's return.
    granted: u64,
    /// The event of the releasing call; `None`: the program was killed at an unknown time.
    given_back: Option<u64>,
    /// A fault may have affected the home or the program's node.
    doubtful: bool,
}

/// All granted locks.
#[derive(Debug, Default)]
pub struct Locks {
    troubled: BTreeSet<Rank>,
    held: Vec<Held>,
    asked: BTreeSet<Ino>,
}

/// The number of a granted lock.
#[derive(Clone, Copy, Debug)]
pub struct LockId(usize);

impl Locks {
    /// Creates a check for a run in which these servers are affected by faults.
    pub fn new(troubled: BTreeSet<Rank>) -> Locks {
        Locks {
            troubled,
            ..Locks::default()
        }
    }

    /// Records a request for a lock of a file.
    pub fn asked(&mut self, ino: Ino) {
        self.asked.insert(ino);
    }

    /// True if a program ever asked for a lock of the file.
    pub fn was_asked(&self, ino: Ino) -> bool {
        self.asked.contains(&ino)
    }

    /// Records a lock granted to a program at a node.
    pub fn granted(
        &mut self,
        client: usize,
        rank: Rank,
        ino: Ino,
        lock: Lock,
        granted: u64,
    ) -> LockId {
        let doubtful = [rank, ino.rank()].iter().any(|r| self.troubled.contains(r));
        self.held.push(Held {
            client,
            ino,
            lock,
            granted,
            given_back: None,
            doubtful,
        });
        LockId(self.held.len() - 1)
    }

    /// Records the start of a release.
    pub fn given_back(&mut self, granted: LockId, when: u64) {
        self.held[granted.0].given_back = Some(when);
    }

    /// The locks that were wrongly granted.
    pub fn faults(&self) -> Vec<String> {
        let sure: Vec<&Held> = self.held.iter().filter(|held| !held.doubtful).collect();
        let mut faults = Vec::new();
        for held in &sure {
            let Some(given_back) = held.given_back else {
                continue;
            };
            let meanwhile = |other: &&&Held| {
                other.client != held.client
                    && other.ino == held.ino
                    && other.lock.conflicts(&held.lock)
                    && (held.granted..given_back).contains(&other.granted)
            };
            let others = sure.iter().filter(meanwhile);
            faults.extend(others.map(|other| format!("{other:?} while another had {held:?}")));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn lock(of: LockOwnerKind, exclusive: bool, start: u64, end: u64) -> Lock {
        Lock {
            of,
            exclusive,
            start,
            end,
        }
    }

    /// Client 0 has `first` from 10 to 20; client 1 gets `second` at `when`.
    fn faults(first: Lock, second: Lock, when: u64) -> usize {
        let mut locks = Locks::default();
        let one = locks.granted(0, Rank(0), FILE, first, 10);
        locks.given_back(one, 20);
        locks.granted(1, Rank(1), FILE, second, when);
        locks.faults().len()
    }

    #[test]
    fn two_programs_have_no_locks_that_conflict() {
        let all = Lock::of_all(LockOwnerKind::Whole);
        assert_eq!(faults(all, all, 15), 1);
        assert_eq!(faults(all, all, 21), 0, "given back");
        let shared = Lock {
            exclusive: false,
            ..all
        };
        assert_eq!(faults(shared, shared, 15), 0);
        assert_eq!(faults(shared, all, 15), 1);
        let some = lock(LockOwnerKind::Process, true, 5, 9);
        assert_eq!(faults(all, some, 15), 0, "they do not see each other");
        assert_eq!(
            faults(some, lock(LockOwnerKind::Description, true, 8, 10), 15),
            1
        );
        assert_eq!(
            faults(some, lock(LockOwnerKind::Description, true, 9, 10), 15),
            0
        );
    }

    #[test]
    fn who_was_killed_or_cut_off_may_have_lost_them() {
        let all = Lock::of_all(LockOwnerKind::Whole);
        let mut locks = Locks::default();
        locks.granted(0, Rank(0), FILE, all, 10);
        locks.granted(1, Rank(1), FILE, all, 15);
        assert_eq!(locks.faults().len(), 0);
        let mut locks = Locks::new([Rank(0)].into());
        let one = locks.granted(0, Rank(0), FILE, all, 10);
        locks.given_back(one, 20);
        locks.granted(1, Rank(1), FILE, all, 15);
        assert_eq!(locks.faults().len(), 0);
    }
}
