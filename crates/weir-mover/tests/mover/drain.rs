//! Rounds beside a program that writes, links, renames and removes: between rounds, and in the middle of
//! their walks and copies. After each change of the target:
//! - each file there is of a version that the program had closed;
//! - a loop of checkpoints finds its newest safe one;
//! - each file there, under a name that it had in the source, is of a version that the analyzers have seen, while they
//!   are there.
//!
//! In the end the target is as the source.

mod analyses;
mod analyst;
mod history;
mod names;
mod progress;
mod removals;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{symlink, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use self::analyst::{analyst_step, patterns, Analyst, AnalystStep};
use crate::faults::FaultyTree;
use crate::other_node::{leak, OtherNode};
use crate::parts::count_parts;
use crate::scratch::temporary_directory;
use crate::trees::{contents, TreeNode};
use proptest::prelude::*;
use rustix::io::Errno;
use weir_client::process::mounted::HistoryPosition;
use weir_mover::drain::{AnalysesLeft, AnalysisTable, Drain, DrainRound, OwnShare, PendingState};
use weir_mover::tree::{LostName, TreeHistory};
use weir_mover::{DirectoryTree, MoveSide, PathFilter, StageOptions, StageProgress, StageSummary};

/// No file has changed since.
const LONG_AGO: SystemTime = SystemTime::UNIX_EPOCH;

/// All files have not changed since.
fn now() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

/// A step of a program. Names are numbers.
#[derive(Clone, Debug)]
enum Step {
    /// Writes a whole file.
    Write(u8),
    /// Opens a file, and writes a part of a new version.
    Open(u8),
    /// Writes the rest of what is open, and closes it.
    Close,
    Remove(u8),
    Rename(u8, u8),
    /// Makes or changes a symbolic link.
    Link(u8, u8),
    MakeDirectory(u8),
    /// With all that is in it. Or what has its name.
    RemoveDirectory(u8),
    /// Gives a file or link the name of a directory.
    RenameToDirectory(u8, u8),
    RenameDirectory(u8, u8),
    /// Makes a directory a file, that a link to the other directory, and that a directory again.
    ChangeKind(u8),
    /// So many steps of [`Program::checkpoint`].
    Checkpoint(u8),
    /// So many steps of [`Program::swap`], in `history`.
    Swap(u8),
    /// So many steps of [`Program::progress`].
    Progress(u8),
    /// So many steps of [`Program::validity`].
    Validity(u8),
    /// One of the analyzers does something.
    Analyze(usize, AnalystStep),
}

fn analysis() -> impl Strategy<Value = Step> {
    (0..2_usize, analyst_step()).prop_map(|(analyst, step)| Step::Analyze(analyst, step))
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..6_u8;
    let dir = || 0..2_u8;
    prop_oneof![
        4 => name().prop_map(Step::Write),
        1 => name().prop_map(Step::Open),
        1 => Just(Step::Close),
        2 => name().prop_map(Step::Remove),
        2 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => (name(), name()).prop_map(|(link, to)| Step::Link(link, to)),
        2 => dir().prop_map(Step::MakeDirectory),
        1 => dir().prop_map(Step::RemoveDirectory),
        1 => (name(), dir()).prop_map(|(from, to)| Step::RenameToDirectory(from, to)),
        1 => (dir(), dir()).prop_map(|(from, to)| Step::RenameDirectory(from, to)),
        2 => dir().prop_map(Step::ChangeKind),
        6 => (1..12_u8).prop_map(Step::Checkpoint),
        12 => analysis(),
    ]
}

/// A program that works in a directory.
#[derive(Debug)]
struct Program {
    dir: PathBuf,
    /// Differs in each file that it writes, in the size too.
    version: usize,
    checkpoint_steps: usize,
    swap_steps: usize,
    progress_steps: usize,
    validity_steps: usize,
    open: Option<(PathBuf, File)>,
    /// The contents of all files that it has closed.
    closed: HashSet<Vec<u8>>,
    analysts: Vec<Analyst>,
    /// The contents of files by each name that they had, for the analyzers.
    named: HashSet<(PathBuf, Vec<u8>)>,
    /// The renames to other directories, and of directories.
    renames: u64,
    renamed_directories: Vec<u64>,
    lost_names: Vec<LostName>,
    /// All directories that it has made: so their inode numbers are not used again, as those of an instance.
    directories: Vec<File>,
}

impl Program {
    fn make_directory(&mut self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)?;
        self.directories.push(File::open(path)?);
        Ok(())
    }

