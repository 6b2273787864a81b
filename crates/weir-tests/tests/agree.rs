//! Checks that several nodes agree on a file's bytes: the checks in the list `tests/agree/checks`, each
//! on four servers of this machine, or on a directory.
//!
//! `WEIR_TEST_ROUNDS=10` makes each check ten times as long. `tests/agree/run.sh` runs the same list
//! without cargo, with any weir binary.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{bail, ensure, Context, Result};
use libtest_mimic::{Arguments, Trial};
use weir_tests::build::{program_in, Compiler};
use weir_tests::launch::{run, Job, Options, Target, TestedDirectory};
use weir_tests::mount::KernelMount;
use weir_tests::needs::{self, Need};
use weir_tests::{number, source_root, trials};

/// The time limit of one check, unless `WEIR_TEST_LIMIT_S` sets another one, in seconds.
const LIMIT_S: u64 = 120;
/// The servers' transport; without it, TCP.
const LIBFABRIC: &str = "libfabric";
/// The variations of a check, each with the environment variable that selects it in the program.
const WITH: [(&str, &str); 5] = [
    (LIBFABRIC, "WEIR_TEST_TRANSPORT=libfabric"),
    ("delay", "WEIR_TEST_DELAY_US=2000"),
    ("three", "WEIR_TEST_RANKS=3"),
    ("eight", "WEIR_TEST_RANKS=8"),
    ("turns", "WEIR_TEST_TURNS=1"),
];

/// Held by an MPI job. Its ranks poll while they wait: on few cores two such jobs take longer side by
/// side than one after the other.
static POLLS: Mutex<()> = Mutex::new(());

/// One check: a line of the list, with one of its modes, launchers and patterns.
#[derive(Clone)]
struct Check {
    raw: bool,
    /// Names from [`WITH`].
    with: Vec<String>,
    program: String,
    argument: Option<String>,
    launcher: String,
    rounds: f64,
    pattern: String,
}

impl Check {
    fn name(&self) -> String {
        let mode = if self.raw { "raw" } else { "ras" };
        let mut name = format!("{mode}::{}::{}", self.program, self.pattern);
        let argument = self.argument.as_deref();
        let launcher = Some(self.launcher.as_str()).filter(|&launcher| launcher != "fork");
        let with = self.with.iter().map(String::as_str);
        for word in argument.into_iter().chain(launcher).chain(with) {
            name.push_str("::");
            name.push_str(word);
        }
        name
    }

    fn has(&self, word: &str) -> bool {
        self.with.iter().any(|with| with == word)
    }

    fn compiler(&self) -> Result<Compiler> {
        Ok(match (self.program.as_str(), self.launcher.as_str()) {
            (_, "fork") => Compiler::C,
            ("phdf5", "mpich") => Compiler::Hdf5Mpich,
            ("phdf5", _) => Compiler::Hdf5OpenMpi,
            ("pnetcdf", "openmpi" | "openmpi-romio") => Compiler::Pnetcdf,
            ("mpiio", "mpich") => Compiler::Mpich,
            ("mpiio", _) => Compiler::OpenMpi,
            (program, launcher) => bail!("{program} is not built for {launcher}"),
        })
    }

    fn needs(&self) -> Result<Vec<Need>> {
        let mut all = match self.compiler()? {
            Compiler::Mpich => vec![needs::MPICH_RUN, needs::MPICH_CC],
            Compiler::Hdf5Mpich => vec![needs::MPICH_RUN, needs::HDF5_MPICH],
            Compiler::Hdf5OpenMpi => vec![needs::OPENMPI_RUN, needs::HDF5_OPENMPI],
            Compiler::Pnetcdf => vec![needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF],
            Compiler::OpenMpi => vec![needs::OPENMPI_RUN, needs::OPENMPI_CC],
            _ => vec![needs::CC],
        };
        if self.has(LIBFABRIC) {
            all.push(needs::LIBFABRIC);
        }
        Ok(all)
    }

    fn options(&self) -> Options {
        let options = if self.raw { &RAW } else { &RAS };
        let more = match self.has(LIBFABRIC) {
            true => &options[..],
            false => &options[..OVER_TCP],
        };
        Options {
            memory_mib: 256,
            file_mib: None,
            more,
        }
    }

