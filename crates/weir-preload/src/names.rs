//! Calls on names.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{gid_t, mode_t, off_t, size_t, ssize_t, uid_t};
use rustix::io::Errno;
use weir_client::process::process;
use weir_client::types::{Outcome, Time};

use crate::next::{interpose, six, Descriptor};
use crate::{bytes_of, raw, within};

/// A caller's buffer.
///
/// # Safety
///
/// `n` bytes at `buffer` are writable, and used by no other code, while the result is used.
unsafe fn room<'a>(buffer: *mut c_char, n: usize) -> &'a mut [u8] {
    if buffer.is_null() {
        return &mut [];
    }
    // SAFETY: `n` bytes at `buffer` may be written, by the caller; no slice is longer than
    // isize::MAX.
    unsafe { core::slice::from_raw_parts_mut(buffer.cast(), n.min(isize::MAX.cast_unsigned())) }
}

/// A value that the caller passes.
///
/// # Safety
///
/// `n` bytes at `value` are readable, and not written to, while the result is used.
unsafe fn given<'a>(value: *const c_void, n: size_t) -> &'a [u8] {
    if value.is_null() {
        return &[];
    }
    // SAFETY: `n` bytes at `value` may be read, by the caller; no slice is longer than isize::MAX.
    unsafe { core::slice::from_raw_parts(value.cast(), n.min(isize::MAX.cast_unsigned())) }
}

/// Checks that `n` elements can be at an address; EFAULT if not.
fn check_address<T>(address: *const T, n: size_t) -> Result<(), Errno> {
    match n == 0 || crate::is_address(address) {
        true => Ok(()),
        false => Err(Errno::FAULT),
    }
}

/// A call with a path and `n` elements at an address. EFAULT: the path is weir's and no elements can be
/// there.
///
/// # Safety
///
/// `path` is not an address of the program, or a C string.
unsafe fn with_path<T, U>(
    at: c_int,
    path: *const c_char,
    address: *const U,
    n: size_t,
    act: impl FnOnce(&[u8]) -> Outcome<T>,
) -> Outcome<T> {
    // SAFETY: `path` is no address of the program or a C string that lives through the call, by the
    // caller.
    let bytes = unsafe { bytes_of(path) }?;
    match check_address(address, n) {
        Ok(()) => act(bytes),
        // SAFETY: `path` was read as a C string above.
        Err(errno) => unsafe { crate::is_our_c_path(at, path) }.then_some(Err(errno)),
    }
}

/// A call with two paths, each relative to a directory. EFAULT: one path is weir's, and the other is not
/// at an address of the program.
///
/// # Safety
///
/// Each path is not an address of the program, or a C string.
unsafe fn with_two_paths<T>(
    old_at: c_int,
    old: *const c_char,
    new_at: c_int,
    new: *const c_char,
    act: impl FnOnce(&[u8], &[u8]) -> Outcome<T>,
) -> Outcome<T> {
    // SAFETY: each path is no address of the program or a C string that lives through the call, by
    // the caller.
    unsafe {
        if let Some((old, new)) = bytes_of(old).zip(bytes_of(new)) {
            return act(old, new);
        }
        let ours = crate::is_our_c_path(old_at, old) || crate::is_our_c_path(new_at, new);
        ours.then_some(Err(Errno::FAULT))
    }
}

/// The directory of a symbolic link's target: none, for the target is not resolved here.
const NO_DIRECTORY: c_int = -1;

/// A call with a descriptor and `n` elements at an address. EFAULT as above.
fn with_descriptor<T, U>(
    fd: c_int,
    address: *const U,
    n: size_t,
    act: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    match check_address(address, n) {
        Ok(()) => act(),
        Err(errno) => crate::is_ours(fd).then_some(Err(errno)),
    }
}

/// The number of elements at an address that may be null.
fn one_if_any<T>(address: *const T) -> size_t {
    usize::from(!address.is_null())
}

/// The two times of a call that sets times; null: now.
///
/// # Safety
///
/// `times` is null or points to two.
unsafe fn times_of(times: *const libc::timespec) -> Option<[Time; 2]> {
    if times.is_null() {
        return None;
    }
    // SAFETY: not null, so two times are there, by the caller.
    let (a, m) = unsafe { (*times, *times.add(1)) };
    Some([a, m].map(|t| Time {
        sec: t.tv_sec,
        nsec: t.tv_nsec,
    }))
}

