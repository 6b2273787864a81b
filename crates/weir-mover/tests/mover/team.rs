//! Stages that several nodes share: each moves a part, what one does not move others do, and nothing is counted twice.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{symlink, FileExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::faults::FaultyTree;
use crate::other_node::{leak, OtherNode};
use crate::parts::count_parts;
use crate::scratch::temporary_directory;
use crate::trees::contents;
use proptest::prelude::*;
use rustix::io::Errno;
use weir_mover::mover::{FileMover, FileToMove, MovedFiles, PieceFailure};
use weir_mover::piece::FilePiece;
use weir_mover::tree::FileTree;
use weir_mover::{
    stage_chosen, DirectoryTree, FilePlacement, FollowedSources, MoverNews, MoverSource,
    PathFilter, StageOptions, StagePair, StageProgress, StageSummary, StageTeam,
};

/// Movers that are there when they are asked.
#[derive(Debug, Default)]
struct Helpers {
    ranks: Vec<u16>,
    news: Mutex<Vec<MoverNews>>,
    invitations: AtomicUsize,
    lost: Mutex<Vec<u16>>,
}

impl Helpers {
    fn new(movers: Vec<Box<dyn FileMover>>) -> Helpers {
        Helpers {
            ranks: movers.iter().map(|mover| mover.rank()).collect(),
            news: Mutex::new(movers.into_iter().map(MoverNews::Arrived).collect()),
            ..Helpers::default()
        }
    }
}

impl MoverSource for Helpers {
    fn invite(&self) -> Vec<u16> {
        self.invitations.fetch_add(1, Ordering::Relaxed);
        self.ranks.clone()
    }

    fn take_news(&self) -> Vec<MoverNews> {
        match self.invitations.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => std::mem::take(&mut *self.news.lock().unwrap()),
        }
    }

    fn note_loss(&self, rank: u16, _reason: &str) {
        self.lost.lock().unwrap().push(rank);
    }
}

struct Scene {
    dir: tempfile::TempDir,
    files: u64,
    bytes: u64,
}

impl Scene {
    fn new() -> Scene {
        let dir = temporary_directory();
        fs::create_dir(dir.path().join("source")).unwrap();
        fs::create_dir(dir.path().join("target")).unwrap();
        Scene {
            dir,
            files: 0,
            bytes: 0,
        }
    }

    fn pair(&self) -> StagePair {
        StagePair {
            source: self.dir.path().join("source/."),
            target: self.dir.path().join("target"),
        }
    }

    /// Makes a file with its name in it, holes, and its name at the end.
    fn add(&mut self, name: &str, size: u64) {
        let path = self.dir.path().join("source").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        file.set_len(size).unwrap();
        let length = name.len().min(usize::try_from(size).unwrap());
        file.write_all_at(&name.as_bytes()[..length], 0).unwrap();
        let end = size - length as u64;
        file.write_all_at(&name.as_bytes()[..length], end).unwrap();
        self.files += 1;
        self.bytes += size;
    }

    fn add_many(&mut self, number: usize) {
        for number in 0..number {
            self.add(&format!("d{}/{number}", number % 7), number as u64);
        }
    }

    fn stage_to<T: FileTree>(
        &self,
        to: &T,
        helpers: &Helpers,
        options: StageOptions,
        progress: &StageProgress,
    ) -> StageSummary {
        self.stage_from(&DirectoryTree, to, helpers, options, progress)
    }

    fn stage_from<S: FileTree, T: FileTree>(
        &self,
        from: &S,
        to: &T,
        helpers: &Helpers,
        options: StageOptions,
        progress: &StageProgress,
    ) -> StageSummary {
        let team = StageTeam::new(0, FilePlacement::Spread, helpers);
        let filter = PathFilter::default();
        let pairs = [self.pair()];
        stage_chosen(from, to, &pairs, options, progress, &filter, Some(&team))
    }

    fn stage(&self, helpers: &Helpers, options: StageOptions) -> StageSummary {
        self.stage_whole(&DirectoryTree, helpers, options)
    }

