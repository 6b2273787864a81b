//! Directory streams: `opendir(3)` and its family for our directories.
//!
//! libc's own streams call the kernel from inside libc. Ours are objects of our own. Their first eight
//! bytes differ from those of libc's streams, which hold a descriptor (never negative) and a lock.

use core::ffi::{c_char, c_int, c_long, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{dirent64, DIR};
use rustix::io::Errno;

use crate::{calls, is_ours, raw, status};

/// Its lower half would be the descriptor -2.
const MAGIC: u64 = 0x5745_4952_FFFF_FFFE;
/// The size of the buffer for entries, in bytes.
const BUFFER: usize = 32 << 10;

/// One of our streams. Threads may share it: POSIX requires that of readdir_r(3), and glibc locks its own in every
/// call that moves them.
#[repr(C)]
struct Stream {
    magic: u64,
    fd: c_int,
    entries: Mutex<Entries>,
}

struct Entries {
    /// The offset of the next entry in the buffer, and the number of bytes that are filled.
    at: usize,
    filled: usize,
    /// The position that telldir(3) returns.
    cookie: i64,
    /// Aligned as the kernel's entries are.
    buffer: Box<[u64]>,
}

/// The stream if it is one of ours.
///
/// # Safety
///
/// `dir` is null or a live stream, libc's or ours, that is not closed while the result is used.
unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a Stream> {
    // SAFETY: null, or a live stream by the caller. Each is at least eight bytes; one with our magic is ours.
    unsafe {
        if dir.is_null() || dir.cast::<u64>().read() != MAGIC {
            return None;
        }
        Some(&*dir.cast::<Stream>())
    }
}

fn new_stream(fd: c_int) -> *mut DIR {
    Box::into_raw(Box::new(Stream {
        magic: MAGIC,
        fd,
        entries: Mutex::new(Entries {
            at: 0,
            filled: 0,
            cookie: 0,
            buffer: vec![0; BUFFER / 8].into_boxed_slice(),
        }),
    }))
    .cast()
}

impl Stream {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next entry: null at the end, or with errno set on an error.
    fn next(&self) -> *mut dirent64 {
        let next = self.entries().next(self.fd);
        next.unwrap_or(core::ptr::null_mut())
    }

    fn seek(&self, cookie: i64) {
        let mut entries = self.entries();
        // SAFETY: no pointers.
        unsafe { calls::lseek(self.fd, cookie, libc::SEEK_SET) };
        (entries.at, entries.filled, entries.cookie) = (0, 0, cookie);
    }
}

impl Entries {
    /// The next entry: null at the end. An error is in errno, too.
    fn next(&mut self, fd: c_int) -> Result<*mut dirent64, Errno> {
        if self.at >= self.filled {
            // SAFETY: the buffer is BUFFER bytes of this stream.
            let got = unsafe { calls::getdents64(fd, self.buffer.as_mut_ptr().cast(), BUFFER) };
            self.at = 0;
            self.filled = usize::try_from(got).unwrap_or(0);
            if got < 0 {
                return Err(Errno::from_raw_os_error(raw::errno()));
            }
            if self.filled == 0 {
                return Ok(core::ptr::null_mut());
            }
        }
        let entry = self
            .buffer
            .as_mut_ptr()
            .cast::<u8>()
            .wrapping_add(self.at)
            .cast::<dirent64>();
        // SAFETY: the client fills the buffer with whole entries at multiples of 8.
        unsafe {
            self.at += usize::from((*entry).d_reclen).max(1);
            self.cookie = (*entry).d_off;
        }
        Ok(entry)
    }
}

mod next {
    use super::{c_char, c_int, c_long, c_void, dirent64, DIR};

    pub type Filter = Option<unsafe extern "C-unwind" fn(*const dirent64) -> c_int>;
    pub type Comparing =
        unsafe extern "C-unwind" fn(*mut *const dirent64, *mut *const dirent64) -> c_int;
    pub type Compare = Option<Comparing>;
    /// The type of the comparison function of qsort(3).
    pub type Plain = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

    crate::next::next_fn! {
        opendir: fn(*const c_char) -> *mut DIR;
        fdopendir: fn(c_int) -> *mut DIR;
        closedir: fn(*mut DIR) -> c_int;
        readdir: fn(*mut DIR) -> *mut dirent64;
        readdir64: fn(*mut DIR) -> *mut dirent64;
        readdir_r: fn(*mut DIR, *mut dirent64, *mut *mut dirent64) -> c_int;
        readdir64_r: fn(*mut DIR, *mut dirent64, *mut *mut dirent64) -> c_int;
        rewinddir: fn(*mut DIR) -> ();
        telldir: fn(*mut DIR) -> c_long;
        seekdir: fn(*mut DIR, c_long) -> ();
        dirfd: fn(*mut DIR) -> c_int;
        scandir: fn(*const c_char, *mut *mut *mut dirent64, Filter, Compare) -> c_int;
        scandir64: fn(*const c_char, *mut *mut *mut dirent64, Filter, Compare) -> c_int;
        scandirat: fn(c_int, *const c_char, *mut *mut *mut dirent64, Filter, Compare) -> c_int;
        scandirat64: fn(c_int, *const c_char, *mut *mut *mut dirent64, Filter, Compare) -> c_int;
    }
}

pub use next::resolve_all as resolve;
use next::{Compare, Filter};

const DIRECTORY: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

/// `opendir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, by the caller; dirfd gets a stream that libc has
        // just opened.
        unsafe {
            if !crate::is_our_c_path(libc::AT_FDCWD, path) {
                let opened = next::opendir().map_or(core::ptr::null_mut(), |f| f(path));
                if let Some(number) = next::dirfd().filter(|_| !opened.is_null()) {
                    crate::note_made(number(opened));
                }
                return opened;
            }
            let fd = calls::open(path, DIRECTORY, 0);
            match fd {
                fd if fd < 0 => core::ptr::null_mut(),
                fd if is_ours(fd) => new_stream(fd),
                fd => next::fdopendir().map_or(core::ptr::null_mut(), |f| f(fd)),
            }
        }
    })
}

