//! Loops of checkpoints whose drain is killed between any two changes of the target, and started anew: whenever it is
//! killed, each checkpoint that has its name is whole and of one generation, the newest ones are in their order, and in
//! the end the target is as the source. A seed replays a run: `WEIR_HISTORY_SEED=7 cargo test -p weir-mover --test mover
//! history`.

use super::*;
use weir_mover::drain::PlacedNodes;
use weir_mover::publish::is_part;

const SWAP_STEPS: usize = 6;

fn swapped(generation: usize, name: &str) -> Vec<u8> {
    format!(
        "swapped {name} {generation:0>width$}",
        width = generation + 1
    )
    .into_bytes()
}

/// The generation of a directory of [`Program::swap`]; `None`: it is not whole.
fn generation_of(dir: &Path, contents: &BTreeMap<PathBuf, TreeNode>) -> Option<usize> {
    let generation = |name: &str| match contents.get(&dir.join(name))? {
        TreeNode::File(content) => {
            let text = std::str::from_utf8(content).ok()?;
            let text = text.strip_prefix(&format!("swapped {name} "))?;
            text.parse::<usize>().ok()
        }
        _ => None,
    };
    generation("a").filter(|one| generation("b") == Some(*one))
}

impl Program {
    /// A step in a loop that keeps two generations of a directory under the same names.
    pub(super) fn swap(&mut self) {
        let generation = self.swap_steps / SWAP_STEPS;
        let [new, current, old] = ["swap.tmp", "swap", "swap.old"].map(|name| self.dir.join(name));
        match self.swap_steps % SWAP_STEPS {
            0 => self.make_directory(&new).unwrap(),
            step @ (1 | 2) => {
                let name = ["a", "b"][step - 1];
                let content = swapped(generation, name);
                fs::write(new.join(name), &content).unwrap();
                self.closed.insert(content);
            }
            3 => drop(self.remove_all(&old)),
            4 => drop(self.rename(&current, &old)),
            _ => assert!(self.rename(&new, &current)),
        }
        self.swap_steps += 1;
    }
}

/// Checks the directories of [`Program::swap`]. `newest`: the generation that the target had.
pub fn check_generations(
    contents: &BTreeMap<PathBuf, TreeNode>,
    newest: &mut Option<usize>,
) -> Result<(), String> {
    let generations = ["swap", "swap.old"].map(|dir| generation_of(Path::new(dir), contents));
    if contents.contains_key(Path::new("swap")) && generations[0].is_none() {
        return Err(format!("swap is not whole: {contents:?}"));
    }
    let now = generations.into_iter().max().flatten();
    if now < *newest {
        return Err(format!("generation {now:?} after {newest:?}: {contents:?}"));
    }
    *newest = now;
    Ok(())
}

/// Numbers that a seed gives.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// The hidden directories below a directory.
fn hidden_directories(at: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
        let is_dir = entry.file_type().unwrap().is_dir();
        if is_dir && is_part(&entry.file_name()) {
            found.push(entry.path());
        } else if is_dir {
            found.extend(hidden_directories(&entry.path()));
        }
    }
    found
}

/// The number of the checkpoint that the target's `latest` leads to.
pub fn latest(target: &Path) -> Option<usize> {
    let leads_to = fs::read_link(target.join("latest")).ok()?;
    leads_to.to_str()?.strip_prefix("ckpt.")?.parse().ok()
}

impl Scene {
    /// Ends a drain in which nothing fails any more: the target has all that the source has.
    pub(super) fn finish_whole(&self, drain: &mut Drain<'_, FaultyTree, FaultyTree>, seed: u64) {
        let summary = finish(drain);
        assert_eq!(summary.failed, [], "seed {seed}");
        assert_eq!(*self.wrong.lock().unwrap(), Ok(()), "seed {seed}");
        let there = contents(&self.target);
        for (path, node) in contents(&self.source) {
            let path_name = path.display();
            assert_eq!(there.get(&path), Some(&node), "seed {seed}: {path_name}");
        }
    }
}

