//! From the bytes of a path to an entry of the namespace.
//!
//! [`prefix`] separates weir's paths from the kernel's, which cost a few ns; [`walk`] follows the
//! components of ours by POSIX's rules.

pub mod access;
pub mod prefix;
pub mod walk;

pub use access::{Credentials, Guard};
pub use prefix::Prefix;
pub use walk::{Name, Names, ResolvedPath, Walk};
