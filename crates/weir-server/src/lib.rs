//! The node server: names, extents and storage of one node.
//!
//! | module | subject |
//! | --- | --- |
//! | [`cluster`] | the logic, without sockets, threads and clocks: a room for each subject |
//! | [`node`] | this server's own tables, and the logic's interface to the kernel |
//! | [`arrival`] | the memory in which bytes of other nodes arrive for a client |
//! | [`options`] | the settings of a server |
//! | [`rules`] | rules for how files are shared, by path |
//! | [`runtime`] | one server's threads, socket and shared memory |
//! | [`control`] | requests to a running server, for tools |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod control;
mod frame;
pub mod node;
pub mod options;
pub mod rules;
pub mod runtime;

pub use cluster::reads::arrival;
pub use options::{ElevatedDirectory, Options, StorageDir};
pub use runtime::{serve, serve_as, ServerError, Several};
