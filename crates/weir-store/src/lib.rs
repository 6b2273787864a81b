//! Node-local storage: everything of weir that maps memory or holds bulk data.
//!
//! The server owns the storage ([`tier`], [`pool`]); clients are lent it and reach it
//! through [`slabmap`]. Together with the interposer's entry points this crate holds all
//! unsafe code of weir, in the few files named below.
//!
//! | module | subject | unsafe |
//! | --- | --- | --- |
//! | [`map`] | mapped files, and slices of atomics in them | yes |
//! | [`shm`] | which types may lie in shared memory | yes |
//! | [`copy`] | copies into and out of slabs | yes |
//! | [`warm`] | making memory present, in huge pages | yes |
//!
//! The client side runs inside foreign processes: no thread is started there, nothing
//! panics across, hot paths neither allocate nor lock, and kernel calls bypass libc.

pub mod copy;
pub mod map;
mod records;
pub mod shm;
#[cfg(test)]
mod testdir;
pub mod warm;