    /// Names 0 and 1 are in the directory itself, the others in directories that may not be there, or be
    /// links to the other one: the tree of the test knows open files by their names.
    fn path(&self, name: u8) -> PathBuf {
        if name < 2 {
            return self.dir.join(format!("n{name}"));
        }
        let dir = |number: u8| self.dir.join(format!("d{number}"));
        let number = name % 2;
        let is_link = dir(number).is_symlink();
        dir(if is_link { 1 - number } else { number }).join(format!("n{name}"))
    }

    fn content(&mut self) -> Vec<u8> {
        self.version += 1;
        format!("{:0>1$}", self.version, 8 + self.version).into_bytes()
    }

    /// Does a step, if it can be done.
    fn act(&mut self, step: &Step) {
        self.take_step(step);
        self.note_names();
    }

    fn take_step(&mut self, step: &Step) {
        match *step {
            Step::Write(name) => {
                let content = self.content();
                let path = self.path(name);
                if self.open.as_ref().is_none_or(|(open, _)| *open != path)
                    && !path.is_symlink()
                    && fs::write(&path, &content).is_ok()
                {
                    self.closed.insert(content);
                }
            }
            Step::Open(name) => {
                let path = self.path(name);
                if self.open.is_none() && !path.is_symlink() {
                    let content = self.content();
                    let file = File::create(&path);
                    self.open = file.ok().map(|file| {
                        file.write_all_at(&content[..4], 0).unwrap();
                        (path, file)
                    });
                }
            }
            Step::Close => {
                if let Some((_, file)) = self.open.take() {
                    let content = self.content();
                    file.write_all_at(&content, 0).unwrap();
                    self.closed.insert(content);
                }
            }
            Step::Remove(name) => drop(self.remove(&self.path(name))),
            Step::Rename(from, to) => {
                let (from, to) = (self.path(from), self.path(to));
                // The tree of the test knows open files by their names.
                let is_open = |path: &Path| self.open.as_ref().is_some_and(|open| open.0 == *path);
                if !is_open(&from) && !is_open(&to) {
                    self.rename(&from, &to);
                }
            }
            Step::Link(link, to) => {
                let path = self.path(link);
                if path.symlink_metadata().is_err() || path.is_symlink() {
                    let beside = self.dir.join("link");
                    symlink(format!("n{to}"), &beside).unwrap();
                    if !self.rename(&beside, &path) {
                        self.remove(&beside).unwrap();
                    }
                }
            }
            Step::MakeDirectory(dir) => {
                drop(self.make_directory(&self.dir.join(format!("d{dir}"))));
            }
            Step::RemoveDirectory(dir) => {
                let path = self.dir.join(format!("d{dir}"));
                if self.remove_all(&path).is_err() && self.open.is_none() {
                    drop(self.remove(&path));
                }
            }
            Step::RenameToDirectory(from, to) => {
                let from = self.path(from);
                if self.open.is_none() {
                    self.rename(&from, &self.dir.join(format!("d{to}")));
                }
            }
            Step::RenameDirectory(from, to) => {
                let dir = |dir| self.dir.join(format!("d{dir}"));
                if self.open.is_none() {
                    self.rename(&dir(from), &dir(to));
                }
            }
            Step::ChangeKind(dir) => self.change_kind(dir),
            Step::Checkpoint(steps) => {
                for _ in 0..steps {
                    self.checkpoint();
                    self.note_names();
                }
            }
            Step::Swap(steps) => {
                for _ in 0..steps {
                    self.swap();
                }
            }
            Step::Progress(steps) => {
                for _ in 0..steps {
                    self.progress();
                }
            }
            Step::Validity(steps) => {
                for _ in 0..steps {
                    self.validity();
                }
            }
            Step::Analyze(analyst, step) => {
                let open = self.open.as_ref().map(|(path, _)| path.as_path());
                if let Some(analyst) = self.analysts.get_mut(analyst) {
                    analyst.act(step, open);
                }
            }
        }
    }

    /// Notes the names of files.
    fn note_names(&mut self) {
        if !self.analysts.is_empty() {
            let files = contents(&self.dir).into_iter();
            self.named
                .extend(files.filter_map(|(path, found)| match found {
                    TreeNode::File(content) => Some((path, content)),
                    _ => None,
                }));
        }
    }

