//! The PnetCDF connector: `libweir_pnetcdf.so`, which the interposer loads when the program first calls one of
//! its functions.
//!
//! A collective put of PnetCDF exchanges data between all processes and writes it. A program that makes many small puts spends most
//! of its time there. As in PnetCDF's burst buffer driver (Hou et al., PDSW-DISCS 2018), puts here become entries of a log, without
//! communication, and go into the file later, many at once:
//! - when the file is closed or synced, before its definitions or its mode change, and on `ncmpi_flush`;
//! - when the log is full;
//! - when the program reads logged data, unless the log has the whole part;
//! - before PnetCDF does something itself that depends on them (`vard`, fill values, lists of derived datatypes).
//!
//! Unlike with that driver, gets read the log; puts that overlap keep their order, those of several processes the order of
//! collective calls; and it wraps the user's own PnetCDF, which need not be built for it. The log is in weir, so writing it costs a
//! copy, and the log of a killed process is not lost.
//!
//! PnetCDF's rules hold: another process sees a put once both have called `ncmpi_sync`, or the file was closed and opened. A
//! collective get of data that another process logged flushes first.
//!
//! | file | subject |
//! | --- | --- |
//! | `puts`, `gets`, `calls` | the functions that programs call in the place of PnetCDF's (`exported`) |
//! | `files` | the files of this process whose writes are logged, and the choice of these |
//! | `file` | a file: its puts, and the budget of its log |
//! | `reads` | gets from the log |
//! | `flush` | moves entries into the file |
//! | `put_order` | the order of the entries of all processes |
//! | `direct` | a file in weir that this process writes itself |
//! | `requests` | nonblocking puts that are not waited for yet |
//! | `arguments` | the arguments of puts and gets, checked as in PnetCDF |
//! | `datatypes` | MPI's datatypes |
//! | `left_over` | logs of programs that were killed |
//! | `log_files` | the files of the log; their format is in `weir_arrays::log` |
//! | `library` | the user's PnetCDF |
//! | `settings` | the settings, from the environment |

mod arguments;
mod calls;
mod datatypes;
mod direct;
mod exported;
mod file;
mod files;
mod flush;
mod gets;
mod left_over;
mod library;
mod log_files;
mod put_order;
mod puts;
mod reads;
mod requests;
mod settings;

use weir_connect::symbols::{search_by, InterposerSearch};

/// Takes the search by which this library finds the functions that it wraps. The interposer calls this once it has loaded the
/// library, and possibly several times.
#[no_mangle]
pub extern "C" fn weir_pnetcdf_loaded(search: InterposerSearch) {
    search_by(search);
}
