//! Places of the pool: lent, arrived in, kept, and taken back.

use weir_core::node::landing::{Failed, LandingSlot, LANDINGS};
use weir_core::proto::peer::LogRange;
use weir_core::proto::{FsError, Landing, FETCH_BYTES, FETCH_PIECES};

use super::server::{range, ReadsWorld, UNIT, UNITS};

#[test]
fn reads_ahead_leave_a_quarter_of_the_pool() {
    let world = ReadsWorld::new();
    let ahead: Vec<Landing> = (0..UNITS)
        .map_while(|pos| world.read_ahead(0, pos * UNIT))
        .collect();
    assert_eq!(ahead.len(), 6, "three quarters");
    assert!(world.read_ahead(1, 100 * UNIT).is_none(), "of all clients");
    assert!(
        world.read(1, 200 * UNIT, 2).is_some(),
        "a reader may have the rest"
    );
    assert_eq!(world.used_units(), UNITS);
    // One that waits gets places of reads ahead, but none that is being used.
    assert!(world.slot(0, ahead[0], |slot| slot.claim(ahead[0].serial)));
    while !world.fabric.held.borrow().is_empty() {
        world.fabric.take_read().arrive_whole();
    }
    let place = world.read(1, 300 * UNIT, 2).expect("room");
    let end = place.at + 2 * u32::try_from(UNIT).unwrap();
    assert!(!(place.at..end).contains(&ahead[0].at), "it is in use");
    assert!(
        !world.slot(0, ahead[1], |slot| slot.claim(ahead[1].serial)),
        "it was taken back"
    );
}

#[test]
fn a_place_is_lent_again_only_when_both_fabric_and_client_have_finished() {
    for client_first in [true, false] {
        let world = ReadsWorld::new();
        let first = world.read(0, 0, UNITS).expect("the whole pool");
        let waits = world.ask(1, vec![vec![range(0, UNIT)]], false);
        let is_waiting = || {
            world.look();
            waits.borrow().is_none() && world.reads().awaits_room()
        };
        assert!(is_waiting());
        let held = world.fabric.take_read();
        if client_first {
            world.release(0, first);
            assert!(is_waiting(), "bytes still arrive");
            held.arrive_whole();
        } else {
            held.arrive_whole();
            assert!(is_waiting(), "the client has not copied them");
            world.release(0, first);
        }
        assert!(!is_waiting());
        let landings = waits.borrow_mut().take().expect("an answer").unwrap();
        assert_eq!((landings.len(), world.used_units()), (1, 1));
    }
}

#[test]
fn the_places_of_a_client_that_is_gone_are_free_when_nothing_arrives_any_more() {
    let world = ReadsWorld::new();
    world.read(0, 0, UNITS).expect("the whole pool");
    let waits = world.ask(1, vec![vec![range(0, UNIT)]], false);
    world.end_client(0);
    world.look();
    assert!(waits.borrow().is_none(), "the fabric writes there");
    world.fabric.take_read().fail();
    world.look();
    assert!(waits.borrow().is_some());
    assert_eq!(world.used_units(), 1);
}

#[test]
fn each_read_has_a_slot_and_a_serial_of_its_own() {
    let world = ReadsWorld::new();
    let reads = |count: usize| vec![vec![range(0, 1)]; count];
    let asked = world.ask(0, reads(LANDINGS + 5), false);
    let landings = asked.borrow_mut().take().expect("some").unwrap();
    assert_eq!(
        landings.len(),
        usize::try_from(UNITS).unwrap(),
        "as many as fit"
    );
    let slots: std::collections::BTreeSet<u16> = landings.iter().map(|one| one.slot).collect();
    assert_eq!(slots.len(), landings.len(), "each has its own");
    let serials: std::collections::BTreeSet<u32> = landings.iter().map(|one| one.serial).collect();
    assert_eq!(serials.len(), landings.len());
}

