//! A file system client: what each call of a program means for files of weir.
//!
//! Linked into foreign programs by the interposer, and into the tools. So: system calls
//! go to the kernel directly, no thread is started, nothing panics on purpose, hot
//! paths neither allocate nor lock what processes share.
//!
//! | module | subject |
//! | --- | --- |
//! | [`process`] | the calls, [`types`]: their values |
//! | [`library`] | what middleware asks, with the interposer in the process or without |
//! | [`session`] | the connection to the server; [`node`]: the memory shared with it |
//! | [`view`] | names, attributes, opening, locks: when the shared tables say enough, and when not |
//! | `neighbour` | the memory of another server of this machine |
//! | `beneath` | the kernel mount beneath the interposer, and files of it that are mapped |
//! | [`data`] | writing and reading the bytes of files |
//! | [`limits`] | what bounds a write, and what it clears |
//! | [`errno`] | the server's errors as errno values |
//! | [`siglock`], [`sys`] | a lock that signal handlers may meet, and what neither rustix nor std gives |
//! | [`bugs`] | failed assertions of weir's own: the call fails, the program goes on |
//! | [`heap`] | memory that is not the program's allocator's, for the interposer |
//! | [`kernel`], [`lock`], [`internal`], [`socket`] | descriptors by number, locks with signals blocked, weir's own descriptors, frames |

mod beneath;
pub mod bugs;
pub mod data;
pub mod errno;
mod fetch;
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
pub mod types;
pub mod view;
