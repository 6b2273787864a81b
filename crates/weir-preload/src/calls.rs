//! Calls on descriptors.

use core::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;
use weir_client::types::{LockRange, Outcome};

use crate::next::{interpose, six, Descriptor};
use crate::{process, raw, within};

pub use crate::names::{open, openat};
pub use crate::status::fstat;

/// A caller's buffer to read from.
///
/// # Safety
///
/// `n` bytes at `buffer` are readable, and not written to, while the result is used.
#[inline]
unsafe fn bytes<'a>(buffer: *const c_void, n: usize) -> &'a [u8] {
    if n == 0 {
        return &[];
    }
    // SAFETY: `n` bytes at `buffer` may be read, by the caller; no slice is longer than isize::MAX.
    unsafe { core::slice::from_raw_parts(buffer.cast(), n.min(MAX_TRANSFER)) }
}

/// A caller's buffer to fill.
///
/// # Safety
///
/// `n` bytes at `buffer` are writable, and used by no other code, while the result is used.
#[inline]
pub unsafe fn room<'a>(buffer: *mut c_void, n: usize) -> &'a mut [u8] {
    if n == 0 {
        return &mut [];
    }
    // SAFETY: `n` bytes at `buffer` may be written, by the caller; no slice is longer than
    // isize::MAX.
    unsafe { core::slice::from_raw_parts_mut(buffer.cast(), n.min(MAX_TRANSFER)) }
}

/// Calls `act` on a caller's buffer to fill. EFAULT: no buffer can be at its address.
///
/// # Safety
///
/// See `room`.
#[inline]
unsafe fn into<'a, T>(
    fd: c_int,
    buffer: *mut c_void,
    n: usize,
    act: impl FnOnce(&'a mut [u8]) -> Outcome<T>,
) -> Outcome<T> {
    if n > 0 && !crate::is_address(buffer) {
        return is_ours(fd).map(|()| Err(Errno::FAULT));
    }
    // SAFETY: no bytes, or `n` bytes of room at an address that can be the program's, by the
    // caller.
    act(unsafe { room(buffer, n) })
}

/// Calls `act` on a caller's buffer to read from. EFAULT as above.
///
/// # Safety
///
/// See `bytes`.
#[inline]
unsafe fn out_of<'a, T>(
    fd: c_int,
    buffer: *const c_void,
    n: usize,
    act: impl FnOnce(&'a [u8]) -> Outcome<T>,
) -> Outcome<T> {
    if n > 0 && !crate::is_address(buffer) {
        return is_ours(fd).map(|()| Err(Errno::FAULT));
    }
    // SAFETY: no bytes, or `n` bytes at an address that can be the program's, by the caller.
    act(unsafe { bytes(buffer, n) })
}

/// A number that the caller may pass by its address. EFAULT: none can be at that address.
///
/// # Safety
///
/// `pointer` is null, not an address of the program, or that of a number that only this call uses.
unsafe fn number_at<'a>(pointer: *mut i64) -> Result<Option<&'a mut i64>, Errno> {
    match crate::is_address(pointer) || pointer.is_null() {
        // SAFETY: null, or a number that only this call uses, by the caller.
        true => Ok(unsafe { pointer.as_mut() }),
        false => Err(Errno::FAULT),
    }
}

/// Closes a descriptor that is the caller's to close.
pub(crate) fn close_fd(fd: c_int) {
    // SAFETY: a number.
    unsafe { close(fd) };
}

/// `fcntl(2)` with a command that takes a number.
pub(crate) fn fcntl_number<const COMMAND: c_int>(fd: c_int, number: c_int) -> c_int {
    use libc::{F_DUPFD_CLOEXEC, F_GETFL, F_SETFD, F_SETFL};
    const {
        assert!(matches!(
            COMMAND,
            F_DUPFD_CLOEXEC | F_GETFL | F_SETFD | F_SETFL
        ));
    };
    // SAFETY: these commands take a number.
    unsafe { fcntl(fd, COMMAND, number as usize) }
}

/// The most that one call transfers, as on Linux.
const MAX_TRANSFER: usize = 0x7fff_f000;

