//! The walk of the sources, which finds the files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use weir_client::process::mounted::Cover;
use weir_client::types::Stat;

use super::{
    FoundDirectory, FoundFile, FoundSymlink, FurtherName, SmallFiles, StageRun, StageTask, Walked,
    SMALL_BYTES,
};
use crate::error::MoveError;
use crate::publish::{check_kind, is_part};
use crate::sources::{name_of, StagePair};
use crate::tree::{identity, kind_of, leads_to_directory, FileTree, KeptAttributes, NodeKind};

/// A node that is still to be visited.
struct OpenNode {
    source: PathBuf,
    target: PathBuf,
    /// No node has the target's name: this stage has made the directory.
    is_new: bool,
}

/// The outcome of looking for a directory of the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EnteredDirectory {
    /// It was made, and gets the attributes of its source.
    Made,
    /// It was there, and gets the attributes of its source.
    Found,
    /// It was there, and keeps its own attributes.
    Left,
}

impl<S: FileTree, T: FileTree> StageRun<'_, '_, S, T> {
    /// Finds the nodes at and below a source.
    pub(super) fn walk(&self, pair: &StagePair, walked: &mut Walked) {
        let top = OpenNode {
            source: pair.source.clone(),
            target: pair.target.clone(),
            is_new: false,
        };
        let mut open = vec![top];
        while let Some(node) = open.pop() {
            if self.is_stopped() {
                return;
            }
            if let Err(error) = self.visit(pair, &node, walked, &mut open) {
                self.summary().fail(&node.source, &node.target, &error);
            }
        }
    }

    fn visit(
        &self,
        pair: &StagePair,
        node: &OpenNode,
        walked: &mut Walked,
        open: &mut Vec<OpenNode>,
    ) -> Result<(), MoveError> {
        let (source, target) = (&*node.source, &*node.target);
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
        let cover = match kind_of(&stat) {
            NodeKind::Directory => self.cover_of(source, target)?,
            _ => Cover::Nothing,
        };
        let covers_target = cover != Cover::Nothing;
        // The directory above the target's directory may have been created for this move.
        let above = target.ancestors().skip(1).take(if is_top { 2 } else { 1 });
        if !covers_target || is_top {
            walked.changed.extend(above.map(Path::to_owned));
        }
        match kind_of(&stat) {
            kind if !is_top
                && kind != NodeKind::Directory
                && source.file_name().is_some_and(is_part) =>
            {
                self.summary().skipped.push(source.to_owned());
            }
            NodeKind::File => self.found_file(node, &stat, walked),
            _ if self.options.files_only => {
                return Err(MoveError::SourceChanged(source.to_owned()))
            }
            NodeKind::Directory => {
                let is_named = !is_top || name_of(&pair.source).is_some() || covers_target;
                let entered = self.enter(node, is_named, cover, &stat)?;
                if entered != EnteredDirectory::Left {
                    walked.directories.push(FoundDirectory {
                        source: source.to_owned(),
                        target: target.to_owned(),
                        stat,
                        covers_target,
                    });
                }
                if !covers_target {
                    walked.changed.insert(target.to_owned());
                }
                let names = self.from.list(source);
                // Without the dot of a source that stands for its contents, since messages show these paths.
                let dir: PathBuf = source.components().collect();
                for name in names.map_err(MoveError::io("listing", source))? {
                    open.push(OpenNode {
                        source: dir.join(&name),
                        target: target.join(&name),
                        is_new: entered == EnteredDirectory::Made,
                    });
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

    /// The directory of the target that a directory covers. If only a lost server knows it, the directory counts as
    /// covering one if the target has a directory there; so that one is left as it is.
    fn cover_of(&self, source: &Path, target: &Path) -> Result<Cover, MoveError> {
        let cover = self.from.cover_of(source);
        let cover = cover.map_err(MoveError::io("looking for", source))?;
        if cover != Cover::Unknown {
            return Ok(cover);
        }
        let there = self.to.look_up(target);
        let there = there.map_err(MoveError::io("looking for", target))?;
        Ok(
            match there.is_some_and(|there| kind_of(&there) == NodeKind::Directory) {
                true => Cover::Unknown,
                false => Cover::Nothing,
            },
        )
    }

    /// Makes a directory, or takes the one that is there. An existing directory keeps its attributes if it takes the
    /// contents of a source without the source's name (except those of an elevated tree, whose mode the job sets), or if a
    /// symbolic link leads to it: the user has chosen it. It also keeps them if its source covers it and the job has not
    /// changed the mode, since somebody else may have changed the mode there. A new directory has the mode of its source at
    /// once, in case this process dies. Until the end, its owner also has all rights, so that files can be created in it.
    fn enter(
        &self,
        node: &OpenNode,
        is_named: bool,
        cover: Cover,
        source: &Stat,
    ) -> Result<EnteredDirectory, MoveError> {
        let target = &node.target;
        let make = || {
            let mode = source.mode & 0o777 | 0o700;
            match self.to.make_directory(target, mode) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                made => made
                    .map(|()| true)
                    .map_err(MoveError::io("creating", target)),
            }
        };
        let look_up = || {
            let found = self.to.look_up(target);
            found.map_err(MoveError::io("looking for", target))
        };
        if node.is_new && make()? {
            return Ok(EnteredDirectory::Made);
        }
        let Some(found) = look_up()? else {
            return match make()? {
                true => Ok(EnteredDirectory::Made),
                // Somebody else has made it meanwhile.
                false => Ok(EnteredDirectory::Found),
            };
        };
        // A link that leads to nothing, or in a circle, is in the way.
        if kind_of(&found) == NodeKind::Symlink && leads_to_directory(self.to, target) {
            return Ok(EnteredDirectory::Left);
        }
        check_kind(target, Some(&found), NodeKind::Directory)?;
        let is_unchanged = match cover {
            Cover::Nothing => false,
            Cover::Directory { mode } => mode == source.mode & 0o7777,
            Cover::Unknown => found.mode == source.mode,
        };
        if is_unchanged {
            return Ok(EnteredDirectory::Left);
        }
        let mut kept = KeptAttributes::from(&found);
        if is_named && kept.mode & 0o700 != 0o700 {
            kept.mode |= 0o700;
            let set = self.to.set_attributes(target, NodeKind::Directory, &kept);
            set.map_err(MoveError::io("setting attributes of", target))?;
        }
        Ok(match is_named {
            true => EnteredDirectory::Found,
            false => EnteredDirectory::Left,
        })
    }

    fn found_file(&self, node: &OpenNode, stat: &Stat, walked: &mut Walked) {
        let (source, target) = (&node.source, &node.target);
        if stat.nlink > 1 {
            let first = walked.linked.entry(identity(stat));
            let first = first.or_insert_with(|| target.to_owned());
            if first != target {
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
            is_new: node.is_new,
            refusals: 0,
            tries: 1,
        };
        self.add_file(file, &mut walked.small);
    }

    /// Queues a file; a small one waits in `small` until its batch is full.
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
