//! From the bytes of a path to an entry of the namespace.
//!
//! [`prefix`] and [`roots`] separate weir's paths from the kernel's, which cost a few ns; [`walk`] follows the
//! components of ours by POSIX's rules.

pub mod access;
pub mod prefix;
pub mod roots;
pub mod walk;

pub use access::{Credentials, Guard};
pub use prefix::Prefix;
pub use roots::{ElevatedTree, Roots};
pub use walk::{BelowEntry, Name, Names, ResolvedPath, Walk};
