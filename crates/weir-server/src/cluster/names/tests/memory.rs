//! Memory behind the tables of names, which the file system may not have.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_core::names::{NamesError, Owner};
use weir_core::types::Rank;

use crate::cluster::clock::ServerClock;
use crate::cluster::fake::{new_tables, LogSpace, MappedMemory};
use crate::cluster::names::NamesMemory;
use crate::cluster::node_names::NodeNames;
use crate::node::{Platform, Table};

/// A kernel whose file system has room for so many inodes, and perhaps for the table of known names.
#[derive(Default)]
struct FullPlatform {
    inodes: Cell<usize>,
    has_known: Cell<bool>,
    asked: RefCell<Vec<Table>>,
}

impl Platform for FullPlatform {
    type Memory = MappedMemory;
    type Space = LogSpace;

    fn wake(&self, _: &AtomicU32) {}

    fn ofd_alive(&self, _: u32) -> bool {
        false
    }

    fn present(&self, table: Table, count: usize) -> usize {
        self.asked.borrow_mut().push(table);
        match table {
            Table::Inodes => count.min(self.inodes.get()),
            Table::Known if !self.has_known.get() => 0,
            _ => count,
        }
    }

    fn program(&self, _: u32) -> String {
        String::new()
    }
}

fn create(names: &mut NodeNames<'_>, number: u32) -> Result<(), NamesError> {
    let (root, owner) = (names.root(), Owner { uid: 0, gid: 0 });
    let name = format!("f{number}");
    names
        .create(root, name.as_bytes(), 0o644, owner, 1)
        .map(drop)
}

#[test]
fn names_are_made_only_where_there_is_memory() {
    let (_, shard) = new_tables(Rank(0));
    let mut names = NodeNames::new(shard, ServerClock::at(1));
    let (mut memory, platform) = (NamesMemory::default(), FullPlatform::default());
    platform.inodes.set(10);
    memory.make_room(&mut names, &platform);
    let made = (0..).take_while(|number| create(&mut names, *number).is_ok());
    let made = made.count();
    assert!((5..10).contains(&made), "{made} of ten inodes");
    assert_eq!(create(&mut names, 100), Err(NamesError::NoSpace));
    // The file system has room again.
    platform.inodes.set(40);
    memory.make_room(&mut names, &platform);
    assert_eq!(create(&mut names, 100), Ok(()));
    // Less than before: what had memory has it still.
    platform.inodes.set(0);
    memory.make_room(&mut names, &platform);
    assert_eq!(create(&mut names, 101), Ok(()));
}

#[test]
fn memory_for_known_names_is_tried_once_a_second_until_there_is_some() {
    let (open, _) = new_tables(Rank(0));
    let (mut memory, platform) = (NamesMemory::default(), FullPlatform::default());
    let second_ns = 1_000_000_000;
    let mut keep = |now_ns: i64| {
        memory.known_to_keep(&open, &platform, now_ns);
        let is_there = open.hub.known.load(Ordering::Relaxed) > 0;
        (is_there, platform.asked.borrow().len())
    };
    assert_eq!(keep(second_ns), (false, 1));
    assert_eq!(keep(2 * second_ns - 1), (false, 1), "too soon");
    platform.has_known.set(true);
    assert_eq!(keep(2 * second_ns), (true, 2));
    assert_eq!(keep(9 * second_ns), (true, 2), "it has it");
}
