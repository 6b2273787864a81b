//! The other servers that have a file of this one open: its holders, their leases, and its writers.
//! State only; the messages are in `stand_ins`.
//!
//! - A *holder* keeps the inode.
//! - A *lease* lets a holder believe the file's attributes and extents until it is recalled.
//! - A *writer* is a node that may write the file. This server counts as one, too.
//!
//! A server that is given up is no holder any more, but must learn of later truncations when it is back (*missed*). It
//! may come back with unpublished bytes: readers of raw files and laminations wait for them for a time (*lost
//! writers*).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_channel::oneshot;
use futures_util::future::Shared;
use futures_util::FutureExt as _;
use weir_core::types::{Ino, Rank};

/// Completes when all servers are told of a recall.
pub(super) type Recalling = Shared<oneshot::Receiver<()>>;

/// The holders, leases and writers of this server's files.
#[derive(Debug, Default)]
pub(super) struct FileHolders {
    holders: BTreeMap<Ino, BTreeSet<Rank>>,
    leases: HashMap<Ino, BTreeSet<Rank>>,
    /// Recalls of leases that are under way.
    recalling: HashMap<Ino, Vec<Recalling>>,
    /// The nodes that may write each file, including this one.
    writers: BTreeMap<Ino, BTreeSet<Rank>>,
    /// Writers that were given up with unpublished bytes, with the time until which others wait for them, ns since
    /// 1970.
    lost_writers: BTreeMap<Ino, BTreeMap<Rank, i64>>,
    /// The files that given-up servers held, each with the size to which it was cut since, if it
    /// was.
    missed: BTreeMap<Rank, BTreeMap<Ino, Option<u64>>>,
}

/// The result of the end of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WritersLeft {
    /// Other nodes write the file, or no writer of it was known.
    Some,
    /// No node writes it any more.
    None,
}

impl FileHolders {
    pub(super) fn add_holder(&mut self, ino: Ino, holder: Rank) {
        self.holders.entry(ino).or_default().insert(holder);
    }

    pub(super) fn holders_of(&self, ino: Ino) -> Vec<Rank> {
        servers_of(&self.holders, ino)
    }

    /// The files that a server holds.
    pub(super) fn held_by(&self, rank: Rank) -> Vec<Ino> {
        files_of(&self.holders, rank)
    }

    /// Ends a hold; returns true if that was the last one of the file.
    pub(super) fn end_hold(&mut self, ino: Ino, holder: Rank) -> bool {
        let Some(holders) = self.holders.get_mut(&ino) else {
            return false;
        };
        holders.remove(&holder);
        if !holders.is_empty() {
            return false;
        }
        self.holders.remove(&ino);
        self.leases.remove(&ino);
        true
    }

    pub(super) fn add_lease(&mut self, ino: Ino, holder: Rank) {
        self.leases.entry(ino).or_default().insert(holder);
    }

    pub(super) fn end_lease(&mut self, ino: Ino, holder: Rank) {
        if let Some(leases) = self.leases.get_mut(&ino) {
            leases.remove(&holder);
        }
    }

    /// Ends all leases of a server.
    pub(super) fn end_leases_of(&mut self, holder: Rank) {
        for leases in self.leases.values_mut() {
            leases.remove(&holder);
        }
    }

    /// Ends the leases of a file, except that of `writer`: it stays, so the writer must be told of
    /// the next write. Returns the servers that had the leases.
    pub(super) fn take_leases(&mut self, ino: Ino, writer: Option<Rank>) -> Vec<Rank> {
        let Some(leases) = self.leases.get_mut(&ino) else {
            return Vec::new();
        };
        let kept = writer.filter(|writer| leases.contains(writer));
        let recalled = std::mem::take(leases);
        leases.extend(kept);
        recalled.into_iter().filter(|r| Some(*r) != kept).collect()
    }

    /// Returns true if a server other than `writer` has a lease of a file, or is being told that it
    /// has none.
    pub(super) fn is_leased_to_others(&self, ino: Ino, writer: Rank) -> bool {
        let mut leases = self.leases.get(&ino).into_iter().flatten();
        leases.any(|rank| *rank != writer) || self.recalling.contains_key(&ino)
    }