    fn change_kind(&mut self, dir: u8) {
        let path = self.dir.join(format!("d{dir}"));
        if self.open.is_some() {
        } else if path.is_symlink() {
            self.remove(&path).unwrap();
            self.make_directory(&path).unwrap();
        } else if path.is_dir() {
            self.remove_all(&path).unwrap();
            let content = self.content();
            fs::write(&path, &content).unwrap();
            self.closed.insert(content);
        } else if path.is_file() {
            self.remove(&path).unwrap();
            symlink(format!("d{}", 1 - dir), &path).unwrap();
        }
    }

    /// A step in a loop of checkpoints: writes one in a directory, gives it its name, has `latest` lead to
    /// it, and removes the one before the last.
    fn checkpoint(&mut self) {
        let number = self.checkpoint_steps / CHECKPOINT_STEPS;
        let dir = |number: usize, end: &str| self.dir.join(format!("ckpt.{number}{end}"));
        let name = ["a", "b"][self.checkpoint_steps % 2];
        match self.checkpoint_steps % CHECKPOINT_STEPS {
            0 => {
                let dir = dir(number, ".tmp");
                self.make_directory(&dir).unwrap();
            }
            step @ (1 | 2) => {
                let content = checkpoint(number, step);
                fs::write(dir(number, ".tmp").join(name), &content).unwrap();
                self.closed.insert(content);
            }
            3 => {
                let (from, to) = (dir(number, ".tmp"), dir(number, ""));
                assert!(self.rename(&from, &to));
            }
            4 => symlink(format!("ckpt.{number}"), self.dir.join("next")).unwrap(),
            5 => fs::rename(self.dir.join("next"), self.dir.join("latest")).unwrap(),
            step => {
                if let Some(old) = number.checked_sub(2) {
                    let old = dir(old, "");
                    match step {
                        8 => fs::remove_dir(old).unwrap(),
                        _ => self.remove(&old.join(name)).unwrap(),
                    }
                }
            }
        }
        self.checkpoint_steps += 1;
    }
}

const CHECKPOINT_STEPS: usize = 9;

fn checkpoint(number: usize, step: usize) -> Vec<u8> {
    format!("checkpoint {number:0>width$}", width = 2 * number + step).into_bytes()
}

/// True if the program has begun to remove a checkpoint.
fn is_being_removed(number: usize, program: &Program) -> bool {
    let begun = (number + 2) * CHECKPOINT_STEPS + 6;
    program.checkpoint_steps > begun
}

/// The past states of a target.
#[derive(Debug, Default)]
struct TargetHistory {
    has_checkpoint: bool,
    /// The checkpoints that had their names and were whole.
    whole: HashSet<usize>,
    /// The newest generation of [`Program::swap`].
    swapped: Option<usize>,
}

/// Checks a target after a change.
fn check(target: &Path, program: &Program, had: &mut TargetHistory) -> Result<(), String> {
    let contents = contents(target);
    let is_file = |path: PathBuf| matches!(contents.get(&path), Some(TreeNode::File(_)));
    for (path, found) in &contents {
        if matches!(found, TreeNode::File(content) if !program.closed.contains(content)) {
            return Err(format!("{} is torn", path.display()));
        }
        // A renamed directory may have its old name here, with the files that it has got since.
        let is_name = |content: &Vec<u8>| program.named.contains(&(path.clone(), content.clone()));
        if let TreeNode::File(content) = found {
            let mut analysts = program.analysts.iter();
            analysts.try_for_each(|analyst| match is_name(content) {
                true => analyst.check(path, content),
                false => Ok(()),
            })?;
        }
    }
    let is_whole = |path: &Path| is_file(path.join("a")) && is_file(path.join("b"));
    let is_checkpoint = |path: &&PathBuf| {
        let name = path.to_string_lossy();
        name.starts_with("ckpt.") && !name.ends_with(".tmp") && is_whole(path)
    };
    let is_there = contents.keys().any(|path| is_checkpoint(&path));
    if had.has_checkpoint && !is_there {
        return Err("no checkpoint is left".to_owned());
    }
    had.has_checkpoint = is_there;
    history::check_generations(&contents, &mut had.swapped)?;
    progress::check_progress(&contents)?;
    removals::check_validity(&contents)?;
    for (path, found) in &contents {
        let number = path.to_str().and_then(|name| name.strip_prefix("ckpt."));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let has = |name: &str| {
            let found = contents.get(&path.join(name));
            let mut files = [1, 2]
                .map(|step| TreeNode::File(checkpoint(number, step)))
                .into_iter();
            files.any(|file| found == Some(&file))
        };
        let is_whole = has("a") && has("b");
        if *found == TreeNode::Directory && !is_whole && !is_being_removed(number, program) {
            return Err(format!("{} is not whole: {contents:?}", path.display()));
        }
        if is_whole {
            had.whole.insert(number);
        }
    }
    // The program has `latest` lead to another one before it removes one.
    let latest = history::latest(target);
    let is_needed = |number: &usize| latest.is_none_or(|latest| number + 2 > latest);
    let mut needed = had.whole.iter().filter(|number| is_needed(number));
    let is_lost = |number: &&usize| !is_whole(Path::new(&format!("ckpt.{number}")));
    if let Some(lost) = needed.find(is_lost) {
        return Err(format!("ckpt.{lost} is gone before its time: {contents:?}"));
    }
    match contents.get(Path::new("latest")) {
        Some(TreeNode::Link(latest)) if !is_whole(latest) => {
            Err(format!("latest leads to {}", latest.display()))
        }
        _ => Ok(()),
    }
}

