//! Debts to other servers: links to remove, bytes to give back, removed files to erase, locks to
//! release.
//!
//! A debt is paid by a call that is seen through. If no session with the server can be begun, the
//! debt is kept, not as a message with a waiting task, but as the state to reach: the number of
//! links to remove from an inode, the size to which a file is to be erased, bytes that are free. So
//! a server that is lost for an hour costs memory for its files, however often programs try, and
//! one that is lost for good at most [`MOST`] entries. All debts are paid when a session begins.
//!
//! Invariants:
//! - A debt is either asked or kept, never both: no call for a kept debt is under way.
//! - An unlock is not kept, because a new session drops all locks of the one before. One bit notes that a
//!   session must begin.
//! - Debts beyond [`MOST`] are dropped, counted and logged: then that server counts links or bytes
//!   too many until the instance ends, never too few.
//! - At most [`MOST_ASKED`] calls to one server wait without a limit, apart from those that hold a name
//!   locked. Beyond that, a call that may fail fails (`ServerCalls::surely_or`), and a debt is kept.
//!
//! Left out: a journal of debts. A server that is killed forgets what it owed.

use std::collections::BTreeMap;

use futures_channel::oneshot;
use futures_util::future::{join_all, select};
use weir_core::proto::peer::{self, LogRange, PeerOperation};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::peers::PeerServers;

/// The most inodes and ranges of bytes kept for one server, some MB.
const MOST: usize = 1 << 17;
/// The most calls to one server that wait for as long as it cannot be reached.
pub(in crate::cluster) const MOST_ASKED: usize = 1024;
/// Debts paid at the same time.
const AT_A_TIME: usize = 64;
/// The most ranges that one message gives back.
pub(in crate::cluster) const RANGES: usize = 16_384;

/// An operation owed to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum Debt {
    /// A link to remove.
    Link(Ino),
    /// Bytes of the server's log that nothing refers to any more.
    Freed(Vec<LogRange>),
    /// The server's extents of a file that is gone, below a size.
    Erased(Ino, u64),
    /// A name to unlock.
    Unlock(peer::UnlockName),
    /// The permit for moving directories, to be given back.
    UnlockMoves(peer::UnlockMoves),
}

/// The debts to one server with which there is no session.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Account {
    links: BTreeMap<Ino, u32>,
    /// By slab and position; adjacent ranges are joined.
    freed: BTreeMap<(u32, u64), u64>,
    erased: BTreeMap<Ino, u64>,
    /// True if a session must begin, even without debts.
    pub(in crate::cluster) begin: bool,
    /// The number of debts dropped because of the bound.
    dropped: u64,
    /// The number of calls that wait.
    asked: usize,
    paying: bool,
}

impl Account {
    /// Returns true if a session is needed to pay.
    pub(super) fn is_open(&self) -> bool {
        self.begin || self.len() > 0
    }

    fn len(&self) -> usize {
        self.links.len() + self.freed.len() + self.erased.len()
    }

    /// Keeps a debt; returns the number of its parts that did not fit.
    fn keep(&mut self, debt: Debt, most: usize) -> u64 {
        let full = self.len() >= most;
        match debt {
            Debt::Link(ino) => match self.links.get_mut(&ino) {
                Some(count) => *count += 1,
                None if full => return 1,
                None => drop(self.links.insert(ino, 1)),
            },
            Debt::Erased(ino, to) => match self.erased.get_mut(&ino) {
                Some(known) => *known = to.max(*known),
                None if full => return 1,
                None => drop(self.erased.insert(ino, to)),
            },
            Debt::Freed(ranges) => {
                let kept = |range: LogRange| self.keep_freed(range, most);
                return ranges.into_iter().map(kept).sum();
            }
            Debt::Unlock(_) | Debt::UnlockMoves(_) => self.begin = true,
        }
        0
    }

    fn keep_freed(&mut self, range: LogRange, most: usize) -> u64 {
        let (mut begin, mut end) = (range.pos, range.pos + range.len);
        let before = self.freed.range(..(range.slab, begin)).next_back();
        if let Some(((slab, pos), len)) = before.map(|(at, len)| (*at, *len)) {
            if slab == range.slab && pos + len == begin {
                self.freed.remove(&(slab, pos));
                begin = pos;
            }
        }
        if let Some(len) = self.freed.remove(&(range.slab, end)) {
            end += len;
        }
        if self.len() >= most {
            return 1;
        }
        self.freed.insert((range.slab, begin), end - begin);
        0
    }