/// `fdopendir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    crate::guarded(|| {
        // SAFETY: numbers only; the next library gets a descriptor that is not ours.
        unsafe {
            if !is_ours(fd) {
                return next::fdopendir().map_or(core::ptr::null_mut(), |f| f(fd));
            }
            let Some(stat) = status::stat_descriptor(fd) else {
                return core::ptr::null_mut();
            };
            if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
                raw::set_errno(Errno::NOTDIR);
                return core::ptr::null_mut();
            }
            new_stream(fd)
        }
    })
}

/// `closedir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn closedir(dir: *mut DIR) -> c_int {
    crate::guarded(|| {
        // SAFETY: `dir` is null or a live stream, which no thread uses any more, by the caller;
        // `new_stream` boxed ours.
        unsafe {
            if ours(dir).is_none() {
                return next::closedir().map_or(-1, |f| f(dir));
            }
            let mut stream = Box::from_raw(dir.cast::<Stream>());
            stream.magic = 0;
            calls::close(stream.fd)
        }
    })
}

macro_rules! readdirs {
    ($($name:ident)*) => {$(
        /// `readdir(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name(dir: *mut DIR) -> *mut dirent64 {
            crate::guarded(|| {
                // SAFETY: `dir` is null or a live stream, by the caller.
                unsafe {
                    match ours(dir) {
                        Some(stream) => stream.next(),
                        None => next::$name().map_or(core::ptr::null_mut(), |f| f(dir)),
                    }
                }
            })
        }
    )*};
}
readdirs! { readdir readdir64 }

macro_rules! readdir_rs {
    ($($name:ident)*) => {$(
        /// `readdir_r(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            dir: *mut DIR,
            entry: *mut dirent64,
            result: *mut *mut dirent64,
        ) -> c_int {
            crate::guarded(|| {
                // SAFETY: `dir` is a live stream, `entry` has room for an entry and `result` for a pointer, by
                // the caller. No other thread changes the stream's entry before it is copied.
                unsafe {
                    let Some(stream) = ours(dir) else {
                        return next::$name().map_or(libc::ENOSYS, |f| f(dir, entry, result));
                    };
                    *result = core::ptr::null_mut();
                    let mut entries = stream.entries();
                    let found = match entries.next(stream.fd) {
                        Ok(found) => found,
                        Err(errno) => return errno.raw_os_error(),
                    };
                    if !found.is_null() {
                        let bytes = usize::from((*found).d_reclen).min(size_of::<dirent64>());
                        core::ptr::copy_nonoverlapping(found.cast::<u8>(), entry.cast::<u8>(), bytes);
                        *result = entry;
                    }
                    0
                }
            })
        }
    )*};
}
readdir_rs! { readdir_r readdir64_r }

/// `rewinddir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn rewinddir(dir: *mut DIR) {
    crate::guarded(|| {
        // SAFETY: `dir` is null or a live stream, by the caller.
        unsafe {
            match (ours(dir), next::rewinddir()) {
                (Some(stream), _) => stream.seek(0),
                (None, Some(f)) => f(dir),
                (None, None) => {}
            }
        }
    });
}

/// `telldir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn telldir(dir: *mut DIR) -> c_long {
    crate::guarded(|| {
        // SAFETY: `dir` is null or a live stream, by the caller.
        unsafe {
            match ours(dir) {
                Some(stream) => stream.entries().cookie,
                None => next::telldir().map_or(-1, |f| f(dir)),
            }
        }
    })
}

/// `seekdir(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn seekdir(dir: *mut DIR, cookie: c_long) {
    crate::guarded(|| {
        // SAFETY: `dir` is null or a live stream, by the caller.
        unsafe {
            match (ours(dir), next::seekdir()) {
                (Some(stream), _) => stream.seek(cookie),
                (None, Some(f)) => f(dir, cookie),
                (None, None) => {}
            }
        }
    });
}

