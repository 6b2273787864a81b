//! The functions, each declared once: a table of them, and the symbols that go through it.
//!
//! A process has one table. The interposer contains this crate too and comes first in the search
//! for symbols, so `dlsym` finds its table even from a `libweir.so` that was opened by `dlopen`:
//! then both are one client of the server. Two clients would be wrong, not only wasteful: if a
//! process connects again after it hung up, a server takes it for a new program, and reuses memory
//! that the old one could write into.

use core::ffi::{c_char, c_int, CStr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{mode_t, size_t};
use rustix::io::Errno;
use weir_client::bugs::{contain, report_panics};
use weir_client::library::{self, Whence, MOST_FILES};

use crate::arguments::{
    check_buffers, elements, list, path, pieces, result, room, time_limit, transfers,
};
use crate::message::{answer, last, meaning};
use crate::types::{
    number_of, visibility_of, FileDrain, Io, Location, Stat, TransferEntry, TransferResult,
};

/// `WEIR_ABI`.
pub const ABI: c_int = 1;
/// The form of the table, by which the library and the interposer know each other: it changes with each function.
const TABLE_FORM: c_int = 3;

/// The interposer is of another version: its state cannot be used, and there must be no second.
static MISFIT: AtomicBool = AtomicBool::new(false);

/// The table of this process.
fn functions() -> &'static Functions {
    static FOUND: AtomicPtr<Functions> = AtomicPtr::new(core::ptr::null_mut());
    let found = FOUND.load(Ordering::Acquire);
    if !found.is_null() {
        // SAFETY: it was stored below.
        return unsafe { &*found };
    }
    // SAFETY: a C string; the first symbol of that name is the interposer's or our own, of the
    // type of `weir_functions` in all versions.
    let table = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"weir_functions".as_ptr());
        if symbol.is_null() {
            // Opened by dlopen, visible only to the opener.
            &raw const OWN
        } else {
            let ask: extern "C" fn(c_int) -> *const Functions = core::mem::transmute(symbol);
            ask(TABLE_FORM)
        }
    };
    MISFIT.store(table.is_null(), Ordering::Release);
    let table = if table.is_null() {
        &raw const OWN
    } else {
        table
    };
    if core::ptr::eq(table, &raw const OWN) && !has_interposer() {
        report_panics();
    }
    FOUND.store(table.cast_mut(), Ordering::Release);
    // SAFETY: a static of a library that is never unloaded.
    unsafe { &*table }
}

/// Returns true if the interposer is in this process: its table is then the one that is used, and
/// the client is the one that the interposer starts.
///
/// Asked of the process, not of the build: cargo merges the features of packages that one command
/// builds, so that a feature of the interposer's copy would get into `libweir.so`, whose forked
/// children would then write into the cells of their parents.
fn has_interposer() -> bool {
    // SAFETY: a C string; the symbol's value is not used.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"weir_interposer".as_ptr()) }.is_null()
}

/// The table of the library that contains this symbol; null if the caller's is of another form.
#[no_mangle]
pub extern "C" fn weir_functions(form: c_int) -> *const Functions {
    if form == TABLE_FORM {
        &raw const OWN
    } else {
        core::ptr::null()
    }
}

/// The results of functions in which an assertion of ours failed.
trait FailedAnswer {
    fn failed(call: &str) -> Self;
}

impl FailedAnswer for c_int {
    fn failed(call: &str) -> c_int {
        answer(call, b"", Err(Errno::IO))
    }
}

impl FailedAnswer for *const c_char {
    fn failed(_: &str) -> *const c_char {
        c"unknown error".as_ptr()
    }
}

