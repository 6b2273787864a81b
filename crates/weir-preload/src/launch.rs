//! How processes begin: fork, exec, spawn, and libraries that are loaded.
//!
//! Descriptors are made ready before they are shared (an exec'ed program finds them by
//! what the kernel keeps, see `weir_core::node::ofd`), and the environment of a new
//! program keeps the two variables that bring us into it, also where the caller wrote
//! an environment of its own. `vfork` becomes `fork`: a child on its parent's memory
//! would run our wrappers on the parent's tables.
//!
//! Left out: files that `posix_spawn` is told to open by a file action; telling it that is
//! refused, see docs/SEMANTICS.md.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::CString;

use rustix::io::Errno;
use weir_client::process::process;

use crate::{bytes_of, calls, is_our_c_path, raw, HEAP};

type Strings = *const *const c_char;

mod next {
    use super::{c_char, c_int, c_void, Strings};

    crate::next::next_fn! {
        fork: fn() -> libc::pid_t;
        execve: fn(*const c_char, Strings, Strings) -> c_int;
        execvpe: fn(*const c_char, Strings, Strings) -> c_int;
        fexecve: fn(c_int, Strings, Strings) -> c_int;
        execveat: fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
        posix_spawn: fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        posix_spawnp: fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        system: fn(*const c_char) -> c_int;
        popen: fn(*const c_char, *const c_char) -> *mut libc::FILE;
        dlopen: fn(*const c_char, c_int) -> *mut c_void;
        posix_spawn_file_actions_addopen: fn(*mut c_void, c_int, *const c_char, c_int, libc::mode_t) -> c_int;
    }
}

/// Looks up what stands behind the wrappers of this file.
pub fn resolve() {
    next::resolve_all();
    // SAFETY: C strings; the trampolines jump to what is stored here.
    unsafe {
        weir_next_execl = libc::dlsym(libc::RTLD_NEXT, c"execl".as_ptr());
        weir_next_execlp = libc::dlsym(libc::RTLD_NEXT, c"execlp".as_ptr());
        weir_next_execle = libc::dlsym(libc::RTLD_NEXT, c"execle".as_ptr());
    }
}

extern "C" fn prepare() {
    process().before_fork();
    HEAP.before_fork();
}

extern "C" fn parent() {
    HEAP.after_fork();
    process().after_fork_parent();
}

extern "C" fn child() {
    HEAP.after_fork();
    process().after_fork_child();
}

/// Has libc tell us of every fork.
pub fn watch_forks() {
    // SAFETY: three functions that live as long as this library, which is never
    // unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// `vfork(2)`, as fork.
///
/// # Safety
///
/// As fork(2).
#[no_mangle]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: as the caller vouches.
    unsafe { next::fork().map_or(-1, |f| f()) }
}

/// An environment for a new program: the caller's, with what brings us into it.
struct Environment {
    /// Ours, kept alive.
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// The variables that bring us into a program.
const NEEDED: [&CStr; 2] = [c"LD_PRELOAD", c"WEIR_INSTANCE"];

/// The environment to use instead of `envp`; `None`: it is fine as it is.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
unsafe fn completed(envp: Strings) -> Option<Environment> {
    if !process().is_active() {
        return None;
    }
    let mut pointers = Vec::new();
    // SAFETY: as the caller vouches.
    unsafe {
        let mut at = envp;
        while !at.is_null() && !(*at).is_null() {
            pointers.push(*at);
            at = at.add(1);
        }
    }
    let mut owned = Vec::new();
    for name in NEEDED {
        let has = |entry: &*const c_char| {
            // SAFETY: as above: a C string.
            let entry = unsafe { CStr::from_ptr(*entry) }.to_bytes();
            entry
                .strip_prefix(name.to_bytes())
                .is_some_and(|rest| rest.first() == Some(&b'='))
        };
        if pointers.iter().any(has) {
            continue;
        }
        // SAFETY: a C string; the environment is not changed here.
        let value = unsafe { bytes_of(libc::getenv(name.as_ptr())) }?;
        let entry = [name.to_bytes(), b"=", value].concat();
        owned.push(CString::new(entry).ok()?);
    }
    if owned.is_empty() {
        return None;
    }
    pointers.extend(owned.iter().map(|entry| entry.as_ptr()));
    pointers.push(core::ptr::null());
    Some(Environment {
        _owned: owned,
        pointers,
    })
}

/// Runs `exec` with a complete environment and descriptors made ready. Comes back only
/// if the exec failed.
///
/// # Safety
///
/// As for `completed`.
unsafe fn with_environment<T>(envp: Strings, exec: impl FnOnce(Strings) -> T) -> T {
    process().before_exec();
    // SAFETY: as the caller vouches.
    let environment = unsafe { completed(envp) };
    exec(environment.as_ref().map_or(envp, |e| e.pointers.as_ptr()))
}

/// # Safety
///
/// As execve(2) demands.
unsafe fn exec(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        with_environment(envp, |envp| {
            if is_our_c_path(libc::AT_FDCWD, path) {
                return exec_ours(libc::AT_FDCWD, path, argv, envp);
            }
            next::execve().map_or(-1, |f| f(path, argv, envp))
        })
    }
}

/// Runs a program that lies in weir: a copy of it that the kernel can read.
///
/// # Safety
///
/// As execveat(2) demands.
unsafe fn exec_ours(at: c_int, path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        let Some(name) = bytes_of(path) else {
            raw::set_errno(Errno::FAULT);
            return -1;
        };
        match process().materialize_at(at, name, 0) {
            Some(Ok(fd)) => next::fexecve().map_or(-1, |f| f(fd, argv, envp)),
            Some(Err(errno)) => {
                raw::set_errno(errno);
                -1
            }
            None => next::execveat().map_or(-1, |f| f(at, path, argv, envp, 0)),
        }
    }
}

