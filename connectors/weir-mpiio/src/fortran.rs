//! The functions that Fortran programs call where their libraries do not call `c`. The names for `mpif.h` and the module `mpi` have
//! the underscore that gfortran, ifx and flang append.
//!
//! | | `mpif.h`, module `mpi` | module `mpi_f08` |
//! | --- | --- | --- |
//! | Open MPI | `mpi_file_open_` calls a C function by a name that cannot be replaced | calls `ompi_file_open_f` |
//! | MPICH | `mpi_file_open_` calls `c` | `mpi_file_open_f08_` calls a C function by a name that cannot be replaced |
//!
//! All arguments are pointers, but for the length of a name, which comes last. In `mpi_f08` the error code may be left out.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;
use std::sync::OnceLock;

use weir_connect::bugs::{attempt, contain};
use weir_connect::mpi::{
    internal_error, Direction, Fint, Mpi, MpiHandle, Offset, MISSING, SUCCESS,
};
use weir_connect::symbols::function;

use crate::atomic;
use crate::choice::{self, OpenChoice};
use crate::files;
use crate::mpi::MpiIo;

type FromFortran = unsafe extern "C" fn(Fint) -> MpiHandle;

/// The objects of MPI that its functions on files take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObjectKind {
    Communicator,
    Info,
    Datatype,
}

/// MPI and its conversions of handles.
#[derive(Clone, Copy)]
struct Conversions {
    mpi: &'static MpiIo,
    /// By [`ObjectKind`]. `None`: a C handle is the same number (MPICH).
    from_fortran: Option<[FromFortran; 3]>,
    info_to_fortran: Option<unsafe extern "C" fn(MpiHandle) -> Fint>,
    file_from_fortran: FromFortran,
}

impl Conversions {
    /// Finds them. `None`: this is not the MPI whose functions are replaced.
    fn get(is_openmpi: bool) -> Option<&'static Conversions> {
        static CONVERSIONS: OnceLock<Option<Conversions>> = OnceLock::new();
        // SAFETY: the types are those of MPI's functions of these names.
        let find = || unsafe {
            let mpi = MpiIo::get()?;
            let (mut from_fortran, mut info_to_fortran) = (None, None);
            if mpi.mpi.is_openmpi {
                from_fortran = Some([
                    function(c"PMPI_Comm_f2c")?,
                    function(c"PMPI_Info_f2c")?,
                    function(c"PMPI_Type_f2c")?,
                ]);
                info_to_fortran = Some(function(c"PMPI_Info_c2f")?);
            }
            Some(Conversions {
                mpi,
                from_fortran,
                info_to_fortran,
                file_from_fortran: function(c"PMPI_File_f2c")?,
            })
        };
        let found = CONVERSIONS.get_or_init(find).as_ref()?;
        (found.mpi.mpi.is_openmpi == is_openmpi).then_some(found)
    }

    /// The C handle of an object of this kind.
    ///
    /// # Safety
    ///
    /// A valid handle.
    unsafe fn in_c(&self, kind: ObjectKind, handle: Fint) -> MpiHandle {
        match self.from_fortran {
            // SAFETY: the handle is valid, by the caller.
            Some(of_kinds) => unsafe { of_kinds[kind as usize](handle) },
            None => handle.cast_unsigned() as MpiHandle,
        }
    }

    /// The Fortran handle of an info object.
    ///
    /// # Safety
    ///
    /// A valid handle.
    unsafe fn info(&self, info: MpiHandle) -> Fint {
        if let Some(of_info) = self.info_to_fortran {
            // SAFETY: the handle is valid, by the caller.
            return unsafe { of_info(info) };
        }
        let lower = u32::try_from(info & 0xffff_ffff);
        lower.expect("a lower half").cast_signed()
    }

    /// The C handle of a file.
    ///
    /// # Safety
    ///
    /// A valid handle.
    unsafe fn file(&self, file: *const Fint) -> MpiHandle {
        // SAFETY: `file` points to a valid handle, by the caller.
        unsafe { (self.file_from_fortran)(*file) }
    }
}

/// A name as Fortran passes it: padded with blanks.
///
/// # Safety
///
/// `name` is null, or `bytes` bytes long.
unsafe fn c_name(name: *const c_char, bytes: usize) -> Option<CString> {
    if name.is_null() {
        return None;
    }
    // SAFETY: `name` has `bytes` bytes, by the caller.
    let name = unsafe { core::slice::from_raw_parts(name.cast::<u8>(), bytes) };
    CString::new(name.trim_ascii()).ok()
}

