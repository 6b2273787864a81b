//! The arguments of the process that drains: from the settings of its parent to the parts of the drain.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use weir_config::DrainOrder;
use weir_core::elevated::ALIAS_LINK;
use weir_instance::errln;
use weir_mover::drain::{NameOrder, PlacedNodes, PrefetchNotes};
use weir_mover::stripe::StripeSize;
use weir_mover::{InstanceTree, PathFilter, StageOptions};

use super::end_time::EndTime;
use super::hook::EventHook;
use super::relief::ServerRelief;
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::exit::Failure;
use crate::movers::{MoverGate, MoverRole, SharedPaths};

/// The beginning of the name of a file in the run directory: the nodes that drains have put on a target. The number of an
/// elevated tree follows, or the hash of another target.
const MARKS_FILE: &str = "moved";

/// The same for the files that were prefetched.
pub const PREFETCHED_FILE: &str = "prefetched";

impl DrainProcessArgs {
    /// The tree that is drained.
    pub(super) fn instance(&self) -> Result<InstanceTree> {
        let instance = InstanceTree::attach(&self.run_dir)
            .with_context(|| format!("cannot reach the server of {}", self.run_dir.display()))?;
        let tree = match self.tree {
            None => instance,
            Some(number) => instance.elevated(number).context("no such elevated tree")?,
        };
        Ok(match self.before == EarlierDrains::LostServers {
            true => tree.without_lost_servers(),
            false => tree,
        })
    }

    /// The paths by which programs name the root of the tree. `prefix` is one of them.
    pub(super) fn roots(&self, prefix: &Path) -> Vec<PathBuf> {
        let link = self
            .tree
            .map(|number| self.run_dir.join(format!("{ALIAS_LINK}{number}")));
        let alias = link.and_then(|link| std::fs::read_link(link).ok());
        [Some(prefix.to_owned()), alias]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The relief of the servers, of an elevated tree.
    pub(super) fn relief(&self, instance: &InstanceTree) -> Result<Option<Arc<ServerRelief>>> {
        let relief = self.tree.map(|tree| {
            let patience = self.stuck_limit().unwrap_or(Duration::MAX);
            ServerRelief::new(*instance, tree, self.evict_percent, patience).map(Arc::new)
        });
        relief.transpose().context("asking for the servers")
    }

    /// The nodes that drains of this tree have put on this target. The file that lists them is beside the journal of this
    /// node's server, and is removed with it. For a target that is not elevated, only a drain that takes over from a killed
    /// one uses it; without it, that drain removes less. Makes no call of the target, which may hang.
    pub(super) fn placed_nodes(&self, target: &Path) -> Result<Option<PlacedNodes>> {
        let marks_of = |name: String| self.run_dir.join(format!("{MARKS_FILE}{name}"));
        if let Some(tree) = self.tree {
            let path = marks_of(tree.to_string());
            let opened = PlacedNodes::open(&path);
            return opened.map(Some).with_context(|| path.display().to_string());
        }
        let hash = blake3::hash(target.as_os_str().as_bytes()).to_hex();
        let path = marks_of(format!("-{hash}"));
        let opened = match self.before != EarlierDrains::Ended {
            true => PlacedNodes::open(&path),
            false => PlacedNodes::open_anew(&path),
        };
        let told = |error: &std::io::Error| {
            errln!(
                "weir: drain: cannot record the files that it has moved, in {}: {error}; names that are removed later may stay",
                path.display()
            );
        };
        Ok(opened.inspect_err(told).ok())
    }

    /// The notes of files of this elevated tree that were prefetched, or will be.
    pub(super) fn prefetched_files(&self) -> Option<PrefetchNotes> {
        let notes = |tree| self.run_dir.join(format!("{PREFETCHED_FILE}{tree}"));
        Some(PrefetchNotes::new(notes(self.tree?)))
    }

    /// The user's program that receives events. If it cannot be started, everything is moved all the same.
    pub(super) fn hook(&self, roots: &[PathBuf], target: &Path) -> Option<EventHook> {
        let started = EventHook::start(self.hook.as_deref()?, &roots[0], target);
        let told = |error: &anyhow::Error| {
            errln!("weir: the hook of the drain cannot be started: {error:#}");
        };
        started.inspect_err(told).ok()
    }

    /// The file that has the state of this drain.
    pub(super) fn status_file(&self) -> Option<PathBuf> {
        let mut name = self.status_file.clone()?.into_os_string();
        if let Some(tree) = self.tree {
            name.push(format!(".{tree}"));
        }
        Some(name.into())
    }

    /// The movers of other nodes. Without them this node moves everything.
    pub(super) fn mover_gate(&self, target: &Path) -> MoverGate {
        let role = MoverRole {
            tree: self.tree,
            gives_way: true,
            stripe: self.stripe_size(),
            options: StageOptions {
                closed_only: true,
                ..StageOptions::default()
            },
            ..MoverRole::default()
        };
        let shared = SharedPaths::Targets(vec![target.to_owned()]);
        MoverGate::open(&self.run_dir, "drain", shared, role).unwrap_or_else(|error| {
            errln!(
                "weir: drain: the other nodes do not help, this one moves everything: {error:#}"
            );
            MoverGate::default()
        })
    }

    /// The stripes of all files of the target; `None`: the file system is asked.
    pub(super) fn stripe_size(&self) -> Option<StripeSize> {
        self.stripe.and_then(StripeSize::new)
    }

    /// The order in which files get their names.
    pub(super) fn name_order(&self) -> NameOrder {
        match self.order {
            DrainOrder::Changes => NameOrder::Changes,
            DrainOrder::None => NameOrder::None,
        }
    }

    /// The files that are moved before all others.
    pub(super) fn first_files(&self) -> Result<Option<PathFilter>, Failure> {
        named_files("--first", &self.first)
    }

    /// The files that are not evicted.
    pub(super) fn kept_files(&self) -> Result<Option<PathFilter>, Failure> {
        named_files("--keep", &self.keep)
    }

    /// The end of the job, as far as it is known.
    pub(super) fn end_time(&self) -> EndTime {
        let warning = (self.warning_s > 0).then(|| Duration::from_secs(self.warning_s.into()));
        EndTime::new(warning, std::env::var("SLURM_JOB_END_TIME").ok().as_deref())
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s.into())
    }

