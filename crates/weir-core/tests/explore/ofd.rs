//! Open file descriptions: a process that finds a marked one sees what was stored before it was marked.
//!
//! Marks and inode are two words. A client that takes the entry for another open clears the marks and then stores
//! the inode; a process of another server's client, which came by an index, loads the inode and then the marks.
//! That the entry of a description does not end while a process has it is the kernel's doing (its lock).

use std::sync::Arc;

use loom::thread;
use weir_core::node::ofd::Ofd;
use weir_core::sync::Ordering;

use super::explore;

const OFFSET: u64 = 55;

/// Opens `ino`, moves the offset, and marks the description, as the client does before a fork.
fn open_and_mark(entry: &Ofd, ino: u64, flags: u32) {
    entry.open(ino, flags);
    entry.offset.store(OFFSET, Ordering::Relaxed);
    entry.state.fetch_or(Ofd::BOTH, Ordering::AcqRel);
}

#[test]
fn marks_of_an_earlier_life_are_not_taken_for_those_of_a_later_one() {
    explore(3, || {
        let entry = Arc::new(Ofd::default());
        open_and_mark(&entry, 7, 1);
        let client = thread::spawn({
            let entry = Arc::clone(&entry);
            move || {
                entry.close();
                open_and_mark(&entry, 9, 2);
            }
        });
        let found = entry.marked_inode();
        assert!(matches!(found, None | Some(7 | 9)));
        if found == Some(9) {
            assert_eq!(entry.flags.load(Ordering::Relaxed), 2);
            assert_eq!(entry.offset.load(Ordering::Relaxed), OFFSET);
            assert_eq!(entry.generation.load(Ordering::Relaxed), 1);
        }
        client.join().unwrap();
        assert_eq!(entry.marked_inode(), Some(9));
    });
}
