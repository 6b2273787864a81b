//! The files of this process whose collective calls are changed.
//!
//! The exchange of a collective call keeps processes in step. Programs rely on that, although MPI does not promise it: a collective
//! read sees the data of the collective write before it, from all processes. So collective calls wait for all processes where reads
//! follow writes, or writes reads. All processes make the same collective calls on a file in the same order. Writes that follow
//! writes do not wait.

use core::ffi::CStr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use weir_connect::mpi::{Direction, Mpi, MpiHandle};
use weir_connect::peers::FilePeers;
use weir_connect::pieces::PieceCounter;

/// ROMIO's hints for data sieving. The hints that turn off the exchange are not used: without it, ROMIO's calls with a shared
/// pointer mix data (`MPI_File_write_ordered`, MPICH 4.0 and Open MPI 4.1, on any file system).
const ROMIO: [(&CStr, Direction); 2] = [
    (c"romio_ds_write", Direction::Write),
    (c"romio_ds_read", Direction::Read),
];
/// Data sieving of reads: its place in [`ROMIO`].
const SIEVED_READS: usize = 1;
/// The average distance of the pieces of a view, bytes, below which reads are faster with data sieving. Measured: a read of a small
/// piece takes as long as one of some 2 KiB.
const SIEVED_SPACING: u64 = 2048;
/// ROMIO's default value.
const USUAL: &CStr = c"automatic";
/// MPI's own hint (MPI 4.0, section 14.2.8).
const BUFFERING: &CStr = c"collective_buffering";

/// A name and a value.
pub type Hint = (&'static CStr, &'static CStr);

/// The collective calls of a file that are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangedCalls {
    /// True if writes are changed.
    pub writes: bool,
    /// True if reads are changed.
    pub reads: bool,
    /// True in atomic mode, in which no calls are changed.
    is_atomic: bool,
    /// For each of ROMIO's hints: true if this library sets it.
    hints: [bool; ROMIO.len()],
    view: ViewPieces,
}

/// The pieces of a file's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum ViewPieces {
    /// Large or far apart, in at least one process: with data sieving that would read what lies between.
    #[default]
    Large,
    /// Many and close together: reads are faster with data sieving.
    Small,
}

/// An open file.
#[derive(Debug)]
struct ChangedFile {
    calls: ChangedCalls,
    order: Arc<CallOrder>,
}

/// The collective calls that a file has seen.
#[derive(Debug)]
struct CallOrder {
    /// The processes that have the file open; `None`: MPI had no communicator for us.
    peers: Option<FilePeers>,
    /// The direction of the last call.
    last: Mutex<Option<Direction>>,
}

impl CallOrder {
    /// Begins a call. All processes of the file call this.
    fn begin_call(&self, direction: Direction) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_turn = last
            .replace(direction)
            .is_some_and(|last| last != direction);
        if let Some(peers) = self.peers.as_ref().filter(|_| is_turn) {
            // If MPI fails here, it has called its error handler, and the call is made all the same.
            let _ = peers.highest([0]);
        }
    }
}

/// The files by their handles.
static FILES: RwLock<Option<HashMap<MpiHandle, ChangedFile>>> = RwLock::new(None);

impl ChangedCalls {
    /// The calls of a file that is not in atomic mode.
    pub fn new(writes: bool, reads: bool) -> ChangedCalls {
        let mut calls = ChangedCalls {
            writes,
            reads,
            ..ChangedCalls::default()
        };
        calls.hints = ROMIO.map(|(_, direction)| calls.has(direction));
        calls
    }

