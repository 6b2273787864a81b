//! A seed is a run, always the same one; and what simulation found once is found no more.

use weir_sim::plan::Plan;
use weir_sim::run::run;

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 2, 3, 4, 5, 6, 7, 8] {
        let plan = Plan::from_seed(seed);
        let (once, again) = (run(&plan, false), run(&plan, false));
        assert_eq!(once, again, "seed {seed}");
        assert_ne!(once.hash, run(&Plan::from_seed(seed + 100), false).hash);
    }
}

/// Among programs that do little but rename; `make test` draws them beside all other faults.
#[test]
fn servers_come_back() {
    let half = |first: u64| {
        let mut came_back = 0;
        for seed in (first..200).step_by(2) {
            let plan = Plan::from_seed(seed).moving();
            came_back += plan.faults.iter().filter(|f| f.what.restarts()).count();
            assert_eq!(run(&plan, false).faults, [""; 0], "seed {seed}");
        }
        came_back
    };
    // The other tests of this file end long before it.
    let came_back = std::thread::scope(|scope| {
        let odd = scope.spawn(move || half(1));
        half(0) + odd.join().expect("it has said which seed")
    });
    assert!(came_back > 300, "{came_back}");
}

// Of these four `make simulate` draws as many as it has time for.

/// A file that is told to be written has no writer, and all nodes see its bytes.
#[test]
fn written_files_are_seen_everywhere() {
    for seed in 0..60 {
        let plan = Plan::from_seed(seed).asking();
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {seed}");
    }
}

/// A directory that was taken up is found by all nodes, and so is its cover.
#[test]
fn directories_that_were_taken_up_are_found_everywhere() {
    for seed in 0..60 {
        let plan = Plan::from_seed(seed).elevating();
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {seed}");
    }
}

/// Files whose storage was freed are read and changed as any.
#[test]
fn evicted_files_are_as_they_were() {
    let mut evicted = 0;
    for seed in 0..60 {
        let plan = Plan::from_seed(seed).evicting();
        let outcome = run(&plan, false);
        assert_eq!(outcome.faults, [""; 0], "seed {seed}");
        evicted += outcome.evicted;
    }
    assert!(evicted > 300, "{evicted}");
}

/// Pieces at equal distances, which become one record, and a shorter one behind them. Among them is a seed that fails if the
/// server refuses the shorter piece of a record whose last whole piece it has seen grow.
#[test]
fn pieces_at_equal_distances_are_not_lost() {
    for seed in (0..40).chain([376]) {
        let plan = Plan::from_seed(seed).striding();
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {seed}");
    }
}

/// A program of the old name's node found the new name of a renamed file, and then the old one.
#[test]
fn a_rename_between_servers_is_one_event() {
    let plan = Plan::from_seed(1758).evicting().striding().mild();
    assert_eq!(run(&plan, false).faults, [""; 0]);
}

/// A lock had just made a file raw whose bytes had waited for its lamination, and a node that had not heard of that yet
/// was to publish them: it refused.
#[test]
fn a_node_publishes_though_it_has_not_heard_that_it_may() {
    let plan = Plan::from_seed(1582).evicting().striding().mild();
    assert_eq!(run(&plan, false).faults, [""; 0]);
}

