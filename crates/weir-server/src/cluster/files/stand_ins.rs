//! Files of several servers: stand-ins at this node, and the holders and leases of files at their
//! home.
//!
//! A node that has a foreign file open *holds* it: the home keeps the inode while it is held. A
//! node that reads one has a *lease*: its stand-in shows the home's attributes, and the node may
//! keep the file's extents until the home recalls the lease.

mod truncate;

use std::collections::{BTreeSet, HashSet};

use futures_channel::oneshot;
use futures_util::future::join_all;
use futures_util::FutureExt as _;
use weir_core::extent::MAX_OFFSET;
use weir_core::journal::Item;
use weir_core::names::{Attr, FileType, Lamination};
use weir_core::proto::peer::{self, News};
use weir_core::proto::{self, Cause, FsError, Kept, Served};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::extents::WriteTables;
use crate::cluster::files::holders::WritersLeft;
use crate::cluster::files::leaving::HoldRequest;
use crate::cluster::files::{
    FileParts, FileSteps, FilesNeeds, NamesForFiles, StandInFiles, AWAITED_NS,
};
use crate::cluster::visibility::is_raw;

/// If a home takes longer than this to grant a lease, the read fails; ns.
const LONGEST_NS: i64 = 20_000_000_000;
/// With this many stand-ins, attributes of further files are read without one.
const LOOKED_AT_MOST: usize = 1 << 16;

/// A foreign file that is known here.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandIn {
    pub(super) local: Ino,
    pub(super) used_ns: i64,
    /// The number of recalls of the lease.
    recalls: u64,
    /// True if the file has no name any more.
    pub(super) unnamed: bool,
    /// True if programs of this node have, or had, the file open for writing.
    pub(super) written: bool,
    /// The last truncation done here: if it arrives again, by another way down the tree, it must
    /// not cut later writes.
    cut: u64,
}

impl StandIn {
    fn new(local: Ino, now_ns: i64) -> StandIn {
        StandIn {
            local,
            used_ns: now_ns,
            recalls: 0,
            unnamed: false,
            written: false,
            cut: 0,
        }
    }

    /// The stand-in of a server that was killed; its attributes are not to be believed.
    pub(super) fn taken_up(local: Ino, now_ns: i64) -> StandIn {
        StandIn {
            written: true,
            ..StandIn::new(local, now_ns)
        }
    }
}

impl<S: FilesNeeds> StandInFiles<S> {
    /// Returns true if files of other servers are known here.
    pub(in crate::cluster) fn has_stand_ins(&self) -> bool {
        !self.state().stand_ins.borrow().is_empty()
    }

    /// The files of one other server that are known here.
    pub(in crate::cluster) fn stand_ins_of(&self, home: Rank) -> Vec<Ino> {
        let stand_ins = self.state().stand_ins.borrow();
        let known = stand_ins.keys();
        known.filter(|ino| ino.rank() == home).copied().collect()
    }

    fn recalls(&self, ino: Ino) -> u64 {
        let stand_ins = self.state().stand_ins.borrow();
        stand_ins.get(&ino).map_or(0, |known| known.recalls)
    }

