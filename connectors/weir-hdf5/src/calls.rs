//! The callbacks that replace those of the pass-through connector, one set for each slot. Each has the replaced one, or HDF5, do
//! the operation; if that fails, HDF5's errors stay as they are. If one of our assertions fails, the callback fails as HDF5's do.
//!
//! HDF5 calls them, and owes them: objects of the connector, valid lists, arguments of the operation, and room for the answers, all
//! of which live through the call.

use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fs::File;
use std::sync::Arc;

use weir_connect::bugs::{attempt, contain};
use weir_connect::place;

use crate::access::{Beneath, VolInfo};
use crate::arguments::{
    FileSpecific, Herr, Hid, ObjectLocation, OperationNumber, VolObject, VolRequest, DATASET,
    DATASET_FLUSH, DATATYPE, DATATYPE_FLUSH, FAILED, FILE, FILE_DELETE, FILE_FLUSH,
    FILE_IS_ACCESSIBLE, FILE_REOPEN, GROUP, GROUP_FLUSH, OBJECT_FLUSH,
};
use crate::class::VolClass;
use crate::connector::{connector, VolConnector};
use crate::files::{FileAccess, ParallelFile};
use crate::hdf5::THIS_CONNECTOR;
use crate::transfer;

/// `H5F_ACC_RDWR`.
const WRITABLE: c_uint = 1;
/// `H5F_ACC_CREAT`.
const NEW: c_uint = 0x10;

/// Replaces callbacks of a class by those of this slot.
pub fn replace<const SLOT: usize>(class: &mut VolClass) {
    class.dataset.read = Some(transfer::read_datasets::<SLOT>);
    class.dataset.write = Some(transfer::write_datasets::<SLOT>);
    class.dataset.specific = Some(change_dataset::<SLOT>);
    class.datatype.specific = Some(change_datatype::<SLOT>);
    class.file.create = Some(create_file::<SLOT>);
    class.file.open = Some(open_file::<SLOT>);
    class.file.specific = Some(change_file::<SLOT>);
    class.file.close = Some(close_file::<SLOT>);
    class.group.specific = Some(change_group::<SLOT>);
    class.object.specific = Some(change_object::<SLOT>);
    class.introspect.get_class = Some(get_class::<SLOT>);
    class.introspect.get_capabilities = Some(get_capabilities::<SLOT>);
}

unsafe extern "C" fn create_file<const SLOT: usize>(
    name: *const c_char,
    flags: c_uint,
    creation: Hid,
    access: Hid,
    list: Hid,
    request: VolRequest,
) -> VolObject {
    let work = || {
        // SAFETY: HDF5 calls this with a C string, valid lists, and a place for a request or null.
        unsafe {
            let create = |connector: &VolConnector, access| {
                (connector.hdf5.create_file)(name, flags, creation, access, list, request)
            };
            open_by(
                connector(SLOT),
                name,
                WRITABLE | NEW,
                access,
                list,
                request,
                create,
            )
        }
    };
    contain("create_file", work, core::ptr::null_mut)
}

unsafe extern "C" fn open_file<const SLOT: usize>(
    name: *const c_char,
    flags: c_uint,
    access: Hid,
    list: Hid,
    request: VolRequest,
) -> VolObject {
    let work = || {
        // SAFETY: HDF5 calls this with a C string, valid lists, and a place for a request or null.
        unsafe {
            let open = |connector: &VolConnector, access| {
                (connector.hdf5.open_file)(name, flags, access, list, request)
            };
            open_by(
                connector(SLOT),
                name,
                flags & WRITABLE,
                access,
                list,
                request,
                open,
            )
        }
    };
    contain("open_file", work, core::ptr::null_mut)
}

/// Opens a file with the connector beneath, and notes it.
///
/// # Safety
///
/// As HDF5 opens one; `open` opens it with an access list for the connector beneath.
unsafe fn open_by(
    connector: Option<&VolConnector>,
    name: *const c_char,
    flags: c_uint,
    access: Hid,
    list: Hid,
    request: VolRequest,
    open: impl FnOnce(&VolConnector, Hid) -> VolObject,
) -> VolObject {
    let Some(connector) = connector else {
        return core::ptr::null_mut();
    };
    // SAFETY: `access` is a valid access list of this connector, and `request` null or a place for one, by the caller; `open`
    // returns null or an object of the connector beneath.
    unsafe {
        let Some(beneath) = Beneath::find(connector, access) else {
            return core::ptr::null_mut();
        };
        let file = beneath.wrap(open(connector, beneath.list), request);
        if !file.is_null() {
            attempt(|| note_file(connector, file, name, flags, access, list));
        }
        file
    }
}

