//! Directories of other servers that this process keeps: what a name of one names, and who may
//! pass it. A path is walked without a request for what is before its last component. And
//! directories, of whatever server, with all entries at this node.
//!
//! The server says with an answer whether it may be kept: it was told itself, and will be told
//! when that changes. It then changes one word of shared memory ([`Hub::recalls`]), before the
//! change is made; what was kept under another value of that word is void. So the word is read
//! before the server is asked, and again at each use.
//!
//! A slot is a sequence lock: its version is odd while it is written. Who finds it so, reading or
//! writing, does without it. So a handler of signals that interrupts a writer does not wait for
//! it, and a child of a fork in the middle of a write loses one slot. (The tables' lock, which
//! has one writer, is `weir_core::names`' own.)
//!
//! ```text
//! word 0   version
//!      1   recalls when it was asked
//!      2   directory
//!      3   the inode that has the name; of the directory itself: its mode; of all entries: 0
//!      4   0; of the directory itself: user (upper half) and group
//!      5   the name, 88 bytes, zeros behind it; none: the directory itself; `/`: all its entries
//! ```
//!
//! Left out: longer names, which are asked for each time; and that names are free in directories
//! with entries at other nodes.
//!
//! [`Hub::recalls`]: weir_core::node::region::Hub::recalls

use core::sync::atomic::{fence, AtomicU64, Ordering};
use std::hash::{DefaultHasher, Hash, Hasher};

use weir_core::types::Ino;

use crate::path::Guard;

/// How many there are room for.
const SLOTS: usize = 64;
/// Words of a name.
const NAME_WORDS: usize = 11;
/// The longest name that is kept, bytes.
const NAME_MOST: usize = 8 * NAME_WORDS;

/// What is kept, in words: see the head of the file.
type Words = [u64; 4 + NAME_WORDS];

/// What this process keeps.
#[derive(Debug)]
pub struct KeptDirs {
    slots: [Slot; SLOTS],
}

#[repr(C, align(128))]
#[derive(Debug)]
struct Slot {
    version: AtomicU64,
    words: [AtomicU64; 4 + NAME_WORDS],
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; 4 + NAME_WORDS],
        }
    }

    fn read(&self) -> Option<Words> {
        let before = self.version.load(Ordering::Acquire);
        let words = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let undisturbed = before & 1 == 0 && self.version.load(Ordering::Relaxed) == before;
        undisturbed.then_some(words)
    }

    fn write(&self, words: &Words) {
        let before = self.version.load(Ordering::Relaxed);
        let odd = before.wrapping_add(1);
        let order = (Ordering::Acquire, Ordering::Relaxed);
        if before & 1 == 1
            || self
                .version
                .compare_exchange(before, odd, order.0, order.1)
                .is_err()
        {
            return;
        }
        fence(Ordering::Release);
        for (at, word) in self.words.iter().zip(words) {
            at.store(*word, Ordering::Relaxed);
        }
        self.version.store(odd.wrapping_add(1), Ordering::Release);
    }
}

