//! The types that code may refer to directly in memory that other processes write.
//!
//! Invariant: a `&T` into shared memory is only ever made for a [`ShmRecord`], a type
//! made of nothing but atomics. Other processes change its bytes at any time and to any
//! value, so every bit pattern must be valid and every access must be atomic; then the
//! rest of weir handles shared memory in safe code, as `&[T]`.
//!
//! Left out: the meaning of the records (weir-core), and any check of their contents.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, AtomicU8};

/// A type that may be shared with other processes through mapped memory.
///
/// # Safety
///
/// The type must be `#[repr(C)]` or `#[repr(transparent)]` and consist, all the way down,
/// of atomic integers and arrays of them (padding is allowed: it is never read). Hence:
/// all bit patterns are valid, zeroed memory is a valid value, all of it may change at
/// any time, nothing of it needs dropping, and it holds no pointers.
pub unsafe trait ShmRecord: Sync + Sized + 'static {}

/// Implements [`ShmRecord`] for record types of weir-core (the trait lives here, so the
/// implementations do).
///
/// At compile time the macro refuses types that need dropping, that have no size, or whose
/// alignment exceeds a page. The caller who lists a type promises that its fields are all atomics.
#[macro_export]
macro_rules! shm_record {
    ($($record:ty),+ $(,)?) => {$(
        const _: () = {
            assert!(!core::mem::needs_drop::<$record>());
            assert!(core::mem::size_of::<$record>() > 0);
            assert!(core::mem::align_of::<$record>() <= 4096);
        };
        // SAFETY: the type is listed here because it is `repr(C)` and made only of atomics; the
        // code above checks the part of that which can be checked.
        unsafe impl $crate::shm::ShmRecord for $record {}
    )+};
}

shm_record!(AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicI32, AtomicI64);

// SAFETY: an array of records is laid out as the records one after another.
unsafe impl<T: ShmRecord, const N: usize> ShmRecord for [T; N] {}