/// The maximum number of pieces in a call (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// A caller's vector to read from; EINVAL: too many pieces, EFAULT: no buffer can be at an address.
///
/// # Safety
///
/// `count` elements at `vector` are readable, and what they point to is as the call needs.
unsafe fn gather<'a>(vector: *const iovec, count: c_int) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: `vector` has `count` elements with readable buffers, by the caller; `pieces` refused
    // addresses of none.
    unsafe {
        let pieces = pieces(vector, count)?.iter();
        let slices = pieces.map(|v| IoSlice::new(bytes(v.iov_base, v.iov_len)));
        Ok(slices.collect())
    }
}

/// A caller's vector to fill; errors as of `gather`.
///
/// # Safety
///
/// See `gather`.
unsafe fn scatter<'a>(vector: *const iovec, count: c_int) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    // SAFETY: `vector` has `count` elements with buffers to write to, by the caller; `pieces`
    // refused addresses of none.
    unsafe {
        let pieces = pieces(vector, count)?.iter();
        let slices = pieces.map(|v| IoSliceMut::new(room(v.iov_base, v.iov_len)));
        Ok(slices.collect())
    }
}

/// The elements of a caller's vector.
///
/// # Safety
///
/// See `gather`.
unsafe fn pieces<'a>(vector: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > MAX_PIECES {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !crate::is_address(vector) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the address can be the program's, and `count` elements are there, by the caller.
    let pieces = unsafe { core::slice::from_raw_parts(vector, count) };
    let is_length = |piece: &iovec| isize::try_from(piece.iov_len).is_ok();
    if !pieces.iter().all(is_length) {
        return Err(Errno::INVAL);
    }
    let is_sound = |piece: &iovec| piece.iov_len == 0 || crate::is_address(piece.iov_base);
    pieces
        .iter()
        .all(is_sound)
        .then_some(pieces)
        .ok_or(Errno::FAULT)
}

/// Returns `Some` if the descriptor is ours, so that it is worth building a vector.
fn is_ours(fd: c_int) -> Option<()> {
    crate::is_ours(fd).then_some(())
}

