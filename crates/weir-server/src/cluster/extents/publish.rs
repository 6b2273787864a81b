//! Publishing: telling the homes of slices the extents that a node wrote.
//!
//! A file's offsets are cut into slices, each with its home ([`weir_core::placement`]). A publish
//! sends whole runs in one message a server, however many slices they cross. Each server keeps the
//! parts that lie in its own slices. There the newest publish wins, because the home lays it with a
//! new stamp. The home tells the publisher which log bytes nothing refers to any more. The
//! publisher gives them back to their servers when no reader uses the old extents any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::future::join_all;
use weir_core::extent::{ExtentIndex, Run, Source, MAX_OFFSET};
use weir_core::journal::{Answered, Item};
use weir_core::node::claim::Claim;
use weir_core::placement::slices;
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};
use weir_store::slab::SLAB_BYTES;

use crate::cluster::peers::debts::{Debt, RANGES};
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

/// The most runs in one message.
const RUNS: usize = 8192;

/// The published extents of the slices that live here, of any server's files, and the state of
/// publishes.
#[derive(Debug, Default)]
pub struct Shards {
    pub(in crate::cluster) indexes: BTreeMap<Ino, ExtentIndex>,
    pub(in crate::cluster) next_stamp: u64,
    /// The batches that this node is publishing, by file. They have left the file's index, and not
    /// all servers are known to have them.
    pub(in crate::cluster) in_flight: BTreeMap<Ino, Vec<Batch>>,
    pub(in crate::cluster) next_publish: u64,
    /// The files that are being published from here, with the size to which each was cut meanwhile.
    cut_meanwhile: BTreeMap<Ino, u64>,
    /// The answered publishes of each server that may come again, by file, until that server says
    /// that they have ended. A restarted server sends all publishes of a file once more. Laying a
    /// part a second time would hide what was laid in between, and would refer to bytes that were
    /// freed then.
    pub(in crate::cluster) answered: BTreeMap<(Ino, Rank), Answered>,
    /// The files of those publishes.
    pub(in crate::cluster) by_publish: BTreeMap<(Rank, u64), Ino>,
    /// The slabs of storage directories that hold published bytes of a file and were not synced
    /// since.
    unsynced: HashMap<Ino, BTreeSet<u32>>,
}

/// The extents that were taken from a file's index at one time. A batch is sent as a whole and
/// before the next one, so that each server can tell which parts it has. If one server does not
/// answer, all are asked again.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct Batch {
    pub(in crate::cluster) publish: u64,
    pub(in crate::cluster) runs: Vec<Run>,
    /// The file was cut to this size since.
    pub(in crate::cluster) cut: u64,
    /// The bytes that the batch freed, once all servers have it.
    pub(in crate::cluster) freed: Option<Vec<LogRange>>,
}

impl Batch {
    /// The runs of the batch that are not cut off.
    fn kept(&self) -> Vec<Run> {
        if self.cut == MAX_OFFSET {
            return self.runs.clone();
        }
        let mut kept = Vec::new();
        cut_off(&self.runs, self.cut, &mut kept);
        kept
    }
}

/// Appends the parts of `runs` before `cut` to `kept`, and returns the bytes of the rest. No two
/// runs overlap.
pub(in crate::cluster) fn cut_off(runs: &[Run], cut: u64, kept: &mut Vec<Run>) -> Vec<LogRange> {
    let (mut index, mut freed) = (ExtentIndex::new(), Vec::new());
    for run in runs {
        // The run was checked when it was received or made.
        let _ = index.insert(Run { stamp: 1, ..*run }, &mut |_| ());
    }
    if let Ok(hole) = Run::hole(cut, MAX_OFFSET, 2) {
        let _ = index.insert(hole, &mut |range| freed.push(log_range(range)));
    }
    index.drop_holes();
    index.for_each_run(&mut |run| kept.push(run));
    freed
}

