//! A program that removes a file which says that its data is valid, writes the data again, and says so anew. Whenever the drain
//! is killed, what the target says is true. A seed replays a run: `WEIR_VALIDITY_SEED=7 cargo test -p weir-mover --test mover
//! validity`.

use weir_mover::drain::{NameOrder, PlacedNodes};

use super::history::Dice;
use super::names::await_tick;
use super::progress::{data, mark, said};
use super::*;

/// The steps of a turn of [`Program::validity`].
const STEPS: usize = 7;

impl Program {
    /// A step in a loop that takes back what `valid` says, replaces two files, and says it again. One is renamed over the old
    /// one, the other is made anew. Of a file that is written in place it is not known when it first changed.
    pub(super) fn validity(&mut self) {
        let number = self.validity_steps / STEPS;
        let [valid, first, second] =
            ["valid", "valid.a", "valid.b"].map(|name| self.dir.join(name));
        match self.validity_steps % STEPS {
            0 if number > 0 => {
                match number % 3 {
                    0 => assert!(self.rename(&valid, &self.dir.join("not.valid"))),
                    _ => self.remove(&valid).unwrap(),
                }
                await_tick();
            }
            1 => {
                let new = self.dir.join("valid.a.tmp");
                self.write_closed(&new, data(number, "a"));
                assert!(self.rename(&new, &first));
            }
            2 => drop(self.remove(&second)),
            3 => self.write_closed(&second, data(number, "b")),
            4 => self.write_closed(&valid, mark(number)),
            step => self.write_closed(
                &self.dir.join(format!("other.{number}.{step}")),
                mark(number),
            ),
        }
        self.validity_steps += 1;
    }
}

/// Checks that what [`Program::validity`] says is true.
pub fn check_validity(contents: &BTreeMap<PathBuf, TreeNode>) -> Result<(), String> {
    let Some(number) = said("valid", contents) else {
        return Ok(());
    };
    for name in ["a", "b"] {
        let found = contents.get(Path::new(&format!("valid.{name}")));
        if found != Some(&TreeNode::File(data(number, name))) {
            return Err(format!("valid says {number}: valid.{name} is not its data"));
        }
    }
    Ok(())
}

/// Returns the number of rounds after which the target said that its data was valid.
fn run(seed: u64) -> usize {
    let mut found = 0;
    let mut dice = Dice::new(seed);
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.from = used_tree(&scene.steps, &scene.program).with_ticks();
    scene.renew_target(match dice.below(3) {
        0 => FaultyTree::failing_once(i64::try_from(dice.below(150)).unwrap(), Errno::NOSPC),
        _ => FaultyTree::dying_after(i64::try_from(dice.below(600)).unwrap()),
    });
    let mut drain = scene.drain();
    for _ in 0..dice.below(3) {
        let orders = usize::try_from(dice.below(60)).unwrap();
        drain.add_mover(Box::new(scene.other_node(orders)));
    }
    for _ in 0..=dice.below(20) {
        scene.draw_rounds(&mut drain, &mut dice, Step::Validity, 1);
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()), "seed {seed}");
        found += usize::from(said("valid", &contents(&scene.target)).is_some());
    }
    found
}

#[test]
fn what_was_taken_back_before_data_changed_goes_before_the_data() {
    let seed = std::env::var("WEIR_VALIDITY_SEED").ok();
    if let Some(seed) = seed {
        run(seed.parse().unwrap());
    } else {
        let found = (0..60).map(run).sum::<usize>();
        assert!(found > 40, "{found}");
    }
}

/// A drain beside the program, killed, and then drains after its end, as by `weir recover`, each killed a few changes later than the
/// one before. Returns the number of those.
fn recover(seed: u64) -> u64 {
    let mut dice = Dice::new(seed);
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.from = used_tree(&scene.steps, &scene.program).with_ticks();
    let marks = scene.source.with_file_name("marks");
    scene.renew_target(FaultyTree::dying_after(
        i64::try_from(dice.below(400)).unwrap(),
    ));
    let mut drain = scene.marked_drain(&marks);
    for _ in 0..=dice.below(8) {
        scene.draw_rounds(&mut drain, &mut dice, Step::Validity, 1);
    }
    drop(drain);
    for _ in 0..dice.below(2 * STEPS as u64) {
        await_tick();
        scene.act(&Step::Validity(1));
    }
    scene.end_program();
    let mut killed = 0;
    let mut changes = 0;
    loop {
        scene.renew_target(FaultyTree::dying_after(changes));
        let summary = finish(&mut scene.marked_drain(&marks));
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()), "seed {seed}");
        if !scene.to.has_failed() {
            assert_eq!(summary.failed, [], "seed {seed}");
            break;
        }
        killed += 1;
        changes += 1 + i64::try_from(dice.below(6)).unwrap();
    }
    let (source, target) = (contents(&scene.source), contents(&scene.target));
    assert_eq!(source, target, "seed {seed}");
    killed
}

