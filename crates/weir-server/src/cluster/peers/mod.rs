//! The other servers: sessions, deadlines, debts, and telling many at once.
//!
//! Keeps: the session with each server and what it is owed.
//!
//! Invariant: a call acts once, or not at all if its session has ended. A server that is given up is never asked: no
//! session with it begins.
//!
//! May call: all rooms, for requests of other servers (`handler`) and when a session ends.
//!
//! Interface: `tell`, `owe`, `surely` and the like, `see_through` (ways to ask another server);
//! `outwait`, `believe_lease`, `use_lease`, `is_session`, `check_session_of` (what one server may
//! believe of another); `in_time`, `hold_in_time`, `until` (deadlines).
//!
//! | file | subject |
//! | --- | --- |
//! | `session` | the time for which one server may believe another's answers |
//! | `deadline` | one deadline for one operation |
//! | `debts` | operations owed to a server that cannot be reached |
//! | `tell` | telling many servers the same, down a tree |
//! | `counts` | the numbers of requests and bytes |
//! | `handler` | the operations that other servers ask for |

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};

use weir_core::placement;
use weir_core::types::Rank;

use crate::cluster::keyed::Keyed;

mod counts;
pub(super) mod deadline;
pub(super) mod debts;
pub(super) mod handler;
pub(super) mod session;
pub(super) mod tell;

/// The state of this room.
pub(in crate::cluster) struct PeersState {
    sessions: RefCell<session::Sessions>,
    /// Servers with which a session is being begun.
    beginning: Keyed<Rank>,
    /// The deadline of the operation whose task runs now, ns since 1970.
    deadline: Cell<Option<i64>>,
    /// The server that asked for the work of the task that runs now, and its session.
    asker: Cell<Option<(Rank, u64)>>,
    /// The most servers that this one tells something itself; it tells more through a tree.
    fan_out: Cell<u32>,
    /// The number of requests of other servers, by operation.
    asked: RefCell<HashMap<&'static str, u64>>,
    sent: Cell<counts::SentCounts>,
    given_up: RefCell<BTreeSet<Rank>>,
    /// The number of elevated trees.
    trees: Cell<usize>,
}

impl Default for PeersState {
    fn default() -> PeersState {
        PeersState {
            sessions: RefCell::default(),
            beginning: Keyed::default(),
            deadline: Cell::default(),
            asker: Cell::default(),
            fan_out: Cell::new(placement::tree::FAN_OUT),
            asked: RefCell::default(),
            sent: Cell::default(),
            given_up: RefCell::default(),
            trees: Cell::default(),
        }
    }
}

impl PeersState {
    /// Counts these servers as lost for as long as this one lives. `trees`: the number of elevated trees.
    pub(in crate::cluster) fn give_up(&self, ranks: impl Iterator<Item = Rank>, trees: usize) {
        self.given_up.borrow_mut().extend(ranks);
        self.trees.set(trees);
    }

    /// The number of elevated trees, if servers are lost.
    pub(in crate::cluster) fn trees(&self) -> usize {
        self.trees.get()
    }

    /// True if the server is lost for good.
    pub(in crate::cluster) fn is_given_up(&self, rank: Rank) -> bool {
        self.given_up.borrow().contains(&rank)
    }

    /// Starts as after a restart: no earlier session with another server holds.
    pub(in crate::cluster) fn begin_anew(&self, others: impl Iterator<Item = Rank>, now_ns: i64) {
        self.sessions.borrow_mut().begin_anew(others, now_ns);
    }
}
