//! `execve(2)` and its kin, for programs that lie in weir.
//!
//! The kernel cannot read such programs. The wrappers run a compiled program from a copy in memory, and
//! run the interpreter of a script as the kernel would. They also look programs up in `$PATH`, because
//! libc does so from inside. The name of a copy in memory holds the path of the program:
//! `/proc/self/exe` is read to find it.
//!
//! Of its caller a function here that runs a program takes arguments of execve(2): a path that is null, no
//! address of the program, or a C string; `argv` and `envp`, each null or a null-terminated array of C strings.
//! They live until the function returns.

use core::ffi::{c_char, c_int, CStr};
use std::ffi::CString;

use rustix::io::Errno;
use weir_client::kernel::path_of;
use weir_client::process::process;

use crate::environment::{environ, keeps_us_out, variable, with_environment, Strings};
use crate::{
    attempt, bytes_of, calls, elf, is_active, is_our_c_path, is_ours, names, needed, raw, status,
};

mod next {
    use super::{c_char, c_int, Strings};

    crate::next::next_fn! {
        execve: fn(*const c_char, Strings, Strings) -> c_int;
        execvpe: fn(*const c_char, Strings, Strings) -> c_int;
        fexecve: fn(c_int, Strings, Strings) -> c_int;
        execveat: fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    }
}

pub use next::resolve_all as resolve;

/// The maximum depth of interpreters that are scripts themselves.
const DEEPEST: u32 = 4;
/// The number of bytes that the kernel reads to recognize a file's format.
const HEAD: usize = 256;

/// Gives a program that runs from a copy the name of its file, as exec does.
pub(crate) fn rename_program() {
    // SAFETY: what the kernel gives is 0 or a C string on the stack of this program.
    let run_as = unsafe { bytes_of(libc::getauxval(libc::AT_EXECFN) as *const c_char) };
    if run_as.is_some_and(|path| path.starts_with(b"/dev/fd/")) {
        process().programs.rename_program();
    }
}

fn fails(errno: Errno) -> c_int {
    raw::set_errno(errno);
    -1
}

/// Runs a program of the kernel's or of weir's. Returns only if that failed.
///
/// # Safety
///
/// The arguments are those of execve(2); the environment is complete.
pub(crate) unsafe fn run(path: *const c_char, argv: Strings, envp: Strings, depth: u32) -> c_int {
    // SAFETY: `path`, `argv` and `envp` are the arguments of execve(2), by the caller; `line`
    // outlives `run_script`.
    unsafe {
        if is_our_c_path(libc::AT_FDCWD, path) {
            return run_ours(libc::AT_FDCWD, path, argv, envp, depth);
        }
        let failed = run_kernels(path, argv, envp);
        if raw::errno() == libc::ENOENT && is_active() {
            // Is it a script on a kernel file system with an interpreter in weir?
            let script = names::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
            let line = interpreter_of(script);
            if script >= 0 {
                calls::close(script);
            }
            raw::set_errno(Errno::NOENT);
            if let Ok(Some(line)) = line {
                if is_our_c_path(libc::AT_FDCWD, line.interpreter.as_ptr()) {
                    return run_script(&line, path, argv, envp, depth);
                }
            }
        }
        failed
    }
}

/// Replaces the descriptors of weir's that a program inherits, if there are any and the program starts
/// without the interposer.
fn replace_inherited_if(without_us: impl FnOnce() -> bool) -> Result<(), Errno> {
    if attempt(|| process().forks.has_inherited_fds())? && without_us() {
        attempt(|| process().forks.replace_inherited_fds())?;
    }
    Ok(())
}

/// Runs a program of the kernel's, which may need libraries that lie in weir.
///
/// # Safety
///
/// The arguments are those of execve(2).
unsafe fn run_kernels(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: `path`, `argv` and `envp` are the arguments of execve(2), by the caller; `path` is a
    // C string where one is read.
    unsafe {
        let exec = |envp| next::execve().map_or(-1, |f| f(path, argv, envp));
        if let Err(errno) = replace_inherited_if(|| keeps_us_out(envp) || starts_without_us(path)) {
            return fails(errno);
        }
        if !is_active() || bytes_of(path).is_none() || !needed::looks_in_weir(envp) {
            return exec(envp);
        }
        let program = names::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
        if program < 0 {
            return exec(envp);
        }
        let done = needed::with_libraries(program, CStr::from_ptr(path), envp, exec);
        let saved = raw::errno();
        calls::close(program);
        raw::restore_errno(saved);
        done
    }
}

