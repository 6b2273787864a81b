//! A limit on the rate at which a process writes to a target, and a pause.
//!
//! Each write waits until the time that the writes before it take at this rate is over. Unused time is made up for only up
//! to `LONGEST_CREDIT`, so a target sees no burst after a pause.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest unused time that later writes make up for.
const LONGEST_CREDIT: Duration = Duration::from_millis(50);

/// The limit on the writes of a process, shared by its threads.
#[derive(Debug)]
pub struct RateLimit {
    state: Mutex<LimitState>,
    changed: Condvar,
}

#[derive(Debug)]
struct LimitState {
    /// 0: without limit.
    bytes_per_s: u64,
    is_paused: bool,
    /// The end of the time that the writes so far take at this rate.
    used_until: Instant,
}

impl Default for RateLimit {
    fn default() -> RateLimit {
        RateLimit {
            state: Mutex::new(LimitState {
                bytes_per_s: 0,
                is_paused: false,
                used_until: Instant::now(),
            }),
            changed: Condvar::new(),
        }
    }
}

impl RateLimit {
    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the most bytes that are written in a second; 0: without limit. Writes that wait are timed anew.
    pub fn set_rate(&self, bytes_per_s: u64) {
        let mut state = self.state();
        if state.bytes_per_s != bytes_per_s {
            state.bytes_per_s = bytes_per_s;
            state.used_until = Instant::now();
            self.changed.notify_all();
        }
    }

    /// Makes writes wait, or go on.
    pub fn set_paused(&self, is_paused: bool) {
        self.state().is_paused = is_paused;
        self.changed.notify_all();
    }

    /// True if writes wait for the end of a pause.
    pub fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// Waits until this number of bytes may be written.
    pub fn await_turn(&self, bytes: u64) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if state.is_paused {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.bytes_per_s == 0 {
                return;
            }
            let left = state.used_until.saturating_duration_since(now);
            if left.is_zero() {
                let earliest = now.checked_sub(LONGEST_CREDIT).unwrap_or(now);
                let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(state.bytes_per_s);
                let time = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
                state.used_until = state.used_until.max(earliest) + time;
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The sum of the times of some writes by two threads.
    fn time_of_writes(limit: &RateLimit) -> Duration {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..5).for_each(|_| limit.await_turn(1000)));
            }
        });
        began.elapsed()
    }

    #[test]
    fn writes_take_no_less_time_than_the_limit_says() {
        let limit = RateLimit::default();
        limit.set_rate(50_000);
        // The first one waits for nothing, and a moment may be made up for.
        assert!(time_of_writes(&limit) >= Duration::from_millis(180 - 51));
        limit.set_rate(0);
        limit.await_turn(u64::MAX);
    }

    #[test]
    fn a_change_of_the_rate_or_the_end_of_a_pause_lets_writes_go_on() {
        let limit = RateLimit::default();
        let done = AtomicU32::new(0);
        let wait_for = |number: u32| {
            while done.load(Ordering::Relaxed) < number {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            limit.set_rate(1);
            scope.spawn(|| {
                for bytes in [1 << 30, 1 << 30, 1, 1] {
                    limit.await_turn(bytes);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            wait_for(1);
            limit.set_paused(true);
            limit.set_rate(0);
            std::thread::sleep(Duration::from_millis(10));
            assert!(limit.is_paused() && done.load(Ordering::Relaxed) == 1);
            limit.set_paused(false);
            wait_for(4);
        });
    }
}
