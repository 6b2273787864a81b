//! The seam to `weir-server`: serving an instance.

use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use weir_config::{
    Budgets, Config, ElevateSettings, Machine, Patterns, PrefetchSettings, Server, Size,
};
use weir_core::elevate_rule::{ElevateRule, PrefetchRule, UpdateMode};
use weir_core::names::{LaminateOn, NewTree, Owner, Policy, Visibility};
use weir_core::path_globs::{escape, PathChoice, PathGlobs};
use weir_core::roster::Roster;
use weir_core::types::Rank;
use weir_fabric::ofi::BoundEndpoint;
use weir_fabric::Timing;
use weir_instance::directories::Claim;
use weir_instance::report::Report;
use weir_launch::endpoint::Opened;
use weir_launch::server::ServerAssignment;
use weir_server::rules::{Rule, Sharing};
use weir_server::{ElevatedDirectory, Options, Several, StorageDir};

use crate::mount_names::other_names;

/// The membership of one of several servers: its own part, and the others.
#[derive(Debug)]
pub struct Membership {
    /// Its own part.
    pub part: ServerAssignment,
    /// The servers and their addresses.
    pub roster: Roster,
    /// Where it listens: the roster's address of its rank.
    pub listener: TcpListener,
    /// The endpoint of libfabric, or the reason why there is none.
    pub opened: Opened,
}

/// The options of the server, from `config`, this machine and the directories of `claim`; of
/// budgets, the share of one of `share` servers.
fn options(claim: &Claim, config: &Config, share: u32) -> Result<Options> {
    let mut budgets = Budgets::for_machine(config, &Machine::look(config));
    budgets.share_among(share);
    // Without `..`, so that a new setting does not compile before it is passed on.
    let Server {
        warmers,
        max_files,
        max_clients,
        spin_us,
    } = config.server;
    let storage = claim.storage_dirs.iter().zip(&budgets.file_bytes);
    Ok(Options {
        run_dir: claim.run_dir.clone(),
        shm_dir: claim.shm_dir.clone(),
        storage: storage
            .map(|(path, budget)| StorageDir {
                path: path.clone(),
                budget_bytes: *budget,
            })
            .collect(),
        memory_budget_bytes: budgets.memory_bytes,
        warm_bytes: budgets.warm_bytes,
        warmers: warmers as usize,
        max_files,
        max_clients: max_clients as usize,
        spin_us,
        prefix: config.mount.prefix.as_path().display().to_string(),
        elevated: config
            .elevated()
            .iter()
            .map(|settings| elevated_directory(settings, &config.rules.prefetch))
            .collect::<Result<_>>()?,
        sharing: sharing(config),
        audit: config.audit.enabled,
        io_uring: config.calls.io_uring,
        // The lifeline does that, also for a server that is not ours to watch by pid.
        watch_pid: None,
    })
}

fn elevated_directory(
    settings: &ElevateSettings,
    prefetch: &[PrefetchSettings],
) -> Result<ElevatedDirectory> {
    let path = &*settings.directory;
    let found = || format!("the elevated directory {}", path.display());
    let target = path.canonicalize().with_context(found)?;
    let metadata = target.metadata().with_context(found)?;
    ensure!(metadata.is_dir(), "{} is not a directory", found());
    Ok(ElevatedDirectory {
        path: path.to_owned(),
        other_names: other_names(&target, &metadata),
        tree: NewTree {
            target: target.into_os_string().into_vec(),
            mode: metadata.mode() & 0o7777,
            owner: Owner {
                uid: metadata.uid(),
                gid: metadata.gid(),
            },
            times_ns: [
                nanoseconds(metadata.atime(), metadata.atime_nsec()),
                nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ],
        },
        rule: ElevateRule {
            prefetch: prefetch_rules(path, prefetch),
            ..rule_of(settings)
        },
    })
}

/// A time in ns since 1970, as far as they go.
fn nanoseconds(sec: i64, nsec: i64) -> i64 {
    sec.saturating_mul(1_000_000_000).saturating_add(nsec)
}

/// The rules of this elevated directory, and of those in it.
fn prefetch_rules(elevated: &Path, prefetch: &[PrefetchSettings]) -> Vec<PrefetchRule> {
    let rule = |settings: &PrefetchSettings| {
        let inside = settings.directory.strip_prefix(elevated).ok()?;
        let inside = match inside.as_os_str().is_empty() {
            true => String::new(),
            false => format!("/{}", escape(&inside.to_string_lossy())),
        };
        let directory = settings.directory.to_string_lossy();
        let below = |patterns: &Patterns| -> Vec<String> {
            let patterns = patterns.below(&directory);
            patterns
                .map(|pattern| format!("{inside}{pattern}"))
                .collect()
        };
        let mut only = below(&settings.only);
        if only.is_empty() && !inside.is_empty() {
            only.push(inside.clone());
        }
        Some(PrefetchRule {
            files: PathChoice {
                only: PathGlobs::new(only),
                skip: PathGlobs::new(below(&settings.skip)),
            },
            sizes: size_range(settings.from, settings.up_to),
        })
    };
    prefetch.iter().filter_map(rule).collect()
}

/// The sizes between two limits. An upper one of 0 is none.
fn size_range(from: Size, up_to: Size) -> RangeInclusive<u64> {
    match up_to.0 {
        0 => from.0..=u64::MAX,
        up_to => from.0..=up_to,
    }
}

