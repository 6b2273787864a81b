//! Tasks for the workers of several nodes. Some tasks make further tasks.
//!
//! Each task waits for the node of one rank: the node has the bytes of the task, or the task is its share. A worker whose
//! node has no task left takes tasks of nodes without workers, then of the node with the most waiting tasks. The last task
//! of a node with workers is left to that node; if the caller wants it, all its tasks are, as long as its workers are
//! expected. The tasks of a lost worker wait again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::mover::FileMover;

/// The tasks that may wait beyond the capacity, for each other node with workers: each node is left its last task.
const WAITING_OF_NODE: usize = 4;

/// The tasks that wait. The walk adds tasks at the end, and waits while there are many. A worker adds the parts of its task
/// at the front, and never waits.
#[derive(Debug)]
pub(crate) struct TaskQueue<T> {
    state: Mutex<QueueState<T>>,
    /// There are tasks, or there will be none.
    ready: Condvar,
    /// There is room for a task.
    room: Condvar,
    /// All tasks are done.
    ended: Condvar,
    capacity: usize,
}

/// The tasks that are left to the workers of their node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptTasks {
    Last,
    All,
}

#[derive(Debug)]
struct QueueState<T> {
    by_rank: BTreeMap<u16, VecDeque<T>>,
    /// The ranks that have workers, or expect some.
    staffed: BTreeMap<u16, KeptTasks>,
    /// The ranks that take no tasks of other ranks with workers.
    own_only: BTreeSet<u16>,
    /// The walk may still add tasks.
    is_open: bool,
    /// Workers with a task, which may add tasks.
    busy: usize,
}

impl<T> QueueState<T> {
    fn waiting(&self) -> usize {
        self.by_rank.values().map(VecDeque::len).sum()
    }

    fn has_ended(&self) -> bool {
        !self.is_open && self.busy == 0 && self.waiting() == 0
    }

    /// The tasks from which a worker of this rank takes its next ones.
    fn choose(&mut self, rank: u16) -> Option<&mut VecDeque<T>> {
        let staffed = &self.staffed;
        let is_own_only = self.own_only.contains(&rank);
        let has_own = self
            .by_rank
            .get(&rank)
            .is_some_and(|tasks| !tasks.is_empty());
        let waiting = self.by_rank.iter_mut().filter(|(owner, tasks)| {
            if has_own {
                return **owner == rank;
            }
            match staffed.get(owner) {
                None => !tasks.is_empty(),
                Some(KeptTasks::Last) if !is_own_only => tasks.len() > 1,
                Some(_) => false,
            }
        });
        let longest =
            waiting.max_by_key(|(owner, tasks)| (!staffed.contains_key(owner), tasks.len()));
        Some(longest?.1)
    }
}

impl<T> TaskQueue<T> {
    /// `own`: the rank of this process, whose workers are never lost.
    pub(crate) fn new(own: u16, capacity: usize) -> TaskQueue<T> {
        let staffed = BTreeMap::from([(own, KeptTasks::Last)]);
        TaskQueue::with(staffed, BTreeMap::new(), capacity)
    }

    /// A queue of known tasks, each with the rank of its node, for workers of the ranks `staffed`.
    pub(crate) fn filled(
        staffed: impl IntoIterator<Item = u16>,
        tasks: impl Iterator<Item = (u16, T)>,
    ) -> TaskQueue<T> {
        let mut by_rank: BTreeMap<u16, VecDeque<T>> = BTreeMap::new();
        for (rank, task) in tasks {
            by_rank.entry(rank).or_default().push_back(task);
        }
        let staffed = staffed.into_iter().map(|rank| (rank, KeptTasks::Last));
        TaskQueue::with(staffed.collect(), by_rank, usize::MAX)
    }

