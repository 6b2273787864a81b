//! Error messages: for an errno value, and for a thread's last call that failed.
//!
//! The message of a thread is always at the same address: C may look for the address before the
//! call that fails, in the arguments of one function.

use core::cell::RefCell;
use core::ffi::{c_char, c_int, CStr};

use rustix::io::Errno;

/// The number of bytes shown of a long path.
const SHOWN_BYTES: usize = 300;
/// The longest message, with its NUL.
const MESSAGE_BYTES: usize = 512;

/// The kernel gives only smaller numbers.
const MAX_ERRNO: c_int = 4096;

thread_local! {
    static LAST: RefCell<[u8; MESSAGE_BYTES]> = const { RefCell::new([0; MESSAGE_BYTES]) };
}

/// Turns a result into the return value for C; keeps a failure for [`last`].
pub fn answer(call: &str, about: &[u8], result: Result<c_int, Errno>) -> c_int {
    match result {
        Ok(value) => value,
        Err(errno) => {
            keep(call, about, errno);
            -errno.raw_os_error()
        }
    }
}

/// The message of the thread's last call that failed.
pub fn last() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr().cast())
}

fn keep(call: &str, about: &[u8], errno: Errno) {
    let about = &about[..about.len().min(SHOWN_BYTES)];
    let meaning = meaning(errno.raw_os_error()).to_bytes();
    let text = match about {
        b"" => [call.as_bytes(), b": ", meaning].concat(),
        about => [call.as_bytes(), b"(", about, b"): ", meaning].concat(),
    };
    LAST.with(|last| {
        let mut last = last.borrow_mut();
        last.fill(0);
        let length = text.len().min(MESSAGE_BYTES - 1);
        last[..length].copy_from_slice(&text[..length]);
    });
}

/// The meaning of an errno value of either sign.
pub fn meaning(number: c_int) -> &'static CStr {
    let number = number.saturating_abs();
    if number == 0 {
        return c"no error";
    }
    if number >= MAX_ERRNO {
        return c"unknown error";
    }
    match Errno::from_raw_os_error(number) {
        Errno::PERM => c"operation not permitted",
        Errno::NOENT => c"no such file, directory or instance",
        Errno::INTR => c"interrupted by a signal",
        Errno::SRCH => c"no such transfer",
        Errno::IO => c"input/output error; the server's log says more",
        Errno::BADF => c"not a descriptor of weir, or not open for this",
        Errno::AGAIN => c"try again",
        Errno::NOMEM => c"out of memory",
        Errno::ACCESS => c"permission denied",
        Errno::FAULT => c"a pointer is NULL, or no address",
        Errno::BUSY => c"busy: open for writing or being changed, or another instance in use",
        Errno::STALE => c"changed or removed by somebody else",
        Errno::CANCELED => c"cancelled",
        Errno::MLINK => c"the file has several names",
        Errno::NOTEMPTY => c"directory not empty",
        Errno::DQUOT => c"the quota is used up",
        Errno::EXIST => c"file exists",
        Errno::XDEV => c"not in weir",
        Errno::NOTDIR => c"not a directory",
        Errno::ISDIR => c"is a directory",
        Errno::INVAL => c"invalid argument",
        Errno::NFILE | Errno::MFILE => c"too many open files",
        Errno::FBIG => c"file too large",
        Errno::NOSPC => c"no space left",
        Errno::ROFS => c"read-only: the file is laminated",
        Errno::NAMETOOLONG => c"path or name too long",
        Errno::NOSYS => c"the kernel is too old",
        Errno::LOOP => c"too many symbolic links",
        Errno::PROTO | Errno::PROTONOSUPPORT => c"weir of another version",
        Errno::USERS => c"the server takes no more clients",
        Errno::OPNOTSUPP => c"not supported, or not configured",
        Errno::REMOTE => c"no drain runs on this node; ask on that of weir run",
        Errno::TIMEDOUT => c"no answer in time",
        Errno::CONNRESET => c"the server hung up",
        Errno::NOTCONN => c"not attached to an instance",
        Errno::SHUTDOWN => c"the server is gone",
        Errno::CONNREFUSED => c"no server there",
        _ => c"unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        // SAFETY: `last` gives a C string that lives until the next failure of this thread.
        unsafe { CStr::from_ptr(last()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn the_last_failure_of_a_thread_is_told() {
        assert_eq!(last_text(), "");
        assert_eq!(answer("f", b"/weir/x", Err(Errno::XDEV)), -18);
        assert_eq!(answer("g", b"", Ok(7)), 7);
        assert_eq!(last_text(), "f(/weir/x): not in weir");
        std::thread::spawn(|| assert_eq!(last_text(), ""))
            .join()
            .unwrap();
        answer("f", &[b'y'; 5000], Err(Errno::NAMETOOLONG));
        assert!(last_text().len() < 400);
        let (before, now) = (last(), answer("f", b"", Err(Errno::PERM)));
        assert_eq!((before, now), (last(), -1), "in the same place");
    }

    #[test]
    fn errors_have_texts_whatever_their_sign() {
        assert_eq!(meaning(-18), meaning(18));
        assert_eq!(meaning(0), c"no error");
        assert_eq!(meaning(c_int::MIN), c"unknown error");
        assert_eq!(meaning(99_999), c"unknown error");
    }
}