/// True if a program starts without the interposer: it is static, or it gets rights that its caller does
/// not have (then the loader ignores LD_PRELOAD), or it is a script for such a program.
///
/// # Safety
///
/// `path` is null or a C string.
pub(crate) unsafe fn starts_without_us(path: *const c_char) -> bool {
    let mut interpreter: Option<CString> = None;
    for _ in 0..=DEEPEST {
        let path = interpreter.as_ref().map_or(path, |path| path.as_ptr());
        // SAFETY: `path` is null or a C string, by the caller, or that of an interpreter, which
        // `interpreter` keeps.
        let program = unsafe { names::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0) };
        if program < 0 {
            return false;
        }
        let line = interpreter_of(program);
        let without = elf::is_static(program) || gives_rights(program);
        calls::close_fd(program);
        match line {
            Ok(Some(line)) => interpreter = Some(line.interpreter),
            _ => return without,
        }
    }
    false
}

/// True if a program runs as another user or group than its caller (execve(2)).
fn gives_rights(program: c_int) -> bool {
    let Some(stat) = status::stat_descriptor(program) else {
        return false;
    };
    stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != rustix::process::geteuid().as_raw()
        || stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != rustix::process::getegid().as_raw()
}

/// Returns true if the kernel cannot find the interpreter of a script because it lies in weir.
///
/// # Safety
///
/// `path` is null or a C string.
pub(crate) unsafe fn has_our_interpreter(path: *const c_char) -> bool {
    // SAFETY: `path` is null or a C string, by the caller; the interpreter's path is kept by
    // `line`.
    unsafe {
        let script = names::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
        if script < 0 {
            return false;
        }
        let line = interpreter_of(script);
        calls::close(script);
        matches!(line, Ok(Some(line)) if is_our_c_path(libc::AT_FDCWD, line.interpreter.as_ptr()))
    }
}

/// Runs a program that lies in weir, or to which a link in weir leads.
///
/// # Safety
///
/// `path` is a C string; `argv` and `envp` are arguments of execve(2).
unsafe fn run_ours(
    at: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    depth: u32,
) -> c_int {
    // SAFETY: `path` is a C string, and `argv` and `envp` are arguments of execve(2), by the
    // caller.
    unsafe {
        let fd = names::openat(at, path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
        if fd < 0 {
            return -1;
        }
        let done = match is_ours(fd) {
            true if names::faccessat(at, path, libc::X_OK, libc::AT_EACCESS) < 0 => -1,
            true => run_open(fd, path, argv, envp, depth),
            false => run_outside(fd, argv, envp),
        };
        let saved = raw::errno();
        calls::close(fd);
        raw::restore_errno(saved);
        done
    }
}

/// Runs a program of the kernel's to which a link in weir leads.
///
/// # Safety
///
/// `argv` and `envp` are arguments of execve(2).
unsafe fn run_outside(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: `argv` and `envp` are arguments of execve(2), by the caller; the path is a C string
    // of this function.
    unsafe {
        match path_of(fd) {
            Ok(path) => run_kernels(path.as_ptr(), argv, envp),
            Err(_) => next::fexecve().map_or(-1, |f| f(fd, argv, envp)),
        }
    }
}

/// Runs the file that is open as `fd` and was named by `path`.
///
/// # Safety
///
/// `path` is a C string; `argv` and `envp` are arguments of execve(2).
unsafe fn run_open(
    fd: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    depth: u32,
) -> c_int {
    // SAFETY: `path` is a C string, and `argv` and `envp` are arguments of execve(2), by the
    // caller.
    unsafe {
        let Some(stat) = status::stat_descriptor(fd) else {
            return -1;
        };
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return fails(Errno::ACCESS);
        }
        match interpreter_of(fd) {
            Ok(Some(line)) => return run_script(&line, path, argv, envp, depth),
            Ok(None) => {}
            Err(errno) => return fails(errno),
        }
        let without_us = || keeps_us_out(envp) || elf::is_static(fd) || gives_rights(fd);
        if let Err(errno) = replace_inherited_if(without_us) {
            return fails(errno);
        }
        let beneath = |path| attempt(|| process().programs.path_beneath(path)).ok()?;
        if let Some(path) = bytes_of(path).and_then(beneath) {
            // It returns only if the kernel mount is gone, or if the kernel refuses the program.
            needed::with_libraries(fd, &path, envp, |envp| {
                next::execve().map_or(-1, |f| f(path.as_ptr(), argv, envp))
            });
            if ![libc::ENOTCONN, libc::ENOENT, libc::ESTALE].contains(&raw::errno()) {
                return -1;
            }
        }
        match attempt(|| process().mappings.materialize(fd))
            .unwrap_or_else(|errno| Some(Err(errno)))
        {
            Some(Ok(copy)) => {
                let done = needed::with_libraries(copy, CStr::from_ptr(path), envp, |envp| {
                    next::fexecve().map_or(-1, |f| f(copy, argv, envp))
                });
                let saved = raw::errno();
                calls::close(copy);
                raw::restore_errno(saved);
                done
            }
            Some(Err(errno)) => fails(errno),
            None => fails(Errno::BADF),
        }
    }
}

