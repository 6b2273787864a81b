//! The clock.

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}
