//! Read-ahead against a server that is a few vectors: all bytes are of other nodes, and a read
//! brings the bytes as they were when it was requested, however late it is copied.

use core::ops::Range;
use std::cell::RefCell;

use proptest::prelude::*;
use rustix::io::Errno;
use weir_core::extent::{Run, Source};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::claim::Claim;
use weir_core::node::landing::{LandingSlot, LANDINGS};
use weir_core::node::region::Counter;
use weir_core::node::ring::{Note, Record};
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Attached, Landing, Lent, Located};
use weir_core::types::Ino;
use weir_store::map::{create_sparse, Mapping};
use weir_store::slabmap::{ReadWindow, SlabMap, Window};

use super::{FileState, Host, Log, SegmentSource, Target, Vnode};

const INO: Ino = Ino(7);
const PLACE: usize = 1 << 20;
const SIZE: u64 = 24 << 20;
/// Each of the file's runs is this long; they belong to two other nodes by turns.
const RUN: u64 = 5 << 20;

#[derive(Default)]
struct Server {
    generation: u64,
    /// The version of the file's bytes: all change at once.
    version: u64,
    refuses: bool,
    serial: u32,
    lent: Vec<Option<(u32, bool)>>,
    /// Bytes requested while a reader waits, and ahead; requests.
    bytes: [u64; 2],
    requests: u64,
    /// The servers that were asked, in order.
    asked: Vec<u16>,
    /// The bytes of each read that arrive at first, and with each wait.
    comes: Option<usize>,
    /// The clock, and how far a read of a MiB turns it.
    now_us: u64,
    mib_takes_us: u64,
    /// The number of reads after which one fails.
    fails: Option<usize>,
}

struct Far {
    slots: &'static [LandingSlot],
    pool: Window,
    slabs: SlabMap,
    log: Log,
    server: RefCell<Server>,
    _dir: tempfile::TempDir,
}

fn byte(version: u64, rank: u16, pos: u64) -> u8 {
    let mixed = (pos / 8).wrapping_mul(0x9e37_79b9) ^ version << 3 ^ u64::from(rank);
    (mixed % 251).to_le_bytes()[0]
}

/// The position of a byte of the file.
fn place(offset: u64) -> (u16, u64) {
    let rank = 1 + u16::try_from(offset / RUN % 2).unwrap();
    (rank, (offset / RUN / 2) * RUN + offset % RUN)
}

impl Far {
    fn new() -> Far {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = std::fs::File::open(dir.path()).unwrap();
        let map = |name: &str, len: usize| {
            let file = create_sparse(&at, name, len as u64).unwrap();
            Mapping::new(&file, len).unwrap()
        };
        let slots = map("slots", LANDINGS * size_of::<LandingSlot>()).leak();
        Far {
            slots: slots.slice(0, LANDINGS).unwrap(),
            pool: map("pool", LANDINGS * PLACE).leak_window(),
            slabs: SlabMap::new(dir.path(), 1, &[]),
            log: Log::new(),
            server: RefCell::new(Server {
                lent: vec![None; LANDINGS],
                ..Server::default()
            }),
            _dir: dir,
        }
    }

    /// Other nodes write all of the file anew.
    fn overwrite(&self) {
        let mut server = self.server.borrow_mut();
        server.version += 1;
        server.generation += 1;
    }

    fn take_back(&self) {
        for (slot, lent) in self.slots.iter().zip(&self.server.borrow().lent) {
            if let Some((serial, true)) = lent {
                slot.take_back(*serial);
            }
        }
    }

    fn in_use(&self) -> usize {
        let server = self.server.borrow();
        let lent = self.slots.iter().zip(&server.lent);
        lent.filter(|(slot, lent)| lent.is_some_and(|(serial, _)| !slot.is_over(serial)))
            .count()
    }

    fn read(&self, vnode: &Vnode, offset: u64, len: usize) {
        let mut bytes = vec![0; len];
        let read = vnode.read_at(self, offset, &mut bytes).unwrap();
        let left = SIZE.saturating_sub(offset);
        assert_eq!(read, len.min(usize::try_from(left).unwrap()));
        let mut server = self.server.borrow_mut();
        server.now_us += ((len as u64) * server.mib_takes_us) >> 20;
        drop(server);
        let version = self.server.borrow().version;
        for (at, got) in (offset..).zip(&bytes[..read]).step_by(97) {
            let (rank, pos) = place(at);
            assert_eq!(*got, byte(version, rank, pos), "at {at}");
        }
    }
}

impl SegmentSource for Far {
    fn segment(&self, _: u64, _: u64) -> Result<Lent, Errno> {
        unreachable!("nothing is written")
    }

    fn note(&self, _: Note) {}

    fn slabs(&self) -> &SlabMap {
        &self.slabs
    }
}