    fn stage_whole<S: FileTree>(
        &self,
        from: &S,
        helpers: &Helpers,
        options: StageOptions,
    ) -> StageSummary {
        let progress = StageProgress::default();
        let summary = self.stage_from(from, &DirectoryTree, helpers, options, &progress);
        assert!(summary.is_complete(), "{:?}", summary.failed);
        assert_eq!(progress.files_done.into_inner(), self.files);
        self.check(&summary);
        summary
    }

    /// Checks that all is there, and was counted once.
    fn check(&self, summary: &StageSummary) {
        let pair = self.pair();
        assert!(contents(&pair.source) == contents(&pair.target));
        assert_eq!(count_parts(&pair.target), 0);
        assert_eq!(summary.files + summary.unchanged, self.files);
        let files: u64 = summary.nodes.iter().map(|node| node.files).sum();
        let bytes: u64 = summary.nodes.iter().map(|node| node.bytes).sum();
        assert_eq!((files, bytes), (summary.files, summary.bytes));
        assert!(summary.bytes <= self.bytes);
    }
}

fn other(rank: u16, orders: usize) -> OtherNode<DirectoryTree> {
    OtherNode {
        rank,
        ..OtherNode::new(DirectoryTree, orders, StageOptions::default())
    }
}

fn boxed(mover: impl FileMover + 'static) -> Box<dyn FileMover> {
    Box::new(mover)
}

#[test]
fn each_node_moves_a_share() {
    let mut scene = Scene::new();
    scene.add_many(2000);
    for number in 0..9 {
        scene.add(&format!("middle.{number}"), 3 << 20);
    }
    scene.add("cut.here", 80 << 20);
    let source = scene.pair().source;
    fs::hard_link(source.join("d1/1"), source.join("again")).unwrap();
    symlink("d1/1", source.join("link")).unwrap();
    for verify in [false, true] {
        let options = StageOptions {
            verify,
            threads: 2,
            ..StageOptions::default()
        };
        let mover = |rank| {
            boxed(OtherNode {
                options,
                ..other(rank, usize::MAX)
            })
        };
        let helpers = Helpers::new((1..4).map(mover).collect());
        let summary = scene.stage(&helpers, options);
        let servers: Vec<_> = summary.nodes.iter().map(|node| node.server).collect();
        assert_eq!(servers, [0, 1, 2, 3]);
        assert!(
            summary.nodes.iter().all(|node| node.files > 0),
            "{summary:?}"
        );
        assert_eq!((summary.hard_links, summary.symlinks), (1, 1));
        assert_eq!((summary.files, summary.bytes), (scene.files, scene.bytes));
        let again = scene.stage(&Helpers::default(), options);
        assert_eq!((again.files, again.unchanged), (0, scene.files));
        let helpers = Helpers::new((1..4).map(mover).collect());
        let again = scene.stage(&helpers, options);
        assert_eq!((again.files, again.unchanged), (0, scene.files));
        fs::remove_dir_all(scene.pair().target).unwrap();
        fs::create_dir(scene.pair().target).unwrap();
    }
}

#[test]
fn a_large_file_is_copied_by_all_nodes() {
    for verify in [false, true] {
        let mut scene = Scene::new();
        scene.add("large", 513 << 20);
        let options = StageOptions {
            verify,
            ..StageOptions::default()
        };
        let mover = |rank| {
            boxed(OtherNode {
                options,
                ..other(rank, usize::MAX)
            })
        };
        let helpers = Helpers::new(vec![mover(1), mover(5)]);
        let summary = scene.stage(&helpers, options);
        assert_eq!((summary.files, summary.bytes), (1, 513 << 20));
        let shares: Vec<_> = summary.nodes.iter().collect();
        assert!(
            shares.len() == 3 && shares.iter().all(|node| node.bytes > 0),
            "{summary:?}"
        );
        // The command's node has made the name.
        let named: Vec<_> = shares.iter().map(|node| node.files).collect();
        assert_eq!(named, [1, 0, 0]);
    }
}

#[test]
fn nobody_is_asked_to_help_with_little() {
    let mut scene = Scene::new();
    scene.add_many(100);
    let helpers = Helpers::new(vec![boxed(other(1, 9))]);
    let summary = scene.stage(&helpers, StageOptions::default());
    assert_eq!(helpers.invitations.into_inner(), 0);
    assert_eq!(summary.nodes.len(), 1);
}

