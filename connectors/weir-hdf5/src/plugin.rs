//! The class that an HDF5 gets for the plug-in: that of a connector of its own, or one that only does what HDF5 does without us.

use core::ffi::{c_int, c_uint, c_void, CStr};
use std::sync::{Mutex, OnceLock, PoisonError};

use weir_connect::symbols::{count_mapped, LoadedLibrary};

use crate::calls;
use crate::class::{ClassHead, VolClass, KNOWN_VERSION};
use crate::connector::{VolConnector, CONNECTORS, SLOTS};
use crate::files::FilesInWeir;
use crate::hdf5::{native_class, pass_through_class, Hdf5};

/// The name of the connector.
const NAME: &CStr = c"weir";
/// Its number among all connectors. Those below 512 are reserved.
const VALUE: c_int = 0x5745;
/// `H5VL_VERSION` of HDF5 1.12. Its pass-through connector loses HDF5's errors, so ours cannot use it.
const LAST_OF_1_12: c_uint = 1;
/// The words of a head, the capabilities and two callbacks.
const LEAST_WORDS: usize = 5;
/// More bytes than a class of any version has.
const CLASS_BYTES: usize = 2048;

/// The class for an HDF5 without a VOL, which looks for filters here. It is no filter, and no HDF5 has its version.
static NO_CLASS: NoClass = NoClass(ClassHead {
    version: c_uint::MAX,
    value: VALUE,
    name: NAME.as_ptr(),
});

struct NoClass(ClassHead);
// SAFETY: it is never changed.
unsafe impl Sync for NoClass {}

/// The replacements of callbacks, by slot.
const REPLACEMENTS: [fn(&mut VolClass); SLOTS] = [
    calls::replace::<0>,
    calls::replace::<1>,
    calls::replace::<2>,
    calls::replace::<3>,
];

/// The class for the HDF5 that contains an address: that of its connector. An HDF5 without a connector gets a class of its own
/// under our name: a program must not fail because this connector does not know its HDF5.
pub fn class_for(caller: usize) -> *const c_void {
    let class = LoadedLibrary::containing(caller).and_then(|library| class_of(&library));
    class.unwrap_or_else(no_class)
}

/// A class that no HDF5 accepts.
pub fn no_class() -> *const c_void {
    (&raw const NO_CLASS.0).cast()
}

fn class_of(library: &LoadedLibrary) -> Option<*const c_void> {
    static MAKES: Mutex<()> = Mutex::new(());
    let _one = MAKES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_known = |slot: &&OnceLock<VolConnector>| {
        slot.get()
            .is_some_and(|known| known.library == library.base)
    };
    if let Some(known) = CONNECTORS.iter().find(is_known).and_then(OnceLock::get) {
        return Some((&raw const known.class).cast());
    }
    match Hdf5::find(library) {
        // HDF5 also asks after a failed open, whose errors must stay.
        Some(hdf5) => hdf5.keep_errors(|| make_class(library, Some(hdf5))),
        None => make_class(library, None),
    }
}

/// The class for an HDF5 that asks for the first time.
fn make_class(library: &LoadedLibrary, hdf5: Option<Hdf5>) -> Option<*const c_void> {
    let under = pass_through_class(library)?;
    // SAFETY: HDF5 returned the class, and all versions have this head.
    let version = unsafe { (*under).version };
    if version <= LAST_OF_1_12 {
        let native = native_class(library)?;
        // SAFETY: a class of HDF5, as `native_class` got it.
        return unsafe { copy_without_ends(native) };
    }
    let free = CONNECTORS.iter().position(|slot| slot.get().is_none());
    match (free, hdf5) {
        (Some(slot), Some(hdf5)) if version == KNOWN_VERSION => {
            // SAFETY: a class of this version has this layout.
            let under = unsafe { *under.cast::<VolClass>() };
            let mut class = under;
            class.head = renamed(under.head);
            REPLACEMENTS[slot](&mut class);
            let connector = CONNECTORS[slot].get_or_init(|| VolConnector {
                library: library.base,
                hdf5,
                under,
                class,
                files: FilesInWeir::default(),
            });
            Some((&raw const connector.class).cast())
        }
        // SAFETY: a class of HDF5, as `pass_through_class` got it.
        _ => Some(unsafe { copy_renamed(under) }.as_ptr().cast()),
    }
}

fn renamed(head: ClassHead) -> ClassHead {
    ClassHead {
        value: VALUE,
        name: NAME.as_ptr(),
        ..head
    }
}

/// A copy of a class of any length, with our name. HDF5 keeps the pointer, so the copy is never freed.
///
/// # Safety
///
/// `class` is a class of HDF5, of any version, which does not change meanwhile.
unsafe fn copy_renamed(class: *const ClassHead) -> &'static mut [usize] {
    let bytes = count_mapped(class as usize).min(CLASS_BYTES);
    let words = bytes / size_of::<usize>();
    let mut copy = vec![0_usize; words.max(LEAST_WORDS)];
    // SAFETY: `words` words are mapped there, and a class of HDF5 has at least the head; `copy` has room for the words and for the
    // head.
    unsafe {
        core::ptr::copy_nonoverlapping(class.cast(), copy.as_mut_ptr(), words);
        let head = copy.as_mut_ptr().cast::<ClassHead>();
        *head = renamed(*class);
    }
    Box::leak(copy.into_boxed_slice())
}

/// The same for the native class of HDF5 1.12, without its initialisation and termination, which HDF5 itself calls once. They
/// follow the head and the capabilities.
///
/// # Safety
///
/// As for [`copy_renamed`].
unsafe fn copy_without_ends(class: *const ClassHead) -> Option<*const c_void> {
    // SAFETY: `class` is a class of HDF5 that does not change meanwhile, by the caller.
    let copy = unsafe { copy_renamed(class) };
    copy.get_mut(3..5)?.fill(0);
    Some(copy.as_ptr().cast())
}