/// The words of a key; a name of no bytes stands for the directory itself.
fn words(recalls: u64, dir: Ino, name: &[u8], what: [u64; 2]) -> Option<Words> {
    let mut words = [0; 4 + NAME_WORDS];
    words[..4].copy_from_slice(&[recalls, dir.0, what[0], what[1]]);
    if name.len() > NAME_MOST {
        return None;
    }
    for (word, chunk) in words[4..].iter_mut().zip(name.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    Some(words)
}

impl KeptDirs {
    /// Nothing is kept.
    pub const fn new() -> KeptDirs {
        KeptDirs {
            slots: [const { Slot::new() }; SLOTS],
        }
    }

    /// The directory that has a name in another one.
    pub fn entry(&self, recalls: u64, dir: Ino, name: &[u8]) -> Option<Ino> {
        Some(Ino(self.find(recalls, dir, name)?[0]))
    }

    /// Keeps it; `recalls` is of before it was asked for.
    pub fn keep_entry(&self, recalls: u64, dir: Ino, name: &[u8], child: Ino) {
        self.keep(recalls, dir, name, [child.0, 0]);
    }

    /// Who may pass a directory.
    pub fn guard(&self, recalls: u64, dir: Ino) -> Option<Guard> {
        let [mode, owner] = self.find(recalls, dir, b"")?;
        Some(Guard {
            mode: low(mode),
            uid: low(owner >> 32),
            gid: low(owner),
        })
    }

    /// Keeps it; `recalls` is of before it was asked for.
    pub fn keep_guard(&self, recalls: u64, dir: Ino, guard: &Guard) {
        let owner = u64::from(guard.uid) << 32 | u64::from(guard.gid);
        self.keep(recalls, dir, b"", [guard.mode.into(), owner]);
    }

    /// True if the process keeps that this node has all entries of a directory.
    pub fn has_all(&self, recalls: u64, dir: Ino) -> bool {
        self.find(recalls, dir, b"/").is_some()
    }

    /// Keeps that they are; `recalls` is of before it was asked for.
    pub fn keep_all(&self, recalls: u64, dir: Ino) {
        self.keep(recalls, dir, b"/", [0, 0]);
    }

    fn slot(&self, dir: Ino, name: &[u8]) -> &Slot {
        let mut hasher = DefaultHasher::new();
        (dir.0, name).hash(&mut hasher);
        #[allow(clippy::cast_possible_truncation)] // below SLOTS
        let at = (hasher.finish() % SLOTS as u64) as usize;
        &self.slots[at]
    }

    fn find(&self, recalls: u64, dir: Ino, name: &[u8]) -> Option<[u64; 2]> {
        let kept = self.slot(dir, name).read()?;
        let what = [kept[2], kept[3]];
        (words(recalls, dir, name, what)? == kept).then_some(what)
    }

    fn keep(&self, recalls: u64, dir: Ino, name: &[u8], what: [u64; 2]) {
        if let Some(words) = words(recalls, dir, name, what) {
            self.slot(dir, name).write(&words);
        }
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

    #[test]
    fn what_is_kept_holds_until_the_next_recall() {
        let kept = KeptDirs::new();
        assert_eq!(kept.entry(0, DIR, b"d"), None);
        kept.keep_entry(3, DIR, b"d", Ino(9));
        assert_eq!(kept.entry(3, DIR, b"d"), Some(Ino(9)));
        assert_eq!(kept.entry(4, DIR, b"d"), None);
        assert_eq!(kept.entry(3, DIR, b"e"), None);
        assert_eq!(kept.entry(3, Ino(8), b"d"), None);
        // Asked before the recall, answered after it.
        kept.keep_entry(3, DIR, b"f", Ino(9));
        assert_eq!(kept.entry(4, DIR, b"f"), None);
    }

    #[test]
    fn who_may_pass_is_kept_beside_the_names() {
        let kept = KeptDirs::new();
        let guard = Guard {
            mode: 0o040_750,
            uid: u32::MAX,
            gid: 12,
        };
        kept.keep_guard(1, DIR, &guard);
        kept.keep_entry(1, DIR, b"d", Ino(9));
        assert_eq!(kept.guard(1, DIR), Some(guard));
        assert_eq!(kept.guard(2, DIR), None);
        assert_eq!(kept.guard(1, Ino(9)), None);
        assert_eq!(kept.entry(1, DIR, b"d"), Some(Ino(9)));
    }

    #[test]
    fn names_are_told_apart_to_the_last_byte_and_long_ones_are_not_kept() {
        let kept = KeptDirs::new();
        for length in 1..=NAME_MOST {
            let name = vec![b'x'; length];
            kept.keep_entry(1, DIR, &name, Ino(length as u64));
            assert_eq!(kept.entry(1, DIR, &name), Some(Ino(length as u64)));
            assert_eq!(kept.entry(1, DIR, &[&name[1..], b"y"].concat()), None);
        }
        let long = vec![b'x'; NAME_MOST + 1];
        kept.keep_entry(1, DIR, &long, Ino(1));
        assert_eq!(kept.entry(1, DIR, &long), None);
    }

    #[test]
    fn who_finds_a_slot_being_written_does_without() {
        let kept = KeptDirs::new();
        kept.keep_entry(1, DIR, b"d", Ino(9));
        let slot = kept.slot(DIR, b"d");
        slot.version.fetch_add(1, Ordering::Relaxed);
        assert_eq!(kept.entry(1, DIR, b"d"), None);
        kept.keep_entry(1, DIR, b"d", Ino(10));
        slot.version.fetch_add(1, Ordering::Relaxed);
        assert_eq!(kept.entry(1, DIR, b"d"), Some(Ino(9)));
    }

    #[test]
    fn readers_never_see_halves_of_two_writes() {
        let kept = KeptDirs::new();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let kept = &kept;
                scope.spawn(move || {
                    for i in 0..20_000_u32 {
                        let mode = 2 * i + writer;
                        let (uid, gid) = (mode, mode);
                        kept.keep_guard(1, DIR, &Guard { mode, uid, gid });
                    }
                });
            }
            for _ in 0..20_000 {
                if let Some(guard) = kept.guard(1, DIR) {
                    assert_eq!((guard.mode, guard.uid), (guard.gid, guard.gid));
                }
            }
        });
    }
}
