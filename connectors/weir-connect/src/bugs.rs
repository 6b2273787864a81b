//! Failed assertions of a connector's own, in a process of the user's.
//!
//! As with the interposer (`weir_client::bugs`), a bug of ours must not end the user's computation. A panic is caught where the
//! program, or a library of the field, called us ([`contain`]). The call fails with the error that this library has for a
//! fault of its own, after one line on standard error.
//!
//! A connector has a standard library of its own, and with it a panic hook of its own: a program in Rust does not notice.
//! A connector does not depend on `weir-client`, so that it cannot share that guard.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// The environment variable that names a call in which an assertion fails on purpose, for tests; a release does not look at it.
#[cfg(debug_assertions)]
const VARIABLE: &str = "WEIR_TEST_BUG";

/// Does the work of a call of this name; returns the result of `failed` if a panic ends it.
///
/// The work must leave no state behind that later calls believe although it is in the middle of a change.
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
            // Its destructor is that of a string.
            drop(why);
            failed()
        }
    }
}

/// Does a part of a call that the call can do without: other processes may wait for the rest of it.
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

/// Fails, as an assertion of ours, if a test has named this call.
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