/// The steps that come, each with the number of looks at the source before it.
type Steps = VecDeque<(u8, Step)>;

/// A program at work, and the drain of its directory.
struct Scene {
    _dir: tempfile::TempDir,
    source: PathBuf,
    target: PathBuf,
    program: Arc<Mutex<Program>>,
    steps: Arc<Mutex<Steps>>,
    from: FaultyTree,
    to: FaultyTree,
    /// Held while the target changes, and is checked.
    changing: Arc<Mutex<()>>,
    /// The first check of the target that failed.
    wrong: Arc<Mutex<Result<(), String>>>,
    had: Arc<Mutex<TargetHistory>>,
}

impl Scene {
    /// The program writes and closes so many files.
    fn close_files(&self, count: u32) {
        let mut program = self.program.lock().unwrap();
        for number in 0..count {
            let content = program.content();
            fs::write(self.source.join(number.to_string()), &content).unwrap();
            program.closed.insert(content);
        }
    }

    fn new(to: FaultyTree) -> Scene {
        let dir = temporary_directory();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        let program = Arc::new(Mutex::new(Program {
            dir: source.clone(),
            version: 0,
            checkpoint_steps: 0,
            swap_steps: 0,
            progress_steps: 0,
            validity_steps: 0,
            open: None,
            closed: HashSet::new(),
            analysts: Vec::new(),
            named: HashSet::new(),
            renames: 0,
            renamed_directories: Vec::new(),
            lost_names: Vec::new(),
            directories: Vec::new(),
        }));
        let steps = Arc::new(Mutex::new(VecDeque::new()));
        let from = used_tree(&steps, &program);
        let wrong = Arc::new(Mutex::new(Ok(())));
        let mut scene = Scene {
            _dir: dir,
            source,
            target,
            program,
            steps,
            from,
            to: FaultyTree::failing_once(i64::MAX, Errno::IO),
            changing: Arc::default(),
            wrong,
            had: Arc::default(),
        };
        scene.renew_target(to);
        scene
    }

    /// Has another tree change the target from now on.
    fn renew_target(&mut self, to: FaultyTree) {
        let (program, target) = (Arc::clone(&self.program), self.target.clone());
        let (wrong, had) = (Arc::clone(&self.wrong), Arc::clone(&self.had));
        let to = to.locked(&self.changing);
        self.to = to.checked(Box::new(move || {
            let checked = check(&target, &program.lock().unwrap(), &mut had.lock().unwrap());
            let mut wrong = wrong.lock().unwrap();
            if wrong.is_ok() {
                *wrong = checked;
            }
        }));
    }

