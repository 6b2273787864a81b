//! One slab's space: its lent units, its units with living bytes, and its free units.
//!
//! A slab is a file of 64 MiB; its space is kept in units of 1 MiB, one bit each. A *segment* is an
//! aligned run of 1, 2, 4 .. 64 units lent to one client. A unit is free when no client holds it
//! and no byte in it is alive; so a deletion makes room unit by unit even if other files' bytes
//! survive beside it. If no unit is free, a segment is a *gap*: dead bytes of one unit that no
//! client holds (`live`).
//!
//! ```text
//! directory 0 is that of the memory tier, 1..=15 the storage directories, in their configured order
//!
//!            31         28 27             6 5        0
//!           +-------------+----------------+----------+
//! SegmentId | directory   | index          | unit     |   the segment's first unit
//!           +-------------+----------------+----------+
//! SlabId    = SegmentId >> 6                              file "slab-<index>" of its directory
//! ```
//!
//! Invariants: segments held at one time do not overlap; `live` of a unit never exceeds
//! its size; a free unit has neither holder, owner nor living bytes. Pure: no I/O.

use weir_core::types::{ClientId, SegmentId};

use crate::live::{Gap, LiveRanges};

/// The size of a unit in bytes: the least segment.
pub const UNIT_BYTES: u64 = 1 << 20;
/// The units of a slab.
pub const SLAB_UNITS: u32 = 64;
/// The size of a slab in bytes: the largest segment.
pub const SLAB_BYTES: u64 = SLAB_UNITS as u64 * UNIT_BYTES;
/// The greatest number of slab directories of an instance: the memory tier's and 15 storage
/// directories.
pub const MAX_DIRECTORIES: usize = 16;
/// The greatest number of slabs of a directory (256 TiB).
pub const MAX_SLABS: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 22;
/// [`UNIT_BYTES`], in the integer type of the accounts.
const UNIT_LEN: u32 = 1 << 20;
const _: () = assert!(UNIT_LEN as u64 == UNIT_BYTES);

/// The kind of storage of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// tmpfs, mapped by clients.
    Memory,
    /// A file system on a device, reached by pread and pwrite.
    File,
}

/// A directory of slabs: that of the memory tier, or a storage directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabDirectory(u8);

impl SlabDirectory {
    /// The directory of the memory tier, on tmpfs.
    pub const MEMORY: SlabDirectory = SlabDirectory(0);

    /// The storage directory number `dir`, counted from 0; `None` beyond the 15th.
    pub fn storage(dir: usize) -> Option<SlabDirectory> {
        let number = u8::try_from(dir + 1).ok()?;
        (usize::from(number) < MAX_DIRECTORIES).then_some(SlabDirectory(number))
    }

    /// Its number: 0 for memory, 1 + the directory's otherwise.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// The tier it belongs to.
    pub fn tier(self) -> Tier {
        if self == SlabDirectory::MEMORY {
            Tier::Memory
        } else {
            Tier::File
        }
    }
}

/// A slab of this instance. The number includes its directory, and so identifies the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabId(u32);

impl SlabId {
    /// Slab `index` of `directory`; the index is below [`MAX_SLABS`].
    pub fn new(directory: SlabDirectory, index: u32) -> SlabId {
        assert!(index < MAX_SLABS);
        SlabId(u32::from(directory.0) << INDEX_BITS | index)
    }

    /// The slab of a number found in a record; `None` if no slab can have it.
    pub fn from_raw(raw: u32) -> Option<SlabId> {
        (raw >> INDEX_BITS < 16).then_some(SlabId(raw))
    }

    /// The number, for records and messages.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The slab of a segment.
    pub fn from_segment(segment: SegmentId) -> SlabId {
        SlabId(segment.0 / SLAB_UNITS)
    }

    /// The segment that begins at `unit` of this slab.
    pub fn segment(self, unit: u32) -> SegmentId {
        assert!(unit < SLAB_UNITS);
        SegmentId(self.0 * SLAB_UNITS + unit)
    }

    /// Its directory.
    #[allow(clippy::cast_possible_truncation)] // four bits
    pub fn directory(self) -> SlabDirectory {
        SlabDirectory((self.0 >> INDEX_BITS) as u8)
    }

    /// Its number within its directory.
    pub fn index(self) -> u32 {
        self.0 & (MAX_SLABS - 1)
    }

    /// The tier it belongs to.
    pub fn tier(self) -> Tier {
        self.directory().tier()
    }
}

