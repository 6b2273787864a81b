//! Whiteouts: names of the PFS that were removed from an elevated tree, or whose files it has replaced.
//!
//! A whiteout is made before its name is removed. So at no moment, and whatever is killed, does a file of
//! the PFS show through that was removed or replaced before. While the tree has the name, the whiteout
//! hides nothing; it says which file of the PFS the tree's may replace. The drain removes it once the PFS
//! does not have the name any more.

use rustix::fs::FileType as KernelType;
use rustix::io::Errno;
use weir_core::elevated::{name_of_inode, name_of_links, LowerFile, LowerName, WHITEOUTS};
use weir_core::names::FileType;
use weir_core::proto::Mkdir;
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::super::outside;
use super::links::LinkMade;
use super::list::names_in;
use super::name_lock::NameLock;
use crate::path::walk::Names;
use crate::path::Name;
use crate::types::Stat;

/// The attributes of a name in a directory of the PFS, if there is one.
fn stat_at(covered: &[u8], name: &[u8]) -> Result<Option<Stat>, Errno> {
    match outside::stat(&[covered, &b"/"[..], name].concat(), false) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        stat => stat.map(Some),
    }
}

fn lower_file(stat: &Stat) -> LowerFile {
    LowerFile {
        ino: stat.ino,
        ctime_ns: stat.ctime.since_epoch_ns(),
    }
}

/// A name that is to be renamed, and its inode.
pub(in super::super) struct RenamedEntry<'a> {
    pub(in super::super) parent: Ino,
    pub(in super::super) name: &'a Name,
    pub(in super::super) ino: Ino,
    pub(in super::super) kind: FileType,
}

fn is_regular(stat: &Stat) -> bool {
    KernelType::from_raw_mode(stat.mode) == KernelType::RegularFile
}

impl InodeOperations {
    pub(super) fn is_whited_out(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        let noted = self.lower_name(dir, name)?;
        Ok(matches!(noted, Some(LowerName::Removed(_))))
    }

    /// The note of a name that the job has removed or taken.
    fn lower_name(self, dir: Ino, name: &[u8]) -> Result<Option<LowerName>, Errno> {
        let view = self.view()?;
        let Some((whiteouts, _)) = view.lookup(WHITEOUTS, &name_of_inode(dir))? else {
            return Ok(None);
        };
        let text = view.text_at(whiteouts, name)?;
        Ok(text.map(|text| LowerName::of_text(&text)))
    }

    /// Hides a name of the directory that an elevated one covers. `kind`: that of the name in the tree; `None`:
    /// only the PFS has it. False: the directory covers none, and the PFS is not asked for its names.
    pub(in super::super) fn white_out(
        self,
        dir: Ino,
        name: &[u8],
        kind: Option<FileType>,
    ) -> Result<bool, Errno> {
        let Some(covered) = self.covered_by(dir)? else {
            return Ok(false);
        };
        if matches!(kind, None | Some(FileType::Dir)) {
            let stat = stat_at(&covered, name)?;
            let removed = LowerName::Removed(stat.as_ref().map(lower_file));
            let put = |parent| self.put_link(parent, name, &removed.text());
            self.note_lower_name(dir, put)?;
            if let Some(stat) = stat {
                self.note_lost_name(&stat)?;
            }
            return Ok(true);
        }
        // The PFS may have the drain's copy under this name now, or a file of somebody else.
        let replaced = match self.lower_name(dir, name)? {
            Some(LowerName::Removed(_)) => return Ok(true),
            Some(LowerName::Replaced(file)) => Some(file),
            None => None,
        };
        let removed = LowerName::Removed(replaced).text();
        self.note_lower_name(dir, |parent| match replaced {
            Some(_) => self.put_link(parent, name, &removed),
            None => self.add_link(parent, name, &removed),
        })?;
        Ok(true)
    }

    /// Before a file of the tree takes a name that only the PFS has: notes which file it replaces. False: the
    /// name has become something else.
    pub(in super::super) fn note_replaced(self, dir: Ino, name: &Name) -> Result<bool, Errno> {
        let _lock = NameLock::hold(self.server.session()?, dir, name.bytes())?;
        if !self.is_only_below(dir, name.bytes())? {
            return Ok(false);
        }
        self.note_taken_up(dir, name.bytes())
    }