impl Shards {
    /// The number of the first publish that has not ended.
    fn first_open(&self) -> u64 {
        let open = self.in_flight.values().flatten();
        let first = open.map(|batch| batch.publish).min();
        first.unwrap_or(self.next_publish + 1)
    }

    /// Forgets publishes that will not come again. Returns their files.
    fn forget_below(&mut self, from: Rank, ended_below: u64) -> Vec<Ino> {
        let ended = self.by_publish.range((from, 0)..(from, ended_below));
        let ended: Vec<((Rank, u64), Ino)> = ended.map(|(key, ino)| (*key, *ino)).collect();
        let mut forgotten = Vec::new();
        for (key, ino) in ended {
            self.by_publish.remove(&key);
            let Some(answered) = self.answered.get_mut(&(ino, from)) else {
                continue;
            };
            answered.remove(&key.1);
            if answered.is_empty() {
                self.answered.remove(&(ino, from));
                forgotten.push(ino);
            }
        }
        forgotten
    }

    /// The runs of `[from, to)`.
    pub fn runs(&self, ino: Ino, from: u64, to: u64) -> Vec<Run> {
        let mut out = Vec::new();
        if let Some(index) = self.indexes.get(&ino) {
            index.runs_in(from, to, usize::MAX, &mut out);
        }
        out.retain(|run| run.source != Source::Hole);
        out
    }

    /// The number of extent runs held.
    pub fn run_count(&self) -> usize {
        self.indexes.values().map(ExtentIndex::run_count).sum()
    }
}

impl<P: Platform> Cluster<P> {
    /// The files of which this node has something to publish.
    pub(in crate::cluster) fn dirty(&self) -> Vec<Ino> {
        if self.has_all_extents() {
            return Vec::new();
        }
        let local = self.node(Node::unpublished);
        let mut dirty: BTreeSet<Ino> = local.into_iter().map(|ino| self.global(ino)).collect();
        dirty.extend(self.inner.shards.borrow().in_flight.keys());
        dirty.into_iter().collect()
    }

    pub(in crate::cluster) fn is_in_flight(&self, ino: Ino) -> bool {
        self.inner.shards.borrow().in_flight.contains_key(&ino)
    }

    /// The runs that are on their way to the slices' homes, for readers of this node.
    pub(in crate::cluster) fn in_flight(&self, ino: Ino) -> Vec<Run> {
        let shards = self.inner.shards.borrow();
        let batches = shards.in_flight.get(&ino).into_iter().flatten();
        batches.flat_map(Batch::kept).collect()
    }

    /// The end of the file according to the runs that are on their way to the slices' homes.
    pub(in crate::cluster) fn end_in_flight(&self, ino: Ino) -> u64 {
        let shards = self.inner.shards.borrow();
        let batches = shards.in_flight.get(&ino).into_iter().flatten();
        let runs = batches.flat_map(|batch| &batch.runs);
        runs.map(Run::end).max().unwrap_or(0)
    }

    /// Cuts the batches that are on their way to the slices' homes or could not be sent.
    pub(in crate::cluster) fn cut_in_flight(&self, ino: Ino, size: u64) {
        let mut shards = self.inner.shards.borrow_mut();
        if let Some(cut) = shards.cut_meanwhile.get_mut(&ino) {
            *cut = size.min(*cut);
        }
        for batch in shards.in_flight.get_mut(&ino).into_iter().flatten() {
            batch.cut = batch.cut.min(size);
        }
    }

    /// See [`peer::Flush`]. The bytes that are held back are not published. A restarted node has
    /// forgotten that the file is being laminated, and does not say that it has published.
    pub(in crate::cluster) async fn flush_for_all(&self, ino: Ino) -> Result<(), FsError> {
        if let Some(local) = self.local(ino) {
            if !self.may_publish(ino, local)? {
                return Err(FsError::Unreachable);
            }
        }
        self.flush(ino).await
    }

    /// Publishes the extents that this node wrote to a file. Runs that could not be sent are sent
    /// later.
    pub(in crate::cluster) async fn flush(&self, ino: Ino) -> Result<(), FsError> {
        self.flush_as(ino, false).await
    }

