//! Processes that each make one kind of call all the time (`tests/hold/calls.c`): none may hang, or
//! fail with an unexpected errno.
//!
//! A test shows that calls do not wait for something by having calls begin and end
//! ([`wait_for_calls`]) before it lets that thing happen.

use std::process::Command;

use weir_tests::build::Compiler;

use super::room::{program, said};
use super::talk::Talk;

/// The number of files that the calls use in turn. Of so many some are at every server, so that as many
/// calls in a row ask each of them.
pub const FILES: usize = 24;
/// Each kind of call.
const KINDS: [&str; 11] = [
    "open", "stat", "readdir", "create", "unlink", "rename", "read", "write", "fsync", "lock",
    "laminate",
];

/// An environment in which programs run with an instance.
pub trait Place {
    /// A program on a node, or with the server of that rank.
    fn run(&self, node: usize, program: &str, words: &[&str]) -> Command;
}

/// The result of the calls of one kind.
#[derive(Debug)]
pub struct Outcome {
    pub kind: String,
    pub ok: u64,
    pub failed: u64,
    /// Shown only: no test asserts a time.
    #[expect(dead_code, reason = "read by Debug")]
    pub slowest_ms: u64,
    pub errnos: Vec<i32>,
}

fn calls() -> String {
    program("calls.c", Compiler::C).display().to_string()
}

/// Creates the files that the calls use, from this node.
pub fn prepare(room: &impl Place, node: usize) {
    said(&mut room.run(node, &calls(), &["/weir", "p", "prepare"]));
}

/// Makes each kind of call from this node: all must succeed.
#[track_caller]
pub fn all_good(room: &impl Place, node: usize, tag: &str) {
    let mut all = room.run(node, &calls(), &["/weir", tag, "all"]);
    assert_eq!(said(&mut all), "all good\n");
}

/// Starts all kinds on a node.
pub fn start(room: &impl Place, node: usize, tag: &str) -> Vec<Talk> {
    let mut probes = KINDS.map(|kind| {
        let words = ["/weir", &format!("{tag}-{kind}"), kind];
        Talk::start(room, node, "calls.c", &words)
    });
    for probe in &mut probes {
        assert_eq!(probe.read_line(), "ready\n");
    }
    probes.into()
}

/// Waits until each probe has made `count` more calls, all of which began after this one.
#[track_caller]
pub fn wait_for_calls<'t>(probes: impl IntoIterator<Item = &'t mut Talk>, count: usize) {
    let mut probes: Vec<&mut Talk> = probes.into_iter().collect();
    for probe in &mut probes {
        probe.send(&count.to_string());
    }
    for probe in &mut probes {
        assert_eq!(probe.read_line(), "made\n");
    }
}

/// Ends the probes; returns the outcome of each.
pub fn stop_probes(mut probes: Vec<Talk>) -> Vec<Outcome> {
    probes.iter_mut().for_each(Talk::send_line);
    probes.into_iter().map(outcome).collect()
}

fn outcome(probe: Talk) -> Outcome {
    let text = probe.wait_for_end();
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let errnos = words[8].split(',').map(|word| word.parse().unwrap());
    Outcome {
        kind: words[0].to_owned(),
        ok: number(2),
        failed: number(4),
        slowest_ms: number(6),
        errnos: errnos.filter(|errno| *errno != 0).collect(),
    }
}

/// Checks that each failure is an allowed one.
#[track_caller]
pub fn judge(outcomes: &[Outcome], may: &[i32]) {
    for outcome in outcomes {
        eprintln!("{outcome:?}");
    }
    for outcome in outcomes {
        let known = outcome.errnos.iter().all(|errno| may.contains(errno));
        assert!(known, "another error than {may:?}: {outcome:?}");
    }
}