    fn with(
        staffed: BTreeMap<u16, KeptTasks>,
        by_rank: BTreeMap<u16, VecDeque<T>>,
        capacity: usize,
    ) -> TaskQueue<T> {
        TaskQueue {
            state: Mutex::new(QueueState {
                by_rank,
                staffed,
                own_only: BTreeSet::new(),
                is_open: false,
                busy: 0,
            }),
            ready: Condvar::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
            capacity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a rank has workers, or expects some.
    pub(crate) fn expect(&self, rank: u16, kept: KeptTasks) {
        self.lock().staffed.insert(rank, kept);
        self.ready.notify_all();
    }

    /// Makes the workers of a rank take no tasks of other ranks with workers.
    pub(crate) fn keep_to_own(&self, rank: u16) {
        self.lock().own_only.insert(rank);
    }

    /// Notes that a rank has no workers.
    pub(crate) fn leave(&self, rank: u16) {
        self.lock().staffed.remove(&rank);
        self.ready.notify_all();
    }

    /// The movers that can help: those whose nodes have tasks, and others as long as there are more tasks. `own`: the
    /// number of tasks left to this process.
    pub(crate) fn choose_helpers<'m>(
        &self,
        movers: &'m [Box<dyn FileMover>],
        own: usize,
    ) -> impl Iterator<Item = &'m dyn FileMover> {
        let state = self.lock();
        let has_tasks = |mover: &dyn FileMover| state.by_rank.contains_key(&mover.rank());
        let mut movers: Vec<&dyn FileMover> = movers.iter().map(|mover| &**mover).collect();
        movers.sort_by_key(|mover| !has_tasks(*mover));
        let owners = movers.iter().filter(|mover| has_tasks(**mover)).count();
        let tasks = state.waiting().saturating_sub(own);
        movers.into_iter().take(owners.max(tasks))
    }

    /// Adds a task for the node of a rank, once fewer than the capacity wait.
    pub(crate) fn add(&self, rank: u16, task: T) {
        let mut state = self.lock();
        let is_full = |state: &QueueState<T>| {
            let kept = WAITING_OF_NODE * (state.staffed.len() - 1);
            state.waiting() >= self.capacity.saturating_add(kept)
        };
        while is_full(&state) {
            let woken = self.room.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.by_rank.entry(rank).or_default().push_back(task);
        let is_for_any = state.staffed.len() == 1;
        drop(state);
        match is_for_any {
            true => self.ready.notify_one(),
            // The worker that wakes may not take this task, though another one would.
            false => self.ready.notify_all(),
        }
    }

    /// Adds the parts of a worker's task, each with the rank of its node.
    pub(crate) fn add_first(&self, tasks: impl DoubleEndedIterator<Item = (u16, T)>) {
        let mut state = self.lock();
        for (rank, task) in tasks.rev() {
            state.by_rank.entry(rank).or_default().push_front(task);
        }
        drop(state);
        self.ready.notify_all();
    }

    /// The walk begins to add tasks.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// The walk has added all tasks.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        let has_ended = state.has_ended();
        drop(state);
        self.ready.notify_all();
        if has_ended {
            self.ended.notify_all();
        }
    }

