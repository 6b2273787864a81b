//! Telling many servers the same: recalls, truncations, lost names, laminations.
//!
//! A few servers are told one by one. A longer list is cut into shares
//! ([`weir_core::placement::tree`]), and the first server of each share tells the rest of it in the
//! same way. So no server sends more than a few messages, and the time grows with the logarithm of
//! the number of servers. A server replies when all servers below it have replied.
//!
//! If the first server of a share is not reached, its parent takes over the rest. The reply names
//! the servers that were not reached; the root then tries them itself, since a server that its
//! parent cannot reach may have its lease from the root and continue to believe it. So a server may
//! be told twice, and every message is such that this does no harm; for truncations see
//! [`crate::cluster::files::stand_ins`]. The whole ends, because each level waits no longer than
//! for a server that does not answer.

use futures_util::future::{join, join_all};
use weir_core::placement::tree::shares;
use weir_core::proto::peer::{self, News, Told};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::Cluster;
use crate::node::Platform;

impl<P: Platform> Cluster<P> {
    /// Sets the number of servers that this one tells itself; for tests with few servers.
    pub fn set_fan_out(&self, servers: u32) {
        self.inner.peers.fan_out.set(servers);
    }

    /// Tells `ranks`, which do not include this server; returns the answers, and the servers that
    /// did not answer.
    pub(in crate::cluster) async fn tell(&self, ranks: &[Rank], news: &News) -> Told {
        self.in_time_to_tell(self.tell_all(ranks, news)).await
    }

    async fn tell_all(&self, ranks: &[Rank], news: &News) -> Told {
        let (mut told, tried) = self.spread(ranks.to_vec(), news).await;
        let others = std::mem::take(&mut told.lost);
        let again = others.iter().map(|rank| self.tell_one(*rank, news, &[]));
        for (rank, answer) in others.iter().zip(join_all(again).await) {
            take_in(&mut told, *rank, answer);
        }
        told.lost.extend(tried);
        told
    }

    /// Passes on a message of another server, and does what it says.
    pub(super) async fn relay(&self, op: peer::Relay) -> Result<Told, FsError> {
        if op.below.iter().any(|rank| rank.0 >= self.inner.servers) {
            return Err(FsError::Malformed);
        }
        let spread = self.in_time_to_tell(self.spread(op.below, &op.news));
        let (own, (mut told, tried)) = join(self.hear(&op.news), spread).await;
        told.lost.extend(tried);
        take_in(&mut told, self.rank(), own);
        Ok(told)
    }

    /// Tells `ranks` down a tree. Returns the answer, and the servers that this server itself did
    /// not reach.
    async fn spread(&self, ranks: Vec<Rank>, news: &News) -> (Told, Vec<Rank>) {
        let (mut told, mut tried) = (Told::default(), Vec::new());
        let mut lists = vec![ranks];
        while !lists.is_empty() {
            let all = lists.iter();
            let cut = all.flat_map(|list| shares(list, self.inner.peers.fan_out.get()));
            let branches: Vec<(Rank, &[Rank])> = cut
                .filter_map(|share| share.split_first().map(|(first, rest)| (*first, rest)))
                .collect();
            let asked = branches
                .iter()
                .map(|(first, rest)| self.tell_one(*first, news, rest));
            let mut orphans = Vec::new();
            for ((first, rest), answer) in branches.iter().zip(join_all(asked).await) {
                if answer == Err(FsError::Unreachable) {
                    tried.push(*first);
                    orphans.push(rest.to_vec());
                } else {
                    take_in(&mut told, *first, answer);
                }
            }
            orphans.retain(|rest| !rest.is_empty());
            lists = orphans;
        }
        (told, tried)
    }

    async fn tell_one(&self, to: Rank, news: &News, below: &[Rank]) -> Result<Told, FsError> {
        if !below.is_empty() {
            let relay = peer::Relay {
                news: news.clone(),
                below: below.to_vec(),
            };
            return self.call(to, relay).await;
        }
        let done = match news.clone() {
            News::Recall(op) => self.call(to, op).await,
            News::Mark(op) => self.call(to, op).await,
            News::Cut(op) => {
                let end = self.call(to, op).await?;
                return Ok(Told {
                    end,
                    ..Told::default()
                });
            }
            News::Flush(op) => self.call(to, op).await,
            News::Revoke(op) => self.call(to, op).await,
            News::Laminated(op) => self.call(to, op).await,
            News::Forget(op) => self.call(to, op).await,
            News::DropEntry(op) => self.call(to, op).await,
            News::Seal(op) => return Ok(told_writers(self.call(to, op).await?)),
            News::Writers(op) => return Ok(told_writers(self.call(to, op).await?)),
        };
        done.map(|()| Told::default())
    }

    /// Does what a message says.
    async fn hear(&self, news: &News) -> Result<Told, FsError> {
        let mut told = Told::default();
        match news {
            News::Recall(op) => self.recall_here(op.ino),
            News::Mark(op) => self.mark_here(op).await?,
            News::Cut(op) => told.end = self.cut_here(op).await?,
            News::Flush(op) => self.flush_for_all(op).await?,
            News::Revoke(op) => self.revoke_here(op.ino).await?,
            News::Laminated(op) => self.believe(op)?,
            News::Forget(op) => self.forget_here(op.ino),
            News::DropEntry(op) => self.drop_entry(&(op.dir, op.name.clone())),
            News::Seal(op) => told.writers = self.seal_here(op.ino)?,
            News::Writers(op) => told.writers = self.writers_here(op.ino),
        }
        Ok(told)
    }
}

fn told_writers(writers: u32) -> Told {
    Told {
        writers,
        ..Told::default()
    }
}

/// Adds the answer of `rank` and the servers below it.
fn take_in(all: &mut Told, rank: Rank, answer: Result<Told, FsError>) {
    match answer {
        Ok(told) => {
            all.writers = all.writers.saturating_add(told.writers);
            all.end = all.end.max(told.end);
            all.failed = all.failed.or(told.failed);
            all.lost.extend(told.lost);
        }
        Err(FsError::Unreachable) => all.lost.push(rank),
        Err(error) => all.failed = all.failed.or(Some(error)),
    }
}

/// The answer, if all servers heard and none failed.
pub(in crate::cluster) fn all_of(told: Told) -> Result<Told, FsError> {
    match told.failed {
        Some(error) => Err(error),
        None if told.lost.is_empty() => Ok(told),
        None => Err(FsError::Unreachable),
    }
}
