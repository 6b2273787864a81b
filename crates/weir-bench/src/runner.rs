//! Rounds of cases over targets.
//!
//! All targets are measured one after the other within a case, in an order that turns with the rounds, and the
//! machine's limits beside them. Files are removed before the next measurement, so that no target is
//! measured in the memory pressure of another, and memory that a file system keeps warm can be used again.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{bail, Context};

use crate::args::Target;
use crate::calls::{Call, CallStep};
use crate::copy;
use crate::copy_limit::CopyStep;
use crate::data::AfterWrite;
use crate::error::Interrupted;
use crate::group::{self, Interrupt, Job, StepOfRank};
use crate::layout::{Layout, Pattern, SplitMix64};
use crate::names::{NameCall, NameStep};
use crate::pieces::{FilePieces, Offsets};
use crate::plan::{Cases, DataCase, Dirs, LimitCase, MetaCase, Metric, Op, DEVICE};
use crate::results::Results;
use crate::space::{ensure_room, CaseDir, RunDir};
use crate::table::show_rate;
use crate::timing::{now_ns, Measured};
use crate::wire::Step;

/// Everything to be measured.
pub struct TargetsPlan {
    /// The targets of all cases.
    pub targets: Vec<Target>,
    /// The targets of the cases with `durable_cases`.
    pub durable: Vec<Target>,
    /// Where the device is measured.
    pub device: Option<PathBuf>,
    /// The cases.
    pub cases: Cases,
    /// The target in whose single calls nothing is preloaded, if it is not the only one.
    pub baseline: String,
    /// Rounds.
    pub rounds: u32,
    /// Compare every byte.
    pub verify: bool,
    /// Measure copy limits.
    pub limits: bool,
    /// No progress.
    pub quiet: bool,
}

/// The outcome of a plan.
#[derive(Default)]
pub struct Outcome {
    /// The samples.
    pub results: Results,
    /// Bytes read back and compared.
    pub verified_bytes: u64,
}

/// How long one call is measured in one target and round.
const CALL_BUDGET_NS: u64 = 150_000_000;

/// Runs the plan.
///
/// # Errors
/// `WrongData`, `Interrupted`, or what went wrong, with the case and target.
pub fn run(plan: &TargetsPlan) -> anyhow::Result<Outcome> {
    check_room(plan)?;
    let interrupt = Interrupt::watch()?;
    let dirs = run_dirs(&plan.targets)?;
    let durable = run_dirs(&plan.durable)?;
    let device = plan.device.iter().map(|dir| Target {
        name: DEVICE.into(),
        dir: dir.clone(),
    });
    let device = run_dirs(&device.collect::<Vec<_>>())?;
    let mut run = TargetsRun {
        plan,
        interrupt,
        seeds: SplitMix64(u64::from(std::process::id()) ^ now_ns()),
        round: 0,
        number: 0,
        outcome: Outcome::default(),
    };
    if let Some(first) = &plan.cases.first {
        for dir in &dirs {
            run.data(first, dir)?;
        }
    }
    for round in 0..plan.rounds {
        run.round = round;
        run.one_round(&dirs, &durable, device.first())?;
    }
    Ok(run.outcome)
}

fn run_dirs(targets: &[Target]) -> anyhow::Result<Vec<RunDir>> {
    targets.iter().map(RunDir::create).collect()
}

fn check_room(plan: &TargetsPlan) -> anyhow::Result<()> {
    let most = |cases: &[DataCase]| cases.iter().map(DataCase::bytes).max().unwrap_or(0);
    for target in &plan.targets {
        ensure_room(target, most(&plan.cases.data))?;
    }
    for target in &plan.durable {
        ensure_room(target, most(&plan.cases.durable))?;
    }
    Ok(())
}

struct TargetsRun<'a> {
    plan: &'a TargetsPlan,
    interrupt: Interrupt,
    seeds: SplitMix64,
    round: u32,
    number: u32,
    outcome: Outcome,
}

