//! Files of several servers: stand-ins at this node, and the holders and leases of files at their
//! home.
//!
//! A node that has a foreign file open *holds* it: the home keeps the inode while it is held. A
//! node that reads one has a *lease*: its stand-in shows the home's attributes, and the node may
//! keep the file's extents until the home recalls the lease.

mod truncate;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use futures_channel::oneshot;
use futures_util::future::{join_all, Shared};
use futures_util::FutureExt as _;
use weir_core::extent::MAX_OFFSET;
use weir_core::journal::{self, Item};
use weir_core::names::{Attr, FileType, Lamination};
use weir_core::proto::peer::{self, News};
use weir_core::proto::{self, Cause, FsError, Kept};
use weir_core::types::{Ino, Rank};

use crate::cluster::files::leaving::HoldRequest;
use crate::cluster::files::AWAITED_NS;
use crate::cluster::visibility::is_raw;
use crate::cluster::Cluster;
use crate::node::Platform;

/// If a home takes longer than this to grant a lease, the read fails; ns.
const LONGEST_NS: i64 = 20_000_000_000;
/// With this many stand-ins, attributes of further files are read without one.
const LOOKED_AT_MOST: usize = 1 << 16;

/// The stand-ins of this server, and the state of its own files that other servers have open.
#[derive(Debug, Default)]
pub struct SharedFileTable {
    pub(super) stand_ins: BTreeMap<Ino, StandIn>,
    pub(super) holders: BTreeMap<Ino, BTreeSet<Rank>>,
    pub(super) leases: HashMap<Ino, BTreeSet<Rank>>,
    /// Truncations under way.
    cutting: HashMap<Ino, Cutting>,
    /// Recalls of leases that are under way.
    recalling: HashMap<Ino, Vec<Recalling>>,
    /// The nodes that may write each file of this server, including this one.
    writers: BTreeMap<Ino, BTreeSet<Rank>>,
    /// Writers that were given up with unpublished bytes, with the time until which they are waited
    /// for, ns since 1970.
    lost_writers: BTreeMap<Ino, BTreeMap<Rank, i64>>,
    /// The files that given-up servers held, each with the size to which it was cut since, if it
    /// was.
    missed: BTreeMap<Rank, BTreeMap<Ino, Option<u64>>>,
    /// The published extent of this server's files.
    pub(super) published: BTreeMap<Ino, PublishedSize>,
    /// For each file and server, the last publish that is counted in `published`, kept as long as
    /// the server may repeat it.
    pub(super) counted: BTreeMap<(Ino, Rank), u64>,
}

impl SharedFileTable {
    fn forget_lost_writer(&mut self, ino: Ino, writer: Rank) {
        if let Some(lost) = self.lost_writers.get_mut(&ino) {
            lost.remove(&writer);
            if lost.is_empty() {
                self.lost_writers.remove(&ino);
            }
        }
    }

    /// Forgets a file of this server that is gone.
    pub(super) fn forget_lost_writers(&mut self, ino: Ino) {
        self.lost_writers.remove(&ino);
    }
}

/// A truncation under way.
#[derive(Clone, Copy, Debug)]
struct Cutting {
    /// The new end. A node that was cut already must not see the size that another node, which was
    /// not cut yet, publishes.
    to: u64,
    /// The published size before. The journal has this size until everything beyond the new end is
    /// erased: after a restart, the server must not believe that nothing is there.
    old: u64,
    /// This node has given up its unpublished bytes: the bytes behind the new end that the slices'
    /// homes still have are older.
    cut_here: bool,
}

/// Completes when all servers are told.
type Recalling = Shared<oneshot::Receiver<()>>;

/// The amount of data of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cluster) struct PublishedSize {
    /// Its size, bytes.
    pub(in crate::cluster) size: u64,
    /// Bytes stored.
    pub(in crate::cluster) stored: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::cluster) struct StandIn {
    pub(in crate::cluster) local: Ino,
    pub(in crate::cluster) used_ns: i64,
    /// The number of recalls of the lease.
    recalls: u64,
    /// The file has no name any more.
    pub(in crate::cluster) unnamed: bool,
    /// Programs of this node have, or had, the file open for writing.
    pub(in crate::cluster) written: bool,
    /// The last truncation done here: if it arrives again, by another way down the tree, it must
    /// not cut later writes.
    cut: u64,
}

impl SharedFileTable {
    /// Restores the stand-in of a server that was killed; its attributes are not to be believed.
    pub(super) fn take_up_stand_in(&mut self, home: Ino, local: Ino, now_ns: i64) {
        let known = StandIn {
            local,
            used_ns: now_ns,
            recalls: 0,
            unnamed: false,
            written: true,
            cut: 0,
        };
        self.stand_ins.insert(home, known);
    }