    fn drain(&self) -> Drain<'_, FaultyTree, FaultyTree> {
        Drain::new(
            MoveSide::new(&self.from, &self.source),
            MoveSide::new(&self.to, &self.target),
            PathFilter::default(),
        )
    }

    fn other_node(&self, orders: usize) -> OtherNode<FaultyTree, FaultyTree> {
        let options = StageOptions {
            closed_only: true,
            ..StageOptions::default()
        };
        let from = used_tree(&self.steps, &self.program);
        let to = FaultyTree::failing_once(i64::MAX, Errno::IO).locked(&self.changing);
        OtherNode::with_target(from, leak(to), orders, options)
    }

    /// Has analyzers want files of these patterns.
    fn analyze(&self, patterns: &[Vec<String>]) -> Arc<AnalysisTable> {
        let table = Arc::<AnalysisTable>::default();
        let mut program = self.program.lock().unwrap();
        for (id, patterns) in (0..).zip(patterns) {
            let analyst = Analyst::new(id, &table, patterns, &self.source);
            program.analysts.push(analyst);
        }
        table
    }

    /// Has the analyzers analyse all that is queued.
    fn analyze_all(&self) {
        let mut program = self.program.lock().unwrap();
        program.analysts.iter_mut().for_each(Analyst::catch_up);
    }

    fn act(&self, step: &Step) {
        self.program.lock().unwrap().act(step);
    }

    /// Has the program write a whole file.
    fn write(&self, path: &Path) {
        let mut program = self.program.lock().unwrap();
        let content = program.content();
        fs::write(path, &content).unwrap();
        program.closed.insert(content);
    }

    /// Ends the program.
    fn end_program(&self) {
        for (_, step) in self.steps.lock().unwrap().drain(..) {
            self.act(&step);
        }
        self.act(&Step::Close);
    }
}

fn round(drain: &mut Drain<'_, FaultyTree, FaultyTree>, settled: SystemTime) -> DrainRound {
    drain.round(settled, 1, &StageProgress::default())
}

fn finish(drain: &mut Drain<'_, FaultyTree, FaultyTree>) -> StageSummary {
    drain.finish(StageOptions::default(), &StageProgress::default())
}

/// A source that is read here once another node has done something, so that there is something left for it.
fn read_after_other(from: FaultyTree, done: &Arc<AtomicUsize>) -> FaultyTree {
    let done = Arc::clone(done);
    from.read_after(Box::new(move || {
        while done.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }))
}

/// A source that this program uses.
fn used_tree(steps: &Arc<Mutex<Steps>>, program: &Arc<Mutex<Program>>) -> FaultyTree {
    let (steps, acting) = (Arc::clone(steps), Arc::clone(program));
    let act = move || act_in_time(&steps, &acting);
    let (program, renaming) = (Arc::clone(program), Arc::clone(program));
    let tree = FaultyTree::used(Box::new(act), move |path| {
        let program = program.lock().unwrap();
        program.open.as_ref().is_some_and(|open| open.0 == path)
    });
    tree.with_history(move |known| renaming.lock().unwrap().tell_history(known))
}

/// Takes the next step, if enough looks came before it.
fn act_in_time(steps: &Mutex<Steps>, program: &Mutex<Program>) {
    let mut steps = steps.lock().unwrap();
    let Some((looks, step)) = steps.front_mut() else {
        return;
    };
    if *looks > 0 {
        *looks -= 1;
    } else {
        program.lock().unwrap().act(step);
        steps.pop_front();
    }
}

/// A round, with the steps of the program before it and, after as many looks at the source, in it.
#[derive(Clone, Debug)]
struct Work {
    before: Vec<Step>,
    meanwhile: Vec<(u8, Step)>,
    is_settled: bool,
}