#[test]
fn reads_arrive_in_any_order_and_each_slot_counts_its_own_bytes() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let world = ReadsWorld::new();
        let lens = [10, 20, 30];
        let reads = lens.map(|len| vec![range(len * 100, len)]).to_vec();
        let asked = world.ask(0, reads, false);
        let landings = asked.borrow_mut().take().expect("room").unwrap();
        let mut held: Vec<_> = (0..3).map(|_| Some(world.fabric.take_read())).collect();
        for at in order {
            let mut read = held[at].take().expect("it waits");
            read.arrive(0, &[3; 4]);
            assert_eq!(world.arrived(0, landings[at]), Ok(4), "a part");
            read.arrive_whole();
            let len = u32::try_from(lens[at]).unwrap();
            assert_eq!(world.arrived(0, landings[at]), Ok(len));
            let bytes = world.pool_bytes(landings[at], len as usize);
            assert!(bytes.iter().all(|byte| *byte == 7));
            for (other, landing) in landings.iter().enumerate() {
                if held[other].is_some() {
                    assert_eq!(world.arrived(0, *landing), Ok(0));
                }
            }
        }
    }
}

#[test]
fn a_read_that_is_dropped_has_failed() {
    let world = ReadsWorld::new();
    let landing = world.read(0, 0, 1).unwrap();
    let mut held = world.fabric.take_read();
    held.arrive(0, &[1; 100]);
    drop(held);
    assert_eq!(world.arrived(0, landing), Err(Failed));
    world.release(0, landing);
    let again = world.read(0, 0, UNITS);
    assert!(again.is_some(), "its place is free");
}

#[test]
fn an_answer_that_is_not_as_long_as_the_read_is_no_answer() {
    for (bulk, arrived) in [
        (Some(vec![5; 10]), Ok(10)),
        (Some(vec![5; 9]), Err(Failed)),
        (Some(vec![5; 11]), Err(Failed)),
        (Some(Vec::new()), Err(Failed)),
        (None, Err(Failed)),
    ] {
        let world = ReadsWorld::new();
        world.fabric.read_by_calls(bulk.clone());
        world.laminate();
        let asked = world.ask(0, vec![vec![range(0, 6), range(90, 4)]], false);
        world.settle();
        let landing = asked.borrow_mut().take().expect("room").unwrap()[0];
        assert_eq!(world.arrived(0, landing), arrived, "{bulk:?}");
        if arrived.is_ok() {
            assert_eq!(world.pool_bytes(landing, 11), [&[5; 10][..], &[0]].concat());
        }
        assert_eq!(world.reads().has_missing(), arrived.is_err());
        world.release(0, landing);
        world.look();
        world.read(0, 1 << 20, 1);
        let kept = world.reads().kept().0;
        assert_eq!(
            kept,
            u64::from(arrived.unwrap_or(0)),
            "only whole reads are kept"
        );
    }
}

#[test]
fn a_hostile_request_gets_no_place() {
    let world = ReadsWorld::new();
    let of = |rank: u16, len: u64| LogRange {
        rank,
        ..range(0, len)
    };
    let cases = [
        (
            "this server's bytes",
            vec![vec![of(0, 5)]],
            FsError::Malformed,
        ),
        ("no such server", vec![vec![of(2, 5)]], FsError::Malformed),
        (
            "two servers",
            vec![vec![of(1, 5), of(0, 5)]],
            FsError::Malformed,
        ),
        ("no bytes", vec![vec![of(1, 0)]], FsError::Malformed),
        ("no ranges", vec![Vec::new()], FsError::Malformed),
        (
            "too long",
            vec![vec![of(1, FETCH_BYTES + 1)]],
            FsError::TooBig,
        ),
        (
            "a sum too long",
            vec![vec![of(1, u64::MAX), of(1, 2)]],
            FsError::TooBig,
        ),
        (
            "a second one",
            vec![vec![of(1, 5)], vec![of(0, 5)]],
            FsError::Malformed,
        ),
        (
            "too many",
            vec![vec![of(1, 5); FETCH_PIECES + 1]],
            FsError::TooBig,
        ),
    ];
    for (why, reads, error) in cases {
        let asked = world.ask(0, reads, false);
        assert_eq!(asked.borrow_mut().take(), Some(Err(error)), "{why}");
        assert_eq!(world.used_units(), 0, "{why}");
        assert!(world.fabric.held.borrow().is_empty(), "{why}");
    }
    let asked = world.ask(9, vec![vec![of(1, 5)]], false);
    let refused = asked.borrow_mut().take();
    assert_eq!(refused, Some(Err(FsError::NotPermitted)), "no client");
    assert_eq!(
        world.ask(0, Vec::new(), false).borrow_mut().take(),
        Some(Ok(Vec::new()))
    );
}