/// The first line of a script.
struct FirstLine {
    interpreter: CString,
    argument: Option<CString>,
}

/// The first line of an open file, if it is that of a script. ENOEXEC: the line names no interpreter.
fn interpreter_of(fd: c_int) -> Result<Option<FirstLine>, Errno> {
    let mut head = [0u8; HEAD];
    // SAFETY: so many bytes of room.
    let got = unsafe { calls::pread(fd, head.as_mut_ptr().cast(), HEAD, 0) };
    let Some(line) = usize::try_from(got)
        .ok()
        .and_then(|got| head[..got].strip_prefix(b"#!"))
    else {
        return Ok(None);
    };
    let is_blank = |byte: &u8| b" \t".contains(byte);
    let (line, whole) = match line.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&line[..end], true),
        None => (line, line.len() < HEAD - 2),
    };
    let line = line.trim_ascii();
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (interpreter, argument) = (&line[..end], line[end..].trim_ascii());
    // The line was cut off within the name: its end is unknown.
    if interpreter.is_empty() || (!whole && end == line.len()) {
        return Err(Errno::NOEXEC);
    }
    let string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::NOEXEC);
    Ok(Some(FirstLine {
        interpreter: string(interpreter)?,
        argument: match argument {
            b"" => None,
            argument => Some(string(argument)?),
        },
    }))
}

/// # Safety
///
/// The arguments are those of execve(2).
unsafe fn run_script(
    line: &FirstLine,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    depth: u32,
) -> c_int {
    if depth == DEEPEST {
        return fails(Errno::LOOP);
    }
    // SAFETY: `words` ends with null. It outlives `run`, as do its strings, which are those of
    // `line` and, by the caller, of `path` and `argv`.
    unsafe {
        let first = [line.interpreter.as_ptr()].into_iter();
        let argument = line.argument.as_ref().map(|argument| argument.as_ptr());
        let words = first.chain(argument).chain([path]).chain(arguments(argv));
        let words: Vec<_> = words.chain([core::ptr::null()]).collect();
        run(words[0], words.as_ptr(), envp, depth + 1)
    }
}

/// A program's arguments, without its name.
///
/// # Safety
///
/// `argv` is null or a null-terminated array that outlives the result.
unsafe fn arguments(argv: Strings) -> impl Iterator<Item = *const c_char> {
    // SAFETY: `argv` is null or a null-terminated array, by the caller.
    unsafe { crate::environment::entries(argv).skip(1) }
}

/// Runs a program, looked up in `$PATH` unless its name has a slash. `as_script`: a file that is no
/// program is run as a script of the shell.
///
/// # Safety
///
/// The caller meets the requirements of execvpe(3); the environment is complete.
pub(crate) unsafe fn search(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
    as_script: bool,
) -> c_int {
    // SAFETY: `file`, `argv` and `envp` are the arguments of execvpe(3), by the caller; each
    // candidate outlives its turn.
    unsafe {
        let Some(name) = bytes_of(file) else {
            return fails(Errno::FAULT);
        };
        if name.is_empty() {
            return fails(Errno::NOENT);
        }
        if name.contains(&b'/') {
            return run_or_shell(file, argv, envp, as_script);
        }
        let mut denied = false;
        for path in candidates(name) {
            run_or_shell(path.as_ptr(), argv, envp, as_script);
            match raw::errno() {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return -1,
            }
        }
        if denied {
            raw::set_errno(Errno::ACCESS);
        }
        -1
    }
}

/// The paths at which a program of this name is looked up.
pub(crate) fn candidates(name: &[u8]) -> impl Iterator<Item = CString> + '_ {
    let path = variable(c"PATH").unwrap_or_else(|| b"/bin:/usr/bin".to_vec());
    let dirs: Vec<_> = path
        .split(|byte| *byte == b':')
        .map(<[u8]>::to_vec)
        .collect();
    dirs.into_iter().filter_map(move |dir| {
        let slash = if dir.is_empty() { &b""[..] } else { b"/" };
        CString::new([&dir, slash, name].concat()).ok()
    })
}

