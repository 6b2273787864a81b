//! The memory that a million files of one extent run each cost a server: heap and shared tables
//! together, as the kernel counts them. Alone in its process.

use crate::alone::is_alone;
use crate::world::{cost, resident, Client, World, MANY};
use weir_core::proto;

fn name(i: u64) -> Vec<u8> {
    format!("checkpoint.{i:07}").into_bytes()
}

#[test]
fn a_million_files_and_their_runs() {
    if !is_alone("memory::a_million_files_and_their_runs") {
        return;
    }
    let mut world = World::sized(40_000, 1_100_000, 32, 32);
    let mut client = Client::new(&mut world);

    let before = resident();
    for i in 0..MANY {
        world.create(&name(i)).unwrap();
    }
    cost("a file", before, 300);

    let before = resident();
    for i in 0..MANY {
        let components = vec![name(i)];
        let ino = world
            .call(client.caller(), proto::Lookup { components })
            .unwrap()
            .ino;
        client.write(&mut world, ino, 0, b"x", None).1.unwrap();
        client.detach(ino);
    }
    world.node().idle(1);
    cost("a run, a file each", before, 96);
    assert_eq!(world.node().report().runs, MANY);

    let before = resident();
    for i in 0..MANY {
        world.unlink(&name(i));
    }
    world.node().idle(2);
    for i in 0..MANY {
        world.create(&name(i)).unwrap();
        world.unlink(&name(i));
    }
    world.node().idle(3);
    // As much as the million files took before, and no more.
    cost("a file made and removed", before, 1);
    let status = world.node().report();
    assert_eq!((status.files, status.runs), (0, 0));
}
