//! The check that locks of files exclude one another: no program is granted a lock while another
//! program holds one that conflicts with it. A program holds a lock from the return of the call that
//! takes it to the call that gives it back.
//!
//! Not held against anybody: locks of a program whose node a fault may cut off or whose server it
//! may kill, and locks of files whose home it may. A home that is started again has none, and one
//! that was cut off drops those of the other side (docs/SEMANTICS.md).

use std::collections::BTreeSet;

use weir_core::types::{Ino, Rank};

/// Whose a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// An open file description's, of the whole file: flock(2).
    Whole,
    /// A process's: F_SETLK of fcntl(2).
    Process,
    /// An open file description's: F_OFD_SETLK.
    Description,
}

/// A lock that a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Whose.
    pub of: Of,
    /// True for a lock for writing, which excludes all others.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Byte behind the last.
    pub end: u64,
}

impl Lock {
    /// All bytes of a file, for writing.
    pub fn of_all(of: Of) -> Lock {
        Lock {
            of,
            exclusive: true,
            start: 0,
            end: u64::MAX,
        }
    }

    fn conflicts(&self, other: &Lock) -> bool {
        (self.of == Of::Whole) == (other.of == Of::Whole)
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
    /// The call's return.
    granted: u64,
    /// The call by which it was given back; `None`: its program was killed, no one knows when.
    given_back: Option<u64>,
    /// Its home, or its program's node, may have been troubled.
    doubtful: bool,
}

/// All locks.
#[derive(Debug, Default)]
pub struct Locks {
    troubled: BTreeSet<Rank>,
    held: Vec<Held>,
    asked: BTreeSet<Ino>,
}

/// Which of them.
#[derive(Clone, Copy, Debug)]
pub struct Granted(usize);

impl Locks {
    /// Where these servers are troubled at some time.
    pub fn new(troubled: BTreeSet<Rank>) -> Locks {
        Locks {
            troubled,
            ..Locks::default()
        }
    }

    /// A lock of a file is asked for.
    pub fn asked(&mut self, ino: Ino) {
        self.asked.insert(ino);
    }

    /// True if a program ever asked for a lock of the file.
    pub fn was_asked(&self, ino: Ino) -> bool {
        self.asked.contains(&ino)
    }

    /// A program at a node has it.
    pub fn granted(
        &mut self,
        (client, rank): (usize, Rank),
        (ino, lock): (Ino, Lock),
        granted: u64,
    ) -> Granted {
        let doubtful = [rank, ino.rank()].iter().any(|r| self.troubled.contains(r));
        self.held.push(Held {
            client,
            ino,
            lock,
            granted,
            given_back: None,
            doubtful,
        });
        Granted(self.held.len() - 1)
    }

    /// It begins to give it back.
    pub fn given_back(&mut self, granted: Granted, when: u64) {
        self.held[granted.0].given_back = Some(when);
    }

    /// Locks that were granted and should not have been.
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

    fn lock(of: Of, exclusive: bool, start: u64, end: u64) -> Lock {
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
        let one = locks.granted((0, Rank(0)), (FILE, first), 10);
        locks.given_back(one, 20);
        locks.granted((1, Rank(1)), (FILE, second), when);
        locks.faults().len()
    }

    #[test]
    fn two_programs_have_no_locks_that_conflict() {
        let all = Lock::of_all(Of::Whole);
        assert_eq!(faults(all, all, 15), 1);
        assert_eq!(faults(all, all, 21), 0, "given back");
        let shared = Lock {
            exclusive: false,
            ..all
        };
        assert_eq!(faults(shared, shared, 15), 0);
        assert_eq!(faults(shared, all, 15), 1);
        let some = lock(Of::Process, true, 5, 9);
        assert_eq!(faults(all, some, 15), 0, "they do not see each other");
        assert_eq!(faults(some, lock(Of::Description, true, 8, 10), 15), 1);
        assert_eq!(faults(some, lock(Of::Description, true, 9, 10), 15), 0);
    }

    #[test]
    fn who_was_killed_or_cut_off_may_have_lost_them() {
        let all = Lock::of_all(Of::Whole);
        let mut locks = Locks::default();
        locks.granted((0, Rank(0)), (FILE, all), 10);
        locks.granted((1, Rank(1)), (FILE, all), 15);
        assert_eq!(locks.faults().len(), 0);
        let mut locks = Locks::new([Rank(0)].into());
        let one = locks.granted((0, Rank(0)), (FILE, all), 10);
        locks.given_back(one, 20);
        locks.granted((1, Rank(1)), (FILE, all), 15);
        assert_eq!(locks.faults().len(), 0);
    }
}
