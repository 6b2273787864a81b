//! The attributes of an inode: types, values, and requests to set them.

use super::layout::InodeRecord;
use super::policy::{LaminateOn, Lamination, Policy, SharingBits};
use super::seq;
use super::ViewError;
use crate::types::Ino;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// `S_IFMT`: the bits of a mode that hold the type.
const TYPE_MASK: u32 = 0o170_000;
/// The bits of a mode that hold permissions, set-id and sticky.
const PERMISSIONS: u32 = 0o7777;

/// `aux` of a regular file's record: 0 for an inode at home; of a stand-in, `STALE`, or `LEASED` if
/// its attributes may be believed.
pub(super) const STALE: u32 = 1;
/// See [`STALE`].
pub(super) const LEASED: u32 = 2;

/// The types of file that weir has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A fifo. The kernel keeps its bytes.
    Fifo,
    /// A Unix socket. The kernel keeps its bytes.
    Socket,
}

impl FileType {
    /// The type bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileType::File => 0o100_000,
            FileType::Dir => 0o040_000,
            FileType::Symlink => 0o120_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
        }
    }

    /// Returns the type in a `st_mode`; `None` for 0 and for types that weir does not have.
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        match mode & TYPE_MASK {
            0o100_000 => Some(FileType::File),
            0o040_000 => Some(FileType::Dir),
            0o120_000 => Some(FileType::Symlink),
            0o010_000 => Some(FileType::Fifo),
            0o140_000 => Some(FileType::Socket),
            _ => None,
        }
    }

    /// A full mode of this type with `permissions`.
    pub(super) const fn mode_with(self, permissions: u32) -> u32 {
        self.mode_bits() | (permissions & PERMISSIONS)
    }
}

/// An inode's attributes, all of one moment.
#[allow(clippy::struct_excessive_bools)] // each is an attribute of its own
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    /// The inode that has them.
    pub ino: Ino,
    /// `st_mode`: type and permissions.
    pub mode: u32,
    /// Names it has; a directory counts itself and each child directory's `..`.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file as the server last learned them, or the length of a link's target.
    pub size: u64,
    /// Bytes of storage.
    pub allocated: u64,
    /// Last access, in ns since the epoch.
    pub atime_ns: i64,
    /// Last change of the contents, in ns since the epoch.
    pub mtime_ns: i64,
    /// Last change of the attributes, in ns since the epoch.
    pub ctime_ns: i64,
    /// Creation time, in ns since the epoch.
    pub btime_ns: i64,
    /// Changes whenever the extents of the file do; data cached under another value is void.
    pub index_generation: u64,
    /// The node's `FileBlock` while the file is open for writing here; 0 is none.
    pub block: u32,
    /// A directory's `..` (the root's is itself); of a file, the directory of one of its
    /// names. [`Ino::NONE`] once that name is gone.
    pub parent: Ino,
    /// The inode's number everywhere: `ino`, unless this is a stand-in for an inode of
    /// another server.
    pub home: Ino,
    /// True if the numbers are those of the home as of now; a stand-in's may be out of date.
    pub fresh: bool,
    /// True if a reader must ask first, because other nodes' writes must be visible at once.
    pub ask: bool,
    /// True if the kernel of this node keeps pages of the file, which programs have mapped.
    /// Programs then read and write it through the kernel mount, so that all see the same.
    pub mapped: bool,
    /// True if the bytes that no extent of the file covers are those of its copy on the parallel file
    /// system ([`crate::elevated::TargetCopy`]). Such a file has no writers.
    pub evicted: bool,
    /// The file's sharing between nodes; of a directory, the policy of the files made in it.
    pub policy: Policy,
    /// The progress of its lamination.
    pub lamination: Lamination,
}

impl Attr {
    /// True if these are the attributes of a stand-in for `file` under a lease, which readers need not
    /// ask for again.
    pub fn is_leased_copy_of(&self, file: Ino) -> bool {
        self.home == file && self.fresh && !self.ask
    }

