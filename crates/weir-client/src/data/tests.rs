//! The data path against a server that is a few vectors, and a model that is bytes.

use core::ops::Range;
use core::sync::atomic::{fence, AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rustix::io::Errno;
use weir_core::extent::{ExtentIndex, PieceSource, Run, Source};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::claim::Claim;
use weir_core::node::landing::LandingSlot;
use weir_core::node::region::Counter;
use weir_core::node::ring::{Note, Record};
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Attached, Landing, Lent, Located, Tier};
use weir_core::types::{Ino, SegmentId};
use weir_store::map::create_sparse;
use weir_store::slab::SlabId;
use weir_store::slabmap::{ReadWindow, SlabMap};

use super::pieces::index;
use super::{FileState, Host, Log, SegmentSource, Vnode};

const SLAB: u64 = 64 << 20;
const INO: Ino = Ino(7);

/// The memory that the processes of a node share, and the server's side of it.
struct Node {
    _dir: tempfile::TempDir,
    blocks: &'static [FileBlock],
    cells: &'static [Cell],
    server: Mutex<Server>,
    path: std::path::PathBuf,
    conflicts: AtomicU32,
    records: AtomicU32,
}

#[derive(Default)]
struct Server {
    /// Every record seen, by stamp and offset, at its greatest length.
    seen: BTreeMap<(u64, u64), Run>,
    generation: u64,
    next_cell: u32,
    next_segment: u32,
    segment_bytes: u64,
    size_at_rest: u64,
    warm: bool,
    /// The number of requests for a write token, and the bytes that each token is for.
    tokens: u32,
    token_bytes: u64,
    /// The number of requests for the position of bytes.
    looks: u32,
    /// Takes the block back just after the next look at the namespace.
    take_back: bool,
    taken_back: bool,
}

fn leak<T: Default>(n: usize) -> &'static [T] {
    (0..n).map(|_| T::default()).collect::<Vec<T>>().leak()
}

impl Node {
    fn new(segment_bytes: u64, warm: bool) -> Arc<Node> {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = std::fs::File::open(dir.path()).unwrap();
        create_sparse(&file, "slab-0", SLAB).unwrap();
        let blocks: &'static [FileBlock] = leak(1);
        blocks[0].lend(INO.0, 0, 1);
        Arc::new(Node {
            path: dir.path().to_path_buf(),
            _dir: dir,
            blocks,
            cells: leak(64),
            server: Mutex::new(Server {
                segment_bytes,
                warm,
                ..Server::default()
            }),
            conflicts: AtomicU32::new(0),
            records: AtomicU32::new(0),
        })
    }

    fn process(self: &Arc<Node>) -> Process {
        Process {
            node: self.clone(),
            log: Log::new(),
            slabs: SlabMap::new(&self.path, 1, &[]),
        }
    }

    fn harvest(&self, server: &mut Server) {
        for (_, cell) in self.blocks[0].cells(self.cells) {
            let (state, live) = cell.state();
            if state.stamp == 0 {
                continue;
            }
            let run = |offset, length, stride, count, pos| Run {
                offset,
                length,
                stride,
                count,
                stamp: state.stamp,
                source: Source::Log {
                    rank: 0,
                    slab: state.slab,
                    pos,
                    pos_stride: if count > 1 { length } else { 0 },
                },
            };
            if state.count > 0 {
                let stride = if state.count > 1 { state.stride } else { 0 };
                server.see(run(
                    state.offset,
                    state.length,
                    stride,
                    state.count,
                    state.pos,
                ));
            }
            if live > 0 {
                server.see(run(state.live_offset(), live, 0, 1, state.live_pos()));
            }
        }
    }
}

impl Server {
    fn see(&mut self, run: Run) {
        self.generation += 1;
        let entry = self.seen.entry((run.stamp, run.offset)).or_insert(run);
        if (run.count, run.length) > (entry.count, entry.length) {
            *entry = run;
        }
    }
}

/// One process of the node.
struct Process {
    node: Arc<Node>,
    log: Log,
    slabs: SlabMap,
}

