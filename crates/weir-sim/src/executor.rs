//! Tasks of one thread, run in an order drawn from a seed, and timers of a virtual clock.
//!
//! A task belongs to a group (one incarnation of a server, a client process), which can be killed as a
//! whole: its tasks are dropped where they wait, like the threads of a process.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weir_fabric::sim::rng::SeededRng;

use crate::journal::unless_killed;

/// A set of tasks that are killed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(pub u32);

/// Tasks that can continue. Behind a mutex only because wakers must be `Send`.
type Ready = Arc<Mutex<BTreeSet<u64>>>;

struct Task {
    group: Group,
    /// `None` while it runs.
    future: Option<LocalBoxFuture<'static, ()>>,
}

/// The tasks and the time. Clones share them.
#[derive(Clone)]
pub struct Executor(Rc<Inner>);

struct Inner {
    rng: SeededRng,
    tasks: RefCell<BTreeMap<u64, Task>>,
    next: Cell<u64>,
    ready: Ready,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    now: Cell<Duration>,
    next_group: Cell<u32>,
    steps: Cell<u64>,
}

struct TaskWaker {
    id: u64,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.insert(self.id);
    }
}

impl Executor {
    /// An executor without tasks, at time 0.
    pub fn new(rng: SeededRng) -> Executor {
        Executor(Rc::new(Inner {
            rng,
            tasks: RefCell::default(),
            next: Cell::new(0),
            ready: Ready::default(),
            timers: RefCell::default(),
            now: Cell::new(Duration::ZERO),
            next_group: Cell::new(0),
            steps: Cell::new(0),
        }))
    }

    /// A new group, without tasks.
    pub fn group(&self) -> Group {
        let next = self.0.next_group.get();
        self.0.next_group.set(next + 1);
        Group(next)
    }

    /// Adds a task.
    pub fn spawn(&self, group: Group, future: impl Future<Output = ()> + 'static) {
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        let task = Task {
            group,
            future: Some(Box::pin(future)),
        };
        self.0.tasks.borrow_mut().insert(id, task);
        self.wake(id);
    }

    fn wake(&self, id: u64) {
        let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.insert(id);
    }

    /// Drops all tasks of a group.
    pub fn kill(&self, group: Group) {
        let doomed: Vec<u64> = {
            let tasks = self.0.tasks.borrow();
            let of_group = tasks.iter().filter(|(_, task)| task.group == group);
            of_group.map(|(id, _)| *id).collect()
        };
        for id in doomed {
            // Dropped outside the borrow: its contents may wake or spawn other tasks when dropped.
            let task = self.0.tasks.borrow_mut().remove(&id);
            drop(task);
        }
    }

    /// Runs one task that can continue; false if there is none. The task may kill its server
    /// ([`crate::journal::Killed`]): code that arms a kill checks for that before the next step.
    pub fn step(&self) -> bool {
        let id = {
            let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(id) = ready.iter().nth(self.0.rng.pick(ready.len())).copied() else {
                return false;
            };
            ready.remove(&id);
            id
        };
        let taken = {
            let mut tasks = self.0.tasks.borrow_mut();
            tasks.get_mut(&id).and_then(|task| task.future.take())
        };
        let Some(mut future) = taken else {
            return true;
        };
        self.0.steps.set(self.0.steps.get() + 1);
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            ready: Arc::clone(&self.0.ready),
        }));
        let mut context = Context::from_waker(&waker);
        let polled = unless_killed(|| future.as_mut().poll(&mut context));
        let mut tasks = self.0.tasks.borrow_mut();
        if polled.is_none_or(|polled| polled.is_ready()) {
            tasks.remove(&id);
        } else if let Some(task) = tasks.get_mut(&id) {
            task.future = Some(future);
            return true;
        }
        drop(tasks);
        drop(future);
        true
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.0.now.get()
    }

    /// The time of the next timer.
    pub fn due(&self) -> Option<Duration> {
        let timers = self.0.timers.borrow();
        timers.keys().next().map(|(at, _)| *at)
    }

    /// Advances the time, and wakes the tasks whose timers are due.
    pub fn set_now(&self, now: Duration) {
        self.0.now.set(now);
        loop {
            let mut timers = self.0.timers.borrow_mut();
            let Some(first) = timers.first_entry().filter(|first| first.key().0 <= now) else {
                return;
            };
            let waker = first.remove();
            drop(timers);
            waker.wake();
        }
    }

    /// Waits for some time.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep {
            executor: self.clone(),
            at: self.now() + time,
        }
    }

    /// The number of times that a task was run.
    pub fn steps(&self) -> u64 {
        self.0.steps.get()
    }
}

/// See [`Executor::sleep`].
pub struct Sleep {
    executor: Executor,
    at: Duration,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let inner = &self.executor.0;
        if inner.now.get() >= self.at {
            return Poll::Ready(());
        }
        let id = inner.next.get();
        inner.next.set(id + 1);
        let mut timers = inner.timers.borrow_mut();
        timers.insert((self.at, id), context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_in_the_order_of_the_seed_and_die_with_their_group() {
        let order = |seed| {
            let executor = Executor::new(SeededRng::new(seed));
            let log = Rc::new(RefCell::new(Vec::new()));
            let (lives, dies) = (executor.group(), executor.group());
            for i in 0..20_u64 {
                let (log, sleep) = (Rc::clone(&log), executor.sleep(Duration::from_secs(1)));
                let group = if i < 15 { lives } else { dies };
                executor.spawn(group, async move {
                    sleep.await;
                    log.borrow_mut().push(i);
                });
            }
            while executor.step() {}
            assert!(log.borrow().is_empty());
            executor.kill(dies);
            executor.set_now(executor.due().unwrap());
            while executor.step() {}
            assert_eq!(executor.due(), None);
            let log = log.take();
            assert_eq!(log.len(), 15);
            log
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
