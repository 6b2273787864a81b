//! Checks the blocks that readers get against the visibility of the file: `ras`, `raw` or `ral`.
//!
//! Every write fills whole blocks with a tag of its own, so a block that is read tells which
//! write it is of. A reader must see, or see something newer than, each write that
//!
//! - was made on its node and had returned before the read began, or
//! - was published (fsync or close had returned) before the reader opened the file; of a raw
//!   file: had returned before the read began, on whatever node, unless the node was lost for good
//!   and nobody had published it.
//!
//! A `ral` file is not published by fsync or close. Until a program asks for its lamination, no other
//! node sees its new bytes. After the lamination no program changes it, all nodes see the bytes that
//! were written to it, and all reads of a block return the same.
//!
//! No two appends that were published (fsync or close returned 0) have the same blocks, unless
//! the file was cut.
//!
//! A file is raw from its first lock on. Earlier writes count as raw then, too, except in a run whose
//! calls may fail: the writer's node may have failed to publish them.
//!
//! The same reads check the size: each block inside the file must have been reached by a write that no
//! cut has certainly undone. A block behind its end must not have been reached by a write that the
//! reader must see, unless a cut may have removed it.
//!
//! The order of two writes is known only if one had ended before the other began; if two nodes made them
//! and the file is not raw, the first must also have been published. The check assumes nothing about
//! unknown orders, so whatever it reports is a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weir_core::names::Visibility;
use weir_core::types::{Ino, Rank};

/// Bytes of a block.
pub const BLOCK: u64 = 64;

/// The content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// Zeros, or it lies behind the end.
    Empty,
    /// The tag of a write.
    Tag(u64),
    /// Other bytes.
    Torn,
}

impl Block {
    /// The bytes of a tag.
    pub fn bytes(tag: u64) -> Vec<u8> {
        tag.to_le_bytes().repeat(8)
    }

    /// Classifies a block's bytes.
    pub fn from_bytes(bytes: &[u8]) -> Block {
        let Some((first, _)) = bytes.split_first_chunk::<8>() else {
            return Block::Empty;
        };
        match u64::from_le_bytes(*first) {
            _ if bytes.len() as u64 != BLOCK => Block::Torn,
            _ if !bytes.chunks(8).all(|word| word == first) => Block::Torn,
            0 => Block::Empty,
            tag => Block::Tag(tag),
        }
    }
}

/// The time from a call to its return, as positions in the order of all events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The call.
    pub began: u64,
    /// The return; `u64::MAX` if it failed or never came: it may have an effect at any time.
    pub ended: u64,
}

impl Span {
    fn before(&self, other: &Span) -> bool {
        self.ended < other.began
    }
}

/// A change of blocks.
#[derive(Clone, Debug)]
struct Change {
    rank: Rank,
    span: Span,
    /// The blocks `[first, end)`.
    first: u64,
    end: u64,
    /// `Empty`: a truncation, which all nodes know when it returns.
    what: Block,
    /// True for an append: no other append has these blocks.
    appended: bool,
}

/// The history of one file.
#[derive(Clone, Debug, Default)]
struct File {
    changes: Vec<Change>,
    /// The publishes; each covers everything that the node wrote before it began.
    published: Vec<(Rank, Span)>,
    /// True once a program asked for a lock on it.
    locking: bool,
    /// The event at which a program was granted its first lock.
    locked: Option<u64>,
    /// The event at which a program first requested its lamination.
    laminating: Option<u64>,
    /// The event at which a program first learned of its lamination.
    laminated: Option<u64>,
    /// True if it has a name at the end. The other files count as published entirely.
    named: bool,
}

/// The guarantees for all files.
#[derive(Clone, Debug, Default)]
pub struct Guarantees {
    /// The visibility of files.
    pub visibility: Visibility,
    /// Servers that are killed for good at some time.
    pub lost: BTreeSet<Rank>,
    /// Calls to servers may fail.
    pub fails_calls: bool,
}

