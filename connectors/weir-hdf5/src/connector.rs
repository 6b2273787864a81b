//! The connectors of this process: one for each HDF5 that has asked for the plug-in. HDF5 does not tell a callback which connector
//! it belongs to, so each connector has its own callbacks, by its slot.

use core::ffi::{c_int, c_ulong, c_void};
use std::sync::OnceLock;

use crate::arguments::{
    DatasetGet, DriverHandle, FileGet, Hid, ObjectGet, ObjectInfo, ObjectLocation,
    OptionalOperation, VolObject,
};
use crate::class::VolClass;
use crate::files::FilesInWeir;
use crate::hdf5::Hdf5;

/// More HDF5 libraries than a process has.
pub const SLOTS: usize = 4;

/// The connector of one HDF5.
#[derive(Debug)]
pub struct VolConnector {
    /// The base address of that HDF5.
    pub library: usize,
    pub hdf5: Hdf5,
    /// Its pass-through connector.
    pub under: VolClass,
    /// Our own: the same, with some callbacks replaced.
    pub class: VolClass,
    pub files: FilesInWeir,
}

// SAFETY: a class is never changed; its name is a constant string.
unsafe impl Send for VolConnector {}
// SAFETY: threads only read a class, and its name.
unsafe impl Sync for VolConnector {}

/// The connectors by slot.
pub static CONNECTORS: [OnceLock<VolConnector>; SLOTS] = [const { OnceLock::new() }; SLOTS];

/// The connector of a slot; `None`: the slot is free, and HDF5 has no callback of it.
pub fn connector(slot: usize) -> Option<&'static VolConnector> {
    CONNECTORS.get(slot)?.get()
}

impl VolConnector {
    /// The number of an open file.
    ///
    /// # Safety
    ///
    /// A file of this connector, and a transfer list.
    pub unsafe fn file_number(&self, file: VolObject, list: Hid) -> Option<c_ulong> {
        let mut number = 0;
        let mut question = FileGet::number(&mut number);
        let get = self.under.file.get?;
        // SAFETY: `file` is one of this connector, and `list` a transfer list, by the caller;
        // `number` outlives the call.
        let code = unsafe { get(file, &raw mut question, list, core::ptr::null_mut()) };
        (code >= 0).then_some(number)
    }

    /// The number of the file of an object.
    ///
    /// # Safety
    ///
    /// An object of this connector and of this type, and a transfer list.
    pub unsafe fn number_of_its_file(
        &self,
        object: VolObject,
        object_type: c_int,
        list: Hid,
    ) -> Option<c_ulong> {
        let mut info = ObjectInfo::default();
        let mut question = ObjectGet::basic_info(&mut info);
        let (get, itself) = (self.under.object.get?, ObjectLocation::itself(object_type));
        let no_request = core::ptr::null_mut();
        // SAFETY: `object` is one of this connector and of this type, and `list` a transfer list,
        // by the caller; `info` outlives the call.
        let code = unsafe {
            get(
                object,
                &raw const itself,
                &raw mut question,
                list,
                no_request,
            )
        };
        (code >= 0).then_some(info.file)
    }

    /// The creation list of a dataset; the caller closes it.
    ///
    /// # Safety
    ///
    /// A dataset of this connector, and a transfer list.
    pub unsafe fn creation_list(&self, dataset: VolObject, list: Hid) -> Option<Hid> {
        let mut question = DatasetGet::creation_list();
        let get = self.under.dataset.get?;
        // SAFETY: `dataset` is one of this connector, and `list` a transfer list, by the caller.
        let code = unsafe { get(dataset, &raw mut question, list, core::ptr::null_mut()) };
        (code >= 0 && question.list >= 0).then_some(question.list)
    }

    /// The handle that HDF5's driver has for a file.
    ///
    /// # Safety
    ///
    /// A file of this connector, its access list, and a transfer list.
    pub unsafe fn driver_handle(&self, file: VolObject, access: Hid, list: Hid) -> *mut c_void {
        let mut found = core::ptr::null_mut();
        let mut wanted = DriverHandle {
            access,
            handle: &raw mut found,
        };
        let mut question = OptionalOperation::driver_handle(&mut wanted);
        // SAFETY: `file` is one of this connector, `access` its access list, and `list` a transfer
        // list, by the caller; `found` outlives the call.
        let code = self
            .under
            .file
            .optional
            .map(|ask| unsafe { ask(file, &raw mut question, list, core::ptr::null_mut()) });
        match code {
            Some(0..) => found,
            _ => core::ptr::null_mut(),
        }
    }
}
