//! The parts that connectors share. A connector is a library in the user's process that sees more than bytes: collective calls and
//! arrays.
//!
//! It does not link MPI, HDF5 or PnetCDF. It finds those of the process at run time, so that one build serves them all. The only
//! state here is a cache of the symbols found.
//!
//! | file | subject |
//! | --- | --- |
//! | `symbols` | functions and variables of other libraries, by name |
//! | `mpi` | communicators and info objects of the MPI that this process uses |
//! | `node_memory` | memory that the processes of a node share, and agree by |
//! | `peers` | the processes that have a file open together, and what they agree on |
//! | `datatypes`, `pieces` | the construction of a datatype, and its contiguous pieces |
//! | `place` | files that live in weir |
//! | `bugs` | failed assertions of our own, which end a call and not the program |
//! | this file | messages on standard error, by `complain!` |

/// Writes a line to standard error, and ignores a failure. `eprintln!` would panic then, and fail the user's call.
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
pub mod node_memory;
pub mod peers;
pub mod pieces;
pub mod place;
pub mod symbols;

// The unwinder, linked statically as in the interposer: with libgcc_s.so, every program would load one more library.
#[cfg(target_env = "gnu")]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
extern "C" {}
