//! The end of a drain whose target hangs, or whose job ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::CallWatch;

use super::command::in_words_slow;
use super::end_time::EndTime;
use super::orders::give_up;
use super::service::DrainService;
use crate::exit::NOT_MOVED;
use crate::stage;

/// The time for which calls may hang once a signal, or the end of the job, has stopped the drain.
const STOP_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks for hanging calls.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Ends the process if its target hangs after the command has ended.
pub struct HangGuard {
    pub service: Arc<DrainService>,
    pub watch: Arc<CallWatch>,
    pub stop: Arc<AtomicBool>,
    /// The longest time without a call that returns; `None`: no limit.
    pub limit: Option<Duration>,
    pub end_time: Arc<EndTime>,
}

impl HangGuard {
    /// Ends the process if no call returns, and stops the move before the job ends.
    pub fn guard_end(&self) -> ! {
        let began = Instant::now();
        let mut stopped: Option<Instant> = None;
        loop {
            std::thread::sleep(WATCH_INTERVAL);
            // Counted from the end of the command: a target that hung before may recover.
            let hung = self.watch.time_without_return().min(began.elapsed());
            if self.end_time.is_near() && !self.stop.swap(true, Ordering::Relaxed) {
                self.service.analyses().close();
                errln!(
                    "weir: drain: the job ends soon: no more is moved to {}",
                    self.service.target().display()
                );
            }
            if self.stop.load(Ordering::Relaxed) {
                stopped.get_or_insert_with(Instant::now);
            }
            let is_stuck = self.limit.is_some_and(|limit| hung >= limit);
            let is_stopped =
                stopped.is_some_and(|stopped| hung.min(stopped.elapsed()) >= STOP_TIME);
            if is_stuck || is_stopped {
                self.name_hanging_calls(hung);
                give_up(NOT_MOVED);
            }
        }
    }

    fn name_hanging_calls(&self, hung: Duration) {
        errln!(
            "weir: drain: no call of {} has returned for {} s; {}",
            self.service.target().display(),
            hung.as_secs(),
            self.service.unsafe_in_words()
        );
        let calls = self.watch.slow_calls(WATCH_INTERVAL);
        for call in calls.iter().take(stage::SHOWN_FAILURES) {
            errln!("weir: drain: {}", in_words_slow(call));
        }
    }
}
