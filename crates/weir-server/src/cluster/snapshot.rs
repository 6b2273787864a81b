//! Visiting state for a snapshot, in steps. The journal asks each room to show its state so.

use weir_core::journal::Item;
use weir_core::types::Ino;

/// A callback that receives items, one by one.
pub type Visit<'v> = &'v mut dyn FnMut(&Item<'_>);

/// The position of a snapshot in the tables that servers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotPosition {
    /// The number of the table.
    pub table: u8,
    /// The inode in the table.
    pub ino: Ino,
    /// The offset in that file, bytes.
    pub offset: u64,
}

impl SnapshotPosition {
    /// The beginning of a table.
    pub const fn beginning_of(table: u8) -> SnapshotPosition {
        SnapshotPosition {
            table,
            ino: Ino::NONE,
            offset: 0,
        }
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
