//! The names and inodes of this server: its shard of the namespace, whose errors are those of
//! operations here, and whose times are the server's.

mod inodes;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Deref, DerefMut};

use weir_core::names::{Attr, DirPart, NamesError, NewTree, Policy, Shard, NAME_MAX};
use weir_core::proto::{Child, FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::clock::ServerClock;
use crate::cluster::refusal::refusal;

/// The longest path, bytes.
const PATH_BYTES: usize = 64 << 10;

/// The names and inodes of this server. All rooms look at inodes here.
pub(in crate::cluster) struct NodeNames<'m> {
    shard: Shard<'m>,
    clock: ServerClock,
}

impl<'m> Deref for NodeNames<'m> {
    type Target = Shard<'m>;

    fn deref(&self) -> &Shard<'m> {
        &self.shard
    }
}

impl<'m> DerefMut for NodeNames<'m> {
    fn deref_mut(&mut self) -> &mut Shard<'m> {
        &mut self.shard
    }
}

impl<'m> NodeNames<'m> {
    pub(in crate::cluster) fn new(shard: Shard<'m>, clock: ServerClock) -> NodeNames<'m> {
        NodeNames { shard, clock }
    }
}

impl NodeNames<'_> {
    /// The time of the current call, ns since 1970.
    pub(in crate::cluster) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// Joins the other servers, whose root directory is `root`.
    pub(in crate::cluster) fn join(&mut self, root: Ino) {
        self.shard.stand_in_for_root(root);
    }

    pub(in crate::cluster) fn stands_in(&self, dir: Ino) -> bool {
        self.shard.has_stand_in(dir)
    }

    pub(in crate::cluster) fn adopt_dir(&mut self, dir: &Attr) -> Result<(), FsError> {
        self.shard.adopt_dir(dir).map_err(refusal)
    }

    pub(in crate::cluster) fn passage(&self, dir: Ino) -> Option<Attr> {
        self.shard.passage(dir)
    }

    pub(in crate::cluster) fn disown_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        self.shard.disown_dir(dir).map_err(refusal)
    }

    /// The attributes in the table. The size does not include the writes of this node's writers.
    pub(in crate::cluster) fn attr_of(&self, ino: Ino) -> Result<Attr, FsError> {
        self.shard.attr(ino).map_err(refusal)
    }

    pub(in crate::cluster) fn part_of(&self, dir: Ino) -> Result<DirPart, FsError> {
        self.shard.dir_part(dir).map_err(refusal)
    }

    /// The names of a directory that are here, in the order in which they came.
    pub(in crate::cluster) fn names_of(&self, dir: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        // A directory without a stand-in has no names here.
        let _ = self.shard.readdir(dir, 0, usize::MAX, |found| {
            names.push(found.name.to_vec());
            ControlFlow::Continue(())
        });
        names
    }

    /// The directory and the name of an inode, if that entry is here.
    pub(in crate::cluster) fn parent_and_name(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let mut name = [0; NAME_MAX];
        let (parent, len) = self.shard.view().parent_and_name(ino, &mut name).ok()??;
        Some((parent, name[..len].to_vec()))
    }

    pub(in crate::cluster) fn set_parent(&mut self, ino: Ino, parent: Ino) -> Result<(), FsError> {
        let now_ns = self.clock.now_ns();
        self.shard.set_parent(ino, parent, now_ns).map_err(refusal)
    }

    /// Notes that a rename between servers may be about to take a name away, or not any more.
    pub(in crate::cluster) fn set_renaming(&mut self, dir: Ino, name: &[u8], is_renaming: bool) {
        self.shard.set_renaming(dir, name, is_renaming);
    }

    /// The inode of a name. The directory may have nothing here.
    pub(in crate::cluster) fn find_child(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Child>, FsError> {
        match self.shard.lookup(dir, name) {
            Ok((ino, kind)) => Ok(Some(Child { ino, kind })),
            Err(NamesError::NotFound) => Ok(None),
            Err(NamesError::Stale(_)) if !self.shard.is_own(dir) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    pub(in crate::cluster) fn withdraw(&mut self, dir: Ino, name: &[u8]) -> Result<Child, FsError> {
        let now_ns = self.clock.now_ns();
        let (ino, kind) = self
            .shard
            .withdraw_entry(dir, name, now_ns)
            .map_err(refusal)?;
        Ok(Child { ino, kind })
    }

    pub(in crate::cluster) fn substitute(
        &mut self,
        dir: Ino,
        name: &[u8],
        child: Child,
    ) -> Result<(), FsError> {
        let now_ns = self.clock.now_ns();
        let put = self
            .shard
            .replace_entry(dir, name, child.ino, child.kind, now_ns);
        put.map(drop).map_err(refusal)
    }

    /// See [`Shard::make_trees`].
    pub(in crate::cluster) fn make_trees(
        &mut self,
        trees: &[NewTree],
        policy: Policy,
    ) -> Result<Vec<Ino>, FsError> {
        let now_ns = self.clock.now_ns();
        let made = self.shard.make_trees(trees, policy, now_ns);
        made.map_err(refusal)
    }

    pub(in crate::cluster) fn symlink_target(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.shard.symlink_target(ino).map_err(refusal)
    }

    /// The path of a directory of the only server, from the root of its tree.
    pub(in crate::cluster) fn path_here(&self, ino: Ino) -> Result<PathInTree, FsError> {
        let mut buffer = vec![0; PATH_BYTES];
        let path = self.shard.view().path_of(ino, &mut buffer);
        let path = path.map_err(|_| FsError::NameTooLong)?;
        let (root, path) = path.ok_or(FsError::NotFound)?;
        let path = path.to_vec();
        Ok(PathInTree { root, path })
    }
}
