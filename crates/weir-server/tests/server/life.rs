//! The lifetimes of resources: unnamed files, descriptions, locks, full tables.

use std::sync::atomic::Ordering;

use crate::world::{Client, World, UNIT};
use weir_core::names::{LaminateOn, Lamination, Policy};
use weir_core::node::channel::{ALL_CHANNELS, CHANNELS, FIRST_CHANNEL, WIDEN};
use weir_core::node::ofd::Ofd;
use weir_core::node::ring::Note;
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::Ino;
use weir_server::node::ClientMemory;

fn open_ofd(world: &mut World, client: &Client, ino: Ino) -> u32 {
    let first = world.call(client.caller(), proto::OfdBatch {}).unwrap();
    world.open.ofds[first as usize].open(ino.0, 2);
    first
}

/// Sends a request in one of a client's channels; true if the server answers when the client rings.
fn asks_in(world: &mut World, client: &Client, channel: usize) -> bool {
    let mut request = Vec::new();
    proto::request(proto::Ping {}, &mut request);
    let words = &client.memory.channels()[channel];
    words.put_request(&request, 0).unwrap();
    client
        .memory
        .header()
        .asked
        .fetch_or(1 << channel, Ordering::SeqCst);
    world.poll_client(client.id, world.now_ns);
    words.has_reply()
}

#[test]
fn channels_are_looked_at_once_they_have_memory() {
    let mut world = World::new(4);
    let client = Client::new(&mut world);
    assert!(asks_in(&mut world, &client, 0));
    assert!(!asks_in(&mut world, &client, CHANNELS - 1));
    let header = client.memory.header();
    assert_eq!(header.channels.load(Ordering::SeqCst), FIRST_CHANNEL);
    header.asked.fetch_or(WIDEN, Ordering::SeqCst);
    world.poll_client(client.id, world.now_ns);
    assert_eq!(header.channels.load(Ordering::SeqCst), ALL_CHANNELS);
    for channel in (1..CHANNELS).rev() {
        assert!(asks_in(&mut world, &client, channel), "{channel}");
    }
}

fn all_free(world: &World) -> bool {
    let (free, all) = world.store.free();
    free == all
}

#[test]
fn an_unnamed_file_lives_while_it_is_open() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let mut client = Client::new(&mut world);
    let ofd = open_ofd(&mut world, &client, ino);
    client.write(&mut world, ino, 0, b"bytes", None).1.unwrap();
    world.unlink(b"f");
    world.node().idle(20);
    assert_eq!(world.read(ino, 5), b"bytes");
    client.detach(ino);
    world.node().idle(21);
    assert_eq!(world.read(ino, 5), b"bytes", "a description still names it");
    world.open.ofds[ofd as usize].close();
    client.note(Note::Orphan(ino.0));
    world.poll_client(client.id, 22);
    let gone = world.call(Caller::Control, proto::Truncate { ino, size: 0 });
    assert_eq!(gone, Err(FsError::Stale));
    world.node().gone(client.id, 23);
    assert!(all_free(&world));
}

#[test]
fn a_shared_description_outlives_its_owner_and_its_batch_comes_back() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let parent = Client::new(&mut world);
    let ofd = open_ofd(&mut world, &parent, ino);
    let shared = &world.open.ofds[ofd as usize];
    shared
        .state
        .store(Ofd::SHARED | Ofd::LOCKED, Ordering::SeqCst);
    let private = &world.open.ofds[ofd as usize + 1];
    private.open(ino.0, 0);
    world.platform.hold_description(ofd);
    world.unlink(b"f");
    world.node().gone(parent.id, 20);
    assert_eq!(shared.ino.load(Ordering::SeqCst), ino.0);
    assert_eq!(private.ino.load(Ordering::SeqCst), 0);
    assert_eq!(
        world.call(Caller::Control, proto::Truncate { ino, size: 3 }),
        Ok(())
    );
    let child = Client::new(&mut world);
    // Four batches in all: one has no owner but is live.
    for _ in 0..3 {
        world.call(child.caller(), proto::OfdBatch {}).unwrap();
    }
    let none = world.call(child.caller(), proto::OfdBatch {});
    assert_eq!(none, Err(FsError::NoSpace));
    world.platform.release_descriptions();
    child.note(Note::Closed(ofd));
    world.poll_client(child.id, 21);
    assert_eq!(shared.ino.load(Ordering::SeqCst), 0);
    let gone = world.call(Caller::Control, proto::Truncate { ino, size: 0 });
    assert_eq!(gone, Err(FsError::Stale));
    assert_eq!(world.call(child.caller(), proto::OfdBatch {}), Ok(ofd));
}