fn work() -> impl Strategy<Value = Work> {
    use proptest::collection::vec;
    let meanwhile = vec((0..20_u8, step()), 0..6);
    (vec(step(), 0..4), meanwhile, any::<bool>()).prop_map(|(before, meanwhile, is_settled)| Work {
        before,
        meanwhile,
        is_settled,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rounds_keep_to_what_programs_have_written(
        rounds in proptest::collection::vec(work(), 1..12),
        fault in prop_oneof![Just(i64::MAX), 0..60_i64],
        movers in proptest::collection::vec(0..6_usize, 0..3),
        analysts in proptest::collection::vec(patterns(), 0..3),
    ) {
        let scene = Scene::new(FaultyTree::failing_once(fault, Errno::NOSPC));
        let mut drain = scene.drain();
        let table = scene.analyze(&analysts);
        drain.hold_for_analysis(Arc::clone(&table));
        for lists in movers {
            drain.add_mover(Box::new(scene.other_node(lists)));
        }
        for work in rounds {
            work.before.iter().for_each(|step| scene.act(step));
            scene.steps.lock().unwrap().extend(work.meanwhile);
            let settled = if work.is_settled { now() } else { LONG_AGO };
            round(&mut drain, settled);
            prop_assert_eq!(&*scene.wrong.lock().unwrap(), &Ok(()));
        }
        scene.end_program();
        for _ in 0..30 {
            scene.analyze_all();
            let progress = StageProgress::default();
            let last = drain.round_at_end(false, 1, &progress);
            prop_assert_eq!(&*scene.wrong.lock().unwrap(), &Ok(()));
            if last.pending.is_empty() && last.names_due.is_empty() {
                break;
            }
        }
        // No change of names waits for a file that waits for it.
        let last = drain.round_at_end(false, 1, &StageProgress::default());
        prop_assert_eq!(drain.left_for_analysis(&last), AnalysesLeft::None);
        prop_assert_eq!((&last.pending, last.names_due), (&vec![], vec![]));
        table.close();
        // A rename of a program in the last moment is moved without an analysis.
        scene.program.lock().unwrap().analysts.clear();
        let mut summary = finish(&mut drain);
        if !summary.is_complete() && scene.to.has_failed() {
            summary = finish(&mut drain);
        }
        prop_assert_eq!(&*scene.wrong.lock().unwrap(), &Ok(()));
        prop_assert_eq!(&summary.failed, &[]);
        let (mut source, mut target) = (contents(&scene.source), contents(&scene.target));
        if count_parts(&scene.target) > 0 {
            // Even its removal failed, and it keeps its directory there.
            prop_assert!(scene.to.has_failed());
            source.retain(|_, found| *found != TreeNode::Directory);
            target.retain(|_, found| *found != TreeNode::Directory);
        }
        prop_assert_eq!(source, target);
    }
}

#[test]
fn three_rounds_bring_a_quiet_tree_up_to_date() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    for _ in 0..5 {
        scene.act(&Step::Checkpoint(9));
        round(&mut drain, now());
    }
    scene.act(&Step::MakeDirectory(1));
    scene.act(&Step::Write(3));
    for _ in 0..2 {
        round(&mut drain, now());
    }
    let last = round(&mut drain, now());
    assert_eq!(last.pending, []);
    assert_eq!((last.files, last.names, last.names_due), (0, 0, vec![]));
    assert_eq!(last.safe_files, 5);
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

#[test]
fn rounds_bring_what_has_become_something_else() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    scene.act(&Step::MakeDirectory(0));
    scene.act(&Step::MakeDirectory(1));
    scene.act(&Step::Write(2));
    for _ in 0..4 {
        for _ in 0..4 {
            round(&mut drain, now());
        }
        let last = round(&mut drain, now());
        assert_eq!((last.pending, last.names_due), (vec![], vec![]));
        assert_eq!(contents(&scene.source), contents(&scene.target));
        scene.act(&Step::ChangeKind(0));
    }
}

/// A link that leads to nothing in the source, too, is no reason to wait.
#[test]
fn what_a_dangling_link_leads_to_is_removed() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    scene.act(&Step::Write(1));
    scene.act(&Step::Link(0, 1));
    for _ in 0..3 {
        round(&mut drain, now());
    }
    scene.act(&Step::Remove(1));
    for _ in 0..2 {
        round(&mut drain, now());
    }
    assert!(round(&mut drain, now()).names_due.is_empty());
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

#[test]
fn a_file_that_is_open_or_was_just_written_waits() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    scene.act(&Step::Open(0));
    scene.act(&Step::Write(1));
    let first = round(&mut drain, LONG_AGO);
    assert_eq!(states(first), [PendingState::Open, PendingState::Waiting]);
    assert_eq!(states(round(&mut drain, now())), [PendingState::Open]);
    scene.act(&Step::Close);
    assert_eq!(states(round(&mut drain, now())), []);
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

/// The user's own files in the target are not ours to remove, though the program removes its copies.
#[test]
fn files_that_were_there_stay() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.act(&Step::MakeDirectory(0));
    scene.act(&Step::Write(0));
    scene.act(&Step::Write(2));
    scene.act(&Step::Link(1, 0));
    finish(&mut scene.drain());
    let before = contents(&scene.target);
    let mut drain = scene.drain();
    round(&mut drain, now());
    scene.act(&Step::Remove(0));
    scene.act(&Step::Remove(1));
    scene.act(&Step::RemoveDirectory(0));
    for _ in 0..3 {
        round(&mut drain, now());
    }
    finish(&mut drain);
    assert_eq!(contents(&scene.target), before);
}