type FortranOpen<L> = unsafe extern "C" fn(
    *const Fint,
    *const c_char,
    *const Fint,
    *const Fint,
    *mut Fint,
    *mut Fint,
    L,
);

/// The caller's error code, or one of our own if it was left out.
fn given_or(code: *mut Fint, own: *mut Fint) -> *mut Fint {
    match code.is_null() {
        true => own,
        false => code,
    }
}

/// Sets an error code that the caller may have left out.
///
/// # Safety
///
/// `code` is null, or points to one.
unsafe fn set_code(code: *mut Fint, value: Fint) {
    // SAFETY: `code` is null or points to one, by the caller.
    if let Some(code) = unsafe { code.as_mut() } {
        *code = value;
    }
}

/// An info object of our own for a view.
#[derive(Clone, Copy)]
struct ViewInfo {
    mpi: &'static Mpi,
    info: MpiHandle,
    in_fortran: Fint,
}

/// As [`files::hint_for_view`].
///
/// # Safety
///
/// The addresses of valid handles.
unsafe fn hint_for_view(
    is_openmpi: bool,
    file: *const Fint,
    filetype: *const Fint,
    info: *const Fint,
) -> Option<ViewInfo> {
    // SAFETY: the handles are valid, by the caller.
    let work = || unsafe {
        let handles = Conversions::get(is_openmpi)?;
        let mpi = handles.mpi.mpi;
        let filetype = handles.in_c(ObjectKind::Datatype, *filetype);
        let users = handles.in_c(ObjectKind::Info, *info);
        let info = files::hint_for_view(mpi, handles.file(file), filetype, users)?;
        let in_fortran = handles.info(info);
        Some(ViewInfo {
            mpi,
            info,
            in_fortran,
        })
    };
    contain("hint_for_view", work, || None)
}

/// Heeds the hints that a file has been given.
///
/// # Safety
///
/// Both are the addresses of valid handles.
unsafe fn heed_hints(is_openmpi: bool, file: *const Fint, info: *const Fint) {
    // SAFETY: the handles are valid, by the caller.
    attempt(|| unsafe {
        if let Some(handles) = Conversions::get(is_openmpi) {
            let info = handles.in_c(ObjectKind::Info, *info);
            files::heed_hints(handles.mpi.mpi, handles.file(file), info);
        }
    });
}

type FortranClose = unsafe extern "C" fn(*mut Fint, *mut Fint);
type FortranSetAtomicity = unsafe extern "C" fn(*const Fint, *const Fint, *mut Fint);
type FortranSetInfo = unsafe extern "C" fn(*const Fint, *const Fint, *mut Fint);
type FortranSetView<L> = unsafe extern "C" fn(
    *const Fint,
    *const Offset,
    *const Fint,
    *const Fint,
    *const c_char,
    *const Fint,
    *mut Fint,
    L,
);

