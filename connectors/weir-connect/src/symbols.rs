//! Functions and variables of other libraries, found by name at run time.

use core::ffi::{c_int, c_void, CStr};
use std::ffi::CString;

/// How the file names of the libraries begin that connectors know.
const LIBRARIES: [&[u8]; 3] = [b"libmpi", b"libpnetcdf", b"libhdf5"];

/// Where the search for a symbol begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// With the program: all libraries in their order.
    All,
    /// Behind the library that asks: what this one replaces is not found again.
    Behind,
}

/// A function by its name, behind this library.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
pub unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = find_symbol(Search::Behind, name)?;
    // SAFETY: as the caller vouches; the sizes are the same.
    Some(unsafe { core::mem::transmute_copy(&address) })
}

/// The address of a symbol: the first one that the search meets, else that of a library of [`LIBRARIES`] that was loaded for
/// another library alone, as by a module of Python.
pub fn find_symbol(search: Search, name: &CStr) -> Option<*mut c_void> {
    let order = match search {
        Search::All => libc::RTLD_DEFAULT,
        Search::Behind => libc::RTLD_NEXT,
    };
    // SAFETY: a C string.
    let address = unsafe { libc::dlsym(order, name.as_ptr()) };
    if !address.is_null() {
        return Some(address);
    }
    let mut libraries: Vec<CString> = Vec::new();
    // SAFETY: `note_library` has the type that is expected, and gets a pointer to `libraries`.
    unsafe { libc::dl_iterate_phdr(Some(note_library), (&raw mut libraries).cast()) };
    libraries.iter().find_map(|library| {
        // SAFETY: C strings. The library stays: it was loaded before, and its count of users is only raised.
        let address = unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, name.as_ptr())
        };
        (!address.is_null()).then_some(address)
    })
}

/// Notes the name of a library of [`LIBRARIES`].
///
/// # Safety
///
/// As `dl_iterate_phdr` calls it; `libraries` is a `Vec<CString>`.
unsafe extern "C" fn note_library(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    libraries: *mut c_void,
) -> c_int {
    // SAFETY: as the caller vouches; a name is null or a C string.
    unsafe {
        let libraries = &mut *libraries.cast::<Vec<CString>>();
        let name = (*info).dlpi_name;
        if !name.is_null() {
            let name = CStr::from_ptr(name);
            let file = name.to_bytes().rsplit(|byte| *byte == b'/').next();
            if file.is_some_and(|file| LIBRARIES.iter().any(|known| file.starts_with(known))) {
                libraries.push(name.to_owned());
            }
        }
    }
    0
}
