//! A fake fabric, thread and server, for tests of one room.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::future::LocalBoxFuture;
use weir_core::proto::peer::{self, LogRange, PeerOperation};
use weir_core::proto::{self, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::clock::ServerClock;
use crate::cluster::net::{Answer, Lost, Net};
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::{PeerServers, PeersNeeds};

/// The thread of a server in a test: its time, and the tasks that it runs.
#[derive(Clone)]
pub(in crate::cluster) struct TestThread {
    clock: ServerClock,
    tasks: Rc<RefCell<Vec<LocalBoxFuture<'static, ()>>>>,
}

impl TestThread {
    /// A thread at time 0, without tasks.
    pub(in crate::cluster) fn new() -> TestThread {
        TestThread {
            clock: ServerClock::at(0),
            tasks: Rc::default(),
        }
    }

    /// The first of two servers, on this thread.
    pub(in crate::cluster) fn first_of_two(&self, net: Rc<dyn Net>) -> PeerServers {
        let peers = self.server(Rank(0), 2, net);
        peers.set_server(NoRooms);
        peers
    }

    /// The server `rank` of `servers`, on this thread, without its rooms.
    pub(in crate::cluster) fn server(
        &self,
        rank: Rank,
        servers: u16,
        net: Rc<dyn Net>,
    ) -> PeerServers {
        let tasks = Rc::clone(&self.tasks);
        let spawn = move |task| tasks.borrow_mut().push(task);
        PeerServers::new(rank, servers, net, self.clock.clone(), spawn)
    }

    /// The time of the thread, which the tables of a server have, too.
    pub(in crate::cluster) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// Adds a task.
    pub(in crate::cluster) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().push(Box::pin(task));
    }

    /// Polls all tasks once more, at a time. Keeps those that wait.
    pub(in crate::cluster) fn run(&self, now_ns: i64) {
        self.clock.set(now_ns);
        self.run_again();
    }

    /// Polls all tasks once more, at the same time.
    pub(in crate::cluster) fn run_again(&self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut all = std::mem::take(&mut *self.tasks.borrow_mut());
        all.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        self.tasks.borrow_mut().append(&mut all);
    }
}

/// The result of a future that need not wait.
pub(in crate::cluster) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

/// The bytes before a request: the number of its session, and the time left for it.
const ENCLOSED: usize = 12;

/// A fabric that keeps the requests that arrive: all, as long as it is `up`.
#[derive(Default)]
pub(in crate::cluster) struct OtherServer {
    up: Cell<bool>,
    /// It serves no session from before.
    restarted: Cell<bool>,
    arrived: RefCell<Vec<Vec<u8>>>,
}

impl OtherServer {
    /// Sets if requests arrive.
    pub(in crate::cluster) fn set_up(&self, up: bool) {
        self.up.set(up);
    }

    /// Restarts it: it refuses the next request.
    pub(in crate::cluster) fn restart(&self) {
        self.restarted.set(true);
    }

    /// The number of times that a request has arrived.
    pub(in crate::cluster) fn times_heard<O: PeerOperation>(&self, op: O) -> usize {
        let request = peer::request(op);
        let arrived = self.arrived.borrow();
        arrived.iter().filter(|other| **other == request).count()
    }

    /// Returns true if a request has arrived.
    pub(in crate::cluster) fn has_heard<O: PeerOperation>(&self, op: O) -> bool {
        self.times_heard(op) > 0
    }
}

impl Net for OtherServer {
    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let answer = match self.up.get() {
            true if self.restarted.replace(false) => Ok(Answer {
                body: proto::refusal(FsError::NewSession),
                ..Answer::default()
            }),
            true => {
                self.arrived.borrow_mut().push(request[ENCLOSED..].to_vec());
                // Nothing, and an empty list of cut files for a session that begins.
                let mut body = Vec::new();
                proto::encode(&Ok::<Vec<u8>, FsError>(Vec::new()), &mut body);
                Ok(Answer {
                    body,
                    ..Answer::default()
                })
            }
            false => Err(Lost(to)),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A server to which sessions mean nothing.
struct NoRooms;

impl PeersNeeds for NoRooms {
    fn commit(&self) {}

    fn set_believed_until(&self, _: Option<i64>) {}

    fn doubt(&self, _: Rank) {}

    fn uses_files_of(&self, _: Rank) -> bool {
        false
    }

    fn held_of(&self, _: Rank) -> Option<peer::Begin> {
        Some(peer::Begin {
            held: Vec::new(),
            renames_since: 0,
        })
    }

    fn cut(&self, _: &[(Ino, u64)]) {}

    fn note_own_session(&self, _: Rank) {}

    fn pay_here(&self, _: Debt) -> LocalBoxFuture<'static, Result<(), FsError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn give_back(&self, _: Vec<LogRange>) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
