//! A server without threads, with storage in a vector, and clients that follow the protocol of
//! `weir_core::node` by hand.
#![allow(clippy::unused_self)] // `root` is the world's

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weir_core::extent::{ExtentIndex, PieceSource};
use weir_core::names::{NamesView, Owner, Shard};
use weir_core::node::cell::State;
use weir_core::node::claim::{acquire, Claim, Outcome};
use weir_core::node::ring::{Note, Record};
use weir_core::proto::{self, Attached, Caller, ClientKind, FsError, Lent, Operation};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fakes::storage::{HeapSlabs, SlabBytes, UnitLayout};
use weir_fakes::{FakeClientMemory, FakePlatform, FakeStorage, NodeRegions, TableSizes};
use weir_server::cluster::{Cluster, NoOthers};
use weir_server::node::{ClientMemory, Identity, Node, OpenRegion};

/// The size of the smallest segment here.
pub const UNIT: u64 = 256;
/// Longer than any request waits.
const HOUR_NS: i64 = 3_600_000_000_000;
/// The storage here: slabs of four units.
const STORAGE: UnitLayout = UnitLayout {
    unit_bytes: UNIT,
    slab_units: 4,
    most_units: 4,
};

/// Storage in a vector.
pub type Store = FakeStorage<HeapSlabs>;
/// The node around a server.
pub type TestPlatform = FakePlatform<Store>;

fn new_store(units: usize) -> Store {
    FakeStorage::new(HeapSlabs::new(STORAGE, units), STORAGE, units)
}

/// A server's tables, for it and for tests that look at them.
pub type SharedNode = Rc<RefCell<Node<'static, TestPlatform>>>;

/// The only server of an instance: a request is done when the call returns.
pub struct World {
    pub cluster: Cluster<TestPlatform>,
    node: SharedNode,
    pub open: OpenRegion<'static>,
    pub view: NamesView<'static>,
    pub store: Store,
    pub platform: TestPlatform,
    pub now_ns: i64,
}

/// The sizes of a world's tables.
pub fn table_sizes(files: u32, blocks: usize, cells: usize) -> TableSizes {
    TableSizes {
        files,
        descriptions: 256,
        blocks,
        cells,
    }
}

/// A server's own tables, and everything behind them.
pub struct ServerTables {
    pub node: SharedNode,
    pub open: OpenRegion<'static>,
    pub view: NamesView<'static>,
    pub store: Store,
    pub platform: TestPlatform,
}

impl ServerTables {
    /// The tables of one of several servers, in regions that no other one uses now.
    pub fn within(regions: &NodeRegions, rank: Rank, servers: u16, units: usize) -> ServerTables {
        regions.clear();
        let open = regions.open();
        let identity = Identity {
            rank,
            servers,
            pid: 1,
            started_ns: 1,
        };
        let (store, platform) = (new_store(units), TestPlatform::default());
        let owner = Owner { uid: 0, gid: 0 };
        let names = Shard::new(regions.format_names(rank), 0o755, owner, 1).unwrap();
        let view = names.view();
        let node = Node::new(identity, open, names, store.clone(), platform.clone(), 8);
        ServerTables {
            node: Rc::new(RefCell::new(node)),
            open,
            view,
            store,
            platform,
        }
    }
}

impl World {
    pub fn new(units: usize) -> World {
        World::sized(units, 100, 32, 32)
    }

    pub fn sized(units: usize, max_files: u32, blocks: usize, cells: usize) -> World {
        World::within(
            &NodeRegions::new(table_sizes(max_files, blocks, cells)),
            units,
        )
    }

    /// A world in regions that no other one uses now.
    pub fn within(regions: &NodeRegions, units: usize) -> World {
        World::with_tables(ServerTables::within(regions, Rank(0), 1, units))
    }

    /// The only server of an instance, with these tables.
    pub fn with_tables(tables: ServerTables) -> World {
        let ServerTables { node, store, .. } = tables;
        let log = Rc::new(store.clone());
        let refuse = |_| panic!("a server without others waits for nothing");
        let others = Rc::new(NoOthers);
        let cluster = Cluster::new(Rank(0), 1, Rc::clone(&node), others, log, refuse);
        World {
            cluster,
            node,
            open: tables.open,
            view: tables.view,
            store,
            platform: tables.platform,
            now_ns: 10,
        }
    }

    pub fn call<O: Operation>(&mut self, from: Caller, op: O) -> Result<O::Reply, FsError> {
        let mut request = Vec::new();
        proto::request(op, &mut request);
        proto::reply::<O>(&self.serve(from, &request))
    }

