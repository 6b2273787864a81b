//! Publishing: messages that are lost and come again, truncations on the way, hostile publishers.

use weir_core::extent::{Run, COPY_RANK};
use weir_core::journal::PublishAnswers;
use weir_core::proto::peer::{self, LogRange, Request};
use weir_core::proto::FsError;
use weir_core::types::Rank;
use weir_store::slab::SLAB_BYTES;

use super::server::{lay_bytes, unpublished, ExtentsWorld, PublishedMap};
use crate::cluster::abilities::OwnTables;
use crate::cluster::peers::calls::ServerCalls;

fn is_put(asked: &Request) -> bool {
    matches!(asked, Request::Put(_))
}

/// A write: its offset and length, the server, and the slab and position of its first byte.
type Write = (u64, u64, (u16, (u32, u64)));

/// The bytes of writes in the map of published extents; of two, the later ones.
fn map_of(writes: &[Write]) -> PublishedMap {
    let mut bytes = PublishedMap::new();
    for (offset, len, (rank, (slab, pos))) in writes {
        bytes.extend((0..*len).map(|at| (offset + at, (*rank, *slab, pos + at))));
    }
    bytes
}

#[test]
fn the_newest_publish_wins_and_the_bytes_that_it_covers_are_given_back() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let first = world.write(0, at, 100);
    assert_eq!(world.publish(0), Ok(()));
    let second = world.write(2, at + 50, 20);
    assert_eq!(world.publish(2), Ok(()));
    let wanted = [(at, 100, (0, first)), (at + 50, 20, (2, second))];
    assert_eq!(world.published(), map_of(&wanted));
    world.check_living();
    // The other one's publish is the newer one now.
    let third = world.write(0, at + 40, 20);
    assert_eq!(world.publish(0), Ok(()));
    let wanted = [wanted[0], wanted[1], (at + 40, 20, (0, third))];
    assert_eq!(world.published(), map_of(&wanted));
    world.check_living();
}

#[test]
fn a_publish_over_several_slices_is_kept_in_parts_by_their_homes() {
    let world = ExtentsWorld::new(3);
    let borders = [world.slice_of(0), world.slice_of(1), world.slice_of(2)];
    let mut wanted = PublishedMap::new();
    for border in borders {
        let write = world.write(0, border - 10, 20);
        wanted.extend(map_of(&[(border - 10, 20, (0, write))]));
    }
    assert_eq!(world.publish(0), Ok(()));
    assert_eq!(world.published(), wanted);
    world.check_living();
    let told = world.servers[2].take_published();
    assert_eq!(told.len(), 1);
    let added: i64 = told[0].publishes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(added, 60, "the bytes that the file has more");
}

#[test]
fn a_publish_whose_answer_was_lost_is_sent_again_and_hides_nothing_newer() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let first = world.write(0, at, 100);
    let done = world.begin_publish(0);
    let place = world.fabric.turn_until(is_put);
    world.fabric.deliver_and_lose_answer(place);
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Err(FsError::Unreachable)));
    let on_its_way = world.extents(0).in_flight(world.file);
    let mut bytes = PublishedMap::new();
    lay_bytes(&on_its_way, &mut bytes);
    assert_eq!(
        bytes,
        map_of(&[(at, 100, (0, first))]),
        "its programs read them"
    );
    assert_eq!(world.extents(0).dirty(), [world.file]);
    // Another server's bytes cover some of them, before they come again.
    let second = world.write(2, at + 50, 20);
    assert_eq!(world.publish(2), Ok(()));
    assert_eq!(world.publish(0), Ok(()));
    let wanted = [(at, 100, (0, first)), (at + 50, 20, (2, second))];
    assert_eq!(world.published(), map_of(&wanted));
    assert!(world.extents(0).dirty().is_empty());
    world.check_living();
}

#[test]
fn a_publish_that_was_lost_is_sent_before_later_ones() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    world.write(0, at, 30);
    let done = world.begin_publish(0);
    let place = world.fabric.turn_until(is_put);
    world.fabric.lose(place);
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Err(FsError::Unreachable)));
    assert!(world.published().is_empty());
    let second = world.write(0, at, 10);
    assert_eq!(world.publish(0), Ok(()));
    let published = world.published();
    assert_eq!(published.get(&at), Some(&(0, second.0, second.1)));
    assert_eq!(
        published.len(),
        30,
        "the rest of the first one is there, too"
    );
    world.check_living();
}

