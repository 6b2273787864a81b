//! The results of an analyzer: a line for each failure, or for each file as JSON, and the counts.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::{json, Value};
use weir_instance::errln;
use weir_mover::json_path;

use super::command::AnalysisEnd;

/// An analysis that has ended.
#[derive(Debug)]
pub struct FinishedAnalysis {
    /// As programs name it.
    pub path: PathBuf,
    pub seconds: f64,
    pub end: AnalysisEnd,
    /// The file was changed or removed meanwhile.
    pub is_outdated: bool,
}

impl FinishedAnalysis {
    /// The outcome as a word, for scripts.
    fn outcome(&self) -> &'static str {
        match &self.end {
            end if end.has_succeeded() => "analysed",
            AnalysisEnd::Stopped => "stopped",
            _ if self.is_outdated => "outdated",
            AnalysisEnd::Exited(_) => "failed",
            AnalysisEnd::NotStarted(_) => "not-started",
            AnalysisEnd::TimedOut(_) => "timed-out",
        }
    }

    fn is_failure(&self) -> bool {
        ["failed", "not-started", "timed-out"].contains(&self.outcome())
    }

    fn in_json(&self) -> Value {
        let status = match &self.end {
            AnalysisEnd::Exited(status) => Some(status),
            _ => None,
        };
        let mut line = json!({
            "outcome": self.outcome(),
            "exit_code": status.and_then(std::process::ExitStatus::code),
            "signal": status.and_then(ExitStatusExt::signal),
            "seconds": self.seconds,
        });
        for (key, value) in json_path::entries_of("path", &self.path) {
            line[key] = value.into();
        }
        line
    }
}

/// The counts of results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnalyzedFiles {
    pub analysed: u64,
    pub failed: u64,
}

/// The results so far.
#[derive(Debug)]
pub struct AnalysisTally {
    /// Print a line of JSON for each file.
    in_json: bool,
    files: Mutex<AnalyzedFiles>,
}

impl AnalysisTally {
    pub fn new(in_json: bool) -> AnalysisTally {
        AnalysisTally {
            in_json,
            files: Mutex::default(),
        }
    }

    /// Counts a result, and prints it.
    pub fn note(&self, done: &FinishedAnalysis) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.analysed += u64::from(done.end.has_succeeded());
        files.failed += u64::from(done.is_failure());
        // Printed under the lock, so that lines do not mix.
        if self.in_json {
            outln!("{}", done.in_json());
            let _ = std::io::stdout().flush();
        }
        if done.is_failure() {
            let (path, end) = (done.path.display(), done.end.in_words());
            errln!("weir: analyze: {path}: {end}");
        }
    }

    pub fn files(&self) -> AnalyzedFiles {
        *self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
