//! Files of which the kernel keeps pages, because programs have mapped them.
//!
//! The kernel mount reports this before it hands out the first page. From then on all reads and writes of the file go
//! through the mount, where the kernel keeps them consistent with the pages. Claims end, and each call outside a claim
//! sees the flag in the inode's record. A write under way checks once more when its bytes are in place, as for every
//! claim that ends (`weir-client`, `data/vnode.rs`).
//!
//! Not in the journal: a mount ends with its server.

use std::collections::BTreeSet;

use weir_core::proto::FsError;
use weir_core::types::{ClientId, Ino};

use crate::cluster::files::{NodeFiles, OpenFileTables};
use crate::cluster::refusal::refusal;

/// Files of which the kernel keeps pages, each with the mount that has them.
pub type MappedFiles = BTreeSet<(u32, Ino)>;

impl OpenFileTables {
    /// The mounts that have pages of a file.
    pub(in crate::cluster) fn mounts_with(&self, ino: Ino) -> BTreeSet<ClientId> {
        let mounts = self.mapped.iter().filter(|(_, file)| *file == ino);
        mounts.map(|(client, _)| ClientId(*client)).collect()
    }
}

impl NodeFiles<'_, '_> {
    /// Notes that the kernel keeps, or no longer keeps, pages of a file for a mount.
    pub(in crate::cluster) fn keep_pages(
        &mut self,
        from: ClientId,
        ino: Ino,
        mapped: bool,
    ) -> Result<(), FsError> {
        let changed = match mapped {
            true => self.tables.mapped.insert((from.0, ino)),
            false => self.tables.mapped.remove(&(from.0, ino)),
        };
        match changed {
            true => self.show_mapped(ino),
            false => Ok(()),
        }
    }

    /// Sets the flag by which programs see if any mount keeps pages of a file.
    fn show_mapped(&mut self, ino: Ino) -> Result<(), FsError> {
        let mapped = self.tables.mapped.iter().any(|(_, file)| *file == ino);
        self.names.set_mapped(ino, mapped).map_err(refusal)?;
        if let Some(block) = self.writers().shared_block(ino) {
            block.end_claims();
        }
        Ok(())
    }

    /// Forgets the pages of a client that is gone, if it was a mount.
    pub(super) fn forget_pages(&mut self, id: ClientId) {
        let of_client = (id.0, Ino(0))..=(id.0, Ino(u64::MAX));
        let files = self.tables.mapped.range(of_client);
        let files: Vec<Ino> = files.map(|(_, ino)| *ino).collect();
        for ino in files {
            self.tables.mapped.remove(&(id.0, ino));
            // The file may have lost its last name, and be gone.
            let _ = self.show_mapped(ino);
        }
    }
}
