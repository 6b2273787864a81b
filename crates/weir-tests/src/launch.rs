//! Runs one check on the target, with a time limit, and judges its output.
//!
//! A check passes only if it exits with 0 and its last line counts at least one check passed and none
//! failed: a program that dies early or checks nothing does not pass.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use rustix::process::{kill_process_group, Pid, Signal};

use crate::{build::build_dir, checks_dir, mount::KernelMount, number, profile_dir, source_root};

/// The file system on which the checks run.
#[derive(Clone, Debug)]
pub enum Target {
    /// `weir run -- program /weir`.
    Weir {
        /// The `weir` binary.
        binary: PathBuf,
    },
    /// A directory of any file system.
    Directory(PathBuf),
}

/// One program to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The test's name, which is also that of its directory.
    pub name: String,
    /// The program and the arguments before the directory.
    pub command: Vec<OsString>,
    /// The arguments after the directory.
    pub arguments: Vec<String>,
    /// Options of `weir run`.
    pub weir_options: Options,
    /// The kernel mount that it requires.
    pub mount: KernelMount,
    /// On weir: the directory of the test.
    pub place: TestedDirectory,
    /// The time limit.
    pub limit: Duration,
}

/// The options for `weir run`.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The memory tier of each server, in MiB.
    pub memory_mib: u64,
    /// The file tier of each server, in MiB.
    pub file_mib: Option<u64>,
    /// Further options, passed on verbatim.
    pub more: &'static [&'static str],
}

impl Options {
    /// The words of a command line. If they set no number of servers, `WEIR_TEST_SERVERS` does, else it
    /// is 1: servers on one machine share its budgets.
    fn words(self) -> Result<Vec<OsString>> {
        let mut words: Vec<OsString> = self.more.iter().map(OsString::from).collect();
        let said = self
            .more
            .iter()
            .skip_while(|&&word| word != "--servers")
            .nth(1);
        let servers = match (said, servers_wanted()?) {
            (Some(said), _) => said.parse().context("--servers")?,
            (None, 1) => 1,
            (None, wanted) => {
                words.extend(["--servers".into(), wanted.to_string().into()]);
                wanted
            }
        };
        words.extend(["--memory".into(), mib(self.memory_mib * servers)]);
        if let Some(file) = self.file_mib {
            let mut budget = OsString::from("file.budget=");
            budget.push(mib(file * servers));
            words.extend(["--set".into(), budget]);
        }
        Ok(words)
    }
}

/// The options of `weir run` and the command by which a program gets no client, and finds elevated directories by the kernel.
const WITHOUT_CLIENT: [&str; 10] = [
    "--set",
    "run.mirror=always",
    "--",
    "/usr/bin/env",
    "-u",
    "WEIR_TEST_ON_WEIR",
    // Where they are missing, the client puts them back.
    "LD_PRELOAD=",
    "WEIR_INSTANCE=",
    "HDF5_VOL_CONNECTOR=",
    "WEIR_AT=",
];
const END_OF_OPTIONS: usize = 2;

fn mib(count: u64) -> OsString {
    format!("{count}M").into()
}

/// The number of servers for the tests of one node: `WEIR_TEST_SERVERS`, else 1.
pub fn servers_wanted() -> Result<u64> {
    Ok(number("WEIR_TEST_SERVERS")?.unwrap_or(1))
}

impl Target {
    /// The target that `WEIR_TEST_TARGET` names.
    pub fn from_environment() -> Result<Self> {
        match std::env::var_os("WEIR_TEST_TARGET") {
            Some(target) if target != "weir" && !target.is_empty() => {
                let path = PathBuf::from(target);
                ensure!(
                    path.is_absolute(),
                    "WEIR_TEST_TARGET must be weir or an absolute path"
                );
                std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
                Ok(Self::Directory(path))
            }
            _ => Ok(Self::Weir {
                binary: weir_binary()?,
            }),
        }
    }

