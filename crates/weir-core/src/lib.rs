//! The pure heart of weir: the logic of paths, extents, shared records and messages.
//!
//! No I/O, no clock, no threads and no `unsafe`: time and messages are arguments, and actions to
//! take are return values. Shared memory appears here as slices of records made only of atomics;
//! `weir-store` makes such slices out of mappings, tests make them out of vectors.
//!
//! | module | subject |
//! | --- | --- |
//! | [`types`] | numbers that must not be mixed up |
//! | [`extent`] | the location of files' bytes |
//! | [`names`] | the namespace: inodes and directory entries |
//! | [`elevated`] | the directories that stand over those of the PFS |
//! | [`elevate_rule`], [`path_globs`] | the files of them that are taken, by patterns |
//! | [`placement`] | the placement of names and extents on servers |
//! | [`node`] | records of the memory that a node's processes share |
//! | [`journal`] | the server's record of its changes, so that it can be started again |
//! | [`splitmix`] | the mixer behind placements and seeds |
//! | [`roster`] | the servers of an instance, and their addresses |
//! | [`xattr`] | extended attributes |
//! | [`proto`] | the operations a client may ask of its server |
//! | [`sync`] | the atomics of shared memory |
#![forbid(unsafe_code)]

pub mod elevate_rule;
pub mod elevated;
pub mod extent;
pub mod journal;
pub mod names;
pub mod node;
pub mod path_globs;
pub mod placement;
pub mod proto;
pub mod roster;
pub mod splitmix;
pub mod sync;
pub mod types;
pub mod xattr;
