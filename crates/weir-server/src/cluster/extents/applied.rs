//! The part of a growing record that the index already holds.
//!
//! A record is harvested many times while it grows: from its cell, and at last from the ring. The
//! index takes each byte once ([`ExtentIndex::grow`]). So the server remembers, for each cell, the
//! part of the record that the index holds, and computes the new part here.
//!
//! A record in the log, its whole pieces and then the live one:
//!
//! ```text
//! pos                                              end
//! [ length ][ length ] ... (count of them) [ live ]
//! ```

use weir_core::extent::{ExtentIndex, FreedRange, Run, RunError, Source, MAX_OFFSET};
use weir_core::journal::CellMark;
use weir_core::node::cell::State;
use weir_core::node::ring::Record;

/// A record, or the part of it that the index holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Its stamp; 0: no record.
    pub stamp: u64,
    /// The slab.
    pub slab: u32,
    /// The position of its first byte in the slab.
    pub pos: u64,
    /// The file offset of its first piece.
    pub offset: u64,
    /// Bytes of a whole piece; 0 while there is none.
    pub length: u64,
    /// The distance from one piece to the next; 0 while that is not known.
    pub stride: u64,
    /// The number of whole pieces.
    pub count: u64,
    /// The bytes of the live piece, which follows the whole ones.
    pub live: u64,
}

impl Applied {
    /// Converts the record to its journal form.
    pub fn mark(&self) -> CellMark {
        CellMark {
            stamp: self.stamp,
            slab: self.slab,
            pos: self.pos,
            offset: self.offset,
            length: self.length,
            stride: self.stride,
            count: self.count,
            live: self.live,
        }
    }

    /// Reads the record from its journal form.
    pub fn of_mark(mark: &CellMark) -> Applied {
        Applied {
            stamp: mark.stamp,
            slab: mark.slab,
            pos: mark.pos,
            offset: mark.offset,
            length: mark.length,
            stride: mark.stride,
            count: mark.count,
            live: mark.live,
        }
    }
}

/// An invalid record: its pieces overlap, it passes the greatest offset, or it does not continue
/// its earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidRecord;

/// A step of growth: the earlier state of a part of the record (`None`: nothing), and the new one.
type Step = (Option<Run>, Run);

impl Applied {
    /// The record that a cell shows.
    pub fn of_state(state: &State, live: u64) -> Applied {
        let whole = state.count > 0;
        Applied {
            stamp: state.stamp,
            slab: state.slab,
            pos: state.pos,
            offset: state.offset,
            length: if whole { state.length } else { 0 },
            stride: if whole { state.stride } else { 0 },
            count: state.count,
            live,
        }
    }

    /// Returns `self` grown by a closed record of the same cell from the ring. A record that ends
    /// in a shorter piece comes in two parts with one stamp.
    pub fn extended_by(&self, r: &Record) -> Result<Applied, InvalidRecord> {
        let begun = r.stamp == self.stamp && r.slab == self.slab;
        if begun && r.pos > self.pos {
            return self.with_tail(r);
        }
        let single = r.count == 1;
        let new = Applied {
            stamp: r.stamp,
            slab: r.slab,
            pos: r.pos,
            offset: r.offset,
            length: if single { 0 } else { r.length },
            stride: if single { 0 } else { r.stride },
            count: if single { 0 } else { r.count },
            live: if single { r.length } else { 0 },
        };
        if r.count == 0 || r.length == 0 || r.stamp < self.stamp {
            return Err(InvalidRecord);
        }
        Ok(new)
    }

    fn with_tail(&self, r: &Record) -> Result<Applied, InvalidRecord> {
        let mut new = *self;
        // If the live piece was already whole when the cell was read, the record of the whole pieces, which came before
        // this one, had nothing new.
        if self.count == 0 {
            new.count = 1;
            new.length = self.live;
            new.live = 0;
        } else if self.live == self.length {
            new.count = self.count.checked_add(1).ok_or(InvalidRecord)?;
            new.live = 0;
        }
        let whole = new.length.checked_mul(new.count).ok_or(InvalidRecord)?;
        if r.count != 1 || new.pos.checked_add(whole) != Some(r.pos) {
            return Err(InvalidRecord);
        }
        if new.count == 1 && new.stride == 0 {
            new.stride = r.offset.checked_sub(new.offset).ok_or(InvalidRecord)?;
        }
        let offset = new.stride.checked_mul(new.count).ok_or(InvalidRecord)?;
        if new.offset.checked_add(offset) != Some(r.offset) {
            return Err(InvalidRecord);
        }
        new.live = r.length;
        Ok(new)
    }