    /// Prepares a file for being open here; returns its attributes, with its number here.
    pub(in crate::cluster) async fn hold_here(
        &self,
        ino: Ino,
        write: bool,
    ) -> Result<Attr, FsError> {
        let ino = self.server.resolve(ino)?;
        if ino.rank() == self.server.rank() {
            if write {
                self.add_writer(ino, self.server.rank()).await;
            }
            return self.server.node(|node| node.writers().attr_now(ino));
        }
        if let Some(local) = self.server.local(ino) {
            let believed = match write {
                true => None, // The home must hear of it.
                false => self.believed_here(ino, local)?,
            };
            if let Some(attr) = believed {
                return Ok(attr);
            }
            self.settle_size(ino, local).await?;
        }
        let ends = self.server.ends();
        let asking = ends.begin_hold(ino).await;
        loop {
            let (news, asked_ns) = (asking.news(), self.server.peers().now_ns());
            let asked = self.server.call_in(ino.rank(), peer::Hold { ino, write });
            let (attr, session) = asked.await?;
            // If the home began a new session while the answer was on its way, the file is not
            // held. An answer that a truncation or a lamination overtook does not contain it.
            if self.server.peers().is_session(ino.rank(), session) && asking.news() == news {
                let seen = self.stand_in_for(&attr);
                drop(asking);
                if seen.is_err() {
                    self.server.ends().leave_unknown(ino);
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
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.written = true;
        }
        if !self.server.peers().believe_lease(ino.rank(), asked_ns) {
            self.server.appends().share_appends_here(ino);
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
        let now_ns = self.server.peers().now_ns();
        let known = {
            let mut stand_ins = self.state().stand_ins.borrow_mut();
            stand_ins.get_mut(&attr.home).map(|known| {
                known.used_ns = now_ns;
                known.local
            })
        };
        let local = if let Some(local) = known {
            local
        } else {
            let local = self.server.node(|node| node.names().adopt_file(attr))?;
            let new = StandIn {
                // The home told the servers that held it then.
                unnamed: attr.nlink == 0,
                ..StandIn::new(local, now_ns)
            };
            let mut stand_ins = self.state().stand_ins.borrow_mut();
            stand_ins.insert(attr.home, new);
            local
        };
        self.server
            .node(|node| node.known_to_keep().keep_stand_in(attr.home, local));
        let leased = known.is_some() && self.server.node(|node| node.names().attr_of(local))?.fresh;
        if !leased {
            self.refresh_here(local, attr, false)?;
        }
        self.server.node(|node| node.writers().attr_now(local))
    }

    /// Updates a stand-in to show the home's attributes and this node's unpublished bytes: its last
    /// writer may have ended while the home was asked.
    fn refresh_here(&self, local: Ino, attr: &Attr, leased: bool) -> Result<(), FsError> {
        let in_flight = self.server.extents().is_in_flight(attr.home);
        self.server.node(|node| {
            let mut attr = *attr;
            // While a program writes, the block has the size, and the stand-in's is outdated.
            if !node.writers().has_writers_of(local)
                && (in_flight || node.writers().pending_count(local) > 0)
            {
                attr.size = attr.size.max(node.names().attr_of(local)?.size);
            }
            node.files().refresh(local, &attr, leased)
        })
    }

    /// Stops believing answers that the home gave before this node's publish reached it.
    pub(in crate::cluster) fn doubt_answers(&self, ino: Ino) {
        self.state().leaving.add_news(ino);
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.recalls += 1;
        }
    }

    /// The attributes of an inode as this node sees them. A file of another server that no program
    /// writes gets a stand-in with a lease, so that it can be looked at again, and opened, without
    /// a request.
    pub(in crate::cluster) fn attr_for_client(&self, ino: Ino) -> Served<Result<Attr, FsError>> {
        if self.server.has_all_extents() {
            return Served::Now(self.server.node(|node| node.writers().attr_now(ino)));
        }
        self.later(|this| async move { this.attr_of_home(ino).await })
    }

    async fn attr_of_home(&self, ino: Ino) -> Result<Attr, FsError> {
        let ino = self.server.resolve(ino)?;
        if self.server.names().has_lost_home(ino) && self.server.local(ino).is_none() {
            return self.server.names().attr_without_home(ino).await;
        }
        let is_foreign = ino.rank() != self.server.rank();
        if let Some(local) = self.server.local(ino).filter(|_| is_foreign) {
            if let Some(attr) = self.believed_here(ino, local)? {
                return Ok(attr);
            }
            self.settle_size(ino, local).await?;
        }
        let keep = is_foreign && self.has_room_to_look_at(ino);
        let ends = self.server.ends();
        let asking = match keep {
            true => Some(ends.begin_hold(ino).await),
            false => None,
        };
        let news = |asking: &Option<HoldRequest<'_>>| asking.as_ref().map_or(0, HoldRequest::news);
        let (before, asked_ns) = (news(&asking), self.server.peers().now_ns());
        let asked = self.server.call_in(ino.rank(), peer::GetAttr { ino, keep });
        let (told, session) = asked.await?;
        // A recall, or this node's own publish, may have overtaken the answer.
        let is_newest = news(&asking) == before;
        let mut attr = told.what;
        if told.may_keep && self.server.peers().is_session(ino.rank(), session) {
            let Ok(seen) = self.stand_in_for(&attr) else {
                drop(asking);
                self.server.ends().leave_unknown(ino);
                return Ok(attr);
            };
            if self.server.peers().believe_lease(ino.rank(), asked_ns) && is_newest {
                self.refresh_here(seen.ino, &attr, true)?;
            }
            return self.server.node(|node| node.writers().attr_now(seen.ino));
        }
        attr.block = 0;
        // This node may have let go of the file meanwhile.
        let Some(local) = self.server.local(ino) else {
            return Ok(attr);
        };
        if attr.file_type() == FileType::File {
            let here = self.server.node(|node| node.writers().attr_now(local))?;
            attr.ino = local;
            if here.block != 0 || ino.rank() == self.server.rank() {
                attr.size = attr.size.max(here.size);
                attr.mtime_ns = attr.mtime_ns.max(here.mtime_ns);
            }
        }
        Ok(attr)
    }

    /// The attributes of a file of another server, if this node believes those of its stand-in;
    /// from now on programs of this node see them without a request.
    fn believed_here(&self, ino: Ino, local: Ino) -> Result<Option<Attr>, FsError> {
        if !self.server.node(|node| node.names().attr_of(local))?.fresh {
            return Ok(None);
        }
        self.server.peers().use_lease(ino.rank());
        let now_ns = self.server.peers().now_ns();
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.used_ns = now_ns;
        }
        self.server.node(|node| {
            node.known_to_keep().keep_stand_in(ino, local);
            node.writers().attr_now(local).map(Some)
        })
    }

    fn has_room_to_look_at(&self, ino: Ino) -> bool {
        let stand_ins = self.state().stand_ins.borrow();
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
        if op.keep && from != self.server.rank() && self.may_lease_unasked(from, ino)? {
            let what = self.grant_lease(from, ino).await?;
            let may_keep = true;
            return Ok(Kept { what, may_keep });
        }
        self.server.tokens().publish_raw(from, ino).await?;
        let what = self.attr_at_home(ino).await?;
        let may_keep = false;
        Ok(Kept { what, may_keep })
    }

    fn may_lease_unasked(&self, from: Rank, ino: Ino) -> Result<bool, FsError> {
        let attr = self.server.node(|node| node.names().attr_of(ino))?;
        let is_cut = self.state().published.borrow().is_being_cut(ino);
        let is_file = attr.file_type() == FileType::File && attr.nlink > 0;
        Ok(is_file && !is_cut && (!is_raw(&attr) || !self.server.tokens().others_write(from, ino)))
    }

    /// The attributes of an inode of this server, as published.
    pub(super) async fn attr_at_home(&self, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.server.node(|node| node.names().attr_of(ino))?;
        match attr.file_type() {
            FileType::Dir => return self.server.names().dir_attr(attr).await,
            FileType::File => self.show_published(&mut attr),
            FileType::Symlink | FileType::Fifo | FileType::Socket => {}
        }
        attr.ask = false;
        attr.block = 0;
        Ok(attr)
    }

    pub(super) fn published_size(&self, ino: Ino) -> u64 {
        self.state().published.borrow().of_file(ino).size
    }

    /// Sets a file's attributes to those that other nodes see.
    fn show_published(&self, attr: &mut Attr) {
        let seen = self.state().published.borrow().seen(attr.home);
        (attr.size, attr.allocated) = (seen.size, seen.stored);
        attr.block = 0;
    }

    /// Adds to the stored bytes of a file of this server.
    pub(super) fn add_stored(&self, ino: Ino, stored: i64) {
        let now = self.state().published.borrow_mut().add_stored(ino, stored);
        self.note_published(ino);
        self.server.node(|node| node.writes().set_stored(ino, now));
    }

    fn note_published(&self, ino: Ino) {
        let item = self.state().published.borrow().item(ino);
        if let Some(item) = item {
            self.server.note(&item);
        }
    }

    /// The stored bytes of those of a server's publishes that were not counted before. A server repeats a publish if it
    /// does not know that it arrived, also after a restart of either server.
    fn count_anew(&self, from: Rank, ino: Ino, publishes: &[(u64, i64)]) -> i64 {
        let counted = self
            .state()
            .published
            .borrow_mut()
            .count_anew(from, ino, publishes);
        let (stored, last) = counted;
        if let Some(last) = last {
            self.server.note(&Item::PublishCounted(ino, from, last));
        }
        stored
    }

    /// Notes that a server will not repeat any publish to a file.
    pub(in crate::cluster) fn forget_counted(&self, from: Rank, ino: Ino) {
        let counted = self
            .state()
            .published
            .borrow_mut()
            .forget_counted(from, ino);
        if counted {
            self.server.note(&Item::PublishCounted(ino, from, 0));
        }
    }

    /// Sets attributes of an inode of this server, or of its stand-in here.
    pub(in crate::cluster) async fn set_attr_at_home(
        &self,
        set: proto::SetAttr,
    ) -> Result<(), FsError> {
        let before = self.server.node(|node| node.names().attr_of(set.ino))?;
        self.server.node(|node| node.files().set_attributes(&set))?;
        let own = set.ino.rank() == self.server.rank();
        let attr = self.server.node(|node| node.names().attr_of(set.ino))?;
        match attr.file_type() {
            FileType::Dir if own => self.server.names().tell_dir(&attr, set.mtime_ns).await,
            FileType::Dir => self.server.node(|node| node.known().drop_guard(set.ino)),
            FileType::File | FileType::Symlink | FileType::Fifo | FileType::Socket => {}
        }
        if own && attr.file_type() == FileType::File {
            self.recall_leases(set.ino, None).await;
            if set.policy.is_some_and(|policy| policy != before.policy) {
                self.server
                    .sharing()
                    .policy_changed(set.ino, before.policy)
                    .await?;
            }
            if attr.lamination == Lamination::Due {
                self.server
                    .sharing()
                    .laminate_at_home(set.ino, Cause::Close)
                    .await?;
            } else if attr.lamination != before.lamination {
                self.server.sharing().mark_holders(set.ino).await?;
            }
        }
        Ok(())
    }

    pub(super) fn hold(&self, from: Rank, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.server.node(|node| node.names().attr_of(ino))?;
        if attr.file_type() != FileType::File {
            return Err(FsError::Invalid);
        }
        self.server.peers().check_session_of(from)?;
        self.add_holder(ino, from);
        attr.ask = false;
        self.show_published(&mut attr);
        Ok(attr)
    }

    /// Adds a node that may write a file of this server.
    pub(in crate::cluster) async fn add_writer(&self, ino: Ino, writer: Rank) {
        if self.server.has_all_extents() {
            return;
        }
        // A node that repeats the request, because the answer was lost, waits for the first one's
        // messages, too.
        if self.know_writer(ino, writer) || self.server.appends().places_untold(ino, writer) {
            self.tell_of_writer(ino, writer).await;
        }
    }

    /// Notes a node that may write a file. Returns true if it was not known yet: other nodes must learn of it.
    pub(in crate::cluster) fn know_writer(&self, ino: Ino, writer: Rank) -> bool {
        self.state().holders.borrow_mut().add_writer(ino, writer)
    }

    /// See [`StandInFiles::know_writer`].
    pub(in crate::cluster) async fn tell_of_writer(&self, ino: Ino, writer: Rank) {
        self.server.appends().share_appends(ino, writer).await;
    }

    /// Returns true if a node that cannot be reached may have unpublished bytes of a file of this server. It may come
    /// back with them, but others wait for it only for a time.
    pub(super) fn awaits_writer(&self, ino: Ino) -> bool {
        self.state()
            .holders
            .borrow()
            .awaits_writer(ino, self.server.peers().now_ns())
    }

    /// Stops waiting for a server that has begun a session: it has named the files with unpublished bytes.
    pub(in crate::cluster) fn await_writer_no_more(&self, writer: Rank) {
        self.state()
            .holders
            .borrow_mut()
            .await_writer_no_more(writer);
    }

    /// The nodes that may write a file of this server.
    pub(super) fn writers_of(&self, ino: Ino) -> Vec<Rank> {
        self.state().holders.borrow().writers_of(ino)
    }

    /// The other nodes that have a file of this server open.
    pub(super) fn holders_of(&self, ino: Ino) -> Vec<Rank> {
        self.state().holders.borrow().holders_of(ino)
    }

    pub(super) fn end_writer(&self, ino: Ino, writer: Rank, lost: bool) {
        self.server.appends().end_appends_of(ino, writer, lost);
        match lost {
            true => self.server.tokens().await_token(ino, writer),
            false => self.server.tokens().end_token(ino, writer),
        }
        let until_ns = lost.then(|| self.server.peers().now_ns() + AWAITED_NS);
        let left = self
            .state()
            .holders
            .borrow_mut()
            .end_writer(ino, writer, until_ns);
        if left == WritersLeft::None {
            self.server.appends().end_appends(ino);
        }
    }

    /// The files of this server that this node may write.
    pub(super) fn own_written(&self) -> Vec<Ino> {
        self.state().holders.borrow().written_by(self.server.rank())
    }

    /// Ends this node's writing of those of the given own files that no program here has open, once all its writes are
    /// published: appends of others go behind them.
    pub(super) fn end_own_writers(&self, written: &[Ino], open: &HashSet<Ino>) {
        for ino in written.iter().filter(|ino| !open.contains(ino)) {
            if !self.server.extents().is_in_flight(*ino)
                && !self.server.node(|node| node.writers().is_written(*ino))
            {
                self.end_writer(*ino, self.server.rank(), false);
            }
        }
    }

    /// Notes that a foreign file has no name any more.
    pub(super) fn unname_here(&self, ino: Ino) {
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.unnamed = true;
        }
    }