impl TargetsRun<'_> {
    fn one_round(
        &mut self,
        dirs: &[RunDir],
        durable: &[RunDir],
        device: Option<&RunDir>,
    ) -> anyhow::Result<()> {
        let plan = self.plan;
        let mut limits = BTreeSet::new();
        for case in &plan.cases.data {
            for limit in limits_of(case).filter(|_| plan.limits) {
                if limits.insert(limit.clone()) {
                    self.limit(&limit)?;
                }
            }
            for dir in self.turned(dirs) {
                self.data(case, dir)?;
            }
        }
        for case in &plan.cases.durable {
            for dir in durable {
                self.data(case, dir)?;
            }
        }
        if let Some((case, dir)) = plan.cases.device.as_ref().zip(device) {
            self.device(case, dir)?;
        }
        for case in &plan.cases.meta {
            for dir in self.turned(dirs) {
                self.meta(case, dir)?;
            }
        }
        for &call in &plan.cases.calls {
            for dir in self.turned(dirs) {
                self.call(call, dir)?;
            }
        }
        Ok(())
    }

    /// The targets, beginning with another one in each round.
    fn turned<'d>(&self, dirs: &'d [RunDir]) -> impl Iterator<Item = &'d RunDir> {
        let skip = self.round as usize % dirs.len().max(1);
        dirs[skip..].iter().chain(&dirs[..skip])
    }

    fn data(&mut self, case: &DataCase, dir: &RunDir) -> anyhow::Result<()> {
        let place = self.place(dir)?;
        let files = self.case_files(case, &place, false);
        let write = if case.first {
            Op::FirstWrite
        } else {
            Op::Write
        };
        let mut same = vec![files.write(Some(write))];
        if case.read_same {
            same.push(files.read(Some(Op::ReadSame), 0));
            if self.plan.verify {
                same.push(files.verify(0));
            }
        }
        let mut other = Vec::new();
        // One process alone has no neighbour, but the second group is new processes in any case.
        let shift = 1 % case.processes;
        if case.read_other {
            other.push(files.read(Some(Op::ReadOther), shift));
        }
        if self.plan.verify && (case.read_other || !case.read_same) {
            other.push(files.verify(shift));
        }
        let metric = |op| case.metric(op);
        for steps in [same, other] {
            self.group(case.processes, steps, metric, &dir.target.name)
                .with_context(|| what(&case.metric(Op::Write), &dir.target.name))?;
        }
        Ok(())
    }

    fn device(&mut self, case: &DataCase, dir: &RunDir) -> anyhow::Result<()> {
        let place = self.place(dir)?;
        let files = self.case_files(case, &place, true);
        let steps = vec![
            files.write(Some(Op::DeviceWrite)),
            files.read(Some(Op::DeviceRead), 0),
        ];
        let metric = |op| Metric {
            transfer: case.transfer,
            ..Metric::new(op, case.processes)
        };
        self.group(case.processes, steps, metric, DEVICE)
            .with_context(|| format!("O_DIRECT in {}", dir.target.dir.display()))
    }

    fn meta(&mut self, case: &MetaCase, dir: &RunDir) -> anyhow::Result<()> {
        let place = self.place(dir)?;
        let dirs: Vec<PathBuf> = match case.dirs {
            Dirs::Shared => vec![place.0.clone()],
            Dirs::Own => (0..case.processes)
                .map(|r| place.0.join(format!("dir.{r}")))
                .collect(),
        };
        for own in dirs.iter().filter(|_| case.dirs == Dirs::Own) {
            std::fs::create_dir(own).with_context(|| format!("making {}", own.display()))?;
        }
        let steps = NameCall::ALL.map(|call| {
            let op = match call {
                NameCall::Create => Op::Create,
                NameCall::Stat => Op::Stat,
                NameCall::Open => Op::Open,
                NameCall::Remove => Op::Remove,
            };
            let (dirs, files) = (&dirs, case.files);
            let step = move |rank: u32| {
                Step::Names(NameStep {
                    call,
                    directory: dirs[rank as usize % dirs.len()].clone(),
                    first: u64::from(rank) * files,
                    files,
                })
            };
            MeasuredStep::new(op, step)
        });
        let steps = steps.into();
        self.group(
            case.processes,
            steps,
            |op| case.metric(op),
            &dir.target.name,
        )
        .with_context(|| what(&case.metric(Op::Create), &dir.target.name))
    }

    /// Times one call in a process of its own.
    fn call(&mut self, call: Call, dir: &RunDir) -> anyhow::Result<()> {
        let place = self.place(dir)?;
        let step = |_| {
            Step::Call(CallStep {
                call,
                dir: place.0.clone(),
                budget_ns: CALL_BUDGET_NS,
            })
        };
        let (metric, target) = (Metric::new(Op::Call(call), 1), &dir.target.name);
        let job = Job {
            processes: 1,
            steps: vec![Box::new(step)],
            // A target alone is compared with nothing: it may be what is preloaded.
            bare: self.plan.targets.len() > 1 && *target == self.plan.baseline,
        };
        let measured = self.start(&job).with_context(|| what(&metric, target))?;
        self.record(&metric, target, measured.into_iter().flatten().next());
        Ok(())
    }

    fn limit(&mut self, case: &LimitCase) -> anyhow::Result<()> {
        let variants: Vec<_> = LimitCase::variants().collect();
        let step = |&(huge, method): &(bool, copy::Method)| -> StepOfRank<'_> {
            let step = CopyStep {
                op: case.op,
                transfer: case.transfer,
                block: case.block,
                huge,
                method,
            };
            Box::new(move |_| Step::Copy(step.clone()))
        };
        let steps: Vec<_> = variants.iter().map(step).collect();
        let measured = self
            .measure(case.processes, steps)
            .context("measuring the copy limit")?;
        for ((huge, method), result) in variants.into_iter().zip(measured) {
            let pages = if huge { "huge pages" } else { "4 KiB pages" };
            let series = format!("{pages}, {}", copy::name(method));
            self.record(&case.metric(), &series, result);
        }
        Ok(())
    }

    /// Runs steps in one group of processes and records those that have an operation.
    fn group(
        &mut self,
        processes: u32,
        steps: Vec<MeasuredStep<'_>>,
        metric: impl Fn(Op) -> Metric,
        series: &str,
    ) -> anyhow::Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let (ops, steps): (Vec<_>, Vec<_>) =
            steps.into_iter().map(|one| (one.op, one.step)).unzip();
        for (op, result) in ops.into_iter().zip(self.measure(processes, steps)?) {
            match op {
                Some(op) => self.record(&metric(op), series, result),
                None => self.outcome.verified_bytes += result.map_or(0, |m| m.bytes),
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        processes: u32,
        steps: Vec<StepOfRank<'_>>,
    ) -> anyhow::Result<Vec<Option<Measured>>> {
        self.start(&Job {
            processes,
            steps,
            bare: false,
        })
    }

    fn start(&self, job: &Job<'_>) -> anyhow::Result<Vec<Option<Measured>>> {
        if self.interrupt.asked() {
            bail!(Interrupted);
        }
        group::run(job, &self.interrupt)
    }

    fn record(&mut self, metric: &Metric, series: &str, measured: Option<Measured>) {
        let Some(measured) = measured else { return };
        self.outcome
            .results
            .add(metric.clone(), series, self.round, measured);
        if !self.plan.quiet {
            let sample = self
                .outcome
                .results
                .samples(metric, series)
                .last()
                .expect("just added");
            let rate = show_rate(metric, sample.rate(metric));
            let (round, rounds) = (self.round + 1, self.plan.rounds);
            eprintln!(
                "round {round}/{rounds}  {:<74} {rate}",
                what(metric, series)
            );
        }
    }

    fn place(&mut self, dir: &RunDir) -> anyhow::Result<CaseDir> {
        self.number += 1;
        dir.case(self.number)
    }

    /// The files of a case in `place`, with a content of their own.
    fn case_files(&mut self, case: &DataCase, place: &CaseDir, direct: bool) -> CaseFiles {
        let pattern = if direct { Pattern::Nn } else { case.pattern };
        CaseFiles {
            directory: place.0.clone(),
            layout: Layout {
                pattern,
                ranks: case.processes,
                transfer: case.transfer,
                block: case.block,
                segments: case.segments,
                seed: self.seeds.next(),
            },
            seed: self.seeds.next(),
            direct,
            after: match case.fsync {
                true => AfterWrite::Sync,
                false => AfterWrite::Close,
            },
        }
    }
}

