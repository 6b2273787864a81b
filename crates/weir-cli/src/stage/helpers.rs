//! The other nodes of an instance, which help with a stage.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use weir_instance::errln;
use weir_instance::roster;
use weir_mover::{
    FilePlacement, InstanceTree, MoverNews, MoverSource, StageOptions, StagePair, StageSummary,
    StageTeam,
};

use crate::movers::{MoverGate, MoverRole, SharedPaths};

/// The movers of the other nodes of an instance, for a stage.
#[derive(Debug)]
pub(super) struct StageHelpers {
    run_dir: PathBuf,
    /// The rank of this node's server.
    rank: u16,
    is_inward: bool,
    options: StageOptions,
    /// The paths of the parallel file system that all must see.
    shared: OnceLock<Vec<PathBuf>>,
    gate: OnceLock<MoverGate>,
}

impl StageHelpers {
    /// `None`: the instance is of one server. `threads`: of each node; `None`: as many as is usual there.
    pub(super) fn new(
        run_dir: &Path,
        instance: &InstanceTree,
        is_inward: bool,
        options: StageOptions,
        threads: Option<usize>,
    ) -> Result<Option<StageHelpers>> {
        if instance.servers().context("asking for the servers")? == 1 {
            return Ok(None);
        }
        Ok(Some(StageHelpers {
            run_dir: run_dir.to_owned(),
            rank: instance.rank().context("asking for the server")?,
            is_inward,
            options: StageOptions {
                threads: threads.unwrap_or(0),
                ..options
            },
            shared: OnceLock::new(),
            gate: OnceLock::new(),
        }))
    }

    /// Says what is moved, before the stage begins. A later word is not heard.
    pub(super) fn set_pairs(&self, pairs: &[StagePair]) {
        let ends = pairs.iter().map(|pair| match self.is_inward {
            true => &pair.source,
            false => &pair.target,
        });
        // A directory stays, where a file may be gone soon.
        let paths = ends.filter_map(|end| match end.is_dir() {
            true => Some(end.clone()),
            false => end.parent().map(Path::to_owned),
        });
        // One of each file system.
        let mut devices = HashSet::new();
        let is_new = |path: &PathBuf| {
            let found = path.symlink_metadata();
            found.is_ok_and(|found| devices.insert(found.dev()))
        };
        let paths: Vec<PathBuf> = paths.filter(is_new).collect();
        if !paths.is_empty() {
            let _ = self.shared.set(paths);
        }
    }

    pub(super) fn team(&self) -> StageTeam<'_> {
        let placement = match self.is_inward {
            true => FilePlacement::Spread,
            false => FilePlacement::Held,
        };
        StageTeam::new(self.rank, placement, self)
    }

    /// Adds the names of the nodes to a summary.
    pub(super) fn name_nodes(&self, summary: &mut StageSummary) {
        let Ok(Some(roster)) = roster::read(&self.run_dir) else {
            return;
        };
        for node in &mut summary.nodes {
            let member = roster.member(weir_core::types::Rank(node.server));
            node.host = member.map_or_else(String::new, |member| member.host.clone());
        }
    }
}

impl MoverSource for StageHelpers {
    fn invite(&self) -> Vec<u16> {
        let paths = self.shared.get().cloned().unwrap_or_default();
        let shared = match self.is_inward {
            true => SharedPaths::Sources(paths),
            false => SharedPaths::Targets(paths),
        };
        let role = MoverRole {
            is_inward: self.is_inward,
            options: self.options,
            ..MoverRole::default()
        };
        let gate = MoverGate::open(&self.run_dir, "stage", shared, role);
        let gate = gate.unwrap_or_else(|error| {
            errln!(
                "weir: stage: the other nodes do not help, this one moves everything: {error:#}"
            );
            MoverGate::default()
        });
        let invited = gate.invited();
        let _ = self.gate.set(gate);
        invited
    }

    fn take_news(&self) -> Vec<MoverNews> {
        self.gate.get().map_or_else(Vec::new, MoverGate::take_news)
    }

    fn note_loss(&self, rank: u16, reason: &str) {
        errln!("weir: stage: server {rank} does not help any more: {reason}");
    }
}
