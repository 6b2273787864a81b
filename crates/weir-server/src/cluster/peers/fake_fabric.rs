//! A fabric between the servers of a test of one room. A request waits until the test delivers or loses it, so that
//! the test determines the order of all messages.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use weir_core::proto::peer::{self, LogRange, Request};
use weir_core::proto::{self, FsError, Served};
use weir_core::types::{Ino, Rank};

use crate::cluster::net::{Answer, Lost, Net};
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::fake::TestThread;
use crate::cluster::peers::{PeerServers, PeersNeeds};

/// A future that takes more turns than this waits for something that never comes.
const MOST_TURNS: usize = 5_000;
/// The time that passes in a turn without a request, ns.
const TURN_NS: i64 = 1_000_000;

/// One room of a server, which other servers ask.
pub(in crate::cluster) trait RoomServer {
    /// Serves a request of a session that holds.
    fn answer(&self, from: Rank, request: Request) -> LocalBoxFuture<'static, Answer>;

    /// Stops believing what another server said.
    fn doubt(&self, _home: Rank) {}
}

/// A reply without bytes that follow it.
pub(in crate::cluster) fn reply<T: Serialize>(done: &Result<T, FsError>) -> Answer {
    let mut body = Vec::new();
    proto::encode(done, &mut body);
    Answer {
        body,
        ..Answer::default()
    }
}

/// A request on its way.
struct WaitingRequest {
    from: Rank,
    to: Rank,
    bytes: Vec<u8>,
    answer: oneshot::Sender<Answer>,
}

impl WaitingRequest {
    /// The request without its session.
    fn decoded(&self) -> Request {
        const ENCLOSED: usize = 12;
        postcard::from_bytes(&self.bytes[ENCLOSED..]).expect("servers send requests")
    }
}

/// The sessions and the room of a server.
type JoinedServer = (PeerServers, Rc<dyn RoomServer>);

/// The fabric, its servers, and the thread on which all of them run.
pub(in crate::cluster) struct TestFabric {
    thread: TestThread,
    servers: RefCell<BTreeMap<Rank, JoinedServer>>,
    waiting: RefCell<Vec<WaitingRequest>>,
}

