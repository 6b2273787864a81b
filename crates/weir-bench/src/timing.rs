//! The clock of steps, and what a step took.

use serde::{Deserialize, Serialize};

/// The time and the work of a process in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// `CLOCK_MONOTONIC` at the start, in ns: one clock for all processes of a node.
    pub start_ns: u64,
    /// The same at the end.
    pub end_ns: u64,
    /// Bytes moved or checked.
    pub bytes: u64,
    /// Calls made, or files treated; 0 if the machine cannot do this step.
    pub ops: u64,
}

impl Timing {
    /// The duration by the process's own clock, s.
    #[allow(clippy::cast_precision_loss)] // A clock's difference, far below 2^53 ns.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns).max(1) as f64 / 1e9
    }
}

/// The second half of a step, which is timed: it runs once all processes have done the first half.
pub type Prepared<'a> = Box<dyn FnOnce() -> anyhow::Result<Timing> + 'a>;

/// `CLOCK_MONOTONIC` in ns, comparable between the processes of a node.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(failed, 0, "CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The timing of what began at `start_ns` and ends now.
pub fn timing_since(start_ns: u64, bytes: u64, ops: u64) -> Timing {
    Timing {
        start_ns,
        end_ns: now_ns(),
        bytes,
        ops,
    }
}

/// A step that is a single act, which is timed.
pub fn timed<'a>(act: impl FnOnce() -> anyhow::Result<()> + 'a) -> Prepared<'a> {
    Box::new(move || {
        let start_ns = now_ns();
        act()?;
        Ok(timing_since(start_ns, 0, 1))
    })
}

/// The time and the work of a group of processes in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// `CLOCK_MONOTONIC` at the first start, in ns.
    pub start_ns: u64,
    /// From the first start to the last end, in seconds.
    pub seconds: f64,
    /// Bytes of all.
    pub bytes: u64,
    /// Calls or files of all.
    pub ops: u64,
}

impl Measured {
    /// Joins the timings of processes of one node; `None` where the machine cannot do the step.
    pub fn join(processes: &[Timing]) -> Option<Measured> {
        let whole = Timing {
            start_ns: processes.iter().map(|t| t.start_ns).min()?,
            end_ns: processes.iter().map(|t| t.end_ns).max()?,
            ..Timing::default()
        };
        if processes.iter().any(|t| t.ops == 0) {
            return None;
        }
        Some(Measured {
            start_ns: whole.start_ns,
            seconds: whole.seconds(),
            bytes: processes.iter().map(|t| t.bytes).sum(),
            ops: processes.iter().map(|t| t.ops).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_from_the_first_start_to_the_last_end() {
        let timing = |start_ns, end_ns, ops| Timing {
            start_ns,
            end_ns,
            bytes: 10,
            ops,
        };
        let joined = Measured::join(&[timing(1_000, 3_000, 2), timing(2_000, 5_000, 2)]).unwrap();
        assert!((joined.seconds - 4e-6).abs() < 1e-12);
        assert_eq!((joined.bytes, joined.ops), (20, 4));
        assert_eq!(Measured::join(&[timing(0, 1, 1), timing(0, 1, 0)]), None);
    }
}