/// The offset of a segment in its slab, in bytes.
pub fn segment_pos(segment: SegmentId) -> u64 {
    u64::from(segment.0 % SLAB_UNITS) * UNIT_BYTES
}

/// The reasons for which a range cannot be accounted: an error of the caller, or of a client whose
/// records the caller passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The range reaches beyond the slab.
    #[error("bytes {pos}+{len} lie outside the slab")]
    Outside {
        /// The offset of the range in the slab.
        pos: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// Part of the range belongs to no segment.
    #[error("bytes {pos}+{len} are not in any segment")]
    NotLent {
        /// The offset of the range in the slab.
        pos: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// More bytes would be alive than fit, or fewer than none.
    #[error("bytes {pos}+{len} do not agree with {live} bytes alive in their unit")]
    Disagrees {
        /// The offset of the range in the slab.
        pos: u64,
        /// Its length in bytes.
        len: u64,
        /// The living bytes of the first unit that disagrees.
        live: u64,
    },
    /// No client holds the segment.
    #[error("segment {0:?} is not held")]
    NotHeld(SegmentId),
}

/// One slab's accounts.
#[derive(Debug, Clone)]
pub struct Slab {
    /// The units that may be used (a slab at the end of a budget may be shorter).
    usable: u64,
    /// Units of segments that a client may still write into.
    held: u64,
    /// Those of `held` that were not warm when lent.
    cold: u64,
    /// Units with a living byte.
    alive: u64,
    /// By unit: the number of units of the segment that begins there, while it is held.
    held_units: [u8; SLAB_UNITS as usize],
    /// Living bytes by unit; at most [`UNIT_BYTES`].
    live_bytes: [u32; SLAB_UNITS as usize],
    /// The ranges of those bytes, as far as they are known.
    live: Vec<LiveRanges>,
    /// The client to which a unit was lent; meaningful until it is free.
    owner: [ClientId; SLAB_UNITS as usize],
}

impl Slab {
    /// A slab of which the first `units` (1 to 64) may be used, all free.
    pub fn new(units: u32) -> Slab {
        assert!((1..=SLAB_UNITS).contains(&units));
        Slab {
            usable: unit_bits(0, units),
            held: 0,
            cold: 0,
            alive: 0,
            held_units: [0; SLAB_UNITS as usize],
            live_bytes: [0; SLAB_UNITS as usize],
            live: vec![LiveRanges::new(); units as usize],
            owner: [ClientId(u32::MAX); SLAB_UNITS as usize],
        }
    }

    /// The units that may be used, a bit each.
    pub fn usable(&self) -> u64 {
        self.usable
    }

    /// The units that may be lent, a bit each.
    pub fn free(&self) -> u64 {
        self.usable & !self.held & !self.alive
    }

    /// The units that clients may write into, a bit each.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Those of [`Slab::held`] that were lent cold.
    pub fn cold(&self) -> u64 {
        self.cold
    }

    /// Living bytes.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.iter().copied().map(u64::from).sum()
    }

    /// Finds the first aligned run of `units` (a power of two) that is free and in `among`.
    pub fn find_first(&self, units: u32, among: u64) -> Option<u32> {
        let starts = aligned_runs(self.free() & among, units);
        (starts != 0).then(|| starts.trailing_zeros())
    }

    /// Finds the last such run. Cold segments are taken from the end, because warming begins at the
    /// front.
    pub fn find_last(&self, units: u32, among: u64) -> Option<u32> {
        let starts = aligned_runs(self.free() & among, units);
        starts.checked_ilog2()
    }

    /// Lends `units` from `unit` on, which must be free.
    pub fn lend(&mut self, unit: u32, units: u32, client: ClientId, warm: bool) {
        let bits = unit_bits(unit, units);
        assert_eq!(self.free() & bits, bits, "lending what is not free");
        self.held |= bits;
        if !warm {
            self.cold |= bits;
        }
        self.held_units[unit as usize] = u8::try_from(units).expect("at most 64");
        self.owner[unit as usize..(unit + units) as usize].fill(client);
    }

    /// The units that no client holds and that have dead bytes beside living ones.
    fn mixed(&self) -> u64 {
        let partly = |unit: &u32| {
            let (live, bytes) = (&self.live[*unit as usize], self.live_bytes[*unit as usize]);
            live.is_exact() && bytes < UNIT_LEN
        };
        let alive = self.alive & self.usable & !self.held;
        set_bits(alive)
            .filter(partly)
            .fold(0, |bits, unit| bits | 1 << unit)
    }

    /// Returns the dead bytes beside living ones that may be lent.
    pub fn gap_bytes(&self) -> u64 {
        let dead = |unit| u64::from(UNIT_LEN - self.live_bytes[unit as usize]);
        set_bits(self.mixed()).map(dead).sum()
    }

    /// Returns the gaps that may be lent: the unit, and the gap in it.
    pub fn gaps(&self) -> impl Iterator<Item = (u32, Gap)> + '_ {
        set_bits(self.mixed()).flat_map(|unit| {
            let gaps = self.live[unit as usize].gaps(UNIT_LEN);
            gaps.map(move |gap| (unit, gap))
        })
    }

    /// True if an earlier gap may still be lent.
    pub fn is_gap(&self, unit: u32, gap: Gap) -> bool {
        (self.usable & self.alive & !self.held) >> unit & 1 == 1
            && self.live[unit as usize].is_dead(gap)
    }

    /// Lends a gap of `unit`: until its release, nothing else of the unit is lent.
    pub fn lend_gap(&mut self, unit: u32, client: ClientId, warm: bool) {
        let bit = unit_bits(unit, 1);
        assert_eq!(self.held & bit, 0, "lending what is held");
        self.held |= bit;
        if !warm {
            self.cold |= bit;
        }
        self.held_units[unit as usize] = 1;
        self.owner[unit as usize] = client;
    }

    /// Lends a segment that was lent before this account began; `None` if that is impossible.
    pub fn restore_segment(&mut self, unit: u32, units: u64, client: ClientId) -> Option<()> {
        let units = u32::try_from(units).ok().filter(|n| *n > 0)?;
        let fits = unit + units.min(SLAB_UNITS) <= SLAB_UNITS && units <= SLAB_UNITS;
        let bits = if fits {
            unit_bits(unit, units)
        } else {
            return None;
        };
        (self.usable & !self.held & bits == bits).then(|| {
            self.held |= bits;
            self.cold |= bits;
            self.held_units[unit as usize] = u8::try_from(units).expect("at most 64");
            self.owner[unit as usize..(unit + units) as usize].fill(client);
        })
    }

    /// Ends the lending of the segment that begins at `unit`; returns its units. Its client writes no
    /// more, and its units without living bytes are free from now on.
    pub fn release(&mut self, unit: u32) -> Option<u32> {
        let units = u32::from(core::mem::take(self.held_units.get_mut(unit as usize)?));
        if units == 0 {
            return None;
        }
        self.held &= !unit_bits(unit, units);
        self.cold &= !unit_bits(unit, units);
        Some(units)
    }

    /// Ends the lending of all but the first `keep` units of the segment that begins at `unit`;
    /// true if it had more.
    pub fn trim(&mut self, unit: u32, keep: u32) -> bool {
        let Some(units) = self.held_units.get_mut(unit as usize) else {
            return false;
        };
        let had = u32::from(*units);
        if keep == 0 || had <= keep {
            return false;
        }
        *units = u8::try_from(keep).expect("less than 64");
        self.held &= !unit_bits(unit + keep, had - keep);
        self.cold &= !unit_bits(unit + keep, had - keep);
        true
    }

    /// The first units of the segments that `client` holds.
    pub fn segments_of(&self, client: ClientId) -> impl Iterator<Item = u32> + '_ {
        (0..SLAB_UNITS).filter(move |&unit| {
            self.held_units[unit as usize] > 0 && self.owner[unit as usize] == client
        })
    }

    /// True if all of a range was lent to `client` (and is not free again).
    pub fn is_lent_to(&self, client: ClientId, pos: u64, len: u64) -> bool {
        pieces(pos, len).is_ok_and(|mut pieces| {
            pieces.all(|(unit, _)| {
                (self.held | self.alive) >> unit & 1 == 1 && self.owner[unit as usize] == client
            })
        })
    }

    /// Counts `len` bytes at `pos` as alive.
    pub fn add_live(&mut self, pos: u64, len: u64) -> Result<(), AccountError> {
        for (unit, bytes) in pieces(pos, len)? {
            let live = self.live_bytes[unit as usize];
            if (self.held | self.alive) >> unit & 1 == 0 {
                return Err(AccountError::NotLent { pos, len });
            }
            if u64::from(live + bytes) > UNIT_BYTES {
                let live = u64::from(live);
                return Err(AccountError::Disagrees { pos, len, live });
            }
        }
        for (unit, bytes) in pieces(pos, len)? {
            let from = offset_in_unit(pos, unit);
            self.live[unit as usize].add(from, from + bytes);
            self.live_bytes[unit as usize] += bytes;
            self.alive |= 1 << unit;
        }
        Ok(())
    }

    /// Counts bytes as alive that were alive before this account began: no client holds them.
    pub fn restore_live(&mut self, pos: u64, len: u64) -> Result<(), AccountError> {
        for (unit, _) in pieces(pos, len)? {
            if self.usable >> unit & 1 == 0 {
                return Err(AccountError::NotLent { pos, len });
            }
        }
        for (unit, bytes) in pieces(pos, len)? {
            // Records of a hostile client may claim bytes twice: the bytes are its own.
            let from = offset_in_unit(pos, unit);
            self.live[unit as usize].add(from, from + bytes);
            let live = &mut self.live_bytes[unit as usize];
            *live = live.saturating_add(bytes).min(UNIT_LEN);
            self.alive |= 1 << unit;
        }
        Ok(())
    }

    /// As [`Slab::restore_live`], for bytes of which only the amount is known: `len` from the beginning
    /// of the unit of `pos`.
    pub fn restore_amount(&mut self, pos: u64, len: u64) -> Result<(), AccountError> {
        self.restore_live(pos, len)?;
        for (unit, _) in pieces(pos, len)? {
            self.live[unit as usize].forget_ranges();
        }
        Ok(())
    }

    /// Counts `len` bytes at `pos` as dead.
    pub fn remove_live(&mut self, pos: u64, len: u64) -> Result<(), AccountError> {
        for (unit, bytes) in pieces(pos, len)? {
            let live = self.live_bytes[unit as usize];
            if live < bytes {
                let live = u64::from(live);
                return Err(AccountError::Disagrees { pos, len, live });
            }
        }
        for (unit, bytes) in pieces(pos, len)? {
            let from = offset_in_unit(pos, unit);
            self.live[unit as usize].remove(from, from + bytes);
            let live = &mut self.live_bytes[unit as usize];
            *live -= bytes;
            if *live == 0 {
                self.alive &= !(1 << unit);
                self.live[unit as usize].clear();
            }
        }
        Ok(())
    }
}

