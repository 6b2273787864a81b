//! Memory for entries and link targets: the writer's allocator over the shared arena.
//!
//! Slabs (Bonwick, USENIX 1994): pages of 32 KiB, each cut into blocks of one size class.
//! A page without blocks in use goes back and may become another class, so names of one
//! length do not keep memory from names of another. Low pages are taken first and
//! freed ones before fresh ones: the sparse file's touched part is the high-water mark.
//!
//! Free blocks are chained through their own first word; 16 bytes a page are private.
//! Page 0 is never used, so that granule 0 means none.

use super::dentry::GRANULE_WORDS;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const PAGE_GRANULES: u32 = 2048;
const PAGE_WORDS: usize = PAGE_GRANULES as usize * GRANULE_WORDS;

/// Block sizes in granules: exact for entries (names up to 255 bytes are 3 to 18),
/// coarser for link targets (up to 4095 bytes, 256).
const CLASSES: [u16; 26] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 24, 32, 48, 64, 96, 128, 192,
    256,
];

/// No page, or no block.
const NONE: u32 = u32::MAX;
const NO_BLOCK: u16 = u16::MAX;

struct Page {
    class: u8,
    /// Blocks in use.
    live: u16,
    /// First granule never handed out.
    fresh: u16,
    /// First freed block, as a granule of the page.
    freed: u16,
    /// Neighbours in the class's list of pages with room.
    prev: u32,
    next: u32,
}

/// The allocator. Blocks are named by their first granule.
pub(super) struct Arena<'a> {
    words: &'a [AtomicU64],
    /// The number of pages that there is memory for.
    present: usize,
    pages: Vec<Page>,
    /// First page with room, of each class.
    roomy: [u32; CLASSES.len()],
    /// Pages without blocks.
    empty: Vec<u32>,
}

fn class_of(granules: usize) -> Option<usize> {
    let class = CLASSES.partition_point(|size| usize::from(*size) < granules);
    (class < CLASSES.len()).then_some(class)
}

impl<'a> Arena<'a> {
    pub(super) fn new(words: &'a [AtomicU64]) -> Self {
        let mut arena = Arena {
            words,
            present: words.len(),
            pages: Vec::new(),
            roomy: [NONE; CLASSES.len()],
            empty: Vec::new(),
        };
        arena.pages.push(Page::new(0));
        arena
    }

    /// Returns a block of at least `granules`; `None` when the arena is full.
    pub(super) fn alloc(&mut self, granules: usize) -> Option<u32> {
        let class = class_of(granules)?;
        if self.roomy[class] == NONE {
            let page = self.take_page(class)?;
            self.link(page, class);
        }
        let number = self.roomy[class];
        let page = &mut self.pages[number as usize];
        let block = if page.freed == NO_BLOCK {
            let block = page.fresh;
            page.fresh += CLASSES[class];
            block
        } else {
            let block = page.freed;
            let word = &self.words[word_of(number, block)];
            page.freed = (word.load(Relaxed) & 0xFFFF) as u16;
            block
        };
        page.live += 1;
        if !page.has_room() {
            self.unlink(number, class);
        }
        Some(number * PAGE_GRANULES + u32::from(block))
    }

    /// Frees a block of [`Arena::alloc`] that no reader can newly reach.
    pub(super) fn free(&mut self, at: u32) {
        let number = at / PAGE_GRANULES;
        let block = (at % PAGE_GRANULES) as u16;
        let page = &mut self.pages[number as usize];
        assert!(page.live > 0, "granule {at} freed twice");
        let class = usize::from(page.class);
        let had_room = page.has_room();
        self.words[word_of(number, block)].store(u64::from(page.freed), Relaxed);
        page.freed = block;
        page.live -= 1;
        let live = page.live;
        if !had_room {
            self.link(number, class);
        }
        if live == 0 {
            self.unlink(number, class);
            self.empty.push(number);
        }
    }

    /// Returns the least size: a page of each class, and one that is never used.
    pub(super) fn least_words() -> u64 {
        ((CLASSES.len() + 1) * PAGE_WORDS) as u64
    }

    /// Sets the number of words that there is memory for.
    pub(super) fn set_present(&mut self, words: u64) {
        self.present = usize::try_from(words).unwrap_or(usize::MAX);
    }

    /// Words up to the end of the highest page ever used.
    pub(super) fn high_words(&self) -> u64 {
        (self.pages.len() * PAGE_WORDS) as u64
    }

