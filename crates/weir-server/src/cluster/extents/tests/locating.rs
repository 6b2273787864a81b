//! Finding extents: published ones, and those of this server over them.

use weir_core::extent::Run;
use weir_core::proto::peer::{self, Request};
use weir_core::proto::{FsError, Locate, Located};
use weir_core::types::Rank;

use super::server::{lay_bytes, ExtentsWorld, PublishedMap};
use crate::cluster::abilities::{InodeNumbers, OwnTables};
use crate::cluster::extents::locate::ExtentMap;
use crate::cluster::extents::WriteTables;

/// The file's home is the last server, which has its attributes.
const HOME: usize = 2;

fn locate(world: &ExtentsWorld, offset: u64, length: u64) -> Result<Located, FsError> {
    let ino = world.file;
    let op = Locate {
        ino,
        offset,
        length,
    };
    world
        .fabric
        .finish_served(world.extents(HOME).locate_for_client(op))
}

fn bytes_in(located: &Located) -> PublishedMap {
    let mut bytes = PublishedMap::new();
    lay_bytes(&located.runs, &mut bytes);
    bytes
}

fn set_size(world: &ExtentsWorld, size: u64) {
    world.servers[HOME].node(|node| node.writes().set_size(world.file, size).unwrap());
}

#[test]
fn unpublished_bytes_are_over_those_on_their_way_and_these_over_published_ones() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let published = world.write(0, at, 30);
    assert_eq!(world.publish(0), Ok(()));
    let flying = world.write(HOME, at + 10, 20);
    let done = world.begin_publish(HOME);
    let place = world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Put(_)));
    world.fabric.lose(place);
    world.fabric.settle();
    assert!(done.borrow_mut().take().expect("an answer").is_err());
    let own = world.write(HOME, at + 20, 5);
    let located = locate(&world, at, 30).unwrap();
    assert!(located.known_from <= at && located.known_to >= at + 30);
    let of = |offset: u64, (rank, (slab, pos)): (u16, (u32, u64)), begin: u64| {
        (rank, slab, pos + offset - begin)
    };
    let rank = 2;
    let bytes = bytes_in(&located);
    for offset in at..at + 30 {
        let wanted = match offset - at {
            0..10 => of(offset, (0, published), at),
            20..25 => of(offset, (rank, own), at + 20),
            _ => of(offset, (rank, flying), at + 10),
        };
        assert_eq!(bytes.get(&offset), Some(&wanted), "{}", offset - at);
    }
}

#[test]
fn a_server_s_own_cut_does_not_hide_bytes_that_others_published_since() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    world.write(HOME, at, 30);
    set_size(&world, at + 10);
    set_size(&world, at + 30);
    let others = world.write(0, at + 15, 5);
    assert_eq!(world.publish(0), Ok(()));
    let bytes = bytes_in(&locate(&world, at, 30).unwrap());
    assert_eq!(bytes.len(), 15, "ten of its own, and five of another's");
    assert_eq!(bytes.get(&(at + 15)), Some(&(0, others.0, others.1)));
}

#[test]
fn extents_that_are_being_erased_are_not_found() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    world.write(0, at, 30);
    assert_eq!(world.publish(0), Ok(()));
    set_size(&world, at + 30);
    assert_eq!(bytes_in(&locate(&world, at, 30).unwrap()).len(), 30);
    world.servers[HOME].erase_from(at + 12);
    assert_eq!(bytes_in(&locate(&world, at, 30).unwrap()).len(), 12);
}

#[test]
fn answers_that_a_recall_overtook_are_asked_for_again() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    // The other server has a slice of it, too.
    set_size(&world, at.max(world.slice_of(0)) + 30);
    let begin = || {
        let op = Locate {
            ino: world.file,
            offset: at,
            length: 30,
        };
        let located = world.extents(HOME).locate_for_client(op);
        world.fabric.begin(located)
    };
    let first = begin();
    let place_to = |rank: u16| {
        let waiting = world.fabric.waiting();
        let mut waiting = waiting.iter();
        let its = waiting.position(|(to, asked)| to.0 == rank && matches!(asked, Request::Runs(_)));
        its.expect("all homes are asked")
    };
    // The slice's home answers, and then gets a newer publish; the map is recalled, and another
    // request begins the next one.
    world.fabric.deliver(place_to(1));
    let put = peer::Put {
        ino: world.file,
        runs: vec![Run::extent(at, 30, 1, 0, 0, 0).unwrap()],
        publish: 7,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    };
    assert_eq!(world.extents(1).put(Rank(0), &put), Ok(Vec::new()));
    world.extents(HOME).forget_map(world.file);
    let second = begin();
    world.fabric.deliver(place_to(0));
    world.fabric.settle();
    for located in [first, second] {
        let located = located.borrow_mut().take().expect("an answer").unwrap();
        assert_eq!(bytes_in(&located).get(&at), Some(&(0, 0, 0)));
    }
}

#[test]
fn what_is_known_is_not_asked_for_again_until_it_is_recalled() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    set_size(&world, at + 30);
    assert!(bytes_in(&locate(&world, at, 30).unwrap()).is_empty());
    world.write(0, at, 30);
    assert_eq!(world.publish(0), Ok(()));
    // The file's home recalls its leases by a room that is not here.
    assert!(bytes_in(&locate(&world, at, 30).unwrap()).is_empty());
    world.extents(HOME).forget_map(world.file);
    assert_eq!(bytes_in(&locate(&world, at, 30).unwrap()).len(), 30);
}

#[test]
fn the_map_of_a_laminated_file_lasts_until_the_file_is_gone() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let extents = world.extents(HOME);
    let run = Run::extent(at, 30, 1, 0, 0, 0).unwrap();
    extents.keep_map(world.file, ExtentMap::of_laminated(&[run]).unwrap());
    extents.forget_map(world.file);
    assert_eq!(bytes_in(&locate(&world, at, 30).unwrap()).len(), 30);
    assert!(extents.is_kept(world.file), "others may have it, too");
    assert!(!extents.is_kept(world.file));
    let hostile = Run { count: 0, ..run };
    assert!(ExtentMap::of_laminated(&[hostile]).is_err());
    assert_eq!(world.servers[0].global(world.file), world.file);
}
