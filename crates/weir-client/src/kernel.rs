//! System calls on plain descriptor numbers, and statics of references.
//!
//! The descriptors of a foreign program are numbers that it may close at any time, so
//! `BorrowedFd` could promise nothing about them; and `OwnedFd`, where another crate
//! of the build enables rustix's std, closes through libc, that is, through our own
//! interposer. So the calls on descriptors go to the kernel from here, by number. A
//! number that is not open gives EBADF, as for the program itself.
//!
//! All unsafe code of this crate outside `sys` and `siglock` is in this file.

use core::arch::asm;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::ffi::CString;

use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A descriptor's number, as the application knows it.
pub type Fd = i32;

/// Numbers of the system calls used here, by architecture.
#[cfg(target_arch = "x86_64")]
mod nr {
    pub const CLOSE: usize = 3;
    pub const LSEEK: usize = 8;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const FCNTL: usize = 72;
    pub const TGKILL: usize = 234;
    pub const DUP3: usize = 292;
    pub const CLOSE_RANGE: usize = 436;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub const CLOSE: usize = 57;
    pub const LSEEK: usize = 62;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const FCNTL: usize = 25;
    pub const IOCTL: usize = 29;
    pub const TGKILL: usize = 131;
    pub const DUP3: usize = 24;
    pub const CLOSE_RANGE: usize = 436;
}

/// `F_OFD_GETLK` and its kin have the same numbers on all our architectures.
const F_OFD_GETLK: i32 = 36;
const F_OFD_SETLK: i32 = 37;
/// `struct flock` begins with the type.
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// # Safety
///
/// Pointers among the arguments must be valid for the system call.
unsafe fn syscall4(number: usize, args: [usize; 4]) -> Result<usize, Errno> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention; pointers among the arguments are valid for the call, by the caller.
    unsafe {
        asm!("syscall", inlateout("rax") number.cast_signed() => result, in("rdi") args[0],
            in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention; pointers among the arguments are valid for the call,
    // by the caller.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0].cast_signed() => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], options(nostack));
    }
    if (-4095..0).contains(&result) {
        #[allow(clippy::cast_possible_truncation)] // at most 4095
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result.cast_unsigned())
}

/// A descriptor's number as an argument, sign-extended as C does.
#[allow(clippy::cast_sign_loss)] // a negative number is beyond every table
fn arg(fd: i32) -> usize {
    fd as isize as usize
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // the kernel returns an int
fn int(value: usize) -> i32 {
    value as i32
}

/// close(2).
pub fn close(fd: Fd) -> Result<(), Errno> {
    // SAFETY: no pointers; a number that is not open is an error.
    unsafe { syscall4(nr::CLOSE, [arg(fd), 0, 0, 0]) }.map(|_| ())
}

/// close_range(2); ENOSYS before Linux 5.9.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    let args = [first as usize, last as usize, flags as usize, 0];
    // SAFETY: no pointers.
    unsafe { syscall4(nr::CLOSE_RANGE, args) }.map(|_| ())
}

/// dup3(2).
pub fn dup3(old: Fd, new: Fd, flags: i32) -> Result<Fd, Errno> {
    // SAFETY: no pointers.
    unsafe { syscall4(nr::DUP3, [arg(old), arg(new), arg(flags), 0]) }.map(int)
}

/// fcntl(2) of commands whose argument is an integer: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL,
/// F_DUPFD_CLOEXEC. EINVAL: another command.
pub fn fcntl(fd: Fd, command: i32, argument: i32) -> Result<i32, Errno> {
    if !matches!(command, 0..=4 | 1030) {
        return Err(Errno::INVAL);
    }
    // SAFETY: these commands take integers.
    unsafe { syscall4(nr::FCNTL, [arg(fd), arg(command), arg(argument), 0]) }.map(int)
}

/// ioctl(2) of a command that takes 8 bytes and gives none.
pub fn ioctl_set_u64(fd: BorrowedFd<'_>, command: u32, value: u64) -> Result<(), Errno> {
    debug_assert!(
        command >> 16 & 0x3fff == 8,
        "the command says how many bytes"
    );
    let at = core::ptr::from_ref(&value) as usize;
    let args = [arg(fd.as_raw_fd()), command as usize, at, 0];
    // SAFETY: the command reads 8 bytes, which the argument points to.
    unsafe { syscall4(nr::IOCTL, args) }.map(|_| ())
}

/// lseek(2) of the kernel's own description.
pub fn lseek(fd: Fd, offset: i64, whence: i32) -> Result<u64, Errno> {
    #[allow(clippy::cast_possible_truncation)] // 64-bit machines
    let args = [arg(fd), offset.cast_unsigned() as usize, arg(whence), 0];
    // SAFETY: no pointers.
    unsafe { syscall4(nr::LSEEK, args) }.map(|at| at as u64)
}

/// Sends SIGXFSZ to the calling thread, as the kernel does for a write beyond RLIMIT_FSIZE.
pub fn raise_file_size_signal() {
    const SIGXFSZ: i32 = 25;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: no pointers.
    let _ = unsafe { syscall4(nr::TGKILL, [arg(process), arg(thread), arg(SIGXFSZ), 0]) };
}

