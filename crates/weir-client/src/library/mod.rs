//! weir as a library of a program: the calls of middleware (design 1, `libweir`).
//!
//! A process attaches to one instance at a time, as often as it likes; the last detach releases it.
//! If the interposer is in the program, the library uses its state, so that a process is one client
//! of the server for all its users. Otherwise the state is of [`Process::attached`].
//!
//! | file | subject |
//! | --- | --- |
//! | `turn` | the words that a fork wipes: the count of users, and the turn to attach or detach |
//! | `lists` | reads and writes of many places at once |
//! | `transfers` | files that are moved beside the program |
//!
//! *Forks.* The count of attachments is in memory that a forked child finds zeroed. So a child is
//! never attached, whatever its parent was doing; it can attach anew, and then meets none of its
//! parent's locks. Descriptors of the parent are void in it.
//!
//! *Detaching.* The connection stays until the process ends, for the next attach: a thread may
//! be in the middle of a copy, and the server reuses no memory that a living connection may
//! write into. Descriptors are closed.
//!
//! All functions are safe from all threads; none is from a signal handler.

mod lists;
mod transfers;
mod turn;

use core::sync::atomic::Ordering;
use std::os::unix::ffi::OsStringExt;

use rustix::io::Errno;
use weir_core::proto::ClientKind;

use crate::kernel::Slot;
use crate::process::{process, Process, INSTANCE_VARIABLE};
pub use weir_core::names::{Lamination, Visibility};

pub use crate::transfer::{
    DrainPhase, DrainReport, FileReport, FileTransfer, TransferId, TransferReport, TransferState,
    MOST_FILES,
};
pub use lists::{read_list, write_list, Piece, Whence};
pub use transfers::{
    await_transfer, cancel_transfer, drain, find_drain_state, start_prefetch, start_transfer,
};
use turn::{users, Turn};

/// A state of this process, linked to the one made before.
#[derive(Debug)]
struct Attachment {
    process: &'static Process,
    run_dir: Vec<u8>,
    next: Slot<Attachment>,
}

/// The state in use; valid while there are users.
static CURRENT: Slot<Process> = Slot::empty();
/// All states that were made.
static MADE: Slot<Attachment> = Slot::empty();

/// Attaches to the instance with this run directory, or to the one that the environment names.
///
/// ENOENT: neither names one. EBUSY: the process is attached to another, or runs in another.
/// ENOSYS: the kernel cannot wipe memory on fork (before Linux 4.14). Others: the errors of
/// connecting, ECONNREFUSED or ENOENT without a server.
pub fn attach(run_dir: Option<&[u8]>) -> Result<(), Errno> {
    let users = users()?;
    let turn = Turn::wait_for()?;
    if turn.is_first() {
        abandon_parents();
    }
    let run_dir = match run_dir {
        Some(run_dir) => run_dir.to_vec(),
        None => std::env::var_os(INSTANCE_VARIABLE)
            .ok_or(Errno::NOENT)?
            .into_vec(),
    };
    if run_dir.is_empty() {
        return Err(Errno::NOENT);
    }
    let used = users.load(Ordering::Acquire) > 0;
    let current = CURRENT.get().filter(|_| used);
    if let Some(other) = current.and_then(Process::run_dir) {
        if !is_same_dir(other, &run_dir) {
            return Err(Errno::BUSY);
        }
    }
    let process = match current.filter(|process| process.is_served()) {
        Some(process) => process,
        None => state_for(&run_dir)?,
    };
    CURRENT.set(Some(process));
    users.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Undoes one [`attach`]; the last one closes all descriptors, and returns the error of that.
/// ENOTCONN: there is none to undo.
pub fn detach() -> Result<(), Errno> {
    let users = users()?;
    let _turn = Turn::wait_for()?;
    match users.load(Ordering::Acquire) {
        0 => Err(Errno::NOTCONN),
        1 => {
            users.store(0, Ordering::Release);
            match CURRENT.get() {
                Some(process) if !is_interposed(process) => process.close_all(),
                _ => Ok(()),
            }
        }
        more => {
            users.store(more - 1, Ordering::Release);
            Ok(())
        }
    }
}

/// The state to use; ENOTCONN: the process is not attached.
pub fn current() -> Result<&'static Process, Errno> {
    if users()?.load(Ordering::Acquire) == 0 {
        return Err(Errno::NOTCONN);
    }
    CURRENT.get().ok_or(Errno::NOTCONN)
}

fn is_interposed(state: &Process) -> bool {
    core::ptr::eq(state, process())
}

/// The interposer's state, an existing one of this process, or a new one.
fn state_for(run_dir: &[u8]) -> Result<&'static Process, Errno> {
    if let Some(other) = process().run_dir() {
        if !is_same_dir(other, run_dir) {
            return Err(Errno::BUSY);
        }
        let state = process();
        return state.is_served().then_some(state).ok_or(Errno::SHUTDOWN);
    }
    let of_dir = |made: &&Attachment| is_same_dir(&made.run_dir, run_dir);
    let mut made = made().filter(of_dir);
    let mapped = made.clone().find_map(|made| made.process.living_node());
    if let Some(again) = made.find(|made| made.process.is_served()) {
        return Ok(again.process);
    }
    let process = Process::attached(run_dir, mapped, ClientKind::Program)?;
    let attachment = Attachment {
        process,
        run_dir: run_dir.to_vec(),
        next: Slot::empty(),
    };
    attachment.next.set(MADE.get());
    MADE.set(Some(Box::leak(Box::new(attachment))));
    Ok(process)
}

fn made() -> impl Iterator<Item = &'static Attachment> + Clone {
    core::iter::successors(MADE.get(), |made| made.next.get())
}

/// Called in a child of a process that had attached. It uses nothing of its parent's state again,
/// not even the mappings: a thread that the child does not have may hold the locks.
fn abandon_parents() {
    for parents in made() {
        parents.process.abandon();
    }
    MADE.set(None);
    CURRENT.set(None);
}

/// True if two paths name one directory; if it is gone, their bytes are compared.
fn is_same_dir(one: &[u8], other: &[u8]) -> bool {
    let key = |path: &[u8]| rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino));
    match (key(one), key(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