    /// Restores the published extents from the journal.
    pub(super) fn take_up_published(&mut self, state: &mut journal::Cluster) {
        for (ino, (size, stored)) in std::mem::take(&mut state.published) {
            self.published.insert(ino, PublishedSize { size, stored });
        }
        self.counted = std::mem::take(&mut state.counted);
    }

    /// The journal's record of the published extent of a file of this server.
    pub(super) fn published_item(&self, ino: Ino) -> Option<Item<'static>> {
        let file = self.published.get(&ino)?;
        let old = self.cutting.get(&ino).map_or(0, |cutting| cutting.old);
        Some(Item::Published(ino, file.size.max(old), file.stored))
    }
}

impl<P: Platform> Cluster<P> {
    /// The global number of an inode that a client named. ESTALE if its server does not exist, so
    /// that no request is ever sent there.
    pub(in crate::cluster) fn resolve(&self, ino: Ino) -> Result<Ino, FsError> {
        match ino.rank().0 < self.inner.servers {
            true => Ok(self.global(ino)),
            false => Err(FsError::Stale),
        }
    }

    /// The global number of an inode that has a number in this node's table.
    pub(in crate::cluster) fn global(&self, ino: Ino) -> Ino {
        if ino.rank() != self.rank() {
            return ino;
        }
        self.node(|node| node.attr_of(ino))
            .map_or(ino, |attr| attr.home)
    }

    /// The number of a file in this node's table, if it is known here.
    pub(in crate::cluster) fn local(&self, ino: Ino) -> Option<Ino> {
        if ino.rank() == self.rank() {
            return Some(ino);
        }
        let files = self.inner.files.table.borrow();
        files.stand_ins.get(&ino).map(|known| known.local)
    }

    /// Returns true if files of other servers are known here.
    pub(in crate::cluster) fn has_stand_ins(&self) -> bool {
        !self.inner.files.table.borrow().stand_ins.is_empty()
    }

    /// The files of one other server that are known here.
    pub(in crate::cluster) fn stand_ins_of(&self, home: Rank) -> Vec<Ino> {
        let files = self.inner.files.table.borrow();
        let known = files.stand_ins.keys();
        known.filter(|ino| ino.rank() == home).copied().collect()
    }

    fn recalls(&self, ino: Ino) -> u64 {
        let files = self.inner.files.table.borrow();
        files.stand_ins.get(&ino).map_or(0, |known| known.recalls)
    }

    /// Prepares a file for being open here; returns its attributes, with its number here.
    pub(in crate::cluster) async fn hold_here(
        &self,
        ino: Ino,
        write: bool,
    ) -> Result<Attr, FsError> {
        let ino = self.resolve(ino)?;
        if ino.rank() == self.rank() {
            if write {
                self.add_writer(ino, self.rank()).await;
            }
            return self.node(|node| node.attr_now(ino));
        }
        if let Some(local) = self.local(ino) {
            let believed = match write {
                true => None, // The home must hear of it.
                false => self.believed_here(ino, local)?,
            };
            if let Some(attr) = believed {
                return Ok(attr);
            }
            self.settle_size(ino, local).await?;
        }
        let asking = self.begin_hold(ino).await;
        loop {
            let (news, asked_ns) = (asking.news(), self.now_ns());
            let asked = self.call_in(ino.rank(), peer::Hold { ino, write });
            let (attr, session) = asked.await?;
            // If the home began a new session while the answer was on its way, the file is not
            // held. An answer that a truncation or a lamination overtook does not contain it.
            if self.is_session(ino.rank(), session) && asking.news() == news {
                let seen = self.stand_in_for(&attr);
                drop(asking);
                if seen.is_err() {
                    self.leave_unknown(ino);
                } else if write {
                    self.may_reserve(ino, asked_ns);
                }
                return seen;
            }
        }
    }

    /// Notes that programs of this node write a foreign file, as requested at `asked_ns`: they
    /// place their appends themselves for as long as this node believes its home.
    pub(in crate::cluster) fn may_reserve(&self, ino: Ino, asked_ns: i64) {
        if let Some(known) = self.inner.files.table.borrow_mut().stand_ins.get_mut(&ino) {
            known.written = true;
        }
        if !self.believe_lease(ino.rank(), asked_ns) {
            self.share_appends_here(ino);
        }
    }

    /// Notes that a file of this server is open at `from`.
    pub(in crate::cluster) async fn hold_for(
        &self,
        from: Rank,
        ino: Ino,
        write: bool,
    ) -> Result<Attr, FsError> {
        let attr = self.hold(from, ino)?;
        if !write {
            return Ok(attr);
        }
        // The end of a session finds its writers among the holders.
        self.add_writer(ino, from).await;
        self.hold(from, ino)
    }

