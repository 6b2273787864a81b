//! A node's storage: the bytes of its slabs, and an account of the lent units and the live bytes of
//! each.
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

/// The value of unused bytes.
pub const FILL: u8 = 0xDD;

/// The bytes of slabs. Clones are of the same slabs.
pub trait SlabBytes: Clone {
    /// Writes bytes that the account has lent.
    fn write(&self, slab: u32, pos: u64, bytes: &[u8]);

    /// Appends `len` bytes at `pos` of a slab to `out`.
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError>;
}

/// Slabs of a few bytes, one after the other in a vector.
#[derive(Clone, Debug)]
pub struct HeapSlabs {
    /// The bytes of all slabs.
    pub bytes: Rc<RefCell<Vec<u8>>>,
    slab_bytes: u64,
}

impl HeapSlabs {
    /// The slabs for an account of `units` units.
    pub fn new(layout: UnitLayout, units: usize) -> HeapSlabs {
        let bytes = units as u64 * layout.unit_bytes;
        let bytes = vec![0; usize::try_from(bytes).expect("small")];
        HeapSlabs {
            bytes: Rc::new(RefCell::new(bytes)),
            slab_bytes: layout.slab_bytes(),
        }
    }

    /// The index in the vector of byte `pos` of a slab.
    pub fn index(&self, slab: u32, pos: u64) -> Option<usize> {
        let begin = u64::from(slab).checked_mul(self.slab_bytes)?;
        usize::try_from(begin.checked_add(pos)?).ok()
    }
}

impl SlabBytes for HeapSlabs {
    fn write(&self, slab: u32, pos: u64, bytes: &[u8]) {
        let at = self.index(slab, pos).expect("lent bytes");
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        let begin = self.index(slab, pos).ok_or(FsError::Invalid)?;
        let len = usize::try_from(len).map_err(|_| FsError::Invalid)?;
        let end = begin.checked_add(len).ok_or(FsError::Invalid)?;
        let all = self.bytes.borrow();
        out.extend_from_slice(all.get(begin..end).ok_or(FsError::Invalid)?);
        Ok(())
    }
}

/// A slab on tmpfs, which clients map like the real ones.
impl SlabBytes for Rc<SlabMap> {
    fn write(&self, slab: u32, pos: u64, bytes: &[u8]) {
        let slab = SlabId::from_raw(slab).expect("a lent slab");
        self.write_at(slab, pos, bytes).expect("tmpfs");
    }

    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        let id = SlabId::from_raw(slab).ok_or(FsError::Invalid)?;
        let begin = out.len();
        let len = usize::try_from(len).map_err(|_| FsError::TooBig)?;
        out.resize(begin + len, 0);
        let read = self.read_at(id, pos, &mut out[begin..]);
        read.map_err(|_| FsError::Io)
    }
}

/// Makes one slab on tmpfs, below `dir`.
pub fn slab_in(dir: &Path) -> SlabMap {
    let at = std::fs::File::open(dir).expect("the node's directory");
    create_sparse(&at, "slab-0", SLAB_BYTES).expect("a slab");
    SlabMap::new(dir, 1, &[])
}

/// The sizes of segments and slabs.
#[derive(Clone, Copy, Debug)]
pub struct UnitLayout {
    /// The size of the smallest segment. Divides a MiB.
    pub unit_bytes: u64,
    /// The number of units in a slab.
    pub slab_units: u64,
    /// The maximum number of units that are lent at a time if fewer are enough.
    pub most_units: u64,
}

impl UnitLayout {
    /// The size of a slab.
    pub const fn slab_bytes(self) -> u64 {
        self.slab_units * self.unit_bytes
    }
}

/// How an account treats a change that contradicts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradictions {
    /// It panics.
    Panic,
    /// Bytes that are freed but not live are counted ([`FakeStorage::freed_twice`]); all else panics.
    CountFreedTwice,
    /// It ignores them: no program wrote the bytes that the test publishes.
    Ignore,
}

/// The account of one node.
#[derive(Debug)]
struct UnitAccount {
    layout: UnitLayout,
    contradictions: Contradictions,
    held: Vec<bool>,
    live: Vec<u64>,
    /// Live bytes in a MiB at unknown positions.
    amounts: BTreeMap<u64, u64>,
    /// False until the former live bytes are known.
    counts: bool,
    /// The units of each lent segment, by the number of its first one.
    segments: BTreeMap<u32, u64>,
    warm: bool,
    /// The number of refusals for lack of space.
    refused: u64,
    /// The number of bytes that were freed but not live.
    freed_twice: u64,
}

