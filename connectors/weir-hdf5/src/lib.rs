//! The HDF5 connector: `libweir_hdf5.so`, a plug-in of HDF5's virtual object layer (VOL), which HDF5 1.14 and 2.x load when
//! `HDF5_VOL_CONNECTOR` names it. `weir run` sets that variable.
//!
//! It lies between a program and the connector beneath, the native one as a rule, and passes all calls through. On files that live
//! in weir
//! - collective transfers become independent (`transfer`): HDF5 makes ready for an exchange between processes that weir does not need;
//! - a flush publishes: other nodes see what was written. The drivers of HDF5 for one process do nothing in a flush.
//!
//! The passing through is HDF5's own: the class of its pass-through connector is copied, and some of its 74 callbacks are replaced.
//! The close of a file needs nothing here: the interposer tells the server of the last close.
//!
//! HDF5 is found at run time: a plug-in that linked it would bring a second one into a process. A process may have several
//! of them, and each gets a connector of its own, by the address from which it asks.
//!
//! A program must not fail because of this library. An HDF5 with another VOL (1.12, a later one) gets its own pass-through class; one without
//! a VOL (1.10) that looks for a filter here finds none.
//!
//! | file | subject |
//! | --- | --- |
//! | `class`, `arguments` | layouts of HDF5 |
//! | `hdf5` | the functions of an HDF5 that are called |
//! | `plugin` | the class that an HDF5 gets |
//! | `connector` | the connectors of this process |
//! | `calls` | the callbacks that replace others |
//! | `transfer` | those for reads and writes |
//! | `access` | access lists that say which connector is beneath |
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

/// The same, by the address to which the call returns.
extern "C" fn give_class(caller: usize) -> *const c_void {
    let find = || plugin::class_for(caller);
    weir_connect::bugs::contain("give_class", find, plugin::no_class)
}
