//! Extents: where the bytes of files are.
//!
//! Keeps: the index of what this node's clients wrote and did not publish, the published extents of
//! the slices that live here, and the answers of other slices' homes.
//!
//! Invariants: a byte of a log counts as living exactly while an index refers to it. The newest
//! publish wins. Every holder of cached extents sees the inode's generation change before the freed
//! bytes are used again.
//!
//! May call: `files` (sizes and leases), `storage`, `peers`, `journal`.
//!
//! | file | subject |
//! | --- | --- |
//! | `harvest`, `applied` | reading cells and rings into the index |
//! | `writers` | files that are open for writing, and their writers' cells |
//! | `table`, `ranges` | the index of each file, and operations on its ranges |
//! | `publish` | telling the homes of slices |
//! | `locate` | finding extents, of any server |

pub(super) mod applied;
pub(super) mod harvest;
pub(super) mod locate;
pub(super) mod publish;
pub(super) mod ranges;
pub(super) mod table;
pub(super) mod writers;
