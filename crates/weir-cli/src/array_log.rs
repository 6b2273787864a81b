//! `weir log`: logs of array writes (docs/GUIDE.md, "Connectors"), without PnetCDF. It reads files: those in weir where the
//! command runs under `weir run`, or below a kernel mount.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context};
use serde::Serialize;
use weir_arraylog::{find_logs, read_values, replay, ArrayLog, LoggedValues, ReplayError};
use weir_arrays::element::ElementType;
use weir_config::Environment;
use weir_core::proto::Lookup;
use weir_instance::connection::Connection;
use weir_instance::errln;

use crate::args::{LogAction, LogArgs};
use crate::exit::Failure;
use crate::inject::{self, InjectedLibraries};

/// The directory of logs, below the mount.
const DIRECTORY: &str = ".pnetcdf";

/// `weir log`.
pub fn log(args: &LogArgs, env: &Environment) -> Result<(), Failure> {
    let directory = directory(args.path.as_deref(), env)?;
    let logs = match find_logs(&directory, None) {
        Err(error) if error.kind() == ErrorKind::NotFound && args.path.is_none() => Vec::new(),
        found => found.with_context(|| directory.display().to_string())?,
    };
    match &args.action {
        LogAction::Show { json } => show_logs(logs, *json),
        LogAction::Read { variable } => read(logs, variable),
        LogAction::Replay { to, keep } => replay_all(logs, to.as_deref(), *keep),
    }
}

/// The directory that is asked for, or that of the instance.
fn directory(path: Option<&Path>, env: &Environment) -> Result<PathBuf, Failure> {
    let mount = env.get("WEIR_AT").filter(|mount| !mount.is_empty());
    match (path, mount) {
        (Some(path), _) => Ok(path.to_owned()),
        (None, Some(mount)) => Ok(Path::new(mount).join(DIRECTORY)),
        (None, None) => Err(Failure::Refused(
            "which logs? --path names a log, or the directory of several; by itself weir log looks into the instance only in a \
             command of weir run: weir run -i NAME -- weir log show"
                .to_owned(),
        )),
    }
}

type FoundLogs = Vec<(PathBuf, io::Result<ArrayLog>)>;

/// A log, for people and scripts.
#[derive(Debug, Serialize)]
struct ShownLog {
    #[serde(flatten, with = "weir_mover::json_path::log")]
    log: PathBuf,
    file: Option<String>,
    is_open: bool,
    is_cut: bool,
    processes: u32,
    entries: u64,
    bytes: u64,
    variables: Vec<ShownVariable>,
    error: Option<String>,
}

/// The entries of a variable in a log.
#[derive(Debug, Serialize)]
struct ShownVariable {
    name: String,
    r#type: &'static str,
    entries: u64,
    elements: u64,
}

impl ShownLog {
    fn new(path: PathBuf, log: io::Result<ArrayLog>) -> ShownLog {
        let mut shown = ShownLog {
            log: path,
            file: None,
            is_open: false,
            is_cut: false,
            processes: 0,
            entries: 0,
            bytes: 0,
            variables: Vec::new(),
            error: None,
        };
        let log = match log {
            Ok(log) => log,
            Err(error) => {
                shown.error = Some(error.to_string());
                return shown;
            }
        };
        shown.file = log
            .path()
            .map(|path| String::from_utf8_lossy(path).into_owned());
        shown.is_open = log.is_open;
        shown.is_cut = log.writers.iter().any(|writer| writer.contents.is_cut);
        let processes = log.writers.iter().map(|writer| writer.contents.processes);
        shown.processes = processes.max().unwrap_or(0);
        let entries = log.entries();
        shown.entries = entries.len() as u64;
        shown.bytes = entries.iter().filter_map(|(_, entry)| entry.bytes()).sum();
        let variables = log
            .definitions()
            .map(|definitions| definitions.variables.as_slice());
        for (number, variable) in (0..).zip(variables.unwrap_or_default()) {
            let own = entries.iter().filter(|(_, entry)| entry.variable == number);
            let elements = own.clone().filter_map(|(_, entry)| entry.part.elements());
            shown.variables.push(ShownVariable {
                name: variable.name.clone(),
                r#type: variable.external.name(),
                entries: own.count() as u64,
                elements: elements.sum(),
            });
        }
        shown
    }

    fn print(&self) {
        let file = self.file.as_deref().unwrap_or("unknown");
        if let Some(error) = &self.error {
            outln!("{}: {error}", self.log.display());
            return;
        }
        let state = match (self.is_open, self.is_cut) {
            (true, _) => "a program has it open",
            (false, true) => "left over; its program was killed in the middle of a write",
            (false, false) => "left over",
        };
        outln!(
            "{file}: {} writes, {} B, of {} processes; {state}",
            self.entries,
            self.bytes,
            self.processes
        );
        outln!("    in {}", self.log.display());
        for variable in self
            .variables
            .iter()
            .filter(|variable| variable.entries > 0)
        {
            let ShownVariable {
                name,
                r#type,
                entries,
                elements,
            } = variable;
            outln!("    {type} {name}: {entries} writes, {elements} elements");
        }
    }
}

