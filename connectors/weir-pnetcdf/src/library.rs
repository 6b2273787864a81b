//! The functions of the user's PnetCDF, found at run time, and its constants (`pnetcdf.h`, the same from 1.12 to 1.14).

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void, CStr};
use std::sync::OnceLock;

use weir_connect::mpi::{Mpi, MpiHandle, Offset};
use weir_connect::symbols::{find_symbol, function, Search};

pub const NC_NOERR: c_int = 0;
pub const NC_EINVAL: c_int = -36;
pub const NC_EPERM: c_int = -37;
pub const NC_EINDEFINE: c_int = -39;
pub const NC_EINVALCOORDS: c_int = -40;
pub const NC_ENOTVAR: c_int = -49;
pub const NC_EGLOBAL: c_int = -50;
pub const NC_ECHAR: c_int = -56;
pub const NC_EEDGE: c_int = -57;
pub const NC_ESTRIDE: c_int = -58;
pub const NC_ERANGE: c_int = -60;
pub const NC_EINTERNAL: c_int = -92;
pub const NC_ENOTINDEP: c_int = -202;
pub const NC_EINDEP: c_int = -203;
pub const NC_EREAD: c_int = -205;
pub const NC_EWRITE: c_int = -206;
pub const NC_EIOMISMATCH: c_int = -209;
pub const NC_ENEGATIVECNT: c_int = -210;
pub const NC_EUNSPTETYPE: c_int = -211;
pub const NC_ENULLABUF: c_int = -217;
pub const NC_EPENDINGBPUT: c_int = -218;
pub const NC_EINSUFFBUF: c_int = -219;
pub const NC_ENO_SPACE: c_int = -224;
pub const NC_EQUOTA: c_int = -225;
pub const NC_EPENDING: c_int = -236;
pub const NC_ENULLSTART: c_int = -226;
pub const NC_ENOTBUILT: c_int = -128;
pub const NC_EMPI: c_int = -131;

/// `NC_REQ_NULL`: no request.
pub const REQ_NULL: c_int = -1;
/// In place of a number of requests: all gets. -1 means all requests, and -3 all puts.
pub const GET_REQ_ALL: c_int = -2;

/// `NC_GLOBAL`, in the place of a variable: the file's own attributes.
pub const NC_GLOBAL: c_int = -1;
/// `NC_WRITE`, a mode of an open.
pub const NC_WRITE: c_int = 1;
/// `NC_FORMAT_CDF5`.
pub const FORMAT_CDF5: c_int = 5;
/// The formats that this connector knows: the classic ones.
pub const CLASSIC_FORMATS: [c_int; 3] = [1, 2, FORMAT_CDF5];

/// The longest name, with its end.
pub const NAME_BYTES: usize = 257;

/// A function of the burst buffer driver: a library that was built without it has none.
const DRIVER: &CStr = c"ncbbio_inq_driver";
/// The hint that asks for the driver.
const DRIVER_HINT: &CStr = c"nc_burst_buf";

/// Declares the functions of PnetCDF that the connector calls.
macro_rules! library {
    ($($name:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// PnetCDF.
        #[derive(Debug)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Library {
            fn find() -> Option<Library> {
                // SAFETY: the types are those of PnetCDF's functions of these names.
                unsafe { Some(Library { $($name: function($symbol)?,)* }) }
            }
        }
    };
}

library! {
    inq c"ncmpi_inq" (c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    inq_format c"ncmpi_inq_format" (c_int, *mut c_int);
    inq_recsize c"ncmpi_inq_recsize" (c_int, *mut Offset);
    inq_dimlen c"ncmpi_inq_dimlen" (c_int, c_int, *mut Offset);
    inq_var c"ncmpi_inq_var" (c_int, c_int, *mut c_char, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    inq_varndims c"ncmpi_inq_varndims" (c_int, c_int, *mut c_int);
    inq_varoffset c"ncmpi_inq_varoffset" (c_int, c_int, *mut Offset);
    inq_var_fill c"ncmpi_inq_var_fill" (c_int, c_int, *mut c_int, *mut c_void);
    inq_att c"ncmpi_inq_att" (c_int, c_int, *const c_char, *mut c_int, *mut Offset);
    iput_vars c"ncmpi_iput_vars" (c_int, c_int, *const Offset, *const Offset, *const Offset, *const c_void,
        Offset, MpiHandle, *mut c_int);
    inq_file_info c"ncmpi_inq_file_info" (c_int, *mut MpiHandle);
    inq_nreqs c"ncmpi_inq_nreqs" (c_int, *mut c_int);
    sync c"ncmpi_sync" (c_int);
    cancel c"ncmpi_cancel" (c_int, c_int, *mut c_int, *mut c_int);
    wait c"ncmpi_wait" (c_int, c_int, *mut c_int, *mut c_int);
    wait_all c"ncmpi_wait_all" (c_int, c_int, *mut c_int, *mut c_int);
}

impl Library {
    /// The PnetCDF of this process; `None`: it has none, or one that lacks a function.
    pub fn get() -> Option<&'static Library> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Library::find).as_ref()
    }

    /// True if PnetCDF's own burst buffer driver logs the puts of an open file: its hint asks for that, in the info object of the
    /// open or in `PNETCDF_HINTS`. MPI may keep the hint in a library without the driver, too.
    pub fn has_own_log(&self, mpi: &Mpi, number: c_int) -> bool {
        if find_symbol(Search::Behind, DRIVER).is_none() {
            return false;
        }
        let mut format = 0;
        // SAFETY: room for a number.
        let asked = inside(|| unsafe { (self.inq_format)(number, &raw mut format) });
        // Of a file of NetCDF-4 the library may have no info object to tell.
        if asked != NC_NOERR || !CLASSIC_FORMATS.contains(&format) {
            return false;
        }
        let mut info: MpiHandle = 0;
        // SAFETY: room for the handle of an object that is ours then, and is freed once.
        unsafe {
            if inside(|| (self.inq_file_info)(number, &raw mut info)) != NC_NOERR {
                return false;
            }
            let hint = mpi.hint(info, DRIVER_HINT);
            mpi.free_info(info);
            hint.is_some_and(|hint| hint.as_bytes().eq_ignore_ascii_case(b"enable"))
        }
    }
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// True while this thread is in a function of PnetCDF. Those functions call each other by their exported names, and such calls are
/// not the program's.
pub fn is_inside() -> bool {
    IS_INSIDE.with(Cell::get)
}

/// Marks the thread as inside PnetCDF during `call`.
pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    /// Restores the mark, also after a failed assertion.
    struct Restored(bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            IS_INSIDE.with(|is_inside| is_inside.set(self.0));
        }
    }
    let _restored = Restored(IS_INSIDE.with(|is_inside| is_inside.replace(true)));
    call()
}
