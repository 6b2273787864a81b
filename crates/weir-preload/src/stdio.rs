//! glibc's stdio: five slots of its tables, patched.
//!
//! A `FILE` calls the kernel through the slots read, write, seek, close and stat of a table of
//! functions, from inside libc, where no interposed symbol is looked up. All of stdio (formatted, wide,
//! unlocked, `getline`...) works on our files once these slots check whether the stream's descriptor is
//! ours. The tables lie in a section of libc that it checks on use, so they are changed in place, once,
//! at start.
//!
//! The layout that this file relies on (`_IO_jump_t`, and three fields of `FILE`) has not changed since
//! glibc 2.1 and is part of its ABI; [`patch`] still verifies it first: the slots must hold the
//! functions that libc exports under the names `_IO_file_read`, `_IO_file_seek`, `_IO_file_close` and
//! `_IO_file_stat`. If they do not, stdio on our files is not supported and `fopen` fails with ENOTSUP.
//!
//! Opening: a stream is made by the real `fopen` on /dev/null with the wanted mode, and
//! then given our descriptor, because `fdopen` would look at the placeholder's flags.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::ffi::CString;

use libc::FILE;
use rustix::io::Errno;

use crate::{calls, is_ours, raw};

/// `_IO_jump_t`: the slot of the read function; write, seek, close, stat follow.
const FIRST_SLOT: usize = 14;
/// Byte offsets within `FILE`, 64-bit glibc.
const FILENO: usize = 112;
const OFFSET: usize = 144;
const VTABLE: usize = 216;
/// Protection is changed by pages.
const PAGE: usize = 4096;
/// A flag of `FILE`: an error was seen.
const ERR_SEEN: c_int = 0x20;

type ReadFn = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void, isize) -> isize;
type WriteFn = unsafe extern "C-unwind" fn(*mut FILE, *const c_void, isize) -> isize;
type SeekFn = unsafe extern "C-unwind" fn(*mut FILE, i64, c_int) -> i64;
type CloseFn = unsafe extern "C-unwind" fn(*mut FILE) -> c_int;
type StatFn = unsafe extern "C-unwind" fn(*mut FILE, *mut libc::stat) -> c_int;

/// The functions that the slots held before.
static ORIGINAL: [AtomicUsize; 5] = [const { AtomicUsize::new(0) }; 5];
static PATCHED: AtomicBool = AtomicBool::new(false);

/// Returns true if streams of our files work.
pub fn works() -> bool {
    PATCHED.load(Ordering::Acquire)
}

