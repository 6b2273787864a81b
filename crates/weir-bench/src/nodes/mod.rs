//! `weir bench --hosts`: an instance of several nodes, judged beside plain TCP and plain servers in the
//! same run, round by round.
//!
//! | file | subject |
//! | --- | --- |
//! | `instance` | the instance, its workers, its counters |
//! | `plan` | the rows ([`crate::rows`]): what is promised |
//! | `measure`, `metadata`, `visibility` | how they are measured |

mod instance;
mod measure;
mod metadata;
mod plan;
mod visibility;

pub use crate::rows::{table, PromiseRow, PromiseTable, RowVerdict};
pub use instance::{InstanceNode, ServerCounters, TestInstance};
pub use measure::HostsRun;
pub use plan::{calls, read, HostsPlan, Measurement, CREATORS, LOOKERS};
