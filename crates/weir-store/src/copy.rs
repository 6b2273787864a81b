//! Copies between an application's buffers and slabs.
//!
//! Writes are the data path of weir: a slab is written once, front to back, and is not
//! read again soon. Three methods, by length (numbers: one core and four cores of a
//! Sapphire Rapids virtual machine, GiB/s into a working set of 512 MiB of huge pages;
//! `cargo bench -p weir-store --bench copy` measures them again):
//!
//! | length | method | 1 core | memcpy | 4 cores | memcpy |
//! | --- | --- | --- | --- | --- | --- |
//! | 64 B | line by line, prefetching 2 KiB ahead | 9.9 | 6.6 | 28 | 19 |
//! | 1 KiB | the same | 10.8 | 6.8 | 33 | 20 |
//! | 4 KiB | the same | 10.5 | 6.6 | 34 | 22 |
//! | 8 KiB | non-temporal stores | 9.8 | 7.6 | 37 | 26 |
//! | 64 KiB | the same | 13.7 | 10.2 | 48 | 31 |
//! | 1 MiB | the same | 14.4 | 10.1 | 50 | 31 |
//!
//! A plain store to a line that is not cached waits for that line to be read first; requesting
//! ownership of the next lines in advance hides that. Non-temporal stores do not read at all, but
//! must be fenced before the bytes may be published, which takes 0.2 us: they are faster from 8 KiB
//! on.
//!
//! Reads from a slab go to a buffer that is used at once, so plain stores are right. From 8 KiB on
//! two pages are read in turns, which keeps two of the hardware's prefetch streams busy: 64 KiB at
//! 12 to 16 GiB/s (by the buffer's alignment) against 11.7 on one core, 41 against 36 on four.
//! Explicit prefetching was slower on four cores (27).
//!
//! Invariants: memory that processes share is accessed through [`shared`] alone, and no reference to
//! it is ever made; every alignment and length is right; all bytes are visible to other
//! processors before a later store of the calling thread is; nothing here allocates,
//! locks, or calls the kernel.
//!
//! Left out: a check that the destination may be written (`slabmap` checks bounds).

mod shared;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use shared::Vector16;
use shared::{load_1, load_16, load_2, load_4, load_8};
use shared::{store_1, store_16, store_2, store_4, store_8, store_line};

/// From here on non-temporal stores beat cached ones with prefetching (see above).
pub const STREAM_MIN_BYTES: usize = 8 << 10;

/// The distance at which a cached write prefetches lines. 1 to 4 KiB are alike; 512 B is too short.
const WRITE_AHEAD_BYTES: usize = 2 << 10;

/// A cache line.
const LINE: usize = 64;

/// Copies `len` bytes into a slab.
///
/// The bytes are visible to other processors before any store that the caller does next.
///
/// # Safety
///
/// `src` must be readable and `dst` writable for `len` bytes, and the two must not
/// overlap. `dst` may be memory that other processes access at the same time: nothing
/// here depends on what is in it.
#[inline(always)]
#[allow(clippy::inline_always)] // a write of some lines: a call of it takes as long as the copy
pub unsafe fn copy_in(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the
    // caller.
    unsafe {
        if len >= STREAM_MIN_BYTES {
            stream_in(dst, src, len);
        } else {
            cached_in(dst, src, len);
        }
    }
}

/// Copies `len` bytes out of a slab.
///
/// # Safety
///
/// As for [`copy_in`]. If another process writes `src` at the same time, the copied bytes are any
/// mixture of old and new.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the
    // caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if len >= x86_64::TWO_PAGES_BYTES {
            return x86_64::read_out(dst, src, len);
        }
        cached_out(dst, src, len);
    }
}

/// Copies out of a slab line by line.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline]
#[allow(clippy::cast_ptr_alignment)] // stored to as what need not be aligned
unsafe fn cached_out(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at + LINE <= len {
        // SAFETY: `at + LINE <= len`, and `len` bytes are readable at `src` and writable at `dst`, by the caller.
        unsafe {
            let (from, to) = (src.add(at), dst.add(at).cast::<Vector16>());
            let line = [
                load_16(from),
                load_16(from.add(16)),
                load_16(from.add(32)),
                load_16(from.add(48)),
            ];
            to.cast::<[Vector16; 4]>().write_unaligned(line);
        }
        at += LINE;
    }
    // SAFETY: `at <= len`: the rest of the bytes.
    unsafe { short_out(dst.add(at), src.add(at), len - at) };
}

/// Copies fewer than [`LINE`] bytes out of a slab; see [`copy_short`].
///
/// # Safety
///
/// As for [`copy_out`].
#[inline]
unsafe fn short_out(dst: *mut u8, src: *const u8, len: usize) {
    /// The first and the last bytes of `len`, in moves of one width.
    macro_rules! ends {
        ($load:ident, $type:ty) => {{
            let back = len - size_of::<$type>();
            let (head, tail) = ($load(src), $load(src.add(back)));
            dst.cast::<$type>().write_unaligned(head);
            dst.add(back).cast::<$type>().write_unaligned(tail);
        }};
    }
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, by the caller. Each move lies within them.
    unsafe {
        match len {
            32.. => {
                let back = len - 32;
                let all = [
                    load_16(src),
                    load_16(src.add(16)),
                    load_16(src.add(back)),
                    load_16(src.add(back + 16)),
                ];
                dst.cast::<Vector16>().write_unaligned(all[0]);
                dst.add(16).cast::<Vector16>().write_unaligned(all[1]);
                dst.add(back).cast::<Vector16>().write_unaligned(all[2]);
                dst.add(back + 16)
                    .cast::<Vector16>()
                    .write_unaligned(all[3]);
            }
            16.. => ends!(load_16, Vector16),
            8.. => ends!(load_8, u64),
            4.. => ends!(load_4, u32),
            2.. => ends!(load_2, u16),
            1 => dst.write(load_1(src)),
            0 => {}
        }
    }
}

