//! Tasks of several threads, some of which make further tasks.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The tasks that wait. The walk adds tasks at the end and waits while there are many; a worker adds
/// those that its task was cut into at the front, and never waits.
#[derive(Debug)]
pub(crate) struct TaskQueue<T> {
    state: Mutex<QueueState<T>>,
    /// There are tasks, or there will be none.
    ready: Condvar,
    /// There is room for a task.
    room: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    tasks: VecDeque<T>,
    /// The walk may add tasks.
    is_open: bool,
    /// Workers with a task, which may add tasks.
    busy: usize,
}

impl<T> TaskQueue<T> {
    pub(crate) fn new(capacity: usize) -> TaskQueue<T> {
        TaskQueue {
            state: Mutex::new(QueueState {
                tasks: VecDeque::new(),
                is_open: false,
                busy: 0,
            }),
            ready: Condvar::new(),
            room: Condvar::new(),
            capacity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task, once fewer than the capacity wait.
    pub(crate) fn add(&self, task: T) {
        let mut state = self.lock();
        while state.tasks.len() >= self.capacity {
            let woken = self.room.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.tasks.push_back(task);
        drop(state);
        self.ready.notify_one();
    }

    /// Adds the tasks that a worker's task was cut into.
    pub(crate) fn add_first(&self, tasks: impl DoubleEndedIterator<Item = T>) {
        let mut state = self.lock();
        tasks.rev().for_each(|task| state.tasks.push_front(task));
        drop(state);
        self.ready.notify_all();
    }

    /// The walk begins to add tasks.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// The walk has added all.
    pub(crate) fn close(&self) {
        self.lock().is_open = false;
        self.ready.notify_all();
    }

    /// Does all tasks that there will be, in one of several threads.
    pub(crate) fn work(&self, mut act: impl FnMut(T)) {
        loop {
            let mut state = self.lock();
            let task = loop {
                if let Some(task) = state.tasks.pop_front() {
                    break task;
                }
                if !state.is_open && state.busy == 0 {
                    return;
                }
                let woken = self.ready.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            };
            state.busy += 1;
            drop(state);
            self.room.notify_one();
            act(task);
            let mut state = self.lock();
            state.busy -= 1;
            let may_be_last = state.busy == 0 && state.tasks.is_empty();
            drop(state);
            if may_be_last {
                self.ready.notify_all();
            }
        }
    }
}
