//! The parts of the server that each room may use.
//!
//! A room that is a type of its own says in a trait, which it declares, what it needs of the others. Each file here has
//! the server's implementation of one such trait.

mod extents;
mod files;
mod locks;
mod names;
mod reads;
mod relief;
