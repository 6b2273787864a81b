//! The transfers of a node: a queue of files, and the state of each file for programs that ask.
//!
//! The threads of the service move files in the order of the requests. Transfers that have ended are kept for a while, and
//! the oldest are forgotten first: the program that began one may have ended, and another one may ask for the result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_client::transfer::{
    FileReport, TransferId, TransferReport, TransferState, UnfinishedTransfers, MOST_FILES,
};

use super::FileProgress;

/// The most files that may wait.
const MOST_WAITING: usize = 1 << 20;
/// If ended transfers have more files than this, the oldest ones are forgotten.
const MOST_KEPT: usize = 1 << 17;

/// Transfers. `W` is the work for one file.
#[derive(Debug)]
pub struct TransferTable<W> {
    state: Mutex<TransferQueue<W>>,
    /// A file was added, or a transfer has ended.
    changed: Condvar,
    /// True for work that takes a file out of the instance.
    leaves_instance: fn(&W) -> bool,
}

#[derive(Debug)]
struct TransferQueue<W> {
    transfers: BTreeMap<TransferId, QueuedTransfer>,
    /// The files that wait.
    waiting: VecDeque<TransferTask<W>>,
    /// The transfers that have ended, in the order of their ends.
    ended: VecDeque<TransferId>,
    /// The number of files of these.
    ended_files: usize,
    next: TransferId,
}

#[derive(Debug)]
struct QueuedTransfer {
    files: Vec<TransferFile>,
    /// The number of files that have not ended.
    left: usize,
    /// A program has asked since it ended.
    is_heard: bool,
}

#[derive(Debug, Default)]
struct TransferFile {
    state: TransferState,
    error: i32,
    began: Option<Instant>,
    took: Duration,
    progress: Arc<FileProgress>,
    leaves_instance: bool,
}

/// A file that a thread moves.
#[derive(Debug)]
pub struct TransferTask<W> {
    /// The work.
    pub work: W,
    /// Its progress.
    pub progress: Arc<FileProgress>,
    id: TransferId,
    file: usize,
}