    pub(super) fn is_unnamed_here(&self, ino: Ino) -> bool {
        let stand_ins = self.state().stand_ins.borrow();
        stand_ins.get(&ino).is_some_and(|known| known.unnamed)
    }

    pub(in crate::cluster) fn add_holder(&self, ino: Ino, holder: Rank) {
        if holder == self.server.rank() {
            return;
        }
        self.state().holders.borrow_mut().add_holder(ino, holder);
        self.server.node(|node| node.files().tables.pin(ino));
    }

    /// Returns true if no other server has a file of this one open, or believes its state.
    pub(in crate::cluster) fn is_private(&self, ino: Ino) -> bool {
        self.server.appends().knows_all_writers() && self.state().holders.borrow().is_private(ino)
    }

    /// The files of this server that another server holds.
    pub(super) fn held_by(&self, rank: Rank) -> Vec<Ino> {
        self.state().holders.borrow().held_by(rank)
    }

    /// Sets the files that a server holds; it holds no others, and believes no lease. Returns the truncations that it
    /// missed.
    pub(in crate::cluster) fn keep_held(
        &self,
        rank: Rank,
        held: &BTreeSet<Ino>,
    ) -> Vec<(Ino, u64)> {
        let cuts = {
            let mut holders = self.state().holders.borrow_mut();
            holders.end_leases_of(rank);
            holders.take_missed_cuts(rank)
        };
        self.server
            .ends()
            .drop_holds(rank, |ino| !held.contains(&ino));
        cuts
    }