/// A symbol of libc, or null.
fn symbol(name: &CStr) -> usize {
    // SAFETY: a C string; RTLD_NEXT finds libc's, which stands behind us.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// Puts our functions into the slots. Called once, before `main`.
pub fn patch() {
    let stdout = symbol(c"stdout") as *const *const u8;
    let wide = symbol(c"_IO_wfile_jumps");
    if stdout.is_null() || wide == 0 {
        return;
    }
    // SAFETY: `stdout` is libc's variable of that name, a FILE whose table pointer is
    // at a fixed place.
    let narrow = unsafe { (*stdout).add(VTABLE).cast::<usize>().read() };
    if !is_as_expected(narrow) || !is_as_expected(wide) {
        return;
    }
    for (slot, original) in ORIGINAL.iter().enumerate() {
        // SAFETY: `is_as_expected` has read these slots.
        original.store(unsafe { slot_of(narrow, slot).read() }, Ordering::Release);
    }
    if replace(narrow) && replace(wide) {
        PATCHED.store(true, Ordering::Release);
    }
}

fn slot_of(table: usize, slot: usize) -> *mut usize {
    (table + (FIRST_SLOT + slot) * size_of::<usize>()) as *mut usize
}

/// Returns true if the slots hold the functions that libc exports by name.
fn is_as_expected(table: usize) -> bool {
    let names = [
        (0, c"_IO_file_read"),
        (2, c"_IO_file_seek"),
        (3, c"_IO_file_close"),
        (4, c"_IO_file_stat"),
    ];
    names.iter().all(|(slot, name)| {
        let address = symbol(name);
        // SAFETY: a table of libc has more than these slots.
        address != 0 && address == unsafe { slot_of(table, *slot).read() }
    })
}

/// Changes the five slots of one table.
fn replace(table: usize) -> bool {
    let ours: [usize; 5] = [
        file_read as ReadFn as usize,
        file_write as WriteFn as usize,
        file_seek as SeekFn as usize,
        file_close as CloseFn as usize,
        file_stat as StatFn as usize,
    ];
    let begin = slot_of(table, 0) as usize & !(PAGE - 1);
    let end = (slot_of(table, 5) as usize).next_multiple_of(PAGE);
    let protect = |protection: c_int| {
        // SAFETY: the pages of libc's tables, which are mapped; only their protection
        // changes, and back again.
        unsafe {
            raw::syscall(
                libc::SYS_mprotect,
                [begin, end - begin, protection as usize, 0, 0, 0],
            )
        }
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) < 0 {
        return false;
    }
    for (slot, function) in ours.into_iter().enumerate() {
        // SAFETY: writable now; slots are whole words, so a reader sees the old or the
        // new one.
        unsafe { slot_of(table, slot).write_volatile(function) };
    }
    protect(libc::PROT_READ);
    true
}

/// Notes a stream that libc has just opened: its descriptor is not weir's.
///
/// # Safety
///
/// `file` is a glibc FILE, or null.
pub unsafe fn note_stream(file: *mut FILE) -> *mut FILE {
    if !file.is_null() {
        // SAFETY: not null, so a FILE of glibc's, by the caller.
        crate::note_made(unsafe { fileno(file) });
    }
    file
}

/// The descriptor of a stream.
///
/// # Safety
///
/// `file` is a glibc FILE.
unsafe fn fileno(file: *mut FILE) -> c_int {
    // SAFETY: the field lies there in every FILE.
    unsafe { file.cast::<u8>().add(FILENO).cast::<c_int>().read() }
}

/// The function of libc's that was in a slot of the table.
///
/// # Safety
///
/// `F` is the type of the slot's functions, and one of ours was called through the table.
unsafe fn original<F: Copy>(slot: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = ORIGINAL[slot].load(Ordering::Relaxed);
    // SAFETY: `F` is the type of this slot's functions, by the caller; `patch` stored one before
    // any of ours could be reached.
    unsafe { core::mem::transmute_copy(&address) }
}

unsafe extern "C-unwind" fn file_read(file: *mut FILE, buffer: *mut c_void, n: isize) -> isize {
    // SAFETY: libc calls this with its own FILE, and room for n bytes.
    unsafe {
        let fd = fileno(file);
        if is_ours(fd) {
            calls::read(fd, buffer, n.unsigned_abs())
        } else {
            original::<ReadFn>(0)(file, buffer, n)
        }
    }
}

/// The contract of `_IO_new_file_write`: writes all, or sets an error flag and returns the number of
/// bytes written.
unsafe extern "C-unwind" fn file_write(file: *mut FILE, buffer: *const c_void, n: isize) -> isize {
    // SAFETY: libc calls this with its own FILE, and n bytes.
    unsafe {
        let fd = fileno(file);
        if !is_ours(fd) {
            return original::<WriteFn>(1)(file, buffer, n);
        }
        let mut done = 0;
        while done < n {
            let rest = (n - done).unsigned_abs();
            let wrote = calls::write(fd, buffer.cast::<u8>().offset(done).cast(), rest);
            if wrote < 0 {
                *file.cast::<c_int>() |= ERR_SEEN;
                break;
            }
            done += wrote;
        }
        let offset = file.cast::<u8>().add(OFFSET).cast::<i64>();
        if *offset >= 0 {
            *offset += done as i64;
        }
        crate::guarded(crate::ending::stream_written);
        done
    }
}

unsafe extern "C-unwind" fn file_seek(file: *mut FILE, offset: i64, whence: c_int) -> i64 {
    // SAFETY: libc calls this with its own FILE.
    unsafe {
        let fd = fileno(file);
        if is_ours(fd) {
            calls::lseek(fd, offset, whence)
        } else {
            original::<SeekFn>(2)(file, offset, whence)
        }
    }
}

unsafe extern "C-unwind" fn file_close(file: *mut FILE) -> c_int {
    // SAFETY: libc calls this with its own FILE.
    unsafe {
        let fd = fileno(file);
        if is_ours(fd) {
            calls::close(fd)
        } else {
            original::<CloseFn>(3)(file)
        }
    }
}

unsafe extern "C-unwind" fn file_stat(file: *mut FILE, stat: *mut libc::stat) -> c_int {
    // SAFETY: libc calls this with its own FILE and room for a stat.
    unsafe {
        let fd = fileno(file);
        if is_ours(fd) {
            calls::fstat(fd, stat)
        } else {
            original::<StatFn>(4)(file, stat)
        }
    }
}

crate::next::next_fn! {
    fopen: fn(*const c_char, *const c_char) -> *mut FILE;
    fopen64: fn(*const c_char, *const c_char) -> *mut FILE;
    fdopen: fn(c_int, *const c_char) -> *mut FILE;
    freopen: fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    freopen64: fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    tmpfile: fn() -> *mut FILE;
    tmpfile64: fn() -> *mut FILE;
}

/// A mode string of fopen(3), taken apart.
struct Mode {
    flags: c_int,
    /// The mode without the letters that concern only the opening: `e`, `m` and `x`.
    rest: [u8; 64],
}

impl Mode {
    fn parse(mode: &CStr) -> Option<Mode> {
        let mode = mode.to_bytes();
        let (letters, encoding) = match mode.iter().position(|&b| b == b',') {
            Some(at) => mode.split_at(at),
            None => (mode, &b""[..]),
        };
        let plus = letters.contains(&b'+');
        let access = |one| if plus { libc::O_RDWR } else { one };
        let mut flags = match letters.first()? {
            b'r' => access(libc::O_RDONLY),
            b'w' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
            b'a' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
            _ => return None,
        };
        if letters.contains(&b'e') {
            flags |= libc::O_CLOEXEC;
        }
        if letters.contains(&b'x') {
            flags |= libc::O_EXCL;
        }
        let mut rest = [0; 64];
        let kept = letters.iter().filter(|b| !b"emx".contains(b));
        for (to, from) in rest[..63].iter_mut().zip(kept.chain(encoding)) {
            *to = *from;
        }
        Some(Mode { flags, rest })
    }
}

/// Makes a stream of our descriptor.
///
/// # Safety
///
/// `fd` is ours; the caller gives it away.
unsafe fn stream_of(fd: c_int, mode: &Mode) -> *mut FILE {
    let Some(open) = fopen().filter(|_| works()) else {
        raw::set_errno(Errno::NOTSUP);
        return core::ptr::null_mut();
    };
    // SAFETY: two C strings; the FILE that libc returns is glibc's, so its descriptor is where every
    // FILE has it. Its descriptor is closed and replaced by ours before other code knows the stream.
    unsafe {
        let file = open(c"/dev/null".as_ptr(), mode.rest.as_ptr().cast());
        if !file.is_null() {
            let place = file.cast::<u8>().add(FILENO).cast::<c_int>();
            raw::syscall(libc::SYS_close, [*place as usize, 0, 0, 0, 0, 0]);
            place.write(fd);
        }
        file
    }
}

/// Opens our file as a stream; `None` if the path is not ours.
///
/// # Safety
///
/// Each is null or a C string.
unsafe fn open_stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    if path.is_null() || mode.is_null() {
        return None;
    }
    crate::process()?;
    // SAFETY: both are C strings, by the caller, which live through the call.
    unsafe {
        if !crate::is_our_path(CStr::from_ptr(path)) {
            return None;
        }
        let Some(parsed) = Mode::parse(CStr::from_ptr(mode)) else {
            raw::set_errno(Errno::INVAL);
            return Some(core::ptr::null_mut());
        };
        let fd = calls::open(path, parsed.flags, 0o666);
        if fd < 0 {
            return Some(core::ptr::null_mut());
        }
        if !is_ours(fd) {
            // A link led out of weir.
            let file = fdopen().map_or(core::ptr::null_mut(), |f| f(fd, mode));
            if file.is_null() {
                calls::close(fd);
            }
            return Some(file);
        }
        let file = stream_of(fd, &parsed);
        if file.is_null() {
            let saved = raw::errno();
            calls::close(fd);
            raw::restore_errno(saved);
        }
        Some(file)
    }
}

