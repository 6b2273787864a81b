//! Journals cut at any byte, changed in any bit, or made of garbage.

use super::frame::{end_word, frame_bytes, frame_words, END_AT};
use super::{
    encode, replay, Head, Item, JournalError, LockedName, NameChange, State, HEAD_BYTES, VERSION,
};
use crate::extent::{Run, MAX_OFFSET};
use crate::names::memory::Memory;
use crate::names::{
    EntryName, FileType, LaminateOn, Lamination, Owner, Policy, RenameMode, SetAttr, Shard,
    Visibility,
};
use crate::proto::Child;
use crate::types::{ClientId, Ino, Rank, SegmentId};
use proptest::prelude::*;
use std::collections::BTreeSet;

const RANK: Rank = Rank(2);
const OWNER: Owner = Owner { uid: 1, gid: 2 };
const MAX_INODES: u32 = 24;

/// The items are numbered in their order, so docs/FORMAT.md has as many rows as there are variants.
#[test]
fn each_item_is_documented_and_has_a_version() {
    let source = include_str!("item.rs");
    let declared = source.split("pub enum Item<'a> {\n").nth(1).unwrap();
    let declared = declared.split("\n}").next().unwrap();
    let variants = declared.lines().filter_map(|line| {
        let name = line.strip_prefix("    ")?;
        let begins = name.starts_with(|first: char| first.is_ascii_uppercase());
        begins.then(|| name.split([' ', '(', ',']).next().unwrap())
    });
    let variants: Vec<&str> = variants.collect();
    let document = include_str!("../../../../docs/FORMAT.md");
    let table = document.split("### Item (item.rs)").nth(1).unwrap();
    let table = table.split("\n#").next().unwrap();
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.parse::<usize>().ok()?, cells.next()?))
    });
    let rows: Vec<(usize, &str)> = rows.collect();
    let numbered: Vec<(usize, &str)> = variants.iter().copied().enumerate().collect();
    assert_eq!(rows, numbered, "docs/FORMAT.md");
    assert!(document.contains(&format!("| 8 | 4 | `version` | {VERSION} |")));
    assert_eq!(
        (VERSION, variants.len()),
        (6, 45),
        "the items have changed: raise VERSION, and put both numbers here"
    );
}

/// A journal as a file would hold it.
struct Written {
    bytes: Vec<u8>,
    /// The end of the last frame's payload; zeros up to 8 bytes follow.
    whole: usize,
    frames: u64,
    /// The end of each frame's payload.
    ends: Vec<usize>,
}

impl Written {
    fn new() -> Written {
        let head = Head {
            rank: RANK,
            servers: 3,
            instance: [9; 16],
            made_ns: -1,
        };
        Written {
            bytes: head.encode().to_vec(),
            whole: 0,
            frames: 0,
            ends: Vec::new(),
        }
    }

    fn append(&mut self, payload: &[u8]) {
        let words = frame_words(self.frames, payload).unwrap();
        let end = self.bytes.len() + frame_bytes(payload.len());
        for word in words {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(payload);
        self.whole = self.bytes.len();
        self.bytes.resize(end, 0);
        self.frames += 1;
        self.ends.push(self.whole);
        tell_end(&mut self.bytes, self.frames);
    }

    /// The bytes that a kill leaves before the byte `cut` is written: the end is that of the frames
    /// before.
    fn killed_at(&self, cut: usize) -> Vec<u8> {
        let mut bytes = self.bytes[..cut].to_vec();
        let frames = self.ends.iter().filter(|end| **end <= cut).count();
        if cut >= HEAD_BYTES {
            tell_end(&mut bytes, frames as u64);
        }
        bytes
    }

    fn append_item(&mut self, item: &Item<'_>) {
        let mut payload = Vec::new();
        encode(item, &mut payload);
        self.append(&payload);
    }
}

fn tell_end(bytes: &mut [u8], frames: u64) {
    bytes[END_AT..HEAD_BYTES].copy_from_slice(&end_word(frames).to_le_bytes());
}

/// Everything in a namespace, in no order.
fn dump(shard: &Shard<'_>) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    shard.for_each_item(&mut |item| {
        let mut bytes = Vec::new();
        encode(item, &mut bytes);
        all.insert(bytes);
    });
    all
}

/// The namespace that is made of a state, in tables of its own.
fn restored(state: &State) -> BTreeSet<Vec<u8>> {
    let memory = Memory::new(MAX_INODES);
    let shard = Shard::restore(memory.format(RANK), state).unwrap();
    // And it can go on.
    dump(&shard)
}

