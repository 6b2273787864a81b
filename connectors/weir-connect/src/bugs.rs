//! Failed assertions of a connector, in a process of the user's.
//!
//! As with the interposer (`weir_client::bugs`), a bug of ours must not end the user's computation. A panic is caught where the
//! program, or a library such as HDF5, called us ([`contain`]). After one line on standard error, the call fails with that
//! library's code for an internal error.
//!
//! A connector has its own copy of Rust's standard library, and so its own panic hook: the hook of a program in Rust stays. A
//! connector does not depend on `weir-client`, so it cannot use the guard there.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// The environment variable that names a call in which an assertion fails on purpose, for tests; a release does not look at it.
#[cfg(debug_assertions)]
const VARIABLE: &str = "WEIR_TEST_BUG";

/// Does the work of a call of this name; returns the result of `failed` if the work panics.
///
/// The work must not leave half-changed state behind that later calls trust.
#[inline]
pub fn contain<T>(call: &str, work: impl FnOnce() -> T, failed: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(report)));
    let work = || {
        #[cfg(debug_assertions)]
        set_off(call);
        #[cfg(not(debug_assertions))]
        let _ = call;
        work()
    };
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(why) => {
            // Our panics carry strings, whose destructor cannot panic.
            drop(why);
            failed()
        }
    }
}

/// Does an optional part of a call. If it panics, the rest of the call still runs: other processes may wait for that.
pub fn attempt(part: impl FnOnce()) {
    contain("a part of a call", part, || ());
}

fn report(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("a failed assertion");
    let at = info
        .location()
        .map(|at| format!("{}:{}: ", at.file(), at.line()));
    let at = at.unwrap_or_default();
    complain!("weir: bug: {at}{message}; the program goes on");
}

/// Fails like an assertion of ours if a test has named this call.
#[cfg(debug_assertions)]
fn set_off(call: &str) {
    static NAMED: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var_os(VARIABLE));
    let is_it = named.as_ref().is_some_and(|named| named == call);
    assert!(!is_it, "planted for a test");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_calls_error() {
        assert_eq!(contain("a call", || 1, || 2), 1);
        assert_eq!(contain("a call", || panic!("on purpose"), || 2), 2);
    }
}
