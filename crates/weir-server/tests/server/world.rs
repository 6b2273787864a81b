//! A server without threads, with storage in a vector, and clients that follow the protocol of
//! `weir_core::node` by hand.
#![allow(clippy::unused_self)] // `root` is the world's

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use futures_util::FutureExt as _;
use rustix::fd::OwnedFd;
use weir_core::extent::{ExtentIndex, PieceSource};
use weir_core::names::{layout, InodeRecord, NamesHeader, NamesView, Owner, Shard, Tables};
use weir_core::node::cell::State;
use weir_core::node::claim::{acquire, Claim, Outcome};
use weir_core::node::known::KNOWN_SLOTS;
use weir_core::node::landing::POOL_BYTES;
use weir_core::node::region::{client_layout, open_layout};
use weir_core::node::ring::{Note, Record};
use weir_core::proto::{
    self, Attached, Caller, ClientKind, FsError, Lent, Operation, Tier, TierStatus,
};
use weir_core::types::{ClientId, Ino, Rank, SegmentId};
use weir_fabric::bulk::Landing;
use weir_server::arrival::Arrival;
use weir_server::cluster::{Cluster, LogBytes, NoOthers};
use weir_server::node::{ClientMemory, Identity, Node, OpenRegion, Platform, Space};
use weir_store::map::{create_sparse, Mapping, Region};
use weir_store::shm::ShmRecord;
use weir_store::slabmap::Window;

/// The size of the smallest segment here.
pub const UNIT: u64 = 256;
/// Units of a slab here.
const SLAB_UNITS: u64 = 4;

/// Storage: bytes, the holder of each unit, and the number of its live bytes.
#[derive(Default)]
pub struct Units {
    pub bytes: Vec<u8>,
    held: Vec<bool>,
    pub live: Vec<u64>,
    segments: BTreeMap<u32, u64>,
    /// If true, accounts that do not agree are not a failure.
    pub lenient: bool,
}

#[derive(Clone)]
pub struct Store(pub Rc<RefCell<Units>>);

impl Store {
    fn new(units: usize) -> Store {
        let bytes = units * usize::try_from(UNIT).unwrap();
        Store(Rc::new(RefCell::new(Units {
            bytes: vec![0; bytes],
            held: vec![false; units],
            live: vec![0; units],
            ..Units::default()
        })))
    }

    /// The number of units that are neither held nor live, and of all units.
    pub fn free(&self) -> (usize, usize) {
        let units = self.0.borrow();
        let free = units
            .held
            .iter()
            .zip(&units.live)
            .filter(|(held, live)| !**held && **live == 0);
        (free.count(), units.held.len())
    }
}

impl Units {
    /// Bytes of a slab here.
    pub const SLAB_BYTES: u64 = SLAB_UNITS * UNIT;

    fn find(&self, count: u64) -> Option<usize> {
        let count = usize::try_from(count).unwrap();
        let slab = usize::try_from(SLAB_UNITS).unwrap();
        let free = |unit: usize| !self.held[unit] && self.live[unit] == 0;
        (0..self.held.len()).find(|first| {
            let end = first + count;
            end <= self.held.len() && first / slab == (end - 1) / slab && (*first..end).all(free)
        })
    }

    pub fn at(slab: u32, pos: u64) -> usize {
        usize::try_from(u64::from(slab) * SLAB_UNITS * UNIT + pos).unwrap()
    }

    fn change(&mut self, slab: u32, pos: u64, len: u64, add: bool) {
        let all = self.live.len() as u64 * UNIT;
        let begin = u64::from(slab) * Units::SLAB_BYTES;
        let end = begin.checked_add(pos).and_then(|at| at.checked_add(len));
        if self.lenient && end.is_none_or(|end| end > all) {
            return;
        }
        let mut at = Units::at(slab, pos) as u64;
        let end = at + len;
        while at < end {
            let take = (UNIT - at % UNIT).min(end - at);
            let live = &mut self.live[usize::try_from(at / UNIT).unwrap()];
            assert!(add || self.lenient || *live >= take, "freed twice at {at}");
            *live = if add {
                *live + take
            } else {
                live.saturating_sub(take)
            };
            at += take;
        }
    }
}

impl Space for Store {
    fn grant(&mut self, _: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent> {
        let mut units = self.0.borrow_mut();
        let sizes = [want_bytes, min_bytes].map(|bytes| bytes.div_ceil(UNIT));
        let (first, count) = sizes
            .into_iter()
            .filter(|count| *count <= SLAB_UNITS)
            .find_map(|count| Some((units.find(count)?, count)))?;
        let segment = u32::try_from(first).unwrap();
        units.segments.insert(segment, count);
        let begin = u64::from(segment) * UNIT;
        let lent = Lent {
            segment: SegmentId(segment),
            slab: u32::try_from(begin / (SLAB_UNITS * UNIT)).unwrap(),
            tier: Tier::Memory,
            pos: begin % (SLAB_UNITS * UNIT),
            len: count * UNIT,
            warm: true,
        };
        for unit in first..first + usize::try_from(count).unwrap() {
            units.held[unit] = true;
        }
        let at = Units::at(lent.slab, lent.pos);
        let end = at + usize::try_from(lent.len).unwrap();
        // A stale reader sees it.
        units.bytes[at..end].fill(0xDD);
        Some(lent)
    }

    fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        self.0.borrow_mut().change(slab, pos, len, true);
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        self.0.borrow_mut().change(slab, pos, len, false);
    }

