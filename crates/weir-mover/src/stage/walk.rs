//! The walk of the sources, which finds the files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use weir_client::types::Stat;

use super::{
    FoundDirectory, FoundFile, FoundSymlink, FurtherName, SmallFiles, StageRun, StageTask, Walked,
    SMALL_BYTES,
};
use crate::error::MoveError;
use crate::publish::{check_kind, is_part};
use crate::sources::{name_of, StagePair};
use crate::tree::{
    identity, kind_of, leads_to_directory, unless, FileTree, KeptAttributes, NodeKind,
};

impl<S: FileTree, T: FileTree> StageRun<'_, S, T> {
    /// Finds what is at and below a source.
    pub(super) fn walk(&self, pair: &StagePair, walked: &mut Walked) {
        let mut open = vec![(pair.source.clone(), pair.target.clone())];
        while let Some((source, target)) = open.pop() {
            if self.is_stopped() {
                return;
            }
            if let Err(error) = self.visit(pair, &source, &target, walked, &mut open) {
                self.summary().fail(&source, &target, &error);
            }
        }
    }

    fn visit(
        &self,
        pair: &StagePair,
        source: &Path,
        target: &Path,
        walked: &mut Walked,
        open: &mut Vec<(PathBuf, PathBuf)>,
    ) -> Result<(), MoveError> {
        let is_top = target == pair.target;
        let found = self.from.look_up(source);
        let found = found.map_err(MoveError::io("looking for", source))?;
        let Some(stat) = found else {
            return match is_top {
                true => Err(MoveError::io("looking for", source)(
                    ErrorKind::NotFound.into(),
                )),
                false => Ok(()), // removed since its directory was listed
            };
        };
        if !is_top && !self.caller.takes(source, kind_of(&stat)) {
            return Ok(());
        }
        let is_borrowed =
            kind_of(&stat) == NodeKind::Directory && self.is_borrowed(source, target)?;
        // The directory above the first one may have been created for it.
        let above = target.ancestors().skip(1).take(if is_top { 2 } else { 1 });
        if !is_borrowed || is_top {
            walked.changed.extend(above.map(Path::to_owned));
        }
        match kind_of(&stat) {
            kind if !is_top
                && kind != NodeKind::Directory
                && source.file_name().is_some_and(is_part) =>
            {
                self.summary().skipped.push(source.to_owned());
            }
            NodeKind::File => self.found_file(source, target, &stat, walked),
            _ if self.options.files_only => {
                return Err(MoveError::SourceChanged(source.to_owned()))
            }
            NodeKind::Directory => {
                let is_named = !is_top || name_of(&pair.source).is_some();
                if self.enter(target, is_named, is_borrowed, &stat)? {
                    walked.directories.push(FoundDirectory {
                        source: source.to_owned(),
                        target: target.to_owned(),
                        stat,
                    });
                }
                if !is_borrowed {
                    walked.changed.insert(target.to_owned());
                }
                let names = self.from.list(source);
                for name in names.map_err(MoveError::io("listing", source))? {
                    open.push((source.join(&name), target.join(&name)));
                }
                self.summary().directories += 1;
            }
            NodeKind::Symlink => {
                let content = self.from.read_link(source);
                walked.symlinks.push(FoundSymlink {
                    source: source.to_owned(),
                    target: target.to_owned(),
                    content: content.map_err(MoveError::io("reading", source))?,
                    stat,
                });
            }
            NodeKind::Special => self.summary().skipped.push(source.to_owned()),
        }
        Ok(())
    }

    /// True if a directory stands for one that the target has.
    fn is_borrowed(&self, source: &Path, target: &Path) -> Result<bool, MoveError> {
        let is_borrowed = self.from.is_borrowed(source);
        if let Some(is_borrowed) = is_borrowed.map_err(MoveError::io("looking for", source))? {
            return Ok(is_borrowed);
        }
        let there = self.to.look_up(target);
        let there = there.map_err(MoveError::io("looking for", target))?;
        Ok(there.is_some_and(|there| kind_of(&there) == NodeKind::Directory))
    }

    /// Makes a directory; true if it gets the attributes of its source, and not one that was there for
    /// the contents of a source, nor one that a symbolic link leads to: where users put their data
    /// is theirs to say, nor one that is as it was before (`is_borrowed`). It has the mode of its source at once, in case this process dies, and until
    /// the end all rights for its owner, so that files can be created in it.
    fn enter(
        &self,
        target: &Path,
        is_named: bool,
        is_borrowed: bool,
        source: &Stat,
    ) -> Result<bool, MoveError> {
        let looking = || MoveError::io("looking for", target);
        let found = self.to.look_up(target).map_err(looking())?;
        let Some(found) = found else {
            let mode = source.mode & 0o777 | 0o700;
            let made = self.to.make_directory(target, mode);
            unless(made, ErrorKind::AlreadyExists).map_err(MoveError::io("creating", target))?;
            return Ok(true);
        };
        // A link to nothing, or around in a circle, is in the way.
        if kind_of(&found) == NodeKind::Symlink && leads_to_directory(self.to, target) {
            return Ok(false);
        }
        check_kind(target, Some(&found), NodeKind::Directory)?;
        if is_borrowed && found.mode == source.mode {
            return Ok(false);
        }
        let mut kept = KeptAttributes::from(&found);
        if is_named && kept.mode & 0o700 != 0o700 {
            kept.mode |= 0o700;
            let set = self.to.set_attributes(target, NodeKind::Directory, &kept);
            set.map_err(MoveError::io("setting attributes of", target))?;
        }
        Ok(is_named)
    }

    fn found_file(&self, source: &Path, target: &Path, stat: &Stat, walked: &mut Walked) {
        if stat.nlink > 1 {
            let first = walked.linked.entry(identity(stat));
            let first = first.or_insert_with(|| target.to_owned());
            if *first != target {
                walked.links.push(FurtherName {
                    source: source.to_owned(),
                    first: first.clone(),
                    target: target.to_owned(),
                    stat: *stat,
                });
                return;
            }
        }
        let file = FoundFile {
            source: source.to_owned(),
            target: target.to_owned(),
            stat: *stat,
            is_linked: stat.nlink > 1,
            refusals: 0,
            tries: 1,
        };
        self.add_file(file, &mut walked.small);
    }

    /// Queues a file; a small one waits in `small` for others.
    pub(super) fn add_file(&self, file: FoundFile, small: &mut SmallFiles) {
        let size = file.stat.size;
        let files = self.progress.files_found.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.progress.bytes_found.fetch_add(size, Ordering::Relaxed) + size;
        self.invite_team(files, bytes);
        let holder = self.holder_of(&file);
        if size > SMALL_BYTES {
            self.add_batch(holder, vec![file]);
            return;
        }
        let batch = small.entry(holder).or_default();
        batch.push(file);
        if batch.len() >= self.batch_files {
            let batch = std::mem::take(batch);
            self.add_batch(holder, batch);
        }
    }

    pub(super) fn add_batches(&self, small: &mut SmallFiles) {
        for (holder, batch) in std::mem::take(small) {
            if !batch.is_empty() {
                self.add_batch(holder, batch);
            }
        }
    }

    /// `holder`: the rank of the server that has the files.
    fn add_batch(&self, holder: u16, batch: Vec<FoundFile>) {
        let bytes = batch.iter().map(|file| file.stat.size).sum();
        let rank = self.place(holder, bytes);
        self.queue.add(rank, StageTask::Files(batch));
    }
}
