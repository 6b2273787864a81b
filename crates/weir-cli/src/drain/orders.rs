//! The orders of weir to the drain process, and its words to weir: a process in a call that hangs has no end to wait for.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::exit::NOT_MOVED;

/// Written to the standard input of the process when the command has ended. After it comes the time at which the batch
/// system warned of the end of the job: milliseconds since 1970, 8 bytes, little-endian; 0: no warning. If the input is
/// closed without this message, weir is gone, and the instance with it.
const FINISH: u8 = b'F';
/// The same after a signal that ends the job: the process waits for no analysis.
const FINISH_AT_ONCE: u8 = b'N';
/// [`DrainWord::GaveUp`].
const GAVE_UP: u8 = b'G';
/// [`DrainWord::Ended`]; the exit code follows.
const ENDED: u8 = b'E';
/// [`DrainWord::HandedOver`]; the number of the process follows: 4 bytes, little-endian.
const HANDED_OVER: u8 = b'H';

/// A word of the process on its standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainWord {
    /// It gives up while a call hangs: not everything is safe.
    GaveUp,
    /// It has ended with this code. Said by a process whose parent does not wait for it.
    Ended(u8),
    /// A process with this number goes on, and says further words.
    HandedOver(u32),
}

impl DrainWord {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            DrainWord::GaveUp => vec![GAVE_UP],
            DrainWord::Ended(code) => vec![ENDED, code],
            DrainWord::HandedOver(process) => [&[HANDED_OVER], &process.to_le_bytes()[..]].concat(),
        }
    }

    /// Reads the next word; `None`: no process is left that could say one.
    pub fn read(mut from: impl Read) -> io::Result<Option<DrainWord>> {
        let mut letter = [0];
        if from.read(&mut letter)? == 0 {
            return Ok(None);
        }
        Ok(Some(match letter[0] {
            GAVE_UP => DrainWord::GaveUp,
            ENDED => {
                from.read_exact(&mut letter)?;
                DrainWord::Ended(letter[0])
            }
            HANDED_OVER => {
                let mut process = [0; 4];
                from.read_exact(&mut process)?;
                DrainWord::HandedOver(u32::from_le_bytes(process))
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }))
    }

    /// Says the word. If that fails, weir is gone.
    pub fn say(self) {
        let mut output = std::io::stdout();
        let _ = output.write_all(&self.to_bytes());
        let _ = output.flush();
    }

    /// The same as the last output of this process. A thread in a call that hangs keeps all descriptors of this process open,
    /// also those of weir's output, and the next program of a pipeline may wait for the end of this output.
    pub fn say_last(self) {
        self.say();
        if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
            let _ = nix::unistd::dup2_stdin(&nothing);
            let _ = nix::unistd::dup2_stdout(&nothing);
            let _ = nix::unistd::dup2_stderr(&nothing);
        }
    }

    /// The exit code of the process.
    pub fn exit_code(self) -> i32 {
        match self {
            DrainWord::GaveUp => NOT_MOVED.into(),
            DrainWord::Ended(code) => code.into(),
            DrainWord::HandedOver(_) => 0,
        }
    }
}

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

/// The standard input of the process, from which one thread reads the order to move the rest.
#[derive(Debug, Default)]
pub struct OrderInput(Mutex<Option<FinishOrder>>);

impl OrderInput {
    fn order(&self) -> MutexGuard<'_, Option<FinishOrder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the command has ended, or `server_watch` hangs up; `None` if weir is gone. An order to finish that comes
    /// at the same moment is not lost: it stays in the pipe.
    pub fn await_step(&self, server_watch: Option<&UnixStream>) -> Option<NextStep> {
        let input = std::io::stdin();
        let fds = [Some(input.as_fd()), server_watch.map(AsFd::as_fd)];
        let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().collect();
        loop {
            let watched = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
            let mut watched: Vec<PollFd<'_>> = watched.collect();
            match poll(&mut watched, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                Err(_) => return self.read().map(NextStep::Finish),
                Ok(_) => {}
            }
            match watched.iter().position(|fd| fd.any() != Some(false)) {
                Some(0) => return self.read().map(NextStep::Finish),
                Some(_) => return Some(NextStep::BeginAnew),
                None => {}
            }
        }
    }

    fn read(&self) -> Option<FinishOrder> {
        let mut received = self.order();
        let mut message = [0; 9];
        std::io::stdin().read_exact(&mut message).ok()?;
        let [letter @ (FINISH | FINISH_AT_ONCE), warned_ms @ ..] = message else {
            return None;
        };
        let warned_ms = u64::from_le_bytes(warned_ms);
        let warned_at = UNIX_EPOCH + Duration::from_millis(warned_ms);
        let order = FinishOrder {
            is_at_once: letter == FINISH_AT_ONCE,
            warned_at: (warned_ms > 0).then_some(warned_at),
        };
        *received = Some(order);
        Some(order)
    }

    /// True if the command has ended.
    pub fn is_given(&self) -> bool {
        self.order().is_some()
    }

    /// Notes a warning that came after the order.
    pub fn note_warning(&self, at: SystemTime) {
        if let Some(order) = &mut *self.order() {
            order.warned_at.get_or_insert(at);
        }
    }

    /// Stops reading as long as the returned guard lives. Returns the order, if it was read.
    pub fn stop_reading(&self) -> (impl Drop + '_, Option<FinishOrder>) {
        let order = self.order();
        let received = *order;
        (order, received)
    }
}

/// Held by the thread that ends this process by a word, so that no other one says another word.
static LEAVING: Mutex<()> = Mutex::new(());

/// Begins to end this process by a word. Another thread that would do so waits until the returned guard is dropped.
pub fn begin_to_leave() -> MutexGuard<'static, ()> {
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this process with a word, even if a call hangs.
pub fn leave(word: DrainWord) -> ! {
    word.say_last();
    std::process::exit(word.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_said() {
        let words = [
            DrainWord::HandedOver(70_000),
            DrainWord::Ended(7),
            DrainWord::GaveUp,
        ];
        let said = words.map(DrainWord::to_bytes).concat();
        let mut rest = &said[..];
        for word in words {
            assert_eq!(DrainWord::read(&mut rest).unwrap(), Some(word));
        }
        assert_eq!(DrainWord::read(rest).unwrap(), None);
        assert!(DrainWord::read(&b"x"[..]).is_err());
        assert!(DrainWord::read(&said[..3]).is_err());
    }
}
