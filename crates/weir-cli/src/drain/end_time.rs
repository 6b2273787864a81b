//! The end of the job, if it is known. A drain stops before it, and reports the files that are not safe.
//!
//! Slurm gives it (`SLURM_JOB_END_TIME`). Otherwise it follows from the warning signal of the batch system, if the user has
//! set the time from that signal to the end (`drain.warning_s`).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A drain stops at most this long before the end, so that calls under way have time to return.
const LONGEST_MARGIN: Duration = Duration::from_secs(20);
/// If the warning is short, a drain stops when the warning time divided by this is left.
const MARGIN_PART: u32 = 4;

/// The end of the job, shared by the threads of a drain.
#[derive(Debug)]
pub struct EndTime {
    /// The time from a warning to the end; `None`: unknown, so signals say nothing about the end.
    warning: Option<Duration>,
    stop_at: Mutex<Option<SystemTime>>,
}

impl EndTime {
    /// `warning`: the time from a warning to the end. `end`: seconds since 1970, from the batch system; a time that has
    /// passed is that of another job.
    pub fn new(warning: Option<Duration>, end: Option<&str>) -> EndTime {
        let end = end.and_then(|text| text.trim().parse().ok());
        let end = end.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let stop_at = end.and_then(|end| end.checked_sub(LONGEST_MARGIN));
        EndTime {
            warning,
            stop_at: Mutex::new(stop_at.filter(|time| *time > SystemTime::now())),
        }
    }

    /// Notes a warning that came at `then`. False: it changes nothing, since the time from a warning to the end is unknown,
    /// or an earlier end is known.
    pub fn warn(&self, then: SystemTime) -> bool {
        let Some(warning) = self.warning else {
            return false;
        };
        let margin = (warning / MARGIN_PART).min(LONGEST_MARGIN);
        let time = then + warning - margin;
        let mut stop_at = self.stop_at();
        let is_first = stop_at.is_none_or(|before| time < before);
        if is_first {
            *stop_at = Some(time);
        }
        is_first
    }

    /// True if the drain must stop now.
    pub fn is_near(&self) -> bool {
        self.stop_at().is_some_and(|time| time <= SystemTime::now())
    }

    fn stop_at(&self) -> std::sync::MutexGuard<'_, Option<SystemTime>> {
        self.stop_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_end_counts() {
        let now = SystemTime::now();
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let in_an_hour = (seconds(now) + 3600).to_string();
        let warning = Some(Duration::from_secs(100));
        let end = EndTime::new(warning, Some(&in_an_hour));
        assert!(!end.is_near());
        assert!(end.warn(now));
        assert!(!end.is_near() && !end.warn(now));
        let late = EndTime::new(warning, None);
        assert!(late.warn(now - Duration::from_secs(81)) && late.is_near());
    }

    #[test]
    fn an_end_that_has_passed_or_is_no_number_counts_for_nothing() {
        for end in ["1", "x", "", "-5", "99999999999999999999"] {
            let end = EndTime::new(None, Some(end));
            assert!(!end.is_near(), "{end:?}");
            assert!(!end.warn(SystemTime::now()), "no time was given");
        }
    }
}
