//! Unix sockets at paths of weir's, and descriptors of ours that travel over sockets (SCM_RIGHTS).
//!
//! The kernel binds and connects sockets at paths of its own, which weir substitutes for the program's
//! (`process/special.rs` of the client); in the kernel's answers weir puts the program's paths back.
//!
//! Descriptors to be sent are first prepared for sharing, as before a fork. Each received descriptor is
//! examined, and taken over if it stands for a file of ours.

use core::ffi::{c_int, c_uint, c_void};

use libc::{cmsghdr, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;
use weir_client::process::Process;
use weir_client::types::Outcome;

use crate::next::interpose;
use crate::raw;

/// The descriptors that a message carries.
///
/// # Safety
///
/// `message` is a message header as sendmsg(2) takes it, or as recvmsg(2) left it.
unsafe fn carried(message: *const msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    // SAFETY: `message` is a header with `msg_controllen` bytes of control data, by the caller. What is read there
    // lies within them: the program's lengths are checked, as the kernel checks them after this.
    unsafe {
        let control = (*message).msg_control.cast::<u8>();
        // The kernel takes no more.
        let length = (*message).msg_controllen.min(i32::MAX as usize);
        if !crate::is_address(control) {
            return found;
        }
        let mut at = 0;
        while length - at >= HEADER {
            let header = control.add(at).cast::<cmsghdr>().read_unaligned();
            let size = header.cmsg_len;
            if size < HEADER || size > length - at {
                break;
            }
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let data = control.add(at + HEADER).cast::<c_int>();
                for i in 0..(size - HEADER) / size_of::<c_int>() {
                    found.push(data.add(i).read_unaligned());
                }
            }
            at = length.min(at + size.next_multiple_of(ALIGNMENT));
        }
    }
    found
}

/// The alignment of headers in control data, and the size of a header: those of cmsg(3).
const ALIGNMENT: usize = align_of::<usize>();
const HEADER: usize = size_of::<cmsghdr>().next_multiple_of(ALIGNMENT);

/// The path of a Unix socket's address; `None`: the address is of another kind, or has no path.
///
/// # Safety
///
/// `length` bytes at `address` are readable.
unsafe fn path_of<'a>(address: *const sockaddr, length: socklen_t) -> Option<&'a [u8]> {
    let length = (length as usize).min(size_of::<libc::sockaddr_un>());
    if !crate::is_address(address) || length <= PATH_AT {
        return None;
    }
    // SAFETY: the address can be the program's, and has `length` bytes, by the caller: more than
    // PATH_AT, at most a sockaddr_un's.
    unsafe {
        if i32::from((*address).sa_family) != libc::AF_UNIX {
            return None;
        }
        let path = address.cast::<u8>().add(PATH_AT);
        let path = core::slice::from_raw_parts(path, length - PATH_AT);
        let end = path.iter().position(|byte| *byte == 0);
        let path = &path[..end.unwrap_or(path.len())];
        (!path.is_empty()).then_some(path)
    }
}

/// The offset of the path in an address.
const PATH_AT: usize = core::mem::offset_of!(libc::sockaddr_un, sun_path);

/// The address of a path, and its length.
fn address_of(path: &[u8]) -> (libc::sockaddr_un, socklen_t) {
    // SAFETY: a structure of numbers.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let room = address.sun_path.len() - 1;
    for (to, from) in address.sun_path[..room].iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let length = PATH_AT + path.len().min(room) + 1;
    (address, length as socklen_t)
}

/// Makes a system call with the kernel's address of a socket in weir.
fn with_kernels(
    path: &[u8],
    call: impl FnOnce(*const sockaddr, socklen_t) -> isize,
) -> Result<usize, Errno> {
    let (address, length) = address_of(path);
    let done = raw::result(call((&raw const address).cast(), length))?;
    Ok(done.unsigned_abs())
}

/// bind(2) and connect(2), by number.
///
/// # Safety
///
/// `length` bytes at `address` are readable.
unsafe fn by_address(
    number: core::ffi::c_long,
    socket: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    let arguments = [socket as usize, address as usize, length as usize];
    // SAFETY: `length` bytes at `address` are readable, by the caller.
    unsafe { raw::syscall(number, crate::next::six(arguments)) }
}