    /// As [`Cluster::flush`]. With `ended` this node has given up its write token for the file.
    pub(in crate::cluster) async fn flush_as(&self, ino: Ino, ended: bool) -> Result<(), FsError> {
        if self.has_all_extents() {
            return Ok(());
        }
        let Some(local) = self.local(ino) else {
            return Ok(());
        };
        if !self.may_publish(ino, local)? {
            return Ok(());
        }
        let _alone = self.hold_in_time(&self.inner.publishing_here, ino).await?;
        // Another task may have published all of it meanwhile, and this node may have let go of the
        // file.
        let Some(local) = self.local(ino) else {
            return Ok(());
        };
        let shards = &self.inner.shards;
        shards.borrow_mut().cut_meanwhile.insert(ino, MAX_OFFSET);
        let done = self.flush_alone(ino, local, ended).await;
        shards.borrow_mut().cut_meanwhile.remove(&ino);
        done
    }

    async fn flush_alone(&self, ino: Ino, local: Ino, ended: bool) -> Result<(), FsError> {
        let pending = self.node(|node| node.take_pending(local))?;
        let batches = {
            let mut shards = self.inner.shards.borrow_mut();
            let slabs = self.node(|node| node.file_slabs_of(&pending.runs));
            if !slabs.is_empty() {
                shards.unsynced.entry(ino).or_default().extend(slabs);
            }
            if !pending.runs.is_empty() {
                // A restarted server must not reuse the numbers of its earlier publishes.
                let now = u64::try_from(self.now_ns()).unwrap_or(0);
                shards.next_publish = now.max(shards.next_publish + 1);
                let batch = Batch {
                    publish: shards.next_publish,
                    runs: pending.runs,
                    cut: MAX_OFFSET,
                    freed: None,
                };
                self.note(&Item::Numbered(ino, batch.publish));
                shards.in_flight.entry(ino).or_default().push(batch);
            }
            match shards.in_flight.get(&ino) {
                Some(batches) => batches.clone(),
                None => return Ok(()),
            }
        };
        let (mut freed, mut publishes) = (Vec::new(), Vec::new());
        for batch in batches {
            let laid = batch.runs.iter().map(Run::log_bytes).sum::<u64>();
            let publish = batch.publish;
            let by_it = self.put_batch(ino, batch).await?;
            let laid = i64::try_from(laid).unwrap_or(i64::MAX);
            publishes.push((publish, laid - bytes_of(&by_it)));
            freed.extend(by_it);
        }
        let published = peer::Published {
            ino,
            size: pending.size,
            mtime_ns: pending.mtime_ns,
            stored: 0,
            publishes,
            ended,
        };
        let known = match self.say_published(published).await {
            Err(FsError::Stale | FsError::NotFound) => false,
            done => {
                done?;
                true
            }
        };
        if !known {
            // The file ended while its home did not know that it was open here.
            freed.extend(self.erase_range(ino, 0, MAX_OFFSET).await?);
        }
        {
            let mut shards = self.inner.shards.borrow_mut();
            shards.in_flight.remove(&ino);
            // This server sends itself no publish again.
            shards.answered.remove(&(ino, self.rank()));
            self.note(&Item::Flushed(ino));
        }
        if ino.rank() == self.rank() {
            self.forget_counted(self.rank(), ino);
        }
        // From now on the slices' homes know where the bytes are.
        self.forget_map(ino);
        self.doubt_answers(ino);
        self.node(|node| node.touch_generation(local));
        self.give_back(freed).await;
        Ok(())
    }

