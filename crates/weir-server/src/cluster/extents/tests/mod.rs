//! The room alone: the writes of clients by hand at one server, and publishing between servers that have extents and
//! nothing else.

mod locating;
mod publishing;
mod server;
mod writer;
mod writes;
