//! The pure heart of weir: what paths, extents, shared records and messages mean.
//!
//! No I/O, no clock, no threads and no `unsafe`: time and messages come in as
//! arguments, and what is to be done comes back as values. Shared memory is seen
//! here as slices of records made only of atomics; `weir-store` makes such slices
//! out of mappings, tests make them out of vectors.
//!
//! | module | subject |
//! | --- | --- |
//! | [`types`] | numbers that must not be mixed up |
//! | [`extent`] | where the bytes of files lie |
//! | [`names`] | the namespace: inodes and directory entries |
//! | [`placement`] | which server holds what |
//! | [`node`] | records of the memory that a node's processes share |
//! | [`journal`] | what a server writes down, so that it can be started again |
//! | [`roster`] | who is in an instance, and where |
//! | [`xattr`] | extended attributes |
//! | [`proto`] | the operations a client may ask of its server |
#![forbid(unsafe_code)]

pub mod extent;
pub mod journal;
pub mod names;
pub mod node;
pub mod placement;
pub mod proto;
pub mod roster;
pub mod types;
pub mod xattr;
