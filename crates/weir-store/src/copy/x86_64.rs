//! Streaming copies for x86-64, one pair for each vector width, chosen once by CPUID.
//!
//! AVX-512 stores whole lines; AVX2 and SSE2 fill a write-combining buffer with two or
//! four stores. All have the same shape: the destination is brought to a line boundary by
//! a cached copy, whole lines are streamed, the rest is copied, and a fence makes the
//! streamed stores visible before anything that follows.

// The moves that need alignment get it (line boundaries), the others are the unaligned ones.
#![allow(clippy::cast_ptr_alignment)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm256_loadu_si256, _mm256_storeu_si256, _mm512_loadu_si512,
    _mm512_storeu_si512, _mm_loadu_si128, _mm_storeu_si128,
};
use core::sync::atomic::{AtomicU8, Ordering};

use super::{cached_out, copy_short, LINE};

/// The least length that [`read_out`] interleaves.
pub(super) const TWO_PAGES_BYTES: usize = 2 * PAGE;
const PAGE: usize = 4096;

/// The copies for one instruction set.
#[derive(Clone, Copy)]
pub(super) struct CopyKernel {
    pub(super) stream_in: unsafe fn(*mut u8, *const u8, usize),
    pub(super) read_out: unsafe fn(*mut u8, *const u8, usize),
}

const KERNELS: [CopyKernel; 3] = [
    CopyKernel {
        stream_in: sse2::stream_in,
        read_out: sse2::read_out,
    },
    CopyKernel {
        stream_in: avx2::stream_in,
        read_out: avx2::read_out,
    },
    CopyKernel {
        stream_in: avx512::stream_in,
        read_out: avx512::read_out,
    },
];

/// 1 + the index of the widest kernel this processor has; 0 until it is detected. Several threads
/// that detect it at once find the same.
static WIDEST: AtomicU8 = AtomicU8::new(0);

/// CPUID is executed once (it traps in virtual machines). std's detection uses it, and checks that
/// the kernel saves the registers, without libc.
fn widest() -> usize {
    let known = WIDEST.load(Ordering::Relaxed);
    if known != 0 {
        return usize::from(known - 1);
    }
    let found = if std::arch::is_x86_feature_detected!("avx512f") {
        2
    } else {
        u8::from(std::arch::is_x86_feature_detected!("avx2"))
    };
    WIDEST.store(found + 1, Ordering::Relaxed);
    usize::from(found)
}

/// The kernels that run on this machine.
#[cfg(test)]
pub(super) fn kernels_here() -> &'static [CopyKernel] {
    &KERNELS[..=widest()]
}

/// Copies into a slab around the cache, and fences.
///
/// # Safety
///
/// As `copy::copy_in`.
pub(super) unsafe fn stream_in(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the processor has that kernel's instructions. `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the caller.
    unsafe { (KERNELS[widest()].stream_in)(dst, src, len) }
}

/// Copies out of a slab, two pages in turns.
///
/// # Safety
///
/// As `copy::copy_out`.
pub(super) unsafe fn read_out(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the processor has that kernel's instructions. `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the caller.
    unsafe { (KERNELS[widest()].read_out)(dst, src, len) }
}

/// True if the processor would take loads of a forward copy for loads of bytes that it has just
/// stored, because it compares only the low 12 bits of the addresses. Then each load waits for that
/// store (measured: 3 instead of 11 GiB/s). A backward copy moves away from it.
#[inline]
fn loads_meet_stores(dst: *const u8, src: *const u8) -> bool {
    (src as usize).wrapping_sub(dst as usize) % PAGE > PAGE / 2
}

