//! The files of slabs: made when a tier grows, removed with their instance.
//!
//! Behind a small trait, so that tests can substitute a full or failing file system.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{fallocate, fstatvfs, open, unlinkat, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::map::create_sparse;
use crate::slab::{SlabDirectory, SlabId, Tier, SLAB_BYTES};

/// Makes the files of slabs.
pub trait Backing {
    /// Creates the file of a slab, of which `bytes` will be used. `ENOSPC`: there is no room for them.
    fn create(&mut self, slab: SlabId, bytes: u64) -> Result<(), Errno>;

    /// Returns the bytes that the file system of a directory has left (`u64::MAX`: no limit).
    fn room_bytes(&mut self, directory: SlabDirectory) -> Result<u64, Errno>;
}

/// Returns the name of a slab's file in its directory.
pub fn slab_name(slab: SlabId) -> String {
    format!("slab-{}", slab.index())
}

/// Slabs in directories: the instance's own on tmpfs, and its storage directories.
#[derive(Debug)]
pub struct DirBacking {
    dirs: Vec<OwnedFd>,
}

impl DirBacking {
    /// Opens the directories, which must exist: the memory tier's, then the storage directories in
    /// order. `Err` carries the position of the one that could not be opened.
    pub fn open(memory: &Path, storage: &[&Path]) -> Result<DirBacking, (usize, Errno)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dirs = std::iter::once(memory).chain(storage.iter().copied());
        let open_dir = |(position, dir): (usize, &Path)| {
            open(dir.as_os_str().as_bytes(), flags, Mode::empty())
                .map_err(|errno| (position, errno))
        };
        let dirs = dirs.enumerate().map(open_dir).collect::<Result<_, _>>()?;
        Ok(DirBacking { dirs })
    }

    fn dir(&self, directory: SlabDirectory) -> Result<&OwnedFd, Errno> {
        self.dirs.get(directory.number()).ok_or(Errno::NOENT)
    }
}

impl Backing for DirBacking {
    fn create(&mut self, slab: SlabId, bytes: u64) -> Result<(), Errno> {
        let dir = self.dir(slab.directory())?;
        let name = slab_name(slab);
        if slab.tier() == Tier::Memory {
            // Not allocated here: that takes 30 ms a slab, and clients that pwrite into
            // holes allocate on their own cores.
            if room_bytes(dir)? < bytes {
                return Err(Errno::NOSPC);
            }
        }
        let file = create_sparse(dir, name.as_str(), SLAB_BYTES).map_err(|error| error.errno())?;
        if slab.tier() == Tier::File {
            reserve(&file, bytes).inspect_err(|_| {
                let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
            })?;
        }
        Ok(())
    }

    fn room_bytes(&mut self, directory: SlabDirectory) -> Result<u64, Errno> {
        room_bytes(self.dir(directory)?)
    }
}

/// Counts the slabs in a directory. They are numbered from 0 without a gap, because none is removed
/// before the instance ends; `Err` names the first that is missing, or is not whole.
pub fn count_slabs(dir: &Path) -> Result<u32, String> {
    let mut found = std::collections::BTreeSet::new();
    let entries = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("slab-"));
        if let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) {
            let whole = entry.metadata().is_ok_and(|meta| meta.len() == SLAB_BYTES);
            if !whole || number >= crate::slab::MAX_SLABS {
                return Err(format!("slab-{number} is not a whole slab"));
            }
            found.insert(number);
        }
    }
    let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
    match found.iter().zip(0..).find(|(number, at)| *number != at) {
        Some((_, missing)) => Err(format!("slab-{missing} is missing")),
        None => Ok(count),
    }
}

/// Returns the bytes that the file system reports as free.
fn room_bytes(dir: &OwnedFd) -> Result<u64, Errno> {
    let stat = fstatvfs(dir)?;
    // A tmpfs mounted without a limit reports 0 blocks in all.
    if stat.f_blocks == 0 {
        return Ok(u64::MAX);
    }
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Reserves a file's blocks, so that no later write of a client fails for lack of space. File systems
/// that cannot reserve (some NFS) are used without.
fn reserve(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
    let reserved =
        rustix::io::retry_on_intr(|| fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes));
    match reserved {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn slabs_are_files_of_full_size_in_their_directories() {
        let (memory, storage) = (TestDir::new("backing-m"), TestDir::on_disk("backing-s"));
        let mut backing = DirBacking::open(memory.path(), &[storage.path()]).unwrap();
        let (in_memory, on_disk) = (
            SlabId::new(SlabDirectory::MEMORY, 3),
            SlabId::new(SlabDirectory::storage(0).unwrap(), 4),
        );
        backing.create(in_memory, SLAB_BYTES).unwrap();
        backing.create(on_disk, 2 << 20).unwrap();
        let stat =
            |path: std::path::PathBuf| rustix::fs::stat(path.as_os_str().as_bytes()).unwrap();
        let sparse = stat(memory.path().join("slab-3"));
        assert_eq!((sparse.st_size, sparse.st_blocks), (64 << 20, 0));
        let reserved = stat(storage.path().join("slab-4"));
        assert_eq!(reserved.st_size, 64 << 20);
        assert!(reserved.st_blocks * 512 < 4 << 20);
        assert_eq!(backing.create(on_disk, 1), Err(Errno::EXIST));
        let nowhere = SlabId::new(SlabDirectory::storage(1).unwrap(), 0);
        assert_eq!(backing.create(nowhere, 1), Err(Errno::NOENT));
    }
}
