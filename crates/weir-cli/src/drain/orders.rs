//! The orders of weir to the process that drains beside a command, and its end though a call may hang.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

/// Written to the standard input of the process when the command has ended, and after it the time at which the
/// batch system has warned of the end of the job: milliseconds since 1970, 8 bytes, little-endian; 0: it has not.
/// If that is closed without it, weir is gone, and the instance with it.
const FINISH: u8 = b'F';
/// The same after a signal that ends the job: no analysis is waited for.
const FINISH_AT_ONCE: u8 = b'N';
/// Written to the standard output of the process when it ends though a call may hang.
const GIVE_UP: u8 = b'G';

/// The order to move the rest.
#[derive(Clone, Copy, Debug)]
pub struct FinishOrder {
    /// No analysis is waited for.
    pub is_at_once: bool,
    /// The time of the batch system's warning, if there was one.
    pub warned_at: Option<SystemTime>,
}

impl FinishOrder {
    /// The message that gives it.
    pub fn to_bytes(self) -> Vec<u8> {
        let letter = match self.is_at_once {
            true => FINISH_AT_ONCE,
            false => FINISH,
        };
        let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let warned_ms = self
            .warned_at
            .map_or(0, |time| since_1970(time).as_millis());
        let warned_ms = u64::try_from(warned_ms).unwrap_or(0).to_le_bytes();
        [&[letter], &warned_ms[..]].concat()
    }
}

/// The next step of the process, beside its rounds.
#[derive(Clone, Copy, Debug)]
pub enum NextStep {
    /// The command has ended.
    Finish(FinishOrder),
    /// The server that this process knew is another one now.
    BeginAnew,
}

/// Returns when the command has ended, or `server_watch` hangs up; `None` if weir is gone. An order to finish is read or
/// still there, so one that comes at the same moment is not lost.
pub fn await_step(server_watch: Option<&UnixStream>) -> Option<NextStep> {
    let input = std::io::stdin();
    loop {
        let all = [Some(input.as_fd()), server_watch.map(AsFd::as_fd)];
        let all = all.into_iter().flatten();
        let mut watched: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut watched, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return await_finish().map(NextStep::Finish),
            Ok(_) => {}
        }
        match watched.iter().position(|fd| fd.any() != Some(false)) {
            Some(0) => return await_finish().map(NextStep::Finish),
            Some(_) => return Some(NextStep::BeginAnew),
            None => {}
        }
    }
}

/// Returns when the command has ended; `None` if weir is gone.
pub fn await_finish() -> Option<FinishOrder> {
    let mut message = [0; 9];
    std::io::stdin().read_exact(&mut message).ok()?;
    let [letter @ (FINISH | FINISH_AT_ONCE), warned_ms @ ..] = message else {
        return None;
    };
    let warned_ms = u64::from_le_bytes(warned_ms);
    let warned_at = UNIX_EPOCH + Duration::from_millis(warned_ms);
    Some(FinishOrder {
        is_at_once: letter == FINISH_AT_ONCE,
        warned_at: (warned_ms > 0).then_some(warned_at),
    })
}

/// Ends this process, though a call may hang.
pub fn give_up(code: u8) -> ! {
    // If nobody reads it, weir is gone.
    let _ = std::io::stdout().write_all(&[GIVE_UP]);
    let _ = std::io::stdout().flush();
    // A thread in a call that hangs keeps what this process has open: also the output of weir, to whose end
    // another program of a pipeline may listen.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nothing);
        let _ = nix::unistd::dup2_stderr(&nothing);
    }
    std::process::exit(code.into())
}