macro_rules! functions {
    ($( fn $name:ident($($p:ident: $t:ty),*) -> $r:ty $body:block )*) => {
        /// The functions of weir.h; the same for all libraries of one [`TABLE_FORM`].
        #[repr(C)]
        #[derive(Debug)]
        pub struct Functions {
            $( $name: unsafe extern "C" fn($($t),*) -> $r, )*
        }

        static OWN: Functions = Functions { $( $name: own::$name, )* };

        /// The names of all functions.
        pub const NAMES: &[&str] = &[$( stringify!($name) ),*];

        /// This library's own implementation of the functions.
        mod own {
            #[allow(clippy::wildcard_imports, reason = "the other half of this file")]
            use super::*;

            $(
                pub unsafe extern "C" fn $name($($p: $t),*) -> $r {
                    contain(move || $body, || <$r>::failed(stringify!($name)))
                }
            )*
        }

        $(
            #[doc = concat!("`", stringify!($name), "` of weir.h.")]
            #[no_mangle]
            pub unsafe extern "C" fn $name($($p: $t),*) -> $r {
                // SAFETY: the arguments are as weir.h says, by the caller; the table's function has this signature.
                unsafe { (functions().$name)($($p),*) }
            }
        )*
    };
}

/// Does `work` with a path, in the state that is attached if it names that.
macro_rules! with_path {
    ($name:literal, $path:ident, |$process:ident, $bytes:ident| $work:expr) => {
        with_path!($name, $path, |$bytes| {
            let $process = library::current()?;
            $work
        })
    };
    ($name:literal, $path:ident, |$bytes:ident| $work:expr) => {{
        // SAFETY: the path is null or a C string that lives through the call, by the caller.
        let given = unsafe { path($path) };
        let done = given.and_then(|$bytes| $work);
        answer($name, given.unwrap_or(b""), done)
    }};
}

