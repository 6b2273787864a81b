//! The command line, and what it means: targets, cases and limits, checked before anything runs.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context};
use serde::{Serialize, Serializer};

use crate::calls::Call;
use crate::layout::Pattern;
use crate::plan::{DataCase, Dirs, MetaCase, Operation};
use crate::size::{parse_size, show_size};

const EXAMPLES: &str = "Examples:
  weir bench /dev/shm                           one directory, 4 processes, 1 MiB and 64 KiB
  weir bench --target weir=/weir --target tmpfs=/dev/shm --target disk=/tmp --verify
  weir bench -t 47008,64k --pattern strided --ops write,read-other /scratch
  weir bench --calls --target weir=/weir --target tmpfs=/dev/shm
  weir bench --suite --verify --json out.json --svg out.svg --target weir=/weir --target tmpfs=/dev/shm

Exit codes: 0 done, 1 failed, 2 bad usage, 3 wrong data, 4 a row of --suite --strict not met, 130 interrupted.";

/// The options of `weir bench` of directories.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools)] // Flags of a command line are booleans.
pub struct BenchArgs {
    /// Directories to measure; each is named after its last component
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,

    /// A directory to measure, under a name of your choice (may be repeated)
    #[arg(long = "target", value_name = "NAME=DIR", value_parser = parse_target)]
    pub targets: Vec<Target>,

    /// Processes that work at the same time
    #[arg(short = 'n', long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub processes: u32,

    /// Bytes of each read or write call, a list (47008, 64k, 1m) [default: 1m,64k]
    #[arg(short = 't', long = "transfer", value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub transfers: Vec<u64>,

    /// Bytes each process writes [default: 256m for transfers from 256k, 64m below; a quarter with --quick]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size)]
    pub block: Option<u64>,

    /// Access patterns: N-1 segmented, N-1 strided, nn (a file for each process), random [default: segmented,nn]
    #[arg(long = "pattern", value_name = "LIST", value_delimiter = ',')]
    pub patterns: Vec<Pattern>,

    /// The phases to measure [default: write,read-same,read-other,meta]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub ops: Vec<Operation>,

    /// Cut the block of each process into this many segments (segmented pattern)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub segments: u64,

    /// Rounds; all targets take part in each, so that noise hits all alike [default: 3; suite and calls 5; quick 1]
    #[arg(short = 'r', long = "repeat", value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// The target that ratios are taken against [default: `tmpfs` if there is one, else the last]
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,

    /// fsync before close, within the measured time
    #[arg(long)]
    pub fsync: bool,

    /// Read everything back and compare every byte (outside the measured time)
    #[arg(long)]
    pub verify: bool,

    /// Files of each process in metadata operations [default: 10000; 1000 with --quick]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub files: Option<u64>,

    /// Do not measure the machine's copy limits beside the targets
    #[arg(long)]
    pub no_limits: bool,

    /// Measure the device under this directory too: writes and reads of 1 MiB with `O_DIRECT`
    #[arg(long, value_name = "DIR")]
    pub device: Option<PathBuf>,

    /// Small and short: one round, a quarter of the bytes
    #[arg(long)]
    pub quick: bool,

    /// Measure and judge the promises of weir: the first target against the baseline, the copy limits, the device
    ///
    /// What is written and read is given by the promises; --block says about how much.
    #[arg(long, group = "judged", conflicts_with_all = ["transfers", "patterns", "ops", "segments", "fsync"])]
    pub suite: bool,

    /// Measure how long single calls of one process take: all of them, or a list
    ///
    /// If there are several targets, the baseline's are made with nothing preloaded.
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0.., require_equals = true,
        conflicts_with_all = ["judged", "processes", "transfers", "block", "patterns", "ops", "segments", "fsync", "verify", "files", "device", "svg"])]
    pub calls: Option<Vec<Call>>,

    /// With --suite: a directory whose writes must reach the device, measured with fsync against --device
    #[arg(long, value_name = "NAME=DIR", value_parser = parse_target, requires = "suite")]
    pub durable: Vec<Target>,

    /// Of what is judged: exit with code 4 unless every row is measured and met
    #[arg(long, requires = "judged")]
    pub strict: bool,

    /// Write all samples and summaries as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the results as an SVG plot
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// No progress lines on standard error
    #[arg(short, long)]
    pub quiet: bool,
}