    /// The encoded reply to an encoded request.
    pub fn serve(&mut self, from: Caller, request: &[u8]) -> Vec<u8> {
        self.now_ns += 1;
        self.cluster.tick(self.now_ns);
        let cluster = self.cluster.clone();
        let mut served = pin!(cluster.serve(from, request));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            if let Poll::Ready(reply) = served.as_mut().poll(&mut context) {
                return reply;
            }
            self.now_ns += HOUR_NS;
            cluster.tick(self.now_ns);
        }
        panic!("a server without others waits for nothing but the time")
    }

    /// The server's own tables.
    pub fn node(&self) -> RefMut<'_, Node<'static, TestPlatform>> {
        self.node.borrow_mut()
    }

    /// Handles the requests in a client's channels and notes.
    pub fn poll_client(&self, id: ClientId, now_ns: i64) -> bool {
        self.cluster.poll_client(id, now_ns)
    }

    pub fn root(&self) -> Ino {
        Ino::new(Rank(0), 0, 1)
    }

    pub fn create(&mut self, name: &[u8]) -> Result<Ino, FsError> {
        let op = proto::Create {
            parent: self.root(),
            name: name.to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive: true,
            attach: false,
        };
        Ok(self.call(Caller::Control, op)?.ino)
    }

    pub fn unlink(&mut self, name: &[u8]) {
        let op = proto::Unlink {
            parent: self.root(),
            name: name.to_vec(),
        };
        self.call(Caller::Control, op).unwrap();
    }

    pub fn size(&mut self, name: &[u8]) -> u64 {
        let components = vec![name.to_vec()];
        self.call(Caller::Control, proto::Lookup { components })
            .unwrap()
            .size
    }

    /// The bytes of a file, found like a reader finds them.
    pub fn read(&mut self, ino: Ino, size: u64) -> Vec<u8> {
        let op = proto::Locate {
            ino,
            offset: 0,
            length: size,
        };
        let located = self.call(Caller::Control, op).unwrap();
        assert!(located.known_from == 0 && located.known_to >= size);
        let mut index = ExtentIndex::new();
        for run in located.runs {
            index
                .insert(run, &mut |_| panic!("runs of a reply overlap"))
                .unwrap();
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        let slabs = &self.store.slabs;
        let stored = slabs.bytes.borrow();
        index.for_each_piece_in(0, size, &mut |piece| {
            let PieceSource::Log { slab, pos, .. } = piece.source else {
                return;
            };
            let from = slabs.index(slab, pos).unwrap();
            let at = usize::try_from(piece.offset).unwrap();
            let len = usize::try_from(piece.length).unwrap();
            bytes[at..at + len].copy_from_slice(&stored[from..from + len]);
        });
        bytes
    }
}

/// The point within a write at which a client is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kill {
    /// Its bytes are in the slab, but in no record.
    Stored,
    /// The old record was pushed.
    Pushed,
    /// The new record is in force, without a byte.
    Begun,
}

struct Writer {
    attached: Attached,
    state: State,
    committed: u64,
    claim: Claim,
    epoch: u64,
}

/// A client by hand.
pub struct Client {
    pub id: ClientId,
    pub memory: Arc<FakeClientMemory>,
    lent: Option<(Lent, u64)>,
    writers: BTreeMap<Ino, Writer>,
}

impl Client {
    pub fn new(world: &mut World) -> Client {
        let id = world.node().clients().vacant(ClientKind::Program).unwrap();
        let memory = Arc::new(FakeClientMemory::new());
        world
            .node()
            .admit(id, 100 + id.0, ClientKind::Program, Arc::clone(&memory));
        Client {
            id,
            memory,
            lent: None,
            writers: BTreeMap::new(),
        }
    }

    pub fn caller(&self) -> Caller {
        Caller::Client(self.id)
    }

    pub fn note(&self, note: Note) {
        self.memory.notes().push(note).unwrap();
    }

    pub fn cells(&self) -> Vec<u32> {
        self.writers
            .values()
            .map(|writer| writer.attached.cell)
            .collect()
    }

    /// The files that it writes.
    pub fn files(&self) -> Vec<Ino> {
        self.writers.keys().copied().collect()
    }

    pub fn is_attached(&self, ino: Ino) -> bool {
        self.writers.contains_key(&ino)
    }

    /// Writes through the log; on a failure returns the number of bytes written, and the error.
    pub fn write(
        &mut self,
        world: &mut World,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        kill: Option<Kill>,
    ) -> (u64, Result<(), FsError>) {
        let mut done = 0;
        while done < bytes.len() as u64 {
            let rest = &bytes[usize::try_from(done).unwrap()..];
            match self.write_some(world, ino, offset + done, rest, kill) {
                Ok(n) => done += n,
                Err(error) => return (done, Err(error)),
            }
            if kill.is_some() {
                return (done, Ok(()));
            }
        }
        (done, Ok(()))
    }

