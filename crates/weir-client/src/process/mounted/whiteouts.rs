//! The names that were removed from an elevated tree, and that its target may still have, and those whose
//! files it has replaced, for those who change them there.

use rustix::io::Errno;
use weir_core::elevated::{
    inode_of_name, name_of_inode, root_of_tree, LowerFile, LowerName, COVERS, WHITEOUTS,
};
use weir_core::proto::{Rmdir, Symlink, Unlink};
use weir_core::types::Ino;

use super::Tree;
use crate::operation;
use crate::path::walk::Names;
use crate::types::Time;

/// The bytes of a listing that are asked for at a time.
const LISTING_BYTES: u32 = 48 << 10;

/// A name that was removed from an elevated tree, or whose file it has replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whiteout {
    /// The directory of the tree that had it, and that may be gone.
    dir: Ino,
    /// The name.
    name: Vec<u8>,
    /// Its path on the target, from there.
    path: Vec<u8>,
    lower: LowerName,
}

/// The directory of the target that a directory covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// There is none: the job made the directory.
    Nothing,
    /// One that had these permission bits when they were last taken over from there, or set there. The job has
    /// changed the mode since if the directory has others.
    Directory {
        /// The permission bits.
        mode: u32,
    },
    /// Only a lost server knows.
    Unknown,
}

impl Whiteout {
    /// The path of the name on the target, from there.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// True if the job has removed the name, at least for a time.
    pub fn is_removed(&self) -> bool {
        matches!(self.lower, LowerName::Removed(_))
    }

    /// The file of the target that the job has removed or replaced, as it was then; none: the target had none.
    pub fn file(&self) -> Option<LowerFile> {
        self.lower.file()
    }
}

impl Tree {
    /// The names that were removed from this tree, or whose files it has replaced. Those of one directory in
    /// the order of their removal. If servers are lost, only those that the others have, of directories of which they know
    /// what they cover.
    pub fn whiteouts(self) -> Result<Vec<Whiteout>, Errno> {
        let _call = operation::begin();
        let mut found = Vec::new();
        if self.elevated.is_none() {
            return Ok(found);
        }
        let names = self.parts.inodes.view()?;
        for listed in self.names_in(WHITEOUTS)? {
            let Some(dir) = inode_of_name(&listed) else {
                continue;
            };
            let Some(covered) = self.covered_on_target(dir)? else {
                continue;
            };
            let whiteouts = self.unless_lost(self.find(WHITEOUTS, &listed))?;
            let Some((whiteouts, _)) = whiteouts else {
                continue;
            };
            for name in self.names_in(whiteouts)? {
                // Forgotten meanwhile, by another drain.
                let Some(text) = self.unless_lost(names.text_at(whiteouts, &name))? else {
                    continue;
                };
                found.push(Whiteout {
                    dir,
                    path: match covered.is_empty() {
                        true => name.clone(),
                        false => [&covered[..], b"/", &name].concat(),
                    },
                    name,
                    lower: LowerName::of_text(&text),
                });
            }
        }
        Ok(found)
    }

    /// The time at which a program removed a name; `None`: it is forgotten.
    pub fn removed_at(self, whiteout: &Whiteout) -> Result<Option<Time>, Errno> {
        let _call = operation::begin();
        let of_dir = self.find(WHITEOUTS, &name_of_inode(whiteout.dir))?;
        let Some((whiteouts, _)) = of_dir else {
            return Ok(None);
        };
        let Some((link, _)) = self.find(whiteouts, &whiteout.name)? else {
            return Ok(None);
        };
        let attr = self.parts.inodes.attr(link)?;
        Ok(Some(Time::from_epoch_ns(attr.btime_ns)))
    }

