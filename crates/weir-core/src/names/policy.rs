//! The time at which other nodes see a node's writes to a file, and lamination.
//!
//! The three kinds of visibility are UnifyFS's (IPDPS'23, section III); lamination, too. A new file
//! inherits its directory's policy. All of it is kept in the high half of an inode record's `mode`
//! word, so that one load tells a client if it may write:
//!
//! ```text
//! 31 25 24      23      22    21      20 19         18 17       16 15        0
//! +----+-------+-------+-----+----------+-------------+-----------+-----------+
//! | 0  |evicted| mapped| ask | laminat. | laminate on | visibility| st_mode   |
//! +----+-------+-------+-----+----------+-------------+-----------+-----------+
//! ```

use serde::{Deserialize, Serialize};

/// The time at which programs of other nodes see a write. Programs of the writer's node always see
/// it at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub enum Visibility {
    /// Once the writer synced or closed the file, or an interval later.
    #[default]
    ReadAfterSync,
    /// Once the write returned.
    ReadAfterWrite,
    /// Once the file is laminated.
    ReadAfterLaminate,
}

impl Visibility {
    /// The short name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Visibility::ReadAfterSync => "ras",
            Visibility::ReadAfterWrite => "raw",
            Visibility::ReadAfterLaminate => "ral",
        }
    }

    /// Returns the visibility with a short name.
    pub fn from_name(name: &[u8]) -> Option<Visibility> {
        let all = [
            Visibility::ReadAfterSync,
            Visibility::ReadAfterWrite,
            Visibility::ReadAfterLaminate,
        ];
        all.into_iter().find(|v| v.name().as_bytes() == name)
    }
}

/// The event that laminates a file by itself, beside an explicit request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub enum LaminateOn {
    /// A chmod that removes the last write permission, once no program has it open for writing.
    #[default]
    Chmod,
    /// Such a chmod, or the close of the last description that is open for writing.
    Close,
    /// Nothing.
    Request,
}

impl LaminateOn {
    /// The name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            LaminateOn::Chmod => "chmod",
            LaminateOn::Close => "close",
            LaminateOn::Request => "request",
        }
    }

    /// Returns the event with a name.
    pub fn from_name(name: &[u8]) -> Option<LaminateOn> {
        let all = [LaminateOn::Chmod, LaminateOn::Close, LaminateOn::Request];
        all.into_iter().find(|on| on.name().as_bytes() == name)
    }
}

/// The sharing between nodes of a file, or of the files made in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// See [`Visibility`].
    pub visibility: Visibility,
    /// See [`LaminateOn`].
    pub laminate_on: LaminateOn,
}

/// The progress of a file's lamination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub enum Lamination {
    /// It may be written.
    #[default]
    No,
    /// It will be laminated once no program has it open for writing.
    Due,
    /// It is being laminated, unless a program has it open for writing. No program may open it for
    /// writing meanwhile.
    Sealing,
    /// It is read-only for good.
    Done,
}

/// The high half of a record's `mode` word.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SharingBits {
    pub(super) policy: Policy,
    pub(super) lamination: Lamination,
    /// A reader must ask first: other nodes may write, and their writes must be visible.
    pub(super) ask: bool,
    /// The kernel of this node keeps pages of the file.
    pub(super) mapped: bool,
    /// Bytes without an extent are those of the file's copy on the parallel file system.
    pub(super) evicted: bool,
}

impl SharingBits {
    /// Decodes the bits of any `mode` word.
    #[inline]
    pub(super) const fn from_mode(mode: u32) -> SharingBits {
        let visibility = match (mode >> 16) & 3 {
            1 => Visibility::ReadAfterWrite,
            2 => Visibility::ReadAfterLaminate,
            _ => Visibility::ReadAfterSync,
        };
        let laminate_on = match (mode >> 18) & 3 {
            1 => LaminateOn::Close,
            2 => LaminateOn::Request,
            _ => LaminateOn::Chmod,
        };
        let lamination = match (mode >> 20) & 3 {
            0 => Lamination::No,
            1 => Lamination::Due,
            2 => Lamination::Sealing,
            _ => Lamination::Done,
        };
        SharingBits {
            policy: Policy {
                visibility,
                laminate_on,
            },
            lamination,
            ask: (mode >> 22) & 1 != 0,
            mapped: (mode >> 23) & 1 != 0,
            evicted: (mode >> 24) & 1 != 0,
        }
    }

    /// Makes a `mode` word of the bits and a `st_mode`.
    pub(super) const fn to_mode(self, st_mode: u32) -> u32 {
        let visibility = match self.policy.visibility {
            Visibility::ReadAfterSync => 0,
            Visibility::ReadAfterWrite => 1,
            Visibility::ReadAfterLaminate => 2,
        };
        let laminate_on = match self.policy.laminate_on {
            LaminateOn::Chmod => 0,
            LaminateOn::Close => 1,
            LaminateOn::Request => 2,
        };
        let lamination = match self.lamination {
            Lamination::No => 0,
            Lamination::Due => 1,
            Lamination::Sealing => 2,
            Lamination::Done => 3,
        };
        let ask = if self.ask { 1 } else { 0 };
        let mapped = if self.mapped { 1 } else { 0 };
        let evicted = if self.evicted { 1 } else { 0 };
        (st_mode & 0xFFFF)
            | (visibility << 16)
            | (laminate_on << 18)
            | (lamination << 20)
            | (ask << 22)
            | (mapped << 23)
            | (evicted << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_word_has_a_meaning_that_survives(mode in any::<u32>()) {
            let bits = SharingBits::from_mode(mode);
            let word = bits.to_mode(mode);
            prop_assert_eq!(SharingBits::from_mode(word), bits);
            prop_assert_eq!(word & 0xFFFF, mode & 0xFFFF);
        }
    }

    #[test]
    fn names_are_those_of_the_settings() {
        for name in ["ras", "raw", "ral"] {
            assert_eq!(Visibility::from_name(name.as_bytes()).unwrap().name(), name);
        }
        for name in ["chmod", "close", "request"] {
            assert_eq!(LaminateOn::from_name(name.as_bytes()).unwrap().name(), name);
        }
        assert_eq!(Visibility::from_name(b"Ras"), None);
        assert_eq!(SharingBits::from_mode(0), SharingBits::default());
    }
}