/// Returns the bits of `units` units from `unit` on.
pub fn unit_bits(unit: u32, units: u32) -> u64 {
    debug_assert!(units > 0 && unit + units <= SLAB_UNITS);
    (u64::MAX >> (SLAB_UNITS - units)) << unit
}

/// Returns the numbers of the bits that are set.
fn set_bits(mut bits: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(bit)
    })
}

/// Returns the offset in `unit` of the piece of a range that begins at `pos`.
fn offset_in_unit(pos: u64, unit: u32) -> u32 {
    let from = pos.saturating_sub(u64::from(unit) * UNIT_BYTES);
    u32::try_from(from).expect("less than a unit")
}

/// Returns the aligned starts of runs of `units` (a power of two) set bits.
fn aligned_runs(mut bits: u64, units: u32) -> u64 {
    assert!(units.is_power_of_two() && units <= SLAB_UNITS);
    let mut covered = 1;
    while covered < units {
        bits &= bits >> covered;
        covered *= 2;
    }
    // Every `units`-th bit: all ones divided by ones in `units` places.
    let aligned = u64::MAX / (u64::MAX >> (SLAB_UNITS - units));
    bits & aligned
}

/// Splits a range into (unit, bytes in it).
fn pieces(pos: u64, len: u64) -> Result<impl Iterator<Item = (u32, u32)>, AccountError> {
    let end = pos.checked_add(len).filter(|&end| end <= SLAB_BYTES);
    let end = end.ok_or(AccountError::Outside { pos, len })?;
    let mut at = pos;
    Ok(core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let unit = at / UNIT_BYTES;
        let piece_end = end.min((unit + 1) * UNIT_BYTES);
        let bytes = piece_end - at;
        at = piece_end;
        #[allow(clippy::cast_possible_truncation)] // a unit's number and size fit
        Some((unit as u32, bytes as u32))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ClientId = ClientId(7);

    #[test]
    fn numbers_keep_their_parts() {
        let directory = SlabDirectory::storage(14).unwrap();
        let slab = SlabId::new(directory, MAX_SLABS - 1);
        assert_eq!((slab.directory(), slab.index()), (directory, MAX_SLABS - 1));
        assert_eq!(SlabId::from_raw(slab.raw()), Some(slab));
        assert_eq!(SlabId::from_raw(u32::MAX), None);
        let segment = slab.segment(63);
        assert_eq!(
            (SlabId::from_segment(segment), segment_pos(segment)),
            (slab, 63 << 20)
        );
        assert_eq!(SlabDirectory::storage(15), None);
        assert_eq!(
            (SlabDirectory::MEMORY.tier(), directory.tier()),
            (Tier::Memory, Tier::File)
        );
    }

    #[test]
    fn runs_are_aligned() {
        assert_eq!(aligned_runs(u64::MAX, 64), 1);
        assert_eq!(aligned_runs(u64::MAX, 1), u64::MAX);
        assert_eq!(aligned_runs(u64::MAX, 16), 1 | 1 << 16 | 1 << 32 | 1 << 48);
        assert_eq!(aligned_runs(0b0111_1110, 2), 0b0001_0100);
        assert_eq!(aligned_runs(0b0111_1110, 4), 0);
        assert_eq!(aligned_runs(0b1111_0000, 4), 0b0001_0000);
    }

    #[test]
    fn a_unit_is_free_when_neither_held_nor_alive() {
        let mut slab = Slab::new(64);
        slab.lend(8, 4, ME, true);
        slab.add_live(9 * UNIT_BYTES - 10, 20).unwrap();
        assert_eq!(slab.free() & unit_bits(8, 4), 0);
        assert_eq!(slab.release(8), Some(4));
        assert_eq!(slab.free() & unit_bits(8, 4), unit_bits(10, 2));
        slab.remove_live(9 * UNIT_BYTES - 10, 10).unwrap();
        assert_eq!(
            slab.free() & unit_bits(8, 4),
            unit_bits(8, 4) & !unit_bits(9, 1)
        );
        slab.remove_live(9 * UNIT_BYTES, 10).unwrap();
        assert_eq!((slab.free(), slab.live_bytes()), (u64::MAX, 0));
        assert_eq!(slab.release(8), None);
    }

    #[test]
    fn a_short_slab_lends_only_what_it_has() {
        let mut slab = Slab::new(5);
        assert_eq!(slab.find_first(8, u64::MAX), None);
        assert_eq!(slab.find_last(4, u64::MAX), Some(0));
        slab.lend(0, 4, ME, true);
        assert_eq!(slab.find_first(1, u64::MAX), Some(4));
        assert_eq!(slab.find_first(1, !unit_bits(4, 1)), None);
    }

    #[test]
    fn wrong_accounts_are_refused_and_change_nothing() {
        let mut slab = Slab::new(64);
        slab.lend(0, 1, ME, false);
        slab.add_live(0, 100).unwrap();
        assert!(matches!(
            slab.add_live(SLAB_BYTES - 1, 2),
            Err(AccountError::Outside { .. })
        ));
        assert!(matches!(
            slab.add_live(UNIT_BYTES - 5, 10),
            Err(AccountError::NotLent { .. })
        ));
        assert!(matches!(
            slab.add_live(0, UNIT_BYTES - 99),
            Err(AccountError::Disagrees { live: 100, .. })
        ));
        assert!(matches!(
            slab.remove_live(0, 101),
            Err(AccountError::Disagrees { live: 100, .. })
        ));
        assert!(slab.add_live(u64::MAX, 2).is_err());
        assert_eq!(slab.live_bytes(), 100);
        assert_eq!(slab.cold(), 1);
    }

    #[test]
    fn what_a_client_was_lent_is_told_from_what_it_was_not() {
        let mut slab = Slab::new(64);
        slab.lend(0, 2, ME, true);
        slab.lend(2, 2, ClientId(8), true);
        assert!(slab.is_lent_to(ME, 0, 2 * UNIT_BYTES));
        assert!(!slab.is_lent_to(ME, 0, 2 * UNIT_BYTES + 1));
        assert!(!slab.is_lent_to(ME, 4 * UNIT_BYTES, 1));
        assert!(!slab.is_lent_to(ME, SLAB_BYTES, 1));
        slab.add_live(0, 5).unwrap();
        assert_eq!(slab.segments_of(ME).collect::<Vec<_>>(), [0]);
        slab.release(0);
        assert!(slab.is_lent_to(ME, 0, UNIT_BYTES) && !slab.is_lent_to(ME, UNIT_BYTES, 1));
        assert_eq!(slab.segments_of(ME).count(), 0);
    }
}
