//! The state of a server that the items of its journal describe.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::item::{CellMark, InodeImage, Item, LockedName, NameChange};
use super::published::PublishedBytes;
use super::ItemError;
use crate::extent::{ExtentIndex, Run, Source};
use crate::names::FileType;
use crate::proto::peer::{LogRange, Placement};
use crate::types::{ClientId, Ino, Rank, SegmentId};
use crate::xattr::Xattrs;

/// A directory's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryImage {
    /// The inode that it names.
    pub child: Ino,
    /// The type of that inode.
    pub kind: FileType,
    /// Its position in the directory's order.
    pub sequence: u64,
}

/// A cell that a client writes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachedCell {
    /// The client.
    pub client: ClientId,
    /// The file, by its number in the server's table.
    pub ino: Ino,
    /// Its block.
    pub block: u32,
    /// The part of its record that is being published.
    pub noted: Option<CellMark>,
}

/// A segment that a client may write into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentSegment {
    /// The client.
    pub client: ClientId,
    /// The slab.
    pub slab: u32,
    /// Its first byte there.
    pub pos: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// The most lost names that are kept: the last ones.
pub const MOST_LOST_NAMES: usize = 16 << 10;

/// A name that a file or link has lost. In the order of the times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LostNameImage {
    /// The time, ns since 1970.
    pub at_ns: i64,
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// Another inode has the name since then.
    pub is_replaced: bool,
}

/// The answers to publishes, by the number of the publish and by its part: the bytes that it freed.
pub type PublishAnswers = BTreeMap<u64, BTreeMap<u32, Vec<LogRange>>>;

/// The state of a server as one of several.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The files that it was publishing.
    pub in_flight: BTreeMap<Ino, Vec<(u64, Vec<Run>)>>,
    /// The answers to the publishes of each server to each file, which the server may repeat.
    pub answered: BTreeMap<(Ino, Rank), PublishAnswers>,
    /// Its slices of the files of all servers.
    pub slices: HashMap<Ino, ExtentIndex>,
    /// The greatest stamp in them.
    pub slices_stamp: u64,
    /// Size and stored bytes of its own files, as published.
    pub published: HashMap<Ino, (u64, u64)>,
    /// For each of its files and each server, the last publish that the stored bytes count.
    pub counted: BTreeMap<(Ino, Rank), u64>,
    /// The servers that may hold entries of its directories.
    pub enrolled: HashMap<Ino, BTreeSet<Rank>>,
    /// Names of its directories whose entries are elsewhere.
    pub moved: HashMap<Ino, Vec<u8>>,
    /// Names that renames of two steps have locked.
    pub locked: BTreeMap<(Ino, Vec<u8>), LockedName>,
    /// Changes of names that have a part left to do, by their server and number.
    pub changes: BTreeMap<(Rank, u64), NameChange>,
    /// Renames that are cancelled.
    pub called_off: BTreeSet<(Rank, u64)>,
    /// The placement of its directories' entries; a directory that is missing has no entries.
    pub placed: BTreeMap<Ino, Placement>,
    /// Directories all of whose entries it has.
    pub has_all: BTreeSet<Ino>,
    /// The last names that files and links have lost.
    pub lost: BTreeSet<LostNameImage>,
}

/// The state of a server.
#[derive(Clone, Debug)]
pub struct State {
    /// The server.
    pub rank: Rank,
    /// All inodes of its table.
    pub inodes: HashMap<Ino, InodeImage>,
    /// The last life of each slot that is free, by slot.
    pub ended: HashMap<u32, u16>,
    /// Targets of symbolic links.
    pub targets: HashMap<Ino, Vec<u8>>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// Entries, by directory and name.
    pub entries: HashMap<(Ino, Vec<u8>), EntryImage>,
    /// The bytes of the files, by the files' numbers in the server's table.
    pub extents: HashMap<Ino, ExtentIndex>,
    /// Client processes and their pids.
    pub clients: BTreeMap<ClientId, u32>,
    /// The segments that clients may write into.
    pub segments: BTreeMap<SegmentId, LentSegment>,
    /// Users beside the server's own whose programs may be clients.
    pub admitted: BTreeSet<u32>,
    /// The cells that clients write through.
    pub cells: BTreeMap<u32, AttachedCell>,
    /// The published bytes of its log.
    pub published_log: PublishedBytes,
    /// The state of the server as one of several.
    pub cluster: Cluster,
    /// The snapshot is complete. Before that, changes may concern things that it has not recorded
    /// yet.
    pub whole: bool,
}

impl State {
    /// Makes an empty state.
    pub fn new(rank: Rank) -> State {
        State {
            rank,
            inodes: HashMap::new(),
            ended: HashMap::new(),
            targets: HashMap::new(),
            xattrs: Xattrs::default(),
            entries: HashMap::new(),
            extents: HashMap::new(),
            clients: BTreeMap::new(),
            segments: BTreeMap::new(),
            admitted: BTreeSet::new(),
            cells: BTreeMap::new(),
            published_log: PublishedBytes::default(),
            cluster: Cluster::default(),
            whole: false,
        }
    }