    /// Makes or refreshes the stand-in for the file of `attr`; returns the attributes as seen here.
    pub(in crate::cluster) fn stand_in_for(&self, attr: &Attr) -> Result<Attr, FsError> {
        let now_ns = self.now_ns();
        let known = {
            let mut files = self.inner.files.table.borrow_mut();
            files.stand_ins.get_mut(&attr.home).map(|known| {
                known.used_ns = now_ns;
                known.local
            })
        };
        let local = if let Some(local) = known {
            local
        } else {
            let local = self.node(|node| node.adopt_file(attr))?;
            let new = StandIn {
                local,
                used_ns: now_ns,
                recalls: 0,
                unnamed: false,
                written: false,
                cut: 0,
            };
            let mut files = self.inner.files.table.borrow_mut();
            files.stand_ins.insert(attr.home, new);
            local
        };
        self.node(|node| node.known_to_keep().keep_stand_in(attr.home, local));
        let leased = known.is_some() && self.node(|node| node.attr_of(local))?.fresh;
        if !leased {
            self.refresh_here(local, attr, false)?;
        }
        self.node(|node| node.attr_now(local))
    }

    /// Updates a stand-in to show the home's attributes and this node's unpublished bytes: its last
    /// writer may have ended while the home was asked.
    fn refresh_here(&self, local: Ino, attr: &Attr, leased: bool) -> Result<(), FsError> {
        let in_flight = self.is_in_flight(attr.home);
        self.node(|node| {
            let mut attr = *attr;
            // While a program writes, the block has the size, and the stand-in's is outdated.
            if node.block_of(local).is_none() && (in_flight || node.pending_count(local) > 0) {
                attr.size = attr.size.max(node.attr_of(local)?.size);
            }
            node.refresh(local, &attr, leased)
        })
    }

    /// Stops believing answers that the home gave before this node's publish reached it.
    pub(in crate::cluster) fn doubt_answers(&self, ino: Ino) {
        self.inner.files.leaving.add_news(ino);
        if let Some(known) = self.inner.files.table.borrow_mut().stand_ins.get_mut(&ino) {
            known.recalls += 1;
        }
    }

    /// The attributes of an inode as this node sees them. A file of another server that no program
    /// writes gets a stand-in with a lease, so that it can be looked at again, and opened, without
    /// a request.
    pub(in crate::cluster) async fn attr_here(&self, ino: Ino) -> Result<Attr, FsError> {
        if self.has_all_extents() {
            return self.node(|node| node.attr_now(ino));
        }
        let ino = self.resolve(ino)?;
        let is_foreign = ino.rank() != self.rank();
        if let Some(local) = self.local(ino).filter(|_| is_foreign) {
            if let Some(attr) = self.believed_here(ino, local)? {
                return Ok(attr);
            }
            self.settle_size(ino, local).await?;
        }
        let keep = is_foreign && self.has_room_to_look_at(ino);
        let asking = match keep {
            true => Some(self.begin_hold(ino).await),
            false => None,
        };
        let news = |asking: &Option<HoldRequest<'_>>| asking.as_ref().map_or(0, HoldRequest::news);
        let (before, asked_ns) = (news(&asking), self.now_ns());
        let asked = self.call_in(ino.rank(), peer::GetAttr { ino, keep });
        let (told, session) = asked.await?;
        // A recall, or this node's own publish, may have overtaken the answer.
        let is_newest = news(&asking) == before;
        let mut attr = told.what;
        if told.may_keep && self.is_session(ino.rank(), session) {
            let Ok(seen) = self.stand_in_for(&attr) else {
                drop(asking);
                self.leave_unknown(ino);
                return Ok(attr);
            };
            if self.believe_lease(ino.rank(), asked_ns) && is_newest {
                self.refresh_here(seen.ino, &attr, true)?;
            }
            return self.node(|node| node.attr_now(seen.ino));
        }
        attr.block = 0;
        // This node may have let go of the file meanwhile.
        let Some(local) = self.local(ino) else {
            return Ok(attr);
        };
        if attr.file_type() == FileType::File {
            let here = self.node(|node| node.attr_now(local))?;
            attr.ino = local;
            if here.block != 0 || ino.rank() == self.rank() {
                attr.size = attr.size.max(here.size);
                attr.mtime_ns = attr.mtime_ns.max(here.mtime_ns);
            }
        }
        Ok(attr)
    }

