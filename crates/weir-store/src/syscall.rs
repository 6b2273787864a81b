//! The system calls that rustix does not have, made without libc.
//!
//! Inside an application weir's own calls must not pass through symbols that weir itself replaces,
//! so they are made here by the machine's instruction.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

#[cfg(target_arch = "x86_64")]
const SYNC_FILE_RANGE: usize = 277;
#[cfg(target_arch = "aarch64")]
const SYNC_FILE_RANGE: usize = 84;
const SYNC_FILE_RANGE_WRITE: usize = 2;

/// Starts writing out the dirty pages of a range of a file, without waiting for them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn start_writing(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let fd = usize::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let (offset, len) = (
        usize::try_from(offset).map_err(|_| Errno::INVAL)?,
        usize::try_from(len).map_err(|_| Errno::INVAL)?,
    );
    // SAFETY: sync_file_range takes numbers only and changes no memory of ours.
    let result = unsafe { syscall4(SYNC_FILE_RANGE, fd, offset, len, SYNC_FILE_RANGE_WRITE) };
    match i32::try_from(result) {
        Ok(errno @ -4095..=-1) => Err(Errno::from_raw_os_error(-errno)),
        _ => Ok(()),
    }
}

/// Makes a system call of four arguments.
///
/// # Safety
///
/// The arguments must be valid for the call, which must not change memory that Rust knows of.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall4(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the arguments are valid for the call, which changes no memory of Rust's, by the
    // caller. The kernel changes rcx and r11 besides rax.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call of four arguments.
///
/// # Safety
///
/// The arguments must be valid for the call, which must not change memory that Rust knows of.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall4(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the arguments are valid for the call, which changes no memory of Rust's, by the
    // caller. The kernel changes x0 alone.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use rustix::fd::AsFd;

    use super::*;
    use crate::map::create_sparse;
    use crate::testdir::TestDir;

    #[test]
    fn writing_out_is_accepted_for_files_and_refused_for_pipes() {
        let dir = TestDir::on_disk("sync-range");
        let file = create_sparse(dir.fd(), "f", 1 << 20).unwrap();
        rustix::io::pwrite(&file, &[1; 4096], 0).unwrap();
        assert_eq!(start_writing(file.as_fd(), 0, 4096), Ok(()));
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(start_writing(reader.as_fd(), 0, 1), Err(Errno::SPIPE));
    }
}
