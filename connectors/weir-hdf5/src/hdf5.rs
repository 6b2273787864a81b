//! The functions of HDF5 that the plug-in calls, from the library that asks for it. A process may have several, for example with
//! two Python packages that each bring their own.

use core::ffi::{c_char, c_int, c_uint, c_void, CStr};

use weir_connect::symbols::LoadedLibrary;

use crate::arguments::{FileSpecific, Herr, Hid, VolObject, VolRequest};
use crate::class::ClassHead;

/// `H5D_ALLOC_TIME_EARLY`.
const EARLY: c_int = 1;
/// `H5D_CONTIGUOUS`.
const CONTIGUOUS: c_int = 1;
/// `H5FD_MPIO_INDEPENDENT` and `H5FD_MPIO_COLLECTIVE`.
const INDEPENDENT: c_int = 0;
const COLLECTIVE: c_int = 1;
/// `H5VL_GET_CONN_LVL_CURR`.
pub const THIS_CONNECTOR: c_int = 0;

type CreateCall =
    unsafe extern "C" fn(*const c_char, c_uint, Hid, Hid, Hid, VolRequest) -> VolObject;
type OpenCall = unsafe extern "C" fn(*const c_char, c_uint, Hid, Hid, VolRequest) -> VolObject;
type ListQuestion<A> = unsafe extern "C" fn(Hid, *mut A) -> Herr;

/// An HDF5 with a VOL.
#[derive(Clone, Copy, Debug)]
pub struct Hdf5 {
    /// The functions of the connector that an access list names.
    pub create_file: CreateCall,
    pub open_file: OpenCall,
    pub change_file:
        unsafe extern "C" fn(VolObject, Hid, *mut FileSpecific, Hid, VolRequest) -> Herr,
    get_vol_info: ListQuestion<*mut c_void>,
    set_vol: unsafe extern "C" fn(Hid, Hid, *const c_void) -> Herr,
    copy_list: unsafe extern "C" fn(Hid) -> Hid,
    close_list: unsafe extern "C" fn(Hid) -> Herr,
    get_alloc_time: ListQuestion<c_int>,
    get_layout: unsafe extern "C" fn(Hid) -> c_int,
    count_filters: unsafe extern "C" fn(Hid) -> c_int,
    take_errors: unsafe extern "C" fn() -> Hid,
    close_errors: unsafe extern "C" fn(Hid) -> Herr,
    put_errors: unsafe extern "C" fn(Hid) -> Herr,
    parallel: Option<ParallelHdf5>,
}

/// The functions that only a parallel HDF5 has.
#[derive(Clone, Copy, Debug)]
struct ParallelHdf5 {
    driver: MpioDriver,
    get_driver: unsafe extern "C" fn(Hid) -> Hid,
    get_mode: ListQuestion<c_int>,
    set_mode: unsafe extern "C" fn(Hid, c_int) -> Herr,
}

/// The driver for MPI-IO.
#[derive(Clone, Copy, Debug)]
enum MpioDriver {
    /// HDF5 1.14: a function that returns it.
    Function(unsafe extern "C" fn() -> Hid),
    /// HDF5 2: a variable, by its address.
    Variable(usize),
}

/// The class of the pass-through connector that every HDF5 with a VOL has; `None`: this one has none, or hides it.
pub fn pass_through_class(library: &LoadedLibrary) -> Option<*const ClassHead> {
    let known = registered(library, c"H5VL_pass_through_register");
    known.or_else(|| {
        // HDF5 2 has a variable.
        let variable = library.symbol(c"H5VL_PASSTHRU_g")?.cast::<Hid>();
        // SAFETY: HDF5's variable of this name is an identifier, which lives as long as the library.
        class_of(library, unsafe { *variable })
    })
}

/// The class of the native connector of HDF5 1.12.
pub fn native_class(library: &LoadedLibrary) -> Option<*const ClassHead> {
    registered(library, c"H5VL_native_register")
}

/// The class of the connector that a function returns.
fn registered(library: &LoadedLibrary, name: &CStr) -> Option<*const ClassHead> {
    type Register = unsafe extern "C" fn() -> Hid;
    // SAFETY: the type is that of HDF5's functions of these names.
    let connector = unsafe { library.function::<Register>(name)?() };
    class_of(library, connector)
}

fn class_of(library: &LoadedLibrary, connector: Hid) -> Option<*const ClassHead> {
    type GetConnectorClass =
        unsafe extern "C" fn(*mut c_void, Hid, c_int, *mut *const ClassHead) -> Herr;
    let (mut class, mut object) = (core::ptr::null(), 0_usize);
    let object = (&raw mut object).cast();
    // SAFETY: the type is that of HDF5's function of this name. HDF5 does not use the object, but refuses null.
    unsafe {
        let get: GetConnectorClass = library.function(c"H5VLintrospect_get_conn_cls")?;
        let code = get(object, connector, THIS_CONNECTOR, &raw mut class);
        (code >= 0 && !class.is_null()).then_some(class)
    }
}

impl Hdf5 {
    /// The functions of a library; `None`: it lacks one.
    pub fn find(library: &LoadedLibrary) -> Option<Hdf5> {
        // SAFETY: the types are those of HDF5's functions of these names, 1.14 to 2.
        unsafe {
            Some(Hdf5 {
                create_file: library.function(c"H5VLfile_create")?,
                open_file: library.function(c"H5VLfile_open")?,
                change_file: library.function(c"H5VLfile_specific")?,
                get_vol_info: library.function(c"H5Pget_vol_info")?,
                set_vol: library.function(c"H5Pset_vol")?,
                copy_list: library.function(c"H5Pcopy")?,
                close_list: library.function(c"H5Pclose")?,
                get_alloc_time: library.function(c"H5Pget_alloc_time")?,
                get_layout: library.function(c"H5Pget_layout")?,
                count_filters: library.function(c"H5Pget_nfilters")?,
                take_errors: library.function(c"H5Eget_current_stack")?,
                close_errors: library.function(c"H5Eclose_stack")?,
                put_errors: library.function(c"H5Eset_current_stack")?,
                parallel: ParallelHdf5::find(library),
            })
        }
    }

