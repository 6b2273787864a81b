//! The operations, each handed to where it is done.

use weir_core::extent::ExtentIndex;
use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::{
    Admit, Allocate, Append, Attach, Attached, Audit, Caller, Child, Create, CreateUnnamed,
    Created, Entry, Fetch, Find, Flock, Flush, FsError, FsStat, GetAttr, GetXattr, HeldLock, Hold,
    Laminate, Landing, Lease, Lent, Link, ListXattrs, Locate, Located, Lookup, MakeSpecial, Mkdir,
    OfdBatch, Operations, Passage, PathOf, Ping, Publish, Readdir, Readlink, RecordLock,
    RemoveXattr, Rename, Rmdir, Segment, ServerStatus, SetAttr, SetMapped, SetXattr, Statfs,
    Status, Stop, Symlink, Sync, TestLock, Token, Truncate, Unlink,
};
use weir_core::types::{ClientId, Ino};

use super::{ClientMemory, Node, Platform, Space};

/// What only clients may ask for.
fn client(from: Caller) -> Result<ClientId, FsError> {
    match from {
        Caller::Client(id) => Ok(id),
        Caller::Control => Err(FsError::NotPermitted),
    }
}

impl<P: Platform> Operations for Node<'_, P> {
    fn ping(&mut self, _: Caller, _: Ping) -> Result<(), FsError> {
        Ok(())
    }

    fn create(&mut self, from: Caller, op: Create) -> Result<Created, FsError> {
        self.create_file(from, &op)
    }

    fn create_unnamed(&mut self, from: Caller, op: CreateUnnamed) -> Result<Created, FsError> {
        let dir = self.attr_of(op.dir)?;
        self.create_unnamed_file(client(from)?, &op, &dir)
    }

    fn mkdir(&mut self, _: Caller, op: Mkdir) -> Result<Ino, FsError> {
        self.make_dir(&op)
    }

    fn symlink(&mut self, _: Caller, op: Symlink) -> Result<Ino, FsError> {
        self.make_symlink(&op)
    }

    fn make_special(&mut self, _: Caller, op: MakeSpecial) -> Result<Ino, FsError> {
        self.make_special_file(&op)
    }

    fn link(&mut self, _: Caller, op: Link) -> Result<(), FsError> {
        self.make_link(&op)
    }

    fn unlink(&mut self, _: Caller, op: Unlink) -> Result<(), FsError> {
        self.remove_name(op.parent, &op.name)
    }

    fn rmdir(&mut self, _: Caller, op: Rmdir) -> Result<(), FsError> {
        self.remove_dir(op.parent, &op.name)
    }

    fn rename(&mut self, _: Caller, op: Rename) -> Result<(), FsError> {
        self.rename_entry(&op)
    }

    fn set_attr(&mut self, _: Caller, op: SetAttr) -> Result<(), FsError> {
        self.set_attributes(&op)
    }

    fn get_xattr(&mut self, _: Caller, op: GetXattr) -> Result<Vec<u8>, FsError> {
        self.xattr(op.ino, &op.name)
    }

    fn list_xattrs(&mut self, _: Caller, op: ListXattrs) -> Result<Vec<u8>, FsError> {
        self.xattr_names(op.ino)
    }

    fn set_xattr(&mut self, from: Caller, op: SetXattr) -> Result<(), FsError> {
        match self.take_xattr_part(from, op)? {
            Some(set) => self.set_xattr_here(set.ino, &set.name, &set.value, set.flags),
            None => Ok(()),
        }
    }

    fn remove_xattr(&mut self, _: Caller, op: RemoveXattr) -> Result<(), FsError> {
        self.remove_xattr_here(op.ino, &op.name)
    }

    fn laminate(&mut self, _: Caller, op: Laminate) -> Result<bool, FsError> {
        self.laminate_file(op.ino, op.cause)
    }

    fn truncate(&mut self, _: Caller, op: Truncate) -> Result<(), FsError> {
        self.writable(op.ino)?;
        self.set_size(op.ino, op.size)
    }

    fn allocate(&mut self, _: Caller, op: Allocate) -> Result<(), FsError> {
        self.allocate_range(op.ino, op.offset, op.length, op.zero, op.keep_size)
    }

    fn readdir(&mut self, _: Caller, op: Readdir) -> Result<Vec<Entry>, FsError> {
        self.list(&op)
    }

    fn attach(&mut self, from: Caller, op: Attach) -> Result<Attached, FsError> {
        self.attach_client(client(from)?, op.ino)
    }

    fn segment(&mut self, from: Caller, op: Segment) -> Result<Lent, FsError> {
        self.lend_segment(client(from)?, op.min_bytes, op.want_bytes)
    }

    fn locate(&mut self, _: Caller, op: Locate) -> Result<Located, FsError> {
        self.locate_range(op.ino, op.offset, op.length)
    }

    fn set_mapped(&mut self, from: Caller, op: SetMapped) -> Result<(), FsError> {
        self.keep_pages(client(from)?, op.ino, op.mapped)
    }

    fn publish(&mut self, from: Caller, _: Publish) -> Result<(), FsError> {
        self.drain(client(from)?);
        self.announce_changes();
        Ok(())
    }

    fn sync(&mut self, _: Caller, op: Sync) -> Result<Vec<u32>, FsError> {
        self.file_slabs(op.ino)
    }

    fn token(&mut self, _: Caller, op: Token) -> Result<Claim, FsError> {
        Ok(op.wished) // there are no others
    }

    fn ofd_batch(&mut self, from: Caller, _: OfdBatch) -> Result<u32, FsError> {
        self.lend_ofds(client(from)?)
    }

    fn flock(&mut self, from: Caller, op: Flock) -> Result<(), FsError> {
        self.lock_file(from, &op)
    }

    fn record_lock(&mut self, from: Caller, op: RecordLock) -> Result<(), FsError> {
        self.lock_record(from, &op)
    }

    fn test_lock(&mut self, from: Caller, op: TestLock) -> Result<Option<HeldLock>, FsError> {
        self.find_lock(from, &op)
    }

    fn statfs(&mut self, _: Caller, _: Statfs) -> Result<FsStat, FsError> {
        Ok(self.room())
    }

    fn find(&mut self, _: Caller, op: Find) -> Result<Option<Child>, FsError> {
        self.find_child(op.dir, &op.name)
    }

    fn passage(&mut self, _: Caller, op: Passage) -> Result<Attr, FsError> {
        self.attr_of(op.ino)
    }

    fn get_attr(&mut self, _: Caller, op: GetAttr) -> Result<Attr, FsError> {
        self.attr_now(op.ino)
    }

    fn readlink(&mut self, _: Caller, op: Readlink) -> Result<Vec<u8>, FsError> {
        self.symlink_target(op.ino)
    }

    fn path_of(&mut self, _: Caller, op: PathOf) -> Result<Vec<u8>, FsError> {
        self.path_here(op.ino)
    }

    fn hold(&mut self, _: Caller, op: Hold) -> Result<Attr, FsError> {
        self.attr_now(op.ino)
    }

    fn lease(&mut self, _: Caller, op: Lease) -> Result<(), FsError> {
        self.attr_of(op.ino).map(drop)
    }

    fn fetch(&mut self, _: Caller, _: Fetch) -> Result<Vec<Landing>, FsError> {
        Err(FsError::Invalid) // there are no others
    }

    fn flush(&mut self, _: Caller, op: Flush) -> Result<(), FsError> {
        self.attr_of(op.ino).map(drop)
    }

    fn append(&mut self, _: Caller, _: Append) -> Result<u64, FsError> {
        Err(FsError::Invalid) // there are no others
    }

    fn audit(&mut self, _: Caller, _: Audit) -> Result<(), FsError> {
        Ok(()) // programs of one node see each other's writes at once
    }

    fn status(&mut self, _: Caller, _: Status) -> Result<ServerStatus, FsError> {
        Ok(self.report())
    }

    fn lookup(&mut self, _: Caller, op: Lookup) -> Result<Entry, FsError> {
        self.walk(&op.components)
    }

    fn admit(&mut self, from: Caller, op: Admit) -> Result<(), FsError> {
        match from {
            Caller::Control => self.admit_user(op.uid),
            Caller::Client(_) => Err(FsError::NotPermitted),
        }
    }

    fn stop(&mut self, from: Caller, _: Stop) -> Result<ServerStatus, FsError> {
        if from != Caller::Control {
            return Err(FsError::NotPermitted);
        }
        self.stopping = true;
        Ok(self.report())
    }
}

