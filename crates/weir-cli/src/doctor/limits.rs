//! Checks of how much there is: process limits, memory, tmpfs, storage.

use std::path::Path;

use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use nix::sys::statfs::{statfs, FsType, TMPFS_MAGIC};
use weir_config::machine::free_bytes;
use weir_config::Budgets;
use weir_instance::directories::Parent;
use weir_instance::size::bytes;

use super::finding::{Finding, MachineReport};

/// The size of a slab; the server maps and allocates memory in these.
const SLAB_BYTES: u64 = 64 << 20;
/// Less memory than this and a burst of any size goes to the file tier.
const SMALL_BYTES: u64 = 1 << 30;
/// Descriptors below which programs with many open files run short beside weir's own.
const FEW_FILES: u64 = 4096;

/// File systems of many nodes: statfs(2), and the headers of Lustre, GPFS, BeeGFS and PanFS.
const NETWORKED: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x00C3_6400, "Ceph"),
    (0xFF53_4D42, "CIFS"),
];

pub(super) fn check(examined: &MachineReport<'_>) -> Vec<Finding> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let mut findings = vec![
        open_files(soft, hard),
        file_size(getrlimit(Resource::RLIMIT_FSIZE).unwrap_or_default().0),
        address_space(getrlimit(Resource::RLIMIT_AS).unwrap_or_default().0),
        memory_directory(examined),
        memory_budget(examined),
        run_directory(examined),
    ];
    if examined.loaded.config.file.enabled {
        findings.extend(
            examined
                .loaded
                .config
                .file
                .directories
                .0
                .iter()
                .map(|dir| storage(dir)),
        );
    }
    findings
}

fn open_files(soft: u64, hard: u64) -> Finding {
    let check = "open files";
    let found = format!("at most {soft} a process (up to {hard} without root)");
    if soft >= FEW_FILES {
        Finding::ok(check, found)
    } else if hard >= FEW_FILES {
        Finding::warn(check, found, format!("ulimit -n {hard}"))
    } else {
        let remedy = "have the administrator raise `nofile` in /etc/security/limits.conf";
        Finding::warn(check, found, remedy)
    }
}

fn file_size(soft: u64) -> Finding {
    let check = "file size limit";
    let remedy = "ulimit -f unlimited";
    if soft == RLIM_INFINITY {
        Finding::ok(check, "none")
    } else if soft < SLAB_BYTES {
        let found = format!(
            "{}, and weir's own files are {}",
            bytes(soft),
            bytes(SLAB_BYTES)
        );
        Finding::fail(check, found, remedy)
    } else {
        Finding::warn(
            check,
            format!("{}: larger files cannot be written", bytes(soft)),
            remedy,
        )
    }
}

fn address_space(soft: u64) -> Finding {
    let check = "address space";
    if soft == RLIM_INFINITY {
        Finding::ok(check, "not limited")
    } else {
        let found = format!("{}: clients map what they read and write", bytes(soft));
        Finding::warn(check, found, "ulimit -v unlimited")
    }
}

fn fs_type(path: &Path) -> Option<FsType> {
    let there = path.ancestors().find(|p| p.exists())?;
    Some(statfs(there).ok()?.filesystem_type())
}

fn memory_directory(examined: &MachineReport<'_>) -> Finding {
    let check = "memory directory";
    let dir = &examined.loaded.config.memory.directory;
    let elsewhere = "name a tmpfs in memory.directory";
    if !dir.is_dir() {
        return Finding::fail(check, format!("{} is not there", dir.display()), elsewhere);
    }
    let free = free_bytes(dir).unwrap_or(0);
    let found = format!("{}: {} free", dir.display(), bytes(free));
    if fs_type(dir) != Some(TMPFS_MAGIC) {
        return Finding::warn(check, format!("{found}, but it is not on tmpfs"), elsewhere);
    }
    let larger = format!("as root: mount -o remount,size=75% {}", dir.display());
    match free {
        0..SLAB_BYTES => Finding::fail(check, found, larger),
        SLAB_BYTES..SMALL_BYTES => Finding::warn(check, found, larger),
        _ => Finding::ok(check, found),
    }
}

