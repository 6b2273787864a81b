//! `weir-sim`: runs seeds one after the other, in one thread. `cargo xtask simulate` starts one per
//! core, and restarts it after some seeds: the mappings of tables last for a process's life.
//!
//! ```text
//! weir-sim FIRST COUNT [--mild|--moves|--cuts]  a line a seed: what came of it; --mild: none of
//!                               the faults by which calls to servers are lost; --moves: programs
//!                               rename, servers come back, and there is no other fault; --cuts:
//!                               the same, but programs write and cut a few files
//! weir-sim --replay SEED ...    one seed with its trace; --mild, --moves, --cuts as above;
//!                               --without-clients 0,2 --without-faults 1 --operations N leave
//!                               some of it out
//! weir-sim --shrink SEED ...    what can be left out so that it still fails
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;

use weir_sim::plan::{Exclusions, Plan};
use weir_sim::run::{run, Outcome};
use weir_sim::shrink::shrink;

const USAGE: &str =
    "usage: weir-sim FIRST COUNT | --replay SEED [--without-clients N,..] [--without-faults N,..] \
     [--operations N] | --shrink SEED, and [--mild | --moves | --cuts]";

/// The set of faults in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    Mild,
    Usual,
    Moves,
    Cuts,
}

impl Faults {
    fn option(self) -> Option<&'static str> {
        match self {
            Faults::Mild => Some("--mild"),
            Faults::Usual => None,
            Faults::Moves => Some("--moves"),
            Faults::Cuts => Some("--cuts"),
        }
    }
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let asked = |faults: &Faults| words.iter().any(|word| Some(&**word) == faults.option());
    let faults = [Faults::Mild, Faults::Moves, Faults::Cuts]
        .into_iter()
        .find(asked);
    let faults = faults.unwrap_or(Faults::Usual);
    words.retain(|word| Some(&**word) != faults.option());
    let done = match words.first().map(String::as_str) {
        Some("--replay") => replay(&words[1..], faults),
        Some("--shrink") => smaller(&words[1..], faults),
        _ => many(&words, faults),
    };
    done.unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::from(2)
    })
}

/// The plan of a seed, or a part of it.
fn plan_of(seed: u64, faults: Faults) -> Plan {
    let plan = Plan::from_seed(seed);
    let plan = match seed % 4 {
        0 => plan,
        1 => plan.asking(),
        2 => plan.elevating(),
        _ => plan.asking().elevating(),
    };
    // Beside programs that do little but rename or cut it is not clean yet: docs/measurements/simulation.md.
    let evicts = seed / 4 % 2 == 1 && matches!(faults, Faults::Mild | Faults::Usual);
    let plan = match evicts {
        false => plan,
        true => plan.evicting(),
    };
    let plan = match seed / 8 % 2 == 1 {
        false => plan,
        true => plan.striding(),
    };
    match faults {
        Faults::Mild => plan.mild(),
        Faults::Usual => plan,
        Faults::Moves => plan.moving(),
        Faults::Cuts => plan.cutting(),
    }
}

fn many(words: &[String], faults: Faults) -> Option<ExitCode> {
    let first: u64 = words.first()?.parse().ok()?;
    let count: u64 = words.get(1)?.parse().ok()?;
    for seed in first..first.saturating_add(count) {
        // If the run hangs or crashes, this line names its seed.
        println!("begin {seed}");
        let outcome = run(&plan_of(seed, faults), false);
        println!("{}", line(seed, &outcome));
    }
    Some(ExitCode::SUCCESS)
}

/// One line: key=value, the first fault last.
fn line(seed: u64, outcome: &Outcome) -> String {
    let mut drawn: BTreeMap<&str, u32> = BTreeMap::new();
    for name in &outcome.drawn {
        *drawn.entry(name).or_default() += 1;
    }
    let drawn: Vec<String> = drawn
        .iter()
        .map(|(name, n)| format!("{}:{n}", name.replace(' ', "-")))
        .collect();
    let Outcome { messages, .. } = outcome;
    format!(
        "end {seed} faults={} hash={:016x} operations={} failed={} decided={} space={} links={} evicted={} full={} sent={} \
         broken={} twice={} overtook={} held={} drawn={}",
        outcome.faults.len(),
        outcome.hash,
        outcome.operations,
        outcome.failed,
        u8::from(outcome.decided),
        u8::from(outcome.space > 0),
        u8::from(outcome.links > 0),
        outcome.evicted,
        outcome.full,
        messages.sent,
        messages.broken,
        messages.twice,
        messages.overtook,
        messages.held,
        drawn.join(","),
    )
}

fn replay(words: &[String], faults: Faults) -> Option<ExitCode> {
    let seed = words.first()?.parse().ok()?;
    let mut without = Exclusions::default();
    for pair in words[1..].chunks(2) {
        let [key, value] = pair else { return None };
        let numbers = || value.split(',').map(|n| n.parse().ok()).collect();
        match key.as_str() {
            "--without-clients" => without.clients = Option::<Vec<usize>>::clone(&numbers())?,
            "--without-faults" => without.faults = Option::<Vec<usize>>::clone(&numbers())?,
            "--operations" => without.operations = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    let plan = plan_of(seed, faults).without(&without);
    println!("{plan:#?}");
    let outcome = run(&plan, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    for fault in &outcome.faults {
        println!("FAULT {fault}");
    }
    println!("{}", line(seed, &outcome));
    Some(ExitCode::from(u8::from(!outcome.faults.is_empty())))
}

fn smaller(words: &[String], faults: Faults) -> Option<ExitCode> {
    let seed: u64 = words.first()?.parse().ok()?;
    let without = shrink(&plan_of(seed, faults));
    let list = |numbers: &[usize]| {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        numbers.join(",")
    };
    let mut command = vec!["--replay".to_owned(), seed.to_string()];
    command.extend(faults.option().map(str::to_owned));
    for (key, numbers) in [
        ("--without-clients", &without.clients),
        ("--without-faults", &without.faults),
    ] {
        if !numbers.is_empty() {
            command.extend([key.to_owned(), list(numbers)]);
        }
    }
    if let Some(operations) = without.operations {
        command.extend(["--operations".to_owned(), operations.to_string()]);
    }
    println!("{}", command.join(" "));
    Some(ExitCode::SUCCESS)
}
