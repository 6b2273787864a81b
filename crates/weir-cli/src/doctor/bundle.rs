//! `weir doctor --bundle FILE`: one text file with what a bug report needs.
//!
//! It is plain text, so that the user can read and shorten it before sending it. It holds the
//! findings of the doctor, versions, the settings in force, the system, its limits, the mounts of
//! weir's directories, and of each instance of the user on this node the status and the end of the
//! logs.
//!
//! Invariants:
//! - of the environment only variables of weir are shown with their values, and of those that weir
//!   reads besides only whether they are set;
//! - no file of an instance is read but its logs and its roster, so the secret stays where it is;
//! - the file is new and readable for its owner only: no existing file is overwritten;
//! - a part that cannot be had says why in its place and does not stop the others.
//!
//! Left out: data of files, core dumps, logs of other nodes. File names may stand in log lines.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_instance::directories::{self, Parent};
use weir_instance::roster::ROSTER;
use weir_instance::size::bytes;
use weir_launch::root::run_dir_of_rank;

use super::finding::{Finding, MachineReport};
use super::line;
use crate::{inject, locate, report, show};

/// The most of a log that is taken: its end, bytes.
const LOG_MOST: u64 = 64 << 10;
/// The most logs of ended instances that are taken, the newest first.
const KEPT_LOGS_MOST: usize = 3;
/// Variables that are not weir's and that weir reads.
const READ_BESIDES: &[&str] = &[
    "FLUX_JOB_ID",
    "FLUX_URI",
    "LD_PRELOAD",
    "LSB_HOSTS",
    "LSB_JOBID",
    "LSB_MCPU_HOSTS",
    "PBS_JOBID",
    "PBS_NODEFILE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// One part of the bundle.
struct BundlePart {
    title: String,
    text: String,
}

impl BundlePart {
    fn new(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            text: text.into(),
        }
    }

    /// A file of the system, or why it cannot be read.
    fn of_file(path: &str) -> Self {
        let text = std::fs::read_to_string(path);
        Self::new(path, text.unwrap_or_else(|e| e.to_string()))
    }

    /// The end of a log, or why it cannot be read.
    fn of_log(path: &Path) -> Self {
        let text = end_of(path, LOG_MOST).unwrap_or_else(|e| e.to_string());
        Self::new(format!("log {}", path.display()), text)
    }
}

/// Writes the bundle to `path`, which must not exist, and prints a line for each of its parts.
pub(super) fn write(path: &Path, examined: &MachineReport<'_>, findings: &[Finding]) -> Result<()> {
    let parts = collect(examined, findings);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options
        .open(path)
        .with_context(|| format!("making {}", path.display()))?;
    for BundlePart { title, text } in &parts {
        writeln!(file, "==== {title}\n{}\n", text.trim_end())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    outln!("{} holds:", path.display());
    for BundlePart { title, text } in &parts {
        let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
        outln!("  {:>10}  {title}", bytes(size));
    }
    outln!(
        "It has no file data, no secret, and no value of a variable that is not weir's. Log lines \
         may name\nfiles, hosts and users: it is plain text, so read it before you send it."
    );
    Ok(())
}

fn collect(examined: &MachineReport<'_>, findings: &[Finding]) -> Vec<BundlePart> {
    let findings: String = findings.iter().map(line).collect();
    let mut parts = vec![
        BundlePart::new("versions", versions(examined)),
        BundlePart::new("weir doctor", findings),
        BundlePart::new("weir config", crate::config_text(examined.loaded)),
        BundlePart::new("environment", environment(examined)),
        BundlePart::of_file("/proc/self/limits"),
        BundlePart::of_file("/proc/meminfo"),
        BundlePart::of_file("/proc/self/cgroup"),
        BundlePart::new("mounts of weir's directories", mounts(examined)),
    ];
    let config = &examined.loaded.config;
    for run_dir in locate::live(config, examined.env) {
        parts.extend(of_instance(&run_dir));
    }
    for dead in directories::all(config, examined.env) {
        let title = format!("dead instance {}", dead.name);
        parts.push(BundlePart::new(title, report::dead(&dead)));
        for label in &dead.labels {
            parts.extend(logs_in(&label.run_dir));
        }
    }
    parts.extend(
        kept_logs(examined)
            .iter()
            .map(|path| BundlePart::of_log(path)),
    );
    parts
}

fn versions(examined: &MachineReport<'_>) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let library = inject::find_library(examined.env, &program);
    let library = library.map_or_else(|e| format!("{e:#}"), |path| path.display().to_string());
    let mut text = format!(
        "weir {} for {}\nprogram  {}\nlibrary  {library}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        program.display(),
    );
    if let Ok(uname) = nix::sys::utsname::uname() {
        let (release, version) = (uname.release(), uname.version());
        let _ = writeln!(
            text,
            "kernel   {} {}",
            release.to_string_lossy(),
            version.to_string_lossy()
        );
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let _ = writeln!(text, "processors this process may use: {processors}");
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let named = system.lines().find(|line| line.starts_with("PRETTY_NAME="));
    text + named.unwrap_or("no /etc/os-release") + "\n"
}

fn environment(examined: &MachineReport<'_>) -> String {
    let of_weir = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let is_ours = name.starts_with("WEIR_");
        is_ours.then(|| format!("{name}={}\n", value.to_string_lossy()))
    });
    let mut lines: Vec<String> = of_weir.collect();
    lines.sort();
    for name in READ_BESIDES {
        let state = match examined.env.get(name) {
            Some(_) => "is set",
            None => "is not set",
        };
        lines.push(format!("{name} {state}\n"));
    }
    lines.concat()
}