macro_rules! fopens {
    ($($name:ident)*) => {$(
        /// `fopen(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` and `mode` are C strings, by the caller; what libc gives is a FILE or
            // null.
            unsafe {
                match open_stream(path, mode) {
                    Some(file) => file,
                    None => super::note_stream(super::$name().map_or(core::ptr::null_mut(), |f| f(path, mode))),
                }
            }
        }
    )*};
}

macro_rules! freopens {
    ($($name:ident)*) => {$(
        /// `freopen(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` is null or a C string, `mode` is one, and `file` is an open FILE, by
            // the caller.
            unsafe { super::reopen(path, mode, file, super::$name()) }
        }
    )*};
}

macro_rules! tmpfiles {
    ($($name:ident)*) => {$(
        /// `tmpfile(3)`: a file of the kernel's.
        ///
        /// # Safety
        ///
        /// None.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name() -> *mut FILE {
            let _ends = crate::EndsByPanic;
            // SAFETY: what libc gives is a stream, or null.
            unsafe { super::note_stream(super::$name().map_or(core::ptr::null_mut(), |f| f())) }
        }
    )*};
}

/// The exported symbols, in a module of their own, because the next library's functions have the same
/// names.
mod exported {
    use super::{c_char, c_int, open_stream, stream_of, CStr, Errno, Mode, FILE};
    use crate::{is_ours, raw};

