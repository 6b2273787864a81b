//! The sharing of a file between nodes: visibility, and lamination.
//!
//! *Read after sync* needs only publishing and leases. *Read after write* adds write tokens
//! ([`crate::cluster::files::tokens`]). *Read after laminate*: nothing is published before the
//! lamination.
//!
//! A lamination has two steps. First the home asks all nodes that have the file open if a program writes it, and they
//! let no program open it for writing meanwhile. If a program writes it, the home undoes the step, and the lamination
//! stays due. Then all nodes publish, and the file's extents are final. If the file was shared and has few runs, they
//! are passed down a tree to all servers; otherwise each server keeps those that it asked for.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use futures_util::future::join_all;
use weir_core::extent::{Run, MAX_OFFSET};
use weir_core::names::{FileType, Lamination, Policy, Visibility};
use weir_core::proto::peer::{self, News};
use weir_core::proto::{Cause, FsError, WriteState};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::locate::ExtentMap;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::laminate::{count_writers, is_cause, try_seal};
use crate::cluster::files::{FileParts, FileSharing, FileSteps, FilesNeeds, NamesForFiles};
use crate::cluster::keyed::Keyed;
use crate::cluster::peers::tell::all_of;
use crate::cluster::visibility::is_raw;
use crate::rules::join;

/// The time for which the path of a directory is believed, ns.
const PATHS_NS: i64 = 1_000_000_000;

/// Paths of directories, for the rules.
#[derive(Debug, Default)]
pub struct Paths {
    of_dirs: HashMap<Ino, Vec<u8>>,
    since_ns: i64,
}

/// Files of this server that a lock makes raw.
#[derive(Debug, Default)]
pub struct BecomingRaw {
    /// The turn to tell the nodes that have the file open. Other requests that lock the file wait for it.
    turns: Keyed<Ino>,
    /// Files that a node may not know yet to be raw, with the earlier policy.
    untold: RefCell<BTreeMap<Ino, Policy>>,
}

/// A laminated file with at most this many runs is passed to all servers: 64 KiB or less.
const FEW_RUNS: usize = 1024;

impl<S: FilesNeeds> FileSharing<S> {
    /// The global number of a file, if this server knows that it is laminated.
    pub(in crate::cluster) fn laminated_here(&self, ino: Ino) -> Option<Ino> {
        let ino = self.server.global(ino);
        let local = self.server.local(ino)?;
        let attr = self.server.node(|node| node.names().attr_of(local)).ok();
        attr.filter(|attr| attr.lamination == Lamination::Done)
            .map(|_| ino)
    }

    /// Laminates a file of this server, if no program has it open for writing; returns true if it
    /// is laminated now.
    pub(in crate::cluster) async fn laminate_at_home(
        &self,
        ino: Ino,
        cause: Cause,
    ) -> Result<bool, FsError> {
        // Other nodes may have to say first that their programs have it open.
        self.server.announced().await;
        let _alone = self
            .state()
            .changing
            .hold(ino, self.server.peers().token())
            .await;
        let attr = self.server.node(|node| node.names().regular(ino))?;
        if attr.lamination == Lamination::Done {
            return Ok(true);
        }
        if !is_cause(&attr, cause) {
            return Ok(false);
        }
        let others = self.server.stand_ins().holders_of(ino);
        let sealed = self.seal_everywhere(ino, &others).await;
        let done = matches!(sealed, Ok(true));
        let is = if done {
            Lamination::Done
        } else {
            Lamination::Due
        };
        self.server
            .node(|node| node.files().set_lamination(ino, is))?;
        // A node that does not hear of it learns it when it asks.
        let _ = self.mark_holders(ino).await;
        if done {
            self.server.stand_ins().recall_leases(ino, None).await;
            self.spawn_pass_laminated(ino, !others.is_empty());
        }
        sealed
    }

    /// Makes all nodes publish, if none has a writer.
    async fn seal_everywhere(&self, ino: Ino, others: &[Rank]) -> Result<bool, FsError> {
        // A node that cannot be asked may have unpublished bytes.
        if self.server.stand_ins().awaits_writer(ino)
            || !self.server.appends().silent_servers().is_empty()
        {
            return Err(FsError::Unreachable);
        }
        let mut writers = self.server.node(|node| try_seal(node, ino))?;
        if writers == 0 {
            let told = self
                .server
                .peers()
                .tell(others, &News::Seal(peer::Seal { ino }))
                .await;
            writers = all_of(told)?.writers;
        }
        if writers > 0 {
            return Ok(false);
        }
        self.publish_everywhere(ino, others).await?;
        Ok(true)
    }

