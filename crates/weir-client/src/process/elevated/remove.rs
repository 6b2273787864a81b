//! Whiteouts: names that were removed from an elevated tree, and that the PFS may still have.
//!
//! A whiteout is made before its name is removed. So at no moment, and whatever is killed, does a file of
//! the PFS show through that was removed or replaced before. While the tree has the name, the whiteout
//! means nothing. The drain removes it once the PFS does not have the name any more.

use rustix::io::Errno;
use weir_core::elevated::{name_of_directory, WHITEOUTS};
use weir_core::names::FileType;
use weir_core::proto::{Mkdir, Symlink};
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::list::names_in;
use crate::path::walk::Names;
use crate::path::Name;

/// The target of the link that a whiteout is. Nothing reads it.
const NOTHING: &[u8] = b"-";

impl InodeOperations {
    pub(super) fn is_whited_out(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        let view = self.view()?;
        match view.lookup(WHITEOUTS, &name_of_directory(dir))? {
            Some((whiteouts, _)) => Ok(view.lookup(whiteouts, name)?.is_some()),
            None => Ok(false),
        }
    }

    /// Hides a name of the directory that an elevated one covers; false: it is hidden already, or the
    /// directory covers none.
    pub(in super::super) fn white_out(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        if self.covered_by(dir)?.is_none() {
            return Ok(false);
        }
        let session = self.server.session()?;
        let who = self.user.credentials();
        let whiteouts = name_of_directory(dir);
        for _ in 0..3 {
            if let Some((parent, _)) = self.view()?.lookup(WHITEOUTS, &whiteouts)? {
                let made = session.call(Symlink {
                    parent,
                    name: name.to_vec(),
                    target: NOTHING.to_vec(),
                    uid: who.uid,
                    gid: who.gid,
                });
                match made {
                    Err(Errno::EXIST) => return Ok(false),
                    // The drain has removed the directory, which was empty.
                    Err(Errno::NOENT) => {}
                    made => return made.map(|_| true),
                }
            }
            let made = session.call(Mkdir {
                parent: WHITEOUTS,
                name: whiteouts.to_vec(),
                mode: 0o700,
                uid: who.uid,
                gid: who.gid,
            });
            match made {
                Ok(_) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::IO)
    }

    /// unlink(2) of a name that only the PFS has.
    pub(in super::super) fn remove_below(
        self,
        dir: Ino,
        name: &Name,
        path: &[u8],
    ) -> Result<(), Errno> {
        self.check_parent(dir)?;
        let owner = rustix::fs::lstat(path)?.st_uid;
        if !self.removes_any(dir)? && owner != self.user.credentials().uid {
            return Err(Errno::PERM);
        }
        // Another process was faster.
        let is_new = self.white_out(dir, name.bytes())?;
        is_new.then_some(()).ok_or(Errno::NOENT)
    }

    /// Before a name is renamed: hides it, unless two names are exchanged. `target`: what has the new
    /// name. EXDEV: a directory covers one of the PFS, which cannot be renamed.
    pub(in super::super) fn prepare_rename(
        self,
        (parent, name, (source, kind)): (Ino, &Name, (Ino, FileType)),
        target: Option<Ino>,
        exchanges: bool,
    ) -> Result<(), Errno> {
        if !self.elevates() {
            return Ok(());
        }
        let covers = |dir| Ok::<_, Errno>(self.covered_by(dir)?.is_some());
        if covers(source)? {
            return Err(Errno::XDEV);
        }
        if let Some(target) = target {
            if exchanges && covers(target)? {
                return Err(Errno::XDEV);
            }
            if kind == FileType::Dir {
                self.check_empty_below(target)?;
            }
        }
        if !exchanges {
            self.white_out(parent, name.bytes())?;
        }
        Ok(())
    }

    /// EXDEV: a file is not of the tree of a directory.
    pub(in super::super) fn check_same_tree_as_file(
        self,
        file: Ino,
        dir: Ino,
    ) -> Result<(), Errno> {
        if !self.elevates() {
            return Ok(());
        }
        match self.attr(file)?.parent {
            // It was made without a name.
            Ino::NONE => Ok(()),
            parent => self.check_same_tree(parent, dir),
        }
    }

    /// ENOTEMPTY: the directory that an elevated one covers has a name that the union shows.
    pub(in super::super) fn check_empty_below(self, dir: Ino) -> Result<(), Errno> {
        let Some(covered) = self.covered_by(dir)? else {
            return Ok(());
        };
        for name in names_in(&covered)? {
            if self.shows_below(dir, &name)? {
                return Err(Errno::NOTEMPTY);
            }
        }
        Ok(())
    }
}
