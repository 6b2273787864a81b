//! Puts: blocking, nonblocking and buffered ones, of one part and of several.

use core::ffi::{c_int, c_void};
use core::ptr::null;

use weir_arrays::element::ElementType;
use weir_connect::mpi::{MpiHandle, Offset};

use crate::arguments::{MemoryType, NamedPart};
use crate::exported::exported;
use crate::file::{Put, TransferKind};
use crate::files::{self, flush_before};

/// A part with strides, which may be null.
pub fn part(start: *const Offset, count: *const Offset, stride: *const Offset) -> NamedPart {
    NamedPart::Part {
        start,
        count,
        stride,
        may_lack_counts: false,
    }
}

/// The number of elements of a part, which gives the next part's offset in memory. 0 if the arguments are wrong, which the put
/// itself reports.
///
/// # Safety
///
/// `counts` is null or has `rank` numbers.
unsafe fn elements(counts: *const Offset, rank: usize) -> usize {
    if counts.is_null() {
        return 1;
    }
    // SAFETY: there are `rank` numbers, by the caller.
    let counts = (0..rank).map(|dimension| unsafe { *counts.add(dimension) });
    let counts = counts.map(|count| usize::try_from(count).unwrap_or(0));
    counts.fold(1, usize::saturating_mul)
}

/// A blocking put.
///
/// # Safety
///
/// As [`LoggedFile::put`](crate::file::LoggedFile::put).
unsafe fn put(file: c_int, put: Put, timing: TransferKind) -> Option<c_int> {
    // SAFETY: the arguments are those of PnetCDF's function, by the caller.
    files::with(file, |file| unsafe { file.put(&[put], timing) })
}

/// A nonblocking put.
///
/// # Safety
///
/// As [`LoggedFile::begin_put`](crate::file::LoggedFile::begin_put).
unsafe fn begin(file: c_int, put: Put, timing: TransferKind, request: *mut c_int) -> Option<c_int> {
    // SAFETY: the arguments are those of PnetCDF's function, by the caller.
    files::with(file, |file| unsafe {
        file.begin_put(&[put], timing, request)
    })
}

/// The puts of a list of parts.
struct ListedPuts {
    puts: Vec<Put>,
    /// The elements, packed, if the program describes its memory by a derived datatype, which may have gaps.
    packed: Option<Vec<u8>>,
}

/// The puts of a list of parts of one variable (`varn`), whose elements are contiguous. `None`: PnetCDF refuses the call.
///
/// # Safety
///
/// `starts` and `counts` are null or have `count` lists, each null or with a number for every dimension; a datatype is valid, and
/// the memory has its elements.
unsafe fn listed(
    file: &crate::file::LoggedFile,
    variable: c_int,
    count: c_int,
    starts: *const *const Offset,
    counts: *const *const Offset,
    memory: *const c_void,
    kind: MemoryType,
) -> Option<ListedPuts> {
    let index = usize::try_from(variable).ok()?;
    let declared = file.definitions.variables.get(index)?;
    // SAFETY: a datatype is valid, by the caller.
    let element = unsafe { kind.element_of(file.datatypes, declared) }?;
    let mut puts = Vec::new();
    let mut offset = 0;
    for item in 0..usize::try_from(count).ok()? {
        // SAFETY: `item` is below `count`, and each array is null or has `count` lists, by the caller.
        unsafe {
            let counts = if counts.is_null() {
                null()
            } else {
                *counts.add(item)
            };
            puts.push(Put {
                variable,
                part: NamedPart::Part {
                    start: if starts.is_null() {
                        null()
                    } else {
                        *starts.add(item)
                    },
                    count: counts,
                    stride: null(),
                    may_lack_counts: true,
                },
                distances: null(),
                memory: null::<u8>().wrapping_add(offset).cast(),
                kind: MemoryType::Named(element),
            });
            let bytes = elements(counts, declared.shape.len()).saturating_mul(element.bytes());
            offset = bytes.saturating_add(offset);
        }
    }
    // SAFETY: the datatype is valid, and the memory has its elements, by the caller.
    let packed = kind
        .derived(file.datatypes)
        .map(|(count, datatype)| unsafe { file.datatypes.packed(memory, count, datatype, offset) });
    let memory = match &packed {
        Some(Some(packed)) => packed.as_ptr(),
        _ => memory.cast(),
    };
    for put in &mut puts {
        put.memory = memory.wrapping_add(put.memory.addr()).cast();
        if packed == Some(None) {
            // The datatype has another number of elements: the put reports it.
            put.kind = kind;
        }
    }
    Some(ListedPuts {
        puts,
        packed: packed.flatten(),
    })
}

/// The parts of a put of several variables, as arrays; null if the function does not have one.
#[derive(Clone, Copy)]
struct PartLists {
    starts: *const *const Offset,
    counts: *const *const Offset,
    strides: *const *const Offset,
    distances: *const *const Offset,
}