/// `bind(2)` to a path in weir.
///
/// # Safety
///
/// The caller meets the requirements of bind(2).
unsafe fn bind_ours(
    p: &'static Process,
    socket: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> Outcome<usize> {
    // SAFETY: `length` bytes at `address` are readable, by the caller.
    let path = unsafe { path_of(address, length) }?;
    let bound = p.sockets.bind(path)?.and_then(|kernels| {
        // SAFETY: `with_kernels` passes an address of its own, and that address's length.
        with_kernels(&kernels, |address, length| unsafe {
            by_address(libc::SYS_bind, socket, address, length)
        })
        .inspect_err(|_| p.sockets.unbind(path))
    });
    Some(bound)
}

/// Makes a call with the kernel's address for a path in weir.
///
/// # Safety
///
/// `length` bytes at `address` are readable.
unsafe fn reach_ours(
    p: &'static Process,
    address: *const sockaddr,
    length: socklen_t,
    call: impl FnOnce(*const sockaddr, socklen_t) -> isize,
) -> Outcome<usize> {
    // SAFETY: `length` bytes at `address` are readable, by the caller.
    let path = unsafe { path_of(address, length) }?;
    let kernels = p.sockets.socket_path(path)?;
    Some(kernels.and_then(|kernels| with_kernels(&kernels, call)))
}

/// `sendmsg(2)` to an address that is a path in weir.
///
/// # Safety
///
/// The caller meets the requirements of sendmsg(2).
unsafe fn send_ours(
    p: &'static Process,
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Outcome<usize> {
    if !p.is_active() || !crate::is_address(message) {
        return None;
    }
    // SAFETY: `message` can be at its address, so it is a header for sendmsg(2), by the caller;
    // `to` outlives the system call.
    unsafe {
        p.descriptors.share(&carried(message));
        let mut to = *message;
        let (address, length) = (to.msg_name.cast_const().cast(), to.msg_namelen);
        reach_ours(p, address, length, |address, length| {
            (to.msg_name, to.msg_namelen) = (address.cast_mut().cast(), length);
            let arguments = [socket as usize, &raw const to as usize, flags as usize];
            raw::syscall(libc::SYS_sendmsg, crate::next::six(arguments))
        })
    }
}

/// Replaces the kernel's path by the path that a program gave.
///
/// # Safety
///
/// `address` and `length` are as getsockname(2) left them: an address in `room` bytes, and its length.
unsafe fn show_given(address: *mut sockaddr, length: *mut socklen_t, room: socklen_t) {
    // SAFETY: `address` has `room` bytes, of which the kernel filled the first `*length`, by the
    // caller.
    unsafe {
        let Some(kernels) = path_of(address, (*length).min(room)) else {
            return;
        };
        let Some(given) = weir_client::process::process()
            .sockets
            .name_of_socket(kernels)
        else {
            return;
        };
        let (given, given_length) = address_of(&given);
        let shown = (given_length as usize).min(room as usize);
        core::ptr::copy_nonoverlapping((&raw const given).cast::<u8>(), address.cast(), shown);
        *length = given_length;
    }
}

/// Functions that return an address.
macro_rules! addresses {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`: the path that the program gave, where it is weir's.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `address` has `*length` bytes of room, by the caller; a call that succeeds
            // has written both.
            unsafe {
                let room = if crate::is_address(length) { *length } else { 0 };
                let done = others::$name().map_or_else(crate::fail_with_enosys, |f| f(socket, address, length));
                if done == 0 && room > 0 {
                    show_given(address, length, room);
                }
                done
            }
        }
    )*};
}
addresses! { getsockname getpeername }

interpose! {
    [bind] (socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int: libc::SYS_bind, [socket, address, length]
        // SAFETY: the caller owes `address`, with `length` bytes.
        => |p| unsafe { bind_ours(p, socket, address, length) };
    [connect __connect] (socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int: libc::SYS_connect, [socket, address, length]
        // SAFETY: the caller owes `address`, with `length` bytes; the kernel gets one made here.
        => |p| unsafe { reach_ours(p, address, length, |address, length| by_address(libc::SYS_connect, socket, address, length)) };
    [sendto] (socket: c_int, bytes: *const c_void, n: usize, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t:
        libc::SYS_sendto, [socket, bytes, n, flags, address, length]
        // SAFETY: the caller owes `address`, with `length` bytes, and `n` bytes at `bytes`.
        => |p| unsafe { reach_ours(p, address, length, |address, length| raw::syscall(
            libc::SYS_sendto,
            [socket as usize, bytes as usize, n, flags as usize, address as usize, length as usize],
        )) };
    [sendmsg] (socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t: libc::SYS_sendmsg, [socket, message, flags]
        // SAFETY: the caller owes `message`, a header whose addresses and lengths are those of readable memory.
        => |p| unsafe { send_ours(p, socket, message, flags) };
    [sendmmsg] (socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int: libc::SYS_sendmmsg, [socket, messages, count, flags]
        => |p| {
            if p.is_active() && crate::is_address(messages) {
                for i in 0..count.min(MOST_MESSAGES) as usize {
                    // SAFETY: the caller owes `count` headers at `messages`.
                    p.descriptors.share(&unsafe { carried(&raw const (*messages.add(i)).msg_hdr) });
                }
            }
            None::<Result<c_int, rustix::io::Errno>>
        };
}

/// The kernel's maximum for one call (UIO_MAXIOV).
const MOST_MESSAGES: c_uint = 1024;

mod others {
    use super::{c_int, c_uint, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};

    crate::next::next_fn! {
        getsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        getpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
        recvmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int, *mut libc::timespec) -> c_int;
    }
}

pub use others::resolve_all as resolve_others;

/// `recvmsg(2)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn recvmsg(
    socket: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    let p = weir_client::process::process();
    // SAFETY: `message` is a header for recvmsg(2), by the caller; a call that succeeds has filled
    // it.
    unsafe {
        let got = others::recvmsg().map_or(-1, |f| f(socket, message, flags));
        crate::guarded(|| {
            if got >= 0 && p.is_active() && (*message).msg_controllen > 0 {
                p.inheritance.received(&carried(message));
            }
        });
        got
    }
}

/// `recvmmsg(2)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    let p = weir_client::process::process();
    // SAFETY: `messages` has `count` headers for recvmsg(2), by the caller; the call filled the
    // first `got`.
    unsafe {
        let got = others::recvmmsg().map_or(-1, |f| f(socket, messages, count, flags, timeout));
        crate::guarded(|| {
            if p.is_active() {
                for i in 0..usize::try_from(got).unwrap_or(0) {
                    let message = &raw const (*messages.add(i)).msg_hdr;
                    if (*message).msg_controllen > 0 {
                        p.inheritance.received(&carried(message));
                    }
                }
            }
        });
        got
    }
}
