//! A client that writes arbitrary bytes anywhere it may: the server stays up, and other clients' files
//! stay unchanged.

#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // any bits will do

use std::sync::atomic::Ordering;

use crate::world::{Client, World};
use proptest::prelude::*;
use weir_core::node::cell::State;
use weir_core::node::ring::{Note, Record};
use weir_core::proto::{self, Caller};
use weir_fakes::storage::Contradictions;
use weir_server::node::ClientMemory;

/// Words that are nearly valid as often as arbitrary.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..8,
        0u64..1024,
        Just(u64::MAX),
        Just(i64::MAX as u64),
        any::<u64>()
    ]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..8, 0u32..64, any::<u32>()]
}

#[derive(Clone, Debug)]
enum Deed {
    Record([u64; 6], u32, u32),
    Cell([u64; 9], u32, u64),
    Note(u8, u64),
    Request(Vec<u8>),
    Ask(u8, u64, u64, u64),
    Look,
}

fn deed() -> impl Strategy<Value = Deed> {
    let words = || prop::array::uniform6(word());
    prop_oneof![
        4 => (words(), small(), small()).prop_map(|(w, a, b)| Deed::Record(w, a, b)),
        4 => (prop::array::uniform9(word()), small(), word()).prop_map(|(w, a, b)| Deed::Cell(w, a, b)),
        2 => (0u8..5, word()).prop_map(|(kind, about)| Deed::Note(kind, about)),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Deed::Request),
        2 => (0u8..12, word(), word(), word()).prop_map(|(op, a, b, c)| Deed::Ask(op, a, b, c)),
        1 => Just(Deed::Look),
    ]
}

fn ask(world: &mut World, from: Caller, op: u8, a: u64, b: u64, own: weir_core::types::Ino) {
    use weir_core::types::Ino;
    let ino = if a.is_multiple_of(3) { Ino(a) } else { own };
    let (offset, length) = (a, b);
    // Invalid requests are refused; requests about its own file are allowed.
    match op {
        0 => drop(world.call(from, proto::Attach { ino })),
        1 => drop(world.call(from, proto::Truncate { ino, size: b })),
        2 => drop(world.call(
            from,
            proto::Allocate {
                ino,
                offset,
                length,
                zero: true,
                keep_size: false,
            },
        )),
        3 => drop(world.call(
            from,
            proto::Segment {
                min_bytes: a,
                want_bytes: b,
            },
        )),
        4 => drop(world.call(
            from,
            proto::Locate {
                ino,
                offset,
                length,
            },
        )),
        5 => drop(world.call(from, proto::HarvestRing {})),
        6 => drop(world.call(from, proto::OfdBatch {})),
        7 => drop(world.call(
            from,
            proto::Flock {
                ino,
                ofd: a as u32,
                operation: b as u32,
                wait: true,
            },
        )),
        8 => drop(world.call(
            from,
            proto::RecordLock {
                ino,
                ofd: None,
                kind: a as u32 % 4,
                start: a,
                end: b,
                wait: true,
            },
        )),
        9 => drop(world.call(
            from,
            proto::Readdir {
                ino: Ino(1),
                cookie: a,
                until: (!b.is_multiple_of(3)).then_some(b),
                budget_bytes: b as u32,
            },
        )),
        10 => drop(world.call(from, proto::Sync { ino })),
        _ => drop(world.call(
            from,
            proto::SetAttr {
                mtime_ns: Some(a as i64),
                ..proto::SetAttr::nothing(ino)
            },
        )),
    }
}

proptest! {
    #[test]
    fn nothing_that_a_client_writes_harms_another(deeds in prop::collection::vec(deed(), 1..80)) {
        let mut world = World::new(24);
        world.store.set_contradictions(Contradictions::Ignore);
        let good = world.create(b"good").unwrap();
        let bad = world.create(b"bad").unwrap();
        let mut honest = Client::new(&mut world);
        let mut hostile = Client::new(&mut world);
        let bytes: Vec<u8> = (0..=255).collect();
        prop_assert_eq!(honest.write(&mut world, good, 3, &bytes, None).0, 256);
        prop_assert_eq!(hostile.write(&mut world, bad, 0, &bytes[..100], None).0, 100);
        for deed in deeds {
            match deed {
                Deed::Record(w, cell, slab) => {
                    let record = Record {
                        cell, slab, offset: w[0], length: w[1], stride: w[2], count: w[3], pos: w[4], stamp: w[5],
                    };
                    let _ = hostile.memory.records().push(&record);
                }
                Deed::Cell(w, slab, committed) => {
                    let cell = &world.open.cells[hostile.cells()[0] as usize];
                    cell.replace(&State {
                        offset: w[0], length: w[1], stride: w[2], count: w[3], slab, pos: w[4],
                        stamp: w[5], mark: w[6], end: w[7], end_stamp: w[8],
                    });
                    cell.commit(committed);
                }
                Deed::Note(kind, about) => {
                    let small = about as u32;
                    // Its own cell stays attached, so that there is a cell to corrupt.
                    let own = hostile.cells().contains(&small);
                    let note = match kind {
                        0 if own => continue,
                        0 => Note::Detach(small),
                        1 => Note::Release(small),
                        2 => Note::Closed(small),
                        _ => Note::Orphan(about),
                    };
                    let _ = hostile.memory.notes().push(note);
                }
                // Valid requests are obeyed: a client may truncate any file. `Ask` sends these.
                Deed::Request(request) if postcard::from_bytes::<proto::Request>(&request).is_ok() => {}
                Deed::Request(request) => {
                    hostile.memory.channels()[0].put_request(&request, 0).unwrap();
                    hostile.memory.header().asked.store(u64::MAX, Ordering::SeqCst);
                    world.poll_client(hostile.id, world.now_ns);
                }
                Deed::Ask(op, a, b, c) => ask(&mut world, hostile.caller(), op, a, b.wrapping_add(c % 2), bad),
                Deed::Look => drop(world.call(Caller::Control, proto::Locate { ino: bad, offset: 0, length: 10 })),
            }
            let size = world.size(b"good");
            prop_assert_eq!(size, 259);
            prop_assert_eq!(&world.read(good, size)[3..], &bytes[..]);
        }
        let now = world.now_ns;
        world.node().gone(hostile.id, now);
        let more = honest.write(&mut world, good, 259, &bytes[..10], None).0;
        prop_assert_eq!(more, 10);
        prop_assert_eq!(&world.read(good, 269)[3..259], &bytes[..]);
    }
}
