//! Copies at the speed of the machine: `memcpy`, `rep movsb`, and the widest vector stores.
//!
//! Non-temporal stores skip reading the target's cache lines, which is why they set the limit for bursts
//! larger than the cache. Vector code is x86-64 only; elsewhere `Wide` is not available.

use crate::job::{CopyOp, Method};

/// A copy routine: `length` bytes from `source` to `target`.
///
/// # Safety
/// Both ranges are valid for `length` bytes and do not overlap.
pub type Copy = unsafe fn(target: *mut u8, source: *const u8, length: usize);

/// The routine for `method` in direction `op`, or `None` where the processor has none.
pub fn routine(op: CopyOp, method: Method) -> Option<Copy> {
    match (method, op) {
        (Method::Memcpy, _) => Some(memcpy),
        #[cfg(target_arch = "x86_64")]
        (Method::Movsb, _) => Some(x86::movsb),
        #[cfg(target_arch = "x86_64")]
        (Method::Wide, CopyOp::In) => Some(x86::widest_streaming()),
        #[cfg(target_arch = "x86_64")]
        (Method::Wide, CopyOp::Out) => x86::widest_plain(),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

/// The name of what `routine` chooses on this machine.
pub fn name(op: CopyOp, method: Method) -> &'static str {
    match (method, op) {
        (Method::Memcpy, _) => "memcpy",
        (Method::Movsb, _) => "rep movsb",
        #[cfg(target_arch = "x86_64")]
        (Method::Wide, _) if std::is_x86_feature_detected!("avx512f") => match op {
            CopyOp::In => "AVX-512 non-temporal",
            CopyOp::Out => "AVX-512",
        },
        #[cfg(target_arch = "x86_64")]
        (Method::Wide, CopyOp::In) if std::is_x86_feature_detected!("avx") => "AVX non-temporal",
        (Method::Wide, CopyOp::In) => "SSE2 non-temporal",
        (Method::Wide, CopyOp::Out) => "vector",
    }
}

unsafe fn memcpy(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the contract of `Copy`.
    unsafe { libc::memcpy(target.cast(), source.cast(), length) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm256_loadu_si256, _mm256_stream_si256, _mm_loadu_si128, _mm_sfence,
        _mm_stream_si128,
    };

    use super::{memcpy, Copy};

    /// Bytes of one turn of the vector loops.
    const TURN: usize = 256;

    pub fn widest_streaming() -> Copy {
        if std::is_x86_feature_detected!("avx512f") {
            streaming_512
        } else if std::is_x86_feature_detected!("avx") {
            // Chosen only where AVX is there, which is what the routine requires beside `Copy`.
            |t, s, n| {
                // SAFETY: AVX was detected; the rest is the contract of `Copy`.
                unsafe { streaming_256(t, s, n) }
            }
        } else {
            streaming_128
        }
    }

    pub fn widest_plain() -> Option<Copy> {
        std::is_x86_feature_detected!("avx512f").then_some(plain_512 as Copy)
    }

    pub unsafe fn movsb(target: *mut u8, source: *const u8, length: usize) {
        // SAFETY: the contract of `Copy`; the direction flag is clear at every call by the ABI.
        unsafe {
            asm!("rep movsb", inout("rcx") length => _, inout("rdi") target => _,
                inout("rsi") source => _, options(nostack, preserves_flags));
        }
    }

    /// Copies what precedes the first cache line and what follows the last whole turn; `middle` gets the rest:
    /// (aligned target, source, turns).
    ///
    /// # Safety
    /// The contract of `Copy`.
    unsafe fn split(
        target: *mut u8,
        source: *const u8,
        length: usize,
        middle: impl FnOnce(*mut u8, *const u8, usize),
    ) {
        let head = target.align_offset(64).min(length);
        let turns = (length - head) / TURN;
        let tail = head + turns * TURN;
        // SAFETY: head + turns * TURN + rest is `length`; all parts are inside the two ranges.
        unsafe {
            memcpy(target, source, head);
            if turns > 0 {
                middle(target.add(head), source.add(head), turns);
            }
            memcpy(target.add(tail), source.add(tail), length - tail);
        }
    }

    /// Assembly, since the intrinsics came to Rust later than this workspace's oldest toolchain.
    macro_rules! loop_512 {
        ($name:ident, $store:literal, $fence:literal) => {
            unsafe fn $name(target: *mut u8, source: *const u8, length: usize) {
                // SAFETY: chosen only where AVX-512F is there; `split` hands out `turns` times 256 bytes
                // inside both ranges, the target 64-byte aligned. Only clobbered registers are used.
                let middle = |target: *mut u8, source: *const u8, turns: usize| unsafe {
                    asm!(
                        "2:",
                        "vmovdqu64 zmm0, [{s}]",
                        "vmovdqu64 zmm1, [{s} + 64]",
                        "vmovdqu64 zmm2, [{s} + 128]",
                        "vmovdqu64 zmm3, [{s} + 192]",
                        concat!($store, " [{t}], zmm0"),
                        concat!($store, " [{t} + 64], zmm1"),
                        concat!($store, " [{t} + 128], zmm2"),
                        concat!($store, " [{t} + 192], zmm3"),
                        "add {s}, 256",
                        "add {t}, 256",
                        "dec {n}",
                        "jnz 2b",
                        "vzeroupper",
                        $fence,
                        s = inout(reg) source => _,
                        t = inout(reg) target => _,
                        n = inout(reg) turns => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        options(nostack)
                    );
                };
                // SAFETY: the contract of `Copy`.
                unsafe { split(target, source, length, middle) }
            }
        };
    }
    loop_512!(streaming_512, "vmovntdq", "sfence");
    loop_512!(plain_512, "vmovdqu64", "");

    #[target_feature(enable = "avx")]
    unsafe fn streaming_256(target: *mut u8, source: *const u8, length: usize) {
        let middle = |target: *mut u8, source: *const u8, turns: usize| {
            for i in 0..turns * TURN / 32 {
                // SAFETY: inside `turns` times 256 bytes; the target is 64-byte aligned.
                unsafe {
                    let part = _mm256_loadu_si256(source.cast::<__m256i>().add(i));
                    _mm256_stream_si256(target.cast::<__m256i>().add(i), part);
                }
            }
        };
        // SAFETY: the contract of `Copy`.
        unsafe { split(target, source, length, middle) };
        _mm_sfence();
    }

    unsafe fn streaming_128(target: *mut u8, source: *const u8, length: usize) {
        let middle = |target: *mut u8, source: *const u8, turns: usize| {
            for i in 0..turns * TURN / 16 {
                // SAFETY: inside `turns` times 256 bytes; the target is 64-byte aligned.
                unsafe {
                    let part = _mm_loadu_si128(source.cast::<__m128i>().add(i));
                    _mm_stream_si128(target.cast::<__m128i>().add(i), part);
                }
            }
        };
        // SAFETY: the contract of `Copy`; SSE is part of x86-64.
        unsafe {
            split(target, source, length, middle);
            _mm_sfence();
        }
    }

    #[cfg(test)]
    pub fn all() -> Vec<Copy> {
        let mut all: Vec<Copy> = vec![movsb, streaming_128, widest_streaming()];
        if std::is_x86_feature_detected!("avx") {
            all.push(|t, s, n| {
                // SAFETY: AVX was detected; the rest is the contract of `Copy`.
                unsafe { streaming_256(t, s, n) }
            });
        }
        all.extend(widest_plain());
        all
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_routine_copies_exactly_its_range() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut routines = x86::all();
        routines.push(memcpy);
        for copy in routines {
            for (skip, length) in [(0, 0), (1, 63), (3, 256), (0, 4096), (61, 2000), (32, 4700)] {
                let mut target = vec![0xee; 5000];
                // SAFETY: both vectors are 5000 long, and skip + length is less.
                unsafe {
                    copy(
                        target.as_mut_ptr().add(skip),
                        source.as_ptr().add(skip),
                        length,
                    )
                };
                assert!(target[..skip].iter().all(|&b| b == 0xee));
                assert_eq!(target[skip..skip + length], source[skip..skip + length]);
                assert!(target[skip + length..].iter().all(|&b| b == 0xee));
            }
        }
    }
}