    /// The type; the mode of an `Attr` always has one.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::File)
    }
}

/// The part of an inode's attributes that decides if it may be opened, and what its last close does. It takes a third of the
/// time of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeLife {
    /// The type.
    pub kind: FileType,
    /// See [`Attr::nlink`].
    pub nlink: u32,
    /// True of a stand-in whose numbers may be out of date.
    pub is_stale: bool,
    /// See [`Attr::evicted`].
    pub evicted: bool,
    /// See [`Policy::laminate_on`].
    pub laminate_on: LaminateOn,
    /// See [`Attr::lamination`].
    pub lamination: Lamination,
}

impl From<&Attr> for InodeLife {
    fn from(attr: &Attr) -> InodeLife {
        InodeLife {
            kind: attr.file_type(),
            nlink: attr.nlink,
            is_stale: attr.home != attr.ino && !attr.fresh,
            evicted: attr.evicted,
            laminate_on: attr.policy.laminate_on,
            lamination: attr.lamination,
        }
    }
}

/// The attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits (the type is kept).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes, of a file.
    pub size: Option<u64>,
    /// Bytes of storage.
    pub allocated: Option<u64>,
    /// Last access, in ns since the epoch.
    pub atime_ns: Option<i64>,
    /// Last change of the contents, in ns since the epoch.
    pub mtime_ns: Option<i64>,
    /// Last change of the attributes, in ns since the epoch.
    pub ctime_ns: Option<i64>,
    /// The `FileBlock`; 0 for none.
    pub block: Option<u32>,
    /// The sharing between nodes.
    pub policy: Option<Policy>,
    /// The progress of its lamination.
    pub lamination: Option<Lamination>,
    /// See [`Attr::evicted`].
    pub evicted: Option<bool>,
}

impl SetAttr {
    /// Returns true if it sets a value that the journal records. It does not record values that
    /// follow from extents and writers.
    pub(super) fn is_journaled(&self) -> bool {
        let followed = SetAttr {
            allocated: self.allocated,
            block: self.block,
            ..SetAttr::default()
        };
        *self != followed
    }
}

