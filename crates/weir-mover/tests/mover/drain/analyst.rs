//! An analyzer in the tests of drains: it takes files, reads them, and is done with them, at steps that a test
//! draws.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use weir_mover::drain::{is_current, AnalysisTable, AnalysisTask, AnalyzerId, TaskResult};
use weir_mover::{DirectoryTree, PathFilter};

/// A step of an analyzer.
#[derive(Clone, Copy, Debug)]
pub enum AnalystStep {
    /// Takes a file, and reads it.
    Take,
    /// Is done with the file that it took first.
    Succeed,
    Fail,
    /// Could not read the file that it took first as it was to be.
    Miss,
    /// Ends, with what it took.
    Leave,
}

pub fn analyst_step() -> impl Strategy<Value = AnalystStep> {
    prop_oneof![
        8 => Just(AnalystStep::Take),
        6 => Just(AnalystStep::Succeed),
        2 => Just(AnalystStep::Fail),
        1 => Just(AnalystStep::Miss),
        1 => Just(AnalystStep::Leave),
    ]
}

/// The patterns of an analyzer.
pub fn patterns() -> impl Strategy<Value = Vec<String>> {
    let patterns = [&["/**"][..], &["/n*"], &["/ckpt.*/a", "/d0"], &["/none"]];
    let owned = |patterns: &[&str]| patterns.iter().map(|one| (*one).to_owned()).collect();
    proptest::sample::select(patterns.map(owned).to_vec())
}

/// An analyzer, from its first file to its end.
#[derive(Debug)]
pub struct Analyst {
    id: AnalyzerId,
    table: Arc<AnalysisTable>,
    wanted: PathFilter,
    source: PathBuf,
    taken: VecDeque<(AnalysisTask, Vec<u8>)>,
    /// The contents that it has analysed, or failed to.
    done: HashSet<(PathBuf, Vec<u8>)>,
    is_gone: bool,
}

impl Analyst {
    pub fn new(id: u64, table: &Arc<AnalysisTable>, patterns: &[String], source: &Path) -> Analyst {
        let wanted = PathFilter::new(patterns, &[]).unwrap();
        table.join(AnalyzerId(id), &wanted);
        Analyst {
            id: AnalyzerId(id),
            table: Arc::clone(table),
            wanted,
            source: source.to_owned(),
            taken: VecDeque::new(),
            done: HashSet::new(),
            is_gone: false,
        }
    }

    /// Does a step, if it can be done. `open`: the file that the program has open for writing.
    pub fn act(&mut self, step: AnalystStep, open: Option<&Path>) {
        match step {
            _ if self.is_gone => {}
            AnalystStep::Take => drop(self.take_file(open)),
            AnalystStep::Succeed => self.end_task(TaskResult::Analysed),
            AnalystStep::Fail => self.end_task(TaskResult::Failed),
            AnalystStep::Miss => {
                if let Some((task, _)) = self.taken.pop_front() {
                    self.table.end_task(self.id, &task, TaskResult::Outdated);
                }
            }
            AnalystStep::Leave => {
                self.is_gone = true;
                self.table.leave(self.id);
            }
        }
    }

    /// Takes a file; false: none is queued.
    fn take_file(&mut self, open: Option<&Path>) -> bool {
        let Some(task) = self.table.take_task(self.id) else {
            return false;
        };
        let path = self.source.join(&task.path);
        if open == Some(&*path) || !is_current(&DirectoryTree, &self.source, &task) {
            self.table.end_task(self.id, &task, TaskResult::Outdated);
            return true;
        }
        let content = fs::read(path).unwrap();
        let is_twice = self.taken.iter().any(|(other, _)| other.path == task.path);
        assert!(
            !is_twice,
            "{} is analysed twice at once",
            task.path.display()
        );
        self.taken.push_back((task, content));
        true
    }

    fn end_task(&mut self, result: TaskResult) {
        if let Some((task, content)) = self.taken.pop_front() {
            self.done.insert((task.path.clone(), content));
            self.table.end_task(self.id, &task, result);
        }
    }

    /// Analyses all that is queued.
    pub fn catch_up(&mut self) {
        while !self.is_gone {
            self.end_task(TaskResult::Analysed);
            if self.taken.is_empty() && !self.take_file(None) {
                return;
            }
        }
    }

    /// Checks a file of the target. The target may have its directory under the name that it had before.
    pub fn check(&self, path: &Path, content: &[u8]) -> Result<(), String> {
        let is_wanted = !self.is_gone && self.wanted.takes(&Path::new("/").join(path));
        let mut done = self.done.iter();
        let is_done =
            done.any(|(at, analysed)| at.file_name() == path.file_name() && analysed == content);
        match is_wanted && !is_done {
            true => Err(format!("{} was moved before its analysis", path.display())),
            false => Ok(()),
        }
    }
}
