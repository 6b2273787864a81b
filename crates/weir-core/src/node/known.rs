//! The table in which a node's server shows its processes its knowledge of other servers' names:
//! the inode that an entry names, the permissions of a directory, that this node has all entries of
//! a directory, and the inode here that stands in for a file elsewhere. So a process walks a path,
//! and looks at a file, without a request.
//!
//! The server writes an entry when its home lets it keep it, and removes it when it is recalled,
//! before the home changes it. When a session or a term ends, the server voids all entries at once
//! by changing one word ([`Hub::recalls`]): an entry that was written under another value of that
//! word does not count.
//!
//! A slot is a sequence lock with one writer, the server: its version is odd while it is written. A
//! reader that finds it odd does without it. A key is in one of the [`WAYS`] slots of its set, the
//! first free one behind the slot of its hash: mostly one slot is looked at, two lines of cache. If
//! all are taken, one of them is given up, because the server is asked for missing entries.
//!
//! ```text
//! word 0   version
//!      1   recalls when it was written
//!      2   directory; of a stand-in: the file's number everywhere
//!      3   the inode that has the name; of the directory itself: its mode; of a stand-in: its number
//!          here; of all entries: 0
//!      4   the type of that inode; of the directory itself: user (upper half) and group; else 0
//!      5   the name, 88 bytes, zeros behind it; none: the directory itself; `/`: all entries of the
//!          directory; `.`: a stand-in
//! ```
//!
//! Left out: longer names, which are asked for each time; and the knowledge that a name is free in
//! a directory with entries at other nodes.

use crate::sync::{fence, AtomicU64, Ordering};

use super::region::Hub;
use crate::names::{Attr, FileType};
use crate::placement::{hash_of_name, words_of};
use crate::types::Ino;

/// The number of slots: 8 MiB, which have memory once something is kept.
pub const KNOWN_SLOTS: usize = 1 << 16;
/// Slots of a set: enough that hardly one is full before half of all slots are.
const WAYS: usize = 8;
/// Words of a name.
const NAME_WORDS: usize = 11;
/// The longest name that is kept, bytes.
pub const NAME_MOST: usize = 8 * NAME_WORDS;
/// In place of a name, where no entry can have it: the directory itself, all its entries, the number
/// of a stand-in.
const ITSELF: &[u8] = b"";
const ALL: &[u8] = b"/";
const STAND_IN: &[u8] = b".";

/// The words of a slot: see the head of the file.
type Words = [u64; 4 + NAME_WORDS];

/// A known fact.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct KnownSlot {
    version: AtomicU64,
    words: [AtomicU64; 4 + NAME_WORDS],
}

impl KnownSlot {
    /// The words; `None`: the server is writing them.
    fn read(&self) -> Option<Words> {
        let before = self.version.load(Ordering::Acquire);
        let words = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let undisturbed = before & 1 == 0 && self.version.load(Ordering::Relaxed) == before;
        undisturbed.then_some(words)
    }

    fn write(&self, words: &Words) {
        let before = self.version.load(Ordering::Relaxed) & !1;
        self.version
            .store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (at, word) in self.words.iter().zip(words) {
            at.store(*word, Ordering::Relaxed);
        }
        self.version
            .store(before.wrapping_add(2), Ordering::Release);
    }

    /// Returns the version of the slot and the two words of the key's value, if the slot has this
    /// key.
    fn look_up(&self, recalls: u64, dir: Ino, name: &[u64]) -> Option<(u64, [u64; 2])> {
        let before = self.version.load(Ordering::Acquire);
        let has_name = || {
            let mut words = self.words[4..].iter().zip(name);
            words.all(|(at, word)| at.load(Ordering::Relaxed) == *word)
        };
        // Most other slots of a set are of another directory, or void.
        if self.word(1) != dir.0 || self.word(0) != recalls || !has_name() {
            return None;
        }
        let what = [self.word(2), self.word(3)];
        fence(Ordering::Acquire);
        let undisturbed = before & 1 == 0 && self.version.load(Ordering::Relaxed) == before;
        undisturbed.then_some((before, what))
    }

    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }
}