    /// Returns true if no other server has a file open, has a lease of it, or is being told that it
    /// has none.
    pub(super) fn is_private(&self, ino: Ino) -> bool {
        let is_leased = self.leases.get(&ino).is_some_and(|ranks| !ranks.is_empty());
        !is_leased && !self.holders.contains_key(&ino) && !self.recalling.contains_key(&ino)
    }

    /// The recalls of a file's leases that are under way.
    pub(super) fn recalls_of(&self, ino: Ino) -> Vec<Recalling> {
        self.recalling.get(&ino).cloned().unwrap_or_default()
    }

    pub(super) fn add_recall(&mut self, ino: Ino, recalling: Recalling) {
        self.recalling.entry(ino).or_default().push(recalling);
    }

    pub(super) fn drop_ended_recalls(&mut self, ino: Ino) {
        let Some(recalls) = self.recalling.get_mut(&ino) else {
            return;
        };
        recalls.retain_mut(|recall| recall.now_or_never().is_none());
        if recalls.is_empty() {
            self.recalling.remove(&ino);
        }
    }

    /// Adds a node that may write a file; returns true if it was not known yet.
    pub(super) fn add_writer(&mut self, ino: Ino, writer: Rank) -> bool {
        self.writers.entry(ino).or_default().insert(writer)
    }

    pub(super) fn writers_of(&self, ino: Ino) -> Vec<Rank> {
        servers_of(&self.writers, ino)
    }

    /// The files that a node may write.
    pub(super) fn written_by(&self, writer: Rank) -> Vec<Ino> {
        files_of(&self.writers, writer)
    }

    /// Ends a writer. If it is lost, others wait for it until `awaited_until_ns`.
    pub(super) fn end_writer(
        &mut self,
        ino: Ino,
        writer: Rank,
        awaited_until_ns: Option<i64>,
    ) -> WritersLeft {
        if awaited_until_ns.is_none() {
            self.forget_lost_writer(ino, writer);
        }
        let Some(writers) = self.writers.get_mut(&ino) else {
            return WritersLeft::Some;
        };
        let wrote = writers.remove(&writer);
        let unwritten = writers.is_empty();
        if unwritten {
            self.writers.remove(&ino);
        }
        if let Some(until_ns) = awaited_until_ns.filter(|_| wrote) {
            let lost = self.lost_writers.entry(ino).or_default();
            lost.insert(writer, until_ns);
        }
        match unwritten {
            true => WritersLeft::None,
            false => WritersLeft::Some,
        }
    }

    /// Returns true if a lost writer of a file may still come back in time.
    pub(super) fn awaits_writer(&self, ino: Ino, now_ns: i64) -> bool {
        let mut lost = self.lost_writers.get(&ino).into_iter().flatten();
        lost.any(|(_, until_ns)| now_ns < *until_ns)
    }

    /// Stops waiting for a server that begins a session: it has named the files with unpublished
    /// bytes.
    pub(super) fn await_writer_no_more(&mut self, writer: Rank) {
        self.lost_writers.retain(|_, lost| {
            lost.remove(&writer);
            !lost.is_empty()
        });
    }

    fn forget_lost_writer(&mut self, ino: Ino, writer: Rank) {
        if let Some(lost) = self.lost_writers.get_mut(&ino) {
            lost.remove(&writer);
            if lost.is_empty() {
                self.lost_writers.remove(&ino);
            }
        }
    }

    /// Forgets a file that is gone.
    pub(super) fn forget_lost_writers(&mut self, ino: Ino) {
        self.lost_writers.remove(&ino);
    }

    /// Notes the files that a given-up server holds: it must learn of later changes when it is
    /// back.
    pub(super) fn note_held(&mut self, rank: Rank) {
        let held = self.held_by(rank);
        let missed = self.missed.entry(rank).or_default();
        for ino in held {
            missed.entry(ino).or_insert(None);
        }
    }