    /// Takes some debts out, links first, because a file ends after its names.
    fn take_debts(&mut self, rank: Rank, most: usize) -> Vec<Debt> {
        let mut debts = Vec::new();
        while debts.len() < most {
            let next = if let Some(mut entry) = self.links.first_entry() {
                let ino = *entry.key();
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                }
                Debt::Link(ino)
            } else if !self.freed.is_empty() {
                Debt::Freed(self.take_freed(rank))
            } else if let Some((ino, to)) = self.erased.pop_first() {
                Debt::Erased(ino, to)
            } else {
                break;
            };
            debts.push(next);
        }
        debts
    }

    fn take_freed(&mut self, rank: Rank) -> Vec<LogRange> {
        let next = std::iter::from_fn(|| self.freed.pop_first());
        let range = |((slab, pos), len)| LogRange {
            rank: rank.0,
            slab,
            pos,
            len,
        };
        next.take(RANGES).map(range).collect()
    }
}

/// Counts a call that waits for an unreachable server, until this is dropped.
pub(in crate::cluster) struct WaitingCall {
    peers: PeerServers,
    to: Rank,
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.peers.account(self.to, |account| account.asked -= 1);
    }
}

impl PeerServers {
    pub(super) fn asking(&self, to: Rank) -> WaitingCall {
        self.account(to, |account| account.asked += 1);
        WaitingCall {
            peers: self.clone(),
            to,
        }
    }

    /// Returns true if no more calls may wait for a server.
    pub(in crate::cluster) fn is_asked_enough(&self, to: Rank) -> bool {
        self.account(to, |account| account.asked >= MOST_ASKED)
    }

    /// The number of inodes and ranges owed to servers without a session, and the number of debts
    /// dropped.
    pub(super) fn debts(&self) -> (u64, u64) {
        let mut sum = (0, 0);
        for rank in self.ranks().filter(|rank| *rank != self.rank()) {
            let (len, dropped) = self.account(rank, |account| (account.len(), account.dropped));
            sum = (sum.0 + len as u64, sum.1 + dropped);
        }
        sum
    }

    /// Pays a debt, now or when the server can be reached; waits for that only as long as for any
    /// call.
    pub(in crate::cluster) async fn owe(&self, to: Rank, debt: Debt) {
        if to == self.rank() {
            let paid = self.server().pay_here(debt).await;
            return log_unpaid(to, paid);
        }
        let (sender, done) = oneshot::channel();
        let this = self.clone();
        self.spawn(async move {
            this.pay(to, debt).await;
            let _ = sender.send(());
        });
        if self.session_in_time(to).await.is_ok() {
            select(done, Box::pin(self.lost(to))).await;
        }
    }

    /// As [`PeerServers::owe`], in a task of its own.
    pub(in crate::cluster) fn owe_soon(&self, to: Rank, debt: Debt) {
        let peers = self.clone();
        self.spawn(async move { peers.owe(to, debt).await });
    }

    /// Pays a debt to another server, or keeps it.
    async fn pay(&self, to: Rank, debt: Debt) {
        let is_unlock = matches!(debt, Debt::Unlock(_) | Debt::UnlockMoves(_));
        // An unlock belongs to a session that continues, and the limit on requests bounds the
        // number of locks.
        if self.is_asked_enough(to) && !is_unlock {
            return self.keep(to, debt);
        }
        let asking = self.asking(to);
        let paid = match debt.clone() {
            Debt::Link(ino) => self.pay_by(to, link_taken(ino)).await.map(drop),
            Debt::Freed(ranges) => self.pay_by(to, peer::Freed { ranges }).await.map(drop),
            Debt::Unlock(op) => self.pay_by(to, op).await.map(drop),
            Debt::UnlockMoves(op) => self.pay_by(to, op).await.map(drop),
            Debt::Erased(ino, below) => {
                let erase = peer::Erase {
                    ino,
                    from: 0,
                    to: below,
                };
                match self.pay_by(to, erase).await {
                    Ok(Ok(freed)) => {
                        drop(asking);
                        return self.server().give_back(freed).await;
                    }
                    paid => paid.map(drop),
                }
            }
        };
        if paid.is_err() {
            self.keep(to, debt);
        }
    }