/// Stores through the cache, and requests the destination's lines in advance.
///
/// The next write of a log follows right after this one, so the lines ahead are not
/// wasted. Prefetching past the end of a mapping is harmless: it cannot fault.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline(always)]
#[allow(clippy::inline_always)] // as for `copy_in`
unsafe fn cached_in(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at + LINE <= len {
        prefetch_for_write(dst.wrapping_add(at + WRITE_AHEAD_BYTES));
        // SAFETY: `at + LINE <= len`, and `len` bytes are readable at `src` and writable at `dst`, by the caller.
        unsafe {
            let line = src.add(at).cast::<[Vector16; 4]>().read_unaligned();
            store_line(dst.add(at), line);
        }
        at += LINE;
    }
    if at < len {
        prefetch_for_write(dst.wrapping_add(at + WRITE_AHEAD_BYTES));
        // SAFETY: `at < len`.
        unsafe { copy_short(dst.add(at), src.add(at), len - at) };
    }
}

/// Copies fewer than [`LINE`] bytes by at most two moves of one size that may overlap,
/// which a call of memcpy would take longer to decide on.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline(never)]
unsafe fn copy_short(dst: *mut u8, src: *const u8, len: usize) {
    /// The first and the last bytes of `len`, in moves of one width. Those of `src` are read before
    /// anything is stored.
    macro_rules! ends {
        ($store:ident, $type:ty) => {{
            let back = len - size_of::<$type>();
            let head = src.cast::<$type>().read_unaligned();
            let tail = src.add(back).cast::<$type>().read_unaligned();
            $store(dst, head);
            $store(dst.add(back), tail);
        }};
    }
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, by the caller. Each move lies within them.
    unsafe {
        match len {
            32.. => {
                let back = len - 32;
                let head = src.cast::<[Vector16; 2]>().read_unaligned();
                let tail = src.add(back).cast::<[Vector16; 2]>().read_unaligned();
                store_16(dst, head[0]);
                store_16(dst.add(16), head[1]);
                store_16(dst.add(back), tail[0]);
                store_16(dst.add(back + 16), tail[1]);
            }
            16.. => ends!(store_16, Vector16),
            8.. => ends!(store_8, u64),
            4.. => ends!(store_4, u32),
            2.. => ends!(store_2, u16),
            1 => store_1(dst, src.read()),
            0 => {}
        }
    }
}

/// Stores around the cache where the processor can, fenced.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline]
unsafe fn stream_in(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the
    // caller.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        x86_64::stream_in(dst, src, len);
    }
    // Elsewhere (aarch64) such lengths stream by themselves: the processors turn off
    // write-allocation when whole lines are written in a row.
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the
    // caller.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        cached_in(dst, src, len);
    }
}

/// Prefetches a line in order to write to it. Never faults, whatever the address.
#[inline]
fn prefetch_for_write(line: *const u8) {
    // SAFETY: a prefetch has no effect on memory or registers and does not fault. On
    // x86-64 processors without it PREFETCHW does nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    // SAFETY: a prefetch has no effect on memory or registers and does not fault.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes without a period in which a misplaced block could hide.
    fn pattern(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut bytes = Vec::with_capacity(len + 7);
        while bytes.len() < len {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            bytes.extend_from_slice(&(state ^ state >> 31).to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Runs `copy` between buffers at the given alignments and compares with a plain copy,
    /// including the bytes around.
    fn check(copy: unsafe fn(*mut u8, *const u8, usize), to: usize, from: usize, len: usize) {
        let src = pattern(from + len + 128, len as u64);
        let mut dst = pattern(to + len + 128, 99);
        let mut expected = dst.clone();
        expected[to..to + len].copy_from_slice(&src[from..from + len]);
        // SAFETY: both vectors are 128 bytes longer than what is copied.
        unsafe { copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
        assert!(dst == expected, "to {to}, from {from}, length {len}");
    }

    /// Every one, or under Miri, which is slow, every `step`th.
    fn every(step: usize) -> usize {
        if cfg!(miri) {
            step
        } else {
            1
        }
    }

    #[test]
    fn every_short_length_at_every_alignment() {
        for len in (0..=300).step_by(every(7)) {
            for align in (0..64).step_by(every(33)) {
                check(copy_in, align, 63 - align, len);
                check(copy_out, align, 63 - align, len);
            }
        }
    }

    #[test]
    fn lengths_around_the_thresholds() {
        let lengths = [STREAM_MIN_BYTES, 2 * STREAM_MIN_BYTES, 1 << 16, 1 << 20];
        let far = if cfg!(miri) { 1 } else { lengths.len() };
        for around in &lengths[..far] {
            for len in (around - 70..around + 70).step_by(every(47)) {
                check(copy_in, len % 67, len % 5, len);
                check(copy_out, len % 67, len % 5, len);
            }
        }
    }

    proptest! {
        #[test]
        fn like_a_plain_copy(to in 0usize..128, from in 0usize..128, len in 0usize..200_000) {
            check(copy_in, to, from, len);
            check(copy_out, to, from, len);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_the_machine_has() {
        for kernel in x86_64::kernels_here() {
            let lengths = [12_345, 8192, 8193, 8255, 65_536, 100_001];
            for len in lengths.into_iter().step_by(every(6)) {
                for align in [0, 1, 16, 33, 63].into_iter().step_by(every(3)) {
                    check(kernel.stream_in, align, 7 * align % 64, len);
                    check(kernel.read_out, align, 7 * align % 64, len);
                }
            }
        }
    }
}