/// Seeds that failed once, with what was wrong.
#[test]
fn what_failed_once_fails_no_more() {
    // Most were found before locks were drawn.
    let of = |seed| Plan::from_seed(seed).without_locks().without_laminations();
    // These before restarts were.
    let all = |seed| of(seed).without_restarts();
    // And some of these before servers were killed over commits.
    let plain = |seed| of(seed).with_plain_kills();
    let one = |seed| of(seed).with_one_restart();
    let mild = |seed| of(seed).mild();
    let moving = |seed| of(seed).moving();
    for plan in [
        // A truncation overlooked what its own node published while it waited for that.
        mild(1800),
        // The model took every close for a publish of what other processes had written.
        mild(5257),
        mild(11353),
        // A name whose file was gone: the answer to a change of its count of links was lost.
        all(681),
        all(720),
        // The leader of a directory's move was killed halfway: it had two names.
        all(728),
        // A lock of a name was granted to who did not wait for it any more.
        all(2017),
        // A name that was locked by who waited for a dead server kept others waiting for ever.
        all(148),
        all(783),
        // The permit to move directories was.
        all(1975),
        // A rename took a name that was another's by then for one that it had taken away.
        all(3707),
        // A moved directory did not say where it was, and so could be moved below itself.
        mild(6079),
        // What a home answered to an open before a truncation brought the old size back.
        mild(2011),
        // Who recalled leases did not wait for another who was telling their holders.
        all(11_832),
        all(201_560),
        // Appends of several nodes: one was told to ask before it knew the file; places were
        // handed out before all had said how far they were; a file whose writers had all been
        // given up began anew.
        all(400_484),
        all(400_809),
        all(405_259),
        all(405_658),
        // A truncation took what a node had not published before what it had.
        all(405_686),
        // Bytes that others published lay under the hole of a truncation.
        all(501_237),
        // A rename took an old name that the file had been given again meanwhile.
        all(405_487),
        // The model let no file be linked whose last name had gone while its home was cut off.
        all(50_230),
        // A file that was there when it was to be made went before it was opened: ENOENT.
        all(702_901),
        // Within a truncation its home showed what had been published below what it had not.
        all(718_582),
        // A size from before a truncation: published by who heard of it late, shown to who had heard.
        all(505_847),
        all(610_018),
        // A lost writer had placed appends that its home did not know of.
        all(158),
        // The leader of a rename was lost between its steps: a directory with two names, a file with
        // none, the name of a dead directory.
        all(6732),
        all(30_811),
        all(200_008),
        all(505_845),
        // A server that is back did not know who else appends to its files.
        plain(235),
        // Stand-ins were not among the inodes that are condemned when a killed server is come after.
        plain(1036),
        plain(1617),
        // A home that was back did not hear who had appended before he was started again, too.
        of(2570),
        of(3021),
        of(3232),
        // The home of a rename's new name was started again after it had given the name: who led
        // took back the link that it had counted, or left a directory its old name.
        one(1266),
        one(61_573),
        // Who opened a file before all had said what they append was not told to ask.
        one(5280),
        of(135),
        of(818),
        // A server that was back waited with what others publish until it had erased what was gone,
        // and that waited for what it published itself.
        of(251),
        of(31_475),
        // A kill within a truncation left a size in shared memory that the journal did not have.
        of(1534),
        // A server that was killed while it recovered had emptied the ring of a client.
        of(961),
        // The same, and later: the place of an append that a home had handed out before it was
        // started again, and that was not written yet, was handed out once more.
        of(1175),
        // A file whose own home had written what was not published yet had no writer there.
        of(4598),
        // What the homes of a rename's names knew of each other's steps was lost when they were
        // killed: directories in two places, or that said they were where they were not.
        moving(83),
        moving(105),
        moving(180),
        moving(193),
        moving(239),
        moving(360),
        // The name of a directory that was buried, where who buried it was killed.
        moving(113),
        moving(285),
        // Who led a rename that had come to nothing meanwhile said so late where the directory was.
        moving(161),
        moving(287),
        moving(1290),
        // A node took an answer of a home for the newest though the node had published since. It
        // appended at the beginning of the file.
        Plan::from_seed(3_403_495).mild(),
        // A lock was granted while a lock of before still told others that the file is raw now.
        Plan::from_seed(3_100_458).mild(),
        // A lock was granted to a server that had been lost since it had asked, and was never given
        // back by the one that came after it.
        Plan::from_seed(3_301_977),
        // A node that had heard from a file's attributes that it is raw did not publish when told.
        Plan::from_seed(3_300_577).mild(),
        // A write to an open file failed while the home asked whether anybody has it open: of the
        // home's attributes this node, or of what a node asked of it, the home, took that for a
        // lamination.
        Plan::from_seed(5132).mild(),
        Plan::from_seed(5019).mild(),
        // A server that came back laminated by itself what was due, while other nodes wrote it.
        Plan::from_seed(5039),
        Plan::from_seed(8254).moving(),
        // A server that came back ended files without a name before it had joined the others, with
        // bytes that it had not published.
        Plan::from_seed(3814),
        // A lock that failed had made a file raw, and not all could be told: a node that was told to give
        // up its token of it wrote on without one.
        Plan::from_seed(6441),
        // A home asked a node whether anybody there writes a file, while it was telling that node
        // that it may: laminated, it was open for writing.
        Plan::from_seed(6_111_583),
        // A server held a file by an answer to the server before it, which it did not know of: told
        // that it places no appends by itself, it did.
        Plan::from_seed(6_111_147),
        // A file of ral lost its last name before its maker's node heard that it is made: what was
        // written to it stayed for ever.
        Plan::from_seed(736).mild(),
        // A rename whose end nobody knows left both names, and the old one went later: the model.
        Plan::from_seed(6_020_142).moving().without_laminations(),
        // A kill within a truncation left a file longer in shared memory than in the journal: programs
        // of its home's node saw the one size, and all others the other one.
        Plan::from_seed(3_400_441),
        Plan::from_seed(3_401_888),
        // A name that a rename had given, and another taken, before the rename asked a home that was
        // started anew whether it had: it gave it once more.
        moving(740_126),
        // A server that kept a file's old name showed it after another node had found the new one.
        Plan::from_seed(3319).asking().elevating(),
        // A name's home noted a rename whose lock a new session had freed while it waited: nobody told the
        // directory that the rename had come to nothing.
        Plan::from_seed(103).asking().elevating().moving(),
    ] {
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {}", plan.seed);
    }
}