impl Host for Far {
    fn cells(&self) -> &'static [Cell] {
        &[]
    }
    fn blocks(&self) -> &'static [FileBlock] {
        &[]
    }
    fn file(&self, _: Ino) -> Result<FileState, Errno> {
        Ok(FileState {
            size: SIZE,
            generation: self.server.borrow().generation,
            block: None,
            mapped: false,
            evicted: false,
        })
    }
    fn log(&self) -> &Log {
        &self.log
    }
    fn attach(&self, _: Ino) -> Result<Attached, Errno> {
        unreachable!("nothing is written")
    }
    fn locate(&self, _: Ino, _: u64, _: u64) -> Result<Located, Errno> {
        let run = |offset: u64| {
            let (rank, pos) = place(offset);
            Run {
                offset,
                length: RUN.min(SIZE - offset),
                stride: 0,
                count: 1,
                stamp: 1,
                source: Source::Log {
                    rank,
                    slab: 0,
                    pos,
                    pos_stride: 0,
                },
            }
        };
        Ok(Located {
            generation: self.server.borrow().generation,
            known_from: 0,
            known_to: u64::MAX,
            runs: (0..SIZE)
                .step_by(usize::try_from(RUN).unwrap())
                .map(run)
                .collect(),
        })
    }
    fn rank(&self) -> u16 {
        0
    }
    fn ask(&self, _: Ino, reads: &[Vec<LogRange>], ahead: bool) -> Result<Vec<Landing>, Errno> {
        let mut server = self.server.borrow_mut();
        server.requests += 1;
        let mut landings = Vec::new();
        for read in reads {
            if ahead && server.refuses {
                break;
            }
            let is_free = |(slot, lent): (&LandingSlot, &Option<(u32, bool)>)| {
                lent.is_none_or(|(serial, _)| slot.is_over(serial))
            };
            let mut slots = self.slots.iter().zip(&server.lent);
            let Some(number) = slots.position(is_free) else {
                break;
            };
            server.serial += 1;
            server.asked.push(read[0].rank);
            server.fails = server.fails.map(|left| left.wrapping_sub(1));
            let serial = server.serial;
            server.lent[number] = Some((serial, ahead));
            self.slots[number].lend(serial, ahead);
            let mut at = number * PLACE;
            let begin = at;
            for range in read {
                let bytes: Vec<u8> = (range.pos..range.pos + range.len)
                    .map(|pos| byte(server.version, range.rank, pos))
                    .collect();
                self.pool.write(at, &bytes);
                at += bytes.len();
                server.bytes[usize::from(ahead)] += range.len;
            }
            let came = (at - begin).min(server.comes.unwrap_or(PLACE));
            self.slots[number].arrive(u32::try_from(came).unwrap());
            if server.fails == Some(0) {
                self.slots[number].fail();
            }
            landings.push(Landing {
                slot: u16::try_from(number).unwrap(),
                at: u32::try_from(begin).unwrap(),
                serial,
            });
        }
        Ok(landings)
    }
    fn arrive(
        &self,
        landing: Landing,
        part: Range<usize>,
        wait: bool,
        show: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno> {
        let slot = self.slot(landing).unwrap();
        let came = slot.arrived().map_err(|_| Errno::IO)? as usize;
        if wait && came <= part.start {
            // The next bytes of this read arrive, and of no other.
            let step = self.server.borrow().comes.unwrap_or(PLACE);
            slot.arrive(u32::try_from(part.end.min(came + step)).unwrap());
            return self.arrive(landing, part, wait, show);
        }
        let upto = came.clamp(part.start, part.end);
        let pool = self.pool.for_reading();
        let place = pool.part(landing.at as usize, part.end).unwrap();
        show(
            part.start,
            place.part(part.start, upto - part.start).unwrap(),
        );
        Ok(upto)
    }
    fn slot(&self, landing: Landing) -> Option<&LandingSlot> {
        self.slots.get(usize::from(landing.slot))
    }
    fn now_us(&self) -> u64 {
        self.server.borrow().now_us
    }

    fn is_left_behind(&self) -> bool {
        false
    }
    fn publish(&self, _: Ino) -> Result<(), Errno> {
        Ok(())
    }
    fn append(&self, _: Ino, _: u64, _: Option<u64>) -> Result<u64, Errno> {
        unreachable!("nothing is written")
    }
    fn token(&self, _: Ino, _: &Claim, _: &Claim) -> Result<Claim, Errno> {
        unreachable!("nothing is written")
    }
    fn audits(&self) -> bool {
        false
    }
    fn audit(&self, _: Ino, _: u64, _: u64) -> Result<(), Errno> {
        unreachable!("nothing is audited")
    }
    fn push(&self, _: &Record) -> Result<(), Errno> {
        unreachable!("nothing is written")
    }
    fn count(&self, _: Counter, _: u64) {}
}