    fn write_some(
        &mut self,
        world: &mut World,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        kill: Option<Kill>,
    ) -> Result<u64, FsError> {
        self.attach(world, ino)?;
        self.make_room(world)?;
        let (lent, used) = self.lent.unwrap();
        let len = (bytes.len() as u64).min(lent.len - used);
        let pos = lent.pos + used;
        let chunk = &bytes[..usize::try_from(len).unwrap()];
        world.store.slabs.write(lent.slab, pos, chunk);
        if kill == Some(Kill::Stored) {
            return Ok(0);
        }
        let open = world.open;
        let writer = self.writers.get_mut(&ino).unwrap();
        let cell = &open.cells[writer.attached.cell as usize];
        let block = &open.blocks[writer.attached.block as usize];
        let live = writer.committed - writer.state.mark;
        let follows = writer.state.stamp > 0
            && writer.state.slab == lent.slab
            && writer.state.live_pos() + live == pos
            && writer.epoch == block.epoch.load(Ordering::Acquire);
        let grows = follows
            && writer.claim.count == 1
            && writer.state.live_offset() + live == offset
            && offset + len <= writer.claim.end();
        let next_piece = follows
            && writer.claim.count > 1
            && live == writer.claim.length
            && len == live
            && offset == writer.state.live_offset() + writer.claim.stride
            && offset < writer.claim.end();
        if next_piece {
            writer.state.count += 1;
            writer.state.length = live;
            writer.state.stride = writer.claim.stride;
            writer.state.mark = writer.committed;
            cell.replace(&writer.state);
        } else if !grows {
            writer.push(&self.memory, live);
            if kill == Some(Kill::Pushed) {
                return Ok(0);
            }
            let needed = Claim::range(offset, len);
            // A guess that is often wrong: a stride of three lengths, or 40 bytes more.
            let wished = if offset.is_multiple_of(2) {
                Claim {
                    stride: 3 * len,
                    count: 5,
                    ..needed
                }
            } else {
                Claim::range(offset, len + 40)
            };
            let outcome = acquire(block, open.cells, writer.attached.cell, &needed, &wished);
            let old = (writer.state, live);
            writer.state = State::begin(offset, lent.slab, pos, block.stamp(), &old, block);
            writer.state.mark = writer.committed;
            cell.replace(&writer.state);
            (writer.claim, writer.epoch) = match outcome {
                Outcome::Granted { claim, epoch } => (claim, epoch),
                Outcome::Single => (Claim::default(), u64::MAX),
            };
        }
        if kill == Some(Kill::Begun) {
            return Ok(0);
        }
        writer.committed += len;
        cell.commit(writer.committed);
        self.lent = Some((lent, used + len));
        Ok(len)
    }

    fn attach(&mut self, world: &mut World, ino: Ino) -> Result<(), FsError> {
        if self.writers.contains_key(&ino) {
            return Ok(());
        }
        let attached = world.call(self.caller(), proto::Attach { ino })?;
        let committed = world.open.cells[attached.cell as usize]
            .committed
            .load(Ordering::Acquire);
        let writer = Writer {
            attached,
            state: State {
                mark: committed,
                ..State::default()
            },
            committed,
            claim: Claim::default(),
            epoch: u64::MAX,
        };
        self.writers.insert(ino, writer);
        Ok(())
    }

    fn make_room(&mut self, world: &mut World) -> Result<(), FsError> {
        match self.lent {
            Some((lent, used)) if used < lent.len => return Ok(()),
            Some((lent, _)) => {
                self.note(Note::Release(lent.segment.0));
                self.lent = None;
            }
            None => {}
        }
        let op = proto::Segment {
            min_bytes: UNIT,
            want_bytes: 2 * UNIT,
        };
        self.lent = Some((world.call(self.caller(), op)?, 0));
        Ok(())
    }

    pub fn detach(&mut self, ino: Ino) {
        if let Some(writer) = self.writers.remove(&ino) {
            self.note(Note::Detach(writer.attached.cell));
        }
    }
}

impl Writer {
    /// Hands the record in force to the server, as `weir-client` does.
    fn push(&self, memory: &FakeClientMemory, live: u64) {
        let state = &self.state;
        let whole = state.count + u64::from(state.count > 0 && live == state.length);
        let record = Record {
            cell: self.attached.cell,
            slab: state.slab,
            offset: state.offset,
            length: state.length,
            stride: if whole > 1 { state.stride } else { 0 },
            count: whole,
            pos: state.pos,
            stamp: state.stamp,
        };
        if state.stamp == 0 {
            return;
        }
        if whole > 0 {
            memory.records().push(&record).unwrap();
        }
        if live > 0 && whole == state.count {
            let tail = Record {
                offset: state.live_offset(),
                length: live,
                stride: 0,
                count: 1,
                pos: state.live_pos(),
                ..record
            };
            memory.records().push(&tail).unwrap();
        }
    }
}

/// The number of items that are measured.
pub const MANY: u64 = 1_000_000;

/// Resident memory of this process, in bytes: heap and tmpfs.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |key: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    of("RssAnon:") + of("RssShmem:")
}

/// Checks the bytes per item against their limit, and prints both.
pub fn cost(what: &str, before: u64, most: u64) {
    let bytes = resident().saturating_sub(before) / MANY;
    println!("{what}: {bytes} bytes (at most {most})");
    assert!(bytes <= most, "{what}: {bytes} bytes, more than {most}");
}
