//! The data path: how a process writes and reads the bytes of its files.
//!
//! A [`Vnode`] is one file in one process. Writing ([`write`]) grows an extent record in the
//! process's cell of the file; reading ([`read`]) copies from the slabs in which the index finds
//! the bytes. The bytes of all files of a process go into its [`log`]. The data path uses the rest
//! of the client through the trait [`Host`], so that it is tested against a server that is a few
//! vectors.

mod ahead;
pub mod host;
pub mod log;
mod map;
mod pieces;
pub mod read;
mod remote;
mod seek;
pub mod stream;
mod target_copy;
mod under_way;
pub mod vnode;

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod tests;

pub use host::{file_state, FileState, Host};
pub use log::{Log, SegmentSource};
pub use pieces::Target;
pub use vnode::Vnode;
