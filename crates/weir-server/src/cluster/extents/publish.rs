//! Publishing: telling the homes of slices the extents that a node wrote.
//!
//! A file's offsets are cut into slices, each with its home ([`weir_core::placement`]). A publish
//! sends whole runs in one message a server, however many slices they cross. Each server keeps the
//! parts that lie in its own slices. There the newest publish wins, because the home lays it with a
//! new stamp. The home tells the publisher which log bytes nothing refers to any more. The
//! publisher gives them back to their servers when no reader uses the old extents any more.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use weir_core::extent::{Run, Source, COPY_RANK, MAX_OFFSET};
use weir_core::journal::Item;
use weir_core::node::claim::Claim;
use weir_core::placement::slices;
use weir_core::proto::peer::{self, LogRange, PeerOperation};
use weir_core::proto::{Attach, Attached, FsError, Served};
use weir_core::types::{ClientId, Ino, Rank};
use weir_store::slab::SLAB_BYTES;

use super::publishes::{Batch, SentBatch};
use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::extents::{ExtentSteps, ExtentsNeeds, PublishedExtents, WriteTables};
use crate::cluster::keyed::Guard;
use crate::cluster::peers::debts::{Debt, RANGES};

/// The most runs in one message.
const RUNS: usize = 8192;

/// The occasion of a publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum PublishCause {
    /// None of those below.
    Usual,
    /// This node has given up its write token for the file.
    TokenEnded,
    /// The file's home says that no bytes wait for its lamination, whatever this node knows.
    Public,
}

impl<S: ExtentsNeeds> PublishedExtents<S> {
    /// The files with extents of this node that are to be published.
    pub(in crate::cluster) fn dirty(&self) -> Vec<Ino> {
        if self.server.has_all_extents() {
            return Vec::new();
        }
        let local = self.server.node(|node| node.writes().unpublished());
        let mut dirty: BTreeSet<Ino> = local
            .into_iter()
            .map(|ino| self.server.global(ino))
            .collect();
        dirty.extend(self.state().publishes.borrow().files());
        dirty.into_iter().collect()
    }

    /// Returns true if extents of a file are on their way.
    pub(in crate::cluster) fn is_in_flight(&self, ino: Ino) -> bool {
        self.state().publishes.borrow().has_file(ino)
    }

    /// The runs that are on their way to the slices' homes, for readers of this node.
    pub(in crate::cluster) fn in_flight(&self, ino: Ino) -> Vec<Run> {
        self.state().publishes.borrow().runs_of(ino)
    }

    /// The end of the file according to the runs that are on their way to the slices' homes.
    pub(in crate::cluster) fn end_in_flight(&self, ino: Ino) -> u64 {
        self.state().publishes.borrow().end_of(ino)
    }

    /// Cuts the batches that are on their way to the slices' homes or could not be sent.
    pub(in crate::cluster) fn cut_in_flight(&self, ino: Ino, size: u64) {
        self.state().publishes.borrow_mut().cut(ino, size);
    }

    /// See [`peer::Publish`]. If bytes must be held back, nothing is published, and the answer is an error: a restarted
    /// node has forgotten that the file is being laminated, and must not claim that it has published.
    pub(in crate::cluster) async fn publish_for_all(
        &self,
        op: &peer::Publish,
    ) -> Result<(), FsError> {
        let ino = op.ino;
        if op.is_public {
            return self.publish_as(ino, PublishCause::Public).await;
        }
        if let Some(local) = self.server.local(ino) {
            if !self.server.may_publish(ino, local)? {
                return Err(FsError::Unreachable);
            }
        }
        self.publish(ino).await
    }

    /// Publishes the extents that this node wrote to a file. Runs that could not be sent are sent
    /// later.
    pub(in crate::cluster) async fn publish(&self, ino: Ino) -> Result<(), FsError> {
        self.publish_as(ino, PublishCause::Usual).await
    }

    /// As [`PublishedExtents::publish`], for a reason.
    pub(in crate::cluster) async fn publish_as(
        &self,
        ino: Ino,
        cause: PublishCause,
    ) -> Result<(), FsError> {
        if self.server.has_all_extents() {
            return Ok(());
        }
        let Some(local) = self.server.local(ino) else {
            return Ok(());
        };
        if cause != PublishCause::Public && !self.server.may_publish(ino, local)? {
            return Ok(());
        }
        let _alone = self.hold_publishing(ino).await?;
        // Another task may have published all of it meanwhile, and this node may have let go of the
        // file.
        let Some(local) = self.server.local(ino) else {
            return Ok(());
        };
        let publishes = &self.state().publishes;
        publishes.borrow_mut().begin_file(ino);
        let ended = cause == PublishCause::TokenEnded;
        let done = self.publish_held(ino, local, ended).await;
        publishes.borrow_mut().end_file(ino);
        done
    }

