//! Functions of libc that look at the file system from inside libc: realpath, getcwd, ftok,
//! mkstemp, tempnam and their like.

use core::ffi::{c_char, c_int};

use rustix::io::Errno;
use weir_client::process::process;

use crate::{bytes_of, calls, is_our_c_path, names, raw, status};

const PATH_MAX: usize = 4096;

mod next {
    use super::{c_char, c_int};

    crate::next::next_fn! {
        realpath: fn(*const c_char, *mut c_char) -> *mut c_char;
        canonicalize_file_name: fn(*const c_char) -> *mut c_char;
        getcwd: fn(*mut c_char, usize) -> *mut c_char;
        getwd: fn(*mut c_char) -> *mut c_char;
        get_current_dir_name: fn() -> *mut c_char;
        mkstemp: fn(*mut c_char) -> c_int;
        mkstemp64: fn(*mut c_char) -> c_int;
        mkostemp: fn(*mut c_char, c_int) -> c_int;
        mkostemp64: fn(*mut c_char, c_int) -> c_int;
        mkstemps: fn(*mut c_char, c_int) -> c_int;
        mkstemps64: fn(*mut c_char, c_int) -> c_int;
        mkostemps: fn(*mut c_char, c_int, c_int) -> c_int;
        mkostemps64: fn(*mut c_char, c_int, c_int) -> c_int;
        mkdtemp: fn(*mut c_char) -> *mut c_char;
        tempnam: fn(*const c_char, *const c_char) -> *mut c_char;
        ftok: fn(*const c_char, c_int) -> libc::key_t;
        __chk_fail: fn() -> ();
    }
}

pub use next::resolve_all as resolve;

/// Returns `text` to the caller: in `into`, of `room` bytes, or malloc'ed if that is null.
///
/// # Safety
///
/// `into` is null or `room` bytes are writable.
unsafe fn hand_over(text: &[u8], into: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: `into` is null or has `room` bytes, by the caller; malloc's memory, if there is any,
    // has room for `text` and its NUL.
    unsafe {
        let into = if into.is_null() {
            libc::malloc(room.max(text.len() + 1)).cast::<c_char>()
        } else if room <= text.len() {
            raw::set_errno(Errno::RANGE);
            return core::ptr::null_mut();
        } else if !crate::is_address(into) {
            return fails(Errno::FAULT);
        } else {
            into
        };
        if into.is_null() {
            raw::set_errno(Errno::NOMEM);
            return into;
        }
        core::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), text.len());
        into.add(text.len()).write(0);
        into
    }
}

fn fails(errno: Errno) -> *mut c_char {
    raw::set_errno(errno);
    core::ptr::null_mut()
}

/// Ends the program, as the C library does, if a fortified call needs more bytes than its compiler knew of.
fn check_room(needs: usize, have: usize) {
    if needs > have {
        if let Some(fail) = next::__chk_fail() {
            // SAFETY: it takes nothing.
            unsafe { fail() };
        }
        std::process::abort();
    }
}

/// # Safety
///
/// The caller meets the requirements of realpath(3).
unsafe fn real(path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    let mut buffer = [0; PATH_MAX];
    // SAFETY: `path` is null or a C string, and `into` is null or has PATH_MAX bytes, by the
    // caller.
    unsafe {
        let found = process().paths.realpath(bytes_of(path)?, &mut buffer)?;
        let room = if into.is_null() { 0 } else { PATH_MAX };
        Some(match found {
            Ok(n) => hand_over(&buffer[..n.min(buffer.len())], into, room),
            Err(errno) => fails(errno),
        })
    }
}

/// `realpath(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, and `into` is null or has PATH_MAX bytes, by the
        // caller.
        unsafe {
            real(path, into).unwrap_or_else(|| {
                next::realpath().map_or(core::ptr::null_mut(), |f| f(path, into))
            })
        }
    })
}

/// `realpath(3)`, fortified.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    have: usize,
) -> *mut c_char {
    crate::guarded(|| {
        check_room(PATH_MAX, have);
        // SAFETY: `path` is null or a C string, and `into` is null or has PATH_MAX bytes, by the
        // caller.
        unsafe { realpath(path, into) }
    })
}

/// `canonicalize_file_name(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, by the caller; null asks for memory of malloc.
        unsafe { realpath(path, core::ptr::null_mut()) }
    })
}

/// `getcwd(3)`. Without a buffer it mallocs one of `room` bytes, or if that is 0 of the size needed.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn getcwd(into: *mut c_char, room: usize) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `into` is null or has `room` bytes, by the caller.
        unsafe {
            match process().current_dir.getcwd() {
                None => next::getcwd().map_or(core::ptr::null_mut(), |f| f(into, room)),
                Some(_) if room == 0 && !into.is_null() => fails(Errno::INVAL),
                Some(Ok(path)) if room != 0 && room <= path.len() => fails(Errno::RANGE),
                Some(Ok(path)) => hand_over(&path, into, room),
                Some(Err(errno)) => fails(errno),
            }
        }
    })
}

