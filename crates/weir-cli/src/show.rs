//! `weir status` and `weir ls`: asking an instance that runs.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;
use weir_config::{Config, Environment};
use weir_core::proto::audit::Party;
use weir_core::proto::{Entry, FsError, GetAttr, Lookup, Readdir, Status};
use weir_instance::connection::Connection;
use weir_instance::directories::{self, Remains};
use weir_instance::errln;
use weir_instance::report::Report;
use weir_instance::roster;
use weir_launch::agent;
use weir_launch::message::ServerReport;
use weir_server::control::ControlError;

use crate::args::{LsArgs, StatusArgs};
use crate::exit::Failure;
use crate::layout;
use crate::locate::{elevated_targets, live, live_run_dir, remains_of, run_dir_of};
use crate::{mount, report};

/// How long `weir status --rates` watches.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// How much of a directory is asked for at a time.
const READDIR_BYTES: u32 = 256 << 10;

/// `weir status`.
pub fn status(args: &StatusArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let one = args.instance.is_some() || env.get("WEIR_INSTANCE").is_some();
    if one {
        let run_dir = run_dir_of(args.instance.as_deref(), config, env)?;
        if !directories::lives(&run_dir) {
            let Some(remains) = remains_of(&run_dir, config, env) else {
                return Err(Failure::NoInstance { run_dir });
            };
            show_dead(&remains, args);
            let why = remains.describe();
            return Err(Failure::Dead { why });
        }
        return Ok(show_status(&run_dir, args)?);
    }
    for run_dir in live(config, env) {
        // One that ends just now is none that runs.
        if let Err(e) = show_status(&run_dir, args) {
            errln!("weir: {e:#}");
        }
    }
    for remains in directories::all(config, env) {
        show_dead(&remains, args);
    }
    Ok(())
}

fn show_dead(remains: &Remains, args: &StatusArgs) {
    if args.json {
        outln!("{}", report::dead_json(remains));
    } else {
        out!("{}", report::dead(remains));
    }
}

/// The state of an instance: of several servers, each.
enum InstanceState {
    One(Report),
    Several(Vec<ServerReport>),
}

impl InstanceState {
    fn read(run_dir: &Path) -> Result<InstanceState> {
        let roster = roster::read(run_dir)?;
        if let (Some(_), Some(seen)) = (roster, agent::status(run_dir)?) {
            return Ok(InstanceState::Several(seen));
        }
        Ok(InstanceState::One(
            Connection::to(run_dir)?.call(Status {})?,
        ))
    }

    fn sum(&self) -> Option<Report> {
        match self {
            InstanceState::One(report) => Some(report.clone()),
            InstanceState::Several(seen) => report::sum_of_seen(seen),
        }
    }
}

/// The programs that use an instance, as far as its servers answer.
pub(crate) fn attached(run_dir: &Path) -> Vec<Party> {
    let all = InstanceState::read(run_dir)
        .ok()
        .and_then(|state| state.sum());
    all.map_or_else(Vec::new, |all| all.attached)
}

/// The path below which programs see an instance.
pub(crate) fn prefix(run_dir: &Path) -> Result<String> {
    Ok(Connection::to(run_dir)?.welcome().prefix.clone())
}

/// The numbers of an instance that tell if programs have changed anything in between, as far as its servers
/// answer.
pub(crate) fn work_done(run_dir: &Path) -> Option<[u64; 4]> {
    let all = InstanceState::read(run_dir).ok()?.sum()?;
    let written = report::counter(&all, "bytes_written");
    Some([all.clients_ever, written, all.files, all.directories])
}

/// The status of a running instance for programs.
pub(crate) fn status_json(run_dir: &Path) -> Result<Value> {
    let mut json = match &InstanceState::read(run_dir)? {
        InstanceState::One(report) => report::json(report),
        InstanceState::Several(seen) => report::several_json(seen),
    };
    let prefix = prefix(run_dir)?;
    json["run_dir"] = run_dir.display().to_string().into();
    json["prefix"] = prefix.into();
    let elevated = elevated_targets(run_dir);
    let elevated = elevated.iter().map(|dir| dir.display().to_string());
    json["elevated"] = elevated.collect::<Vec<_>>().into();
    json["kernel_mount"] = mount::find_mount_point(run_dir)
        .map(|dir| dir.display().to_string())
        .into();
    Ok(json)
}

