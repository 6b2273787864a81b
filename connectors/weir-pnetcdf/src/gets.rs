//! Gets. A get of one part reads the log if that has the whole part. All others read the file, after a flush. PnetCDF does
//! nonblocking gets itself, after the flush in the wait for them.

use core::ffi::{c_int, c_void};
use core::ptr::null;

use weir_arrays::element::ElementType;
use weir_connect::mpi::{MpiHandle, Offset};

use crate::arguments::{MemoryType, NamedPart};
use crate::exported::exported;
use crate::file::TransferKind;
use crate::files::{self, flush_before};
use crate::puts::part;
use crate::reads::Get;

/// A blocking get.
///
/// # Safety
///
/// As [`LoggedFile::get`](crate::file::LoggedFile::get).
unsafe fn get(file: c_int, get: Get, timing: TransferKind) -> Option<c_int> {
    // SAFETY: the arguments are those of PnetCDF's function, by the caller.
    files::with(file, |file| unsafe { file.get(&get, timing) })
}

/// Declares the gets of one part.
macro_rules! one {
    ($suffix:literal, $all:literal, ($($kind_argument:ident: $kind_type:ty),*), $kind:expr, $timing:expr) => {
        exported!(concat!("ncmpi_get_var", $suffix, $all),
            var(file: c_int, variable: c_int, memory: *mut c_void $(, $kind_argument: $kind_type)*),
            get(file, Get { variable, part: NamedPart::Whole, distances: null(), memory, kind: $kind }, $timing));
        exported!(concat!("ncmpi_get_var1", $suffix, $all),
            var1(file: c_int, variable: c_int, start: *const Offset, memory: *mut c_void $(, $kind_argument: $kind_type)*),
            get(file, Get { variable, part: NamedPart::Element(start), distances: null(), memory, kind: $kind }, $timing));
        exported!(concat!("ncmpi_get_vara", $suffix, $all),
            vara(file: c_int, variable: c_int, start: *const Offset, count: *const Offset, memory: *mut c_void $(, $kind_argument: $kind_type)*),
            get(file, Get { variable, part: part(start, count, null()), distances: null(), memory, kind: $kind }, $timing));
        exported!(concat!("ncmpi_get_vars", $suffix, $all),
            vars(file: c_int, variable: c_int, start: *const Offset, count: *const Offset, stride: *const Offset,
                memory: *mut c_void $(, $kind_argument: $kind_type)*),
            get(file, Get { variable, part: part(start, count, stride), distances: null(), memory, kind: $kind }, $timing));
        exported!(concat!("ncmpi_get_varm", $suffix, $all),
            varm(file: c_int, variable: c_int, start: *const Offset, count: *const Offset, stride: *const Offset,
                distances: *const Offset, memory: *mut c_void $(, $kind_argument: $kind_type)*),
            get(file, Get { variable, part: part(start, count, stride), distances, memory, kind: $kind }, $timing));
        exported!(concat!("ncmpi_get_varn", $suffix, $all),
            varn(file: c_int, variable: c_int, count: c_int, starts: *const *const Offset, counts: *const *const Offset,
                memory: *mut c_void $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
    };
}

/// Declares the gets of several variables.
macro_rules! several {
    ($suffix:literal, $all:literal, ($($kind_argument:ident: $kind_type:ty),*), $timing:expr) => {
        exported!(concat!("ncmpi_mget_var", $suffix, $all),
            mget_var(file: c_int, count: c_int, variables: *mut c_int, memories: *const *mut c_void $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
        exported!(concat!("ncmpi_mget_var1", $suffix, $all),
            mget_var1(file: c_int, count: c_int, variables: *mut c_int, starts: *const *const Offset, memories: *const *mut c_void
                $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
        exported!(concat!("ncmpi_mget_vara", $suffix, $all),
            mget_vara(file: c_int, count: c_int, variables: *mut c_int, starts: *const *const Offset, counts: *const *const Offset,
                memories: *const *mut c_void $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
        exported!(concat!("ncmpi_mget_vars", $suffix, $all),
            mget_vars(file: c_int, count: c_int, variables: *mut c_int, starts: *const *const Offset, counts: *const *const Offset,
                strides: *const *const Offset, memories: *const *mut c_void $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
        exported!(concat!("ncmpi_mget_varm", $suffix, $all),
            mget_varm(file: c_int, count: c_int, variables: *mut c_int, starts: *const *const Offset, counts: *const *const Offset,
                strides: *const *const Offset, distances: *const *const Offset, memories: *const *mut c_void
                $(, $kind_argument: $kind_type)*),
            flush_before(file, $timing));
    };
}

/// Declares all gets with one kind of memory.
macro_rules! gets {
    ($module:ident, $suffix:literal, ($($kind_argument:ident: $kind_type:ty),*), $kind:expr, ($($list_argument:ident: $list_type:ty),*)) => {
        mod $module {
            use super::*;
            one!($suffix, "", ($($kind_argument: $kind_type),*), $kind, TransferKind::Independent);
            several!($suffix, "", ($($list_argument: $list_type),*), TransferKind::Independent);

            mod collective {
                use super::*;
                one!($suffix, "_all", ($($kind_argument: $kind_type),*), $kind, TransferKind::Collective);
                several!($suffix, "_all", ($($list_argument: $list_type),*), TransferKind::Collective);
            }
        }
    };
}

/// For each type: the names end in `_int`, and the like.
macro_rules! typed {
    ($($module:ident $suffix:literal $element:ident,)*) => {
        $(gets!($module, $suffix, (), MemoryType::Named(ElementType::$element), ());)*
    };
}

typed! {
    text "_text" Text,
    schar "_schar" I8,
    uchar "_uchar" U8,
    short "_short" I16,
    ushort "_ushort" U16,
    int "_int" I32,
    uint "_uint" U32,
    long "_long" I64,
    float "_float" F32,
    double "_double" F64,
    longlong "_longlong" I64,
    ulonglong "_ulonglong" U64,
}
gets!(flexible, "", (buffer_count: Offset, datatype: MpiHandle), MemoryType::Flexible(buffer_count, datatype),
    (buffer_counts: *const Offset, datatypes: *const c_void));

exported!("ncmpi_get_vard",
    get_vard(file: c_int, variable: c_int, filetype: MpiHandle, memory: *mut c_void, count: Offset, datatype: MpiHandle),
    flush_before(file, TransferKind::Independent));
exported!("ncmpi_get_vard_all",
    get_vard_all(file: c_int, variable: c_int, filetype: MpiHandle, memory: *mut c_void, count: Offset, datatype: MpiHandle),
    flush_before(file, TransferKind::Collective));
