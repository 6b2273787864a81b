//! Operations on this server's own names in the smaller steps of operations that several servers
//! share.

use std::ops::ControlFlow;

use weir_core::names::{Attr, DirPart, FileType, NamesError, Owner, NAME_MAX};
use weir_core::proto::peer::{self, What};
use weir_core::proto::{Child, FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform};

/// The longest path, bytes.
const PATH_BYTES: usize = 64 << 10;

impl<P: Platform> Node<'_, P> {
    /// Joins the other servers, whose root directory is `root`.
    pub(in crate::cluster) fn join(&mut self, root: Ino) {
        self.names.stand_in_for_root(root);
    }

    pub(super) fn stands_in(&self, dir: Ino) -> bool {
        self.names.has_stand_in(dir)
    }

    pub(super) fn adopt_dir(&mut self, dir: &Attr) -> Result<(), FsError> {
        self.names.adopt_dir(dir).map_err(refusal)
    }

    pub(super) fn passage(&self, dir: Ino) -> Option<Attr> {
        self.names.passage(dir)
    }

    pub(super) fn disown_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        self.names.disown_dir(dir).map_err(refusal)
    }

    /// The attributes in the table. The size does not include the writes of this node's writers.
    pub(in crate::cluster) fn attr_of(&self, ino: Ino) -> Result<Attr, FsError> {
        self.names.attr(ino).map_err(refusal)
    }

    pub(super) fn part_of(&self, dir: Ino) -> Result<DirPart, FsError> {
        self.names.dir_part(dir).map_err(refusal)
    }

    /// The names of a directory that are here, in the order in which they came.
    pub(super) fn names_of(&self, dir: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        // A directory without a stand-in has no names here.
        let _ = self.names.readdir(dir, 0, usize::MAX, |found| {
            names.push(found.name.to_vec());
            ControlFlow::Continue(())
        });
        names
    }

    /// Ends a directory of this server that was removed.
    pub(super) fn end_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        let now_ns = self.time();
        self.names
            .change_links(dir, false, now_ns)
            .map_err(refusal)?;
        self.names
            .set_parent(dir, Ino::NONE, now_ns)
            .map_err(refusal)?;
        self.add_orphan(dir);
        Ok(())
    }

    /// The directory and the name of an inode, if that entry is here.
    pub(super) fn parent_and_name(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let mut name = [0; NAME_MAX];
        let (parent, len) = self.names.view().parent_and_name(ino, &mut name).ok()??;
        Some((parent, name[..len].to_vec()))
    }

    pub(super) fn set_parent(&mut self, ino: Ino, parent: Ino) -> Result<(), FsError> {
        let now_ns = self.time();
        self.names.set_parent(ino, parent, now_ns).map_err(refusal)
    }

    /// Notes that a rename between servers may be about to take a name away, or not any more.
    pub(super) fn set_renaming(&mut self, (dir, name): &(Ino, Vec<u8>), is_renaming: bool) {
        self.names.set_renaming(*dir, name, is_renaming);
    }

    /// The inode of a name. The directory may have nothing here.
    pub(super) fn find_child(&self, dir: Ino, name: &[u8]) -> Result<Option<Child>, FsError> {
        match self.names.lookup(dir, name) {
            Ok((ino, kind)) => Ok(Some(Child { ino, kind })),
            Err(NamesError::NotFound) => Ok(None),
            Err(NamesError::Stale(_)) if !self.names.is_own(dir) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    pub(in crate::cluster) fn make(
        &mut self,
        op: &peer::Make,
        owner: Owner,
    ) -> Result<Ino, FsError> {
        self.with_room(|node| {
            let now_ns = node.time();
            let names = &mut node.names;
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

    pub(super) fn withdraw(&mut self, dir: Ino, name: &[u8]) -> Result<Child, FsError> {
        let now_ns = self.time();
        let (ino, kind) = self
            .names
            .withdraw_entry(dir, name, now_ns)
            .map_err(refusal)?;
        Ok(Child { ino, kind })
    }

    pub(super) fn enter(&mut self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError> {
        self.with_room(|node| {
            let Child { ino, kind } = child;
            node.names.insert_entry(dir, name, ino, kind, node.time())
        })
    }

    pub(super) fn substitute(
        &mut self,
        dir: Ino,
        name: &[u8],
        child: Child,
    ) -> Result<(), FsError> {
        let now_ns = self.time();
        let put = self
            .names
            .replace_entry(dir, name, (child.ino, child.kind), now_ns);
        put.map(drop).map_err(refusal)
    }

    /// Adds or removes a link of an inode of this server.
    pub(in crate::cluster) fn relink(&mut self, ino: Ino, add: bool) -> Result<FileType, FsError> {
        let now_ns = self.time();
        let left = self.names.change_links(ino, add, now_ns).map_err(refusal)?;
        let kind = self.attr_of(ino)?.file_type();
        if left == 0 {
            self.add_orphan(ino);
        } else if add {
            // It may be the first name of a file that was made without one.
            self.files.drop_orphan(ino);
        }
        Ok(kind)
    }

    pub(in crate::cluster) fn symlink_target(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.names.symlink_target(ino).map_err(refusal)
    }

    /// The path of a directory of the only server, from the root of its tree.
    pub(super) fn path_here(&self, ino: Ino) -> Result<PathInTree, FsError> {
        let mut buffer = vec![0; PATH_BYTES];
        let path = self.names.view().path_of(ino, &mut buffer);
        let path = path.map_err(|_| FsError::NameTooLong)?;
        let (root, path) = path.ok_or(FsError::NotFound)?;
        let path = path.to_vec();
        Ok(PathInTree { root, path })
    }
}
