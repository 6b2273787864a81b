//! The room alone: clients by hand, and a fabric whose reads arrive when the test says so.

mod lending;
mod missing;
mod server;