    /// The calls that the user's hints permit to change. None if there is a file of ROMIO's hints (`ROMIO_HINTS`): that is for all
    /// files, and our hints would override it.
    ///
    /// # Safety
    ///
    /// A valid info object, or `MPI_INFO_NULL`.
    pub unsafe fn wanted(mpi: &Mpi, info: MpiHandle) -> ChangedCalls {
        if std::env::var_os("ROMIO_HINTS").is_some() {
            return ChangedCalls::default();
        }
        // SAFETY: the info object is valid or null, by the caller.
        let is = |name, value: &CStr| unsafe {
            mpi.hint(info, name).is_some_and(|hint| *hint == *value)
        };
        // With the second hint only some processes have the file open.
        let is_exchange_wanted = is(BUFFERING, c"true") || is(c"romio_no_indep_rw", c"true");
        ChangedCalls::new(
            !is_exchange_wanted && !is(c"romio_cb_write", c"enable"),
            !is_exchange_wanted && !is(c"romio_cb_read", c"enable"),
        )
    }

    fn has(self, direction: Direction) -> bool {
        match direction {
            Direction::Write => self.writes,
            Direction::Read => self.reads,
        }
    }

    /// Excludes the hints that the user sets. A value that is one of `given`, which this file got from us, may come from
    /// MPI_File_get_info(3).
    ///
    /// # Safety
    ///
    /// A valid info object, or `MPI_INFO_NULL`.
    pub unsafe fn keep_hints(&mut self, mpi: &Mpi, info: MpiHandle, given: &[Hint]) {
        for ((name, _), is_own) in ROMIO.iter().zip(&mut self.hints) {
            // SAFETY: the info object is valid or null, by the caller.
            let value = unsafe { mpi.hint(info, name) };
            let is_given = |value: &CStr| given.contains(&(*name, value));
            *is_own &= value.is_none_or(|value| is_given(&value));
        }
    }

    /// ROMIO's hints for the file.
    pub fn hints(self) -> Vec<Hint> {
        self.hints_with(|direction| match direction {
            _ if self.is_atomic || !self.has(direction) => USUAL,
            Direction::Read if self.view == ViewPieces::Small => USUAL,
            _ => c"disable",
        })
    }

    /// The same hints with the values for files elsewhere.
    pub fn usual_hints(self) -> Vec<Hint> {
        self.hints_with(|_| USUAL)
    }

    fn hints_with(self, value: impl Fn(Direction) -> &'static CStr) -> Vec<Hint> {
        let hints = ROMIO.into_iter().zip(self.hints);
        let own = hints.filter(|(_, is_own)| *is_own);
        own.map(|((name, direction), _)| (name, value(direction)))
            .collect()
    }
}

/// Notes an open file, with its processes.
pub fn note(file: MpiHandle, calls: ChangedCalls, peers: Option<FilePeers>) {
    let order = Arc::new(CallOrder {
        peers,
        last: Mutex::new(None),
    });
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let files = files.get_or_insert_default();
    files.insert(file, ChangedFile { calls, order });
}

/// Forgets a file that all its processes close.
pub fn forget(file: MpiHandle) {
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let order = files.as_mut().and_then(|files| files.remove(&file));
    drop(files);
    let order = order.and_then(|file| Arc::into_inner(file.order));
    if let Some(peers) = order.and_then(|order| order.peers) {
        peers.free();
    }
}

/// The calls of a file, and their order; `None`: none of them were changed.
fn find(file: MpiHandle) -> Option<(ChangedCalls, Arc<CallOrder>)> {
    let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
    let file = files.as_ref()?.get(&file)?;
    Some((file.calls, Arc::clone(&file.order)))
}

/// Changes the calls of a file, if it is noted. Returns them.
fn change(file: MpiHandle, change: impl FnOnce(&mut ChangedCalls)) -> Option<ChangedCalls> {
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let calls = &mut files.as_mut()?.get_mut(&file)?.calls;
    change(calls);
    Some(*calls)
}

/// Heeds the hints that the user has given an open file with a view, or by MPI_File_set_info(3). Those for the exchange are the same in
/// all processes (MPI 4.0, section 14.2.8), so these do not agree on them here: it would be a collective call more.
///
/// # Safety
///
/// A valid info object, or `MPI_INFO_NULL`.
pub unsafe fn heed_hints(mpi: &Mpi, file: MpiHandle, info: MpiHandle) {
    if find(file).is_none() {
        return;
    }
    // SAFETY: the info object is valid or null, by the caller.
    let wanted = unsafe { ChangedCalls::wanted(mpi, info) };
    change(file, |calls| {
        // From MPI_File_get_info(3), at some time.
        let given = [calls.hints(), calls.usual_hints()].concat();
        calls.writes &= wanted.writes;
        calls.reads &= wanted.reads;
        // SAFETY: as above.
        unsafe { calls.keep_hints(mpi, info, &given) };
    });
}

