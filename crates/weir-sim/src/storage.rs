//! A node's storage: one slab on tmpfs, which clients map like the real ones, and an account of the lent
//! units and the live bytes of each.
//!
//! Storage is filled with [`FILL`] before it is lent: a stale reader sees that.
//!
//! A server that takes over from a killed one learns of some bytes only how many are live in each MiB
//! ([`Accounts::amounts`]). Nothing of such a MiB is lent until all of those bytes are freed; therefore
//! the storage then has that many more units.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use weir_core::proto::{FsError, Lent, Tier, TierStatus};
use weir_core::types::{ClientId, SegmentId};
use weir_server::cluster::LogBytes;
use weir_server::node::{Accounts, RecoverError, Space};
use weir_store::map::create_sparse;
use weir_store::slab::{SlabId, SLAB_BYTES};
use weir_store::slabmap::SlabMap;

/// The size of the smallest segment, in bytes.
pub const UNIT: u64 = 4096;
/// The maximum number of units lent at a time.
const MOST_UNITS: u64 = 8;
/// The number of units in a MiB, for which a server that takes over counts together.
const UNITS_A_MIB: usize = 256;
const _: () = assert!(UNITS_A_MIB as u64 * UNIT == 1 << 20);
/// The value of unused bytes.
pub const FILL: u8 = 0xDD;

/// The account of one node.
#[derive(Debug)]
struct Units {
    held: Vec<bool>,
    live: Vec<u64>,
    /// Live bytes in a MiB at unknown positions.
    amounts: BTreeMap<usize, u64>,
    /// False until the former live bytes are known.
    counts: bool,
    segments: BTreeMap<u32, u64>,
    warm: bool,
    /// The number of refusals for lack of space.
    refused: u64,
    /// The number of bytes that were freed but not live.
    twice: u64,
}

/// One node's storage. Clones share it.
#[derive(Clone, Debug)]
pub struct Storage {
    units: Rc<RefCell<Units>>,
    slabs: Rc<SlabMap>,
}

impl Storage {
    /// Storage of `units` units, none of them lent.
    pub fn new(slabs: Rc<SlabMap>, units: usize, warm: bool) -> Storage {
        assert!(units as u64 * UNIT <= SLAB_BYTES);
        Storage {
            units: Rc::new(RefCell::new(Units {
                held: vec![false; units],
                live: vec![0; units],
                amounts: BTreeMap::new(),
                counts: true,
                segments: BTreeMap::new(),
                warm,
                refused: 0,
                twice: 0,
            })),
            slabs,
        }
    }

    /// The storage of a server that takes over from the one with `before`; [`Space::resume`] sets its
    /// account.
    pub fn after(before: &Storage) -> Storage {
        let units = before.units.borrow();
        let after = Storage::new(Rc::clone(&before.slabs), units.held.len(), units.warm);
        {
            let mut account = after.units.borrow_mut();
            (account.refused, account.twice) = (units.refused, units.twice);
            account.counts = false;
        }
        after
    }

    /// The slabs, as all processes of the node map them.
    pub fn slabs(&self) -> &Rc<SlabMap> {
        &self.slabs
    }

    /// The number of live bytes, and of lent units.
    pub fn used(&self) -> (u64, usize) {
        let units = self.units.borrow();
        let held = units.held.iter().filter(|held| **held).count();
        let live = units.live.iter().chain(units.amounts.values()).sum();
        (live, held)
    }

    /// The number of bytes that were freed but not live.
    pub fn freed_twice(&self) -> u64 {
        self.units.borrow().twice
    }

    /// The number of refusals for lack of space.
    pub fn refused(&self) -> u64 {
        self.units.borrow().refused
    }
}

/// Makes the slab below `dir`.
pub fn slab_in(dir: &Path) -> SlabMap {
    let at = std::fs::File::open(dir).expect("the node's directory");
    create_sparse(&at, "slab-0", SLAB_BYTES).expect("a slab");
    SlabMap::new(dir, 1, &[])
}

impl Units {
    fn find(&self, count: u64) -> Option<usize> {
        let count = usize::try_from(count).ok()?;
        let free = |unit: usize| {
            let known = !self.amounts.contains_key(&(unit / UNITS_A_MIB));
            known && !self.held[unit] && self.live[unit] == 0
        };
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
                let rest = take.saturating_sub(*live);
                *live = live.saturating_sub(take);
                self.twice += self.take_amount(unit / UNITS_A_MIB, rest);
            }
            at += take;
        }
    }

    /// Frees bytes that are live somewhere in a MiB; returns how many of them were not.
    fn take_amount(&mut self, mib: usize, bytes: u64) -> u64 {
        let Some(amount) = self.amounts.get_mut(&mib) else {
            return bytes;
        };
        let beyond = bytes.saturating_sub(*amount);
        *amount = amount.saturating_sub(bytes);
        if *amount == 0 {
            self.amounts.remove(&mib);
        }
        beyond
    }

    fn hold(&mut self, segment: SegmentId, units: u64) {
        self.segments.insert(segment.0, units);
        let (first, count) = (segment.0 as usize, usize::try_from(units).expect("few"));
        let held = &mut self.held[first..first + count];
        assert!(!held.contains(&true), "lent to two");
        held.fill(true);
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
        units.hold(SegmentId(segment), count);
        let count_here = usize::try_from(count).expect("few");
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
        let mut units = self.units.borrow_mut();
        if units.counts {
            units.change(slab, pos, len, true);
        }
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        let mut units = self.units.borrow_mut();
        if units.counts {
            units.change(slab, pos, len, false);
        }
    }

    fn release(&mut self, segment: SegmentId) {
        let mut units = self.units.borrow_mut();
        if !units.counts {
            return;
        }
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

    fn resume(&mut self, accounts: &Accounts) -> Result<(), RecoverError> {
        let mut units = self.units.borrow_mut();
        for (_, segment, len) in &accounts.held {
            units.hold(*segment, len / UNIT);
        }
        for (slab, pos, len) in &accounts.live {
            units.change(*slab, *pos, *len, true);
        }
        for (slab, pos, len) in &accounts.amounts {
            assert_eq!(*slab, 0, "a slab that was never lent");
            let mib = usize::try_from(pos >> 20).expect("within the slab");
            units.amounts.insert(mib, *len);
        }
        let more = units.held.len() + units.amounts.len() * UNITS_A_MIB;
        let more = more.min(usize::try_from(SLAB_BYTES / UNIT).expect("few"));
        units.held.resize(more, false);
        units.live.resize(more, 0);
        units.counts = true;
        Ok(())
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
