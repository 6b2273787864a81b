//! Open files, by the handle numbers that the kernel uses.

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

impl OpenFiles {
    /// Gives an open file a number.
    pub fn insert(&self, file: Open) -> FileHandle {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.last += 1;
        let number = inner.last;
        inner.open.insert(number, file);
        FileHandle(number)
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
