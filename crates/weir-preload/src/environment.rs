//! The environment of a new program: it keeps the variables that load the interposer, also if the caller
//! wrote an environment of its own.
//!
//! The client prepares descriptors before they are shared: a new program finds them by the state that
//! the kernel keeps, see `weir_core::node::ofd`.

use core::ffi::{c_char, c_void, CStr};
use std::ffi::CString;
use std::sync::OnceLock;

use rustix::io::Errno;
use weir_client::process::{own_pid, process};

use crate::{attempt, bytes_of};

pub(crate) type Strings = *const *const c_char;

/// An environment for a new program: the caller's, with the variables that load the interposer.
struct Environment {
    /// The strings that we added, kept alive.
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// The path by which the loader knows this library, and the instance at the start of this program. A
/// program that changes its environment does not take the programs that it starts out of the instance;
/// to do that it sets the variable to nothing.
struct Origin {
    library: Vec<u8>,
    instance: Vec<u8>,
    /// The path at which programs see the instance, if one was given.
    at: Option<Vec<u8>>,
    /// The connectors that programs get, if they are named.
    connectors: Option<Vec<u8>>,
}

static ORIGIN: OnceLock<Origin> = OnceLock::new();

const PRELOAD: &CStr = c"LD_PRELOAD";
const INSTANCE: &CStr = c"WEIR_INSTANCE";
const AT: &CStr = c"WEIR_AT";
/// The names of the connectors that programs get, separated by commas; see [`crate::connectors`].
const CONNECTORS: &CStr = c"WEIR_CONNECTORS";
/// See [`weir_client::process::NOTHING_VARIABLE`].
const NOTHING: &CStr = c"WEIR_NOTHING_INHERITED";
/// AddressSanitizer's runtime refuses to start behind another library; behind this one it works.
const ASAN: &CStr = c"ASAN_OPTIONS";
const ASAN_ORDER: &[u8] = b"verify_asan_link_order=0";

/// Removes the variables that were meant for this program alone from the environment. Called by the
/// constructor. Not by `unsetenv`: a program may have a function of that name, which is not ready yet
/// (bash).
pub fn forget_heritage() {
    // SAFETY: the environment, which no other thread uses yet: pointers to C strings, null after the
    // last; the remaining pointers are moved forward within it.
    unsafe {
        let mut to = environ.cast_mut();
        for entry in entries(environ) {
            if value_in(entry, NOTHING).is_none() {
                to.write(entry);
                to = to.add(1);
            }
        }
        if !to.is_null() {
            to.write(core::ptr::null());
        }
    }
}

/// Remembers the variables that loaded the interposer into this program.
pub fn remember_origin() {
    if let Some((library, instance)) = own_path().zip(variable(INSTANCE)) {
        let _ = ORIGIN.set(Origin {
            library,
            instance,
            at: variable(AT),
            connectors: variable(CONNECTORS),
        });
    }
}

/// The path by which the loader knows this library.
pub(crate) fn own_path() -> Option<Vec<u8>> {
    // SAFETY: all zero is a value of it; the address is of this library.
    let (found, here) = unsafe {
        let mut here = core::mem::zeroed::<libc::Dl_info>();
        let address = remember_origin as fn() as *const c_void;
        (libc::dladdr(address, &raw mut here), here)
    };
    // SAFETY: null, or the name of this library, which stays loaded.
    let library = unsafe { bytes_of(here.dli_fname) }.filter(|_| found != 0);
    library.map(<[u8]>::to_vec)
}

/// The names of the connectors that this program gets: those at its start, or, in a program outside of an instance, those of now.
pub(crate) fn connectors() -> Option<Vec<u8>> {
    match ORIGIN.get() {
        Some(origin) => origin.connectors.clone(),
        None => variable(CONNECTORS),
    }
}

/// The value of a variable of this program.
pub(crate) fn variable(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: a C string, and null or another one, which is copied at once. C has no thread change the environment
    // while another one reads it.
    unsafe { bytes_of(libc::getenv(name.as_ptr())) }.map(<[u8]>::to_vec)
}

/// The variables, with their values, that an environment lacks to load the interposer into a new
/// program; `inherits`: the program may inherit descriptors of weir's.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
pub(crate) unsafe fn lacking(envp: Strings, inherits: bool) -> Vec<(&'static CStr, CString)> {
    let Some(origin) = ORIGIN.get().filter(|_| process().is_active()) else {
        return Vec::new();
    };
    // The loader uses the last of two entries of a name, libc the first.
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller; the value is
    // used in this function only.
    let value = |name: &'static CStr| unsafe {
        let mut values = values_of(envp, name);
        match name == PRELOAD {
            true => values.last(),
            false => values.next(),
        }
    };
    let mut lacking = Vec::new();
    if value(INSTANCE).is_some_and(<[u8]>::is_empty) {
        return lacking;
    }
    let preload = match value(PRELOAD) {
        Some(b"") => None,
        None => Some(origin.library.clone()),
        Some(others) => {
            let mut all = others.split(|byte| b": ".contains(byte));
            let has = all.any(|library| library == origin.library);
            (!has).then(|| [&origin.library, &b":"[..], others].concat())
        }
    };
    let named = value(INSTANCE);
    let instance = named.is_none().then(|| origin.instance.clone());
    // The value of another instance would be wrong.
    let same = named.is_none_or(|named| named == origin.instance);
    let at = origin.at.clone().filter(|_| same && value(AT).is_none());
    let connectors = origin.connectors.clone();
    let connectors = connectors.filter(|_| same && value(CONNECTORS).is_none());
    let asan = match value(ASAN) {
        None | Some(b"") => Some(ASAN_ORDER.to_vec()),
        Some(options) => {
            let name = &ASAN_ORDER[..ASAN_ORDER.len() - 2];
            let is_said = options.windows(name.len()).any(|part| part == name);
            (!is_said).then(|| [options, &b":"[..], ASAN_ORDER].concat())
        }
    };
    let all = [
        (PRELOAD, preload),
        (INSTANCE, instance),
        (AT, at),
        (CONNECTORS, connectors),
        (ASAN, asan),
        (NOTHING, (!inherits).then(|| own_pid().to_string().into())),
    ];
    for (name, value) in all {
        // Parts of C strings have no 0.
        lacking.extend(value.and_then(|value| Some((name, CString::new(value).ok()?))));
    }
    lacking
}