    /// The attributes of a file of another server, if this node believes those of its stand-in;
    /// from now on programs of this node see them without a request.
    fn believed_here(&self, ino: Ino, local: Ino) -> Result<Option<Attr>, FsError> {
        if !self.node(|node| node.attr_of(local))?.fresh {
            return Ok(None);
        }
        self.use_lease(ino.rank());
        let now_ns = self.now_ns();
        if let Some(known) = self.inner.files.table.borrow_mut().stand_ins.get_mut(&ino) {
            known.used_ns = now_ns;
        }
        self.node(|node| {
            node.known_to_keep().keep_stand_in(ino, local);
            node.attr_now(local).map(Some)
        })
    }

    fn has_room_to_look_at(&self, ino: Ino) -> bool {
        let stand_ins = &self.inner.files.table.borrow().stand_ins;
        stand_ins.len() < LOOKED_AT_MOST || stand_ins.contains_key(&ino)
    }

    /// See [`peer::GetAttr`]. A file that other nodes write is not leased: they would have to ask
    /// before their next write.
    pub(in crate::cluster) async fn look_at_home(
        &self,
        from: Rank,
        op: peer::GetAttr,
    ) -> Result<Kept<Attr>, FsError> {
        let ino = op.ino;
        if op.keep && from != self.rank() && self.may_lease_unasked(from, ino)? {
            let what = self.grant_lease(from, ino).await?;
            let may_keep = true;
            return Ok(Kept { what, may_keep });
        }
        self.publish_raw(from, ino).await?;
        let what = self.attr_at_home(ino).await?;
        let may_keep = false;
        Ok(Kept { what, may_keep })
    }

    fn may_lease_unasked(&self, from: Rank, ino: Ino) -> Result<bool, FsError> {
        let attr = self.node(|node| node.attr_of(ino))?;
        let is_cut = self.inner.files.table.borrow().cutting.contains_key(&ino);
        let is_file = attr.file_type() == FileType::File && attr.nlink > 0;
        Ok(is_file && !is_cut && (!is_raw(&attr) || !self.others_write(from, ino)))
    }

    /// The attributes of an inode of this server, as published.
    pub(super) async fn attr_at_home(&self, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.node(|node| node.attr_of(ino))?;
        match attr.file_type() {
            FileType::Dir => return self.dir_attr(attr).await,
            FileType::File => self.show_published(&mut attr),
            FileType::Symlink | FileType::Fifo | FileType::Socket => {}
        }
        attr.ask = false;
        attr.block = 0;
        Ok(attr)
    }

    pub(super) fn published_size(&self, ino: Ino) -> u64 {
        let files = self.inner.files.table.borrow();
        files.published.get(&ino).map_or(0, |file| file.size)
    }

    /// Sets a file's attributes to those that other nodes see.
    fn show_published(&self, attr: &mut Attr) {
        let files = self.inner.files.table.borrow();
        let file = files.published.get(&attr.home).copied().unwrap_or_default();
        let cut = files.cutting.get(&attr.home);
        let most = cut.map_or(MAX_OFFSET, |cut| cut.to);
        (attr.size, attr.allocated) = (file.size.min(most), file.stored);
        attr.block = 0;
    }

    /// Adds to the stored bytes of a file of this server.
    fn add_stored(&self, ino: Ino, stored: i64) {
        let mut files = self.inner.files.table.borrow_mut();
        let file = files.published.entry(ino).or_default();
        file.stored = file.stored.saturating_add_signed(stored);
        let now = file.stored;
        drop(files);
        self.note_published(ino);
        self.node(|node| node.set_stored(ino, now));
    }

    fn note_published(&self, ino: Ino) {
        let item = self.inner.files.table.borrow().published_item(ino);
        if let Some(item) = item {
            self.note(&item);
        }
    }

    /// The stored bytes of those of a server's publishes that were not counted before. A server
    /// repeats them if it does not know if it was heard, also after a restart of either server.
    fn count_anew(&self, from: Rank, ino: Ino, publishes: &[(u64, i64)]) -> i64 {
        let mut files = self.inner.files.table.borrow_mut();
        let known = files.counted.get(&(ino, from)).copied().unwrap_or(0);
        let new = publishes.iter().filter(|(publish, _)| *publish > known);
        let stored = new
            .clone()
            .fold(0, |sum, (_, stored)| stored.saturating_add(sum));
        if let Some(last) = new.map(|(publish, _)| *publish).max() {
            files.counted.insert((ino, from), last);
            drop(files);
            self.note(&Item::Counted(ino, from, last));
        }
        stored
    }

    /// A server will not repeat any publish to a file.
    pub(in crate::cluster) fn forget_counted(&self, from: Rank, ino: Ino) {
        let counted = self
            .inner
            .files
            .table
            .borrow_mut()
            .counted
            .remove(&(ino, from));
        if counted.is_some() {
            self.note(&Item::Counted(ino, from, 0));
        }
    }

