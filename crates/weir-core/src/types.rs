//! Newtypes for the numbers that must not be mixed up.
//!
//! Byte offsets and lengths stay plain `u64`: they are added and compared all over,
//! and a wrapper around each would hide more than it shows.

use serde::{Deserialize, Serialize};

/// A server's number within its instance, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Rank(pub u16);

/// A client process's number at its node's server; an index into the server's tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u32);

/// A segment: a power-of-two piece of a slab, lent to one client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SegmentId(pub u32);

/// An inode number: its server, its slot, and the life of its slot.
///
/// ```text
///  63       48 47        32 31             0
/// +-----------+------------+----------------+
/// | rank      | generation | index          |
/// +-----------+------------+----------------+
/// ```
///
/// 0 means no inode. Index 1 is the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// No inode.
    pub const NONE: Ino = Ino(0);

    /// The inode of slot `index`, in its `generation`-th life, at server `rank`.
    pub const fn new(rank: Rank, generation: u16, index: u32) -> Ino {
        Ino(((rank.0 as u64) << 48) | ((generation as u64) << 32) | index as u64)
    }

    /// Returns the server that it lives at.
    pub const fn rank(self) -> Rank {
        Rank((self.0 >> 48) as u16)
    }

    /// Returns the life of the slot; a number from an earlier life is stale.
    #[allow(clippy::cast_possible_truncation)] // the bits above are another field's
    pub const fn generation(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// The slot in its server's inode table.
    #[allow(clippy::cast_possible_truncation)] // the bits above are other fields'
    pub const fn index(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_keeps_its_parts() {
        let ino = Ino::new(Rank(513), 65_535, 0xDEAD_BEEF);
        assert_eq!(
            (ino.rank(), ino.generation(), ino.index()),
            (Rank(513), 65_535, 0xDEAD_BEEF)
        );
        assert_ne!(Ino::new(Rank(0), 0, 1), Ino::NONE);
    }
}
