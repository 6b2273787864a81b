//! Storage: segments that clients are lent, and memory behind shared tables.
//!
//! Keeps: nothing of its own; `Space` and `Platform` do.
//!
//! Invariant: no process touches a page of shared memory that is not known to have memory.
//!
//! | file | subject |
//! | --- | --- |
//! | `space` | lending and taking back segments |
//! | `presence` | memory behind tables, before they are touched |

pub(super) mod presence;
pub(super) mod space;
