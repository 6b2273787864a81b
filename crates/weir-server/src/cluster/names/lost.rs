//! Directories whose home is lost: all servers of the instance were killed, and the instance came back without that
//! server.
//!
//! The other servers know the entries of such a directory that they have, and its mode and owner if they have any.
//! Nobody knows the other entries, so a name that no server has is reported as free only if one server has all names of
//! the directory.
//!
//! The root of all, and the directories of elevated trees, have fixed numbers at rank 0, and all paths begin there. So
//! the servers answer for them even if none has entries of them.

use futures_util::future::join_all;
use weir_core::elevated::{root_of_tree, COVERS, EVICTED, MOST_TREES, NURSERY, PARENT, WHITEOUTS};
use weir_core::names::{Attr, FileType};
use weir_core::proto::{peer, Child, FsError};
use weir_core::types::Ino;

use crate::cluster::abilities::NameTables;
use crate::cluster::names::{InstanceNames, NamesNeeds};
use crate::cluster::ROOT;

/// The permission bits of a directory of elevated trees if no server knows them: all for the owner of the instance.
const UNKNOWN_MODE: u32 = 0o700;

impl<S: NamesNeeds> InstanceNames<S> {
    /// True if the home of an inode is lost for as long as this server lives.
    pub(in crate::cluster) fn has_lost_home(&self, ino: Ino) -> bool {
        self.server.peers().is_given_up(ino.rank())
    }

    /// The attributes of a directory whose home is lost, from the other servers: its mode and owner, and its links and
    /// times without the lost server's share. `Unreachable`: no server knows any.
    pub(in crate::cluster) async fn attr_without_home(&self, dir: Ino) -> Result<Attr, FsError> {
        let here = self.server.node(|node| node.names().passage(dir));
        let others = self.server.peers().others().into_iter();
        let asked = others.map(|rank| self.server.call(rank, peer::Passage { dir }));
        let there = join_all(asked).await.into_iter().filter_map(Result::ok);
        let known = here.into_iter().chain(there);
        let known = known.filter(|attr| attr.file_type() == FileType::Dir);
        let known = known.reduce(|attr, part| Attr {
            nlink: attr.nlink.saturating_add(part.nlink.saturating_sub(2)),
            mtime_ns: attr.mtime_ns.max(part.mtime_ns),
            ctime_ns: attr.ctime_ns.max(part.ctime_ns),
            ..attr
        });
        let attr = known.or_else(|| self.attr_of_fixed(dir));
        let attr = attr.ok_or(FsError::Unreachable)?;
        Ok(Attr {
            ino: dir,
            home: dir,
            // Stand-ins do not have the parent.
            parent: if dir == ROOT { ROOT } else { Ino::NONE },
            block: 0,
            ..attr
        })
    }

    /// The attributes of a directory of elevated trees if no server knows any.
    fn attr_of_fixed(&self, dir: Ino) -> Option<Attr> {
        if !self.is_of_trees(dir) {
            return None;
        }
        let root = self.server.node(|node| node.names().passage(ROOT))?;
        let kind = root.mode & !0o7777;
        Some(Attr {
            mode: kind | UNKNOWN_MODE,
            nlink: 2,
            ..root
        })
    }

    /// True if it is one of the directories that rank 0 makes for elevated trees.
    fn is_of_trees(&self, dir: Ino) -> bool {
        let trees = self.server.peers().trees().min(MOST_TREES);
        let of_all = [PARENT, COVERS, WHITEOUTS, NURSERY, EVICTED];
        trees > 0 && of_all.contains(&dir) || self.is_root_of_tree(dir)
    }

    /// True if it is the root of an elevated tree.
    pub(super) fn is_root_of_tree(&self, dir: Ino) -> bool {
        let trees = self.server.peers().trees().min(MOST_TREES);
        (0..trees).any(|number| root_of_tree(number) == dir)
    }

    /// Finds a name in a directory whose home is lost, by asking all servers: only the home knew which of them has the
    /// name. `Unreachable`: a lost server may have it.
    pub(super) async fn find_without_home(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Child>, FsError> {
        let find = || peer::Find {
            dir,
            name: name.to_vec(),
        };
        let ranks = self
            .server
            .peers()
            .others()
            .into_iter()
            .chain([self.server.rank()]);
        let asked = ranks.map(|rank| self.server.call(rank, find()));
        let answers = join_all(asked).await;
        let mut known = answers.into_iter().filter_map(Result::ok);
        let Some(first) = known.next() else {
            return Err(FsError::Unreachable);
        };
        // A server that does not have the name says so only if it has all names of the directory.
        Ok(known.fold(first, Option::or))
    }
}
