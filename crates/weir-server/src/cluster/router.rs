//! The router: hands each operation of the table (`weir_core::proto`) to the room that does it.

use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, HomeOperation, What};
use weir_core::proto::{
    Allocate, Append, Attach, Attached, Audit, AwaitRoom, Caller, Child, Control, Create,
    CreateUnnamed, Created, Entry, Fetch, Find, Flock, FsError, GetAttr, GetNameHistory, GetXattr,
    HeldLock, Hold, Landing, Lease, Lent, Link, ListXattrs, Listing, Locate, Located, Lookup,
    MakeSpecial, Mkdir, NameHistory, Operations, Passage, PathInTree, PathOf, Publish, Readdir,
    RecordLock, RemoveXattr, Rename, ReportRelief, Rmdir, RoomState, Segment, Served, ServerStatus,
    SetAttr, SetXattr, Status, Stop, Symlink, Sync, TestLock, Token, Truncate, Unlink,
};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::{InodeNumbers, Waits};
use crate::cluster::files::FileParts;
use crate::cluster::names::requests::NewEntry;
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::{owner, Cluster};
use crate::node::{Node, Platform};

impl<P: Platform> Operations for Cluster<P> {
    type Local = Node<'static, P>;

    fn local<R>(&self, act: impl FnOnce(&mut Node<'static, P>) -> R) -> R {
        self.node(act)
    }

    fn ask_home<O: HomeOperation + 'static>(&self, mut op: O) -> Served<Result<O::Reply, FsError>> {
        self.later(|this| async move {
            let ino = this.resolve(*op.inode())?;
            *op.inode() = ino;
            this.call(ino.rank(), op).await
        })
    }

    fn create(&self, from: Caller, op: Create) -> Served<Result<Created, FsError>> {
        self.names().create_for_client(from, op)
    }

    fn create_unnamed(
        &self,
        from: ClientId,
        op: CreateUnnamed,
    ) -> Served<Result<Created, FsError>> {
        self.later(|this| async move { this.names().create_unnamed_file(from, op).await })
    }

