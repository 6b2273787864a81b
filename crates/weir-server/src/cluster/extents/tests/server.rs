//! Servers that have extents and nothing else, on one fabric. What the room `files` does at the home of a file is as
//! the test says.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weir_core::extent::{PieceSource, Run, MAX_OFFSET};
use weir_core::journal::{self, Item, State};
use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::placement::{home_of_extents, SLICE_BYTES};
use weir_core::proto::peer::{self, PeerOperation, Request};
use weir_core::proto::{FsError, Served};
use weir_core::types::{Ino, Rank};

use super::writer::{HandWriter, WriterTables};
use crate::cluster::abilities::{InodeNumbers, Journals, OwnTables};
use crate::cluster::extents::{ExtentsNeeds, ExtentsState, PublishedExtents, WriteTables};
use crate::cluster::net::{Answer, LogBytes};
use crate::cluster::peers::calls::{Replied, ServerCalls};
use crate::cluster::peers::fake::TestThread;
use crate::cluster::peers::fake_fabric::{reply, RoomServer, TestFabric};
use crate::cluster::peers::PeerServers;

/// A server whose file's home does as the test says.
#[derive(Clone)]
pub(super) struct ExtentsServer(Rc<ServerParts>);

struct ServerParts {
    peers: PeerServers,
    state: ExtentsState,
    tables: RefCell<WriterTables>,
    /// Numbers here of other servers' files.
    stand_ins: RefCell<BTreeMap<Ino, Ino>>,
    /// The messages to this server as the home of a file.
    published: RefCell<Vec<peer::Published>>,
    /// The answer to them.
    refusal: Cell<Option<FsError>>,
    erased_from: Cell<u64>,
    log: ByteLog,
}

/// A log of which each byte is its position.
struct ByteLog;

impl LogBytes for ByteLog {
    fn read(&self, _: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        out.extend((pos..pos + len).map(|at| at.to_le_bytes()[0]));
        Ok(())
    }
}

impl ExtentsServer {
    fn new(peers: &PeerServers, tables: WriterTables) -> ExtentsServer {
        ExtentsServer(Rc::new(ServerParts {
            peers: peers.clone(),
            state: ExtentsState::default(),
            tables: RefCell::new(tables),
            stand_ins: RefCell::default(),
            published: RefCell::default(),
            refusal: Cell::new(None),
            erased_from: Cell::new(MAX_OFFSET),
            log: ByteLog,
        }))
    }

    /// The room.
    pub(super) fn extents(&self) -> PublishedExtents<ExtentsServer> {
        PublishedExtents::new(self)
    }

    /// The messages to this server as the home of a file, since the last call.
    pub(super) fn take_published(&self) -> Vec<peer::Published> {
        self.0.published.take()
    }

    /// Sets the answer to those messages.
    pub(super) fn refuse(&self, error: FsError) {
        self.0.refusal.set(Some(error));
    }

    /// A truncation is under way: extents from here on are being erased.
    pub(super) fn erase_from(&self, size: u64) {
        self.0.erased_from.set(size);
    }

    /// The committed state.
    pub(super) fn journalled(&self) -> State {
        self.node(|node| {
            node.commit();
            node.journal.clone()
        })
    }

    /// This room after the server was killed and has taken the state up.
    pub(super) fn take_up(&self, state: &mut journal::Cluster) {
        self.0.state.publishes.take();
        self.0.state.slices.take();
        self.0.state.maps.take();
        self.0.state.take_up(state);
    }

    fn served(&self, from: Rank, request: Request) -> Answer {
        let extents = self.extents();
        match request {
            Request::Put(op) => reply(&extents.put(from, &op)),
            Request::Erase(op) => reply(&Ok(extents.erase(&op))),
            Request::Runs(op) => reply(&Ok(extents.runs(&op))),
            Request::Freed(op) => {
                extents.freed(&op.ranges);
                reply(&Ok(()))
            }
            Request::Published(op) => {
                self.0.published.borrow_mut().push(op);
                reply(&self.0.refusal.get().map_or(Ok(()), Err))
            }
            Request::Begin(_) => reply(&Ok(Vec::<(Ino, u64)>::new())),
            Request::Renew(_) => reply(&Ok(())),
            other => panic!("a question that extents do not ask: {other:?}"),
        }
    }
}

