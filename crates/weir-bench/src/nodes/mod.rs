//! `weir bench --hosts`: an instance of several nodes, judged beside plain TCP and plain servers in the
//! same run, round by round.
//!
//! | file | subject |
//! | --- | --- |
//! | `site` | the instance, its workers, its counters |
//! | `plan` | the rows ([`crate::rows`]): what is promised |
//! | `measure`, `metadata`, `visibility` | how they are measured |

mod measure;
mod metadata;
mod plan;
mod site;
mod visibility;

pub use crate::rows::{table, Row, Rows, Verdict};
pub use measure::Run;
pub use plan::{calls, read, Part, Plan, CREATORS, LOOKERS};
pub use site::{Counts, Node, Site};
