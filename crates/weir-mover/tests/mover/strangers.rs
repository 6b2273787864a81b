//! Somebody else writes on the target while a drain of an elevated tree moves files there: whatever happens in
//! what order, and however often the drain is started anew, nothing of theirs is replaced or removed, and all
//! else is the program's in the end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::scratch::temporary_directory;
use proptest::prelude::*;
use weir_mover::drain::{Drain, PendingState, PlacedNodes};
use weir_mover::{DirectoryTree, MoveSide, PathFilter, StageOptions, StageProgress};

#[derive(Clone, Debug)]
enum Act {
    /// The program writes a file anew.
    Write(u8),
    /// The program makes a symbolic link.
    Link(u8),
    /// The program renames a file over another one.
    Rename(u8, u8),
    /// The program removes a file.
    Remove(u8),
    /// Somebody else puts a file on the target.
    Put(u8),
    /// Somebody else appends to a file of the target.
    Append(u8),
    /// Somebody else removes what they have put there.
    MakeWay(u8),
    /// The drain looks.
    Round,
    /// The drain is killed, and another one is started.
    Restart,
}

const NAMES: u8 = 4;

fn act() -> impl Strategy<Value = Act> {
    let name = || 0..NAMES;
    prop_oneof![
        3 => name().prop_map(Act::Write),
        1 => name().prop_map(Act::Link),
        1 => (name(), name()).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => name().prop_map(Act::Remove),
        1 => name().prop_map(Act::Put),
        1 => name().prop_map(Act::Append),
        1 => name().prop_map(Act::MakeWay),
        3 => Just(Act::Round),
        1 => Just(Act::Restart),
    ]
}

/// The text of a file, or of a link.
fn text(dir: &Path, name: u8) -> Option<String> {
    let path = dir.join(name.to_string());
    match fs::read_link(&path) {
        Ok(text) => Some(format!("-> {}", text.display())),
        Err(_) => fs::read_to_string(path).ok(),
    }
}

struct Scene<'s> {
    source: &'s Path,
    target: &'s Path,
    /// The files that somebody else has on the target.
    theirs: BTreeMap<u8, String>,
    /// The last version of each of the program's files that the target had.
    arrived: BTreeMap<u8, String>,
    written: usize,
}

impl Scene<'_> {
    fn unique(&mut self) -> String {
        self.written += 1;
        // Two versions of a tick of the clock are told apart by their lengths.
        "x".repeat(self.written)
    }

    fn act(&mut self, act: &Act) {
        let at = |dir: &Path, name: u8| dir.join(name.to_string());
        match *act {
            Act::Write(name) => {
                let content = self.unique();
                let _ = fs::remove_file(at(self.source, name));
                fs::write(at(self.source, name), content).unwrap();
            }
            Act::Link(name) => {
                let content = self.unique();
                let _ = fs::remove_file(at(self.source, name));
                std::os::unix::fs::symlink(content, at(self.source, name)).unwrap();
            }
            Act::Rename(from, to) => {
                let _ = fs::rename(at(self.source, from), at(self.source, to));
            }
            Act::Remove(name) => {
                let _ = fs::remove_file(at(self.source, name));
            }
            Act::Put(name) => {
                let content = format!("theirs {}", "y".repeat(1000 + self.unique().len()));
                let part = self.target.join("theirs");
                fs::write(&part, &content).unwrap();
                fs::rename(part, at(self.target, name)).unwrap();
                self.theirs.insert(name, content);
            }
            Act::Append(name) => {
                let path = at(self.target, name);
                if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                    let before = fs::read_to_string(&path).unwrap();
                    let content = before + &"y".repeat(1000 + self.unique().len());
                    fs::write(&path, &content).unwrap();
                    // A file that was renamed has its old name, too, for a round.
                    let ino = path.metadata().unwrap().ino();
                    let is_same = |name: &u8| {
                        let found = at(self.target, *name).symlink_metadata();
                        found.is_ok_and(|found| found.ino() == ino)
                    };
                    for name in (0..NAMES).filter(is_same) {
                        self.theirs.insert(name, content.clone());
                    }
                }
            }
            Act::MakeWay(name) => {
                if self.theirs.remove(&name).is_some() {
                    fs::remove_file(at(self.target, name)).unwrap();
                }
            }
            Act::Round | Act::Restart => unreachable!("the drain does it"),
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        for name in 0..NAMES {
            let there = text(self.target, name).filter(|_| !self.theirs.contains_key(&name));
            self.arrived.extend(there.map(|there| (name, there)));
        }
        for (name, content) in &self.theirs {
            prop_assert_eq!(text(self.target, *name), Some(content.clone()));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn nothing_of_theirs_is_replaced_and_all_else_arrives(
        acts in proptest::collection::vec(act(), 1..30),
    ) {
        let dir = temporary_directory();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        let start = || {
            let sides = [&source, &target].map(|path| MoveSide::new(&DirectoryTree, path));
            let [from, to] = sides;
            let mut drain = Drain::new(from, to, PathFilter::default());
            let marks = PlacedNodes::open(&dir.path().join("marks")).unwrap();
            drain.keep_marks(Arc::new(marks), false);
            drain
        };
        let mut scene = Scene {
            source: &source,
            target: &target,
            theirs: BTreeMap::new(),
            arrived: BTreeMap::new(),
            written: 0,
        };
        let progress = StageProgress::default();
        let mut drain = start();
        for act in &acts {
            match act {
                Act::Round => {
                    let soon = SystemTime::now() + Duration::from_secs(1000);
                    let round = drain.round(soon, 1, &progress);
                    for file in round.pending {
                        if let PendingState::Failed { reason } = file.state {
                            prop_assert!(reason.contains("somebody else's"), "{}", reason);
                        }
                    }
                }
                Act::Restart => drain = start(),
                act => scene.act(act),
            }
            scene.check()?;
        }
        let summary = drain.finish(StageOptions::default(), &progress);
        scene.check()?;
        let failed: Vec<_> = summary.failed.iter().map(|one| one.target.clone()).collect();
        for name in 0..NAMES {
            let wanted = text(&source, name);
            let is_failed = failed.contains(&target.join(name.to_string()));
            let was_safe = wanted.is_some() && scene.arrived.get(&name) == wanted.as_ref();
            match (scene.theirs.contains_key(&name), &wanted) {
                // The program's file was safe before somebody else changed it there.
                (_, Some(_)) if was_safe => {}
                (false, Some(_)) => {
                    prop_assert_eq!(text(&target, name), wanted);
                    prop_assert!(!is_failed);
                }
                (true, Some(_)) => prop_assert!(is_failed),
                // A name that was removed while no drain knew of it stays.
                (_, None) => prop_assert!(!is_failed),
            }
        }
    }
}