    /// Forgets a removed name: the target does not have it any more.
    pub fn forget(self, whiteout: &Whiteout) -> Result<(), Errno> {
        let session = self.parts.server.session()?;
        let of_dir = name_of_inode(whiteout.dir);
        let Some((parent, _)) = self.find(WHITEOUTS, &of_dir)? else {
            return Ok(());
        };
        let name = whiteout.name.clone();
        unless_gone(session.call(Unlink { parent, name }))?;
        match self.parts.inodes.attr(whiteout.dir) {
            Ok(attr) if attr.nlink > 0 => return Ok(()),
            Ok(_) | Err(Errno::NOENT) => {}
            // It may well live.
            Err(error) => return Err(error),
        }
        let name = of_dir.to_vec();
        match session.call(Rmdir {
            parent: WHITEOUTS,
            name: name.clone(),
        }) {
            // There are more.
            Err(Errno::NOTEMPTY) => Ok(()),
            Ok(()) | Err(Errno::NOENT) => unless_gone(session.call(Unlink {
                parent: COVERS,
                name,
            })),
            Err(error) => Err(error),
        }
    }

    /// The directory of the target that a directory of this tree covers.
    pub fn cover_of(self, dir: Ino) -> Result<Cover, Errno> {
        if self.elevated.is_none() {
            return Ok(Cover::Nothing);
        }
        let link = self.find(COVERS, &name_of_inode(dir));
        let mode = link.and_then(|link| match link {
            Some((link, _)) => Ok(Some(self.parts.inodes.attr(link)?.mode & 0o7777)),
            None => Ok(None),
        });
        let mode = self.unless_lost(mode.map(Some))?;
        Ok(match mode {
            Some(Some(mode)) => Cover::Directory { mode },
            Some(None) => Cover::Nothing,
            None => Cover::Unknown,
        })
    }

    /// Has a directory of this elevated tree cover the one at this path of the target, with these permission bits, so
    /// that names which are removed from it from now on get whiteouts. It may do so already. Processes that
    /// have noted it as opaque are not told.
    pub fn cover(self, dir: Ino, target: &[u8], mode: u32) -> Result<(), Errno> {
        let covered = self.parts.server.session()?.call(Symlink {
            parent: COVERS,
            name: name_of_inode(dir).to_vec(),
            target: target.to_vec(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        });
        match covered {
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error),
            Ok(link) => self.parts.inodes.note_covered_mode(link, mode),
        }
    }

    /// Notes the permission bits that the covered directory has been given.
    pub fn note_covered_mode(self, dir: Ino, mode: u32) -> Result<(), Errno> {
        match self.unless_lost(self.find(COVERS, &name_of_inode(dir)))? {
            Some((link, _)) => self.parts.inodes.note_covered_mode(link, mode),
            None => Ok(()),
        }
    }

    /// True if a directory is the root of this elevated tree, which covers the target itself: that needs no link.
    fn is_root_of_target(self, dir: Ino) -> bool {
        self.elevated
            .is_some_and(|number| root_of_tree(number) == dir)
    }

    /// The path on the target of the directory that one of this tree covers; `None`: it is of another
    /// tree, or covers none.
    fn covered_on_target(self, dir: Ino) -> Result<Option<Vec<u8>>, Errno> {
        if self.is_root_of_target(dir) {
            return Ok(Some(Vec::new()));
        }
        let names = self.parts.inodes.view()?;
        let covered = self.unless_lost(names.text_at(COVERS, &name_of_inode(dir)))?;
        let Some(covered) = covered else {
            return Ok(None);
        };
        let below = covered.strip_prefix(self.prefix());
        Ok(below.and_then(|below| match below {
            [] => Some(Vec::new()),
            [b'/', below @ ..] => Some(below.to_vec()),
            _ => None,
        }))
    }

    pub(super) fn names_in(self, dir: Ino) -> Result<Vec<Vec<u8>>, Errno> {
        let (mut names, mut at) = (Vec::new(), 0);
        loop {
            let entries = match self.readdir(dir, at, None, LISTING_BYTES) {
                Err(Errno::NOENT) => return Ok(names),
                listing => listing?.entries,
            };
            let Some(last) = entries.last() else {
                return Ok(names);
            };
            at = last.next;
            let names_of = entries.into_iter().map(|entry| entry.name);
            names.extend(names_of.filter(|name| !matches!(&name[..], b"." | b"..")));
        }
    }
}

pub(super) fn unless_gone(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}