    /// Pays in a session. An error if no session can be begun, and nothing was asked.
    async fn pay_by<O>(&self, to: Rank, op: O) -> Result<Result<O::Reply, FsError>, FsError>
    where
        O: PeerOperation + 'static,
    {
        let request = peer::request(op);
        loop {
            let number = self.begin_session(to).await?;
            let done = match self.ask_within(to, number, &request, true).await {
                Ok(None) => continue,
                Ok(Some(answer)) => peer::reply::<O>(&answer.body),
                // The server was restarted after it had been asked: it may have acted.
                Err(error) => Err(error),
            };
            if let Err(error) = &done {
                tracing::debug!(to = to.0, op = O::NAME, %error, "a debt could not be paid");
            }
            return Ok(done);
        }
    }

    fn keep(&self, to: Rank, debt: Debt) {
        let dropped = self.account(to, |account| {
            let dropped = account.keep(debt, MOST);
            let first = account.dropped == 0;
            account.dropped += dropped;
            first && dropped > 0
        });
        if dropped {
            tracing::warn!(
                rank = to.0,
                most = MOST,
                "a server that cannot be reached is owed more than is remembered: should it come \
                 back, some space of removed files and overwritten bytes there is not free before \
                 the instance ends"
            );
        }
    }

    /// Pays the kept debts, in a session.
    pub(super) async fn pay_debts(&self, to: Rank) {
        if self.account(to, |account| std::mem::replace(&mut account.paying, true)) {
            return;
        }
        while self.session_now(to).is_some() && !self.is_asked_enough(to) {
            let debts = self.account(to, |account| {
                account.begin = false;
                account.take_debts(to, AT_A_TIME)
            });
            if debts.is_empty() {
                break;
            }
            join_all(debts.into_iter().map(|debt| self.pay(to, debt))).await;
        }
        self.account(to, |account| account.paying = false);
    }
}

pub(in crate::cluster) fn link_taken(ino: Ino) -> peer::Relink {
    peer::Relink { ino, add: false }
}

fn log_unpaid(to: Rank, paid: Result<(), FsError>) {
    if let Err(error) = paid {
        tracing::debug!(to = to.0, %error, "a debt could not be paid");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Rank = Rank(3);

    fn range(slab: u32, pos: u64, len: u64) -> LogRange {
        LogRange {
            rank: THERE.0,
            slab,
            pos,
            len,
        }
    }

    fn ino(number: u32) -> Ino {
        Ino::new(THERE, 0, number)
    }

    #[test]
    fn what_concerns_one_inode_is_one() {
        let mut account = Account::default();
        for to in [7, 9, 8] {
            assert_eq!(account.keep(Debt::Link(ino(1)), 10), 0);
            assert_eq!(account.keep(Debt::Erased(ino(2), to), 10), 0);
        }
        assert_eq!(account.len(), 2);
        let debts = account.take_debts(THERE, 64);
        let link = || Debt::Link(ino(1));
        let erased = Debt::Erased(ino(2), 9);
        assert_eq!(debts, [link(), link(), link(), erased]);
        assert!(!account.is_open());
    }

    #[test]
    fn bytes_that_are_neighbours_are_one() {
        let mut account = Account::default();
        let ranges = vec![range(1, 0, 10), range(1, 20, 10), range(2, 30, 5)];
        assert_eq!(account.keep(Debt::Freed(ranges), 3), 0);
        // No more ranges fit, but one that joins two others does.
        assert_eq!(account.keep(Debt::Freed(vec![range(1, 50, 1)]), 3), 1);
        assert_eq!(account.keep(Debt::Freed(vec![range(1, 10, 10)]), 3), 0);
        let freed = vec![range(1, 0, 30), range(2, 30, 5)];
        assert_eq!(account.take_debts(THERE, 64), [Debt::Freed(freed)]);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_what_is_known_always_fits() {
        let mut account = Account::default();
        assert_eq!(account.keep(Debt::Link(ino(1)), 1), 0);
        assert_eq!(account.keep(Debt::Link(ino(2)), 1), 1);
        assert_eq!(account.keep(Debt::Link(ino(1)), 1), 0);
        assert_eq!(account.keep(Debt::Erased(ino(1), 1), 1), 1);
        let unlock = peer::UnlockMoves { token: 1 };
        assert_eq!(account.keep(Debt::UnlockMoves(unlock), 1), 0);
        assert!(account.begin);
        assert_eq!(account.take_debts(THERE, 64).len(), 2);
        assert!(account.begin, "a session is still to begin");
    }
}
