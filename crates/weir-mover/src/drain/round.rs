//! A round: the choice of its files, their copies, and the result for each.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_client::process::mounted::{Cover, WriteState};
use weir_client::types::{Stat, Time};

use super::in_turn::{OrderedList, TurnChanges};
use super::large::move_large;
use super::lists::{share_files, ListedFile, OwnLists};
use super::order::{NameOrder, RoundOrder};
use super::relocated::copies_of_evicted;
use super::round_state::RoundState;
use super::snapshot::{FileVersion, SeenNode};
use super::turns::share_in_order;
use super::{Drain, MovedNode, PendingState};
use crate::content::ContentStamp;
use crate::copy::LikenessBy;
use crate::error::MoveError;
use crate::list::move_files;
use crate::mover::{FileToMove, MovedFile, MovedSource, LARGE_BYTES};
use crate::sources::StagePair;
use crate::stage::{StageOptions, StageProgress};
use crate::tree::{holder_of_file, kind_of, FileTree, NodeKind};

/// The options of the stages that copy the files of a round.
pub(super) fn options_of_round(threads: usize) -> StageOptions {
    StageOptions {
        threads,
        closed_only: true,
        ..StageOptions::default()
    }
}

/// The ways in which files are copied, in the order that is used if names have no order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CopyWay {
    /// It was copied before the walk.
    Early,
    /// Ranges of it went ahead.
    Ahead,
    /// It was evicted, and programs have written it since.
    Rewritten,
    /// In a list with others.
    Listed,
    /// By all movers, each a piece at a time.
    Large,
}

/// Checks that this node sees a file that another node has moved.
fn check_seen<T: FileTree>(to: &T, target: &Path) -> Result<(), String> {
    match to.look_up(target) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!(
            "another node has moved {}, and this one does not see it",
            target.display()
        )),
        Err(error) => Err(MoveError::io("looking for", target)(error).to_string()),
    }
}