    /// Makes all nodes publish.
    pub(super) async fn publish_everywhere(
        &self,
        ino: Ino,
        others: &[Rank],
    ) -> Result<(), FsError> {
        let attr = self.server.node(|node| node.names().attr_of(ino))?;
        let is_public = attr.policy.visibility != Visibility::ReadAfterLaminate;
        let publish = peer::Publish { ino, is_public };
        all_of(
            self.server
                .peers()
                .tell(others, &News::Publish(publish))
                .await,
        )?;
        self.server.extents().publish(ino).await
    }

    /// The state of the writing of a file of this server, on all nodes. If the file counts as written, all its bytes
    /// are published.
    pub(in crate::cluster) async fn write_state_at_home(
        &self,
        ino: Ino,
    ) -> Result<WriteState, FsError> {
        // Other nodes may have to say first that their programs have it open.
        self.server.announced().await;
        let attr = self.server.node(|node| node.names().regular(ino))?;
        if attr.lamination == Lamination::Done {
            return Ok(WriteState::Written);
        }
        if self.server.node(|node| count_writers(node, ino)) > 0 {
            return Ok(WriteState::Open);
        }
        // A node that cannot be asked may have a writer.
        if self.server.stand_ins().awaits_writer(ino)
            || !self.server.appends().silent_servers().is_empty()
        {
            return Err(FsError::Unreachable);
        }
        let others = self.server.stand_ins().holders_of(ino);
        let told = self
            .server
            .peers()
            .tell(&others, &News::Writers(peer::Writers { ino }))
            .await;
        if all_of(told)?.writers > 0 {
            return Ok(WriteState::Open);
        }
        if attr.policy.visibility == Visibility::ReadAfterLaminate && !self.server.has_all_extents()
        {
            return Ok(WriteState::Hidden);
        }
        self.publish_everywhere(ino, &others).await?;
        Ok(WriteState::Written)
    }

    /// The number of descriptions of this node that have a foreign file open for writing.
    pub(in crate::cluster) fn writers_here(&self, ino: Ino) -> u32 {
        let local = self.server.local(ino);
        local.map_or(0, |local| {
            self.server.node(|node| count_writers(node, local))
        })
    }

    /// The number of descriptions of this node that have a foreign file open for writing; if there
    /// are none, no program can open it so from now on.
    pub(in crate::cluster) fn seal_here(&self, ino: Ino) -> Result<u32, FsError> {
        // An answer on its way may say that the file is writable.
        self.server.stand_ins().recall_here(ino);
        let Some(local) = self.server.local(ino) else {
            self.note_unknown();
            return Ok(0);
        };
        self.server.node(|node| try_seal(node, local))
    }

    pub(super) fn note_unknown(&self) {
        let told = &self.state().news_of_unknown;
        told.set(told.get() + 1);
    }

    /// Tells the state of a file of this server to the nodes that have it open; returns the error
    /// of a node that was reached.
    pub(super) async fn mark_holders(&self, ino: Ino) -> Result<(), FsError> {
        self.mark(ino, &self.possible_holders(ino), false).await
    }

