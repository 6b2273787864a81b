//! A heap of weir's own, beside the program's.
//!
//! An interposer runs below the program's allocator: jemalloc opens files while it holds its locks,
//! and a profiler's hooks write from within malloc. If weir asked that allocator for memory on the
//! way to the kernel, it would deadlock. So weir's memory comes from pages of its own.
//!
//! Signals are blocked meanwhile, if it is known that the program handles any. A handler that weir
//! does not know of, and that interrupts this heap, finds memory too: there are several arenas,
//! each with a lock, and a thread that is in the middle of one uses the next.
//!
//! A handler cannot free a block of the arena that it interrupted: it puts the block on a list, and the
//! next thread that enters the arena frees it. A [`Header`] is in front of each block.
//!
//! Left out: a child of a raw clone(2), in which a thread of the parent was within the heap, waits
//! for that thread, as with libc's own.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{mmap_anonymous, mremap, munmap, MapFlags, MremapFlags, ProtFlags};

use crate::kernel::block_signals;
use crate::siglock::SigLock;

/// The number of handlers that may each interrupt the one before within the heap.
const ARENAS: usize = 4;
/// The alignment of blocks, bytes.
const ALIGN: usize = 16;
const PAGE: usize = 4096;

/// Pages from the kernel, past libc's wrappers.
struct Pages;