    /// Sets attributes of an inode of this server, or of its stand-in here.
    pub(in crate::cluster) async fn set_attr_at_home(
        &self,
        set: proto::SetAttr,
    ) -> Result<(), FsError> {
        let before = self.node(|node| node.attr_of(set.ino))?;
        self.node(|node| node.set_attributes(&set))?;
        let own = set.ino.rank() == self.rank();
        let attr = self.node(|node| node.attr_of(set.ino))?;
        match attr.file_type() {
            FileType::Dir if own => self.tell_dir(&attr, set.mtime_ns).await,
            FileType::Dir => self.node(|node| node.known().drop_guard(set.ino)),
            FileType::File | FileType::Symlink | FileType::Fifo | FileType::Socket => {}
        }
        if own && attr.file_type() == FileType::File {
            self.recall_leases(set.ino, None).await;
            if set.policy.is_some_and(|policy| policy != before.policy) {
                self.policy_changed(set.ino, before.policy).await?;
            }
            if attr.lamination == Lamination::Due {
                self.laminate_at_home(set.ino, Cause::Close).await?;
            } else if attr.lamination != before.lamination {
                self.mark_holders(set.ino).await?;
            }
        }
        Ok(())
    }

    pub(super) fn hold(&self, from: Rank, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.node(|node| node.attr_of(ino))?;
        if attr.file_type() != FileType::File {
            return Err(FsError::Invalid);
        }
        self.check_session_of(from)?;
        self.add_holder(ino, from);
        attr.ask = false;
        self.show_published(&mut attr);
        Ok(attr)
    }

    /// Adds a node that may write a file of this server.
    pub(in crate::cluster) async fn add_writer(&self, ino: Ino, writer: Rank) {
        if self.has_all_extents() {
            return;
        }
        // A node that repeats the request, because the answer was lost, waits for the first one's
        // messages, too.
        if self.know_writer(ino, writer) || self.places_untold(ino, writer) {
            self.tell_of_writer(ino, writer).await;
        }
    }

    /// Returns true if it was not known yet that a node may write a file: other nodes are to be
    /// told.
    pub(in crate::cluster) fn know_writer(&self, ino: Ino, writer: Rank) -> bool {
        let mut files = self.inner.files.table.borrow_mut();
        files.writers.entry(ino).or_default().insert(writer)
    }

    /// See [`Cluster::know_writer`].
    pub(in crate::cluster) async fn tell_of_writer(&self, ino: Ino, writer: Rank) {
        self.share_appends(ino, writer).await;
    }

    /// Returns true if a node that cannot be reached may have unpublished bytes of a file of this
    /// server. It may come back with them, but is waited for only for a time.
    pub(super) fn awaits_writer(&self, ino: Ino) -> bool {
        let now_ns = self.now_ns();
        let files = self.inner.files.table.borrow();
        let mut lost = files.lost_writers.get(&ino).into_iter().flatten();
        lost.any(|(_, until_ns)| now_ns < *until_ns)
    }

    /// A server has begun a session: it has named the files with unpublished bytes.
    pub(in crate::cluster) fn await_writer_no_more(&self, writer: Rank) {
        let mut files = self.inner.files.table.borrow_mut();
        files.lost_writers.retain(|_, lost| {
            lost.remove(&writer);
            !lost.is_empty()
        });
    }

    /// The nodes that may write a file of this server.
    pub(super) fn writers_of(&self, ino: Ino) -> Vec<Rank> {
        let files = self.inner.files.table.borrow();
        let writers = files.writers.get(&ino);
        writers.into_iter().flatten().copied().collect()
    }

    /// The other nodes that have a file of this server open.
    pub(super) fn holders_of(&self, ino: Ino) -> Vec<Rank> {
        let files = self.inner.files.table.borrow();
        let holders = files.holders.get(&ino);
        holders.into_iter().flatten().copied().collect()
    }

    pub(super) fn end_writer(&self, ino: Ino, writer: Rank, lost: bool) {
        self.end_appends_of(ino, writer, lost);
        match lost {
            true => self.await_token(ino, writer),
            false => self.end_token(ino, writer),
        }
        let until_ns = self.now_ns() + AWAITED_NS;
        let mut files = self.inner.files.table.borrow_mut();
        if !lost {
            files.forget_lost_writer(ino, writer);
        }
        if let Some(writers) = files.writers.get_mut(&ino) {
            let wrote = writers.remove(&writer);
            let unwritten = writers.is_empty();
            if unwritten {
                files.writers.remove(&ino);
            }
            if wrote && lost {
                let lost = files.lost_writers.entry(ino).or_default();
                lost.insert(writer, until_ns);
            }
            drop(files);
            if unwritten {
                self.end_appends(ino);
            }
        }
    }