#[test]
fn what_was_taken_back_goes_before_the_data_in_a_recovery() {
    let seed = std::env::var("WEIR_VALIDITY_SEED").ok();
    if let Some(seed) = seed {
        recover(seed.parse().unwrap());
    } else {
        let killed = (0..60).map(recover).sum::<u64>();
        assert!(killed > 300, "{killed}");
    }
}

/// Without an order this fails: what is tested is not so by chance.
#[test]
fn without_an_order_what_was_taken_back_stays_beside_new_data() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    for _ in 0..STEPS {
        await_tick();
        scene.act(&Step::Validity(1));
    }
    round(&mut drain, now());
    drain.set_order(NameOrder::None);
    assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
    for _ in 0..2 {
        scene.act(&Step::Validity(1));
    }
    round(&mut drain, now());
    let wrong = scene.wrong.lock().unwrap().clone();
    assert!(wrong.is_err_and(|wrong| wrong.starts_with("valid says 0: valid.a")));
}

impl Scene {
    /// A drain whose marks are in a file, as `weir run --drain-to` keeps them.
    fn marked_drain(&self, marks: &Path) -> Drain<'_, FaultyTree, FaultyTree> {
        let mut drain = self.drain();
        drain.keep_marks(Arc::new(PlacedNodes::open(marks).unwrap()), true);
        drain
    }

    /// Has the target checked after each of its changes. `is_right`: by the names of its directory.
    fn check_names(
        &mut self,
        is_right: impl Fn(&dyn Fn(&str) -> bool) -> bool + Send + Sync + 'static,
    ) {
        let (wrong, target) = (Arc::clone(&self.wrong), self.target.clone());
        let to = FaultyTree::failing_once(i64::MAX, Errno::IO);
        self.to = to.checked(Box::new(move || {
            if !is_right(&|name| target.join(name).exists()) {
                let names: Vec<_> = contents(&target).into_keys().collect();
                *wrong.lock().unwrap() = Err(format!("{names:?}"));
            }
        }));
    }

    /// Has the program write a file, after all that it has done before by the clock.
    fn write_later(&self, name: &str) {
        await_tick();
        self.write(&self.source.join(name));
    }

    fn rename_later(&self, from: &str, to: &str) {
        await_tick();
        let [from, to] = [from, to].map(|name| self.source.join(name));
        assert!(self.program.lock().unwrap().rename(&from, &to));
    }

    fn remove_later(&self, name: &str) {
        await_tick();
        self.remove(&self.source.join(name));
    }

    fn finish_rounds(&self, drain: &mut Drain<'_, FaultyTree, FaultyTree>) {
        for _ in 0..4 {
            round(drain, now());
        }
        assert_eq!(*self.wrong.lock().unwrap(), Ok(()));
        assert_eq!(contents(&self.source), contents(&self.target));
    }
}

/// A file in a directory that has no name yet comes first: what was removed before it was written does not.
#[test]
fn what_was_written_before_a_removal_is_there_before_it() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.check_names(|has| !has("began") || has("old") || has("new"));
    let mut drain = scene.drain();
    scene.write(&scene.source.join("old"));
    scene.write_later("began");
    round(&mut drain, now());
    scene.write_later("new");
    scene.remove_later("old");
    let dir = scene.source.join("dir.tmp");
    let made = scene.program.lock().unwrap().make_directory(&dir);
    made.unwrap();
    scene.write_later("dir.tmp/file");
    scene.rename_later("dir.tmp", "dir");
    scene.finish_rounds(&mut drain);
}

/// A log that is rotated, and written to by its new name, has one of its names at every moment.
#[test]
fn a_renamed_file_that_is_written_again_has_a_name_at_every_moment() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.check_names(|has| !has("began") || has("log") || has("log.1"));
    let mut drain = scene.drain();
    scene.write(&scene.source.join("log"));
    scene.write_later("began");
    round(&mut drain, now());
    scene.rename_later("log", "log.1");
    scene.write_later("other");
    scene.write_later("log.1");
    scene.finish_rounds(&mut drain);
}

/// A file that an earlier drain has moved, and that this one has found there, goes in its turn, too.
#[test]
fn what_an_earlier_drain_had_moved_is_removed_before_what_comes_after() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.check_names(|has| !(has("valid") && has("data")));
    let marks = scene.source.with_file_name("marks");
    scene.write(&scene.source.join("valid"));
    round(&mut scene.marked_drain(&marks), now());
    let mut drain = scene.marked_drain(&marks);
    round(&mut drain, now());
    scene.remove_later("valid");
    scene.write_later("data");
    scene.finish_rounds(&mut drain);
}

/// A file that was renamed after a program had taken something back gets its new name after that is gone.
#[test]
fn a_renamed_file_comes_after_what_was_taken_back_before() {
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    scene.check_names(|has| !(has("valid") && has("data")));
    let mut drain = scene.drain();
    scene.write(&scene.source.join("data.tmp"));
    scene.write(&scene.source.join("valid"));
    round(&mut drain, now());
    scene.remove_later("valid");
    scene.rename_later("data.tmp", "data");
    scene.finish_rounds(&mut drain);
}
