//! The HDF5 connector: `libweir_hdf5.so`, a plug-in of HDF5's virtual object layer (VOL), which HDF5 1.14 and 2.x load when
//! `HDF5_VOL_CONNECTOR` names it. `weir run` sets that variable.
//!
//! It lies between a program and the connector beneath, usually the native one, and passes all calls through. For files that live
//! in weir
//! - collective transfers become independent (`transfer`): HDF5 prepares an exchange between processes that weir does not need;
//! - a flush publishes: other nodes see the data. HDF5's drivers for one process do nothing in a flush.
//!
//! The passing through is HDF5's own: the plug-in copies the class of its pass-through connector, and replaces some of the 74
//! callbacks. A close needs nothing here: the interposer tells the server of the last close.
//!
//! HDF5 is found at run time: a plug-in that linked it would bring a second one into the process. A process may have several; each
//! gets its own connector, found by the address that asks for the plug-in.
//!
//! A program must not fail because of this library. An HDF5 1.12 gets its own native class, a later one with an unknown VOL its own
//! pass-through class. One without a VOL (1.10), which looks for a filter here, finds none.
//!
//! | file | subject |
//! | --- | --- |
//! | `class`, `arguments` | layouts of HDF5 |
//! | `hdf5` | the functions of HDF5 that the plug-in calls |
//! | `plugin` | the class that an HDF5 gets |
//! | `connector` | the connectors of this process |
//! | `calls` | the callbacks that replace others |
//! | `transfer` | the callbacks for reads and writes |
//! | `access` | access lists that name the connector beneath |
//! | `files` | the open files that live in weir |

mod access;
mod arguments;
mod calls;
mod class;
mod connector;
mod files;
mod hdf5;
mod plugin;
mod transfer;

use core::ffi::{c_int, c_void};

/// `H5PL_TYPE_VOL`.
const VOL: c_int = 1;

/// The type of this plug-in, for HDF5.
#[no_mangle]
pub extern "C" fn H5PLget_plugin_type() -> c_int {
    VOL
}

/// The class of the connector, for the HDF5 that calls this.
#[no_mangle]
#[unsafe(naked)]
pub extern "C" fn H5PLget_plugin_info() -> *const c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {}", sym give_class);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x0, x30", "b {}", sym give_class);
}

/// Finds the class by the return address of the call.
extern "C" fn give_class(caller: usize) -> *const c_void {
    let find = || plugin::class_for(caller);
    weir_connect::bugs::contain("give_class", find, plugin::no_class)
}