    /// Applies an item. Each has an arm: an item without one would be written, and then lost.
    #[allow(clippy::too_many_lines)] // an arm for each item, without a wildcard
    pub fn apply(&mut self, item: &Item<'_>) -> Result<(), ItemError> {
        match item {
            Item::SnapshotEnd => self.whole = true,
            Item::SnapshotReset => self.reset_lending(),
            Item::Inode(image) => {
                self.ended.remove(&image.ino.index());
                self.inodes.insert(image.ino, *image);
            }
            Item::InodeGone(ino) => {
                self.inodes.remove(ino);
                self.targets.remove(ino);
                self.xattrs.forget(*ino);
                self.ended.insert(ino.index(), ino.generation());
            }
            Item::Target(ino, target) => {
                self.targets.insert(*ino, target.to_vec());
            }
            Item::UserAdmitted(uid) => drop(self.admitted.insert(*uid)),
            Item::Xattr(ino, name, value) => self.xattrs.set(*ino, name, value),
            // It may be missing if it is in a part of the snapshot that is still to come.
            Item::XattrGone(ino, name) => drop(self.xattrs.remove(*ino, name)),
            Item::Entry {
                dir,
                name,
                child,
                kind,
                sequence,
            } => {
                let entry = EntryImage {
                    child: *child,
                    kind: *kind,
                    sequence: *sequence,
                };
                self.entries.insert((*dir, name.to_vec()), entry);
            }
            Item::EntryGone { dir, name } => {
                let key = (*dir, name.to_vec());
                if self.entries.remove(&key).is_none() && self.whole {
                    let (dir, name) = key;
                    return Err(ItemError::NoEntry { dir, name });
                }
            }
            Item::IndexRuns(ino, runs) => self.lay_runs(*ino, runs)?,
            Item::IndexSettled(ino) => {
                if let Some(index) = self.extents.get_mut(ino) {
                    index.settle();
                }
            }
            Item::IndexCleared(ino) => {
                self.extents.remove(ino);
            }
            Item::ClientCame { client, pid } => {
                self.clients.insert(*client, *pid);
            }
            Item::ClientGone(client) => {
                self.clients.remove(client);
                self.segments.retain(|_, lent| lent.client != *client);
                self.cells.retain(|_, attached| attached.client != *client);
            }
            Item::SegmentLent {
                client,
                segment,
                slab,
                pos,
                len,
            } => {
                if !self.check_client(*client)? {
                    return Ok(());
                }
                let lent = LentSegment {
                    client: *client,
                    slab: *slab,
                    pos: *pos,
                    len: *len,
                };
                self.segments.insert(*segment, lent);
            }
            Item::SegmentReturned(segment) => {
                self.segments.remove(segment);
            }
            Item::CellAttached {
                cell,
                client,
                ino,
                block,
            } => {
                if !self.check_client(*client)? {
                    return Ok(());
                }
                let attached = AttachedCell {
                    client: *client,
                    ino: *ino,
                    block: *block,
                    noted: None,
                };
                self.cells.insert(*cell, attached);
            }
            Item::CellDetached(cell) => {
                if self.cells.remove(cell).is_none() && self.whole {
                    return Err(ItemError::NotAttached(*cell));
                }
            }
            Item::CellMarked(cell, mark) => match self.cells.get_mut(cell) {
                Some(attached) => attached.noted = Some(*mark),
                None if self.whole => return Err(ItemError::NotAttached(*cell)),
                None => {}
            },
            Item::PublishBegun(local, home) => self.begin_publish(*local, *home),
            Item::InFlight(ino, publish, runs) => {
                let mut batch = Vec::new();
                for run in runs {
                    let run = run.checked();
                    batch.push(run.map_err(|error| ItemError::Run { ino: *ino, error })?);
                }
                let in_flight = self.cluster.in_flight.entry(*ino).or_default();
                in_flight.push((*publish, batch));
            }
            Item::PublishNumbered(ino, publish) => {
                let batches = self.cluster.in_flight.get_mut(ino);
                if let Some(batch) = batches.and_then(|batches| batches.last_mut()) {
                    batch.0 = *publish;
                }
            }
            Item::PublishAnswered {
                ino,
                from,
                publish,
                part,
                freed,
            } => {
                let answered = self.cluster.answered.entry((*ino, *from)).or_default();
                let parts = answered.entry(*publish).or_default();
                parts.insert(*part, freed.clone());
            }
            Item::AnswersForgotten(ino, from) => drop(self.cluster.answered.remove(&(*ino, *from))),
            Item::PublishEnded(ino) => {
                self.cluster.in_flight.remove(ino);
                self.cluster.answered.remove(&(*ino, self.rank));
            }
            Item::SliceRuns(ino, runs) => {
                let index = self.cluster.slices.entry(*ino).or_default();
                for run in runs {
                    self.cluster.slices_stamp = self.cluster.slices_stamp.max(run.stamp);
                    let laid = index.insert(*run, &mut |_| ());
                    laid.map_err(|error| ItemError::Run { ino: *ino, error })?;
                }
                index.drop_holes();
                if index.is_empty() {
                    self.cluster.slices.remove(ino);
                }
            }
            Item::LogFreed(range) => self.published_log.remove(range.slab, range.pos, range.len),
            Item::LogPublished { slab, unit, bytes } => {
                self.published_log
                    .add(*slab, u64::from(*unit) << 20, *bytes);
            }
            Item::Published(ino, size, stored) => {
                self.cluster.published.insert(*ino, (*size, *stored));
            }
            Item::PublishedGone(ino) => {
                self.cluster.published.remove(ino);
                let its = (*ino, Rank(0))..=(*ino, Rank(u16::MAX));
                while let Some((key, _)) = self.cluster.counted.range(its.clone()).next() {
                    let key = *key;
                    self.cluster.counted.remove(&key);
                }
            }
            Item::PublishCounted(ino, from, 0) => drop(self.cluster.counted.remove(&(*ino, *from))),
            Item::PublishCounted(ino, from, publish) => {
                self.cluster.counted.insert((*ino, *from), *publish);
            }
            Item::Enrolled(dir, rank) => {
                self.cluster.enrolled.entry(*dir).or_default().insert(*rank);
            }
            Item::Retired(dir, rank) => {
                if let Some(ranks) = self.cluster.enrolled.get_mut(dir) {
                    ranks.remove(rank);
                }
            }
            Item::RemoteName(dir, name) => {
                self.cluster.moved.insert(*dir, name.to_vec());
            }
            Item::DirectoryGone(dir) => {
                self.cluster.enrolled.remove(dir);
                self.cluster.moved.remove(dir);
                self.cluster.placed.remove(dir);
            }
            Item::Placed(dir, placed) => {
                self.cluster.placed.insert(*dir, placed.clone());
            }
            Item::HasAll(dir, true) => drop(self.cluster.has_all.insert(*dir)),
            Item::HasAll(dir, false) => drop(self.cluster.has_all.remove(dir)),
            Item::NameLocked(dir, name, locked) => {
                let key = (*dir, name.to_vec());
                self.cluster.locked.insert(key, locked.clone());
            }
            Item::NameUnlocked(dir, name) => {
                drop(self.cluster.locked.remove(&(*dir, name.to_vec())));
            }
            Item::NameChanging(rank, token, change) => {
                self.cluster.changes.insert((*rank, *token), change.clone());
            }
            Item::NameChanged(rank, token) => drop(self.cluster.changes.remove(&(*rank, *token))),
            Item::RenameCalledOff(rank, token) => {
                self.cluster.called_off.insert((*rank, *token));
            }
            Item::CalledOffForgotten(rank) => {
                self.cluster.called_off.retain(|(leader, _)| leader != rank);
            }
            Item::NameLost {
                at_ns,
                dir,
                name,
                ino,
                is_replaced,
            } => {
                self.cluster.lost.insert(LostNameImage {
                    at_ns: *at_ns,
                    dir: *dir,
                    name: name.to_vec(),
                    ino: *ino,
                    is_replaced: *is_replaced,
                });
                if self.cluster.lost.len() > MOST_LOST_NAMES {
                    self.cluster.lost.pop_first();
                }
            }
        }
        Ok(())
    }