/// The state of a file that was not copied; `None`: it is gone.
fn state_after_failure<S: FileTree>(
    from: &S,
    source: &Path,
    node: &SeenNode,
    reason: &str,
) -> Option<PendingState> {
    let is_as_seen = match from.look_up(source) {
        Ok(None) => return None,
        Ok(Some(now)) => {
            let state = from.write_state(source);
            FileVersion::from(&now) == node.version && !matches!(state, Ok(WriteState::Open))
        }
        Err(_) => true,
    };
    // The copy found another content than the walk. Nodes may not agree on its time yet: the next round moves the content
    // that it then finds.
    let is_other_version = reason == MoveError::NotAnalysed(source.to_owned()).to_string();
    let reason = reason.to_owned();
    Some(match is_as_seen && !is_other_version {
        true => PendingState::Failed { reason },
        // A program has changed it.
        false => PendingState::Waiting,
    })
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Makes directories, with all rights for their owner; they get their attributes at the end. Syncs their names: a move
    /// of a file syncs only the directory of the file.
    pub(super) fn make_directories(&mut self, round: &mut RoundState) {
        let snapshot = Arc::clone(&round.snapshot);
        for (path, node) in snapshot.of_kind(NodeKind::Directory) {
            // A symbolic link above would lead elsewhere.
            if self.target.moved.contains(path)
                || round.is_blocked(path)
                || self.target.moved.is_below_another_kind(path)
            {
                continue;
            }
            if self.covers(path, round) {
                self.target
                    .moved
                    .insert(path.clone(), MovedNode::from_seen(node, false));
                continue;
            }
            let from = self.from.tree;
            let read = || copies_of_evicted(from, &snapshot);
            match self.editor().begin_hidden(round, path, node, read) {
                Ok(true) => {
                    self.target
                        .moved
                        .insert(path.clone(), MovedNode::from_seen(node, true));
                    self.unsynced.extend(path.parent().map(Path::to_owned));
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    round.fail(path, &error);
                    round.blocked.insert(path.clone());
                    round.unmade.push(path.clone());
                    continue;
                }
            }
            let target = self.at_target(path);
            match self
                .to
                .tree
                .make_directory(&target, node.kept.mode & 0o777 | 0o700)
            {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    let error = MoveError::io("creating", &target)(error);
                    round.fail(path, &error);
                    if self.to.tree.check_avoided(&target).is_err() {
                        // Something else may be there.
                        round.blocked.insert(path.clone());
                        round.unmade.push(path.clone());
                    }
                }
                Err(_) if self.view().awaits_removal(&snapshot, path, node.kind) => {
                    round.blocked.insert(path.clone());
                }
                Err(_)
                    if self.target.ownership.keeps_marks()
                        && self.knows_other_kind(round, path) =>
                {
                    round.blocked.insert(path.clone());
                }
                made => {
                    let moved = MovedNode::from_seen(node, made.is_ok());
                    self.target.moved.insert(path.clone(), moved);
                    self.unsynced.extend(path.parent().map(Path::to_owned));
                }
            }
        }
        let unsynced = std::mem::take(&mut self.unsynced);
        let is_unsynced = |dir: &PathBuf| {
            let target = self.at_target(dir);
            match self.to.tree.sync_directory(&target) {
                // The directory is gone, with the names in it.
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    round.fail(dir, &MoveError::io("syncing", &target)(error));
                    true
                }
                _ => false,
            }
        };
        self.unsynced = unsynced.into_iter().filter(is_unsynced).collect();
    }

    /// True if the target has a file or link of an earlier drain in the place of a directory. Then this drain removes it as
    /// its own: no file is written through an old link.
    fn knows_other_kind(&mut self, round: &mut RoundState, path: &Path) -> bool {
        let at = self.target.relocated.find_place(path);
        let target = self.to.join(&at);
        let there = self.to.tree.look_up(&target);
        let there = there.map_err(MoveError::io("looking for", &target));
        let known = there.and_then(|there| match there {
            Some(there) => self.view().earlier_leaf(round.snapshot.walk, &at, &there),
            None => Ok(None),
        });
        match known {
            Ok(Some(node)) => {
                self.target.moved.insert(path.to_owned(), node);
                true
            }
            Ok(None) => false,
            Err(error) => {
                round.fail(path, &error);
                true
            }
        }
    }

    /// True if a directory covers one of the target.
    fn covers(&self, path: &Path, round: &mut RoundState) -> bool {
        let source = self.from.join(path);
        match self.from.tree.cover_of(&source) {
            Ok(Cover::Directory { .. }) => true,
            Ok(Cover::Nothing) => false,
            Ok(Cover::Unknown) => {
                let there = self.to.find_node(self.at_target(path));
                let is_directory = |there: Stat| kind_of(&there) == NodeKind::Directory;
                there.is_ok_and(|there| there.is_some_and(is_directory))
            }
            // The directory was removed since the walk.
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                round.fail(path, &MoveError::io("looking for", &source)(error));
                false
            }
        }
    }

    /// Chooses the files that are copied now, in the order in which they get their names.
    pub(super) fn choose(&mut self, round: &mut RoundState) -> Vec<PathBuf> {
        let snapshot = Arc::clone(&round.snapshot);
        self.held_files.review(&snapshot, &self.from);
        let mut order = RoundOrder::default();
        let mut movable: Vec<(&PathBuf, &SeenNode)> = Vec::new();
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            if self.target.moved.has_version(path, node) {
                continue;
            }
            if self.target.copies.is_copy_at(node.version.ino, path) {
                if let Err(error) = self.keep_copy_attributes(path, node) {
                    round.fail(path, &error);
                }
                continue;
            }
            if self.view().waits_for_names(round, path) {
                round.pend(path, node, PendingState::Waiting);
                continue;
            }
            if self.early.has_copy(path) {
                let file = self.turns().ordered_node(path, node);
                order.note_movable(&self.order, file);
                if let Some(since) = self.early.outdated_since(path) {
                    order.note_outdated(file, since);
                }
                round.closed.insert(path, &node.version);
                movable.push((path, node));
                continue;
            }
            let mut obstacle = self.obstacle(round, path, &node.version);
            if self.early.is_given_up(path) {
                order.leave_out(path);
                obstacle.get_or_insert(PendingState::Waiting);
            }
            if self.turns().is_ordered(path) {
                let (known, version) = (&self.order, &node.version);
                let file = self.turns().ordered_node(path, node);
                match &obstacle {
                    None if !round.is_in_time(version) && !known.was_late(version.inode()) => {
                        order.note_late(known, file);
                        // A later walk sees it together with all files that programs wrote before it.
                        round.closed.remove(path, version);
                        obstacle = Some(PendingState::Waiting);
                    }
                    None => order.note_movable(known, file),
                    Some(PendingState::Analysis | PendingState::Unlaminated) => {}
                    Some(PendingState::Open) => order.note_open(known, file),
                    Some(_) => order.note_changing(known, file),
                }
            }
            match obstacle {
                Some(state) => round.pend(path, node, state),
                None => movable.push((path, node)),
            }
        }
        self.await_removals(&snapshot, &mut order);
        let chosen = self.put_in_order(round, order, movable);
        let mut chosen = self.follow_files(round, &snapshot, chosen);
        let mut bytes = 0;
        chosen.sort_by_key(|(path, node)| {
            let is_ordered = self.turns().is_ordered(path);
            let changed = Some(node.version.mtime).filter(|_| !is_ordered);
            (!self.choice.is_first(path), is_ordered, changed)
        });
        let mut cut_from: Option<Time> = None;
        chosen.retain(|(path, node)| {
            let is_within = bytes < self.round_limit;
            bytes += node.version.size;
            if !is_within {
                round.is_cut = true;
                let changed = node.version.ctime;
                cut_from = Some(cut_from.map_or(changed, |first| first.min(changed)));
                round.pend(path, node, PendingState::Waiting);
            }
            is_within
        });
        for file in std::mem::take(&mut round.renamed) {
            let node = snapshot.get(&file.path).expect("chosen from it");
            if cut_from.is_some_and(|first| first <= node.version.ctime) {
                round.pend(&file.path, node, PendingState::Waiting);
            } else {
                round.renamed.push(file);
            }
        }
        if self.order.rule == NameOrder::None {
            // Small files are removed soonest.
            chosen.sort_by_key(|(path, node)| (node.version.size, *path));
        }
        chosen.into_iter().map(|(path, _)| path.clone()).collect()
    }

    /// The reason why a changed file is not copied now.
    fn obstacle(
        &self,
        round: &mut RoundState,
        path: &Path,
        version: &FileVersion,
    ) -> Option<PendingState> {
        let source = self.from.join(path);
        let state = match self.from.tree.write_state(&source) {
            Ok(WriteState::Open) => PendingState::Open,
            Ok(WriteState::Hidden) => PendingState::Unlaminated,
            Ok(WriteState::Written) => {
                round.closed.insert(path, version);
                let target = self.at_target(path);
                // A mover does not know that a path is avoided.
                if let Err(error) = self.to.tree.check_avoided(&target) {
                    return Some(PendingState::failed(&MoveError::io("moving", &target)(
                        error,
                    )));
                }
                let is_settled = round.is_settled(version);
                if let Some(state) = self.held_files.hold_if_awaited(path, version, is_settled) {
                    return Some(state);
                }
                let is_chosen = self.due.has_names() || is_settled;
                return (!is_chosen).then_some(PendingState::Waiting);
            }
            // The copy will find that the file is gone, or copy another one that has the name by then.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self
                    .held_files
                    .is_wanted(path)
                    .then_some(PendingState::Waiting)
            }
            // Another kind of node has the name now.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Some(PendingState::Waiting)
            }
            // A node that may have a writer does not answer.
            Err(error) => {
                round.closed.insert(path, version);
                let error = MoveError::io("asking for writers of", &source)(error);
                return Some(PendingState::failed(&error));
            }
        };
        round.open.insert(version.inode());
        Some(state)
    }

    pub(super) fn file_to_move(&self, path: &Path, node: &SeenNode) -> FileToMove {
        // When the file is copied, the path may lead into another directory, or to a version that must come after other
        // files.
        let is_as_seen = self.target.moved.is_in_renamed(path, &self.history.renames)
            || self.turns().is_ordered(path) && !self.order.takes_any_version(node.version.inode());
        let seen = || Some(ContentStamp::from(&node.version)).filter(|_| is_as_seen);
        FileToMove {
            pair: StagePair {
                source: self.from.join(path),
                target: self.at_target(path),
            },
            replaces: self.target.replaceable(path),
            content: self.held_files.only_content(path).or_else(seen),
            likeness: self.target.likeness_of(path, node.version.mtime, node.born),
            is_ours: self.target.moved.has_made(path),
        }
    }

    /// Copies files. Those that are to be moved first get their names before the others are begun.
    pub(super) fn copy(
        &mut self,
        round: &mut RoundState,
        chosen: &[PathBuf],
        progress: &StageProgress,
    ) {
        let (first, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
            chosen.iter().partition(|path| self.choice.is_first(path));
        for (group, is_first) in [(first, true), (others, false)] {
            let changes = self.plan_changes(round, &group, is_first);
            if self.copy_group(round, &group, &changes, progress) {
                self.turns().follow_behind(&changes, &round.snapshot);
                self.note_changes(round, &changes);
            }
            changes.pend(round);
        }
    }

    /// Copies files; false: one failed, and the files after it wait for it.
    fn copy_group(
        &mut self,
        round: &mut RoundState,
        chosen: &[&PathBuf],
        changes: &TurnChanges,
        progress: &StageProgress,
    ) -> bool {
        let snapshot = Arc::clone(&round.snapshot);
        let node_of = |path: &PathBuf| snapshot.get(path).expect("chosen from it");
        self.target
            .note_placing(chosen.iter().map(|path| (*path, node_of(path))));
        let is_large = |node: &SeenNode| {
            !self.team.is_alone() && node.version.size > LARGE_BYTES && !node.has_links
        };
        // If there are as many large files as nodes, whole files keep all nodes busy.
        let large = chosen.iter().filter(|path| is_large(node_of(path)));
        let is_cut = large.count() <= self.team.movers.len();
        let way_of = |path: &PathBuf| {
            let node = node_of(path);
            if self.early.has_copy(path) {
                CopyWay::Early
            } else if self.has_gone_ahead(node) {
                CopyWay::Ahead
            } else if self.target.copies.has_base(node.version.ino) {
                CopyWay::Rewritten
            } else if is_cut && is_large(node) {
                CopyWay::Large
            } else {
                CopyWay::Listed
            }
        };
        let mut ways: Vec<(CopyWay, &PathBuf)> =
            chosen.iter().map(|path| (way_of(path), *path)).collect();
        if self.order.rule == NameOrder::None {
            ways.sort_by_key(|(way, _)| *way);
        }
        let mut ways = ways
            .chunk_by(|(one, _), (other, _)| (*one, *other) == (CopyWay::Listed, CopyWay::Listed));
        for files in ways.by_ref() {
            let paths: Vec<&PathBuf> = files.iter().map(|(_, path)| *path).collect();
            let goes_on = match files[0].0 {
                _ if progress.begins_no_more() => {
                    self.note_all(round, &paths, paths.iter().map(|_| None).collect())
                }
                CopyWay::Listed => self.copy_listed(round, &paths, changes, progress),
                way => self.copy_alone(round, paths[0], way, changes, progress),
            };
            let nodes = paths.iter().map(|path| (path, node_of(path)));
            // A file that may have been written again within a clock tick has its name all the same.
            let has_name = |path: &Path, node: &SeenNode| {
                let moved = self.target.moved.get(path);
                moved.is_some_and(|moved| moved.version == node.version)
            };
            for (_, node) in nodes.filter(|(path, node)| !has_name(path, node)) {
                changes.note_unnamed(node.version.ctime);
            }
            if !goes_on {
                for (_, path) in ways.flatten() {
                    round.pend(path, node_of(path), PendingState::Waiting);
                }
                return false;
            }
        }
        true
    }

    /// Copies a file that is in no list; false: it failed, and the files after it wait for it.
    fn copy_alone(
        &mut self,
        round: &mut RoundState,
        path: &PathBuf,
        way: CopyWay,
        changes: &TurnChanges,
        progress: &StageProgress,
    ) -> bool {
        let snapshot = Arc::clone(&round.snapshot);
        let node = snapshot.get(path).expect("chosen from it");
        let file = self.turns().ordered_node(path, node);
        let goes_on = self.turns().change_before(changes, &snapshot, file);
        self.note_changes(round, changes);
        if !goes_on {
            return self.note_all(round, &[path], vec![None]);
        }
        if way == CopyWay::Ahead && !self.has_gone_ahead(node) {
            // It was finished by another of its names.
            return self.copy_listed(round, &[path], changes, progress);
        }
        let moved = match way {
            CopyWay::Early => self.name_early(path, progress),
            CopyWay::Ahead => self
                .finish_ahead(round, path, node, progress)
                .map(MovedSource::Copied),
            CopyWay::Large => {
                let file = self.file_to_move(path, node);
                let (from, to, team) = (&self.from, &self.to, &self.team);
                move_large(from, to, team, &file, round.threads, progress)
            }
            CopyWay::Rewritten | CopyWay::Listed => {
                return self.copy_rewritten(round, path, progress)
            }
        };
        if way == CopyWay::Ahead && moved.as_ref().is_err_and(MoveError::crosses_file_systems) {
            return self.copy_rewritten(round, path, progress);
        }
        if let Ok(MovedSource::Copied(stat)) = &moved {
            round.copied += 1;
            round.bytes += stat.size;
        }
        self.note_all(round, &[path], vec![Some(MovedFile::new(moved))])
    }

    /// Notes as pending the later versions of files that were copied before the walk.
    pub(super) fn pend_outdated(&self, round: &mut RoundState) {
        let mut unsaid: HashSet<&PathBuf> = self.early.outdated_paths().collect();
        if unsaid.is_empty() {
            return;
        }
        for file in &round.pending {
            unsaid.remove(&file.path);
        }
        let snapshot = Arc::clone(&round.snapshot);
        for path in self.early.outdated_paths() {
            let node = snapshot.get(path).expect("it was set back there");
            // Names that the walk saw wait for the version that it saw of this file, too.
            round.closed.insert(path, &node.version);
            if unsaid.contains(path) {
                round.pend(path, node, PendingState::Waiting);
            }
        }
    }

    /// Copies an evicted file that programs have written since.
    fn copy_rewritten(
        &mut self,
        round: &mut RoundState,
        path: &PathBuf,
        progress: &StageProgress,
    ) -> bool {
        let node = round.snapshot.get(path).expect("chosen from it");
        // A program has opened it for writing since it was evicted, and may have set its time back.
        let file = [FileToMove {
            likeness: LikenessBy::Bytes,
            ..self.file_to_move(path, node)
        }];
        let options = options_of_round(round.threads);
        let moved = move_files(self.from.tree, self.to.tree, &file, options, progress);
        round.copied += moved.copied;
        round.bytes += moved.bytes;
        self.xattrs_not_kept += moved.xattrs_not_kept;
        let is_known = |file: &MovedFile| !moved.stopped || file.is_named;
        let results = moved.files.into_iter();
        let results = results.map(|file| Some(file).filter(is_known)).collect();
        self.note_all(round, &[path], results)
    }

    /// The rank of the server that has the bytes of a file, or a guess if asking is not worth it.
    fn rank_of(&self, path: &Path, version: &FileVersion) -> u16 {
        let path = self.from.join(path);
        let is_asked = !self.team.is_alone();
        holder_of_file(self.from.tree, &path, version.ino, version.size, is_asked)
    }

    /// Copies files in lists; false: one failed, and the files after it wait for it.
    fn copy_listed(
        &mut self,
        round: &mut RoundState,
        chosen: &[&PathBuf],
        changes: &TurnChanges,
        progress: &StageProgress,
    ) -> bool {
        let listed = |path: &&PathBuf| {
            let node = round.snapshot.get(path).expect("chosen from it");
            let version = &node.version;
            ListedFile {
                file: self.file_to_move(path, node),
                inode: version.inode(),
                size: version.size,
                rank: self.rank_of(path, version),
            }
        };
        let files: Vec<ListedFile> = chosen.iter().map(listed).collect();
        let options = options_of_round(round.threads);
        let here = OwnLists {
            from: self.from.tree,
            to: self.to.tree,
            options,
            progress,
        };
        let lists = match self.order.rule {
            NameOrder::None => share_files(&files, &self.team, &here),
            NameOrder::Changes => {
                let rules = OrderedList {
                    turns: self.turns(),
                    snapshot: &round.snapshot,
                    files: chosen,
                    changes,
                };
                share_in_order(&files, &self.team, &here, &rules)
            }
        };
        self.note_changes(round, changes);
        let mut results: Vec<Option<MovedFile>> = Vec::new();
        results.resize_with(files.len(), || None);
        for list in lists {
            round.copied += list.moved.copied;
            round.bytes += list.moved.bytes;
            self.xattrs_not_kept += list.moved.xattrs_not_kept;
            for (file, mut moved) in list.files.into_iter().zip(list.moved.files) {
                if list.is_remote && moved.failure.is_none() && !moved.awaits_turn {
                    moved.failure = check_seen(self.to.tree, &files[file].file.pair.target).err();
                }
                // A move that was stopped has no results for files that it did not reach.
                let is_known = !list.moved.stopped || moved.is_named;
                results[file] = is_known.then_some(moved);
            }
        }
        self.note_all(round, chosen, results)
    }

    /// Notes the results of files; `None`: not known. False: one has no name, and the files after it wait for it.
    fn note_all(
        &mut self,
        round: &mut RoundState,
        chosen: &[&PathBuf],
        moved: Vec<Option<MovedFile>>,
    ) -> bool {
        let snapshot = Arc::clone(&round.snapshot);
        let mut goes_on = true;
        for (path, moved) in chosen.iter().zip(moved) {
            let node = snapshot.get(path).expect("chosen from it");
            let state = if let Some(moved) = moved.filter(|moved| !moved.awaits_turn) {
                let state = self.note_moved(round, path, node, &moved);
                if moved.failure.is_some() {
                    goes_on &= !self.turns().is_awaited(path, node);
                }
                if moved.failure.is_some() && state.is_some() {
                    self.order.count_failure(node.version.inode());
                }
                if moved.failure.is_some() && state == Some(PendingState::Waiting) {
                    self.note_overtaken(path, node);
                }
                state
            } else {
                goes_on &= !self.turns().is_ordered(path);
                self.order.count_wait(path);
                Some(PendingState::Waiting)
            };
            if let Some(state) = state {
                round.pend(path, node, state);
                continue;
            }
            let version = self.target.moved.get(path).map(|moved| moved.version);
            let version = version.unwrap_or(node.version);
            if let Err(error) = self.replace_base(path, &version) {
                round.fail(path, &error);
            }
        }
        goes_on
    }

    /// Notes the move of a file; returns its state unless it is safe.
    fn note_moved(
        &mut self,
        round: &mut RoundState,
        path: &Path,
        node: &SeenNode,
        result: &MovedFile,
    ) -> Option<PendingState> {
        let version = result.version_on(node.version.dev).unwrap_or(node.version);
        let is_settled = round.is_settled(&version);
        if result.is_named || result.failure.is_none() {
            let was_ours = self
                .target
                .moved
                .get(path)
                .is_some_and(|moved| moved.is_ours);
            let moved = MovedNode {
                version,
                is_doubtful: result.failure.is_some() || !is_settled,
                ..MovedNode::from_seen(node, result.is_named || was_ours)
            };
            self.target.moved.insert(path.to_owned(), moved);
            self.note_placed(path, &version);
        }
        if let Some(reason) = &result.failure {
            return state_after_failure(self.from.tree, &self.from.join(path), node, reason);
        }
        self.order.forget_waiting(path);
        round.closed.remove(path, &node.version);
        self.due.note_there(path, &node.version);
        (!is_settled).then_some(PendingState::Waiting)
    }
}
