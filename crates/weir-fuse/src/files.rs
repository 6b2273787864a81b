//! Open files, by the numbers that the kernel knows them by.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use fuser::FileHandle;
use rustix::io::Errno;
use weir_client::process::mounted::OpenFile;

/// The files that programs have open through the mount.
#[derive(Debug, Default)]
pub struct OpenFiles {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<u64, OpenFile>,
    /// The number that was given last. None is given twice, so that a late request finds nothing.
    last: u64,
}

impl OpenFiles {
    /// Gives an open file a number.
    pub fn insert(&self, file: OpenFile) -> FileHandle {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.last += 1;
        let number = inner.last;
        inner.open.insert(number, file);
        FileHandle(number)
    }

    /// The file with a number; EBADF: there is none.
    pub fn get(&self, number: FileHandle) -> Result<OpenFile, Errno> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.open.get(&number.0).copied().ok_or(Errno::BADF)
    }

    /// Takes the file with a number out.
    pub fn remove(&self, number: FileHandle) -> Result<OpenFile, Errno> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.open.remove(&number.0).ok_or(Errno::BADF)
    }
}