/// The attributes of an inode on which permission depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Guard {
    /// True if the inode is a directory.
    pub fn is_of_dir(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Dir)
    }
}

impl From<&Attr> for Guard {
    fn from(attr: &Attr) -> Guard {
        Guard {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
        }
    }
}

/// The knowledge that a node had all entries of a directory at one moment.
#[derive(Clone, Copy, Debug)]
pub struct AllHere {
    slot: usize,
    version: u64,
    recalls: u64,
}

/// The table, as all processes of the node see it.
#[derive(Clone, Copy)]
pub struct KnownNames<'m> {
    hub: &'m Hub,
    slots: &'m [KnownSlot],
}

impl core::fmt::Debug for KnownNames<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("KnownNames")
    }
}

/// Returns the words of a name; `None`: it is too long.
fn words_of_name(name: &[u8]) -> Option<[u64; NAME_WORDS]> {
    let mut words = [0; NAME_WORDS];
    if name.len() > NAME_MOST {
        return None;
    }
    for (at, word) in words.iter_mut().zip(words_of(name)) {
        *at = word;
    }
    Some(words)
}

/// The words of a key and its value.
fn words(recalls: u64, dir: Ino, name: &[u8], what: [u64; 2]) -> Option<Words> {
    let mut words = [0; 4 + NAME_WORDS];
    words[..4].copy_from_slice(&[recalls, dir.0, what[0], what[1]]);
    words[4..].copy_from_slice(&words_of_name(name)?);
    Some(words)
}

/// The slots in which a key may be.
#[derive(Clone, Copy)]
struct Set {
    start: usize,
    /// The first of them to try.
    first: usize,
}

impl Set {
    fn slots(self) -> impl Iterator<Item = usize> {
        (0..WAYS).map(move |way| self.start + (self.first + way) % WAYS)
    }
}

/// True if two slots have the same key, whatever `recalls` was when each was written.
fn is_same_key(words: &Words, other: &Words) -> bool {
    words[1] == other[1] && words[4..] == other[4..]
}

