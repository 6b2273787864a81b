//! Node-local storage: everything of weir that maps memory or holds bulk data.
//!
//! The server owns the storage ([`tier`], [`pool`]); it lends parts to clients, which reach them
//! through [`slabmap`]. Together with the interposer's entry points this crate holds all unsafe
//! code of weir, in the few files named below.
//!
//! | module | subject | unsafe |
//! | --- | --- | --- |
//! | [`map`], [`readonly`] | mapped files, and slices of atomics in them | yes (with `area`) |
//! | [`shm`] | the types that may lie in shared memory | yes |
//! | [`copy`] | copies into and out of slabs | yes |
//! | [`warm`] | making memory present, in huge pages | yes |
//! | [`slab`], [`tier`], [`backing`] | the server's accounts of space, and the files | no |
//! | [`acl`] | access for the other users that a server admits | no |
//! | [`present`] | memory behind sparse regions, before they are touched | no |
//! | [`board`], [`pool`] | the threads that keep memory warm | no |
//! | [`journal`] | the file of a server's journal | no |
//! | [`socket`] | transfers between mapped memory and sockets | yes |
//! | [`slabmap`] | a process's access to slabs | yes (with `window`, `syscall`) |
//!
//! The client side runs inside foreign processes: no thread is started there, no
//! panic leaves the crate, hot paths neither allocate nor lock, and kernel calls bypass libc.

pub mod acl;
mod area;
pub mod backing;
pub mod board;
pub mod copy;
pub mod journal;
mod live;
pub mod map;
pub mod pool;
pub mod present;
pub mod readonly;
mod records;
pub mod shm;
pub mod slab;
pub mod slabmap;
pub mod socket;
mod syscall;
#[cfg(test)]
mod testdir;
pub mod tier;
pub mod warm;
mod window;
