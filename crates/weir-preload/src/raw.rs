//! System calls without libc, for the time before the next library's symbols are known.

use core::cell::Cell;
use core::ffi::{c_int, c_long};

use rustix::io::Errno;

/// The return value of a C function for a system call's result: the value, or -1 with errno.
#[inline]
pub fn outcome(result: isize) -> isize {
    match self::result(result) {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// A system call's result as a `Result`.
#[inline]
pub fn result(result: isize) -> Result<isize, Errno> {
    if (-4095..0).contains(&result) {
        let number = c_int::try_from(-result).unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(number));
    }
    Ok(result)
}

/// Sets the calling thread's errno.
#[cold]
pub fn set_errno(errno: Errno) {
    errno_cell().set(errno.raw_os_error());
}

/// Restores the calling thread's errno to an earlier value of [`errno`]: also 0, which is no [`Errno`].
pub fn restore_errno(saved: c_int) {
    errno_cell().set(saved);
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    errno_cell().get()
}

/// The calling thread's errno. The reference cannot leave the thread.
fn errno_cell() -> &'static Cell<c_int> {
    // SAFETY: libc's answer is the address of this thread's errno, which lives as long as the thread. A Cell has
    // the layout of what it holds, and is not shared between threads.
    unsafe { &*libc::__errno_location().cast::<Cell<c_int>>() }
}

/// A system call.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
pub unsafe fn syscall(number: c_long, a: [usize; 6]) -> isize {
    #[cfg(target_arch = "x86_64")]
    {
        let result: isize;
        // SAFETY: the arguments are valid for the system call, by the caller; the kernel changes
        // rax, rcx and r11 only.
        unsafe {
            core::arch::asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
                in("r10") a[3], in("r8") a[4], in("r9") a[5],
                lateout("rcx") _, lateout("r11") _,
                options(nostack)
            );
        }
        result
    }
    #[cfg(target_arch = "aarch64")]
    {
        let result: isize;
        // SAFETY: the arguments are valid for the system call, by the caller; the kernel changes x0
        // only.
        unsafe {
            core::arch::asm!(
                "svc 0",
                in("x8") number as usize,
                inlateout("x0") a[0] as isize => result,
                in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
                options(nostack)
            );
        }
        result
    }
}
