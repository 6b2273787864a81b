//! Memory behind the tables that are shared with clients, before they are touched.
//!
//! The tables are sparse files. When a process first touches a page for which the file system has no room, the kernel
//! kills it. So a table is used only up to the entries for which [`Platform::present`] has reported memory; an
//! operation that needs more gets `NoSpace`.
//!
//! The tables of names grow ahead, whenever changes are committed (`names/memory.rs`). The others
//! grow when an entry is to be lent.

use crate::cluster::slots::Slots;
use crate::node::{Platform, Table};

/// Allocates memory for another slot of a table, if none is free.
pub(in crate::cluster) fn grow<P: Platform, T>(platform: &P, table: Table, slots: &mut Slots<T>) {
    if let Some(wanted) = slots.wants() {
        slots.allow(platform.present(table, wanted));
    }
}
