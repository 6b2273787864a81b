//! The parts that connectors share. A connector is a library in a process of the user's that knows more than bytes: collective calls,
//! arrays.
//!
//! It links no library of the field (MPI, HDF5, PnetCDF): it finds those of the process at run time, so that one build serves
//! the user's own. Nothing here keeps state but what is found once.
//!
//! | file | subject |
//! | --- | --- |
//! | `symbols` | functions and variables of other libraries, by name |
//! | `mpi` | communicators and info objects of the MPI that this process uses |
//! | `datatypes` | how a datatype was made |
//! | `place` | files that live in weir |
//! | `bugs` | failed assertions of our own, which end a call and not the program |
//! | this file | messages on standard error, by `complain!` |

/// Writes a line to standard error, where that is possible. `eprintln!` panics if it is not: the program is the user's, and its
/// call ends as it would have.
#[macro_export]
macro_rules! complain {
    ($($what:tt)*) => {{
        use ::std::io::Write;
        let line = ::std::format!("{}\n", ::std::format_args!($($what)*));
        let _ = ::std::io::stderr().write_all(line.as_bytes());
    }};
}

pub mod bugs;
pub mod datatypes;
pub mod mpi;
pub mod place;
pub mod symbols;

// The unwinder, linked statically, as the interposer has it: libgcc_s.so would be one library more that every program loads.
#[cfg(target_env = "gnu")]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
extern "C" {}
