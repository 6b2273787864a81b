//! The messages between `weir drain` and the processes that drain: one request, then replies, each a line
//! of JSON. `weir analyze` sends a request with its arrival, and then answers the orders of the drain.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_mover::drain::{AnalyzerId, FileDrainState, PendingFile};
use weir_mover::SlowCall;

pub use crate::json_lines::{receive, send};

/// The longest line that is read, bytes: the paths of a command line fit in.
pub const LINE_BYTES: u64 = 4 << 20;
/// The time after which a silent analyzer or drain counts as lost.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The beginning and the end of the name of a socket; the process number is between them.
const SOCKET_NAME: (&str, &str) = ("drain-", ".socket");
/// The end of the name of the mark of a process that was started and has no socket yet.
const STARTING: &str = ".starting";
/// The longest time between the start of a process and its socket.
const START_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks for that.
const START_LOOK: Duration = Duration::from_millis(5);

/// A request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DrainRequest {
    /// Start a round now, and answer when it has ended, or after a short time.
    pub begin: bool,
    /// Send more replies, until everything that the paths name is safe, or could not be moved.
    pub wait: bool,
    /// The bytes of absolute paths, as programs use them; none: all paths. A drain answers for those that are in its tree.
    pub paths: Vec<Vec<u8>>,
    /// Begin a pause, or end it.
    #[serde(default)]
    pub pause: Option<bool>,
    /// Return the state of the file at the only path.
    #[serde(default)]
    pub file_state: bool,
    /// An analyzer asks for files; the rest of the request is ignored.
    #[serde(default)]
    pub analyzer: Option<AnalyzerArrival>,
}

/// An analyzer that asks for files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnalyzerArrival {
    /// The same on all its connections.
    pub id: AnalyzerId,
    /// Patterns of the files that it wants; none: all.
    pub patterns: Vec<String>,
}

/// A message of a drain to an analyzer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnalysisOrder {
    /// There is no file now. It is answered by `Alive`.
    Wait,
    /// This file is next. It is answered by `Ready`, and any number of `Alive` before.
    Analyze {
        /// As programs name it, as bytes.
        path: Vec<u8>,
    },
    /// The file has changed: nothing is to be done.
    Skip,
    /// The command is to begin. It is answered by `Ended`, and any number of `Alive` before.
    Begin,
    /// The result is known.
    Noted {
        /// The file was changed or removed meanwhile, so that a failure means nothing.
        is_outdated: bool,
    },
    /// Nothing is held back any more. It may come while a command runs.
    Finished {
        /// Files that the analyzer wanted, and that are moved without an analysis.
        unanalysed: u64,
    },
}

/// The answer of an analyzer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnalyzerReply {
    Alive,
    /// A command could begin now.
    Ready,
    Ended {
        succeeded: bool,
    },
}

impl DrainRequest {
    pub fn paths(&self) -> Vec<PathBuf> {
        let paths = self.paths.iter().cloned();
        paths
            .map(|bytes| OsString::from_vec(bytes).into())
            .collect()
    }
}

/// The answer to the question of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainVerdict {
    /// Everything is on the target.
    Safe,
    /// Something is not, yet.
    NotYet,
    /// Something could not be moved.
    Failed,
    /// A path of the request is not in the instance.
    NoSuchPath,
    /// None of the paths of the request is in the tree of this drain.
    Elsewhere,
}

/// The step that a drain takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainStep {
    /// It waits until the next round is due.
    #[default]
    Idle,
    /// It walks the instance, or moves files.
    Moving,
    /// The command has ended; it moves the rest.
    Finishing,
    /// It has moved what it could. This is the last step in a status file.
    Ended,
}

impl DrainStep {
    /// True if the command has ended.
    pub fn is_last(self) -> bool {
        matches!(self, DrainStep::Finishing | DrainStep::Ended)
    }
}