/// Declares the functions that open and close a file, and change its mode, its view and its hints: of Open MPI (`true`) or MPICH, with the
/// type of the length of a name.
macro_rules! file_calls {
    ($is_openmpi:literal $length:ty: $open:ident $next_open:literal, $close:ident $next_close:literal, $atomicity:ident $next_atomicity:literal,
        $view:ident $next_view:literal, $info:ident $next_info:literal) => {
        /// MPI_File_open(3).
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $open(
            comm: *const Fint,
            name: *const c_char,
            mode: *const Fint,
            info: *const Fint,
            file: *mut Fint,
            code: *mut Fint,
            name_bytes: $length,
        ) {
            static NEXT: OnceLock<Option<FortranOpen<$length>>> = OnceLock::new();
            let mut own_code = SUCCESS;
            let code = given_or(code, &raw mut own_code);
            // SAFETY: each argument is the address of its kind, and `name` has `name_bytes` bytes, by the standard;
            // MPI's function of this name takes the same. `code` is not null any more.
            let work = || unsafe {
                let Some(next) = *NEXT.get_or_init(|| function($next_open)) else {
                    return *code = MISSING;
                };
                let Some(handles) = Conversions::get($is_openmpi) else {
                    return next(comm, name, mode, info, file, code, name_bytes);
                };
                let path = c_name(name, usize::try_from(name_bytes).unwrap_or(0));
                let path = path.unwrap_or_default();
                let comm_in_c = handles.in_c(ObjectKind::Communicator, *comm);
                let callers = handles.in_c(ObjectKind::Info, *info);
                let mut choice =
                    OpenChoice::make(handles.mpi.mpi, comm_in_c, &path, *mode, callers);
                let info = handles.info(choice.info(callers));
                next(comm, name, mode, &raw const info, file, code, name_bytes);
                if *code == SUCCESS {
                    attempt(|| choice.note(handles.mpi, &path, handles.file(file)));
                }
                choice.free(handles.mpi.mpi);
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($open), work, || unsafe {
                set_code(code, internal_error())
            });
        }

        /// MPI_File_close(3).
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $close(file: *mut Fint, code: *mut Fint) {
            static NEXT: OnceLock<Option<FortranClose>> = OnceLock::new();
            // SAFETY: `file` is the address of a file's handle, by the standard, and `code` null or room for one;
            // MPI's function of this name takes the same.
            let work = || unsafe {
                let Some(next) = *NEXT.get_or_init(|| function($next_close)) else {
                    return set_code(code, MISSING);
                };
                if let Some(handles) = Conversions::get($is_openmpi) {
                    attempt(|| choice::forget(handles.file(file)));
                }
                next(file, code);
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($close), work, || unsafe {
                set_code(code, internal_error())
            });
        }

        /// MPI_File_set_atomicity(3).
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $atomicity(
            file: *const Fint,
            is_atomic: *const Fint,
            code: *mut Fint,
        ) {
            static NEXT: OnceLock<Option<FortranSetAtomicity>> = OnceLock::new();
            let mut own_code = SUCCESS;
            let code = given_or(code, &raw mut own_code);
            // SAFETY: `file` and `is_atomic` are addresses of a handle and a logical value, by the standard; MPI's
            // function of this name takes the same. `code` is not null any more.
            let work = || unsafe {
                let Some(next) = *NEXT.get_or_init(|| function($next_atomicity)) else {
                    return *code = MISSING;
                };
                let handles = Conversions::get($is_openmpi);
                if let Some(handles) = handles.filter(|_| *is_atomic != 0) {
                    attempt(|| atomic::prepare(handles.file(file)));
                }
                next(file, is_atomic, code);
                if let (SUCCESS, Some(handles)) = (*code, handles) {
                    attempt(|| {
                        choice::change_mode(handles.mpi, handles.file(file), *is_atomic != 0)
                    });
                }
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($atomicity), work, || unsafe {
                set_code(code, internal_error())
            });
        }

        /// MPI_File_set_view(3).
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $view(
            file: *const Fint,
            displacement: *const Offset,
            etype: *const Fint,
            filetype: *const Fint,
            representation: *const c_char,
            info: *const Fint,
            code: *mut Fint,
            representation_bytes: $length,
        ) {
            static NEXT: OnceLock<Option<FortranSetView<$length>>> = OnceLock::new();
            // SAFETY: each argument is the address of its kind, and `code` null or room for one, by the standard; MPI's
            // function of this name takes the same.
            let work = || unsafe {
                let Some(next) = *NEXT.get_or_init(|| function($next_view)) else {
                    return set_code(code, MISSING);
                };
                let mut own_code = SUCCESS;
                let code = given_or(code, &raw mut own_code);
                let hinted = hint_for_view($is_openmpi, file, filetype, info);
                let given = hinted.map_or(*info, |hinted| hinted.in_fortran);
                next(
                    file,
                    displacement,
                    etype,
                    filetype,
                    representation,
                    &raw const given,
                    code,
                    representation_bytes,
                );
                if let Some(hinted) = hinted {
                    hinted.mpi.free_info(hinted.info);
                }
                if *code == SUCCESS {
                    heed_hints($is_openmpi, file, info);
                }
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($view), work, || unsafe {
                set_code(code, internal_error())
            });
        }

        /// MPI_File_set_info(3).
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $info(file: *const Fint, info: *const Fint, code: *mut Fint) {
            static NEXT: OnceLock<Option<FortranSetInfo>> = OnceLock::new();
            // SAFETY: `file` and `info` are addresses of handles, and `code` null or room for one, by the standard; MPI's
            // function of this name takes the same.
            let work = || unsafe {
                let Some(next) = *NEXT.get_or_init(|| function($next_info)) else {
                    return set_code(code, MISSING);
                };
                let mut own_code = SUCCESS;
                let code = given_or(code, &raw mut own_code);
                next(file, info, code);
                if *code == SUCCESS {
                    heed_hints($is_openmpi, file, info);
                }
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($info), work, || unsafe {
                set_code(code, internal_error())
            });
        }
    };
}

