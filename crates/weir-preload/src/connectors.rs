//! The connectors of MPI-IO and PnetCDF, which are loaded when the program first calls a function that they wrap.
//!
//! Loaded at the start, the two libraries would take a sixth of the time of a short program, and most programs never call
//! them. So this library has a function of each name that a connector wraps ([`names`]). It jumps to the address in its slot. An
//! empty slot is filled first: with the connector's function, if `$WEIR_CONNECTORS` names the connector, and else with the next
//! library's, as if this library had no function of that name.
//!
//! | | cost |
//! | --- | --- |
//! | a program that calls none | no relocation, and no page that is written |
//! | the first call of a name | some microseconds, and once 0.1 ms for the connector |
//! | a later call | a load and a jump |
//!
//! A slot changes once. Threads that race for it find the same address: the loader maps a library once, and gives all of them the
//! same handle. So no lock is needed beside the loader's, and nothing is left half done by a fork or a signal.
//!
//! Processes agree on their collective calls by the connector, also those outside of the instance. So the connector is loaded if
//! the variable names it, whether or not there is an instance.
//!
//! A connector cannot search behind itself: its search begins with the libraries that it needs. It gets the search of this library
//! instead ([`find_behind`]), so it finds neither itself nor the functions here.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::ffi::CString;

use rustix::fd::BorrowedFd;
use weir_client::bugs;
use weir_connect::mpi::MISSING;
use weir_connect::symbols::{find_behind_caller, find_in_known_libraries, LoadedLibrary};

use crate::{environment, load, raw};

mod names;

/// The number of bytes of a record in front of the name; see [`fill_and_jump`].
const NAME_AT: usize = 5;

/// The kinds of names.
#[derive(Clone, Copy)]
#[repr(u8)]
enum NameKind {
    /// MPI's functions in C.
    Mpi,
    /// MPI's functions in Fortran, which return nothing.
    FortranMpi,
    /// A function of the MPI-IO connector's own, which no library has.
    Own,
    /// PnetCDF's functions.
    PnetCdf,
}

/// The names of a kind.
struct Wrapped {
    connector: &'static ConnectorLibrary,
    /// The function of a name that neither the connector nor a library has.
    lacking: extern "C" fn() -> c_int,
    /// True if a library may have it, and not only the connector.
    is_of_library: bool,
}

/// By the numbers of [`NameKind`].
static KINDS: [Wrapped; 4] = [
    Wrapped {
        connector: &MPIIO,
        lacking: fail_as_mpi,
        is_of_library: true,
    },
    Wrapped {
        connector: &MPIIO,
        lacking: return_zero,
        is_of_library: true,
    },
    Wrapped {
        connector: &MPIIO,
        lacking: return_zero,
        is_of_library: false,
    },
    Wrapped {
        connector: &PNETCDF,
        lacking: fail_as_pnetcdf,
        is_of_library: true,
    },
];

static MPIIO: ConnectorLibrary = ConnectorLibrary::new("mpiio", c"weir_mpiio_loaded");
static PNETCDF: ConnectorLibrary = ConnectorLibrary::new("pnetcdf", c"weir_pnetcdf_loaded");

/// MPI lacks the function.
extern "C" fn fail_as_mpi() -> c_int {
    MISSING
}

/// PnetCDF lacks the function: `NC_ENOTBUILT`.
extern "C" fn fail_as_pnetcdf() -> c_int {
    -128
}

/// Fortran's MPI lacks the function; or a question to a connector that is not there.
extern "C" fn return_zero() -> c_int {
    0
}

/// A connector that programs may get.
struct ConnectorLibrary {
    /// Its name in settings, and in `$WEIR_CONNECTORS`.
    name: &'static str,
    /// Its function that takes the search of this library.
    loaded: &'static CStr,
    /// The loader's handle; null: it was not needed yet, or there is none.
    handle: AtomicPtr<c_void>,
    is_failure_told: AtomicBool,
}

impl ConnectorLibrary {
    const fn new(name: &'static str, loaded: &'static CStr) -> ConnectorLibrary {
        ConnectorLibrary {
            name,
            loaded,
            handle: AtomicPtr::new(core::ptr::null_mut()),
            is_failure_told: AtomicBool::new(false),
        }
    }

