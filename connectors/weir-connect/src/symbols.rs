//! Functions and variables of other libraries, found by name at run time.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::CString;
use std::sync::OnceLock;

/// The prefixes of the file names of the libraries that connectors know.
const LIBRARIES: [&[u8]; 3] = [b"libmpi", b"libpnetcdf", b"libhdf5"];

/// Where the search for a symbol begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// With the program: all libraries in their order.
    All,
    /// Behind this library: symbols that it replaces are skipped.
    Behind,
}

/// A search behind the interposer: the address of the symbol of a name, or null.
pub type InterposerSearch = extern "C" fn(*const c_char) -> *mut c_void;

/// The search behind the interposer, which has functions of the same names as a connector; empty in a connector that was preloaded.
static BEHIND_INTERPOSER: OnceLock<InterposerSearch> = OnceLock::new();

/// Uses a search of the interposer's from now on. A library that was not loaded at the start of the program cannot search behind
/// itself.
pub fn search_by(search: InterposerSearch) {
    // Another thread may have stored the same.
    let _ = BEHIND_INTERPOSER.set(search);
}

/// Finds a function by its name, behind this library.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
pub unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    let address = find_symbol(Search::Behind, name)?;
    // SAFETY: `F` is the type of a pointer to the function of this name, by the caller.
    Some(unsafe { as_function(address) })
}

/// # Safety
///
/// `F` is the type of a pointer to the function at the address.
unsafe fn as_function<F: Copy>(address: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the sizes are the same, and the address is that of a function of this type, by the caller.
    unsafe { core::mem::transmute_copy(&address) }
}

/// The address of a symbol: the first one in the order of the search. If there is none: see [`find_in_known_libraries`].
pub fn find_symbol(search: Search, name: &CStr) -> Option<*mut c_void> {
    let first = match search {
        Search::All => look_up(libc::RTLD_DEFAULT, name),
        Search::Behind => match BEHIND_INTERPOSER.get() {
            Some(search) => {
                let address = search(name.as_ptr());
                (!address.is_null()).then_some(address)
            }
            None => find_behind_caller(name),
        },
    };
    first.or_else(|| find_in_known_libraries(name))
}

/// The address of a symbol behind the library that has this code, which was preloaded.
pub fn find_behind_caller(name: &CStr) -> Option<*mut c_void> {
    look_up(libc::RTLD_NEXT, name)
}