    pub(super) fn stuck_limit(&self) -> Option<Duration> {
        (self.stuck_s > 0).then(|| Duration::from_secs(self.stuck_s.into()))
    }

    /// The words of a command line with these arguments.
    pub(super) fn words(&self) -> Vec<OsString> {
        self.words_with(self.before, self.generation, self.is_successor)
    }

    /// The same for a process that comes after this one.
    pub(super) fn words_of_next(&self, before: EarlierDrains, generation: u32) -> Vec<OsString> {
        self.words_with(before, generation, true)
    }

    fn words_with(
        &self,
        before: EarlierDrains,
        generation: u32,
        is_successor: bool,
    ) -> Vec<OsString> {
        // Without `..`, so that the compiler refuses a new argument that is not passed on.
        let DrainProcessArgs {
            choice,
            interval_s,
            stuck_s,
            evict_percent,
            order,
            first,
            keep,
            warning_s,
            limit,
            stripe,
            replace_foreign,
            hook,
            status_file,
            laminate,
            before: _,
            generation: _,
            is_successor: _,
            tree,
            run_dir,
            target,
        } = self;
        let mut words = choice.words();
        words.extend(["--interval-s".into(), interval_s.to_string().into()]);
        words.extend(["--stuck-s".into(), stuck_s.to_string().into()]);
        words.extend(["--evict-percent".into(), evict_percent.to_string().into()]);
        for (option, path) in [("--hook", hook), ("--status-file", status_file)] {
            words.extend(path.iter().flat_map(|path| [option.into(), path.into()]));
        }
        words.extend(["--limit".into(), limit.to_string().into()]);
        words.extend(["--warning-s".into(), warning_s.to_string().into()]);
        words.extend(stripe.map(|bytes| format!("--stripe={bytes}").into()));
        let first = first.iter();
        words.extend(first.map(|pattern| format!("--first={pattern}").into()));
        let keep = keep.iter();
        words.extend(keep.map(|pattern| format!("--keep={pattern}").into()));
        words.extend(laminate.then(|| "--laminate".into()));
        words.extend(["--order".into(), order.word().into()]);
        words.extend(replace_foreign.then(|| "--replace-foreign".into()));
        words.push(
            match before {
                EarlierDrains::Ended => "--before=ended",
                EarlierDrains::Killed => "--before=killed",
                EarlierDrains::LostServers => "--before=lost-servers",
            }
            .into(),
        );
        words.push(format!("--generation={generation}").into());
        words.extend(is_successor.then(|| "--is-successor".into()));
        if let Some(tree) = tree {
            words.extend(["--tree".into(), tree.to_string().into()]);
        }
        words.extend(["--".into(), run_dir.into(), target.into()]);
        words
    }
}

/// The files that the patterns of an option name; `None`: it has no pattern.
fn named_files(option: &str, patterns: &[String]) -> Result<Option<PathFilter>, Failure> {
    let filter = || PathFilter::new(patterns, &[]);
    let filter = (!patterns.is_empty()).then(filter).transpose();
    filter.map_err(|error| Failure::Refused(format!("{option}: {error}")))
}