// SAFETY: what is given is mapped, and nobody else's.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, anywhere.
        match unsafe { mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE) } {
            Ok(at) => (at.cast(), size, 0),
            Err(_) => (ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = match can_move {
            true => MremapFlags::MAYMOVE,
            false => MremapFlags::empty(),
        };
        // SAFETY: a mapping that `alloc` gave.
        unsafe { mremap(at.cast(), old, new, flags) }
            .map_or(ptr::null_mut(), <*mut core::ffi::c_void>::cast)
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping that `alloc` gave, which nobody uses.
        unsafe { munmap(at.add(new).cast(), old - new) }.is_ok()
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping that `alloc` gave, which nobody uses.
        unsafe { munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// Before each block.
#[repr(C, align(16))]
struct Header {
    /// The number of its arena.
    arena: usize,
    /// The memory that the arena gave for the block.
    begin: *mut u8,
}

/// A block that was freed while its arena was in use, in place of its bytes.
struct Freed {
    next: *mut Freed,
}

struct Arena {
    /// Held by the thread that uses the arena, or that keeps it over a fork.
    lock: SigLock<()>,
    /// True if that thread is in the middle of it.
    inside: AtomicBool,
    /// True if the lock is kept over a fork.
    kept: AtomicBool,
    heap: UnsafeCell<Dlmalloc<Pages>>,
    freed: AtomicPtr<Freed>,
}

/// The heap. One a process.
pub struct Heap {
    arenas: [Arena; ARENAS],
}

// SAFETY: an arena is used by the thread that has its lock, unless that is in the middle of it.
unsafe impl Sync for Heap {}

impl core::fmt::Debug for Heap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

impl Arena {
    const fn new() -> Arena {
        Arena {
            lock: SigLock::new(()),
            inside: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            heap: UnsafeCell::new(Dlmalloc::new_with_allocator(Pages)),
            freed: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Does something with the memory of this arena; `None`: this thread was interrupted within it.
    fn enter<T>(&self, act: impl FnOnce(&mut Dlmalloc<Pages>) -> T) -> Option<T> {
        // Others wait for this thread, perhaps with a lock that a handler wants.
        let _signals = block_signals();
        let _held = self.lock.lock();
        // A thread that has the lock already keeps it over a fork, or is in a handler that interrupted
        // it outside of the arena, with the lock, or inside.
        if self.inside.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread has the lock, and is here once.
        let heap = unsafe { &mut *self.heap.get() };
        let mut freed = self.freed.swap(ptr::null_mut(), Ordering::Acquire);
        while !freed.is_null() {
            // SAFETY: a block of this arena that was freed.
            unsafe {
                let next = (*freed).next;
                free(heap, freed.cast());
                freed = next;
            }
        }
        let done = act(heap);
        self.inside.store(false, Ordering::Release);
        Some(done)
    }

    /// Hands over a block that the next thread in the arena frees.
    ///
    /// # Safety
    ///
    /// A block of this arena, which nothing uses any more.
    unsafe fn free_later(&self, block: *mut u8) {
        #[allow(clippy::cast_ptr_alignment)] // it is aligned to `ALIGN` at least
        let freed = block.cast::<Freed>();
        let mut next = self.freed.load(Ordering::Relaxed);
        loop {
            // SAFETY: a block is at least as long as a `Freed`, aligned, and by the contract nothing uses it.
            unsafe { freed.write(Freed { next }) };
            let pushed =
                self.freed
                    .compare_exchange_weak(next, freed, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(other) => next = other,
            }
        }
    }
}

/// The header of a block.
fn header(block: *mut u8) -> *mut Header {
    // In front of each block there is room for one.
    block.wrapping_sub(size_of::<Header>()).cast()
}

/// # Safety
///
/// A block of this arena, which nobody uses.
unsafe fn free(heap: &mut Dlmalloc<Pages>, block: *mut u8) {
    // SAFETY: the block is one of this arena, by the caller, so its header has the address at which
    // it begins.
    unsafe { heap.c_free((*header(block)).begin) };
}

impl Heap {
    /// A heap without memory.
    pub const fn new() -> Heap {
        Heap {
            arenas: [const { Arena::new() }; ARENAS],
        }
    }

    /// Keeps all other threads out, so that the child of the fork that follows finds the heap whole.
    /// This thread may use it meanwhile.
    pub fn before_fork(&self) {
        for arena in &self.arenas {
            if let Some(held) = arena.lock.lock() {
                held.keep();
                arena.kept.store(true, Ordering::Relaxed);
            }
        }
    }

    /// After that fork, in both processes.
    pub fn after_fork(&self) {
        for arena in &self.arenas {
            if arena.kept.swap(false, Ordering::Relaxed) {
                // SAFETY: `before_fork` kept it, by this thread.
                unsafe { arena.lock.give_back() };
            }
        }
    }

    fn allocate(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        let align = layout.align().max(ALIGN);
        let Some(size) = layout.size().max(size_of::<Freed>()).checked_add(align) else {
            return ptr::null_mut();
        };
        for (number, arena) in self.arenas.iter().enumerate() {
            // SAFETY: the size is not 0, the alignment a power of two.
            let allocated = arena.enter(|heap| unsafe {
                match zeroed {
                    true => heap.calloc(size, align),
                    false => heap.malloc(size, align),
                }
            });
            let Some(begin) = allocated else {
                continue;
            };
            if begin.is_null() {
                return begin;
            }
            // SAFETY: `align` bytes are in front of what was asked for, and that is enough for a
            // header.
            unsafe {
                let block = begin.add(align);
                header(block).write(Header {
                    arena: number,
                    begin,
                });
                return block;
            }
        }
        ptr::null_mut()
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new()
    }
}

// SAFETY: blocks are as long and aligned as asked for, and of one owner.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout, false)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout, true)
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: a block that `allocate` gave.
        let arena = &self.arenas[unsafe { (*header(block)).arena }];
        // SAFETY: likewise, and nobody's any more.
        if arena.enter(|heap| unsafe { free(heap, block) }).is_none() {
            // SAFETY: likewise.
            unsafe { arena.free_later(block) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Takes a block and fills it.
    fn filled(heap: &Heap, layout: Layout, with: u8) -> *mut u8 {
        // SAFETY: the layout has a size.
        let block = unsafe { heap.alloc(layout) };
        assert!(!block.is_null() && block.addr() % layout.align() == 0);
        // SAFETY: the block is this long.
        unsafe { block.write_bytes(with, layout.size()) };
        block
    }

    /// # Safety
    ///
    /// A block that `filled` returned of this heap with this layout, which nothing uses any more.
    unsafe fn free_filled(heap: &Heap, block: *mut u8, layout: Layout, with: u8) {
        // SAFETY: the block was filled, and is this long.
        let bytes = unsafe { core::slice::from_raw_parts(block, layout.size()) };
        assert!(bytes.iter().all(|byte| *byte == with));
        // SAFETY: it came from this heap with this layout.
        unsafe { heap.dealloc(block, layout) };
    }

    #[test]
    fn threads_have_blocks_of_their_own() {
        let heap = Heap::new();
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let heap = &heap;
                scope.spawn(move || {
                    let mut blocks = Vec::new();
                    for i in 0..20_000usize {
                        let layout = layout(1 + i * 37 % 9000, 1 << (i % 13));
                        blocks.push((filled(heap, layout, thread), layout));
                        if i % 3 != 0 {
                            let (block, layout) = blocks.swap_remove(i * 31 % blocks.len());
                            // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
                            unsafe { free_filled(heap, block, layout, thread) };
                        }
                        if blocks.len() > 500 {
                            for (block, layout) in blocks.drain(..) {
                                // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
                                unsafe { free_filled(heap, block, layout, thread) };
                            }
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn fresh_memory_is_zero_and_big_blocks_go_back() {
        let heap = Heap::new();
        for _ in 0..50 {
            let big = layout(64 << 20, 4096);
            // SAFETY: the layout has a size.
            let block = unsafe { heap.alloc_zeroed(big) };
            // SAFETY: the block is this long.
            let bytes = unsafe { core::slice::from_raw_parts_mut(block, big.size()) };
            assert!(bytes.iter().step_by(4096).all(|byte| *byte == 0));
            bytes[0] = 1;
            // SAFETY: it came from this heap with this layout.
            unsafe { heap.dealloc(block, big) };
        }
        assert!(heap.allocate(layout(1 << 60, 16), false).is_null());
    }

    #[test]
    fn whoever_interrupts_the_heap_finds_memory() {
        let heap = Heap::new();
        let small = layout(100, 16);
        let outer = filled(&heap, small, 1);
        let within = heap.arenas[0].enter(|_| {
            let inner = filled(&heap, small, 2);
            // SAFETY: a block of this heap.
            assert_eq!(unsafe { (*header(inner)).arena }, 1);
            // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
            unsafe { free_filled(&heap, outer, small, 1) };
            assert!(!heap.arenas[0].freed.load(Ordering::Relaxed).is_null());
            // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
            heap.arenas[1].enter(|_| unsafe { free_filled(&heap, inner, small, 2) })
        });
        assert!(within.flatten().is_some());
        // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
        unsafe { free_filled(&heap, filled(&heap, small, 3), small, 3) };
        assert!(heap.arenas[0].freed.load(Ordering::Relaxed).is_null());
    }

    #[test]
    fn over_a_fork_only_its_thread_has_memory() {
        let heap = Heap::new();
        let small = layout(100, 16);
        heap.before_fork();
        let mine = filled(&heap, small, 1);
        let theirs = std::thread::scope(|scope| {
            let other = scope.spawn(|| filled(&heap, small, 2).addr());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            heap.after_fork();
            other.join().unwrap()
        });
        assert_ne!(mine.addr(), theirs);
        // SAFETY: a block of `filled`, of this heap and layout; nothing uses it any more.
        unsafe { free_filled(&heap, mine, small, 1) };
    }
}
