//! `dlopen(3)` and `dlmopen(3)`, for libraries that lie in weir: the loader maps a copy.
//!
//! The loader knows a library by the name under which it was opened, so each copy keeps a descriptor of
//! its own. Its name (`/proc/self/fd/N`) is not reused as long as the process lives. A file that was
//! loaded before, and has not changed, is loaded by the same name. If the library itself needs libraries
//! that the loader would look up in weir (RUNPATH, `$LD_LIBRARY_PATH`), the wrapper loads those first:
//! the loader then finds them by their sonames.
//!
//! The loader does the rest as if the program had called it. The wrapper jumps to it, because the loader
//! uses the return address to decide whose RUNPATH applies.
//!
//! [`crate::needed`] handles the libraries that a program needs at its start.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::CString;
use std::sync::OnceLock;

use weir_client::kernel::{block_signals, path_of};
use weir_client::process::{path_of_copy, process};
use weir_client::siglock::SigLock;

use crate::elf::Needs;
use crate::environment::variable;
use crate::{bytes_of, calls, is_our_c_path, names, status};

mod next {
    use super::{c_char, c_int, c_void};

    crate::next::next_fn! {
        dlopen: fn(*const c_char, c_int) -> *mut c_void;
        dlmopen: fn(libc::c_long, *const c_char, c_int) -> *mut c_void;
        dlclose: fn(*mut c_void) -> c_int;
    }
}

/// Loads a library of this machine, whose symbols only its handle gives. Null: see [`error`].
pub(crate) fn open(path: &CStr) -> *mut c_void {
    let open = next::dlopen();
    // SAFETY: a C string.
    open.map_or(core::ptr::null_mut(), |open| unsafe {
        open(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL)
    })
}

/// The loader's message about the last call that failed.
pub(crate) fn error() -> String {
    // SAFETY: null, or a C string that stays until the next failure of this thread.
    let message = unsafe { bytes_of(libc::dlerror()) };
    String::from_utf8_lossy(message.unwrap_or_default()).into_owned()
}

/// Looks up the next functions behind the wrappers of this file, and stores the directories of
/// `$LD_LIBRARY_PATH` at the start of the program, as the loader does.
pub fn resolve() {
    next::resolve_all();
    let named = variable(c"LD_LIBRARY_PATH").unwrap_or_default();
    let dirs = named.split(|byte| b":;".contains(byte));
    let dirs = dirs.filter(|dir| !dir.is_empty()).map(<[u8]>::to_vec);
    let _ = LIBRARY_PATH.set(dirs.collect());
}

static LIBRARY_PATH: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

/// A value that is no file's.
const NO_FILE: [i64; 5] = [-1; 5];

/// A library of weir's that was loaded.
struct Loaded {
    /// Device, inode, size and time of the last change, in seconds and nanoseconds.
    file: [i64; 5],
    /// The descriptor of its copy, which also is its name.
    copy: c_int,
    /// The device and inode of the copy.
    identity: [u64; 2],
}

static LOADED: SigLock<Vec<Loaded>> = SigLock::new(Vec::new());

/// Takes the lock of the loaded libraries before a fork, and keeps it.
pub(crate) fn before_fork() {
    // The holder of this lock cannot be the forking thread: its signals are blocked.
    if let Some(loaded) = LOADED.lock() {
        loaded.keep();
    }
}

/// Releases the lock, in both processes.
pub(crate) fn after_fork() {
    // SAFETY: `before_fork` kept it, by this thread.
    unsafe { LOADED.give_back() };
}

/// A decision for a wrapper: jump to the loader's function, or return the value.
#[repr(C)]
struct Decision {
    jump: *const c_void,
    value: *mut c_void,
}

/// Decides a call of `dlopen`.
///
/// # Safety
///
/// The arguments are those of dlopen(3).
unsafe extern "C" fn decide(path: *const c_char, flags: c_int) -> Decision {
    // SAFETY: `path` is null or a C string: an argument of the program's dlopen(3).
    unsafe {
        match next::dlopen() {
            Some(next) => {
                let open = |path, flags| next(path, flags);
                decide_on(path, flags, open, next as *const c_void)
            }
            None => refused(),
        }
    }
}

/// Decides a call of `dlmopen`.
///
/// # Safety
///
/// The arguments are those of dlmopen(3).
unsafe extern "C" fn decide_in(space: libc::c_long, path: *const c_char, flags: c_int) -> Decision {
    // SAFETY: `path` is null or a C string: an argument of the program's dlmopen(3).
    unsafe {
        match next::dlmopen() {
            Some(next) => {
                let open = |path, flags| next(space, path, flags);
                decide_on(path, flags, open, next as *const c_void)
            }
            None => refused(),
        }
    }
}

fn refused() -> Decision {
    Decision {
        jump: core::ptr::null(),
        value: core::ptr::null_mut(),
    }
}

