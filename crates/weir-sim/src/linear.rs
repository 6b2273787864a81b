//! Linearizability (Herlihy and Wing, 1990): checks that one namespace could have produced all
//! clients' results, one operation after the other, each within the time from its call to its
//! return. The search is that of Wing and Gong (1993) with Lowe's memory of failed states (2017).

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::{Model, NameOp, Outcome};

/// Steps of the search before it gives up.
const STEPS_MAX: usize = 300_000;

/// One operation as its caller saw it. Times are positions in the order of all events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The caller.
    pub client: usize,
    /// The event of the call.
    pub began: u64,
    /// The event of the return; `None`: the caller was killed.
    pub ended: Option<u64>,
    /// The operation.
    pub op: NameOp,
    /// The result.
    pub outcome: Outcome,
}

impl Call {
    /// The event before which it must have happened, if it has.
    fn must(&self) -> Option<u64> {
        self.ended.filter(|_| self.outcome != Outcome::Unknown)
    }
}

/// The result of the search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckResult {
    /// There is an order.
    Linear,
    /// There is none: at most `most` operations can be ordered. Then `call`, which must come before
    /// any other begins, cannot have had its result.
    Broken {
        /// The number of operations.
        most: usize,
        /// The operation.
        call: usize,
    },
    /// The search was too long.
    Undecided,
}

/// A node of the search: the operation chosen there, and the choices left.
struct SearchNode {
    choices: Vec<(usize, Model)>,
    /// The chosen call.
    chosen: Option<usize>,
}

/// Searches for an order of `calls` from a first state.
pub fn check(first: &Model, calls: &[Call]) -> CheckResult {
    let mut done = vec![false; calls.len()];
    let mut known: HashSet<(u64, u64)> = HashSet::new();
    let must = calls.iter().filter(|call| call.must().is_some()).count();
    let (mut left, mut most, mut stuck) = (must, 0, 0);
    let mut levels = vec![SearchNode {
        choices: choices(calls, &done, first),
        chosen: None,
    }];
    for _ in 0..STEPS_MAX {
        if left == 0 {
            return CheckResult::Linear;
        }
        let Some(level) = levels.last_mut() else {
            return CheckResult::Broken { most, call: stuck };
        };
        let Some((call, model)) = level.choices.pop() else {
            if let Some(chosen) = level.chosen {
                done[chosen] = false;
                left += usize::from(calls[chosen].must().is_some());
            }
            levels.pop();
            continue;
        };
        done[call] = true;
        left -= usize::from(calls[call].must().is_some());
        if !known.insert(print(&done, &model)) {
            done[call] = false;
            left += usize::from(calls[call].must().is_some());
            continue;
        }
        if must - left > most || most == 0 {
            most = must - left;
            stuck = next_to_end(calls, &done).unwrap_or(call);
        }
        levels.push(SearchNode {
            choices: choices(calls, &done, &model),
            chosen: Some(call),
        });
    }
    CheckResult::Undecided
}

/// A minimal conflict among calls that have no order: without the calls that changed nothing and are not
/// needed for it.
pub fn conflict(first: &Model, calls: &[Call]) -> Vec<Call> {
    let changes_nothing =
        |call: &Call| call.outcome == Outcome::Refused || matches!(call.op, NameOp::Find(_));
    let mut left = calls.to_vec();
    for at in (0..calls.len())
        .rev()
        .filter(|at| changes_nothing(&calls[*at]))
    {
        let without = [&left[..at], &left[at + 1..]].concat();
        if matches!(check(first, &without), CheckResult::Broken { .. }) {
            left = without;
        }
    }
    left
}

/// Two hashes of a state, so that two states are not confused.
fn print(done: &[bool], model: &Model) -> (u64, u64) {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, done, model).hash(&mut hasher);
        hasher.finish()
    };
    (hash(1), hash(2))
}

/// The remaining call that returned first.
fn next_to_end(calls: &[Call], done: &[bool]) -> Option<usize> {
    let left = (0..calls.len()).filter(|at| !done[*at]);
    let ends = left.filter_map(|at| Some((calls[at].must()?, at)));
    ends.min().map(|(_, at)| at)
}

