//! The memory and storage of this machine, and the budgets of a configuration in bytes.
//!
//! Sources: `MemAvailable` of `proc_meminfo(5)`; `memory.max` and `memory.current` of the cgroup
//! v2 documentation of the kernel, `memory.limit_in_bytes` of v1; statvfs(3).
//! A value that cannot be read counts as no limit. `weir doctor` reports it; a start does not fail.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::settings::Config;
use crate::types::{Budget, WarmBudget};

/// The limit of `memory.warm = "auto"`: warming 2 GiB takes a core about half a second.
const WARM_AUTO_MOST_BYTES: u64 = 2 << 30;

/// Memory and space of this node, in bytes; `None` if there is no known limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Memory available without swapping.
    pub available_bytes: Option<u64>,
    /// The rest of the control group's limit.
    pub cgroup_bytes: Option<u64>,
    /// Space free in `memory.directory`.
    pub tmpfs_bytes: Option<u64>,
    /// Free space for each of the file directories; those on one file system share its space
    /// evenly. Empty without a file tier.
    pub storage_bytes: Vec<u64>,
}

/// Budgets in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Budgets {
    /// The memory tier's budget.
    pub memory_bytes: u64,
    /// The warm part, at most `memory_bytes`.
    pub warm_bytes: u64,
    /// The file tier's budget for each directory of the configuration; empty when it is disabled.
    pub file_bytes: Vec<u64>,
}

impl Machine {
    /// Examines this machine, for the directories of `config`.
    pub fn look(config: &Config) -> Self {
        let directories = &config.file.directories.0;
        Self {
            available_bytes: read("/proc/meminfo").and_then(|text| meminfo(&text, "MemAvailable")),
            cgroup_bytes: cgroup_left(Path::new("/sys/fs/cgroup")),
            tmpfs_bytes: free_bytes(&config.memory.directory),
            storage_bytes: if config.file.enabled {
                storage_free(directories)
            } else {
                Vec::new()
            },
        }
    }

    /// The base of a percentage in `memory.budget`.
    pub fn memory_bytes(&self) -> u64 {
        [self.available_bytes, self.cgroup_bytes, self.tmpfs_bytes]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(0)
    }
}

impl Budgets {
    /// Reduces the values to the share of one of `servers` servers of this machine.
    pub fn share_among(&mut self, servers: u32) {
        let servers = u64::from(servers.max(1));
        self.memory_bytes /= servers;
        self.warm_bytes /= servers;
        self.file_bytes
            .iter_mut()
            .for_each(|bytes| *bytes /= servers);
    }