/// A file of ours that somebody else changed is theirs.
#[test]
fn a_changed_file_is_not_removed() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    scene.act(&Step::Write(0));
    round(&mut drain, now());
    scene.act(&Step::Remove(0));
    let theirs = b"theirs".to_vec();
    scene.program.lock().unwrap().closed.insert(theirs.clone());
    fs::write(scene.target.join("n0"), &theirs).unwrap();
    for _ in 0..3 {
        round(&mut drain, now());
    }
    assert!(finish(&mut drain).is_complete());
    assert_eq!(
        contents(&scene.target)[Path::new("n0")],
        TreeNode::File(theirs)
    );
}

/// A program that never rests does not hold its names back for long; a file that it writes behind its directories does for
/// some rounds, and so do the removals that come after that one.
#[test]
fn names_follow_a_program_that_never_rests() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    let mut fewest = usize::MAX;
    for turn in 0..60 {
        scene.act(&Step::Checkpoint(9));
        scene.act(&Step::Write(0));
        scene.steps.lock().unwrap().push_back((20, Step::Write(1)));
        round(&mut drain, LONG_AGO);
        scene.act(&Step::Remove(0));
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
        let there = contents(&scene.target);
        let is_checkpoint = |path: &&PathBuf| path.to_string_lossy().starts_with("ckpt");
        let nodes = there.keys().filter(is_checkpoint).count();
        assert!(nodes <= 3 * 30, "{there:?}");
        if turn >= 30 {
            let latest = history::latest(&scene.target);
            assert!(
                latest.is_some_and(|latest| latest + 16 > turn),
                "{latest:?}"
            );
            fewest = fewest.min(nodes);
        }
    }
    assert!(fewest <= 3 * 5, "{fewest}");
}

#[test]
fn paths_that_are_not_chosen_stay() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let owned = |pattern: &str| vec![pattern.to_owned()];
    let filter = PathFilter::new(&owned("/{n*,d0/*}"), &owned("/d0/n4")).unwrap();
    let from = MoveSide::new(&scene.from, &scene.source);
    let to = MoveSide::new(&scene.to, &scene.target);
    let mut drain = Drain::new(from, to, filter);
    for dir in 0..2 {
        scene.act(&Step::MakeDirectory(dir));
    }
    for name in 0..6 {
        scene.act(&Step::Write(name));
    }
    round(&mut drain, now());
    scene.act(&Step::Write(2));
    scene.act(&Step::Write(4));
    assert!(finish(&mut drain).is_complete());
    let moved = contents(&scene.target);
    let files = moved
        .iter()
        .filter(|(_, node)| **node != TreeNode::Directory);
    let files: Vec<_> = files.map(|(path, _)| path.to_str().unwrap()).collect();
    assert_eq!(files, ["d0/n2", "n0", "n1"]);
    assert_eq!(
        moved[Path::new("d0/n2")],
        contents(&scene.source)[Path::new("d0/n2")]
    );
}

#[test]
fn other_nodes_take_their_share() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let other = scene.other_node(usize::MAX);
    let lists = Arc::clone(&other.orders_done);
    scene.from = read_after_other(scene.from, &lists);
    let mut drain = scene.drain();
    drain.add_mover(Box::new(other));
    scene.close_files(600);
    let first = round(&mut drain, now());
    assert_eq!((first.files, first.pending), (600, vec![]));
    assert!(lists.load(Ordering::Relaxed) > 0);
    assert!(finish(&mut drain).is_complete());
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

#[test]
fn a_list_of_a_mover_that_dies_is_moved_again() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    drain.add_mover(Box::new(OtherNode {
        dies_unheard: true,
        ..scene.other_node(1)
    }));
    scene.act(&Step::Checkpoint(9));
    let first = round(&mut drain, now());
    assert_eq!(first.files, 2);
    round(&mut drain, now());
    // The directory has its name.
    let last = round(&mut drain, now());
    assert_eq!((last.pending, last.safe_files), (vec![], 2));
    assert!(finish(&mut drain).is_complete());
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

