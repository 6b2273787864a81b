//! The functions that C programs, HDF5, PnetCDF and MPICH's Fortran call.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::sync::OnceLock;

use crate::files::{self, ChangedCalls, Direction};
use crate::mpi::{function, Count, Mpi, MpiHandle, Offset, CREATE, MISSING, SUCCESS};

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
    let Some(mpi) = Mpi::get() else {
        return MISSING;
    };
    // SAFETY: the caller keeps to the standard: all processes of the communicator call this, with valid handles.
    unsafe {
        let path = CStr::from_ptr(name);
        let choice = OpenChoice::make(mpi, comm, path, mode, info);
        let code = (mpi.file_open)(comm, name, mode, choice.info(info), file);
        if code == SUCCESS {
            choice.note(mpi, path, *file);
        }
        choice.free(mpi);
        code
    }
}

/// The calls of a file that is about to be opened.
#[derive(Debug)]
pub struct OpenChoice {
    calls: ChangedCalls,
    /// The info object with which it is opened, if it is not the caller's.
    info: Option<MpiHandle>,
}

impl OpenChoice {
    /// Agrees on them.
    ///
    /// # Safety
    ///
    /// All processes of the communicator call this; the info object is valid, or null.
    pub unsafe fn make(
        mpi: &Mpi,
        comm: MpiHandle,
        path: &CStr,
        mode: c_int,
        info: MpiHandle,
    ) -> OpenChoice {
        let none = OpenChoice {
            calls: ChangedCalls::default(),
            info: None,
        };
        if mpi.is_null_comm(comm) {
            // MPI refuses it.
            return none;
        }
        // SAFETY: as the caller vouches.
        unsafe {
            let wanted = ChangedCalls::wanted(mpi, info);
            let is_ours = files::lives_in_weir(path)
                || mode & CREATE != 0 && files::may_be_made_in_weir(path);
            let mine = [is_ours && wanted.writes, is_ours && wanted.reads];
            let [writes, reads] = mpi.all_agree(comm, mine);
            if !writes && !reads {
                return none;
            }
            let mut calls = ChangedCalls::new(writes, reads);
            calls.keep_hints(mpi, info);
            let info = mpi.with_hints(info, &calls.hints());
            OpenChoice { calls, info }
        }
    }

    /// The info object for the file.
    pub fn info(&self, callers: MpiHandle) -> MpiHandle {
        self.info.unwrap_or(callers)
    }

    /// Notes the file, once it is open. One that was made on the parallel file system after all, by a rule of an elevated
    /// directory, gets the usual hints; all processes see that alike.
    ///
    /// # Safety
    ///
    /// All processes of the file's communicator call this.
    pub unsafe fn note(&self, mpi: &Mpi, path: &CStr, file: MpiHandle) {
        if self.calls == ChangedCalls::default() {
            return;
        }
        match files::lives_in_weir(path) {
            true => files::note(file, self.calls),
            // SAFETY: as the caller vouches.
            false => unsafe { mpi.give_hints(file, &self.calls.usual_hints()) },
        }
    }

    /// Frees the info object, once MPI has seen it.
    pub fn free(self, mpi: &Mpi) {
        if let Some(info) = self.info {
            // SAFETY: it is ours, and was used by the open alone.
            unsafe { mpi.free_info(info) };
        }
    }
}

/// MPI_File_close(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_close(file: *mut MpiHandle) -> c_int {
    let Some(mpi) = Mpi::get() else {
        return MISSING;
    };
    // SAFETY: as the caller vouches.
    unsafe {
        if !file.is_null() {
            files::forget(*file);
        }
        (mpi.file_close)(file)
    }
}

/// MPI_File_set_atomicity(3).
///
/// # Safety
///
/// As the standard has it.
#[no_mangle]
pub unsafe extern "C" fn MPI_File_set_atomicity(file: MpiHandle, is_atomic: c_int) -> c_int {
    let Some(mpi) = Mpi::get() else {
        return MISSING;
    };
    // SAFETY: as the caller vouches; all processes of the file call this.
    unsafe {
        let code = (mpi.file_set_atomicity)(file, is_atomic);
        if code == SUCCESS {
            if let Some(calls) = files::note_atomicity(file, is_atomic != 0) {
                mpi.give_hints(file, &calls.hints());
            }
        }
        code
    }
}

/// Declares collective calls: each calls the independent one with the same arguments for a file whose calls are changed, and
/// itself for others.
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
            // SAFETY: both functions have these arguments.
            let calls = CALLS.get_or_init(|| unsafe { [function($own), function($independent)] });
            let is_changed = files::is_changed(file, Direction::$direction);
            match calls[usize::from(is_changed)] {
                // SAFETY: as the caller vouches.
                Some(call) => unsafe { call(file, $($argument),*) },
                None => MISSING,
            }
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
