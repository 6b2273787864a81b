//! The placements that a server knows, alone.

use weir_core::journal::State;

use super::*;

fn dir(index: u32) -> Ino {
    Ino::new(Rank(1), 0, index)
}

fn spread(names: usize) -> Placement {
    Placement::Spread(FirstServer {
        rank: Rank(2),
        names: vec![5; names],
    })
}

#[test]
fn what_is_remembered_of_other_servers_directories_is_bounded() {
    let mut placements = Placements::default();
    for index in 0..2 * u32::try_from(KNOWN_MOST).unwrap() {
        placements.learn(dir(index), &settled_at(Rank(2)));
        assert!(placements.known.len() <= KNOWN_MOST);
        assert_eq!(
            placements.placement_of(dir(index)),
            Some(&settled_at(Rank(2)))
        );
    }
    let mut placements = Placements::default();
    for index in 0..10 {
        placements.learn(dir(index), &spread(NAMES_MOST / 3));
        assert_eq!(
            placements.placement_of(dir(index)),
            Some(&spread(NAMES_MOST / 3))
        );
        assert!(placements.known.len() <= 3, "after {index}");
    }
}

#[test]
fn placements_of_own_directories_are_taken_up_from_a_snapshot_in_steps() {
    let mut placements = Placements::default();
    for index in 0..7 {
        placements.own.insert(dir(index), spread(index as usize));
        placements.has_all.insert(dir(100 + index));
    }
    placements.learn(dir(50), &spread(1));
    let mut state = State::new(Rank(1));
    let mut visit = |item: &Item<'_>| state.apply(item).unwrap();
    for table in 0..2 {
        let mut from = Some(SnapshotPosition::FIRST);
        while let Some(position) = from {
            from = match table {
                0 => placements.show_own(position, 3, &mut visit),
                _ => placements.show_all_here(position, 3, &mut visit),
            };
        }
    }
    let mut taken_up = Placements::default();
    taken_up.take_up(&mut state.cluster);
    assert_eq!(taken_up.own, placements.own);
    assert_eq!(taken_up.has_all, placements.has_all);
    assert_eq!(
        taken_up.placement_of(dir(50)),
        None,
        "its home is asked again"
    );
    taken_up.forget(dir(3));
    assert_eq!(taken_up.placement_of(dir(3)), None);
}