    /// Tells a file's home what this node published of it. A node that was cut off from the home
    /// may learn only at the beginning of a session that the file was cut. So the home gets the
    /// size as it is then.
    async fn say_published(&self, op: peer::Published) -> Result<(), FsError> {
        let (ino, home) = (op.ino, op.ino.rank());
        let as_cut = || {
            let cut = self.inner.shards.borrow().cut_meanwhile.get(&ino).copied();
            peer::Published {
                size: op.size.min(cut.unwrap_or(MAX_OFFSET)),
                ..op.clone()
            }
        };
        if home == self.rank() {
            return self.call(home, as_cut()).await;
        }
        loop {
            let number = self.session_in_time(home).await?;
            let request = peer::request(as_cut());
            if let Some(answer) = self.ask_within((home, number), &request, false).await? {
                return peer::reply::<peer::Published>(&answer.body);
            }
        }
    }

    /// Sends a batch to all its servers. Returns the bytes that it freed.
    async fn put_batch(&self, ino: Ino, batch: Batch) -> Result<Vec<LogRange>, FsError> {
        if let Some(freed) = batch.freed {
            return Ok(freed);
        }
        // At the beginning of a session the file's home tells the size to which it was cut
        // meanwhile.
        if ino.rank() != self.rank() {
            self.session_in_time(ino.rank()).await?;
        }
        let batch = self.as_cut(ino, batch);
        let freed = self.put_everywhere(ino, &batch).await?;
        let mut shards = self.inner.shards.borrow_mut();
        let batches = shards.in_flight.get_mut(&ino).into_iter().flatten();
        for sent in batches.filter(|sent| sent.publish == batch.publish) {
            sent.freed = Some(freed.clone());
        }
        Ok(freed)
    }

    /// The current state of a batch, which may have been cut since it was taken.
    fn as_cut(&self, ino: Ino, batch: Batch) -> Batch {
        let shards = self.inner.shards.borrow();
        let mut now = shards.in_flight.get(&ino).into_iter().flatten();
        let now = now.find(|now| now.publish == batch.publish).cloned();
        now.unwrap_or(batch)
    }

    async fn put_everywhere(&self, ino: Ino, batch: &Batch) -> Result<Vec<LogRange>, FsError> {
        let ended_below = self.inner.shards.borrow().first_open();
        let mut by_rank: BTreeMap<Rank, Vec<Run>> = BTreeMap::new();
        for run in &batch.runs {
            for rank in slices::homes_of_run(ino, run, self.inner.servers) {
                by_rank.entry(rank).or_default().push(*run);
            }
        }
        let mut messages = Vec::new();
        for (rank, runs) in &by_rank {
            for (part, runs) in (0..).zip(runs.chunks(RUNS)) {
                let put = peer::Put {
                    ino,
                    runs: runs.to_vec(),
                    publish: batch.publish,
                    part,
                    cut: batch.cut,
                    ended_below,
                };
                messages.push(self.call(*rank, put));
            }
        }
        let mut freed = Vec::new();
        for answer in join_all(messages).await {
            freed.extend(answer?);
        }
        Ok(freed)
    }

    /// The servers whose slices `[from, to)` touches.
    pub(in crate::cluster) fn homes_of(&self, ino: Ino, from: u64, to: u64) -> BTreeSet<Rank> {
        slices::homes_of(ino, from, to, self.inner.servers)
    }

