//! The end of files: stand-ins that no program here needs any more, and the rest of a file at its
//! home once it has no name and no program has it open.
//!
//! A stand-in lingers for a while, because an opened file is often opened again; the stand-in of a
//! file without a name goes at once. So when a file that no program has open loses its last name,
//! its bytes are free on every node before unlink(2) returns: a program that deletes files to make
//! room finds the room.
//!
//! A home must not hear that a node lets go of a file while that node asks to hold it:
//! [`Leaving`](super::leaving::Leaving) keeps the two apart.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use weir_core::extent::MAX_OFFSET;
use weir_core::journal::Item;
use weir_core::proto::peer::{self, Unnamed};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::leaving::HoldRequest;
use crate::cluster::files::stand_ins::StandIn;
use crate::cluster::files::{FileEnds, FileParts, FileSteps, FilesNeeds};
use crate::cluster::keyed::Token;
use crate::cluster::peers::debts::Debt;

/// The time for which an unused stand-in stays, ns.
const LINGER_NS: i64 = 60_000_000_000;
/// The same for a written file: until then other nodes cannot be lent the file.
const WRITTEN_LINGER_NS: i64 = 5_000_000_000;
/// The most files that one message names to a home.
const TOLD_MOST: usize = 64;
/// The time for which unnamed files without stored bytes are gathered, ns.
const SOON_NS: i64 = 2_000_000;