impl<P: Platform> Node<'_, P> {
    /// The state of the server, with all that was written taken in.
    pub fn report(&mut self) -> ServerStatus {
        self.take_all_notes();
        self.harvest_all();
        self.sweep();
        let counts = self.names.counts();
        let mut folded = self.stats.folded();
        for (_, client) in self.clients.iter() {
            folded.add(client.memory.header());
            folded.add_written(self.uncounted(client.cells.iter().copied()));
        }
        let mounts = self.clients.iter().filter(|(id, _)| self.is_mount(*id));
        let (ghosts, mounts): (Vec<_>, Vec<_>) = mounts.partition(|(_, client)| client.ghost);
        let runs: usize = self.files.iter().map(ExtentIndex::run_count).sum();
        ServerStatus {
            pid: self.identity.pid,
            rank: self.identity.rank.0,
            servers: self.identity.servers,
            started_ns: self.identity.started_ns,
            clients: u32::try_from(self.clients.iter().count() - mounts.len() - ghosts.len())
                .unwrap_or(u32::MAX),
            clients_ever: self.stats.clients_ever - mounts.len() as u64,
            files: counts.files + counts.symlinks,
            directories: counts.dirs.saturating_sub(1),
            runs: runs as u64,
            tiers: self.space.usage(),
            counters: folded.counters(),
            refused: folded.refused(),
            requests: self.stats.requests(),
            rejected: [self.stats.rejected(), self.platform.refused()].concat(),
            findings: Vec::new(),
            recoverable: self.is_recoverable(),
            attached: self.parties_attached(),
        }
    }
}
