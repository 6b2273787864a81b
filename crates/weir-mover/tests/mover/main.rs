//! Stages and drains as a whole, one program for all: the generic code that they test is compiled once.
//!
//! | file | subject |
//! | --- | --- |
//! | `directories`, `random` | stages between two directories; the process that stages dies, again and again |
//! | `team` | stages that several nodes share |
//! | `drain` | rounds beside a program; its analyses; kills of the drain |
//! | `strangers` | somebody else writes on the target |
//! | `pfs` | a target that is slow, full, read-only, gone or hung |
//! | `faults`, `other_node` | a tree that fails or ends at a change; a mover of another node |
//! | `parts`, `trees`, `scratch` | hidden files, contents, and the place of trees |

mod directories;
mod drain;
mod faults;
mod other_node;
mod parts;
mod pfs;
mod random;
mod scratch;
mod strangers;
mod team;
mod trees;
