//! The room with a journal in memory, which may fail. The room shows the tables of all others, so its server is a whole
//! one, without a kernel and without a network.
//!
//! Left out: snapshots of all kinds of state, which `tests/server/snapshot.rs` and `mesh_renew.rs` have.

mod announce;
mod commit;
mod renew;
mod server;