/// # Safety
///
/// `path` is null or a C string; `open` calls the loader, and may be called with a C string.
unsafe fn decide_on(
    path: *const c_char,
    flags: c_int,
    open: impl Fn(*const c_char, c_int) -> *mut c_void + Copy,
    loader: *const c_void,
) -> Decision {
    let to_loader = Decision {
        jump: loader,
        value: core::ptr::null_mut(),
    };
    // SAFETY: `path` is null or a C string, and `open` may be called with one, by the caller;
    // `name` outlives the call.
    unsafe {
        if !process().is_active() {
            return to_loader;
        }
        let Some(found) = in_weir(path, open) else {
            return to_loader;
        };
        let Some(name) = name_of_copy(&found, flags, open, 0) else {
            return to_loader;
        };
        Decision {
            jump: core::ptr::null(),
            value: open(name.as_ptr(), flags),
        }
    }
}

/// The path of a library of weir's that the loader is asked for, given as a path or as a name to look
/// up.
///
/// # Safety
///
/// See `decide_on`.
unsafe fn in_weir(
    path: *const c_char,
    open: impl Fn(*const c_char, c_int) -> *mut c_void,
) -> Option<CString> {
    // SAFETY: `path` is null or a C string, and `open` may be called with one, by the caller.
    unsafe {
        let name = bytes_of(path).filter(|name| !name.is_empty())?;
        if name.contains(&b'/') {
            return is_our_c_path(libc::AT_FDCWD, path).then(|| CString::new(name).ok())?;
        }
        let dirs = LIBRARY_PATH.get()?;
        if !dirs.iter().any(|dir| is_our_directory(dir)) || is_loaded(path, open) {
            return None;
        }
        first_in(dirs, name)
    }
}

pub(crate) fn is_our_directory(dir: &[u8]) -> bool {
    crate::is_our_path_at(libc::AT_FDCWD, dir)
}

