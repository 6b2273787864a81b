//! The memory that a million extent runs of one file cost a server. Alone in its process.

use crate::alone::is_alone;
use crate::world::{cost, resident, Client, World, MANY};
use weir_core::proto;

#[test]
fn a_million_runs_of_one_file() {
    if !is_alone("memory_runs::a_million_runs_of_one_file") {
        return;
    }
    let mut world = World::sized(40_000, 100, 32, 32);
    let mut client = Client::new(&mut world);
    let ino = world.create(b"random").unwrap();
    let before = resident();
    let mut offset = 0;
    for i in 0..MANY {
        // Gaps in no progression, so that no two writes form one run.
        offset += 2 + (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60);
        client.write(&mut world, ino, offset, b"x", None).1.unwrap();
        if i.is_multiple_of(500) {
            world.poll_client(client.id, 4);
            world.call(client.caller(), proto::HarvestRing {}).unwrap();
        }
    }
    let runs = world.node().report().runs;
    assert!(runs > MANY * 9 / 10, "{runs} runs");
    cost("a run of one file", before, 96);
}