    fn release(&mut self, segment: SegmentId) {
        let mut units = self.0.borrow_mut();
        let count = units
            .segments
            .remove(&segment.0)
            .expect("a segment is released once");
        let first = segment.0 as usize;
        units.held[first..first + usize::try_from(count).unwrap()].fill(false);
    }

    fn is_file(&self, _: u32) -> bool {
        false
    }

    fn usage(&self) -> Vec<TierStatus> {
        Vec::new()
    }
}

/// A client's region, mapped.
pub struct Memory(pub Mapping);

impl Memory {
    /// A region of no client yet.
    pub fn fresh() -> Memory {
        Memory(map(client_layout().bytes))
    }
}

impl ClientMemory for Memory {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T] {
        self.0.slice(offset, count).unwrap()
    }
}

thread_local! {
    /// The pool for bytes of other nodes, in tests that set it.
    pub static POOL: Cell<Option<Window>> = const { Cell::new(None) };
}

/// Makes a pool for this thread.
pub fn make_pool() -> Window {
    let pool = map(POOL_BYTES).leak_window();
    POOL.set(Some(pool));
    pool
}

/// A kernel in which shared descriptions live as long as the test decides.
#[derive(Clone, Default)]
pub struct Fake {
    pub alive: Rc<RefCell<Vec<u32>>>,
}

impl Platform for Fake {
    type Memory = Memory;
    type Space = Store;

    fn wake(&self, _: &AtomicU32) {}

    fn program(&self, pid: u32) -> String {
        format!("program {pid}")
    }

    fn ofd_alive(&self, index: u32) -> bool {
        self.alive.borrow().contains(&index)
    }

    fn landing(
        &self,
        client: &Arc<Memory>,
        landing: proto::Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn Landing>> {
        let len = usize::try_from(len).unwrap();
        let arrival = Arrival::new(client, POOL.get()?, landing, len, over, |_| ())?;
        Some(Box::new(arrival))
    }
}

/// A server's tables, for it and for tests that look at them.
pub type SharedNode = Rc<RefCell<Node<'static, Fake>>>;

/// A server's log, read from its store.
pub struct StoreLog(pub Store);

impl LogBytes for StoreLog {
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        let units = self.0 .0.borrow();
        let begin = u64::from(slab)
            .checked_mul(Units::SLAB_BYTES)
            .and_then(|at| at.checked_add(pos));
        let end = begin.and_then(|at| at.checked_add(len));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(FsError::Invalid);
        };
        let range = usize::try_from(begin).unwrap_or(usize::MAX)
            ..usize::try_from(end).unwrap_or(usize::MAX);
        out.extend_from_slice(units.bytes.get(range).ok_or(FsError::Invalid)?);
        Ok(())
    }
}

/// The only server of an instance: a request is done when the call returns.
pub struct World {
    pub cluster: Cluster<Fake>,
    node: SharedNode,
    pub open: OpenRegion<'static>,
    pub view: NamesView<'static>,
    pub store: Store,
    pub fake: Fake,
    pub now_ns: i64,
}

pub fn map(bytes: usize) -> Mapping {
    map_file(bytes).1
}

fn map_file(bytes: usize) -> (OwnedFd, Mapping) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    let file = create_sparse(rustix::fs::CWD, path.to_str().unwrap(), bytes as u64).unwrap();
    let mapping = Mapping::new(&file, bytes).unwrap();
    (file, mapping)
}

/// A region that stays mapped for good, as a node's references require.
struct LeakedRegion {
    file: OwnedFd,
    bytes: usize,
    region: Region,
}

impl LeakedRegion {
    fn new(bytes: usize) -> LeakedRegion {
        let (file, mapping) = map_file(bytes);
        let region = mapping.leak();
        LeakedRegion {
            file,
            bytes,
            region,
        }
    }

    /// Zeroes all of it.
    fn clear(&self) {
        for bytes in [0, self.bytes as u64] {
            rustix::fs::ftruncate(&self.file, bytes).unwrap();
        }
    }
}

/// The shared regions of a world. They outlive it, and can then be those of another one.
pub struct Regions {
    open: LeakedRegion,
    names: LeakedRegion,
    max_files: u32,
    blocks: usize,
    cells: usize,
}

/// The number of open file descriptions of a world.
const OFDS: usize = 256;

