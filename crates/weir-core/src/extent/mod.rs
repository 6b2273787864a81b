//! Extents: where the bytes of a file lie.

mod run;

pub use run::{Run, Source};