    /// Private memory, in bytes.
    pub(super) fn private_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.empty.capacity() * 4
    }

    fn take_page(&mut self, class: usize) -> Option<u32> {
        if let Some(number) = self.empty.pop() {
            self.pages[number as usize] = Page::new(class);
            return Some(number);
        }
        let end = (self.pages.len() + 1) * PAGE_WORDS;
        let number = u32::try_from(self.pages.len()).ok()?;
        if end > self.words.len().min(self.present) || number >= u32::MAX / PAGE_GRANULES {
            return None;
        }
        self.pages.push(Page::new(class));
        Some(number)
    }

    fn link(&mut self, number: u32, class: usize) {
        let first = std::mem::replace(&mut self.roomy[class], number);
        self.pages[number as usize].prev = NONE;
        self.pages[number as usize].next = first;
        if first != NONE {
            self.pages[first as usize].prev = number;
        }
    }

    fn unlink(&mut self, number: u32, class: usize) {
        let Page { prev, next, .. } = self.pages[number as usize];
        if prev == NONE {
            self.roomy[class] = next;
        } else {
            self.pages[prev as usize].next = next;
        }
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
    }
}

impl Page {
    #[allow(clippy::cast_possible_truncation)] // there are 26 classes
    fn new(class: usize) -> Self {
        Page {
            class: class as u8,
            live: 0,
            fresh: 0,
            freed: NO_BLOCK,
            prev: NONE,
            next: NONE,
        }
    }

    fn has_room(&self) -> bool {
        let size = CLASSES[usize::from(self.class)];
        self.freed != NO_BLOCK || u32::from(self.fresh + size) <= PAGE_GRANULES
    }
}

/// Returns the words from granule `at` on, to read the contents of a block.
pub(super) fn block(words: &[AtomicU64], at: u32) -> Option<&[AtomicU64]> {
    words.get(at as usize * GRANULE_WORDS..)
}

fn word_of(page: u32, block: u16) -> usize {
    page as usize * PAGE_WORDS + usize::from(block) * GRANULE_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_lies_beyond_the_present_memory() {
        let words: Vec<AtomicU64> = (0..8 * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let mut arena = Arena::new(&words);
        arena.set_present(2 * PAGE_WORDS as u64);
        let first = arena.alloc(256).unwrap();
        while arena.alloc(256).is_some() {}
        assert_eq!(arena.high_words(), 2 * PAGE_WORDS as u64);
        arena.free(first);
        assert_eq!(arena.alloc(256), Some(first), "what was freed is there");
        arena.set_present(3 * PAGE_WORDS as u64);
        assert!(arena.alloc(256).is_some());
    }
    use std::collections::BTreeMap;

    fn words(pages: usize) -> Vec<AtomicU64> {
        (0..pages * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn blocks_never_overlap() {
        let words = words(40);
        let mut arena = Arena::new(&words);
        let mut live: BTreeMap<u32, usize> = BTreeMap::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let pick = (random >> 33) as usize;
            if pick.is_multiple_of(3) && !live.is_empty() {
                let at = *live.keys().nth(pick % live.len()).unwrap();
                live.remove(&at);
                arena.free(at);
            } else if let Some(at) = arena.alloc(1 + pick % 20) {
                let size = 1 + pick % 20;
                let end = u64::from(at) + size as u64;
                let before = live.range(..=at).next_back();
                assert!(before.is_none_or(|(a, s)| *a as usize + s <= at as usize));
                let after = live.range(at..).next();
                assert!(after.is_none_or(|(a, _)| end <= u64::from(*a)));
                assert!(at >= PAGE_GRANULES && end <= 40 * u64::from(PAGE_GRANULES));
                live.insert(at, size);
            }
        }
    }

    #[test]
    fn a_full_arena_says_so_and_pages_change_their_class() {
        let words = words(5);
        let mut arena = Arena::new(&words);
        let mut blocks = Vec::new();
        for size in [3, 18, 256, 4] {
            while let Some(at) = arena.alloc(size) {
                blocks.push(at);
            }
            let bytes = blocks.len() * CLASSES[class_of(size).unwrap()] as usize * 16;
            assert!(bytes > 4 * 32 * 1024 * 9 / 10, "size {size}: {bytes}");
            for at in blocks.drain(..) {
                arena.free(at);
            }
        }
        assert_eq!(arena.high_words(), words.len() as u64);
        assert_eq!(arena.alloc(257), None);
    }
}
