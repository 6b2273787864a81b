//! Requests of other servers, each passed to the part that performs it.

use std::cell::RefCell;
use std::rc::Rc;

use weir_core::extent::Run;
use weir_core::names::{Attr, FileType};
use weir_core::node::claim::Claim;
use weir_core::proto::audit::Unseen;
use weir_core::proto::peer::{
    Append, Assign, Audit, Back, Begin, BeginUpdate, Bury, Cut, DeadOwners, DropEntry, DropLocks,
    EndMove, Enrol, Enrolled, Erase, Evict, EvictRanges, Fetch, Find, FindToKeep, Forget, Freed,
    GetAttr, GetCopyUse, GetNameHistory, GetWriteState, GetXattr, Grant, Handler, HasCopyRuns,
    Hold, Laminate, Laminated, LayCopy, Lease, Leave, Link, List, ListXattrs, Lock, LockMoves,
    LockName, LockOwner, LogRange, Made, Make, Mark, Moved, Part, PartOfDir, Passage, PlaceEntries,
    Placement, Publish, Published, Put, Readlink, Recall, Relay, Release, Relink, RemoveXattr,
    Renew, ReportRelief, Retire, Revoke, Rmdir, Runs, Seal, SetAttr, SetXattr, SettleExtents,
    SettleSlices, Settled, ShareAppends, SplitDir, Status, Stayed, Stop, TestLock, Told, Truncate,
    Unlink, UnlockMoves, UnlockName, Unnamed, UnseenHere, Whereabouts, Writers,
};
use weir_core::proto::{
    Child, CopyUse, FsError, HeldLock, Kept, Listing, NameHistory, Readdir, RoomState,
    ServerStatus, SettledExtents, WriteState,
};
use weir_core::types::{Ino, Rank};

use crate::cluster::files::FileParts;
use crate::cluster::keyed::Token;
use crate::cluster::names::{NameKey, NameSteps};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::Platform;

/// One call of another server, with room for bytes that follow the reply.
pub struct PeerCall<'a, P: Platform + 'static> {
    /// The server that is asked.
    pub cluster: &'a Cluster<P>,
    /// The bytes.
    pub bulk: Rc<RefCell<Vec<u8>>>,
}