fn show_status(run_dir: &Path, args: &StatusArgs) -> Result<()> {
    if args.json {
        outln!("{}", status_json(run_dir)?);
        return Ok(());
    }
    let state = InstanceState::read(run_dir)?;
    let prefix = prefix(run_dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let now_ns = i64::try_from(now)?;
    let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
    let text = match &state {
        InstanceState::One(report) => report::status(&name, &prefix, report, now_ns),
        InstanceState::Several(seen) => report::several(&name, &prefix, seen, now_ns),
    };
    out!("{text}");
    if let Some(dir) = mount::find_mount_point(run_dir) {
        outln!("  mounted   at {} by the kernel", dir.display());
    }
    for dir in elevated_targets(run_dir) {
        outln!(
            "  elevated  {}; weir's own notes about it are among the names",
            dir.display()
        );
    }
    if args.rates {
        let begin = Instant::now();
        std::thread::sleep(BETWEEN_LOOKS);
        if let (Some(before), Some(after)) = (state.sum(), InstanceState::read(run_dir)?.sum()) {
            out!("{}", report::rates(&before, &after, begin.elapsed()));
        }
    }
    Ok(())
}

/// `weir ls`.
pub fn list(args: &LsArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let mut connection = Connection::to(&run_dir)?;
    let components = components(&args.path, &connection.welcome().prefix);
    let found = connection
        .call(Lookup { components })
        .with_context(|| args.path.clone())?;
    let mut entries = if is_directory(found.mode) {
        read_directory(&mut connection, &found)?
    } else {
        vec![Entry {
            name: args.path.clone().into(),
            ..found
        }]
    };
    entries.retain(|entry| args.all || !entry.name.starts_with(b"."));
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let several = connection.welcome().servers > 1;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for entry in &mut entries {
        if args.long && several {
            complete(&mut connection, entry)?;
        }
        print_entry(&mut out, entry, args.long).context("standard output")?;
        if args.layout && is_file(entry.mode) {
            for line in layout::lines(&layout::layout(&mut connection, entry.ino)?) {
                writeln!(out, "    {line}").context("standard output")?;
            }
        }
    }
    out.flush().context("standard output")?;
    Ok(())
}

/// Completes the entry of a file that lives at another server, whose attributes a directory lacks.
/// A file that has just gone stays as it was listed.
fn complete(connection: &mut Connection, entry: &mut Entry) -> Result<()> {
    match connection.call(GetAttr { ino: entry.ino }) {
        Ok(attr) => {
            (entry.mode, entry.size, entry.mtime_ns) = (attr.mode, attr.size, attr.mtime_ns);
            Ok(())
        }
        Err(error) => match error.downcast_ref() {
            Some(ControlError::Refused(FsError::Stale | FsError::NotFound)) => Ok(()),
            _ => Err(error),
        },
    }
}

/// The components of a path, given with the mount prefix or below it.
pub(crate) fn components(path: &str, prefix: &str) -> Vec<Vec<u8>> {
    let below = Path::new(path)
        .strip_prefix(prefix)
        .unwrap_or(Path::new(path));
    let names = below.components().filter_map(|component| match component {
        std::path::Component::Normal(name) => Some(name.as_encoded_bytes().to_vec()),
        _ => None,
    });
    names.collect()
}

fn read_directory(connection: &mut Connection, directory: &Entry) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut until = 0;
    loop {
        let cookie = entries.last().map_or(0, |entry| entry.cookie);
        let more = connection.call(Readdir {
            ino: directory.ino,
            cookie,
            until: Some(until),
            budget_bytes: READDIR_BYTES,
        });
        let more = more.map_err(|error| match error.downcast_ref() {
            Some(ControlError::Refused(FsError::Stale)) => {
                ControlError::Refused(FsError::NotFound).into()
            }
            _ => error,
        })?;
        if more.entries.is_empty() {
            return Ok(entries);
        }
        entries.extend(more.entries);
        until = more.until;
    }
}

fn is_file(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG
}

fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

fn print_entry(out: &mut impl Write, entry: &Entry, long: bool) -> std::io::Result<()> {
    if long {
        let time = UNIX_EPOCH + Duration::from_nanos(entry.mtime_ns.try_into().unwrap_or(0));
        let time = humantime::format_rfc3339_seconds(time);
        write!(out, "{} {:>14} {time} ", mode_text(entry.mode), entry.size)?;
    }
    out.write_all(&entry.name)?;
    out.write_all(b"\n")
}

/// `drwxr-xr-x`, without the letters for the special bits.
fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let bits = bits.map(|(i, letter)| {
        if mode >> (8 - i) & 1 == 1 {
            letter
        } else {
            '-'
        }
    });
    std::iter::once(kind).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_with_and_without_the_prefix() {
        let names = |path| -> Vec<String> {
            let found = components(path, "/weir").into_iter();
            found.map(|name| String::from_utf8(name).unwrap()).collect()
        };
        assert_eq!(names("/"), [""; 0]);
        assert_eq!(names("/weir"), [""; 0]);
        assert_eq!(names("/weir/a/b"), ["a", "b"]);
        assert_eq!(names("a/b"), ["a", "b"]);
        assert_eq!(names("/weirdo"), ["weirdo"]);
    }

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(mode_text(0o040_755), "drwxr-xr-x");
        assert_eq!(mode_text(0o100_640), "-rw-r-----");
        assert_eq!(mode_text(0o120_777), "lrwxrwxrwx");
    }
}