impl RoomServer for ExtentsServer {
    fn answer(&self, from: Rank, request: Request) -> LocalBoxFuture<'static, Answer> {
        Box::pin(std::future::ready(self.served(from, request)))
    }
}

impl ServerCalls for ExtentsServer {
    fn peers(&self) -> &PeerServers {
        &self.0.peers
    }

    fn do_here<O: PeerOperation + 'static>(&self, op: O) -> LocalBoxFuture<'_, Replied<O>> {
        let served = self.answer(self.rank(), op.into());
        Box::pin(async move { Ok((peer::reply::<O>(&served.await.body)?, Vec::new())) })
    }
}

impl InodeNumbers for ExtentsServer {
    fn global(&self, ino: Ino) -> Ino {
        self.node(|node| node.names.attr_of(ino).map_or(ino, |attr| attr.home))
    }

    fn local(&self, ino: Ino) -> Option<Ino> {
        match ino.rank() == self.rank() {
            true => Some(ino),
            false => self.0.stand_ins.borrow().get(&ino).copied(),
        }
    }
}

impl Journals for ExtentsServer {
    fn note(&self, item: &Item<'_>) {
        self.node(|node| node.changes.note(item));
    }

    async fn announced(&self) {}

    fn has_announced(&self) -> bool {
        true
    }
}

impl OwnTables for ExtentsServer {
    type Node = WriterTables;

    fn node<R>(&self, act: impl FnOnce(&mut WriterTables) -> R) -> R {
        act(&mut self.0.tables.borrow_mut())
    }
}

impl ExtentsNeeds for ExtentsServer {
    fn extents_state(&self) -> &ExtentsState {
        &self.0.state
    }

    fn log(&self) -> &dyn LogBytes {
        &self.0.log
    }

    fn may_publish(&self, _: Ino, _: Ino) -> Result<bool, FsError> {
        Ok(true)
    }

    fn holds_back(&self, _: Ino) -> bool {
        false
    }

    async fn hold_here(&self, ino: Ino, _: bool) -> Result<Attr, FsError> {
        let local = self.local(ino).ok_or(FsError::Stale)?;
        self.node(|node| node.names.attr_of(local))
    }

    async fn lease_here(&self, ino: Ino) -> Result<(), FsError> {
        self.local(ino).map(drop).ok_or(FsError::Stale)
    }

    fn attached_here(&self, _: Ino, _: Ino) {}

    async fn end_other_writes(&self, _: Ino, _: &Claim) -> Result<(), FsError> {
        Ok(())
    }

    fn erased_from(&self, _: Ino) -> u64 {
        self.0.erased_from.get()
    }

    fn recall_here(&self, ino: Ino) {
        self.extents().forget_map(ino);
    }

    fn forget_counted(&self, _: Rank, _: Ino) {}

    fn doubt_answers(&self, _: Ino) {}
}

/// The bytes of a file's published extents: server, slab and position by offset.
pub(super) type PublishedMap = BTreeMap<u64, (u16, u32, u64)>;

/// Servers that write one file.
pub(super) struct ExtentsWorld {
    pub(super) fabric: Rc<TestFabric>,
    pub(super) servers: Vec<ExtentsServer>,
    /// The file, of the last server.
    pub(super) file: Ino,
    writers: Vec<RefCell<HandWriter>>,
}

