//! Copies at the speed of the machine: `memcpy`, `rep movsb`, and non-temporal vector stores.
//!
//! Non-temporal stores skip reading the target's cache lines, which is why they set the limit for bursts
//! larger than the cache. Out of memory, wider loads and prefetching were no faster than `memcpy`, and are
//! left out. x86-64 only; elsewhere the limit is that of `memcpy`.

use serde::{Deserialize, Serialize};

/// Direction of a copy, seen from the file system that could at best be this fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CopyOp {
    /// From a small source into warm shared memory: the limit of a write.
    In,
    /// From warm shared memory into a small reused buffer: the limit of a read.
    Out,
}

/// How bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Method {
    /// The C library's `memcpy`.
    Memcpy,
    /// `rep movsb`.
    Movsb,
    /// The widest non-temporal stores that the processor has (into memory only).
    Streaming,
}

/// A copy routine: `length` bytes from `source` to `target`.
///
/// # Safety
/// Both ranges are valid for `length` bytes and do not overlap.
pub type Copy = unsafe fn(target: *mut u8, source: *const u8, length: usize);

/// The routine for `method` in direction `op`, or `None` where the processor has none.
pub fn routine(op: CopyOp, method: Method) -> Option<Copy> {
    match method {
        Method::Memcpy => Some(memcpy),
        #[cfg(target_arch = "x86_64")]
        _ => x86::routine(op, method),
        #[cfg(not(target_arch = "x86_64"))]
        _ => {
            let _ = op;
            None
        }
    }
}

/// The name of a method in reports.
pub fn name(method: Method) -> &'static str {
    match method {
        Method::Memcpy => "memcpy",
        Method::Movsb => "rep movsb",
        Method::Streaming => "non-temporal stores",
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
        __m128i, __m256i, __m512i, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512, _mm_loadu_si128, _mm_sfence, _mm_stream_si128,
    };

    use crate::copy::{memcpy, Copy, CopyOp, Method};

    /// Bytes of one turn of the vector loops.
    const TURN: usize = 256;

    pub fn routine(op: CopyOp, method: Method) -> Option<Copy> {
        match (method, op) {
            (Method::Memcpy, _) => Some(memcpy),
            (Method::Movsb, _) => Some(movsb),
            (Method::Streaming, CopyOp::Out) => None,
            (Method::Streaming, CopyOp::In) if std::is_x86_feature_detected!("avx512f") => {
                Some(streaming_512)
            }
            (Method::Streaming, CopyOp::In) if std::is_x86_feature_detected!("avx") => {
                Some(streaming_256)
            }
            (Method::Streaming, CopyOp::In) => Some(streaming_128),
        }
    }

    #[cfg(test)]
    pub fn older() -> Vec<Copy> {
        let avx = std::is_x86_feature_detected!("avx");
        let streaming = avx.then_some(streaming_256 as Copy);
        streaming
            .into_iter()
            .chain([streaming_128 as Copy])
            .collect()
    }

    unsafe fn movsb(target: *mut u8, source: *const u8, length: usize) {
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

    /// A copy routine with the vectors of one instruction set.
    macro_rules! streaming {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
            #[target_feature(enable = $feature)]
            #[allow(clippy::cast_ptr_alignment)] // The loads need no alignment; `split` aligns the target.
            unsafe fn $name(target: *mut u8, source: *const u8, length: usize) {
                let middle = |target: *mut u8, source: *const u8, turns: usize| {
                    let (target, source) = (target.cast::<$vector>(), source.cast::<$vector>());
                    for i in 0..turns * TURN / size_of::<$vector>() {
                        // SAFETY: inside `turns` times 256 bytes; the target is aligned by `split`.
                        unsafe { $store(target.add(i), $load(source.add(i))) };
                    }
                };
                // SAFETY: the contract of `Copy`.
                unsafe { split(target, source, length, middle) };
                _mm_sfence();
            }
        };
    }
    streaming!(
        streaming_512,
        "avx512f",
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );
    streaming!(
        streaming_256,
        "avx",
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    streaming!(
        streaming_128,
        "sse2",
        __m128i,
        _mm_loadu_si128,
        _mm_stream_si128
    );
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_routine_copies_exactly_its_range() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut routines = x86::older();
        routines.extend(
            [Method::Memcpy, Method::Movsb, Method::Streaming]
                .map(|method| routine(CopyOp::In, method).expect("x86-64 has all")),
        );
        for copy in routines {
            for (skip, length) in [(0, 0), (1, 63), (3, 256), (0, 4096), (61, 2000), (32, 4700)] {
                let mut target = vec![0xee; 5000];
                // SAFETY: both vectors are 5000 long, and skip + length is less.
                unsafe {
                    copy(
                        target.as_mut_ptr().add(skip),
                        source.as_ptr().add(skip),
                        length,
                    );
                };
                assert!(target[..skip].iter().all(|&b| b == 0xee));
                assert_eq!(target[skip..skip + length], source[skip..skip + length]);
                assert!(target[skip + length..].iter().all(|&b| b == 0xee));
            }
        }
    }
}