extern "C" {
    static environ: Strings;
}

/// `execve(2)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { exec(path, argv, envp) }
}

/// `execv(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { exec(path, argv, environ) }
}

/// `execvpe(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        let has_slash = bytes_of(file).is_some_and(|f| f.contains(&b'/'));
        if has_slash {
            return exec(file, argv, envp);
        }
        with_environment(envp, |envp| {
            next::execvpe().map_or(-1, |f| f(file, argv, envp))
        })
    }
}

/// `execvp(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { execvpe(file, argv, environ) }
}

/// `fexecve(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        with_environment(envp, |envp| {
            let fd = match process().materialize(fd) {
                Some(Ok(copy)) => copy,
                Some(Err(errno)) => {
                    raw::set_errno(errno);
                    return -1;
                }
                None => fd,
            };
            next::fexecve().map_or(-1, |f| f(fd, argv, envp))
        })
    }
}

/// `execveat(2)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn execveat(
    at: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        with_environment(envp, |envp| {
            if is_our_c_path(at, path) {
                return exec_ours(at, path, argv, envp);
            }
            next::execveat().map_or(-1, |f| f(at, path, argv, envp, flags))
        })
    }
}

// execl and its kin take their arguments one by one, which Rust cannot declare: these
// make the descriptors ready and jump on with all registers as they were.
extern "C" {
    static mut weir_next_execl: *mut c_void;
    static mut weir_next_execlp: *mut c_void;
    static mut weir_next_execle: *mut c_void;
}

#[no_mangle]
extern "C" fn weir_before_exec() {
    process().before_exec();
}

#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    ($name:literal) => {
        core::arch::global_asm!(
            ".pushsection .bss",
            ".balign 8",
            concat!(".globl weir_next_", $name),
            concat!(".hidden weir_next_", $name),
            concat!("weir_next_", $name, ": .zero 8"),
            ".popsection",
            ".pushsection .text",
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
            concat!("call {hook}"),
            "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            concat!("jmp [rip + weir_next_", $name, "]"),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            hook = sym weir_before_exec,
        );
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($name:literal) => {
        core::arch::global_asm!(
            ".pushsection .bss",
            ".balign 8",
            concat!(".globl weir_next_", $name),
            concat!(".hidden weir_next_", $name),
            concat!("weir_next_", $name, ": .zero 8"),
            ".popsection",
            ".pushsection .text",
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "stp x29, x30, [sp, #-80]!",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            concat!("bl {hook}"),
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            concat!("adrp x16, weir_next_", $name),
            concat!("ldr x16, [x16, :lo12:weir_next_", $name, "]"),
            "br x16",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            hook = sym weir_before_exec,
        );
    };
}

trampoline!("execl");
trampoline!("execlp");
trampoline!("execle");

/// Keeps the descriptors ready and our locks ours while libc makes a child.
fn around_fork<T>(call: impl FnOnce() -> T) -> T {
    process().before_fork();
    let result = call();
    process().after_fork_parent();
    result
}

macro_rules! spawns {
    ($($name:ident)*) => {$(
        /// `posix_spawn(3)`.
        ///
        /// # Safety
        ///
        /// As the C function of this name demands.
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            // SAFETY: as the caller vouches.
            unsafe {
                let environment = completed(envp);
                let envp = environment.as_ref().map_or(envp, |e| e.pointers.as_ptr());
                around_fork(|| {
                    next::$name().map_or(libc::ENOSYS, |f| f(pid, path, actions, attributes, argv, envp))
                })
            }
        }
    )*};
}
spawns! { posix_spawn posix_spawnp }

/// `system(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    process().before_fork();
    process().after_fork_parent();
    // SAFETY: as the caller vouches.
    unsafe { next::system().map_or(-1, |f| f(command)) }
}

/// `popen(3)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: as the caller vouches.
    around_fork(|| unsafe { next::popen().map_or(core::ptr::null_mut(), |f| f(command, mode)) })
}

/// `dlopen(3)`: of a library that lies in weir, a copy that the loader can map.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: as the caller vouches.
    unsafe {
        let Some(next) = next::dlopen() else {
            return core::ptr::null_mut();
        };
        let ours =
            bytes_of(path).filter(|p| p.contains(&b'/') && is_our_c_path(libc::AT_FDCWD, path));
        let Some(Some(Ok(fd))) = ours.map(|name| process().materialize_at(libc::AT_FDCWD, name, 0))
        else {
            return next(path, flags);
        };
        let Ok(name) = CString::new(format!("/proc/self/fd/{fd}")) else {
            return core::ptr::null_mut();
        };
        let handle = next(name.as_ptr(), flags);
        calls::close(fd);
        handle
    }
}

/// `posix_spawn_file_actions_addopen(3)`: EOPNOTSUPP for a file of weir's, since libc would
/// open it in the child behind our back.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn posix_spawn_file_actions_addopen(
    actions: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: as the caller vouches.
    if unsafe { is_our_c_path(libc::AT_FDCWD, path) } {
        process().note_refusal("posix_spawn-open");
        return libc::EOPNOTSUPP;
    }
    match next::posix_spawn_file_actions_addopen() {
        // SAFETY: as the caller vouches.
        Some(next) => unsafe { next(actions, fd, path, flags, mode) },
        None => libc::ENOSYS,
    }
}
