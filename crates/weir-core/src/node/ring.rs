//! Rings from one client to its server: closed extent records, and notes.
//!
//! Single producer (a client, under a lock of its own process), single consumer (the
//! server's service thread). `head` and `tail` count entries and never wrap in
//! practice (2^64); a slot is `count % slots`. The producer writes a slot, then bumps
//! `head` with release: a kill in between loses only a record that was not promised yet.
//!
//! A record is pushed before the cell's next record begins, so a record may be seen
//! twice (in the ring and in the cell) and never not at all. The index takes the same
//! record any number of times.

use crate::sync::{AtomicU64, Ordering};

/// The two counters of a ring, each on a line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RingEnds {
    head: AtomicU64,
    pad_head: [AtomicU64; 7],
    tail: AtomicU64,
    pad_tail: [AtomicU64; 7],
}

/// A slot of the ring of records. One cache line.
///
/// ```text
/// word 0        1       2       3      4      5      6     7
/// slab | cell   offset  length  stride count  pos    stamp spare
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RecordSlot([AtomicU64; 8]);

/// A slot of the ring of notes: a note and its subject.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub struct NoteSlot([AtomicU64; 2]);

/// A closed extent record: an arithmetic progression of pieces of a file whose bytes
/// lie one behind the other in a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The cell it comes from, which names the file.
    pub cell: u32,
    /// The slab.
    pub slab: u32,
    /// The file offset of the first piece.
    pub offset: u64,
    /// Bytes a piece.
    pub length: u64,
    /// The distance from one piece to the next; 0 if there is one.
    pub stride: u64,
    /// The number of pieces.
    pub count: u64,
    /// The position in the slab of the first one.
    pub pos: u64,
    /// Its order among the records of the file.
    pub stamp: u64,
}

/// A message from a client to its server that needs no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// The client no longer writes through this cell.
    Detach(u32),
    /// The client no longer writes into this segment.
    Release(u32),
    /// This open file description may have lost its last descriptor.
    Closed(u32),
    /// A file without a name lost an open file description: it may go.
    Orphan(u64),
    /// Nothing could be written into this segment for lack of room.
    Refused(u32),
}

impl Note {
    fn to_words(self) -> [u64; 2] {
        match self {
            Note::Detach(cell) => [1, u64::from(cell)],
            Note::Release(segment) => [2, u64::from(segment)],
            Note::Closed(ofd) => [3, u64::from(ofd)],
            Note::Orphan(ino) => [4, ino],
            Note::Refused(segment) => [5, u64::from(segment)],
        }
    }

    fn from_words(w: [u64; 2]) -> Option<Note> {
        let small = u32::try_from(w[1]);
        match w[0] {
            1 => Some(Note::Detach(small.ok()?)),
            2 => Some(Note::Release(small.ok()?)),
            3 => Some(Note::Closed(small.ok()?)),
            4 => Some(Note::Orphan(w[1])),
            5 => Some(Note::Refused(small.ok()?)),
            _ => None,
        }
    }
}

impl RingEnds {
    /// Empties the ring (server, before it is lent).
    pub fn reset(&self) {
        self.head.store(0, Ordering::Relaxed);
        self.tail.store(0, Ordering::Release);
    }

    /// Returns the number of entries that wait. Hostile counters give at most `slots`.
    pub fn waiting(&self, slots: usize) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        usize::try_from(head.wrapping_sub(tail)).map_or(slots, |n| n.min(slots))
    }

    /// Returns the slot to fill next; `None`: the ring is full (producer).
    fn vacant(&self, slots: usize) -> Option<usize> {
        (self.waiting(slots) < slots).then(|| slot(self.head.load(Ordering::Relaxed), slots))
    }

    fn produced(&self) {
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head.wrapping_add(1), Ordering::Release);
    }

    fn waiting_at(&self, place: usize, slots: usize) -> Option<usize> {
        let tail = self.tail.load(Ordering::Relaxed);
        (self.waiting(slots) > place).then(|| slot(tail.wrapping_add(place as u64), slots))
    }

    fn oldest(&self, slots: usize) -> Option<usize> {
        self.waiting_at(0, slots)
    }

    /// Gives the oldest `count` slots back to the producer (consumer).
    pub fn consumed(&self, count: usize) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail
            .store(tail.wrapping_add(count as u64), Ordering::Release);
    }
}

fn slot(count: u64, slots: usize) -> usize {
    // The remainder is less than `slots`, a usize.
    usize::try_from(count % slots.max(1) as u64).unwrap_or(0)
}

/// A ring of records on memory that is shared.
#[derive(Clone, Copy, Debug)]
pub struct RecordRing<'a> {
    /// Its counters.
    pub ends: &'a RingEnds,
    /// Its slots.
    pub slots: &'a [RecordSlot],
}

