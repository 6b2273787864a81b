//! The other servers: sessions, deadlines, debts, and telling many at once.
//!
//! Keeps: the session with each server and what it is owed.
//!
//! Invariant: a call acts once, or not at all if its session has ended.
//!
//! May call: all rooms, for requests of other servers (`handler`) and when a session ends.
//!
//! | file | subject |
//! | --- | --- |
//! | `session` | the time for which one server may believe another's answers |
//! | `deadline` | one deadline for one operation |
//! | `debts` | operations owed to a server that cannot be reached |
//! | `tell` | telling many servers the same, down a tree |
//! | `handler` | the operations that other servers ask for |

pub(super) mod deadline;
pub(super) mod debts;
pub(super) mod handler;
pub(super) mod session;
pub(super) mod tell;