/// Reads into a vector, if the descriptor is ours.
fn reading<'a>(
    fd: c_int,
    vector: impl FnOnce() -> Result<Vec<IoSliceMut<'a>>, Errno>,
    read: impl FnOnce(&mut [IoSliceMut<'a>]) -> Outcome<usize>,
) -> Outcome<usize> {
    is_ours(fd)?;
    match vector() {
        Ok(mut vector) => read(&mut vector),
        Err(errno) => Some(Err(errno)),
    }
}

/// Writes from a vector, if the descriptor is ours.
fn writing<'a>(
    fd: c_int,
    vector: impl FnOnce() -> Result<Vec<IoSlice<'a>>, Errno>,
    write: impl FnOnce(&[IoSlice<'a>]) -> Outcome<usize>,
) -> Outcome<usize> {
    is_ours(fd)?;
    match vector() {
        Ok(vector) => write(&vector),
        Err(errno) => Some(Err(errno)),
    }
}

interpose! {
    [close __close] (fd: c_int) -> c_int: libc::SYS_close, [fd] => |p| p.descriptors.close(fd);
    [close_range] (first: c_uint, last: c_uint, flags: c_int) -> c_int: libc::SYS_close_range, [first, last, flags]
        => |p| p.descriptors.close_range(first, last, flags.cast_unsigned());
    [read __read] (fd: c_int, buffer: *mut c_void, n: size_t) -> ssize_t: libc::SYS_read, [fd, buffer, n]
        // SAFETY: the caller owes `buffer`: null, or `n` bytes that only this call writes to while it runs.
        => |p| unsafe { into(fd, buffer, n, |room| p.io.read(fd, room)) };
    [__read_chk] (fd: c_int, buffer: *mut c_void, n: size_t, have: size_t) -> ssize_t: libc::SYS_read, [fd, buffer, n]
        // SAFETY: the caller owes `buffer`: null, or `have` bytes that only this call writes to while it runs.
        => |p| within(n, have, || unsafe { into(fd, buffer, n, |room| p.io.read(fd, room)) });
    [write __write] (fd: c_int, buffer: *const c_void, n: size_t) -> ssize_t: libc::SYS_write, [fd, buffer, n]
        // SAFETY: the caller owes `buffer`: null, or `n` bytes that nobody writes to while the call runs.
        => |p| unsafe { out_of(fd, buffer, n, |bytes| p.io.write(fd, bytes)) };
    [pread pread64 __pread64] (fd: c_int, buffer: *mut c_void, n: size_t, offset: off_t) -> ssize_t: libc::SYS_pread64, [fd, buffer, n, offset]
        // SAFETY: the caller owes `buffer`: null, or `n` bytes that only this call writes to while it runs.
        => |p| unsafe { into(fd, buffer, n, |room| p.io.pread(fd, room, offset)) };
    [__pread_chk __pread64_chk] (fd: c_int, buffer: *mut c_void, n: size_t, offset: off_t, have: size_t) -> ssize_t: libc::SYS_pread64, [fd, buffer, n, offset]
        // SAFETY: the caller owes `buffer`: null, or `have` bytes that only this call writes to while it runs.
        => |p| within(n, have, || unsafe { into(fd, buffer, n, |room| p.io.pread(fd, room, offset)) });
    [pwrite pwrite64 __pwrite64] (fd: c_int, buffer: *const c_void, n: size_t, offset: off_t) -> ssize_t: libc::SYS_pwrite64, [fd, buffer, n, offset]
        // SAFETY: the caller owes `buffer`: null, or `n` bytes that nobody writes to while the call runs.
        => |p| unsafe { out_of(fd, buffer, n, |bytes| p.io.pwrite(fd, bytes, offset)) };
    [readv] (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t: libc::SYS_readv, [fd, vector, count]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that only this call writes to.
        => |p| reading(fd, || unsafe { scatter(vector, count) }, |v| p.io.readv(fd, v));
    [writev] (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t: libc::SYS_writev, [fd, vector, count]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that nobody writes to meanwhile.
        => |p| writing(fd, || unsafe { gather(vector, count) }, |v| p.io.writev(fd, v));
    [preadv preadv64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t: libc::SYS_preadv, [fd, vector, count, offset, 0]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that only this call writes to.
        => |p| reading(fd, || unsafe { scatter(vector, count) }, |v| p.io.preadv(fd, v, offset));
    [pwritev pwritev64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t: libc::SYS_pwritev, [fd, vector, count, offset, 0]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that nobody writes to meanwhile.
        => |p| writing(fd, || unsafe { gather(vector, count) }, |v| p.io.pwritev(fd, v, offset));
    [preadv2 preadv64v2] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t: libc::SYS_preadv2, [fd, vector, count, offset, 0, flags]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that only this call writes to.
        => |p| reading(fd, || unsafe { scatter(vector, count) }, |v| p.io.preadv2(fd, v, offset, flags));
    [pwritev2 pwritev64v2] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t: libc::SYS_pwritev2, [fd, vector, count, offset, 0, flags]
        // SAFETY: the caller owes `vector`: `count` elements, each with a buffer that nobody writes to meanwhile.
        => |p| writing(fd, || unsafe { gather(vector, count) }, |v| p.io.pwritev2(fd, v, offset, flags));
    [lseek lseek64 __lseek] (fd: c_int, offset: off_t, whence: c_int) -> off_t: libc::SYS_lseek, [fd, offset, whence]
        => |p| p.io.lseek(fd, offset, whence);
    [ftruncate ftruncate64] (fd: c_int, length: off_t) -> c_int: libc::SYS_ftruncate, [fd, length]
        => |p| p.io.ftruncate(fd, length);
    [fsync] (fd: c_int) -> c_int: libc::SYS_fsync, [fd] => |p| p.io.fsync(fd);
    [fdatasync] (fd: c_int) -> c_int: libc::SYS_fdatasync, [fd] => |p| p.io.fdatasync(fd);
    [syncfs] (fd: c_int) -> c_int: libc::SYS_syncfs, [fd] => |p| p.io.syncfs(fd);
    [sync_file_range] (fd: c_int, offset: off_t, length: off_t, flags: c_uint) -> c_int: libc::SYS_sync_file_range, [fd, offset, length, flags]
        => |p| p.io.sync_file_range(fd, offset, length, flags);
    [fallocate fallocate64] (fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int: libc::SYS_fallocate, [fd, mode, offset, length]
        => |p| p.io.fallocate(fd, mode, offset, length);
    [dup] (fd: c_int) -> Descriptor: libc::SYS_dup, [fd] => |p| p.descriptors.dup(fd);
    // aarch64 has no dup2. dup3 replaces it until libc's dup2 is known; they differ only if both numbers
    // are the same.
    [dup2 __dup2] (old: c_int, new: c_int) -> c_int: libc::SYS_dup3, [old, new, 0] => |p| p.descriptors.dup2(old, new);
    [dup3] (old: c_int, new: c_int, flags: c_int) -> c_int: libc::SYS_dup3, [old, new, flags] => |p| p.descriptors.dup3(old, new, flags);
    [flock] (fd: c_int, operation: c_int) -> c_int: libc::SYS_flock, [fd, operation] => |p| p.io.flock(fd, operation);
    [fcntl fcntl64 __fcntl] (fd: c_int, command: c_int, argument: usize) -> c_int: libc::SYS_fcntl, [fd, command, argument]
        // SAFETY: the caller owes the `argument` that `command` takes.
        => |p| unsafe { control(p, fd, command, argument) };
    [ioctl] (fd: c_int, request: libc::c_ulong, argument: usize) -> c_int: libc::SYS_ioctl, [fd, request, argument]
        // SAFETY: the caller owes the `argument` that `request` takes.
        => |p| unsafe { io_control(p, fd, request, argument) };
    [readahead] (fd: c_int, offset: off_t, n: size_t) -> ssize_t: libc::SYS_readahead, [fd, offset, n]
        => |p| p.io.readahead(fd);
    [getdents64] (fd: c_int, buffer: *mut c_void, n: size_t) -> ssize_t: libc::SYS_getdents64, [fd, buffer, n]
        // SAFETY: the caller owes `buffer`: null, or `n` bytes that only this call writes to while it runs.
        => |p| unsafe { into(fd, buffer, n, |room| p.listing.getdents64(fd, room)) };
    [copy_file_range] (from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, n: size_t, flags: c_uint) -> ssize_t:
        libc::SYS_copy_file_range, [from, from_at, to, to_at, n, flags]
        // SAFETY: the caller owes each offset: null, or one that only this call uses.
        => |p| match unsafe { (number_at(from_at), number_at(to_at)) } {
            (Ok(from_at), Ok(to_at)) => p.io.copy_file_range(from, from_at, to, to_at, n, flags),
            _ => is_ours(from).or(is_ours(to)).map(|()| Err(Errno::FAULT)),
        };
    [sendfile sendfile64] (to: c_int, from: c_int, offset: *mut i64, n: size_t) -> ssize_t: libc::SYS_sendfile, [to, from, offset, n]
        // SAFETY: the caller owes `offset`: null, or one that only this call uses.
        => |p| match unsafe { number_at(offset) } {
            Ok(offset) => p.io.sendfile(to, from, offset, n),
            Err(errno) => is_ours(from).or(is_ours(to)).map(|()| Err(errno)),
        };
    [splice] (from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, n: size_t, flags: c_uint) -> ssize_t:
        libc::SYS_splice, [from, from_at, to, to_at, n, flags]
        => |p| p.refusals.splice(from, to);
    [tee] (from: c_int, to: c_int, n: size_t, flags: c_uint) -> ssize_t: libc::SYS_tee, [from, to, n, flags]
        => |p| p.refusals.splice(from, to);
    [fchdir] (fd: c_int) -> c_int: libc::SYS_fchdir, [fd] => |p| p.current_dir.fchdir(fd);
    [fchmod] (fd: c_int, mode: libc::mode_t) -> c_int: libc::SYS_fchmod, [fd, mode] => |p| p.attributes.fchmod(fd, mode);
    [fchown] (fd: c_int, uid: libc::uid_t, gid: libc::gid_t) -> c_int: libc::SYS_fchown, [fd, uid, gid]
        => |p| p.attributes.fchown(fd, uid, gid);
}

/// `ioctl(2)`: FIONREAD is the only request about a file that programs use.
///
/// # Safety
///
/// The caller meets the requirements of ioctl(2).
unsafe fn io_control(
    p: &'static weir_client::process::Process,
    fd: c_int,
    request: libc::c_ulong,
    argument: usize,
) -> Outcome<c_int> {
    if request != libc::FIONREAD {
        return p.refusals.ioctl(fd, request);
    }
    if !crate::is_address(argument as *const c_int) {
        return is_ours(fd).map(|()| Err(Errno::FAULT));
    }
    let waiting = p.attributes.fstat(fd)?.and_then(|stat| {
        let at =
            p.io.lseek(fd, 0, libc::SEEK_CUR)
                .unwrap_or(Err(Errno::BADF))?;
        Ok(stat.size.saturating_sub(at.unsigned_abs()))
    });
    Some(waiting.map(|bytes| {
        // SAFETY: the request takes a pointer to an int.
        unsafe { (argument as *mut c_int).write(c_int::try_from(bytes).unwrap_or(c_int::MAX)) };
        0
    }))
}

/// Commands of fcntl(2), Linux 4.13.
const F_GET_RW_HINT: c_int = 1035;
const F_SET_RW_HINT: c_int = 1036;

/// `fcntl(2)`: locks pass a structure, write hints the address of a number, all other commands a number.
///
/// # Safety
///
/// The caller meets the requirements of fcntl(2).
unsafe fn control(
    p: &'static weir_client::process::Process,
    fd: c_int,
    command: c_int,
    argument: usize,
) -> Outcome<c_int> {
    match command {
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            is_ours(fd)?;
            let flock = argument as *mut libc::flock;
            if !crate::is_address(flock) {
                return Some(Err(Errno::FAULT));
            }
            // SAFETY: these commands take a struct flock.
            let flock = unsafe { &mut *flock };
            let mut range = LockRange {
                kind: flock.l_type,
                whence: flock.l_whence,
                start: flock.l_start,
                len: flock.l_len,
                pid: flock.l_pid,
            };
            let done = p.io.fcntl_lock(fd, command, &mut range)?;
            if done.is_ok() && matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
                flock.l_type = range.kind;
                flock.l_whence = range.whence;
                flock.l_start = range.start;
                flock.l_len = range.len;
                flock.l_pid = range.pid;
            }
            Some(done.map(|()| 0))
        }
        F_GET_RW_HINT | F_SET_RW_HINT => {
            is_ours(fd)?;
            let hint = argument as *mut u64;
            if !crate::is_address(hint) {
                return Some(Err(Errno::FAULT));
            }
            if command == F_SET_RW_HINT {
                // SAFETY: these commands take a pointer to 64 bits.
                return p
                    .descriptors
                    .set_write_life(fd, unsafe { hint.read_unaligned() });
            }
            let life = p.descriptors.write_life(fd)?;
            Some(life.map(|life| {
                // SAFETY: F_GET_RW_HINT takes a pointer to 64 bits, and this one can be the
                // program's.
                unsafe { hint.write_unaligned(life) };
                0
            }))
        }
        _ => {
            let ours = p
                .descriptors
                .fcntl(fd, command, argument.cast_signed() as i64);
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if ours.is_none() => {
                    // SAFETY: numbers.
                    let new = unsafe {
                        raw::syscall(
                            libc::SYS_fcntl,
                            six([fd as usize, command as usize, argument]),
                        )
                    };
                    Some(raw::result(new).map(|new| crate::note_made(new as c_int)))
                }
                _ => ours,
            }
        }
    }
}

/// A write of an aio control block: it appends if the file was opened with O_APPEND.
///
/// # Safety
///
/// The caller meets the requirements of pwrite(2).
pub unsafe fn aio_write_at(fd: c_int, buffer: *const c_void, n: usize, offset: i64) -> isize {
    // SAFETY: `n` bytes at `buffer` are readable, by the caller; F_GETFL takes no pointer.
    unsafe {
        if fcntl(fd, libc::F_GETFL, 0) & libc::O_APPEND != 0 {
            write(fd, buffer, n)
        } else {
            pwrite(fd, buffer, n, offset)
        }
    }
}

/// `closefrom(3)`.
///
/// # Safety
///
/// None beyond that of closing descriptors that other code may use.
#[no_mangle]
pub unsafe extern "C" fn closefrom(first: c_int) {
    crate::guarded(|| {
        let first = c_uint::try_from(first).unwrap_or(0);
        // SAFETY: numbers only: which descriptors may be closed is for the caller to know.
        unsafe { close_range(first, c_uint::MAX, 0) };
    });
}

/// Functions that return an error number and leave errno alone.
macro_rules! numbers {
    ($($name:ident ($fd:ident: c_int, $($p:ident: $t:ty),*) $number:expr, [$($a:expr),*] => |$process:ident| $ours:expr;)*) => {$(
        /// Returns an error number.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name($fd: c_int, $($p: $t),*) -> c_int {
            if let Some($process) = process() {
                let broken = || {
                    $process.descriptors.break_file($fd);
                    Some(Err(Errno::IO))
                };
                if let Some(result) = weir_client::bugs::contain(|| $ours, broken) {
                    return result.map_or_else(|errno: Errno| errno.raw_os_error(), |()| 0);
                }
            }
            // SAFETY: numbers only.
            let result = unsafe { raw::syscall($number, crate::next::six([$($a as usize),*])) };
            c_int::try_from(-result.min(0)).unwrap_or(libc::EIO)
        }
    )*};
}

numbers! {
    posix_fallocate(fd: c_int, offset: off_t, length: off_t) libc::SYS_fallocate, [fd, 0, offset, length]
        => |p| p.io.fallocate(fd, 0, offset, length);
    posix_fallocate64(fd: c_int, offset: off_t, length: off_t) libc::SYS_fallocate, [fd, 0, offset, length]
        => |p| p.io.fallocate(fd, 0, offset, length);
    posix_fadvise(fd: c_int, offset: off_t, length: off_t, advice: c_int) libc::SYS_fadvise64, [fd, offset, length, advice]
        => |p| p.io.fadvise(fd, offset, length, advice);
    posix_fadvise64(fd: c_int, offset: off_t, length: off_t, advice: c_int) libc::SYS_fadvise64, [fd, offset, length, advice]
        => |p| p.io.fadvise(fd, offset, length, advice);
}

/// `lockf(3)`, in terms of fcntl, as libc does it.
macro_rules! lockfs {
    ($($name:ident)*) => {$(
        /// `lockf(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, length: off_t) -> c_int {
            crate::guarded(|| {
                // SAFETY: plain numbers; the structure lives through the call.
                unsafe {
                    let mut lock: libc::flock = core::mem::zeroed();
                    lock.l_whence = libc::SEEK_CUR as i16;
                    lock.l_len = length;
                    let (how, kind) = match command {
                        libc::F_LOCK => (libc::F_SETLKW, libc::F_WRLCK),
                        libc::F_TLOCK => (libc::F_SETLK, libc::F_WRLCK),
                        libc::F_ULOCK => (libc::F_SETLK, libc::F_UNLCK),
                        libc::F_TEST => (libc::F_GETLK, libc::F_WRLCK),
                        _ => {
                            raw::set_errno(Errno::INVAL);
                            return -1;
                        }
                    };
                    lock.l_type = kind as i16;
                    let done = fcntl(fd, how, &raw mut lock as usize);
                    if done == 0 && command == libc::F_TEST && lock.l_type != libc::F_UNLCK as i16 && lock.l_pid != libc::getpid() {
                        raw::set_errno(Errno::ACCESS);
                        return -1;
                    }
                    done
                }
            })
        }
    )*};
}
lockfs! { lockf lockf64 }

/// `isatty(3)`: false for every file of weir.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn isatty(fd: c_int) -> c_int {
    crate::guarded(|| {
        if crate::is_ours(fd) {
            raw::set_errno(Errno::NOTTY);
            return 0;
        }
        let mut attributes = [0u64; 16];
        // SAFETY: TCGETS fills a struct of less than this size.
        let result = unsafe {
            raw::syscall(
                libc::SYS_ioctl,
                crate::next::six([
                    fd as usize,
                    libc::TCGETS as usize,
                    attributes.as_mut_ptr() as usize,
                ]),
            )
        };
        c_int::from(raw::outcome(result) == 0)
    })
}
