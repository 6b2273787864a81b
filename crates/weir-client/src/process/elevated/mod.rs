//! Elevated trees: a union of a tree of weir's, the upper layer, with a directory of the parallel file
//! system (PFS), the lower one. [`weir_core::elevated`] says what the instance keeps for it.
//!
//! A name that a directory of the tree does not have is looked for in the directory that it covers,
//! unless it has a whiteout. A directory that is found there is *taken up*: from then on the tree has it
//! too, so that the current directory and descriptors of it lead into the tree. Any other file of the PFS
//! stays the kernel's: programs read it, change its attributes and update it there, unless a rule says
//! otherwise. It is taken up only to be renamed or linked. One that is truncated as it is opened is replaced by a new file of the tree,
//! unless that could not have all that a truncation keeps.
//!
//! | file | subject |
//! | --- | --- |
//! | this one | looking for names |
//! | `take_up` | making entries of the tree for files of the PFS |
//! | `truncation` | files that are truncated as they are opened |
//! | `remove` | whiteouts |
//! | `update` | cutting files that may be evicted |
//! | `rules` | files that a rule leaves on the PFS, or takes up before they are changed |
//! | `links` | what the instance keeps, as symbolic links |
//! | `name_lock` | the lock of a name that only the PFS has |
//! | `list` | listing both layers |
//!
//! Left out: moving files to the PFS (`weir-mover`); renaming a directory that covers one of the PFS,
//! which is refused with EXDEV, as by overlayfs, so that programs copy it.

mod links;
mod list;
pub(super) mod name_lock;
mod remove;
mod rules;
mod take_up;
mod truncation;
mod update;

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use weir_core::elevated::{is_part, name_of_inode, COVERS};
use weir_core::names::{Attr, FileType, SYMLINK_MAX};
use weir_core::types::Ino;

use super::attributes::AttributeCalls;
use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::io::IoCalls;
use super::opener::InodeOpener;
use super::paths::PathLookup;
use super::server_link::{LazyClient, ServerLink};
use super::user::ProcessUser;
use super::ProcessState;
use crate::path::walk::Names;
use crate::path::{BelowEntry, Guard};
use crate::view::View;
pub(super) use list::{ListingBelow, LowerListings, BELOW};
pub(super) use remove::RenamedEntry;
pub(super) use rules::LowerEntry;

/// Fails unless this process may make and remove names in a directory of the PFS.
fn may_make_names(covered: &[u8]) -> Result<(), Errno> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(CWD, covered, wanted, AtFlags::EACCESS)
}

/// The taking of files of the PFS into an elevated tree. It may touch the look-up of paths, the opening of inodes,
/// descriptors, the calls that copy bytes and attributes to a file that it has opened, the user, inodes and the
/// server.
#[derive(Debug)]
pub(super) struct FileTakeUp {
    paths: PathLookup,
    opener: InodeOpener,
    descriptors: Descriptors,
    io: IoCalls,
    attributes: AttributeCalls,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl FileTakeUp {
    pub(super) const fn over(state: &'static ProcessState) -> FileTakeUp {
        FileTakeUp {
            paths: PathLookup::over(state),
            opener: InodeOpener::over(state),
            descriptors: Descriptors::over(state),
            io: IoCalls::over(state),
            attributes: AttributeCalls::over(state),
            server: &state.server,
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }
}

/// The namespace of a process, with what is below elevated directories.
pub(super) struct UnionNames {
    inodes: InodeOperations,
    view: View<LazyClient>,
}

impl Names for UnionNames {
    fn root(&self) -> Ino {
        self.view.root()
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        self.view.lookup(dir, name)
    }

    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        self.view.attr(ino)
    }

    fn passage(&self, dir: Ino) -> Result<Option<Guard>, Errno> {
        self.view.passage(dir)
    }

    fn target(&self, ino: Ino, out: &mut [u8; SYMLINK_MAX]) -> Result<usize, Errno> {
        self.view.target(ino, out)
    }

    fn lookup_below(&self, dir: Ino, name: &[u8]) -> Result<Option<BelowEntry>, Errno> {
        self.inodes.find_below(dir, name)
    }
}

impl InodeOperations {
    /// The namespace, with what is below elevated directories.
    #[inline]
    pub(super) fn union(self) -> Result<UnionNames, Errno> {
        Ok(UnionNames {
            view: self.view()?,
            inodes: self,
        })
    }

