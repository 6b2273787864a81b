//! What hands the kernel requests for files: io_uring, and the kernel's aio (libaio), which refuses files of
//! weir request by request.
//!
//! Of io_uring the kernel does what a ring asks without a call that could be seen here, so that a program
//! gets no ring, unless the settings allow it (docs/SEMANTICS.md).
//!
//! liburing makes its system calls itself: so its functions are here that make a ring. They return
//! negative error numbers.

use core::ffi::{c_int, c_long, c_uint, c_void};

use rustix::io::Errno;
use weir_client::process::process;

use crate::made::Descriptor;
use crate::{next, raw};

type Ring = *mut c_void;

/// `struct iocb` of io_submit(2), as far as the descriptor.
#[repr(C)]
pub struct Request {
    data: u64,
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    fd: u32,
}

/// `io_submit(2)`, which libaio makes by `syscall`. EINVAL: the first request is for a file of weir, of
/// which the kernel's aio can do nothing. Those before one of weir are handed in.
///
/// # Safety
///
/// As the system call demands.
pub unsafe fn submit(context: usize, count: c_long, requests: *const *const Request) -> c_long {
    let given = usize::try_from(count).unwrap_or(0);
    let is_kernels = |nth: &usize| {
        // SAFETY: as the caller vouches: so many addresses of requests.
        let request = unsafe { requests.add(*nth).read() };
        // SAFETY: as above.
        !crate::is_address(request) || !crate::is_ours(unsafe { (*request).fd } as c_int)
    };
    let looked_at = match crate::is_address(requests) && process().is_active() {
        true => (0..given).take_while(is_kernels).count(),
        false => given,
    };
    if looked_at == 0 && given > 0 {
        process().note_refusal("libaio");
        raw::set_errno(Errno::INVAL);
        return -1;
    }
    let count = if looked_at == given {
        count as usize
    } else {
        looked_at
    };
    // SAFETY: as the caller vouches.
    let done = unsafe {
        let arguments = next::six([context, count, requests as usize]);
        raw::syscall(libc::SYS_io_submit, arguments)
    };
    raw::outcome(done) as c_long
}

/// `io_uring_setup(2)`, as `syscall` makes it.
///
/// # Safety
///
/// As the system call demands.
pub unsafe fn setup(entries: c_uint, parameters: *mut c_void) -> Descriptor {
    if let Some(refused) = process().io_uring() {
        return crate::finish(refused);
    }
    // SAFETY: as the caller vouches.
    let made = unsafe {
        raw::syscall(
            libc::SYS_io_uring_setup,
            next::six([entries as usize, parameters as usize]),
        )
    };
    crate::made(raw::outcome(made) as c_int)
}

/// The address of a function of liburing's; null if it is not there.
fn of_liburing(next: &next::Next, name: &core::ffi::CStr) -> *mut c_void {
    let address = next.get_or_resolve();
    if !address.is_null() {
        return address;
    }
    // A library may have brought it, with names that are not everybody's.
    // SAFETY: C strings; what is loaded already stays so.
    unsafe {
        let library = crate::load::loaded(c"liburing.so.2");
        match library.is_null() {
            true => address,
            false => libc::dlsym(library, name.as_ptr()),
        }
    }
}

macro_rules! rings {
    ($($name:ident ($($p:ident: $t:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of liburing.")]
        ///
        /// # Safety
        ///
        /// As the C function of this name demands.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($p: $t),*) -> c_int {
            if let Some(Err(errno)) = process().io_uring() {
                return -errno.raw_os_error();
            }
            let address = of_liburing(&liburing::$name, liburing::$name.name());
            if address.is_null() {
                return -libc::ENOSYS;
            }
            // SAFETY: the symbol of this name has this signature, and the caller vouches for the arguments.
            unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> c_int>(address)($($p),*)
            }
        }
    )*

        #[allow(non_upper_case_globals)] // named as the functions they stand for
        mod liburing {
            $( crate::next::interpose!(@static $name); )*
        }
    };
}

rings! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: Ring, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: Ring, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: Ring, parameters: *mut c_void, memory: *mut c_void, size: usize);
}