/// Returns true if a library of this name is loaded already.
///
/// # Safety
///
/// `name` is a C string, with which `open` may be called: it calls the loader.
unsafe fn is_loaded(
    name: *const c_char,
    open: impl Fn(*const c_char, c_int) -> *mut c_void,
) -> bool {
    let loaded = open(name, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
    if let Some(close) = next::dlclose().filter(|_| !loaded.is_null()) {
        // SAFETY: what dlopen gave.
        unsafe { close(loaded) };
    }
    !loaded.is_null()
}

/// The library of this name, if it was loaded.
pub(crate) fn loaded(name: &CStr) -> *mut c_void {
    let open = next::dlopen();
    // SAFETY: a C string.
    open.map_or(core::ptr::null_mut(), |open| unsafe {
        open(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY)
    })
}

/// The path of a library in the first directory that has it, if that is one of weir's.
pub(crate) fn first_in(dirs: &[Vec<u8>], name: &[u8]) -> Option<CString> {
    let paths = dirs.iter().map(|dir| [dir, &b"/"[..], name].concat());
    let mut paths = paths.filter_map(|path| CString::new(path).ok());
    // SAFETY: a C string.
    let first = paths.find(|path| unsafe { names::access(path.as_ptr(), libc::R_OK) } == 0)?;
    is_our_directory(first.to_bytes()).then_some(first)
}

/// The maximum depth of libraries that need each other.
const DEEPEST: u32 = 32;

/// The name by which the loader finds a copy of a library of weir's. Loads the libraries that it needs
/// first.
///
/// # Safety
///
/// `open` calls the loader, and may be called with a C string.
unsafe fn name_of_copy(
    path: &CString,
    flags: c_int,
    open: impl Fn(*const c_char, c_int) -> *mut c_void + Copy,
    depth: u32,
) -> Option<CString> {
    let file = file_at(path)?;
    // SAFETY: `open` may be called with a C string, by the caller.
    if let Some(name) = unsafe { name_of_loaded(&file, open) } {
        return Some(name);
    }
    let copy = crate::attempt(|| {
        process()
            .programs
            .materialize_at(libc::AT_FDCWD, path.to_bytes(), 0)
    });
    let copy = copy.ok()??.ok()?;
    if !crate::is_ours(copy) && !is_copy(copy) {
        // A link led out of weir: the loader follows the link's path itself.
        let outside = path_of(copy);
        calls::close_fd(copy);
        return outside.ok();
    }
    if depth < DEEPEST {
        // SAFETY: `open` may be called with a C string, by the caller.
        unsafe { load_what_it_needs(copy, path, flags, open, depth) };
    }
    keep(file, copy).and_then(name_of)
}

/// The current identity of a file.
fn file_at(path: &CStr) -> Option<[i64; 5]> {
    // SAFETY: a C string.
    let stat = unsafe { status::stat_path(path.as_ptr(), status::stat) }?;
    let (dev, ino) = (stat.st_dev.cast_signed(), stat.st_ino.cast_signed());
    Some([dev, ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec])
}

/// Notes a copy that was loaded at the start of the program.
pub(crate) fn adopt(copy: c_int) {
    let path = path_of_copy(copy).and_then(|path| CString::new(path).ok());
    let Some(identity) = identity_of(copy).filter(|_| path.is_some()) else {
        return;
    };
    calls::fcntl_number::<{ libc::F_SETFD }>(copy, libc::FD_CLOEXEC);
    let file = path.and_then(|path| file_at(&path));
    let _signals = block_signals();
    if let Some(mut loaded) = LOADED.lock() {
        loaded.push(Loaded {
            file: file.unwrap_or(NO_FILE),
            copy,
            identity,
        });
    }
}

fn name_of(copy: c_int) -> Option<CString> {
    CString::new(format!("/proc/self/fd/{copy}")).ok()
}

fn is_copy(fd: c_int) -> bool {
    path_of(fd).is_ok_and(|link| link.as_bytes().starts_with(b"/memfd:"))
}

fn identity_of(fd: c_int) -> Option<[u64; 2]> {
    status::stat_descriptor(fd).map(|stat| [stat.st_dev, stat.st_ino])
}

/// The name under which a file was loaded, if the loader or the descriptor still has the copy.
///
/// # Safety
///
/// See `name_of_copy`.
unsafe fn name_of_loaded(
    file: &[i64; 5],
    open: impl Fn(*const c_char, c_int) -> *mut c_void,
) -> Option<CString> {
    let (copy, identity) = {
        let _signals = block_signals();
        let loaded = LOADED.lock()?;
        let found = loaded.iter().find(|loaded| loaded.file == *file)?;
        (found.copy, found.identity)
    };
    let name = name_of(copy)?;
    // The program may have closed it. The loader may still have the library under that number, which no
    // other library gets.
    // SAFETY: a C string.
    if identity_of(copy) == Some(identity) || unsafe { is_loaded(name.as_ptr(), open) } {
        return Some(name);
    }
    let _signals = block_signals();
    let mut loaded = LOADED.lock()?;
    if let Some(lost) = loaded.iter_mut().find(|loaded| loaded.copy == copy) {
        lost.file = NO_FILE;
    }
    None
}

/// Moves a copy to a descriptor number that no library has had.
fn keep(file: [i64; 5], copy: c_int) -> Option<c_int> {
    /// Above the numbers that programs usually get.
    const FIRST: c_int = 200;
    let identity = identity_of(copy)?;
    let _signals = block_signals();
    let mut loaded = LOADED.lock()?;
    let above = loaded.iter().map(|loaded| loaded.copy + 1).max();
    let above = above.filter(|above| *above > FIRST);
    let duplicate = |from: c_int| calls::fcntl_number::<{ libc::F_DUPFD_CLOEXEC }>(copy, from);
    let wanted = above.unwrap_or(FIRST);
    let mut kept = duplicate(wanted);
    if kept < 0 && above.is_none() {
        kept = duplicate(
            loaded
                .iter()
                .map(|loaded| loaded.copy + 1)
                .max()
                .unwrap_or(3),
        );
    }
    calls::close_fd(copy);
    if kept < 0 {
        return None;
    }
    loaded.push(Loaded {
        file,
        copy: kept,
        identity,
    });
    Some(kept)
}

/// Loads the libraries that the loader would look up in weir.
///
/// # Safety
///
/// See `name_of_copy`.
unsafe fn load_what_it_needs(
    copy: c_int,
    path: &CString,
    flags: c_int,
    open: impl Fn(*const c_char, c_int) -> *mut c_void + Copy,
    depth: u32,
) {
    let Some(needs) = Needs::read_from(copy) else {
        return;
    };
    let own = canonical_directory(path);
    let dirs = needs.directories(&own, LIBRARY_PATH.get().map_or(&[], Vec::as_slice));
    for name in needs.libraries {
        // SAFETY: C strings.
        unsafe {
            if is_loaded(name.as_ptr(), open) {
                continue;
            }
            let found = first_in(&dirs, name.to_bytes());
            let copy = found.and_then(|found| name_of_copy(&found, flags, open, depth + 1));
            if let Some(copy) = copy {
                // It stays loaded, as does a library that another loaded one needs.
                open(copy.as_ptr(), flags & !libc::RTLD_NOLOAD);
            }
        }
    }
}

/// The value of `$ORIGIN` in a library.
pub(crate) fn canonical_directory(path: &CStr) -> Vec<u8> {
    let mut buffer = vec![0; libc::PATH_MAX as usize];
    let named = match process().paths.realpath(path.to_bytes(), &mut buffer) {
        Some(Ok(n)) => &buffer[..n],
        _ => path.to_bytes(),
    };
    let slash = named.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    named[..slash].to_vec()
}

// `dlopen(3)` and `dlmopen(3)`: calls not about weir jump to libc's, so that the loader sees the caller.
macro_rules! jumps {
    ($($name:ident: $decide:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "call {decide}",
                "mov rcx, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:",
                "mov rax, rcx",
                "ret",
                decide = sym $decide,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {decide}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov x0, x17",
                "ret",
                decide = sym $decide,
            );
        }
    )*};
}
jumps! { dlopen: decide; dlmopen: decide_in; }
