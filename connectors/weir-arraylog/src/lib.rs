//! Logs of array writes (`weir_arrays::log`) that are left on a file system: those of programs that were killed, and of ones
//! that run. Reads them, and moves them into their file, without PnetCDF.
//!
//! The files of a log lie in a directory of their own: `DIRECTORY/NAME.INODE.NUMBER/RANK.records` and `RANK.elements`, or
//! `node-RANK.*` where the processes of a node share a pair. A program that has a log open holds a shared lock (flock(2)) on
//! its records: a log without one is left over.
//!
//! | file | subject |
//! | --- | --- |
//! | `found` | the logs of a directory |
//! | `blocks` | the bytes of one writer in a file of a log |
//! | `values` | elements of a variable, from a log |
//! | `entry_writer` | an entry goes into the file |
//! | `replay` | all entries of a log do |

#![forbid(unsafe_code)]

mod blocks;
mod entry_writer;
mod found;
mod replay;
mod values;

pub use blocks::WriterBlocks;
pub use entry_writer::EntryWriter;
pub use found::{find_logs, log_name, ArrayLog, WriterLog};
pub use replay::{replay, ReplayError, ReplayedWrites};
pub use values::{read_values, LoggedValues};