    /// The whole command line, and the directory to remove afterwards.
    fn command(&self, job: &Job) -> Result<(Command, Option<PathBuf>)> {
        let mut words: Vec<OsString> = Vec::new();
        let own_dir = |base: &Path| {
            let name = job.name.replace("::", "-");
            let dir = base.join(format!("{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
            anyhow::Ok(dir)
        };
        let (dir, cleanup) = match self {
            Self::Weir { binary } => {
                words.extend([binary.into(), "run".into()]);
                words.extend(job.weir_options.words()?);
                words.extend(job.mount.options().iter().map(OsString::from));
                let (dir, cleanup) = if job.place == TestedDirectory::Prefix {
                    (PathBuf::from("/weir"), None)
                } else {
                    let pfs = own_dir(&std::env::temp_dir())?;
                    let dir = pfs.join("project");
                    std::fs::create_dir(&dir).context("a directory of the PFS")?;
                    words.extend(["--elevate".into(), pfs.clone().into()]);
                    (dir, Some(pfs))
                };
                let last: &[&str] = match job.place {
                    TestedDirectory::Prefix | TestedDirectory::Elevated => &["--"],
                    TestedDirectory::ElevatedAndMirrored => &WITHOUT_CLIENT[..=END_OF_OPTIONS],
                    TestedDirectory::Mirrored => &WITHOUT_CLIENT,
                };
                words.extend(last.iter().map(OsString::from));
                (dir, cleanup)
            }
            Self::Directory(base) => {
                let dir = own_dir(base)?;
                (dir.clone(), Some(dir))
            }
        };
        words.extend(job.command.iter().cloned());
        words.push(dir.into());
        words.extend(job.arguments.iter().map(OsString::from));
        let (program, arguments) = words.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok((command, cleanup))
    }
}

/// The directory in which a test's program works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestedDirectory {
    /// The mount prefix.
    Prefix,
    /// A directory of an elevated one.
    Elevated,
    /// The same, and the kernel has it, too.
    ElevatedAndMirrored,
    /// The same, and the program finds it by the kernel, without the client.
    Mirrored,
}

/// `WEIR_TEST_BINARY`, else the `weir` of this profile, built now so that it is up to date.
pub fn weir_binary() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(named) = std::env::var_os("WEIR_TEST_BINARY") {
        let path = PathBuf::from(named);
        ensure!(
            path.is_file(),
            "WEIR_TEST_BINARY: {} is no file",
            path.display()
        );
        return Ok(path);
    }
    BUILT
        .get_or_init(|| build_weir().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(anyhow::Error::msg)
}

fn build_weir() -> Result<PathBuf> {
    let profile = profile_dir();
    // One at a time: cargo merges the features of a crate over all packages of one build, and the
    // library's rustix must be built without std.
    for package in [
        "weir-cli",
        "weir-capi",
        "weir-mpiio",
        "weir-pnetcdf",
        "weir-hdf5",
        "weir-preload",
    ] {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(source_root());
        cargo.args(["build", "--quiet", "-p", package]);
        if profile.file_name() == Some(OsStr::new("release")) {
            cargo.arg("--release");
        }
        let status = cargo.status().context("start cargo to build weir")?;
        ensure!(status.success(), "cargo build -p {package}: {status}");
    }
    let binary = profile.join("weir");
    ensure!(binary.is_file(), "{} was not built", binary.display());
    let mut place_plugin = Command::new(source_root().join("tools/plugin-dir"));
    let status = place_plugin.arg(&profile).status().context("plugin-dir")?;
    ensure!(status.success(), "plugin-dir: {status}");
    Ok(binary)
}

/// Runs the job; the error has the program's output.
pub fn run(target: &Target, job: &Job) -> Result<()> {
    let (mut command, cleanup) = target.command(job)?;
    environment(&mut command, target);
    let shown = format!("{command:?}");
    let outcome = run_limited(command, job.limit);
    if let Some(dir) = cleanup {
        // The leftovers of a check are removed as a user would do it.
        std::fs::remove_dir_all(&dir).with_context(|| format!("clear {}", dir.display()))?;
    }
    let (status, output) = outcome.with_context(|| shown.clone())?;
    judge(status, &output, job.limit).with_context(|| excerpt(&shown, &output))
}

fn environment(command: &mut Command, target: &Target) {
    command
        .env("WEIR_TEST_BUILD", build_dir())
        .env("WEIR_TEST_CHECKS", checks_dir())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    if let Target::Weir { binary } = target {
        command.env("WEIR_TEST_ON_WEIR", "1");
        command.env("WEIR_TEST_WEIR", binary);
    }
}

/// Starts the command as a process group of its own, and kills the group when the time is over. The
/// status is `None` then.
fn run_limited(mut command: Command, limit: Duration) -> Result<(Option<ExitStatus>, String)> {
    let (reader, writer) = std::io::pipe().context("pipe")?;
    command
        .stdout(writer.try_clone().context("dup")?)
        .stderr(writer)
        .process_group(0);
    let mut child: Child = command.spawn().context("start")?;
    drop(command); // the writing ends, so that the reader sees the end
    let group = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a pid")?;
    let (tell, told) = channel();
    let tell_output = tell.clone();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut reader = reader;
        // An error here is the end of the output as well.
        let _ = reader.read_to_end(&mut bytes);
        let _ = tell_output.send(Event::Output(String::from_utf8_lossy(&bytes).into_owned()));
    });
    std::thread::spawn(move || {
        let _ = tell.send(Event::Exit(child.wait()));
    });
    let mut status = None;
    let mut output = None;
    let mut killed = false;
    let start = std::time::Instant::now();
    while status.is_none() || output.is_none() {
        // After a kill, processes that left the group may hold the pipe open: the wait for them is
        // short.
        let left = if killed {
            Duration::from_secs(5)
        } else {
            limit.saturating_sub(start.elapsed())
        };
        match told.recv_timeout(left) {
            Ok(Event::Exit(result)) => status = Some(result.context("wait")?),
            Ok(Event::Output(text)) => output = Some(text),
            Err(RecvTimeoutError::Timeout) if !killed => {
                killed = true;
                // The group may have ended by itself a moment ago.
                let _ = kill_process_group(group, Signal::KILL);
            }
            Err(_) => break,
        }
    }
    Ok((status.filter(|_| !killed), output.unwrap_or_default()))
}