/// The address of a symbol in a library of the loader's, or in the order of a search.
fn look_up(place: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the loader's handle, or one of its constants, and a C string.
    let address = unsafe { libc::dlsym(place, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// The address of a symbol of a library of [`LIBRARIES`] whose symbols only the library that loaded it sees, as with a Python
/// module.
pub fn find_in_known_libraries(name: &CStr) -> Option<*mut c_void> {
    let mut libraries: Vec<CString> = Vec::new();
    // SAFETY: `note_library` has the type that is expected, and gets a pointer to `libraries`.
    unsafe { libc::dl_iterate_phdr(Some(note_library), (&raw mut libraries).cast()) };
    libraries.iter().find_map(|library| {
        // SAFETY: a C string. The library stays: it was loaded before, and its count of users is only raised.
        let library =
            unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        look_up(library, name)
    })
}

/// A library of this process, or the program itself.
#[derive(Clone, Copy, Debug)]
pub struct LoadedLibrary {
    /// Its base address; no other library has the same.
    pub base: usize,
    handle: *mut c_void,
}

impl LoadedLibrary {
    /// The library that contains an address.
    pub fn containing(address: usize) -> Option<LoadedLibrary> {
        let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: room for the answer, of which zeros are a value. A name that is found is a C string. The library stays: it
        // was loaded before, and its count of users is only raised. A program is not found by its name.
        unsafe {
            if libc::dladdr(address as *const c_void, found.as_mut_ptr()) == 0 {
                return None;
            }
            let found = found.assume_init();
            let named = libc::dlopen(found.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            let handle = match named.is_null() {
                true => libc::dlopen(core::ptr::null(), libc::RTLD_LAZY),
                false => named,
            };
            let base = found.dli_fbase as usize;
            (!handle.is_null()).then_some(LoadedLibrary { base, handle })
        }
    }

    /// The address of a symbol of this library itself, not of one that it needs.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: a C string; room for the answer, of which zeros are a value.
        unsafe {
            let address = libc::dlsym(self.handle, name.as_ptr());
            let is_ours = !address.is_null()
                && libc::dladdr(address, found.as_mut_ptr()) != 0
                && found.assume_init().dli_fbase as usize == self.base;
            is_ours.then_some(address)
        }
    }

    /// Ends this use of the library, which the program may close now. By default a library that was found stays.
    pub fn release(self) {
        // SAFETY: the handle is from `dlopen`, and not used again.
        unsafe { libc::dlclose(self.handle) };
    }

    /// The address of a symbol of this library, or of one that it needs.
    pub fn symbol_with_needed(&self, name: &CStr) -> Option<*mut c_void> {
        look_up(self.handle, name)
    }

    /// A function of this library itself.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to it.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        let address = self.symbol(name)?;
        // SAFETY: `F` is the type of a pointer to the function of this name, by the caller.
        Some(unsafe { as_function(address) })
    }
}

/// The number of bytes that a library has mapped from an address on; 0: no library has the address.
pub fn count_mapped(address: usize) -> usize {
    let mut span = MappedSpan {
        address: address as u64,
        bytes: 0,
    };
    // SAFETY: `measure_span` has the type that is expected, and gets a pointer to `span`.
    unsafe { libc::dl_iterate_phdr(Some(measure_span), (&raw mut span).cast()) };
    usize::try_from(span.bytes).unwrap_or(0)
}

/// The bytes that a library has mapped from an address on.
struct MappedSpan {
    address: u64,
    bytes: u64,
}

/// Measures a [`MappedSpan`], if its address lies in this library.
///
/// # Safety
///
/// As `dl_iterate_phdr` calls it; `span` is a [`MappedSpan`].
unsafe extern "C" fn measure_span(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    span: *mut c_void,
) -> c_int {
    // SAFETY: `info` is the loader's, with `dlpi_phnum` headers, and `span` is the pointer that
    // `count_mapped` passed.
    unsafe {
        let span = &mut *span.cast::<MappedSpan>();
        for at in 0..usize::from((*info).dlpi_phnum) {
            let header = &*(*info).dlpi_phdr.add(at);
            // The loader's number is a difference, which may be negative.
            let start = (*info).dlpi_addr.wrapping_add(header.p_vaddr);
            let mapped = start..start.saturating_add(header.p_memsz);
            if header.p_type == libc::PT_LOAD && mapped.contains(&span.address) {
                span.bytes = mapped.end - span.address;
            }
        }
    }
    0
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
    // SAFETY: `info` is the loader's, whose name is null or a C string, and `libraries` is the
    // pointer that `find_symbol` passed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_its_own_symbols_and_no_others() {
        let abs = libc::abs as unsafe extern "C" fn(c_int) -> c_int;
        let libc = LoadedLibrary::containing(abs as usize).unwrap();
        assert!(libc.symbol(c"abs").is_some() && libc.symbol(c"no_such_symbol").is_none());
        // SAFETY: its type.
        let found: unsafe extern "C" fn(c_int) -> c_int = unsafe { libc.function(c"abs") }.unwrap();
        // SAFETY: any argument but the least one.
        assert_eq!(unsafe { found(-7) }, 7);
        let ours = LoadedLibrary::containing(count_mapped as *const () as usize).unwrap();
        assert!(ours.base != libc.base && ours.symbol(c"abs").is_none());
        assert!(count_mapped(abs as usize) > 0 && count_mapped(1) == 0);
        assert!(LoadedLibrary::containing(1).is_none());
    }
}