    /// The files of this server that this node may write.
    pub(super) fn own_written(&self) -> Vec<Ino> {
        let files = self.inner.files.table.borrow();
        let all = files.writers.iter();
        all.filter(|(_, by)| by.contains(&self.rank()))
            .map(|(ino, _)| *ino)
            .collect()
    }

    /// Ends this node's writing of the given files of this server that no program here has open,
    /// once everything written is published: others' appends go behind it.
    pub(super) fn end_own_writers(&self, written: &[Ino], open: &HashSet<Ino>) {
        for ino in written.iter().filter(|ino| !open.contains(ino)) {
            if !self.is_in_flight(*ino) && !self.node(|node| node.is_written(*ino)) {
                self.end_writer(*ino, self.rank(), false);
            }
        }
    }

    /// Notes that a foreign file has no name any more.
    pub(super) fn unname_here(&self, ino: Ino) {
        if let Some(known) = self.inner.files.table.borrow_mut().stand_ins.get_mut(&ino) {
            known.unnamed = true;
        }
    }

    pub(super) fn is_unnamed_here(&self, ino: Ino) -> bool {
        let files = self.inner.files.table.borrow();
        files.stand_ins.get(&ino).is_some_and(|known| known.unnamed)
    }

    pub(in crate::cluster) fn add_holder(&self, ino: Ino, holder: Rank) {
        if holder == self.rank() {
            return;
        }
        let mut files = self.inner.files.table.borrow_mut();
        files.holders.entry(ino).or_default().insert(holder);
        drop(files);
        self.node(|node| node.pin(ino));
    }

    /// The files of this server that another server holds.
    pub(super) fn held_by(&self, rank: Rank) -> Vec<Ino> {
        let files = self.inner.files.table.borrow();
        let all = files.holders.iter();
        all.filter(|(_, by)| by.contains(&rank))
            .map(|(ino, _)| *ino)
            .collect()
    }

    /// Notes the files that a given-up server holds: it must learn of later changes when it is
    /// back.
    pub(super) fn note_held(&self, rank: Rank) {
        let held = self.held_by(rank);
        let mut files = self.inner.files.table.borrow_mut();
        let missed = files.missed.entry(rank).or_default();
        for ino in held {
            missed.entry(ino).or_insert(None);
        }
    }

    /// Sets the files that a server holds; it holds no others, and believes no lease. Returns the
    /// truncations that it did not hear of.
    pub(in crate::cluster) fn keep_held(
        &self,
        rank: Rank,
        held: &BTreeSet<Ino>,
    ) -> Vec<(Ino, u64)> {
        let missed = {
            let mut files = self.inner.files.table.borrow_mut();
            for leases in files.leases.values_mut() {
                leases.remove(&rank);
            }
            files.missed.remove(&rank).unwrap_or_default()
        };
        self.drop_holds(rank, |ino| !held.contains(&ino));
        let cuts = missed.into_iter();
        cuts.filter_map(|(ino, cut)| Some((ino, cut?))).collect()
    }

    /// Notes that a file was cut: holders, and possible holders, that cannot be told learn of it
    /// when they are back.
    fn note_missed(&self, ino: Ino, size: u64, holders: &[Rank], lost: &[Rank]) {
        let mut files = self.inner.files.table.borrow_mut();
        for rank in lost {
            let missed = files.missed.entry(*rank).or_default();
            missed.entry(ino).or_insert(None);
        }
        for (rank, missed) in &mut files.missed {
            if holders.contains(rank) && !lost.contains(rank) {
                continue;
            }
            if let Some(cut) = missed.get_mut(&ino) {
                *cut = Some(cut.map_or(size, |cut| cut.min(size)));
            }
        }
    }

    /// Notes the servers that heard of a truncation: it includes any that they missed before and
    /// that cut no deeper.
    fn note_told(&self, ino: Ino, size: u64, told: impl Iterator<Item = Rank>) {
        let mut files = self.inner.files.table.borrow_mut();
        for rank in told {
            let missed = files.missed.get_mut(&rank);
            if let Some(cut) = missed.and_then(|missed| missed.get_mut(&ino)) {
                *cut = cut.filter(|cut| *cut < size);
            }
        }
    }

