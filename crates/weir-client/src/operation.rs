//! One deadline for one call of a program, however many requests it makes of its server.
//!
//! A call that makes several requests is an [`Operation`] while it runs. The time that its thread
//! waits for servers is added up, and each request carries the sum, so that the server allows only
//! the rest of `fabric.deadline_s`. Waiting for bytes that do arrive is not counted: a long read
//! from a slow node is no failure.
//!
//! ```text
//!  begin ---- request, 0 ms spent ---- request, 4200 ms spent ---- drop
//! ```
//!
//! An operation within another is part of it. A signal handler may leave one for good by
//! siglongjmp(3). So an operation is identified by its position on the stack, and one that begins
//! further up than the last replaces it. If a left one goes unnoticed, requests have less time than
//! they should, but the server always leaves a small part.
//!
//! Left out: calls that are one request; they are no operation, and each has the whole deadline.

use core::cell::Cell;
use core::marker::PhantomData;

/// The operation that a thread is in.
#[derive(Clone, Copy, Debug)]
struct Running {
    /// The stack address at which it began; 0: there is none.
    at: usize,
    spent_ns: u64,
}

const NONE: Running = Running { at: 0, spent_ns: 0 };

std::thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(NONE) };
}

/// A call of a program, until dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Operation {
    outermost: bool,
    _of_this_thread: PhantomData<*const ()>,
}

/// Begins a call of a program on this thread.
#[inline(never)] // its frame says how deep the caller is
pub fn begin() -> Operation {
    let here = 0_u8;
    let at = core::ptr::from_ref(core::hint::black_box(&here)) as usize;
    let outermost = RUNNING.with(|running| {
        let outermost = at >= running.get().at;
        if outermost {
            running.set(Running { at, spent_ns: 0 });
        }
        outermost
    });
    Operation {
        outermost,
        _of_this_thread: PhantomData,
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.outermost {
            RUNNING.with(|running| running.set(NONE));
        }
    }
}

/// The time that the current call of this thread has waited for servers, ns; 0 outside of any.
pub fn spent_ns() -> u64 {
    RUNNING.with(|running| running.get().spent_ns)
}

/// The same in ms, as requests carry it.
pub fn spent_ms() -> u32 {
    u32::try_from(spent_ns() / 1_000_000).unwrap_or(u32::MAX)
}

/// Adds to the time that the current call of this thread, if any, has waited for servers.
pub fn waited(ns: u64) {
    RUNNING.with(|running| {
        let now = running.get();
        if now.at != 0 {
            let spent_ns = now.spent_ns.saturating_add(ns);
            running.set(Running { spent_ns, ..now });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_waited_adds_up_within_one_call_alone() {
        waited(7 * MS);
        assert_eq!(spent_ms(), 0, "no call");
        let call = begin();
        waited(3 * MS);
        {
            // A call within it.
            let _part = within();
            waited(4 * MS);
        }
        assert_eq!(spent_ms(), 7);
        drop(call);
        assert_eq!(spent_ms(), 0);
        let _next = begin();
        assert_eq!(spent_ms(), 0);
    }

    #[inline(never)]
    fn within() -> Operation {
        let frame = [0_u8; 256];
        core::hint::black_box(&frame);
        begin()
    }

    #[test]
    fn a_call_that_was_left_for_good_is_no_burden_for_the_next() {
        core::mem::forget(within());
        waited(9 * MS);
        let next = begin();
        assert_eq!(spent_ms(), 0);
        drop(next);
    }
}