/// One file, checked against the guarantees.
#[derive(Clone, Copy)]
struct Check<'a> {
    file: &'a File,
    guarantees: &'a Guarantees,
}

impl Check<'_> {
    /// True if a call that begins at `began` has to take `change` for a change of a raw file.
    fn is_raw(&self, change: &Change, began: u64) -> bool {
        let by_lock =
            |locked| locked < began && (locked < change.span.began || !self.guarantees.fails_calls);
        let raw = self.guarantees.visibility == Visibility::ReadAfterWrite;
        raw || self.file.locked.is_some_and(by_lock)
    }

    /// True if a publish that began at `began` shows nothing to other nodes.
    fn is_held_back(&self, began: u64) -> bool {
        let ral = self.guarantees.visibility == Visibility::ReadAfterLaminate;
        ral && self.file.locked.is_none_or(|locked| began < locked)
    }

    /// The event at which all nodes know a change, if that is known.
    fn known(&self, change: &Change) -> Option<u64> {
        if change.what == Block::Empty {
            return Some(change.span.ended);
        }
        let later = self.file.published.iter().filter(|(rank, span)| {
            *rank == change.rank
                && change.span.before(span)
                && span.ended != u64::MAX
                && !self.is_held_back(span.began)
        });
        // Lamination publishes the bytes of all nodes, except those of lost ones.
        let is_kept = !self.guarantees.lost.contains(&change.rank);
        let laminated = self.file.laminated;
        let laminated = laminated.filter(|at| is_kept && change.span.ended < *at);
        later.map(|(_, span)| span.ended).chain(laminated).min()
    }

    /// Returns true if `a` is certainly older than `b`.
    fn older(&self, a: &Change, b: &Change) -> bool {
        if (a.rank == b.rank || self.is_raw(a, b.span.began)) && a.span.before(&b.span) {
            return true;
        }
        self.known(a).is_some_and(|known| known < b.span.began)
    }

    /// Returns true if a reader must see a change, or a newer one.
    fn is_visible(&self, change: &Change, read: &Read) -> bool {
        let raw = self.is_raw(change, read.span.began);
        let is_kept = !self.guarantees.lost.contains(&change.rank);
        let laminated = self.file.laminated.filter(|at| *at < read.span.began);
        if laminated.is_some_and(|at| change.span.ended < at) && is_kept {
            return true;
        }
        let stays = raw && is_kept;
        if change.rank == read.rank || stays {
            change.span.ended < read.span.began
        } else {
            let since = match raw {
                true => read.span.began,
                false => read.opened,
            };
            self.known(change).is_some_and(|known| known < since)
        }
    }

    /// Returns true if `block` may lie inside the file: a change reached beyond it, and was not cut off
    /// before the read.
    fn may_be_inside(&self, read: &Read, block: u64) -> bool {
        let cuts = |at: &Change| at.what == Block::Empty && at.first <= block;
        let reaches = |change: &Change| match change.what {
            Block::Empty => change.first > block,
            _ => change.end > block,
        };
        self.file
            .changes
            .iter()
            .filter(|c| reaches(c))
            .any(|change| {
                let undone = |cut: &Change| {
                    cuts(cut) && cut.span.before(&read.span) && self.older(change, cut)
                };
                !self.file.changes.iter().any(undone)
            })
    }

    /// A write beyond `block` that the reader must see, if nothing may have cut it off.
    fn beyond(&self, read: &Read, block: u64) -> Option<&Change> {
        self.file.changes.iter().find(|change| {
            let writes = change.what != Block::Empty && change.end > block;
            let cut_off = |cut: &Change| {
                cut.what == Block::Empty && cut.first < change.end && !self.older(cut, change)
            };
            writes && self.is_visible(change, read) && !self.file.changes.iter().any(cut_off)
        })
    }

    /// A change of the file after a program had learned of its lamination.
    fn changed_after_lamination(&self) -> Option<&Change> {
        let laminated = self.file.laminated?;
        let is_later = |change: &&Change| {
            let ended = change.span.ended;
            ended != u64::MAX && ended > laminated
        };
        self.file.changes.iter().find(is_later)
    }

    /// True if a reader saw another node's write to a `ral` file before any program asked for its
    /// lamination, or for a lock on it.
    fn is_early(&self, read: &Read, block: u64, seen: Block) -> bool {
        let held_back = self.guarantees.visibility == Visibility::ReadAfterLaminate
            && self.file.named
            && !self.file.locking
            && (self.file.laminating).is_none_or(|began| read.span.ended < began);
        let sources = || {
            let changes = self.file.changes.iter();
            changes.filter(|change| change.what == seen && change.first <= block)
        };
        held_back && sources().all(|change| change.rank != read.rank)
    }

    /// Two appends that share blocks, unless the file may have been cut between them.
    fn appended_twice(&self) -> Option<(&Change, &Change)> {
        // Appends that were not published because a node was lost do not count.
        let is_there = |a: &&Change| self.known(a).is_some();
        let appends = || {
            let appended = self.file.changes.iter().filter(|change| change.appended);
            appended.filter(is_there)
        };
        appends().enumerate().find_map(|(number, a)| {
            let shares = |b: &&Change| {
                let (end, both) = (
                    a.end.min(b.end),
                    Span {
                        began: a.span.began.min(b.span.began),
                        ended: a.span.ended.max(b.span.ended),
                    },
                );
                let between = |cut: &Change| {
                    cut.what == Block::Empty
                        && cut.first < end
                        && !cut.span.before(&both)
                        && !both.before(&cut.span)
                };
                a.first.max(b.first) < end && !self.file.changes.iter().any(between)
            };
            Some((a, appends().take(number).find(shares)?))
        })
    }

    /// A change that a reader who saw `seen` should have seen instead.
    fn missed(&self, read: &Read, block: u64, seen: Block) -> Option<&Change> {
        let touches = |change: &&Change| (change.first..change.end).contains(&block);
        let sources: Vec<&Change> = self
            .file
            .changes
            .iter()
            .filter(touches)
            .filter(|change| change.what == seen)
            .collect();
        self.file.changes.iter().filter(touches).find(|change| {
            self.is_visible(change, read)
                && change.what != seen
                && sources.iter().all(|source| self.older(source, change))
        })
    }
}