    /// The budgets of `config` on `machine`.
    pub fn for_machine(config: &Config, machine: &Machine) -> Self {
        let memory_bytes = config.memory.budget.bytes_of(machine.memory_bytes());
        let warm_bytes = match config.memory.warm {
            WarmBudget::Auto => memory_bytes.min(WARM_AUTO_MOST_BYTES),
            WarmBudget::Fixed(budget) => budget.bytes_of(memory_bytes).min(memory_bytes),
        };
        let file_bytes = match config.file.budget {
            _ if !config.file.enabled => Vec::new(),
            budget @ Budget::Percent(_) => machine
                .storage_bytes
                .iter()
                .map(|free| budget.bytes_of(*free))
                .collect(),
            Budget::Bytes(size) => in_proportion(size.0, &machine.storage_bytes),
        };
        Self {
            memory_bytes,
            warm_bytes,
            file_bytes,
        }
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The bytes in a line `Name:   123 kB`.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The bytes that a user who is not root can still write to the file system of `path`, or of its
/// nearest existing parent.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|p| p.exists())?;
    let stat = nix::sys::statvfs::statvfs(there).ok()?;
    Some(stat.blocks_available() * stat.fragment_size())
}

fn storage_free(directories: &[PathBuf]) -> Vec<u64> {
    let device = |path: &PathBuf| {
        let there = path.ancestors().find(|p| p.exists())?;
        Some(there.metadata().ok()?.dev())
    };
    let devices: Vec<Option<u64>> = directories.iter().map(device).collect();
    let sharing = |device| devices.iter().filter(|other| **other == device).count() as u64;
    let free = directories.iter().map(|path| free_bytes(path).unwrap_or(0));
    free.zip(&devices)
        .map(|(free, device)| free / sharing(*device).max(1))
        .collect()
}

/// `total` divided in proportion to `shares`; evenly if all of them are 0.
fn in_proportion(total: u64, shares: &[u64]) -> Vec<u64> {
    let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    let count = shares.len().max(1) as u128;
    let part = |share: &u64| match sum {
        0 => u128::from(total) / count,
        _ => u128::from(total) * u128::from(*share) / sum,
    };
    let parts = shares
        .iter()
        .map(|share| u64::try_from(part(share)).unwrap_or(total));
    parts.collect()
}

/// The least of `limit - use` over this process's control group and its ancestors.
fn cgroup_left(root: &Path) -> Option<u64> {
    let membership = read("/proc/self/cgroup")?;
    let v2 = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .and_then(|group| tightest(root, group, "memory.max", "memory.current"));
    let v1 = membership
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .find(|(controllers, _)| controllers.split(',').any(|c| c == "memory"))
        .and_then(|(_, group)| {
            let root = root.join("memory");
            tightest(
                &root,
                group,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        });
    v2.into_iter().chain(v1).min()
}

fn tightest(root: &Path, group: &str, limit: &str, usage: &str) -> Option<u64> {
    let group = Path::new(group.trim().trim_start_matches('/'));
    group
        .ancestors()
        .filter_map(|dir| {
            let dir = root.join(dir);
            let limit: u64 = read(dir.join(limit))?.trim().parse().ok()?;
            let usage: u64 = read(dir.join(usage))?.trim().parse().ok()?;
            // Version 1 writes "no limit" as the largest multiple of a page.
            (limit < 1 << 60).then(|| limit.saturating_sub(usage))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Size};

    const GIB: u64 = 1 << 30;

    fn config() -> Config {
        Config::defaults(&Environment::default()).unwrap()
    }

    fn machine() -> Machine {
        Machine {
            available_bytes: Some(64 * GIB),
            cgroup_bytes: Some(16 * GIB),
            tmpfs_bytes: Some(32 * GIB),
            storage_bytes: vec![60 * GIB, 40 * GIB],
        }
    }

    #[test]
    fn defaults_take_a_quarter_of_the_tightest_limit() {
        let budgets = Budgets::for_machine(&config(), &machine());
        let expected = Budgets {
            memory_bytes: 4 * GIB,
            warm_bytes: 2 * GIB,
            file_bytes: vec![30 * GIB, 20 * GIB],
        };
        assert_eq!(budgets, expected);
    }

    #[test]
    fn warm_is_never_more_than_the_budget() {
        let mut config = config();
        config.memory.budget = Budget::Bytes(Size(GIB));
        assert_eq!(Budgets::for_machine(&config, &machine()).warm_bytes, GIB);
        config.memory.warm = WarmBudget::Fixed(Budget::Bytes(Size(8 * GIB)));
        assert_eq!(Budgets::for_machine(&config, &machine()).warm_bytes, GIB);
        config.memory.warm = WarmBudget::Fixed(Budget::Percent(50.0));
        assert_eq!(
            Budgets::for_machine(&config, &machine()).warm_bytes,
            GIB / 2
        );
    }

    #[test]
    fn a_disabled_file_tier_has_no_budget() {
        let mut config = config();
        config.file.enabled = false;
        config.file.budget = Budget::Bytes(Size(GIB));
        assert_eq!(Budgets::for_machine(&config, &machine()).file_bytes, [0; 0]);
    }

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:   64 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(65536));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn the_tightest_group_of_the_path_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("job/step");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |dir: &Path, max: &str, current: &str| {
            std::fs::write(dir.join("memory.max"), max).unwrap();
            std::fs::write(dir.join("memory.current"), current).unwrap();
        };
        write(&inner, "max\n", "5\n");
        write(&root.path().join("job"), "1000\n", "400\n");
        let left = tightest(root.path(), "/job/step", "memory.max", "memory.current");
        assert_eq!(left, Some(600));
    }

    #[test]
    fn a_fixed_budget_is_divided_as_the_space_is() {
        let mut config = config();
        config.file.budget = Budget::Bytes(Size(10 * GIB));
        let budgets = Budgets::for_machine(&config, &machine());
        assert_eq!(budgets.file_bytes, [6 * GIB, 4 * GIB]);
        assert_eq!(in_proportion(10, &[0, 0]), [5, 5]);
    }

    #[test]
    fn directories_of_one_file_system_share_its_space() {
        let dir = tempfile::tempdir().unwrap();
        let once = free_bytes(dir.path()).unwrap();
        let twice = storage_free(&[dir.path().to_owned(), dir.path().join("not/yet/there")]);
        let sum: u64 = twice.iter().sum();
        assert!(sum < once + once / 2, "{twice:?} counts {once} twice");
    }
}
