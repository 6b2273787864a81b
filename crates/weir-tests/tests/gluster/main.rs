//! The elevator on a real network file system: GlusterFS of Debian's packages, two bricks, mounted by FUSE.
//! Skipped, with a message, without root, FUSE or GlusterFS.
//!
//! | file | subject |
//! | --- | --- |
//! | `volume` | a volume and a mount of it, on test nodes of their own; how to slow it and to hurt it |
//! | `room` | commands of weir beside such a mount, and trees that are compared |
//! | `moved` | everything arrives: elevated, drained, staged, larger than the instance |
//! | `outage` | bricks that are killed, or stop, under a drain; processes that are killed |
//! | `speed` | the tables of the benchmarks, by hand |

mod moved;
mod outage;
mod room;
mod speed;
mod volume;