/// A put of several variables (`mput`). A `kind` of `None` means that each part has its own: PnetCDF does the put.
///
/// # Safety
///
/// `variables` and `memories` have `count` items, and each list is null or has as many, valid as for a put of one part.
unsafe fn several(
    number: c_int,
    count: c_int,
    variables: *const c_int,
    lists: PartLists,
    memories: *const *const c_void,
    kind: Option<MemoryType>,
    timing: TransferKind,
) -> Option<c_int> {
    let item = |list: *const *const Offset, index: usize| match list.is_null() {
        true => null(),
        // SAFETY: `index` is below `count`, and a list that is not null has `count` items, by the caller.
        false => unsafe { *list.add(index) },
    };
    // SAFETY: `index` is below `count`, and there are `count` variables and buffers, by the caller.
    let variable_and_memory =
        |index: usize| unsafe { (*variables.add(index), *memories.add(index)) };
    let put_of = |index: usize, (variable, memory), kind| Put {
        variable,
        part: match (lists.starts.is_null(), lists.counts.is_null()) {
            (true, _) => NamedPart::Whole,
            (false, true) => NamedPart::Element(item(lists.starts, index)),
            (false, false) => part(
                item(lists.starts, index),
                item(lists.counts, index),
                item(lists.strides, index),
            ),
        },
        distances: item(lists.distances, index),
        memory,
        kind,
    };
    let put = |index, kind| put_of(index, variable_and_memory(index), kind);
    files::with(number, |file| match (kind, usize::try_from(count)) {
        (Some(kind), Ok(count)) => {
            let puts: Vec<Put> = (0..count).map(|index| put(index, kind)).collect();
            // SAFETY: each put's arguments are those of PnetCDF's function, by the caller.
            unsafe { file.put(&puts, timing) }
        }
        _ => file.flush_before(timing),
    })
}

/// Declares the puts of several variables.
macro_rules! several {
    ($suffix:literal, $all:literal, ($($list_argument:ident: $list_type:ty),*), $kind:expr, $timing:expr) => {
        exported!(concat!("ncmpi_mput_var", $suffix, $all),
            mput_var(file: c_int, count: c_int, variables: *const c_int, memories: *const *const c_void $(, $list_argument: $list_type)*),
            several(file, count, variables, PartLists { starts: null(), counts: null(), strides: null(), distances: null() },
                memories, $kind, $timing));
        exported!(concat!("ncmpi_mput_var1", $suffix, $all),
            mput_var1(file: c_int, count: c_int, variables: *const c_int, starts: *const *const Offset, memories: *const *const c_void
                $(, $list_argument: $list_type)*),
            several(file, count, variables, PartLists { starts, counts: null(), strides: null(), distances: null() },
                memories, $kind, $timing));
        exported!(concat!("ncmpi_mput_vara", $suffix, $all),
            mput_vara(file: c_int, count: c_int, variables: *const c_int, starts: *const *const Offset, counts: *const *const Offset,
                memories: *const *const c_void $(, $list_argument: $list_type)*),
            several(file, count, variables, PartLists { starts, counts, strides: null(), distances: null() }, memories, $kind, $timing));
        exported!(concat!("ncmpi_mput_vars", $suffix, $all),
            mput_vars(file: c_int, count: c_int, variables: *const c_int, starts: *const *const Offset, counts: *const *const Offset,
                strides: *const *const Offset, memories: *const *const c_void $(, $list_argument: $list_type)*),
            several(file, count, variables, PartLists { starts, counts, strides, distances: null() }, memories, $kind, $timing));
        exported!(concat!("ncmpi_mput_varm", $suffix, $all),
            mput_varm(file: c_int, count: c_int, variables: *const c_int, starts: *const *const Offset, counts: *const *const Offset,
                strides: *const *const Offset, distances: *const *const Offset, memories: *const *const c_void
                $(, $list_argument: $list_type)*),
            several(file, count, variables, PartLists { starts, counts, strides, distances }, memories, $kind, $timing));
    };
}