    fn mkdir(&self, _: Caller, op: Mkdir) -> Served<Result<Ino, FsError>> {
        self.names().make_for_client(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Dir,
            mode: op.mode,
            owner: owner(op.uid, op.gid),
        })
    }

    fn symlink(&self, _: Caller, op: Symlink) -> Served<Result<Ino, FsError>> {
        self.names().make_for_client(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Symlink(op.target),
            mode: 0o777,
            owner: owner(op.uid, op.gid),
        })
    }

    fn make_special(&self, _: Caller, op: MakeSpecial) -> Served<Result<Ino, FsError>> {
        self.names().make_for_client(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Special(op.kind),
            mode: op.mode,
            owner: owner(op.uid, op.gid),
        })
    }

    fn link(&self, _: Caller, op: Link) -> Served<Result<(), FsError>> {
        self.names().link_for_client(op)
    }

    fn unlink(&self, _: Caller, op: Unlink) -> Served<Result<(), FsError>> {
        self.names().unlink_for_client(op)
    }

    fn rmdir(&self, _: Caller, op: Rmdir) -> Served<Result<(), FsError>> {
        self.names().rmdir_for_client(op)
    }

    fn rename(&self, _: Caller, op: Rename) -> Served<Result<(), FsError>> {
        self.names().rename_for_client(op)
    }

    fn set_attr(&self, _: Caller, op: SetAttr) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.stand_ins().set_attributes(op).await })
    }

    fn get_xattr(&self, _: Caller, op: GetXattr) -> Served<Result<Vec<u8>, FsError>> {
        self.later(|this| async move { this.xattrs().get_xattr_for_client(op).await })
    }

    fn list_xattrs(&self, _: Caller, op: ListXattrs) -> Served<Result<Vec<u8>, FsError>> {
        self.later(|this| async move { this.xattrs().list_xattrs_for_client(op).await })
    }

    fn set_xattr(&self, from: Caller, op: SetXattr) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.xattrs().set_xattr_for_client(from, op).await })
    }

    fn remove_xattr(&self, _: Caller, op: RemoveXattr) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.xattrs().remove_xattr_for_client(op).await })
    }

    fn await_room(&self, _: ClientId, op: AwaitRoom) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.relief().await_room_for_client(op).await })
    }

    fn report_relief(&self, _: Caller, op: ReportRelief) -> Served<Result<RoomState, FsError>> {
        self.later(|this| async move { this.relief().report_relief_for_client(op).await })
    }

    fn get_name_history(
        &self,
        _: Caller,
        op: GetNameHistory,
    ) -> Served<Result<NameHistory, FsError>> {
        self.later(|this| async move {
            let asked = peer::GetNameHistory { since: op.since };
            this.call(Rank(op.rank), asked).await
        })
    }

    fn truncate(&self, _: Caller, op: Truncate) -> Served<Result<(), FsError>> {
        self.truncation().truncate_for_client(op.ino, op.size)
    }

    fn allocate(&self, _: Caller, op: Allocate) -> Served<Result<(), FsError>> {
        self.extents().allocate_for_client(op)
    }

    fn readdir(&self, _: Caller, op: Readdir) -> Served<Result<Listing, FsError>> {
        self.names().readdir_for_client(op)
    }

    fn attach(&self, from: ClientId, op: Attach) -> Served<Result<Attached, FsError>> {
        self.extents().attach_for_client(from, op)
    }

    fn append(&self, _: ClientId, op: Append) -> Served<Result<u64, FsError>> {
        self.later(|this| async move { this.appends().append_for_client(op).await })
    }

    fn segment(&self, from: ClientId, op: Segment) -> Served<Result<Lent, FsError>> {
        self.lend_segment(from, &op)
    }

    fn locate(&self, _: Caller, op: Locate) -> Served<Result<Located, FsError>> {
        self.extents().locate_for_client(op)
    }

    fn sync(&self, _: Caller, op: Sync) -> Served<Result<Vec<u32>, FsError>> {
        self.extents().sync_for_client(op.ino)
    }

    fn token(&self, _: ClientId, op: Token) -> Served<Result<Claim, FsError>> {
        self.later(|this| async move { this.tokens().write_token(op).await })
    }

    fn flock(&self, from: ClientId, op: Flock) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.locks().flock_for_client(from, op).await })
    }

    fn record_lock(&self, from: ClientId, op: RecordLock) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.locks().record_lock_for_client(from, op).await })
    }

    fn test_lock(&self, from: ClientId, op: TestLock) -> Served<Result<Option<HeldLock>, FsError>> {
        self.later(|this| async move { this.locks().test_lock_for_client(from, op).await })
    }

    fn find(&self, _: Caller, op: Find) -> Served<Result<Option<Child>, FsError>> {
        self.names().find_for_client(op)
    }

    fn get_attr(&self, _: Caller, op: GetAttr) -> Served<Result<Attr, FsError>> {
        self.stand_ins().attr_for_client(op.ino)
    }

    fn passage(&self, _: Caller, op: Passage) -> Served<Result<Attr, FsError>> {
        self.later(|this| async move { this.names().passage_here(op.ino).await })
    }

    fn path_of(&self, _: Caller, op: PathOf) -> Served<Result<PathInTree, FsError>> {
        self.names().path_for_client(op.ino)
    }

    fn hold(&self, _: Caller, op: Hold) -> Served<Result<Attr, FsError>> {
        self.later(|this| async move { this.stand_ins().hold_here(op.ino, op.write).await })
    }

    fn lease(&self, _: Caller, op: Lease) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.stand_ins().lease_here(op.ino).await })
    }

    fn fetch(&self, from: ClientId, op: Fetch) -> Served<Result<Vec<Landing>, FsError>> {
        self.later(|this| async move { this.reads().fetch_for(from, op).await })
    }

    fn publish(&self, from: Caller, op: Publish) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.tokens().close_written(from, op.ino).await })
    }

    fn audit(&self, from: ClientId, op: Audit) -> Served<Result<(), FsError>> {
        self.later(|this| async move { this.audits().audit_for_client(from, op).await })
    }

    fn status(&self, _: Caller, _: Status) -> Served<Result<ServerStatus, FsError>> {
        Served::Now(Ok(self.status_here()))
    }

    fn lookup(&self, _: Caller, op: Lookup) -> Served<Result<Entry, FsError>> {
        self.names().lookup_for_client(op.components)
    }

    fn stop(&self, _: Control, _: Stop) -> Served<Result<ServerStatus, FsError>> {
        self.node(Node::begin_stop);
        Served::Now(Ok(self.status_here()))
    }
}
