//! Files of which the kernel keeps pages, because programs have mapped them.
//!
//! The kernel mount says so before it hands out the first page. From then on all reads and writes
//! of the file go through the mount, where the kernel keeps them consistent with the pages. Each
//! call that does not write on within its claim sees the flag in the inode's record, and the claims
//! end. A write that was under way checks once more when its bytes are in place, as for every claim
//! that ends (`weir-client`, `data/vnode.rs`).
//!
//! Not in the journal: a mount ends with its server.

use std::collections::BTreeSet;

use weir_core::proto::FsError;
use weir_core::types::{ClientId, Ino};

use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform};

/// Files of which the kernel keeps pages, by the mount that said so.
pub type MappedFiles = BTreeSet<(u32, Ino)>;

impl<P: Platform> Node<'_, P> {
    /// Notes that the kernel keeps pages of a file, or no more. EPERM: the client is no kernel
    /// mount.
    pub(in crate::cluster) fn keep_pages(
        &mut self,
        from: ClientId,
        ino: Ino,
        mapped: bool,
    ) -> Result<(), FsError> {
        if !self.is_mount(from) {
            return Err(FsError::NotPermitted);
        }
        let changed = match mapped {
            true => self.files.mapped.insert((from.0, ino)),
            false => self.files.mapped.remove(&(from.0, ino)),
        };
        match changed {
            true => self.show_mapped(ino),
            false => Ok(()),
        }
    }

    /// Shows programs if any mount keeps pages of a file.
    fn show_mapped(&mut self, ino: Ino) -> Result<(), FsError> {
        let mapped = self.files.mapped.iter().any(|(_, file)| *file == ino);
        self.names.set_mapped(ino, mapped).map_err(refusal)?;
        if let Some(block) = self.writers().shared_block(ino) {
            block.end_claims();
        }
        Ok(())
    }

    /// Wakes the mounts that have pages of a file, which drop them: another node changed it.
    pub(in crate::cluster) fn wake_mounts(&self, ino: Ino) {
        let mounts = self.files.mapped.iter().filter(|(_, file)| *file == ino);
        self.wake_waiters(&mounts.map(|(client, _)| ClientId(*client)).collect());
    }

    /// Forgets the pages of a client that is gone, if it was a mount.
    pub(in crate::cluster) fn forget_pages(&mut self, id: ClientId) {
        let of_client = (id.0, Ino(0))..=(id.0, Ino(u64::MAX));
        let files: Vec<Ino> = self
            .files
            .mapped
            .range(of_client)
            .map(|(_, ino)| *ino)
            .collect();
        for ino in files {
            self.files.mapped.remove(&(id.0, ino));
            // The file may have lost its last name, and be gone.
            let _ = self.show_mapped(ino);
        }
    }
}
