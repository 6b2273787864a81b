//! The MPI-IO connector: `libweir_mpiio.so`, which the interposer loads when the program first calls one of
//! its functions.
//!
//! A collective call of MPI-IO first exchanges data between processes, so that few of them write few large requests ("two-phase
//! I/O", Thakur, Gropp and Lusk, 1999). An independent call with gaps reads the gaps, too, and writes them back ("data sieving").
//! Both are for storage on which each request is slow. In weir a request costs microseconds, and the exchange many times that. So
//! for files that live in weir
//! - hints tell ROMIO (MPICH, and Open MPI's `romio321`) not to sieve.
//!
//! Weir reads bytes of other nodes ahead for processes that read at equal distances, as such a call does.
//!
//! MPI permits that: a collective call on a file need not synchronise, and the rules of consistency are the same (MPI 4.0,
//! sections 14.4.1 and 14.6.1). Hints of the user win, at the open and later: a file with `romio_cb_write=enable`, or
//! `collective_buffering=true`, is left alone. So are files in atomic mode, split and nonblocking collectives, and shared file
//! pointers.
//!
//! MPI is found at run time (`mpi`), so one build serves MPICH and Open MPI; in a process without MPI nothing here is called.
//! All processes of a file's communicator act alike: they agree on the choice when the file is opened.
//!
//! | file | subject |
//! | --- | --- |
//! | `mpi` | the functions of MPI-IO that the connector calls |
//! | `files` | the files of this process whose collective calls are changed |
//! | `choice` | the choice of these calls |
//! | `atomic` | files in atomic mode, which other nodes read at once |
//! | `c` | the functions that C programs, HDF5, PnetCDF and MPICH's Fortran call |
//! | `fortran` | the functions that Fortran programs call, where these do not call `c` |

mod atomic;
mod c;
mod choice;
mod files;
mod fortran;
mod mpi;

use weir_connect::symbols::{search_by, InterposerSearch};

/// Takes the search by which this library finds the functions that it wraps. The interposer calls this once it has loaded the
/// library, and possibly several times.
#[no_mangle]
pub extern "C" fn weir_mpiio_loaded(search: InterposerSearch) {
    search_by(search);
}
