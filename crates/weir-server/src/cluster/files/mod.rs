//! Files: inodes that are open, their holders, leases and sharing.
//!
//! Keeps: stand-ins of other servers' files; the holders, leases and writers of this server's
//! files; write tokens, the offsets of appends, open file descriptions, writers' cells and blocks,
//! attributes.
//!
//! Invariants: a file lives while it has a name, a holder or an open description. A lease is
//! recalled before anything that it covers changes.
//!
//! May call: `extents` (to publish and to cut), `names` (paths for rules), `peers`, `journal`.
//!
//! | file | subject |
//! | --- | --- |
//! | `stand_ins` | stand-ins, holders, leases, sizes, truncation |
//! | `sharing`, `laminate` | visibility, and lamination |
//! | `tokens`, `append` | the order of writes of several nodes; the offsets of their appends |
//! | `audit` | reads that came too early |
//! | `end`, `leaving`, `orphans` | files that no program needs any more |
//! | `attach` | clients that write a file |
//! | `descriptions` | open file descriptions |
//! | `mapped` | files of which the kernel keeps pages |
//! | `xattrs`, `xattr_tables` | extended attributes: at their home, and its table |

pub(super) mod append;
pub(super) mod attach;
pub(super) mod audit;
pub(super) mod descriptions;
pub(super) mod end;
pub(super) mod laminate;
pub(super) mod leaving;
pub(super) mod mapped;
pub(super) mod orphans;
pub(super) mod sharing;
pub(super) mod stand_ins;
pub(super) mod tokens;
pub(super) mod xattr_tables;
pub(super) mod xattrs;

/// The time for which appends wait for a node that may have placed some and cannot be reached, ns:
/// after that its unpublished bytes count as lost.
pub(in crate::cluster) const AWAITED_NS: i64 = 30_000_000_000;