impl<'m> KnownNames<'m> {
    /// Returns the table in the `open` region whose head is `hub`.
    pub fn new(hub: &'m Hub, slots: &'m [KnownSlot]) -> KnownNames<'m> {
        KnownNames { hub, slots }
    }

    /// Returns the inode that a name of another server names.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Option<(Ino, FileType)> {
        let [ino, kind] = self.find(dir, name)?;
        let kinds = [
            FileType::File,
            FileType::Dir,
            FileType::Symlink,
            FileType::Fifo,
            FileType::Socket,
        ];
        let kind = kinds.into_iter().find(|known| code(*known) == kind)?;
        Some((Ino(ino), kind))
    }

    /// Returns the permissions of a directory of another server.
    pub fn guard(&self, dir: Ino) -> Option<Guard> {
        let [mode, owner] = self.find(dir, ITSELF)?;
        Some(Guard {
            mode: low(mode),
            uid: low(owner >> 32),
            gid: low(owner),
        })
    }

    /// Returns the number in this node's table of a file of another server, if it has one. The
    /// number may end at any moment; it then names another inode, or nothing.
    pub fn stand_in(&self, file: Ino) -> Option<Ino> {
        Some(Ino(self.find(file, STAND_IN)?[0]))
    }

    /// Returns the knowledge that this node has all entries of a directory: an entry that was not
    /// among them since does not exist, if that [still holds](KnownNames::still_holds).
    pub fn all_here(&self, dir: Ino) -> Option<AllHere> {
        let recalls = self.hub.recalls.load(Ordering::SeqCst);
        let (slot, version, _) = self.find_slot(recalls, dir, ALL)?;
        Some(AllHere {
            slot,
            version,
            recalls,
        })
    }

    /// True if nothing has changed since.
    pub fn still_holds(&self, all: &AllHere) -> bool {
        fence(Ordering::Acquire);
        let slot = self.slots.get(all.slot);
        slot.is_some_and(|slot| slot.version.load(Ordering::Relaxed) == all.version)
            && self.hub.recalls.load(Ordering::SeqCst) == all.recalls
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Option<[u64; 2]> {
        let recalls = self.hub.recalls.load(Ordering::SeqCst);
        let (_, _, what) = self.find_slot(recalls, dir, name)?;
        Some(what)
    }

    fn find_slot(&self, recalls: u64, dir: Ino, name: &[u8]) -> Option<(usize, u64, [u64; 2])> {
        let words = words_of_name(name)?;
        // A longer name differs in the last of these: there are no zeros in names.
        let wanted = &words[..NAME_WORDS.min(name.len() / 8 + 1)];
        self.set(dir, name)?.slots().find_map(|at| {
            let (version, what) = self.slots[at].look_up(recalls, dir, wanted)?;
            Some((at, version, what))
        })
    }

    /// Returns the slots in which a key may be; `None`: the table has no memory yet.
    fn set(&self, dir: Ino, name: &[u8]) -> Option<Set> {
        let count = self.hub.known.load(Ordering::Acquire) as usize;
        let sets = (count.min(self.slots.len()) / WAYS) as u64;
        if sets == 0 {
            return None;
        }
        // Without the bits that tell homes apart.
        let hash = hash_of_name(dir, name).rotate_left(32);
        let (start, first) = (hash % sets, hash / sets % WAYS as u64);
        Some(Set {
            start: usize::try_from(start).ok()? * WAYS,
            first: usize::try_from(first).ok()?,
        })
    }

    /// Keeps the inode that a name of another server names. Only the server writes.
    pub fn keep_entry(&self, dir: Ino, name: &[u8], ino: Ino, kind: FileType) {
        self.keep(dir, name, [ino.0, code(kind)]);
    }

    /// Keeps the permissions of a directory.
    pub fn keep_guard(&self, dir: Ino, guard: &Guard) {
        let owner = u64::from(guard.uid) << 32 | u64::from(guard.gid);
        self.keep(dir, ITSELF, [guard.mode.into(), owner]);
    }

    /// Keeps the number here of a file of another server.
    pub fn keep_stand_in(&self, file: Ino, local: Ino) {
        self.keep(file, STAND_IN, [local.0, 0]);
    }

    /// Records that this node has all entries of a directory.
    pub fn keep_all_here(&self, dir: Ino) {
        self.keep(dir, ALL, [0, 0]);
    }

    /// Removes a name.
    pub fn drop_entry(&self, dir: Ino, name: &[u8]) {
        self.drop_key(dir, name);
    }

    /// Removes a stand-in.
    pub fn drop_stand_in(&self, file: Ino) {
        self.drop_key(file, STAND_IN);
    }

    /// Removes the permissions of a directory.
    pub fn drop_guard(&self, dir: Ino) {
        self.drop_key(dir, ITSELF);
    }

    /// Removes the record that this node has all entries of a directory.
    pub fn drop_all_here(&self, dir: Ino) {
        self.drop_key(dir, ALL);
    }

    fn keep(&self, dir: Ino, name: &[u8], what: [u64; 2]) {
        let recalls = self.hub.recalls.load(Ordering::Relaxed);
        let Some((new, set)) = words(recalls, dir, name, what).zip(self.set(dir, name)) else {
            return;
        };
        let now = |at: &usize| self.slots[*at].read();
        let mut slots = set.slots();
        let mine = slots.find(|at| now(at).is_some_and(|words| is_same_key(&words, &new)));
        let at = mine.or_else(|| {
            let mut void = set.slots();
            void.find(|at| now(at).is_none_or(|words| words[0] != recalls || words[1] == 0))
        });
        // A different one each time, so that two keys do not drive each other out for ever: every
        // write adds to the versions.
        let next = || {
            let versions = self.slots[set.start..][..WAYS]
                .iter()
                .map(|slot| slot.version.load(Ordering::Relaxed) / 2);
            let writes = versions.fold(0, u64::wrapping_add);
            set.start + usize::try_from(writes % WAYS as u64).unwrap_or(0)
        };
        self.slots[at.unwrap_or_else(next)].write(&new);
    }

    fn drop_key(&self, dir: Ino, name: &[u8]) {
        let Some((key, set)) = words(0, dir, name, [0; 2]).zip(self.set(dir, name)) else {
            return;
        };
        for slot in set.slots().map(|at| &self.slots[at]) {
            if slot.read().is_none_or(|words| is_same_key(&words, &key)) {
                slot.write(&[0; 4 + NAME_WORDS]);
            }
        }
    }
}

