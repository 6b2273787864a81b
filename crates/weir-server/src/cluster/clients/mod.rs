//! Clients: the processes of this node that use the file system.
//!
//! Keeps: each client's region, cells and segments; counts.
//!
//! Invariant: all that a client writes into shared memory is checked before it is believed.
//!
//! May call: all rooms, to clean up after a client that ends.
//!
//! Interface: `take_notes`, `take_all_notes`; `NodeParties` (their programs, for messages); `Clients`, the
//! table itself, which has no state of other rooms.
//!
//! | file | subject |
//! | --- | --- |
//! | `table` | the clients |
//! | `operations` | operations on this server's own tables |
//! | `notes` | messages of clients that do not wait for an answer |
//! | `admission`, `parties` | admitting clients; their programs |
//! | `death` | the end of a client |
//! | `stats` | counts |
//! | `report` | the state of this server according to its own tables |

pub(super) mod admission;
mod death;
mod notes;
mod operations;
pub(super) mod parties;
mod report;
pub(super) mod stats;
pub(super) mod table;