    /// Takes HDF5's errors off its stack, to be put back or dropped.
    pub fn take_errors(&self) -> Hid {
        // SAFETY: no arguments.
        unsafe { (self.take_errors)() }
    }

    /// Puts errors back, in place of the present ones.
    pub fn put_errors(&self, errors: Hid) {
        // SAFETY: HDF5 refuses a stack that it does not have.
        unsafe { (self.put_errors)(errors) };
    }

    /// Drops errors that were taken off.
    pub fn drop_errors(&self, errors: Hid) {
        // SAFETY: HDF5 refuses a stack that it does not have.
        unsafe { (self.close_errors)(errors) };
    }

    /// Does an action that calls HDF5, and keeps the errors of a call before it.
    pub fn keep_errors<T>(&self, action: impl FnOnce() -> T) -> T {
        let errors = self.take_errors();
        let result = action();
        self.put_errors(errors);
        result
    }

    /// A copy of the info of the connector of an access list; the connector frees it. Null: there is none.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn vol_info(&self, list: Hid) -> *mut c_void {
        let mut info = core::ptr::null_mut();
        // SAFETY: the list is valid, by the caller; there is room for a pointer.
        let code = unsafe { (self.get_vol_info)(list, &raw mut info) };
        match code {
            0.. => info,
            _ => core::ptr::null_mut(),
        }
    }

    /// A copy of an access list that names another connector, with that one's info.
    ///
    /// # Safety
    ///
    /// A valid list, a valid connector, and info of that connector.
    pub unsafe fn copy_for(&self, list: Hid, connector: Hid, info: *const c_void) -> Option<Hid> {
        // SAFETY: the list, the connector and its info are valid, by the caller. HDF5 copies the
        // info; `own` is made here.
        unsafe {
            let own = (self.copy_list)(list);
            if own < 0 {
                return None;
            }
            let is_set = (self.set_vol)(own, connector, info) >= 0;
            if !is_set {
                (self.close_list)(own);
            }
            is_set.then_some(own)
        }
    }

    /// Closes a list.
    ///
    /// # Safety
    ///
    /// It is ours.
    pub unsafe fn close_list(&self, list: Hid) {
        // SAFETY: the list is ours, by the caller, and not used again.
        unsafe { (self.close_list)(list) };
    }

    /// True if all storage of an unfiltered dataset with this creation list is allocated once a parallel program has opened it.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn is_allocated_at_open(&self, list: Hid) -> bool {
        let mut time = -1;
        // SAFETY: the list is valid, by the caller; there is room for a number.
        unsafe {
            let is_early = (self.get_alloc_time)(list, &raw mut time) >= 0 && time == EARLY;
            is_early || (self.get_layout)(list) == CONTIGUOUS
        }
    }

    /// True if a dataset with this creation list has no filter.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn is_unfiltered(&self, list: Hid) -> bool {
        // SAFETY: the list is valid, by the caller.
        unsafe { (self.count_filters)(list) == 0 }
    }

    /// True if this access list selects the driver for MPI-IO.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn is_parallel(&self, list: Hid) -> bool {
        let Some(parallel) = &self.parallel else {
            return false;
        };
        // SAFETY: the list is valid, by the caller; the variable is HDF5's, which stays loaded.
        unsafe {
            let driver = match parallel.driver {
                MpioDriver::Function(get) => get(),
                MpioDriver::Variable(at) => *(at as *const Hid),
            };
            driver >= 0 && (parallel.get_driver)(list) == driver
        }
    }

    /// True if a transfer with this list is collective.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn is_collective(&self, list: Hid) -> bool {
        let Some(parallel) = &self.parallel else {
            return false;
        };
        let mut mode = INDEPENDENT;
        // SAFETY: the list is valid, by the caller; there is room for a number.
        let code = unsafe { (parallel.get_mode)(list, &raw mut mode) };
        code >= 0 && mode == COLLECTIVE
    }

    /// Sets the mode of transfers with this list.
    ///
    /// # Safety
    ///
    /// A valid list.
    pub unsafe fn set_collective(&self, list: Hid, is_collective: bool) -> bool {
        let mode = match is_collective {
            true => COLLECTIVE,
            false => INDEPENDENT,
        };
        let set = self.parallel.as_ref().map(|parallel| parallel.set_mode);
        // SAFETY: the list is valid, by the caller.
        set.is_some_and(|set| unsafe { set(list, mode) } >= 0)
    }
}

impl ParallelHdf5 {
    fn find(library: &LoadedLibrary) -> Option<ParallelHdf5> {
        let variable = || library.symbol(c"H5FD_MPIO_id_g");
        // SAFETY: the types are those of HDF5's functions of these names.
        unsafe {
            let driver = match library.function(c"H5FD_mpio_init") {
                Some(function) => MpioDriver::Function(function),
                None => MpioDriver::Variable(variable()? as usize),
            };
            Some(ParallelHdf5 {
                driver,
                get_driver: library.function(c"H5Pget_driver")?,
                get_mode: library.function(c"H5Pget_dxpl_mpio")?,
                set_mode: library.function(c"H5Pset_dxpl_mpio")?,
            })
        }
    }
}