/// The mounts in which weir's directories lie, and those of weir, as the kernel lists them.
fn mounts(examined: &MachineReport<'_>) -> String {
    let table = match std::fs::read_to_string("/proc/self/mounts") {
        Ok(table) => table,
        Err(e) => return e.to_string(),
    };
    let config = &examined.loaded.config;
    let mut dirs: Vec<PathBuf> = vec![
        config.mount.prefix.as_path().to_owned(),
        config.memory.directory.clone(),
        Parent::of_runs(examined.env).child("NAME"),
        Parent::of_shared_runs(config).child("NAME"),
    ];
    dirs.extend(config.file.directories.0.iter().cloned());
    let mut text = String::new();
    for dir in dirs {
        let found = mount_of(&table, &dir).unwrap_or("no mount");
        let _ = writeln!(text, "{}\n    {found}", dir.display());
    }
    for mount in table.lines().filter(|line| line.starts_with("weir fuse")) {
        let _ = writeln!(text, "{mount}");
    }
    text
}

/// The line of a table of mounts (proc(5)) that says where `dir` lies: the last of the longest
/// mount points above it.
fn mount_of<'t>(table: &'t str, dir: &Path) -> Option<&'t str> {
    let point = |line: &'t str| line.split(' ').nth(1).map(Path::new);
    let above = table
        .lines()
        .filter(|line| point(line).is_some_and(|point| dir.starts_with(point)));
    above.max_by_key(|line| point(line).map(|point| point.components().count()))
}

/// Status and logs of an instance that runs, of all its servers on this machine.
fn of_instance(run_dir: &Path) -> Vec<BundlePart> {
    let status = show::status_json(run_dir).map(|status| format!("{status:#}"));
    let status = status.unwrap_or_else(|e| format!("{e:#}"));
    let title = format!("weir status --json {}", run_dir.display());
    let mut parts = vec![BundlePart::new(title, status)];
    let roster = run_dir.join(ROSTER);
    if roster.exists() {
        parts.push(BundlePart::of_file(&roster.display().to_string()));
    }
    let ranks = (0..=u16::MAX).map(|rank| run_dir_of_rank(run_dir, rank));
    for dir in ranks.take_while(|dir| dir.is_dir()) {
        parts.extend(logs_in(&dir));
    }
    parts
}

fn logs_in(run_dir: &Path) -> impl Iterator<Item = BundlePart> {
    let logs = ["server.log", "agent.log"].map(|name| run_dir.join(name));
    let there = logs.into_iter().filter(|path| path.is_file());
    there.map(|path| BundlePart::of_log(&path))
}

/// Logs outside of run directories: the one that `log.file` names, and those that `run.keep` left.
fn kept_logs(examined: &MachineReport<'_>) -> Vec<PathBuf> {
    let config = &examined.loaded.config;
    let mut kept: Vec<PathBuf> = Vec::new();
    for parent in [
        Parent::of_runs(examined.env),
        Parent::of_shared_runs(config),
    ] {
        let entries = parent.child("NAME").parent().map(std::fs::read_dir);
        let entries = entries.and_then(Result::ok).into_iter().flatten().flatten();
        let is_kept = |name: &str| {
            let log = Path::new(name).extension().is_some_and(|end| end == "log");
            log && name.starts_with("weir-")
        };
        let paths = entries
            .filter(|entry| is_kept(&entry.file_name().to_string_lossy()))
            .map(|entry| entry.path());
        kept.extend(paths);
    }
    kept.sort();
    kept.dedup();
    let modified = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    kept.sort_by_key(|path| std::cmp::Reverse(modified(path)));
    kept.truncate(KEPT_LOGS_MOST);
    config.log.file.iter().cloned().chain(kept).collect()
}

/// The last `most` bytes of a file, from the beginning of a line on if some are left out.
fn end_of(path: &Path, most: u64) -> std::io::Result<String> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    let length = file.metadata()?.len();
    let left_out = length.saturating_sub(most);
    file.seek(SeekFrom::Start(left_out))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    if left_out == 0 {
        return Ok(text.into_owned());
    }
    let whole = text.split_once('\n').map_or("", |(_, whole)| whole);
    Ok(format!("({left_out} bytes before this)\n{whole}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_last_mount_above_a_directory_is_its() {
        let table = "/dev/a / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n\
                     old /dev/shm/x tmpfs rw 0 0\nnew /dev/shm/x tmpfs rw 0 0\n";
        let of = |dir: &str| {
            mount_of(table, dir.as_ref())
                .unwrap_or("")
                .split(' ')
                .next()
        };
        assert_eq!(of("/tmp/weir-0"), Some("/dev/a"));
        assert_eq!(of("/dev/shm"), Some("tmpfs"));
        assert_eq!(of("/dev/shmem"), Some("/dev/a"));
        assert_eq!(of("/dev/shm/x/y"), Some("new"));
    }

    #[test]
    fn a_long_log_is_taken_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "first\nsecond\nthird\n").unwrap();
        assert_eq!(end_of(&path, 100).unwrap(), "first\nsecond\nthird\n");
        assert_eq!(end_of(&path, 9).unwrap(), "(10 bytes before this)\nthird\n");
    }
}