impl<S: FilesNeeds> FileEnds<S> {
    /// Keeps this node from letting go of a file while it asks to hold it.
    pub(super) async fn begin_hold(&self, ino: Ino) -> HoldRequest<'_> {
        let leaving = &self.state().leaving;
        if leaving.told.is_held(&ino) {
            drop(leaving.told.hold(ino, self.server.peers().token()).await);
        }
        let mut asking = leaving.asking.borrow_mut();
        asking.entry(ino).or_default().count += 1;
        drop(asking);
        HoldRequest { leaving, ino }
    }

    /// Lets go of stand-ins that no program here uses any more. The descriptions are scanned once,
    /// for all stand-ins together.
    pub(in crate::cluster) fn let_go(&self) {
        let (written, old) = (self.server.stand_ins().own_written(), self.old_stand_ins());
        if written.is_empty() && old.is_empty() {
            return;
        }
        let open = self.server.node(|node| node.opened().open_files());
        self.server.stand_ins().end_own_writers(&written, &open);
        let unopened = old.into_iter().filter(|(_, local)| !open.contains(local));
        let unopened: Vec<(Ino, Ino)> = unopened.collect();
        if unopened.is_empty() {
            return;
        }
        for (ino, local) in &unopened {
            self.hide(*ino, *local);
        }
        let open = self.server.node(|node| node.opened().open_files());
        let mut left: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for (ino, local) in unopened {
            if !open.contains(&local) && self.ends_unopened(ino) {
                left.entry(ino.rank()).or_default().push(ino);
            } else {
                self.show_again(ino, local);
            }
        }
        for inos in left.into_values() {
            for inos in inos.chunks(TOLD_MOST) {
                self.leave(inos.to_vec());
            }
        }
    }

    /// The stand-ins that were not used for a while, or whose files have no name: global and local
    /// numbers.
    fn old_stand_ins(&self) -> Vec<(Ino, Ino)> {
        let now_ns = self.server.peers().now_ns();
        let stand_ins = self.state().stand_ins.borrow();
        let all = stand_ins.iter();
        let linger_ns = |known: &StandIn| match known.written {
            true => WRITTEN_LINGER_NS,
            false => LINGER_NS,
        };
        all.filter(|(_, known)| known.unnamed || now_ns - known.used_ns > linger_ns(known))
            .map(|(ino, known)| (*ino, known.local))
            .collect()
    }

    /// Stops programs of this node from opening a stand-in. A program checks, once its description shows the file, that
    /// the file has a name, and, if it has sent no request, that the stand-in is still fresh.
    fn hide(&self, ino: Ino, local: Ino) {
        self.server.node(|node| {
            node.known().drop_stand_in(ino);
            node.names().recall_named(local, false);
        });
    }

    /// Undoes [`FileEnds::hide`] for a stand-in that stays.
    fn show_again(&self, ino: Ino, local: Ino) {
        if !self.server.stand_ins().is_unnamed_here(ino) {
            self.server
                .node(|node| node.names().recall_named(local, true));
        }
    }

    /// Lets go of a foreign file that no program here has open, if all of it is published and no other task uses it;
    /// otherwise a later call does. Returns true if its home must be told.
    fn ends_unopened(&self, ino: Ino) -> bool {
        let leaving = &self.state().leaving;
        let busy = leaving.told.is_held(&ino) || leaving.asking.borrow().contains_key(&ino);
        !busy && self.end_stand_in(ino)
    }

    /// Tells the home of these files that this node has let go of them, before any later request to
    /// hold one of them.
    fn leave(&self, inos: Vec<Ino>) {
        let token = self.server.peers().token();
        for ino in &inos {
            self.state().leaving.told.take_free(*ino, token);
        }
        self.spawn_tell(token, inos);
    }

    /// Tells the home of these files, which the token holds in `told`.
    fn spawn_tell(&self, token: Token, inos: Vec<Ino>) {
        let this = self.clone();
        self.server.peers().spawn(async move {
            let mut told = Vec::with_capacity(inos.len());
            for ino in &inos {
                told.push(this.state().leaving.told.hold(*ino, token).await);
            }
            this.tell_left(inos).await;
        });
    }

    /// Like [`FileEnds::leave`] for one file, together with others of the same home.
    fn leave_soon(&self, ino: Ino) {
        let leaving = &self.state().leaving;
        let home = ino.rank();
        let (is_first, is_full) = {
            let mut soon = leaving.soon.borrow_mut();
            let (token, inos) = soon
                .entry(home)
                .or_insert_with(|| (self.server.peers().token(), Vec::new()));
            leaving.told.take_free(ino, *token);
            inos.push(ino);
            (inos.len() == 1, inos.len() >= TOLD_MOST)
        };
        if is_full {
            self.leave_gathered(home);
        } else if is_first {
            let this = self.clone();
            self.server.peers().spawn(async move {
                this.server
                    .peers()
                    .until(this.server.peers().now_ns() + SOON_NS)
                    .await;
                this.leave_gathered(home);
            });
        }
    }

    fn leave_gathered(&self, home: Rank) {
        let gathered = self.state().leaving.soon.borrow_mut().remove(&home);
        if let Some((token, inos)) = gathered {
            self.spawn_tell(token, inos);
        }
    }

    /// Tells the home of a file that it leased to this node, which has no stand-in for it, that
    /// this node has let go of it; unless this node asks to hold it.
    pub(in crate::cluster) fn leave_unknown(&self, ino: Ino) {
        let leaving = &self.state().leaving;
        let asked_for = leaving.asking.borrow().contains_key(&ino);
        if !asked_for && !leaving.told.is_held(&ino) && self.server.local(ino).is_none() {
            self.leave(vec![ino]);
        }
    }

    /// Lets go of a foreign file, if no program here has it open and all of it is published.
    async fn let_go_of(&self, ino: Ino) {
        let _told = self
            .state()
            .leaving
            .told
            .hold(ino, self.server.peers().token())
            .await;
        let asked_for = self.state().leaving.asking.borrow().contains_key(&ino);
        let Some(local) = self.server.local(ino).filter(|_| !asked_for) else {
            return;
        };
        self.hide(ino, local);
        if self.server.node(|node| node.opened().is_open(local)) || !self.end_stand_in(ino) {
            self.show_again(ino, local);
            return;
        }
        self.tell_left(vec![ino]).await;
    }

    /// Tells the home of some files that this node has let go of them.
    async fn tell_left(&self, inos: Vec<Ino>) {
        let Some(home) = inos.first().map(|ino| ino.rank()) else {
            return;
        };
        let count = inos.len() as u64;
        // If the home is gone, so are the holds.
        let _ = self.server.call(home, peer::Release { inos }).await;
        self.state().leaving.count_told(count);
    }

    /// Ends the stand-in of a file that no program here has open. Returns true if its home must be told.
    fn end_stand_in(&self, ino: Ino) -> bool {
        let Some(local) = self.server.local(ino) else {
            return false;
        };
        if self.server.extents().is_in_flight(ino)
            || self.server.node(|node| !node.files().end_stand_in(local))
        {
            return false;
        }
        self.state().stand_ins.borrow_mut().remove(&ino);
        self.state().shared_appends.borrow_mut().remove(&ino);
        self.server.tokens().forget_held_token(ino);
        self.server.extents().forget_map(ino);
        self.state().leaving.count_begun();
        true
    }

    /// Handles the reply that this node's request took the last name of a file that it holds.
    pub(in crate::cluster) async fn lost_its_name(&self, unnamed: Unnamed) {
        let Unnamed { ino, empty } = unnamed;
        self.server.stand_ins().recall_here(ino);
        match self.server.local(ino) {
            None => self.server.sharing().note_unknown(),
            Some(_) => self.leave_unnamed(ino, empty).await,
        }
    }

    /// Lets go of a foreign file that has no name any more, unless it is open here. `empty`:
    /// nothing of it is stored elsewhere, so its home need not hear at once.
    pub(super) async fn leave_unnamed(&self, ino: Ino, empty: bool) {
        let Some(local) = self.server.local(ino) else {
            return;
        };
        self.server.stand_ins().unname_here(ino);
        self.server.node(|node| {
            node.names().recall_named(local, false);
            node.take_in(local);
        });
        if self.server.node(|node| node.opened().is_open(local)) {
            return;
        }
        if empty
            && !self.server.extents().is_in_flight(ino)
            && self.server.node(|node| node.writers().pending_count(local)) == 0
        {
            self.server.node(|node| node.known().drop_stand_in(ino));
            if self.ends_unopened(ino) {
                self.leave_soon(ino);
            }
            return;
        }
        // Other nodes may have it open, and read this node's bytes.
        if let Err(error) = self.server.extents().publish(ino).await {
            tracing::warn!(?ino, %error, "writes to a removed file cannot be published");
        }
        self.let_go_of(ino).await;
    }

    /// Handles a node that no longer has these files of this server open.
    pub(in crate::cluster) async fn release(&self, from: Rank, inos: &[Ino]) {
        let mut unheld = false;
        for ino in inos {
            // A node that lets go of a file has published everything that it wrote.
            self.server.stand_ins().forget_counted(from, *ino);
            if self.end_hold(from, *ino, false) {
                self.server.node(|node| node.unpin(*ino));
                unheld = true;
            }
        }
        if unheld {
            self.erase_gone().await;
        }
    }

    /// Ends a node's hold; returns true if that was the last one of the file.
    fn end_hold(&self, from: Rank, ino: Ino, lost: bool) -> bool {
        self.state().holders.borrow_mut().end_lease(ino, from);
        self.server.stand_ins().end_writer(ino, from, lost);
        self.state().holders.borrow_mut().end_hold(ino, from)
    }

    /// Ends the holds of a server that was given up, unless it begins a session before its leases are over.
    pub(in crate::cluster) fn forget_holder(&self, rank: Rank) {
        self.state().holders.borrow_mut().note_held(rank);
        let this = self.clone();
        self.server.peers().spawn(async move {
            this.server.peers().outwait(rank).await;
            if this.server.peers().is_refused(rank) {
                this.drop_holds(rank, |_| true);
            }
        });
    }

    /// Ends some of a server's holds.
    pub(super) fn drop_holds(&self, rank: Rank, which: impl Fn(Ino) -> bool) {
        for ino in self
            .server
            .stand_ins()
            .held_by(rank)
            .into_iter()
            .filter(|ino| which(*ino))
        {
            if self.end_hold(rank, ino, true) {
                self.server.node(|node| node.unpin(ino));
            }
        }
        self.erase_gone_soon();
    }

    /// Frees a file of this server that lost its last name, unless a program has it open. If `asker` holds the file,
    /// the reply tells it.
    pub(in crate::cluster) async fn end_unnamed(&self, ino: Ino, asker: Rank) -> Option<Unnamed> {
        let mut holders = self.server.sharing().possible_holders(ino);
        let asker_holds = holders.contains(&asker);
        holders.retain(|rank| *rank != asker);
        if !holders.is_empty() {
            // A server that does not hear of it lets go of the file later.
            let _ = self.server.sharing().mark(ino, &holders, true).await;
        }
        self.server.node(|node| node.sweep_one(ino));
        self.erase_gone().await;
        asker_holds.then(|| Unnamed {
            ino,
            empty: holders.is_empty() && self.is_empty(ino),
        })
    }

    /// Handles a change of the names of a file of this server that no other server has open. If the file has no name
    /// any more, it ends, unless a program has it open. Its bytes are free after [`FileEnds::erase_gone`].
    pub(in crate::cluster) fn note_new_names(&self, ino: Ino) {
        if self.server.has_all_extents() {
            return; // freed when nobody else is served
        }
        self.server.stand_ins().recall_here(ino);
        let attr = self.server.node(|node| node.names().attr_of(ino));
        if attr.is_ok_and(|attr| attr.nlink == 0) {
            self.server.node(|node| node.sweep_one(ino));
        }
    }

    /// Returns true if files of this server have ended, their bytes are not free yet, and an operation waits for that.
    pub(in crate::cluster) fn has_gone(&self) -> bool {
        !self.server.has_all_extents() && self.server.node(|node| node.files().tables.has_gone())
    }

    /// Returns true if this server knows of no bytes of a file of its own.
    fn is_empty(&self, ino: Ino) -> bool {
        let stored = self.state().published.borrow().of_file(ino).stored;
        let attr = self.server.node(|node| node.writers().attr_now(ino));
        stored == 0
            && !self.server.extents().is_in_flight(ino)
            && attr.is_ok_and(|attr| attr.size == 0)
    }

    pub(in crate::cluster) fn erase_gone_soon(&self) {
        if self.server.node(|node| node.files().tables.has_gone()) {
            let this = self.clone();
            self.server
                .peers()
                .spawn(async move { this.erase_gone().await });
        }
    }

    /// Erases the rest of files of this server that have ended.
    pub(in crate::cluster) async fn erase_gone(&self) {
        let gone = self.server.node(|node| node.files().tables.take_gone());
        join_all(gone.into_iter().map(|ino| self.erase_file(ino))).await;
    }

    async fn erase_file(&self, ino: Ino) {
        // This node's publish under way arrives before the erasure. Its size does not matter: the home reports no size
        // of such a file any more.
        let extents = self.server.extents();
        let _sent = extents.hold_publishing_surely(ino).await;
        let (sent, freed) = self.server.extents().end_sending(ino);
        let file = self.state().published.borrow_mut().remove_file(ino);
        let size = file.size.max(sent);
        self.server.note(&Item::PublishedGone(ino));
        self.server.appends().forget_appends(ino);
        self.state().holders.borrow_mut().forget_lost_writers(ino);
        self.server.tokens().forget_tokens(ino);
        self.server.sharing().forget_becoming_raw(ino);
        if self.server.extents().is_kept(ino) {
            let this = self.clone();
            self.server.peers().spawn(async move {
                this.server.sharing().forget_laminated(ino).await;
            });
        }
        self.server.extents().give_back(freed).await;
        if size == 0 {
            return; // no server has extents of it
        }
        let to = size.min(MAX_OFFSET);
        let erased = self.server.extents().homes_of(ino, 0, to).into_iter();
        let erased = erased.map(|rank| self.server.peers().owe(rank, Debt::Erased(ino, to)));
        join_all(erased).await;
    }
}
