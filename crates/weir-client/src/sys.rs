//! The few primitives below libc that neither rustix nor std has.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::{clock_gettime, ClockId, Timespec};

/// glibc's `__libc_single_threaded` (2.32 and later); null where there is none.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the address of glibc's flag that tells if this process has one thread.
///
/// # Safety
///
/// `flag` is null, or points to a byte that lives as long as the process.
pub unsafe fn set_single_threaded_flag(flag: *mut u8) {
    SINGLE_THREADED.store(flag, Ordering::Relaxed);
}

/// True if libc has set up the environment. Of all constructors, only those in a program's
/// `.preinit_array` run before that.
pub fn has_environment() -> bool {
    extern "C" {
        static environ: *const *const core::ffi::c_char;
    }
    // SAFETY: a variable of libc, read as libc itself does.
    unsafe { !(&raw const environ).read_volatile().is_null() }
}

/// True if this process surely has one thread only.
#[inline]
pub fn single_threaded() -> bool {
    let flag = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: null, or a byte that lives as long as the process (see the setter).
    // glibc changes it only while no other thread runs, so there is no race.
    !flag.is_null() && unsafe { flag.read_volatile() } != 0
}

/// The calling thread's pointer: different for any two living threads, never 0.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI keeps the thread pointer itself in the first word it points to.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register that user space may read.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// True if an object of the program's can be at an address: not in the first page, which Linux does
/// not let be mapped (`vm.mmap_min_addr`), nor in the kernel's half. Unmapped addresses in between
/// are not detected: the program gets SIGSEGV where the kernel would return EFAULT.
#[inline]
pub fn is_address<T>(pointer: *const T) -> bool {
    const FIRST: usize = 4096;
    (pointer as usize).wrapping_sub(FIRST) < isize::MAX as usize - FIRST
}

/// Sleeps while `word` is `seen`, for at most `timeout_ns`. May return early.
pub fn futex_wait(word: &AtomicU32, seen: u32, timeout_ns: i64) {
    let timeout = Timespec {
        tv_sec: timeout_ns / 1_000_000_000,
        tv_nsec: timeout_ns % 1_000_000_000,
    };
    // Whatever the result (changed, timed out, interrupted), the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: i32) {
    let _ = futex::wake(
        word,
        futex::Flags::empty(),
        u32::try_from(count).unwrap_or(1),
    );
}

/// The time, in ns since 1970. No system call.
pub fn now_ns() -> u64 {
    ns_of(ClockId::Realtime)
}

#[inline]
fn ns_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

/// The time, in ns since 1970, at the kernel's tick, as the kernel itself stamps files. No system
/// call.
#[inline]
pub fn coarse_now_ns() -> u64 {
    ns_of(ClockId::RealtimeCoarse)
}
