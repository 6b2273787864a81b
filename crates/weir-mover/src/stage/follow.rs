//! Sources that other programs fill while they are moved.
//!
//! A look walks the sources, and moves the files that have not changed since the previous look: a file that is being
//! written has changed. A file that was moved and has not changed since costs no call of the target. A look that finds
//! nothing new begins no move. Names that the sources lose stay on the target.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use weir_client::types::Stat;

use super::team::StageTeam;
use super::{stage_with, StageCaller, StageOptions, StageProgress};
use crate::content::ContentStamp;
use crate::filter::PathFilter;
use crate::sources::StagePair;
use crate::summary::{StageFailure, StageSummary};
use crate::tree::{kind_of, FileTree, NodeKind};

/// The nodes that a walk of the sources found.
type FoundNodes = BTreeMap<PathBuf, (NodeKind, ContentStamp)>;

/// The looks at sources so far.
#[derive(Debug)]
pub struct FollowedSources {
    options: StageOptions,
    filter: PathFilter,
    begun: Instant,
    /// The last look.
    seen: FoundNodes,
    /// The nodes that the look of the last move saw.
    moved: FoundNodes,
    /// Files that are on the target, by source.
    there: HashMap<PathBuf, ContentStamp>,
    total: StageSummary,
}

impl FollowedSources {
    /// The state before the first look. The filter takes paths of the source's tree.
    pub fn new(options: StageOptions, filter: PathFilter) -> FollowedSources {
        FollowedSources {
            options,
            filter,
            begun: Instant::now(),
            seen: FoundNodes::new(),
            moved: FoundNodes::new(),
            there: HashMap::new(),
            total: StageSummary::default(),
        }
    }

    /// Walks the sources, and moves the files that have not changed since the last look. Returns the failures that the last
    /// move did not have.
    pub fn look<S: FileTree, T: FileTree>(
        &mut self,
        from: &S,
        to: &T,
        pairs: &[StagePair],
        progress: &StageProgress,
        team: Option<&StageTeam<'_>>,
    ) -> Vec<StageFailure> {
        let found = self.walk(from, pairs);
        let before = std::mem::replace(&mut self.seen, found);
        if !self.has_work(&before) {
            return Vec::new();
        }
        let look = Look {
            filter: &self.filter,
            before: &before,
            there: &self.there,
            copied: Mutex::default(),
            passed: AtomicU64::new(0),
        };
        let moved = stage_with(from, to, pairs, self.options, progress, &look, team);
        let passed = look.passed.into_inner();
        let copied = look.copied.into_inner();
        let mut copied = copied.unwrap_or_else(PoisonError::into_inner);
        for failure in &moved.failed {
            copied.remove(&plain(&failure.source));
        }
        if !moved.stopped {
            self.there.extend(copied);
        }
        self.moved = self.seen.clone();
        self.add(moved, passed)
    }

    /// Forgets the failures of the last move, since the target has ended.
    pub fn forget_failures(&mut self) {
        self.total.failed.clear();
    }

    /// The sum of all moves.
    pub fn into_summary(self) -> StageSummary {
        StageSummary {
            seconds: self.begun.elapsed().as_secs_f64(),
            ..self.total
        }
    }

    fn walk<S: FileTree>(&self, from: &S, pairs: &[StagePair]) -> FoundNodes {
        let mut open: Vec<PathBuf> = pairs.iter().map(|pair| plain(&pair.source)).collect();
        let mut found = FoundNodes::new();
        while let Some(path) = open.pop() {
            // The move reports a path that cannot be examined.
            let Ok(Some(stat)) = from.look_up(&path) else {
                continue;
            };
            let kind = kind_of(&stat);
            if !self.filter.takes_kind(&path, kind) {
                continue;
            }
            if kind == NodeKind::Directory {
                let names = from.list(&path).unwrap_or_default();
                open.extend(names.iter().map(|name| path.join(name)));
            }
            found.insert(path, (kind, ContentStamp::from(&stat)));
        }
        found
    }

    /// True if an unchanged file is not on the target, or a directory or a link is new or changed.
    fn has_work(&self, before: &FoundNodes) -> bool {
        self.seen.iter().any(|(path, node)| match node.0 {
            NodeKind::File => {
                before.get(path) == Some(node) && self.there.get(path) != Some(&node.1)
            }
            _ => self.moved.get(path) != Some(node),
        })
    }

