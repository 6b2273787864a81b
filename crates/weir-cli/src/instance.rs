//! The seam to `weir-server`: serving an instance, and talking to one that runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_config::{Budgets, Config, Machine};
use weir_core::names::{LaminateOn, Policy, Visibility};
use weir_core::proto::{Status, Stop, Welcome};
use weir_core::roster::Roster;
use weir_core::types::Rank;
use weir_fabric::ofi::Bound;
use weir_fabric::Timing;
use weir_server::control::Control;
use weir_server::rules::{Rule, Sharing};
use weir_server::{Options, Several, StorageDir};

use crate::launch::endpoint::Opened;
use crate::lock::Lock;
use crate::place::{self, Claim, Label};
use crate::serve::Membership;

/// What an instance holds and has done; at its end, the report.
pub use weir_core::proto::ServerStatus as Report;

/// What `config` comes to on this machine, for the directories of `claim`; of budgets, the share
/// of one of `share` servers.
fn options(claim: &Claim, config: &Config, share: u32) -> Options {
    let mut budgets = Budgets::of(config, &Machine::look(config));
    budgets.share_among(share);
    let storage = claim.storage_dirs.iter().zip(&budgets.file_bytes);
    Options {
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
        warmers: config.server.warmers as usize,
        max_files: config.server.max_files,
        max_clients: config.server.max_clients as usize,
        spin_us: config.server.spin_us,
        prefix: config.mount.prefix.as_path().display().to_string(),
        sharing: sharing(config),
        audit: config.audit.enabled,
        io_uring: config.calls.io_uring,
        // The lifeline does that, also for a server that is not ours to watch by pid.
        watch_pid: None,
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
    let options = options(claim, config, share);
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
fn endpoint(opened: Opened, roster: &Roster) -> Option<(Bound, Vec<Vec<u8>>)> {
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

/// A connection to the server of an instance.
pub struct Connection(Control);

impl Connection {
    /// To the instance in `run_dir`.
    pub fn to(run_dir: &Path) -> Result<Self> {
        let control = Control::connect(run_dir);
        control
            .map(Self)
            .with_context(|| format!("instance {}", run_dir.display()))
    }

    /// What the server says of itself.
    pub fn welcome(&self) -> &Welcome {
        self.0.welcome()
    }

    /// Asks one thing.
    pub fn call<O: weir_core::proto::Operation>(&mut self, what: O) -> Result<O::Reply> {
        Ok(self.0.call(what)?)
    }
}

/// What a `weir run` holds while its command uses an instance: others see that it is used, and it
/// sees whether the instance was there to the end.
pub struct Use {
    connection: Connection,
    run_dir: PathBuf,
    born_ns: Option<u64>,
    lock: Option<(PathBuf, Lock)>,
}

/// How the files are called, before the process's number, by which each `weir run` says so.
const USE: &str = "use-";

impl Use {
    /// Of the server in `run_dir`.
    pub fn begin(run_dir: &Path) -> Result<Self> {
        let connection = Connection::to(run_dir)?;
        let path = run_dir.join(format!("{USE}{}", std::process::id()));
        // Only for the message of a weir stop: where there is no room for it, there is none.
        let lock = Lock::try_take(&path).ok().flatten();
        Ok(Self {
            connection,
            run_dir: run_dir.to_owned(),
            born_ns: born_ns(run_dir),
            lock: lock.map(|lock| (path, lock)),
        })
    }

    /// Ends it; whether the instance is still there, perhaps with a server that went on with it.
    pub fn end(mut self) -> bool {
        if let Some((path, _lock)) = self.lock.take() {
            let _ = std::fs::remove_file(path);
        }
        if self.connection.call(Status {}).is_ok() {
            return true;
        }
        if place::lives(&self.run_dir) {
            return born_ns(&self.run_dir) == self.born_ns;
        }
        // Of several servers, this node's was killed, and its agent lives: the instance goes on, with
        // that server again or without it. The command's calls said what was lost by that.
        let goes_on = place::is_kept(&self.run_dir);
        if goes_on {
            eprintln!("weir: the server of this node was killed while the command ran");
        }
        goes_on
    }

    /// The processes of those of `run_dir` that have not ended.
    pub fn all(run_dir: &Path) -> Vec<u32> {
        let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
        let held = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = name.strip_prefix(USE)?.parse().ok()?;
            Lock::is_held(&entry.path()).then_some(pid)
        });
        held.collect()
    }
}

fn born_ns(run_dir: &Path) -> Option<u64> {
    Label::read(run_dir).map(|label| label.born_ns)
}

/// Stops the instance in `run_dir`.
pub fn stop(run_dir: &Path) -> Result<Report> {
    Connection::to(run_dir)?.call(Stop {})
}
