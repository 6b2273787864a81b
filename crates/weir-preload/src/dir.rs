//! Directory streams: `opendir(3)` and its family for our directories.
//!
//! libc's own streams call the kernel from inside libc. Ours are objects of our own. Their first eight
//! bytes differ from those of libc's streams, which hold a descriptor (never negative) and a lock.

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{dirent64, DIR};
use rustix::io::Errno;

use crate::{calls, is_ours, raw};

/// Its lower half would be the descriptor -2.
const MAGIC: u64 = 0x5745_4952_FFFF_FFFE;
/// The size of the buffer for entries, in bytes.
const BUFFER: usize = 32 << 10;

/// One of our streams. The buffer is aligned as the kernel's entries are.
#[repr(C)]
struct Stream {
    magic: u64,
    fd: c_int,
    /// The offset of the next entry in the buffer, and the number of bytes that are filled.
    at: usize,
    filled: usize,
    /// The position that telldir(3) returns.
    cookie: i64,
    buffer: [u64; BUFFER / 8],
}

/// The stream if it is one of ours.
///
/// # Safety
///
/// `dir` is null or a live stream, libc's or ours.
unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a mut Stream> {
    // SAFETY: every live stream is at least eight bytes; one with our magic is ours,
    // and its caller is its only user (POSIX: a stream is not shared unlocked).
    unsafe {
        if dir.is_null() || dir.cast::<u64>().read() != MAGIC {
            return None;
        }
        Some(&mut *dir.cast::<Stream>())
    }
}

#[allow(clippy::large_stack_arrays)] // built in place in the heap when optimised
fn new_stream(fd: c_int) -> *mut DIR {
    Box::into_raw(Box::new(Stream {
        magic: MAGIC,
        fd,
        at: 0,
        filled: 0,
        cookie: 0,
        buffer: [0; BUFFER / 8],
    }))
    .cast()
}

impl Stream {
    /// The next entry: null at the end, or with errno set on an error.
    fn next(&mut self) -> *mut dirent64 {
        if self.at >= self.filled {
            // SAFETY: the buffer is BUFFER bytes of this stream.
            let got = unsafe {
                calls::getdents64(self.fd, self.buffer.as_mut_ptr().cast::<c_void>(), BUFFER)
            };
            self.at = 0;
            self.filled = usize::try_from(got).unwrap_or(0);
            if self.filled == 0 {
                return core::ptr::null_mut();
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
        entry
    }

    fn seek(&mut self, cookie: i64) {
        // SAFETY: no pointers.
        unsafe { calls::lseek(self.fd, cookie, libc::SEEK_SET) };
        (self.at, self.filled, self.cookie) = (0, 0, cookie);
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
        // SAFETY: as the caller vouches.
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
        // SAFETY: as the caller vouches.
        unsafe {
            if !is_ours(fd) {
                return next::fdopendir().map_or(core::ptr::null_mut(), |f| f(fd));
            }
            let mut stat = core::mem::zeroed::<libc::stat>();
            if calls::fstat(fd, &raw mut stat) < 0 {
                return core::ptr::null_mut();
            }
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
        // SAFETY: as the caller vouches; our streams come from `new_stream`.
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
                // SAFETY: as the caller vouches.
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
                // SAFETY: as the caller vouches; an entry of ours fits a dirent64, whose
                // name takes 256 bytes.
                unsafe {
                    let Some(stream) = ours(dir) else {
                        return next::$name().map_or(libc::ENOSYS, |f| f(dir, entry, result));
                    };
                    let found = stream.next();
                    *result = core::ptr::null_mut();
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
        // SAFETY: as the caller vouches.
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
        // SAFETY: as the caller vouches.
        unsafe {
            match ours(dir) {
                Some(stream) => stream.cookie,
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
        // SAFETY: as the caller vouches.
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
        // SAFETY: as the caller vouches.
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
            // SAFETY: as the caller vouches.
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
            // SAFETY: as the caller vouches.
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
    // SAFETY: as the caller vouches; entries come from our own stream.
    unsafe {
        let fd = calls::openat(at, path, DIRECTORY, 0);
        if fd < 0 {
            return -1;
        }
        let dir = fdopendir(fd);
        if dir.is_null() {
            calls::close(fd);
            return -1;
        }
        let mut found: Vec<*mut dirent64> = Vec::new();
        loop {
            let entry = readdir64(dir);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|f| f(entry) == 0) {
                continue;
            }
            let bytes = usize::from((*entry).d_reclen);
            let copy = libc::malloc(bytes);
            if copy.is_null() {
                break;
            }
            core::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), bytes);
            found.push(copy.cast());
        }
        closedir(dir);
        if let Some(compare) = compare {
            // By qsort(3): the caller's function need not be an order, and may rely on how qsort calls
            // it.
            let compare = core::mem::transmute::<next::Comparing, next::Plain>(compare);
            let size = size_of::<*mut dirent64>();
            libc::qsort(found.as_mut_ptr().cast(), found.len(), size, Some(compare));
        }
        let array = libc::malloc(found.len().max(1) * size_of::<*mut dirent64>());
        if array.is_null() {
            raw::set_errno(Errno::NOMEM);
            return -1;
        }
        core::ptr::copy_nonoverlapping(found.as_ptr(), array.cast(), found.len());
        *list = array.cast();
        c_int::try_from(found.len()).unwrap_or(c_int::MAX)
    }
}