/// The same, of programs that write and cut a few files while servers are killed and come back.
#[test]
fn truncations_that_failed_once_fail_no_more() {
    for seed in [
        // Within a truncation its home still had a map of what was published below what it had given
        // up, and showed that.
        722, 1230,
        // A home that was back cut a file, and a node that had not yet said that it held the file
        // published there what it had written before.
        25, 3794,
        // A publish named the size from before its node heard, as a session began, of a truncation.
        3479,
        // A home was killed within a truncation, and a node that was publishing meanwhile gave up
        // long after that what it had written since, or told the home that it had sent no more.
        6_330_345, 2659, 2196,
        // A truncation could not erase all that was published, and the next one, which began at the
        // new size, did not try to.
        5836, 5394,
        // A node published while a file was truncated, then gave up what it had written over that,
        // and read what it had published before that was erased.
        4892,
        // A node was killed after it had sent bytes to the slices' homes, and before it told the
        // file's home how long the file was: a truncation did not reach them.
        2256, 3386,
        // A node that had missed a truncation, and heard of the next one, was told of the first
        // again as it began a session, and gave up what it had written since.
        1086,
        // What was published could not be erased, but a node gave up what it had written over it.
        706, 3024,
        // A node that was started again within a lamination held back what it had written, and said
        // that it had published it.
        4603, 6_330_353,
        // A file became raw while a node that had written to it was away: it published that never.
        1472,
    ] {
        let plan = Plan::from_seed(seed).cutting();
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {seed}");
    }
    // And in directories that are taken up meanwhile.
    for plan in [
        // A home gave up what its programs had written since a truncation began, and what they had written
        // before that, and published since, stayed.
        Plan::from_seed(3290).elevating(),
        // The truncation of a killed server was in shared memory, and not in its journal: what had been
        // written before it came back with the records.
        Plan::from_seed(2479).asking().elevating(),
        // A node laid a publish in the slices, and heard with its next session that the file had been cut.
        Plan::from_seed(2838).elevating(),
    ] {
        let plan = plan.cutting();
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {}", plan.seed);
    }
}
