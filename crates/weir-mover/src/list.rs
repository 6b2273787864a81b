//! A list of files that a process moves together, for its own drain or stage, or for one on another node.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use weir_client::types::Stat;

use crate::content::refuse_other_content;
use crate::copy::LikenessBy;
use crate::error::MoveError;
use crate::mover::{FileToMove, MovedFile, MovedFiles, WireVersion};
use crate::sources::StagePair;
use crate::stage::{
    stage_unnamed, stage_with, FurtherName, ReadySink, StageCaller, StageOptions, StageProgress,
};
use crate::summary::StageSummary;
use crate::tree::FileTree;

/// Moves files in this process. If another kind of node has one of their names by then, it is not moved.
pub fn move_files<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    files: &[FileToMove],
    options: StageOptions,
    progress: &StageProgress,
) -> MovedFiles {
    let caller = ListCaller::new(files);
    let (pairs, options) = (pairs_of(files), of_list(options));
    let summary = stage_with(from, to, &pairs, options, progress, &caller, None);
    caller.results(files, &summary)
}

/// Copies files without naming them. Calls `ready` with each copy. Returns the results of the other files, and further
/// names.
pub(crate) fn copy_unnamed<'t, S: FileTree, T: FileTree>(
    from: &'t S,
    to: &'t T,
    files: &[FileToMove],
    options: StageOptions,
    progress: &StageProgress,
    ready: &ReadySink<'_, 't, T>,
) -> (MovedFiles, Vec<FurtherName>) {
    let caller = ListCaller::new(files);
    let (pairs, options) = (pairs_of(files), of_list(options));
    let (summary, links) = stage_unnamed(from, to, &pairs, options, progress, &caller, ready);
    (caller.results(files, &summary), links)
}

fn pairs_of(files: &[FileToMove]) -> Vec<StagePair> {
    files.iter().map(|file| file.pair.clone()).collect()
}

fn of_list(options: StageOptions) -> StageOptions {
    StageOptions {
        files_only: true,
        ..options
    }
}

fn reasons_of(summary: &StageSummary) -> HashMap<&Path, &String> {
    let failed = summary.failed.iter();
    failed
        .map(|failed| (failed.target.as_path(), &failed.reason))
        .collect()
}

/// The caller of the stage of a list.
struct ListCaller<'l> {
    by_source: HashMap<&'l Path, &'l FileToMove>,
    by_target: HashMap<&'l Path, &'l FileToMove>,
    /// The targets that got their names, with the versions that were copied.
    named: Mutex<HashMap<PathBuf, Option<WireVersion>>>,
    /// The targets that were equal to their sources already, with the versions of the sources.
    found: Mutex<HashMap<PathBuf, WireVersion>>,
}

impl<'l> ListCaller<'l> {
    fn new(files: &'l [FileToMove]) -> ListCaller<'l> {
        let by = |key: fn(&'l FileToMove) -> &'l Path| {
            files.iter().map(|file| (key(file), file)).collect()
        };
        ListCaller {
            by_source: by(|file| &file.pair.source),
            by_target: by(|file| &file.pair.target),
            named: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// The result of the stage of these files.
    fn results(&self, files: &[FileToMove], summary: &StageSummary) -> MovedFiles {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let reasons = reasons_of(summary);
        let result_of = |file: &FileToMove| {
            let target = &file.pair.target;
            let (version, found) = (named.remove(target), found.remove(target));
            // A directory that could not be synced may lose its names: that of the file, or that of the file's directory.
            let mut synced = target.ancestors().take(3);
            let failure = synced.find_map(|path| reasons.get(path));
            MovedFile {
                is_named: version.is_some(),
                version: version.flatten().or(found),
                failure: failure.map(|reason| (*reason).clone()),
                awaits_turn: false,
            }
        };
        MovedFiles {
            copied: summary.files,
            bytes: summary.bytes,
            open: summary.open,
            xattrs_not_kept: summary.xattrs_not_kept,
            is_target_full: summary.is_target_full,
            stopped: summary.stopped,
            files: files.iter().map(result_of).collect(),
        }
    }
}

impl StageCaller for ListCaller<'_> {
    fn check_content(&self, source: &Path, found: &Stat) -> Result<(), MoveError> {
        let file = self.by_source.get(source);
        refuse_other_content(file.and_then(|file| file.content), source, found)
    }
    fn likeness(&self, source: &Path, _stat: &Stat) -> LikenessBy {
        let file = self.by_source.get(source);
        file.map_or(LikenessBy::Times, |file| file.likeness)
    }
    fn has_made(&self, source: &Path) -> bool {
        let file = self.by_source.get(source);
        file.is_some_and(|file| file.is_ours)
    }
    fn may_replace(&self, target: &Path, there: &Stat) -> bool {
        let file = self.by_target.get(target);
        file.is_none_or(|file| file.replaces.allows(there))
    }
    fn note_found(&self, target: &Path, source: &Stat) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(target.to_owned(), WireVersion::from(source));
    }
    fn note_named(&self, target: &Path, copied: Option<&Stat>) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.insert(target.to_owned(), copied.map(WireVersion::from));
    }
}