    /// Waits until all tasks are done, or for this time; true if they are done.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let waited = self
            .ended
            .wait_timeout_while(state, timeout, |state| !state.has_ended());
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended()
    }

    /// Works on tasks until there will be no more, as one of several workers of this rank. `act` returns the task if its
    /// worker is lost.
    pub(crate) fn work(&self, rank: u16, mut act: impl FnMut(T) -> Result<(), T>) {
        self.work_lists(
            rank,
            |_| 1,
            |tasks| {
                let acted = tasks.into_iter().try_for_each(&mut act);
                acted.map_err(|task| vec![task])
            },
        );
    }

    /// The same with several tasks at a time: `count` of those that wait for one node, but at least one and at most half of
    /// them.
    pub(crate) fn work_lists(
        &self,
        rank: u16,
        count: impl Fn(&VecDeque<T>) -> usize,
        mut act: impl FnMut(Vec<T>) -> Result<(), Vec<T>>,
    ) {
        while let Some(tasks) = self.take_tasks(rank, &count) {
            self.room.notify_all();
            let lost = act(tasks).err();
            let mut state = self.lock();
            state.busy -= 1;
            let is_lost = lost.is_some();
            for task in lost.into_iter().flatten().rev() {
                state.by_rank.entry(rank).or_default().push_front(task);
            }
            if is_lost {
                state.staffed.remove(&rank);
            }
            let has_ended = state.has_ended();
            drop(state);
            if has_ended || is_lost {
                self.ready.notify_all();
            }
            if has_ended {
                self.ended.notify_all();
            }
            if is_lost {
                return;
            }
        }
    }

    /// The next tasks of a worker, which counts as busy then; `None`: there will be none.
    fn take_tasks(&self, rank: u16, count: &impl Fn(&VecDeque<T>) -> usize) -> Option<Vec<T>> {
        let mut state = self.lock();
        loop {
            if let Some(tasks) = state.choose(rank) {
                let taken = count(tasks).min(tasks.len().div_ceil(2)).max(1);
                let taken = tasks.drain(..taken).collect();
                state.busy += 1;
                return Some(taken);
            }
            if state.has_ended() {
                return None;
            }
            let woken = self.ready.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::mover::{FileToMove, MovedFiles, PieceFailure};
    use crate::piece::FilePiece;

    #[derive(Debug)]
    struct NamedMover(u16);

    impl FileMover for NamedMover {
        fn rank(&self) -> u16 {
            self.0
        }
        fn move_files(&self, _: &[FileToMove]) -> io::Result<MovedFiles> {
            unreachable!()
        }
        fn move_piece(&self, _: &FilePiece) -> io::Result<Result<(), PieceFailure>> {
            unreachable!()
        }
    }

    fn movers(ranks: &[u16]) -> Vec<Box<dyn FileMover>> {
        let mover = |rank: &u16| -> Box<dyn FileMover> { Box::new(NamedMover(*rank)) };
        ranks.iter().map(mover).collect()
    }

    #[test]
    fn each_takes_its_own_tasks_and_then_those_that_wait_longest() {
        // Rank 2 has no mover.
        let tasks = [(0, 'a'), (1, 'b'), (1, 'c'), (1, 'd'), (2, 'e'), (2, 'f')];
        let queue = TaskQueue::filled([0, 1], tasks.into_iter());
        let take_next = |rank| queue.lock().choose(rank).and_then(VecDeque::pop_front);
        let taken = [1, 0, 0, 0, 0, 0].map(take_next);
        let wanted = [Some('b'), Some('a'), Some('e'), Some('f'), Some('c'), None];
        assert_eq!(taken, wanted);
        let mut done = Vec::new();
        // The mover of rank 1 is lost.
        queue.work(1, Err);
        queue.work(0, |task| {
            done.push(task);
            Ok(())
        });
        assert_eq!(done, ['d']);
        assert!(queue.wait_for_end(Duration::ZERO));
    }

    #[test]
    fn a_list_is_half_of_what_waits() {
        let queue = TaskQueue::filled([0], (0..20).map(|task| (0, task)));
        let mut lists = Vec::new();
        let count = |tasks: &VecDeque<i32>| tasks.iter().take(6).count();
        queue.work_lists(0, count, |tasks| {
            lists.push(tasks.len());
            Ok(())
        });
        assert_eq!(lists, [6, 6, 4, 2, 1, 1]);
    }

    #[test]
    fn what_a_lost_worker_has_taken_is_done_by_others_who_wait_for_it() {
        let queue = TaskQueue::filled([0, 1], (0..50).map(|task| (1, task)));
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let mut left = 2;
            let queue = &queue;
            scope.spawn(move || {
                queue.work_lists(
                    1,
                    |_| 5,
                    |tasks| {
                        left -= 1;
                        std::thread::sleep(Duration::from_millis(20));
                        match left {
                            0 => Err(tasks),
                            _ => Ok(()),
                        }
                    },
                );
            });
            for _ in 0..3 {
                scope.spawn(|| {
                    queue.work(0, |task| {
                        done.lock().unwrap().push(task);
                        Ok(())
                    });
                });
            }
        });
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert!(done.len() >= 45 && done.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_full_node_takes_what_nobody_else_does() {
        let tasks = [(0, 'a'), (1, 'b'), (1, 'c'), (2, 'd')];
        let queue = TaskQueue::filled([0, 1], tasks.into_iter());
        queue.keep_to_own(0);
        queue.expect(2, KeptTasks::All);
        let take_next = |rank| queue.lock().choose(rank).and_then(VecDeque::pop_front);
        assert_eq!([0, 0].map(take_next), [Some('a'), None]);
        assert_eq!([1, 1, 1].map(take_next), [Some('b'), Some('c'), None]);
        queue.leave(2);
        assert_eq!(take_next(0), Some('d'));
    }

    #[test]
    fn movers_with_tasks_are_asked_first() {
        let all = movers(&[1, 2, 3]);
        let asked = |own: usize, tasks: &[(u16, ())]| -> Vec<u16> {
            let queue = TaskQueue::filled([0, 1, 2, 3], tasks.iter().copied());
            let helpers = queue.choose_helpers(&all, own);
            helpers.map(FileMover::rank).collect()
        };
        assert_eq!(asked(1, &[(0, ())]), [] as [u16; 0]);
        assert_eq!(asked(1, &[(3, ())]), [3]);
        assert_eq!(asked(1, &[(0, ()), (0, ()), (3, ())]), [3, 1]);
        assert_eq!(asked(1, &[(0, ()); 9]), [1, 2, 3]);
        assert_eq!(asked(0, &[(0, ())]), [1]);
    }
}