impl SegmentSource for Process {
    fn segment(&self, min: u64, _want: u64) -> Result<Lent, Errno> {
        let mut server = self.node.server.lock().unwrap();
        let len = server.segment_bytes;
        let segment = server.next_segment;
        if min > len || u64::from(segment + 1) * len > SLAB {
            return Err(Errno::NOSPC);
        }
        server.next_segment += 1;
        Ok(Lent {
            segment: SegmentId(segment),
            slab: 0,
            tier: Tier::Memory,
            pos: u64::from(segment) * len,
            len,
            warm: server.warm,
        })
    }

    fn note(&self, note: Note) {
        if let Note::Detach(cell) = note {
            let mut server = self.node.server.lock().unwrap();
            self.node.harvest(&mut server);
            let block = &self.node.blocks[0];
            block.raise(block.size(self.node.cells));
            let gone = &self.node.cells[cell as usize];
            gone.withdraw_claim();
            // Unlink it.
            let next = gone.next.load(Ordering::Relaxed);
            if block.head.load(Ordering::Relaxed) == cell + 1 {
                block.head.store(next, Ordering::Release);
            } else {
                let before = block
                    .cells(self.node.cells)
                    .find(|(_, c)| c.next.load(Ordering::Relaxed) == cell + 1);
                before.unwrap().1.next.store(next, Ordering::Release);
            }
        }
    }

    fn slabs(&self) -> &SlabMap {
        &self.slabs
    }
}

impl Host for Process {
    fn append(&self, _: Ino, _: u64, _: Option<u64>) -> Result<u64, Errno> {
        unreachable!("one node")
    }
    fn token(&self, _: Ino, needed: &Claim, _: &Claim) -> Result<Claim, Errno> {
        let mut server = self.node.server.lock().unwrap();
        server.tokens += 1;
        let length = server.token_bytes.max(needed.length);
        Ok(Claim::range(needed.offset, length))
    }
    fn fences(&self) -> bool {
        true
    }
    fn audits(&self) -> bool {
        false
    }
    fn audit(&self, _: Ino, _: u64, _: u64) -> Result<(), Errno> {
        unreachable!("nothing is audited")
    }
    fn cells(&self) -> &'static [Cell] {
        self.node.cells
    }
    fn blocks(&self) -> &'static [FileBlock] {
        self.node.blocks
    }
    fn file(&self, ino: Ino) -> Result<FileState, Errno> {
        assert_eq!(ino, INO);
        let mut server = self.node.server.lock().unwrap();
        let state = FileState {
            size: server.size_at_rest,
            generation: server.generation,
            block: (!server.taken_back).then_some(0),
            mapped: false,
            evicted: false,
        };
        if std::mem::take(&mut server.take_back) {
            self.node.harvest(&mut server);
            let block = &self.node.blocks[0];
            server.size_at_rest = block.size(self.node.cells);
            server.taken_back = true;
            block.ino.store(0, Ordering::Release);
        }
        Ok(state)
    }
    fn log(&self) -> &Log {
        &self.log
    }
    fn rank(&self) -> u16 {
        0
    }
    fn ask(&self, _: Ino, _: &[Vec<LogRange>], _: bool) -> Result<Vec<Landing>, Errno> {
        panic!("all bytes are of this node")
    }
    fn arrive(
        &self,
        _: Landing,
        _: Range<usize>,
        _: bool,
        _: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno> {
        panic!("all bytes are of this node")
    }
    fn slot(&self, _: Landing) -> Option<&LandingSlot> {
        None
    }
    fn now_us(&self) -> u64 {
        0
    }

    fn is_left_behind(&self) -> bool {
        core::sync::atomic::fence(Ordering::SeqCst);
        false
    }

    fn publish(&self, _: Ino) -> Result<(), Errno> {
        Ok(())
    }
    fn attach(&self, _ino: Ino) -> Result<Attached, Errno> {
        let mut server = self.node.server.lock().unwrap();
        let cell = server.next_cell;
        server.next_cell += 1;
        let block = &self.node.blocks[0];
        let next = block.head.load(Ordering::Relaxed);
        self.node.cells[cell as usize].lend(0, cell, next);
        block.head.store(cell + 1, Ordering::Release);
        Ok(Attached { block: 0, cell })
    }
    fn locate(&self, _ino: Ino, offset: u64, length: u64) -> Result<Located, Errno> {
        let mut server = self.node.server.lock().unwrap();
        self.node.harvest(&mut server);
        server.looks += 1;
        let mut index = ExtentIndex::new();
        for run in server.seen.values() {
            index.insert(*run, &mut |_| ()).unwrap();
        }
        let mut runs = Vec::new();
        let known = index.runs_in(offset, offset + length, 4, &mut runs);
        Ok(Located {
            generation: server.generation,
            known_from: known.lo,
            known_to: known.hi,
            runs,
        })
    }
    fn push(&self, r: &Record) -> Result<(), Errno> {
        let mut server = self.node.server.lock().unwrap();
        server.see(Run {
            offset: r.offset,
            length: r.length,
            stride: r.stride,
            count: r.count,
            stamp: r.stamp,
            source: Source::Log {
                rank: 0,
                slab: r.slab,
                pos: r.pos,
                pos_stride: if r.count > 1 { r.length } else { 0 },
            },
        });
        Ok(())
    }
    fn count(&self, counter: Counter, n: u64) {
        let n = u32::try_from(n).unwrap();
        match counter {
            Counter::Conflicts => self.node.conflicts.fetch_add(n, Ordering::Relaxed),
            Counter::Records => self.node.records.fetch_add(n, Ordering::Relaxed),
            _ => 0,
        };
    }
}