#[test]
fn a_node_that_cannot_receive_lends_no_place() {
    let world = ReadsWorld::new();
    world.receive_nothing();
    let asked = world.ask(0, vec![vec![range(0, UNIT)]], false);
    assert_eq!(asked.borrow_mut().take(), Some(Err(FsError::Invalid)));
    assert_eq!(world.used_units(), 0);
}

#[test]
fn a_read_that_never_fits_the_memory_of_the_pool_is_refused() {
    let world = ReadsWorld::new();
    world.limit_memory(3);
    let asked = world.ask(0, vec![vec![range(0, 4 * UNIT)]], false);
    assert_eq!(asked.borrow_mut().take(), Some(Err(FsError::NoSpace)));
    assert!(world.read(0, 0, 3).is_some());
    let waits = world.ask(1, vec![vec![range(0, UNIT)]], false);
    assert!(waits.borrow().is_none(), "it fits, but not now");
    world.limit_memory(8);
    world.look();
    assert!(waits.borrow().is_some(), "the pool has grown");
}

/// Reads units of a file that arrive whole, and releases them. Returns the number of those that the fabric was asked
/// for.
fn read_units(world: &ReadsWorld, units: std::ops::Range<u64>) -> usize {
    let mut asked = 0;
    for pos in units {
        let landing = world.read(1, pos * UNIT, 1).expect("room");
        if !world.fabric.held.borrow().is_empty() {
            asked += 1;
            world.fabric.take_read().arrive_whole();
        }
        assert_eq!(world.arrived(1, landing), Ok(u32::try_from(UNIT).unwrap()));
        world.release(1, landing);
    }
    asked
}

#[test]
fn only_bytes_of_laminated_files_are_kept_and_they_are_at_most_half_of_the_pool() {
    let world = ReadsWorld::new();
    assert_eq!(read_units(&world, 0..3), 3);
    assert_eq!(read_units(&world, 0..3), 3, "the file may change");
    assert_eq!(world.reads().kept(), (0, 0));
    world.laminate();
    assert_eq!(read_units(&world, 0..4), 4);
    assert_eq!(read_units(&world, 0..4), 0, "of the pool");
    assert_eq!(world.reads().kept(), (4 * UNIT, 4));
    assert_eq!(read_units(&world, 10..16), 6);
    world.read(0, 50 * UNIT, 1).expect("room");
    world.fabric.take_read().fail();
    assert_eq!(world.reads().kept().0, UNITS / 2 * UNIT);
    assert_eq!(read_units(&world, 12..16), 0, "the newest ones");
    assert_eq!(read_units(&world, 0..1), 1, "that one had to go");
}

#[test]
fn kept_bytes_make_room_for_reads_but_not_while_a_client_copies_them() {
    let world = ReadsWorld::new();
    world.laminate();
    read_units(&world, 0..4);
    let copied = world.read(0, 2 * UNIT, 1).expect("it is kept");
    assert!(world.fabric.held.borrow().is_empty());
    assert_eq!(
        world.arrived(0, copied),
        Ok(u32::try_from(UNIT).unwrap()),
        "at once"
    );
    // Ranges of two units, in what is left beside the one in use.
    let mut places = Vec::new();
    while let Some(landing) = world.read(1, (100 + places.len() as u64) * UNIT, 1) {
        places.push(landing.at);
    }
    assert_eq!(places.len(), 7, "all but one");
    assert!(!places.contains(&copied.at));
    world.slot(0, copied, LandingSlot::arrived).unwrap();
    world.release(0, copied);
    world.look();
    assert_eq!(world.used_units(), UNITS, "the one that waited has it");
}