    /// The files of another server that this one holds. It counts as the writer of those that
    /// programs here write, and of those with unpublished bytes, which may be from before a
    /// restart.
    pub(in crate::cluster) fn held_of(&self, home: Rank) -> peer::Begin {
        let dirty: BTreeSet<Ino> = self.server.extents().dirty().into_iter().collect();
        let held = self.stand_ins_of(home).into_iter().map(|ino| {
            let written = |local| {
                let attr = self.server.node(|node| node.names().attr_of(local));
                attr.is_ok_and(|attr| attr.block != 0)
            };
            let writes = dirty.contains(&ino) || self.server.local(ino).is_some_and(written);
            (ino, writes)
        });
        peer::Begin {
            held: held.collect(),
            renames_since: self.server.names().oldest_rename(),
        }
    }

    pub(in crate::cluster) async fn grant_lease(
        &self,
        from: Rank,
        ino: Ino,
    ) -> Result<Attr, FsError> {
        let mut _turn = None;
        if is_raw(&self.server.node(|node| node.names().attr_of(ino))?) {
            self.server.announced().await;
            _turn = Some(
                self.server
                    .peers()
                    .hold_in_time(&self.state().granting, ino)
                    .await?,
            );
            self.server.tokens().end_writers(ino, from).await?;
        }
        self.server.truncation().await_truncation(ino).await?;
        let attr = self.hold(from, ino)?;
        self.state().holders.borrow_mut().add_lease(ino, from);
        Ok(attr)
    }

