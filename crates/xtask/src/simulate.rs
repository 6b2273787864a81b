//! `cargo xtask simulate`: seeds of the cluster's simulation (`weir-sim`), on all cores.
//!
//! A worker process runs a batch of seeds and says before each that it begins: so a seed that
//! panics, or never ends, is known, and the others go on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;

/// Seeds that a worker runs: what its clients mapped is given back when it ends.
const BATCH: u64 = 40;
/// A seed that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// After so many failing seeds no more are begun.
const ENOUGH: usize = 5;
/// Lines of a trace that are shown.
const SHOWN: usize = 40;

/// The options of `cargo xtask simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// How many seeds to run [default: 1, or with --minutes no end].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long = "seed", value_name = "FIRST", default_value_t = 0)]
    first: u64,
    /// Begin no seeds after so long.
    #[arg(long, value_name = "M")]
    minutes: Option<u64>,
    /// Processes that run seeds at once [default: as many as there are cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// The simulator, where it is built already.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Without faults by which calls to servers are lost.
    #[arg(long)]
    mild: bool,
    /// Programs rename, servers are killed and come back, and there is no other fault.
    #[arg(long, conflicts_with = "mild")]
    moves: bool,
    /// The same, but programs write and cut a few files.
    #[arg(long, conflicts_with_all = ["mild", "moves"])]
    cuts: bool,
}

impl SimulateArgs {
    /// The first seed, and the one behind the last.
    fn range(&self) -> (u64, u64) {
        let without = if self.minutes.is_some() { u64::MAX } else { 1 };
        let seeds = self.seeds.unwrap_or(without);
        (self.first, self.first.saturating_add(seeds))
    }

    /// The simulator's option.
    fn faults(&self) -> Option<&'static str> {
        let moves = self.moves.then_some("--moves");
        let cuts = self.cuts.then_some("--cuts");
        self.mild.then_some("--mild").or(moves).or(cuts)
    }

    fn time(&self) -> Option<Duration> {
        let minutes = self.minutes?;
        Some(Duration::from_secs(minutes.saturating_mul(60)))
    }

    fn jobs(&self) -> usize {
        let cores = std::thread::available_parallelism;
        let jobs = self.jobs.or_else(|| cores().ok());
        jobs.map_or(1, NonZeroUsize::get)
    }
}

/// The results of the seeds so far.
#[derive(Debug, Default)]
struct SeedTally {
    seeds: u64,
    sums: BTreeMap<String, u64>,
    drawn: BTreeMap<String, u64>,
    /// Failing seeds, with what there is to say at once.
    failed: BTreeMap<u64, String>,
}

impl SeedTally {
    /// Takes in the line of a seed that ended.
    fn add_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let seed: u64 = words.next()?.parse().ok()?;
        self.seeds += 1;
        for word in words {
            let (key, value) = word.split_once('=')?;
            match (key, value.parse::<u64>()) {
                ("drawn", _) => {
                    for fault in value.split(',').filter(|fault| !fault.is_empty()) {
                        let (name, count) = fault.split_once(':')?;
                        *self.drawn.entry(name.to_owned()).or_default() +=
                            count.parse::<u64>().ok()?;
                    }
                }
                ("hash", _) => {}
                ("faults", Ok(faults)) if faults > 0 => {
                    self.failed.insert(seed, format!("{faults} faults"));
                }
                (_, Ok(number)) => *self.sums.entry(key.to_owned()).or_default() += number,
                (_, Err(_)) => return None,
            }
        }
        Some(())
    }

    fn print(&self, took: Duration) {
        let sum = |key: &str| self.sums.get(key).copied().unwrap_or(0);
        let rate = self.seeds * 1000 / u64::try_from(took.as_millis().max(1)).unwrap_or(1);
        println!(
            "{} seeds in {:.0?}, {rate} a second; {} operations, {} failed for want of a server",
            self.seeds,
            took,
            sum("operations"),
            sum("failed")
        );
        println!(
            "messages: {} sent, {} twice, {} may have overtaken others, {} held by cuts; {} \
             connections broken",
            sum("sent"),
            sum("twice"),
            sum("overtook"),
            sum("held"),
            sum("broken")
        );
        let drawn: Vec<_> = self
            .drawn
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        println!(
            "faults: {}; {} times no room",
            drawn.join(", "),
            sum("full")
        );
        let undecided = self.seeds - sum("decided").min(self.seeds);
        println!(
            "not right, and not held against anybody (docs/SPECIFICATION.md): space in {} seeds \
             whose calls were lost, counts of links in {} whose servers came back",
            sum("space"),
            sum("links")
        );
        println!("names of {undecided} seeds were too much to check to the end");
    }
}