/// Their file systems may be other ones: this node tries what they could not move, and then asks them no more.
#[test]
fn what_another_node_cannot_move_is_moved_here() {
    let mut scene = Scene::new();
    scene.add_many(1500);
    scene.add("large", 300 << 20);
    let blind = OtherNode {
        rank: 1,
        from: &DirectoryTree,
        to: leak(FaultyTree::dying_after(0)),
        options: StageOptions::default(),
        orders_left: AtomicUsize::new(usize::MAX),
        dies_unheard: false,
        orders_done: Arc::default(),
        prepared: Mutex::default(),
    };
    let orders = Arc::clone(&blind.orders_done);
    let helpers = Helpers::new(vec![boxed(blind)]);
    let summary = scene.stage(&helpers, StageOptions::default());
    assert_eq!(summary.nodes.len(), 1);
    assert_eq!(summary.files, scene.files);
    assert!(orders.load(Ordering::Relaxed) > 0);
    assert_eq!(*helpers.lost.lock().unwrap(), [1]);
}

/// A file that changes between the walk and the copy is moved as it is then.
#[test]
fn a_file_that_has_changed_since_the_walk_is_moved_here() {
    let mut scene = Scene::new();
    scene.add_many(600);
    let source = scene.pair().source;
    let changing = source.clone();
    let is_done = AtomicBool::new(false);
    let change = move || {
        if !is_done.swap(true, Ordering::Relaxed) {
            for number in 0..600 {
                let path = changing.join(format!("d{}/{number}", number % 7));
                fs::write(path, "another content, longer than its name").unwrap();
            }
        }
    };
    let mover = OtherNode {
        rank: 1,
        from: leak(FaultyTree::used(Box::new(change), |_| false)),
        to: &DirectoryTree,
        options: StageOptions::default(),
        orders_left: AtomicUsize::new(usize::MAX),
        dies_unheard: false,
        orders_done: Arc::default(),
        prepared: Mutex::default(),
    };
    let helpers = Helpers::new(vec![boxed(mover)]);
    let progress = StageProgress::default();
    let options = StageOptions::default();
    let first = scene.stage_to(&DirectoryTree, &helpers, options, &progress);
    assert!(first.is_complete(), "{:?}", first.failed);
    // Those that were moved before.
    let again = scene.stage_to(&DirectoryTree, &Helpers::default(), options, &progress);
    assert!(again.is_complete(), "{:?}", again.failed);
    assert!(contents(&source) == contents(&scene.pair().target));
}

#[test]
fn a_node_that_refuses_is_not_waited_for() {
    let mut scene = Scene::new();
    scene.add_many(1000);
    let helpers = Helpers {
        ranks: vec![1, 2],
        news: Mutex::new(vec![MoverNews::Refused(1), MoverNews::Refused(2)]),
        ..Helpers::default()
    };
    let summary = scene.stage(&helpers, StageOptions::default());
    assert_eq!(summary.nodes.len(), 1);
    assert!(helpers.news.lock().unwrap().is_empty(), "it was heard");
}

/// A mover that answers something else than it was asked for.
#[derive(Debug, Default)]
struct Liar {
    is_asked: Arc<AtomicBool>,
}

impl FileMover for Liar {
    fn rank(&self) -> u16 {
        3
    }
    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles> {
        self.is_asked.store(true, Ordering::Relaxed);
        let mut moved = MovedFiles {
            copied: 1 << 60,
            ..MovedFiles::default()
        };
        let more = files.len() + 1;
        moved.files.resize_with(more, Default::default);
        Ok(moved)
    }
    fn move_piece(&self, _: &FilePiece) -> io::Result<Result<(), PieceFailure>> {
        self.is_asked.store(true, Ordering::Relaxed);
        Ok(Err(PieceFailure {
            reason: "no".to_owned(),
            is_target_full: false,
        }))
    }
}