impl UnitAccount {
    /// Finds `count` free units within one slab.
    fn find(&self, count: u64) -> Option<usize> {
        let slab = usize::try_from(self.layout.slab_units).ok()?;
        let count = usize::try_from(count).ok()?;
        let last = self.held.len().checked_sub(count)?;
        (0..=last).find(|first| {
            let mut all = *first..first + count;
            first / slab == (first + count - 1) / slab && all.all(|unit| self.is_free(unit))
        })
    }

    fn is_free(&self, unit: usize) -> bool {
        let known = !self.amounts.contains_key(&self.mib(unit));
        known && !self.held[unit] && self.live[unit] == 0
    }

    /// The MiB that a unit is in.
    fn mib(&self, unit: usize) -> u64 {
        (unit as u64 * self.layout.unit_bytes) >> 20
    }

    /// The position of bytes among those of all slabs, if the account has them.
    fn position(&self, slab: u32, pos: u64, len: u64) -> Option<u64> {
        let all = self.live.len() as u64 * self.layout.unit_bytes;
        let begin = u64::from(slab).checked_mul(self.layout.slab_bytes())?;
        let begin = begin.checked_add(pos)?;
        let end = begin.checked_add(len)?;
        (end <= all).then_some(begin)
    }

    fn change(&mut self, slab: u32, pos: u64, len: u64, add: bool) {
        let Some(mut at) = self.position(slab, pos, len) else {
            let ignored = self.contradictions == Contradictions::Ignore;
            assert!(ignored, "bytes that were never lent: {slab} {pos} {len}");
            return;
        };
        let (unit_bytes, end) = (self.layout.unit_bytes, at + len);
        while at < end {
            let part = (unit_bytes - at % unit_bytes).min(end - at);
            let unit = usize::try_from(at / unit_bytes).expect("a unit");
            if add {
                self.add(unit, part);
            } else {
                self.free(unit, part);
            }
            at += part;
        }
    }

    fn add(&mut self, unit: usize, bytes: u64) {
        let live = &mut self.live[unit];
        *live += bytes;
        let fits = *live <= self.layout.unit_bytes;
        let ignored = self.contradictions == Contradictions::Ignore;
        assert!(fits || ignored, "counted twice in unit {unit}");
    }

    fn free(&mut self, unit: usize, bytes: u64) {
        let live = &mut self.live[unit];
        let rest = bytes.saturating_sub(*live);
        *live = live.saturating_sub(bytes);
        let beyond = self.free_amount(self.mib(unit), rest);
        let fails = self.contradictions == Contradictions::Panic;
        assert!(beyond == 0 || !fails, "freed twice in unit {unit}");
        self.freed_twice += beyond;
    }

    /// Frees bytes that are live somewhere in a MiB; returns how many of them were not.
    fn free_amount(&mut self, mib: u64, bytes: u64) -> u64 {
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

    fn units_of(segment: SegmentId, count: u64) -> std::ops::Range<usize> {
        let first = segment.0 as usize;
        first..first + usize::try_from(count).expect("few")
    }

    fn hold(&mut self, segment: SegmentId, count: u64) {
        self.segments.insert(segment.0, count);
        let held = &mut self.held[UnitAccount::units_of(segment, count)];
        assert!(!held.contains(&true), "lent to two");
        held.fill(true);
    }
}

/// One node's storage. Clones share it.
#[derive(Clone, Debug)]
pub struct FakeStorage<B> {
    /// The bytes.
    pub slabs: B,
    account: Rc<RefCell<UnitAccount>>,
}

impl<B: SlabBytes> FakeStorage<B> {
    /// Storage of `units` units, none of them lent, within these slabs.
    pub fn new(slabs: B, layout: UnitLayout, units: usize) -> FakeStorage<B> {
        let account = UnitAccount {
            layout,
            contradictions: Contradictions::Panic,
            held: vec![false; units],
            live: vec![0; units],
            amounts: BTreeMap::new(),
            counts: true,
            segments: BTreeMap::new(),
            warm: true,
            refused: 0,
            freed_twice: 0,
        };
        FakeStorage {
            slabs,
            account: Rc::new(RefCell::new(account)),
        }
    }

    /// The storage of a server that takes over from the one with `before`; [`Space::resume`] sets its
    /// account.
    pub fn after(before: &FakeStorage<B>) -> FakeStorage<B> {
        let old = before.account.borrow();
        let after = FakeStorage::new(before.slabs.clone(), old.layout, old.held.len());
        {
            let mut account = after.account.borrow_mut();
            account.contradictions = old.contradictions;
            account.warm = old.warm;
            (account.refused, account.freed_twice) = (old.refused, old.freed_twice);
            account.counts = false;
        }
        after
    }

