//! Open files and directories, by the handle numbers that the kernel uses.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use fuser::FileHandle;
use rustix::io::Errno;
use weir_client::process::mounted::{Followed, OpenFile};

/// The files that programs have open through the mount.
#[derive(Debug, Default)]
pub struct OpenFiles {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<u64, Open>,
    /// The ends of the listings of open directories.
    listings: HashMap<u64, u64>,
    /// Files that stand for open file descriptions of interposed programs.
    follows: HashMap<u64, Followed>,
    /// The last number given. Numbers are not reused, so that a late request finds no file.
    last: u64,
}

/// An open file with its mode of opening.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The file.
    pub file: OpenFile,
    /// It is open for private mappings alone.
    pub is_private: bool,
}

impl Inner {
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl OpenFiles {
    /// Gives an open file a number.
    pub fn insert(&self, file: Open) -> FileHandle {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let number = inner.next_number();
        inner.open.insert(number, file);
        FileHandle(number)
    }

    /// Gives an open directory a number.
    pub fn insert_directory(&self) -> FileHandle {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let number = inner.next_number();
        inner.listings.insert(number, 0);
        FileHandle(number)
    }

    /// The end of the listing of an open directory, as it was noted; 0 before that.
    pub fn listing_end(&self, number: FileHandle) -> u64 {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.listings.get(&number.0).copied().unwrap_or(0)
    }

    /// Notes the end of the listing of an open directory.
    pub fn note_listing_end(&self, number: FileHandle, until: u64) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = inner.listings.get_mut(&number.0) {
            *end = until;
        }
    }

    /// Forgets an open directory.
    pub fn remove_directory(&self, number: FileHandle) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.listings.remove(&number.0);
    }

    /// Returns the file with a number, or EBADF.
    pub fn get(&self, number: FileHandle) -> Result<Open, Errno> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.open.get(&number.0).copied().ok_or(Errno::BADF)
    }

    /// Makes a file stand for an open file description of an interposed program.
    pub fn follow(&self, number: FileHandle, followed: Followed) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.open.contains_key(&number.0) {
            inner.follows.insert(number.0, followed);
        }
    }

    /// Records that bytes of a file were moved, from `offset` on.
    pub fn moved(&self, number: FileHandle, offset: u64, bytes: usize) {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(followed) = inner.follows.get(&number.0) {
            followed.moved(offset, bytes);
        }
    }

    /// Removes and returns the file with a number.
    pub fn remove(&self, number: FileHandle) -> Result<Open, Errno> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.follows.remove(&number.0);
        inner.open.remove(&number.0).ok_or(Errno::BADF)
    }
}
