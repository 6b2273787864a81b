//! How processes end: what a program wrote and did not close is closed by its end, so that programs
//! of other nodes see it once the process is gone.
//!
//! ```text
//! exit(3): handlers of the program, destructors of libraries, ours, streams are flushed, _exit
//! _exit(2), exec
//! ```
//!
//! Ours runs behind all others: libc calls first what was registered last, and this is registered by
//! a constructor, before libc's own. Streams are flushed by libc behind that, without a symbol that
//! could be interposed; so each stream that still had something is published by itself.
//!
//! Left out: a process that a signal kills. Its server publishes what it wrote, within a second.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use weir_client::process::process;

use crate::raw;

/// Streams are being flushed: nothing comes behind that.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" {
    fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

extern "C" fn end(_: *mut c_void) {
    crate::guarded(|| {
        process().publish_written();
        ENDING.store(true, Ordering::Relaxed);
    });
}

/// Has libc tell of exit(3). Called by the constructor.
pub fn watch_exit() {
    // SAFETY: a function that lives as long as this library, which is never unloaded. Of no
    // library: it would be called with that one's destructors, before those of others.
    unsafe { __cxa_atexit(end, core::ptr::null_mut(), core::ptr::null_mut()) };
}

/// A stream of a file of ours was written.
pub fn stream_written() {
    if ENDING.load(Ordering::Relaxed) {
        process().publish_written();
    }
}

macro_rules! ends {
    ($($name:ident)+) => {$(
        #[doc = concat!("`", stringify!($name), "`: publishes first.")]
        #[no_mangle]
        pub extern "C" fn $name(status: c_int) -> ! {
            crate::guarded(|| process().publish_written());
            loop {
                // SAFETY: a number; it does not come back.
                unsafe { raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
            }
        }
    )+};
}

ends!(_exit _Exit);
