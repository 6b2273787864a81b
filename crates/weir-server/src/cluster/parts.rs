//! This node's parts of operations that several servers share (`crate::cluster`): the same tables,
//! in smaller steps.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use weir_core::extent::{ExtentIndex, Run, Source};
use weir_core::journal::Item;
use weir_core::names::{Attr, DirPart, FileType, NamesError, NAME_MAX};
use weir_core::node::block::FileBlock;
use weir_core::proto::peer::{self, LogRange, What};
use weir_core::proto::{Child, FsError, SetAttr};
use weir_core::types::{ClientId, Ino};

use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform, Space};
use weir_core::names::Owner;

/// The longest path, bytes.
const PATH_BYTES: usize = 64 << 10;

/// The unpublished writes of a node to a file.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// The runs, no two of which overlap.
    pub runs: Vec<Run>,
    /// The file's size according to this node.
    pub size: u64,
    /// The time of the last write, ns since 1970.
    pub mtime_ns: i64,
}

impl<P: Platform> Node<'_, P> {
    /// Joins the other servers, whose root directory is `root`.
    pub(crate) fn join(&mut self, root: Ino) {
        self.names.stand_in_for_root(root);
    }

    /// The files of this server, with their sizes in the table.
    pub(crate) fn own_sizes(&self) -> Vec<(Ino, u64)> {
        let files = self.names.own_files();
        files.map(|attr| (attr.ino, attr.size)).collect()
    }

    /// The files of other servers that have stand-ins here: global and local numbers.
    pub(crate) fn file_stand_ins(&self) -> Vec<(Ino, Ino)> {
        self.names.file_stand_ins()
    }

    /// Sweeps the unnamed files that no other node has open. The others have now said which files
    /// they have open; after a restart all unnamed files stay until then.
    pub(crate) fn keep_orphans_no_more(&mut self) {
        self.keeps_orphans = false;
        self.sweep();
    }

    /// Sets the time of the next operations, ns since 1970.
    pub(crate) fn set_time(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
    }

    pub(crate) fn stands_in(&self, dir: Ino) -> bool {
        self.names.stands_in(dir)
    }

    pub(crate) fn adopt_dir(&mut self, dir: &Attr) -> Result<(), FsError> {
        self.names.adopt_dir(dir).map_err(refusal)
    }

    pub(crate) fn passage(&self, dir: Ino) -> Option<Attr> {
        self.names.passage(dir)
    }

    pub(crate) fn disown_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        self.names.disown_dir(dir).map_err(refusal)
    }

    /// The attributes in the table. The size does not include the writes of this node's writers.
    pub(crate) fn attr_of(&self, ino: Ino) -> Result<Attr, FsError> {
        self.names.attr(ino).map_err(refusal)
    }

    /// The attributes, including the writes of this node's writers.
    pub(crate) fn attr_now(&self, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.attr_of(ino)?;
        if attr.file_type() == FileType::File {
            attr.size = self.size_of(&attr);
            attr.mtime_ns = self.mtime_of(&attr);
        }
        Ok(attr)
    }

    pub(crate) fn part_of(&self, dir: Ino) -> Result<DirPart, FsError> {
        self.names.dir_part(dir).map_err(refusal)
    }

    /// The names of a directory that are here, in the order in which they came.
    pub(crate) fn names_of(&self, dir: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        // A directory without a stand-in has no names here.
        let _ = self.names.readdir(dir, 0, usize::MAX, |found| {
            names.push(found.name.to_vec());
            ControlFlow::Continue(())
        });
        names
    }

    /// Ends a directory of this server that was removed.
    pub(crate) fn end_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        let now_ns = self.now_ns;
        self.names.relink(dir, false, now_ns).map_err(refusal)?;
        self.names
            .set_parent(dir, Ino::NONE, now_ns)
            .map_err(refusal)?;
        self.add_orphan(dir);
        Ok(())
    }

    /// The directory and the name of an inode, if that entry is here.
    pub(crate) fn parent_and_name(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let mut name = [0; NAME_MAX];
        let (parent, len) = self.names.view().parent_and_name(ino, &mut name).ok()??;
        Some((parent, name[..len].to_vec()))
    }

    pub(crate) fn set_parent(&mut self, ino: Ino, parent: Ino) -> Result<(), FsError> {
        let now_ns = self.now_ns;
        self.names.set_parent(ino, parent, now_ns).map_err(refusal)
    }

    /// The inode of a name. The directory may have nothing here.
    pub(crate) fn find_child(&self, dir: Ino, name: &[u8]) -> Result<Option<Child>, FsError> {
        match self.names.lookup(dir, name) {
            Ok((ino, kind)) => Ok(Some(Child { ino, kind })),
            Err(NamesError::NotFound) => Ok(None),
            Err(NamesError::Stale(_)) if !self.names.is_own(dir) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    pub(crate) fn make(&mut self, op: &peer::Make, owner: Owner) -> Result<Ino, FsError> {
        self.with_room(|node| {
            let (names, now_ns) = (&mut node.names, node.now_ns);
            match &op.what {
                What::File => names.create(op.dir, &op.name, op.mode, owner, now_ns),
                What::Dir => names.mkdir(op.dir, &op.name, op.mode, owner, now_ns),
                What::Special(kind) => {
                    names.make_special(op.dir, &op.name, *kind, op.mode, owner, now_ns)
                }
                What::Symlink(target) => names.symlink(op.dir, &op.name, target, owner, now_ns),
            }
        })
    }

    pub(crate) fn withdraw(&mut self, dir: Ino, name: &[u8]) -> Result<Child, FsError> {
        let now_ns = self.now_ns;
        let (ino, kind) = self.names.withdraw(dir, name, now_ns).map_err(refusal)?;
        Ok(Child { ino, kind })
    }

    pub(crate) fn enter(&mut self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError> {
        self.with_room(|node| {
            let Child { ino, kind } = child;
            node.names.enter(dir, name, ino, kind, node.now_ns)
        })
    }

    pub(crate) fn substitute(
        &mut self,
        dir: Ino,
        name: &[u8],
        child: Child,
    ) -> Result<(), FsError> {
        let now_ns = self.now_ns;
        let put = self
            .names
            .substitute(dir, name, (child.ino, child.kind), now_ns);
        put.map(drop).map_err(refusal)
    }

    /// Adds or removes a link of an inode of this server.
    pub(crate) fn relink(&mut self, ino: Ino, add: bool) -> Result<FileType, FsError> {
        let now_ns = self.now_ns;
        let left = self.names.relink(ino, add, now_ns).map_err(refusal)?;
        let kind = self.attr_of(ino)?.file_type();
        if left == 0 {
            self.add_orphan(ino);
        } else if add {
            // It may be the first name of a file that was made without one.
            self.orphans.remove(&ino);
        }
        Ok(kind)
    }

    /// Keeps a file of this server while other nodes have it open.
    pub(crate) fn pin(&mut self, ino: Ino) {
        self.pinned.insert(ino);
    }

    pub(crate) fn unpin(&mut self, ino: Ino) {
        self.pinned.remove(&ino);
        if self.orphans.contains(&ino) {
            self.sweep();
        }
    }

    /// Returns true if [`Node::take_gone`] has something to return.
    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// The files of this server that have ended since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn symlink_target(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.names.symlink_target(ino).map_err(refusal)
    }

    pub(crate) fn adopt_file(&mut self, attr: &Attr) -> Result<Ino, FsError> {
        self.names.adopt_file(attr).map_err(refusal)
    }

    /// Ends a stand-in that no process here has open, unless it has unpublished extents.
    pub(crate) fn let_go(&mut self, local: Ino) -> bool {
        let unused = !self.is_written(local);
        if unused {
            self.stored.remove(&local);
        }
        unused && self.names.disown_file(local).is_ok()
    }

    /// Returns true if a process of this node writes a file, or if the file has unpublished
    /// extents.
    pub(crate) fn is_written(&self, local: Ino) -> bool {
        let unpublished = self.files.get(local).is_some_and(|index| !index.is_empty());
        unpublished || self.block_of(local).is_some()
    }

    /// Updates a stand-in. This node's writers may be ahead of `attr`.
    pub(crate) fn refresh(&mut self, local: Ino, attr: &Attr, leased: bool) -> Result<(), FsError> {
        self.names.refresh(local, attr, leased).map_err(refusal)?;
        if attr.allocated == 0 {
            self.stored.remove(&local);
        } else {
            self.stored.insert(local, attr.allocated);
        }
        if let Some(block) = self.shared_block(local) {
            block.raise(attr.size);
        }
        Ok(())
    }

    /// Makes void what readers of this node know of a file.
    pub(crate) fn recall(&mut self, local: Ino) {
        if self.names.recall(local).is_err() {
            let _ = self.names.bump_index_generation(local);
        }
    }

    /// See [`Shard::recall_named`](weir_core::names::Shard::recall_named).
    pub(crate) fn recall_named(&mut self, local: Ino, named: bool) {
        let _ = self.names.recall_named(local, named);
    }

    /// Makes writers ask for the position of each append. Returns the file's end, with the
    /// positions that appends have reserved.
    pub(crate) fn share_appends(&mut self, local: Ino) -> u64 {
        let block = self.shared_block(local);
        let reserved = block.map_or(0, FileBlock::share_appends);
        let size = self.attr_now(local).map_or(0, |attr| attr.size);
        size.max(reserved)
    }

    /// Sets the tokens of a file, which tell this node's writers if they must ask before they begin
    /// a record: see [`weir_core::node::block`].
    pub(crate) fn set_tokens(&self, local: Ino, tokens: u64) {
        if let Some(block) = self.shared_block(local) {
            block.tokens.store(tokens, Ordering::SeqCst);
        }
    }

    /// Returns true if no other program of this node has a file open for writing.
    pub(crate) fn writes_alone(&self, local: Ino, client: ClientId) -> bool {
        let file = self
            .block_of(local)
            .and_then(|block| self.blocks.get(block));
        file.is_none_or(|file| {
            let mut cells = file.cells.iter().filter_map(|cell| self.cells.get(*cell));
            cells.all(|writer| writer.client == client)
        })
    }

    /// Makes this node's writers of a raw file ask from now on. Consider a write that did not ask:
    /// when this returns, its record is in the cells, or the write itself will find that it must
    /// ask.
    pub(crate) fn revoke_writes(&self, local: Ino) {
        if let Some(block) = self.shared_block(local) {
            block.revoke();
            self.platform.barrier();
        }
    }

    /// Raises a file's size to at least `size`, and its times to at least `mtime_ns`.
    pub(crate) fn raise_to(&mut self, ino: Ino, size: u64, mtime_ns: i64) -> Result<(), FsError> {
        let attr = self.regular(ino)?;
        self.raise_size(&attr, size);
        let set = weir_core::names::SetAttr {
            mtime_ns: (mtime_ns > attr.mtime_ns).then_some(mtime_ns),
            ctime_ns: (mtime_ns > attr.ctime_ns).then_some(mtime_ns),
            ..Default::default()
        };
        self.names.setattr(ino, &set).map(drop).map_err(refusal)
    }

    /// Sets the number of a file's bytes that are stored beside those in its index here.
    pub(crate) fn set_stored(&mut self, ino: Ino, bytes: u64) {
        if bytes == 0 {
            self.stored.remove(&ino);
        } else {
            self.stored.insert(ino, bytes);
        }
        self.changed.push(ino);
        self.announce_changes();
    }

    /// Sets attributes of an inode, or of the stand-in of a directory.
    pub(crate) fn set(&mut self, set: &SetAttr) -> Result<(), FsError> {
        self.set_attributes(set)
    }

    /// The files that have unpublished extents.
    pub(crate) fn unpublished(&mut self) -> Vec<Ino> {
        self.harvest_all();
        let (files, names) = (&self.files, &self.names);
        files.not_empty().map(|index| names.ino_at(index)).collect()
    }

    /// Takes the unpublished extents of a file. Later writes go to new records, and so are not
    /// published by accident. The taken bytes stay alive.
    pub(crate) fn take_pending(&mut self, local: Ino) -> Result<Pending, FsError> {
        let attr = self.regular(local)?;
        if let Some(block) = self.shared_block(local) {
            block.end_claims();
        }
        self.harvest(local);
        let mut pending = Pending {
            size: self.size_of(&attr),
            mtime_ns: self.mtime_of(&attr),
            runs: Vec::new(),
        };
        if !self.files.get(local).is_none_or(ExtentIndex::is_empty) {
            self.note_taken(local, attr.home);
        }
        let index = std::mem::take(self.files.get_mut(local));
        // The holes were made where the extents are: see `cluster`.
        index.for_each_run(&mut |run| {
            if run.source != Source::Hole {
                pending.runs.push(run);
            }
        });
        for run in &pending.runs {
            run.for_each_log_range(&mut |range| self.given.add(range.slab, range.pos, range.len));
        }
        Ok(pending)
    }

    /// Returns true if a number of this table is that of a regular file.
    pub(crate) fn is_file(&self, local: Ino) -> bool {
        self.regular(local).is_ok()
    }

    /// The number of unpublished runs of a file.
    pub(crate) fn pending_count(&self, local: Ino) -> usize {
        self.files.get(local).map_or(0, ExtentIndex::run_count)
    }

    /// Appends the unpublished runs of `[from, to)`, at most `max`, to `out`. Returns the offset up
    /// to which `out` has all of them.
    pub(crate) fn pending_runs(
        &mut self,
        local: Ino,
        (from, to): (u64, u64),
        max: usize,
        out: &mut Vec<Run>,
    ) -> u64 {
        self.harvest(local);
        match self.files.get(local) {
            Some(index) => index.runs_in(from, to, max, out).hi,
            None => to,
        }
    }

    /// Frees bytes of this server's log.
    pub(crate) fn free_bytes(&mut self, range: &LogRange) {
        self.given.freed(range.slab, range.pos, range.len);
        self.note(&Item::Freed(*range));
        self.space.freed(range.slab, range.pos, range.len);
    }

    /// The path of a directory of the only server.
    pub(crate) fn path_here(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let mut buffer = vec![0; PATH_BYTES];
        let path = self.names.view().path_of(ino, &mut buffer);
        let path = path.map_err(|_| FsError::NameTooLong)?;
        Ok(path.ok_or(FsError::NotFound)?.to_vec())
    }

    /// Makes void the extents of a file that readers of this node know.
    pub(crate) fn touch_generation(&mut self, local: Ino) {
        let _ = self.names.bump_index_generation(local);
    }

    /// The slabs of storage directories that have bytes of these runs.
    pub(crate) fn file_slabs_of(&self, runs: &[Run]) -> Vec<u32> {
        let slabs = runs.iter().filter_map(|run| match run.source {
            Source::Log { slab, .. } if self.space.is_file(slab) => Some(slab),
            _ => None,
        });
        slabs.collect()
    }
}