/// Notes a file that is now open, if it lives in weir.
///
/// # Safety
///
/// A file of the connector, its name and lists.
unsafe fn note_file(
    connector: &VolConnector,
    file: VolObject,
    name: *const c_char,
    flags: c_uint,
    access: Hid,
    list: Hid,
) {
    // SAFETY: `file` is open, and `name`, a C string, and the lists are those of its open, by the caller. The handle of MPI's
    // driver is null or points to an `MPI_File`.
    unsafe {
        let name = CStr::from_ptr(name);
        if !place::lives_in_weir(name) {
            return;
        }
        let Some(number) = connector.file_number(file, list) else {
            return;
        };
        connector.files.note(number, || {
            if connector.hdf5.is_parallel(access) {
                let handle = connector.driver_handle(file, access, list);
                let handle = *handle.cast::<usize>().as_ref()?;
                let is_new = flags & NEW != 0;
                return Some(FileAccess::Parallel(ParallelFile { handle, is_new }));
            }
            if flags & WRITABLE == 0 {
                return None;
            }
            let file = File::open(place::path(name)).ok()?;
            Some(FileAccess::Written(Arc::new(file)))
        });
    }
}

unsafe extern "C" fn close_file<const SLOT: usize>(
    file: VolObject,
    list: Hid,
    request: VolRequest,
) -> Herr {
    serve("close_file", SLOT, |connector| {
        let close = connector.under.file.close?;
        // SAFETY: HDF5 calls this with a file of this connector, which `close` ends, and a valid list.
        Some(unsafe {
            let number = match connector.files.is_empty() {
                true => None,
                false => contain("file_number", || connector.file_number(file, list), || None),
            };
            let code = close(file, list, request);
            if let Some(number) = number {
                attempt(|| connector.files.forget(number));
            }
            code
        })
    })
}

unsafe extern "C" fn change_file<const SLOT: usize>(
    file: VolObject,
    arguments: *mut FileSpecific,
    list: Hid,
    request: VolRequest,
) -> Herr {
    serve("change_file", SLOT, |connector| {
        let change = connector.under.file.specific?;
        // SAFETY: HDF5 calls this with a file of this connector, or none where the operation names one, and with the
        // arguments of the operation.
        Some(unsafe {
            match (*arguments).operation {
                FILE_FLUSH => {
                    let object_type = (*arguments).of.object_type;
                    let code = change(file, arguments, list, request);
                    publish(connector, file, object_type, list, code)
                }
                FILE_REOPEN => {
                    let code = change(file, arguments, list, request);
                    let reopened = (*arguments).of.reopened;
                    if code >= 0 && !reopened.is_null() && !connector.files.is_empty() {
                        if let Some(number) = connector.file_number(*reopened, list) {
                            // It has the number of the file that was already open.
                            connector.files.note(number, || None);
                        }
                    }
                    code
                }
                FILE_IS_ACCESSIBLE | FILE_DELETE => {
                    change_named(connector, arguments, list, request)
                }
                _ => change(file, arguments, list, request),
            }
        })
    })
}

/// Checks by name if a file is accessible, or deletes it.
///
/// After a failed open, HDF5 asks each connector in its directories if the file is accessible, without info. HDF5's errors, those
/// of the open, are kept then, and none is added if the file is not accessible.
///
/// # Safety
///
/// Arguments of one of these operations, and a transfer list.
unsafe fn change_named(
    connector: &VolConnector,
    arguments: *mut FileSpecific,
    list: Hid,
    request: VolRequest,
) -> Herr {
    let hdf5 = &connector.hdf5;
    let errors = hdf5.take_errors();
    // SAFETY: `arguments` are those of an operation that names a file, with room for its answer, by the caller.
    unsafe {
        let mut named = *arguments;
        let Some(beneath) = Beneath::find(connector, named.of.named.access) else {
            hdf5.keep_errors(|| hdf5.drop_errors(errors));
            return FAILED;
        };
        named.of.named.access = beneath.list;
        let (no_file, vol) = (core::ptr::null_mut(), beneath.vol());
        let code = (hdf5.change_file)(no_file, vol, &raw mut named, list, request);
        if beneath.is_default && named.operation == FILE_IS_ACCESSIBLE {
            if code < 0 {
                *named.of.named.is_accessible = false;
            }
            drop(beneath);
            hdf5.put_errors(errors);
            return 0;
        }
        hdf5.keep_errors(|| hdf5.drop_errors(errors));
        code
    }
}

/// Publishes an object's file after a flush that returned `code`.
///
/// # Safety
///
/// An object of the connector and of this type, and a transfer list.
unsafe fn publish(
    connector: &VolConnector,
    object: VolObject,
    object_type: c_int,
    list: Hid,
    code: Herr,
) -> Herr {
    if code < 0 || connector.files.is_empty() {
        return code;
    }
    // SAFETY: `object` is one of this connector and of this type, and `list` a transfer list, by
    // the caller.
    let number = unsafe {
        match object_type {
            FILE => connector.file_number(object, list),
            _ => connector.number_of_its_file(object, object_type, list),
        }
    };
    match number.map(|number| connector.files.publish(number)) {
        Some(Err(_)) => FAILED,
        Some(Ok(())) | None => code,
    }
}

