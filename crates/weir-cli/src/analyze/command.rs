//! The command that analyses a file: its arguments, its process, its time limit.
//!
//! The command leads a process group of its own, so that a timeout ends every process that it started. It reads from
//! /dev/null, and writes where `weir analyze` writes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;

use crate::supervise;

/// Stands for the path in an argument.
const PLACE: &[u8] = b"{}";
/// The first and the longest pause between two checks for the end of a command.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(50);
/// The time between SIGTERM and SIGKILL.
const END_TIME: Duration = Duration::from_secs(2);
/// The longest wait for a killed process: it may be in a call of a file system that hangs.
const KILLED_TIME: Duration = Duration::from_secs(5);

/// The command of `weir analyze`.
#[derive(Debug)]
pub struct AnalysisCommand {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Variables that inject the client.
    pub variables: Vec<(&'static str, OsString)>,
    /// `None`: no limit.
    pub time_limit: Option<Duration>,
}

/// The end of an analysis.
#[derive(Debug)]
pub enum AnalysisEnd {
    Exited(ExitStatus),
    NotStarted(io::Error),
    /// It was killed after this time.
    TimedOut(Duration),
    /// It was killed because `weir analyze` ends.
    Stopped,
}

impl AnalysisEnd {
    pub fn has_succeeded(&self) -> bool {
        matches!(self, AnalysisEnd::Exited(status) if status.success())
    }

    /// For people.
    pub fn in_words(&self) -> String {
        match self {
            AnalysisEnd::Exited(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("ended by signal {signal}"),
                (None, None) => status.to_string(),
            },
            AnalysisEnd::NotStarted(error) => format!("could not be started: {error}"),
            AnalysisEnd::TimedOut(limit) => format!("killed after {} s", limit.as_secs_f64()),
            AnalysisEnd::Stopped => "stopped".to_owned(),
        }
    }
}

impl AnalysisCommand {
    /// Runs the command for a file. Calls `tick` repeatedly while it runs; `stop` ends it.
    pub fn run(&self, path: &Path, stop: &AtomicBool, mut tick: impl FnMut()) -> AnalysisEnd {
        let words = words_for(&self.words, path);
        let mut start = Command::new(&words[0]);
        start
            .args(&words[1..])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0);
        let mut child = match supervise::spawn(&mut start, &[]) {
            Ok(child) => child,
            Err(error) => return AnalysisEnd::NotStarted(error),
        };
        let time_limit = self.time_limit.unwrap_or(Duration::MAX);
        let is_over = |began: Instant| {
            tick();
            stop.load(Ordering::Relaxed) || began.elapsed() >= time_limit
        };
        match wait_until(&mut child, is_over) {
            Ok(Some(status)) => return AnalysisEnd::Exited(status),
            Ok(None) => {}
            Err(error) => return AnalysisEnd::NotStarted(error),
        }
        end_group(&mut child, &mut tick);
        match (stop.load(Ordering::Relaxed), self.time_limit) {
            (false, Some(limit)) => AnalysisEnd::TimedOut(limit),
            _ => AnalysisEnd::Stopped,
        }
    }
}

/// Ends a command, and every process of its group.
fn end_group(child: &mut Child, tick: &mut impl FnMut()) {
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    for (signal, time) in [(Signal::SIGTERM, END_TIME), (Signal::SIGKILL, KILLED_TIME)] {
        // If the group has no process any more, there is nothing to end.
        let _ = killpg(group, signal);
        let is_over = |began: Instant| {
            tick();
            began.elapsed() >= time
        };
        let has_ended = wait_until(child, is_over).is_ok_and(|status| status.is_some());
        if has_ended && signal == Signal::SIGTERM {
            // Its children may ignore SIGTERM, though it did not.
            let _ = killpg(group, Signal::SIGKILL);
            return;
        }
    }
}

/// Waits for a command to end, or for `is_over` to return true; `None`: the command still runs.
fn wait_until(
    child: &mut Child,
    mut is_over: impl FnMut(Instant) -> bool,
) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    let mut pause = FIRST_LOOK;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if is_over(began) {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

/// The words of a command for a path: the path replaces each `{}`, or becomes the last word if there is none.
fn words_for(words: &[OsString], path: &Path) -> Vec<OsString> {
    let path = path.as_os_str();
    let mut replaced: Vec<OsString> = words.iter().map(|word| put_path(word, path)).collect();
    if replaced == words {
        replaced.push(path.to_owned());
    }
    replaced
}

fn put_path(word: &OsStr, path: &OsStr) -> OsString {
    let mut done = Vec::new();
    let mut left = word.as_bytes();
    while let Some(at) = left.windows(PLACE.len()).position(|part| part == PLACE) {
        done.extend_from_slice(&left[..at]);
        done.extend_from_slice(path.as_bytes());
        left = &left[at + PLACE.len()..];
    }
    done.extend_from_slice(left);
    OsString::from_vec(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(|word| (*word).into()).collect()
    }

    fn command(words_of: &[&str], time_limit: Option<Duration>) -> AnalysisCommand {
        AnalysisCommand {
            words: words(words_of),
            variables: Vec::new(),
            time_limit,
        }
    }

    #[test]
    fn the_path_replaces_each_place_or_comes_last() {
        let path = Path::new(OsStr::from_bytes(b"/weir/a {} \xff"));
        let put = |given: &[&str]| words_for(&words(given), path);
        let bytes = |put: Vec<OsString>| -> Vec<Vec<u8>> {
            put.into_iter().map(OsString::into_vec).collect()
        };
        assert_eq!(
            bytes(put(&["cat", "-n"])).last().unwrap(),
            path.as_os_str().as_bytes()
        );
        let in_words = bytes(put(&["cp", "--from={}:{}", "{", "}{}"]));
        assert_eq!(in_words.len(), 4);
        assert_eq!(in_words[1], b"--from=/weir/a {} \xff:/weir/a {} \xff");
        assert_eq!(in_words[3], b"}/weir/a {} \xff");
        assert_eq!(in_words[2], b"{");
    }

    #[test]
    fn its_end_is_told() {
        let stop = AtomicBool::new(false);
        let run = |words: &[&str], limit| command(words, limit).run(Path::new("/a"), &stop, || {});
        assert!(run(&["true"], None).has_succeeded());
        let failed = run(&["sh", "-c", "exit 3"], None);
        assert_eq!(failed.in_words(), "exit code 3");
        let killed = run(&["sh", "-c", "kill -9 $$"], None);
        assert_eq!(killed.in_words(), "ended by signal 9");
        assert!(run(&["/none/program"], None)
            .in_words()
            .contains("No such file"));
        let limit = Some(Duration::from_millis(100));
        let slow = run(&["sh", "-c", "sleep 60 & wait"], limit);
        assert!(matches!(slow, AnalysisEnd::TimedOut(_)), "{slow:?}");
        stop.store(true, Ordering::Relaxed);
        let stopped = run(&["sh", "-c", "sleep 60"], None);
        assert!(matches!(stopped, AnalysisEnd::Stopped), "{stopped:?}");
    }
}
