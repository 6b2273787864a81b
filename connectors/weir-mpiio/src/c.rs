//! The functions that C programs, HDF5, PnetCDF and MPICH's Fortran call. If one of our assertions fails, they return
//! `MPI_ERR_INTERN`.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::sync::OnceLock;

use weir_connect::bugs::{attempt, contain};
use weir_connect::mpi::{internal_error, Count, Direction, MpiHandle, Offset, MISSING, SUCCESS};
use weir_connect::symbols::function;

use crate::atomic;
use crate::choice::{self, OpenChoice};
use crate::files;
use crate::mpi::MpiIo;

/// MPI_File_open(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_open(
    comm: MpiHandle,
    name: *const c_char,
    mode: c_int,
    info: MpiHandle,
    file: *mut MpiHandle,
) -> c_int {
    let work = || {
        let Some(mpi) = MpiIo::get() else {
            return MISSING;
        };
        // SAFETY: `name` is null or a C string, the handles are valid, `file` has room for one, and all processes of
        // the communicator call this, by the standard. MPI refuses a name of null.
        unsafe {
            let path = match name.is_null() {
                true => c"",
                false => CStr::from_ptr(name),
            };
            let mut choice = OpenChoice::make(mpi.mpi, comm, path, mode, info);
            let code = (mpi.file_open)(comm, name, mode, choice.info(info), file);
            if code == SUCCESS {
                attempt(|| choice.note(mpi, path, *file));
            }
            choice.free(mpi.mpi);
            code
        }
    };
    contain("MPI_File_open", work, internal_error)
}

/// MPI_File_close(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_close(file: *mut MpiHandle) -> c_int {
    let work = || {
        let Some(mpi) = MpiIo::get() else {
            return MISSING;
        };
        // SAFETY: `file` is null or points to an open file, by the standard.
        unsafe {
            if !file.is_null() {
                attempt(|| choice::forget(*file));
            }
            (mpi.file_close)(file)
        }
    };
    contain("MPI_File_close", work, internal_error)
}

/// MPI_File_set_atomicity(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_set_atomicity(file: MpiHandle, is_atomic: c_int) -> c_int {
    let work = || {
        let Some(mpi) = MpiIo::get() else {
            return MISSING;
        };
        // SAFETY: `file` is open, and all its processes call this, by the standard.
        unsafe {
            if is_atomic != 0 {
                attempt(|| atomic::prepare(file));
            }
            let code = (mpi.file_set_atomicity)(file, is_atomic);
            if code == SUCCESS {
                attempt(|| choice::change_mode(mpi, file, is_atomic != 0));
            }
            code
        }
    };
    contain("MPI_File_set_atomicity", work, internal_error)
}

/// MPI_File_set_view(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_set_view(
    file: MpiHandle,
    displacement: Offset,
    etype: MpiHandle,
    filetype: MpiHandle,
    representation: *const c_char,
    info: MpiHandle,
) -> c_int {
    let work = || {
        let Some(mpi) = MpiIo::get() else {
            return MISSING;
        };
        // SAFETY: the handles are valid, or null where MPI refuses that, and all processes of the file call this, by the standard.
        unsafe {
            let hinted = contain(
                "hint_for_view",
                || files::hint_for_view(mpi.mpi, file, filetype, info),
                || None,
            );
            let given = hinted.unwrap_or(info);
            let code =
                (mpi.file_set_view)(file, displacement, etype, filetype, representation, given);
            if let Some(own) = hinted {
                mpi.mpi.free_info(own);
            }
            if code == SUCCESS {
                attempt(|| files::heed_hints(mpi.mpi, file, info));
            }
            code
        }
    };
    contain("MPI_File_set_view", work, internal_error)
}