    /// The same under the lock of the name.
    pub(super) fn note_taken_up(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        let Some(covered) = self.covered_by(dir)? else {
            return Ok(false);
        };
        let Some(stat) = stat_at(&covered, name)? else {
            return Ok(false);
        };
        let text = LowerName::Replaced(lower_file(&stat)).text();
        self.note_lower_name(dir, |parent| self.put_link(parent, name, &text))?;
        self.note_lost_name(&stat)?;
        Ok(true)
    }

    /// The number of names that a file of the PFS has for the job: those that it has removed or taken may still be there.
    pub(in super::super) fn names_left(self, stat: &Stat) -> Result<u32, Errno> {
        if !self.elevates() || stat.nlink < 2 || !is_regular(stat) {
            return Ok(stat.nlink);
        }
        let noted = self
            .view()?
            .text_at(WHITEOUTS, &name_of_links(stat.dev, stat.ino))?;
        let noted = noted.and_then(|text| core::str::from_utf8(&text).ok()?.parse().ok());
        Ok(noted.unwrap_or(stat.nlink).min(stat.nlink))
    }

    /// Notes that a file of the PFS has lost one of several names for the job. Once it has lost it there, too, that has
    /// no more names than noted.
    fn note_lost_name(self, stat: &Stat) -> Result<(), Errno> {
        if stat.nlink < 2 || !is_regular(stat) {
            return Ok(());
        }
        let left = self.names_left(stat)?.max(2) - 1;
        let name = name_of_links(stat.dev, stat.ino);
        self.put_link(WHITEOUTS, &name, left.to_string().as_bytes())?;
        Ok(())
    }

    /// Makes a note by `put`, which gets the directory that is to have it.
    fn note_lower_name(
        self,
        dir: Ino,
        put: impl Fn(Ino) -> Result<LinkMade, Errno>,
    ) -> Result<(), Errno> {
        let who = self.user.credentials();
        let whiteouts = name_of_inode(dir);
        for _ in 0..3 {
            if let Some((parent, _)) = self.view()?.lookup(WHITEOUTS, &whiteouts)? {
                match put(parent) {
                    Ok(_) => return Ok(()),
                    // The drain has removed the directory, which was empty.
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            let made = self.server.session()?.call(Mkdir {
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

    /// unlink(2) of a name that only the PFS has; false: another process was faster, and the name has
    /// become something else.
    pub(in super::super) fn remove_below(
        self,
        dir: Ino,
        name: &Name,
        path: &[u8],
    ) -> Result<bool, Errno> {
        self.check_removal_below(dir, path)?;
        let _lock = NameLock::hold(self.server.session()?, dir, name.bytes())?;
        if !self.is_only_below(dir, name.bytes())? {
            return Ok(false);
        }
        if self.is_passed(dir, name.bytes())? {
            return rustix::fs::unlink(path).map(|()| true);
        }
        match self.white_out(dir, name.bytes(), None)? {
            true => Ok(true),
            false => Err(Errno::NOENT),
        }
    }

    /// Fails unless the name of a file that only the PFS has may be removed from its directory.
    pub(in super::super) fn check_removal_below(self, dir: Ino, path: &[u8]) -> Result<(), Errno> {
        self.check_parent(dir)?;
        let owner = rustix::fs::lstat(path)?.st_uid;
        if !self.removes_any(dir)? && owner != self.user.credentials().uid {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Before a name is renamed: hides it, unless two names are exchanged. `target`: what has the new
    /// name in `new_parent`. EXDEV: a directory covers one of the PFS, which cannot be renamed.
    pub(in super::super) fn prepare_rename(
        self,
        source: &RenamedEntry<'_>,
        new_parent: Ino,
        target: Option<Ino>,
        exchanges: bool,
    ) -> Result<(), Errno> {
        if !self.elevates() {
            return Ok(());
        }
        if self.covers(source.ino)? {
            self.check_not_below(new_parent, source.ino)?;
            return Err(Errno::XDEV);
        }
        if let Some(target) = target {
            if exchanges && self.covers(target)? {
                return Err(Errno::XDEV);
            }
            if source.kind == FileType::Dir {
                self.check_empty_below(target)?;
            }
        }
        if !exchanges {
            self.white_out(source.parent, source.name.bytes(), Some(source.kind))?;
        }
        Ok(())
    }

    /// EINVAL: a directory is `above`, or below that.
    pub(in super::super) fn check_not_below(self, mut dir: Ino, above: Ino) -> Result<(), Errno> {
        while dir != above {
            let parent = self.attr(dir)?.parent;
            if parent == dir || parent == Ino::NONE {
                return Ok(());
            }
            dir = parent;
        }
        Err(Errno::INVAL)
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