/// The rule that clients and drains follow: patterns are of paths below the directory.
fn rule_of(settings: &ElevateSettings) -> ElevateRule {
    let directory = settings.directory.to_string_lossy();
    let without_slash = |pattern: String| pattern.trim_end_matches('/').to_owned();
    let below = |patterns: &Patterns| -> Vec<String> {
        let patterns = patterns.below(&directory);
        patterns.map(without_slash).collect()
    };
    let skipped = settings.skip.below(&directory);
    let directories = skipped.filter(|pattern| pattern.ends_with('/'));
    ElevateRule {
        new_files: PathChoice {
            only: PathGlobs::new(below(&settings.only)),
            skip: PathGlobs::new(below(&settings.skip)),
        },
        passed_directories: PathGlobs::new(directories.map(without_slash)),
        update: match settings.update {
            weir_config::UpdateMode::Pass => UpdateMode::Pass,
            weir_config::UpdateMode::Take => UpdateMode::Take,
        },
        take_sizes: size_range(settings.take_from, settings.take_up_to),
        keep: below(&settings.keep),
        first: below(&settings.first),
        prefetch: Vec::new(),
    }
}

/// How files are shared between nodes.
fn sharing(config: &Config) -> Sharing {
    let visibility = |is| match is {
        weir_config::Visibility::Ras => Visibility::ReadAfterSync,
        weir_config::Visibility::Raw => Visibility::ReadAfterWrite,
        weir_config::Visibility::Ral => Visibility::ReadAfterLaminate,
    };
    let laminate_on = match config.laminate.on {
        weir_config::LaminateOn::Chmod => LaminateOn::Chmod,
        weir_config::LaminateOn::Close => LaminateOn::Close,
        weir_config::LaminateOn::Request => LaminateOn::Request,
    };
    let mount = config.mount.prefix.as_path().display().to_string();
    let seen = [
        (&config.visibility.ras, Visibility::ReadAfterSync),
        (&config.visibility.raw, Visibility::ReadAfterWrite),
        (&config.visibility.ral, Visibility::ReadAfterLaminate),
    ];
    let mut rules = Vec::new();
    for (patterns, visibility) in seen {
        rules.extend(patterns.below(&mount).map(|pattern| Rule {
            pattern,
            visibility: Some(visibility),
            laminate_on: None,
        }));
    }
    let laminated = [
        (&config.laminate.chmod, LaminateOn::Chmod),
        (&config.laminate.close, LaminateOn::Close),
    ];
    for (patterns, on) in laminated {
        rules.extend(patterns.below(&mount).map(|pattern| Rule {
            pattern,
            visibility: None,
            laminate_on: Some(on),
        }));
    }
    Sharing {
        policy: Policy {
            visibility: visibility(config.visibility.default),
            laminate_on,
        },
        rules,
    }
}

/// Serves the instance of `claim` until it is stopped; calls `ready` once clients may come.
pub fn serve(
    claim: &Claim,
    config: &Config,
    membership: Option<Membership>,
    ready: impl FnOnce(),
) -> Result<Report> {
    let share = membership.as_ref().map_or(1, |m| m.part.share);
    let options = options(claim, config, share)?;
    tracing::info!(?options, "serving");
    let several = membership.map(|membership| several(membership, config));
    let several = several.transpose()?;
    Ok(weir_server::serve_as(&options, several, ready)?)
}

/// The server's part among the others.
fn several(membership: Membership, config: &Config) -> Result<Several> {
    let Membership {
        part,
        roster,
        listener,
        opened,
    } = membership;
    let hosts = roster.members().iter().map(|m| m.host.clone()).collect();
    let addresses: Vec<_> = roster.members().iter().map(|m| m.address).collect();
    let address = listener.local_addr()?;
    let (instance, rank, servers) = (part.instance, part.rank, addresses.len());
    tracing::info!(%instance, rank, servers, %address, "one of several");
    // The clock tells the lives of one server apart.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(Several {
        endpoint: endpoint(opened, &roster),
        given_up: part.given_up.iter().copied().map(Rank).collect(),
        listener,
        hosts,
        timing: Timing {
            deadline: Duration::from_secs(u64::from(config.fabric.deadline_s.max(1))),
            ..Timing::default()
        },
        membership: weir_fabric::Membership {
            instance: part.instance,
            secret: part.secret,
            rank: Rank(part.rank),
            incarnation: u64::try_from(now.as_nanos())?,
            addresses,
        },
    })
}

/// The server's endpoint among the others', if all talk over libfabric; one line says what they
/// talk over otherwise, and why.
fn endpoint(opened: Opened, roster: &Roster) -> Option<(BoundEndpoint, Vec<Vec<u8>>)> {
    let bound = match opened {
        Opened::Unwanted => return None,
        Opened::Unusable(why) => {
            tracing::warn!("servers talk over TCP; libfabric: {why}");
            return None;
        }
        Opened::Bound(bound) => bound,
    };
    match roster.endpoints() {
        Ok(names) => {
            tracing::info!(provider = bound.provider(), "servers talk over libfabric");
            Some((bound, names))
        }
        Err(rank) => {
            tracing::warn!(
                "servers talk over TCP; server {} is not reached over libfabric",
                rank.0
            );
            None
        }
    }
}
