//! The analyzers of a drain (`weir analyze`), each with one connection for each command that it may run at once.
//!
//! The drain gives orders, and the analyzer answers. One that is silent for `SILENCE_LIMIT` counts as lost: it hangs, or
//! was stopped. When its last connection ends, an analyzer has left, and nothing is held back for it any more.

use std::io::{self, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_mover::drain::{is_current, AnalysisTable, AnalysisTask, AnalyzerId, TaskResult};
use weir_mover::{InstanceTree, PathFilter};

use super::messages::{
    receive, send, AnalysisOrder, AnalyzerArrival, AnalyzerReply, LINE_BYTES, SILENCE_LIMIT,
};

/// The interval between two checks that an idle analyzer is alive.
const IDLE_INTERVAL: Duration = Duration::from_millis(250);
/// The root of the tree of an instance.
const ROOT: &str = "/";

/// The service for the analyzers of a tree.
#[derive(Debug)]
pub struct AnalyzerService {
    pub table: Arc<AnalysisTable>,
    instance: InstanceTree,
    /// The paths by which programs name the root of the tree.
    roots: Vec<PathBuf>,
}

/// Notes that an analyzer leaves when its connection ends.
struct AnalyzerGuard<'s> {
    table: &'s AnalysisTable,
    id: AnalyzerId,
}

impl Drop for AnalyzerGuard<'_> {
    fn drop(&mut self) {
        self.table.leave(self.id);
    }
}

impl AnalyzerService {
    pub fn new(instance: InstanceTree, roots: Vec<PathBuf>) -> AnalyzerService {
        AnalyzerService {
            table: Arc::default(),
            instance,
            roots,
        }
    }

    /// Gives files to an analyzer until it is gone, or nothing is held back any more.
    pub fn serve(
        &self,
        stream: &UnixStream,
        reader: &mut BufReader<&UnixStream>,
        arrival: &AnalyzerArrival,
    ) -> io::Result<()> {
        let wanted = self.wanted(&arrival.patterns);
        let wanted = wanted.map_err(io::Error::other)?;
        stream.set_read_timeout(Some(SILENCE_LIMIT))?;
        self.table.join(arrival.id, &wanted);
        let analyzer = AnalyzerGuard {
            table: &self.table,
            id: arrival.id,
        };
        loop {
            let changes = self.table.changes();
            if self.table.is_closed() {
                return self.release(stream, analyzer.id);
            }
            let Some(task) = self.table.take_task(analyzer.id) else {
                send(stream, &AnalysisOrder::Wait)?;
                receive_reply(reader)?;
                self.table.wait_for_change(changes, IDLE_INTERVAL);
                continue;
            };
            // If the connection is lost, another one of the analyzer takes the file.
            let result = self.hand_out(stream, reader, analyzer.id, &task);
            let noted = *result.as_ref().unwrap_or(&TaskResult::Outdated);
            self.table.end_task(analyzer.id, &task, noted);
            result?;
        }
    }

    /// Gives a file to an analyzer, and returns the result of the analysis.
    fn hand_out(
        &self,
        stream: &UnixStream,
        reader: &mut BufReader<&UnixStream>,
        id: AnalyzerId,
        task: &AnalysisTask,
    ) -> io::Result<TaskResult> {
        let path = self.roots[0].join(&task.path);
        let path = path.as_os_str().as_bytes().to_vec();
        send(stream, &AnalysisOrder::Analyze { path })?;
        // The analyzer may wait for another of its commands to end.
        while receive_reply(reader)? == AnalyzerReply::Alive {
            if self.table.is_closed() {
                return Err(self.release_early(stream, id));
            }
        }
        if !self.is_current(task) {
            send(stream, &AnalysisOrder::Skip)?;
            return Ok(TaskResult::Outdated);
        }
        send(stream, &AnalysisOrder::Begin)?;
        loop {
            let result = match receive_reply(reader)? {
                AnalyzerReply::Ended { succeeded: true } => TaskResult::Analysed,
                AnalyzerReply::Ended { succeeded: false } if self.is_current(task) => {
                    TaskResult::Failed
                }
                AnalyzerReply::Ended { succeeded: false } => TaskResult::Outdated,
                // This process does not wait for the command: it may run for long.
                AnalyzerReply::Alive if self.table.is_closed() => {
                    return Err(self.release_early(stream, id));
                }
                AnalyzerReply::Alive | AnalyzerReply::Ready => continue,
            };
            let is_outdated = result == TaskResult::Outdated;
            send(stream, &AnalysisOrder::Noted { is_outdated })?;
            return Ok(result);
        }
    }

    /// Tells an analyzer that nothing is held back for it any more.
    fn release(&self, stream: &UnixStream, id: AnalyzerId) -> io::Result<()> {
        let unanalysed = self.table.unfinished_of(id);
        send(stream, &AnalysisOrder::Finished { unanalysed })
    }

    /// The same in the middle of a file; returns the error that ends the file.
    fn release_early(&self, stream: &UnixStream, id: AnalyzerId) -> io::Error {
        let released = self.release(stream, id);
        released
            .err()
            .unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into())
    }

    fn is_current(&self, task: &AnalysisTask) -> bool {
        is_current(&self.instance, Path::new(ROOT), task)
    }

    /// The filter that patterns describe, as those of drain.only do.
    fn wanted(&self, patterns: &[String]) -> Result<PathFilter, String> {
        let below = |pattern: &String| {
            let roots = self.roots.iter().filter_map(|root| root.to_str());
            let mut below = roots.filter_map(|root| pattern.strip_prefix(root));
            let below = below.find(|rest| rest.is_empty() || rest.starts_with('/'));
            let below = below.unwrap_or(pattern);
            format!("/{}", below.trim_start_matches('/'))
        };
        let patterns: Vec<String> = patterns.iter().map(below).collect();
        PathFilter::new(&patterns, &[]).map_err(|error| error.to_string())
    }
}

fn receive_reply(reader: &mut BufReader<&UnixStream>) -> io::Result<AnalyzerReply> {
    receive(reader, LINE_BYTES)
}