    /// Brings a stand-in up to date, and keeps it so until it is recalled.
    pub(in crate::cluster) async fn lease_here(&self, ino: Ino) -> Result<(), FsError> {
        let ino = self.server.resolve(ino)?;
        if ino.rank() == self.server.rank() {
            if self.server.node(|node| node.names().attr_of(ino))?.ask {
                self.server.tokens().read_own(ino).await?;
            }
            return Ok(());
        }
        let begun_ns = self.server.peers().now_ns();
        loop {
            let local = self.server.local(ino).ok_or(FsError::Stale)?;
            let attr = self.server.node(|node| node.names().attr_of(local))?;
            if attr.fresh {
                return Ok(());
            }
            self.settle_size(ino, local).await?;
            let (recalls, asked_ns) = (self.recalls(ino), self.server.peers().now_ns());
            let asked = self.server.call_in(ino.rank(), peer::Lease { ino }).await;
            if asked.as_ref().err() == Some(&FsError::Unreachable) {
                self.server.miss_file(ino);
            }
            let (attr, session) = asked?;
            let holds =
                self.server.peers().is_session(ino.rank(), session) && self.recalls(ino) == recalls;
            if holds && self.server.peers().believe_lease(ino.rank(), asked_ns) {
                return self.refresh_here(local, &attr, true);
            }
            // A home that answers only after the term cannot be read from.
            if self.server.peers().now_ns() - begun_ns > LONGEST_NS {
                return Err(FsError::Unreachable);
            }
        }
    }

