//! The warm pool: threads of the server that make slabs warm ahead of their use.
//!
//! They take the slabs that the service thread queued on the [`WarmBoard`], warm them in pieces of
//! one huge page, note each piece on the board, and block on a futex when there is nothing left.
//! They run at nice 19, not SCHED_IDLE: a job that computes on all cores would starve an idle-class
//! thread, and the pool must refill just then. If the scheduler weighs sessions and not threads
//! (`sched_autogroup`, cgroups), nice has little effect, so a warmer that had to wait for its core
//! lets others have it for a multiple of that time ([`pause_after`]). Pieces that a client is
//! writing are skipped.
//!
//! Measured on 2 cores of a Sapphire Rapids virtual machine (`cargo bench -p weir-store
//! --bench pool`): one warmer makes 1.7 to 2.8 GiB/s warm, two 4.3 to 8.5; 0.4 a warmer where the
//! host had to find the memory first. Another process then writes 1 MiB pieces at 13 GiB/s,
//! against 2.5 into cold segments; 1 KiB pieces at 7.3 and 1.3.
//!
//! Invariants: slabs are never made here, so the budget cannot be exceeded; contents are never
//! changed, so that slabs in use may be warmed; a stop is obeyed within the time for one huge page
//! (under 1 ms; 8 if the host of a virtual machine must find the memory first).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};

use crate::backing::slab_name;
use crate::board::WarmBoard;
use crate::map::{open_shared, Access, Mapping, HUGE_PAGE_BYTES};
use crate::slab::{unit_bits, SlabDirectory, SlabId, SLAB_BYTES, SLAB_UNITS, UNIT_BYTES};
use crate::warm::{warm, PageSize};

/// Units in a huge page.
const PIECE_UNITS: u32 = 2;
const _: () = assert!(PIECE_UNITS as u64 * UNIT_BYTES == HUGE_PAGE_BYTES as u64);

/// The priority warmers run at.
const NICE: i32 = 19;

/// The time that a warmer goes without a core for each second that it waited for one: it takes at
/// most a fifth of the time that it could have.
const PAUSE_PER_WAIT: u32 = 3;
/// The longest pause: a machine that was halted is no sign of others' work.
const PAUSE_MOST: Duration = Duration::from_millis(100);
/// A shorter wait is the clocks' granularity, an interrupt, or the host's.
const WAIT_LEAST: Duration = Duration::from_micros(500);

/// The warmers of one instance; stopped and joined when dropped.
#[derive(Debug)]
pub struct WarmPool {
    board: Arc<WarmBoard>,
    threads: Vec<JoinHandle<()>>,
}

impl WarmPool {
    /// Starts `threads` warmers for the slabs in `dir`, the memory tier's directory.
    pub fn start(dir: &Path, board: Arc<WarmBoard>, threads: usize) -> std::io::Result<WarmPool> {
        let mut pool = WarmPool {
            board,
            threads: Vec::new(),
        };
        for number in 0..threads {
            let (board, dir) = (Arc::clone(&pool.board), dir.to_owned());
            let thread = std::thread::Builder::new()
                .name(format!("weir-warm-{number}"))
                .stack_size(128 << 10)
                .spawn(move || run_warmer(&board, &dir))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Ends the warmers and waits for them.
    pub fn stop(mut self) {
        self.stop_threads();
    }

    fn stop_threads(&mut self) {
        self.board.stop();
        for thread in self.threads.drain(..) {
            // A warmer that panicked has printed the reason; nothing depends on it.
            let _ = thread.join();
        }
    }
}

impl Drop for WarmPool {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// The main function of a warmer.
fn run_warmer(board: &WarmBoard, dir: &Path) {
    // On Linux a priority belongs to a thread. Without it, warming takes more time from others.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    while !board.is_stopping() {
        let signal = board.signal();
        match board.take_slab() {
            Some((index, usable)) => board.finish_slab(index, warm_slab(board, dir, index, usable)),
            None if board.is_stopping() => return,
            None => board.wait(signal),
        }
    }
}

/// Warms the units of a slab that are not warm yet.
fn warm_slab(board: &WarmBoard, dir: &Path, index: u32, usable: u64) -> Result<(), Errno> {
    let (file, mapping) = map_slab(dir, index)?;
    for first in (0..SLAB_UNITS).step_by(PIECE_UNITS as usize) {
        let units = unit_bits(first, PIECE_UNITS) & usable;
        let wanted = units & !board.warm(index);
        if wanted == 0 || board.busy(index) & units != 0 {
            continue;
        }
        if board.is_stopping() {
            break;
        }
        let start = first as usize * bytes_of_units(1);
        let end = start + bytes_of_units(units.count_ones());
        let (began, had) = (Instant::now(), thread_cpu_time());
        let huge = match warm(&mapping, &file, start..end)? {
            PageSize::Huge => Ok(()),
            PageSize::Small(errno) => Err(errno),
        };
        board.note_warm(index, units, huge);
        let waited = began
            .elapsed()
            .saturating_sub(thread_cpu_time().saturating_sub(had));
        if let Some(pause) = pause_after(waited) {
            board.pause(pause);
        }
    }
    Ok(())
}

/// Returns the processor time of this thread.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the pause of a warmer that `waited` for its core during a piece.
fn pause_after(waited: Duration) -> Option<Duration> {
    (waited >= WAIT_LEAST).then(|| (waited * PAUSE_PER_WAIT).min(PAUSE_MOST))
}

fn map_slab(dir: &Path, index: u32) -> Result<(OwnedFd, Mapping), Errno> {
    let path = dir.join(slab_name(SlabId::new(SlabDirectory::MEMORY, index)));
    let file = open_shared(CWD, path.as_os_str().as_bytes(), Access::ReadWrite)
        .map_err(|error| error.errno())?;
    let mapping = Mapping::new_huge_aligned(&file, bytes_of_units(SLAB_UNITS))
        .map_err(|error| error.errno())?;
    debug_assert_eq!(mapping.len() as u64, SLAB_BYTES);
    Ok((file, mapping))
}

fn bytes_of_units(units: u32) -> usize {
    usize::try_from(u64::from(units) * UNIT_BYTES).expect("a 64-bit machine")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::DirBacking;
    use crate::testdir::TestDir;
    use crate::tier::{TierConfig, Tiers};
    // The warmers show their results only in the board's bits.
    use weir_cluster::guard::wait_until;
    use weir_core::types::ClientId;

    #[test]
    fn who_waited_for_a_core_goes_without_for_longer() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after(Duration::from_micros(100)), None);
        assert_eq!(pause_after(ms(4)), Some(ms(12)));
        assert_eq!(pause_after(ms(2000)), Some(PAUSE_MOST));
    }