    /// The number of log bytes of the record. An error if the log range or the file range passes
    /// the greatest offset.
    pub fn bytes(&self) -> Result<u64, InvalidRecord> {
        let whole = self.length.checked_mul(self.count).ok_or(InvalidRecord)?;
        let bytes = whole.checked_add(self.live).ok_or(InvalidRecord)?;
        let log_end = self.pos.checked_add(bytes).ok_or(InvalidRecord)?;
        let pieces = self.count.saturating_add(u64::from(self.live > 0));
        let last = if self.live > 0 {
            self.live
        } else {
            self.length
        };
        let last_at = self
            .stride
            .checked_mul(pieces.saturating_sub(1))
            .ok_or(InvalidRecord)?;
        let file_end = last_at
            .checked_add(self.offset)
            .and_then(|at| at.checked_add(last))
            .ok_or(InvalidRecord)?;
        let apart = pieces < 2 || self.stride >= self.length;
        (log_end <= MAX_OFFSET && file_end <= MAX_OFFSET && apart)
            .then_some(bytes)
            .ok_or(InvalidRecord)
    }

    /// Puts the bytes that `new` has and `self` lacks into `index`. `self` is a record of the same
    /// stamp or of an earlier one; if it is earlier, all of `new` is new.
    pub fn apply(
        &self,
        new: &Applied,
        index: &mut ExtentIndex,
        freed: &mut dyn FnMut(FreedRange),
        rank: u16,
    ) -> Result<(), RunError> {
        for (before, run) in self.steps(new, rank).into_iter().flatten() {
            match before {
                Some(before) => index.grow(&before, run, freed)?,
                None => index.insert(run, freed)?,
            };
        }
        Ok(())
    }

    /// Returns true if `new`, of the same stamp, is this record, perhaps grown.
    pub fn grows_to(&self, new: &Applied) -> bool {
        let origin = |a: &Applied| (a.slab, a.pos, a.offset);
        origin(self) == origin(new)
            && match (self.count, new.count) {
                (0, 0) => true,
                (0, _) => new.length >= self.live,
                (_, 0) => false,
                (1, _) if self.stride == 0 => self.length == new.length,
                _ => self.length == new.length && self.stride == new.stride,
            }
    }

    /// Returns true if `new`, of the same stamp, is an earlier state of this record.
    pub fn covers(&self, new: &Applied) -> bool {
        (new.count, new.live) <= (self.count, self.live)
            || (self.count > 0 && new.count == 0 && new.live <= self.length)
    }

    /// Returns the bytes that `new` has and `self` lacks, as runs that share no byte with `self`.
    /// `self` is as for [`Applied::apply`].
    pub fn beyond(&self, new: &Applied, rank: u16) -> Vec<Run> {
        let same = self.stamp == new.stamp;
        let old = if same { *self } else { Applied::default() };
        let mut runs = Vec::new();
        let mut first = old.count;
        if new.count > old.count {
            if old.live > 0 {
                runs.push(new.rest_of(first, old.live, new.length, rank));
                first += 1;
            }
            if new.count > first {
                runs.push(new.part(first, new.count - first, new.length, rank));
            }
            runs.push(new.part(new.count, 1, new.live, rank));
        } else {
            runs.push(new.rest_of(first, old.live, new.live, rank));
        }
        runs.retain(|run| run.length > 0);
        runs
    }

    /// Piece `index` from byte `from` to byte `to`.
    fn rest_of(&self, index: u64, from: u64, to: u64, rank: u16) -> Run {
        let mut run = self.part(index, 1, to.saturating_sub(from), rank);
        run.offset += from;
        if let Source::Log { pos, .. } = &mut run.source {
            *pos += from;
        }
        run
    }