#[test]
fn a_truncation_on_the_way_of_a_publish_leaves_nothing_behind_its_size() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let write = world.write(0, at, 100);
    let done = world.begin_publish(0);
    let place = world.fabric.turn_until(is_put);
    world.fabric.deliver(place);
    assert_eq!(world.published().len(), 100, "the slice has them");
    // The file's home cuts the file; this server hears of it before the home hears of the publish.
    world.extents(0).cut_in_flight(world.file, at + 40);
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Ok(())));
    assert_eq!(world.published(), map_of(&[(at, 40, (0, write))]));
    let told = world.servers[2].take_published();
    let last = told.last().expect("the home was told");
    assert_eq!(last.size, at + 40, "not the size before");
    let added: i64 = last.publishes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(added, 40);
    world.check_living();
}

#[test]
fn the_bytes_of_a_file_that_ended_meanwhile_are_erased_and_given_back() {
    let world = ExtentsWorld::new(3);
    world.write(0, world.slice_of(1), 100);
    world.write(0, world.slice_of(0), 50);
    world.servers[2].refuse(FsError::Stale);
    assert_eq!(world.publish(0), Ok(()));
    assert!(world.published().is_empty());
    assert!(world.extents(0).dirty().is_empty(), "nothing is sent again");
    world.check_living();
}

#[test]
fn an_error_of_the_file_s_home_keeps_the_batch_for_another_time() {
    let world = ExtentsWorld::new(3);
    world.write(0, world.slice_of(1), 100);
    world.servers[2].refuse(FsError::Io);
    assert_eq!(world.publish(0), Err(FsError::Io));
    assert!(world.extents(0).is_in_flight(world.file));
    assert_eq!(unpublished(&world.servers[0], world.file), 0);
}

#[test]
fn a_publish_under_way_goes_on_after_its_server_was_killed() {
    for loses_answer in [false, true] {
        let world = ExtentsWorld::new(3);
        let at = world.slice_of(1);
        let write = world.write(0, at, 100);
        let done = world.begin_publish(0);
        let place = world.fabric.turn_until(is_put);
        match loses_answer {
            true => world.fabric.deliver_and_lose_answer(place),
            false => world.fabric.lose(place),
        }
        world.fabric.settle();
        assert!(done.borrow_mut().take().expect("an answer").is_err());
        let second = world.write(2, at + 50, 20);
        assert_eq!(world.publish(2), Ok(()));
        let mut state = world.servers[0].journalled();
        world.servers[0].take_up(&mut state.cluster);
        assert_eq!(world.extents(0).dirty(), [world.file]);
        assert_eq!(world.publish(0), Ok(()));
        let published = world.published();
        let mut wanted = map_of(&[(at, 100, (0, write))]);
        if loses_answer {
            wanted.extend(map_of(&[(at + 50, 20, (2, second))]));
        }
        assert_eq!(published, wanted, "what came later wins: {loses_answer}");
        world.check_living();
        let after = world.servers[0].journalled();
        assert!(after.cluster.in_flight.is_empty());
    }
}

#[test]
fn the_homes_of_slices_know_answered_publishes_after_a_restart() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let write = world.write(0, at, 100);
    let done = world.begin_publish(0);
    let place = world.fabric.turn_until(is_put);
    world.fabric.deliver_and_lose_answer(place);
    world.fabric.settle();
    assert!(done.borrow_mut().take().expect("an answer").is_err());
    let second = world.write(2, at + 50, 20);
    assert_eq!(world.publish(2), Ok(()));
    let mut state = world.servers[1].journalled();
    world.servers[1].take_up(&mut state.cluster);
    assert_eq!(world.publish(0), Ok(()));
    let wanted = [(at, 100, (0, write)), (at + 50, 20, (2, second))];
    assert_eq!(world.published(), map_of(&wanted));
    world.check_living();
}

