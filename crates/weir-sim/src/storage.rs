//! A node's storage: one slab on tmpfs, which clients map as the real ones, and an account of
//! which of its units are lent and how much of each lives.
//!
//! What is lent is filled with [`FILL`] first: whoever still reads what was there sees that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use weir_core::proto::{FsError, Lent, Tier, TierStatus};
use weir_core::types::{ClientId, SegmentId};
use weir_server::cluster::LogBytes;
use weir_server::node::Space;
use weir_store::map::create_sparse;
use weir_store::slab::{SlabId, SLAB_BYTES};
use weir_store::slabmap::SlabMap;

/// Bytes of the least segment.
pub const UNIT: u64 = 4096;
/// Units that are lent at a time, at most.
const MOST_UNITS: u64 = 8;
/// What unused bytes are.
pub const FILL: u8 = 0xDD;

/// The account of one node.
#[derive(Debug)]
struct Units {
    held: Vec<bool>,
    live: Vec<u64>,
    segments: BTreeMap<u32, u64>,
    warm: bool,
    /// Refusals for want of room.
    refused: u64,
    /// Bytes that were freed and did not live.
    twice: u64,
}

/// One node's storage. Clones are the same.
#[derive(Clone, Debug)]
pub struct Storage {
    units: Rc<RefCell<Units>>,
    slabs: Rc<SlabMap>,
}

impl Storage {
    /// `units` units in a fresh slab below `dir`.
    pub fn new(dir: &Path, units: usize, warm: bool) -> Storage {
        assert!(units as u64 * UNIT <= SLAB_BYTES);
        let at = std::fs::File::open(dir).expect("the node's directory");
        create_sparse(&at, "slab-0", SLAB_BYTES).expect("a slab");
        Storage {
            units: Rc::new(RefCell::new(Units {
                held: vec![false; units],
                live: vec![0; units],
                segments: BTreeMap::new(),
                warm,
                refused: 0,
                twice: 0,
            })),
            slabs: Rc::new(SlabMap::new(dir, 1, &[])),
        }
    }

    /// The slabs, as all processes of the node map them.
    pub fn slabs(&self) -> &Rc<SlabMap> {
        &self.slabs
    }

    /// Bytes that live, and units that are lent.
    pub fn used(&self) -> (u64, usize) {
        let units = self.units.borrow();
        let held = units.held.iter().filter(|held| **held).count();
        (units.live.iter().sum(), held)
    }

    /// Bytes that were freed though they did not live.
    pub fn freed_twice(&self) -> u64 {
        self.units.borrow().twice
    }

    /// How often there was no room.
    pub fn refused(&self) -> u64 {
        self.units.borrow().refused
    }
}

impl Units {
    fn find(&self, count: u64) -> Option<usize> {
        let count = usize::try_from(count).ok()?;
        let free = |unit: usize| !self.held[unit] && self.live[unit] == 0;
        let last = self.held.len().checked_sub(count)?;
        (0..=last).find(|first| (*first..first + count).all(free))
    }

    fn change(&mut self, slab: u32, pos: u64, len: u64, add: bool) {
        assert_eq!(slab, 0, "a slab that was never lent");
        let (mut at, end) = (pos, pos + len);
        while at < end {
            let take = (UNIT - at % UNIT).min(end - at);
            let unit = usize::try_from(at / UNIT).expect("a unit");
            let live = &mut self.live[unit];
            if add {
                *live += take;
                assert!(*live <= UNIT, "counted twice at {at}");
            } else {
                self.twice += take.saturating_sub(*live);
                *live = live.saturating_sub(take);
            }
            at += take;
        }
    }
}

impl Space for Storage {
    fn grant(&mut self, _: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent> {
        let mut units = self.units.borrow_mut();
        let least = min_bytes.div_ceil(UNIT).max(1);
        let most = want_bytes.div_ceil(UNIT).min(MOST_UNITS).max(least);
        let found = [most, least]
            .into_iter()
            .find_map(|count| Some((units.find(count)?, count)));
        let Some((first, count)) = found else {
            units.refused += 1;
            return None;
        };
        let segment = u32::try_from(first).expect("a unit");
        units.segments.insert(segment, count);
        let count_here = usize::try_from(count).expect("few");
        units.held[first..first + count_here].fill(true);
        let pos = first as u64 * UNIT;
        let slab = SlabId::from_raw(0).expect("the first slab");
        let fill = vec![FILL; count_here * usize::try_from(UNIT).expect("small")];
        self.slabs.write_at(slab, pos, &fill).expect("tmpfs");
        Some(Lent {
            segment: SegmentId(segment),
            slab: 0,
            tier: Tier::Memory,
            pos,
            len: count * UNIT,
            warm: units.warm,
        })
    }

    fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        self.units.borrow_mut().change(slab, pos, len, true);
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        self.units.borrow_mut().change(slab, pos, len, false);
    }

    fn release(&mut self, segment: SegmentId) {
        let mut units = self.units.borrow_mut();
        let count = units.segments.remove(&segment.0);
        let count = count.expect("a segment is released once");
        let first = segment.0 as usize;
        let count = usize::try_from(count).expect("few");
        units.held[first..first + count].fill(false);
    }

    fn is_file(&self, _: u32) -> bool {
        false
    }

    fn usage(&self) -> Vec<TierStatus> {
        Vec::new()
    }
}

/// The server reads the slab as clients do.
pub struct Log(pub Rc<SlabMap>);

impl LogBytes for Log {
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        let id = SlabId::from_raw(slab).ok_or(FsError::Invalid)?;
        let begin = out.len();
        out.resize(
            begin + usize::try_from(len).map_err(|_| FsError::TooBig)?,
            0,
        );
        let read = self.0.read_at(id, pos, &mut out[begin..]);
        read.map_err(|_| FsError::Io)
    }
}