/// The state of a drain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DrainStatus {
    /// The process.
    pub pid: u32,
    /// The directory that takes everything.
    #[serde(flatten, with = "weir_mover::json_path::target")]
    pub target: PathBuf,
    pub step: DrainStep,
    /// Nothing is moved until the pause ends.
    #[serde(default)]
    pub is_paused: bool,
    /// Processes on other nodes that move files, too.
    pub movers: u64,
    /// The rounds that are done.
    pub rounds: u64,
    /// Seconds since the last of them began: files that were closed before are moved or pending.
    pub age_s: f64,
    /// Files of the instance that were on the target after the last round.
    pub safe_files: u64,
    pub safe_bytes: u64,
    /// Files that are not on the target, for any reason.
    pub pending_files: u64,
    pub pending_bytes: u64,
    /// Those of them that programs have open for writing, or that await their lamination.
    pub open_files: u64,
    /// Those of them that could not be moved.
    pub failed_files: u64,
    /// Those of them that are not moved before their analysis.
    #[serde(default)]
    pub analysis_files: u64,
    /// The programs that analyse files.
    #[serde(default)]
    pub analyzers: u64,
    /// Analyses since the drain began: those that succeeded, and those that did not.
    #[serde(default)]
    pub analysed_files: u64,
    #[serde(default)]
    pub failed_analyses: u64,
    /// Links that are to be made on the target, and names that are to be removed there.
    pub names_due: u64,
    /// Since the drain began.
    pub moved_files: u64,
    pub moved_bytes: u64,
    /// Files whose storage was freed since then.
    #[serde(default)]
    pub evicted_files: u64,
    #[serde(default)]
    pub evicted_bytes: u64,
    /// Writes that wait for room.
    #[serde(default)]
    pub waiting_writes: u32,
    /// Of the round under way.
    pub round_files: u64,
    pub round_bytes: u64,
    pub round_bytes_done: u64,
    pub round_seconds: f64,
    /// Calls of the target that have not returned for some time.
    #[serde(default)]
    pub slow_calls: Vec<SlowCall>,
    /// The first files that are not safe.
    pub pending: Vec<PendingFile>,
}

/// A reply.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DrainReply {
    /// The state; `None`: the drain has not sent it.
    pub status: Option<DrainStatus>,
    /// The answer; `None`: more replies follow.
    pub verdict: Option<DrainVerdict>,
    /// The reason of the answer; for `NoSuchPath`, the path.
    pub reason: Option<String>,
    /// The paths of the request that are not in the tree of this drain.
    pub foreign: Vec<Vec<u8>>,
    /// The file of the request.
    #[serde(default)]
    pub file: Option<FileOnTheWay>,
}

/// The answer to a question about one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FileOnTheWay {
    Known {
        #[serde(flatten)]
        state: FileDrainState,
        /// Bytes.
        size: u64,
    },
    /// An errno: there is no such file, it is no regular file, or asking failed.
    Refused(i32),
}

/// The socket of a process.
pub fn socket_of(run_dir: &Path, process: u32) -> PathBuf {
    run_dir.join(format!("{}{process}{}", SOCKET_NAME.0, SOCKET_NAME.1))
}

/// The mark of a process that was started and has no socket yet. As long as it is there, commands wait for the socket.
pub fn starting_mark_of(run_dir: &Path, process: u32) -> PathBuf {
    run_dir.join(format!("{}{process}{STARTING}", SOCKET_NAME.0))
}

/// The sockets of all processes that drain an instance, or did so when they were killed. Waits for those that have
/// just been started.
pub fn sockets(run_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let until = Instant::now() + START_TIME;
    loop {
        let (mut found, is_starting) = sockets_now(run_dir)?;
        if !is_starting || Instant::now() >= until {
            found.sort_unstable();
            return Ok(found);
        }
        std::thread::sleep(START_LOOK);
    }
}

/// The sockets that there are, and true if a living process will make another one.
fn sockets_now(run_dir: &Path) -> io::Result<(Vec<PathBuf>, bool)> {
    let mut found = Vec::new();
    let mut is_starting = false;
    for entry in run_dir.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(rest) = name.strip_prefix(SOCKET_NAME.0) else {
            continue;
        };
        let process = |end| rest.strip_suffix(end)?.parse::<u32>().ok();
        if process(SOCKET_NAME.1).is_some() && entry.file_type()?.is_socket() {
            found.push(entry.path());
        } else if let Some(process) = process(STARTING) {
            is_starting |= !socket_of(run_dir, process).exists()
                && Path::new(&format!("/proc/{process}")).exists();
        }
    }
    Ok((found, is_starting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_process_that_starts_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        let own = std::process::id();
        std::fs::write(starting_mark_of(&run_dir, own), "").unwrap();
        // No number of a process is that high.
        std::fs::write(starting_mark_of(&run_dir, u32::MAX), "").unwrap();
        assert!(sockets_now(&run_dir).unwrap().1);
        let asking = std::thread::spawn({
            let run_dir = run_dir.clone();
            move || sockets(&run_dir).unwrap()
        });
        let socket = socket_of(&run_dir, own);
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(asking.join().unwrap(), std::slice::from_ref(&socket));
        assert_eq!(sockets_now(&run_dir).unwrap(), (vec![socket], false));
    }
}