    fn small_tiers(dir: &TestDir, memory_mib: u64, warm_mib: u64) -> Tiers<DirBacking> {
        let config = TierConfig {
            memory_budget_bytes: memory_mib << 20,
            warm_bytes: warm_mib << 20,
            storage_budgets_bytes: vec![],
        };
        Tiers::new(&config, DirBacking::open(dir.path(), &[]).unwrap())
    }

    #[test]
    fn the_stock_becomes_warm_and_no_more_than_that() {
        let dir = TestDir::new("pool");
        let mut tiers = small_tiers(&dir, 256, 65);
        let board = Arc::clone(tiers.board());
        let pool = WarmPool::start(dir.path(), Arc::clone(&board), 2).unwrap();
        wait_until("two slabs", || {
            board.warm(0) == u64::MAX && board.warm(1) == u64::MAX
        });
        assert_eq!(board.last_error(), None);
        assert!(!dir.path().join("slab-2").exists());
        for _ in 0..2 {
            let grant = tiers.grant(1, 64 << 20, ClientId(0)).unwrap();
            assert!(grant.warm);
        }
        wait_until("the refill", || board.warm(2) == u64::MAX);
        pool.stop();
    }

    #[test]
    fn a_short_last_slab_is_warmed_as_far_as_it_goes() {
        let dir = TestDir::new("pool-short");
        let tiers = small_tiers(&dir, 5, 5);
        let board = Arc::clone(tiers.board());
        let pool = WarmPool::start(dir.path(), Arc::clone(&board), 1).unwrap();
        wait_until("five units", || board.warm(0) == 0b1_1111);
        pool.stop();
        let file = open_shared(dir.fd(), "slab-0", Access::ReadOnly).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks * 512, 5 << 20);
    }

    #[test]
    fn a_stop_ends_warmers_that_wait_and_warmers_that_work() {
        let dir = TestDir::new("pool-stop");
        let idle = Arc::new(WarmBoard::new(1));
        WarmPool::start(dir.path(), idle, 3).unwrap().stop();
        let tiers = small_tiers(&dir, 1024, 1024);
        drop(WarmPool::start(dir.path(), Arc::clone(tiers.board()), 2).unwrap());
        assert_ne!(
            tiers.board().warm(0),
            u64::MAX,
            "stopped before the last slab"
        );
    }

    #[test]
    fn a_slab_that_is_gone_is_reported() {
        let dir = TestDir::new("pool-gone");
        let board = Arc::new(WarmBoard::new(1));
        board.queue(0, u64::MAX);
        let pool = WarmPool::start(dir.path(), Arc::clone(&board), 1).unwrap();
        wait_until("the report", || board.last_error().is_some());
        pool.stop();
        assert_eq!((board.last_error(), board.warm(0)), (Some(Errno::NOENT), 0));
    }
}
