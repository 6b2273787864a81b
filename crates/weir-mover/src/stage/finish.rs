//! The end of a stage: further names of files, symbolic links, and directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use weir_client::types::Stat;

use super::{FoundDirectory, FoundFile, FoundSymlink, FurtherName, SmallFiles, StageRun, Walked};
use crate::copy::keep_xattrs;
use crate::error::MoveError;
use crate::publish::{
    check_kind, destination, is_at_above_or_below, is_symlink_to, make_hard_link, make_symlink,
    LinkOutcome,
};
use crate::tree::{failed_with, FileTree, KeptAttributes, NodeKind};

impl<S: FileTree, T: FileTree> StageRun<'_, '_, S, T> {
    /// Finishes links and directories, the deepest first.
    pub(super) fn finish(&self, walked: Walked) {
        if self.is_stopped() {
            // The files that were moved must be safe.
            self.sync_directories(&walked.changed.iter().collect::<Vec<_>>());
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
        // Before the modes are set: they may take from this process the right to open the directories.
        self.sync_directories(&walked.changed.iter().collect::<Vec<_>>());
        for directory in walked.directories.iter().rev() {
            if let Err(error) = self.finish_directory(directory) {
                let (source, target) = (&directory.source, &directory.target);
                self.summary().fail(source, target, &error);
            }
        }
        let directories = walked.directories.iter();
        self.sync_directories(&directories.map(|dir| &dir.target).collect::<Vec<_>>());
    }

    /// Sets the attributes of a directory.
    fn finish_directory(&self, directory: &FoundDirectory) -> Result<(), MoveError> {
        let (source, target) = (&directory.source, &directory.target);
        let kept = KeptAttributes::from(&directory.stat);
        // Programs set the extended attributes of a covering directory on the target itself.
        if !directory.covers_target {
            let lost = keep_xattrs(self.from, self.to, source, target)?;
            self.summary().xattrs_not_kept += lost;
        }
        let set = self.to.set_attributes(target, NodeKind::Directory, &kept);
        match set {
            // The directory there belongs to somebody else.
            Err(error) if directory.covers_target && failed_with(&error, Errno::PERM) => {
                return Ok(());
            }
            set => set.map_err(MoveError::io("setting attributes of", target))?,
        }
        if directory.covers_target {
            let noted = self.from.note_covered_mode(source, kept.mode & 0o7777);
            noted.map_err(MoveError::io("noting the mode of", source))?;
        }
        Ok(())
    }

    fn sync_directories(&self, directories: &[&PathBuf]) {
        let failed = |dir: &Path, error| self.summary().fail(dir, dir, &error);
        sync_directories(self.to, directories, self.options.threads, &failed);
    }

    /// Makes a further name of a file; false: it must become a file of its own, since the first name is missing, or the
    /// file system makes no such links.
    fn make_link(&self, link: &FurtherName) -> Result<bool, MoveError> {
        let Some(copied) = self.first_names().get(&link.first).copied() else {
            return Ok(false);
        };
        let may_replace = |there: &Stat| self.caller.may_replace(&link.target, there);
        if let Some(copied) = &copied {
            self.caller.note_attempt(&link.target, copied);
        }
        match make_hard_link(self.to, &link.first, &link.target, &may_replace)? {
            // The file system makes no such link, or somebody removed the file.
            LinkOutcome::Refused | LinkOutcome::NoFile => Ok(false),
            LinkOutcome::There => Ok(true),
            LinkOutcome::Made => {
                self.caller.note_named(&link.target, copied.as_ref());
                Ok(true)
            }
        }
    }

    fn add_as_files(&self, links: Vec<FurtherName>) {
        let mut small = SmallFiles::new();
        for link in links {
            let file = FoundFile {
                source: link.source,
                target: link.target,
                stat: link.stat,
                is_linked: false,
                is_new: false,
                refusals: 0,
                tries: 1,
            };
            self.add_file(file, &mut small);
        }
        self.add_batches(&mut small);
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

    /// Makes a symbolic link, unless it leads to a node that could not be moved: the old link may lead to a complete one.
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
        self.check_replaceable(target, replaced.as_ref())?;
        self.caller.note_attempt(target, &link.stat);
        let kept = KeptAttributes::from(&link.stat);
        make_symlink(self.to, &link.content, target, replaced.as_ref(), &kept)
    }
}

/// Syncs directories, with this number of threads.
pub(crate) fn sync_directories<T: FileTree>(
    to: &T,
    directories: &[&PathBuf],
    threads: usize,
    failed: &(dyn Fn(&Path, MoveError) + Sync),
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, directories.len().max(1)) {
            scope.spawn(|| {
                while let Some(dir) = directories.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = to.sync_directory(dir) {
                        failed(dir, MoveError::io("syncing", dir)(error));
                    }
                }
            });
        }
    });
}