/// True if an environment says that a program is to start outside of the instance, or without the interposer.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
pub(crate) unsafe fn keeps_us_out(envp: Strings) -> bool {
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    unsafe {
        let instance = values_of(envp, INSTANCE).next();
        let preload = values_of(envp, PRELOAD).last();
        instance == Some(b"") || preload == Some(b"")
    }
}

/// The entries of an environment.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
pub(crate) unsafe fn entries(envp: Strings) -> impl Iterator<Item = *const c_char> {
    let mut at = envp;
    core::iter::from_fn(move || {
        // SAFETY: `at` is null or an element of the caller's array: it does not pass the null that
        // ends it.
        let entry = unsafe { at.as_ref() }.copied().filter(|e| !e.is_null())?;
        at = at.wrapping_add(1);
        Some(entry)
    })
}

/// # Safety
///
/// See `entries`; the strings live as long as the values are used.
unsafe fn values_of<'a>(envp: Strings, name: &'static CStr) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: `envp` is such an array, and its strings outlive the values, by the caller.
    unsafe { entries(envp).filter_map(move |entry| value_in(entry, name)) }
}

/// The value in an entry of an environment, if it is of this name.
///
/// # Safety
///
/// `entry` is a C string, which lives as long as the value is used.
pub(crate) unsafe fn value_in<'a>(entry: *const c_char, name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: `entry` is a C string that outlives the value, by the caller.
    let rest = unsafe { bytes_of(entry) }?.strip_prefix(name.to_bytes())?;
    rest.strip_prefix(b"=")
}

/// The environment to use instead of `envp`; `None`: `envp` is complete.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
unsafe fn completed(envp: Strings, inherits: bool) -> Option<Environment> {
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    let lacking = unsafe { lacking(envp, inherits) };
    if lacking.is_empty() {
        return None;
    }
    let entry = |(name, value): &(&CStr, CString)| {
        CString::new([name.to_bytes(), b"=", value.to_bytes()].concat()).ok()
    };
    let owned: Vec<CString> = lacking.iter().filter_map(entry).collect();
    let mut pointers: Vec<_> = owned.iter().map(|entry| entry.as_ptr()).collect();
    // SAFETY: as for `lacking`; `pointers` is used only while the strings live, by the caller.
    unsafe {
        let mut at = envp;
        while !at.is_null() && !(*at).is_null() {
            // The loader uses the last of two entries of a name, libc the first.
            if lacking
                .iter()
                .all(|(name, _)| value_in(*at, name).is_none())
            {
                pointers.push(*at);
            }
            at = at.add(1);
        }
    }
    pointers.push(core::ptr::null());
    Some(Environment {
        _owned: owned,
        pointers,
    })
}

/// Runs `exec` with a complete environment and prepared descriptors. Returns only if the exec failed. An
/// error: one of our assertions failed before.
///
/// # Safety
///
/// See `completed`.
pub(crate) unsafe fn with_environment<T>(
    envp: Strings,
    exec: impl FnOnce(Strings) -> T,
) -> Result<T, Errno> {
    let inherits = attempt(|| process().forks.before_exec())?;
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    unsafe { with_variables(envp, inherits, exec) }
}

/// Calls `start` with this environment, completed; `inherits`: see `lacking`. An error: one of our
/// assertions failed before.
///
/// # Safety
///
/// See `completed`.
pub(crate) unsafe fn with_variables<T>(
    envp: Strings,
    inherits: bool,
    start: impl FnOnce(Strings) -> T,
) -> Result<T, Errno> {
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    let environment = attempt(|| unsafe { completed(envp, inherits) })?;
    Ok(start(
        environment.as_ref().map_or(envp, |e| e.pointers.as_ptr()),
    ))
}

extern "C" {
    pub(crate) static environ: Strings;
}
