//! The interposer: `libweir_preload.so`, put before libc by LD_PRELOAD.
//!
//! Thin wrappers that turn libc's symbols into calls of `weir-client`, which implements the behaviour:
//! this crate has only C types, errno, and the work that libc does behind its own symbols.
//! docs/ARCHITECTURE.md describes how the parts fit; docs/SEMANTICS.md describes each call.
//!
//! | module | subject |
//! | --- | --- |
//! | [`next`], [`raw`] | the next function behind a wrapper; system calls |
//! | [`calls`], [`names`], [`status`] | descriptors; names; structures of stat and its like |
//! | [`stdio`], [`dir`], [`aio`] | work inside libc: streams of files, of directories, aio |
//! | [`launch`], [`exec`], [`spawn`], [`load`] | fork, system, popen; exec; posix_spawn; dlopen |
//! | [`forks`], `environment`, `needed` | our locks around a fork; variables and libraries of a new program |
//! | [`detach`], [`ending`] | daemons, terminals; exit |
//! | [`made`], [`syscall`] | descriptors that the kernel makes; system calls by number |
//! | [`memory`], [`sockets`], [`rings`] | mappings; descriptors sent over sockets; io_uring |
//! | [`signals`] | the signal handlers that the program installs |
//! | [`temp`] | realpath, mkstemp and their like |
//! | [`glob`], [`walk`], [`fts`] | walks inside libc |
//! | `connectors` | functions of MPI-IO and PnetCDF, whose connectors are loaded at the first call |
//! | [`users`], [`limits`] | the program's user; its limit of file sizes |
//!
//! Invariants: errno is changed only by a call that failed; no panic reaches the caller (the call fails
//! with EIO, see `weir_client::bugs`); a wrapper works before this library's constructor has run,
//! because other libraries' constructors may run first.
//!
//! # What the caller of a wrapper owes
//!
//! Its section `# Safety` names the requirements of the C function, which are in the manual page. Notes of
//! unsafe blocks name those that a block relies on, "by the caller":
//!
//! - a string is null, an address that cannot be the program's (`is_address`), or a C string that is not changed
//!   while the call runs; `argv` and `envp` are null, or arrays of C strings that end with null;
//! - a buffer of `n` bytes, or room for a structure, is null, an address that cannot be the program's, or memory
//!   that the call may use, which no other thread changes meanwhile, nor reads if the call writes there;
//! - an object (a DIR, FILE, FTS or control block) is one that its C function gave or filled, is alive, and is
//!   not used by two threads in ways that the manual page forbids.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_ptr_alignment,
    reason = "C's argument types become the kernel's words and back, as libc does it; fields of libc's structures are aligned as libc laid them out"
)]

pub mod aio;
pub mod aio_block;
mod aio_reads;
pub mod calls;
mod connectors;
pub mod detach;
pub mod dir;
mod elf;
pub mod ending;
mod environment;
pub mod exec;
pub mod forks;
pub mod fts;
pub mod glob;
pub mod launch;
pub mod limits;
pub mod load;
pub mod made;
pub mod memory;
pub mod names;
mod needed;
pub mod next;
pub mod raw;
pub mod rings;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod status;
pub mod stdio;
pub mod syscall;
pub mod temp;
pub mod users;
pub mod walk;

use core::ffi::{c_char, c_int, CStr};

use rustix::io::Errno;
use weir_client::bugs;
use weir_client::heap::Heap;
use weir_client::process::{self, Process};

// The unwinder of Rust's standard library, linked statically. As a library of its own, libgcc_s.so, it
// would be mapped into every program that starts, and would query the processor's features, which takes
// a tenth of the time of fork and exec.
#[cfg(target_env = "gnu")]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
extern "C" {}

/// The allocator of this library. It is not the program's, which may itself be calling us.
#[global_allocator]
static HEAP: Heap = Heap::new();