/// Runs it; success if no seed failed.
pub fn run(wish: &SimulateArgs) -> Result<ExitCode> {
    let ((first, end), time) = (wish.range(), wish.time());
    let program = match &wish.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let begin = Instant::now();
    let tally = Arc::new(Mutex::new(SeedTally::default()));
    let next = Arc::new(AtomicU64::new(first));
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..wish.jobs())
            .map(|_| {
                let (tally, next, program) = (&tally, &next, &program);
                scope.spawn(move || -> Result<()> {
                    loop {
                        let late = time.is_some_and(|time| begin.elapsed() >= time);
                        let failed = locked(tally).failed.len();
                        let first = next.fetch_add(BATCH, Ordering::Relaxed);
                        if late || failed >= ENOUGH || first >= end {
                            return Ok(());
                        }
                        let seeds = first..first + BATCH.min(end - first);
                        batch(program, seeds, wish.faults(), tally)?;
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("a worker's thread does not panic")?;
        }
        Ok(())
    })?;
    let tally = locked(&tally);
    tally.print(begin.elapsed());
    for (seed, what) in tally.failed.iter().take(ENOUGH) {
        explain(&program, *seed, wish.faults(), what)?;
    }
    if tally.failed.is_empty() {
        println!("none failed");
    }
    Ok(ExitCode::from(u8::from(!tally.failed.is_empty())))
}

fn locked(tally: &Mutex<SeedTally>) -> std::sync::MutexGuard<'_, SeedTally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds the simulator.
fn build() -> Result<PathBuf> {
    let root = crate::workspace_root();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--quiet", "--package", "weir-sim"])
        .status()?;
    ensure!(built.success(), "weir-sim does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("debug").join("weir-sim"))
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs seeds, past those that kill the worker.
fn batch(
    program: &Path,
    seeds: Range<u64>,
    faults: Option<&str>,
    tally: &Mutex<SeedTally>,
) -> Result<()> {
    let Range { start: mut at, end } = seeds;
    while at < end {
        let mut child = command(program)
            .args([at.to_string(), (end - at).to_string()])
            .args(faults)
            .spawn()?;
        let (sender, lines) = channel();
        let out = child.stdout.take().context("a pipe")?;
        let reader = std::thread::spawn(move || pass_on(out, &sender));
        let begun = listen(&lines, tally);
        let word = last_words(&mut child);
        // It ends with the pipe.
        let _ = reader.join();
        match begun {
            Some(seed) => {
                let mut tally = locked(tally);
                tally.seeds += 1;
                tally.failed.insert(seed, word?);
                at = seed + 1;
            }
            None => at = end,
        }
    }
    Ok(())
}

fn pass_on(out: impl Read, to: &Sender<String>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if to.send(line).is_err() {
            return;
        }
    }
}

/// Takes in a worker's lines; the seed that it began and did not end.
fn listen(lines: &Receiver<String>, tally: &Mutex<SeedTally>) -> Option<u64> {
    let mut begun = None;
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                if let Some(seed) = line.strip_prefix("begin ") {
                    begun = seed.parse().ok();
                } else if let Some(rest) = line.strip_prefix("end ") {
                    begun = None;
                    if locked(tally).add_line(rest).is_none() {
                        eprintln!("what is {line:?}?");
                    }
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return begun,
        }
    }
}

/// The last output of a worker that has ended, or must be ended.
fn last_words(child: &mut Child) -> Result<String> {
    let hangs = child.try_wait()?.is_none() && {
        // Its output has ended: it is about to, or it hangs.
        std::thread::sleep(Duration::from_millis(200));
        child.try_wait()?.is_none()
    };
    if hangs {
        child.kill()?;
    }
    child.wait()?;
    let mut said = String::new();
    if let Some(mut err) = child.stderr.take() {
        err.read_to_string(&mut said)?;
    }
    let said = said.trim();
    Ok(match (hangs, said.is_empty()) {
        (true, _) => "hangs".to_owned(),
        (false, true) => "the worker died".to_owned(),
        (false, false) => said.to_owned(),
    })
}

/// Says what a failing seed does, and how to see it again.
fn explain(program: &Path, seed: u64, faults: Option<&str>, what: &str) -> Result<()> {
    println!("\nseed {seed}: {what}");
    let smaller = command(program)
        .args(["--shrink", &seed.to_string()])
        .args(faults)
        .output()?;
    let smaller = String::from_utf8_lossy(&smaller.stdout).trim().to_owned();
    let smaller = if smaller.is_empty() {
        let option = faults.map_or(String::new(), |faults| format!(" {faults}"));
        format!("--replay {seed}{option}")
    } else {
        smaller
    };
    let replayed = command(program).args(smaller.split(' ')).output()?;
    let text = String::from_utf8_lossy(&replayed.stdout);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN)..] {
        println!("  {line}");
    }
    println!("again: {} {smaller}", program.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        wish: SimulateArgs,
    }

    fn wish(words: &str) -> Result<SimulateArgs, clap::Error> {
        use clap::Parser;
        let words = std::iter::once("x").chain(words.split_whitespace());
        Words::try_parse_from(words).map(|words| words.wish)
    }

    #[test]
    fn wishes_are_understood() {
        let some = wish("--seeds 7 --seed 3 --jobs 2").unwrap();
        assert_eq!((some.range(), some.jobs()), ((3, 10), 2));
        let timed = wish("--minutes 3 --mild").unwrap();
        assert_eq!(timed.time(), Some(Duration::from_secs(180)));
        assert_eq!(timed.range(), (0, u64::MAX));
        assert_eq!(timed.faults(), Some("--mild"));
        assert_eq!(wish("--moves").unwrap().faults(), Some("--moves"));
        assert_eq!(wish("--cuts").unwrap().faults(), Some("--cuts"));
        assert!(wish("--cuts --moves").is_err());
        assert_eq!(wish("").unwrap().range(), (0, 1));
        assert!(wish("--minutes").is_err());
        assert!(wish("--what 3").is_err());
    }

    #[test]
    fn lines_of_seeds_are_added_up() {
        let mut tally = SeedTally::default();
        let line = |seed: u64, faults: u64| {
            format!("{seed} faults={faults} hash=00ff operations=5 failed=1 decided=1 drawn=cut:2,slow:1")
        };
        tally.add_line(&line(1, 0)).unwrap();
        tally.add_line(&line(2, 3)).unwrap();
        assert_eq!((tally.seeds, tally.sums["operations"]), (2, 10));
        assert_eq!((tally.drawn["cut"], tally.drawn["slow"]), (4, 2));
        assert_eq!(tally.failed.keys().copied().collect::<Vec<_>>(), [2]);
        assert!(tally.add_line("x").is_none());
    }
}