impl ExtentsWorld {
    pub(super) fn new(count: u16) -> ExtentsWorld {
        let thread = TestThread::new();
        thread.clock().set(1_000_000_000);
        let fabric = TestFabric::new(&thread);
        let ranks = (0..count).map(Rank);
        let servers = ranks.map(|rank| {
            let peers = fabric.peers(rank, count);
            let tables = WriterTables::new(rank.0, thread.clock().clone());
            let server = ExtentsServer::new(&peers, tables);
            fabric.join(&peers, server.clone());
            server
        });
        let servers: Vec<ExtentsServer> = servers.collect();
        let home = servers.last().expect("there are servers");
        let file = home.node(|node| node.create("f"));
        let attr = home.node(|node| node.names.attr_of(file)).expect("a file");
        for server in &servers[..servers.len() - 1] {
            let local = server.node(|node| node.names.adopt_file(&attr));
            server
                .0
                .stand_ins
                .borrow_mut()
                .insert(file, local.expect("room"));
        }
        let writers = servers.iter().map(|server| {
            let local = server.local(file).expect("it is known");
            RefCell::new(server.node(|node| HandWriter::new(node, 0, local, 0)))
        });
        let writers = writers.collect();
        ExtentsWorld {
            fabric,
            servers,
            file,
            writers,
        }
    }

    /// The room of a server.
    pub(super) fn extents(&self, rank: usize) -> PublishedExtents<ExtentsServer> {
        self.servers[rank].extents()
    }

    /// A program of a server writes.
    pub(super) fn write(&self, rank: usize, offset: u64, len: u64) -> (u32, u64) {
        let mut writer = self.writers[rank].borrow_mut();
        self.servers[rank].node(|node| writer.write(node, offset, len))
    }

    /// A server begins to publish what its programs wrote.
    pub(super) fn begin_publish(&self, rank: usize) -> Rc<RefCell<Option<Result<(), FsError>>>> {
        let (extents, file) = (self.extents(rank), self.file);
        let publish = Served::later(async move { extents.publish(file).await });
        self.fabric.begin(publish)
    }

    pub(super) fn publish(&self, rank: usize) -> Result<(), FsError> {
        let done = self.begin_publish(rank);
        self.fabric.settle();
        let done = done.borrow_mut().take();
        done.expect("an answer")
    }

    /// The first offset of a slice, not the first, whose home is a server.
    pub(super) fn slice_of(&self, rank: u16) -> u64 {
        let servers = u16::try_from(self.servers.len()).expect("few");
        let mut slices = 1..1000;
        let is_its = |slice: &u64| home_of_extents(self.file, *slice, servers) == Rank(rank);
        slices.find(is_its).expect("each has slices") * SLICE_BYTES
    }

    /// The bytes that the homes of slices have of the file.
    pub(super) fn published(&self) -> PublishedMap {
        let mut bytes = PublishedMap::new();
        for server in &self.servers {
            let runs = server.extents().runs(&peer::Runs {
                ino: self.file,
                from: 0,
                to: MAX_OFFSET,
            });
            lay_bytes(&runs, &mut bytes);
        }
        bytes
    }

    /// Checks that exactly the published bytes live, in the logs of all servers. Nothing is unpublished.
    pub(super) fn check_living(&self) {
        let published = self.published();
        for (rank, server) in (0..).zip(&self.servers) {
            let its = published.values().filter(|(of, ..)| *of == rank);
            let its: BTreeSet<(u32, u64)> = its.map(|(_, slab, pos)| (*slab, *pos)).collect();
            assert_eq!(server.node(|node| node.space.living()), its, "rank {rank}");
        }
    }
}

/// Adds the bytes of runs.
pub(super) fn lay_bytes(runs: &[Run], bytes: &mut PublishedMap) {
    for run in runs {
        for index in 0..run.count {
            let piece = run.piece(index);
            if let PieceSource::Log { rank, slab, pos } = piece.source {
                for at in 0..piece.length {
                    bytes.insert(piece.offset + at, (rank, slab, pos + at));
                }
            }
        }
    }
}

/// The number of bytes that a server has not published.
pub(super) fn unpublished(server: &ExtentsServer, file: Ino) -> usize {
    let local = server.local(file).expect("it is known");
    server.node(|node| {
        node.writes().harvest(local);
        node.bytes_of(local).len()
    })
}