fn memory_budget(examined: &MachineReport<'_>) -> Finding {
    let check = "memory";
    let machine = &examined.machine;
    let budgets = Budgets::for_machine(&examined.loaded.config, machine);
    let or_no_limit = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), bytes);
    let found = format!(
        "budget {} ({} warm); available {}, control group {}",
        bytes(budgets.memory_bytes),
        bytes(budgets.warm_bytes),
        or_no_limit(machine.available_bytes),
        or_no_limit(machine.cgroup_bytes),
    );
    if budgets.memory_bytes > machine.memory_bytes() {
        let most = bytes(machine.memory_bytes());
        let remedy = format!("no more than {most} can be had now: lower memory.budget");
        Finding::fail(check, found, remedy)
    } else if budgets.memory_bytes < SLAB_BYTES {
        Finding::fail(
            check,
            found,
            "ask the batch system for more memory, or raise memory.budget",
        )
    } else if budgets.memory_bytes < SMALL_BYTES {
        Finding::warn(
            check,
            found,
            "ask the batch system for more memory, or raise memory.budget",
        )
    } else {
        Finding::ok(check, found)
    }
}

fn run_directory(examined: &MachineReport<'_>) -> Finding {
    let check = "run directory";
    let parent = Parent::of_runs(examined.env);
    let shown = parent.child("NAME").display().to_string();
    match parent.prepare() {
        Ok(()) => Finding::ok(check, shown),
        Err(e) => Finding::fail(
            check,
            format!("{e:#}"),
            "set TMPDIR to a directory of your own",
        ),
    }
}

fn storage(dir: &Path) -> Finding {
    let check = "file tier";
    let Some(there) = dir.ancestors().find(|p| p.is_dir()) else {
        return Finding::fail(
            check,
            format!("{} is not there", dir.display()),
            "set file.directories",
        );
    };
    let writable = nix::unistd::access(there, nix::unistd::AccessFlags::W_OK).is_ok();
    if there != dir || !writable {
        let found = format!("{} is not there or not writable", dir.display());
        return Finding::fail(
            check,
            found,
            "make it, or set file.directories or file.enabled = false",
        );
    }
    let free = free_bytes(dir).unwrap_or(0);
    let found = format!("{}: {} free", dir.display(), bytes(free));
    let nvme = "name a directory on this node's NVMe in file.directories";
    let networked = fs_type(dir).and_then(|kind| {
        NETWORKED
            .iter()
            .find(|(magic, _)| *magic == kind.0)
            .map(|(_, name)| *name)
    });
    if let Some(name) = networked {
        Finding::warn(
            check,
            format!("{found}, on {name}, which other nodes share"),
            nvme,
        )
    } else if fs_type(dir) == Some(TMPFS_MAGIC) {
        Finding::warn(check, format!("{found}, but that is memory (tmpfs)"), nvme)
    } else if free < SMALL_BYTES {
        Finding::warn(
            check,
            found,
            "make room there, or name another directory in file.directories",
        )
    } else {
        Finding::ok(check, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn limits_are_judged_by_what_they_break() {
        assert_eq!(open_files(65536, 65536).level, Level::Ok);
        let few = open_files(1024, 65536);
        assert_eq!(few.level, Level::Warn);
        assert_eq!(few.remedy.as_deref(), Some("ulimit -n 65536"));
        assert_eq!(open_files(256, 256).level, Level::Warn);

        assert_eq!(file_size(RLIM_INFINITY).level, Level::Ok);
        assert_eq!(file_size(1 << 20).level, Level::Fail);
        assert_eq!(file_size(1 << 40).level, Level::Warn);
        assert_eq!(address_space(1 << 40).level, Level::Warn);
    }

    #[test]
    fn a_missing_storage_directory_fails() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(storage(&dir.path().join("none")).level, Level::Fail);
        assert_ne!(storage(dir.path()).level, Level::Fail);
    }
}
