//! Renames between servers, as their programs see them.

use proptest::prelude::*;
use weir_core::proto::peer::Request;
use weir_core::proto::{FsError, HistoryPosition};
use weir_core::types::{Ino, Rank};

use super::world::{dir_child, file_child, EntryAt, NamesWorld};
use crate::cluster::abilities::{NameTables, OwnTables};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::ROOT;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

fn at_root(name: &[u8]) -> EntryAt<'_> {
    (ROOT, name)
}

#[test]
fn a_refused_rename_leaves_no_trace() {
    let world = NamesWorld::new(3);
    let (a, b) = (world.name_at(ROOT, 1, 0), world.name_at(ROOT, 2, 0));
    let (file, none) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 1));
    let (dir_a, dir_b) = (world.mkdir(0, (ROOT, &a)), world.mkdir(0, (ROOT, &b)));
    let below = world.mkdir(1, (dir_a, b"below"));
    let dirs = [ROOT, dir_a, dir_b, below];
    assert_eq!((dir_a.rank(), dir_b.rank()), (Rank(1), Rank(2)));
    world.create(0, (ROOT, &file)).unwrap();
    // Its only entry is at another server than the directory.
    world.create(0, (dir_b, b"f")).unwrap();
    let before = world.entries_of(&dirs);
    let cases: [(EntryAt<'_>, EntryAt<'_>, u32, FsError); 8] = [
        (at_root(&a), at_root(&b), NOREPLACE, FsError::Exists),
        (at_root(&none), at_root(&b), 0, FsError::NotFound),
        (at_root(&a), at_root(&none), EXCHANGE, FsError::NotFound),
        (at_root(&a), at_root(&file), 0, FsError::NotADirectory),
        (at_root(&file), at_root(&a), 0, FsError::IsADirectory),
        (at_root(&a), at_root(&b), 0, FsError::NotEmpty),
        (at_root(&a), (below, b"new"), 0, FsError::WouldLoop),
        (at_root(&a), (below, b"new"), EXCHANGE, FsError::NotFound),
    ];
    for leader in 0..3 {
        for (from, to, flags, error) in cases {
            let refused = world.rename(leader, from, to, flags);
            assert_eq!(refused, Err(error), "{from:?} to {to:?} by {leader}");
            assert_eq!(world.entries_of(&dirs), before, "{error:?} by {leader}");
            world.check_tree(&[dir_a, dir_b, below]);
            world.check_no_rename(&dirs);
            assert_eq!(world.called_off(), 0);
        }
    }
}

#[test]
fn a_file_has_one_name_and_one_link_after_a_rename_by_any_server() {
    for leader in 0..3 {
        for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 1)] {
            let world = NamesWorld::new(3);
            let old = world.name_at(ROOT, from, 0);
            let new = world.name_at(ROOT, to, 1);
            let file = world.create(leader, (ROOT, &old)).unwrap();
            let replaced = world.create(leader, (ROOT, &new)).unwrap();
            let known = world
                .names(leader)
                .history_since(HistoryPosition::default())
                .position;
            let renamed = world.rename(leader, (ROOT, &old), (ROOT, &new), 0);
            assert_eq!(renamed, Ok(()));
            let entries = world.entries_of(&[ROOT]);
            let entries: Vec<_> = entries.into_iter().collect();
            assert_eq!(entries, [((ROOT, new.clone(), to), file)]);
            assert_eq!(world.nlink(file), 1);
            assert_eq!(world.servers[usize::from(to)].ended(), [replaced]);
            let history = world.names(leader).history_since(known);
            let lost: Vec<_> = history.removals.iter().map(|lost| lost.ino).collect();
            assert_eq!(lost, [replaced, file], "the names that they had");
            world.check_no_rename(&[ROOT]);
        }
    }
}

#[test]
fn exchanged_names_name_each_other_s_inodes() {
    let world = NamesWorld::new(3);
    let (a, b) = (world.name_at(ROOT, 1, 0), world.name_at(ROOT, 2, 0));
    let dir = world.mkdir(0, (ROOT, &a));
    let file = world.create(0, (dir, b"f")).unwrap();
    let other = world.mkdir(0, (ROOT, &b));
    let exchanged = world.begin_rename(2, (dir, b"f"), (ROOT, &b), EXCHANGE);
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Leave(_)));
    // The new name is final. A server that is killed now must not give it up again.
    let journalled = world.servers[2].journalled();
    assert!(journalled.locked.is_empty() && journalled.changes.len() == 1);
    world.fabric.settle();
    assert_eq!(exchanged.borrow_mut().take(), Some(Ok(())));
    assert_eq!(world.find(1, (ROOT, &b)), Ok(Some(file_child(file))));
    assert_eq!(world.find(1, (dir, b"f")), Ok(Some(dir_child(other))));
    world.check_tree(&[dir, other]);
    world.check_no_rename(&[ROOT, dir, other]);
}