fn vnode() -> Vnode {
    let vnode = Vnode::new();
    vnode.open(INO);
    vnode
}

fn byte(at: u64, salt: u64) -> u8 {
    u8::try_from((at.wrapping_mul(31) ^ (at >> 8) ^ salt.wrapping_mul(131)) % 251).unwrap()
}

fn pattern(offset: u64, length: u64, salt: u64) -> Vec<u8> {
    (offset..offset + length).map(|at| byte(at, salt)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        who: usize,
        offset: u64,
        length: u64,
    },
    Go {
        who: usize,
        length: u64,
        times: u64,
    },
    Stride {
        who: usize,
        offset: u64,
        length: u64,
        gap: u64,
        times: u64,
    },
    Append {
        who: usize,
        length: u64,
    },
    Read {
        who: usize,
        offset: u64,
        length: u64,
    },
    Detach {
        who: usize,
    },
}

const WHO: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let who = 0..WHO;
    let at = prop_oneof![0u64..300, 0u64..30_000];
    let length = prop_oneof![1u64..100, 1u64..9_000];
    prop_oneof![
        4 => (who.clone(), at.clone(), length.clone()).prop_map(|(who, offset, length)| Step::Write { who, offset, length }),
        3 => (who.clone(), length.clone(), 1u64..8).prop_map(|(who, length, times)| Step::Go { who, length, times }),
        2 => (who.clone(), at.clone(), 1u64..60, 0u64..200, 2u64..9).prop_map(|(who, offset, length, gap, times)| Step::Stride { who, offset, length, gap, times }),
        2 => (who.clone(), length.clone()).prop_map(|(who, length)| Step::Append { who, length }),
        4 => (who.clone(), at, length).prop_map(|(who, offset, length)| Step::Read { who, offset, length }),
        1 => who.prop_map(|who| Step::Detach { who }),
    ]
}

