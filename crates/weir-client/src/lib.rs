//! A file system client: the meaning of each call of a program for weir's files.
//!
//! Linked into foreign programs by the interposer, and into the tools. So: system calls
//! go to the kernel directly, no thread is started, nothing panics on purpose, hot
//! paths neither allocate nor lock what processes share.
//!
//! | module | subject |
//! | --- | --- |
//! | [`process`] | the calls, [`types`]: their values |
//! | [`library`] | the calls of middleware, with the interposer in the process or without |
//! | [`session`] | the connection to the server, and through it what data path and namespace ask of their process; [`node`]: the memory shared with it |
//! | [`view`] | names, attributes, opening, locks: answered from the shared tables, or by the server |
//! | `neighbour` | the memory of another server of this machine |
//! | `beneath` | the kernel mount beneath the interposer, and mapped files in it |
//! | [`data`] | writing and reading the bytes of files |
//! | [`limits`] | the limits of a write, and the set-id bits that it clears |
//! | [`errno`] | the server's errors as errno values |
//! | [`siglock`], [`sys`] | a lock for use with signal handlers, and calls that neither rustix nor std has |
//! | [`bugs`] | failed assertions of weir's own: the call fails, the program continues |
//! | [`heap`] | the interposer's memory, apart from the program's allocator |
//! | [`kernel`], [`lock`], [`internal`], [`socket`] | descriptors by number, locks with signals blocked, weir's own descriptors, frames |

mod beneath;
pub mod bugs;
pub mod data;
pub mod errno;
pub mod heap;
pub mod internal;
pub mod kernel;
pub mod library;
pub mod limits;
pub mod lock;
mod neighbour;
pub mod node;
mod operation;
pub mod path;
pub mod process;
pub mod session;
pub mod siglock;
mod slots;
pub mod socket;
pub mod sys;
mod target_copy;
pub mod transfer;
pub mod types;
pub mod view;
