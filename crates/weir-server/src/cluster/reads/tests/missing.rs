//! Messages about files whose bytes do not come.

use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use super::server::{ReadsWorld, FILE};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::ROOT;

const HOME: Rank = Rank(1);

fn fail_a_read(world: &ReadsWorld) {
    let landing = world.read(0, 0, 1).expect("room");
    world.fabric.take_read().fail();
    world.release(0, landing);
}

/// Logs what is missing; returns the files and directories whose paths that took.
fn log_missing_files(world: &ReadsWorld) -> Vec<Ino> {
    world.reads().tell_of_missing();
    world.settle();
    assert!(!world.reads().has_missing());
    world.take_paths()
}

#[test]
fn a_file_whose_bytes_do_not_come_is_named_once_until_its_server_is_back() {
    let world = ReadsWorld::new();
    assert!(!world.reads().has_missing());
    for _ in 0..3 {
        fail_a_read(&world);
    }
    assert!(world.reads().has_missing());
    assert_eq!(log_missing_files(&world), [FILE]);
    fail_a_read(&world);
    assert_eq!(log_missing_files(&world), [], "it is known");
    world.reads().expect_again(Rank(0));
    fail_a_read(&world);
    assert_eq!(log_missing_files(&world), [], "that was another server");
    world.reads().expect_again(HOME);
    fail_a_read(&world);
    assert_eq!(log_missing_files(&world), [FILE]);
}

#[test]
fn a_file_is_named_as_programs_found_it_if_its_home_is_lost() {
    let world = ReadsWorld::new();
    let reads = world.reads();
    reads.miss_file(FILE);
    assert!(!reads.has_missing(), "its home can be reached");
    world.server.peers().end_sessions(HOME);
    reads.miss_file(FILE);
    assert_eq!(
        log_missing_files(&world),
        [],
        "no name is known, and its home is not asked"
    );
    reads.expect_again(HOME);
    reads.note_name(FILE, ROOT, b"data");
    reads.miss_file(FILE);
    assert_eq!(
        log_missing_files(&world),
        [ROOT],
        "the directory of that name"
    );
}

#[test]
fn a_file_that_cannot_be_published_is_named_once_until_it_could_be() {
    let world = ReadsWorld::new();
    let fail = || {
        world
            .reads()
            .tell_of_publishing(FILE, Err(FsError::Unreachable));
        world.settle();
        world.take_paths()
    };
    assert_eq!(fail(), [FILE]);
    assert_eq!(fail(), []);
    world.reads().tell_of_publishing(FILE, Ok(()));
    assert_eq!(fail(), [FILE]);
}
