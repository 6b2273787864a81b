//! A seed is a run, always the same one; and what simulation found once is found no more.

use weir_sim::plan::Plan;
use weir_sim::run::run;

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 2, 3, 4, 5, 6, 7, 8] {
        let plan = Plan::of(seed);
        let (once, again) = (run(&plan, false), run(&plan, false));
        assert_eq!(once, again, "seed {seed}");
        assert_ne!(once.hash, run(&Plan::of(seed + 100), false).hash);
    }
}

/// Seeds that failed once, with what was wrong.
#[test]
fn what_failed_once_fails_no_more() {
    let mild = |seed| Plan::of(seed).mild();
    for plan in [
        // A truncation overlooked what its own node published while it waited for that.
        mild(1800),
        // The model took every close for a publish of what other processes had written.
        mild(5257),
        mild(11353),
    ] {
        assert_eq!(run(&plan, false).faults, [""; 0], "seed {}", plan.seed);
    }
}
