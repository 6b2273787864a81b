//! Names: entries, directories, links and renames.
//!
//! Keeps: the directories of this server, and the servers that hold entries of them; the placements
//! of directories; names of other servers, kept from earlier requests; renames under way.
//!
//! Invariant: an entry has one home at a time. A name is changed at its home, under its lock.
//!
//! May call: `files` (the inodes that names lose), `peers`, `journal`. No other room's tables.
//!
//! Interface: `NamesState` for the journal; for `files`, paths (`path_of`), attributes of directories
//! (`dir_attr`, `tell_dir`) and what is known of names in shared memory (`known`); for `peers`, the
//! end of what another server knew or had locked (`forget_known`, `drop_names_of`). All else is for
//! `router` and `handler`.
//!
//! | file | subject |
//! | --- | --- |
//! | `requests` | requests of this node's clients |
//! | `home` | finding, making, removing and linking names at their home |
//! | `rename`, `moves` | renames: their leader, and the homes of both names |
//! | `rename_log` | the renames that this server has led, for those who walk a tree |
//! | `placements` | the home of each name |
//! | `directories` | directories with entries at several servers |
//! | `entries` | names of other servers, kept here |
//! | `lost` | directories whose home is lost |
//! | `tables`, `steps` | operations on this server's own tables, whole and in steps |
//! | `memory` | memory behind the tables of names |
//! | `known` | the table in shared memory that shows programs names of other servers |

use std::cell::RefCell;

use weir_core::journal;
use weir_core::types::{Ino, Rank};

use crate::cluster::keyed::Keyed;
use crate::node::{SnapshotPosition, Visit};

pub(super) mod directories;
pub(super) mod entries;
pub(super) mod home;
mod known;
pub(super) mod lost;
mod memory;
pub(super) mod moves;
pub(super) mod placements;
pub(super) mod rename;
mod rename_log;
pub(super) mod requests;
mod steps;
pub(super) mod tables;

pub(super) use memory::NamesMemory;

/// The state of this room that concerns several servers.
pub(in crate::cluster) struct NamesState {
    /// Names of this server that are being changed.
    name_locks: Keyed<(Ino, Vec<u8>)>,
    /// Directories of this server that are being removed.
    burials: Keyed<Ino>,
    /// Directories whose stand-ins here are being made or ended.
    stands: Keyed<Ino>,
    /// The permit for moving directories (rank 0).
    dir_moves: Keyed<()>,
    renames: moves::RenameSteps,
    rename_log: rename_log::RenameLog,
    dirs: RefCell<directories::DirectoryTable>,
    entries: RefCell<entries::EntryCache>,
    placements: RefCell<placements::Placements>,
    /// Directories of this server whose entries are being placed.
    placing: Keyed<Ino>,
    /// Directories with all entries here that are being split.
    splitting: Keyed<Ino>,
}

impl NamesState {
    pub(in crate::cluster) fn new(rank: Rank, servers: u16) -> NamesState {
        NamesState {
            name_locks: Keyed::default(),
            burials: Keyed::default(),
            stands: Keyed::default(),
            dir_moves: Keyed::default(),
            renames: moves::RenameSteps::default(),
            rename_log: rename_log::RenameLog::default(),
            dirs: RefCell::new(directories::DirectoryTable::new(rank, servers)),
            entries: RefCell::default(),
            placements: RefCell::default(),
            placing: Keyed::default(),
            splitting: Keyed::default(),
        }
    }

    /// Requests stop waiting for a locked name until its lock is released.
    pub(in crate::cluster) fn stick_name(&self, key: &(Ino, Vec<u8>)) {
        self.name_locks.stick(key);
    }

    /// Restores the state from the journal.
    pub(in crate::cluster) fn take_up(&self, state: &mut journal::Cluster) {
        self.renames.take_up(state);
        self.placements.borrow_mut().take_up(state);
        self.dirs.borrow_mut().take_up(state);
    }

    /// Visits some of the servers that hold entries of this server's directories; returns the
    /// position to go on from.
    pub(in crate::cluster) fn show_enrolled(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.dirs.borrow().show_enrolled(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the names of directories whose entry is at another
    /// server.
    pub(in crate::cluster) fn show_moved(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.dirs.borrow().show_moved(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the placements of this server's directories.
    pub(in crate::cluster) fn show_placements(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.placements.borrow().show_own(from, most, visit)
    }

    /// Like [`NamesState::show_enrolled`], for the directories that have all their entries here.
    pub(in crate::cluster) fn show_all_here(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.placements.borrow().show_all_here(from, most, visit)
    }

    /// Visits the renames that are under way.
    pub(in crate::cluster) fn show_renames(&self, visit: Visit<'_>) {
        self.renames.show_steps(visit);
    }
}
