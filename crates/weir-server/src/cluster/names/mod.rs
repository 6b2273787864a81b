//! Names: entries, directories, links and renames.
//!
//! Keeps: the directories of this server, and the servers that hold entries of them; the placements
//! of directories; names of other servers, kept from earlier requests; renames under way.
//!
//! Invariant: an entry has one home at a time. A name is changed at its home, under its lock.
//!
//! May call: `files` (the inodes that names lose), `peers`, `journal`. No other room's tables.
//!
//! | file | subject |
//! | --- | --- |
//! | `requests` | requests of this node's clients |
//! | `home` | finding, making, removing and linking names at their home |
//! | `rename`, `moves` | renames: their leader, and the homes of both names |
//! | `placements` | the home of each name |
//! | `directories` | directories with entries at several servers |
//! | `entries` | names of other servers, kept here |
//! | `tables` | operations on this server's own tables |

pub(super) mod directories;
pub(super) mod entries;
pub(super) mod home;
pub(super) mod moves;
pub(super) mod placements;
pub(super) mod rename;
pub(super) mod requests;
pub(super) mod tables;