    pub(in crate::cluster) fn put(
        &self,
        from: Rank,
        op: &peer::Put,
    ) -> Result<Vec<LogRange>, FsError> {
        let mut laid = Vec::new();
        for run in &op.runs {
            let run = run.checked().map_err(|_| FsError::Malformed)?;
            match run.source {
                // The run is within a slab, so that it cannot cover more slices than it has bytes.
                Source::Log { rank, .. }
                    if rank == from.0 && run.log_end().is_some_and(|end| end <= SLAB_BYTES) =>
                {
                    slices::clip_to_own(op.ino, &run, self.rank(), self.inner.servers, &mut laid);
                }
                _ => return Err(FsError::Malformed),
            }
        }
        let mut shards = self.inner.shards.borrow_mut();
        let shards = &mut *shards;
        for ino in shards.forget_below(from, op.ended_below) {
            self.note(&Item::Forgotten(ino, from));
        }
        shards.by_publish.insert((from, op.publish), op.ino);
        let answered = shards.answered.entry((op.ino, from)).or_default();
        let parts = answered.entry(op.publish).or_default();
        if let Some(freed) = parts.get(&op.part) {
            return Ok(freed.clone());
        }
        shards.next_stamp += 1;
        let stamp = shards.next_stamp;
        let mut freed = Vec::new();
        if op.cut < MAX_OFFSET {
            let whole = std::mem::take(&mut laid);
            freed = cut_off(&whole, op.cut, &mut laid);
        }
        let index = shards.indexes.entry(op.ino).or_default();
        for run in &mut laid {
            run.stamp = stamp;
        }
        for run in laid.iter().copied() {
            let put = index.insert(run, &mut |range| freed.push(log_range(range)));
            put.map_err(|_| FsError::Malformed)?;
        }
        index.drop_holes();
        if index.is_empty() {
            shards.indexes.remove(&op.ino);
        }
        parts.insert(op.part, freed.clone());
        self.note(&Item::Kept(op.ino, laid));
        self.note(&Item::Answered {
            ino: op.ino,
            from,
            publish: op.publish,
            part: op.part,
            freed: freed.clone(),
        });
        Ok(freed)
    }

    /// Makes `[from, to)` of this server's slices a hole: all that its index has there, for the
    /// index has nothing of other slices. (A file may be 8 EiB long: slices are not counted.)
    pub(in crate::cluster) fn erase(&self, op: &peer::Erase) -> Vec<LogRange> {
        let mut shards = self.inner.shards.borrow_mut();
        shards.next_stamp += 1;
        let stamp = shards.next_stamp;
        let mut freed = Vec::new();
        let Some(index) = shards.indexes.get_mut(&op.ino) else {
            return freed;
        };
        if let Ok(hole) = Run::hole(op.from, op.to.min(MAX_OFFSET), stamp) {
            let _ = index.insert(hole, &mut |range| freed.push(log_range(range)));
            self.note(&Item::Kept(op.ino, vec![hole]));
        }
        index.drop_holes();
        if index.is_empty() {
            shards.indexes.remove(&op.ino);
        }
        freed
    }

    /// Erases `[from, old size)` at all homes of its slices.
    pub(in crate::cluster) async fn erase_everywhere(
        &self,
        ino: Ino,
        from: u64,
        old_size: u64,
    ) -> Result<Vec<LogRange>, FsError> {
        if from >= old_size {
            return Ok(Vec::new());
        }
        self.erase_range(ino, from, old_size).await
    }

    pub(in crate::cluster) async fn erase_range(
        &self,
        ino: Ino,
        from: u64,
        to: u64,
    ) -> Result<Vec<LogRange>, FsError> {
        let to = to.min(MAX_OFFSET);
        let homes = self.homes_of(ino, from, to);
        // The bytes that a late answer frees are given back then.
        let late = move |this: &Self, freed: Result<Vec<LogRange>, FsError>| {
            this.give_back_late(ino, freed.unwrap_or_default());
        };
        let asked = homes
            .into_iter()
            .map(|rank| self.surely_or(rank, peer::Erase { ino, from, to }, late));
        let mut freed = Vec::new();
        let mut done = Ok(());
        for answer in join_all(asked).await {
            match answer {
                Ok(ranges) => freed.extend(ranges),
                Err(error) => done = Err(error),
            }
        }
        if done.is_err() {
            self.give_back_late(ino, std::mem::take(&mut freed));
        }
        done.map(|()| freed)
    }

    /// Erases all bytes from `from` on at the servers that can be reached. A lost node may have
    /// sent such bytes before it told the file's home how long the file is.
    pub(in crate::cluster) async fn erase_untold(&self, ino: Ino, from: u64) {
        let to = MAX_OFFSET;
        let homes = self.homes_of(ino, from, to).into_iter();
        let asked = homes.map(|rank| self.call(rank, peer::Erase { ino, from, to }));
        let erased = join_all(asked).await.into_iter().flatten().flatten();
        self.give_back_late(ino, erased.collect());
    }

