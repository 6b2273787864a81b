//! The rule of an elevated directory ([`ElevateRule`]): new files that are created on the PFS, and files of the
//! PFS that are taken into the tree before they are changed.
//!
//! A file whose name is not chosen belongs to the PFS: programs create, truncate, rename and remove it there by
//! their own calls, at once, and not in the order of what is in the tree. The calls that make or remove a name
//! do so under its lock, as those that take a file up.
//!
//! Two kinds of names are made in the tree all the same, since the PFS could not have them: those in a directory
//! that the PFS does not have yet, because a program made it in the tree; and those that the job has removed, and
//! that the PFS has until the drain follows.

use rustix::fs::{Access, AtFlags, FileType as KernelType, Mode, RenameFlags, CWD};
use rustix::io::Errno;
use weir_core::elevate_rule::{ElevateRule, UpdateMode};
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::super::outside;
use super::super::paths::{NameInParent, ResolvedFile};
use super::name_lock::NameLock;
use super::FileTakeUp;
use crate::kernel::Fd;
use crate::path::walk::Names;
use crate::path::Name;

/// A name that only the PFS has.
pub(in super::super) struct LowerEntry<'a> {
    pub(in super::super) parent: Ino,
    pub(in super::super) name: &'a Name,
    /// Its path of the kernel's.
    pub(in super::super) path: &'a [u8],
}

/// A name in a directory that covers one of the PFS, and the rule for it.
struct RuledName {
    rule: &'static ElevateRule,
    /// On the PFS.
    path: Vec<u8>,
    /// The length of the path of the tree's root in it.
    root: usize,
}

impl RuledName {
    /// True if a file of this name is created on the PFS.
    fn is_passed(&self) -> bool {
        !self.rule.new_files.takes(&self.path[self.root..])
    }

    /// True if a directory of this name, and all in it, is created on the PFS.
    fn is_passed_directory(&self) -> bool {
        let directories = &self.rule.passed_directories;
        directories.fit_at_or_above(&self.path[self.root..])
    }
}

impl InodeOperations {
    /// True if the rule of some tree fits this.
    fn has_rule(self, fits: impl Fn(&ElevateRule) -> bool) -> bool {
        let instance = self.server.instance();
        instance.is_some_and(|instance| {
            let mut trees = instance.roots.elevated.iter();
            trees.any(|tree| fits(&tree.rule))
        })
    }

    #[inline]
    fn chooses_files(self) -> bool {
        self.has_rule(|rule| !rule.new_files.is_everything())
    }

    /// True if files of the PFS are taken into a tree before they are changed.
    #[inline]
    pub(in super::super) fn takes_updates(self) -> bool {
        self.has_rule(|rule| rule.update == UpdateMode::Take)
    }

    /// The rule for a name; `None`: its directory covers none of the PFS.
    fn rule_for(self, parent: Ino, name: &[u8]) -> Result<Option<RuledName>, Errno> {
        let (Some(instance), Some(covered)) = (self.server.instance(), self.covered_by(parent)?)
        else {
            return Ok(None);
        };
        let mut trees = instance.roots.elevated.iter();
        Ok(trees.find_map(|tree| {
            let root = tree.target.bytes();
            let below = covered.strip_prefix(root)?;
            (below.is_empty() || below.first() == Some(&b'/')).then(|| RuledName {
                rule: &tree.rule,
                path: [&covered, &b"/"[..], name].concat(),
                root: root.len(),
            })
        }))
    }

    /// True if a file with this name that the PFS has is not chosen.
    pub(in super::super) fn is_passed(self, parent: Ino, name: &[u8]) -> Result<bool, Errno> {
        if !self.chooses_files() {
            return Ok(false);
        }
        let ruled = self.rule_for(parent, name)?;
        Ok(ruled.is_some_and(|ruled| ruled.is_passed()))
    }

    /// The path of the PFS at which a new file with this name is created; `None`: it is created in the tree.
    pub(in super::super) fn path_to_create(
        self,
        parent: Ino,
        name: &Name,
    ) -> Result<Option<Vec<u8>>, Errno> {
        self.new_path(parent, name, RuledName::is_passed)
    }

    fn new_path(
        self,
        parent: Ino,
        name: &Name,
        is_meant: impl Fn(&RuledName) -> bool,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if !self.chooses_files() {
            return Ok(None);
        }
        match self.rule_for(parent, name.bytes())? {
            Some(ruled) if is_meant(&ruled) && !self.is_whited_out(parent, name.bytes())? => {
                Ok(Some(ruled.path))
            }
            _ => Ok(None),
        }
    }

