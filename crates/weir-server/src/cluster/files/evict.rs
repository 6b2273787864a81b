//! Eviction: frees the storage of a file whose bytes are on the parallel file system (PFS).
//!
//! An evicted file keeps its inode, size and times. A byte that no extent covers is in its copy, which a link names
//! ([`weir_core::elevated::EVICTED`]). Clients read it there, and nobody writes such a file: before a program opens it
//! for writing, extents are laid that refer to the copy ([`super::evict_part`]).
//!
//! As in a lamination ([`super::laminate`]), the mark is set before writers are looked for, and a client shows its
//! description before it looks at the mark. So one of the two sees the other. The extents go last: a kill in between
//! leaves a file that has its bytes twice.
//!
//! A file that a program of its home's node has open is not evicted, so that reads stay fast. For correctness it could
//! be, as on other nodes: a reader that finds no extent reads the copy.

use std::sync::atomic::{fence, Ordering};

use weir_core::names::{Attr, Lamination};
use weir_core::proto::peer::{self, News};
use weir_core::proto::{ContentVersion, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::publish::bytes_of;
use crate::cluster::files::laminate::count_writers;
use crate::cluster::files::{Eviction, FileParts, FileSteps, FilesNeeds};
use crate::cluster::peers::tell::all_of;

impl<S: FilesNeeds> Eviction<S> {
    /// Frees the storage of a file of this server. False: the file is another version, or a program uses it.
    pub(in crate::cluster) async fn evict_at_home(
        &self,
        ino: Ino,
        version: &ContentVersion,
    ) -> Result<bool, FsError> {
        if self.server.has_all_extents() {
            return self.server.node(|node| evict_here(node, ino, version));
        }
        let _alone = self.server.hold_for_change(ino).await?;
        let attr = self.server.node(|node| node.names().regular(ino))?;
        // The extents of a laminated file are kept by other servers for good.
        let is_laminated = attr.lamination != Lamination::No;
        if is_laminated
            || self.server.stand_ins().awaits_writer(ino)
            || !self.server.appends().silent_servers().is_empty()
        {
            return Ok(false);
        }
        let others = self.server.stand_ins().holders_of(ino);
        // While the mark is set, readers take holes from the copy: it is not set without need.
        if !attr.evicted && !self.is_unused_version(ino, &others, version).await? {
            return Ok(false);
        }
        self.mark_evicted(ino, true).await?;
        let is_due = self.is_unused_version(ino, &others, version).await;
        if !matches!(is_due, Ok(true)) {
            if !attr.evicted {
                self.mark_evicted(ino, false).await?;
            }
            return is_due;
        }
        let erased = self
            .server
            .extents()
            .erase_everywhere(ino, 0, attr.size)
            .await;
        self.server.stand_ins().recall_here(ino);
        self.server.stand_ins().recall_leases(ino, None).await;
        let freed = erased?;
        self.server.stand_ins().add_stored(ino, -bytes_of(&freed));
        self.server.extents().give_back(freed).await;
        Ok(true)
    }

    /// True if no program of this node has a file of this server open, no program writes it, all of it is
    /// published, and it is this version.
    async fn is_unused_version(
        &self,
        ino: Ino,
        others: &[Rank],
        version: &ContentVersion,
    ) -> Result<bool, FsError> {
        if self
            .server
            .node(|node| node.opened().is_open(ino) || count_writers(node, ino) > 0)
        {
            return Ok(false);
        }
        let asked = News::Writers(peer::Writers { ino });
        if all_of(self.server.peers().tell(others, &asked).await)?.writers > 0 {
            return Ok(false);
        }
        self.server
            .sharing()
            .publish_everywhere(ino, others)
            .await?;
        Ok(version_of(&self.server.stand_ins().attr_at_home(ino).await?) == *version)
    }

    /// Marks a file of this server as evicted, or not, on all nodes that have it open.
    pub(super) async fn mark_evicted(&self, ino: Ino, evicted: bool) -> Result<(), FsError> {
        self.server
            .node(|node| node.names().set_evicted(ino, evicted))?;
        self.server.sharing().mark_holders(ino).await?;
        self.server.stand_ins().recall_leases(ino, None).await;
        Ok(())
    }
}

/// The version of a file with these attributes, as stat(2) shows it.
fn version_of(attr: &Attr) -> ContentVersion {
    ContentVersion {
        size: attr.size,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns.max(attr.mtime_ns),
    }
}

/// Evicts a file of an instance that has all its extents here.
fn evict_here(
    node: &mut impl FileSteps,
    ino: Ino,
    version: &ContentVersion,
) -> Result<bool, FsError> {
    let before = node.names().regular(ino)?;
    // No mark without need, as in [`Eviction::evict_at_home`].
    if !before.evicted && !is_unused_here(node, ino, version)? {
        return Ok(false);
    }
    node.names().set_evicted(ino, true)?;
    fence(Ordering::SeqCst);
    if !is_unused_here(node, ino, version)? {
        node.names().set_evicted(ino, before.evicted)?;
        return Ok(false);
    }
    node.writes().drop_extents(ino);
    Ok(true)
}

/// True if no program has a file open or writes it, and it is this version.
fn is_unused_here(
    node: &mut impl FileSteps,
    ino: Ino,
    version: &ContentVersion,
) -> Result<bool, FsError> {
    let is_used = node.opened().is_open(ino) || count_writers(node, ino) > 0;
    node.writes().harvest(ino);
    Ok(!is_used && version_of(&node.writers().attr_now(ino)?) == *version)
}