/// Declares the puts with one kind of memory: its arguments, and its type.
macro_rules! puts {
    ($module:ident, $suffix:literal, ($($kind_argument:ident: $kind_type:ty),*), $kind:expr,
        ($($list_argument:ident: $list_type:ty),*), $list_kind:expr) => {
        mod $module {
            use super::*;

            several!($suffix, "", ($($list_argument: $list_type),*), $list_kind, TransferKind::Independent);

            puts!(@family "put" $suffix, "", ($($kind_argument: $kind_type),*), (), $kind, |file, one| put(file, one, TransferKind::Independent));
            mod collective {
                use super::*;
                several!($suffix, "_all", ($($list_argument: $list_type),*), $list_kind, TransferKind::Collective);
                puts!(@family "put" $suffix, "_all", ($($kind_argument: $kind_type),*), (), $kind, |file, one| put(file, one, TransferKind::Collective));
                puts!(@list "put" $suffix, "_all", ($($kind_argument: $kind_type),*), (), $kind,
                    |file, puts| file.put(&puts, TransferKind::Collective), TransferKind::Collective);
            }
            puts!(@list "put" $suffix, "", ($($kind_argument: $kind_type),*), (), $kind,
                |file, puts| file.put(&puts, TransferKind::Independent), TransferKind::Independent);
            mod nonblocking {
                use super::*;
                puts!(@family "iput" $suffix, "", ($($kind_argument: $kind_type),*), (request: *mut c_int), $kind,
                    |file, one| begin(file, one, TransferKind::Nonblocking, request));
                puts!(@list "iput" $suffix, "", ($($kind_argument: $kind_type),*), (request: *mut c_int), $kind,
                    |file, puts| file.begin_put(&puts, TransferKind::Nonblocking, request), TransferKind::Nonblocking);
            }
            mod buffered {
                use super::*;
                puts!(@family "bput" $suffix, "", ($($kind_argument: $kind_type),*), (request: *mut c_int), $kind,
                    |file, one| begin(file, one, TransferKind::Buffered, request));
                puts!(@list "bput" $suffix, "", ($($kind_argument: $kind_type),*), (request: *mut c_int), $kind,
                    |file, puts| file.begin_put(&puts, TransferKind::Buffered, request), TransferKind::Buffered);
            }
        }
    };
    (@family $verb:literal $suffix:literal, $all:literal, ($($kind_argument:ident: $kind_type:ty),*), ($($request:ident: $request_type:ty)?),
        $kind:expr, |$file:ident, $one:ident| $act:expr) => {
        exported!(concat!("ncmpi_", $verb, "_var", $suffix, $all),
            var($file: c_int, variable: c_int, memory: *const c_void $(, $kind_argument: $kind_type)* $(, $request: $request_type)?), {
                let $one = Put { variable, part: NamedPart::Whole, distances: null(), memory, kind: $kind };
                $act
            });
        exported!(concat!("ncmpi_", $verb, "_var1", $suffix, $all),
            var1($file: c_int, variable: c_int, start: *const Offset, memory: *const c_void $(, $kind_argument: $kind_type)* $(, $request: $request_type)?), {
                let $one = Put { variable, part: NamedPart::Element(start), distances: null(), memory, kind: $kind };
                $act
            });
        exported!(concat!("ncmpi_", $verb, "_vara", $suffix, $all),
            vara($file: c_int, variable: c_int, start: *const Offset, count: *const Offset, memory: *const c_void
                $(, $kind_argument: $kind_type)* $(, $request: $request_type)?), {
                let $one = Put { variable, part: part(start, count, null()), distances: null(), memory, kind: $kind };
                $act
            });
        exported!(concat!("ncmpi_", $verb, "_vars", $suffix, $all),
            vars($file: c_int, variable: c_int, start: *const Offset, count: *const Offset, stride: *const Offset, memory: *const c_void
                $(, $kind_argument: $kind_type)* $(, $request: $request_type)?), {
                let $one = Put { variable, part: part(start, count, stride), distances: null(), memory, kind: $kind };
                $act
            });
        exported!(concat!("ncmpi_", $verb, "_varm", $suffix, $all),
            varm($file: c_int, variable: c_int, start: *const Offset, count: *const Offset, stride: *const Offset, distances: *const Offset,
                memory: *const c_void $(, $kind_argument: $kind_type)* $(, $request: $request_type)?), {
                let $one = Put { variable, part: part(start, count, stride), distances, memory, kind: $kind };
                $act
            });
    };
    (@list $verb:literal $suffix:literal, $all:literal, ($($kind_argument:ident: $kind_type:ty),*), ($($request:ident: $request_type:ty)?),
        $kind:expr, |$file:ident, $puts:ident| $act:expr, $timing:expr) => {
        exported!(concat!("ncmpi_", $verb, "_varn", $suffix, $all),
            varn(number: c_int, variable: c_int, count: c_int, starts: *const *const Offset, counts: *const *const Offset,
                memory: *const c_void $(, $kind_argument: $kind_type)* $(, $request: $request_type)?),
            files::with(number, |$file| match listed($file, variable, count, starts, counts, memory, $kind) {
                Some(ListedPuts { puts: $puts, packed }) => {
                    let result = $act;
                    drop(packed);
                    result
                }
                None => $file.flush_before($timing),
            }));
    };
}

/// For each type: the names end in `_int`, and the like.
macro_rules! typed {
    ($($module:ident $suffix:literal $element:ident,)*) => {
        $(puts!($module, $suffix, (), MemoryType::Named(ElementType::$element), (), Some(MemoryType::Named(ElementType::$element)));)*
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
puts!(flexible, "", (buffer_count: Offset, datatype: MpiHandle), MemoryType::Flexible(buffer_count, datatype),
    (buffer_counts: *const Offset, datatypes: *const c_void), None);

exported!("ncmpi_put_vard",
    put_vard(file: c_int, variable: c_int, filetype: MpiHandle, memory: *const c_void, count: Offset, datatype: MpiHandle),
    flush_before(file, TransferKind::Independent));
exported!("ncmpi_put_vard_all",
    put_vard_all(file: c_int, variable: c_int, filetype: MpiHandle, memory: *const c_void, count: Offset, datatype: MpiHandle),
    flush_before(file, TransferKind::Collective));
