//! A source and a target, and what must hold of the target at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::other_node::leak;
use crate::parts::parts;
use crate::scratch::temporary_directory;
use crate::trees::{contents, TreeNode};
use weir_faultfs::{why_no_mount, FaultFs};
use weir_mover::drain::{Drain, DrainRound, PendingState};
use weir_mover::{
    stage, DirectoryTree, MoveSide, PathFilter, StageOptions, StagePair, StageProgress,
    StageSummary, WatchedTree,
};

/// Longer than anything takes here.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The time after which a call counts as one that hangs. If it does not, order is all that is lost.
const PATIENCE: Duration = Duration::from_millis(100);

/// A directory, and its move to a parallel file system.
pub struct Scene {
    pub fs: FaultFs,
    dir: tempfile::TempDir,
    /// All nodes that each name had in the source.
    versions: BTreeMap<PathBuf, BTreeSet<TreeNode>>,
}

impl Scene {
    /// `None`: this machine allows no mount, which is said.
    pub fn new(what: &str) -> Option<Scene> {
        if let Some(why) = why_no_mount() {
            weir_cluster::skip_for_kernel(what, &why);
            return None;
        }
        let dir = temporary_directory();
        for name in ["source", "below", "mount"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let fs = FaultFs::mount(&dir.path().join("below"), &dir.path().join("mount")).unwrap();
        Some(Scene {
            fs,
            dir,
            versions: BTreeMap::new(),
        })
    }

    pub fn source(&self, name: &str) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    /// The path of a name of the target, past the mount.
    pub fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join("below").join(name)
    }

    /// Notes what the source has now: the target may have it from now on.
    pub fn note_versions(&mut self) {
        for (path, node) in contents(&self.source("")) {
            self.versions.entry(path).or_default().insert(node);
        }
    }

    /// Writes a version of a tree with all kinds of nodes.
    pub fn write(&mut self, version: u8) {
        let fill = |size: usize| vec![version; size + usize::from(version)];
        let source = |name: &str| self.source(name);
        fs::create_dir_all(source("kept")).unwrap();
        fs::create_dir_all(source(&format!("new{version}/deep"))).unwrap();
        fs::write(source("kept/file"), fill(3000)).unwrap();
        fs::write(source("large"), fill(3 << 20)).unwrap();
        let large = fs::File::options().write(true).open(source("large"));
        let with_hole = (3 << 20) + (64 << 10);
        large.unwrap().set_len(with_hole).unwrap();
        fs::write(source(&format!("new{version}/deep/file")), fill(10)).unwrap();
        fs::write(source("empty"), b"").unwrap();
        fs::write(source("linked"), fill(100)).unwrap();
        // A umask takes a bit away.
        let mode = PermissionsExt::from_mode(0o666);
        fs::set_permissions(source("linked"), mode).unwrap();
        let _ = fs::remove_file(source("protected"));
        fs::write(source("protected"), fill(10)).unwrap();
        let mode = PermissionsExt::from_mode(0o444);
        fs::set_permissions(source("protected"), mode).unwrap();
        let _ = fs::remove_file(source("again"));
        fs::hard_link(source("linked"), source("again")).unwrap();
        let _ = fs::remove_file(source("latest"));
        symlink(format!("new{version}"), source("latest")).unwrap();
        let mode = PermissionsExt::from_mode(0o640);
        fs::set_permissions(source("kept/file"), mode).unwrap();
        let file = fs::File::options().write(true).open(source("kept/file"));
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(version));
        file.unwrap().set_modified(long_ago).unwrap();
        let name = "user.version";
        let flags = rustix::fs::XattrFlags::empty();
        // Not every file system of a source has them.
        let _ = rustix::fs::setxattr(source("kept/file"), name, &[version], flags);
        self.note_versions();
    }

    /// Checks that each name of the target is that of a version that the source had.
    pub fn check_whole(&self, what: &str) {
        for (path, node) in contents(&self.below("")) {
            let versions = self.versions.get(&path);
            assert!(
                versions.is_some_and(|versions| versions.contains(&node)),
                "{what}: {} is of no version",
                path.display()
            );
        }
    }

    /// Checks that the target is as the source, with modes and times.
    pub fn check_equal(&self, what: &str) {
        let (source, target) = (contents(&self.source("")), contents(&self.below("")));
        assert_eq!(
            source.keys().collect::<Vec<_>>(),
            target.keys().collect::<Vec<_>>(),
            "{what}"
        );
        for (path, node) in &source {
            assert!(target[path] == *node, "{what}: {} differs", path.display());
            let attributes = |root: PathBuf| {
                let found = root.join(path).symlink_metadata().unwrap();
                (found.mode(), found.mtime(), found.mtime_nsec())
            };
            assert_eq!(
                attributes(self.source("")),
                attributes(self.below("")),
                "{what}: {}",
                path.display()
            );
        }
        assert_eq!(parts(&self.below("")), [] as [PathBuf; 0], "{what}");
    }

    pub fn stage_with(&self, options: StageOptions, progress: &StageProgress) -> StageSummary {
        let pair = StagePair {
            source: self.source("."),
            target: self.fs.path().to_owned(),
        };
        stage(&DirectoryTree, &DirectoryTree, &[pair], options, progress)
    }

    pub fn stage(&self) -> StageSummary {
        let options = StageOptions {
            threads: 2,
            ..StageOptions::default()
        };
        self.stage_with(options, &StageProgress::default())
    }

    pub fn drain(&self) -> SceneDrain {
        let from = MoveSide::new(&DirectoryTree, self.source(""));
        let mut to = WatchedTree::new(DirectoryTree);
        to.set_patience(PATIENCE);
        let to = MoveSide::new(leak(to), self.fs.path());
        Drain::new(from, to, PathFilter::default())
    }
}

pub type SceneDrain = Drain<'static, DirectoryTree, WatchedTree<DirectoryTree>>;

/// A round in which no file was written a moment ago.
pub fn round(drain: &mut SceneDrain) -> DrainRound {
    let settled = SystemTime::now() + Duration::from_secs(3600);
    drain.round(settled, 2, &StageProgress::default())
}

pub fn finish(drain: &mut SceneDrain) -> StageSummary {
    let options = StageOptions {
        threads: 2,
        ..StageOptions::default()
    };
    drain.finish(options, &StageProgress::default())
}

/// The reasons of what a round could not move.
pub fn reasons(round: &DrainRound) -> Vec<String> {
    let pending = round.pending.iter();
    pending
        .filter_map(|file| match &file.state {
            PendingState::Failed { reason } => Some(reason.clone()),
            _ => None,
        })
        .collect()
}
