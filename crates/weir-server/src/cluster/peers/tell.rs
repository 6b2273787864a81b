//! Telling many servers the same: recalls, truncations, lost names, laminations.
//!
//! A few servers are told one by one. A longer list is cut into shares
//! ([`weir_core::placement::tree`]), and the first server of each share tells the rest of it in the
//! same way. So no server sends more than a few messages, and the time grows with the logarithm of
//! the number of servers. A server replies when all servers below it have replied.
//!
//! If the first server of a share is not reached, its parent takes over the rest. The reply names the servers that were
//! not reached, and the root then tries them itself: a server that its parent cannot reach may have its lease from the
//! root, and continue to believe it. So a server may hear a message twice, and every message is harmless when repeated;
//! for truncations see `files/stand_ins/truncate.rs`. Telling ends, because each level waits at most as long as for a
//! server that does not answer.

use futures_util::future::join_all;
use weir_core::placement::tree::shares;
use weir_core::proto::peer::{self, News, Told};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::peers::PeerServers;

impl PeerServers {
    /// Sets the number of servers that this one tells itself; for tests with few servers.
    pub fn set_fan_out(&self, servers: u32) {
        self.inner.fan_out.set(servers);
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
            add_answer(&mut told, *rank, answer);
        }
        told.lost.extend(tried);
        told
    }

    /// Passes on a message of another server to the servers below this one.
    pub(in crate::cluster) async fn pass_on(&self, below: Vec<Rank>, news: &News) -> Told {
        let (mut told, tried) = self.in_time_to_tell(self.spread(below, news)).await;
        told.lost.extend(tried);
        told
    }

    /// Tells `ranks` down a tree. Returns the answer, and the servers that this server itself did
    /// not reach.
    async fn spread(&self, ranks: Vec<Rank>, news: &News) -> (Told, Vec<Rank>) {
        let (mut told, mut tried) = (Told::default(), Vec::new());
        let mut lists = vec![ranks];
        while !lists.is_empty() {
            let all = lists.iter();
            let cut = all.flat_map(|list| shares(list, self.inner.fan_out.get()));
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
                    add_answer(&mut told, *first, answer);
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
            return self.call_other(to, relay).await;
        }
        let done = match news.clone() {
            News::Recall(op) => self.call_other(to, op).await,
            News::Mark(op) => self.call_other(to, op).await,
            News::Cut(op) => {
                let end = self.call_other(to, op).await?;
                return Ok(Told {
                    end,
                    ..Told::default()
                });
            }
            News::Publish(op) => self.call_other(to, op).await,
            News::Revoke(op) => self.call_other(to, op).await,
            News::Laminated(op) => self.call_other(to, op).await,
            News::Forget(op) => self.call_other(to, op).await,
            News::DropEntry(op) => self.call_other(to, op).await,
            News::Seal(op) => return Ok(told_writers(self.call_other(to, op).await?)),
            News::Writers(op) => return Ok(told_writers(self.call_other(to, op).await?)),
        };
        done.map(|()| Told::default())
    }
}

fn told_writers(writers: u32) -> Told {
    Told {
        writers,
        ..Told::default()
    }
}

/// Adds the answer of `rank` and the servers below it.
pub(in crate::cluster) fn add_answer(all: &mut Told, rank: Rank, answer: Result<Told, FsError>) {
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