/// The kernel's `struct flock`.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

/// Takes a read lock of one byte for the open file description (F_OFD_SETLK).
pub fn lock_byte_shared(fd: Fd, byte: u64) -> Result<(), Errno> {
    let lock = Flock {
        kind: F_RDLCK,
        whence: 0,
        start: byte.cast_signed(),
        len: 1,
        pid: 0,
    };
    let args = [arg(fd), arg(F_OFD_SETLK), &raw const lock as usize, 0];
    // SAFETY: the lock is a `struct flock` that lives until the call returns.
    unsafe { syscall4(nr::FCNTL, args) }.map(|_| ())
}

/// True if an open file description other than `fd`'s has a lock of one byte (F_OFD_GETLK).
pub fn is_byte_locked(fd: Fd, byte: u64) -> Result<bool, Errno> {
    let mut lock = Flock {
        kind: F_WRLCK, // anybody's lock is in its way
        whence: 0,
        start: byte.cast_signed(),
        len: 1,
        pid: 0,
    };
    let args = [arg(fd), arg(F_OFD_GETLK), &raw mut lock as usize, 0];
    // SAFETY: the lock is a `struct flock` that lives until the call returns.
    unsafe { syscall4(nr::FCNTL, args) }?;
    Ok(lock.kind != F_UNLCK)
}

/// The kernel's path of a descriptor: proc_pid_fd(5).
pub fn path_of(fd: Fd) -> Result<CString, Errno> {
    rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
}

/// A descriptor to pass to rustix. If the number is closed meanwhile, the call fails, or acts on
/// the file that has the number then, as it would for the application.
pub fn borrow(fd: Fd) -> Result<BorrowedFd<'static>, Errno> {
    if fd < 0 && fd != AT_FDCWD {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1 (checked), the one value that has no borrowed form; no code relies for memory
    // safety on the file behind the number.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// "Relative to the current directory".
pub const AT_FDCWD: Fd = -100;

/// The number of a descriptor that rustix opened, now ours to close.
pub fn into_number(fd: OwnedFd) -> Fd {
    fd.into_raw_fd()
}

/// Tells if this process has signal handlers: 0, nobody watches (it may have some); 1, none so far;
/// 2, some.
static HANDLERS: AtomicU8 = AtomicU8::new(0);

/// Declares that the caller sees each installation of a handler, and will call
/// [`a_handler_is_installed`]. Until then no signal needs to be blocked, which saves two system
/// calls each time: without handlers a signal either ends the process or does nothing.
pub fn handlers_are_watched() {
    let _ = HANDLERS.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
}

/// Notes that signals may run code of the program from now on.
pub fn a_handler_is_installed() {
    HANDLERS.store(2, Ordering::Relaxed);
}

/// Keeps the signals of its thread blocked; or does nothing, where there are no handlers.
#[derive(Debug)]
pub struct SignalsBlocked {
    blocks: bool,
    /// A thread's mask is to be put back by that thread.
    not_send: PhantomData<*const ()>,
}

const SIG_SETMASK: usize = 2;

std::thread_local! {
    /// The number of [`SignalsBlocked`] of this thread, and the mask from before the first of them.
    static BLOCKED: (Cell<u32>, Cell<u64>) = const { (Cell::new(0), Cell::new(0)) };
}

/// Blocks every signal of the calling thread, also those that libc keeps to itself, until the value
/// is dropped; only if there are handlers that could run. Nested blocks cost nothing.
pub fn block_signals() -> SignalsBlocked {
    let blocks = HANDLERS.load(Ordering::Relaxed) != 1;
    if blocks {
        BLOCKED.with(|(depth, before)| {
            if depth.get() == 0 {
                before.set(block_all());
            }
            depth.set(depth.get() + 1);
        });
    }
    SignalsBlocked {
        blocks,
        not_send: PhantomData,
    }
}

/// Blocks every signal; returns the set that was blocked before.
fn block_all() -> u64 {
    let all = u64::MAX;
    let mut before = 0u64;
    let args = [
        SIG_SETMASK,
        &raw const all as usize,
        &raw mut before as usize,
        8,
    ];
    // SAFETY: both sets are 8 bytes that live until the call returns.
    let _ = unsafe { syscall4(nr::RT_SIGPROCMASK, args) };
    before
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if !self.blocks {
            return;
        }
        BLOCKED.with(|(depth, before)| {
            depth.set(depth.get() - 1);
            if depth.get() > 0 {
                return;
            }
            let before = before.get();
            let args = [SIG_SETMASK, &raw const before as usize, 0, 8];
            // SAFETY: the set is 8 bytes; no old one is asked for.
            let _ = unsafe { syscall4(nr::RT_SIGPROCMASK, args) };
        });
    }
}

/// A static that holds a reference to something that lives for ever, or nothing. Threads share it as they
/// may share the reference.
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot<T: 'static>(AtomicPtr<T>, PhantomData<&'static T>);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot::empty()
    }
}