/// Chooses the hint for data sieving of reads for a view that a file is about to get: all its processes call this. Returns an info
/// object of our own, to be given with the view in the place of the user's; `None`: the hint stays. ROMIO takes an info object
/// collectively, so the processes agree, although their views differ. Those whose view has no gaps have no say.
///
/// # Safety
///
/// Valid handles of a datatype and an info object, which may be null.
pub unsafe fn hint_for_view(
    mpi: &Mpi,
    file: MpiHandle,
    filetype: MpiHandle,
    info: MpiHandle,
) -> Option<MpiHandle> {
    static COUNTER: OnceLock<Option<PieceCounter>> = OnceLock::new();
    let (calls, order) = find(file).filter(|(calls, _)| calls.reads)?;
    let name = ROMIO[SIEVED_READS].0;
    // SAFETY: the handles are valid, by the caller, and the datatype is not null where MPI is asked of it: its error handler would end
    // the program.
    let (spacing, is_users) = unsafe {
        let counter = COUNTER.get_or_init(|| PieceCounter::find(mpi)).as_ref();
        let counter = counter.filter(|_| !mpi.is_null_datatype(filetype));
        let spacing = counter.and_then(|counter| counter.spacing(filetype));
        let is_users = !calls.hints[SIEVED_READS] || mpi.hint(info, name).is_some();
        (spacing, is_users)
    };
    let is_small = spacing.is_some_and(|spacing| spacing < SIEVED_SPACING);
    let is_large = spacing.is_some_and(|spacing| spacing >= SIEVED_SPACING);
    let mine = [is_small, is_large, is_users].map(i64::from);
    let [is_small, is_large, is_users] = order.peers.as_ref()?.highest(mine)?;
    let view = match (is_small, is_large) {
        (_, 1) => ViewPieces::Large,
        (1, _) => ViewPieces::Small,
        _ => calls.view,
    };
    if is_users != 0 || view == calls.view {
        return None;
    }
    // Also if MPI then refuses the view: what all processes note here must be the same in all of them.
    let calls = change(file, |calls| calls.view = view)?;
    let hint = calls.hints().into_iter().find(|hint| hint.0 == name)?;
    // SAFETY: the info object is valid or null, by the caller.
    unsafe { mpi.with_hints(info, &[hint]) }
}

/// Notes a file's mode. Returns its hints; `None`: none of its calls are changed.
pub fn note_atomicity(file: MpiHandle, is_atomic: bool) -> Option<Vec<Hint>> {
    Some(change(file, |calls| calls.is_atomic = is_atomic)?.hints())
}

/// Begins a collective call on a file, in all its processes. True if the call becomes an independent one, in all of them. If the
/// direction of calls changes here, it first waits for all processes.
pub fn begin_collective(file: MpiHandle, direction: Direction) -> bool {
    let Some((calls, order)) = find(file) else {
        return false;
    };
    // Also if the call stays an exchange: some processes may still write when others have left the call before.
    order.begin_call(direction);
    !calls.is_atomic && calls.has(direction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_file_is_left_alone() {
        let calls = ChangedCalls {
            writes: true,
            ..ChangedCalls::default()
        };
        note(1, calls, None);
        assert!(begin_collective(1, Direction::Write));
        assert!(!begin_collective(1, Direction::Read));
        assert!(note_atomicity(1, true).is_some());
        assert!(!begin_collective(1, Direction::Write));
        assert!(note_atomicity(1, false).is_some());
        assert!(begin_collective(1, Direction::Write));
        forget(1);
        assert!(!begin_collective(1, Direction::Write));
        assert!(note_atomicity(1, true).is_none());
    }
}
