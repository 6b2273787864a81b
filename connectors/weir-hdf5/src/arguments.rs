//! The arguments of the operations that this connector calls or reads, in the layout of HDF5 1.14 and 2.x (`H5VLconnector.h`,
//! `H5VLnative.h`, `H5Opublic.h`).

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

/// `hid_t`.
pub type Hid = i64;
/// `herr_t`: negative for a failure.
pub type Herr = c_int;
/// A call that failed.
pub const FAILED: Herr = -1;
/// An object of a connector: a file, a dataset.
pub type VolObject = *mut c_void;
/// The place for the request of an asynchronous operation.
pub type VolRequest = *mut *mut c_void;

/// `H5I_FILE` of `H5I_type_t`.
pub const FILE: c_int = 1;
/// `H5I_GROUP`.
pub const GROUP: c_int = 2;
/// `H5I_DATATYPE`.
pub const DATATYPE: c_int = 3;
/// `H5I_DATASET`.
pub const DATASET: c_int = 5;

/// `H5VL_FILE_FLUSH`.
pub const FILE_FLUSH: c_int = 0;
/// `H5VL_FILE_REOPEN`.
pub const FILE_REOPEN: c_int = 1;
/// `H5VL_FILE_IS_ACCESSIBLE`.
pub const FILE_IS_ACCESSIBLE: c_int = 2;
/// `H5VL_FILE_DELETE`.
pub const FILE_DELETE: c_int = 3;
/// `H5VL_DATASET_FLUSH`.
pub const DATASET_FLUSH: c_int = 1;
/// `H5VL_DATATYPE_FLUSH`.
pub const DATATYPE_FLUSH: c_int = 0;
/// `H5VL_GROUP_FLUSH`.
pub const GROUP_FLUSH: c_int = 2;
/// `H5VL_OBJECT_FLUSH`.
pub const OBJECT_FLUSH: c_int = 4;

/// `H5VL_loc_params_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ObjectLocation {
    pub object_type: c_int,
    kind: c_int,
    by: [usize; 5],
}

impl ObjectLocation {
    /// An object itself: `H5VL_OBJECT_BY_SELF`.
    pub fn itself(object_type: c_int) -> ObjectLocation {
        ObjectLocation {
            object_type,
            kind: 0,
            by: [0; 5],
        }
    }
}

/// `H5VL_file_specific_args_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FileSpecific {
    pub operation: c_int,
    pub of: FileSpecificArguments,
}

/// The arguments of one operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub union FileSpecificArguments {
    /// For a flush: the type of the object, which need not be the file.
    pub object_type: c_int,
    /// For a reopen: the place for the new file.
    pub reopened: *mut VolObject,
    /// For `H5Fis_accessible`, and for `H5Fdelete`, which has no answer.
    pub named: NamedFile,
}

/// A file by its name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NamedFile {
    name: *const c_char,
    pub access: Hid,
    pub is_accessible: *mut bool,
}

/// The arguments of an operation of which only the number is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OperationNumber {
    pub operation: c_int,
}

/// `H5VL_file_get_args_t` for the file's number.
#[repr(C)]
#[derive(Debug)]
pub struct FileGet {
    operation: c_int,
    number: *mut c_ulong,
    rest: [usize; 4],
}

impl FileGet {
    /// `H5VL_FILE_GET_FILENO`.
    pub fn number(number: &mut c_ulong) -> FileGet {
        FileGet {
            operation: 3,
            number,
            rest: [0; 4],
        }
    }
}

/// `H5VL_dataset_get_args_t` for the creation property list.
#[repr(C)]
#[derive(Debug)]
pub struct DatasetGet {
    operation: c_int,
    pub list: Hid,
}

impl DatasetGet {
    /// `H5VL_DATASET_GET_DCPL`.
    pub fn creation_list() -> DatasetGet {
        DatasetGet {
            operation: 1,
            list: -1,
        }
    }
}

/// `H5O_info2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectInfo {
    /// The number of its file.
    pub file: c_ulong,
    rest: [u64; 8],
}

/// `H5VL_object_get_args_t` for basic information.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectGet {
    operation: c_int,
    wanted: WantedInfo,
    rest: usize,
}

#[repr(C)]
#[derive(Debug)]
struct WantedInfo {
    fields: c_uint,
    info: *mut ObjectInfo,
}

impl ObjectGet {
    /// `H5VL_OBJECT_GET_INFO` with `H5O_INFO_BASIC`.
    pub fn basic_info(info: &mut ObjectInfo) -> ObjectGet {
        ObjectGet {
            operation: 3,
            wanted: WantedInfo { fields: 1, info },
            rest: 0,
        }
    }
}

/// `H5VL_optional_args_t`.
#[repr(C)]
#[derive(Debug)]
pub struct OptionalOperation {
    operation: c_int,
    arguments: *mut c_void,
}

/// `H5VL_native_file_get_vfd_handle_t`.
#[repr(C)]
#[derive(Debug)]
pub struct DriverHandle {
    pub access: Hid,
    pub handle: *mut *mut c_void,
}

impl OptionalOperation {
    /// `H5VL_NATIVE_FILE_GET_VFD_HANDLE`.
    pub fn driver_handle(of: &mut DriverHandle) -> OptionalOperation {
        OptionalOperation {
            operation: 9,
            arguments: core::ptr::from_mut(of).cast(),
        }
    }
}