/// A step, and the operation whose sample it gives; `None`: it compares.
struct MeasuredStep<'a> {
    op: Option<Op>,
    step: StepOfRank<'a>,
}

impl<'a> MeasuredStep<'a> {
    fn new(op: Op, step: impl Fn(u32) -> Step + 'a) -> Self {
        Self {
            op: Some(op),
            step: Box::new(step),
        }
    }
}

/// The file or files of a data case.
struct CaseFiles {
    directory: PathBuf,
    layout: Layout,
    seed: u64,
    direct: bool,
    after: AfterWrite,
}

impl CaseFiles {
    /// The bytes of one rank.
    fn share(&self, rank: u32) -> FilePieces {
        let is_shared = self.layout.pattern.is_shared();
        let (file, number) = match is_shared {
            true => ("data".to_owned(), 0),
            false => (format!("data.{rank}"), rank),
        };
        FilePieces {
            path: self.directory.join(file),
            offsets: Offsets::Share {
                layout: self.layout.clone(),
                rank,
            },
            size: self.layout.transfer,
            list: 1,
            seed: self.seed.wrapping_add(u64::from(number)),
            direct: self.direct,
        }
    }

    fn write(&self, op: Option<Op>) -> MeasuredStep<'_> {
        let step = |rank| Step::Write {
            data: self.share(rank),
            after: self.after,
        };
        MeasuredStep {
            op,
            step: Box::new(step),
        }
    }

    /// Each rank reads the bytes of the rank that is `shift` above its own.
    fn read(&self, op: Option<Op>, shift: u32) -> MeasuredStep<'_> {
        let step = move |rank| Step::Read(self.share((rank + shift) % self.layout.ranks));
        MeasuredStep {
            op,
            step: Box::new(step),
        }
    }

    fn verify(&self, shift: u32) -> MeasuredStep<'_> {
        let step = move |rank| Step::Verify(self.share((rank + shift) % self.layout.ranks));
        MeasuredStep {
            op: None,
            step: Box::new(step),
        }
    }
}

fn limits_of(case: &DataCase) -> impl Iterator<Item = LimitCase> {
    let reads = case.read_same || case.read_other;
    let ops = [Some(Op::Write), reads.then_some(Op::ReadSame)];
    let case = case.clone();
    ops.into_iter()
        .flatten()
        .filter_map(move |op| LimitCase::for_case(&case, op))
}

fn what(metric: &Metric, series: &str) -> String {
    format!("{:<42} {series}", metric.label())
}
