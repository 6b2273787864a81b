//! Questions of programs to the drains of this node: the same as those of `weir drain`, by the same sockets.

use std::io::{self, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_client::transfer::{DrainPhase, DrainReport};
use weir_mover::drain::FileDrainState;

use crate::drain::messages::{
    receive, send, sockets, DrainReply, DrainRequest, DrainVerdict, FileOnTheWay, LINE_BYTES,
};

/// The longest reply that is read, bytes: it names a hundred files.
const REPLY_BYTES: u64 = 2 * LINE_BYTES;
/// The longest wait for the next reply of a drain.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// The state of the file at a path, from the drain whose tree it is in; `None`: no drain of this node has it.
pub fn find_state(run_dir: &Path, path: &Path) -> Result<Option<DrainReport>, Errno> {
    let request = DrainRequest {
        file_state: true,
        ..request_for(path)
    };
    for drain in drains(run_dir)? {
        let mut reader = BufReader::new(&drain);
        let reply = match talk(&drain, &mut reader, &request) {
            Ok(reply) => reply,
            Err(error) if has_ended(&error) => continue,
            Err(error) => return Err(errno_of(&error)),
        };
        match reply.file {
            None => {}
            Some(FileOnTheWay::Refused(errno)) => return Err(Errno::from_raw_os_error(errno)),
            Some(FileOnTheWay::Known { state, size }) => {
                let mut report = report_of(state);
                report.size = size;
                let age_s = reply.status.map_or(0.0, |status| status.age_s);
                // Never negative; the longest fit.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                {
                    report.age_ms = (age_s * 1000.0) as u64;
                }
                return Ok(Some(report));
            }
        }
    }
    Ok(None)
}

/// Moves the files at and below a path before others, and waits until they are safe; `Some(false)`: the time is over.
/// `goes_on` is called now and then; false ends the wait. `None`: no drain of this node moves them.
pub fn drain_first(
    run_dir: &Path,
    path: &Path,
    until: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<Option<bool>, Errno> {
    let request = DrainRequest {
        begin: true,
        wait: true,
        ..request_for(path)
    };
    for drain in drains(run_dir)? {
        let mut reader = BufReader::new(&drain);
        let mut reply = match talk(&drain, &mut reader, &request) {
            Ok(reply) => reply,
            Err(error) if has_ended(&error) => continue,
            Err(error) => return Err(errno_of(&error)),
        };
        loop {
            match reply.verdict {
                Some(DrainVerdict::Elsewhere) => break,
                Some(DrainVerdict::Safe) => return Ok(Some(true)),
                Some(DrainVerdict::Failed) => return Err(Errno::IO),
                Some(DrainVerdict::NoSuchPath) => return Err(Errno::NOENT),
                Some(DrainVerdict::NotYet) => return Ok(Some(false)),
                // A drain without the path says so at once.
                None if Instant::now() >= until || !goes_on() => return Ok(Some(false)),
                None => {
                    let next = receive(&mut reader, REPLY_BYTES);
                    reply = next.map_err(|error| errno_of(&error))?;
                }
            }
        }
    }
    Ok(None)
}

fn request_for(path: &Path) -> DrainRequest {
    DrainRequest {
        paths: vec![path.as_os_str().as_bytes().to_vec()],
        ..DrainRequest::default()
    }
}

/// Connections to the drains of this node.
fn drains(run_dir: &Path) -> Result<Vec<UnixStream>, Errno> {
    let sockets: Vec<PathBuf> = sockets(run_dir).map_err(|error| errno_of(&error))?;
    // A drain that was killed has left its socket, which refuses connections.
    let there = sockets.iter().flat_map(UnixStream::connect);
    Ok(there.collect())
}

fn talk(
    drain: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    request: &DrainRequest,
) -> io::Result<DrainReply> {
    drain.set_read_timeout(Some(REPLY_TIME))?;
    drain.set_write_timeout(Some(REPLY_TIME))?;
    send(drain, request)?;
    receive(reader, REPLY_BYTES)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

/// The errno for a program whose drain cannot be asked.
fn errno_of(error: &io::Error) -> Errno {
    match error.kind() {
        _ if has_ended(error) => Errno::CONNRESET,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

fn report_of(state: FileDrainState) -> DrainReport {
    let (state, reason) = match state {
        FileDrainState::Unmoved => (DrainPhase::Unmoved, String::new()),
        FileDrainState::Writing => (DrainPhase::Writing, String::new()),
        FileDrainState::Written => (DrainPhase::Written, String::new()),
        FileDrainState::Analysis => (DrainPhase::Analysis, String::new()),
        FileDrainState::Safe => (DrainPhase::Safe, String::new()),
        FileDrainState::Failed { reason } => (DrainPhase::Failed, reason),
    };
    DrainReport {
        state,
        reason,
        ..DrainReport::default()
    }
}
