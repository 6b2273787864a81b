//! The watch over the calls of a drain: another process goes on without those that hang. In the end the drain gives up if
//! the target as a whole hangs, and stops before the job ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::CallWatch;

use super::command::in_words_slow;
use super::end_time::EndTime;
use super::service::DrainService;
use super::succession::Succession;
use crate::stage;

/// The time for which calls may hang once a signal, or the end of the job, has stopped the drain.
const STOP_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks for hanging calls.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Hands a drain over if calls hang, or ends it.
pub struct HangGuard {
    pub service: Arc<DrainService>,
    pub watch: Arc<CallWatch>,
    pub stop: Arc<AtomicBool>,
    /// The longest time without a call that returns, after the command has ended; `None`: no limit.
    pub limit: Option<Duration>,
    pub end_time: Arc<EndTime>,
    pub succession: Arc<Succession>,
}

impl HangGuard {
    /// Watches the calls until the process ends. Ends it if no call returns, and stops the move before the job ends.
    pub fn guard_calls(&self) -> ! {
        let mut finishing: Option<Instant> = None;
        let mut stopped: Option<Instant> = None;
        loop {
            std::thread::sleep(WATCH_INTERVAL);
            let name_calls = || self.name_hanging_calls(self.watch.time_without_return());
            if !self.service.is_finishing() {
                if !self.service.is_paused() {
                    self.succession.hand_over_if_hung(None, name_calls);
                }
                continue;
            }
            let since = *finishing.get_or_insert_with(Instant::now);
            self.stop_before_end();
            if self.stop.load(Ordering::Relaxed) {
                stopped.get_or_insert_with(Instant::now);
            }
            // Counted from the end of the command: a target that hung before may recover.
            let hung = || self.watch.time_without_return().min(since.elapsed());
            let is_stuck = || self.limit.is_some_and(|limit| hung() >= limit);
            if is_stuck() && stopped.is_none() {
                self.succession.hand_over_if_hung(self.limit, name_calls);
            }
            let is_stopped =
                stopped.is_some_and(|stopped| hung().min(stopped.elapsed()) >= STOP_TIME);
            // It may have recovered just now.
            let (is_stuck, hung) = (is_stuck(), hung());
            if is_stuck || is_stopped {
                self.name_hanging_calls(hung);
                self.succession.give_up();
            }
        }
    }

    /// Stops the move if the job ends soon.
    fn stop_before_end(&self) {
        if self.end_time.is_near() && !self.stop.swap(true, Ordering::Relaxed) {
            self.service.analyses().close();
            errln!(
                "weir: drain: the job ends soon: no more is moved to {}",
                self.service.target().display()
            );
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