    fn job(&self, scale: f64) -> Result<Job> {
        let program = program_in(&dir(), &format!("{}.c", self.program), self.compiler()?)?;
        let mut words = vec!["/usr/bin/env".into()];
        let variables = WITH.iter().filter(|(word, _)| self.has(word));
        words.extend(variables.map(|(_, variable)| variable.into()));
        words.extend(["/bin/bash".into(), dir().join("launch.sh").into()]);
        words.extend([self.launcher.clone().into(), program.into()]);
        let rounds = (self.rounds * scale).max(1.0).floor();
        let mut arguments = vec![self.pattern.clone(), rounds.to_string()];
        arguments.extend(self.argument.clone());
        Ok(Job {
            name: self.name(),
            command: words,
            arguments,
            weir_options: self.options(),
            mount: KernelMount::Either,
            place: TestedDirectory::Prefix,
            limit: trials::limit(LIMIT_S)?,
        })
    }
}

/// The options of `weir run` for each mode and transport. They begin with those of any transport.
const RAW: [&str; 10] = options_of("visibility.default=raw");
const RAS: [&str; 10] = options_of("visibility.default=ras");
/// How many of them do not name libfabric.
const OVER_TCP: usize = 6;

const fn options_of(visibility: &'static str) -> [&'static str; 10] {
    [
        "--servers",
        "4",
        // Else each check, most of which write a few kilobytes, begins with the warming of a gigabyte.
        "--set",
        "memory.warm=64M",
        "--set",
        visibility,
        "--set",
        "fabric.transport=libfabric",
        "--set",
        "fabric.provider=tcp;ofi_rxm",
    ]
}

fn dir() -> PathBuf {
    source_root().join("tests/agree")
}

/// The checks of one line of the list.
fn checks_of(line: &str) -> Result<Vec<Check>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [modes, with, program, argument, launchers, rounds, patterns @ ..] = &words[..] else {
        bail!("a line has seven columns");
    };
    let with: Vec<String> = with
        .split(',')
        .filter(|&word| word != "-")
        .map(str::to_owned)
        .collect();
    for word in &with {
        let known = WITH.iter().any(|(known, _)| known == word);
        ensure!(known, "no `{word}`");
    }
    let mut checks = Vec::new();
    for mode in modes.split(',') {
        ensure!(["raw", "ras"].contains(&mode), "no mode `{mode}`");
        for launcher in launchers.split(',') {
            checks.extend(patterns.iter().map(|&pattern| Check {
                raw: mode == "raw",
                with: with.clone(),
                program: (*program).to_owned(),
                argument: (*argument != "-").then(|| (*argument).to_owned()),
                launcher: launcher.to_owned(),
                rounds: rounds.parse().unwrap_or(0.0),
                pattern: pattern.to_owned(),
            }));
        }
    }
    for check in &checks {
        ensure!(check.rounds >= 1.0, "`{rounds}` rounds");
        check.compiler()?;
    }
    Ok(checks)
}

fn all_checks() -> Result<Vec<Check>> {
    let path = dir().join("checks");
    let list = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut checks = Vec::new();
    for (at, line) in list.lines().enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            let of_line = checks_of(line);
            checks.extend(of_line.with_context(|| format!("{}:{}", path.display(), at + 1))?);
        }
    }
    Ok(checks)
}

fn trial(check: Check, target: &Result<Target, String>, scale: f64) -> Result<Trial> {
    let needs = check.needs()?;
    Ok(trials::on_target(
        &check.name(),
        &needs,
        target,
        move |target| {
            let polls = check.launcher != "fork";
            let _alone = polls.then(|| POLLS.lock().unwrap_or_else(PoisonError::into_inner));
            run(&target, &check.job(scale)?)
        },
    ))
}

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // Each mostly waits: for locks, and for one process after the other.
    arguments.test_threads.get_or_insert(3);
    let target = trials::target(&arguments);
    let scale = number("WEIR_TEST_ROUNDS")?.unwrap_or(1.0);
    let trials = all_checks()?
        .into_iter()
        .map(|check| trial(check, &target, scale))
        .collect::<Result<_>>()?;
    libtest_mimic::run(&arguments, trials).exit();
}
