//! `glob(3)` and `wordexp(3)`: libc looks at directories from inside.
//!
//! glob accepts functions for looking at directories (GLOB_ALTDIRFUNC). The wrapper passes the
//! interposed functions, which call libc's outside weir. wordexp accepts none: if a word of its result
//! still has a pattern, a shell expands it, as POSIX describes wordexp.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use libc::glob64_t;

use crate::{bytes_of, dir, status};

type OnError = Option<unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int>;

/// `wordexp_t`.
#[repr(C)]
pub struct Words {
    count: usize,
    array: *mut *mut c_char,
    offset: usize,
}

mod next {
    use super::{c_char, c_int, glob64_t, OnError, Words};

    crate::next::next_fn! {
        glob: fn(*const c_char, c_int, OnError, *mut glob64_t) -> c_int;
        glob64: fn(*const c_char, c_int, OnError, *mut glob64_t) -> c_int;
        wordexp: fn(*const c_char, *mut Words, c_int) -> c_int;
        wordfree: fn(*mut Words) -> ();
    }
}

pub use next::resolve_all as resolve;

/// The first fields of `glob_t`: the libc crate keeps the functions private.
#[repr(C)]
struct Looking {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

macro_rules! globs {
    ($($name:ident)*) => {$(
        /// `glob(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: OnError,
            found: *mut glob64_t,
        ) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `found` is a structure that only this call uses, by the caller; it begins as
            // `Looking` says. The functions stored there live as long as the process.
            unsafe {
                let Some(next) = next::$name() else {
                    return libc::GLOB_NOSPACE;
                };
                if flags & GLOB_ALTDIRFUNC != 0 || !crate::is_active() || found.is_null() {
                    return next(pattern, flags, on_error, found);
                }
                let looking = found.cast::<Looking>();
                (*looking).closedir = dir::closedir as *const c_void;
                (*looking).readdir = dir::readdir64 as *const c_void;
                (*looking).opendir = dir::opendir as *const c_void;
                (*looking).lstat = status::lstat as *const c_void;
                (*looking).stat = status::stat as *const c_void;
                let done = next(pattern, flags | GLOB_ALTDIRFUNC, on_error, found);
                (*looking).flags &= !GLOB_ALTDIRFUNC;
                done
            }
        }
    )*};
}
globs! { glob glob64 }

const WRDE_DOOFFS: c_int = 1;
const WRDE_APPEND: c_int = 2;
const WRDE_NOCMD: c_int = 4;
const WRDE_REUSE: c_int = 8;
const WRDE_SHOWERR: c_int = 16;
const WRDE_UNDEF: c_int = 32;
const WRDE_NOSPACE: c_int = 1;
const WRDE_CMDSUB: c_int = 4;
const WRDE_SYNTAX: c_int = 5;

/// `wordexp(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn wordexp(
    text: *const c_char,
    into: *mut Words,
    flags: c_int,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `text` is null or a C string, and `into` is a structure as `flags` requires it, by
    // the caller; libc has filled `tried` where its words are read.
    unsafe {
        let Some(next) = next::wordexp() else {
            return WRDE_NOSPACE;
        };
        let given = bytes_of(text).unwrap_or_default();
        if !crate::is_active() || !has_pattern(given) {
            return next(text, into, flags);
        }
        // The result of libc for the words, without looking at files and without running a command
        // twice.
        let mut tried = Words {
            count: 0,
            array: core::ptr::null_mut(),
            offset: 0,
        };
        let quiet = flags & (WRDE_UNDEF | WRDE_SHOWERR);
        let done = next(text, &raw mut tried, quiet | WRDE_NOCMD);
        let to_shell = match done {
            0 => {
                let mut left = words_of(&tried);
                let is_left = left.any(|word| has_pattern(word.to_bytes()));
                free(&raw mut tried);
                is_left
            }
            WRDE_CMDSUB => flags & WRDE_NOCMD == 0,
            _ => return done,
        };
        if !to_shell {
            return next(text, into, flags);
        }
        match expand_in_shell(given, flags) {
            Ok(words) => hand_over(&words, into, flags),
            Err(code) => code,
        }
    }
}

