//! Memory shared by the coordinator and its workers: the job, and a barrier between processes.
//!
//! It is a memory file that each worker gets as its standard input. Plain futexes through libc, not the
//! crates' ones: those are private to a process.
//!
//! ```text
//! 0        4         8            12      16         24                  file size
//! | ranks  | arrived | generation | abort | (unused) | the job, as JSON  |
//! ```
//!
//! Invariant: `generation` moves when all ranks have arrived or when the job is aborted, and at no other time.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const JOB_AT: usize = 24;

/// How long a worker spins at the barrier before it sleeps: longer than waking it takes.
const SPIN: Duration = Duration::from_micros(100);

#[repr(C)]
struct Head {
    ranks: AtomicU32,
    arrived: AtomicU32,
    generation: AtomicU32,
    abort: AtomicU32,
}

/// The job was aborted because another process failed or the user interrupted it.
#[derive(Debug, thiserror::Error)]
#[error("aborted because another process failed")]
pub struct Aborted;

/// A mapping of the shared memory.
pub struct Control {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the head is atomics, and the job is written before the mapping is shared and never after.
unsafe impl Sync for Control {}
// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Control {}

impl Control {
    /// Makes the memory file of a job for `ranks` workers and maps it.
    pub fn create(ranks: u32, job: &[u8]) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name is nul-terminated; the result is checked before it is owned.
        let fd = unsafe { libc::memfd_create(c"weir-bench-control".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut image = vec![0; JOB_AT];
        image[..4].copy_from_slice(&ranks.to_ne_bytes());
        image.extend_from_slice(job);
        io::Write::write_all(&mut &file, &image)?;
        let fd = OwnedFd::from(file);
        Ok((Control::map(&fd)?, fd))
    }

    /// Maps the memory file that the coordinator made.
    pub fn map(fd: &impl AsRawFd) -> io::Result<Self> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `status` has room for what the call writes, and is read only if it did.
        let length = unsafe {
            if libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            status.assume_init().st_size
        };
        let length = usize::try_from(length).map_err(io::Error::other)?;
        if length < JOB_AT {
            return Err(io::Error::other(
                "standard input is not a job of the benchmark",
            ));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                access,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Control { start, length })
    }

    /// The job, as JSON.
    pub fn job(&self) -> &[u8] {
        // SAFETY: the file is at least JOB_AT long (checked in `map`), and nobody writes the job after `create`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(JOB_AT), self.length - JOB_AT) }
    }

    fn head(&self) -> &Head {
        // SAFETY: page-aligned, long enough, and atomics are valid for any bits and shared writers.
        unsafe { self.start.cast::<Head>().as_ref() }
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// `Aborted` if the job ends instead.
    pub fn barrier(&self) -> Result<(), Aborted> {
        let head = self.head();
        let generation = head.generation.load(Ordering::SeqCst);
        if head.abort.load(Ordering::SeqCst) != 0 {
            return Err(Aborted);
        }
        let here = head.arrived.fetch_add(1, Ordering::SeqCst) + 1;
        if here == head.ranks.load(Ordering::SeqCst) {
            head.arrived.store(0, Ordering::SeqCst);
            self.next_generation();
        } else {
            self.wait_past(generation);
        }
        match head.abort.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Aborted),
        }
    }

    /// Ends the job: everyone who waits or will wait at the barrier gets `Aborted`.
    pub fn abort(&self) {
        self.head().abort.store(1, Ordering::SeqCst);
        self.next_generation();
    }

    fn wait_past(&self, generation: u32) {
        let word = &self.head().generation;
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            if word.load(Ordering::SeqCst) != generation {
                return;
            }
            std::hint::spin_loop();
        }
        while word.load(Ordering::SeqCst) == generation {
            let forever = std::ptr::null::<libc::timespec>();
            // SAFETY: the word lives in the mapping; the call sleeps only while it holds `generation`.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    word.as_ptr(),
                    libc::FUTEX_WAIT,
                    generation,
                    forever,
                )
            };
        }
    }

    fn next_generation(&self) {
        let word = &self.head().generation;
        word.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the word lives in the mapping; waking touches no memory.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                libc::c_int::MAX,
            )
        };
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; borrowed slices end with `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_lets_no_rank_run_ahead() {
        let (control, _fd) = Control::create(3, b"job").unwrap();
        assert_eq!(control.job(), b"job");
        let passed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..200 {
                        passed.fetch_add(1, Ordering::SeqCst);
                        control.barrier().unwrap();
                        assert!(passed.load(Ordering::SeqCst) >= 3 * (round + 1));
                    }
                });
            }
        });
        assert_eq!(passed.load(Ordering::SeqCst), 600);
    }

    #[test]
    fn abort_frees_those_who_wait_and_those_who_come_later() {
        let (control, fd) = Control::create(2, b"").unwrap();
        let other = Control::map(&fd).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| control.barrier());
            other.abort();
            assert!(waiting.join().unwrap().is_err());
        });
        assert!(control.barrier().is_err());
    }
}
