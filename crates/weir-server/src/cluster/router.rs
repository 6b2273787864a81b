//! The router: hands each operation of the table (`weir_core::proto`) to the room that does it.

use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, What};
use weir_core::proto::{
    Allocate, Append, Attach, Attached, Audit, Caller, Child, Control, Create, CreateUnnamed,
    Created, Entry, Fetch, Find, Flock, Flush, FsError, GetAttr, GetXattr, HeldLock, Hold,
    Laminate, Landing, Lease, Lent, Link, ListXattrs, Locate, Located, Lookup, MakeSpecial, Mkdir,
    Operations, Passage, PathOf, Readdir, Readlink, RecordLock, RemoveXattr, Rename, Rmdir,
    Segment, ServerStatus, SetAttr, SetXattr, Status, Stop, Symlink, Sync, TestLock, Token,
    Truncate, Unlink,
};
use weir_core::types::{ClientId, Ino};

use crate::cluster::names::requests::NewEntry;
use crate::cluster::{owner, Cluster};
use crate::node::{Node, Platform};

impl<P: Platform> Operations for Cluster<P> {
    type Local = Node<'static, P>;

    fn local<R>(&self, act: impl FnOnce(&mut Node<'static, P>) -> R) -> R {
        self.node(act)
    }

    async fn create(&self, from: Caller, op: Create) -> Result<Created, FsError> {
        self.create_file(from, op).await
    }

    async fn create_unnamed(&self, from: ClientId, op: CreateUnnamed) -> Result<Created, FsError> {
        self.create_unnamed_file(from, op).await
    }

    async fn mkdir(&self, _: Caller, op: Mkdir) -> Result<Ino, FsError> {
        self.make_entry(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Dir,
            mode: op.mode,
            owner: owner(op.uid, op.gid),
        })
        .await
    }

    async fn symlink(&self, _: Caller, op: Symlink) -> Result<Ino, FsError> {
        self.make_entry(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Symlink(op.target),
            mode: 0o777,
            owner: owner(op.uid, op.gid),
        })
        .await
    }

    async fn make_special(&self, _: Caller, op: MakeSpecial) -> Result<Ino, FsError> {
        self.make_entry(NewEntry {
            parent: op.parent,
            name: op.name,
            what: What::Special(op.kind),
            mode: op.mode,
            owner: owner(op.uid, op.gid),
        })
        .await
    }

    async fn link(&self, _: Caller, op: Link) -> Result<(), FsError> {
        self.link_at_home(op).await
    }

    async fn unlink(&self, _: Caller, op: Unlink) -> Result<(), FsError> {
        self.unlink_at_home(op).await
    }

    async fn rmdir(&self, _: Caller, op: Rmdir) -> Result<(), FsError> {
        self.rmdir_at_home(op).await
    }

    async fn rename(&self, _: Caller, op: Rename) -> Result<(), FsError> {
        self.rename(op).await
    }

    async fn set_attr(&self, _: Caller, op: SetAttr) -> Result<(), FsError> {
        self.set_attributes(op).await
    }

    async fn get_xattr(&self, _: Caller, op: GetXattr) -> Result<Vec<u8>, FsError> {
        self.get_xattr(op).await
    }

    async fn list_xattrs(&self, _: Caller, op: ListXattrs) -> Result<Vec<u8>, FsError> {
        self.list_xattrs(op).await
    }

    async fn set_xattr(&self, from: Caller, op: SetXattr) -> Result<(), FsError> {
        self.set_xattr(from, op).await
    }

    async fn remove_xattr(&self, _: Caller, op: RemoveXattr) -> Result<(), FsError> {
        self.remove_xattr(op).await
    }

    async fn laminate(&self, _: Caller, op: Laminate) -> Result<bool, FsError> {
        let (ino, cause) = (self.resolve(op.ino)?, op.cause);
        self.call(ino.rank(), peer::Laminate { ino, cause }).await
    }

    async fn truncate(&self, _: Caller, op: Truncate) -> Result<(), FsError> {
        self.truncate_here(op.ino, op.size).await
    }

    async fn allocate(&self, _: Caller, op: Allocate) -> Result<(), FsError> {
        self.allocate(op).await
    }

    async fn readdir(&self, _: Caller, op: Readdir) -> Result<Vec<Entry>, FsError> {
        self.readdir(&op).await
    }

    async fn attach(&self, from: ClientId, op: Attach) -> Result<Attached, FsError> {
        self.attach(from, op).await
    }

    async fn append(&self, _: ClientId, op: Append) -> Result<u64, FsError> {
        self.append(op).await
    }

    async fn segment(&self, from: ClientId, op: Segment) -> Result<Lent, FsError> {
        self.lend_segment(from, op).await
    }

    async fn locate(&self, _: Caller, op: Locate) -> Result<Located, FsError> {
        self.locate(&op).await
    }

    async fn sync(&self, _: Caller, op: Sync) -> Result<Vec<u32>, FsError> {
        self.sync(op.ino).await
    }

    async fn token(&self, _: ClientId, op: Token) -> Result<Claim, FsError> {
        self.write_token(op).await
    }

    async fn flock(&self, from: ClientId, op: Flock) -> Result<(), FsError> {
        self.flock(from, op).await
    }

    async fn record_lock(&self, from: ClientId, op: RecordLock) -> Result<(), FsError> {
        self.record_lock(from, op).await
    }

    async fn test_lock(&self, from: ClientId, op: TestLock) -> Result<Option<HeldLock>, FsError> {
        self.test_lock(from, op).await
    }

    async fn find(&self, _: Caller, op: Find) -> Result<Option<Child>, FsError> {
        self.find_for_client(op).await
    }

    async fn get_attr(&self, _: Caller, op: GetAttr) -> Result<Attr, FsError> {
        self.attr_here(op.ino).await
    }

    async fn passage(&self, _: Caller, op: Passage) -> Result<Attr, FsError> {
        self.passage_here(op.ino).await
    }

    async fn readlink(&self, _: Caller, op: Readlink) -> Result<Vec<u8>, FsError> {
        let ino = self.resolve(op.ino)?;
        self.call(ino.rank(), peer::Readlink { ino }).await
    }

    async fn path_of(&self, _: Caller, op: PathOf) -> Result<Vec<u8>, FsError> {
        self.path_of(op.ino).await
    }

    async fn hold(&self, _: Caller, op: Hold) -> Result<Attr, FsError> {
        self.hold_here(op.ino, op.write).await
    }

    async fn lease(&self, _: Caller, op: Lease) -> Result<(), FsError> {
        self.lease_here(op.ino).await
    }

    async fn fetch(&self, from: ClientId, op: Fetch) -> Result<Vec<Landing>, FsError> {
        self.fetch_for(from, op).await
    }

    async fn flush(&self, from: Caller, op: Flush) -> Result<(), FsError> {
        self.close_written(from, op.ino).await
    }

    async fn audit(&self, from: ClientId, op: Audit) -> Result<(), FsError> {
        self.audit(from, op).await
    }

    async fn status(&self, _: Caller, _: Status) -> Result<ServerStatus, FsError> {
        Ok(self.status_here())
    }

    async fn lookup(&self, _: Caller, op: Lookup) -> Result<Entry, FsError> {
        self.lookup(&op.components).await
    }

    async fn stop(&self, _: Control, _: Stop) -> Result<ServerStatus, FsError> {
        self.node(Node::begin_stop);
        Ok(self.status_here())
    }
}