    /// Adds the result of a move. `passed`: the files that it left out.
    fn add(&mut self, moved: StageSummary, passed: u64) -> Vec<StageFailure> {
        let known = std::mem::take(&mut self.total.failed);
        let is_new = |failure: &&StageFailure| !known.contains(failure);
        let new = moved.failed.iter().filter(is_new).cloned().collect();
        let total = &mut self.total;
        let mut nodes = std::mem::take(&mut total.nodes);
        for share in &moved.nodes {
            match nodes.iter_mut().find(|node| node.server == share.server) {
                Some(node) => {
                    node.files += share.files;
                    node.bytes += share.bytes;
                }
                None => nodes.push(share.clone()),
            }
        }
        self.total = StageSummary {
            nodes,
            files: total.files + moved.files,
            unchanged: total.unchanged + moved.unchanged.saturating_sub(passed),
            open: total.open + moved.open,
            bytes: total.bytes + moved.bytes,
            hard_links_not_kept: total.hard_links_not_kept + moved.hard_links_not_kept,
            xattrs_not_kept: total.xattrs_not_kept + moved.xattrs_not_kept,
            // The other numbers count all nodes in each move: the last ones are right.
            ..moved
        };
        new
    }
}

/// A path without the dot that stands for the contents of a source.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The caller of the move of a look.
struct Look<'l> {
    filter: &'l PathFilter,
    before: &'l FoundNodes,
    there: &'l HashMap<PathBuf, ContentStamp>,
    copied: Mutex<HashMap<PathBuf, ContentStamp>>,
    passed: AtomicU64,
}

impl StageCaller for Look<'_> {
    fn takes(&self, source: &Path, kind: NodeKind) -> bool {
        self.filter.takes_kind(&plain(source), kind)
    }

    fn is_known(&self, source: &Path, stat: &Stat) -> bool {
        let source = plain(source);
        let stamp = ContentStamp::from(stat);
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        let is_settled = self.before.get(&source) == Some(&(NodeKind::File, stamp));
        if !is_settled || self.there.get(&source) == Some(&stamp) {
            // This includes a file that changed while it was copied.
            copied.remove(&source);
            self.passed.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        copied.insert(source, stamp);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory_tree::DirectoryTree;

    #[test]
    fn files_are_moved_once_they_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        std::fs::create_dir(&to).unwrap();
        let write = |name: &str, text: &str| std::fs::write(from.join(name), text).unwrap();
        let read = |name: &str| std::fs::read_to_string(to.join(name)).ok();
        let pairs = [StagePair {
            source: from.join("."),
            target: to.clone(),
        }];
        let filter = PathFilter::new(&[], &[format!("{}/**/*.tmp", from.display())]).unwrap();
        let mut sources = FollowedSources::new(StageOptions::default(), filter);
        let progress = StageProgress::default();
        let mut look = || {
            let failed = sources.look(&DirectoryTree, &DirectoryTree, &pairs, &progress, None);
            assert_eq!(failed, []);
        };
        write("sub/one", "1");
        write("growing", "a");
        write("x.tmp", "x");
        look();
        assert_eq!((read("sub/one"), read("growing")), (None, None));
        write("growing", "ab");
        look();
        assert_eq!((read("sub/one"), read("growing")), (Some("1".into()), None));
        look();
        assert_eq!(read("growing"), Some("ab".into()));
        // A stage looks at a moved file again only if the source has changed.
        std::fs::remove_file(to.join("sub/one")).unwrap();
        look();
        look();
        assert_eq!(read("sub/one"), None);
        write("sub/one", "22");
        look();
        look();
        assert_eq!(read("sub/one"), Some("22".into()));
        let summary = sources.into_summary();
        assert!(summary.is_complete(), "{summary:?}");
        assert_eq!((summary.files, summary.bytes), (3, 5));
        assert_eq!((summary.unchanged, summary.directories), (0, 2));
        assert_eq!(read("x.tmp"), None);
    }

    #[test]
    fn a_failure_is_told_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("file");
        let target = dir.path().join("missing/file");
        std::fs::write(&source, "x").unwrap();
        let pairs = [StagePair { source, target }];
        let mut sources = FollowedSources::new(StageOptions::default(), PathFilter::default());
        let progress = StageProgress::default();
        let tree = DirectoryTree;
        let mut look = || sources.look(&tree, &tree, &pairs, &progress, None).len();
        assert_eq!((look(), look() > 0, look()), (0, true, 0));
        std::fs::create_dir(dir.path().join("missing")).unwrap();
        assert_eq!(look(), 0);
        let summary = sources.into_summary();
        assert!(summary.is_complete() && summary.files == 1, "{summary:?}");
    }
}
