//! The simulated parallel file system (PFS): the copies of files whose storage was freed. It loses nothing, and
//! outlives the cluster.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use weir_core::types::Ino;

use crate::bytes::{Block, BLOCK};

/// The copies of files on the PFS, by the numbers of the files.
#[derive(Debug, Default)]
pub struct TargetFiles(RefCell<BTreeMap<Ino, OwnedFd>>);

impl TargetFiles {
    /// Opens the copy of a file; the caller closes it. ESTALE: there is none.
    pub fn open(&self, file: Ino) -> Result<i32, Errno> {
        let files = self.0.borrow();
        let copy = files.get(&file).ok_or(Errno::STALE)?;
        rustix::io::fcntl_dupfd_cloexec(copy, 0).map(OwnedFd::into_raw_fd)
    }

    /// Writes blocks of a copy, which is made if there is none.
    pub fn write(&self, file: Ino, first: u64, blocks: &[Block]) -> Result<(), Errno> {
        let mut files = self.0.borrow_mut();
        let copy = match files.entry(file) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                new.insert(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC)?)
            }
        };
        let mut bytes = Vec::new();
        for block in blocks {
            bytes.extend(match block {
                Block::Tag(tag) => Block::bytes(*tag),
                Block::Empty => Block::bytes(0),
                Block::Torn => return Err(Errno::ILSEQ),
            });
        }
        let written = rustix::io::pwrite(&*copy, &bytes, first * BLOCK)?;
        assert_eq!(written, bytes.len(), "tmpfs has room");
        Ok(())
    }
}