    fn steps(&self, new: &Applied, rank: u16) -> [Option<Step>; 3] {
        let same = self.stamp == new.stamp;
        let old = if same { *self } else { Applied::default() };
        let mut steps = [None; 3];
        if new.count > old.count {
            // The live piece is now whole...
            let begun = (old.live > 0).then(|| new.part(old.count, 1, old.live, rank));
            let (first, whole) = match begun {
                Some(_) => (
                    Some((begun, new.part(old.count, 1, new.length, rank))),
                    old.count + 1,
                ),
                None => (None, old.count),
            };
            steps[0] = first;
            // ...and others follow it.
            if new.count > whole {
                let before = (whole > 0).then(|| new.part(0, whole, new.length, rank));
                steps[1] = Some((before, new.part(0, new.count, new.length, rank)));
            }
            if new.live > 0 {
                steps[2] = Some((None, new.part(new.count, 1, new.live, rank)));
            }
        } else if new.live > old.live {
            let before = (old.live > 0).then(|| new.part(new.count, 1, old.live, rank));
            steps[0] = Some((before, new.part(new.count, 1, new.live, rank)));
        }
        steps
    }

    /// Pieces `[first, first + count)`, each of `length` bytes.
    fn part(&self, first: u64, count: u64, length: u64, rank: u16) -> Run {
        let many = count > 1;
        Run {
            offset: self.offset + first * self.stride,
            length,
            stride: if many { self.stride } else { 0 },
            count,
            stamp: self.stamp,
            source: Source::Log {
                rank,
                slab: self.slab,
                pos: self.pos + first * self.length,
                pos_stride: if many { self.length } else { 0 },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_core::extent::PieceSource;

    /// The part of a record that the index has, as the server keeps it.
    #[derive(Default)]
    struct IndexedRecord {
        applied: Applied,
        index: ExtentIndex,
    }

    impl IndexedRecord {
        fn take_state(&mut self, new: &Applied) {
            let old = self.applied;
            let mut had = 0;
            if new.stamp == old.stamp {
                if old.covers(new) {
                    return;
                }
                assert!(old.grows_to(new), "{old:?} {new:?}");
                had = old.bytes().unwrap();
            }
            if new.bytes().unwrap() == had {
                return;
            }
            old.apply(new, &mut self.index, &mut |_| {}, 0).unwrap();
            self.applied = *new;
        }

        fn take_closed(&mut self, record: &Record) {
            let new = self.applied.extended_by(record);
            self.take_state(&new.unwrap_or_else(|_| panic!("{:?} {record:?}", self.applied)));
        }
    }

    /// The records in which a writer closes `count` whole pieces and a live one of so many bytes.
    fn closing(count: u64, length: u64, live: u64) -> Vec<Record> {
        let whole = count + u64::from(count > 0 && live == length);
        let record = Record {
            cell: 0,
            slab: 3,
            offset: 100,
            length,
            stride: if whole > 1 { 50 } else { 0 },
            count: whole,
            pos: 1000,
            stamp: 7,
        };
        let tail = Record {
            offset: 100 + count * 50,
            length: live,
            stride: 0,
            count: 1,
            pos: 1000 + count * length,
            ..record
        };
        let has_tail = live > 0 && whole == count;
        let records = [(whole > 0).then_some(record), has_tail.then_some(tail)];
        records.into_iter().flatten().collect()
    }

    proptest! {
        /// Whenever the server looks at a cell, and whatever the last piece is: the index gets all bytes of the record.
        #[test]
        fn a_record_is_taken_whole_whenever_its_cell_is_read(
            length in 1_u64..6,
            whole in 0_u64..5,
            last in 0_u64..6,
            looks in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let last = last.min(length);
            let mut record = IndexedRecord::default();
            let mut looks = looks.into_iter();
            for count in 0..=whole {
                let end = if count == whole { last } else { length };
                for live in 0..=end {
                    if looks.next() == Some(true) {
                        let state = State {
                            offset: 100,
                            length,
                            stride: 50,
                            count,
                            slab: 3,
                            pos: 1000,
                            stamp: 7,
                            ..State::default()
                        };
                        record.take_state(&Applied::of_state(&state, live));
                    }
                }
            }
            for closed in closing(whole, length, last) {
                record.take_closed(&closed);
            }
            prop_assert_eq!(record.index.allocated_bytes(), whole * length + last);
            for count in 0..=whole {
                let wanted = if count == whole { last } else { length };
                let mut found = 0;
                let start = 100 + count * 50;
                record.index.for_each_piece_in(start, start + length, &mut |piece| {
                    found += piece.length;
                    let PieceSource::Log { pos, .. } = piece.source else {
                        panic!("{piece:?}");
                    };
                    assert_eq!(pos - 1000, count * length + piece.offset - start);
                });
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