#[test]
fn a_description_ends_with_the_last_who_has_it_though_it_was_killed() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let (parent, child) = (Client::new(&mut world), Client::new(&mut world));
    let ofd = open_ofd(&mut world, &parent, ino);
    let shared = &world.open.ofds[ofd as usize];
    let both = Ofd::SHARED | Ofd::LOCKED;
    shared.state.store(both, Ordering::SeqCst);
    world.platform.hold_description(ofd);
    world.unlink(b"f");
    parent.note(Note::Closed(ofd));
    world.poll_client(parent.id, 20);
    assert_eq!(shared.ino.load(Ordering::SeqCst), ino.0, "the child has it");
    world.platform.release_descriptions();
    world.node().gone(child.id, 21);
    assert_eq!(shared.ino.load(Ordering::SeqCst), 0);
    let gone = world.call(Caller::Control, proto::Truncate { ino, size: 0 });
    assert_eq!(gone, Err(FsError::Stale));
}

#[test]
fn a_delete_makes_room_at_once() {
    let mut world = World::new(4);
    let mut client = Client::new(&mut world);
    for round in 0..10u8 {
        let ino = world.create(b"f").unwrap();
        let bytes = vec![round; usize::try_from(4 * UNIT).unwrap()];
        client.write(&mut world, ino, 0, &bytes, None).1.unwrap();
        let other = world.create(b"g").unwrap();
        let (done, full) = client.write(&mut world, other, 0, b"x", None);
        assert_eq!((done, full), (0, Err(FsError::NoSpace)));
        assert_eq!(
            world.read(ino, 4 * UNIT),
            bytes,
            "what was written is whole"
        );
        client.detach(ino);
        client.detach(other);
        world.unlink(b"f");
        world.unlink(b"g");
    }
}

#[test]
fn notes_are_taken_when_the_tables_are_full() {
    let mut world = World::sized(8, 100, 2, 2);
    let mut client = Client::new(&mut world);
    for i in 0..20 {
        let ino = world.create(format!("{i}").as_bytes()).unwrap();
        client.write(&mut world, ino, 0, b"x", None).1.unwrap();
        client.detach(ino);
    }
    let mut held = Vec::new();
    for i in 20..22 {
        let ino = world.create(format!("{i}").as_bytes()).unwrap();
        client.write(&mut world, ino, 0, b"x", None).1.unwrap();
        held.push(ino);
    }
    let ino = world.create(b"last").unwrap();
    let refused = world.call(client.caller(), proto::Attach { ino });
    assert_eq!(refused, Err(FsError::NoSpace));
    assert_eq!(world.read(held[0], 1), b"x");
}

#[test]
fn a_killed_holder_of_a_lock_wakes_who_waits() {
    let mut world = World::new(4);
    let ino = world.create(b"f").unwrap();
    let (holder, waiter) = (Client::new(&mut world), Client::new(&mut world));
    let (a, b) = (
        open_ofd(&mut world, &holder, ino),
        open_ofd(&mut world, &waiter, ino),
    );
    let flock = |ofd, operation| proto::Flock {
        ino,
        ofd,
        operation,
        wait: true,
    };
    world.call(holder.caller(), flock(a, 2)).unwrap();
    let foreign = world.call(waiter.caller(), flock(a, 2));
    assert_eq!(foreign, Err(FsError::Invalid), "another's description");
    let record = proto::RecordLock {
        ino,
        ofd: None,
        kind: 1,
        start: 0,
        end: 10,
        wait: true,
    };
    world.call(holder.caller(), record.clone()).unwrap();
    assert_eq!(
        world.call(waiter.caller(), flock(b, 1)),
        Err(FsError::WouldBlock)
    );
    assert_eq!(
        world.call(waiter.caller(), record.clone()),
        Err(FsError::WouldBlock)
    );
    let event = || waiter.memory.header().event.load(Ordering::SeqCst);
    let before = event();
    world.node().gone(holder.id, 20);
    assert_ne!(event(), before);
    world.call(waiter.caller(), flock(b, 1)).unwrap();
    world.call(waiter.caller(), record).unwrap();
}