fn run(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let marks = scene.source.with_file_name("marks");
    let has_marks = dice.below(2) == 0;
    // Without marks nobody knows what a drain that was killed had made: directories are merged.
    let swaps = u64::from(has_marks);
    // As with an elevated directory, or another one.
    let replaces_all = seed % 5 == 2;
    let mut newest = None;
    for _ in 0..=dice.below(6) {
        let changes = i64::try_from(dice.below(150)).unwrap();
        scene.renew_target(FaultyTree::dying_after(changes));
        let mut drain = scene.drain();
        if has_marks {
            drain.keep_marks(Arc::new(PlacedNodes::open(&marks).unwrap()), replaces_all);
        }
        for _ in 0..=dice.below(12) {
            for _ in 0..dice.below(8) {
                scene.act(&Step::Checkpoint(1));
            }
            for _ in 0..swaps * dice.below(8) {
                scene.act(&Step::Swap(1));
            }
            let count = dice.below(4);
            let meanwhile = (0..count).map(|_| {
                let steps = u8::try_from(1 + dice.below(5)).unwrap();
                let step = match swaps * dice.below(2) {
                    0 => Step::Checkpoint(steps),
                    _ => Step::Swap(steps),
                };
                (u8::try_from(dice.below(30)).unwrap(), step)
            });
            scene.steps.lock().unwrap().extend(meanwhile);
            let settled = if dice.below(2) == 0 { now() } else { LONG_AGO };
            round(&mut drain, settled);
            assert_eq!(*scene.wrong.lock().unwrap(), Ok(()), "seed {seed}");
            let again = latest(&scene.target);
            assert!(again >= newest, "seed {seed}: {again:?} after {newest:?}");
            newest = again;
        }
    }
    scene.end_program();
    scene.renew_target(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    if has_marks {
        drain.keep_marks(Arc::new(PlacedNodes::open(&marks).unwrap()), replaces_all);
    }
    scene.finish_whole(&mut drain, seed);
    assert_eq!(
        hidden_directories(&scene.target),
        [] as [PathBuf; 0],
        "seed {seed}"
    );
}

#[test]
fn killed_drains_leave_a_history_of_whole_checkpoints() {
    match std::env::var("WEIR_HISTORY_SEED") {
        Ok(seed) => run(seed.parse().unwrap()),
        Err(_) => (0..150).for_each(run),
    }
}

/// A directory that waits under a hidden name for its own is renamed to one that an earlier drain has given to another
/// generation: that one makes way, so what the new one replaces stays until then.
#[test]
fn a_directory_is_renamed_to_what_an_earlier_drain_has_left() {
    run(1109);
}

/// A path leads to a file of another directory when it is copied, and that one is on the target already: the marks say
/// which of the two is there.
#[test]
fn a_file_that_was_there_is_marked_as_what_it_is() {
    run(2103);
}

/// A file that a program removed after it had renamed a directory stays until the files of this one are there, also if
/// somebody else takes its name first and they come one by one.
#[test]
fn removals_wait_for_the_files_of_a_directory_that_is_merged() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    scene.act(&Step::Write(0));
    round(&mut drain, now());
    let [begun, whole] = ["new.tmp", "new"].map(|name| scene.source.join(name));
    let made = scene.program.lock().unwrap().make_directory(&begun);
    made.unwrap();
    scene.write(&begun.join("file"));
    assert!(scene.program.lock().unwrap().rename(&begun, &whole));
    scene.act(&Step::Remove(0));
    round(&mut drain, now());
    let (old, new) = (scene.target.join("n0"), scene.target.join("new"));
    assert!(old.exists() && !new.exists());
    fs::create_dir(&new).unwrap();
    for _ in 0..4 {
        round(&mut drain, now());
        assert!(old.exists() || new.join("file").exists());
    }
    assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

/// A file or link that an earlier drain has made in a directory of the job makes way for a directory of its name, with and
/// without rounds, and nothing is written to where an old link leads.
#[test]
fn directories_replace_what_earlier_drains_have_made() {
    let variants = (0..2).flat_map(|kind| (0..8_u8).map(move |bits| (kind, bits)));
    for (kind, bits) in variants {
        let [is_known, is_renamed, has_rounds] = [1, 2, 4].map(|bit| bits & bit != 0);
        let what =
            format!("kind {kind}, known {is_known}, renamed {is_renamed}, rounds {has_rounds}");
        let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let marks = scene.source.with_file_name("marks");
        let marked_drain = || {
            let mut drain = scene.drain();
            drain.keep_marks(Arc::new(PlacedNodes::open(&marks).unwrap()), false);
            drain
        };
        for dir in 0..2 {
            scene.act(&Step::MakeDirectory(dir));
        }
        let name = scene.source.join("d1/name");
        match kind {
            0 => scene.write(&name),
            _ => symlink("../d0", &name).unwrap(),
        }
        let mut earlier = marked_drain();
        for _ in 0..4 {
            round(&mut earlier, now());
        }
        assert_eq!(contents(&scene.source), contents(&scene.target), "{what}");
        drop(earlier);
        let mut drain = marked_drain();
        if is_known {
            round(&mut drain, now());
        }
        fs::remove_file(&name).unwrap();
        let begun = match is_renamed {
            true => scene.source.join("begun"),
            false => name.clone(),
        };
        let made = scene.program.lock().unwrap().make_directory(&begun);
        made.unwrap();
        scene.write(&begun.join("file"));
        if is_renamed {
            assert!(scene.program.lock().unwrap().rename(&begun, &name));
        }
        for _ in 0..if has_rounds { 6 } else { 0 } {
            round(&mut drain, now());
            assert!(!scene.target.join("d0/file").exists(), "{what}");
        }
        if has_rounds {
            assert_eq!(contents(&scene.source), contents(&scene.target), "{what}");
        }
        assert_eq!(finish(&mut drain).failed, [], "{what}");
        assert_eq!(contents(&scene.source), contents(&scene.target), "{what}");
    }
}

/// A drain finds files as they are to be, since an earlier one had made them, and removes them all the same once a program
/// has; unless it does not take over from the earlier one, or the target had them before that.
#[test]
fn files_of_earlier_drains_are_removed_though_a_later_one_has_seen_them() {
    for bits in 0..16_u8 {
        let [has_rounds, replaces_all, is_anew, was_there] =
            [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let what = format!(
            "rounds {has_rounds}, all {replaces_all}, anew {is_anew}, there before {was_there}"
        );
        let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let marks = scene.source.with_file_name("marks");
        scene.act(&Step::MakeDirectory(0));
        let names = ["d0/name", "name"].map(|name| scene.source.join(name));
        for name in &names {
            scene.write(name);
        }
        let whole = contents(&scene.source);
        if was_there {
            let mut before = scene.drain();
            assert_eq!(finish(&mut before).failed, [], "{what}");
            // Clocks are not compared to the second.
            std::thread::sleep(Duration::from_millis(1500));
        }
        for is_last in [false, true] {
            let open = match is_last && is_anew {
                true => PlacedNodes::open_anew,
                false => PlacedNodes::open,
            };
            let mut drain = scene.drain();
            drain.keep_marks(Arc::new(open(&marks).unwrap()), replaces_all);
            round(&mut drain, now());
            assert_eq!(whole, contents(&scene.target), "{what}");
            if is_last {
                for name in &names {
                    fs::remove_file(name).unwrap();
                }
                for _ in 0..if has_rounds { 4 } else { 0 } {
                    round(&mut drain, now());
                }
                assert_eq!(finish(&mut drain).failed, [], "{what}");
                let wanted = match is_anew || was_there {
                    true => whole.clone(),
                    false => contents(&scene.source),
                };
                assert_eq!(wanted, contents(&scene.target), "{what}");
            }
        }
    }
}

/// A file that is renamed gets its new name without being copied again, and has one at every moment.
#[test]
fn a_renamed_file_is_not_copied_again() {
    for has_links in [true, false] {
        let scene = Scene::new(match has_links {
            true => FaultyTree::failing_once(i64::MAX, Errno::IO),
            false => FaultyTree::without_links(Errno::PERM),
        });
        let mut drain = scene.drain();
        scene.act(&Step::MakeDirectory(0));
        scene.act(&Step::Write(2));
        round(&mut drain, now());
        let content = fs::read(scene.target.join("d0/n2")).unwrap();
        scene.act(&Step::Rename(2, 0));
        // The target is asked for a link when it is the file's turn, and the next round copies it.
        let first = round(&mut drain, now());
        assert_eq!(fs::read(scene.target.join("d0/n2")).unwrap(), content);
        let second = round(&mut drain, now());
        assert_eq!(first.files + second.files, u64::from(!has_links));
        assert_eq!(fs::read(scene.target.join("n0")).unwrap(), content);
        for _ in 0..2 {
            round(&mut drain, now());
        }
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
        assert_eq!(contents(&scene.source), contents(&scene.target));
    }
}