#[test]
fn a_move_whose_permit_was_lost_is_refused_and_its_location_taken_back() {
    let world = NamesWorld::new(3);
    let (a, b) = (world.name_at(ROOT, 2, 0), world.name_at(ROOT, 1, 0));
    let (moved, into) = (world.mkdir(1, (ROOT, &a)), world.mkdir(1, (ROOT, &b)));
    let done = world.begin_rename(1, (ROOT, &a), (into, b"new"), 0);
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Moved(_)));
    // Rank 0 gives the leader up, and may have given the permit to another one.
    world.servers[0].peers().end_sessions(Rank(1));
    world.names(0).drop_names_of(Rank(1));
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Err(FsError::Unreachable)));
    assert_eq!(world.whereabouts(moved), (ROOT, a.clone()));
    world.check_tree(&[moved, into]);
    // With the permit it is done.
    let again = world.rename(1, (ROOT, &a), (into, b"new"), 0);
    assert_eq!(again, Ok(()));
    assert_eq!(world.whereabouts(moved), (into, b"new".to_vec()));
}

#[test]
fn a_location_is_taken_back_before_the_permit_is() {
    let world = NamesWorld::new(3);
    let (a, b) = (world.name_at(ROOT, 2, 0), world.name_at(ROOT, 1, 0));
    let (moved, into) = (world.mkdir(1, (ROOT, &a)), world.mkdir(1, (ROOT, &b)));
    let target = world.mkdir(0, (into, b"target"));
    world.create(2, (target, b"f")).unwrap();
    let done = world.begin_rename(1, (ROOT, &a), (into, b"target"), 0);
    // The old name's home would take the location back, too, but has not found out yet.
    world.fabric.turn_without(
        |asked| matches!(asked, Request::EndMove(_)),
        |asked| matches!(asked, Request::UnlockMoves(_)),
    );
    // The next holder of the permit looks for loops by the locations.
    assert_eq!(world.whereabouts(moved), (ROOT, a.clone()));
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Err(FsError::NotEmpty)));
    world.check_tree(&[moved, into, target]);
}

#[test]
fn a_rename_between_directories_is_counted_before_any_name_changes() {
    let world = NamesWorld::new(2);
    let (a, f) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 0, 1));
    let dir = world.mkdir(1, (ROOT, &a));
    world.create(1, (ROOT, &f)).unwrap();
    let counts = || {
        let history = world.names(1).history_since(HistoryPosition::default());
        (history.begun, history.ended)
    };
    let before = counts();
    let done = world.begin_rename(1, (ROOT, &f), (dir, b"new"), 0);
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::LockName(_)));
    assert_eq!(counts(), (before.0 + 1, before.1));
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Ok(())));
    assert_eq!(counts(), (before.0 + 1, before.1 + 1));
}

/// Two directories, each with one below it, and each of them about to be moved below the other.
struct CrossingMoves {
    world: NamesWorld,
    names: [Vec<u8>; 2],
    dirs: [Ino; 4],
}

impl CrossingMoves {
    fn new(homes: [u16; 2]) -> CrossingMoves {
        let world = NamesWorld::new(3);
        let names = [
            world.name_at(ROOT, homes[0], 0),
            world.name_at(ROOT, homes[1], 1),
        ];
        let [a, b] = [0, 1].map(|at| world.mkdir(0, (ROOT, &names[at])));
        let below = [(a, 2), (b, 1)].map(|(dir, maker)| world.mkdir(maker, (dir, b"below")));
        let dirs = [a, b, below[0], below[1]];
        CrossingMoves { world, names, dirs }
    }

    /// Begins both, and delivers all messages in the order of a schedule.
    fn run(&self, leaders: [u16; 2], schedule: &[prop::sample::Index]) -> [Result<(), FsError>; 2] {
        let CrossingMoves { world, names, dirs } = self;
        let moves = [0, 1].map(|at| {
            let into = dirs[3 - at];
            world.begin_rename(leaders[at], (ROOT, &names[at]), (into, b"in"), 0)
        });
        for pick in schedule {
            match world.fabric.waiting().len() {
                0 => world.fabric.pass_time(),
                count => world.fabric.deliver(pick.index(count)),
            }
        }
        world.fabric.settle();
        moves.map(|done| done.borrow_mut().take().expect("an answer"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn crossing_moves_of_directories_never_make_a_cycle(
        homes in [0..3_u16, 0..3_u16],
        leaders in [0..3_u16, 0..3_u16],
        schedule in proptest::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        let moves = CrossingMoves::new(homes);
        let done = moves.run(leaders, &schedule);
        moves.world.check_tree(&moves.dirs);
        moves.world.check_no_rename(&moves.dirs);
        let is_moved = [0, 1].map(|at| done[at].is_ok());
        prop_assert_ne!(is_moved[0], is_moved[1], "one is moved, the other would make a loop");
        let refused = done[usize::from(is_moved[0])];
        prop_assert_eq!(refused, Err(FsError::WouldLoop));
    }
}

#[test]
fn a_directory_that_was_moved_is_found_by_a_path_from_any_server() {
    let world = NamesWorld::new(3);
    let (a, b) = (world.name_at(ROOT, 1, 0), world.name_at(ROOT, 2, 0));
    let (moved, into) = (world.mkdir(0, (ROOT, &a)), world.mkdir(2, (ROOT, &b)));
    assert_eq!(world.rename(0, (ROOT, &a), (into, b"new"), 0), Ok(()));
    for rank in 0..3 {
        let path = world.fabric.finish(world.names(rank).path_by_homes(moved));
        let wanted = [b"/", &b[..], b"/new"].concat();
        assert_eq!(path.unwrap().path, wanted);
    }
    let attr = world.servers[1].node(|node| node.names().attr_of(moved));
    assert_eq!(attr.unwrap().parent, into);
}
