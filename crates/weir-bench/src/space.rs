//! The directories that a run works in, and whether there is room in them.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context};

use crate::args::Target;
use crate::size::show_size;

/// `weir-bench-<pid>` in a target: everything a run leaves there, removed on drop.
pub struct RunDir {
    /// The target.
    pub target: Target,
    /// The directory.
    pub path: PathBuf,
}

impl RunDir {
    /// Makes it; with a number behind the name where another target of this run has the same directory.
    pub fn create(target: &Target) -> anyhow::Result<Self> {
        let name = format!("weir-bench-{}", std::process::id());
        let mut path = target.dir.join(&name);
        for number in 1.. {
            match std::fs::create_dir(&path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 100 => {
                    path = target.dir.join(format!("{name}-{number}"));
                }
                Err(error) => {
                    let text = format!("target `{}`: making {}", target.name, path.display());
                    return Err(error).context(text);
                }
            }
        }
        Ok(RunDir {
            target: target.clone(),
            path,
        })
    }

    /// Makes the directory of one case.
    pub fn case(&self, number: u32) -> anyhow::Result<CaseDir> {
        let path = self.path.join(format!("case-{number}"));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(CaseDir(path))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The directory of a case; removed with its files on drop, so that their memory can be used again.
pub struct CaseDir(pub PathBuf);

impl Drop for CaseDir {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            eprintln!("weir bench: {} is left behind: {error}", path.display());
        }
        _ => {}
    }
}

/// Refuses a run that cannot fit. A file system that does not say how much is free is believed to have room.
pub fn ensure_room(target: &Target, needed: u64) -> anyhow::Result<()> {
    let Some(free) = free_bytes(&target.dir) else {
        return Ok(());
    };
    ensure!(
        needed <= free,
        "target `{}`: {} has {} free, and the largest case needs {}; use a smaller --block or fewer processes",
        target.name,
        target.dir.display(),
        show_size(free >> 20 << 20),
        show_size(needed),
    );
    Ok(())
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let name = crate::error::c_path(dir).ok()?;
    let mut room = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is nul-terminated; `room` is read only if the call wrote it.
    let room = unsafe {
        if libc::statvfs(name.as_ptr(), room.as_mut_ptr()) != 0 {
            return None;
        }
        room.assume_init()
    };
    // No blocks at all: a file system without a size of its own.
    (room.f_blocks > 0).then(|| room.f_bavail.saturating_mul(room.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_asked_for_before_it_is_missing() {
        let target = Target {
            name: "temporary".into(),
            dir: std::env::temp_dir(),
        };
        ensure_room(&target, 1).unwrap();
        let error = ensure_room(&target, u64::MAX).unwrap_err().to_string();
        assert!(
            error.contains("free") && error.contains("--block"),
            "{error}"
        );
    }

    #[test]
    fn directories_vanish_with_their_files() {
        let target = Target {
            name: "temporary".into(),
            dir: std::env::temp_dir(),
        };
        let run = RunDir::create(&target).unwrap();
        let (case, left) = (run.case(1).unwrap(), run.path.clone());
        std::fs::write(case.0.join("file"), "x").unwrap();
        drop(case);
        assert_eq!(std::fs::read_dir(&left).unwrap().count(), 0);
        drop(run);
        assert!(!left.exists());
    }
}