    /// The files of another server that this one holds. It counts as the writer of those that
    /// programs here write, and of those with unpublished bytes, which may be from before a
    /// restart.
    pub(in crate::cluster) fn held_of(&self, home: Rank) -> peer::Begin {
        let dirty: BTreeSet<Ino> = self.dirty().into_iter().collect();
        let held = self.stand_ins_of(home).into_iter().map(|ino| {
            let written = |local| {
                let attr = self.node(|node| node.attr_of(local));
                attr.is_ok_and(|attr| attr.block != 0)
            };
            let writes = dirty.contains(&ino) || self.local(ino).is_some_and(written);
            (ino, writes)
        });
        peer::Begin {
            held: held.collect(),
            renames_since: self.oldest_rename(),
        }
    }

    pub(in crate::cluster) async fn grant_lease(
        &self,
        from: Rank,
        ino: Ino,
    ) -> Result<Attr, FsError> {
        let mut _turn = None;
        if is_raw(&self.node(|node| node.attr_of(ino))?) {
            self.announced().await;
            _turn = Some(self.hold_in_time(&self.inner.files.granting, ino).await?);
            self.end_writers(ino, from).await?;
        }
        self.await_truncation(ino).await?;
        let attr = self.hold(from, ino)?;
        let mut files = self.inner.files.table.borrow_mut();
        files.leases.entry(ino).or_default().insert(from);
        Ok(attr)
    }

    /// Brings a stand-in up to date, and keeps it so until it is recalled.
    pub(in crate::cluster) async fn lease_here(&self, ino: Ino) -> Result<(), FsError> {
        let ino = self.resolve(ino)?;
        if ino.rank() == self.rank() {
            if self.node(|node| node.attr_of(ino))?.ask {
                self.read_own(ino).await?;
            }
            return Ok(());
        }
        let begun_ns = self.now_ns();
        loop {
            let local = self.local(ino).ok_or(FsError::Stale)?;
            let attr = self.node(|node| node.attr_of(local))?;
            if attr.fresh {
                return Ok(());
            }
            self.settle_size(ino, local).await?;
            let (recalls, asked_ns) = (self.recalls(ino), self.now_ns());
            let asked = self.call_in(ino.rank(), peer::Lease { ino }).await;
            if asked.as_ref().err() == Some(&FsError::Unreachable) {
                self.miss_file(ino);
            }
            let (attr, session) = asked?;
            let holds = self.is_session(ino.rank(), session) && self.recalls(ino) == recalls;
            if holds && self.believe_lease(ino.rank(), asked_ns) {
                return self.refresh_here(local, &attr, true);
            }
            // A home that answers only after the term cannot be read from.
            if self.now_ns() - begun_ns > LONGEST_NS {
                return Err(FsError::Unreachable);
            }
        }
    }

    /// Publishes this node's bytes of a file that no program here writes any more, so that its home
    /// knows the file's size.
    async fn settle_size(&self, ino: Ino, local: Ino) -> Result<(), FsError> {
        let written = self.node(|node| node.pending_count(local) > 0);
        let writers = self.node(|node| node.attr_of(local))?.block != 0;
        if (written || self.is_in_flight(ino)) && !writers {
            self.flush(ino).await?;
        }
        Ok(())
    }

    /// Another node changed a file: stops believing this node's copy of its state, and wakes its
    /// mounts.
    pub(in crate::cluster) fn recall_here(&self, ino: Ino) {
        if self.has_all_extents() {
            return;
        }
        self.doubt_file(ino);
        if let Some(local) = self.local(ino) {
            self.node(|node| node.wake_mounts(local));
        }
    }

    /// Stops believing this node's copy of a file's state; its mounts keep their pages, since the
    /// change came from here.
    fn doubt_file(&self, ino: Ino) {
        self.inner
            .files
            .recalled
            .set(self.inner.files.recalled.get() + 1);
        self.inner.files.leaving.add_news(ino);
        self.forget_map(ino);
        if let Some(known) = self.inner.files.table.borrow_mut().stand_ins.get_mut(&ino) {
            known.recalls += 1;
        }
        if let Some(local) = self.local(ino) {
            self.node(|node| node.recall(local));
        }
    }

    /// Recalls all leases of a file of this server, except that of `writer`. A server that does not
    /// answer stops believing its lease when the term is over. When this returns, no server
    /// believes the state from before the call, even if another task told it.
    pub(in crate::cluster) async fn recall_leases(&self, ino: Ino, writer: Option<Rank>) {
        self.announced().await;
        let ranks = self.take_leases(ino, writer);
        // Servers that another task is telling may still believe the state before this change, too.
        let earlier = {
            let files = self.inner.files.table.borrow();
            files.recalling.get(&ino).cloned().unwrap_or_default()
        };
        if !ranks.is_empty() {
            let (over, recalling) = oneshot::channel();
            self.add_recall(ino, recalling.shared());
            let told = self.tell(&ranks, &News::Recall(peer::Recall { ino })).await;
            join_all(told.lost.into_iter().map(|rank| self.outwait(rank))).await;
            let _ = over.send(());
            self.drop_ended_recalls(ino);
        }
        join_all(earlier).await;
        if writer == Some(self.rank()) {
            self.doubt_file(ino);
        } else {
            self.recall_here(ino);
        }
    }