#[test]
fn times_are_of_the_last_write_unless_they_were_set() {
    let mut world = World::new(4);
    let ino = world.create(b"f").unwrap();
    let mut client = Client::new(&mut world);
    let mtime = |world: &mut World| {
        let components = vec![b"f".to_vec()];
        world
            .call(Caller::Control, proto::Lookup { components })
            .unwrap()
            .mtime_ns
    };
    world.now_ns = 1000;
    client.write(&mut world, ino, 0, b"x", None).1.unwrap();
    world.now_ns = 2000;
    assert_eq!(mtime(&mut world), 2001);
    let set = proto::SetAttr {
        mtime_ns: Some(77),
        ..proto::SetAttr::nothing(ino)
    };
    world.call(Caller::Control, set).unwrap();
    world.now_ns = 3000;
    assert_eq!(mtime(&mut world), 77);
    client.detach(ino);
    world.node().idle(4000);
    assert_eq!(mtime(&mut world), 77);
}

#[test]
fn what_the_killed_wrote_is_counted() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let mut client = Client::new(&mut world);
    client
        .write(&mut world, ino, 7, b"twelve bytes", None)
        .1
        .unwrap();
    let written = |world: &mut World| world.node().report().counters[0].clone();
    let counted = ("bytes_written".to_owned(), 12);
    assert_eq!(written(&mut world), counted);
    world.node().gone(client.id, 20);
    assert_eq!(written(&mut world), counted);
    // A cell that is lent again starts anew.
    let mut next = Client::new(&mut world);
    next.write(&mut world, ino, 0, b"one", None).1.unwrap();
    assert_eq!(written(&mut world).1, 15);
}

fn lamination(world: &World, ino: Ino) -> Lamination {
    world.view.attr(ino).unwrap().unwrap().lamination
}

#[test]
fn a_file_that_is_due_is_laminated_once_it_is_closed() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let client = Client::new(&mut world);
    let ofd = open_ofd(&mut world, &client, ino);
    let op = proto::SetAttr {
        mode: Some(0o444),
        ..proto::SetAttr::nothing(ino)
    };
    world.call(client.caller(), op).unwrap();
    assert_eq!(lamination(&world, ino), Lamination::Due);
    world.open.ofds[ofd as usize].close();
    client.memory.notes().push(Note::Closed(ofd)).unwrap();
    world.cluster.idle(world.now_ns);
    assert_eq!(lamination(&world, ino), Lamination::Done);
}

/// A program attaches to a file that it creates before its description says that it has it open.
#[test]
fn a_file_is_not_laminated_before_its_maker_has_opened_it() {
    let mut world = World::new(8);
    let policy = Policy {
        laminate_on: LaminateOn::Close,
        ..Policy::default()
    };
    let root = proto::SetAttr {
        policy: Some(policy),
        ..proto::SetAttr::nothing(world.root())
    };
    world.call(Caller::Control, root).unwrap();
    let mut client = Client::new(&mut world);
    let ino = world.create(b"f").unwrap();
    client.write(&mut world, ino, 0, b"ab", None).1.unwrap();
    world.cluster.idle(world.now_ns);
    assert_eq!(lamination(&world, ino), Lamination::No);
    let ofd = open_ofd(&mut world, &client, ino);
    world.cluster.idle(world.now_ns);
    assert_eq!(lamination(&world, ino), Lamination::No);
    world.open.ofds[ofd as usize].close();
    client.detach(ino);
    client.memory.notes().push(Note::Closed(ofd)).unwrap();
    world.poll_client(client.id, world.now_ns);
    assert_eq!(lamination(&world, ino), Lamination::Done);
}
