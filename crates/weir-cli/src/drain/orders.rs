//! The orders of weir to the drain process, and the end of that process while a call may hang.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

/// Written to the standard input of the process when the command has ended. After it comes the time at which the batch
/// system warned of the end of the job: milliseconds since 1970, 8 bytes, little-endian; 0: no warning. If the input is
/// closed without this message, weir is gone, and the instance with it.
const FINISH: u8 = b'F';
/// The same after a signal that ends the job: the process waits for no analysis.
const FINISH_AT_ONCE: u8 = b'N';
/// Written to the standard output of the process when it gives up, while a call may hang.
const GIVE_UP: u8 = b'G';

/// The order to move the rest.
#[derive(Clone, Copy, Debug)]
pub struct FinishOrder {
    /// The process waits for no analysis.
    pub is_at_once: bool,
    /// The time of the batch system's warning, if there was one.
    pub warned_at: Option<SystemTime>,
}

impl FinishOrder {
    /// The message that carries the order.
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
    /// A new server has replaced the one that this process knew.
    BeginAnew,
}

/// Returns when the command has ended, or `server_watch` hangs up; `None` if weir is gone. An order to finish that comes at
/// the same moment is not lost: it is read, or stays in the pipe.
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

/// Ends this process, even if a call hangs.
pub fn give_up(code: u8) -> ! {
    // If this fails, weir is gone.
    let _ = std::io::stdout().write_all(&[GIVE_UP]);
    let _ = std::io::stdout().flush();
    // A thread in a call that hangs keeps all descriptors of this process open, also that of weir's output. The next
    // program of a pipeline may wait for the end of this output.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nothing);
        let _ = nix::unistd::dup2_stderr(&nothing);
    }
    std::process::exit(code.into())
}