functions! {
    fn weir_abi() -> c_int {
        ABI
    }

    fn weir_version() -> *const c_char {
        const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!(),
        };
        VERSION.as_ptr()
    }

    fn weir_attach(instance: *const c_char) -> c_int {
        // SAFETY: `instance` is null or a C string that lives through the call, by the caller.
        let named = (!instance.is_null()).then(|| unsafe { path(instance) });
        let attach = || {
            if MISFIT.load(Ordering::Acquire) {
                return Err(Errno::PROTO);
            }
            if has_interposer() {
                weir_client::process::process().init();
            }
            library::attach(named.transpose()?)
        };
        let done = attach().map(|()| 0);
        answer("weir_attach", named.and_then(Result::ok).unwrap_or(b""), done)
    }

    fn weir_detach() -> c_int {
        answer("weir_detach", b"", library::detach().map(|()| 0))
    }

    fn weir_laminate(file: *const c_char) -> c_int {
        with_path!("weir_laminate", file, |process, path| process.library.laminate_at(path).map(|()| 0))
    }

    fn weir_is_laminated(file: *const c_char) -> c_int {
        with_path!("weir_is_laminated", file, |process, path| {
            let about = process.library.file_info(path)?;
            Ok(c_int::from(about.attr.lamination == library::Lamination::Done))
        })
    }

    fn weir_sync(file: *const c_char) -> c_int {
        with_path!("weir_sync", file, |process, path| process.library.sync_at(path).map(|()| 0))
    }

    fn weir_get_visibility(file: *const c_char) -> c_int {
        with_path!("weir_get_visibility", file, |process, path| {
            Ok(number_of(process.library.file_info(path)?.attr.policy.visibility))
        })
    }

    fn weir_set_visibility(file: *const c_char, visibility: c_int) -> c_int {
        with_path!("weir_set_visibility", file, |process, path| {
            let visibility = visibility_of(visibility).ok_or(Errno::INVAL)?;
            process.library.set_visibility_at(path, visibility).map(|()| 0)
        })
    }

    fn weir_stat(file: *const c_char, out: *mut Stat) -> c_int {
        with_path!("weir_stat", file, |process, path| {
            // SAFETY: `out` is null or has room for one, by the caller.
            let out = unsafe { room(out, 1) }?;
            out[0].write(Stat::from(&process.library.file_info(path)?));
            Ok(0)
        })
    }

    fn weir_locate(file: *const c_char, out: *mut Location, count: size_t) -> c_int {
        with_path!("weir_locate", file, |process, path| {
            // SAFETY: `out` is null or has room for `count`, by the caller.
            let out = unsafe { room(out, count) }?;
            let layout = process.library.layout_at(path)?;
            for (place, (rank, tiers)) in out.iter_mut().zip(layout.servers()) {
                place.write(Location {
                    rank: rank.into(),
                    reserved: 0,
                    memory_bytes: tiers.memory_bytes,
                    file_bytes: tiers.file_bytes,
                });
            }
            Ok(c_int::try_from(layout.servers().count()).unwrap_or(c_int::MAX))
        })
    }

    fn weir_open(file: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        with_path!("weir_open", file, |process, path| process.library.open_at(path, flags, mode))
    }

    fn weir_close(fd: c_int) -> c_int {
        let close = || {
            let process = library::current()?;
            process.descriptors.close(fd).unwrap_or(Err(Errno::BADF)).map(|()| 0)
        };
        answer("weir_close", fd.to_string().as_bytes(), close())
    }

    fn weir_readv(first: *mut Io, count: size_t) -> c_int {
        // SAFETY: the list is null or has `count` elements that only this call uses, by the caller.
        let done = unsafe { list(first, count) }.and_then(|ios| {
            check_buffers(ios, true)?;
            // SAFETY: an element's path is null or a C string, and its buffer has `length` bytes, by the caller;
            // `check_buffers` saw that the buffers share no byte.
            let mut pieces = unsafe {
                pieces(ios, |io| match io.length {
                    0 => &mut [][..],
                    length => core::slice::from_raw_parts_mut(io.buffer.cast(), length),
                })
            }?;
            let done = library::read_list(&mut pieces);
            settle(ios, pieces.iter().map(|piece| (piece.whence, piece.done)), done)
        });
        answer_list("weir_readv", done)
    }

    fn weir_writev(first: *mut Io, count: size_t) -> c_int {
        // SAFETY: the list is null or has `count` elements that only this call uses, by the caller.
        let done = unsafe { list(first, count) }.and_then(|ios| {
            check_buffers(ios, false)?;
            // SAFETY: an element's path is null or a C string, and its buffer has `length` bytes that are not
            // written to meanwhile, by the caller.
            let mut pieces = unsafe {
                pieces(ios, |io| match io.length {
                    0 => &[][..],
                    length => core::slice::from_raw_parts(io.buffer.cast_const().cast(), length),
                })
            }?;
            let done = library::write_list(&mut pieces);
            settle(ios, pieces.iter().map(|piece| (piece.whence, piece.done)), done)
        });
        answer_list("weir_writev", done)
    }

    fn weir_transfer_start(first: *const TransferEntry, count: size_t, transfer: *mut u64) -> c_int {
        let start = || {
            // SAFETY: the list is null or has `count` entries, whose paths are null or C strings, by the caller.
            let files = unsafe { transfers(elements(first, count, MOST_FILES)?) }?;
            // SAFETY: `transfer` is null or has room for a number, by the caller.
            unsafe { store_id(transfer, || library::start_transfer(files)) }
        };
        answer("weir_transfer_start", b"", start())
    }

    fn weir_prefetch(first: *const *const c_char, count: size_t, transfer: *mut u64) -> c_int {
        let start = || {
            // SAFETY: the list is null or has `count` paths, each null or a C string, by the caller.
            let paths = unsafe {
                let paths = elements(first, count, MOST_FILES)?.iter();
                paths.map(|name| path(*name).map(<[u8]>::to_vec)).collect::<Result<Vec<_>, _>>()
            }?;
            // SAFETY: `transfer` is null or has room for a number, by the caller.
            unsafe { store_id(transfer, || library::start_prefetch(paths)) }
        };
        answer("weir_prefetch", b"", start())
    }

    fn weir_transfer_test(transfer: u64, results: *mut TransferResult, room: size_t) -> c_int {
        // SAFETY: `results` is null or has `room` of them, by the caller.
        unsafe { report("weir_transfer_test", transfer, Ok(Some(0)), results, room) }
    }

    fn weir_transfer_wait(transfer: u64, timeout_ms: c_int, results: *mut TransferResult, room: size_t) -> c_int {
        // SAFETY: `results` is null or has `room` of them, by the caller.
        unsafe { report("weir_transfer_wait", transfer, time_limit(timeout_ms), results, room) }
    }

    fn weir_transfer_cancel(transfer: u64) -> c_int {
        answer("weir_transfer_cancel", b"", library::cancel_transfer(transfer).map(|()| 0))
    }

    fn weir_drain_state(file: *const c_char, out: *mut FileDrain) -> c_int {
        with_path!("weir_drain_state", file, |path| {
            // SAFETY: `out` is null or has room for one, by the caller.
            let out = unsafe { room(out, 1) }?;
            out[0].write(FileDrain::from(&library::find_drain_state(path)?));
            Ok(0)
        })
    }

    fn weir_drain(file: *const c_char, timeout_ms: c_int) -> c_int {
        with_path!("weir_drain", file, |path| {
            library::drain(path, time_limit(timeout_ms)?).map(|is_safe| c_int::from(!is_safe))
        })
    }

    fn weir_strerror(error: c_int) -> *const c_char {
        meaning(error).as_ptr()
    }

    fn weir_message() -> *const c_char {
        last()
    }
}

