//! Logs of array writes (`weir_arrays::log`) on a file system, of programs that run or were killed. This crate reads them, and
//! writes their entries into the files, without PnetCDF.
//!
//! The files of a log lie in a directory of their own: `DIRECTORY/NAME.INODE.NUMBER/RANK.records` and `RANK.elements`, or
//! `node-RANK.*` where the processes of a node share a pair. A program that has a log open holds a shared lock (flock(2)) on
//! its records: a log without such a lock is left over.
//!
//! | file | subject |
//! | --- | --- |
//! | `found` | the logs of a directory |
//! | `blocks` | the bytes of one writer in a file of a log |
//! | `values` | elements of a variable, from a log |
//! | `entry_writer` | writes one entry into the file |
//! | `replay` | writes all entries of a log into the file |

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