/// `getcwd(3)`, fortified.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn __getcwd_chk(into: *mut c_char, room: usize, have: usize) -> *mut c_char {
    crate::guarded(|| {
        check_room(room, have);
        // SAFETY: `into` is null or has `room` bytes, by the caller.
        unsafe { getcwd(into, room) }
    })
}

/// `getwd(3)`: into `PATH_MAX` bytes.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn getwd(into: *mut c_char) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `into` is null or has PATH_MAX bytes, by the caller.
        unsafe {
            match process().current_dir.getcwd() {
                None => next::getwd().map_or(core::ptr::null_mut(), |f| f(into)),
                Some(_) if into.is_null() => fails(Errno::INVAL),
                Some(Ok(path)) if path.len() >= PATH_MAX => fails(Errno::NAMETOOLONG),
                Some(Ok(path)) => hand_over(&path, into, PATH_MAX),
                Some(Err(errno)) => fails(errno),
            }
        }
    })
}

/// `getwd(3)`, fortified.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn __getwd_chk(into: *mut c_char, have: usize) -> *mut c_char {
    crate::guarded(|| {
        if into.is_null() || have >= PATH_MAX {
            // SAFETY: `into` is null or has PATH_MAX bytes.
            return unsafe { getwd(into) };
        }
        // SAFETY: `into` has `have` bytes, by the caller.
        let path = unsafe { getcwd(into, have) };
        if path.is_null() && raw::errno() == libc::ERANGE {
            check_room(PATH_MAX, have);
        }
        path
    })
}

/// `get_current_dir_name(3)`: the value of `$PWD`, if it is set and right.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: C strings; null asks for memory of malloc.
        unsafe {
            let path = match process().current_dir.getcwd() {
                None => return next::get_current_dir_name().map_or(core::ptr::null_mut(), |f| f()),
                Some(Ok(path)) => path,
                Some(Err(errno)) => return fails(errno),
            };
            let named = libc::getenv(c"PWD".as_ptr());
            let shown = bytes_of(named).filter(|named| named.first() == Some(&b'/'));
            let is_here =
                || file_of(named).is_some_and(|file| Some(file) == file_of(c".".as_ptr()));
            let shown = shown.filter(|_| is_here()).unwrap_or(&path);
            hand_over(shown, core::ptr::null_mut(), 0)
        }
    })
}

/// The file system and the inode that a path names.
///
/// # Safety
///
/// `path` is null or a C string.
unsafe fn file_of(path: *const c_char) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: `path` is null or a C string, by the caller.
    let found = unsafe { status::stat_path(path, status::stat) };
    found.map(|stat| (stat.st_dev, stat.st_ino))
}

/// `ftok(3)`: made of the inode's and the file system's numbers, as in libc.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn ftok(path: *const c_char, project: c_int) -> libc::key_t {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, by the caller.
        unsafe {
            if !is_our_c_path(libc::AT_FDCWD, path) {
                return next::ftok().map_or(-1, |f| f(path, project));
            }
            file_of(path).map_or(-1, |(dev, ino)| {
                let key = (ino & 0xffff) | ((dev & 0xff) << 16) | ((project as u64 & 0xff) << 24);
                key as libc::key_t
            })
        }
    })
}

/// `tempnam(3)`: in `$TMPDIR`, else in the directory that is given, else in libc's default.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn tempnam(given: *const c_char, prefix: *const c_char) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `given` and `prefix` are null or C strings, by the caller, as is what getenv gives; `name` has
        // room for a template.
        unsafe {
            let is_directory = |path: *const c_char| {
                if path.is_null() {
                    return false; // and errno stays
                }
                let found = status::stat_path(path, status::stat);
                found.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
            };
            let named = libc::getenv(c"TMPDIR".as_ptr());
            let chosen = [named.cast_const(), given]
                .into_iter()
                .find(|dir| is_directory(*dir));
            let Some(dir) = chosen.filter(|dir| is_our_c_path(libc::AT_FDCWD, *dir)) else {
                return next::tempnam().map_or(core::ptr::null_mut(), |f| f(given, prefix));
            };
            let dir = bytes_of(dir).unwrap_or_default();
            let end = dir
                .iter()
                .rposition(|byte| *byte != b'/')
                .map_or(0, |last| last + 1);
            let prefix = bytes_of(prefix)
                .filter(|prefix| !prefix.is_empty())
                .unwrap_or(b"file");
            let prefix = &prefix[..prefix.len().min(5)];
            let template = [&dir[..end], b"/", prefix, b"XXXXXX"].concat();
            let name = hand_over(&template, core::ptr::null_mut(), 0);
            let is_free = || {
                let found = status::stat_path(name, status::lstat);
                let free = found.is_none() && raw::errno() == libc::ENOENT;
                if !free {
                    raw::set_errno(Errno::EXIST);
                }
                c_int::from(free) - 1
            };
            if !name.is_null() && with_random_name(name, 0, is_free) < 0 {
                libc::free(name.cast());
                return core::ptr::null_mut();
            }
            name
        }
    })
}