/// # Safety
///
/// The arguments are those of execve(2); the environment is complete.
unsafe fn run_or_shell(
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    as_script: bool,
) -> c_int {
    // SAFETY: `path`, `argv` and `envp` are the arguments of execve(2), by the caller; `words` ends
    // with null and outlives `run`.
    unsafe {
        let failed = run(path, argv, envp, 0);
        if !as_script || raw::errno() != libc::ENOEXEC {
            return failed;
        }
        let words = [c"/bin/sh".as_ptr(), path]
            .into_iter()
            .chain(arguments(argv));
        let words: Vec<_> = words.chain([core::ptr::null()]).collect();
        run(words[0], words.as_ptr(), envp, 0)
    }
}

/// `execve(2)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `path`, `argv` and `envp` are the arguments of execve(2), by the caller.
    unsafe { with_environment(envp, |envp| run(path, argv, envp, 0)) }.unwrap_or_else(fails)
}

/// `execv(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, argv: Strings) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `path` and `argv` are arguments of execve(2), by the caller; `environ` is the
    // process's environment.
    unsafe { execve(path, argv, environ) }
}

/// `execvpe(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `file`, `argv` and `envp` are the arguments of execvpe(3), by the caller.
    unsafe {
        with_environment(envp, |envp| match is_active() {
            true => search(file, argv, envp, true),
            false => next::execvpe().map_or(-1, |f| f(file, argv, envp)),
        })
        .unwrap_or_else(fails)
    }
}

/// `execvp(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `file` and `argv` are arguments of execvpe(3), by the caller; `environ` is the
    // process's environment.
    unsafe { execvpe(file, argv, environ) }
}

/// `fexecve(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `argv` and `envp` are arguments of execve(2), by the caller.
    unsafe {
        with_environment(envp, |envp| match is_ours(fd) {
            true => run_descriptor(fd, argv, envp),
            false => next::fexecve().map_or(-1, |f| f(fd, argv, envp)),
        })
        .unwrap_or_else(fails)
    }
}

/// Runs a program of weir's that is open. A script gets its path as argument, or the descriptor if it
/// has no path.
///
/// # Safety
///
/// `argv` and `envp` are arguments of execve(2).
unsafe fn run_descriptor(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let by_number = CString::new(format!("/dev/fd/{fd}")).unwrap_or_default();
    let mut path = [0u8; libc::PATH_MAX as usize];
    // SAFETY: `argv` and `envp` are arguments of execve(2), by the caller; readlink leaves the last
    // byte of `path` 0, so that a C string ends there.
    unsafe {
        let room = path.as_mut_ptr().cast();
        let got = names::readlink(by_number.as_ptr(), room, path.len() - 1);
        let named = CStr::from_ptr(room);
        let has_name = got > 0 && names::access(room, libc::F_OK) == 0;
        let path = if has_name { named } else { &*by_number };
        if names::access(path.as_ptr(), libc::X_OK) < 0 {
            return -1;
        }
        run_open(fd, path.as_ptr(), argv, envp, 0)
    }
}

/// `execveat(2)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn execveat(
    at: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `path`, `argv` and `envp` are the arguments of execveat(2), by the caller;
    // `is_our_c_path` is true of C strings only.
    unsafe {
        with_environment(envp, |envp| {
            let name = bytes_of(path).unwrap_or_default();
            if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 && is_ours(at) {
                return run_descriptor(at, argv, envp);
            }
            match is_our_c_path(at, path) {
                true if at == libc::AT_FDCWD || name.starts_with(b"/") => {
                    run_ours(libc::AT_FDCWD, path, argv, envp, 0)
                }
                true => {
                    let by_number = format!("/dev/fd/{at}/").into_bytes();
                    let path = CString::new([&by_number, name].concat()).unwrap_or_default();
                    run_ours(libc::AT_FDCWD, path.as_ptr(), argv, envp, 0)
                }
                false => next::execveat().map_or(-1, |f| f(at, path, argv, envp, flags)),
            }
        })
        .unwrap_or_else(fails)
    }
}

// execl and its kin take a variable number of arguments, which Rust cannot declare. The front puts the
// arguments of registers before those on the stack: the result is the list that execv takes.
macro_rules! with_list {
    ($($name:ident: $list:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {list}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                list = sym $list,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x30, x1, [sp, #-64]!",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "add x1, sp, #8",
                "bl {list}",
                "ldr x30, [sp], #64",
                "ret",
                list = sym $list,
            );
        }
    )*};
}
with_list! { execl: execv; execlp: execvp; execle: exec_list_with_environment; }

/// # Safety
///
/// The caller meets the requirements of execle(3): the environment follows the null that ends the list.
unsafe extern "C-unwind" fn exec_list_with_environment(
    path: *const c_char,
    argv: Strings,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `argv` ends with null, and the environment follows it, by the caller.
    unsafe {
        let mut end = argv;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, argv, end.add(1).cast::<Strings>().read())
    }
}
