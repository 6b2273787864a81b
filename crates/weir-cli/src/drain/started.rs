//! The process that drains ([`process`](super::process)), seen by its parent, and the processes that come after it.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use weir_instance::errln;

use super::messages::starting_mark_of;
use super::orders::{DrainWord, FinishOrder};
use crate::args::DrainProcessArgs;
use crate::exit::NOT_MOVED;
use crate::supervise;

/// The process that drains beside a command, seen by its parent.
#[derive(Debug)]
pub struct DrainProcess {
    child: Child,
    /// Closed when the parent ends or gives up.
    input: Option<ChildStdin>,
    output: ChildStdout,
    is_finishing: bool,
}

impl DrainProcess {
    /// Starts the process. Must be called from the main thread, like [`supervise::run`].
    pub fn start(
        args: &DrainProcessArgs,
        deaf_to: &'static [Signal],
    ) -> std::io::Result<DrainProcess> {
        let mut start = Command::new(std::env::current_exe()?);
        start
            .arg("drain-process")
            .args(args.words())
            .env("LD_PRELOAD", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = supervise::spawn(&mut start, deaf_to)?;
        // Without this mark, commands that run very early do not find the drain.
        let _ = std::fs::write(starting_mark_of(&args.run_dir, child.id()), "");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is a pipe");
        Ok(DrainProcess {
            child,
            input,
            output,
            is_finishing: false,
        })
    }

    /// Orders the process to move the rest.
    pub fn begin_to_finish(&mut self) {
        if std::mem::replace(&mut self.is_finishing, true) {
            return;
        }
        let order = FinishOrder {
            is_at_once: supervise::was_told_to_end(),
            warned_at: supervise::warned_at(),
        };
        // If the process is dead, its exit status says so.
        let _ = self
            .input
            .as_mut()
            .map(|input| input.write_all(&order.to_bytes()));
    }

    /// The same, and waits for the end of the drain: `Some(true)` if everything is safe, `None` if its process died.
    pub fn finish(mut self) -> Result<Option<bool>> {
        self.begin_to_finish();
        let mut next: Option<u32> = None;
        loop {
            let status = match next {
                None => supervise::wait_for_end_or_word(&self.child, self.output.as_fd())?,
                Some(next) => {
                    supervise::wait_for_word(next, self.output.as_fd())?;
                    None
                }
            };
            // A process may have said a word long before it ended.
            let code = match self.read_word(status.is_some())? {
                Some(DrainWord::HandedOver(process)) => {
                    next = Some(process);
                    continue;
                }
                // It has named the calls that hang.
                Some(DrainWord::GaveUp) => Some(NOT_MOVED.into()),
                Some(DrainWord::Ended(code)) => Some(code.into()),
                None => status.and_then(|status| status.code()),
            };
            self.input = None;
            return Ok(code.and_then(is_safe).or_else(|| {
                let how = status.map_or("died".to_owned(), |status| format!("ended with {status}"));
                errln!("weir: the process that drained {how}; moving everything again");
                None
            }));
        }
    }

    /// Reads the next word, if there is one. `has_ended`: the process has ended.
    fn read_word(&mut self, has_ended: bool) -> Result<Option<DrainWord>> {
        // A process that it has started may keep the output open.
        if has_ended && !supervise::is_readable(self.output.as_fd()) {
            return Ok(None);
        }
        DrainWord::read(&mut self.output).context("the word of the process that drains")
    }
}

/// True if everything is safe, by the code of a process; `None`: it failed otherwise.
fn is_safe(code: i32) -> Option<bool> {
    match code {
        0 => Some(true),
        code if code == i32::from(NOT_MOVED) => Some(false),
        _ => None,
    }
}

impl Drop for DrainProcess {
    fn drop(&mut self) {
        // There is no command to wait for, so the process has nothing to finish.
        if self.input.take().is_some() {
            // Waits until it gives up, or ends, and those that came after it.
            while let Ok(Some(DrainWord::HandedOver(_))) = DrainWord::read(&mut self.output) {}
            let _ = self.child.try_wait();
        }
    }
}