    /// Its function of this name; `None`: this program is to do without the connector, or it cannot be loaded.
    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let handle = self.handle()?;
        // SAFETY: the loader's handle, which is never closed, and a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    fn handle(&self) -> Option<*mut c_void> {
        let known = self.handle.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        // A process that went without it once does so for good: its calls must fit together.
        if self.is_failure_told.load(Ordering::Relaxed) {
            return None;
        }
        let named = environment::connectors()?;
        let mut named = named.split(|byte| *byte == b',');
        if !named.any(|named| named == self.name.as_bytes()) {
            return None;
        }
        match self.load() {
            Ok(handle) => {
                self.handle.store(handle, Ordering::Release);
                Some(handle)
            }
            Err(why) => {
                if !self.is_failure_told.swap(true, Ordering::Relaxed) {
                    let name = self.name;
                    let line = format!("weir: the connector {name} cannot be loaded, and this program goes without it: {why}\n");
                    // A system call of its own: the C library's write(2) may end the thread.
                    // SAFETY: the program may have closed this descriptor; then the kernel returns EBADF.
                    let to = unsafe { BorrowedFd::borrow_raw(2) };
                    let _ = rustix::io::write(to, line.as_bytes());
                }
                None
            }
        }
    }

    /// Loads it from the directory of this library.
    fn load(&self) -> Result<*mut c_void, String> {
        type TakeSearch = unsafe extern "C" fn(extern "C" fn(*const c_char) -> *mut c_void);
        let own = environment::own_path().unwrap_or_default();
        let slash = own.iter().rposition(|byte| *byte == b'/');
        let directory = &own[..slash.map_or(0, |slash| slash + 1)];
        let file = format!("libweir_{}.so", self.name);
        let path = CString::new([directory, file.as_bytes()].concat()).unwrap_or_default();
        let handle = load::open(&path);
        if handle.is_null() {
            return Err(load::error());
        }
        // SAFETY: a handle, which is never closed, and a C string.
        let take_search = unsafe { libc::dlsym(handle, self.loaded.as_ptr()) };
        if take_search.is_null() {
            return Err(load::error());
        }
        // SAFETY: connectors have a function of this name and type, which stores the pointer. Another thread may give it the same
        // at the same time.
        unsafe {
            core::mem::transmute::<*mut c_void, TakeSearch>(take_search)(find_behind);
        }
        Ok(handle)
    }
}

/// The search of this library, for connectors: the address of a symbol behind it, or null.
extern "C" fn find_behind(name: *const c_char) -> *mut c_void {
    // SAFETY: a C string, by the connector.
    let find = || find_behind_caller(unsafe { CStr::from_ptr(name) });
    bugs::contain(find, || None).unwrap_or(core::ptr::null_mut())
}

/// The function that a call would reach if this library had none of its name: the next library's, or that of the library that
/// calls, and of those that it needs, whose symbols only they may see (Python's modules). Its library stays from now on.
fn find_next(name: &CStr, caller: usize) -> Option<*mut c_void> {
    let here = LoadedLibrary::containing(&raw const KINDS as usize)?.base;
    let of_caller = || {
        let library = LoadedLibrary::containing(caller)?;
        let found = library.symbol_with_needed(name);
        library.release();
        // From the program itself the search begins with this library.
        found.filter(|found| {
            let its = LoadedLibrary::containing(*found as usize);
            its.is_some_and(|library| library.base != here)
        })
    };
    let found = find_behind_caller(name)
        .or_else(of_caller)
        .or_else(|| find_in_known_libraries(name))?;
    // Counts as one more user of the library, for good.
    let _ = LoadedLibrary::containing(found as usize);
    Some(found)
}

/// Fills the slot of a record, and returns the address to jump to.
///
/// # Safety
///
/// `record` is one of [`wrapped`].
unsafe extern "C" fn fill(record: *const u8, caller: usize) -> *const c_void {
    let saved = raw::errno();
    // SAFETY: a record has an offset to a slot, a number of a kind and a C string, by the caller.
    let (slot, kind, name) = unsafe {
        let offset = record.cast::<i32>().read_unaligned();
        let slot = record.wrapping_offset(offset as isize);
        (
            &*slot.cast::<AtomicPtr<c_void>>(),
            &KINDS[usize::from(*record.add(4))],
            CStr::from_ptr(record.add(NAME_AT).cast()),
        )
    };
    let find = || {
        let found = kind.connector.function(name);
        match kind.is_of_library {
            true => found.or_else(|| find_next(name, caller)),
            false => found.or(Some(kind.lacking as *mut c_void)),
        }
    };
    let found = bugs::contain(find, || None);
    if let Some(found) = found {
        slot.store(found, Ordering::Release);
    }
    raw::restore_errno(saved);
    found.unwrap_or(kind.lacking as *mut c_void)
}