#[test]
fn an_answer_to_something_else_is_a_loss() {
    let mut scene = Scene::new();
    scene.add_many(1000);
    scene.add("large", 300 << 20);
    let liar = Liar::default();
    let is_asked = Arc::clone(&liar.is_asked);
    let helpers = Helpers::new(vec![boxed(liar)]);
    // This node reads nothing before that: alone it might be done when the mover comes.
    let from = FaultyTree::used(Box::new(|| {}), |_| false).read_after(Box::new(move || {
        while !is_asked.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }));
    let summary = scene.stage_whole(&from, &helpers, StageOptions::default());
    assert_eq!((summary.files, summary.nodes.len()), (scene.files, 1));
    assert_eq!(*helpers.lost.lock().unwrap(), [3]);
}

/// A mover that does nothing until it is stopped, and then says what it has moved: one file.
#[derive(Debug, Default)]
struct Slow {
    has_begun: Arc<AtomicBool>,
    is_stopped: AtomicBool,
}

impl FileMover for Slow {
    fn rank(&self) -> u16 {
        1
    }
    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles> {
        let progress = StageProgress::default();
        let options = StageOptions::default();
        let mut moved = weir_mover::list::move_files(
            &DirectoryTree,
            &DirectoryTree,
            &files[..1],
            options,
            &progress,
        );
        self.has_begun.store(true, Ordering::Relaxed);
        while !self.is_stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        moved.stopped = true;
        moved.files.resize_with(files.len(), Default::default);
        Ok(moved)
    }
    fn move_piece(&self, _: &FilePiece) -> io::Result<Result<(), PieceFailure>> {
        unreachable!()
    }
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_stop_reaches_all_nodes_and_their_answers_count() {
    let mut scene = Scene::new();
    scene.add_many(1000);
    let slow = Slow::default();
    let has_begun = Arc::clone(&slow.has_begun);
    let mut helpers = Helpers::new(vec![boxed(slow)]);
    // One that never comes holds nothing up then.
    helpers.ranks.push(2);
    let progress = StageProgress::default();
    let stop = Arc::clone(&progress.stop);
    std::thread::spawn(move || {
        while !has_begun.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let summary = scene.stage_to(&DirectoryTree, &helpers, StageOptions::default(), &progress);
    assert!(summary.stopped && summary.failed.is_empty(), "{summary:?}");
    let of_slow = summary.nodes.iter().find(|node| node.server == 1);
    assert_eq!(of_slow.map(|node| node.files), Some(1));
    let again = scene.stage(&Helpers::default(), StageOptions::default());
    assert_eq!(again.unchanged, summary.files);
}

/// Files stay where they are written: what one node has no room for goes to others.
#[test]
fn what_has_no_room_here_goes_to_another_node() {
    for verify in [false, true] {
        let mut scene = Scene::new();
        scene.add_many(1000);
        scene.add("large", 400 << 20);
        let full = || FaultyTree::full_after(300);
        let full_mover = OtherNode {
            rank: 1,
            from: &DirectoryTree,
            to: leak(full()),
            options: StageOptions::default(),
            orders_left: AtomicUsize::new(usize::MAX),
            dies_unheard: false,
            orders_done: Arc::default(),
            prepared: Mutex::default(),
        };
        let lost = OtherNode {
            dies_unheard: verify,
            ..other(3, 2)
        };
        let last = other(2, usize::MAX);
        let helpers = Helpers::new(vec![boxed(full_mover), boxed(lost), boxed(last)]);
        let options = StageOptions {
            threads: 2,
            verify,
            ..StageOptions::default()
        };
        let progress = StageProgress::default();
        let summary = scene.stage_to(&full(), &helpers, options, &progress);
        assert!(summary.is_complete(), "{:?}", summary.failed);
        scene.check(&summary);
        assert!(summary.nodes.len() >= 3, "{summary:?}");
        let helpers = Helpers::new(vec![boxed(OtherNode {
            rank: 1,
            from: &DirectoryTree,
            to: leak(FaultyTree::full_after(0)),
            options,
            orders_left: AtomicUsize::new(usize::MAX),
            dies_unheard: false,
            orders_done: Arc::default(),
            prepared: Mutex::default(),
        })]);
        fs::remove_dir_all(scene.pair().target).unwrap();
        fs::create_dir(scene.pair().target).unwrap();
        let progress = StageProgress::default();
        let nowhere = FaultyTree::full_after(10);
        let summary = scene.stage_to(&nowhere, &helpers, options, &progress);
        assert!(summary.failed.len() > 900, "{}", summary.failed.len());
        assert!(summary.failed[0].reason.contains("No space left"));
        let failed = summary.failed.len() as u64;
        assert_eq!(summary.files + failed, scene.files);
    }
}

#[test]
fn looks_at_followed_sources_are_shared() {
    let mut scene = Scene::new();
    scene.add_many(400);
    let helpers = Helpers::new(vec![boxed(other(1, usize::MAX))]);
    let team = StageTeam::new(0, FilePlacement::Spread, &helpers);
    let mut sources = FollowedSources::new(StageOptions::default(), PathFilter::default());
    let progress = StageProgress::default();
    let pairs = [scene.pair()];
    let mut look = || {
        let tree = DirectoryTree;
        sources.look(&tree, &tree, &pairs, &progress, Some(&team))
    };
    assert_eq!((look(), look(), look()), (vec![], vec![], vec![]));
    for number in 400..800 {
        scene.add(&format!("d0/{number}"), 5);
    }
    assert_eq!((look(), look(), look()), (vec![], vec![], vec![]));
    let summary = sources.into_summary();
    scene.check(&summary);
    assert_eq!((summary.files, summary.unchanged), (800, 0));
    assert_eq!(helpers.invitations.into_inner(), 1);
    assert_eq!(summary.nodes.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn nodes_that_die_are_missed_by_nobody(
        small in 0..700_usize,
        middle in 0..6_u64,
        large in prop_oneof![Just(None), (260..400_u64).prop_map(Some)],
        deaths in proptest::collection::vec((0..6_usize, any::<bool>()), 1..4),
        fault in prop_oneof![Just(i64::MAX), 0..200_i64],
        threads in 1..4_usize,
        verify: bool,
    ) {
        let mut scene = Scene::new();
        scene.add_many(small);
        for number in 0..middle {
            scene.add(&format!("middle.{number}"), (1 + 30 * number) << 20);
        }
        if let Some(size) = large {
            scene.add("large", size << 20);
        }
        let options = StageOptions { threads, verify, ..StageOptions::default() };
        let movers = deaths.iter().zip(1..).map(|((orders, dies_unheard), rank)| {
            boxed(OtherNode {
                rank,
                from: &DirectoryTree,
                to: leak(FaultyTree::failing_once(fault, Errno::IO)),
                options,
                orders_left: AtomicUsize::new(*orders),
                dies_unheard: *dies_unheard,
                orders_done: Arc::default(),
                prepared: Mutex::default(),
            })
        });
        let helpers = Helpers::new(movers.collect());
        let summary = scene.stage(&helpers, options);
        let is_unheard = deaths.iter().any(|(_, dies_unheard)| *dies_unheard);
        prop_assert!(is_unheard || fault < i64::MAX || summary.files == scene.files);
    }

    /// The command is killed, or its target fails for good, while others move files; the next stage finishes.
    #[test]
    fn a_stage_that_dies_is_resumed(
        small in 250..700_usize,
        deaths in proptest::collection::vec(0..900_i64, 1..3),
        orders in 0..6_usize,
    ) {
        let mut scene = Scene::new();
        scene.add_many(small);
        scene.add("large", 260 << 20);
        for changes in deaths {
            let dying = FaultyTree::dying_after(changes);
            let helpers = Helpers::new(vec![boxed(other(1, orders))]);
            let progress = StageProgress::default();
            let options = StageOptions::default();
            let summary = scene.stage_to(&dying, &helpers, options, &progress);
            prop_assert_eq!(summary.is_complete(), !dying.has_failed());
            let (source, target) = (scene.pair().source, scene.pair().target);
            let wanted = contents(&source);
            for (name, node) in contents(Path::new(&target)) {
                prop_assert_eq!(wanted.get(&name), Some(&node), "{} is torn", name.display());
            }
        }
        scene.stage(&Helpers::new(vec![boxed(other(1, orders))]), StageOptions::default());
    }
}
