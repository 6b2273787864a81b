//! Finding the copy of an evicted file on the parallel file system.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use weir_core::elevated::{name_of_inode, CopyIdentity, TargetCopy, EVICTED};
use weir_core::types::Ino;

use crate::path::walk::Names;

/// The times that the copy is looked for while it gets another name, or other times.
const TRIES: u32 = 10;
/// The time between two looks.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Opens the copy of an evicted file for reading. `file`: its number everywhere. ESTALE: the copy is not there
/// as it was left, so the bytes are lost.
pub fn open_copy(names: &impl Names, file: Ino) -> Result<OwnedFd, Errno> {
    for number in 0..TRIES {
        if number > 0 {
            // The mover may be changing it, and its link is behind.
            let _ = nanosleep(&NAP);
        }
        let text = names.text_at(EVICTED, &name_of_inode(file))?;
        let Some(copy) = text.as_deref().and_then(TargetCopy::of_text) else {
            // The file is gone.
            return Err(Errno::STALE);
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(&copy.path[..], flags, Mode::empty()) {
            Ok(opened) => {
                if is_as_left(&copy, &rustix::fs::fstat(&opened)?) {
                    return Ok(opened);
                }
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::STALE)
}

#[allow(clippy::unnecessary_cast)] // other widths on aarch64
#[allow(clippy::cast_possible_wrap)] // nanoseconds are small
fn is_as_left(copy: &TargetCopy, found: &Stat) -> bool {
    let is_it = match copy.identity {
        CopyIdentity::Content { size, mtime_ns } => {
            let seconds = (found.st_mtime as i64).saturating_mul(1_000_000_000);
            u64::try_from(found.st_size) == Ok(size)
                && seconds.saturating_add(found.st_mtime_nsec as i64) == mtime_ns
        }
        CopyIdentity::Inode(ino) => found.st_ino as u64 == ino,
    };
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && is_it
}
