//! Programs that say in a file what they have written before: `progress` in a file that they write again, `done` in one that
//! they rename over the last one, `dirs` for directories that they have renamed. Whenever the drain is killed, each says only
//! what the target has. A seed replays a run: `WEIR_PROGRESS_SEED=7 cargo test -p weir-mover --test mover progress`.

use super::history::Dice;
use super::names::await_tick;
use super::*;
use weir_mover::drain::NameOrder;
use weir_mover::tree::FileTree;

/// The steps of a turn of [`Program::progress`].
const STEPS: usize = 10;

/// Larger than what says that it is there: the clock of this machine's file systems does not tell two files apart that
/// are written at once, and then the larger one goes first.
pub fn data(number: usize, name: &str) -> Vec<u8> {
    format!("{name} {number:0>width$}", width = 300 + number).into_bytes()
}

pub fn mark(number: usize) -> Vec<u8> {
    format!("{number:0>width$}", width = 4 + number).into_bytes()
}

/// The files that a mark stands for.
fn marked(mark: &str, number: usize) -> Vec<(PathBuf, Vec<u8>)> {
    match mark {
        "progress" => ["a", "b"]
            .map(|name| (format!("set.{number}.{name}").into(), data(number, name)))
            .into(),
        "done" => vec![(format!("one.{number}").into(), data(number, "one"))],
        _ => vec![(format!("dir.{number}/file").into(), data(number, "file"))],
    }
}

impl Program {
    /// A step in a loop that writes files, marks that it has, and removes those of the turn before the last.
    pub(super) fn progress(&mut self) {
        let number = self.progress_steps / STEPS;
        let path = |name: String| self.dir.join(name);
        let mut write = |path: PathBuf, content: Vec<u8>| {
            fs::write(path, &content).unwrap();
            self.closed.insert(content);
        };
        match self.progress_steps % STEPS {
            step @ (0 | 1) => {
                let name = ["a", "b"][step];
                write(path(format!("set.{number}.{name}")), data(number, name));
            }
            2 => write(path("progress".to_owned()), mark(number)),
            3 => write(path(format!("one.{number}")), data(number, "one")),
            4 => {
                let new = path("done.tmp".to_owned());
                write(new.clone(), mark(number));
                assert!(self.rename(&new, &self.dir.join("done")));
            }
            5 => {
                let dir = path(format!("dir.{number}.tmp"));
                self.make_directory(&dir).unwrap();
                self.write_closed(&dir.join("file"), data(number, "file"));
            }
            6 => {
                let (from, to) = (
                    path(format!("dir.{number}.tmp")),
                    path(format!("dir.{number}")),
                );
                assert!(self.rename(&from, &to));
            }
            7 => write(path("dirs".to_owned()), mark(number)),
            8 => {
                if let Some(old) = number.checked_sub(2) {
                    for (path, _) in ["progress", "done"]
                        .iter()
                        .flat_map(|mark| marked(mark, old))
                    {
                        self.remove(&self.dir.join(path)).unwrap();
                    }
                }
            }
            _ => {
                if let Some(old) = number.checked_sub(2) {
                    self.remove_all(&path(format!("dir.{old}"))).unwrap();
                }
            }
        }
        self.progress_steps += 1;
    }

    pub(super) fn write_closed(&mut self, path: &Path, content: Vec<u8>) {
        fs::write(path, &content).unwrap();
        self.closed.insert(content);
    }
}

/// The turn that a file of the target says; `None`: it says nothing yet.
pub fn said(mark: &str, contents: &BTreeMap<PathBuf, TreeNode>) -> Option<usize> {
    match contents.get(Path::new(mark))? {
        TreeNode::File(content) => std::str::from_utf8(content).ok()?.parse().ok(),
        other => panic!("{mark} is {other:?}"),
    }
}