#[test]
fn answers_to_publishes_that_have_ended_are_forgotten() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    for _ in 0..5 {
        world.write(0, at, 10);
        assert_eq!(world.publish(0), Ok(()));
    }
    let state = world.servers[1].journalled();
    let answered: &PublishAnswers = &state.cluster.answered[&(world.file, Rank(0))];
    assert_eq!(answered.len(), 1, "the last one may come again");
}

#[test]
fn a_publisher_s_runs_are_of_its_own_log_and_within_a_slab() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let put = |run: Run| peer::Put {
        ino: world.file,
        runs: vec![run],
        publish: 7,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    };
    let run = |rank, pos| Run::extent(at, 10, 1, rank, 0, pos).unwrap();
    let bad = [
        ("another server's log", run(2, 0)),
        ("bytes of a copy", run(COPY_RANK, 0)),
        ("behind its slab", run(0, SLAB_BYTES - 9)),
        ("a hole", Run::hole(at, at + 10, 1).unwrap()),
        (
            "no bytes",
            Run {
                length: 0,
                ..run(0, 0)
            },
        ),
        (
            "no pieces",
            Run {
                count: 0,
                ..run(0, 0)
            },
        ),
    ];
    for (why, run) in bad {
        let refused = world.extents(1).put(Rank(0), &put(run));
        assert_eq!(refused, Err(FsError::Malformed), "{why}");
    }
    assert!(world.published().is_empty());
    assert_eq!(world.extents(1).published_runs(), 0);
    assert!(world.servers[1].journalled().cluster.answered.is_empty());
    assert_eq!(
        world.extents(1).put(Rank(0), &put(run(0, 0))),
        Ok(Vec::new())
    );
    assert_eq!(world.published().len(), 10);
}

#[test]
fn a_server_keeps_only_the_parts_in_its_own_slices() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    let put = peer::Put {
        ino: world.file,
        runs: vec![Run::extent(at - 10, 20, 1, 0, 0, 0).unwrap()],
        publish: 7,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    };
    assert_eq!(world.extents(1).put(Rank(0), &put), Ok(Vec::new()));
    let kept: Vec<u64> = world.published().into_keys().collect();
    let first_kept = kept[0];
    assert!(kept.contains(&at) && first_kept >= at - 10);
    for offset in kept {
        let home = world.extents(0).homes_of(world.file, offset, offset + 1);
        assert_eq!(home.into_iter().collect::<Vec<_>>(), [Rank(1)]);
    }
}

#[test]
fn a_server_reads_only_its_own_log_and_not_too_much_of_it() {
    let world = ExtentsWorld::new(2);
    let range = |rank, pos, len| LogRange {
        rank,
        slab: 0,
        pos,
        len,
    };
    let extents = world.extents(0);
    let mut out = Vec::new();
    let read = extents.read_log(&[range(0, 7, 3), range(0, 1, 2)], &mut out);
    assert_eq!((read, &out[..]), (Ok(()), &[7, 8, 9, 1, 2][..]));
    out.clear();
    assert_eq!(
        extents.read_log(&[range(1, 0, 1)], &mut out),
        Err(FsError::Malformed)
    );
    let much = [range(0, 0, 1 << 23), range(0, 0, 1 << 23), range(0, 0, 1)];
    assert_eq!(extents.read_log(&much, &mut out), Err(FsError::TooBig));
    let wraps = [range(0, 0, u64::MAX), range(0, 0, 2)];
    assert_eq!(extents.read_log(&wraps, &mut out), Err(FsError::TooBig));
    assert!(out.is_empty());
}

#[test]
fn two_tasks_of_a_server_do_not_publish_a_file_at_once() {
    let world = ExtentsWorld::new(3);
    let at = world.slice_of(1);
    world.write(0, at, 10);
    let first = world.begin_publish(0);
    world.fabric.turn_until(is_put);
    world.write(0, at, 10);
    let second = world.begin_publish(0);
    let puts = world.fabric.waiting();
    let puts = puts.iter().filter(|(_, asked)| is_put(asked)).count();
    assert_eq!(puts, 1, "the second one waits");
    world.fabric.settle();
    for done in [first, second] {
        assert_eq!(done.borrow_mut().take(), Some(Ok(())));
    }
    assert_eq!(world.servers[0].rank(), Rank(0));
    assert_eq!(world.servers[0].node(|node| node.space.living().len()), 10);
    world.check_living();
}