    /// Moves the runs of a file's index to those being published, and counts their bytes of this
    /// server's log as published.
    fn begin_publish(&mut self, local: Ino, home: Ino) {
        let rank = self.rank.0;
        let Some(index) = self.extents.remove(&local) else {
            return;
        };
        let mut in_flight = Vec::new();
        let given = &mut self.published_log;
        index.for_each_run(&mut |run| {
            if run.source != Source::Hole {
                in_flight.push(run);
                run.for_each_log_range(&mut |range| {
                    if range.rank == rank {
                        given.add(range.slab, range.pos, range.len);
                    }
                });
            }
        });
        let batches = self.cluster.in_flight.entry(home).or_default();
        batches.push((0, in_flight));
    }

    /// Returns true if a client is known. Once the snapshot is whole, an unknown one is an error.
    fn check_client(&self, client: ClientId) -> Result<bool, ItemError> {
        let known = self.clients.contains_key(&client);
        match known || !self.whole {
            true => Ok(known),
            false => Err(ItemError::NoClient(client.0)),
        }
    }

    fn reset_lending(&mut self) {
        self.clients.clear();
        self.segments.clear();
        self.cells.clear();
        self.published_log = PublishedBytes::default();
        self.cluster.in_flight.clear();
        self.cluster.answered.clear();
        self.cluster.counted.clear();
        self.cluster.locked.clear();
        self.cluster.changes.clear();
        self.cluster.called_off.clear();
    }

    fn lay_runs(&mut self, ino: Ino, runs: &[Run]) -> Result<(), ItemError> {
        let index = self.extents.entry(ino).or_default();
        for run in runs {
            // Free space is computed at the end, from all that is left.
            index
                .insert(*run, &mut |_| ())
                .map_err(|error| ItemError::Run { ino, error })?;
        }
        Ok(())
    }
}
