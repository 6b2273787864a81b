//! Files that are held back for analyzers, and those that are moved before, since a write waits for room.

use super::*;

impl Scene {
    /// A drain that holds files back for analyzers, each with its pattern.
    fn drain_with_analyzers(
        &self,
        patterns: &[&str],
    ) -> (Drain<'_, FaultyTree, FaultyTree>, Arc<AnalysisTable>) {
        let mut drain = self.drain();
        let patterns = patterns.iter().map(|pattern| vec![(*pattern).to_owned()]);
        let table = self.analyze(&patterns.collect::<Vec<_>>());
        drain.hold_for_analysis(Arc::clone(&table));
        (drain, table)
    }
}

#[test]
fn a_file_is_held_until_all_that_want_it_are_done() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let (mut drain, table) = scene.drain_with_analyzers(&["/n0", "/n*"]);
    scene.act(&Step::Write(0));
    scene.act(&Step::Write(1));
    assert_eq!(
        states(round(&mut drain, LONG_AGO)),
        [PendingState::Waiting, PendingState::Waiting]
    );
    let both = [PendingState::Analysis, PendingState::Analysis];
    assert_eq!(states(round(&mut drain, now())), both);
    let one = |step| scene.act(&Step::Analyze(1, step));
    // The first one, written first, fails.
    one(AnalystStep::Take);
    one(AnalystStep::Fail);
    assert_eq!(states(round(&mut drain, now())), both);
    one(AnalystStep::Take);
    one(AnalystStep::Succeed);
    let held = round(&mut drain, now());
    assert_eq!(
        (held.files, states(held)),
        (1, vec![PendingState::Analysis])
    );
    // Written again while it is analysed: the new one is not moved for that.
    scene.act(&Step::Analyze(0, AnalystStep::Take));
    scene.act(&Step::Write(0));
    scene.act(&Step::Analyze(0, AnalystStep::Succeed));
    assert_eq!(states(round(&mut drain, now())), [PendingState::Analysis]);
    one(AnalystStep::Take);
    one(AnalystStep::Succeed);
    assert_eq!(states(round(&mut drain, now())), [PendingState::Analysis]);
    scene.act(&Step::Analyze(0, AnalystStep::Leave));
    assert_eq!(states(round(&mut drain, now())), []);
    let counts = table.counts();
    assert_eq!((counts.analysed, counts.failed), (3, 1));
    assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

/// A file that is written again after its analysis, when the round that is to copy it has begun, is not copied.
#[test]
fn only_the_content_that_was_analysed_is_copied() {
    for movers in 0..2 {
        let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
        let (mut drain, _) = scene.drain_with_analyzers(&["/n*"]);
        (0..movers).for_each(|_| drain.add_mover(Box::new(scene.other_node(9))));
        scene.act(&Step::Write(0));
        round(&mut drain, now());
        scene.analyze_all();
        // The walk and the question for writers are five looks.
        scene.steps.lock().unwrap().push_back((5, Step::Write(0)));
        let round_of_change = round(&mut drain, now());
        assert!(scene.steps.lock().unwrap().is_empty());
        assert_eq!(states(round_of_change), [PendingState::Waiting]);
        assert!(!scene.target.join("n0").exists());
        round(&mut drain, now());
        scene.analyze_all();
        assert_eq!(states(round(&mut drain, now())), []);
        assert_eq!(*scene.wrong.lock().unwrap(), Ok(()));
        assert_eq!(contents(&scene.source), contents(&scene.target));
    }
}

/// While a write waits for room files are moved, and analysed afterwards.
#[test]
fn a_table_that_yields_holds_nothing_back() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let (mut drain, table) = scene.drain_with_analyzers(&["/n*"]);
    scene.act(&Step::Write(0));
    assert_eq!(states(round(&mut drain, now())), [PendingState::Analysis]);
    table.set_yielding(true);
    assert_eq!(states(round(&mut drain, now())), []);
    assert_eq!(contents(&scene.source), contents(&scene.target));
    table.set_yielding(false);
    scene.analyze_all();
    assert_eq!(table.counts().analysed, 1);
    assert_eq!(states(round(&mut drain, now())), []);
}

/// Changes of names do not wait for files that were renamed a moment ago: these are analysed all the same.
#[test]
fn what_was_moved_by_another_name_while_a_table_yields_is_analysed() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let (mut drain, table) = scene.drain_with_analyzers(&["/n*"]);
    table.set_yielding(true);
    scene.act(&Step::MakeDirectory(0));
    scene.act(&Step::Write(2));
    assert_eq!(round(&mut drain, now()).files, 1);
    symlink("nowhere", scene.source.join("link")).unwrap();
    round(&mut drain, LONG_AGO);
    scene.act(&Step::Rename(2, 0));
    round(&mut drain, LONG_AGO);
    assert!(scene.target.join("n0").exists());
    scene.analyze_all();
    assert_eq!(table.counts().analysed, 1);
}

/// An analyzer that has met something else is asked again if the file is as it was, also if it was moved meanwhile.
#[test]
fn a_moved_file_that_was_not_as_expected_is_analysed_again() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let (mut drain, table) = scene.drain_with_analyzers(&["/n*"]);
    scene.act(&Step::Write(0));
    round(&mut drain, now());
    table.set_yielding(true);
    assert_eq!(round(&mut drain, now()).files, 1);
    scene.act(&Step::Analyze(0, AnalystStep::Take));
    scene.act(&Step::Analyze(0, AnalystStep::Miss));
    assert_eq!(table.unfinished(), 0);
    assert_eq!(round(&mut drain, now()).files, 0);
    scene.analyze_all();
    assert_eq!(table.counts().analysed, 1);
}