fn code(kind: FileType) -> u64 {
    match kind {
        FileType::File => 1,
        FileType::Dir => 2,
        FileType::Symlink => 3,
        FileType::Fifo => 4,
        FileType::Socket => 5,
    }
}

#[allow(clippy::cast_possible_truncation)] // the lower half of a word of ours
fn low(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);
    const FILE: (Ino, FileType) = (Ino(9), FileType::File);

    fn with<T>(slots: usize, act: impl FnOnce(KnownNames<'_>, &Hub) -> T) -> T {
        let hub = Hub::for_tests();
        hub.known
            .store(u32::try_from(slots).unwrap(), Ordering::Relaxed);
        let slot = |_| KnownSlot {
            version: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; 4 + NAME_WORDS],
        };
        let slots: Vec<KnownSlot> = (0..slots).map(slot).collect();
        act(KnownNames::new(&hub, &slots), &hub)
    }

    #[test]
    fn format_of_a_slot() {
        use crate::node::format::check_format;
        check_format!(KnownSlot: version words);
    }

    #[test]
    fn what_is_kept_holds_until_it_is_dropped_or_all_is_void() {
        with(64, |known, hub| {
            assert_eq!(known.entry(DIR, b"f"), None);
            known.keep_entry(DIR, b"f", FILE.0, FILE.1);
            known.keep_entry(DIR, b"d", Ino(8), FileType::Dir);
            assert_eq!(known.entry(DIR, b"f"), Some(FILE));
            assert_eq!(known.entry(DIR, b"e"), None);
            assert_eq!(known.entry(Ino(8), b"f"), None);
            known.drop_entry(DIR, b"f");
            assert_eq!(known.entry(DIR, b"f"), None);
            assert_eq!(known.entry(DIR, b"d"), Some((Ino(8), FileType::Dir)));
            hub.recalls.fetch_add(1, Ordering::SeqCst);
            assert_eq!(known.entry(DIR, b"d"), None);
            known.keep_entry(DIR, b"d", FILE.0, FILE.1);
            assert_eq!(known.entry(DIR, b"d"), Some(FILE));
        });
    }

    #[test]
    fn directories_stand_ins_and_names_are_told_apart() {
        with(64, |known, _| {
            let guard = Guard {
                mode: 0o040_750,
                uid: u32::MAX,
                gid: 12,
            };
            known.keep_guard(DIR, &guard);
            known.keep_entry(DIR, b"d", FILE.0, FILE.1);
            known.keep_stand_in(Ino(9), Ino(3));
            known.keep_all_here(DIR);
            assert_eq!(known.guard(DIR), Some(guard));
            assert_eq!(known.guard(Ino(8)), None);
            assert_eq!(known.entry(DIR, b"d"), Some(FILE));
            assert_eq!(known.stand_in(Ino(9)), Some(Ino(3)));
            assert_eq!(known.stand_in(DIR), None, "a directory's mode is no number");
            known.drop_stand_in(Ino(9));
            assert_eq!(known.stand_in(Ino(9)), None);
            assert!(known.all_here(DIR).is_some() && known.all_here(Ino(8)).is_none());
        });
    }

    #[test]
    fn all_entries_are_here_until_that_is_void_also_if_they_are_again() {
        with(64, |known, hub| {
            known.keep_all_here(DIR);
            let all = known.all_here(DIR).unwrap();
            assert!(known.still_holds(&all));
            hub.recalls.fetch_add(1, Ordering::SeqCst);
            assert!(!known.still_holds(&all) && known.all_here(DIR).is_none());
            known.keep_all_here(DIR);
            assert!(!known.still_holds(&all) && known.all_here(DIR).is_some());
        });
    }

    #[test]
    fn names_are_told_apart_to_the_last_byte_and_long_ones_are_not_kept() {
        with(KNOWN_SLOTS, |known, _| {
            for length in 1..=NAME_MOST {
                let name = vec![b'x'; length];
                let child = (Ino(length as u64), FileType::File);
                known.keep_entry(DIR, &name, child.0, child.1);
                assert_eq!(known.entry(DIR, &name), Some(child));
                assert_eq!(known.entry(DIR, &[&name[1..], b"y"].concat()), None);
            }
            let long = vec![b'x'; NAME_MOST + 1];
            known.keep_entry(DIR, &long, FILE.0, FILE.1);
            assert_eq!(known.entry(DIR, &long), None);
        });
    }

    #[test]
    fn a_set_gives_up_one_for_another_and_a_key_is_in_it_once() {
        with(WAYS, |known, _| {
            for i in 0..100_u64 {
                let name = i.to_string();
                known.keep_entry(DIR, name.as_bytes(), Ino(i + 1), FileType::File);
                let kept = (0..=i).filter(|i| known.entry(DIR, i.to_string().as_bytes()).is_some());
                assert_eq!(kept.count() as u64, (i + 1).min(WAYS as u64));
                assert!(known.entry(DIR, name.as_bytes()).is_some());
            }
            let oldest =
                (0..100 - 2 * WAYS).find_map(|i| known.entry(DIR, i.to_string().as_bytes()));
            assert_eq!(oldest, None, "all have had their turn");
            known.keep_entry(DIR, b"99", FILE.0, FILE.1);
            assert_eq!(known.entry(DIR, b"99"), Some(FILE));
            known.drop_entry(DIR, b"99");
            assert_eq!(known.entry(DIR, b"99"), None);
        });
    }

    #[test]
    fn nothing_is_kept_where_there_is_no_memory() {
        with(64, |known, hub| {
            hub.known.store(0, Ordering::Relaxed);
            known.keep_entry(DIR, b"f", FILE.0, FILE.1);
            hub.known.store(64, Ordering::Relaxed);
            assert_eq!(known.entry(DIR, b"f"), None);
            // The words may be anything that others wrote.
            hub.known.store(u32::MAX, Ordering::Relaxed);
            known.keep_entry(DIR, b"f", FILE.0, FILE.1);
            assert_eq!(known.entry(DIR, b"f"), Some(FILE));
        });
    }

    #[test]
    fn readers_never_see_halves_of_two_writes() {
        // Miri is slow, and switches threads at any access.
        const ROUNDS: u32 = if cfg!(miri) { 200 } else { 40_000 };
        with(WAYS, |known, _| {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for i in 0..ROUNDS {
                        let (mode, uid, gid) = (i, i, i);
                        known.keep_guard(DIR, &Guard { mode, uid, gid });
                    }
                });
                for _ in 0..ROUNDS {
                    if let Some(seen) = known.guard(DIR) {
                        assert_eq!((seen.mode, seen.uid), (seen.gid, seen.gid));
                    }
                }
            });
        });
    }
}