    /// True if the instance has elevated trees.
    #[inline]
    pub(super) fn elevates(self) -> bool {
        let instance = self.server.instance();
        instance.is_some_and(|instance| !instance.roots.elevated.is_empty())
    }

    /// The directory of the PFS that a directory covers; `None`: it is of no elevated tree, or opaque.
    pub(super) fn covered_by(self, dir: Ino) -> Result<Option<Vec<u8>>, Errno> {
        match self.cover_of(dir)? {
            Some(link) => self.view()?.text_of(link),
            None => Ok(None),
        }
    }

    /// The directory of the PFS that an inode covers; `None`: it is no directory, or covers none.
    pub(super) fn directory_below(self, ino: Ino) -> Result<Option<Vec<u8>>, Errno> {
        if !self.elevates() || self.attr(ino)?.file_type() != FileType::Dir {
            return Ok(None);
        }
        self.covered_by(ino)
    }

    /// True if a directory covers one of the PFS.
    pub(super) fn covers(self, dir: Ino) -> Result<bool, Errno> {
        Ok(self.cover_of(dir)?.is_some())
    }

    /// EROFS: a directory covers one of a file system that is mounted read-only in an elevated directory that is not: what is
    /// made there could never be moved. An elevated directory that becomes read-only as a whole is one whose files wait.
    pub(super) fn check_not_read_only(self, dir: Ino) -> Result<(), Errno> {
        let Some(instance) = self.server.instance().filter(|_| self.elevates()) else {
            return Ok(());
        };
        let Some(covered) = self.covered_by(dir)? else {
            return Ok(());
        };
        // Of its permissions nothing is asked: the mode is that of the tree, which the PFS may not have yet.
        if may_make_names(&covered) != Err(Errno::ROFS) {
            return Ok(());
        }
        let trees = instance.roots.elevated.iter();
        let target = trees.map(|tree| tree.target.bytes()).find(|target| {
            let below = covered.strip_prefix(*target);
            below.is_some_and(|below| matches!(below, [] | [b'/', ..]))
        });
        match target.map(may_make_names) {
            Some(Err(Errno::ROFS)) => Ok(()),
            _ => Err(Errno::ROFS),
        }
    }

    /// The link that says which directory of the PFS a directory covers.
    fn cover_of(self, dir: Ino) -> Result<Option<Ino>, Errno> {
        let instance = self.server.instance().filter(|_| self.elevates());
        let Some(instance) = instance.filter(|instance| !instance.opaque.contains(dir)) else {
            return Ok(None);
        };
        let cover = self.view()?.lookup(COVERS, &name_of_inode(dir))?;
        if cover.is_none() {
            instance.opaque.insert(dir);
        }
        Ok(cover.map(|(link, _)| link))
    }

    /// Looks for a name that the tree does not have.
    fn find_below(self, dir: Ino, name: &[u8]) -> Result<Option<BelowEntry>, Errno> {
        let Some(covered) = self.covered_by(dir)? else {
            return Ok(None);
        };
        if is_part(name) || self.is_whited_out(dir, name)? {
            return Ok(None);
        }
        let path = [&covered, &b"/"[..], name].concat();
        let stat = match rustix::fs::statat(CWD, &path[..], AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            stat => stat?,
        };
        Ok(Some(
            match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
                rustix::fs::FileType::Directory => {
                    BelowEntry::Directory(self.take_up_directory(dir, name, &path, &stat)?)
                }
                rustix::fs::FileType::Symlink => BelowEntry::Link {
                    target: rustix::fs::readlink(&path[..], Vec::new())?.into_bytes(),
                    path,
                },
                _ => BelowEntry::File(path),
            },
        ))
    }

    /// True if only the PFS has a name, as the union shows it. Under the lock of the name that stays so,
    /// unless the name is made anew.
    fn is_only_below(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        let found = self.view()?.lookup(dir, name)?;
        Ok(found.is_none() && self.find_below(dir, name)?.is_some())
    }

    /// EXDEV: two directories are not of one tree.
    pub(super) fn check_same_tree(self, one: Ino, other: Ino) -> Result<(), Errno> {
        if one == other || !self.elevates() {
            return Ok(());
        }
        let same = self.path_in_tree(one)?.root == self.path_in_tree(other)?.root;
        same.then_some(()).ok_or(Errno::XDEV)
    }
}