/// Fills a slot and jumps to its address, with the registers and the stack as the program has them. On x86-64, r11 has
/// the record and the stack the return address; on aarch64, x17 and x30.
///
/// ```text
/// record:  bytes 0 to 3   the offset of the slot from here
///          byte  4        the number of the kind
///          bytes 5 on     the name, a C string
/// ```
///
/// The upper halves of vector registers of more than 16 bytes are lost: no function here has such arguments.
#[unsafe(naked)]
unsafe extern "C" fn fill_and_jump() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 192",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov [rsp + 48], rax",
        "mov [rsp + 56], r10",
        "movups [rsp + 64], xmm0",
        "movups [rsp + 80], xmm1",
        "movups [rsp + 96], xmm2",
        "movups [rsp + 112], xmm3",
        "movups [rsp + 128], xmm4",
        "movups [rsp + 144], xmm5",
        "movups [rsp + 160], xmm6",
        "movups [rsp + 176], xmm7",
        "mov rdi, r11",
        "mov rsi, [rbp + 8]",
        "call {fill}",
        "mov r11, rax",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "mov rax, [rsp + 48]",
        "mov r10, [rsp + 56]",
        "movups xmm0, [rsp + 64]",
        "movups xmm1, [rsp + 80]",
        "movups xmm2, [rsp + 96]",
        "movups xmm3, [rsp + 112]",
        "movups xmm4, [rsp + 128]",
        "movups xmm5, [rsp + 144]",
        "movups xmm6, [rsp + 160]",
        "movups xmm7, [rsp + 176]",
        "leave",
        "jmp r11",
        fill = sym fill,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov x0, x17",
        "mov x1, x30",
        "bl {fill}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldr x8, [sp, #80]",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldp x29, x30, [sp], #224",
        "br x16",
        fill = sym fill,
    );
}

/// The record of a name, and its slot: see [`fill_and_jump`].
macro_rules! record {
    ($name:expr) => {
        concat!(
            "3:\n",
            ".long 4f - .\n",
            ".byte {kind}\n",
            ".asciz \"",
            $name,
            "\"\n",
            ".pushsection connector_slots, \"aw\", @nobits\n",
            ".balign 8\n",
            "4:\n",
            ".zero 8\n",
            ".popsection"
        )
    };
}
use record;

/// Declares the function of a name, with its kind.
///
/// The record follows the code, so that it needs no relocation. The slots have a section of their own, which the linker puts behind
/// all other data, and the code lies before all other code: what programs use lies on as few pages as without them.
macro_rules! wrapped {
    ($kind:ident: $($name:expr)*) => {$(
        const _: () = {
            #[unsafe(naked)]
            #[export_name = $name]
            #[link_section = ".text.unlikely.connectors"]
            unsafe extern "C" fn wrapped() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "mov r11, [rip + 4f]",
                    "test r11, r11",
                    "jz 2f",
                    "jmp r11",
                    "2:",
                    "lea r11, [rip + 3f]",
                    "jmp {fill_and_jump}",
                    $crate::connectors::record!($name),
                    kind = const $crate::connectors::NameKind::$kind as u8,
                    fill_and_jump = sym $crate::connectors::fill_and_jump,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "adrp x16, 4f",
                    "add x16, x16, :lo12:4f",
                    "ldar x16, [x16]",
                    "cbz x16, 2f",
                    "br x16",
                    "2:",
                    "adr x17, 3f",
                    "b {fill_and_jump}",
                    $crate::connectors::record!($name),
                    kind = const $crate::connectors::NameKind::$kind as u8,
                    fill_and_jump = sym $crate::connectors::fill_and_jump,
                );
            }
        };
    )*};
}
use wrapped;
