//! The C API: `libweir.so`, declared in `include/weir.h`, which documents each function.
//!
//! Thin: pointers become slices, results 0 or -errno. `weir_client::library` does the work.
//!
//! | module | subject |
//! | --- | --- |
//! | [`functions`] | one table of functions a process: the interposer's, if it is there |
//! | [`arguments`] | checks of the arguments from C |
//! | [`message`] | error messages |
//! | [`types`] | the structures of weir.h |
//!
//! Invariants: no panic crosses to the caller (one is a bug, and -EIO to the caller, see
//! `weir_client::bugs`); memory of the caller is touched only while a call runs.

#![allow(
    clippy::missing_safety_doc,
    reason = "what a caller owes is said once, in weir.h: pointers are null or good for what the function does with them"
)]

pub mod arguments;
pub mod functions;
pub mod message;
pub mod types;

pub use functions::{weir_functions, Functions, ABI};