/// Checks that what the marks of [`Program::progress`] say is there.
pub fn check_progress(contents: &BTreeMap<PathBuf, TreeNode>) -> Result<(), String> {
    for mark in ["progress", "done", "dirs"] {
        let Some(number) = said(mark, contents) else {
            continue;
        };
        for (path, content) in marked(mark, number) {
            if contents.get(&path) != Some(&TreeNode::File(content)) {
                let names: Vec<_> = contents.keys().collect();
                return Err(format!(
                    "{mark} says {number}: no {}: {names:?}",
                    path.display()
                ));
            }
        }
    }
    Ok(())
}

impl Scene {
    /// Draws a round with steps of the program before it and in it, and at least so many rounds after it.
    pub(super) fn draw_rounds(
        &self,
        drain: &mut Drain<'_, FaultyTree, FaultyTree>,
        dice: &mut Dice,
        steps: fn(u8) -> Step,
        later_rounds: u64,
    ) {
        for _ in 0..dice.below(8) {
            self.act(&steps(1));
        }
        let count = dice.below(4);
        let meanwhile = (0..count).map(|_| {
            let number = u8::try_from(1 + dice.below(4)).unwrap();
            (u8::try_from(dice.below(30)).unwrap(), steps(number))
        });
        let meanwhile: Vec<_> = meanwhile.collect();
        self.steps.lock().unwrap().extend(meanwhile);
        let settled = match dice.below(2) {
            0 => SystemTime::UNIX_EPOCH + self.from.now(),
            _ => LONG_AGO,
        };
        round(drain, settled);
        let left: Vec<_> = self.steps.lock().unwrap().drain(..).collect();
        for (_, step) in &left {
            self.act(step);
        }
        for _ in 0..later_rounds + dice.below(3) {
            round(drain, LONG_AGO);
        }
    }
}

/// Returns the number of times that a mark was found on the target.
fn run(seed: u64) -> usize {
    let mut found = 0;
    let mut dice = Dice::new(seed);
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.from = used_tree(&scene.steps, &scene.program).with_ticks();
    let movers = dice.below(3);
    for _ in 0..=dice.below(5) {
        scene.renew_target(match dice.below(3) {
            0 => FaultyTree::failing_once(i64::try_from(dice.below(150)).unwrap(), Errno::NOSPC),
            _ => FaultyTree::dying_after(i64::try_from(dice.below(150)).unwrap()),
        });
        let mut drain = scene.drain();
        for _ in 0..movers {
            let orders = usize::try_from(dice.below(60)).unwrap();
            drain.add_mover(Box::new(scene.other_node(orders)));
        }
        for _ in 0..=dice.below(12) {
            // A loop that is faster than the looks waits for its directories now and then in vain.
            scene.draw_rounds(&mut drain, &mut dice, Step::Progress, 2);
            assert_eq!(*scene.wrong.lock().unwrap(), Ok(()), "seed {seed}");
            let there = contents(&scene.target);
            let marks = ["progress", "done", "dirs"].into_iter();
            found += marks.filter(|mark| said(mark, &there).is_some()).count();
        }
    }
    scene.end_program();
    scene.renew_target(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.finish_whole(&mut scene.drain(), seed);
    found
}

#[test]
fn what_files_say_of_others_holds_on_the_target() {
    let seed = std::env::var("WEIR_PROGRESS_SEED").ok();
    match seed.map(|seed| seed.parse().unwrap()) {
        Some(seed) => drop(run(seed)),
        None => assert!((0..60).map(run).sum::<usize>() > 400),
    }
}

/// A file that is written again before, in and after each look is on the target in versions that speak of what is there, and
/// keeps up with the program.
#[test]
fn a_mark_that_changes_all_the_time_keeps_up_with_what_it_speaks_of() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let program = Arc::clone(&scene.program);
    let turns = Arc::new(AtomicUsize::new(0));
    let turn = Arc::clone(&turns);
    let from = FaultyTree::used(Box::new(|| ()), |_| false).with_ticks();
    // A look begins and ends with this question.
    scene.from = from.with_history(move |known| {
        let mut program = program.lock().unwrap();
        let number = turn.fetch_add(1, Ordering::Relaxed);
        let path = |name: &str| program.dir.join(name);
        let (set, progress) = (
            ["a", "b"].map(|name| (path(&format!("set.{number}.{name}")), data(number, name))),
            path("progress"),
        );
        let old = number
            .checked_sub(9)
            .map(|old| ["a", "b"].map(|name| path(&format!("set.{old}.{name}"))));
        for (path, content) in set {
            program.write_closed(&path, content);
        }
        await_tick();
        program.write_closed(&progress, mark(number));
        await_tick();
        for old in old.iter().flatten() {
            program.remove(old).unwrap();
        }
        program.tell_history(known)
    });
    let mut drain = scene.drain();
    for _ in 0..8 {
        round(&mut drain, now());
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
    }
    let turns = turns.load(Ordering::Relaxed);
    let said = said("progress", &contents(&scene.target));
    assert!(
        said.is_some_and(|said| said + 6 > turns),
        "{said:?} of {turns}"
    );
}