    /// Publishes this node's bytes of a file that no program here writes any more, so that its home
    /// knows the file's size.
    async fn settle_size(&self, ino: Ino, local: Ino) -> Result<(), FsError> {
        let written = self
            .server
            .node(|node| node.writers().pending_count(local) > 0);
        let writers = self.server.node(|node| node.names().attr_of(local))?.block != 0;
        if (written || self.server.extents().is_in_flight(ino)) && !writers {
            self.server.extents().publish(ino).await?;
        }
        Ok(())
    }

    /// Stops believing this node's copy of a file's state, and wakes the file's mounts: another node changed it.
    pub(in crate::cluster) fn recall_here(&self, ino: Ino) {
        if self.server.has_all_extents() {
            return;
        }
        self.doubt_file(ino);
        if let Some(local) = self.server.local(ino) {
            self.server.node(|node| node.wake_mounts(local));
        }
    }

    /// Stops believing this node's copy of a file's state; its mounts keep their pages, since the
    /// change came from here.
    fn doubt_file(&self, ino: Ino) {
        self.state().recalled.set(self.state().recalled.get() + 1);
        self.state().leaving.add_news(ino);
        self.server.extents().forget_map(ino);
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.recalls += 1;
        }
        if let Some(local) = self.server.local(ino) {
            self.server.node(|node| node.names().recall(local));
        }
    }

    /// Recalls all leases of a file of this server, except that of `writer`. A server that does not
    /// answer stops believing its lease when the term is over. When this returns, no server
    /// believes the state from before the call, even if another task told it.
    pub(in crate::cluster) async fn recall_leases(&self, ino: Ino, writer: Option<Rank>) {
        self.server.announced().await;
        let holders = &self.state().holders;
        let ranks = holders.borrow_mut().take_leases(ino, writer);
        // Servers that another task is telling may still believe the state before this change, too.
        let earlier = holders.borrow().recalls_of(ino);
        if !ranks.is_empty() {
            let (over, recalling) = oneshot::channel();
            holders.borrow_mut().add_recall(ino, recalling.shared());
            let told = self
                .server
                .peers()
                .tell(&ranks, &News::Recall(peer::Recall { ino }))
                .await;
            join_all(
                told.lost
                    .into_iter()
                    .map(|rank| self.server.peers().outwait(rank)),
            )
            .await;
            let _ = over.send(());
            holders.borrow_mut().drop_ended_recalls(ino);
        }
        join_all(earlier).await;
        if writer == Some(self.server.rank()) {
            self.doubt_file(ino);
        } else {
            self.recall_here(ino);
        }
    }

    /// Returns true if a server other than `writer` believes, or may believe, its lease of a file
    /// of this server.
    pub(super) fn is_leased_to_others(&self, ino: Ino, writer: Rank) -> bool {
        self.state()
            .holders
            .borrow()
            .is_leased_to_others(ino, writer)
    }

    /// Makes the two sizes of each own file one: the size that the programs of this node see in the
    /// shared tables, and the published size, which all other nodes are told. The greater one stays.
    ///
    /// An interrupted operation leaves them different. An operation that makes a file longer (a truncation, an
    /// allocation, another node's publish) raises the size in shared memory before the journal has it. One that makes a
    /// file shorter leaves the old size in the journal until all bytes behind the new end are erased. The node's own
    /// size of a file in `dirty` may be greater: it is published together with the bytes.
    /// published together with the bytes.
    pub(in crate::cluster) fn unify_sizes(&self, dirty: &[Ino]) {
        for (ino, size) in self.server.node(|node| node.names().own_sizes()) {
            let published = self.published_size(ino);
            if size < published {
                let raised = self
                    .server
                    .node(|node| node.writes().raise_to(ino, published, 0));
                debug_assert!(raised.is_ok(), "{ino:?} is a file");
            } else if size > published && dirty.binary_search(&ino).is_err() {
                self.state().published.borrow_mut().set_size(ino, size);
            }
        }
    }

    /// Raises the size of a file of this server, also as other nodes see it.
    fn raise_published(&self, ino: Ino, size: u64, mtime_ns: i64) -> Result<(), FsError> {
        self.server
            .node(|node| node.writes().raise_to(ino, size, mtime_ns))?;
        self.state().published.borrow_mut().raise_size(ino, size);
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
            self.server.tokens().end_token(op.ino, from);
        }
        Ok(())
    }

    pub(in crate::cluster) async fn set_attributes(
        &self,
        op: proto::SetAttr,
    ) -> Result<(), FsError> {
        let ino = self.server.resolve(op.ino)?;
        let local = self.server.local(ino).filter(|_| op.mtime_ns.is_some());
        if let Some(local) =
            local.filter(|local| self.server.node(|node| node.names().is_file(*local)))
        {
            // A later publish of earlier writes must not set its time.
            self.server.extents().publish(ino).await?;
            self.server
                .node(|node| node.writers().forget_cell_times(local));
        }
        let set = proto::SetAttr { ino, ..op };
        self.server.call(ino.rank(), peer::SetAttr { set }).await?;
        self.recall_here(ino);
        Ok(())
    }
}