impl TransferFile {
    fn report(&self) -> FileReport {
        let took = match (self.state, self.began) {
            (TransferState::Moving, Some(began)) => began.elapsed(),
            _ => self.took,
        };
        FileReport {
            state: self.state,
            error: self.error,
            bytes: self.progress.bytes.load(Ordering::Relaxed),
            size: self.progress.size.load(Ordering::Relaxed),
            microseconds: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn note_end(&mut self, result: Result<(), Errno>) {
        (self.state, self.error) = match result {
            Ok(()) => (TransferState::Done, 0),
            Err(Errno::CANCELED) => (TransferState::Cancelled, Errno::CANCELED.raw_os_error()),
            Err(error) => (TransferState::Failed, error.raw_os_error()),
        };
        self.took = self.began.map_or(Duration::ZERO, |began| began.elapsed());
    }
}

impl<W> TransferQueue<W> {
    fn count_unfinished(&self) -> UnfinishedTransfers {
        let mut found = UnfinishedTransfers::default();
        for transfer in self.transfers.values() {
            found.files += transfer.left as u64;
            for file in &transfer.files {
                if transfer.left > 0 {
                    found.bytes += file.progress.bytes.load(Ordering::Relaxed);
                }
                let is_lost = file.state == TransferState::Failed && file.leaves_instance;
                found.unheard_failures += u64::from(is_lost && !transfer.is_heard);
            }
        }
        found
    }

    /// Notes that a file of a transfer has ended; true: it was the last one.
    fn note_ended(&mut self, id: TransferId) -> bool {
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return false;
        };
        transfer.left -= 1;
        if transfer.left > 0 {
            return false;
        }
        self.ended_files += transfer.files.len();
        self.ended.push_back(id);
        while self.ended_files > MOST_KEPT && self.ended.len() > 1 {
            let Some(oldest) = self.ended.pop_front() else {
                break;
            };
            let forgotten = self.transfers.remove(&oldest);
            self.ended_files -= forgotten.map_or(0, |transfer| transfer.files.len());
        }
        true
    }
}

impl<W> TransferTable<W> {
    /// Transfers get the numbers after `before_first`. `leaves_instance`: true for work that takes a file out of the
    /// instance.
    pub fn new(before_first: TransferId, leaves_instance: fn(&W) -> bool) -> TransferTable<W> {
        TransferTable {
            leaves_instance,
            state: Mutex::new(TransferQueue {
                transfers: BTreeMap::new(),
                waiting: VecDeque::new(),
                ended: VecDeque::new(),
                ended_files: 0,
                next: before_first + 1,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TransferQueue<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a transfer of these files. EINVAL: there are none, or too many; EAGAIN: too many files wait already.
    pub fn add(&self, files: Vec<W>) -> Result<TransferId, Errno> {
        if files.is_empty() || files.len() > MOST_FILES {
            return Err(Errno::INVAL);
        }
        let mut state = self.state();
        if state.waiting.len() + files.len() > MOST_WAITING {
            return Err(Errno::AGAIN);
        }
        let id = state.next;
        state.next += 1;
        let left = files.len();
        let mut added = Vec::with_capacity(left);
        for (file, work) in files.into_iter().enumerate() {
            let progress = Arc::<FileProgress>::default();
            added.push(TransferFile {
                progress: Arc::clone(&progress),
                leaves_instance: (self.leaves_instance)(&work),
                ..TransferFile::default()
            });
            state.waiting.push_back(TransferTask {
                work,
                progress,
                id,
                file,
            });
        }
        let transfer = QueuedTransfer {
            files: added,
            left,
            is_heard: false,
        };
        state.transfers.insert(id, transfer);
        drop(state);
        self.changed.notify_all();
        Ok(id)
    }

    /// The next file, which the caller must move; waits for one.
    pub fn next(&self) -> TransferTask<W> {
        let mut state = self.state();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                let transfer = state.transfers.get_mut(&task.id);
                if let Some(file) = transfer.and_then(|found| found.files.get_mut(task.file)) {
                    file.state = TransferState::Moving;
                    file.began = Some(Instant::now());
                }
                return task;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes the end of a file that [`TransferTable::next`] gave. ECANCELED: it was stopped.
    pub fn end_file(&self, task: &TransferTask<W>, result: Result<(), Errno>) {
        let mut state = self.state();
        let transfer = state.transfers.get_mut(&task.id);
        if let Some(file) = transfer.and_then(|found| found.files.get_mut(task.file)) {
            file.note_end(result);
        }
        if state.note_ended(task.id) {
            self.changed.notify_all();
        }
    }

    /// Cancels the files that have no names yet. Those that are being copied end soon. ESRCH: no such transfer.
    pub fn cancel(&self, id: TransferId) -> Result<(), Errno> {
        let mut state = self.state();
        let transfer = state.transfers.get_mut(&id).ok_or(Errno::SRCH)?;
        for file in &transfer.files {
            file.progress.stop.store(true, Ordering::Relaxed);
        }
        let waiting = std::mem::take(&mut state.waiting);
        let (given_up, waiting): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|task| task.id == id);
        state.waiting = waiting;
        for task in &given_up {
            let transfer = state.transfers.get_mut(&id);
            if let Some(file) = transfer.and_then(|found| found.files.get_mut(task.file)) {
                file.note_end(Err(Errno::CANCELED));
            }
            state.note_ended(id);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The state of a transfer. Waits until it has ended, or for this time. ESRCH: no such transfer, or it ended long ago.
    pub fn report(&self, id: TransferId, wait: Duration) -> Result<TransferReport, Errno> {
        let until = Instant::now() + wait;
        let mut state = self.state();
        loop {
            let transfer = state.transfers.get_mut(&id).ok_or(Errno::SRCH)?;
            transfer.is_heard |= transfer.left == 0;
            let left = until.saturating_duration_since(Instant::now());
            if transfer.left == 0 || left.is_zero() {
                return Ok(TransferReport {
                    has_ended: transfer.left == 0,
                    files: transfer.files.iter().map(TransferFile::report).collect(),
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<W> TransferTable<W> {
    /// The work that is left. Waits until there is none, or for this time.
    pub fn find_unfinished(&self, wait: Duration) -> UnfinishedTransfers {
        let until = Instant::now() + wait;
        let mut state = self.state();
        loop {
            let found = state.count_unfinished();
            let left = until.saturating_duration_since(Instant::now());
            if found.files == 0 || left.is_zero() {
                return found;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: TransferId = 7 << 32;

    fn states<W>(table: &TransferTable<W>, id: TransferId) -> Vec<TransferState> {
        let report = table.report(id, Duration::ZERO).unwrap();
        report.files.iter().map(|file| file.state).collect()
    }

    #[test]
    fn files_are_moved_in_order_and_told_of() {
        let table = TransferTable::new(BASE, |_| true);
        let id = table.add(vec!["a", "b"]).unwrap();
        assert_eq!(id, BASE + 1);
        let first = table.next();
        assert_eq!(first.work, "a");
        assert_eq!(
            states(&table, id),
            [TransferState::Moving, TransferState::Waiting]
        );
        first.progress.count(5);
        table.end_file(&first, Ok(()));
        let second = table.next();
        table.end_file(&second, Err(Errno::NOSPC));
        let report = table.report(id, Duration::MAX / 4).unwrap();
        assert!(report.has_ended);
        assert_eq!((report.files[0].bytes, report.files[0].error), (5, 0));
        assert_eq!(report.files[1].error, Errno::NOSPC.raw_os_error());
        assert_eq!(
            states(&table, id),
            [TransferState::Done, TransferState::Failed]
        );
    }

    #[test]
    fn cancelling_gives_up_what_waits_and_stops_what_moves() {
        let table = TransferTable::new(BASE, |_| true);
        let id = table.add(vec![1, 2, 3]).unwrap();
        let other = table.add(vec![4]).unwrap();
        let moving = table.next();
        table.cancel(id).unwrap();
        assert!(moving.progress.stop.load(Ordering::Relaxed));
        assert!(!table.report(id, Duration::ZERO).unwrap().has_ended);
        table.end_file(&moving, Err(Errno::CANCELED));
        assert_eq!(states(&table, id), [TransferState::Cancelled; 3]);
        assert_eq!(table.next().work, 4, "another transfer goes on");
        assert_eq!(states(&table, other), [TransferState::Moving]);
        // A transfer that has ended keeps its state.
        assert_eq!(table.cancel(id), Ok(()));
        assert_eq!(table.cancel(id + 9), Err(Errno::SRCH));
    }

    #[test]
    fn what_nobody_has_heard_of_is_told_in_the_end() {
        let table = TransferTable::new(BASE, |work| *work < 3);
        let wait = Duration::ZERO;
        assert_eq!(table.find_unfinished(wait), UnfinishedTransfers::default());
        let first = table.add(vec![1, 2, 3]).unwrap();
        let task = table.next();
        task.progress.count(7);
        let found = table.find_unfinished(wait);
        assert_eq!((found.files, found.bytes), (3, 7));
        table.end_file(&task, Ok(()));
        for _ in 0..2 {
            table.end_file(&table.next(), Err(Errno::NOSPC));
        }
        let found = table.find_unfinished(Duration::MAX / 4);
        assert_eq!(
            (found.files, found.unheard_failures),
            (0, 1),
            "3 stays inside"
        );
        table.report(first, wait).unwrap();
        assert_eq!(table.find_unfinished(wait).unheard_failures, 0);
    }

    #[test]
    fn lists_have_limits_and_old_transfers_are_forgotten() {
        let table = TransferTable::new(BASE, |_| true);
        assert_eq!(table.add(Vec::new()), Err(Errno::INVAL));
        assert_eq!(table.add(vec![0; MOST_FILES + 1]), Err(Errno::INVAL));
        for _ in 0..MOST_WAITING / MOST_FILES {
            table.add(vec![0; MOST_FILES]).unwrap();
        }
        assert_eq!(table.add(vec![0]), Err(Errno::AGAIN));
        for number in 1..=3 {
            table.cancel(BASE + number).unwrap();
        }
        let report = |number| table.report(BASE + number, Duration::ZERO).map(|_| ());
        assert_eq!(report(1), Err(Errno::SRCH), "the oldest");
        assert_eq!(report(3), Ok(()));
    }
}
