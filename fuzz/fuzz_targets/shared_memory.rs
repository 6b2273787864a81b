//! Arbitrary writes of a client into its cells, rings and channel: the server stays up, and the bytes of
//! an honest client stay unchanged.
#![no_main]

use std::sync::atomic::Ordering;

use weir_core::node::cell::State;
use weir_core::node::ring::{Note, Record};
use weir_core::proto::{Caller, Locate, Request};
use weir_core::types::Ino;
use weir_fuzz::place::with_one;
use weir_fuzz::place::world::{Client, World};
use weir_fuzz::{parts, words};
use weir_server::node::ClientMemory;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    with_one(|world| {
        let good = world.create(b"good").expect("there is room");
        let bad = world.create(b"bad").expect("there is room");
        let mut honest = Client::new(world);
        let mut hostile = Client::new(world);
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(honest.write(world, good, 3, &bytes, None).0, 256);
        assert_eq!(hostile.write(world, bad, 0, &bytes[..100], None).0, 100);
        for (kind, part) in parts(data) {
            deed(world, &hostile, bad, (kind, part));
            let op = Locate {
                ino: bad,
                offset: 0,
                length: 10,
            };
            let _ = world.call(Caller::Control, op);
        }
        let now_ns = world.now_ns;
        world.node().gone(hostile.id, now_ns);
        assert_eq!(world.size(b"good"), 259);
        assert_eq!(world.read(good, 259)[3..], bytes[..]);
    });
});

fn deed(world: &mut World, hostile: &Client, bad: Ino, (kind, part): (u8, &[u8])) {
    let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
    match kind % 4 {
        0 => {
            let [at, offset, length, stride, count, pos, stamp] = words(part);
            let record = Record {
                cell: small(at & 0xFFFF_FFFF),
                slab: small(at >> 32),
                offset,
                length,
                stride,
                count,
                pos,
                stamp,
            };
            let _ = hostile.memory.records().push(&record);
        }
        1 => {
            let [slab, offset, length, stride, count, pos, stamp, mark, end, end_stamp, committed] =
                words(part);
            let own = hostile.cells().first().copied().unwrap_or(0);
            let cell = &world.open.cells[own as usize];
            cell.replace(&State {
                offset,
                length,
                stride,
                count,
                slab: small(slab),
                pos,
                stamp,
                mark,
                end,
                end_stamp,
            });
            cell.commit(committed);
        }
        2 => {
            let [kind, about] = words(part);
            let note = match kind % 4 {
                0 => Note::Detach(small(about)),
                1 => Note::Release(small(about)),
                2 => Note::Closed(small(about)),
                _ => Note::Orphan(about),
            };
            let _ = hostile.memory.notes().push(note);
        }
        _ => {
            // Requests about the honest client's file are allowed: they are legitimate here.
            let harmless = match postcard::from_bytes(part) {
                Ok(Request::Attach(op)) => op.ino == bad,
                Ok(
                    Request::Segment(_)
                    | Request::Locate(_)
                    | Request::Publish(_)
                    | Request::OfdBatch(_)
                    | Request::Sync(_),
                )
                | Err(_) => true,
                Ok(_) => false,
            };
            if !harmless {
                return;
            }
            let channel = &hostile.memory.channels()[0];
            channel.put_request(part, 0).expect("parts are short");
            hostile
                .memory
                .header()
                .asked
                .store(u64::MAX, Ordering::SeqCst);
            world.poll_client(hostile.id, world.now_ns);
        }
    }
}