#[test]
fn a_process_beside_programs_copies_only_what_movers_leave() {
    for (orders, is_own_expected) in [(usize::MAX, false), (1, true)] {
        let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let reads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reads);
        scene.from = scene.from.read_after(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let mut drain = scene.drain();
        drain.set_share(OwnShare::Rest);
        drain.add_mover(Box::new(scene.other_node(orders)));
        scene.close_files(600);
        // If a mover is lost before it has named its files, the next round copies them again.
        let rounds = if is_own_expected { 2 } else { 1 };
        let rounds: Vec<_> = (0..rounds).map(|_| round(&mut drain, now())).collect();
        assert_eq!(rounds.iter().map(|round| round.files).sum::<u64>(), 600);
        assert_eq!(rounds.last().unwrap().pending, vec![]);
        large_file(&scene.source.join("large"), b"first");
        let second = round(&mut drain, now());
        assert_eq!((second.files, second.pending), (1, vec![]));
        let has_read = reads.load(Ordering::Relaxed) > 0;
        assert_eq!(has_read, is_own_expected);
        assert!(finish(&mut drain).is_complete());
        assert!(is_large_file(&scene.target.join("large"), b"first"));
        fs::remove_file(scene.source.join("large")).unwrap();
        fs::remove_file(scene.target.join("large")).unwrap();
        assert_eq!(contents(&scene.source), contents(&scene.target));
    }
}

/// The states of files that are not safe.
fn states(round: DrainRound) -> Vec<PendingState> {
    round.pending.into_iter().map(|file| file.state).collect()
}

/// A file with data at its ends and in its middle.
fn large_file(path: &Path, mark: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(1 << 30).unwrap();
    for at in [0, (512 << 20) - 3, (1 << 30) - 100] {
        file.write_all_at(mark, at).unwrap();
    }
}

fn is_large_file(path: &Path, mark: &[u8]) -> bool {
    let file = File::open(path).unwrap();
    let mut read = vec![0; mark.len()];
    let mut is_marked = |at| file.read_exact_at(&mut read, at).is_ok() && read == mark;
    file.metadata().unwrap().len() == 1 << 30
        && [0, (512 << 20) - 3, (1 << 30) - 100]
            .into_iter()
            .all(&mut is_marked)
}

#[test]
fn a_large_file_is_copied_by_all_and_by_those_that_are_left() {
    for pieces in [usize::MAX, 2, 0] {
        let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let other = scene.other_node(pieces);
        let done = Arc::clone(&other.orders_done);
        let from = match pieces {
            0 => scene.from,
            _ => read_after_other(scene.from, &done),
        };
        let mut drain = Drain::new(
            MoveSide::new(&from, &scene.source),
            MoveSide::new(&DirectoryTree, &scene.target),
            PathFilter::default(),
        );
        drain.add_mover(Box::new(other));
        large_file(&scene.source.join("large"), b"first");
        let progress = StageProgress::default();
        let first = drain.round(now(), 1, &progress);
        assert_eq!((first.files, first.pending), (1, vec![]));
        assert!(is_large_file(&scene.target.join("large"), b"first"));
        assert!(done.load(Ordering::Relaxed) > 0 || pieces == 0);
        let again = drain.round(now(), 1, &progress);
        assert_eq!((again.files, again.pending), (0, vec![]));
        large_file(&scene.source.join("large"), b"other");
        assert!(drain
            .finish(StageOptions::default(), &progress)
            .is_complete());
        assert!(is_large_file(&scene.target.join("large"), b"other"));
        assert_eq!(count_parts(&scene.target), 0);
    }
}

/// A round that makes way for another one begins no more files, and finishes the one that it copies; the next one goes on.
#[test]
fn a_round_that_yields_finishes_what_it_has_begun() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.close_files(100);
    let progress = Arc::new(StageProgress::default());
    let reading = Arc::clone(&progress);
    let from = FaultyTree::used(Box::new(|| ()), |_| false);
    scene.from = from.read_after(Box::new(move || {
        reading.yields.store(true, Ordering::Relaxed);
    }));
    let mut drain = scene.drain();
    let yielded = drain.round(now(), 1, &progress);
    assert_eq!((yielded.files, yielded.is_cut), (1, true));
    assert_eq!(yielded.pending.len(), 99);
    assert!(yielded
        .pending
        .iter()
        .all(|file| file.state == PendingState::Waiting));
    assert_eq!(round(&mut drain, now()).files, 99);
    assert_eq!(contents(&scene.source), contents(&scene.target));
}