    /// The nodes that have, or may have, a file of this server open: the latter have said nothing
    /// since this server was restarted.
    pub(super) fn possible_holders(&self, ino: Ino) -> Vec<Rank> {
        let mut holders = self.server.appends().silent_servers();
        holders.extend(self.server.stand_ins().holders_of(ino));
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Like [`FileSharing::mark_holders`], for these nodes.
    pub(super) async fn mark(
        &self,
        ino: Ino,
        holders: &[Rank],
        unnamed: bool,
    ) -> Result<(), FsError> {
        let Ok(attr) = self.server.node(|node| node.names().attr_of(ino)) else {
            return Ok(());
        };
        let mark = peer::Mark {
            ino,
            policy: attr.policy,
            lamination: attr.lamination,
            evicted: attr.evicted,
            unnamed,
        };
        // A node that is gone has nothing open.
        let told = self.server.peers().tell(holders, &News::Mark(mark)).await;
        told.failed.map_or(Ok(()), Err)
    }

    pub(in crate::cluster) async fn mark_here(&self, op: &peer::Mark) -> Result<(), FsError> {
        // A map of the file from before its lamination does not last.
        self.server.stand_ins().recall_here(op.ino);
        let Some(local) = self.server.local(op.ino) else {
            self.note_unknown();
            return Ok(());
        };
        let was = self.server.node(|node| node.names().attr_of(local))?.policy;
        self.server.node(|node| {
            node.names().set_policy(local, op.policy)?;
            node.files().set_lamination(local, op.lamination)?;
            node.names().set_evicted(local, op.evicted)
        })?;
        let attr = self.server.node(|node| node.names().attr_of(local))?;
        if is_raw(&attr) && !op.unnamed {
            // Attributes may have told this node so before, without making it publish its earlier
            // bytes.
            self.server.tokens().revoke_here(op.ino).await?;
        } else {
            self.server.tokens().sharing_changed(op.ino, was).await?;
        }
        if op.unnamed {
            self.server.ends().leave_unnamed(op.ino, false).await;
        }
        Ok(())
    }

    /// Returns true if this node may publish its bytes of a file now.
    pub(in crate::cluster) fn may_publish(&self, ino: Ino, local: Ino) -> Result<bool, FsError> {
        let attr = self.server.node(|node| node.names().attr_of(local))?;
        let waits = attr.policy.visibility == Visibility::ReadAfterLaminate
            && !matches!(attr.lamination, Lamination::Sealing | Lamination::Done)
            && attr.nlink > 0
            && !self.server.stand_ins().is_unnamed_here(ino);
        Ok(!waits)
    }

    /// True if this node, to its knowledge, must not publish its bytes of a file yet.
    pub(in crate::cluster) fn holds_back(&self, ino: Ino) -> bool {
        let may_publish = |local| self.may_publish(ino, local);
        self.server
            .local(ino)
            .is_some_and(|local| may_publish(local) == Ok(false))
    }

    /// After the beginning of a session: asks the home about the files whose bytes this node holds back, one after the
    /// other, and publishes those that have become visible.
    pub(in crate::cluster) fn ask_for_policies(&self, home: Rank) {
        let mut held_back = self.server.stand_ins().stand_ins_of(home);
        held_back.retain(|ino| self.holds_back(*ino));
        if held_back.is_empty() {
            return;
        }
        let this = self.clone();
        self.server.peers().spawn(async move {
            for ino in held_back {
                let asked = this
                    .server
                    .peers()
                    .by(
                        this.server.peers().next_deadline(),
                        this.server.stand_ins().lease_here(ino),
                    )
                    .await;
                if asked == Err(FsError::Unreachable) {
                    break; // the next session asks again
                }
                // A publish that fails is tried again like any other.
                let _ = this
                    .server
                    .peers()
                    .by(
                        this.server.peers().next_deadline(),
                        this.server.extents().publish(ino),
                    )
                    .await;
            }
        });
    }

    /// The path of an entry, if a rule may name it. The path of its directory is looked up once a
    /// second at most.
    pub(in crate::cluster) async fn path_for_rules(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, FsError> {
        if !self.server.node(|node| node.files().tables.has_rules()) {
            return Ok(None);
        }
        let now_ns = self.server.peers().now_ns();
        let known = {
            let mut paths = self.state().paths.borrow_mut();
            if now_ns - paths.since_ns > PATHS_NS {
                paths.of_dirs.clear();
                paths.since_ns = now_ns;
            }
            paths.of_dirs.get(&dir).map(|path| join(path, name))
        };
        if known.is_some() {
            return Ok(known);
        }
        let path = self.server.names().path_by_homes(dir).await?.path;
        let joined = join(&path, name);
        self.state().paths.borrow_mut().of_dirs.insert(dir, path);
        Ok(Some(joined))
    }

    /// Handles a change of the policy of a file of this server.
    pub(super) async fn policy_changed(&self, ino: Ino, was: Policy) -> Result<(), FsError> {
        if self.server.node(|node| node.writers().has_writers_of(ino)) {
            self.server
                .stand_ins()
                .add_writer(ino, self.server.rank())
                .await;
        }
        self.server.tokens().sharing_changed(ino, was).await?;
        self.mark_holders(ino).await
    }

    /// Makes a file of this server raw for good, because a program takes a lock of it: locks order
    /// data, in every visibility. No lock is granted before all nodes that have the file open know
    /// it; if one cannot be told now, the next lock tells it.
    pub(in crate::cluster) async fn share_by_locks(&self, ino: Ino) -> Result<(), FsError> {
        if self.server.has_all_extents() {
            return Ok(());
        }
        if self
            .server
            .node(|node| node.names().attr_of(ino))?
            .file_type()
            != FileType::File
        {
            return Ok(()); // a directory has no bytes whose order a lock could give
        }
        let becoming = &self.state().becoming_raw;
        let is_ready = || {
            let attr = self.server.node(|node| node.names().regular(ino))?;
            let told = !becoming.untold.borrow().contains_key(&ino);
            Ok(is_raw(&attr) && told || attr.lamination == Lamination::Done)
        };
        if is_ready()? {
            return Ok(());
        }
        let _turn = self
            .server
            .peers()
            .hold_in_time(&becoming.turns, ino)
            .await?;
        if is_ready()? {
            return Ok(());
        }
        let attr = self.server.node(|node| node.names().regular(ino))?;
        let was = *becoming
            .untold
            .borrow_mut()
            .entry(ino)
            .or_insert(attr.policy);
        let policy = Policy {
            visibility: Visibility::ReadAfterWrite,
            ..attr.policy
        };
        self.server
            .node(|node| node.names().set_policy(ino, policy))?;
        self.policy_changed(ino, was).await?;
        becoming.untold.borrow_mut().remove(&ino);
        Ok(())
    }

    /// Forgets a file of this server that is gone.
    pub(super) fn forget_becoming_raw(&self, ino: Ino) {
        self.state().becoming_raw.untold.borrow_mut().remove(&ino);
    }

    /// Laminates the files that this node's programs have closed and that were to be laminated
    /// then.
    pub(in crate::cluster) fn laminate_unwritten(&self) {
        for local in self.server.node(|node| node.files().take_unwritten()) {
            let ino = self.server.global(local);
            let this = self.clone();
            self.server.peers().run_or_spawn(async move {
                let cause = Cause::Close;
                let asked = peer::Laminate { ino, cause };
                match this.server.call(ino.rank(), asked).await {
                    Ok(_) | Err(FsError::Stale | FsError::NotFound) => {}
                    Err(error) => {
                        tracing::debug!(?ino, %error, "a lamination that is due is tried again");
                        this.server.node(|node| node.files().watch_again(local));
                    }
                }
            });
        }
    }

    fn spawn_pass_laminated(&self, ino: Ino, shared: bool) {
        if self.server.has_all_extents() {
            return;
        }
        let this = self.clone();
        self.server.peers().spawn(async move {
            // A server that does not learn of it so asks when it reads.
            if let Err(error) = this.pass_laminated(ino, shared).await {
                tracing::debug!(?ino, %error, "a laminated file's extents");
            }
        });
    }

    async fn pass_laminated(&self, ino: Ino, shared: bool) -> Result<(), FsError> {
        let attr = self.server.stand_ins().attr_at_home(ino).await?;
        let homes = self.server.extents().homes_of(ino, 0, attr.size);
        let asked = homes.into_iter().map(|rank| {
            let (from, to) = (0, MAX_OFFSET);
            self.server.call(rank, peer::Runs { ino, from, to })
        });
        let mut runs: Vec<Run> = Vec::new();
        for answer in join_all(asked).await {
            runs.extend(answer?);
            if runs.len() > FEW_RUNS {
                return Ok(());
            }
        }
        let op = peer::Laminated { attr, runs };
        self.believe(&op)?;
        if shared {
            // A server that does not learn of it so asks when it reads.
            self.server
                .peers()
                .tell(&self.server.peers().others(), &News::Laminated(op))
                .await;
        }
        Ok(())
    }

    /// Keeps the extents of a laminated file.
    pub(in crate::cluster) fn believe(&self, op: &peer::Laminated) -> Result<(), FsError> {
        self.server
            .extents()
            .keep_map(op.attr.home, ExtentMap::of_laminated(&op.runs)?);
        Ok(())
    }

    /// Makes all servers forget a laminated file of this server that is gone.
    pub(super) async fn forget_laminated(&self, ino: Ino) {
        self.server.extents().forget_here(ino);
        // A server that does not answer keeps a little more than it needs.
        self.server
            .peers()
            .tell(
                &self.server.peers().others(),
                &News::Forget(peer::Forget { ino }),
            )
            .await;
    }
}
