//! The functions of MPI-IO that the connector calls, all from the profiling interface (`PMPI_`).

use core::ffi::{c_char, c_int, CStr};
use std::sync::OnceLock;

use weir_connect::mpi::{Mpi, MpiHandle, Offset};
use weir_connect::symbols::function;

/// `MPI_MODE_CREATE`, of MPICH and of Open MPI.
pub const CREATE: c_int = 1;
/// `MPI_MODE_WRONLY`, of both.
pub const WRITE_ONLY: c_int = 4;

type MpiFileOpen =
    unsafe extern "C" fn(MpiHandle, *const c_char, c_int, MpiHandle, *mut MpiHandle) -> c_int;
type MpiFileClose = unsafe extern "C" fn(*mut MpiHandle) -> c_int;
type MpiSetInfo = unsafe extern "C" fn(MpiHandle, MpiHandle) -> c_int;
type MpiSetView = unsafe extern "C" fn(
    MpiHandle,
    Offset,
    MpiHandle,
    MpiHandle,
    *const c_char,
    MpiHandle,
) -> c_int;
type MpiSetAtomicity = unsafe extern "C" fn(MpiHandle, c_int) -> c_int;

/// MPI, with its functions on files.
#[derive(Clone, Copy, Debug)]
pub struct MpiIo {
    /// MPI's other functions.
    pub mpi: &'static Mpi,
    pub file_open: MpiFileOpen,
    pub file_close: MpiFileClose,
    pub file_set_atomicity: MpiSetAtomicity,
    pub file_set_info: MpiSetInfo,
    pub file_set_view: MpiSetView,
}

impl MpiIo {
    /// The MPI of this process; `None`: none is loaded, or it lacks a function.
    pub fn get() -> Option<&'static MpiIo> {
        static MPI: OnceLock<Option<MpiIo>> = OnceLock::new();
        // SAFETY: the types are those of MPI's functions of these names.
        let find = || unsafe {
            Some(MpiIo {
                mpi: Mpi::get()?,
                file_open: function(c"PMPI_File_open")?,
                file_close: function(c"PMPI_File_close")?,
                file_set_atomicity: function(c"PMPI_File_set_atomicity")?,
                file_set_info: function(c"PMPI_File_set_info")?,
                file_set_view: function(c"PMPI_File_set_view")?,
            })
        };
        MPI.get_or_init(find).as_ref()
    }

    /// Gives an open file hints. All processes of its communicator must call this. ROMIO of Open MPI ignores them.
    ///
    /// # Safety
    ///
    /// A valid file.
    pub unsafe fn give_hints(&self, file: MpiHandle, hints: &[(&CStr, &CStr)]) {
        // SAFETY: the file is open, and all its processes call this, by the caller; the info object is ours. A failure is ignored:
        // hints only affect speed.
        unsafe {
            if let Some(info) = self.mpi.info_of(hints) {
                (self.file_set_info)(file, info);
                self.mpi.free_info(info);
            }
        }
    }
}