    /// Determines the treatment of changes that contradict the account; at first it panics.
    pub fn set_contradictions(&self, contradictions: Contradictions) {
        self.account.borrow_mut().contradictions = contradictions;
    }

    /// Determines if storage is lent as warm; at first it is.
    pub fn set_warm(&self, warm: bool) {
        self.account.borrow_mut().warm = warm;
    }

    /// The number of live bytes, and of lent units.
    pub fn used(&self) -> (u64, usize) {
        let account = self.account.borrow();
        let held = account.held.iter().filter(|held| **held).count();
        let live = account.live.iter().chain(account.amounts.values()).sum();
        (live, held)
    }

    /// The number of units that are neither held nor live, and of all units.
    pub fn free(&self) -> (usize, usize) {
        let account = self.account.borrow();
        let all = account.held.len();
        let free = (0..all).filter(|unit| account.is_free(*unit));
        (free.count(), all)
    }

    /// The number of bytes that were freed but not live.
    pub fn freed_twice(&self) -> u64 {
        self.account.borrow().freed_twice
    }

    /// The number of refusals for lack of space.
    pub fn refused(&self) -> u64 {
        self.account.borrow().refused
    }
}

impl<B: SlabBytes> Space for FakeStorage<B> {
    fn grant(&mut self, _: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent> {
        let mut account = self.account.borrow_mut();
        let layout = account.layout;
        let least = min_bytes.div_ceil(layout.unit_bytes).max(1);
        let most = want_bytes.div_ceil(layout.unit_bytes);
        let most = most.min(layout.most_units).max(least);
        let units = [most, least]
            .into_iter()
            .find_map(|count| Some((account.find(count)?, count)));
        let Some((first, count)) = units else {
            account.refused += 1;
            return None;
        };
        let segment = SegmentId(u32::try_from(first).expect("a unit"));
        account.hold(segment, count);
        let begin = first as u64 * layout.unit_bytes;
        let lent = Lent {
            segment,
            slab: u32::try_from(begin / layout.slab_bytes()).expect("a slab"),
            tier: Tier::Memory,
            pos: begin % layout.slab_bytes(),
            len: count * layout.unit_bytes,
            warm: account.warm,
        };
        let fill = vec![FILL; usize::try_from(lent.len).expect("small")];
        self.slabs.write(lent.slab, lent.pos, &fill);
        Some(lent)
    }

    fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        let mut account = self.account.borrow_mut();
        if account.counts {
            account.change(slab, pos, len, true);
        }
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        let mut account = self.account.borrow_mut();
        if account.counts {
            account.change(slab, pos, len, false);
        }
    }

    fn release(&mut self, segment: SegmentId) {
        let mut account = self.account.borrow_mut();
        if !account.counts {
            return;
        }
        let count = account.segments.remove(&segment.0);
        let count = count.expect("a segment is released once");
        account.held[UnitAccount::units_of(segment, count)].fill(false);
    }

    fn is_file(&self, _: u32) -> bool {
        false
    }

    fn usage(&self) -> Vec<TierStatus> {
        Vec::new()
    }

    fn resume(&mut self, accounts: &Accounts) -> Result<(), RecoverError> {
        let mut account = self.account.borrow_mut();
        let layout = account.layout;
        for (_, segment, len) in &accounts.held {
            account.hold(*segment, len / layout.unit_bytes);
        }
        for (slab, pos, len) in &accounts.live {
            account.change(*slab, *pos, *len, true);
        }
        for (slab, pos, len) in &accounts.amounts {
            let at = u64::from(*slab) * layout.slab_bytes() + pos;
            account.amounts.insert(at >> 20, *len);
        }
        let units_a_mib = (1 << 20) / layout.unit_bytes;
        let more = account.held.len() as u64 + account.amounts.len() as u64 * units_a_mib;
        // No room is made beyond the first slab.
        let more = usize::try_from(more.min(layout.slab_units)).expect("few");
        let more = more.max(account.held.len());
        account.held.resize(more, false);
        account.live.resize(more, 0);
        account.counts = true;
        Ok(())
    }
}

/// The server reads the slabs as clients do.
impl<B: SlabBytes> LogBytes for FakeStorage<B> {
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        self.slabs.read(slab, pos, len, out)
    }
}
