//! Visits state for a snapshot, in steps. The journal asks each room to show its state in this way.

use weir_core::journal::Item;
use weir_core::types::Ino;

/// A callback that receives items, one by one.
pub type Visit<'v> = &'v mut dyn FnMut(&Item<'_>);

/// The tables that this server keeps for others, in the order in which a snapshot shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedTable {
    /// Runs of slices.
    Slices,
    /// Published sizes of files.
    Published,
    /// Servers that hold entries of this server's directories.
    Enrolled,
    /// Names of directories whose entry is at another server.
    Moved,
    /// Placements of directories.
    Placements,
    /// Directories that have all their entries here.
    AllHere,
    /// Names that files and links have lost. The offset of a position is the number of the next one.
    LostNames,
}

impl SharedTable {
    /// The next table.
    const fn next(self) -> Option<SharedTable> {
        Some(match self {
            SharedTable::Slices => SharedTable::Published,
            SharedTable::Published => SharedTable::Enrolled,
            SharedTable::Enrolled => SharedTable::Moved,
            SharedTable::Moved => SharedTable::Placements,
            SharedTable::Placements => SharedTable::AllHere,
            SharedTable::AllHere => SharedTable::LostNames,
            SharedTable::LostNames => return None,
        })
    }
}

/// The position of a snapshot in the tables that servers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotPosition {
    /// The table.
    pub table: SharedTable,
    /// The inode in the table.
    pub ino: Ino,
    /// The offset in that file, bytes; among the lost names, the number of the next one.
    pub offset: u64,
}

impl SnapshotPosition {
    /// The beginning of the first table.
    pub const FIRST: SnapshotPosition = SnapshotPosition::beginning_of(SharedTable::Slices);

    const fn beginning_of(table: SharedTable) -> SnapshotPosition {
        SnapshotPosition {
            table,
            ino: Ino::NONE,
            offset: 0,
        }
    }

    /// The beginning of the table behind this one.
    pub(super) fn of_next_table(self) -> Option<SnapshotPosition> {
        self.table.next().map(SnapshotPosition::beginning_of)
    }
}

/// Shows the entries of one step, from the position on. Returns the beginning of the next step.
pub(super) fn show_from<'t, T>(
    mut all: impl Iterator<Item = (&'t Ino, T)>,
    from: SnapshotPosition,
    most: usize,
    mut show: impl FnMut(&Ino, T),
) -> Option<SnapshotPosition> {
    for (ino, entry) in all.by_ref().take(most) {
        show(ino, entry);
    }
    all.next()
        .map(|(ino, _)| SnapshotPosition { ino: *ino, ..from })
}
