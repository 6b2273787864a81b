//! Preparing an evicted file for being opened for writing, or cut.
//!
//! Extents say from then on which of its bytes are those of its copy, and programs write over these. No byte
//! moves.

use rustix::io::Errno;
use weir_core::proto::{BeginUpdate, Truncate};
use weir_core::types::Ino;

use super::super::Process;
use crate::errno::EVICTED as IS_EVICTED;

/// The times that a file is prepared, and evicted again, before its opening fails.
const TRIES: u32 = 20;

impl Process {
    /// Does something that changes the bytes of a file, as often as it says that the file was evicted. EBUSY: it
    /// is evicted again and again.
    pub(in super::super) fn update<T>(
        &'static self,
        ino: Ino,
        act: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for _ in 0..TRIES {
            match act() {
                Err(IS_EVICTED) => self.session()?.call(BeginUpdate { ino })?,
                done => return done,
            }
        }
        Err(Errno::BUSY)
    }

    /// Cuts a file that no descriptor of this process need have open.
    pub(in super::super) fn truncate_inode(
        &'static self,
        ino: Ino,
        size: u64,
    ) -> Result<(), Errno> {
        let session = self.session()?;
        self.update(ino, || session.call(Truncate { ino, size }))
    }
}