/// The ring is full: the server must be asked to empty it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl RecordRing<'_> {
    /// Appends a record (producer).
    pub fn push(&self, r: &Record) -> Result<(), Full> {
        let at = self.ends.vacant(self.slots.len()).ok_or(Full)?;
        let place = u64::from(r.slab) | (u64::from(r.cell) << 32);
        let words = [
            place, r.offset, r.length, r.stride, r.count, r.pos, r.stamp, 0,
        ];
        for (word, value) in self.slots[at].0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.ends.produced();
        Ok(())
    }

    /// Returns the record in this slot, counted from the oldest (consumer). Its contents are not
    /// checked. It stays until [`RingEnds::consumed`]: the consumer must first have stored the
    /// records such that they are found again if it is killed.
    #[allow(clippy::cast_possible_truncation)] // word 0 holds two u32
    pub fn peek(&self, place: usize) -> Option<Record> {
        let at = self.ends.waiting_at(place, self.slots.len())?;
        let w: [u64; 8] = core::array::from_fn(|i| self.slots[at].0[i].load(Ordering::Relaxed));
        Some(Record {
            slab: w[0] as u32,
            cell: (w[0] >> 32) as u32,
            offset: w[1],
            length: w[2],
            stride: w[3],
            count: w[4],
            pos: w[5],
            stamp: w[6],
        })
    }
}

/// A ring of notes on memory that is shared.
#[derive(Clone, Copy, Debug)]
pub struct NoteRing<'a> {
    /// Its counters.
    pub ends: &'a RingEnds,
    /// Its slots.
    pub slots: &'a [NoteSlot],
}

impl NoteRing<'_> {
    /// Appends a note (producer).
    pub fn push(&self, note: Note) -> Result<(), Full> {
        let at = self.ends.vacant(self.slots.len()).ok_or(Full)?;
        for (word, value) in self.slots[at].0.iter().zip(note.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.ends.produced();
        Ok(())
    }

    /// Takes the oldest note (consumer): `Some(None)` for an invalid one.
    #[allow(clippy::option_option)] // empty ring, bad note and note are three things
    pub fn pop(&self) -> Option<Option<Note>> {
        let at = self.ends.oldest(self.slots.len())?;
        let words = core::array::from_fn(|i| self.slots[at].0[i].load(Ordering::Relaxed));
        self.ends.consumed(1);
        Some(Note::from_words(words))
    }

    /// Returns the number of notes that wait.
    pub fn waiting(&self) -> usize {
        self.ends.waiting(self.slots.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_until_the_ring_is_full() {
        let ends = RingEnds::default();
        let slots: Vec<RecordSlot> = (0..4).map(|_| RecordSlot::default()).collect();
        let ring = RecordRing {
            ends: &ends,
            slots: &slots,
        };
        let record = |i: u64| Record {
            cell: 7,
            slab: 1 << 31,
            offset: i,
            stamp: u64::MAX,
            ..Record::default()
        };
        for round in 0..3 {
            for i in 0..4 {
                ring.push(&record(round * 4 + i)).unwrap();
            }
            assert_eq!(ring.push(&record(99)), Err(Full));
            for i in 0..4 {
                let place = usize::try_from(i).unwrap();
                assert_eq!(ring.peek(place), Some(record(round * 4 + i)));
            }
            assert_eq!(ring.peek(4), None);
            assert_eq!(ring.push(&record(99)), Err(Full), "they are there still");
            ends.consumed(4);
            assert_eq!(ring.peek(0), None);
        }
    }

    #[test]
    fn notes_survive_and_nonsense_is_told_apart() {
        let ends = RingEnds::default();
        let slots: Vec<NoteSlot> = (0..8).map(|_| NoteSlot::default()).collect();
        let ring = NoteRing {
            ends: &ends,
            slots: &slots,
        };
        let all = [
            Note::Detach(1),
            Note::Release(2),
            Note::Closed(3),
            Note::Orphan(u64::MAX),
            Note::Refused(5),
        ];
        for note in all {
            ring.push(note).unwrap();
        }
        for note in all {
            assert_eq!(ring.pop(), Some(Some(note)));
        }
        assert_eq!(ring.pop(), None);
        ends.produced();
        slots[5].0[0].store(77, Ordering::Relaxed);
        assert_eq!(ring.pop(), Some(None));
    }

    #[test]
    fn counters_gone_mad_give_at_most_a_full_ring() {
        let ends = RingEnds::default();
        ends.head.store(5, Ordering::Relaxed);
        ends.tail.store(6, Ordering::Relaxed);
        assert_eq!(ends.waiting(4), 4);
    }
}