    fopens! { fopen fopen64 }
    freopens! { freopen freopen64 }
    tmpfiles! { tmpfile tmpfile64 }

    /// `fdopen(3)`.
    ///
    /// # Safety
    ///
    /// The caller meets the requirements of the C function of this name.
    #[no_mangle]
    pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        let _ends = crate::EndsByPanic;
        // SAFETY: `mode` is a C string, by the caller.
        unsafe {
            if !is_ours(fd) {
                return super::fdopen().map_or(core::ptr::null_mut(), |f| f(fd, mode));
            }
            match Mode::parse(CStr::from_ptr(mode)) {
                Some(mode) if super::allows(fd, mode.flags) => stream_of(fd, &mode),
                _ => {
                    raw::set_errno(Errno::INVAL);
                    core::ptr::null_mut()
                }
            }
        }
    }
}

/// Returns true if a descriptor's access mode allows that of a stream; sets O_APPEND as fdopen(3) does.
fn allows(fd: c_int, wanted: c_int) -> bool {
    let flags = calls::fcntl_number::<{ libc::F_GETFL }>(fd, 0);
    let access = flags & libc::O_ACCMODE;
    let fits = access == libc::O_RDWR || access == wanted & libc::O_ACCMODE;
    if fits && wanted & libc::O_APPEND != 0 && flags & libc::O_APPEND == 0 {
        calls::fcntl_number::<{ libc::F_SETFL }>(fd, flags | libc::O_APPEND);
    }
    flags >= 0 && fits
}

type Reopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

/// `freopen(3)`, where the old file, the new one, both or neither may be ours. libc replaces the
/// descriptor without a call of ours. So libc opens /dev/null under the old number, which is then made
/// ours.
///
/// # Safety
///
/// The caller meets the requirements of freopen(3).
unsafe fn reopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
    next: Option<Reopen>,
) -> *mut FILE {
    let Some(next) = next else {
        return core::ptr::null_mut();
    };
    // SAFETY: `path` is null or a C string, `mode` is one, and `file` is an open FILE, by the
    // caller.
    unsafe {
        let old = fileno(file);
        let was_ours = is_ours(old);
        // Without a path the same file is opened anew: libc would do that by this link.
        let own_link = CString::new(format!("/proc/self/fd/{old}")).unwrap_or_default();
        let path = match path.is_null() && was_ours {
            true => own_link.as_ptr(),
            false => path,
        };
        let ours = !path.is_null()
            && crate::process().is_some()
            && crate::is_our_path(CStr::from_ptr(path));
        if !ours {
            let reopened = next(path, mode, file);
            if was_ours {
                crate::forget_descriptor(old);
            }
            return reopened;
        }
        let Some(parsed) = Mode::parse(CStr::from_ptr(mode)) else {
            raw::set_errno(Errno::INVAL);
            return core::ptr::null_mut();
        };
        let fd = calls::open(path, parsed.flags, 0o666);
        if fd < 0 {
            return core::ptr::null_mut();
        }
        let reopened = next(c"/dev/null".as_ptr(), parsed.rest.as_ptr().cast(), file);
        if was_ours {
            crate::forget_descriptor(old);
        }
        if !reopened.is_null() {
            let number = fileno(reopened);
            if calls::dup3(fd, number, parsed.flags & libc::O_CLOEXEC) < 0 {
                calls::close(fd);
                return core::ptr::null_mut();
            }
        }
        calls::close(fd);
        reopened
    }
}
