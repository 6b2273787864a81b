//! The layout of `H5VL_class_t` and of its callbacks in HDF5 1.14 and 2.x (`H5VLconnector.h`, `H5VL_VERSION` 3). Of a class of
//! another version only the head is known.
//!
//! Callbacks that this connector neither calls nor replaces have no type here.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::arguments::{
    DatasetGet, FileGet, FileSpecific, Herr, Hid, ObjectGet, ObjectLocation, OperationNumber,
    OptionalOperation, VolObject, VolRequest,
};

/// `H5VL_VERSION` of the classes whose layout is known.
pub const KNOWN_VERSION: c_uint = 3;

/// A callback without a type.
pub type Callback = Option<unsafe extern "C" fn()>;
/// A callback with arguments of an operation.
pub type OperationCallback<A> =
    Option<unsafe extern "C" fn(VolObject, *mut A, Hid, VolRequest) -> Herr>;
/// The same, for an object at a location.
pub type LocatedCallback<A> =
    Option<unsafe extern "C" fn(VolObject, *const ObjectLocation, *mut A, Hid, VolRequest) -> Herr>;
/// The creation of a file.
pub type FileCreate =
    Option<unsafe extern "C" fn(*const c_char, c_uint, Hid, Hid, Hid, VolRequest) -> VolObject>;
/// The opening of a file.
pub type FileOpen =
    Option<unsafe extern "C" fn(*const c_char, c_uint, Hid, Hid, VolRequest) -> VolObject>;
/// The closing of a file.
pub type FileClose = Option<unsafe extern "C" fn(VolObject, Hid, VolRequest) -> Herr>;
/// A read or write of datasets: their number, the datasets, their types and spaces in memory, their spaces in the file, the
/// property list, the buffers.
pub type TransferCallback = Option<
    unsafe extern "C" fn(
        usize,
        *mut VolObject,
        *mut Hid,
        *mut Hid,
        *mut Hid,
        Hid,
        *mut *mut c_void,
        VolRequest,
    ) -> Herr,
>;
/// The class of the connector at a level of the stack.
pub type GetClass = Option<unsafe extern "C" fn(VolObject, c_int, *mut *const VolClass) -> Herr>;
/// The capabilities of a connector.
pub type GetCapabilities = Option<unsafe extern "C" fn(*const c_void, *mut u64) -> Herr>;

/// The head of a class of any version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClassHead {
    pub version: c_uint,
    pub value: c_int,
    pub name: *const c_char,
}

/// `H5VL_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VolClass {
    pub head: ClassHead,
    connector_version: c_uint,
    capabilities: u64,
    initialize: Callback,
    terminate: Callback,
    pub info: InfoClass,
    pub wrap: WrapClass,
    attribute: [Callback; 8],
    pub dataset: DatasetClass,
    pub datatype: SubClass,
    pub file: FileClass,
    pub group: SubClass,
    link: [Callback; 6],
    pub object: ObjectClass,
    pub introspect: IntrospectClass,
    request: [Callback; 6],
    blob: [Callback; 4],
    token: [Callback; 3],
    optional: Callback,
}

// 74 callbacks; 5 words: the head, the connector's version, its capabilities and the size of its info.
const _: () = assert!(size_of::<VolClass>() == (74 + 5) * size_of::<usize>());

/// `H5VL_info_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InfoClass {
    size: usize,
    copy: Callback,
    compare: Callback,
    pub free: Option<unsafe extern "C" fn(*mut c_void) -> Herr>,
    to_str: Callback,
    pub from_str: Option<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> Herr>,
}

/// `H5VL_wrap_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WrapClass {
    before: [Callback; 2],
    /// Wraps an object of the connector beneath, by its type and a context.
    pub wrap: Option<unsafe extern "C" fn(VolObject, c_int, *mut c_void) -> VolObject>,
    after: [Callback; 2],
}

/// `H5VL_dataset_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DatasetClass {
    create: Callback,
    open: Callback,
    pub read: TransferCallback,
    pub write: TransferCallback,
    pub get: OperationCallback<DatasetGet>,
    pub specific: OperationCallback<OperationNumber>,
    optional: Callback,
    close: Callback,
}

/// `H5VL_datatype_class_t`, and `H5VL_group_class_t`. `before`: create, open, get.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SubClass {
    before: [Callback; 3],
    pub specific: OperationCallback<OperationNumber>,
    optional: Callback,
    close: Callback,
}

/// `H5VL_file_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileClass {
    pub create: FileCreate,
    pub open: FileOpen,
    pub get: OperationCallback<FileGet>,
    pub specific: OperationCallback<FileSpecific>,
    pub optional: OperationCallback<OptionalOperation>,
    pub close: FileClose,
}

/// `H5VL_object_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ObjectClass {
    open: Callback,
    copy: Callback,
    pub get: LocatedCallback<ObjectGet>,
    pub specific: LocatedCallback<OperationNumber>,
    optional: Callback,
}

/// `H5VL_introspect_class_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IntrospectClass {
    pub get_class: GetClass,
    pub get_capabilities: GetCapabilities,
    query_optional: Callback,
}