impl InodeRecord {
    pub(super) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode.load(Relaxed))
    }

    /// Returns true if the slot is in the life that `ino` names.
    pub(super) fn holds(&self, ino: Ino) -> bool {
        self.generation.load(Relaxed) & 0xFFFF == u32::from(ino.generation())
            && self.file_type().is_some()
    }

    /// Returns the attributes, if the slot is in the life that `ino` names.
    #[inline]
    pub(super) fn attr(&self, ino: Ino) -> Result<Option<Attr>, ViewError> {
        seq::read(&self.seq, || self.holds(ino).then(|| self.load_attr(ino)))
    }

    /// Returns the state of the inode's life, if the slot is in the one that `ino` names.
    #[inline]
    pub(super) fn life(&self, ino: Ino) -> Result<Option<InodeLife>, ViewError> {
        let words = seq::read(&self.seq, || {
            let (mode, nlink) = (self.mode.load(Relaxed), self.nlink.load(Relaxed));
            (self.holds(ino), mode, nlink, self.aux.load(Relaxed))
        });
        let (is_held, mode, nlink, aux) = words?;
        let Some(kind) = FileType::from_mode(mode).filter(|_| is_held) else {
            return Ok(None);
        };
        let bits = SharingBits::from_mode(mode);
        Ok(Some(InodeLife {
            kind,
            nlink,
            is_stale: kind == FileType::File && aux == STALE,
            evicted: bits.evicted,
            laminate_on: bits.policy.laminate_on,
            lamination: bits.lamination,
        }))
    }

    /// Returns [`Attr::mapped`] alone; false if the slot is in another life.
    #[inline]
    pub(super) fn is_mapped(&self, ino: Ino) -> bool {
        SharingBits::from_mode(self.mode.load(Acquire)).mapped && self.holds(ino)
    }

    /// Loads the words one by one: a mixture of two states, unless under `seq` or in the writer.
    #[inline]
    pub(super) fn load_attr(&self, ino: Ino) -> Attr {
        let parent = Ino(self.parent.load(Relaxed));
        let standing_in = match self.file_type() {
            Some(FileType::File) => self.aux.load(Relaxed),
            _ => 0,
        };
        let mode = self.mode.load(Relaxed);
        let bits = SharingBits::from_mode(mode);
        Attr {
            ino,
            parent: if standing_in == 0 { parent } else { Ino::NONE },
            home: if standing_in == 0 { ino } else { parent },
            fresh: standing_in != STALE,
            ask: bits.ask,
            mapped: bits.mapped,
            evicted: bits.evicted,
            policy: bits.policy,
            lamination: bits.lamination,
            mode: mode & 0xFFFF,
            nlink: self.nlink.load(Relaxed),
            uid: self.uid.load(Relaxed),
            gid: self.gid.load(Relaxed),
            size: self.size.load(Relaxed),
            allocated: self.allocated.load(Relaxed),
            atime_ns: self.atime.load(Relaxed),
            mtime_ns: self.mtime.load(Relaxed),
            ctime_ns: self.ctime.load(Relaxed),
            btime_ns: self.btime.load(Relaxed),
            index_generation: self.index_generation.load(Relaxed),
            block: self.block.load(Relaxed),
        }
    }

    /// Writes the values that `set` has. Under a change of the writer.
    pub(super) fn apply(&self, set: &SetAttr) {
        self.apply_mode(set);
        for (word, value) in [
            (&self.uid, set.uid),
            (&self.gid, set.gid),
            (&self.block, set.block),
        ] {
            if let Some(value) = value {
                word.store(value, Relaxed);
            }
        }
        for (word, value) in [(&self.size, set.size), (&self.allocated, set.allocated)] {
            if let Some(value) = value {
                word.store(value, Relaxed);
            }
        }
        for (word, value) in [
            (&self.atime, set.atime_ns),
            (&self.mtime, set.mtime_ns),
            (&self.ctime, set.ctime_ns),
        ] {
            if let Some(value) = value {
                word.store(value, Relaxed);
            }
        }
    }
}

impl InodeRecord {
    fn apply_mode(&self, set: &SetAttr) {
        let old = self.mode.load(Relaxed);
        let mut bits = SharingBits::from_mode(old);
        bits.policy = set.policy.unwrap_or(bits.policy);
        bits.lamination = set.lamination.unwrap_or(bits.lamination);
        bits.evicted = set.evicted.unwrap_or(bits.evicted);
        let permissions = set.mode.unwrap_or(old) & PERMISSIONS;
        self.mode
            .store(bits.to_mode((old & TYPE_MASK) | permissions), Relaxed);
    }

    /// Makes readers ask first, or not. Under a change of the writer.
    pub(super) fn set_ask(&self, ask: bool) {
        let mode = self.mode.load(Relaxed);
        let bits = SharingBits {
            ask,
            ..SharingBits::from_mode(mode)
        };
        self.mode.store(bits.to_mode(mode), Relaxed);
    }

    /// Records that the kernel keeps pages of the file, or none. Under a change of the writer.
    pub(super) fn set_mapped(&self, mapped: bool) {
        let mode = self.mode.load(Relaxed);
        let bits = SharingBits {
            mapped,
            ..SharingBits::from_mode(mode)
        };
        self.mode.store(bits.to_mode(mode), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_their_bits() {
        for kind in [
            FileType::File,
            FileType::Dir,
            FileType::Symlink,
            FileType::Fifo,
            FileType::Socket,
        ] {
            assert_eq!(FileType::from_mode(kind.mode_with(0o777)), Some(kind));
        }
        assert_eq!(FileType::from_mode(0), None);
        assert_eq!(FileType::from_mode(0o060_644), None); // a device
        assert_eq!(FileType::File.mode_with(0o040_644), 0o100_644);
    }
}