fn vnode() -> Vnode {
    let vnode = Vnode::new();
    vnode.open(INO);
    vnode
}

#[test]
fn a_sequential_reader_waits_for_its_first_reads_only() {
    for step in [4 << 10, 100_000, 1 << 20, 3 << 20] {
        let (far, vnode) = (Far::new(), vnode());
        for at in (0..SIZE).step_by(step) {
            far.read(&vnode, at, step);
        }
        let server = far.server.borrow();
        assert_eq!(server.bytes[0] + server.bytes[1], SIZE, "each byte once");
        // While the pace is unknown, no more than 2 MiB are fetched ahead.
        let waited = 2 * step + step.saturating_sub(2 << 20);
        assert_eq!(server.bytes[0], waited as u64, "steps of {step}");
        assert!(server.requests < 14, "{} requests", server.requests);
        assert_eq!(far.in_use(), 0, "used up");
    }
}

#[test]
fn a_strided_reader_waits_for_its_first_reads_only() {
    for (len, stride) in [
        (8, 4096),
        (4 << 10, 16 << 10),
        (100_000, 300_001),
        (1 << 20, 3 << 20),
    ] {
        let (far, vnode) = (Far::new(), vnode());
        let offsets: Vec<u64> = (0..SIZE).step_by(stride).collect();
        for at in &offsets {
            far.read(&vnode, *at, len);
        }
        let server = far.server.borrow();
        let cut = (offsets.last().unwrap() + len as u64).saturating_sub(SIZE);
        let all = (offsets.len() * len) as u64 - cut;
        assert_eq!(server.bytes[0] + server.bytes[1], all, "each byte once");
        assert_eq!(server.bytes[0], 3 * len as u64, "{len} of {stride}");
        // The first three; then those ahead, first of two pieces, then of a window.
        assert!(server.requests < 64, "{} requests", server.requests);
        drop(server);
        assert_eq!(far.in_use(), 0, "used up");
    }
}

#[test]
fn a_few_pieces_at_equal_distances_fetch_few_that_are_not_read() {
    let (far, vnode) = (Far::new(), vnode());
    for plane in 0..20 {
        for row in 0..4 {
            far.read(&vnode, plane * plane * 50_000 + row * 10_007, 1000);
        }
    }
    let bytes = far.server.borrow().bytes;
    // Of each plane 4,000 bytes are read, and at most as many are not.
    assert!(bytes[0] + bytes[1] <= 20 * 8_000, "{bytes:?}");
}

#[test]
fn a_strided_reader_that_goes_elsewhere_leaves_a_window() {
    let (far, vnode) = (Far::new(), vnode());
    far.server.borrow_mut().mib_takes_us = 4_000;
    for at in (0..4 << 20).step_by(16 << 10) {
        far.read(&vnode, at, 4 << 10);
    }
    let bytes = far.server.borrow().bytes;
    // A MiB was read. What lasts the reader 8 ms is some more than 2 MiB, as its clock counts in us.
    assert!(bytes[0] + bytes[1] <= (1 << 20) + (9 << 18), "{bytes:?}");
    // Back at the begin, at another distance.
    for at in (0..SIZE).step_by(1 << 20) {
        far.read(&vnode, at + 5, 1000);
    }
    assert_eq!(far.server.borrow().bytes[0], bytes[0] + 3 * 1000);
}

#[test]
fn no_more_is_fetched_ahead_than_the_reader_uses_up_soon() {
    for (takes, ahead) in [(100, 8 << 20), (4_000, 2 << 20), (40_000, 1 << 19)] {
        let (far, vnode) = (Far::new(), vnode());
        far.server.borrow_mut().mib_takes_us = takes;
        for at in (0..10 << 20).step_by(1 << 20) {
            far.read(&vnode, at, 1 << 20);
        }
        let bytes = far.server.borrow().bytes;
        let more = bytes[0] + bytes[1] - (10 << 20);
        assert!(more <= ahead && more >= ahead / 2, "{takes}: {more}");
    }
}

#[test]
fn several_sequences_are_followed_and_random_reads_fetch_nothing_ahead() {
    let (far, vnode) = (Far::new(), vnode());
    for at in (0..SIZE / 4).step_by(1 << 16) {
        for part in 0..4 {
            far.read(&vnode, part * SIZE / 4 + at, 1 << 16);
        }
    }
    // The fourth one follows the third one as that the second one.
    assert_eq!(far.server.borrow().bytes[0], 7 << 16);
    let ahead = far.server.borrow().bytes[1];
    for i in 0..200 {
        // No two of them are as far apart as the two before.
        far.read(&vnode, i * i * 7_919 % SIZE, 5000);
    }
    assert_eq!(far.server.borrow().bytes[1], ahead);
}