impl Regions {
    pub fn new(max_files: u32, (blocks, cells): (usize, usize)) -> Regions {
        let names = usize::try_from(layout(max_files).file_bytes).unwrap();
        Regions {
            open: LeakedRegion::new(open_layout(OFDS, blocks, cells).bytes),
            names: LeakedRegion::new(names),
            max_files,
            blocks,
            cells,
        }
    }
}

fn shard(rank: Rank, max_files: u32, region: &Region) -> Shard<'static> {
    let parts = layout(max_files);
    let at = |section: weir_core::names::Section| usize::try_from(section.offset_bytes).unwrap();
    let tables = Tables::format(
        region.record::<NamesHeader>(at(parts.header)).unwrap(),
        region
            .slice::<InodeRecord>(at(parts.inodes), parts.inodes.len)
            .unwrap(),
        region.slice(at(parts.arena), parts.arena.len).unwrap(),
        region.slice(at(parts.buckets), parts.buckets.len).unwrap(),
        rank,
    )
    .unwrap();
    Shard::new(tables, 0o755, Owner { uid: 0, gid: 0 }, 1).unwrap()
}

/// A server's own tables, and everything behind them.
pub struct ServerTables {
    pub node: SharedNode,
    pub open: OpenRegion<'static>,
    pub view: NamesView<'static>,
    pub store: Store,
    pub fake: Fake,
}

impl ServerTables {
    /// The tables of one of several servers, in regions that no other one uses now.
    pub fn within(regions: &Regions, (rank, servers): (Rank, u16), units: usize) -> ServerTables {
        regions.open.clear();
        regions.names.clear();
        let (blocks, cells) = (regions.blocks, regions.cells);
        let parts = open_layout(OFDS, blocks, cells);
        let region = &regions.open.region;
        let open = OpenRegion {
            hub: region.record(0).unwrap(),
            ofds: region.slice(parts.ofds, OFDS).unwrap(),
            blocks: region.slice(parts.blocks, blocks).unwrap(),
            cells: region.slice(parts.cells, cells).unwrap(),
            known: region.slice(parts.known, KNOWN_SLOTS).unwrap(),
        };
        let identity = Identity {
            rank,
            servers,
            pid: 1,
            started_ns: 1,
        };
        let (store, fake) = (Store::new(units), Fake::default());
        let names = shard(rank, regions.max_files, &regions.names.region);
        let view = names.view();
        let node = Node::new(identity, open, names, store.clone(), fake.clone(), 8);
        ServerTables {
            node: Rc::new(RefCell::new(node)),
            open,
            view,
            store,
            fake,
        }
    }
}

impl World {
    pub fn new(units: usize) -> World {
        World::sized(units, 100, 32, 32)
    }

    pub fn sized(units: usize, max_files: u32, blocks: usize, cells: usize) -> World {
        World::within(&Regions::new(max_files, (blocks, cells)), units)
    }

    /// A world in regions that no other one uses now.
    pub fn within(regions: &Regions, units: usize) -> World {
        World::with_tables(ServerTables::within(regions, (Rank(0), 1), units))
    }

    /// The only server of an instance, with these tables.
    pub fn with_tables(tables: ServerTables) -> World {
        let ServerTables { node, store, .. } = tables;
        let log = Rc::new(StoreLog(store.clone()));
        let refuse = |_| panic!("a server without others waits for nothing");
        let others = Rc::new(NoOthers);
        let cluster = Cluster::new(Rank(0), 1, Rc::clone(&node), others, log, refuse);
        World {
            cluster,
            node,
            open: tables.open,
            view: tables.view,
            store,
            fake: tables.fake,
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
        let served = self.cluster.serve(from, request).now_or_never();
        served.expect("a server without others waits for nothing")
    }

    /// The server's own tables.
    pub fn node(&self) -> RefMut<'_, Node<'static, Fake>> {
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
        let units = self.store.0.borrow();
        index.for_each_piece_in(0, size, &mut |piece| {
            let PieceSource::Log { slab, pos, .. } = piece.source else {
                return;
            };
            let (from, at) = (Units::at(slab, pos), usize::try_from(piece.offset).unwrap());
            let len = usize::try_from(piece.length).unwrap();
            bytes[at..at + len].copy_from_slice(&units.bytes[from..from + len]);
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
    pub memory: Arc<Memory>,
    lent: Option<(Lent, u64)>,
    writers: BTreeMap<Ino, Writer>,
}

impl Client {
    pub fn new(world: &mut World) -> Client {
        let id = world.node().vacant_client(ClientKind::Program).unwrap();
        let memory = Arc::new(Memory(map(client_layout().bytes)));
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
        let at = Units::at(lent.slab, pos);
        let chunk = &bytes[..usize::try_from(len).unwrap()];
        world.store.0.borrow_mut().bytes[at..at + chunk.len()].copy_from_slice(chunk);
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
    fn push(&self, memory: &Memory, live: u64) {
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
