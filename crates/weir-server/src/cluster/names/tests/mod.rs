//! The room alone: servers that have names and nothing else, and a fabric that delivers their requests in the order
//! that the test says.

mod kept;
mod memory;
mod placements;
mod renames;
mod server;
mod steps;
mod world;
