//! How long a journal that is begun anew keeps others waiting, with a million files of one run each.
//!
//! `cargo bench -p weir-server --bench snapshot` prints the longest step, the others' distribution
//! and the sum, beside the time of the same snapshot in one step. Between two steps files are made
//! and removed, so that changes come in between.

#[path = "../tests/server/world.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod world;

use std::time::{Duration, Instant};

use weir_core::journal::Head;
use weir_core::proto;
use weir_core::types::Rank;
use weir_server::node::Journal;
use weir_store::journal::JournalFile;
use world::{Client, World};

const FILES: u64 = 1_000_000;

const HEAD: Head = Head {
    rank: Rank(0),
    servers: 1,
    instance: [0; 16],
    made_ns: 1,
};

/// A journal that is always too long.
struct File(JournalFile);

impl Journal for File {
    fn append(&mut self, items: &[u8]) {
        self.0.append(items).unwrap();
    }

    fn is_long(&self) -> bool {
        true
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn begin_anew(&mut self) -> bool {
        self.0.begin_anew().unwrap();
        true
    }

    fn add(&mut self, items: &[u8]) -> bool {
        self.0.add(items).unwrap();
        true
    }

    fn take_over(&mut self) {
        self.0.take_over().unwrap();
        println!("{:>9} bytes", self.0.len_bytes());
    }

    fn tidy(&mut self) -> bool {
        self.0.free_some()
    }
}

fn name(i: u64) -> Vec<u8> {
    format!("checkpoint.{i:07}").into_bytes()
}

fn main() {
    let mut world = World::sized(40_000, 1_100_000, 32, 32);
    let mut client = Client::new(&mut world);
    for i in 0..FILES {
        world.create(&name(i)).unwrap();
        let components = vec![name(i)];
        let found = world.call(client.caller(), proto::Lookup { components });
        let ino = found.unwrap().ino;
        client.write(&mut world, ino, 0, b"x", None).1.unwrap();
        client.detach(ino);
        if i % 16 == 0 {
            world.node().idle(1);
        }
    }
    world.node().idle(1);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let begun = Instant::now();
    let file = JournalFile::create(dir.path(), HEAD, &mut |out| {
        world.node().for_each_item(&mut |item| out.add(item));
    });
    println!("{:>9.1?} in one step", begun.elapsed());
    world.node().keep_journal(Box::new(File(file.unwrap())));
    for round in 0..3 {
        let mut steps = Vec::new();
        let first = FILES + (round << 20);
        // One whole renewal, with what it leaves to be freed.
        for made in first..first + 8_000 {
            let begun = Instant::now();
            world.node().renew_journal(&|_, _| None);
            steps.push(begun.elapsed());
            world.create(&name(made)).unwrap();
            world.unlink(&name(made));
        }
        steps.sort();
        let at = |share: usize| steps[(steps.len() - 1) * share / 1000];
        let sum: Duration = steps.iter().sum();
        println!(
            "longest {:.1?}, 99.9 % {:.1?}, 99 % {:.1?}, half {:.1?}, sum {sum:.1?} of {} steps",
            at(1000),
            at(999),
            at(990),
            at(500),
            steps.len()
        );
    }
}