impl<P: Platform> Handler for PeerCall<'_, P> {
    fn rank(&self) -> Rank {
        self.cluster.rank()
    }

    fn count(&self, name: &'static str) {
        self.cluster.peers().count_asked(name);
    }

    async fn find(&self, _: Rank, op: Find) -> Result<Option<Child>, FsError> {
        self.cluster.names().find(op).await
    }

    async fn find_to_keep(
        &self,
        from: Rank,
        op: FindToKeep,
    ) -> Result<Kept<Option<Child>>, FsError> {
        self.cluster.names().find_to_keep(from, op).await
    }

    async fn drop_entry(&self, _: Rank, op: DropEntry) -> Result<(), FsError> {
        self.cluster
            .names()
            .drop_entry(&NameKey::new(op.dir, op.name));
        Ok(())
    }

    async fn place_entries(&self, from: Rank, op: PlaceEntries) -> Result<Placement, FsError> {
        self.cluster.names().place_entries(from, op).await
    }

    async fn split_dir(&self, _: Rank, op: SplitDir) -> Result<Option<Vec<u64>>, FsError> {
        self.cluster.names().split_dir(op.dir).await
    }

    async fn passage(&self, _: Rank, op: Passage) -> Result<Attr, FsError> {
        self.cluster.names().passage_for_peer(op.dir)
    }

    async fn make(&self, from: Rank, op: Make) -> Result<Made, FsError> {
        self.cluster.names().make(from, op).await
    }

    async fn enrol(&self, from: Rank, op: Enrol) -> Result<Attr, FsError> {
        self.cluster.names().enrol(from, op.dir)
    }

    async fn settled(&self, _: Rank, op: Settled) -> Result<(), FsError> {
        self.cluster.names().settle(op.dir).await;
        Ok(())
    }

    async fn retire(&self, _: Rank, op: Retire) -> Result<(), FsError> {
        self.cluster.names().retire(op.dir).await
    }

    async fn bury(&self, _: Rank, op: Bury) -> Result<(), FsError> {
        self.cluster.names().bury(op.dir).await
    }

    async fn enrolled(&self, _: Rank, op: Enrolled) -> Result<Vec<u16>, FsError> {
        self.cluster.names().enrolled(op.dir)
    }

    async fn part(&self, _: Rank, op: Part) -> Result<PartOfDir, FsError> {
        self.cluster.names().part(op.dir)
    }

    async fn list(&self, _: Rank, op: List) -> Result<Listing, FsError> {
        let op = Readdir {
            ino: op.dir,
            cookie: op.cookie,
            until: op.until,
            budget_bytes: op.budget_bytes,
        };
        self.cluster.node(|node| node.list(&op))
    }

    async fn unlink(&self, from: Rank, op: Unlink) -> Result<Option<Unnamed>, FsError> {
        self.cluster.names().unlink(from, op).await
    }

    async fn rmdir(&self, _: Rank, op: Rmdir) -> Result<(), FsError> {
        self.cluster.names().rmdir(op).await
    }

    async fn link(&self, _: Rank, op: Link) -> Result<(), FsError> {
        self.cluster.names().link(op).await
    }

    async fn relink(&self, _: Rank, op: Relink) -> Result<FileType, FsError> {
        self.cluster.names().relink(op.ino, op.add).await
    }

    async fn lock_name(&self, from: Rank, op: LockName) -> Result<Option<Child>, FsError> {
        self.cluster.names().lock_name(from, op).await
    }

    async fn unlock_name(&self, from: Rank, op: UnlockName) -> Result<(), FsError> {
        let token = Token {
            rank: from,
            number: op.token,
        };
        let cluster = self.cluster;
        cluster
            .names()
            .unlock_name_of(&NameKey::new(op.dir, op.name), token, op.left);
        Ok(())
    }

    async fn assign(&self, from: Rank, op: Assign) -> Result<(), FsError> {
        self.cluster.names().assign_name(from, op).await
    }

    async fn leave(&self, _: Rank, op: Leave) -> Result<(), FsError> {
        self.cluster.names().leave_old(op).await
    }

    async fn end_move(
        &self,
        _: Rank,
        op: EndMove,
    ) -> Result<Option<(Child, Option<Child>)>, FsError> {
        self.cluster.names().end_move(op).await
    }

    async fn moved(&self, from: Rank, op: Moved) -> Result<(), FsError> {
        self.cluster.names().moves_to(from, op)
    }

    async fn stayed(&self, _: Rank, op: Stayed) -> Result<(), FsError> {
        self.cluster.names().stayed(op)
    }

    async fn lock_moves(&self, from: Rank, op: LockMoves) -> Result<(), FsError> {
        self.cluster.names().lock_dir_moves(from, op.token).await
    }

    async fn unlock_moves(&self, from: Rank, op: UnlockMoves) -> Result<(), FsError> {
        self.cluster.names().unlock_dir_moves(from, op.token);
        Ok(())
    }

    async fn whereabouts(
        &self,
        _: Rank,
        op: Whereabouts,
    ) -> Result<Option<(Ino, Vec<u8>)>, FsError> {
        self.cluster.names().whereabouts(op.ino)
    }

    async fn get_attr(&self, from: Rank, op: GetAttr) -> Result<Kept<Attr>, FsError> {
        self.cluster.stand_ins().look_at_home(from, op).await
    }

    async fn set_attr(&self, _: Rank, op: SetAttr) -> Result<(), FsError> {
        self.cluster.stand_ins().set_attr_at_home(op.set).await
    }

    async fn get_xattr(&self, _: Rank, op: GetXattr) -> Result<Vec<u8>, FsError> {
        self.cluster
            .node(|node| node.files().xattr(op.ino, &op.name))
    }

    async fn list_xattrs(&self, _: Rank, op: ListXattrs) -> Result<Vec<u8>, FsError> {
        self.cluster.node(|node| node.files().xattr_names(op.ino))
    }

    async fn set_xattr(&self, _: Rank, op: SetXattr) -> Result<(), FsError> {
        self.cluster.xattrs().set_xattr_at_home(op).await
    }

    async fn remove_xattr(&self, _: Rank, op: RemoveXattr) -> Result<(), FsError> {
        self.cluster.xattrs().remove_xattr_at_home(op).await
    }

    async fn readlink(&self, _: Rank, op: Readlink) -> Result<Vec<u8>, FsError> {
        self.cluster.node(|node| node.names.symlink_target(op.ino))
    }

    async fn hold(&self, from: Rank, op: Hold) -> Result<Attr, FsError> {
        let cluster = self.cluster;
        cluster.stand_ins().hold_for(from, op.ino, op.write).await
    }

    async fn release(&self, from: Rank, op: Release) -> Result<(), FsError> {
        self.cluster.ends().release(from, &op.inos).await;
        Ok(())
    }

    async fn lease(&self, from: Rank, op: Lease) -> Result<Attr, FsError> {
        self.cluster.stand_ins().grant_lease(from, op.ino).await
    }

    async fn recall(&self, _: Rank, op: Recall) -> Result<(), FsError> {
        self.cluster.stand_ins().recall_here(op.ino);
        Ok(())
    }

    async fn audit(&self, from: Rank, op: Audit) -> Result<Vec<Unseen>, FsError> {
        self.cluster.audits().audit_at_home(from, op).await
    }

    async fn unseen(&self, _: Rank, op: UnseenHere) -> Result<Option<Unseen>, FsError> {
        self.cluster.audits().unseen_here(&op)
    }

    async fn share_appends(&self, _: Rank, op: ShareAppends) -> Result<u64, FsError> {
        Ok(self.cluster.appends().share_appends_here(op.ino))
    }

    async fn append(&self, from: Rank, op: Append) -> Result<u64, FsError> {
        self.cluster.appends().append_at_home(from, &op).await
    }

    async fn grant(&self, from: Rank, op: Grant) -> Result<Option<Claim>, FsError> {
        self.cluster.tokens().grant_token(from, &op).await
    }

    async fn revoke(&self, _: Rank, op: Revoke) -> Result<(), FsError> {
        self.cluster.tokens().revoke_here(op.ino).await
    }

    async fn laminate(&self, _: Rank, op: Laminate) -> Result<bool, FsError> {
        self.cluster
            .sharing()
            .laminate_at_home(op.ino, op.cause)
            .await
    }

    async fn seal(&self, _: Rank, op: Seal) -> Result<u32, FsError> {
        self.cluster.sharing().seal_here(op.ino)
    }

    async fn get_write_state(&self, _: Rank, op: GetWriteState) -> Result<WriteState, FsError> {
        self.cluster.sharing().write_state_at_home(op.ino).await
    }

    async fn writers(&self, _: Rank, op: Writers) -> Result<u32, FsError> {
        Ok(self.cluster.sharing().writers_here(op.ino))
    }

    async fn mark(&self, _: Rank, op: Mark) -> Result<(), FsError> {
        self.cluster.sharing().mark_here(&op).await
    }

    async fn laminated(&self, _: Rank, op: Laminated) -> Result<(), FsError> {
        self.cluster.sharing().believe(&op)
    }

    async fn forget(&self, _: Rank, op: Forget) -> Result<(), FsError> {
        self.cluster.extents().forget_here(op.ino);
        Ok(())
    }

    async fn put(&self, from: Rank, op: Put) -> Result<Vec<LogRange>, FsError> {
        self.cluster.extents().put(from, &op)
    }

    async fn published(&self, from: Rank, op: Published) -> Result<(), FsError> {
        self.cluster.stand_ins().published(from, op).await
    }

    async fn runs(&self, _: Rank, op: Runs) -> Result<Vec<Run>, FsError> {
        Ok(self.cluster.extents().runs(&op))
    }

    async fn erase(&self, _: Rank, op: Erase) -> Result<Vec<LogRange>, FsError> {
        Ok(self.cluster.extents().erase(&op))
    }

    async fn evict(&self, _: Rank, op: Evict) -> Result<bool, FsError> {
        self.cluster
            .eviction()
            .evict_at_home(op.ino, &op.version)
            .await
    }

    async fn get_copy_use(&self, _: Rank, op: GetCopyUse) -> Result<CopyUse, FsError> {
        self.cluster.eviction().copy_use_at_home(op.ino).await
    }

    async fn settle_extents(
        &self,
        _: Rank,
        op: SettleExtents,
    ) -> Result<Option<SettledExtents>, FsError> {
        self.cluster.eviction().settle_extents_at_home(op.ino).await
    }

    async fn evict_ranges(&self, _: Rank, op: EvictRanges) -> Result<u64, FsError> {
        self.cluster.eviction().evict_ranges_at_home(op).await
    }

    async fn begin_update(&self, _: Rank, op: BeginUpdate) -> Result<(), FsError> {
        self.cluster.eviction().begin_update_at_home(op.ino).await
    }

    async fn settle_slices(&self, _: Rank, op: SettleSlices) -> Result<(), FsError> {
        self.cluster.extents().settle_slices(&op);
        Ok(())
    }

    async fn lay_copy(&self, _: Rank, op: LayCopy) -> Result<Vec<LogRange>, FsError> {
        Ok(self.cluster.extents().lay_copy(&op))
    }

    async fn has_copy_runs(&self, _: Rank, op: HasCopyRuns) -> Result<bool, FsError> {
        Ok(self.cluster.extents().has_copy_runs(op.ino))
    }

    async fn report_relief(&self, _: Rank, op: ReportRelief) -> Result<RoomState, FsError> {
        self.cluster.relief().note_relief(&op)
    }

    async fn get_name_history(&self, _: Rank, op: GetNameHistory) -> Result<NameHistory, FsError> {
        Ok(self.cluster.names().history_since(op.since))
    }

    async fn truncate(&self, _: Rank, op: Truncate) -> Result<(), FsError> {
        self.cluster
            .truncation()
            .truncate_at_home(op.ino, op.size)
            .await
    }

    async fn cut(&self, _: Rank, op: Cut) -> Result<u64, FsError> {
        self.cluster.truncation().cut_here(&op).await
    }

    async fn publish(&self, _: Rank, op: Publish) -> Result<(), FsError> {
        self.cluster.extents().publish_for_all(&op).await
    }

    async fn freed(&self, _: Rank, op: Freed) -> Result<(), FsError> {
        let cluster = self.cluster;
        if op.ranges.iter().any(|r| r.rank != cluster.rank().0) {
            return Err(FsError::Malformed);
        }
        cluster.extents().freed(&op.ranges);
        Ok(())
    }

    async fn fetch(&self, _: Rank, op: Fetch) -> Result<(), FsError> {
        let cluster = self.cluster;
        cluster
            .extents()
            .read_log(&op.ranges, &mut self.bulk.borrow_mut())
    }

    async fn lock(&self, from: Rank, op: Lock) -> Result<(), FsError> {
        self.cluster.locks().lock_for(from, &op).await
    }

    async fn dead_owners(&self, _: Rank, op: DeadOwners) -> Result<Vec<LockOwner>, FsError> {
        Ok(self.cluster.locks().dead_owners(op.ino))
    }

    async fn test_lock(&self, from: Rank, op: TestLock) -> Result<Option<HeldLock>, FsError> {
        self.cluster.locks().test_for(from, &op)
    }

    async fn drop_locks(&self, from: Rank, op: DropLocks) -> Result<(), FsError> {
        self.cluster.locks().drop_locks(from, &op);
        Ok(())
    }

    async fn status(&self, _: Rank, _: Status) -> Result<ServerStatus, FsError> {
        Ok(self.cluster.status_here())
    }

    async fn relay(&self, _: Rank, op: Relay) -> Result<Told, FsError> {
        self.cluster.relay(op).await
    }

    async fn back(&self, from: Rank, _: Back) -> Result<(), FsError> {
        self.cluster.came_back(from).await
    }

    async fn begin(&self, from: Rank, op: Begin) -> Result<Vec<(Ino, u64)>, FsError> {
        Ok(self.cluster.accept_session(from, op))
    }

    async fn renew(&self, _: Rank, _: Renew) -> Result<(), FsError> {
        Ok(())
    }

    async fn stop(&self, _: Rank, _: Stop) -> Result<ServerStatus, FsError> {
        let cluster = self.cluster;
        cluster.node(crate::node::Node::begin_stop);
        Ok(cluster.status_here())
    }
}