/// Does something to a namespace, chosen by three numbers.
fn act(shard: &mut Shard<'_>, known: &mut Vec<Ino>, (what, a, b): (u8, u8, u8), now: i64) {
    let pick = |n: u8| known[usize::from(n) % known.len()];
    let name = |n: u8| vec![b'a' + n % 5; 1 + usize::from(n % 3) * 20];
    let (dir, other) = (pick(a), pick(b));
    let made = match what % 13 {
        0 | 1 => shard.create(dir, &name(b), 0o640, OWNER, now).ok(),
        2 => shard.mkdir(dir, &name(b), 0o2750, OWNER, now).ok(),
        3 => {
            let target = vec![b'/'; 1 + usize::from(b) * 9];
            shard.symlink(dir, &name(b), &target, OWNER, now).ok()
        }
        4 => shard.link(other, dir, &name(a), now).map(|()| other).ok(),
        5 => shard.unlink(dir, &name(b), now).map(|gone| gone.ino).ok(),
        6 => shard.rmdir(dir, &name(b), now).map(|gone| gone.ino).ok(),
        7 | 8 => {
            let modes = [RenameMode::Replace, RenameMode::Exchange];
            let mode = modes[usize::from(what / 128)];
            let (old, new) = (name(b), name(a));
            let from = EntryName {
                parent: dir,
                name: &old,
            };
            let to = EntryName {
                parent: other,
                name: &new,
            };
            let renamed = shard.rename(from, to, mode, now);
            renamed.map(|done| done.moved).ok()
        }
        9 => shard.release(other).map(|()| other).ok(),
        10 => {
            let set = SetAttr {
                mode: Some(u32::from(a)),
                policy: (a % 3 == 0).then_some(Policy {
                    visibility: Visibility::ReadAfterLaminate,
                    laminate_on: LaminateOn::Close,
                }),
                lamination: (a % 7 == 0).then_some(Lamination::Done),
                size: (b % 2 == 0).then_some(u64::from(b) << 30),
                mtime_ns: Some(-now),
                ..SetAttr::default()
            };
            shard.setattr(other, &set).map(|attr| attr.ino).ok()
        }
        11 => {
            let kinds = [FileType::Fifo, FileType::Socket];
            let kind = kinds[usize::from(a % 2)];
            shard
                .make_special(dir, &name(b), kind, 0o600, OWNER, now)
                .ok()
        }
        _ => foreign(shard, (a, b), now),
    };
    known.extend(made.filter(|ino| !known.contains(ino)).as_slice());
}

