//! Locks by key. Tasks wait for a lock in the order in which they came.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use futures_channel::oneshot;
use weir_core::proto::FsError;
use weir_core::types::Rank;

/// The holder of a lock: the number is unique at its rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    /// The server.
    pub rank: Rank,
    /// The number of the lock at that server.
    pub number: u64,
}

/// Locks by key. A key whose lock is free takes no memory.
#[derive(Debug)]
pub struct Keyed<K> {
    held: RefCell<HashMap<K, KeyHolder>>,
}

#[derive(Debug)]
struct KeyHolder {
    by: Token,
    /// The holder that gets it back from `by`.
    lent_by: Option<Token>,
    /// True if nobody knows how long it stays held: no task waits for it.
    stuck: bool,
    waiting: VecDeque<(Token, oneshot::Sender<()>)>,
}

impl KeyHolder {
    fn by(token: Token) -> KeyHolder {
        KeyHolder {
            by: token,
            lent_by: None,
            stuck: false,
            waiting: VecDeque::new(),
        }
    }
}

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Keyed {
            held: RefCell::default(),
        }
    }
}

/// Unlocks when dropped.
#[derive(Debug)]
pub struct Guard<'a, K: Hash + Ord + Clone> {
    keyed: &'a Keyed<K>,
    key: K,
    token: Token,
}

impl<K: Hash + Ord + Clone> Drop for Guard<'_, K> {
    fn drop(&mut self) {
        self.keyed.unlock(&self.key, self.token);
    }
}

