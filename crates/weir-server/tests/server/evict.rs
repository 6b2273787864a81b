//! Files whose storage is freed because their bytes are on the parallel file system.

use crate::mesh::Mesh;
use crate::mesh_share::{file, open, others, publish, LENGTH};
use crate::world::{Client, World};
use weir_core::extent::Run;
use weir_core::names::{Attr, Visibility};
use weir_core::proto::peer;
use weir_core::proto::{self, ByteRange, Caller, ContentVersion, CopyUse, FsError, RoomOutlook};
use weir_core::types::{Ino, Rank};

fn version_of(attr: &Attr) -> ContentVersion {
    ContentVersion {
        size: attr.size,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns.max(attr.mtime_ns),
    }
}

fn attr(world: &mut World, ino: Ino) -> Attr {
    world.call(Caller::Control, proto::GetAttr { ino }).unwrap()
}

fn evict(world: &mut World, ino: Ino, version: ContentVersion) -> bool {
    let op = proto::Evict { ino, version };
    world.call(Caller::Control, op).unwrap()
}

/// A world with a file of 200 bytes that no program has open.
fn with_file() -> (World, Client, Ino) {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let mut client = Client::new(&mut world);
    let bytes = vec![7; 200];
    client.write(&mut world, ino, 0, &bytes, None).1.unwrap();
    client.detach(ino);
    world.poll_client(client.id, world.now_ns);
    world.node().gone(client.id, world.now_ns);
    let client = Client::new(&mut world);
    (world, client, ino)
}

#[test]
fn an_evicted_file_keeps_all_but_its_bytes() {
    let (mut world, _, ino) = with_file();
    let before = attr(&mut world, ino);
    assert!(!before.evicted);
    assert!(evict(&mut world, ino, version_of(&before)));
    let now = attr(&mut world, ino);
    assert!(now.evicted && now.index_generation > before.index_generation);
    assert_eq!(version_of(&now), version_of(&before));
    assert_eq!((now.nlink, now.allocated), (before.nlink, 0));
    let locate = proto::Locate {
        ino,
        offset: 0,
        length: 200,
    };
    assert_eq!(world.call(Caller::Control, locate).unwrap().runs, []);
    // Once more: it is what it is.
    assert!(evict(&mut world, ino, version_of(&before)));
}

#[test]
fn what_was_written_since_is_not_freed() {
    let (mut world, mut client, ino) = with_file();
    let moved = version_of(&attr(&mut world, ino));
    client.write(&mut world, ino, 1, b"new", None).1.unwrap();
    assert!(!evict(&mut world, ino, moved), "a program writes it");
    client.detach(ino);
    world.poll_client(client.id, world.now_ns);
    assert!(!evict(&mut world, ino, moved), "it is another version");
    assert!(!attr(&mut world, ino).evicted);
    assert_eq!(world.read(ino, 4), b"\x07new");
    for wrong in [
        ContentVersion { size: 1, ..moved },
        ContentVersion {
            mtime_ns: 1,
            ..moved
        },
        ContentVersion {
            ctime_ns: 1,
            ..moved
        },
    ] {
        assert!(!evict(&mut world, ino, wrong));
    }
}

#[test]
fn a_file_that_is_open_is_not_evicted() {
    let (mut world, client, ino) = with_file();
    let moved = version_of(&attr(&mut world, ino));
    let first = world.call(client.caller(), proto::OfdBatch {}).unwrap();
    for flags in [0, 1, 2] {
        world.open.ofds[first as usize].open(ino.0, flags);
        assert!(!evict(&mut world, ino, moved), "flags {flags}");
        assert!(!attr(&mut world, ino).evicted);
        world.open.ofds[first as usize].close();
    }
    assert!(evict(&mut world, ino, moved));
}

/// The ranges of a file that are those of its copy.
fn copied(world: &mut World, ino: Ino) -> Vec<(u64, u64)> {
    let locate = proto::Locate {
        ino,
        offset: 0,
        length: 1 << 20,
    };
    let runs = world.call(Caller::Control, locate).unwrap().runs;
    let copied = runs.iter().filter(|run| run.is_of_copy());
    copied.map(|run| (run.offset, run.end())).collect()
}

fn copy_use(world: &mut World, ino: Ino) -> CopyUse {
    let asked = proto::GetCopyUse { ino };
    world.call(Caller::Control, asked).unwrap()
}