fn has_pattern(word: &[u8]) -> bool {
    word.iter().any(|byte| b"*?[".contains(byte))
}

/// # Safety
///
/// wordexp filled `words`, whose strings no code uses any more.
unsafe fn free(words: *mut Words) {
    if let Some(free) = next::wordfree() {
        // SAFETY: wordexp filled `words`, by the caller.
        unsafe { free(words) };
    }
}

/// The words in the structure that wordexp filled.
///
/// # Safety
///
/// libc's wordexp filled it; it is freed after the last use of the words.
unsafe fn words_of<'a>(words: &Words) -> impl Iterator<Item = &'a CStr> {
    let (first, count) = (words.array, words.count);
    // SAFETY: libc's wordexp filled `words`, by the caller: `count` C strings, which outlive the
    // result.
    (0..count).map(move |i| unsafe { CStr::from_ptr(*first.add(i)) })
}

/// Expands the words in a shell; WRDE_SYNTAX if the shell cannot.
fn expand_in_shell(text: &[u8], flags: c_int) -> Result<Vec<Vec<u8>>, c_int> {
    // The first word marks success.
    const SCRIPT: &str = "eval \"printf '%s\\0' x $1\"";
    let mut shell = Command::new("/bin/sh");
    if flags & WRDE_UNDEF != 0 {
        shell.arg("-u");
    }
    shell
        .args(["-c", SCRIPT, "sh"])
        .arg(OsStr::from_bytes(text));
    shell.stdin(Stdio::inherit()).stdout(Stdio::piped());
    if flags & WRDE_SHOWERR == 0 {
        shell.stderr(Stdio::null());
    }
    let said = shell.output().map_err(|_| WRDE_NOSPACE)?;
    let mut words = said.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec);
    if words.next().as_deref() != Some(b"x") {
        return Err(WRDE_SYNTAX);
    }
    let mut words: Vec<_> = words.collect();
    words.pop();
    Ok(words)
}

/// Returns the words to the caller of wordexp, in memory of malloc.
///
/// # Safety
///
/// The caller meets the requirements of wordexp(3).
unsafe fn hand_over(words: &[Vec<u8>], into: *mut Words, flags: c_int) -> c_int {
    // SAFETY: `into` is a structure as `flags` requires it, by the caller; each write is within
    // memory allocated for it.
    unsafe {
        if flags & WRDE_REUSE != 0 {
            free(into);
        }
        let offset = match flags & WRDE_DOOFFS {
            0 => 0,
            _ => (*into).offset,
        };
        let appended = flags & WRDE_APPEND != 0 && flags & WRDE_REUSE == 0;
        let (old, before) = match appended {
            true => ((*into).array, (*into).count),
            false => (core::ptr::null_mut(), 0),
        };
        let bytes = offset
            .checked_add(before + words.len() + 1)
            .and_then(|slots| slots.checked_mul(size_of::<*mut c_char>()));
        let array = bytes.map_or(core::ptr::null_mut(), |bytes| {
            libc::realloc(old.cast(), bytes)
        });
        let array = array.cast::<*mut c_char>();
        if array.is_null() {
            // The program may free what there is: what was there before, or nothing.
            ((*into).array, (*into).count) = (old, before);
            return WRDE_NOSPACE;
        }
        if !appended {
            core::ptr::write_bytes(array, 0, offset);
        }
        (*into).array = array;
        (*into).offset = offset;
        (*into).count = before;
        for word in words {
            let copy = libc::malloc(word.len() + 1).cast::<u8>();
            if copy.is_null() {
                break;
            }
            core::ptr::copy_nonoverlapping(word.as_ptr(), copy, word.len());
            copy.add(word.len()).write(0);
            array.add(offset + (*into).count).write(copy.cast());
            (*into).count += 1;
        }
        array
            .add(offset + (*into).count)
            .write(core::ptr::null_mut());
        match (*into).count == before + words.len() {
            true => 0,
            false => WRDE_NOSPACE,
        }
    }
}