/// An object, and its type in HDF5.
#[derive(Clone, Copy)]
struct TypedObject {
    object: VolObject,
    object_type: c_int,
}

/// The arguments of an operation that changes an object.
#[derive(Clone, Copy)]
struct ChangeArguments {
    arguments: *mut OperationNumber,
    /// The number of the operation that is a flush.
    flush: c_int,
}

/// Calls an operation, and publishes the object's file if it was a flush.
///
/// # Safety
///
/// An object of the connector and of this type, arguments of the operation, and a transfer list.
unsafe fn change_and_publish(
    connector: &VolConnector,
    change: unsafe extern "C" fn(VolObject, *mut OperationNumber, Hid, VolRequest) -> Herr,
    object: TypedObject,
    change_arguments: ChangeArguments,
    list: Hid,
    request: VolRequest,
) -> Herr {
    // SAFETY: the object is one of this connector, `arguments` are those of its operation, and
    // `list` is a transfer list, by the caller.
    unsafe {
        let ChangeArguments { arguments, flush } = change_arguments;
        let is_flush = (*arguments).operation == flush;
        let code = change(object.object, arguments, list, request);
        match is_flush {
            true => publish(connector, object.object, object.object_type, list, code),
            false => code,
        }
    }
}

/// Does the work of a callback with the connector of a slot. It fails if the slot has none, if the connector beneath lacks the
/// callback (`work` returns `None`), or if an assertion of ours fails.
fn serve(
    call: &str,
    slot: usize,
    work: impl FnOnce(&'static VolConnector) -> Option<Herr>,
) -> Herr {
    let work = || connector(slot).and_then(work).unwrap_or(FAILED);
    contain(call, work, || FAILED)
}

/// Declares the callbacks that change objects.
macro_rules! changes {
    ($($name:ident $class:ident $object_type:ident $flush:ident;)*) => {$(
        unsafe extern "C" fn $name<const SLOT: usize>(
            object: VolObject,
            arguments: *mut OperationNumber,
            list: Hid,
            request: VolRequest,
        ) -> Herr {
            serve(stringify!($name), SLOT, |connector| {
                let change = connector.under.$class.specific?;
                let object = TypedObject { object, object_type: $object_type };
                let arguments = ChangeArguments { arguments, flush: $flush };
                // SAFETY: HDF5 calls this with an object of this class and connector, and the operation's arguments.
                Some(unsafe { change_and_publish(connector, change, object, arguments, list, request) })
            })
        }
    )*};
}

changes! {
    change_dataset dataset DATASET DATASET_FLUSH;
    change_datatype datatype DATATYPE DATATYPE_FLUSH;
    change_group group GROUP GROUP_FLUSH;
}

unsafe extern "C" fn change_object<const SLOT: usize>(
    object: VolObject,
    location: *const ObjectLocation,
    arguments: *mut OperationNumber,
    list: Hid,
    request: VolRequest,
) -> Herr {
    serve("change_object", SLOT, |connector| {
        let change = connector.under.object.specific?;
        // SAFETY: HDF5 calls this with an object of this connector, its location, and the operation's arguments.
        Some(unsafe {
            let is_flush = (*arguments).operation == OBJECT_FLUSH;
            let code = change(object, location, arguments, list, request);
            match is_flush {
                true => publish(connector, object, (*location).object_type, list, code),
                false => code,
            }
        })
    })
}

unsafe extern "C" fn get_class<const SLOT: usize>(
    object: VolObject,
    level: c_int,
    class: *mut *const VolClass,
) -> Herr {
    serve("get_class", SLOT, |connector| {
        if level == THIS_CONNECTOR {
            // SAFETY: HDF5 calls this with room for a pointer.
            unsafe { *class = &raw const connector.class };
            return Some(0);
        }
        let get = connector.under.introspect.get_class?;
        // SAFETY: HDF5 calls this with an object of this connector, and room for a pointer.
        Some(unsafe { get(object, level, class) })
    })
}

unsafe extern "C" fn get_capabilities<const SLOT: usize>(
    info: *const c_void,
    capabilities: *mut u64,
) -> Herr {
    serve("get_capabilities", SLOT, |connector| {
        let get = connector.under.introspect.get_capabilities?;
        // SAFETY: HDF5 calls this with null or info of this connector, and room for a number.
        Some(unsafe {
            match info.is_null() {
                true => get(VolInfo::above_native(connector).as_ptr(), capabilities),
                false => get(info, capabilities),
            }
        })
    })
}