#[test]
fn an_evicted_file_is_written_over_its_copy() {
    let (mut world, mut client, ino) = with_file();
    let moved = version_of(&attr(&mut world, ino));
    let caller = Caller::Control;
    assert_eq!(copy_use(&mut world, ino), CopyUse::None);
    assert!(evict(&mut world, ino, moved));
    assert_eq!(copy_use(&mut world, ino), CopyUse::Whole);
    let cut = |size| proto::Truncate { ino, size };
    for size in [1, 200, 1 << 30] {
        assert_eq!(world.call(caller, cut(size)), Err(FsError::Evicted));
    }
    let begin = proto::BeginUpdate { ino };
    assert_eq!(world.call(caller, begin.clone()), Ok(()));
    assert!(!attr(&mut world, ino).evicted);
    assert_eq!(copied(&mut world, ino), [(0, 200)]);
    client.write(&mut world, ino, 50, &[8; 50], None).1.unwrap();
    assert_eq!(copied(&mut world, ino), [(0, 50), (100, 200)]);
    assert_eq!(copy_use(&mut world, ino), CopyUse::Part);
    // Bytes that were cut off read as zeros if the file grows again.
    assert_eq!(world.call(caller, cut(120)), Ok(()));
    assert_eq!(world.call(caller, cut(200)), Ok(()));
    assert_eq!(copied(&mut world, ino), [(0, 50), (100, 120)]);
    assert_eq!(world.call(caller, begin), Ok(()));
    client.detach(ino);
    world.poll_client(client.id, world.now_ns);
    assert_eq!(copied(&mut world, ino), [(0, 50), (100, 120)]);
    let moved = version_of(&attr(&mut world, ino));
    assert!(evict(&mut world, ino, moved));
    assert_eq!(copy_use(&mut world, ino), CopyUse::Whole);
    assert_eq!(world.call(caller, cut(0)), Ok(()));
    let empty = attr(&mut world, ino);
    assert!(!empty.evicted && empty.size == 0);
    assert_eq!(copy_use(&mut world, ino), CopyUse::None);
}

#[test]
fn ranges_that_were_not_written_since_are_evicted() {
    let mut world = World::new(8);
    let ino = world.create(b"f").unwrap();
    let mut client = Client::new(&mut world);
    let write = |world: &mut World, client: &mut Client, offset, length| {
        let bytes = vec![7; length];
        client.write(world, ino, offset, &bytes, None).1.unwrap();
    };
    let settle = |world: &mut World| {
        let asked = proto::SettleExtents { ino };
        world.call(Caller::Control, asked).unwrap().unwrap()
    };
    let evict = |world: &mut World, settled, ranges: &[(u64, u64)]| {
        let ranges = ranges.iter();
        let ranges = ranges
            .map(|&(start, end)| ByteRange { start, end })
            .collect();
        let asked = proto::EvictRanges {
            ino,
            settled,
            ranges,
        };
        world.call(Caller::Control, asked).unwrap()
    };
    write(&mut world, &mut client, 0, 300);
    write(&mut world, &mut client, 400, 100);
    let live = |world: &mut World| attr(world, ino).allocated;
    let earlier = settle(&mut world);
    let settled = settle(&mut world);
    assert_eq!(evict(&mut world, earlier, &[(0, 100)]), 0, "settled since");
    write(&mut world, &mut client, 150, 10);
    // With a hole, behind the end, empty, and written since.
    let wrong = [
        (200, 410),
        (450, 600),
        (5, 5),
        (9, 3),
        (100, 151),
        (159, 200),
    ];
    assert_eq!(evict(&mut world, settled, &wrong), 0);
    assert_eq!(copied(&mut world, ino), []);
    let before = live(&mut world);
    assert_eq!(
        evict(&mut world, settled, &[(0, 150), (160, 200), (400, 500)]),
        290
    );
    assert_eq!(copied(&mut world, ino), [(0, 150), (160, 200), (400, 500)]);
    assert_eq!(live(&mut world), before, "as before for programs");
    assert_eq!(evict(&mut world, settled, &[(0, 150)]), 0, "once");
    // A later write counts for more, an earlier one for less.
    write(&mut world, &mut client, 140, 30);
    assert_eq!(copied(&mut world, ino), [(0, 140), (170, 200), (400, 500)]);
    client.detach(ino);
    world.poll_client(client.id, world.now_ns);
    assert_eq!(copied(&mut world, ino), [(0, 140), (170, 200), (400, 500)]);
    // Without writers: as long as nobody writes.
    let settled = settle(&mut world);
    write(&mut world, &mut client, 1000, 1);
    assert_eq!(evict(&mut world, settled, &[(200, 300)]), 0);
    client.detach(ino);
    world.poll_client(client.id, world.now_ns);
    let settled = settle(&mut world);
    assert_eq!(evict(&mut world, settled, &[(200, 300)]), 100);
    assert_eq!(copied(&mut world, ino), [(0, 140), (170, 300), (400, 500)]);
}

