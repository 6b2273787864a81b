//! A worker of an analyzer: one connection to a process that drains, and one command at a time.

use std::io::{self, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::command::AnalysisCommand;
use super::tally::{AnalysisTally, FinishedAnalysis};
use crate::drain::messages::{
    receive, send, AnalysisOrder, AnalyzerArrival, AnalyzerReply, DrainRequest, LINE_BYTES,
    SILENCE_LIMIT,
};

/// The interval between two signs of life to a drain: a part of `SILENCE_LIMIT`, after which the drain counts us as lost.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The commands that may run at once, in all connections.
#[derive(Debug)]
pub struct JobSlots {
    free: Mutex<usize>,
    changed: Condvar,
}

/// The right to run one command.
#[derive(Debug)]
struct JobSlot<'s>(&'s JobSlots);

impl JobSlots {
    pub fn new(jobs: usize) -> JobSlots {
        JobSlots {
            free: Mutex::new(jobs),
            changed: Condvar::new(),
        }
    }

    /// Waits up to `time` for a free slot.
    fn take_slot(&self, time: Duration) -> Option<JobSlot<'_>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(free, time, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(JobSlot(self))
    }
}

impl Drop for JobSlot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

/// The state that all workers of an analyzer share.
#[derive(Debug)]
pub struct AnalyzerState {
    pub arrival: AnalyzerArrival,
    pub command: AnalysisCommand,
    pub slots: JobSlots,
    pub tally: AnalysisTally,
    /// Set by a signal.
    pub stop: AtomicBool,
}

/// The end of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerEnd {
    /// Nothing is held back any more.
    Finished {
        /// Files that are moved without their analysis.
        unanalysed: u64,
    },
    /// The process that drains is gone, or took us for lost.
    Lost,
    /// By a signal.
    Stopped,
}

impl AnalyzerState {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Works for a drain until the drain or this process ends.
    pub fn serve(&self, stream: &UnixStream) -> WorkerEnd {
        match self.obey(stream) {
            _ if self.is_stopped() => WorkerEnd::Stopped,
            Ok(unanalysed) => WorkerEnd::Finished { unanalysed },
            Err(_) => WorkerEnd::Lost,
        }
    }

    /// Obeys the orders of a drain up to the last one. Returns the number of files that the drain moves without an
    /// analysis.
    fn obey(&self, stream: &UnixStream) -> io::Result<u64> {
        stream.set_read_timeout(Some(SILENCE_LIMIT))?;
        stream.set_write_timeout(Some(SILENCE_LIMIT))?;
        let request = DrainRequest {
            analyzer: Some(self.arrival.clone()),
            ..DrainRequest::default()
        };
        send(stream, &request)?;
        let mut reader = BufReader::new(stream);
        loop {
            if self.is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match receive(&mut reader, LINE_BYTES)? {
                AnalysisOrder::Wait => send(stream, &AnalyzerReply::Alive)?,
                AnalysisOrder::Analyze { path } => {
                    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
                    if let Some(unanalysed) = self.analyze(stream, &mut reader, path)? {
                        return Ok(unanalysed);
                    }
                }
                AnalysisOrder::Finished { unanalysed } => return Ok(unanalysed),
                order => return Err(io::Error::other(format!("an order out of turn: {order:?}"))),
            }
        }
    }

    /// Analyses a file. If the drain holds back nothing any more, returns the number of files that it moves without an
    /// analysis.
    fn analyze(
        &self,
        stream: &UnixStream,
        reader: &mut BufReader<&UnixStream>,
        path: PathBuf,
    ) -> io::Result<Option<u64>> {
        let slot = loop {
            if self.is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match self.slots.take_slot(HEARTBEAT) {
                Some(slot) => break slot,
                None => {
                    if let Err(error) = send(stream, &AnalyzerReply::Alive) {
                        // A drain that has ended may have sent its last order before.
                        return match receive(reader, LINE_BYTES) {
                            Ok(AnalysisOrder::Finished { unanalysed }) => Ok(Some(unanalysed)),
                            _ => Err(error),
                        };
                    }
                }
            }
        };
        match exchange(stream, reader, AnalyzerReply::Ready)? {
            AnalysisOrder::Begin => {}
            AnalysisOrder::Skip => return Ok(None),
            AnalysisOrder::Finished { unanalysed } => return Ok(Some(unanalysed)),
            order => return Err(io::Error::other(format!("an order out of turn: {order:?}"))),
        }
        let began = Instant::now();
        let mut told = began;
        let end = self.command.run(&path, &self.stop, || {
            if told.elapsed() >= HEARTBEAT {
                told = Instant::now();
                // A lost connection is noticed when the command has ended.
                let _ = send(stream, &AnalyzerReply::Alive);
            }
        });
        drop(slot);
        let mut finished = FinishedAnalysis {
            path,
            seconds: began.elapsed().as_secs_f64(),
            end,
            is_outdated: false,
        };
        let noted = self.tell_end(stream, reader, finished.end.has_succeeded());
        finished.is_outdated = matches!(noted, Ok(AnalysisOrder::Noted { is_outdated: true }));
        self.tally.note(&finished);
        match noted? {
            AnalysisOrder::Finished { unanalysed } => Ok(Some(unanalysed)),
            AnalysisOrder::Noted { .. } => Ok(None),
            order => Err(io::Error::other(format!("an order out of turn: {order:?}"))),
        }
    }

    /// Tells a drain the end of a command; returns its answer.
    fn tell_end(
        &self,
        stream: &UnixStream,
        reader: &mut BufReader<&UnixStream>,
        succeeded: bool,
    ) -> io::Result<AnalysisOrder> {
        if self.is_stopped() {
            // The end of the connection tells the drain.
            return Err(io::ErrorKind::Interrupted.into());
        }
        exchange(stream, reader, AnalyzerReply::Ended { succeeded })
    }
}

/// Sends a reply to a drain and receives its next order, also if the send failed: a drain that has ended may have sent its last order
/// before.
fn exchange(
    stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    reply: AnalyzerReply,
) -> io::Result<AnalysisOrder> {
    let sent = send(stream, &reply);
    receive(reader, LINE_BYTES).map_err(|error| sent.err().unwrap_or(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_commands_run_than_there_are_slots() {
        let slots = JobSlots::new(2);
        let moment = Duration::from_millis(1);
        let (one, two) = (slots.take_slot(moment), slots.take_slot(moment));
        assert!(one.is_some() && two.is_some() && slots.take_slot(moment).is_none());
        drop(one);
        assert!(slots.take_slot(moment).is_some());
    }
}
