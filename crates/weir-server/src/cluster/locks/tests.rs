//! The room alone: a server with two descriptions, and a home that does as the test says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weir_core::proto::peer::{self, LockOwner, LockWish, PeerOperation};
use weir_core::proto::{self, FsError};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::InodeNumbers;
use crate::cluster::locks::table::{LockTable, Owner, UNLOCK, WRITE};
use crate::cluster::locks::{InstanceLocks, LockOwners, LocksNeeds, LocksState, NodeLocks};
use crate::cluster::net::Net;
use crate::cluster::peers::calls::{Replied, ServerCalls};
use crate::cluster::peers::fake::{now, OtherServer, TestThread};
use crate::cluster::peers::PeerServers;

const CLIENT: ClientId = ClientId(1);
const HOME: Rank = Rank(1);

/// A server with one client, and the locks.
#[derive(Clone)]
struct Node {
    peers: PeerServers,
    state: Rc<LocksState>,
    table: Rc<RefCell<LockTable>>,
    client: Rc<Client>,
}

#[derive(Default)]
struct Client {
    dead: Cell<bool>,
    woken: Cell<u32>,
}

impl LockOwners for Client {
    fn lives(&self, owner: Owner) -> bool {
        owner != Owner::Client(CLIENT) || !self.dead.get()
    }

    fn description(&self, _: ClientId, _: u32, _: Ino) -> Option<Owner> {
        None
    }

    fn pid(&self, id: ClientId) -> Option<u32> {
        (id == CLIENT).then_some(77)
    }

    fn check_file(&self, _: Ino) -> Result<(), FsError> {
        Ok(())
    }

    fn wake(&self, clients: &BTreeSet<ClientId>) {
        let woken = clients.contains(&CLIENT);
        self.woken.set(self.woken.get() + u32::from(woken));
    }
}

impl ServerCalls for Node {
    fn peers(&self) -> &PeerServers {
        &self.peers
    }

    fn do_here<O: PeerOperation + 'static>(&self, _: O) -> LocalBoxFuture<'_, Replied<O>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

impl InodeNumbers for Node {
    fn global(&self, ino: Ino) -> Ino {
        ino
    }

    fn local(&self, ino: Ino) -> Option<Ino> {
        (ino.rank() == self.rank()).then_some(ino)
    }
}

impl LocksNeeds for Node {
    fn locks_state(&self) -> &LocksState {
        &self.state
    }

    fn on_node_locks<R>(&self, act: impl FnOnce(&mut NodeLocks<'_>) -> R) -> R {
        act(&mut NodeLocks::new(
            &mut self.table.borrow_mut(),
            &*self.client,
        ))
    }

    async fn share_by_locks(&self, _: Ino) -> Result<(), FsError> {
        Ok(())
    }
}

struct World {
    thread: TestThread,
    home: Rc<OtherServer>,
    node: Node,
}

impl World {
    fn new() -> World {
        let (thread, home) = (TestThread::new(), Rc::new(OtherServer::default()));
        home.set_up(true);
        let node = Node {
            peers: thread.first_of_two(Rc::clone(&home) as Rc<dyn Net>),
            state: Rc::default(),
            table: Rc::default(),
            client: Rc::default(),
        };
        World { thread, home, node }
    }

    fn locks(&self) -> InstanceLocks<Node> {
        InstanceLocks::new(&self.node)
    }

    /// The client locks the first 10 bytes of a file, or unlocks them.
    fn set(&self, ino: Ino, kind: u32) -> Result<(), FsError> {
        let lock = proto::RecordLock {
            ino,
            ofd: None,
            kind,
            start: 0,
            end: 10,
            wait: true,
        };
        now(self.locks().record_lock_for_client(CLIENT, lock))
    }
}

fn there() -> Ino {
    Ino::new(HOME, 0, 5)
}

fn here() -> Ino {
    Ino::new(Rank(0), 0, 5)
}

fn wish(kind: u32) -> LockWish {
    LockWish {
        whole: false,
        owner: LockOwner::Client(CLIENT.0),
        kind,
        start: 0,
        end: 10,
    }
}

#[test]
fn a_lock_at_another_home_is_dropped_when_its_owner_is_gone() {
    let world = World::new();
    assert_eq!(world.set(there(), WRITE), Ok(()));
    assert!(world.locks().has_locks_elsewhere());
    world.locks().tell_dead_owners();
    world.thread.run(1);
    let drop_locks = || peer::DropLocks {
        ino: there(),
        owners: vec![LockOwner::Client(CLIENT.0)],
    };
    assert!(!world.home.has_heard(drop_locks()), "its owner lives");
    world.node.client.dead.set(true);
    world.locks().tell_dead_owners();
    assert!(!world.locks().has_locks_elsewhere());
    let dead = world.locks().dead_owners(there());
    assert_eq!(dead, [LockOwner::Client(CLIENT.0)], "until the home knows");
    world.thread.run(2);
    assert!(world.home.has_heard(drop_locks()));
    assert_eq!(world.locks().dead_owners(there()), []);
}

#[test]
fn a_wish_that_its_home_did_not_answer_is_taken_back() {
    let world = World::new();
    world.home.set_up(false);
    assert_eq!(world.set(there(), WRITE), Err(FsError::Unreachable));
    world.home.set_up(true);
    let second_ns = 1_000_000_000;
    for seconds in 1..3 {
        world.thread.run(seconds * second_ns);
        world.node.peers.look_at_sessions();
    }
    world.thread.run(3 * second_ns);
    let release = peer::Lock {
        ino: there(),
        wish: wish(UNLOCK),
        number: 1,
    };
    assert!(world.home.has_heard(release));
}

#[test]
fn a_lock_of_another_node_is_refused_and_dropped_with_its_server() {
    let world = World::new();
    let lock = peer::Lock {
        ino: here(),
        wish: wish(WRITE),
        number: 1,
    };
    assert_eq!(now(world.locks().lock_for(HOME, &lock)), Ok(()));
    // Its owner lives, says the other server.
    assert_eq!(world.set(here(), WRITE), Err(FsError::WouldBlock));
    world.locks().drop_locks_of(HOME);
    assert_eq!(world.node.client.woken.get(), 1, "it waited");
    assert_eq!(world.set(here(), WRITE), Ok(()));
    assert_eq!(
        now(world.locks().lock_for(HOME, &lock)),
        Err(FsError::WouldBlock)
    );
}