/// Where a node finds the bytes of a file: ranges, and whether they are the copy's.
fn found_at(mesh: &mut Mesh, rank: Rank, ino: Ino) -> Vec<(u64, u64, bool)> {
    let attr = open(mesh, usize::from(rank.0), ino, false);
    let locate = proto::Locate {
        ino: attr.ino,
        offset: 0,
        length: LENGTH,
    };
    let runs = mesh.call(usize::from(rank.0), locate).unwrap().runs;
    let found = runs
        .iter()
        .map(|run| (run.offset, run.end(), run.is_of_copy()));
    found.collect()
}

#[test]
fn all_nodes_read_evicted_ranges_from_the_copy_and_later_writes_lie_over_it() {
    let mut mesh = Mesh::new(4, 3);
    mesh.accept_invented_bytes(0..4);
    let ino = file(&mut mesh, Visibility::ReadAfterSync);
    let nodes = others(ino);
    publish(&mut mesh, nodes[0], ino);
    for node in &nodes {
        assert_eq!(found_at(&mut mesh, *node, ino), [(0, LENGTH, false)]);
    }
    let settle = |mesh: &mut Mesh| mesh.call(0, proto::SettleExtents { ino }).unwrap();
    let evict = |mesh: &mut Mesh, settled, start, end| {
        let ranges = vec![ByteRange { start, end }];
        let op = proto::EvictRanges {
            ino,
            settled,
            ranges,
        };
        mesh.call(0, op).unwrap()
    };
    let copy_use = |mesh: &mut Mesh| mesh.call(0, proto::GetCopyUse { ino }).unwrap();
    let earlier = settle(&mut mesh).unwrap();
    let settled = settle(&mut mesh).unwrap();
    assert_eq!(evict(&mut mesh, earlier, 0, 100), 0, "settled since");
    assert_eq!(evict(&mut mesh, settled, 0, 2 * LENGTH), 0, "with a hole");
    assert_eq!(copy_use(&mut mesh), CopyUse::None);
    assert_eq!(evict(&mut mesh, settled, 0, 1024), 1024);
    assert_eq!(evict(&mut mesh, settled, 0, 1024), 0, "once");
    assert_eq!(copy_use(&mut mesh), CopyUse::Part);
    for node in &nodes {
        let found = found_at(&mut mesh, *node, ino);
        assert_eq!(found, [(0, 1024, true), (1024, LENGTH, false)]);
    }
    // Published later, and not settled.
    let put = |mesh: &mut Mesh, publish| {
        let run = Run::extent(512, 100, 1, nodes[1].0, 0, 0).unwrap();
        for home in 0..4 {
            let put = peer::Put {
                ino,
                runs: vec![run],
                publish,
                part: 0,
                cut: u64::MAX,
                ended_below: 0,
            };
            mesh.ask_peer(nodes[1], Rank(home), put).unwrap();
        }
    };
    put(&mut mesh, 1);
    assert_eq!(evict(&mut mesh, settled, 512, 612), 0);
    let settled = settle(&mut mesh).unwrap();
    let over = [(0, 512, true), (512, 612, false), (612, 1024, true)];
    assert_eq!(found_at(&mut mesh, nodes[2], ino)[..3], over);
    assert_eq!(evict(&mut mesh, settled, 512, 612), 100);
    let cut = proto::Truncate { ino, size: 600 };
    assert_eq!(mesh.call(1, cut), Ok(()));
    let cut = proto::Truncate { ino, size: LENGTH };
    assert_eq!(mesh.call(1, cut), Ok(()));
    let copied = found_at(&mut mesh, nodes[0], ino);
    assert!(copied
        .iter()
        .all(|(_, end, is_copy)| *end <= 600 && *is_copy));
}