impl<T> Slot<T> {
    /// Holds nothing.
    pub const fn empty() -> Slot<T> {
        Slot(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// The reference that it holds.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let held = self.0.load(Ordering::Acquire);
        // SAFETY: null, or from a `&'static T` given to `set`.
        unsafe { held.as_ref() }
    }

    /// Makes it hold `value`.
    pub fn set(&self, value: Option<&'static T>) {
        self.0.store(as_pointer(value), Ordering::Release);
    }

    /// Makes it hold `value` if it is empty; returns the reference that it holds then.
    pub fn get_or_set(&self, value: &'static T) -> &'static T {
        let empty = ptr::null_mut();
        let new = as_pointer(Some(value));
        match self
            .0
            .compare_exchange(empty, new, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => value,
            // SAFETY: it is not `empty`, so it comes from a `&'static T` given to `set`.
            Err(held) => unsafe { &*held },
        }
    }

    /// Makes it hold `value`; returns the reference that it held before.
    pub fn swap(&self, value: Option<&'static T>) -> Option<&'static T> {
        let held = self.0.swap(as_pointer(value), Ordering::AcqRel);
        // SAFETY: null, or from a `&'static T` given to `set`.
        unsafe { held.as_ref() }
    }
}

fn as_pointer<T>(value: Option<&'static T>) -> *mut T {
    value.map_or(ptr::null_mut(), |v| ptr::from_ref(v).cast_mut())
}

/// A page that a forked child finds zeroed (MADV_WIPEONFORK, Linux 4.14), while a child
/// of vfork, which runs on its parent's memory, finds it as it was. `None` where the
/// kernel has no such page.
pub fn page_wiped_on_fork() -> Option<&'static core::sync::atomic::AtomicU64> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at an address of the kernel's choice, never unmapped; advice
    // that changes only what children see of it; zeroed memory is a valid `AtomicU64`.
    unsafe {
        let page =
            rustix::mm::mmap_anonymous(ptr::null_mut(), 4096, prot, MapFlags::PRIVATE).ok()?;
        rustix::mm::madvise(page, 4096, rustix::mm::Advice::LinuxWipeOnFork).ok()?;
        Some(&*page.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_gives_back_what_was_put_in() {
        static SLOT: Slot<u32> = Slot::empty();
        assert_eq!(SLOT.get(), None);
        assert_eq!((SLOT.get_or_set(&6), SLOT.get_or_set(&5)), (&6, &6));
        SLOT.set(Some(&7));
        assert_eq!(SLOT.swap(None), Some(&7));
        assert_eq!(SLOT.get(), None);
    }

    #[test]
    fn descriptors_are_used_by_number() {
        let fd = into_number(
            rustix::fs::open(
                "/",
                rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            )
            .unwrap(),
        );
        let copy = fcntl(fd, 1030, 100).unwrap();
        assert!(copy >= 100);
        assert_eq!(fcntl(copy, 1, 0), Ok(1), "close-on-exec");
        assert_eq!(dup3(fd, copy, 0), Ok(copy));
        assert_eq!(fcntl(copy, 1, 0), Ok(0));
        close(copy).unwrap();
        assert_eq!(close(copy), Err(Errno::BADF));
        assert_eq!(borrow(-1).err(), Some(Errno::BADF));
        close(fd).unwrap();
    }

    #[test]
    fn a_directory_of_tmpfs_carries_an_offset_and_a_lock() {
        let fd = into_number(
            rustix::fs::open(
                "/dev/shm",
                rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            )
            .unwrap(),
        );
        assert_eq!(lseek(fd, 12_345, 0), Ok(12_345));
        assert_eq!(lseek(fd, 0, 1), Ok(12_345));
        lock_byte_shared(fd, (1 << 60) + 5).unwrap();
        let again = into_number(
            rustix::fs::openat(
                borrow(fd).unwrap(),
                ".",
                rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            )
            .unwrap(),
        );
        let locked = |byte: u64| is_byte_locked(again, (1 << 60) + byte).unwrap();
        assert!(locked(5) && !locked(6));
        assert_eq!(is_byte_locked(fd, (1 << 60) + 5), Ok(false), "its own");
        close(fd).unwrap();
        assert!(!locked(5));
        close(again).unwrap();
    }

    #[test]
    fn signals_are_blocked_and_come_back() {
        // The thread's status shows the blocked signals.
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("SigBlk:")).unwrap();
            u64::from_str_radix(line[7..].trim(), 16).unwrap()
        };
        let before = blocked();
        let guard = block_signals();
        assert_eq!(
            blocked() | (1 << 8) | (1 << 18),
            u64::MAX,
            "all but KILL and STOP"
        );
        let inner = block_signals();
        drop(guard);
        assert_ne!(blocked(), before, "the inner one is there still");
        let again = block_signals();
        drop(inner);
        assert_ne!(blocked(), before);
        drop(again);
        assert_eq!(blocked(), before);
        drop(block_signals());
        assert_eq!(blocked(), before);
    }
}
