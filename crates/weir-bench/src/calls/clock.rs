//! The clock of single calls: the median of batches.

use std::path::PathBuf;

use crate::error::StepError;
use crate::timing::{now_ns, Timing};

/// The directory to work in.
pub(super) struct WorkDirectory(pub PathBuf);

/// Times a call again and again.
pub(super) struct Clock {
    pub budget_ns: u64,
}

/// The fewest and the most samples of a call.
const SAMPLES: std::ops::Range<usize> = 11..2001;

impl Clock {
    /// Times batches of `batch` calls, each batch prepared by `prepare` outside of the clock, until there are
    /// enough of them or the time is over.
    ///
    /// # Returns
    /// The timing of the median batch.
    pub fn batches(
        &self,
        batch: u64,
        mut prepare: impl FnMut() -> Result<(), StepError>,
        mut call: impl FnMut(u64) -> Result<(), StepError>,
    ) -> Result<Timing, StepError> {
        let mut taken = Vec::new();
        let mut number = 0;
        let begin_ns = now_ns();
        while taken.len() < SAMPLES.start
            || (taken.len() < SAMPLES.end && now_ns() - begin_ns < self.budget_ns)
        {
            prepare()?;
            let start_ns = now_ns();
            for _ in 0..batch {
                call(number)?;
                number += 1;
            }
            taken.push(now_ns() - start_ns);
        }
        taken.sort_unstable();
        Ok(Timing {
            start_ns: begin_ns,
            end_ns: begin_ns + taken[taken.len() / 2],
            bytes: 0,
            ops: batch,
        })
    }

    /// The same without preparation.
    pub fn calls(
        &self,
        batch: u64,
        call: impl FnMut(u64) -> Result<(), StepError>,
    ) -> Result<Timing, StepError> {
        self.batches(batch, || Ok(()), call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_batch_is_what_counts() {
        let clock = Clock { budget_ns: 0 };
        let mut slow = std::time::Duration::ZERO;
        // Of eleven batches one takes long.
        let timing = clock.calls(1, |number| {
            if number == 3 {
                let begin = std::time::Instant::now();
                std::thread::sleep(std::time::Duration::from_millis(50));
                slow = begin.elapsed();
            }
            Ok(())
        });
        let timing = timing.unwrap();
        assert!(u128::from(timing.end_ns - timing.start_ns) < slow.as_nanos());
    }
}