/// A read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The reader's node.
    pub rank: Rank,
    /// The event at which the reader opened the file.
    pub opened: u64,
    /// The time of the read.
    pub span: Span,
    /// The end of the blocks read: the end of the file, or of the requested range.
    pub reached: u64,
}

/// A change that has begun.
#[derive(Clone, Copy, Debug)]
pub struct ChangeId(Ino, usize);

/// The history of all files.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    guarantees: Guarantees,
    files: BTreeMap<Ino, File>,
    reads: Vec<(Ino, Read, u64, Vec<Block>)>,
}

impl Bytes {
    /// Creates an empty history.
    pub fn new(guarantees: Guarantees) -> Bytes {
        Bytes {
            guarantees,
            ..Bytes::default()
        }
    }

    /// Records that a program at node `rank` begins to change blocks; the result may never be known.
    pub fn begin_change(
        &mut self,
        ino: Ino,
        rank: Rank,
        began: u64,
        blocks: Range<u64>,
        what: Block,
    ) -> ChangeId {
        let changes = &mut self.files.entry(ino).or_default().changes;
        changes.push(Change {
            rank,
            span: Span {
                began,
                ended: u64::MAX,
            },
            first: blocks.start,
            end: blocks.end,
            what,
            appended: false,
        });
        ChangeId(ino, changes.len() - 1)
    }

    /// Records the blocks of an append that has ended.
    pub fn end_append(&mut self, begun: ChangeId, ended: u64, blocks: Range<u64>) {
        self.end_change(begun, ended, blocks);
        let file = self.files.entry(begun.0).or_default();
        file.changes[begun.1].appended = true;
    }

