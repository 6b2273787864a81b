//! The needs of the rooms, implemented by `Cluster` and `Node`.
//!
//! Each room declares a trait of its needs. A file here implements the trait of one room.

mod abilities;
mod extents;
mod files;
mod locks;
mod names;
mod reads;
mod relief;