    /// Does something that makes a name on the PFS which neither the tree nor a whiteout has; `None`: one of them
    /// has it now.
    fn make_below<T>(
        self,
        parent: Ino,
        name: &Name,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let _lock = NameLock::hold(self.server.session()?, parent, name.bytes())?;
        let is_taken = self.view()?.lookup(parent, name.bytes())?.is_some();
        if is_taken || self.is_whited_out(parent, name.bytes())? {
            return Ok(None);
        }
        make().map(Some)
    }

    /// Opens a file that the PFS has, or creates it there. `None`: the name has become something else.
    pub(in super::super) fn create_below(
        self,
        file: &LowerEntry<'_>,
        flags: i32,
        mode: u32,
    ) -> Result<Option<Fd>, Errno> {
        let open = || outside::open(file.path, flags, mode);
        self.make_below(file.parent, file.name, open)
    }

    /// Makes a directory on the PFS, if the rule says so; `None`: it is to be made in the tree.
    pub(in super::super) fn make_directory_below(
        self,
        parent: Ino,
        name: &Name,
        mode: u32,
    ) -> Result<Option<()>, Errno> {
        let Some(path) = self.new_path(parent, name, RuledName::is_passed_directory)? else {
            return Ok(None);
        };
        let mode = Mode::from_bits_truncate(mode);
        self.make_below(parent, name, || rustix::fs::mkdir(path, mode))
    }

    /// Renames a file on the PFS, if neither name is chosen. False: the file is to be taken up first.
    pub(in super::super) fn rename_below(
        self,
        from: &LowerEntry<'_>,
        to: &NameInParent,
        flags: u32,
    ) -> Result<bool, Errno> {
        if !self.is_passed(from.parent, from.name.bytes())? {
            return Ok(false);
        }
        let new_path = match to {
            NameInParent::Below {
                parent, name, path, ..
            } if self.is_passed(*parent, name.bytes())? => Some(path.clone()),
            NameInParent::Name {
                parent,
                name,
                found: None,
                slash: false,
            } => self.path_to_create(*parent, name)?,
            _ => None,
        };
        let Some(new_path) = new_path else {
            return Ok(false);
        };
        let _lock = NameLock::hold(self.server.session()?, from.parent, from.name.bytes())?;
        if !self.is_only_below(from.parent, from.name.bytes())? {
            return Ok(false);
        }
        let flags = RenameFlags::from_bits_retain(flags);
        match rustix::fs::renameat_with(CWD, from.path, CWD, new_path, flags) {
            Err(Errno::XDEV) => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }
}

impl FileTakeUp {
    /// The file that a program changes which was found at a path: that of the tree, if only the PFS has it, and its
    /// rule says that it is taken before.
    pub(in super::super) fn prepare_update(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
        found: ResolvedFile,
    ) -> Result<ResolvedFile, Errno> {
        if !matches!(found, ResolvedFile::Outside(_)) || !self.inodes.takes_updates() {
            return Ok(found);
        }
        let Some(Ok(NameInParent::Below {
            parent,
            name,
            path: below,
            ..
        })) = self.paths.resolve_parent(dirfd, path, follow)
        else {
            return Ok(found);
        };
        let is_taken = self.take_for_update(&LowerEntry {
            parent,
            name: &name,
            path: &below,
        });
        let again = is_taken.then(|| self.paths.resolve_existing(dirfd, path, follow, false));
        again.flatten().unwrap_or(Ok(found))
    }

    /// Takes a file of the PFS into the tree, if its rule says so for one that is changed; then its name is to be
    /// looked for again. False: it is changed on the PFS, also if it cannot be taken: it is written all the time, or
    /// finds no room.
    pub(in super::super) fn take_for_update(&self, file: &LowerEntry<'_>) -> bool {
        self.inodes.takes_updates()
            && self.is_to_be_taken(file).unwrap_or(false)
            && self.take_up_file(file.parent, file.name, file.path).is_ok()
    }

    fn is_to_be_taken(&self, file: &LowerEntry<'_>) -> Result<bool, Errno> {
        let ruled = self.inodes.rule_for(file.parent, file.name.bytes())?;
        let Some(ruled) = ruled.filter(|ruled| !ruled.is_passed()) else {
            return Ok(false);
        };
        let stat = rustix::fs::lstat(file.path)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        // A program that uses another name of the file (a hard link) must see the update.
        if ruled.rule.update != UpdateMode::Take
            || KernelType::from_raw_mode(stat.st_mode) != KernelType::RegularFile
            || stat.st_nlink > 1
            || !ruled.rule.take_sizes.contains(&size)
        {
            return Ok(false);
        }
        let wanted = Access::READ_OK | Access::WRITE_OK;
        rustix::fs::accessat(CWD, file.path, wanted, AtFlags::EACCESS)?;
        Ok(true)
    }
}