/// This process, as the client sees it.
#[inline]
#[allow(clippy::unnecessary_wraps)] // the macro's shape: there may be none
pub(crate) fn process() -> Option<&'static Process> {
    Some(process::process())
}

/// Returns true if a descriptor is a file of weir's.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    bugs::contain(|| process::process().descriptors.is_ours(fd), || false)
}

/// Returns true if there is an instance.
///
/// After a failed assertion this answers true, as the questions below do: the wrapper then does the call
/// by interposed functions, which fail if the bug is theirs, and never by libc past weir.
pub(crate) fn is_active() -> bool {
    attempt(|| process::process().is_active()).unwrap_or(true)
}

/// Returns true if a path, relative to a directory, is weir's.
pub(crate) fn is_our_path_at(dirfd: c_int, path: &[u8]) -> bool {
    attempt(|| process::process().paths.is_our_path(dirfd, path)).unwrap_or(true)
}

/// Returns true if a path (absolute or relative to the current directory) is weir's.
pub(crate) fn is_our_path(path: &CStr) -> bool {
    is_our_path_at(libc::AT_FDCWD, path.to_bytes())
}

/// Returns true if a path, relative to a directory, is weir's; false for null.
///
/// # Safety
///
/// `path` is null or a C string.
pub(crate) unsafe fn is_our_c_path(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: `path` is null or a C string that lives through the call, by the caller.
    unsafe { bytes_of(path) }.is_some_and(|path| is_our_path_at(dirfd, path))
}

/// Notes a descriptor that the kernel has just made (or an error): it is not weir's, whatever had its
/// number before.
#[inline]
pub(crate) fn note_made(fd: c_int) -> c_int {
    if fd >= 0 && process::process().descriptors.is_known_fd(fd) {
        forget_known(fd);
    }
    fd
}

/// Forgets a descriptor that the kernel gave to another file. If that fails, the process ends: the
/// program's writes to the other file would go to the one that had the number before.
#[cold]
fn forget_known(fd: c_int) {
    bugs::contain(
        || process::process().descriptors.forget_lost(fd),
        || std::process::abort(),
    );
}

/// A fortified call, whose compiler knew that `have` bytes are at the buffer. One that would pass these goes to the
/// C library, which ends the program.
pub(crate) fn within<T>(n: usize, have: usize, call: impl FnOnce() -> Option<T>) -> Option<T> {
    if n > have {
        return None;
    }
    call()
}

/// The result of a function that this machine's C library lacks.
pub(crate) fn fail_with_enosys() -> c_int {
    raw::set_errno(Errno::NOSYS);
    -1
}

/// Forgets a descriptor of ours that libc replaced without a call of ours.
pub(crate) fn forget_descriptor(fd: c_int) {
    // As above.
    bugs::contain(
        || process::process().descriptors.forget(fd),
        || std::process::abort(),
    );
}

pub(crate) use weir_client::sys::is_address;

/// A C string's bytes; `None` for null and for addresses about which the kernel shall complain.
///
/// # Safety
///
/// `text` is no address of the program's or a C string that lives as long as the result is used.
#[inline]
pub(crate) unsafe fn bytes_of<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if !is_address(text) {
        return None;
    }
    // SAFETY: the address can be the program's, so it is that of a C string that outlives the
    // result, by the caller.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Turns a result of the client into that of the C function, and sets errno.
#[inline]
pub(crate) fn finish<C, R: Finish<C>>(result: R) -> C {
    result.finish()
}

/// Results that have a C form.
pub(crate) trait Finish<C> {
    /// The value, or -1 with errno set.
    fn finish(self) -> C;
}

macro_rules! finishes {
    ($($from:ty => $to:ty: |$value:ident| $convert:expr;)*) => {$(
        impl Finish<$to> for Result<$from, Errno> {
            #[inline]
            fn finish(self) -> $to {
                match self {
                    Ok($value) => $convert,
                    Err(errno) => {
                        raw::set_errno(errno);
                        -1
                    }
                }
            }
        }
    )*};
}

