//! The end of a drain that has analyzers: the files that programs wrote last are also analysed before they are moved.
//!
//! The analyzer's time limit bounds each analysis, and a signal that ends the job ends the wait.

use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::drain::{AnalysesLeft, AnalysisTable, Drain, DrainRound};
use weir_mover::tree::FileTree;
use weir_mover::StageProgress;

/// The longest time between two rounds.
const LONGEST_INTERVAL: Duration = Duration::from_secs(2);
/// Walks take at most one part in this of the time.
const LOOK_SHARE: u32 = 4;
/// The time between two rounds while files are blocked.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(250);
/// The most rounds for blocked files: the node that blocks them may belong to somebody else.
const BLOCKED_ROUNDS: u32 = 8;
/// The longest wait for analyzers to leave at the end.
const DISMISSAL_TIME: Duration = Duration::from_secs(2);
/// The interval between two checks for that.
const SHORT_INTERVAL: Duration = Duration::from_millis(20);

/// The analyses after the last write.
#[derive(Debug)]
pub struct LastAnalyses<'a> {
    pub table: &'a AnalysisTable,
    /// Files are laminated in the end.
    pub laminates: bool,
    /// The number of threads that move files.
    pub threads: usize,
}

impl LastAnalyses<'_> {
    /// Makes rounds until all files that analyzers want are analysed, or nothing needs to be held back. From then on
    /// nothing is held back. Calls `note` with each round.
    pub fn wait<S: FileTree, T: FileTree>(
        &self,
        drain: &mut Drain<'_, S, T>,
        progress: &StageProgress,
        mut note: impl FnMut(&mut Drain<'_, S, T>, DrainRound),
    ) {
        let mut blocked_rounds = 0;
        let mut is_told = false;
        while self.is_awaited() {
            let round = drain.round_at_end(self.laminates, self.threads, progress);
            // Read after the round, which queues files itself.
            let changes = self.table.changes();
            let left = drain.left_for_analysis(&round);
            let look = Duration::from_secs_f64(round.walk_seconds);
            note(drain, round);
            match left {
                AnalysesLeft::None => break,
                AnalysesLeft::Queued if !is_told => {
                    let number = self.table.unfinished();
                    errln!("weir: drain: waits for {number} analyses");
                    is_told = true;
                }
                AnalysesLeft::Queued => {}
                AnalysesLeft::Blocked => {
                    blocked_rounds += 1;
                    if blocked_rounds > BLOCKED_ROUNDS {
                        break;
                    }
                    self.table.wait_for_change(changes, BLOCKED_INTERVAL);
                    continue;
                }
            }
            // Bounds the part of the time that walks take.
            std::thread::sleep(look * LOOK_SHARE);
            self.table.wait_for_change(changes, LONGEST_INTERVAL);
        }
        self.table.close();
    }

    fn is_awaited(&self) -> bool {
        self.table.analyzers() > 0 && !self.table.is_closed()
    }
}

/// Waits a moment for analyzers to leave at the end.
pub fn dismiss_analyzers(table: &AnalysisTable) {
    let until = Instant::now() + DISMISSAL_TIME;
    while table.analyzers() > 0 && Instant::now() < until {
        table.wait_for_change(table.changes(), SHORT_INTERVAL);
    }
}
