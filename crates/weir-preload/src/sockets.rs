//! Descriptors of ours that travel over Unix sockets (SCM_RIGHTS).
//!
//! What is sent is made ready to be shared first, as before a fork; what is received is
//! looked at, and taken over if it stands for a file of ours.

use core::ffi::c_int;

use libc::{msghdr, ssize_t};

use crate::next::interpose;

/// The descriptors that a message carries.
///
/// # Safety
///
/// `message` is a message header as sendmsg(2) takes it, or as recvmsg(2) left it.
unsafe fn carried(message: *const msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    // SAFETY: as the caller vouches; the macros of cmsg(3) stay within the control data.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(control).cast::<c_int>();
                let bytes = header.cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<c_int>() {
                    found.push(data.add(i).read_unaligned());
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    found
}

interpose! {
    [sendmsg] (socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t: libc::SYS_sendmsg, [socket, message, flags]
        => |p| {
            if p.is_active() && crate::is_address(message) {
                // SAFETY: the caller's message.
                p.share(&unsafe { carried(message) });
            }
            None::<Result<usize, rustix::io::Errno>>
        };
}

mod others {
    use super::{c_int, msghdr, ssize_t};

    crate::next::next_fn! {
        recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
    }
}

pub use others::resolve_all as resolve_others;

/// `recvmsg(2)`.
///
/// # Safety
///
/// As the C function of this name demands.
#[no_mangle]
pub unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let p = weir_client::process::process();
    // SAFETY: as the caller vouches.
    unsafe {
        let got = others::recvmsg().map_or(-1, |f| f(socket, message, flags));
        if got >= 0 && p.is_active() && (*message).msg_controllen > 0 {
            p.received(&carried(message));
        }
        got
    }
}
