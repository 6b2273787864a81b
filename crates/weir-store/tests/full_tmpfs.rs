//! A tmpfs that is full gives ENOSPC to warmers and to writers, and kills nobody.
//!
//! Needs to mount a small tmpfs, hence root; for others the test says that it was left out.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustix::io::Errno;
use weir_core::types::ClientId;
use weir_store::backing::DirBacking;
use weir_store::pool::WarmPool;
use weir_store::slab::{SlabDirectory, SlabId, Tier};
use weir_store::slabmap::SlabMap;
use weir_store::tier::{TierConfig, Tiers};

/// A tmpfs of 24 MiB, unmounted when dropped.
struct SmallTmpfs(PathBuf);

impl SmallTmpfs {
    fn mount() -> Option<SmallTmpfs> {
        let dir = std::env::temp_dir().join(format!("weir-full-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m", "weir-test"])
            .arg(&dir)
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallTmpfs(dir));
        }
        std::fs::remove_dir(&dir).unwrap();
        None
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_full_tmpfs_is_an_error_and_not_a_signal() {
    let Some(tmpfs) = SmallTmpfs::mount() else {
        match rustix::process::geteuid().is_root() {
            true => weir_cluster::skip_for_kernel("a full tmpfs", "mounts of tmpfs"),
            false => weir_cluster::skip("a full tmpfs", "root's rights"),
        }
        return;
    };
    let dir = &tmpfs.0;
    std::fs::write(dir.join("ballast"), vec![1; 4 << 20]).unwrap();
    let config = TierConfig {
        memory_budget_bytes: 40 << 20,
        warm_bytes: 0,
        storage_budgets_bytes: vec![],
    };
    let mut tiers = Tiers::new(&config, DirBacking::open(dir, &[]).unwrap());
    // The file system says beforehand that a slab of 40 MiB does not fit into 20.
    let refused = tiers.grant(1 << 20, 64 << 20, ClientId(0)).unwrap_err();
    assert!(refused.to_string().contains("cannot grow"), "{refused}");

    // A slab made while there was room, which others have taken since.
    let slab = SlabId::new(SlabDirectory::MEMORY, 0);
    assert_eq!(slab.tier(), Tier::Memory);
    weir_store::map::create_sparse(
        rustix::fs::CWD,
        dir.join("slab-0").to_str().unwrap(),
        64 << 20,
    )
    .unwrap();
    let map = SlabMap::new(dir, 1, &[]);
    let writer = map.writer(slab, 0, 64 << 20, false).unwrap();
    let written = |len: usize, from: usize| {
        let data = vec![7; len];
        (from..64 << 20)
            .step_by(len)
            .find_map(|at| writer.write(&map, at, &data).err().map(|errno| (at, errno)))
    };
    let (at, errno) = written(1 << 20, 0).unwrap();
    assert_eq!(errno, Errno::NOSPC);
    assert!((18 << 20..=20 << 20).contains(&at), "{at}");
    let (_, errno) = written(1000, at + (1 << 20)).unwrap();
    assert_eq!(errno, Errno::NOSPC);
    let mut back = vec![0; 1 << 20];
    map.read_at(slab, 17 << 20, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 7));

    // Warmers meet the same wall, and report it.
    let board = Arc::clone(tiers.board());
    board.queue(0, (1 << 40) - 1);
    let pool = WarmPool::start(dir, Arc::clone(&board), 1).unwrap();
    weir_cluster::guard::wait_until("a warmer reports an error", || board.last_error().is_some());
    pool.stop();
    assert_eq!(board.last_error(), Some(Errno::NOSPC));
    assert_eq!(board.warm(0) >> 24, 0);
}