    /// Notes that a file was cut: holders, and possible holders, that cannot be told (`lost`) learn
    /// of it when they are back.
    pub(super) fn note_missed(&mut self, ino: Ino, size: u64, holders: &[Rank], lost: &[Rank]) {
        for rank in lost {
            let missed = self.missed.entry(*rank).or_default();
            missed.entry(ino).or_insert(None);
        }
        for (rank, missed) in &mut self.missed {
            if holders.contains(rank) && !lost.contains(rank) {
                continue;
            }
            if let Some(cut) = missed.get_mut(&ino) {
                *cut = Some(cut.map_or(size, |cut| cut.min(size)));
            }
        }
    }

    /// Notes the servers that heard of a truncation. It includes earlier ones that they missed, unless those cut
    /// deeper.
    pub(super) fn note_told(&mut self, ino: Ino, size: u64, told: impl Iterator<Item = Rank>) {
        for rank in told {
            let missed = self.missed.get_mut(&rank);
            if let Some(cut) = missed.and_then(|missed| missed.get_mut(&ino)) {
                *cut = cut.filter(|cut| *cut < size);
            }
        }
    }

    /// Returns true if a server that is away held a file.
    pub(super) fn is_missed(&self, ino: Ino) -> bool {
        let mut missed = self.missed.values();
        missed.any(|missed| missed.contains_key(&ino))
    }

    /// Takes out the truncations that a server missed while it was away.
    pub(super) fn take_missed_cuts(&mut self, rank: Rank) -> Vec<(Ino, u64)> {
        let missed = self.missed.remove(&rank).unwrap_or_default();
        let cuts = missed.into_iter();
        cuts.filter_map(|(ino, cut)| Some((ino, cut?))).collect()
    }
}

/// The servers that a table has for a file, in the order of ranks.
fn servers_of(table: &BTreeMap<Ino, BTreeSet<Rank>>, ino: Ino) -> Vec<Rank> {
    table.get(&ino).into_iter().flatten().copied().collect()
}

/// The files for which a table has a server.
fn files_of(table: &BTreeMap<Ino, BTreeSet<Rank>>, rank: Rank) -> Vec<Ino> {
    let all = table.iter().filter(|(_, ranks)| ranks.contains(&rank));
    all.map(|(ino, _)| *ino).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn the_writer_keeps_its_lease() {
        let mut holders = FileHolders::default();
        for rank in 1..4 {
            holders.add_lease(FILE, Rank(rank));
        }
        assert_eq!(holders.take_leases(FILE, Some(Rank(2))), [Rank(1), Rank(3)]);
        assert!(holders.is_leased_to_others(FILE, Rank(1)));
        assert!(!holders.is_leased_to_others(FILE, Rank(2)));
        assert_eq!(holders.take_leases(FILE, None), [Rank(2)]);
    }

    #[test]
    fn a_lost_writer_is_awaited_until_it_begins_a_session() {
        let mut holders = FileHolders::default();
        holders.add_writer(FILE, Rank(1));
        holders.add_writer(FILE, Rank(2));
        let left = holders.end_writer(FILE, Rank(1), Some(100));
        assert_eq!(left, WritersLeft::Some);
        assert!(holders.awaits_writer(FILE, 99) && !holders.awaits_writer(FILE, 100));
        // A node that was no writer is not waited for.
        holders.end_writer(FILE, Rank(3), Some(200));
        assert!(!holders.awaits_writer(FILE, 150));
        assert_eq!(holders.end_writer(FILE, Rank(2), None), WritersLeft::None);
        holders.await_writer_no_more(Rank(1));
        assert!(!holders.awaits_writer(FILE, 0));
    }

    #[test]
    fn a_server_that_is_back_hears_of_the_deepest_cut() {
        let mut holders = FileHolders::default();
        holders.add_holder(FILE, Rank(1));
        holders.note_held(Rank(1));
        assert!(holders.end_hold(FILE, Rank(1)));
        holders.note_missed(FILE, 50, &[], &[]);
        holders.note_missed(FILE, 80, &[Rank(2)], &[Rank(2)]);
        assert!(holders.is_missed(FILE));
        assert_eq!(holders.take_missed_cuts(Rank(1)), [(FILE, 50)]);
        holders.note_told(FILE, 80, [Rank(2)].into_iter());
        assert_eq!(holders.take_missed_cuts(Rank(2)), []);
        assert!(!holders.is_missed(FILE));
    }
}
