//! The computation of the program of `weir bench --elevate`, which needs a processor and no memory.

use std::hint::black_box;
use std::time::Instant;

use crate::timing::{timed, Prepared};

/// How long each process computes to find its speed, s.
const CALIBRATION_S: f64 = 0.5;
/// The work between two looks at the clock.
const WORK_PIECE: u64 = 1 << 20;

/// So many turns of the computation.
pub fn compute(work: u64) -> Prepared<'static> {
    timed(move || {
        compute_now(work);
        Ok(())
    })
}

fn compute_now(work: u64) {
    let mut state = 1_u64;
    for turn in 0..work {
        state = black_box(state.rotate_left(5) ^ turn).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    black_box(state);
}

/// The work that each of so many processes does in a second, all at the same time.
#[allow(clippy::cast_precision_loss)] // far below 2^53
pub fn work_per_second(processes: u32) -> f64 {
    let one = || {
        let began = Instant::now();
        let mut work = 0_u64;
        while began.elapsed().as_secs_f64() < CALIBRATION_S {
            compute_now(WORK_PIECE);
            work += WORK_PIECE;
        }
        work as f64 / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..processes).map(|_| scope.spawn(one)).collect();
        let speeds = all.into_iter().map(|one| one.join().unwrap_or(f64::MAX));
        speeds.fold(f64::MAX, f64::min)
    })
}