/// The parts of the operations of several servers.
fn foreign(shard: &mut Shard<'_>, (a, b): (u8, u8), now: i64) -> Option<Ino> {
    let theirs = Ino::new(Rank(7), 1, u32::from(a % 3) + 5);
    let name = vec![b'f'; 1 + usize::from(b % 4)];
    match b % 5 {
        0 => {
            let root = shard.root();
            let mut attr = shard.attr(root).unwrap();
            attr.ino = theirs;
            shard.adopt_dir(&attr).map(|()| theirs).ok()
        }
        1 => shard.disown_dir(theirs).map(|()| theirs).ok(),
        2 => shard
            .withdraw_entry(theirs, &name, now)
            .map(|(ino, _)| ino)
            .ok(),
        3 => {
            let kind = crate::names::FileType::File;
            let child = Ino::new(Rank(5), 0, 3);
            let put = shard.insert_entry(theirs, &name, child, kind, now);
            put.map(|()| theirs).ok()
        }
        _ => {
            let root = shard.root();
            let mut attr = shard.attr(root).unwrap();
            attr.home = Ino::new(Rank(9), 0, 4);
            let local = shard.adopt_file(&attr).ok()?;
            if a % 2 == 0 {
                shard.disown_file(local).unwrap();
            }
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_prefix_of_a_journal_is_a_prefix_of_the_operations(
        acts in prop::collection::vec(any::<(u8, u8, u8)>(), 1..120),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 12),
        renew_at in 0..120_usize,
    ) {
        let memory = Memory::new(MAX_INODES);
        let mut shard = Shard::new(memory.format(RANK), 0o755, OWNER, 0).unwrap();
        shard.note_changes();
        let mut known = vec![shard.root()];
        let mut journal = Written::new();
        let mut after = Vec::new();
        let mut snapshot_ends = 0;
        for (n, what) in acts.iter().enumerate() {
            if n == 0 || n == renew_at {
                // A snapshot, in several frames.
                journal = Written::new();
                after.clear();
                let mut unused = Vec::new();
                shard.take_changes(&mut unused);
                shard.for_each_item(&mut |item| journal.append_item(item));
                journal.append_item(&Item::SnapshotEnd);
                snapshot_ends = journal.whole;
                after.push((snapshot_ends, dump(&shard)));
            }
            act(&mut shard, &mut known, *what, i64::try_from(n).unwrap());
            let mut payload = Vec::new();
            shard.take_changes(&mut payload);
            if !payload.is_empty() {
                journal.append(&payload);
                after.push((journal.whole, dump(&shard)));
            }
        }
        let cuts = cuts.iter().map(|cut| cut.index(journal.bytes.len() + 1));
        for cut in cuts.chain([journal.bytes.len()]) {
            let replayed = replay(&journal.killed_at(cut));
            // Cut by something else than a kill, also between two frames, and where the file is
            // longer, and zero there: the records behind it are missed.
            let mut lost = journal.bytes[..cut].to_vec();
            let gone = journal.bytes[cut.min(journal.whole)..journal.whole].iter().any(|b| *b != 0);
            prop_assert!(!gone || replay(&lost).is_err());
            lost.resize(cut.next_multiple_of(8) + 4096, 0);
            prop_assert_eq!(replay(&lost).is_err(), gone);
            if cut < snapshot_ends {
                prop_assert!(replayed.is_err());
                continue;
            }
            let want = after.iter().rev().find(|(whole, _)| *whole <= cut);
            prop_assert_eq!(&restored(&replayed.unwrap().state), &want.unwrap().1);
            // The file is longer than the written bytes, and zero there; so zeros at the end need
            // not have been written.
            let zeros = |end: usize| journal.bytes[cut.min(end)..end].iter().all(|b| *b == 0);
            let want = after.iter().rev().find(|(whole, _)| zeros(*whole));
            let mut file = journal.killed_at(cut);
            file.resize(cut.next_multiple_of(8) + 4096, 0);
            let state = replay(&file).unwrap().state;
            prop_assert_eq!(&restored(&state), &want.unwrap().1);
        }
    }

    #[test]
    fn a_changed_bit_is_found(
        payloads in prop::collection::vec(0..40_u32, 1..30),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut journal = Written::new();
        journal.append_item(&Item::SnapshotEnd);
        let mut ends = vec![journal.bytes.len()];
        for client in payloads {
            journal.append_item(&Item::ClientCame { client: ClientId(client), pid: client });
            ends.push(journal.bytes.len());
        }
        let mut bytes = journal.bytes.clone();
        bytes.resize(bytes.len() + 512, 0);
        let at = at.index(journal.bytes.len());
        bytes[at] ^= 1 << bit;
        let last_begins = ends[ends.len() - 2];
        let good = replay(&journal.bytes).unwrap().state;
        match replay(&bytes) {
            // In the padding, which is not read.
            Ok(replayed) => {
                prop_assert_eq!(replayed.torn, None);
                prop_assert_eq!(replayed.state.clients, good.clients);
            }
            Err(JournalError::Cut { at: end, found, written }) => {
                prop_assert!(at >= last_begins);
                prop_assert_eq!((end, found + 1), (last_begins, written));
            }
            Err(JournalError::Corrupt { .. }) => prop_assert!(at < last_begins),
            Err(_) => prop_assert!(at < HEAD_BYTES),
        }
    }

    #[test]
    fn garbage_does_no_harm(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        with_head in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        if with_head {
            let mut journal = Written::new();
            let memory = Memory::new(MAX_INODES);
            let shard = Shard::new(memory.format(RANK), 0o755, OWNER, 0).unwrap();
            shard.for_each_item(&mut |item| journal.append_item(item));
            journal.append_item(&Item::SnapshotEnd);
            // A good checksum over nonsense.
            journal.append(&payload);
            bytes.splice(0..0, journal.bytes);
        }
        if let Ok(replayed) = replay(&bytes) {
            let memory = Memory::new(MAX_INODES);
            if let Ok(shard) = Shard::restore(memory.format(RANK), &replayed.state) {
                // It is a namespace that can be written, and comes back the same.
                let mut again = Written::new();
                shard.for_each_item(&mut |item| again.append_item(item));
                again.append_item(&Item::SnapshotEnd);
                let state = replay(&again.bytes).unwrap().state;
                prop_assert_eq!(restored(&state), dump(&shard));
            }
        }
    }

    #[test]
    fn extents_come_out_as_they_went_in(
        runs in prop::collection::vec((0..200_u64, 1..60_u64, 0..3_u8), 1..60),
    ) {
        let mut index = crate::extent::ExtentIndex::new();
        let mut journal = Written::new();
        journal.append_item(&Item::SnapshotEnd);
        let ino = Ino::new(RANK, 0, 5);
        let (mut stamp, mut pos) = (1, 0);
        for (offset, length, what) in runs {
            stamp += 1;
            let run = match what {
                0 => Run::hole(offset, MAX_OFFSET, stamp).unwrap(),
                _ => Run::extent(offset, length, stamp, RANK.0, 3, pos).unwrap(),
            };
            pos += length;
            index.insert(run, &mut |_| ()).unwrap();
            journal.append_item(&Item::IndexRuns(ino, vec![run]));
            if what == 2 && length % 7 == 0 {
                index.settle();
                journal.append_item(&Item::IndexSettled(ino));
                stamp = 1;
            }
        }
        let list = |index: &crate::extent::ExtentIndex| {
            let mut all = Vec::new();
            index.query(0, 1000, &mut all);
            all
        };
        let state = replay(&journal.bytes).unwrap().state;
        prop_assert_eq!(list(&state.extents[&ino]), list(&index));
    }
}

#[test]
fn renames_are_under_way_until_they_are_over() {
    let (dir, name) = (Ino::new(RANK, 0, 1), b"a".to_vec());
    let child = Child {
        ino: Ino::new(RANK, 0, 2),
        kind: FileType::Dir,
    };
    let locked = LockedName {
        leader: Rank(3),
        token: 7,
        child,
        to: None,
    };
    let change = |done| NameChange {
        dir,
        name: name.clone(),
        was: None,
        child: Some(child),
        from: None,
        done,
    };
    let mut journal = Written::new();
    journal.append_item(&Item::SnapshotEnd);
    journal.append_item(&Item::NameLocked(dir, &name, locked.clone()));
    for done in [false, true] {
        journal.append_item(&Item::NameChanging(Rank(3), 7, change(done)));
    }
    for leader in [3, 4] {
        journal.append_item(&Item::RenameCalledOff(Rank(leader), 7));
    }
    let known = replay(&journal.bytes).unwrap().state.cluster;
    assert_eq!(known.locked, [((dir, name.clone()), locked)].into());
    assert_eq!(known.changes, [((Rank(3), 7), change(true))].into());
    journal.append_item(&Item::NameUnlocked(dir, &name));
    journal.append_item(&Item::NameChanged(Rank(3), 7));
    journal.append_item(&Item::CalledOffForgotten(Rank(3)));
    let known = replay(&journal.bytes).unwrap().state.cluster;
    assert!(known.locked.is_empty() && known.changes.is_empty());
    assert_eq!(known.called_off, [(Rank(4), 7)].into());
    journal.append_item(&Item::SnapshotReset);
    let known = replay(&journal.bytes).unwrap().state.cluster;
    assert!(known.called_off.is_empty());
}

#[test]
fn what_was_lent_ends_with_its_client() {
    let mut journal = Written::new();
    journal.append_item(&Item::SnapshotEnd);
    let client = ClientId(4);
    journal.append_item(&Item::ClientCame { client, pid: 77 });
    for number in [1, 2] {
        journal.append_item(&Item::SegmentLent {
            client,
            segment: SegmentId(number),
            slab: 0,
            pos: u64::from(number) << 20,
            len: 1 << 20,
        });
        journal.append_item(&Item::CellAttached {
            cell: number,
            client,
            ino: Ino::new(RANK, 0, number),
            block: number,
        });
    }
    journal.append_item(&Item::SegmentReturned(SegmentId(1)));
    journal.append_item(&Item::CellDetached(1));
    let state = replay(&journal.bytes).unwrap().state;
    assert_eq!(
        state.segments.keys().copied().collect::<Vec<_>>(),
        [SegmentId(2)]
    );
    assert_eq!(state.cells.keys().copied().collect::<Vec<_>>(), [2]);
    journal.append_item(&Item::ClientGone(client));
    let state = replay(&journal.bytes).unwrap().state;
    assert!(state.clients.is_empty() && state.segments.is_empty() && state.cells.is_empty());
    journal.append_item(&Item::CellDetached(2));
    let error = replay(&journal.bytes).unwrap_err();
    assert!(
        error.to_string().contains("cell 2 is not attached"),
        "{error}"
    );
}