    /// Returns true if a server other than `writer` believes, or may believe, its lease of a file
    /// of this server.
    pub(super) fn is_leased_to_others(&self, ino: Ino, writer: Rank) -> bool {
        let files = self.inner.files.table.borrow();
        let mut leases = files.leases.get(&ino).into_iter().flatten();
        leases.any(|rank| *rank != writer) || files.recalling.contains_key(&ino)
    }

    /// Ends the leases of a file; returns the servers that had them.
    fn take_leases(&self, ino: Ino, writer: Option<Rank>) -> Vec<Rank> {
        let mut files = self.inner.files.table.borrow_mut();
        let Some(leases) = files.leases.get_mut(&ino) else {
            return Vec::new();
        };
        // The writer's lease stays, so the writer must be told of the next write.
        let kept = writer.filter(|writer| leases.contains(writer));
        let recalled = std::mem::take(leases);
        leases.extend(kept);
        recalled.into_iter().filter(|r| Some(*r) != kept).collect()
    }

    fn add_recall(&self, ino: Ino, recalling: Recalling) {
        let mut files = self.inner.files.table.borrow_mut();
        files.recalling.entry(ino).or_default().push(recalling);
    }

    fn drop_ended_recalls(&self, ino: Ino) {
        let mut files = self.inner.files.table.borrow_mut();
        let Some(recalls) = files.recalling.get_mut(&ino) else {
            return;
        };
        recalls.retain_mut(|recall| recall.now_or_never().is_none());
        if recalls.is_empty() {
            files.recalling.remove(&ino);
        }
    }

    /// Makes the two sizes of each own file one: the size that the programs of this node see in the
    /// shared tables, and the published size, which all other nodes are told. The greater one stays.
    ///
    /// An operation that was cut off leaves them different. What makes a file longer (a truncation,
    /// an allocation, another node's publish) raises the size in shared memory before the journal
    /// has it. What makes a file shorter leaves the old size in the journal until all bytes behind
    /// the new end are erased. Of a file in `dirty` the node's own size may be greater: it is
    /// published together with the bytes.
    pub(in crate::cluster) fn unify_sizes(&self, dirty: &[Ino]) {
        let mut files = self.inner.files.table.borrow_mut();
        for (ino, size) in self.node(|node| node.own_sizes()) {
            let published = files.published.get(&ino).map_or(0, |file| file.size);
            if size < published {
                let raised = self.node(|node| node.raise_to(ino, published, 0));
                debug_assert!(raised.is_ok(), "{ino:?} is a file");
            } else if size > published && dirty.binary_search(&ino).is_err() {
                files.published.entry(ino).or_default().size = size;
            }
        }
    }

    /// Raises the size of a file of this server, also as other nodes see it.
    fn raise_published(&self, ino: Ino, size: u64, mtime_ns: i64) -> Result<(), FsError> {
        self.node(|node| node.raise_to(ino, size, mtime_ns))?;
        let mut files = self.inner.files.table.borrow_mut();
        let file = files.published.entry(ino).or_default();
        file.size = file.size.max(size);
        Ok(())
    }

    /// Applies the changes that a server's publish made to a file of this server.
    pub(in crate::cluster) async fn published(
        &self,
        from: Rank,
        op: peer::Published,
    ) -> Result<(), FsError> {
        if op.size > MAX_OFFSET {
            return Err(FsError::TooBig);
        }
        self.raise_published(op.ino, op.size, op.mtime_ns)?;
        let anew = self.count_anew(from, op.ino, &op.publishes);
        self.add_stored(op.ino, op.stored.saturating_add(anew));
        self.recall_leases(op.ino, Some(from)).await;
        if op.ended {
            self.end_token(op.ino, from);
        }
        Ok(())
    }

    pub(in crate::cluster) async fn set_attributes(
        &self,
        op: proto::SetAttr,
    ) -> Result<(), FsError> {
        let ino = self.resolve(op.ino)?;
        let local = self.local(ino).filter(|_| op.mtime_ns.is_some());
        if let Some(local) = local.filter(|local| self.node(|node| node.is_file(*local))) {
            // A later publish of earlier writes must not set its time.
            self.flush(ino).await?;
            self.node(|node| node.forget_cell_times(local));
        }
        let set = proto::SetAttr { ino, ..op };
        self.call(ino.rank(), peer::SetAttr { set }).await?;
        self.recall_here(ino);
        Ok(())
    }
}