impl TestFabric {
    /// A fabric without servers.
    pub(in crate::cluster) fn new(thread: &TestThread) -> Rc<TestFabric> {
        Rc::new(TestFabric {
            thread: thread.clone(),
            servers: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    /// The sessions of a server that is about to join.
    pub(in crate::cluster) fn peers(self: &Rc<Self>, rank: Rank, servers: u16) -> PeerServers {
        let end = || FabricSide {
            rank,
            fabric: Rc::clone(self),
        };
        let peers = self.thread.server(rank, servers, Rc::new(end()));
        peers.set_server(end());
        peers
    }

    /// Adds a server.
    pub(in crate::cluster) fn join(&self, peers: &PeerServers, server: impl RoomServer + 'static) {
        let server: Rc<dyn RoomServer> = Rc::new(server);
        let mut servers = self.servers.borrow_mut();
        servers.insert(peers.rank(), (peers.clone(), server));
    }

    /// The requests on their way, the oldest first.
    pub(in crate::cluster) fn waiting(&self) -> Vec<(Rank, Request)> {
        let waiting = self.waiting.borrow();
        let waiting = waiting.iter();
        waiting.map(|asked| (asked.to, asked.decoded())).collect()
    }

    /// The place among the requests on their way of the first one that `is_wanted`.
    pub(in crate::cluster) fn place_of(&self, is_wanted: impl Fn(&Request) -> bool) -> usize {
        let waiting = self.waiting();
        let place = waiting.iter().position(|(_, asked)| is_wanted(asked));
        place.unwrap_or_else(|| panic!("no such request is on its way: {waiting:?}"))
    }

    fn take_request(&self, place: usize) -> WaitingRequest {
        self.waiting.borrow_mut().remove(place)
    }

    /// Serves a request, and lets its asker have the answer.
    pub(in crate::cluster) fn deliver(&self, place: usize) {
        let asked = self.take_request(place);
        let served = self.serve(&asked);
        self.thread.spawn(async move {
            let _ = asked.answer.send(served.await);
        });
        self.thread.run_again();
    }

    /// Serves a request whose answer is lost.
    pub(in crate::cluster) fn deliver_and_lose_answer(&self, place: usize) {
        let asked = self.take_request(place);
        let served = self.serve(&asked);
        self.thread.spawn(async move { drop(served.await) });
        self.thread.run_again();
    }

    /// Loses a request.
    pub(in crate::cluster) fn lose(&self, place: usize) {
        drop(self.take_request(place));
        self.thread.run_again();
    }

    fn serve(&self, asked: &WaitingRequest) -> LocalBoxFuture<'static, Answer> {
        let servers = self.servers.borrow();
        let (peers, server) = servers.get(&asked.to).expect("all servers have joined");
        let (peers, server) = (peers.clone(), Rc::clone(server));
        let (from, bytes) = (asked.from, asked.bytes.clone());
        Box::pin(async move {
            let admitted = match peers.admitted(from, &bytes) {
                Ok(admitted) => admitted,
                Err(error) => return reply(&Err::<(), FsError>(error)),
            };
            let request = postcard::from_bytes(admitted.request).expect("servers send requests");
            let served = server.answer(from, request);
            let within = Some((from, admitted.number));
            peers.run_for(within, admitted.deadline_ns, served).await
        })
    }

    /// Delivers the oldest request, and runs all tasks. If there is none, a little time passes.
    fn turn(&self) {
        if self.waiting.borrow().is_empty() {
            self.pass_time();
        } else {
            self.deliver(0);
        }
        self.thread.run_again();
    }

    /// Lets a little time pass.
    pub(in crate::cluster) fn pass_time(&self) {
        let now_ns = self.thread.clock().now_ns() + TURN_NS;
        self.thread.run(now_ns);
        for (peers, _) in self.servers.borrow().values() {
            peers.look_at_times(now_ns);
            peers.look_at_sessions();
        }
        self.thread.run_again();
    }

    /// Runs all tasks as far as they can without another message.
    pub(in crate::cluster) fn run_tasks(&self) {
        self.thread.run_again();
    }

    /// Takes turns until there is a request that `is_wanted`, and leaves it on its way. Returns its
    /// place.
    pub(in crate::cluster) fn turn_until(&self, is_wanted: impl Fn(&Request) -> bool) -> usize {
        self.turn_without(|_| false, is_wanted)
    }

    /// As [`TestFabric::turn_until`], but requests that are held stay on their way.
    pub(in crate::cluster) fn turn_without(
        &self,
        is_held: impl Fn(&Request) -> bool,
        is_wanted: impl Fn(&Request) -> bool,
    ) -> usize {
        for _ in 0..MOST_TURNS {
            self.thread.run_again();
            let waiting = self.waiting();
            let mut places = waiting.iter();
            if let Some(place) = places.position(|(_, asked)| is_wanted(asked)) {
                return place;
            }
            let mut places = waiting.iter();
            match places.position(|(_, asked)| !is_held(asked)) {
                Some(place) => self.deliver(place),
                None => self.pass_time(),
            }
        }
        panic!("nobody asks for it");
    }

    /// Takes turns until no request is on its way, and all that was begun waits for time alone.
    pub(in crate::cluster) fn settle(&self) {
        self.thread.run_again();
        let mut quiet = 0;
        for _ in 0..MOST_TURNS {
            quiet = match self.waiting.borrow().is_empty() {
                true => quiet + 1,
                false => 0,
            };
            if quiet > 8 {
                return;
            }
            self.turn();
        }
        panic!("the servers go on for ever");
    }

    /// Takes turns until a future is done.
    pub(in crate::cluster) fn finish<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..MOST_TURNS {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            self.turn();
        }
        panic!("it waits for ever");
    }

    /// The result of an operation.
    pub(in crate::cluster) fn finish_served<T>(&self, served: Served<T>) -> T {
        match served {
            Served::Now(done) => done,
            Served::Later(work) => self.finish(work),
        }
    }

    /// Begins an operation. Its result is there once it is done.
    pub(in crate::cluster) fn begin<T: 'static>(
        &self,
        served: Served<T>,
    ) -> Rc<RefCell<Option<T>>> {
        let result = Rc::new(RefCell::new(None));
        match served {
            Served::Now(done) => drop(result.borrow_mut().replace(done)),
            Served::Later(work) => {
                let shown = Rc::clone(&result);
                self.thread.spawn(async move {
                    let done = work.await;
                    shown.borrow_mut().replace(done);
                });
            }
        }
        self.thread.run_again();
        result
    }
}

/// The fabric, as one server has it.
struct FabricSide {
    rank: Rank,
    fabric: Rc<TestFabric>,
}

impl FabricSide {
    fn server(&self) -> Rc<dyn RoomServer> {
        let servers = self.fabric.servers.borrow();
        Rc::clone(&servers.get(&self.rank).expect("all servers have joined").1)
    }
}

impl Net for FabricSide {
    fn call(&self, to: Rank, bytes: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let (answer, answered) = oneshot::channel();
        self.fabric.waiting.borrow_mut().push(WaitingRequest {
            from: self.rank,
            to,
            bytes,
            answer,
        });
        Box::pin(async move { answered.await.map_err(|_| Lost(to)) })
    }
}

impl PeersNeeds for FabricSide {
    fn commit(&self) {}

    fn set_believed_until(&self, _: Option<i64>) {}

    fn doubt(&self, home: Rank) {
        self.server().doubt(home);
    }

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

    fn pay_here(&self, debt: Debt) -> LocalBoxFuture<'static, Result<(), FsError>> {
        let request = match debt {
            Debt::Link(ino) => Request::from(peer::Relink { ino, add: false }),
            Debt::Freed(ranges) => Request::from(peer::Freed { ranges }),
            Debt::Erased(ino, to) => Request::from(peer::Erase { ino, from: 0, to }),
            Debt::Unlock(unlock) => Request::from(unlock),
            Debt::UnlockMoves(unlock) => Request::from(unlock),
        };
        let paid = self.server().answer(self.rank, request);
        Box::pin(async move {
            paid.await;
            Ok(())
        })
    }

    fn give_back(&self, _: Vec<LogRange>) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
