//! The user's program that receives the events of files (`drain.hook`): a line of JSON for each event, on its standard
//! input. If the program does not read, or ends, the drain goes on all the same.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use serde_json::{json, Value};
use weir_instance::errln;
use weir_mover::drain::MoveEvent;
use weir_mover::json_path;

/// The most events that wait for the program.
const WAITING_EVENTS: usize = 1 << 16;
/// The longest time that the program may run after the last event.
const END_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks for its end.
const LOOK: Duration = Duration::from_millis(20);

/// The program, and the thread that writes to it.
#[derive(Debug)]
pub struct EventHook {
    /// The path by which programs name the root of the tree.
    root: PathBuf,
    target: PathBuf,
    events: SyncSender<Value>,
    writer: JoinHandle<()>,
    child: Child,
    /// Events that the program did not read in time.
    missed: AtomicU64,
}

impl EventHook {
    /// Starts the program.
    pub fn start(program: &Path, root: &Path, target: &Path) -> Result<EventHook> {
        let mut child = Command::new(program)
            .env("LD_PRELOAD", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A group of its own, which is killed as a whole.
            .process_group(0)
            .spawn()
            .with_context(|| format!("drain.hook: {}", program.display()))?;
        let input = child.stdin.take().context("drain.hook: its input")?;
        let (events, waiting) = sync_channel(WAITING_EVENTS);
        Ok(EventHook {
            root: root.to_owned(),
            target: target.to_owned(),
            events,
            writer: std::thread::spawn(move || write_all(input, &waiting)),
            child,
            missed: AtomicU64::new(0),
        })
    }

    /// Sends events of files to the program.
    pub fn send_events(&self, events: Vec<MoveEvent>) {
        for event in events {
            let mut line = json!(event);
            for (key, top) in [("path", &self.root), ("target", &self.target)] {
                for (key, value) in json_path::entries_of(key, &top.join(&event.path)) {
                    line[key] = value.into();
                }
            }
            self.send_line(line);
        }
    }

    fn send_line(&self, line: Value) {
        if let Err(TrySendError::Full(_)) = self.events.try_send(line) {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the last event, and waits up to `END_TIME` for the program to end. Reports a failure of the program.
    pub fn finish(self, is_safe: bool) {
        self.finish_within(END_TIME, is_safe);
    }

    fn finish_within(mut self, time: Duration, is_safe: bool) {
        self.send_line(json!({ "event": "finished", "safe": is_safe }));
        let missed = self.missed.load(Ordering::Relaxed);
        if missed > 0 {
            errln!("weir: drain.hook did not read {missed} events in time");
        }
        // The writer closes the input of the program after the last event.
        drop(self.events);
        let until = Instant::now() + time;
        while Instant::now() < until {
            let is_over = self.writer.is_finished();
            match self.child.try_wait() {
                Ok(Some(status)) if is_over => {
                    if !status.success() {
                        errln!("weir: drain.hook ended with {status}: it may not have acted on all files");
                    }
                    return;
                }
                Err(_) if is_over => return,
                _ => std::thread::sleep(LOOK),
            }
        }
        errln!("weir: drain.hook does not end; it is killed, with all that it started");
        let _ = killpg(pid_of(&self.child), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// The number of a process, which is that of its group.
fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Writes events until there are no more, or nobody reads them.
fn write_all(mut input: impl Write, events: &Receiver<Value>) {
    for event in events {
        if writeln!(input, "{event}").is_err() {
            // The program has ended: later events are dropped.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_mover::drain::FileEvent;

    fn hook(dir: &Path, script: &str) -> EventHook {
        let program = dir.join("hook");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        EventHook::start(&program, Path::new("/weir"), Path::new("/pfs/out")).unwrap()
    }

    fn safe(path: &str) -> MoveEvent {
        MoveEvent {
            path: path.into(),
            state: FileEvent::Safe { bytes: 3 },
        }
    }

    #[test]
    fn each_event_is_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let hook = hook(dir.path(), &format!("exec cat > {}", out.display()));
        hook.send_events(vec![safe("d/a\nb")]);
        hook.finish(false);
        let lines = std::fs::read_to_string(out).unwrap();
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let first = json!({
            "event": "safe", "path": "/weir/d/a\nb", "target": "/pfs/out/d/a\nb", "bytes": 3,
        });
        assert_eq!(
            lines,
            [first, json!({ "event": "finished", "safe": false })]
        );
    }

    #[test]
    fn one_that_ends_or_does_not_read_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let hook = hook(dir.path(), "exit 1");
        for _ in 0..3 {
            hook.send_events(vec![safe("a")]);
            std::thread::sleep(LOOK);
        }
        hook.finish(true);
        assert!(EventHook::start(Path::new("/none"), Path::new("/"), Path::new("/")).is_err());
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 100 & echo $! > {}; wait", pid.display());
        let hook = hook(dir.path(), &script);
        let mut text = String::new();
        while !text.ends_with('\n') {
            std::thread::sleep(LOOK);
            text = std::fs::read_to_string(&pid).unwrap_or_default();
        }
        hook.finish_within(LOOK, true);
        let state = format!("/proc/{}/stat", text.trim());
        let has_ended =
            || std::fs::read_to_string(&state).map_or(true, |stat| stat.contains(") Z "));
        weir_cluster::guard::wait_until("its child ends", has_ended);
    }
}