/// The maximum number of names to try.
const ATTEMPTS: u32 = 1 << 14;
/// The part of a template that becomes a random one.
const EMPTY_HOLES: &[u8; 6] = b"XXXXXX";
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// Fills the six X before the last `suffix` bytes of a template until `make` succeeds.
///
/// # Safety
///
/// `template` is a writable C string.
unsafe fn with_random_name(
    template: *mut c_char,
    suffix: c_int,
    mut make: impl FnMut() -> c_int,
) -> c_int {
    // SAFETY: `template` is no address of the program or a C string, by the caller.
    let length = unsafe { bytes_of(template) }.map_or(0, <[u8]>::len);
    let place = usize::try_from(suffix)
        .ok()
        .and_then(|suffix| length.checked_sub(suffix)?.checked_sub(6));
    let Some(place) = place else {
        raw::set_errno(Errno::INVAL);
        return -1;
    };
    let holes = template.wrapping_add(place).cast::<[u8; 6]>();
    let fill = |letters: &[u8; 6]| {
        // SAFETY: the six bytes lie within the template, which may be written to, by the caller. No reference to
        // them is kept: `make` reads the template.
        unsafe { holes.write_unaligned(*letters) };
    };
    // SAFETY: the six bytes lie within the template.
    if unsafe { holes.read_unaligned() } != *EMPTY_HOLES {
        raw::set_errno(Errno::INVAL);
        return -1;
    }
    let saved = raw::errno();
    for _ in 0..ATTEMPTS {
        fill(&random_letters());
        let made = make();
        if made >= 0 {
            raw::restore_errno(saved);
            return made;
        }
        if raw::errno() != libc::EEXIST {
            break;
        }
    }
    fill(EMPTY_HOLES);
    -1
}

fn random_letters() -> [u8; 6] {
    let mut random = [0u8; 8];
    // SAFETY: eight bytes to fill.
    unsafe {
        raw::syscall(
            libc::SYS_getrandom,
            [random.as_mut_ptr() as usize, 8, 0, 0, 0, 0],
        );
    }
    let mut value = u64::from_ne_bytes(random);
    [(); 6].map(|()| {
        let letter = LETTERS[usize::try_from(value % 62).unwrap_or(0)];
        value /= 62;
        letter
    })
}

/// # Safety
///
/// The caller meets the requirements of mkostemps(3).
unsafe fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: `template` is a C string that may be written to, by the caller.
    unsafe { with_random_name(template, suffix, || calls::open(template, flags, 0o600)) }
}

macro_rules! templates {
    ($($name:ident ($($p:ident),*) ($suffix:expr, $flags:expr);)*) => {$(
        /// `mkstemp(3)` or one of its kin.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name(template: *mut c_char, $($p: c_int),*) -> c_int {
            crate::guarded(|| {
                // SAFETY: `template` is a C string that may be written to, by the caller.
                unsafe {
                    if is_our_c_path(libc::AT_FDCWD, template) {
                        return make_file(template, $suffix, $flags);
                    }
                    crate::note_made(next::$name().map_or(-1, |f| f(template, $($p),*)))
                }
            })
        }
    )*};
}
templates! {
    mkstemp() (0, 0);
    mkstemp64() (0, 0);
    mkostemp(flags) (0, flags);
    mkostemp64(flags) (0, flags);
    mkstemps(suffix) (suffix, 0);
    mkstemps64(suffix) (suffix, 0);
    mkostemps(suffix, flags) (suffix, flags);
    mkostemps64(suffix, flags) (suffix, flags);
}

/// `mkdtemp(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    crate::guarded(|| {
        // SAFETY: `template` is a C string that may be written to, by the caller.
        unsafe {
            if !is_our_c_path(libc::AT_FDCWD, template) {
                return next::mkdtemp().map_or(core::ptr::null_mut(), |f| f(template));
            }
            match with_random_name(template, 0, || names::mkdir(template, 0o700)) {
                0 => template,
                _ => core::ptr::null_mut(),
            }
        }
    })
}