/// Defines the module of one instruction set from its vector type and moves.
macro_rules! kernel {
    ($name:ident, $feature:literal, $vector:ty, $class:ident, $load:ident, $store:ident, $shared_load:literal, $stream:literal) => {
        mod $name {
            use super::*;

            /// Vectors in a cache line.
            const VECTORS: usize = LINE / size_of::<$vector>();

            /// A line of the program's.
            ///
            /// # Safety
            ///
            /// The processor has the instruction set; a line is readable at `src`.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn load_line(src: *const u8) -> [$vector; VECTORS] {
                // SAFETY: a line is readable at `src`, by the caller, of which each vector is a part.
                core::array::from_fn(|i| unsafe { $load(src.cast::<$vector>().add(i)) })
            }

            /// A vector of a slab, to which others may be storing: see `shared`.
            ///
            /// # Safety
            ///
            /// The processor has the instruction set; a vector is readable at `src`.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn load_shared(src: *const u8) -> $vector {
                #[cfg(miri)]
                // SAFETY: one load, of a vector that is readable at `src`, by the caller.
                return unsafe { $load(src.cast::<$vector>()) };
                #[cfg(not(miri))]
                // SAFETY: one load, of a vector that is readable at `src`, by the caller.
                unsafe {
                    let value: $vector;
                    core::arch::asm!($shared_load, out($class) value, in(reg) src, options(nostack, preserves_flags, readonly));
                    value
                }
            }

            /// Stores a vector to a slab around the cache.
            ///
            /// # Safety
            ///
            /// The processor has the instruction set; `dst` is aligned to a vector, which is writable there.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn stream(dst: *mut u8, value: $vector) {
                #[cfg(miri)]
                // SAFETY: one store, to aligned memory that has room for a vector, by the caller.
                unsafe {
                    dst.cast::<$vector>().write(value);
                }
                #[cfg(not(miri))]
                // SAFETY: one store, to aligned memory that has room for a vector, by the caller.
                unsafe {
                    core::arch::asm!($stream, in(reg) dst, in($class) value, options(nostack, preserves_flags));
                }
            }

            /// # Safety
            ///
            /// As for `load_line`.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn load_shared_line(src: *const u8) -> [$vector; VECTORS] {
                // SAFETY: a line is readable at `src`, by the caller, of which each vector is a part.
                core::array::from_fn(|i| unsafe { load_shared(src.add(i * size_of::<$vector>())) })
            }

            /// # Safety
            ///
            /// The processor must have the instruction set; else as `copy::copy_in`.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn stream_in(dst: *mut u8, src: *const u8, len: usize) {
                let head = dst.align_offset(LINE).min(len);
                // SAFETY: `head` and all that is copied below lie within `len`; streamed
                // stores go to line boundaries, as they must.
                unsafe {
                    copy_short(dst, src, head);
                    let mut at = head;
                    while at + LINE <= len {
                        let line = load_line(src.add(at));
                        for (i, vector) in line.into_iter().enumerate() {
                            stream(dst.add(at + i * size_of::<$vector>()), vector);
                        }
                        at += LINE;
                    }
                    copy_short(dst.add(at), src.add(at), len - at);
                    // Streamed stores are not ordered with others: without this a record
                    // published next could be seen before its bytes.
                    #[cfg(not(miri))]
                    core::arch::x86_64::_mm_sfence();
                }
            }

            /// # Safety
            ///
            /// The processor must have the instruction set; else as `copy::copy_out`.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn read_out(dst: *mut u8, src: *const u8, len: usize) {
                // Stores to line boundaries: one that crosses a line costs double.
                let head = dst.align_offset(LINE).min(len);
                let backward = loads_meet_stores(dst.wrapping_add(head), src.wrapping_add(head));
                // SAFETY: all that is copied lies within `len`.
                unsafe {
                    cached_out(dst, src, head);
                    let mut pair = head;
                    while pair + TWO_PAGES_BYTES <= len {
                        for step in 0..PAGE / LINE {
                            let line = if backward {
                                PAGE / LINE - 1 - step
                            } else {
                                step
                            };
                            let at = pair + line * LINE;
                            let first = load_shared_line(src.add(at));
                            let second = load_shared_line(src.add(at + PAGE));
                            for i in 0..VECTORS {
                                $store(dst.add(at).cast::<$vector>().add(i), first[i]);
                                let to = dst.add(at + PAGE).cast::<$vector>();
                                $store(to.add(i), second[i]);
                            }
                        }
                        pair += TWO_PAGES_BYTES;
                    }
                    cached_out(dst.add(pair), src.add(pair), len - pair);
                }
            }
        }
    };
}

kernel!(
    sse2,
    "sse2",
    __m128i,
    xmm_reg,
    _mm_loadu_si128,
    _mm_storeu_si128,
    "movdqu {}, [{}]",
    "movntdq [{}], {}"
);
kernel!(
    avx2,
    "avx2",
    __m256i,
    ymm_reg,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    "vmovdqu {}, [{}]",
    "vmovntdq [{}], {}"
);
kernel!(
    avx512,
    "avx512f",
    __m512i,
    zmm_reg,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    "vmovdqu64 {}, [{}]",
    "vmovntdq [{}], {}"
);
