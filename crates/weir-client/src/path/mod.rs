//! From the bytes of a path to a place in the namespace.
//!
//! [`prefix`] tells the paths of weir from the kernel's, at a few ns for the latter;
//! [`walk`] follows the components of ours by POSIX's rules.

pub mod access;
pub mod prefix;
pub mod walk;

pub use access::{Credentials, Guard};
pub use prefix::Prefix;
pub use walk::{Name, Names, Place, Walk};