enum Event {
    Exit(std::io::Result<ExitStatus>),
    Output(String),
}

fn judge(status: Option<ExitStatus>, output: &str, limit: Duration) -> Result<()> {
    let Some(status) = status else {
        bail!("killed after {} s", limit.as_secs());
    };
    ensure!(status.success(), "{status}");
    let (passed, failed) = count(output).context("no line `N passed, N failed`")?;
    ensure!(
        failed == 0,
        "{failed} checks failed, and the exit code was 0"
    );
    ensure!(passed > 0, "nothing was checked");
    Ok(())
}

/// The numbers of the last line `N passed, N failed`.
fn count(output: &str) -> Option<(u64, u64)> {
    output.lines().rev().find_map(|line| {
        let (passed, rest) = line.trim().split_once(" passed, ")?;
        let failed = rest.strip_suffix(" failed")?;
        Some((passed.parse().ok()?, failed.parse().ok()?))
    })
}

/// The lines of the failures: each FAIL with the lines after it, and the end.
fn excerpt(shown: &str, output: &str) -> String {
    let mut text = format!("{shown}\n");
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.starts_with("ok "))
        .collect();
    let first = lines.len().saturating_sub(60);
    if first > 0 {
        let _ = writeln!(text, "... {first} lines left out ...");
    }
    for line in &lines[first..] {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// The path of a script or Python program below `tests/real`.
pub fn check_file(relative: &str) -> PathBuf {
    let path = checks_dir().join(relative);
    assert!(Path::new(&path).is_file(), "{} is missing", path.display());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, limit: Duration) -> Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        let (status, output) = run_limited(command, limit)?;
        judge(status, &output, limit)
    }

    #[test]
    fn only_counted_checks_pass() {
        let long = Duration::from_secs(60);
        shell("echo ok x; echo 1 passed, 0 failed", long).expect("passes");
        for bad in [
            "true",
            "echo 0 passed, 0 failed",
            "echo 1 passed, 1 failed",
            "echo 1 passed, 0 failed; exit 3",
            "kill -9 $$",
        ] {
            shell(bad, long).expect_err(bad);
        }
    }

    #[test]
    fn the_time_limit_ends_the_whole_group() {
        let error = shell(
            "echo 1 passed, 0 failed; cat /dev/zero > /dev/null & wait",
            Duration::from_millis(50),
        )
        .expect_err("killed");
        assert!(error.to_string().starts_with("killed"), "{error}");
    }
}