/// A file of three other nodes' interest: one wrote it, and all have it open for reading.
#[test]
fn all_nodes_learn_that_a_file_is_evicted() {
    let mut mesh = Mesh::new(4, 3);
    mesh.accept_invented_bytes(0..4);
    let ino = file(&mut mesh, Visibility::ReadAfterSync);
    let nodes = others(ino);
    for node in &nodes {
        open(&mut mesh, usize::from(node.0), ino, false);
    }
    publish(&mut mesh, nodes[0], ino);
    let attr_at = |mesh: &mut Mesh, rank: Rank| {
        let attr = open(mesh, usize::from(rank.0), ino, false);
        mesh.call(usize::from(rank.0), proto::Lease { ino: attr.ino })
            .unwrap();
        mesh.attr(usize::from(rank.0), attr.ino).unwrap()
    };
    let before = mesh.call(0, proto::GetAttr { ino }).unwrap();
    let version = version_of(&before);
    let wrong = ContentVersion { size: 1, ..version };
    assert_eq!(
        mesh.call(
            0,
            proto::Evict {
                ino,
                version: wrong
            }
        ),
        Ok(false)
    );
    for node in &nodes {
        assert!(!attr_at(&mut mesh, *node).evicted);
    }
    assert_eq!(mesh.call(0, proto::Evict { ino, version }), Ok(true));
    for node in &nodes {
        let attr = attr_at(&mut mesh, *node);
        assert!(attr.evicted && attr.size == LENGTH, "{attr:?}");
        let locate = proto::Locate {
            ino: attr.ino,
            offset: 0,
            length: LENGTH,
        };
        let located = mesh.call(usize::from(node.0), locate).unwrap();
        assert_eq!(located.runs, []);
    }
    let cut = |size| proto::Truncate { ino, size };
    assert_eq!(mesh.call(1, cut(1)), Err(FsError::Evicted));
    assert_eq!(mesh.call(1, proto::BeginUpdate { ino }), Ok(()));
    for node in &nodes {
        assert!(!attr_at(&mut mesh, *node).evicted);
        assert_eq!(found_at(&mut mesh, *node, ino), [(0, LENGTH, true)]);
    }
    assert_eq!(mesh.call(1, cut(1)), Ok(()));
    assert_eq!(mesh.call(1, cut(0)), Ok(()));
    for node in &nodes {
        let attr = attr_at(&mut mesh, *node);
        assert!(!attr.evicted && attr.size == 0, "{attr:?}");
    }
}

#[test]
fn a_program_of_another_node_keeps_a_file_from_being_evicted() {
    let mut mesh = Mesh::new(4, 5);
    mesh.accept_invented_bytes(0..4);
    let ino = file(&mut mesh, Visibility::ReadAfterSync);
    let writer = others(ino)[1];
    let at = usize::from(writer.0);
    publish(&mut mesh, writer, ino);
    let version = version_of(&mesh.call(0, proto::GetAttr { ino }).unwrap());
    let local = open(&mut mesh, at, ino, true).ino;
    let description = mesh.open_description(at, local, true);
    assert_eq!(mesh.call(0, proto::Evict { ino, version }), Ok(false));
    description.close();
    let evicted = mesh.call(0, proto::Evict { ino, version }).unwrap();
    assert!(evicted);
    assert!(mesh.call(at, proto::GetAttr { ino }).unwrap().evicted);
}

/// A write that finds no room waits as long as the one that moves an elevated tree says that there will be some.
#[test]
fn a_write_waits_for_room_in_an_elevated_tree_alone() {
    let (mut world, client, ino) = with_file();
    let wait = proto::AwaitRoom { ino, waited_ms: 0 };
    let caller = client.caller();
    assert_eq!(world.call(caller, wait.clone()), Err(FsError::NoSpace));
    let report = |outlook| proto::ReportRelief {
        rank: 0,
        tree: 0,
        outlook,
        age_ms: 0,
        wait_ms: 0,
    };
    let room = world.call(caller, report(RoomOutlook::Working)).unwrap();
    assert_eq!(room.waiting, 0);
    assert_eq!(
        world.call(caller, wait),
        Err(FsError::NoSpace),
        "the file is in no elevated tree"
    );
    let waits = proto::ReportRelief {
        wait_ms: u32::MAX,
        ..report(RoomOutlook::Working)
    };
    let before = world.now_ns;
    assert_eq!(world.call(caller, waits).unwrap().waiting, 0);
    assert!(world.now_ns > before + 1, "nothing waits for room");
    let none = proto::ReportRelief {
        tree: 16,
        ..report(RoomOutlook::Working)
    };
    assert_eq!(world.call(caller, none), Err(FsError::Invalid));
}