    /// Records the blocks of a change that has ended.
    pub fn end_change(&mut self, begun: ChangeId, ended: u64, blocks: Range<u64>) {
        let file = self.files.entry(begun.0).or_default();
        let change = &mut file.changes[begun.1];
        change.span.ended = ended;
        (change.first, change.end) = (blocks.start, blocks.end);
    }

    /// Records a request to laminate a file.
    pub fn laminating(&mut self, ino: Ino, began: u64) {
        let file = self.files.entry(ino).or_default();
        file.laminating = file.laminating.or(Some(began));
    }

    /// Records that a program learned of a lamination.
    pub fn laminated(&mut self, ino: Ino, told: u64) {
        let file = self.files.entry(ino).or_default();
        file.laminated = file.laminated.or(Some(told));
    }

    /// True if a file may be laminated by now.
    pub fn may_be_laminated(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.laminating.is_some())
    }

    /// Records that a file has a name at the end.
    pub fn named(&mut self, ino: Ino) {
        self.files.entry(ino).or_default().named = true;
    }

    /// True if a program was told that a file is laminated.
    pub fn is_laminated(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.laminated.is_some())
    }

    /// True if all nodes show the same of a file that nobody has open, laminated or not.
    pub fn is_shown_everywhere(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino);
        self.guarantees.visibility != Visibility::ReadAfterLaminate
            || file.is_some_and(|file| file.locked.is_some())
    }

    /// Records a request for a lock of a file.
    pub fn locking(&mut self, ino: Ino) {
        self.files.entry(ino).or_default().locking = true;
    }

    /// Records a granted lock of a file.
    pub fn locked(&mut self, ino: Ino, granted: u64) {
        let file = self.files.entry(ino).or_default();
        file.locked = file.locked.or(Some(granted));
    }

    /// Records that a node published its writes.
    pub fn published(&mut self, ino: Ino, rank: Rank, span: Span) {
        let file = self.files.entry(ino).or_default();
        file.published.push((rank, span));
    }

    /// Records that all nodes published their writes, except those that are lost.
    pub fn published_everywhere(&mut self, ino: Ino, span: Span) {
        let file = self.files.entry(ino).or_default();
        let writers: BTreeSet<Rank> = file.changes.iter().map(|change| change.rank).collect();
        let kept = writers.difference(&self.guarantees.lost);
        file.published.extend(kept.map(|rank| (*rank, span)));
    }

    /// Records blocks read, from `first` on.
    pub fn read(&mut self, ino: Ino, read: Read, first: u64, blocks: Vec<Block>) {
        self.reads.push((ino, read, first, blocks));
    }

    /// The reads that violate the guarantees.
    pub fn faults(&self) -> Vec<String> {
        let none = File::default();
        let mut faults = Vec::new();
        let guarantees = &self.guarantees;
        for (ino, file) in &self.files {
            let file = Check { file, guarantees };
            if let Some((a, b)) = file.appended_twice() {
                faults.push(format!("{ino:?}: two appends share bytes: {a:?}, {b:?}"));
            }
            if let Some(change) = file.changed_after_lamination() {
                faults.push(format!("{ino:?} is laminated, and was changed: {change:?}"));
            }
        }
        let mut last = BTreeMap::new();
        for (ino, read, first, blocks) in &self.reads {
            let file = Check {
                file: self.files.get(ino).unwrap_or(&none),
                guarantees,
            };
            for (block, seen) in (*first..).zip(blocks) {
                let of = |change: &Change| {
                    change.what == *seen && (change.first..change.end).contains(&block)
                };
                let fault = match seen {
                    Block::Torn => Some("is of no one write".to_owned()),
                    Block::Tag(_) if !file.file.changes.iter().any(of) => {
                        Some("was never written there".to_owned())
                    }
                    Block::Empty if block < read.reached && !file.may_be_inside(read, block) => {
                        Some("lies behind the end, where it was cut".to_owned())
                    }
                    Block::Tag(_) if file.is_early(read, block, *seen) => {
                        Some("was not laminated".to_owned())
                    }
                    _ => file
                        .missed(read, block, *seen)
                        .map(|missed| format!("is older than {missed:?}")),
                };
                let fault = fault.or_else(|| {
                    let beyond = file.beyond(read, block).filter(|_| block >= read.reached);
                    beyond.map(|write| format!("lies before the end of {write:?}"))
                });
                let laminated = file.file.laminated.filter(|at| *at < read.span.began);
                let shown = laminated.map(|_| *last.entry((*ino, block)).or_insert(*seen));
                let fault = fault.or_else(|| {
                    let other = shown.filter(|shown| shown != seen);
                    other.map(|shown| format!("was {shown:?}, and the file is laminated"))
                });
                if let Some(fault) = fault {
                    faults.push(format!("{ino:?} block {block}: {seen:?} {fault}; {read:?}"));
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn span(began: u64, ended: u64) -> Span {
        Span { began, ended }
    }

    fn read(rank: u16, opened: u64, began: u64) -> Read {
        Read {
            rank: Rank(rank),
            opened,
            span: span(began, began + 1),
            reached: u64::MAX,
        }
    }

    fn wrote(bytes: &mut Bytes, span: Span, blocks: Range<u64>, tag: u64) {
        let begun = bytes.begin_change(FILE, Rank(0), span.began, blocks.clone(), Block::Tag(tag));
        bytes.end_change(begun, span.ended, blocks);
    }

    fn cut(bytes: &mut Bytes, span: Span, blocks: u64) {
        let all = blocks..u64::MAX;
        let begun = bytes.begin_change(FILE, Rank(1), span.began, all.clone(), Block::Empty);
        bytes.end_change(begun, span.ended, all);
    }

    /// Node 0 writes 1 over [0, 4) and publishes, then 2 over [0, 2).
    fn story() -> Bytes {
        let mut bytes = Bytes::default();
        wrote(&mut bytes, span(0, 1), 0..4, 1);
        bytes.published(FILE, Rank(0), span(2, 3));
        wrote(&mut bytes, span(4, 5), 0..2, 2);
        bytes
    }

    fn faults(read: Read, seen: &[Block]) -> usize {
        let mut bytes = story();
        bytes.read(FILE, read, 0, seen.to_vec());
        bytes.faults().len()
    }

    #[test]
    fn a_reader_sees_what_it_must_or_newer() {
        let (one, two) = (Block::Tag(1), Block::Tag(2));
        assert_eq!(faults(read(0, 0, 6), &[two, two, one, one]), 0);
        assert_eq!(faults(read(0, 0, 6), &[one, two, one, one]), 1, "own node");
        assert_eq!(
            faults(read(1, 4, 6), &[one, two, one, one]),
            0,
            "not published"
        );
        assert_eq!(faults(read(1, 4, 6), &[Block::Empty, two, one, one]), 1);
        assert_eq!(
            faults(read(1, 1, 6), &[Block::Empty; 4]),
            0,
            "opened before"
        );
        assert_eq!(faults(read(1, 4, 6), &[one, one, two, Block::Torn]), 2);
    }

    fn raw(lost: &[Rank]) -> Guarantees {
        Guarantees {
            visibility: Visibility::ReadAfterWrite,
            lost: lost.iter().copied().collect(),
            fails_calls: false,
        }
    }

    #[test]
    fn a_raw_file_shows_what_returned() {
        let (one, two) = (Block::Tag(1), Block::Tag(2));
        let faults = |lost: &[Rank], began, seen| {
            let mut bytes = story();
            bytes.guarantees = raw(lost);
            bytes.read(FILE, read(1, 0, began), 0, vec![seen]);
            bytes.faults().len()
        };
        assert_eq!((faults(&[], 6, two), faults(&[], 6, one)), (0, 1));
        assert_eq!(faults(&[], 5, one), 0, "meanwhile");
        // Bytes that only a lost node had are gone.
        assert_eq!(faults(&[Rank(0)], 6, one), 0);
        assert_eq!(faults(&[Rank(0)], 6, Block::Empty), 1);
        // The older of two writes of two nodes, without a publish between them.
        let mut bytes = Bytes::new(raw(&[]));
        wrote(&mut bytes, span(0, 1), 0..1, 1);
        let begun = bytes.begin_change(FILE, Rank(2), 2, 0..1, two);
        bytes.end_change(begun, 3, 0..1);
        bytes.read(FILE, read(1, 0, 4), 0, vec![one]);
        assert_eq!(bytes.faults().len(), 1);
    }

    #[test]
    fn a_file_is_raw_once_it_was_locked() {
        let faults = |locked, began| {
            let mut bytes = story();
            bytes.locked(FILE, locked);
            bytes.read(FILE, read(1, 0, began), 0, vec![Block::Tag(1)]);
            bytes.faults().len()
        };
        assert_eq!((faults(7, 8), faults(7, 6)), (1, 0));
        // The writer's node may have failed to publish before the lock.
        let mut bytes = story();
        bytes.guarantees.fails_calls = true;
        bytes.locked(FILE, 7);
        bytes.read(FILE, read(1, 0, 8), 0, vec![Block::Tag(1)]);
        assert_eq!(bytes.faults(), [""; 0]);
    }

    #[test]
    fn what_is_laminated_is_the_same_for_all() {
        let (one, two, empty) = (Block::Tag(1), Block::Tag(2), Block::Empty);
        let ral = Guarantees {
            visibility: Visibility::ReadAfterLaminate,
            ..Guarantees::default()
        };
        let story = || {
            let mut bytes = Bytes::new(ral.clone());
            wrote(&mut bytes, span(0, 1), 0..4, 1);
            bytes.published(FILE, Rank(0), span(2, 3));
            wrote(&mut bytes, span(4, 5), 0..2, 2);
            bytes.laminating(FILE, 20);
            bytes.laminated(FILE, 30);
            bytes.named(FILE);
            bytes
        };
        let faults = |read: Read, seen: &[Block]| {
            let mut bytes = story();
            bytes.read(FILE, read, 0, seen.to_vec());
            bytes.faults().len()
        };
        assert_eq!(faults(read(0, 0, 6), &[two, two, one]), 0, "own node");
        assert_eq!(
            faults(read(1, 6, 7), &[empty, empty, empty]),
            0,
            "published"
        );
        assert_eq!(faults(read(1, 6, 7), &[empty, two, one]), 2, "early");
        assert_eq!(faults(read(1, 21, 22), &[empty, two, one]), 0, "meanwhile");
        assert_eq!(faults(read(1, 6, 31), &[empty, two, one]), 1);
        assert_eq!(faults(read(1, 6, 31), &[two, two, one]), 0);
        // Two writes without an order: all nodes see the same one.
        let mut bytes = Bytes::new(ral.clone());
        wrote(&mut bytes, span(0, 1), 0..1, 1);
        let begun = bytes.begin_change(FILE, Rank(1), 2, 0..1, two);
        bytes.end_change(begun, 3, 0..1);
        bytes.laminated(FILE, 30);
        bytes.read(FILE, read(2, 31, 31), 0, vec![one]);
        assert_eq!(bytes.faults().len(), 0);
        bytes.read(FILE, read(3, 31, 31), 0, vec![two]);
        assert_eq!(bytes.faults().len(), 1);
        // No program writes any more.
        let mut bytes = story();
        wrote(&mut bytes, span(31, 32), 0..1, 3);
        assert_eq!(bytes.faults().len(), 1);
    }

    #[test]
    fn what_was_cut_is_empty_until_it_is_written_again() {
        let mut bytes = story();
        cut(&mut bytes, span(6, 7), 3);
        let after = Read {
            reached: 3,
            ..read(2, 8, 9)
        };
        bytes.read(FILE, after, 2, vec![Block::Tag(1), Block::Empty]);
        assert_eq!(bytes.faults(), [""; 0]);
        bytes.read(FILE, read(2, 8, 9), 3, vec![Block::Tag(1)]);
        assert_eq!(bytes.faults().len(), 1);
        // A cut with an unknown end may come at any time.
        let mut bytes = story();
        cut(&mut bytes, span(6, u64::MAX), 0);
        bytes.read(FILE, read(0, 0, 60), 0, vec![Block::Empty, Block::Tag(2)]);
        assert_eq!(bytes.faults(), [""; 0]);
    }

    #[test]
    fn a_file_ends_where_it_was_cut_or_written_to() {
        let short = |read: Read, reached| Read { reached, ..read };
        let ends = |bytes: &Bytes, read: Read, blocks: usize| {
            let mut bytes = bytes.clone();
            bytes.read(FILE, read, 0, vec![Block::Empty; blocks]);
            let faults = bytes.faults().into_iter();
            faults.filter(|fault| fault.contains(" lies ")).count()
        };
        // After a cut to nothing, the end is at 0.
        let mut bytes = story();
        bytes.published(FILE, Rank(0), span(6, 6));
        cut(&mut bytes, span(7, 8), 0);
        assert_eq!(ends(&bytes, short(read(2, 9, 9), 0), 2), 0);
        assert_eq!(ends(&bytes, short(read(2, 9, 9), 1), 2), 1);
        assert_eq!(ends(&bytes, short(read(2, 0, 7), 1), 1), 0, "meanwhile");
        // Extended, or written behind the end: zeros come before.
        let mut longer = bytes.clone();
        cut(&mut longer, span(10, 11), 5);
        assert_eq!(ends(&longer, short(read(2, 12, 13), 5), 5), 0);
        wrote(&mut bytes, span(10, 11), 4..5, 3);
        assert_eq!(ends(&bytes, short(read(2, 12, 13), 4), 4), 0);
        // Bytes published before the reader opened the file are not behind its end.
        let mut sparse = Bytes::default();
        wrote(&mut sparse, span(0, 1), 4..5, 1);
        sparse.published(FILE, Rank(0), span(2, 3));
        assert_eq!(ends(&sparse, short(read(1, 4, 6), 0), 2), 2);
        assert_eq!(ends(&sparse, short(read(1, 1, 6), 0), 2), 0);
    }

    #[test]
    fn no_two_appends_have_the_same_blocks() {
        let append = |bytes: &mut Bytes, span: Span, blocks: Range<u64>| {
            let begun = bytes.begin_change(FILE, Rank(0), span.began, 0..u64::MAX, Block::Tag(9));
            bytes.end_append(begun, span.ended, blocks);
        };
        let mut bytes = story();
        append(&mut bytes, span(10, 11), 4..6);
        append(&mut bytes, span(12, 13), 6..8);
        bytes.published(FILE, Rank(0), span(30, 31));
        assert_eq!(bytes.faults(), [""; 0]);
        let mut twice = bytes.clone();
        append(&mut twice, span(20, 21), 7..9);
        assert_eq!(twice.faults().len(), 1);
        // An append that only a lost node had is lost, also once the file is laminated.
        let mut lost = story();
        lost.guarantees.lost.insert(Rank(0));
        append(&mut lost, span(10, 11), 4..6);
        let begun = lost.begin_change(FILE, Rank(1), 20, 0..u64::MAX, Block::Tag(8));
        lost.end_append(begun, 21, 4..5);
        lost.laminating(FILE, 30);
        lost.laminated(FILE, 31);
        assert_eq!(lost.faults(), [""; 0]);
        cut(&mut bytes, span(14, 15), 7);
        append(&mut bytes, span(20, 21), 7..9);
        assert_eq!(bytes.faults(), [""; 0]);
    }

    #[test]
    fn bytes_tell_their_write() {
        assert_eq!(Block::from_bytes(&Block::bytes(77)), Block::Tag(77));
        assert_eq!(Block::from_bytes(&[0; 64]), Block::Empty);
        assert_eq!(Block::from_bytes(&[]), Block::Empty);
        let mut torn = Block::bytes(77);
        torn[40] = 1;
        assert_eq!(Block::from_bytes(&torn), Block::Torn);
        assert_eq!(Block::from_bytes(&[0; 10]), Block::Torn);
    }
}