/// Stores the number of a transfer that `start` begins.
///
/// # Safety
///
/// `place` is no address of the program's, or there is room for a number.
unsafe fn store_id(
    place: *mut u64,
    start: impl FnOnce() -> Result<u64, Errno>,
) -> Result<c_int, Errno> {
    // Before the start: a transfer without a number could not be given up.
    // SAFETY: `place` is no address of the program's or has room for a number, by the caller.
    let place = unsafe { room(place, 1) }?;
    place[0].write(start()?);
    Ok(0)
}

/// The answer about a transfer: 0, 1, or the error of its first file that has one.
///
/// # Safety
///
/// `results` is null or no address of the program's, or there is room for `count` of them.
unsafe fn report(
    name: &str,
    transfer: u64,
    limit_ms: Result<Option<u32>, Errno>,
    results: *mut TransferResult,
    count: usize,
) -> c_int {
    let count = if results.is_null() { 0 } else { count };
    // SAFETY: `results` is no address of the program's or has room for `count` of them, by the caller.
    let wanted = limit_ms.and_then(|limit_ms| Ok((unsafe { room(results, count) }?, limit_ms)));
    let report = wanted.and_then(|(places, limit_ms)| {
        let report = library::await_transfer(transfer, limit_ms)?;
        for (place, file) in places.iter_mut().zip(&report.files) {
            place.write(file.into());
        }
        Ok(report)
    });
    let report = match report {
        Ok(report) => report,
        Err(errno) => return answer(name, b"", Err(errno)),
    };
    let mut failed = report.files.iter().enumerate();
    match failed.find(|(_, file)| file.error != 0) {
        _ if !report.has_ended => 1,
        None => 0,
        Some((i, file)) => {
            let about = format!("file {i} of the transfer");
            answer(
                name,
                about.as_bytes(),
                Err(Errno::from_raw_os_error(file.error)),
            )
        }
    }
}

/// The result of a list: the error, and the file that it is of.
type ListDone = Result<Result<(), (Errno, Vec<u8>)>, Errno>;

/// Records the results of the pieces.
fn settle<'a>(
    ios: &mut [Io],
    done: impl Iterator<Item = (Whence<'a>, Result<usize, Errno>)>,
    all: Result<(), Errno>,
) -> ListDone {
    let mut failed = None;
    for (io, (whence, done)) in ios.iter_mut().zip(done) {
        io.result = result(done);
        if let (Err(errno), None) = (done, &failed) {
            failed = Some((errno, whence));
        }
    }
    let Some((errno, whence)) = failed else {
        return all.map(Ok);
    };
    let about = match whence {
        Whence::Fd(fd) => fd.to_string().into_bytes(),
        Whence::Path(path) => path.to_vec(),
    };
    Ok(Err((errno, about)))
}

fn answer_list(name: &str, done: ListDone) -> c_int {
    match done {
        Ok(Ok(())) => 0,
        Ok(Err((errno, about))) => answer(name, &about, Err(errno)),
        Err(errno) => answer(name, b"", Err(errno)),
    }
}
