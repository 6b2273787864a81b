//! Reads of other nodes' bytes: the pool in which they arrive, and the bytes that are kept there.
//!
//! Keeps: the node's pool, the places that clients were lent in it, bytes of laminated files.
//!
//! Invariant: a place of the pool is lent again only after nothing arrives in it any more.
//!
//! May call: `files` (is it laminated), `names` (paths for messages), `peers`.
//!
//! Interface: `miss_file`, `note_name`, `tell_of_publishing` (messages about files that cannot be
//! read or published); `laminated_here`. All else is for `router`.
//!
//! | file | subject |
//! | --- | --- |
//! | `fetch` | bytes that clients ask for |
//! | `pool` | the places of the pool |
//! | `arrival` | the memory of one client that receives bytes |
//! | `kept` | bytes of laminated files, for other clients of the node |
//! | `missing` | messages about files that a lost server keeps |

use std::cell::RefCell;

use crate::node::{Platform, Table};

pub mod arrival;
pub(super) mod fetch;
pub(super) mod kept;
pub(super) mod missing;
pub(super) mod pool;

/// The state of this room.
pub(in crate::cluster) struct ReadsState<M> {
    fetches: RefCell<fetch::Fetches<M>>,
    missing: RefCell<missing::UnreachableFiles>,
}

impl<M> ReadsState<M> {
    /// A server without others receives no bytes.
    pub(in crate::cluster) fn new(platform: &impl Platform, has_others: bool) -> ReadsState<M> {
        let first = if has_others { fetch::POOL_FIRST } else { 0 };
        let present = platform.present(Table::Pool, first);
        let fetches = fetch::Fetches::new(platform.pool_bytes(), present);
        ReadsState {
            fetches: RefCell::new(fetches),
            missing: RefCell::default(),
        }
    }
}
