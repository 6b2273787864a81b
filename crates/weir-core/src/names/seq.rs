//! The sequence lock: one writer that never waits, and readers that try again after a change.
//!
//! The writer makes the counter odd, changes relaxed atomics, and makes it even again;
//! a reader's copy counts if the counter was even and the same before and after.
//! The fences follow Boehm, "Can seqlocks get along with programming language memory
//! models?" (MSPC 2012), figure 6.
//!
//! Protection of reused memory: between taking something out of the shared structure (under an odd
//! counter) and writing it anew lies the release fence of [`SeqWrite::begin`]. A reader that picked
//! up such a new word therefore also sees the counter changed.

use super::ViewError;
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// Tries before a reader gives up: about 10 us of a writer in the middle of a change. A writer
/// needs well below 1 us; if it takes longer it is not running, and a reader that spins on only
/// keeps it from the CPU.
const TRIES: u32 = 200;

/// Runs `read` until no change under `seq` has disturbed it.
#[inline]
pub(super) fn read<T>(seq: &AtomicU64, mut read: impl FnMut() -> T) -> Result<T, ViewError> {
    for _ in 0..TRIES {
        let before = seq.load(Ordering::Acquire);
        if before & 1 == 0 {
            let value = read();
            fence(Ordering::Acquire);
            if seq.load(Ordering::Relaxed) == before {
                return Ok(value);
            }
        }
        std::hint::spin_loop();
    }
    Err(ViewError::Unsettled)
}

/// A change under a counter; readers try again until it is dropped.
///
/// Changes under the same counter nest: the outermost one counts.
#[must_use = "the change ends when this is dropped"]
pub(super) struct SeqWrite<'a> {
    seq: &'a AtomicU64,
    /// The value that the counter gets, unless an outer change goes on.
    end: Option<u64>,
}

impl<'a> SeqWrite<'a> {
    /// Begins a change. Only the one writer of the tables may call this.
    pub(super) fn begin(seq: &'a AtomicU64) -> Self {
        let now = seq.load(Ordering::Relaxed);
        if now & 1 == 1 {
            return SeqWrite { seq, end: None };
        }
        seq.store(now.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        SeqWrite {
            seq,
            end: Some(now.wrapping_add(2)),
        }
    }
}

impl Drop for SeqWrite<'_> {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            self.seq.store(end, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_and_nests() {
        let seq = AtomicU64::new(0);
        let outer = SeqWrite::begin(&seq);
        drop(SeqWrite::begin(&seq));
        assert_eq!(read(&seq, || ()), Err(ViewError::Unsettled));
        drop(outer);
        assert_eq!(read(&seq, || 7), Ok(7));
        assert_eq!(seq.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_disturbed_read_is_repeated() {
        let seq = AtomicU64::new(0);
        let mut runs = 0;
        let got = read(&seq, || {
            runs += 1;
            if runs < 3 {
                drop(SeqWrite::begin(&seq));
            }
            runs
        });
        assert_eq!(got, Ok(3));
    }
}
