//! The message to the other servers that this one is back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weir_core::proto::peer;
use weir_core::proto::FsError;
use weir_core::types::Rank;

use super::server::node_with;
use crate::cluster::fake::{new_tables, QuietPlatform};
use crate::cluster::journal::JournalState;
use crate::cluster::keyed::Token;
use crate::cluster::net::{LogBytes, Net};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::peers::fake::{OtherServer, TestThread};
use crate::cluster::Cluster;

#[test]
fn operations_wait_until_all_others_know_that_the_server_is_back() {
    let (thread, state) = (TestThread::new(), Rc::new(JournalState::default()));
    let token = |number| Token {
        rank: Rank(0),
        number,
    };
    assert!(state.has_announced());
    assert!(state.announcing.take_free((), token(1)));
    let done = Rc::new(Cell::new(0));
    for number in [2, 3] {
        let (state, done) = (Rc::clone(&state), Rc::clone(&done));
        thread.spawn(async move {
            state.announced(token(number)).await;
            done.set(done.get() + 1);
        });
    }
    thread.run_again();
    assert_eq!((done.get(), state.has_announced()), (0, false));
    state.announcing.unlock(&(), token(1));
    thread.run_again();
    thread.run_again();
    assert_eq!((done.get(), state.has_announced()), (2, true));
}

/// A log that is not read.
struct NoLog;

impl LogBytes for NoLog {
    fn read(&self, _: u32, _: u64, _: u64, _: &mut Vec<u8>) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }
}

/// The first of two servers.
fn first_of_two(thread: &TestThread, other: &Rc<OtherServer>) -> Cluster<QuietPlatform> {
    let node = Rc::new(RefCell::new(node_with(2, new_tables(Rank(0)))));
    let (net, tasks) = (Rc::clone(other) as Rc<dyn Net>, thread.clone());
    let spawn = move |task| tasks.spawn(task);
    Cluster::new(Rank(0), 2, node, net, Rc::new(NoLog), spawn)
}

#[test]
fn a_server_that_is_back_has_told_the_others_or_outwaited_them() {
    let second_ns = 1_000_000_000;
    for is_up in [true, false] {
        let (thread, other) = (TestThread::new(), Rc::new(OtherServer::default()));
        other.set_up(is_up);
        let cluster = first_of_two(&thread, &other);
        cluster.tick(second_ns);
        cluster.peers().begin_anew();
        let telling = cluster.announce();
        assert!(!cluster.inner.journal.has_announced(), "before it is run");
        thread.spawn(telling);
        thread.run_again();
        thread.run_again();
        assert_eq!(other.has_heard(peer::Back {}), is_up);
        assert_eq!(cluster.inner.journal.has_announced(), is_up);
        // Until then the other one may believe what the earlier server told it.
        cluster.tick(2 * second_ns);
        thread.run_again();
        assert_eq!(cluster.inner.journal.has_announced(), is_up);
        cluster.tick(4 * second_ns);
        thread.run_again();
        thread.run_again();
        assert!(cluster.inner.journal.has_announced());
    }
}