/// The two times of a call that takes microseconds; null: now.
///
/// # Safety
///
/// `times` is null or points to two.
unsafe fn micro_times_of(times: *const libc::timeval) -> Option<[Time; 2]> {
    if times.is_null() {
        return None;
    }
    // SAFETY: not null, so two times are there, by the caller.
    let (a, m) = unsafe { (*times, *times.add(1)) };
    Some([a, m].map(|t| Time {
        sec: t.tv_sec,
        nsec: t.tv_usec * 1000,
    }))
}

const HERE: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Bind-mounts a directory of weir: that of the kernel mount.
///
/// # Safety
///
/// The caller meets the requirements of mount(2).
unsafe fn bind(
    source: *const c_char,
    target: *const c_char,
    kind: *const c_char,
    flags: libc::c_ulong,
    data: *const c_void,
) -> Outcome<()> {
    if flags & libc::MS_BIND == 0 {
        return None;
    }
    // SAFETY: `source` is null or a C string, by the caller.
    let source =
        unsafe { bytes_of(source) }.and_then(|source| process().programs.path_beneath(source))?;
    let arguments = [
        source.as_ptr() as usize,
        target as usize,
        kind as usize,
        flags as usize,
        data as usize,
    ];
    // SAFETY: `target`, `kind` and `data` are arguments of mount(2), by the caller; the source is a
    // C string.
    let done = unsafe { raw::syscall(libc::SYS_mount, six(arguments)) };
    Some(raw::result(done).map(drop))
}

/// The bytes of a string that the caller of the C function passes, if there is one.
macro_rules! path {
    ($p:expr) => {
        // SAFETY: the string is null, no address of the program, or a C string through the call, by the caller.
        unsafe { bytes_of($p) }
    };
}