/// MPI_File_set_info(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_set_info(file: MpiHandle, info: MpiHandle) -> c_int {
    let work = || {
        let Some(mpi) = MpiIo::get() else {
            return MISSING;
        };
        // SAFETY: the handles are valid, or null where MPI refuses that, and all processes of the file call this, by the standard.
        unsafe {
            let code = (mpi.file_set_info)(file, info);
            if code == SUCCESS {
                attempt(|| files::heed_hints(mpi.mpi, file, info));
            }
            code
        }
    };
    contain("MPI_File_set_info", work, internal_error)
}

/// Begins a collective transfer on a file, for connectors of libraries above MPI-IO, whose transfers make several calls. All
/// processes that have the file open call this. Not 0: the MPI-IO calls of this direction become independent ones.
#[no_mangle]
pub extern "C" fn weir_mpiio_begin_collective(file: MpiHandle, is_write: c_int) -> c_int {
    let work = || {
        let direction = match is_write {
            0 => Direction::Read,
            _ => Direction::Write,
        };
        c_int::from(files::begin_collective(file, direction))
    };
    contain("weir_mpiio_begin_collective", work, || 0)
}

/// Declares collective calls. For a file whose calls are changed, each calls the independent function with the same arguments;
/// otherwise MPI's own collective one.
macro_rules! collective_calls {
    ($($collective:ident $own:literal, $independent:literal, $direction:ident,
        ($($argument:ident: $kind:ty),*);)*) => {$(
        /// A collective call of MPI-IO.
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $collective(file: MpiHandle, $($argument: $kind),*) -> c_int {
            type Call = unsafe extern "C" fn(MpiHandle, $($kind),*) -> c_int;
            static CALLS: OnceLock<[Option<Call>; 2]> = OnceLock::new();
            let work = || {
                // SAFETY: both functions have these arguments.
                let calls = CALLS.get_or_init(|| unsafe { [function($own), function($independent)] });
                let is_changed = files::begin_collective(file, Direction::$direction);
                match calls[usize::from(is_changed)] {
                    // SAFETY: the function of MPI takes the same arguments, which are as it requires, by the caller.
                    Some(call) => unsafe { call(file, $($argument),*) },
                    None => MISSING,
                }
            };
            contain(stringify!($collective), work, internal_error)
        }
    )*};
}

collective_calls! {
    MPI_File_write_all c"PMPI_File_write_all", c"PMPI_File_write", Write,
        (buffer: *const c_void, count: c_int, datatype: MpiHandle, status: *mut c_void);
    MPI_File_write_at_all c"PMPI_File_write_at_all", c"PMPI_File_write_at", Write,
        (offset: Offset, buffer: *const c_void, count: c_int, datatype: MpiHandle, status: *mut c_void);
    MPI_File_read_all c"PMPI_File_read_all", c"PMPI_File_read", Read,
        (buffer: *mut c_void, count: c_int, datatype: MpiHandle, status: *mut c_void);
    MPI_File_read_at_all c"PMPI_File_read_at_all", c"PMPI_File_read_at", Read,
        (offset: Offset, buffer: *mut c_void, count: c_int, datatype: MpiHandle, status: *mut c_void);
    // With large counts (MPI 4.0).
    MPI_File_write_all_c c"PMPI_File_write_all_c", c"PMPI_File_write_c", Write,
        (buffer: *const c_void, count: Count, datatype: MpiHandle, status: *mut c_void);
    MPI_File_write_at_all_c c"PMPI_File_write_at_all_c", c"PMPI_File_write_at_c", Write,
        (offset: Offset, buffer: *const c_void, count: Count, datatype: MpiHandle, status: *mut c_void);
    MPI_File_read_all_c c"PMPI_File_read_all_c", c"PMPI_File_read_c", Read,
        (buffer: *mut c_void, count: Count, datatype: MpiHandle, status: *mut c_void);
    MPI_File_read_at_all_c c"PMPI_File_read_at_all_c", c"PMPI_File_read_at_c", Read,
        (offset: Offset, buffer: *mut c_void, count: Count, datatype: MpiHandle, status: *mut c_void);
}