/// A directory under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// Its name in reports.
    pub name: String,
    /// The directory.
    #[serde(serialize_with = "as_text")]
    pub dir: PathBuf,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

fn parse_target(text: &str) -> Result<Target, String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => Ok(Target {
            name: name.into(),
            dir: dir.into(),
        }),
        _ => Err(format!(
            "`{text}` is not NAME=DIR, for example tmpfs=/dev/shm"
        )),
    }
}

impl BenchArgs {
    /// All targets in order, named, each a directory that exists.
    pub fn all_targets(&self) -> anyhow::Result<Vec<Target>> {
        let mut all = self.targets.clone();
        for dir in &self.dirs {
            let name = dir.file_name().unwrap_or(dir.as_os_str());
            let name = name.to_string_lossy().into_owned();
            all.push(Target {
                name,
                dir: dir.clone(),
            });
        }
        if self.suite && self.baseline.is_none() && !all.iter().any(|t| t.name == "tmpfs") {
            all.push(Target {
                name: "tmpfs".into(),
                dir: "/dev/shm".into(),
            });
        }
        ensure!(
            !all.is_empty(),
            "nothing to measure: give a directory or --target NAME=DIR"
        );
        for (i, target) in all.iter().chain(&self.durable).enumerate() {
            check_dir(target)?;
            let twice = all
                .iter()
                .chain(&self.durable)
                .skip(i + 1)
                .any(|t| t.name == target.name);
            ensure!(
                !twice,
                "two targets are called `{}`; name them with --target NAME=DIR",
                target.name
            );
        }
        Ok(all)
    }

    /// The name of the target that ratios are taken against.
    pub fn baseline_of(&self, targets: &[Target]) -> anyhow::Result<String> {
        let names = || targets.iter().map(|t| t.name.as_str());
        match &self.baseline {
            Some(name) if names().any(|n| n == name) => Ok(name.clone()),
            Some(name) => {
                let known: Vec<_> = names().collect();
                bail!(
                    "--baseline `{name}` is not a target; there are: {}",
                    known.join(", ")
                )
            }
            None => {
                let tmpfs = names().find(|&n| n == "tmpfs").or(names().next_back());
                Ok(tmpfs.context("no targets")?.to_owned())
            }
        }
    }

    /// How many rounds.
    pub fn rounds(&self) -> u32 {
        let default = match (self.quick, self.suite || self.calls.is_some()) {
            (true, _) => 1,
            (_, true) => 5,
            _ => 3,
        };
        self.rounds.unwrap_or(default)
    }

    /// Files of each process in metadata operations.
    pub fn files(&self) -> u64 {
        self.files.unwrap_or(if self.quick { 1000 } else { 10_000 })
    }

    /// The single calls asked for.
    pub fn calls(&self) -> Vec<Call> {
        match &self.calls {
            None => Vec::new(),
            Some(all) if all.is_empty() => Call::ALL.to_vec(),
            Some(some) => some.clone(),
        }
    }

    /// True if `op` is asked for.
    pub fn wants(&self, op: Operation) -> bool {
        self.ops.is_empty() || self.ops.contains(&op)
    }

    /// Bytes for each process: what was asked for, which must fit, or a default that does.
    pub fn block_for(&self, transfer: u64, segments: u64) -> anyhow::Result<u64> {
        let unit = transfer
            .checked_mul(segments)
            .context("--segments is too large")?;
        if let Some(block) = self.block.filter(|_| !self.suite) {
            ensure!(
                block % unit == 0,
                "--block {} is not a multiple of {} ({} a transfer{}); the nearest below is {}",
                show_size(block),
                show_size(unit),
                show_size(transfer),
                if segments > 1 {
                    format!(", {segments} segments")
                } else {
                    String::new()
                },
                block / unit * unit,
            );
            return Ok(block);
        }
        let full: u64 = if transfer >= 256 << 10 {
            256 << 20
        } else {
            64 << 20
        };
        let default = if self.quick { full / 4 } else { full };
        // A suite has transfers of many sizes, and no block is a multiple of all.
        let block = self.block.unwrap_or(default);
        Ok((block / unit).max(1) * unit)
    }