/// Without an order small files are there first: what this test checks is not so by chance.
#[test]
fn without_an_order_small_files_come_first() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    for _ in 0..3 {
        scene.act(&Step::Progress(1));
    }
    let mut drain = scene.drain();
    drain.set_order(NameOrder::None);
    round(&mut drain, now());
    let wrong = scene.wrong.lock().unwrap().clone();
    assert!(wrong.is_err_and(|wrong| wrong.starts_with("progress says 0: no set.0.a")));
}

/// A program that marks each checkpoint by a file of its own keeps no more checkpoints on the target than a few, also if
/// each look finds a new one.
#[test]
fn removals_follow_files_that_wait_for_directories() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    for turn in 0..40_u32 {
        scene.act(&Step::Checkpoint(9));
        scene.write(&scene.source.join(format!("done.{turn}")));
        if let Some(old) = turn.checked_sub(2) {
            scene.remove(&scene.source.join(format!("done.{old}")));
        }
        round(&mut drain, now());
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
        let there = contents(&scene.target);
        let is_of_checkpoint = |path: &&PathBuf| path.to_string_lossy().starts_with("ckpt");
        let nodes = there.keys().filter(is_of_checkpoint).count();
        assert!(nodes <= 3 * 8, "turn {turn}: {there:?}");
    }
    assert_eq!(finish(&mut drain).failed, []);
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

/// A file that cannot be moved does not hold back others for long which programs rename when they have written them.
#[test]
fn renamed_files_do_not_wait_for_one_that_fails() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    fs::create_dir(scene.target.join("foreign")).unwrap();
    scene.write(&scene.source.join("foreign"));
    scene.write(&scene.source.join("written.tmp"));
    for _ in 0..6 {
        round(&mut drain, now());
    }
    assert!(scene.target.join("written.tmp").exists());
    let [from, to] = ["written.tmp", "written"].map(|name| scene.source.join(name));
    assert!(scene.program.lock().unwrap().rename(&from, &to));
    for _ in 0..6 {
        round(&mut drain, now());
    }
    assert!(scene.target.join("written").exists());
}

/// A file that was moved gets its new name in turn, if it was renamed between the writes of two others: the second may speak
/// of it.
#[test]
fn a_renamed_file_has_its_name_before_what_was_written_after_it() {
    for to in [
        FaultyTree::failing_once(i64::MAX, Errno::IO),
        FaultyTree::without_links(Errno::PERM),
    ] {
        let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let (wrong, target) = (Arc::clone(&scene.wrong), scene.target.clone());
        scene.to = to.checked(Box::new(move || {
            let has = |name: &str| target.join(name).exists();
            if has("after") && !(has("data") && has("before")) {
                *wrong.lock().unwrap() = Err("it speaks of what is not there".to_owned());
            }
        }));
        let mut drain = scene.drain();
        let [old, new, before, after] =
            ["data.tmp", "data", "before", "after"].map(|name| scene.source.join(name));
        scene.write(&old);
        round(&mut drain, now());
        assert!(scene.target.join("data.tmp").exists());
        scene.write(&before);
        await_tick();
        assert!(scene.program.lock().unwrap().rename(&old, &new));
        await_tick();
        scene.write(&after);
        for _ in 0..3 {
            round(&mut drain, now());
        }
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
        assert_eq!(contents(&scene.source), contents(&scene.target));
    }
}
