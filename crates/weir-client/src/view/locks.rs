//! The requests of flock(2) and fcntl(2).

use rustix::io::Errno;
use weir_core::proto::{Flock, RecordLock};
use weir_core::types::Ino;

use super::NodeClient;

/// `LOCK_UN` of flock(2).
pub const LOCK_UN: u32 = 8;
/// `F_WRLCK` of fcntl(2).
pub const F_WRLCK: u32 = 1;
/// `F_UNLCK` of fcntl(2).
pub const F_UNLCK: u32 = 2;

/// Gives back the record locks that a process has of a file: POSIX ends them when it closes the
/// file.
pub fn end_process_locks<C: NodeClient>(client: &C, ino: Ino) -> Result<(), Errno> {
    client.call(all_records(ino, None))
}

/// Gives back the locks of a description that ends.
pub fn end_description_locks<C: NodeClient>(client: &C, ino: Ino, ofd: u32) -> Result<(), Errno> {
    let whole = client.call(Flock {
        ino,
        ofd,
        operation: LOCK_UN,
        wait: false,
    });
    client.call(all_records(ino, Some(ofd))).and(whole)
}

fn all_records(ino: Ino, ofd: Option<u32>) -> RecordLock {
    RecordLock {
        ino,
        ofd,
        kind: F_UNLCK,
        start: 0,
        end: u64::MAX,
        wait: false,
    }
}