/// Runs a program of operations and checks each result against plain bytes.
fn run(steps: &[Step], segment_bytes: u64, warm: bool) {
    let node = Node::new(segment_bytes, warm);
    let processes: Vec<Process> = (0..WHO).map(|_| node.process()).collect();
    let vnodes: Vec<Vnode> = (0..WHO).map(|_| vnode()).collect();
    let mut next = [0u64; WHO];
    let mut model: Vec<u8> = Vec::new();
    let mut salt = 0;
    let mut write = |model: &mut Vec<u8>, who: usize, offset: u64, length: u64| {
        salt += 1;
        let bytes = pattern(offset, length, salt);
        let done = vnodes[who].write_at(&processes[who], offset, &bytes);
        assert_eq!(done, Ok(bytes.len()));
        put(model, offset, &bytes);
    };
    for step in steps {
        match *step {
            Step::Write {
                who,
                offset,
                length,
            } => {
                write(&mut model, who, offset, length);
                next[who] = offset + length;
            }
            Step::Go { who, length, times } => {
                for _ in 0..times {
                    write(&mut model, who, next[who], length);
                    next[who] += length;
                }
            }
            Step::Stride {
                who,
                offset,
                length,
                gap,
                times,
            } => {
                for i in 0..times {
                    write(&mut model, who, offset + i * (length + gap), length);
                }
            }
            Step::Append { who, length } => {
                let bytes = pattern(model.len() as u64, length, 77);
                let done = vnodes[who].append(&processes[who], &bytes);
                assert_eq!(done, Ok((model.len() as u64, bytes.len())));
                model.extend(bytes);
            }
            Step::Read {
                who,
                offset,
                length,
            } => check(&vnodes[who], &processes[who], &model, offset, length),
            Step::Detach { who } => {
                vnodes[who].publish_written(&processes[who]).unwrap();
                vnodes[who].detach(&processes[who]);
            }
        }
        for who in 0..WHO {
            assert_eq!(vnodes[who].size(&processes[who]), Ok(model.len() as u64));
        }
    }
    for who in 0..WHO {
        check(
            &vnodes[who],
            &processes[who],
            &model,
            0,
            model.len() as u64 + 5,
        );
    }
}

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let offset = usize::try_from(offset).unwrap();
    if model.len() < offset + bytes.len() {
        model.resize(offset + bytes.len(), 0);
    }
    model[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn check(vnode: &Vnode, process: &Process, model: &[u8], offset: u64, length: u64) {
    let mut bytes = vec![0xEE; usize::try_from(length).unwrap()];
    let got = vnode.read_at(process, offset, &mut bytes).unwrap();
    let from = usize::try_from(offset).unwrap().min(model.len());
    let to = (from + bytes.len()).min(model.len());
    assert_eq!(got, to - from);
    assert!(bytes[..got] == model[from..to], "at {offset} for {length}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn what_is_read_is_what_was_written_last(steps in proptest::collection::vec(step(), 1..60), warm: bool) {
        run(&steps, 1 << 20, warm);
    }
}

/// A writes, B overwrites it, A continues behind: B's bytes stay (the design's example).
#[test]
fn coalescing_carries_no_older_write_past_a_newer_one() {
    let steps = [
        Step::Write {
            who: 0,
            offset: 0,
            length: 64,
        },
        Step::Write {
            who: 1,
            offset: 0,
            length: 64,
        },
        Step::Go {
            who: 0,
            length: 64,
            times: 1,
        },
        Step::Read {
            who: 2,
            offset: 0,
            length: 128,
        },
    ];
    run(&steps, 1 << 20, true);
}

/// The last writer was killed, and the server takes its block back between a reader's
/// look at the namespace, which still says 0 bytes, and its look at the block.
#[test]
fn a_block_taken_back_between_two_looks_hides_no_bytes() {
    let whole = pattern(0, 5000, 1);
    for ask_size in [false, true] {
        let node = Node::new(1 << 20, true);
        let (writer, reader) = (node.process(), node.process());
        assert_eq!(vnode().write_at(&writer, 0, &whole), Ok(5000));
        node.server.lock().unwrap().take_back = true;
        if ask_size {
            assert_eq!(vnode().size(&reader), Ok(5000));
        } else {
            let mut back = vec![0; 6000];
            assert_eq!(vnode().read_at(&reader, 0, &mut back), Ok(5000));
            assert_eq!(back[..5000], whole[..]);
        }
        assert!(node.server.lock().unwrap().taken_back);
    }
}

#[test]
fn strided_and_segmented_checkpoints_cost_few_records() {
    let node = Node::new(4 << 20, true);
    let processes: Vec<Process> = (0..4).map(|_| node.process()).collect();
    let vnodes: Vec<Vnode> = (0..4).map(|_| vnode()).collect();
    let piece = vec![5; 4_700];
    for i in 0..500u64 {
        for (r, (vnode, process)) in vnodes.iter().zip(&processes).enumerate() {
            let offset = (i * 4 + r as u64) * 4_700;
            assert_eq!(vnode.write_at(process, offset, &piece), Ok(4_700));
        }
    }
    let records = node.records.load(Ordering::Relaxed);
    let conflicts = node.conflicts.load(Ordering::Relaxed);
    assert!(records <= 4 * 6, "{records} records, {conflicts} conflicts");
    for (r, (vnode, process)) in vnodes.iter().zip(&processes).enumerate() {
        vnode.publish_written(process).unwrap();
        vnode.detach(process);
        for i in 0..600u64 {
            let offset = (100 << 20) + r as u64 * (4 << 20) + i * 4_700;
            assert_eq!(vnode.write_at(process, offset, &piece), Ok(4_700));
        }
    }
    let more = node.records.load(Ordering::Relaxed) - records;
    assert!(more <= 4 * 16, "{more} records for a segmented file");
}

#[test]
fn scattered_reads_of_a_fragmented_file_soon_ask_nothing() {
    const PIECES: u64 = 101;
    const PIECE: u64 = 4096;
    let node = Node::new(1 << 20, true);
    let (writer, reader) = (node.process(), node.process());
    let (writers, readers) = (vnode(), vnode());
    let scattered = || (0..PIECES).map(|i| (i * i * i + 7 * i) % PIECES * PIECE);
    let mut model = vec![0; usize::try_from(PIECES * PIECE).unwrap()];
    let write = |model: &mut Vec<u8>, offset, salt| {
        let bytes = pattern(offset, PIECE, salt);
        assert_eq!(writers.write_at(&writer, offset, &bytes), Ok(bytes.len()));
        put(model, offset, &bytes);
    };
    scattered().for_each(|offset| write(&mut model, offset, 1));
    let rest = || {
        writers.publish_written(&writer).unwrap();
        writers.detach(&writer);
    };
    let read_all = |model: &[u8]| {
        let before = node.server.lock().unwrap().looks;
        for offset in scattered() {
            check(&readers, &reader, model, offset / 2, PIECE);
            check(&readers, &reader, model, offset, 3 * PIECE);
        }
        node.server.lock().unwrap().looks - before
    };
    rest();
    assert!(read_all(&model) > 0);
    assert_eq!(read_all(&model), 0);
    write(&mut model, 5 * PIECE + 1, 2);
    rest();
    assert!(read_all(&model) > 0);
    assert_eq!(read_all(&model), 0);
}

#[test]
fn data_and_holes_are_found_as_in_an_array_of_bytes() {
    let node = Node::new(1 << 20, true);
    let (writer, other, file, others) = (node.process(), node.process(), vnode(), vnode());
    let mut model = vec![false; 4096];
    let mut write = |process: &Process, file: &Vnode, at: usize, length: usize| {
        let bytes = vec![1; length];
        assert_eq!(file.write_at(process, at as u64, &bytes), Ok(length));
        model[at..at + length].fill(true);
        model.clone()
    };
    let agree = |model: &[bool]| {
        let size = model
            .iter()
            .rposition(|data| *data)
            .map_or(0, |last| last + 1);
        for at in 0..size + 2 {
            let rest = || (at..size).zip(&model[at..]);
            let data = rest().find(|(_, data)| **data).map(|(at, _)| at as u64);
            let hole = rest().find(|(_, data)| !**data).map(|(at, _)| at as u64);
            let hole = hole.or((at < size).then_some(size as u64));
            assert_eq!(
                file.seek(&writer, at as u64, false),
                Ok(data),
                "data from {at}"
            );
            assert_eq!(
                file.seek(&writer, at as u64, true),
                Ok(hole),
                "a hole from {at}"
            );
        }
    };
    // Many more pieces than one look-up reports, at unequal distances.
    let mut last = Vec::new();
    for piece in 0..40 {
        last = write(
            &writer,
            &file,
            piece * 90 + piece * piece % 7,
            5 + piece % 11,
        );
    }
    agree(&last);
    // Another process fills a hole, and then two pieces meet.
    agree(&write(&other, &others, 1000, 20));
    agree(&write(&other, &others, 1020, 200));
}

#[test]
fn what_does_not_fit_says_so_and_what_did_is_there() {
    let node = Node::new(16 << 20, true);
    let process = node.process();
    let file = vnode();
    let bytes = vec![3; 20 << 20];
    let mut wrote = 0;
    let errno = loop {
        match file.write_at(&process, wrote, &bytes) {
            Ok(n) => wrote += n as u64,
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, Errno::NOSPC);
    assert_eq!(wrote, SLAB);
    assert_eq!(file.size(&process), Ok(SLAB));
    let mut back = vec![0; 1 << 20];
    for offset in (0..SLAB).step_by(1 << 20) {
        assert_eq!(file.read_at(&process, offset, &mut back), Ok(1 << 20));
        assert!(back.iter().all(|b| *b == 3));
    }
}

#[test]
fn a_write_token_is_asked_for_once_until_it_is_taken_away() {
    const PIECE: u64 = 64 << 10;
    let node = Node::new(16 << 20, true);
    let (process, file) = (node.process(), vnode());
    node.server.lock().unwrap().token_bytes = 100 * PIECE;
    let block = &node.blocks[0];
    block.revoke();
    let asked_after = |pieces: core::ops::Range<u64>| {
        for piece in pieces {
            let offset = piece * PIECE;
            file.write_at(&process, offset, &pattern(offset, PIECE, 1))
                .unwrap();
        }
        node.server.lock().unwrap().tokens
    };
    assert_eq!(asked_after(0..50), 1);
    block.revoke();
    assert_eq!(asked_after(50..51), 2);
    // The token is for the bytes from there on.
    assert_eq!((asked_after(51..150), asked_after(150..151)), (2, 3));
    assert_eq!(asked_after(10..11), 4);
}

/// The server frees what it has settled and copied. That must never be more than what writers have finished, and what
/// they write from then on must count for more.
#[test]
fn what_is_evicted_hides_no_later_write() {
    const REGION: u64 = 32 << 10;
    const WRITES: u64 = 25_000;
    let node = Node::new(4 << 20, true);
    let reader = node.process();
    let block = &node.blocks[0];
    // By offset: the stamp of the byte, and the byte.
    let mut known = vec![(0, 0); 2 * index(REGION)];
    let harvest = |known: &mut Vec<(u64, u8)>| {
        let mut server = node.server.lock().unwrap();
        node.harvest(&mut server);
        for (_, run) in std::mem::take(&mut server.seen) {
            for piece in run.pieces_in(0, 2 * REGION) {
                let PieceSource::Log { slab, pos, .. } = piece.source else {
                    continue;
                };
                let mut bytes = vec![0; index(piece.length)];
                let slab = SlabId::from_raw(slab).unwrap();
                reader.slabs.read_at(slab, pos, &mut bytes).unwrap();
                let places = known[index(piece.offset)..].iter_mut();
                for (place, byte) in places.zip(bytes).filter(|(place, _)| place.0 <= run.stamp) {
                    *place = (run.stamp, byte);
                }
            }
        }
    };
    let write_all = |writer: u64| {
        let (process, file) = (node.process(), vnode());
        let mut expected = vec![0; index(REGION)];
        let mut numbers = pattern(0, 1 << 16, writer).into_iter().cycle();
        for number in 0..WRITES {
            let (at, length) = (numbers.next().unwrap(), numbers.next().unwrap());
            let at = u64::from(at % 7) * 4096 + number % 3;
            let bytes = pattern(number, u64::from(length) * 8 + 1, writer);
            // The logs are full at some time.
            if file
                .write_at(&process, writer * REGION + at, &bytes)
                .is_err()
            {
                break;
            }
            expected[index(at)..][..bytes.len()].copy_from_slice(&bytes);
        }
        expected
    };
    let expected = std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| scope.spawn(move || write_all(writer)));
        while !writers
            .iter()
            .all(std::thread::ScopedJoinHandle::is_finished)
        {
            let settled = block.settle();
            // The writers have barriers of their own.
            fence(Ordering::SeqCst);
            harvest(&mut known);
            let copied = known.clone();
            let evicted = block.settle();
            fence(Ordering::SeqCst);
            harvest(&mut known);
            for (place, copied) in known.iter_mut().zip(copied) {
                if place.0 > 0 && place.0 <= settled {
                    *place = (evicted, copied.1);
                }
            }
        }
        writers.map(|writer| writer.join().unwrap()).concat()
    });
    harvest(&mut known);
    let bytes: Vec<u8> = known.iter().map(|(_, byte)| *byte).collect();
    assert!(bytes == expected);
}