fn show_logs(logs: FoundLogs, json: bool) -> Result<(), Failure> {
    let shown = logs.into_iter().map(|(path, log)| ShownLog::new(path, log));
    let shown: Vec<ShownLog> = shown.collect();
    if json {
        outln!("{}", serde_json::to_string(&shown).context("plain data")?);
        return Ok(());
    }
    if shown.is_empty() {
        outln!("no logs");
    }
    shown.iter().for_each(ShownLog::print);
    Ok(())
}

/// Prints a variable: a line for each row of its last dimension, `_` for elements that the log does not have.
fn read(logs: FoundLogs, variable: &str) -> Result<(), Failure> {
    let mut found = Vec::new();
    for (path, log) in logs {
        let log = log.with_context(|| path.display().to_string())?;
        found.extend(read_values(&log, variable).with_context(|| path.display().to_string())?);
    }
    let values = match found.len() {
        1 => found.remove(0),
        0 => return Err(anyhow::anyhow!("no log has a variable {variable}").into()),
        n => {
            return Err(Failure::Refused(format!(
                "{n} logs have a variable {variable}: --path names one"
            )))
        }
    };
    print(&values);
    Ok(())
}

fn print(values: &LoggedValues) {
    let row = values.part.0.last().map_or(1, |range| range.count);
    let row = usize::try_from(row).unwrap_or(1).max(1);
    let bytes = values.element.bytes();
    let elements = values.external.chunks_exact(bytes).zip(&values.is_logged);
    let elements: Vec<_> = elements.collect();
    for row in elements.chunks(row) {
        if values.element == ElementType::Text {
            let text: Vec<u8> = row.iter().map(|(byte, _)| byte[0]).collect();
            outln!("{}", String::from_utf8_lossy(&text).trim_end_matches('\0'));
            continue;
        }
        let text = row.iter().map(|(element, is_logged)| match is_logged {
            true => values.element.text(element),
            false => "_".to_owned(),
        });
        outln!("{}", text.collect::<Vec<_>>().join(", "));
    }
}

fn replay_all(logs: FoundLogs, to: Option<&Path>, keep: bool) -> Result<(), Failure> {
    if to.is_some() && logs.len() != 1 {
        return Err(Failure::Refused(format!(
            "--to is for one log, and there are {}: --path names one",
            logs.len()
        )));
    }
    let mut left = Vec::new();
    for (path, log) in logs {
        if let Err(error) = replay_one(log, to, keep) {
            errln!("weir: {}: {error:#}", path.display());
            left.push(path.display().to_string());
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(Failure::NotMoved(left.join(", "))),
    }
}

fn replay_one(log: io::Result<ArrayLog>, to: Option<&Path>, keep: bool) -> anyhow::Result<()> {
    let log = log?;
    ensure!(!log.is_open, "a program has it open");
    match replay(&log, to) {
        Ok(replayed) if replayed.entries > 0 => errln!(
            "weir: {}: {} writes that a program had logged when it ended are in it now ({} B)",
            replayed.path.display(),
            replayed.entries,
            replayed.bytes
        ),
        Ok(_) => {}
        // Its log goes with it.
        Err(ReplayError::Removed(path)) => errln!(
            "weir: {} was removed, with what a program had logged of it when it ended",
            path.display()
        ),
        Err(error) => return Err(error.into()),
    }
    if !keep {
        log.remove().context("it cannot be removed")?;
    }
    Ok(())
}

/// Before the files of an instance are moved out of it: the logs of programs that were killed go into their files. False: not
/// all of them do; it has been said why.
pub fn replay_left(run_dir: &Path) -> bool {
    let replayed = try_replay_left(run_dir);
    if let Err(error) = &replayed {
        errln!("weir: logs of array writes are not in their files: {error:#}");
    }
    replayed.is_ok()
}

fn try_replay_left(run_dir: &Path) -> anyhow::Result<()> {
    let mut connection = Connection::to(run_dir)?;
    let components = vec![DIRECTORY.into()];
    match connection.call(Lookup { components }) {
        Ok(_) => {}
        Err(_) => return Ok(()),
    }
    let program = std::env::current_exe().context("finding the weir program")?;
    let env = Environment::of_process();
    let client = inject::find_library(&env, &program)?;
    let libraries = InjectedLibraries::client_alone(client);
    let variables = inject::variables(run_dir, &libraries, &env)?;
    let mut command = Command::new(program);
    command
        .args(["log", "replay"])
        .envs(variables)
        .stdin(Stdio::null());
    let status = command.status().context("weir log replay")?;
    ensure!(status.success(), "weir log replay: {status}");
    Ok(())
}
