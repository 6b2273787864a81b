//! The room alone: sessions, debts and deadlines with one other server, which does as the test says.

use std::cell::Cell;
use std::rc::Rc;

use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::net::Net;
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::fake::{now, OtherServer, TestThread};
use crate::cluster::peers::PeerServers;

const OTHER: Rank = Rank(1);
const SECOND_NS: i64 = 1_000_000_000;

struct World {
    thread: TestThread,
    other: Rc<OtherServer>,
    peers: PeerServers,
}

impl World {
    fn new() -> World {
        let (thread, other) = (TestThread::new(), Rc::new(OtherServer::default()));
        other.set_up(true);
        let peers = thread.first_of_two(Rc::clone(&other) as Rc<dyn Net>);
        World {
            thread,
            other,
            peers,
        }
    }

    /// Looks at the sessions once a second, and runs what that begins.
    fn pass(&self, seconds: std::ops::Range<i64>) {
        for second in seconds {
            self.thread.run(second * SECOND_NS);
            self.peers.look_at_sessions();
        }
        self.thread.run_again();
    }
}

fn freed() -> Vec<LogRange> {
    let (slab, pos, len) = (3, 4096, 10);
    vec![LogRange {
        rank: OTHER.0,
        slab,
        pos,
        len,
    }]
}

#[test]
fn a_call_that_is_lost_ends_the_session_and_the_next_one_begins_another() {
    let world = World::new();
    let before = world.peers.session_now(OTHER);
    assert!(before.is_some());
    world.other.set_up(false);
    let lost = now(world.peers.call_other(OTHER, peer::Renew {}));
    assert_eq!(lost, Err(FsError::Unreachable));
    assert_eq!(world.peers.session_now(OTHER), None);
    world.other.set_up(true);
    assert_eq!(now(world.peers.call_other(OTHER, peer::Renew {})), Ok(()));
    let after = world.peers.session_now(OTHER);
    assert!(after > before, "{after:?}, {before:?}");
}

#[test]
fn a_server_that_refuses_a_session_is_asked_again_in_the_next() {
    let world = World::new();
    world.other.restart();
    assert_eq!(now(world.peers.call_other(OTHER, peer::Renew {})), Ok(()));
    assert_eq!(world.other.times_heard(peer::Renew {}), 1);
    assert!(
        world.peers.session_now(OTHER) > Some(0),
        "not the first one"
    );
}

#[test]
fn a_debt_to_a_server_that_cannot_be_reached_is_paid_when_it_is_back() {
    let world = World::new();
    world.other.set_up(false);
    let lost = now(world.peers.call_other(OTHER, peer::Renew {}));
    assert_eq!(lost, Err(FsError::Unreachable), "the session ends");
    world.peers.owe_soon(OTHER, Debt::Freed(freed()));
    world.pass(1..5);
    let owed = |world: &World| world.peers.moved()[2].1;
    assert_eq!(owed(&world), 1);
    world.other.set_up(true);
    world.pass(5..9);
    assert_eq!(owed(&world), 0);
    let ranges = freed();
    assert_eq!(world.other.times_heard(peer::Freed { ranges }), 1);
}

#[test]
fn an_operation_without_time_asks_nobody() {
    let world = World::new();
    world.thread.run(5 * SECOND_NS);
    let asked = world.peers.call_other(OTHER, peer::Renew {});
    let done = now(world.peers.by(5 * SECOND_NS, asked));
    assert_eq!(done, Err(FsError::Unreachable));
    assert!(!world.other.has_heard(peer::Renew {}));
}

#[test]
fn a_task_waits_until_its_time() {
    let world = World::new();
    let woken = Rc::new(Cell::new(false));
    let (peers, shown) = (world.peers.clone(), Rc::clone(&woken));
    world.peers.spawn(async move {
        peers.until(2 * SECOND_NS).await;
        shown.set(true);
    });
    for (second, is_due) in [(1, false), (2, true)] {
        world.thread.run(second * SECOND_NS);
        world.peers.look_at_times(second * SECOND_NS);
        world.thread.run_again();
        assert_eq!(woken.get(), is_due, "after {second} s");
    }
}
