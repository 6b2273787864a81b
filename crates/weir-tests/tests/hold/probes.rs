//! Processes that each make one kind of call all the time (`tests/hold/calls.c`): none may take longer
//! than its bound, or fail with an unexpected errno.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use weir_tests::build::Compiler;

use super::room::{program, said};

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
    pub slowest: Duration,
    pub errnos: Vec<i32>,
}

/// One kind of call on a node.
pub struct Probe {
    child: Child,
    out: BufReader<ChildStdout>,
}

fn calls() -> String {
    program("calls.c", Compiler::C).display().to_string()
}

/// Creates the files that the calls use, from this node.
pub fn prepare(room: &impl Place, node: usize) {
    said(
        &room
            .run(node, &calls(), &["/weir", "p", "prepare"])
            .output()
            .unwrap(),
    );
}

/// Makes each kind of call from this node: all must succeed.
#[track_caller]
pub fn all_good(room: &impl Place, node: usize, tag: &str) {
    let output = room.run(node, &calls(), &["/weir", tag, "all"]).output();
    assert_eq!(said(&output.unwrap()), "all good\n");
}

/// Starts all kinds on a node.
pub fn start(room: &impl Place, node: usize, tag: &str) -> Vec<Probe> {
    let probes = KINDS.map(|kind| {
        let mut command = room.run(node, &calls(), &["/weir", &format!("{tag}-{kind}"), kind]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Probe { child, out }
    });
    let ready = |mut probe: Probe| {
        let mut line = String::new();
        probe.out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{:?}", probe.child);
        probe
    };
    probes.into_iter().map(ready).collect()
}

/// Ends the probes; returns the outcome of each.
pub fn end(probes: Vec<Probe>) -> Vec<Outcome> {
    let mut told = probes;
    for probe in &mut told {
        let mut stdin = probe.child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
    }
    told.into_iter().map(outcome).collect()
}

fn outcome(mut probe: Probe) -> Outcome {
    let mut text = String::new();
    probe.out.read_to_string(&mut text).unwrap();
    assert!(probe.child.wait().unwrap().success(), "{text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let errnos = words[8].split(',').map(|word| word.parse().unwrap());
    Outcome {
        kind: words[0].to_owned(),
        ok: number(2),
        failed: number(4),
        slowest: Duration::from_millis(number(6)),
        errnos: errnos.filter(|errno| *errno != 0).collect(),
    }
}

/// Checks that each call ended within the bound, and that each failure is an allowed one.
#[track_caller]
pub fn judge(outcomes: &[Outcome], bound: Duration, may: &[i32]) {
    for outcome in outcomes {
        eprintln!("{outcome:?}");
    }
    for outcome in outcomes {
        assert!(outcome.slowest <= bound, "more than {bound:?}: {outcome:?}");
        let known = outcome.errnos.iter().all(|errno| may.contains(errno));
        assert!(known, "another error than {may:?}: {outcome:?}");
    }
}