    /// Gives back bytes that were erased by an operation that failed as a whole, once no reader
    /// believes any more that they belong to the file.
    pub(in crate::cluster) fn give_back_late(&self, ino: Ino, freed: Vec<LogRange>) {
        if freed.is_empty() {
            return;
        }
        let this = self.clone();
        self.spawn(async move {
            let erased = peer::Published {
                ino,
                size: 0,
                mtime_ns: 0,
                stored: -bytes_of(&freed),
                publishes: Vec::new(),
                ended: false,
            };
            // A file that no longer exists has no readers.
            let _ = this.surely(ino.rank(), erased).await;
            this.give_back(freed).await;
        });
    }

    /// Gives bytes back to the servers whose logs have them.
    pub(in crate::cluster) async fn give_back(&self, freed: Vec<LogRange>) {
        let mut by_rank: BTreeMap<u16, Vec<LogRange>> = BTreeMap::new();
        for range in freed {
            by_rank.entry(range.rank).or_default().push(range);
        }
        let mut messages = Vec::new();
        for (rank, ranges) in by_rank {
            for part in ranges.chunks(RANGES) {
                messages.push(self.owe(Rank(rank), Debt::Freed(part.to_vec())));
            }
        }
        join_all(messages).await;
    }

    pub(in crate::cluster) fn freed(&self, ranges: &[LogRange]) {
        self.node(|node| {
            for range in ranges {
                node.free_bytes(range);
            }
        });
    }

    /// Makes a range a hole, or extends the file to the end of the range.
    pub(in crate::cluster) async fn allocate(
        &self,
        op: weir_core::proto::Allocate,
    ) -> Result<(), FsError> {
        if self.has_all_extents() {
            return self.node(|node| node.allocate_range(&op));
        }
        let end = op.offset.checked_add(op.length).ok_or(FsError::TooBig)?;
        if op.length == 0 {
            return Err(FsError::Invalid);
        }
        if end > MAX_OFFSET {
            return Err(FsError::TooBig);
        }
        let ino = self.resolve(op.ino)?;
        if op.zero {
            self.end_other_writes(ino, &Claim::range(op.offset, op.length))
                .await?;
        }
        self.flush(ino).await?;
        let freed = if op.zero {
            self.erase_range(ino, op.offset, end).await?
        } else {
            Vec::new()
        };
        let published = peer::Published {
            ino,
            size: if op.keep_size { 0 } else { end },
            mtime_ns: self.now_ns(),
            stored: -bytes_of(&freed),
            publishes: Vec::new(),
            ended: false,
        };
        self.call(ino.rank(), published).await?;
        self.recall_here(ino);
        if let Some(local) = self.local(ino).filter(|_| !op.keep_size) {
            self.node(|node| node.raise_to(local, end, 0))?;
        }
        self.give_back(freed).await;
        Ok(())
    }

    /// Publishes, and returns the slabs of storage directories that are to be synced.
    pub(in crate::cluster) async fn sync(&self, ino: Ino) -> Result<Vec<u32>, FsError> {
        if self.has_all_extents() {
            return self.node(|node| node.file_slabs(ino));
        }
        let ino = self.resolve(ino)?;
        self.flush(ino).await?;
        let slabs = self.inner.shards.borrow_mut().unsynced.remove(&ino);
        Ok(slabs.into_iter().flatten().collect())
    }

    pub(in crate::cluster) fn published_runs(&self) -> usize {
        self.inner.shards.borrow().run_count()
    }
}

/// The number of bytes in the ranges.
pub(in crate::cluster) fn bytes_of(ranges: &[LogRange]) -> i64 {
    let sum = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add);
    i64::try_from(sum).unwrap_or(i64::MAX)
}

fn log_range(range: weir_core::extent::FreedRange) -> LogRange {
    LogRange {
        rank: range.rank,
        slab: range.slab,
        pos: range.pos,
        len: range.len,
    }
}
