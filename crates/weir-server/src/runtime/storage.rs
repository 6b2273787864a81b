//! `weir-store`'s tiers as the space of the logic.

use std::path::Path;
use std::sync::Arc;

use weir_core::proto::{Lent, Tier, TierStatus};
use weir_core::types::{ClientId, SegmentId};
use weir_store::backing::{count_slabs, DirBacking};
use weir_store::board::WarmBoard;
use weir_store::slab::{self, SlabId, SLAB_BYTES};
use weir_store::tier::{Grant, StoreError, TierConfig, Tiers};

use super::regions::Instance;
use super::ServerError;
use crate::node::{Accounts, RecoverError, Space};
use crate::options::Options;

/// The node's storage.
#[derive(Debug)]
pub struct Storage {
    tiers: Tiers<DirBacking>,
    names: Vec<String>,
    /// False until the accounts of an earlier server are known.
    counts: bool,
}

/// Opens the storage of an instance: new, or with the slabs of a killed server.
pub fn open(instance: &Instance, options: &Options, take_up: bool) -> Result<Storage, ServerError> {
    let dirs: Vec<&Path> = instance
        .storage_dirs()
        .iter()
        .map(std::path::PathBuf::as_path)
        .collect();
    let backing = DirBacking::open(instance.shm_dir(), &dirs).map_err(|(position, errno)| {
        let dir = position
            .checked_sub(1)
            .map_or(instance.shm_dir(), |at| dirs[at]);
        ServerError::path(
            dir,
            &std::io::Error::from_raw_os_error(errno.raw_os_error()),
        )
    })?;
    if dirs.len() >= slab::MAX_DIRECTORIES {
        let why = format!("at most {} storage directories", slab::MAX_DIRECTORIES - 1);
        return Err(ServerError::Setting(why));
    }
    let config = TierConfig {
        memory_budget_bytes: options.memory_budget_bytes,
        warm_bytes: options.warm_bytes,
        storage_budgets_bytes: options.storage.iter().map(|dir| dir.budget_bytes).collect(),
    };
    let names = std::iter::once("memory".to_owned())
        .chain(dirs.iter().map(|dir| dir.display().to_string()))
        .collect();
    let mut slabs = Vec::new();
    if take_up {
        for dir in std::iter::once(&instance.shm_dir()).chain(&dirs) {
            slabs.push(count_slabs(dir).map_err(|why| ServerError::Remains {
                dir: (*dir).to_owned(),
                why,
            })?);
        }
    }
    Ok(Storage {
        tiers: Tiers::with_slabs(&config, backing, &slabs),
        names,
        counts: !take_up,
    })
}

impl Storage {
    /// The board from which the warmers work.
    pub fn board(&self) -> &Arc<WarmBoard> {
        self.tiers.board()
    }

    fn account(
        &mut self,
        slab: u32,
        change: impl FnOnce(&mut Tiers<DirBacking>, SlabId) -> Result<(), StoreError>,
    ) {
        let Some(id) = SlabId::from_raw(slab).filter(|_| self.counts) else {
            return;
        };
        if let Err(error) = change(&mut self.tiers, id) {
            // Two records of one client may claim the same bytes: this affects only its own space.
            tracing::warn!(%error, "an account of storage does not agree");
        }
    }
}

fn lent(grant: &Grant) -> Lent {
    Lent {
        segment: grant.segment,
        slab: grant.slab.raw(),
        tier: match grant.tier() {
            slab::Tier::File => Tier::File,
            slab::Tier::Memory => Tier::Memory,
        },
        pos: grant.pos,
        len: grant.len,
        warm: grant.warm,
    }
}

impl Space for Storage {
    fn grant(&mut self, client: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent> {
        if min_bytes > SLAB_BYTES {
            return None;
        }
        match self.tiers.grant(min_bytes, want_bytes, client) {
            Ok(grant) => Some(lent(&grant)),
            Err(error) => {
                tracing::debug!(%error, "a segment cannot be lent");
                None
            }
        }
    }

    fn grant_gap(&mut self, client: ClientId) -> Option<Lent> {
        self.tiers.grant_gap(client).as_ref().map(lent)
    }

    fn trim(&mut self, segment: SegmentId, keep_bytes: u64) -> bool {
        self.tiers.trim(segment, keep_bytes)
    }

    fn refused(&mut self, segment: SegmentId) {
        self.tiers.refused(segment);
    }

    fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        self.account(slab, |tiers, id| tiers.add_live(id, pos, len));
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        self.account(slab, |tiers, id| tiers.remove_live(id, pos, len));
    }

    fn release(&mut self, segment: SegmentId) {
        if !self.counts {
            return;
        }
        if let Err(error) = self.tiers.release(segment) {
            tracing::warn!(%error, "a segment cannot be taken back");
        }
    }

    fn is_file(&self, slab: u32) -> bool {
        SlabId::from_raw(slab).is_some_and(|id| id.tier() == slab::Tier::File)
    }

    fn resume(&mut self, accounts: &Accounts) -> Result<(), RecoverError> {
        for &(client, segment, len) in &accounts.held {
            let held = self.tiers.restore_segment(segment, len, client);
            held.map_err(|_| RecoverError::Missing {
                slab: SlabId::from_segment(segment).raw(),
                pos: slab::segment_pos(segment),
                len,
            })?;
        }
        for &(slab, pos, len) in &accounts.live {
            let revived = SlabId::from_raw(slab).map(|id| self.tiers.restore_live(id, pos, len));
            if !matches!(revived, Some(Ok(()))) {
                return Err(RecoverError::Missing { slab, pos, len });
            }
        }
        for &(slab, pos, len) in &accounts.amounts {
            let id = SlabId::from_raw(slab);
            let revived = id.map(|id| self.tiers.restore_amount(id, pos, len));
            if !matches!(revived, Some(Ok(()))) {
                return Err(RecoverError::Missing { slab, pos, len });
            }
        }
        self.tiers.finish_restore();
        self.counts = true;
        Ok(())
    }

    fn usage(&self) -> Vec<TierStatus> {
        let usage = self.tiers.usage();
        let named = usage.into_iter().zip(&self.names);
        named
            .map(|(usage, name)| TierStatus {
                name: name.clone(),
                budget_bytes: usage.capacity_bytes,
                lent_bytes: usage
                    .capacity_bytes
                    .saturating_sub(usage.free_bytes + usage.gap_bytes),
                live_bytes: usage.live_bytes,
                warm_bytes: usage.warm_bytes,
            })
            .collect()
    }
}
