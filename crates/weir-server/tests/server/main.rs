//! The tests of servers, in one program: code that is generic over a server's platform is compiled once
//! for all of them.
//!
//! | file | subject |
//! | --- | --- |
//! | `world`, `mesh` | one node, and several servers, in one thread and without storage |
//! | `twins` | a journal in memory, and the one that follows it |
//! | `session` | a client made by hand, of a server with its threads |
//! | `alone` | tests that look at what their process uses |
//! | the others | tests, by subject |

mod alone;
mod mesh;
mod session;
mod twins;
mod world;

mod evict;
mod hostile;
mod idle;
mod life;
mod memory;
mod memory_runs;
mod mesh_debts;
mod mesh_fetch;
mod mesh_files;
mod mesh_look;
mod mesh_names;
mod mesh_placements;
mod mesh_rename;
mod mesh_renew;
mod mesh_share;
mod mesh_tell;
mod programs;
mod recover;
mod runtime;
mod snapshot;