interpose! {
    [open open64 __open __open64] (path: *const c_char, flags: c_int, mode: mode_t) -> Descriptor: libc::SYS_openat, [HERE, path, flags, mode]
        => |p| path!(path).and_then(|path| p.opening.openat(HERE, path, flags, mode));
    [__open_2 __open64_2] (path: *const c_char, flags: c_int) -> Descriptor: libc::SYS_openat, [HERE, path, flags, 0]
        => |p| path!(path).and_then(|path| p.opening.openat(HERE, path, flags, 0));
    [openat openat64 __openat __openat64] (at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Descriptor: libc::SYS_openat, [at, path, flags, mode]
        => |p| path!(path).and_then(|path| p.opening.openat(at, path, flags, mode));
    [__openat_2 __openat64_2] (at: c_int, path: *const c_char, flags: c_int) -> Descriptor: libc::SYS_openat, [at, path, flags, 0]
        => |p| path!(path).and_then(|path| p.opening.openat(at, path, flags, 0));
    [creat creat64] (path: *const c_char, mode: mode_t) -> Descriptor: libc::SYS_openat, [HERE, path, CREAT, mode]
        => |p| path!(path).and_then(|path| p.opening.openat(HERE, path, CREAT, mode));
    [access] (path: *const c_char, mode: c_int) -> c_int: libc::SYS_faccessat, [HERE, path, mode]
        => |p| path!(path).and_then(|path| p.attributes.faccessat(HERE, path, mode, 0));
    [faccessat] (at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int: libc::SYS_faccessat2, [at, path, mode, flags]
        => |p| path!(path).and_then(|path| p.attributes.faccessat(at, path, mode, flags));
    [euidaccess eaccess] (path: *const c_char, mode: c_int) -> c_int: libc::SYS_faccessat2, [HERE, path, mode, libc::AT_EACCESS]
        => |p| path!(path).and_then(|path| p.attributes.faccessat(HERE, path, mode, libc::AT_EACCESS));
    [unlink] (path: *const c_char) -> c_int: libc::SYS_unlinkat, [HERE, path, 0]
        => |p| path!(path).and_then(|path| p.names.unlinkat(HERE, path, 0));
    [unlinkat] (at: c_int, path: *const c_char, flags: c_int) -> c_int: libc::SYS_unlinkat, [at, path, flags]
        => |p| path!(path).and_then(|path| p.names.unlinkat(at, path, flags));
    [rmdir] (path: *const c_char) -> c_int: libc::SYS_unlinkat, [HERE, path, libc::AT_REMOVEDIR]
        => |p| path!(path).and_then(|path| p.names.unlinkat(HERE, path, libc::AT_REMOVEDIR));
    [rename] (old: *const c_char, new: *const c_char) -> c_int: libc::SYS_renameat2, [HERE, old, HERE, new, 0]
        // SAFETY: the caller owes `old` and `new`: C strings that live through the call.
        => |p| unsafe { with_two_paths(HERE, old, HERE, new, |old, new| p.names.renameat2(HERE, old, HERE, new, 0)) };
    [renameat] (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char) -> c_int: libc::SYS_renameat2, [old_at, old, new_at, new, 0]
        // SAFETY: the caller owes `old` and `new`: C strings that live through the call.
        => |p| unsafe { with_two_paths(old_at, old, new_at, new, |old, new| p.names.renameat2(old_at, old, new_at, new, 0)) };
    [renameat2] (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_uint) -> c_int: libc::SYS_renameat2, [old_at, old, new_at, new, flags]
        // SAFETY: the caller owes `old` and `new`: C strings that live through the call.
        => |p| unsafe { with_two_paths(old_at, old, new_at, new, |old, new| p.names.renameat2(old_at, old, new_at, new, flags)) };
    [link] (old: *const c_char, new: *const c_char) -> c_int: libc::SYS_linkat, [HERE, old, HERE, new, 0]
        // SAFETY: the caller owes `old` and `new`: C strings that live through the call.
        => |p| unsafe { with_two_paths(HERE, old, HERE, new, |old, new| p.names.linkat(HERE, old, HERE, new, 0)) };
    [linkat] (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_int) -> c_int: libc::SYS_linkat, [old_at, old, new_at, new, flags]
        // SAFETY: the caller owes `old` and `new`: C strings that live through the call.
        => |p| unsafe { with_two_paths(old_at, old, new_at, new, |old, new| p.names.linkat(old_at, old, new_at, new, flags)) };
    [symlink] (target: *const c_char, path: *const c_char) -> c_int: libc::SYS_symlinkat, [target, HERE, path]
        // SAFETY: the caller owes `target` and `path`: C strings that live through the call.
        => |p| unsafe { with_two_paths(NO_DIRECTORY, target, HERE, path, |target, path| p.names.symlinkat(target, HERE, path)) };
    [symlinkat] (target: *const c_char, at: c_int, path: *const c_char) -> c_int: libc::SYS_symlinkat, [target, at, path]
        // SAFETY: the caller owes `target` and `path`: C strings that live through the call.
        => |p| unsafe { with_two_paths(NO_DIRECTORY, target, at, path, |target, path| p.names.symlinkat(target, at, path)) };
    [readlink] (path: *const c_char, buffer: *mut c_char, n: size_t) -> ssize_t: libc::SYS_readlinkat, [HERE, path, buffer, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `buffer` that only this call writes to.
        => |p| unsafe { with_path(HERE, path, buffer, n, |path| p.paths.readlinkat(HERE, path, room(buffer, n))) };
    [readlinkat] (at: c_int, path: *const c_char, buffer: *mut c_char, n: size_t) -> ssize_t: libc::SYS_readlinkat, [at, path, buffer, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `buffer` that only this call writes to.
        => |p| unsafe { with_path(at, path, buffer, n, |path| p.paths.readlinkat(at, path, room(buffer, n))) };
    [__readlink_chk] (path: *const c_char, buffer: *mut c_char, n: size_t, have: size_t) -> ssize_t: libc::SYS_readlinkat, [HERE, path, buffer, n]
        // SAFETY: the caller owes `path`, a C string, and `have` bytes at `buffer` that only this call writes to.
        => |p| within(n, have, || unsafe { with_path(HERE, path, buffer, n, |path| p.paths.readlinkat(HERE, path, room(buffer, n))) });
    [__readlinkat_chk] (at: c_int, path: *const c_char, buffer: *mut c_char, n: size_t, have: size_t) -> ssize_t: libc::SYS_readlinkat, [at, path, buffer, n]
        // SAFETY: the caller owes `path`, a C string, and `have` bytes at `buffer` that only this call writes to.
        => |p| within(n, have, || unsafe { with_path(at, path, buffer, n, |path| p.paths.readlinkat(at, path, room(buffer, n))) });
    [mkdir] (path: *const c_char, mode: mode_t) -> c_int: libc::SYS_mkdirat, [HERE, path, mode]
        => |p| path!(path).and_then(|path| p.names.mkdirat(HERE, path, mode));
    [mkdirat] (at: c_int, path: *const c_char, mode: mode_t) -> c_int: libc::SYS_mkdirat, [at, path, mode]
        => |p| path!(path).and_then(|path| p.names.mkdirat(at, path, mode));
    [mknod] (path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int: libc::SYS_mknodat, [HERE, path, mode, device]
        => |p| path!(path).and_then(|path| p.names.mknodat(HERE, path, mode, device));
    [mknodat] (at: c_int, path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int: libc::SYS_mknodat, [at, path, mode, device]
        => |p| path!(path).and_then(|path| p.names.mknodat(at, path, mode, device));
    [mkfifo] (path: *const c_char, mode: mode_t) -> c_int: libc::SYS_mknodat, [HERE, path, mode | libc::S_IFIFO, 0]
        => |p| path!(path).and_then(|path| p.names.mknodat(HERE, path, mode | libc::S_IFIFO, 0));
    [mkfifoat] (at: c_int, path: *const c_char, mode: mode_t) -> c_int: libc::SYS_mknodat, [at, path, mode | libc::S_IFIFO, 0]
        => |p| path!(path).and_then(|path| p.names.mknodat(at, path, mode | libc::S_IFIFO, 0));
    [chmod] (path: *const c_char, mode: mode_t) -> c_int: libc::SYS_fchmodat, [HERE, path, mode]
        => |p| path!(path).and_then(|path| p.attributes.fchmodat(HERE, path, mode, 0));
    [lchmod] (path: *const c_char, mode: mode_t) -> c_int: SYS_FCHMODAT2, [HERE, path, mode, NOFOLLOW]
        => |p| path!(path).and_then(|path| p.attributes.fchmodat(HERE, path, mode, NOFOLLOW));
    [fchmodat] (at: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int: SYS_FCHMODAT2, [at, path, mode, flags]
        => |p| path!(path).and_then(|path| p.attributes.fchmodat(at, path, mode, flags));
    [chown] (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int: libc::SYS_fchownat, [HERE, path, uid, gid, 0]
        => |p| path!(path).and_then(|path| p.attributes.fchownat(HERE, path, uid, gid, 0));
    [lchown] (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int: libc::SYS_fchownat, [HERE, path, uid, gid, NOFOLLOW]
        => |p| path!(path).and_then(|path| p.attributes.fchownat(HERE, path, uid, gid, NOFOLLOW));
    [fchownat] (at: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int: libc::SYS_fchownat, [at, path, uid, gid, flags]
        => |p| path!(path).and_then(|path| p.attributes.fchownat(at, path, uid, gid, flags));
    [truncate truncate64] (path: *const c_char, length: off_t) -> c_int: libc::SYS_truncate, [path, length]
        => |p| path!(path).and_then(|path| p.opening.truncate(path, length));
    [utimensat] (at: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int: libc::SYS_utimensat, [at, path, times, flags]
        // SAFETY: the caller owes `path`: null, or a C string; and `times`: null, or two of them.
        => |p| unsafe {
            match path.is_null() {
                true => with_descriptor(at, times, one_if_any(times), || p.attributes.futimens(at, times_of(times))),
                false => with_path(at, path, times, one_if_any(times), |path| p.attributes.utimensat(at, path, times_of(times), flags)),
            }
        };
    [futimens] (fd: c_int, times: *const libc::timespec) -> c_int: libc::SYS_utimensat, [fd, 0, times, 0]
        // SAFETY: the caller owes `times`: null, or two of them.
        => |p| unsafe { with_descriptor(fd, times, one_if_any(times), || p.attributes.futimens(fd, times_of(times))) };
    [chdir] (path: *const c_char) -> c_int: libc::SYS_chdir, [path]
        => |p| path!(path).and_then(|path| p.current_dir.chdir(path));
    [chroot] (path: *const c_char) -> c_int: libc::SYS_chroot, [path]
        => |p| path!(path).and_then(|path| p.refusals.refuse_path(HERE, path, "chroot"));
    [inotify_add_watch] (fd: c_int, path: *const c_char, mask: u32) -> c_int: libc::SYS_inotify_add_watch, [fd, path, mask]
        => |p| path!(path).and_then(|path| p.refusals.refuse_path(HERE, path, "inotify"));
    [fanotify_mark] (fd: c_int, flags: c_uint, mask: u64, at: c_int, path: *const c_char) -> c_int: libc::SYS_fanotify_mark, [fd, flags, mask, at, path]
        => |p| match path.is_null() {
            true => crate::is_ours(at).then(|| p.refusals.refuse_path(at, b".", "fanotify")).flatten(),
            false => path!(path).and_then(|path| p.refusals.refuse_path(at, path, "fanotify")),
        };
    [mount] (source: *const c_char, target: *const c_char, kind: *const c_char, flags: libc::c_ulong, data: *const c_void) -> c_int: libc::SYS_mount, [source, target, kind, flags, data]
        => |p| path!(target).and_then(|target| p.refusals.refuse_path(HERE, target, "mount"))
            // SAFETY: the caller owes what mount(2) takes: C strings, and `data` as `kind` has it.
            .or_else(|| unsafe { bind(source, target, kind, flags, data) });
    [umount2] (target: *const c_char, flags: c_int) -> c_int: libc::SYS_umount2, [target, flags]
        => |p| path!(target).and_then(|target| p.refusals.not_mounted(target));
    [umount] (target: *const c_char) -> c_int: libc::SYS_umount2, [target, 0]
        => |p| path!(target).and_then(|target| p.refusals.not_mounted(target));
    [name_to_handle_at] (at: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int: libc::SYS_name_to_handle_at, [at, path, handle, mount, flags]
        => |p| path!(path).and_then(|path| p.refusals.refuse_path(at, path, "name_to_handle"));
    [getxattr] (path: *const c_char, name: *const c_char, value: *mut c_void, n: size_t) -> ssize_t: libc::SYS_getxattr, [path, name, value, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `value` that only this call writes to.
        => |p| path!(name).and_then(|name| unsafe { with_path(HERE, path, value, n, |path| p.attributes.getxattr(path, true, name, room(value.cast(), n))) });
    [lgetxattr] (path: *const c_char, name: *const c_char, value: *mut c_void, n: size_t) -> ssize_t: libc::SYS_lgetxattr, [path, name, value, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `value` that only this call writes to.
        => |p| path!(name).and_then(|name| unsafe { with_path(HERE, path, value, n, |path| p.attributes.getxattr(path, false, name, room(value.cast(), n))) });
    [fgetxattr] (fd: c_int, name: *const c_char, value: *mut c_void, n: size_t) -> ssize_t: libc::SYS_fgetxattr, [fd, name, value, n]
        // SAFETY: the caller owes `n` bytes at `value` that only this call writes to.
        => |p| path!(name).and_then(|name| with_descriptor(fd, value, n, || p.attributes.fgetxattr(fd, name, unsafe { room(value.cast(), n) })));
    [setxattr] (path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int: libc::SYS_setxattr, [path, name, value, n, flags]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `value` that nobody writes to meanwhile.
        => |p| path!(name).and_then(|name| unsafe { with_path(HERE, path, value, n, |path| p.attributes.setxattr(path, true, name, given(value, n), flags.cast_unsigned())) });
    [lsetxattr] (path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int: libc::SYS_lsetxattr, [path, name, value, n, flags]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `value` that nobody writes to meanwhile.
        => |p| path!(name).and_then(|name| unsafe { with_path(HERE, path, value, n, |path| p.attributes.setxattr(path, false, name, given(value, n), flags.cast_unsigned())) });
    [fsetxattr] (fd: c_int, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int: libc::SYS_fsetxattr, [fd, name, value, n, flags]
        // SAFETY: the caller owes `n` bytes at `value` that nobody writes to while the call runs.
        => |p| path!(name).and_then(|name| with_descriptor(fd, value, n, || p.attributes.fsetxattr(fd, name, unsafe { given(value, n) }, flags.cast_unsigned())));
    [listxattr] (path: *const c_char, list: *mut c_char, n: size_t) -> ssize_t: libc::SYS_listxattr, [path, list, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `list` that only this call writes to.
        => |p| unsafe { with_path(HERE, path, list, n, |path| p.attributes.listxattr(path, true, room(list, n))) };
    [llistxattr] (path: *const c_char, list: *mut c_char, n: size_t) -> ssize_t: libc::SYS_llistxattr, [path, list, n]
        // SAFETY: the caller owes `path`, a C string, and `n` bytes at `list` that only this call writes to.
        => |p| unsafe { with_path(HERE, path, list, n, |path| p.attributes.listxattr(path, false, room(list, n))) };
    [flistxattr] (fd: c_int, list: *mut c_char, n: size_t) -> ssize_t: libc::SYS_flistxattr, [fd, list, n]
        // SAFETY: the caller owes `n` bytes at `list` that only this call writes to.
        => |p| with_descriptor(fd, list, n, || p.attributes.flistxattr(fd, unsafe { room(list, n) }));
    [removexattr] (path: *const c_char, name: *const c_char) -> c_int: libc::SYS_removexattr, [path, name]
        => |p| path!(path).zip(path!(name)).and_then(|(path, name)| p.attributes.removexattr(path, true, name));
    [lremovexattr] (path: *const c_char, name: *const c_char) -> c_int: libc::SYS_lremovexattr, [path, name]
        => |p| path!(path).zip(path!(name)).and_then(|(path, name)| p.attributes.removexattr(path, false, name));
    [fremovexattr] (fd: c_int, name: *const c_char) -> c_int: libc::SYS_fremovexattr, [fd, name]
        => |p| path!(name).and_then(|name| p.attributes.fremovexattr(fd, name));
}

/// Linux 6.6; libc knows no name for it yet.
const SYS_FCHMODAT2: core::ffi::c_long = 452;

pub use others::resolve_all as resolve_others;

mod others {
    use super::{c_char, c_int};

    crate::next::next_fn! {
        utime: fn(*const c_char, *const libc::utimbuf) -> c_int;
        utimes: fn(*const c_char, *const libc::timeval) -> c_int;
        lutimes: fn(*const c_char, *const libc::timeval) -> c_int;
        futimes: fn(c_int, *const libc::timeval) -> c_int;
        futimesat: fn(c_int, *const c_char, *const libc::timeval) -> c_int;
        remove: fn(*const c_char) -> c_int;
        umask: fn(mode_t) -> mode_t;
    }
    use libc::mode_t;
}

macro_rules! micro {
    ($($name:ident ($($p:ident: $t:ty),*) => |$process:ident| $ours:expr;)*) => {$(
        /// Sets times, given in seconds or microseconds.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($p: $t),*) -> c_int {
            crate::guarded(|| {
                let $process = weir_client::process::process();
                // SAFETY: `path` is null or a C string, and `times` is null or what this function
                // takes, by the caller; `f` is the next function of this name.
                unsafe {
                    match $ours {
                        Some(result) => crate::finish(result),
                        None => others::$name().map_or(-1, |f| f($($p),*)),
                    }
                }
            })
        }
    )*};
}

micro! {
    utime(path: *const c_char, times: *const libc::utimbuf) => |p| {
        let both = || times.as_ref().map(|t| [t.actime, t.modtime].map(|sec| Time { sec, nsec: 0 }));
        with_path(HERE, path, times, one_if_any(times), |path| p.attributes.utimensat(HERE, path, both(), 0))
    };
    utimes(path: *const c_char, times: *const libc::timeval) => |p|
        with_path(HERE, path, times, one_if_any(times), |path| p.attributes.utimensat(HERE, path, micro_times_of(times), 0));
    lutimes(path: *const c_char, times: *const libc::timeval) => |p|
        with_path(HERE, path, times, one_if_any(times), |path| p.attributes.utimensat(HERE, path, micro_times_of(times), NOFOLLOW));
    futimes(fd: c_int, times: *const libc::timeval) => |p| with_descriptor(fd, times, one_if_any(times), || p.attributes.futimens(fd, micro_times_of(times)));
    futimesat(at: c_int, path: *const c_char, times: *const libc::timeval) => |p|
        with_path(at, path, times, one_if_any(times), |path| p.attributes.utimensat(at, path, micro_times_of(times), 0));
}

/// `remove(3)`: a file, or an empty directory.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, by the caller.
        unsafe {
            if !crate::is_our_c_path(HERE, path) {
                return others::remove().map_or(-1, |f| f(path));
            }
            let saved = crate::raw::errno();
            let done = unlink(path);
            if done < 0 && crate::raw::errno() == libc::EISDIR {
                crate::raw::restore_errno(saved);
                return rmdir(path);
            }
            done
        }
    })
}

/// `umask(2)`: the client keeps a copy.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn umask(mask: mode_t) -> mode_t {
    crate::guarded(|| {
        weir_client::process::process().user.umask_changed(mask);
        // SAFETY: a number.
        unsafe { others::umask().map_or(0, |f| f(mask)) }
    })
}