    /// Waits, for a limited time, until no task of this node publishes a file; none does while the guard lives.
    pub(in crate::cluster) async fn hold_publishing(
        &self,
        ino: Ino,
    ) -> Result<Guard<'_, Ino>, FsError> {
        self.server
            .peers()
            .hold_in_time(&self.state().publishing, ino)
            .await
    }

    /// As [`PublishedExtents::hold_publishing`], without a time limit.
    pub(in crate::cluster) async fn hold_publishing_surely(&self, ino: Ino) -> Guard<'_, Ino> {
        self.state()
            .publishing
            .hold(ino, self.server.peers().token())
            .await
    }

    /// Stops sending extents of a file. Returns the end of the extents that were under way, and the ranges that the
    /// sent ones had freed.
    pub(in crate::cluster) fn end_sending(&self, ino: Ino) -> (u64, Vec<LogRange>) {
        let mut publishes = self.state().publishes.borrow_mut();
        let end = publishes.end_of(ino);
        let Some(batches) = publishes.remove_file(ino) else {
            return (0, Vec::new());
        };
        self.server.note(&Item::PublishEnded(ino));
        let sent = batches.into_iter().filter_map(|batch| batch.sent);
        (end, sent.flat_map(|sent| sent.freed).collect())
    }

    async fn publish_held(&self, ino: Ino, local: Ino, ended: bool) -> Result<(), FsError> {
        let pending = self.server.node(|node| node.writes().take_pending(local))?;
        {
            let mut publishes = self.state().publishes.borrow_mut();
            publishes.add_unsynced(
                ino,
                self.server
                    .node(|node| node.writes().file_slabs_of(&pending.runs)),
            );
            if !pending.runs.is_empty() {
                let publish = publishes.add(ino, pending.runs, self.server.peers().now_ns());
                self.server.note(&Item::PublishNumbered(ino, publish));
            }
            if !publishes.has_file(ino) {
                return Ok(());
            }
        }
        let published = peer::Published {
            ino,
            size: pending.size,
            mtime_ns: pending.mtime_ns,
            stored: 0,
            publishes: Vec::new(),
            ended,
        };
        let (said, mut freed) = self.send_published(published).await?;
        let known = match said {
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
            let extents = self.state();
            extents.publishes.borrow_mut().remove_file(ino);
            // This server never repeats a publish to itself.
            let here = self.server.rank();
            extents.slices.borrow_mut().forget_answers(ino, here);
            self.server.note(&Item::PublishEnded(ino));
        }
        if ino.rank() == self.server.rank() {
            self.server.forget_counted(self.server.rank(), ino);
        }
        // From now on the slices' homes know where the bytes are.
        self.forget_map(ino);
        self.server.doubt_answers(ino);
        // A file that is gone has no readers.
        let _ = (self.server).node(|node| node.names().bump_index_generation(local));
        self.give_back(freed).await;
        Ok(())
    }

    /// Sends the batches of a file to the homes of its slices, and then tells the file's home of them. Returns the
    /// home's answer, and the bytes that the batches freed.
    ///
    /// A node that was cut off from the home may learn only at the beginning of a session that the file was cut. Then
    /// the batches go out again, so that the slices withdraw bytes behind the cut, and the home gets the cut size.
    async fn send_published(
        &self,
        mut op: peer::Published,
    ) -> Result<(Result<(), FsError>, Vec<LogRange>), FsError> {
        let (ino, home, size) = (op.ino, op.ino.rank(), op.size);
        let publishes = &self.state().publishes;
        loop {
            let freed;
            (op.publishes, freed) = self.send_batches(ino).await?;
            if home == self.server.rank() {
                op.size = size.min(publishes.borrow().cut_size(ino));
                return Ok((self.server.call(home, op).await, freed));
            }
            let number = self.server.peers().session_in_time(home).await?;
            if !publishes.borrow().are_sent(ino) {
                continue;
            }
            op.size = size.min(publishes.borrow().cut_size(ino));
            let request = peer::request(op.clone());
            if let Some(answer) = self
                .server
                .peers()
                .ask_within(home, number, &request, false)
                .await?
            {
                let said = peer::reply::<peer::Published>(&answer.body);
                return Ok((said, freed));
            }
        }
    }

    /// Sends the batches of a file to all their servers. Returns the numbers of their publishes with the bytes
    /// that each added, and the bytes that they freed.
    async fn send_batches(&self, ino: Ino) -> Result<(Vec<(u64, i64)>, Vec<LogRange>), FsError> {
        let (mut numbers, mut freed) = (Vec::new(), Vec::new());
        let batches = self.state().publishes.borrow().to_send(ino);
        for batch in batches {
            let laid = batch.runs.iter().map(Run::log_bytes).sum::<u64>();
            let laid = i64::try_from(laid).unwrap_or(i64::MAX);
            let publish = batch.publish;
            let by_it = self.put_batch(ino, batch).await?;
            numbers.push((publish, laid - bytes_of(&by_it)));
            freed.extend(by_it);
        }
        Ok((numbers, freed))
    }

    /// Sends a batch to all its servers, unless they have it as it is now. Returns the bytes that it freed.
    async fn put_batch(&self, ino: Ino, batch: Batch) -> Result<Vec<LogRange>, FsError> {
        // At the beginning of a session the file's home tells this node the size to which the file was cut meanwhile.
        if ino.rank() != self.server.rank() {
            self.server.peers().session_in_time(ino.rank()).await?;
        }
        let publishes = &self.state().publishes;
        let batch = publishes.borrow().as_cut(ino, batch);
        if let Some(sent) = batch.sent.as_ref().filter(|_| batch.is_sent()) {
            return Ok(sent.freed.clone());
        }
        let (publish, cut) = (batch.publish, batch.cut);
        let freed = self.put_everywhere(ino, &batch).await?;
        let sent = SentBatch { cut, freed };
        publishes.borrow_mut().note_sent(ino, publish, &sent);
        Ok(sent.freed)
    }

    async fn put_everywhere(&self, ino: Ino, batch: &Batch) -> Result<Vec<LogRange>, FsError> {
        let ended_below = self.state().publishes.borrow().first_open();
        let mut by_rank: BTreeMap<Rank, Vec<Run>> = BTreeMap::new();
        for run in &batch.runs {
            for rank in slices::homes_of_run(ino, run, self.server.peers().servers()) {
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
                messages.push(self.server.call(*rank, put));
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
        slices::homes_of(ino, from, to, self.server.peers().servers())
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
                    slices::clip_to_own(
                        op.ino,
                        &run,
                        self.server.rank(),
                        self.server.peers().servers(),
                        &mut laid,
                    );
                }
                _ => return Err(FsError::Malformed),
            }
        }
        let mut slices = self.state().slices.borrow_mut();
        slices.put(from, op, laid, &mut |item| self.server.note(item))
    }

    /// Makes `[from, to)` of this server's slices a hole; returns the bytes that become free.
    pub(in crate::cluster) fn erase(&self, op: &peer::Erase) -> Vec<LogRange> {
        let mut slices = self.state().slices.borrow_mut();
        slices.erase(op, &mut |item| self.server.note(item))
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

    async fn erase_range(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<LogRange>, FsError> {
        let to = to.min(MAX_OFFSET);
        let homes = self.homes_of(ino, from, to);
        let erase = peer::Erase { ino, from, to };
        self.free_in_slices(ino, homes, erase).await
    }

    /// Asks the homes of slices for an operation that frees bytes of logs; returns these.
    pub(in crate::cluster) async fn free_in_slices<O>(
        &self,
        ino: Ino,
        homes: BTreeSet<Rank>,
        op: O,
    ) -> Result<Vec<LogRange>, FsError>
    where
        O: PeerOperation<Reply = Vec<LogRange>> + Clone + 'static,
    {
        // The bytes that a late answer frees are given back then.
        let late = move |server: &S, freed: Result<Vec<LogRange>, FsError>| {
            PublishedExtents::new(server).give_back_late(ino, freed.unwrap_or_default());
        };
        let asked = homes
            .into_iter()
            .map(|rank| self.server.surely_or(rank, op.clone(), late));
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
        let asked = homes.map(|rank| self.server.call(rank, peer::Erase { ino, from, to }));
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
        self.server.peers().spawn(async move {
            let erased = peer::Published {
                ino,
                size: 0,
                mtime_ns: 0,
                stored: -bytes_of(&freed),
                publishes: Vec::new(),
                ended: false,
            };
            // A file that no longer exists has no readers.
            let _ = this.server.surely(ino.rank(), erased).await;
            this.give_back(freed).await;
        });
    }

    /// Gives bytes back to the servers whose logs have them.
    pub(in crate::cluster) async fn give_back(&self, freed: Vec<LogRange>) {
        let mut by_rank: BTreeMap<u16, Vec<LogRange>> = BTreeMap::new();
        // Bytes of a copy are in no log.
        for range in freed.into_iter().filter(|range| range.rank != COPY_RANK) {
            by_rank.entry(range.rank).or_default().push(range);
        }
        let mut messages = Vec::new();
        for (rank, ranges) in by_rank {
            for part in ranges.chunks(RANGES) {
                messages.push(
                    self.server
                        .peers()
                        .owe(Rank(rank), Debt::Freed(part.to_vec())),
                );
            }
        }
        join_all(messages).await;
    }

    /// Settles the extents of a file in this server's slices.
    pub(in crate::cluster) fn settle_slices(&self, op: &peer::SettleSlices) {
        let mut slices = self.state().slices.borrow_mut();
        slices.settle(op.ino, op.number);
    }

    /// Makes ranges of this server's slices refer to the file's copy; returns the bytes that become free.
    pub(in crate::cluster) fn lay_copy(&self, op: &peer::LayCopy) -> Vec<LogRange> {
        let (here, servers) = (self.server.rank(), self.server.peers().servers());
        let mut own = Vec::new();
        for range in &op.ranges {
            if let Ok(run) = Run::of_copy(range.start, range.end, 0) {
                slices::clip_to_own(op.ino, &run, here, servers, &mut own);
            }
        }
        let mut slices = self.state().slices.borrow_mut();
        slices.lay_copy(op.ino, op.settled, own, &mut |item| self.server.note(item))
    }

    /// Returns true if this server's slices of a file have bytes of its copy.
    pub(in crate::cluster) fn has_copy_runs(&self, ino: Ino) -> bool {
        self.state().slices.borrow().has_copy_runs(ino)
    }

    pub(in crate::cluster) fn freed(&self, ranges: &[LogRange]) {
        self.server.node(|node| {
            for range in ranges {
                node.writes().free_bytes(range);
            }
        });
    }

    pub(in crate::cluster) fn attach_for_client(
        &self,
        from: ClientId,
        op: Attach,
    ) -> Served<Result<Attached, FsError>> {
        if self.server.has_all_extents() {
            return Served::Now(self.server.node(|node| node.attach_client(from, op.ino)));
        }
        self.later(|this| async move { this.attach_held(from, op).await })
    }

    async fn attach_held(&self, from: ClientId, op: Attach) -> Result<Attached, FsError> {
        // The size from which appends go on must be the file's, not the stand-in's.
        let ino = self.server.resolve(op.ino)?;
        let local = self.server.hold_here(ino, true).await?.ino;
        let attached = self.server.node(|node| node.attach_client(from, local))?;
        self.server.attached_here(ino, local);
        Ok(attached)
    }

    /// Makes a range a hole, or extends the file to the end of the range.
    pub(in crate::cluster) fn allocate_for_client(
        &self,
        op: weir_core::proto::Allocate,
    ) -> Served<Result<(), FsError>> {
        if self.server.has_all_extents() {
            return Served::Now(self.server.node(|node| node.writes().allocate_range(&op)));
        }
        self.later(|this| async move { this.allocate_published(op).await })
    }

    async fn allocate_published(&self, op: weir_core::proto::Allocate) -> Result<(), FsError> {
        let end = op.offset.checked_add(op.length).ok_or(FsError::TooBig)?;
        if op.length == 0 {
            return Err(FsError::Invalid);
        }
        if end > MAX_OFFSET {
            return Err(FsError::TooBig);
        }
        let ino = self.server.resolve(op.ino)?;
        if op.zero {
            self.server
                .end_other_writes(ino, &Claim::range(op.offset, op.length))
                .await?;
        }
        self.publish(ino).await?;
        let freed = if op.zero {
            self.erase_range(ino, op.offset, end).await?
        } else {
            Vec::new()
        };
        let published = peer::Published {
            ino,
            size: if op.keep_size { 0 } else { end },
            mtime_ns: self.server.peers().now_ns(),
            stored: -bytes_of(&freed),
            publishes: Vec::new(),
            ended: false,
        };
        self.server.call(ino.rank(), published).await?;
        self.server.recall_here(ino);
        if let Some(local) = self.server.local(ino).filter(|_| !op.keep_size) {
            self.server
                .node(|node| node.writes().raise_to(local, end, 0))?;
        }
        self.give_back(freed).await;
        Ok(())
    }

    /// Publishes, and returns the slabs of storage directories that are to be synced.
    pub(in crate::cluster) fn sync_for_client(
        &self,
        ino: Ino,
    ) -> Served<Result<Vec<u32>, FsError>> {
        if self.server.has_all_extents() {
            return Served::Now(self.server.node(|node| node.writes().file_slabs(ino)));
        }
        self.later(|this| async move { this.sync_published(ino).await })
    }

    async fn sync_published(&self, ino: Ino) -> Result<Vec<u32>, FsError> {
        let ino = self.server.resolve(ino)?;
        if self.server.holds_back(ino) {
            // While this node was cut off from the home, another one may have made the file visible before its lamination.
            self.server.lease_here(ino).await?;
        }
        self.publish(ino).await?;
        Ok(self.state().publishes.borrow_mut().take_unsynced(ino))
    }

    pub(in crate::cluster) fn published_runs(&self) -> usize {
        self.state().slices.borrow().run_count()
    }
}

/// The number of bytes in the ranges.
pub(in crate::cluster) fn bytes_of(ranges: &[LogRange]) -> i64 {
    let sum = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add);
    i64::try_from(sum).unwrap_or(i64::MAX)
}
