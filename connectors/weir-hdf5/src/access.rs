//! The connector beneath, which an access list names in the info of ours. Without info, as when our connector is named alone
//! (`HDF5_VOL_CONNECTOR=weir`), it is the native one.
//!
//! Opens, creations and look-ups of files by name use the list made here. The pass-through connector would lose HDF5's errors, by
//! which a program tells a missing file from a broken one.

use core::ffi::{c_void, CStr};

use crate::arguments::{Hid, VolObject, VolRequest, FILE};
use crate::connector::VolConnector;

/// The info of the pass-through connector for the native one.
const ABOVE_NATIVE: &CStr = c"under_vol=0;under_info={}";
/// The info of the pass-through connector, and its context for wrapping objects: both have this layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnderInfo {
    pub vol: Hid,
    info: *mut c_void,
}

/// Info of our connector, freed on drop.
#[derive(Debug)]
pub struct VolInfo<'c> {
    connector: &'c VolConnector,
    info: *mut UnderInfo,
}

impl<'c> VolInfo<'c> {
    /// Info for the native connector; null: HDF5 has refused.
    pub fn above_native(connector: &'c VolConnector) -> VolInfo<'c> {
        let mut info = core::ptr::null_mut();
        if let Some(parse) = connector.under.info.from_str {
            // SAFETY: a C string, and room for the answer.
            if unsafe { parse(ABOVE_NATIVE.as_ptr(), &raw mut info) } < 0 {
                info = core::ptr::null_mut();
            }
        }
        VolInfo {
            connector,
            info: info.cast(),
        }
    }

    /// The pointer for the pass-through connector.
    pub fn as_ptr(&self) -> *const c_void {
        self.info.cast()
    }
}

impl Drop for VolInfo<'_> {
    fn drop(&mut self) {
        let free = self.connector.under.info.free;
        if let Some(free) = free.filter(|_| !self.info.is_null()) {
            // SAFETY: the connector made the info, and it is not used again.
            unsafe { free(self.info.cast()) };
        }
    }
}

/// The connector beneath, and an access list for it.
#[derive(Debug)]
pub struct Beneath<'c> {
    connector: &'c VolConnector,
    info: VolInfo<'c>,
    /// A copy of the list that names the connector beneath.
    pub list: Hid,
    /// True if our connector was named without info.
    pub is_default: bool,
}

impl<'c> Beneath<'c> {
    /// The connector beneath of an access list; `None`: HDF5 has refused.
    ///
    /// # Safety
    ///
    /// A valid access list, whose connector is this one.
    pub unsafe fn find(connector: &'c VolConnector, list: Hid) -> Option<Beneath<'c>> {
        let hdf5 = &connector.hdf5;
        // SAFETY: `list` is a valid access list of this connector, by the caller; info of this
        // connector is that of the pass-through one.
        unsafe {
            let info = hdf5.vol_info(list).cast();
            let mut info = VolInfo { connector, info };
            let is_default = info.info.is_null();
            if is_default {
                info = VolInfo::above_native(connector);
            }
            let under = *info.info.as_ref()?;
            let list = hdf5.copy_for(list, under.vol, under.info)?;
            Some(Beneath {
                connector,
                info,
                list,
                is_default,
            })
        }
    }

    /// The connector.
    pub fn vol(&self) -> Hid {
        // SAFETY: `find` has checked that it is not null, and only the drop frees it.
        unsafe { (*self.info.info).vol }
    }

    /// Wraps an object of the connector beneath as one of ours, and the request, too; null stays null.
    ///
    /// # Safety
    ///
    /// An object of the connector beneath, or null; null, or a place for a request with null or one of that connector.
    pub unsafe fn wrap(&self, object: VolObject, request: VolRequest) -> VolObject {
        let Some(wrap) = self.connector.under.wrap.wrap else {
            return core::ptr::null_mut();
        };
        let context = UnderInfo {
            vol: self.vol(),
            info: core::ptr::null_mut(),
        };
        let context = (&raw const context).cast_mut().cast();
        // SAFETY: `object` is null or of the connector beneath, and `request` is null or has a
        // request of it or null, by the caller. Without a context of its own the connector beneath
        // leaves the object as it is.
        unsafe {
            if object.is_null() {
                return object;
            }
            if let Some(pending) = request.as_mut().filter(|pending| !pending.is_null()) {
                *pending = wrap(*pending, FILE, context);
            }
            wrap(object, FILE, context)
        }
    }
}

impl Drop for Beneath<'_> {
    fn drop(&mut self) {
        let hdf5 = &self.connector.hdf5;
        // SAFETY: the list is ours, and not used again.
        hdf5.keep_errors(|| unsafe { hdf5.close_list(self.list) });
    }
}