    /// A case of all processes, which writes.
    pub fn data_case(
        &self,
        pattern: Pattern,
        transfer: u64,
        segments: u64,
    ) -> anyhow::Result<DataCase> {
        Ok(DataCase {
            pattern,
            transfer,
            block: self.block_for(transfer, segments)?,
            segments,
            processes: self.processes,
            fsync: false,
            first: false,
            read_same: false,
            read_other: false,
        })
    }

    /// The data cases asked for (without --suite).
    pub fn data_cases(&self) -> anyhow::Result<Vec<DataCase>> {
        let mut cases = Vec::new();
        let any = [Operation::Write, Operation::ReadSame, Operation::ReadOther];
        if !any.into_iter().any(|op| self.wants(op)) {
            return Ok(cases);
        }
        for &transfer in or_default(&self.transfers, &[1 << 20, 64 << 10]) {
            for &pattern in or_default(&self.patterns, &[Pattern::Segmented, Pattern::Nn]) {
                let segments = if pattern == Pattern::Segmented {
                    self.segments
                } else {
                    1
                };
                cases.push(DataCase {
                    fsync: self.fsync,
                    read_same: self.wants(Operation::ReadSame),
                    read_other: self.wants(Operation::ReadOther),
                    ..self.data_case(pattern, transfer, segments)?
                });
            }
        }
        Ok(cases)
    }

    /// The metadata cases asked for: own directories, then a shared one.
    pub fn meta_cases(&self) -> Vec<MetaCase> {
        [Dirs::Own, Dirs::Shared]
            .into_iter()
            .filter(|_| self.wants(Operation::Meta))
            .map(|dirs| MetaCase {
                dirs,
                files: self.files(),
                processes: self.processes,
            })
            .collect()
    }
}

fn or_default<'a, T>(given: &'a [T], default: &'a [T]) -> &'a [T] {
    if given.is_empty() {
        default
    } else {
        given
    }
}

fn check_dir(target: &Target) -> anyhow::Result<()> {
    let Target { name, dir } = target;
    let found = std::fs::metadata(dir)
        .with_context(|| format!("target `{name}`: {} cannot be used", dir.display()))?;
    ensure!(
        found.is_dir(),
        "target `{name}`: {} is not a directory",
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        Line::try_parse_from(std::iter::once(&"bench").chain(words)).map(|l| l.args)
    }

    #[test]
    fn the_whole_line_is_understood() {
        let args = parse(&[
            "--target",
            "a=/tmp",
            "-t",
            "47008,64k",
            "--pattern",
            "strided,random",
            "-n",
            "2",
        ]);
        let args = args.unwrap();
        let cases = args.data_cases().unwrap();
        assert_eq!(cases.len(), 4);
        assert_eq!(cases[0].block % 47008, 0);
        assert_eq!(args.baseline_of(&args.all_targets().unwrap()).unwrap(), "a");
    }

    #[test]
    fn bad_input_is_refused_with_its_reason() {
        let block = parse(&["/tmp", "-b", "1m", "-t", "47008"]).unwrap();
        let error = block.data_cases().unwrap_err().to_string();
        assert!(
            error.contains("not a multiple") && error.contains("1034176"),
            "{error}"
        );
        let missing = parse(&["/no/such/dir"]).unwrap().all_targets().unwrap_err();
        assert!(
            format!("{missing:#}").contains("No such file"),
            "{missing:#}"
        );
        let twice = parse(&["/tmp", "/tmp"]).unwrap().all_targets().unwrap_err();
        assert!(twice.to_string().contains("two targets"));
        let baseline = parse(&["/tmp", "--baseline", "x"]).unwrap();
        let targets = baseline.all_targets().unwrap();
        assert!(baseline
            .baseline_of(&targets)
            .unwrap_err()
            .to_string()
            .contains("there are: tmp"));
        assert!(parse(&["--target", "nodir"])
            .unwrap_err()
            .to_string()
            .contains("NAME=DIR"));
        assert!(parse(&["-t", "1q", "/tmp"])
            .unwrap_err()
            .to_string()
            .contains("suffix"));
    }
}
