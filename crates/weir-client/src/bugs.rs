//! Failed assertions of weir's own, inside of foreign programs.
//!
//! A bug of ours must not end the user's computation. A panic is caught where the program called us
//! ([`contain`]), and the call fails with EIO. The hook has said so by then, in a line to standard
//! error that is put together on the stack and written past libc: it neither allocates nor re-enters.
//! A file in whose state the panic came is given up (`data::vnode`): nothing of that state is used
//! again. What finished writes wrote stays, for a cell and its ring say exactly that at every instant.
//!
//! In a function that calls the program back, or that programs may leave by unwinding for another
//! reason (thread cancellation, exceptions of C++), only the client's code is caught, because a handler
//! around the rest would stop such unwinding.
//!
//! Left out, and the process ends after the line was written: a panic while another one unwinds; one in
//! the interposer's own lines of such a function; one within fork(2), whose handlers cannot report an
//! error; one in a child of vfork, which runs on its parent's memory; and one while the process's
//! credentials are read anew, or a descriptor is forgotten that the kernel gave to another file: later
//! calls would be allowed to another user, or write to the wrong file.

use core::fmt::{self, Write as _};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

use rustix::fd::BorrowedFd;

/// Does a call's work; returns the result of `failed` if a panic ends it.
///
/// Costs nothing where there is no panic. The work must leave no state behind that later calls
/// believe although it is in the middle of a change: locks are given back by their guards, tables
/// are made of atomics, and vnodes see to themselves.
#[inline(always)]
#[allow(clippy::inline_always)] // as for what it is around, see process/io/mod.rs
pub fn contain<T>(work: impl FnOnce() -> T, failed: impl FnOnce() -> T) -> T {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(why) => {
            // Its destructor is that of a string.
            drop(why);
            failed()
        }
    }
}

/// Has panics reported in a line of ours from now on. A program that is itself in Rust does not
/// notice: it has a standard library and a hook of its own.
pub fn report_panics() {
    panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    let mut line = LogLine::new();
    let payload = info.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    // A line that is too long is cut.
    let _ = match info.location() {
        Some(at) => write!(line, "weir: bug: {}:{}: ", at.file(), at.line()),
        None => write!(line, "weir: bug: "),
    };
    let _ = write!(line, "{}", message.unwrap_or("a failed assertion"));
    line.put_end(b"; the call fails with EIO\n");
    // SAFETY: the program may have closed this descriptor; then the kernel returns EBADF.
    let to = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(to, line.bytes());
}

/// A line of text on the stack.
struct LogLine {
    bytes: [u8; LogLine::MOST],
    len: usize,
}

impl LogLine {
    const MOST: usize = 512;
    /// Room for the end of the line.
    const LEFT: usize = 40;

    fn new() -> LogLine {
        LogLine {
            bytes: [0; LogLine::MOST],
            len: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8], most: usize) {
        let count = bytes.len().min(most.saturating_sub(self.len));
        self.bytes[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }

    fn put_end(&mut self, bytes: &[u8]) {
        self.put(bytes, LogLine::MOST);
    }
}

impl fmt::Write for LogLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One line, even if the message has several.
        for byte in text.bytes() {
            let byte = if byte == b'\n' { b' ' } else { byte };
            self.put(&[byte], LogLine::MOST - LogLine::LEFT);
        }
        Ok(())
    }
}

/// Failed assertions on purpose, for tests; a release does not contain them.
#[cfg(debug_assertions)]
pub mod planted {
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::sync::OnceLock;

    /// An assertion fails if written bytes, or a name, begin with this and [`plant`] was called.
    pub const MARK: &[u8] = b"WEIR-TEST-BUG";
    /// An assertion fails where a path with this in it is resolved.
    pub const PATH_MARK: &[u8] = b"WEIR-TEST-PATH-BUG";
    /// The environment variable that makes the interposer call [`plant`].
    pub const VARIABLE: &core::ffi::CStr = c"WEIR_TEST_BUG";

    static PLANTED: AtomicBool = AtomicBool::new(false);
    static STEP: OnceLock<Vec<u8>> = OnceLock::new();

    /// From now on bytes, names and paths with the marks make an assertion fail, and so does the step
    /// with this name.
    pub fn plant(step: &[u8]) {
        let _ = STEP.set(step.to_vec());
        PLANTED.store(true, Ordering::Relaxed);
    }

    /// Fails, as an assertion of the caller, if `bytes` begin with the mark.
    ///
    /// # Panics
    ///
    /// If `bytes` begin with the mark: that is its purpose.
    #[track_caller]
    pub fn set_off(bytes: &[u8]) {
        let is_it = PLANTED.load(Ordering::Relaxed) && bytes.starts_with(MARK);
        assert!(!is_it, "planted for a test");
    }

    /// Fails, as an assertion of the caller, if the mark is in `path`.
    ///
    /// # Panics
    ///
    /// If the mark is in `path`: that is its purpose.
    #[track_caller]
    pub fn set_off_by_path(path: &[u8]) {
        let is_it = PLANTED.load(Ordering::Relaxed)
            && path.windows(PATH_MARK.len()).any(|part| part == PATH_MARK);
        assert!(!is_it, "planted for a test");
    }

    /// Fails, as an assertion of the caller, if `step` was named.
    ///
    /// # Panics
    ///
    /// If `step` was named: that is its purpose.
    #[track_caller]
    pub fn set_off_in_step(step: &str) {
        let is_it = STEP.get().is_some_and(|named| named == step.as_bytes());
        assert!(!is_it, "planted for a test");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_what_the_caller_makes_of_it() {
        assert_eq!(contain(|| 1, || 2), 1);
        assert_eq!(contain(|| panic!("on purpose"), || 2), 2);
    }

    #[test]
    fn a_line_is_cut_and_ends() {
        let mut line = LogLine::new();
        write!(line, "two\nlines {}", "x".repeat(1000)).unwrap();
        line.put_end(b"; end\n");
        assert!(line.bytes().starts_with(b"two lines xx"));
        assert!(line.bytes().ends_with(b"xx; end\n"));
        assert!(line.bytes().len() <= LogLine::MOST);
    }
}