#[test]
fn a_closed_file_holds_nothing() {
    let (far, vnode) = (Far::new(), vnode());
    for at in (0..8 << 20).step_by(1 << 20) {
        far.read(&vnode, at, 1 << 20);
    }
    assert!(far.in_use() > 0);
    vnode.publish_written(&far).unwrap();
    vnode.detach(&far);
    assert_eq!(far.in_use(), 0);
}

/// Reads a list of pieces, every `apart` bytes from `first` on.
fn read_list(far: &Far, vnode: &Vnode, first: u64, apart: usize, len: usize) -> Result<(), Errno> {
    let offsets: Vec<u64> = (first..SIZE).step_by(apart).collect();
    let mut pieces = vec![vec![0; len]; offsets.len()];
    let targets = offsets.iter().zip(&mut pieces);
    let mut targets: Vec<Target<'_>> = targets
        .map(|(offset, bytes)| Target {
            offset: *offset,
            bytes,
        })
        .collect();
    vnode.read_all(far, &mut targets)?;
    let version = far.server.borrow().version;
    for target in &targets {
        let len = (SIZE - target.offset).min(len as u64);
        assert_eq!(target.bytes.len() as u64, len);
        for (at, got) in (target.offset..).zip(&*target.bytes).step_by(97) {
            let (rank, pos) = place(at);
            assert_eq!(*got, byte(version, rank, pos), "at {at}");
        }
    }
    Ok(())
}

#[test]
fn a_list_is_brought_by_a_window_that_moves() {
    let (far, vnode) = (Far::new(), vnode());
    read_list(&far, &vnode, 0, 1 << 19, 1 << 19).unwrap();
    let server = far.server.take();
    assert_eq!(server.bytes[0] + server.bytes[1], SIZE, "each byte once");
    // 14 MiB are of one server and 10 of the other.
    assert_eq!(server.asked[..20], [1, 2].repeat(10), "servers by turns");
}

#[test]
fn a_list_that_fails_gives_all_back() {
    let (far, vnode) = (Far::new(), vnode());
    far.server.borrow_mut().comes = Some(100_000);
    read_list(&far, &vnode, 5, 700_001, 400_000).unwrap();
    assert_eq!(far.in_use(), 0);
    far.server.borrow_mut().fails = Some(9);
    let failed = read_list(&far, &vnode, 5, 700_001, 400_000);
    assert_eq!((failed, far.in_use()), (Err(Errno::IO), 0));
}

#[derive(Clone, Debug)]
enum Step {
    List(u64, usize, usize),
    Comes(Option<usize>),
    /// One of the readers continues.
    On(usize, usize),
    Seek(usize, u64),
    /// One of the readers reads pieces with gaps between them.
    Stride(usize, usize, usize, usize),
    Overwrite,
    TakeBack,
    Refuse(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..6_usize, 1..1_500_000_usize).prop_map(|(who, len)| Step::On(who, len)),
        1 => (0..SIZE, 60_000..9_000_000_usize, 1..2_000_000_usize)
            .prop_map(|(first, apart, len)| Step::List(first, apart, len)),
        1 => proptest::option::of(50_000..PLACE).prop_map(Step::Comes),
        3 => (0..6_usize, 0..SIZE).prop_map(|(who, at)| Step::Seek(who, at)),
        2 => (0..6_usize, 1..300_000_usize, 0..2_000_000_usize, 1..12_usize)
            .prop_map(|(who, len, gap, pieces)| Step::Stride(who, len, gap, pieces)),
        1 => Just(Step::Overwrite),
        1 => Just(Step::TakeBack),
        1 => any::<bool>().prop_map(Step::Refuse),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Reads return current bytes, whatever is fetched ahead, refused, taken back or made stale.
    #[test]
    fn reads_are_never_of_before(steps in proptest::collection::vec(step(), 1..80)) {
        let (far, vnode) = (Far::new(), vnode());
        let mut readers = [0; 6];
        for step in steps {
            match step {
                Step::On(who, len) => {
                    far.read(&vnode, readers[who], len);
                    readers[who] += len as u64;
                }
                Step::Stride(who, len, gap, pieces) => {
                    for _ in 0..pieces {
                        far.read(&vnode, readers[who], len);
                        readers[who] += (len + gap) as u64;
                    }
                }
                Step::List(first, apart, len) => read_list(&far, &vnode, first, apart, len).unwrap(),
                Step::Comes(bytes) => far.server.borrow_mut().comes = bytes,
                Step::Seek(who, at) => readers[who] = at,
                Step::Overwrite => far.overwrite(),
                Step::TakeBack => far.take_back(),
                Step::Refuse(refuses) => far.server.borrow_mut().refuses = refuses,
            }
        }
        vnode.publish_written(&far).unwrap();
        vnode.detach(&far);
        prop_assert_eq!(far.in_use(), 0);
    }
}