impl<K: Hash + Ord + Clone> Keyed<K> {
    /// Takes the lock. The guard holds it.
    pub async fn hold(&self, key: K, token: Token) -> Guard<'_, K> {
        self.lock(key.clone(), token).await;
        Guard {
            keyed: self,
            key,
            token,
        }
    }

    /// Takes the lock as [`Keyed::hold`], unless it is stuck.
    pub async fn try_hold(&self, key: K, token: Token) -> Result<Guard<'_, K>, FsError> {
        if !self.lock(key.clone(), token).await {
            return Err(FsError::Unreachable);
        }
        Ok(Guard {
            keyed: self,
            key,
            token,
        })
    }

    /// Marks a held lock as stuck: no task waits for it any more.
    pub fn stick(&self, key: &K) {
        if let Some(lock) = self.held.borrow_mut().get_mut(key) {
            lock.stuck = true;
            lock.waiting.clear();
        }
    }

    /// Takes the lock, until [`Keyed::unlock`]; at once if `token` has it. Returns false if the
    /// lock is stuck, or if the server of the token is gone.
    pub async fn lock(&self, key: K, token: Token) -> bool {
        let turn = {
            let mut held = self.held.borrow_mut();
            match held.get_mut(&key) {
                None => {
                    held.insert(key, KeyHolder::by(token));
                    return true;
                }
                Some(held) if held.by == token => return true,
                Some(held) if held.stuck => return false,
                Some(held) => {
                    let (sender, turn) = oneshot::channel();
                    held.waiting.push_back((token, sender));
                    turn
                }
            }
        };
        turn.await.is_ok()
    }

    /// Takes a free lock without waiting, for a task that soon asks for it with the same token.
    /// Returns false if the lock is held.
    pub fn take_free(&self, key: K, token: Token) -> bool {
        let mut held = self.held.borrow_mut();
        let free = !held.contains_key(&key);
        if free {
            held.insert(key, KeyHolder::by(token));
        }
        free
    }

    /// Waits until the lock is free.
    pub async fn free(&self, key: K, token: Token) {
        if self.held.borrow().contains_key(&key) {
            drop(self.hold(key, token).await);
        }
    }

    /// The first held key of those that `some` selects.
    pub fn first_held(&self, some: impl Fn(&K) -> bool) -> Option<K> {
        let held = self.held.borrow();
        held.keys().filter(|key| some(key)).min().cloned()
    }

    /// Returns true if the lock is held.
    pub fn is_held(&self, key: &K) -> bool {
        self.held.borrow().contains_key(key)
    }

    /// Returns true if `token` has the lock.
    pub fn has(&self, key: &K, token: Token) -> bool {
        let held = self.held.borrow();
        held.get(key).is_some_and(|held| held.by == token)
    }

    /// Gives `to` the lock that `from` has, until [`Keyed::give_back`], whatever becomes of `from`.
    /// Returns false if `from` does not have it.
    pub fn lend(&self, key: &K, from: Token, to: Token) -> bool {
        let mut held = self.held.borrow_mut();
        let Some(lock) = held.get_mut(key).filter(|lock| lock.by == from) else {
            return false;
        };
        (lock.by, lock.lent_by) = (to, Some(from));
        true
    }

    /// Returns true if `to` has a lent lock whose lender has neither unlocked nor lost it.
    pub fn is_lent(&self, key: &K, to: Token) -> bool {
        let held = self.held.borrow();
        held.get(key)
            .is_some_and(|lock| lock.by == to && lock.lent_by.is_some())
    }

    /// Gives a lent lock back to its lender, or to the next task that waits if the lender unlocked
    /// it meanwhile.
    pub fn give_back(&self, key: &K, to: Token) {
        if let Some(lock) = self.held.borrow_mut().get_mut(key) {
            if let Some(from) = lock.lent_by.take().filter(|_| lock.by == to) {
                lock.by = from;
                return;
            }
        }
        self.unlock(key, to);
    }

    /// Gives the lock to the next task that waits. Returns false if `token` did not have it; then
    /// `token` does not wait for it any more either.
    pub fn unlock(&self, key: &K, token: Token) -> bool {
        if !self.has(key, token) {
            if let Some(lock) = self.held.borrow_mut().get_mut(key) {
                lock.waiting.retain(|(waits, _)| *waits != token);
                lock.lent_by.take_if(|lender| *lender == token);
            }
            return false;
        }
        self.pass_on(key);
        true
    }

    fn pass_on(&self, key: &K) {
        let mut held = self.held.borrow_mut();
        let Some(lock) = held.get_mut(key) else {
            return;
        };
        while let Some((token, sender)) = lock.waiting.pop_front() {
            (lock.by, lock.lent_by, lock.stuck) = (token, None, false);
            // Skip a task that no longer waits.
            if sender.send(()).is_ok() {
                return;
            }
        }
        held.remove(key);
    }

    /// Frees the locks of a server that is gone.
    pub fn drop_rank(&self, rank: Rank) {
        let mut keys: Vec<K> = {
            let mut held = self.held.borrow_mut();
            for lock in held.values_mut() {
                lock.waiting.retain(|(token, _)| token.rank != rank);
                lock.lent_by.take_if(|lender| lender.rank == rank);
            }
            let its = held.iter().filter(|(_, lock)| lock.by.rank == rank);
            its.map(|(key, _)| key.clone()).collect()
        };
        // Sort, because the table's order varies: a simulated run must always be the same.
        keys.sort();
        for key in keys {
            self.pass_on(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_executor::LocalPool;
    use futures_util::task::LocalSpawnExt;
    use std::rc::Rc;

    fn token(rank: u16, number: u64) -> Token {
        Token {
            rank: Rank(rank),
            number,
        }
    }

    #[test]
    fn locks_pass_on_in_order_and_past_the_dead() {
        let mut pool = LocalPool::new();
        let keyed = Rc::new(Keyed::<u8>::default());
        let got = Rc::new(RefCell::new(Vec::new()));
        for (rank, number) in [(0, 1), (1, 1), (2, 1), (1, 2)] {
            let (keyed, got) = (Rc::clone(&keyed), Rc::clone(&got));
            let task = async move {
                keyed.lock(7, token(rank, number)).await;
                if keyed.has(&7, token(rank, number)) {
                    got.borrow_mut().push((rank, number));
                }
            };
            pool.spawner().spawn_local(task).unwrap();
        }
        pool.run_until_stalled();
        assert_eq!(*got.borrow(), [(0, 1)]);
        assert!(!keyed.unlock(&7, token(1, 1)), "not its lock");
        keyed.drop_rank(Rank(1));
        assert!(keyed.unlock(&7, token(0, 1)));
        pool.run_until_stalled();
        assert_eq!(*got.borrow(), [(0, 1), (2, 1)]);
        keyed.drop_rank(Rank(2));
        assert!(keyed.held.borrow().is_empty());
    }

    #[test]
    fn a_lent_lock_outlives_who_lent_it() {
        let keyed = Keyed::<u8>::default();
        let (leader, own) = (token(1, 1), token(0, 9));
        let lock = || futures_executor::block_on(keyed.lock(7, leader));
        assert!(lock() && keyed.lend(&7, leader, own));
        assert!(keyed.is_lent(&7, own));
        keyed.give_back(&7, own);
        assert!(keyed.has(&7, leader), "given back");
        for unlocked in [true, false] {
            assert!(lock() && keyed.lend(&7, leader, own));
            match unlocked {
                true => assert!(!keyed.unlock(&7, leader), "it is lent"),
                false => keyed.drop_rank(Rank(1)),
            }
            assert!(keyed.has(&7, own) && !keyed.is_lent(&7, own));
            keyed.give_back(&7, own);
            assert!(!keyed.is_held(&7));
        }
    }
}