/// `dirfd(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn dirfd(dir: *mut DIR) -> c_int {
    crate::guarded(|| {
        // SAFETY: `dir` is null or a live stream, by the caller.
        unsafe {
            match ours(dir) {
                Some(stream) => stream.fd,
                None => next::dirfd().map_or(-1, |f| f(dir)),
            }
        }
    })
}

macro_rules! scandirs {
    ($($name:ident = $at:ident),*) => {$(
        /// `scandir(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent64,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` is null or a C string, `list` has room for a pointer, and the
            // functions take entries, by the caller.
            unsafe {
                if crate::is_our_c_path(libc::AT_FDCWD, path) {
                    return scan(libc::AT_FDCWD, path, list, filter, compare);
                }
                next::$name().map_or(-1, |f| f(path, list, filter, compare))
            }
        }

        /// `scandirat(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $at(
            fd: c_int,
            path: *const c_char,
            list: *mut *mut *mut dirent64,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` is null or a C string, `list` has room for a pointer, and the
            // functions take entries, by the caller.
            unsafe {
                if crate::is_our_c_path(fd, path) {
                    return scan(fd, path, list, filter, compare);
                }
                next::$at().map_or(-1, |f| f(fd, path, list, filter, compare))
            }
        }
    )*};
}
scandirs! { scandir = scandirat, scandir64 = scandirat64 }

/// `scandirat(3)` for our directory: the list and its entries are malloc'ed, since the
/// caller frees them.
///
/// # Safety
///
/// The caller meets the requirements of scandirat(3).
unsafe fn scan(
    at: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
) -> c_int {
    let saved = raw::errno();
    // SAFETY: `path` is a C string, `list` has room for a pointer, and the functions take entries and addresses of
    // entries, by the caller. The array that qsort sorts is ours, and what is copied fits the array of malloc.
    let scanned = unsafe {
        scan_entries(at, path, filter).and_then(|mut copies| {
            if let Some(compare) = compare {
                // By qsort(3): the caller's function need not be an order, and may rely on how qsort calls
                // it.
                let compare = core::mem::transmute::<next::Comparing, next::Plain>(compare);
                let size = size_of::<*mut dirent64>();
                let (first, count) = (copies.0.as_mut_ptr(), copies.0.len());
                libc::qsort(first.cast(), count, size, Some(compare));
            }
            let count = copies.0.len();
            let array = libc::malloc(count.max(1) * size_of::<*mut dirent64>());
            if array.is_null() {
                return Err(Errno::NOMEM);
            }
            core::ptr::copy_nonoverlapping(copies.0.as_ptr(), array.cast(), count);
            copies.0.clear();
            *list = array.cast();
            Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
        })
    };
    raw::restore_errno(saved);
    crate::finish(scanned)
}

/// Copies of entries, in memory of malloc.
struct ScannedEntries(Vec<*mut dirent64>);

impl Drop for ScannedEntries {
    fn drop(&mut self) {
        for copy in &self.0 {
            // SAFETY: it came from malloc, and the program did not get it.
            unsafe { libc::free(copy.cast()) };
        }
    }
}

/// A stream that is open, or null.
struct OpenStream(*mut DIR);

impl Drop for OpenStream {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it is open, and nothing else uses it.
            unsafe { closedir(self.0) };
        }
    }
}

/// Copies the entries of a directory that pass the filter.
///
/// # Safety
///
/// `path` is a C string; `filter` is null or a function that takes an entry.
unsafe fn scan_entries(
    at: c_int,
    path: *const c_char,
    filter: Filter,
) -> Result<ScannedEntries, Errno> {
    let errno = || Errno::from_raw_os_error(raw::errno());
    // SAFETY: `path` is a C string, and `filter` takes an entry, by the caller. An entry lives until the next is
    // read from the stream, which is used here alone, and malloc gave room for the copy.
    unsafe {
        let fd = calls::openat(at, path, DIRECTORY, 0);
        if fd < 0 {
            return Err(errno());
        }
        let dir = OpenStream(fdopendir(fd));
        if dir.0.is_null() {
            let errno = errno();
            calls::close(fd);
            return Err(errno);
        }
        let mut copies = ScannedEntries(Vec::new());
        loop {
            raw::restore_errno(0);
            let entry = readdir64(dir.0);
            if entry.is_null() {
                return match raw::errno() {
                    0 => Ok(copies),
                    _ => Err(errno()),
                };
            }
            if filter.is_some_and(|f| f(entry) == 0) {
                continue;
            }
            let bytes = usize::from((*entry).d_reclen);
            let copy = libc::malloc(bytes);
            if copy.is_null() {
                return Err(Errno::NOMEM);
            }
            core::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), bytes);
            copies.0.push(copy.cast());
        }
    }
}
