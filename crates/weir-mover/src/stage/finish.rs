//! The end of a stage: further names of files, symbolic links, and directories.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use weir_client::types::Stat;

use super::{FoundFile, FoundSymlink, FurtherName, StageRun, Walked};
use crate::copy::keep_xattrs;
use crate::error::MoveError;
use crate::publish::{
    check_kind, destination, is_at_above_or_below, is_symlink_to, make_named, make_symlink,
};
use crate::tree::{failed_with_any, identity, FileTree, KeptAttributes, NodeKind};

impl<S: FileTree, T: FileTree> StageRun<'_, S, T> {
    /// Finishes links and directories, the deepest first.
    pub(super) fn finish(&self, walked: Walked) {
        if self.is_stopped() {
            return;
        }
        let mut copied = Vec::new();
        for link in walked.links {
            match self.make_link(&link) {
                Ok(true) => self.summary().hard_links += 1,
                Ok(false) => copied.push(link),
                Err(error) => self.summary().fail(&link.source, &link.target, &error),
            }
        }
        if !copied.is_empty() {
            self.summary().hard_links_not_kept += copied.len() as u64;
            self.copy_all(|| self.add_as_files(copied));
        }
        if self.is_stopped() {
            return; // a link might lead to a file that was not copied
        }
        self.make_symlinks(&walked.symlinks);
        // Before the modes, which may take this process the right to open them.
        self.sync_directories(&walked.changed.iter().collect::<Vec<_>>());
        for directory in walked.directories.iter().rev() {
            let (source, target) = (&directory.source, &directory.target);
            let kept = KeptAttributes::from(&directory.stat);
            let done = keep_xattrs(self.from, self.to, source, target).and_then(|lost| {
                self.summary().xattrs_not_kept += lost;
                let set = self.to.set_attributes(target, NodeKind::Directory, &kept);
                set.map_err(MoveError::io("setting attributes of", target))
            });
            if let Err(error) = done {
                self.summary().fail(source, target, &error);
            }
        }
        let directories = walked.directories.iter();
        self.sync_directories(&directories.map(|dir| &dir.target).collect::<Vec<_>>());
    }

    fn sync_directories(&self, directories: &[&PathBuf]) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, directories.len().max(1)) {
                scope.spawn(|| {
                    while let Some(dir) = directories.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.to.sync_directory(dir) {
                            let error = MoveError::io("syncing", dir)(error);
                            self.summary().fail(dir, dir, &error);
                        }
                    }
                });
            }
        });
    }

    /// Makes a further name of a file; false: it is to be a file of its own, since the first name is
    /// not there, or the file system has no such links.
    fn make_link(&self, link: &FurtherName) -> Result<bool, MoveError> {
        let Some(copied) = self.first_names().get(&link.first).copied() else {
            return Ok(false);
        };
        let looking = |path| MoveError::io("looking for", path);
        let first = self.to.look_up(&link.first).map_err(looking(&link.first))?;
        let Some(first) = first else {
            return Ok(false); // somebody removed it
        };
        let there = self.to.look_up(&link.target);
        let there = there.map_err(looking(&link.target))?;
        if there.as_ref().map(identity) == Some(identity(&first)) {
            return Ok(true);
        }
        check_kind(&link.target, there.as_ref(), NodeKind::File)?;
        let make = |part: &Path| self.to.make_link(&link.first, part);
        let is_made = |found: &Stat| identity(found) == identity(&first);
        let made = make_named(self.to, &link.target, there.as_ref(), make, is_made);
        match made {
            Err(MoveError::Io { source, .. }) if has_no_links(&source) => Ok(false),
            made => {
                made?;
                self.caller.note_named(&link.target, copied.as_ref());
                Ok(true)
            }
        }
    }

    fn add_as_files(&self, links: Vec<FurtherName>) {
        let mut small = Vec::new();
        for link in links {
            let file = FoundFile {
                source: link.source,
                target: link.target,
                is_linked: false,
                tries: 1,
            };
            self.add_file(file, link.size, &mut small);
        }
        self.add_batch(&mut small);
    }

    fn make_symlinks(&self, links: &[FoundSymlink]) {
        let failed = self.summary().failed.clone().into_iter();
        let mut failed: BTreeSet<PathBuf> = failed.map(|one| one.target).collect();
        for link in links {
            match self.make_symlink(link, &failed) {
                Ok(()) => self.summary().symlinks += 1,
                Err(error) => {
                    self.summary().fail(&link.source, &link.target, &error);
                    failed.insert(link.target.clone());
                }
            }
        }
    }

    /// Makes a symbolic link, unless it leads to something that could not be moved: the old one may
    /// lead to something whole.
    fn make_symlink(
        &self,
        link: &FoundSymlink,
        failed: &BTreeSet<PathBuf>,
    ) -> Result<(), MoveError> {
        let target = &link.target;
        let replaced = self.to.look_up(target);
        let replaced = replaced.map_err(MoveError::io("looking for", target))?;
        check_kind(target, replaced.as_ref(), NodeKind::Symlink)?;
        if is_symlink_to(self.to, target, replaced.as_ref(), &link.content) {
            return Ok(());
        }
        if is_at_above_or_below(&destination(target, &link.content), failed) {
            return Err(MoveError::LeadsToFailed(target.clone()));
        }
        let kept = KeptAttributes::from(&link.stat);
        make_symlink(self.to, &link.content, target, replaced.as_ref(), &kept)
    }
}

/// True if a file system makes no further name: FAT and many FUSE file systems have none, and others
/// none between some directories, or no more of one file.
fn has_no_links(error: &io::Error) -> bool {
    let refusals = [Errno::PERM, Errno::XDEV, Errno::MLINK, Errno::NOTSUP];
    failed_with_any(error, &refusals)
}