finishes! {
    () => c_int: |_v| 0;
    c_int => c_int: |v| v;
    usize => isize: |v| v.cast_signed();
    usize => c_int: |v| c_int::try_from(v).unwrap_or(c_int::MAX);
    i64 => i64: |v| v;
}

/// Runs the body of a C function. If one of our assertions fails in it, the function fails with EIO. Not
/// for functions that a program may leave by unwinding: see [`EndsByPanic`].
#[inline]
pub(crate) fn guarded<C: FailedResult>(work: impl FnOnce() -> C) -> C {
    bugs::contain(work, || {
        raw::set_errno(Errno::IO);
        C::FAILED
    })
}

/// Does the client's part of a C function; EIO if one of our assertions fails in it. For functions that a
/// program may leave by unwinding, see [`EndsByPanic`]: the part calls neither the program nor one of
/// libc's cancellation points.
///
/// A child of vfork ends instead: it runs on its parent's memory, and the parent would go on with a
/// change that was left in the middle.
#[inline]
pub(crate) fn attempt<T>(part: impl FnOnce() -> T) -> Result<T, Errno> {
    bugs::contain(
        || Ok(part()),
        || {
            if !process::process().forks.owns_memory() {
                std::process::abort();
            }
            Err(Errno::IO)
        },
    )
}

/// The value that a C function returns on failure.
pub(crate) trait FailedResult {
    /// The value.
    const FAILED: Self;
}

macro_rules! failed {
    ($($type:ty: $value:expr;)*) => {$(
        impl FailedResult for $type {
            const FAILED: $type = $value;
        }
    )*};
}

failed! {
    (): ();
    c_int: -1;
    u32: u32::MAX;
    isize: -1;
    i64: -1;
}

impl<T> FailedResult for *mut T {
    const FAILED: *mut T = core::ptr::null_mut();
}

/// A guard on the stack of a function that calls back into the program, or that waits in a cancellation
/// point. Either may be left by unwinding, which a panic handler would stop. So such a function catches
/// panics around the client's code only ([`attempt`]). One in its own lines must not unwind through C: it
/// ends the process here, after the hook has reported it.
pub(crate) struct EndsByPanic;

impl Drop for EndsByPanic {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Runs before `main`, though other libraries' constructors may have run before it.
extern "C" fn construct() {
    bugs::report_panics();
    calls::resolve();
    made::resolve();
    made::resolve_others();
    made::resolve_pairs();
    names::resolve();
    status::resolve();
    names::resolve_others();
    status::resolve_others();
    signals::resolve_all();
    weir_client::kernel::handlers_are_watched();
    sockets::resolve();
    sockets::resolve_others();
    detach::resolve();
    dir::resolve();
    stdio::resolve_all();
    aio::resolve();
    launch::resolve();
    exec::resolve();
    spawn::resolve();
    load::resolve();
    temp::resolve();
    glob::resolve();
    walk::resolve();
    fts::resolve();
    users::resolve();
    limits::resolve();
    // SAFETY: a C string; the address that comes back is a variable of libc, which
    // lives as long as the process, or null.
    unsafe {
        let flag = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        weir_client::sys::set_single_threaded_flag(flag.cast());
    }
    #[cfg(debug_assertions)]
    if let Some(step) = environment::variable(bugs::planted::VARIABLE) {
        bugs::planted::plant(&step);
    }
    process::process().init();
    environment::forget_heritage();
    if process::process().is_active() {
        stdio::patch();
        environment::remember_origin();
        exec::rename_program();
        needed::take_over();
        forks::watch_forks();
        ending::watch_exit();
    }
}

/// The C API of this process, for a program's libweir.so to find. By its name the API's functions see
/// that the interposer is in the process; see `weir::functions`.
#[export_name = "weir_interposer"]
pub static API: extern "C" fn(c_int) -> *const weir::Functions = weir::weir_functions;

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = construct;