/// The possible next calls; the likeliest last.
fn choices(calls: &[Call], done: &[bool], model: &Model) -> Vec<(usize, Model)> {
    let first_end = next_to_end(calls, done).and_then(|at| calls[at].must());
    let first_end = first_end.unwrap_or(u64::MAX);
    let mut open: Vec<usize> = (0..calls.len())
        .filter(|at| !done[*at] && calls[*at].began < first_end)
        .collect();
    // An operation that may not have happened is tried last.
    open.sort_by_key(|at| std::cmp::Reverse(calls[*at].must().unwrap_or(u64::MAX)));
    open.into_iter()
        .flat_map(|at| {
            let after = model.after(at, &calls[at].op, calls[at].outcome);
            after.into_iter().map(move |model| (at, model))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DirName;
    use weir_core::names::FileType::{Dir, File};
    use weir_core::types::Ino;

    fn check(calls: &[Call]) -> CheckResult {
        super::check(&Model::new(Ino(1), false), calls)
    }

    fn at(dir: u64, name: u8) -> DirName {
        DirName {
            dir: Ino(dir),
            name,
        }
    }

    fn make(name: u8) -> NameOp {
        NameOp::Make {
            at: at(1, name),
            kind: File,
            exclusive: true,
        }
    }

    fn rename(from: u8, to: u8) -> NameOp {
        NameOp::Rename {
            from: at(1, from),
            to: at(1, to),
            flags: 0,
        }
    }

    fn call(began: u64, ended: u64, op: NameOp, outcome: Outcome) -> Call {
        Call {
            client: 0,
            began,
            ended: Some(ended),
            op,
            outcome,
        }
    }

    fn found(ino: u64) -> Outcome {
        Outcome::Done(Some((Ino(ino), File)))
    }

    const NOTHING: Outcome = Outcome::Done(None);

    #[test]
    fn what_overlaps_may_be_in_any_order_and_what_does_not_only_in_its_own() {
        let made = call(0, 1, make(1), found(7));
        let moved = call(2, 5, rename(1, 2), NOTHING);
        let seen =
            |began, ended, name, outcome| call(began, ended, NameOp::Find(at(1, name)), outcome);
        let fine = [
            made.clone(),
            moved.clone(),
            seen(3, 4, 1, found(7)),
            seen(6, 7, 2, found(7)),
        ];
        assert_eq!(check(&fine), CheckResult::Linear);
        let early = [
            made.clone(),
            moved.clone(),
            seen(3, 4, 2, found(7)),
            seen(4, 5, 1, NOTHING),
        ];
        assert_eq!(check(&early), CheckResult::Linear);
        for broken in [
            seen(6, 7, 1, found(7)),
            seen(6, 7, 2, NOTHING),
            seen(6, 7, 2, found(8)),
        ] {
            let calls = [made.clone(), moved.clone(), broken];
            assert!(matches!(check(&calls), CheckResult::Broken { call: 2, .. }));
        }
        // An operation with a visible effect was done.
        let back = [
            made,
            moved,
            seen(3, 4, 2, found(7)),
            seen(6, 7, 1, found(7)),
        ];
        assert!(matches!(check(&back), CheckResult::Broken { .. }));
    }

    #[test]
    fn what_nobody_knows_the_end_of_was_done_or_not_but_once() {
        let unknown = call(0, 1, make(1), Outcome::Unknown);
        let find = |began, outcome| call(began, began + 1, NameOp::Find(at(1, 1)), outcome);
        let unlink = |began| call(began, began + 1, NameOp::Unlink(at(1, 1)), NOTHING);
        assert_eq!(
            check(&[unknown.clone(), find(2, NOTHING)]),
            CheckResult::Linear
        );
        let later = [
            unknown.clone(),
            find(2, NOTHING),
            find(4, found(9)),
            unlink(6),
            find(8, NOTHING),
        ];
        assert_eq!(check(&later), CheckResult::Linear);
        let twice = [unknown, find(2, found(9)), unlink(4), find(6, found(9))];
        assert!(matches!(check(&twice), CheckResult::Broken { .. }));
    }

    #[test]
    fn directories_are_removed_when_empty_and_make_no_loops() {
        let mkdir = |began, dir, ino| {
            let op = NameOp::Make {
                at: at(dir, 1),
                kind: Dir,
                exclusive: true,
            };
            call(began, began + 1, op, Outcome::Done(Some((Ino(ino), Dir))))
        };
        let rmdir = |outcome| call(4, 5, NameOp::Rmdir(at(1, 1)), outcome);
        let into_itself = |outcome| {
            let op = NameOp::Rename {
                from: at(1, 1),
                to: at(6, 2),
                flags: 0,
            };
            call(4, 5, op, outcome)
        };
        let tree = [mkdir(0, 1, 5), mkdir(2, 5, 6)];
        for (last, linear) in [
            (rmdir(Outcome::Refused), true),
            (rmdir(NOTHING), false),
            (into_itself(Outcome::Refused), true),
            (into_itself(NOTHING), false),
        ] {
            let calls = [&tree[..], &[last]].concat();
            assert_eq!(check(&calls) == CheckResult::Linear, linear);
        }
    }

    #[test]
    fn a_file_without_a_name_gets_one_again_only_where_its_home_may_not_know() {
        let link = |outcome| {
            let op = NameOp::Link {
                ino: Ino(7),
                at: at(1, 2),
            };
            call(4, 5, op, outcome)
        };
        let gone = [
            call(0, 1, make(1), found(7)),
            call(2, 3, NameOp::Unlink(at(1, 1)), NOTHING),
        ];
        for (loses_calls, outcome, linear) in [
            (false, Outcome::Refused, true),
            (false, NOTHING, false),
            (true, Outcome::Refused, true),
            (true, NOTHING, true),
        ] {
            let calls = [&gone[..], &[link(outcome)]].concat();
            let verdict = super::check(&Model::new(Ino(1), loses_calls), &calls);
            assert_eq!(verdict == CheckResult::Linear, linear);
        }
    }
}
