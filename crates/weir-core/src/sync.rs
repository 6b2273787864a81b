//! The atomics of shared memory, and the word of a lock made of them.
//!
//! They are the processor's, but for one build: with the feature `explore`, loom's take their place,
//! which run a test in all orders that the memory model permits (`tests/explore`). Loom's are of another
//! size, so records made of them lie in no mapping: weir-store does not compile with that feature.

#[cfg(not(feature = "explore"))]
pub use core::hint::spin_loop;
#[cfg(not(feature = "explore"))]
pub use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

#[cfg(feature = "explore")]
mod explored;
#[cfg(feature = "explore")]
pub use explored::{
    fence, run_interrupted, run_until_killed, spin_loop, AtomicU32, AtomicU64, Ordering,
};

mod owner;
pub use owner::OwnerWord;