file_calls!(true c_int: mpi_file_open_ c"mpi_file_open_", mpi_file_close_ c"mpi_file_close_",
    mpi_file_set_atomicity_ c"mpi_file_set_atomicity_", mpi_file_set_view_ c"mpi_file_set_view_", mpi_file_set_info_ c"mpi_file_set_info_");
file_calls!(true c_int: ompi_file_open_f c"ompi_file_open_f", ompi_file_close_f c"ompi_file_close_f",
    ompi_file_set_atomicity_f c"ompi_file_set_atomicity_f", ompi_file_set_view_f c"ompi_file_set_view_f", ompi_file_set_info_f c"ompi_file_set_info_f");
file_calls!(false usize: mpi_file_open_f08_ c"mpi_file_open_f08_", mpi_file_close_f08_ c"mpi_file_close_f08_",
    mpi_file_set_atomicity_f08_ c"mpi_file_set_atomicity_f08_", mpi_file_set_view_f08_ c"mpi_file_set_view_f08_", mpi_file_set_info_f08_ c"mpi_file_set_info_f08_");

/// Expands to its second argument, so that a macro can repeat that for each of the first.
macro_rules! replace {
    ($first:ident $second:ty) => {
        $second
    };
}

/// Declares collective calls, each with the name of MPI's own function, and the name of the independent call.
macro_rules! collective_calls {
    ($($collective:ident $own:literal, $independent:literal, $direction:ident, ($($argument:ident)*);)*) => {$(
        /// A collective call of MPI-IO.
        ///
        /// # Safety
        ///
        /// As the standard has it.
        #[no_mangle]
        pub unsafe extern "C" fn $collective(
            file: *const Fint,
            $($argument: *mut c_void,)*
            code: *mut Fint,
        ) {
            type Call = unsafe extern "C" fn(*const Fint, $(replace!($argument *mut c_void),)* *mut Fint);
            static CALLS: OnceLock<[Option<Call>; 2]> = OnceLock::new();
            // SAFETY: `file` is the address of a file's handle, and the rest are arguments of both functions, by the
            // standard.
            let work = || unsafe {
                let calls = CALLS.get_or_init(|| [function($own), function($independent)]);
                let handles = Conversions::get(true);
                let is_changed = handles.is_some_and(|handles| {
                    files::begin_collective(handles.file(file), Direction::$direction)
                });
                match calls[usize::from(is_changed)] {
                    Some(call) => call(file, $($argument,)* code),
                    None => set_code(code, MISSING),
                }
            };
            // SAFETY: `code` is null or has room for a code, by the standard.
            contain(stringify!($collective), work, || unsafe { set_code(code, internal_error()) });
        }
    )*};
}

collective_calls! {
    mpi_file_write_all_ c"mpi_file_write_all_", c"mpi_file_write_", Write,
        (buffer count datatype status);
    mpi_file_write_at_all_ c"mpi_file_write_at_all_", c"mpi_file_write_at_", Write,
        (offset buffer count datatype status);
    mpi_file_read_all_ c"mpi_file_read_all_", c"mpi_file_read_", Read,
        (buffer count datatype status);
    mpi_file_read_at_all_ c"mpi_file_read_at_all_", c"mpi_file_read_at_", Read,
        (offset buffer count datatype status);
    ompi_file_write_all_f c"ompi_file_write_all_f", c"ompi_file_write_f", Write,
        (buffer count datatype status);
    ompi_file_write_at_all_f c"ompi_file_write_at_all_f", c"ompi_file_write_at_f", Write,
        (offset buffer count datatype status);
    ompi_file_read_all_f c"ompi_file_read_all_f", c"ompi_file_read_f", Read,
        (buffer count datatype status);
    ompi_file_read_at_all_f c"ompi_file_read_at_all_f", c"ompi_file_read_at_f", Read,
        (offset buffer count datatype status);
}
