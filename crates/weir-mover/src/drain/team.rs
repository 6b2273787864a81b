//! The processes that copy files for a drain: its own, and movers on other nodes.
//!
//! Data Elevator's two modes (Dong et al., HiPC 2016, section III): movers share the nodes of programs, or have nodes of
//! their own. In the second mode the process of the drain finds files and changes names; it copies only if no mover has
//! come yet, or all are lost.

use std::panic::resume_unwind;
use std::thread;

use crate::mover::FileMover;
use crate::queue::TaskQueue;

/// The share of the copying that the process of a drain does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OwnShare {
    /// The share of any mover.
    #[default]
    Equal,
    /// The tasks that movers leave.
    Rest,
}

/// The processes that copy files for a drain.
#[derive(Debug, Default)]
pub(super) struct DrainTeam {
    /// The rank of the server beside this process.
    pub rank: u16,
    pub share: OwnShare,
    pub movers: Vec<Box<dyn FileMover>>,
}

impl DrainTeam {
    /// True if no other process helps.
    pub fn is_alone(&self) -> bool {
        self.movers.is_empty()
    }

    /// Queues tasks, each with the rank of the node that has its bytes.
    pub fn queue_tasks<T>(&self, tasks: impl Iterator<Item = (u16, T)>) -> TaskQueue<T> {
        let ranks = self.movers.iter().map(|mover| mover.rank());
        let own = (self.share == OwnShare::Equal).then_some(self.rank);
        TaskQueue::filled(own.into_iter().chain(ranks), tasks)
    }

    /// Works on the tasks of a queue: calls `elsewhere` in a thread for each mover that can help, and `here` in this number
    /// of threads. Both take tasks until there are none; `elsewhere` returns earlier if its mover is lost.
    pub fn work<'m, T: Send>(
        &'m self,
        queue: &TaskQueue<T>,
        threads: usize,
        elsewhere: impl Fn(&'m dyn FileMover) + Sync,
        here: impl Fn() + Sync,
    ) {
        let own_tasks = usize::from(self.share == OwnShare::Equal);
        let helpers = queue.choose_helpers(&self.movers, own_tasks);
        thread::scope(|scope| {
            let elsewhere = &elsewhere;
            let helping: Vec<_> = helpers
                .map(|mover| scope.spawn(move || elsewhere(mover)))
                .collect();
            if self.share == OwnShare::Rest {
                for helper in helping {
                    helper.join().unwrap_or_else(|panic| resume_unwind(panic));
                }
            }
            (0..threads.max(1)).for_each(|_| drop(scope.spawn(&here)));
        });
    }
}
