//! The end of a process: every file that the program wrote and did not close is closed, so that programs
//! on other nodes see its bytes once the process is gone.
//!
//! ```text
//! exit(3): handlers of the program, destructors of libraries, ours, streams are flushed, _exit
//! _exit(2), exec
//! ```
//!
//! Our handler runs after all others: libc calls handlers in reverse order of registration, and a
//! constructor registers ours before libc's own. libc flushes its streams after that, without a symbol
//! that could be interposed; so each stream that still had bytes is published by itself.
//!
//! Not handled here: a process that a signal kills. Its server publishes its writes within a second.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use weir_client::process::process;

use crate::raw;

/// True while streams are flushed: nothing runs after that.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" {
    fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

extern "C" fn publish_at_exit(_: *mut c_void) {
    crate::guarded(|| {
        process().descriptors.publish_written();
        ENDING.store(true, Ordering::Relaxed);
    });
}

/// Registers our handler of exit(3). Called by the constructor.
pub fn watch_exit() {
    // SAFETY: a function that lives as long as this library, which is never unloaded. It is registered
    // without a library: else it would be called with that library's destructors, before those of
    // others.
    unsafe {
        __cxa_atexit(
            publish_at_exit,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
        )
    };
}

/// Notes that a stream of a file of ours was written.
pub fn stream_written() {
    if ENDING.load(Ordering::Relaxed) {
        process().descriptors.publish_written();
    }
}

macro_rules! ends {
    ($($name:ident)+) => {$(
        #[doc = concat!("`", stringify!($name), "`: publishes first.")]
        #[no_mangle]
        pub extern "C" fn $name(status: c_int) -> ! {
            crate::guarded(|| process().descriptors.publish_written());
            loop {
                // SAFETY: a number; the call does not return.
                unsafe { raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
            }
        }
    )+};
}

ends!(_exit _Exit);
