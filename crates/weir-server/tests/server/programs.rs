//! Random programs of several clients against files that are plain byte vectors.
//!
//! After every step each file must read as the model predicts, whichever client wrote, was killed or
//! detached in any order; and at the end all space must be free.

use crate::world::{Client, Kill, World};
use proptest::prelude::*;
use weir_core::proto::{self, Caller};
use weir_core::types::Ino;

const CLIENTS: usize = 3;
const FILES: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Write {
        client: usize,
        file: usize,
        offset: u64,
        len: usize,
    },
    /// Writes that continue at the end of the client's last one, or a stride further.
    Stream {
        client: usize,
        file: usize,
        len: usize,
        stride: u64,
        count: usize,
    },
    Killed {
        client: usize,
        file: usize,
        offset: u64,
        len: usize,
        kill: Kill,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        offset: u64,
        len: u64,
    },
    Detach {
        client: usize,
        file: usize,
    },
    Notes {
        client: usize,
    },
    Publish {
        client: usize,
    },
    Replace {
        file: usize,
    },
    Idle,
}

fn step() -> impl Strategy<Value = Step> {
    let (client, file) = (0..CLIENTS, 0..FILES);
    let place = (client.clone(), file.clone(), 0u64..300, 1usize..60);
    let kill = prop_oneof![Just(Kill::Stored), Just(Kill::Pushed), Just(Kill::Begun)];
    prop_oneof![
        6 => place.clone().prop_map(|(client, file, offset, len)| Step::Write { client, file, offset, len }),
        4 => (client.clone(), file.clone(), 1usize..20, 0u64..4, 1usize..6)
            .prop_map(|(client, file, len, stride, count)| Step::Stream { client, file, len, stride, count }),
        1 => (place, kill).prop_map(|((client, file, offset, len), kill)| Step::Killed { client, file, offset, len, kill }),
        1 => (file.clone(), 0u64..400).prop_map(|(file, size)| Step::Truncate { file, size }),
        1 => (file.clone(), 0u64..300, 1u64..80).prop_map(|(file, offset, len)| Step::Punch { file, offset, len }),
        1 => (client.clone(), file.clone()).prop_map(|(client, file)| Step::Detach { client, file }),
        1 => client.clone().prop_map(|client| Step::Notes { client }),
        1 => client.prop_map(|client| Step::Publish { client }),
        1 => file.prop_map(|file| Step::Replace { file }),
        1 => Just(Step::Idle),
    ]
}

struct Run {
    world: World,
    clients: Vec<Client>,
    files: Vec<(Ino, Vec<u8>)>,
    fill: u8,
}

fn name(file: usize) -> Vec<u8> {
    format!("f{file}").into_bytes()
}

impl Run {
    fn new() -> Run {
        let mut world = World::new(20);
        let clients = (0..CLIENTS).map(|_| Client::new(&mut world)).collect();
        let files = (0..FILES)
            .map(|file| (world.create(&name(file)).unwrap(), Vec::new()))
            .collect();
        Run {
            world,
            clients,
            files,
            fill: 0,
        }
    }

    fn write(&mut self, client: usize, file: usize, offset: u64, len: usize, kill: Option<Kill>) {
        self.fill = self.fill.wrapping_add(1).max(1);
        let bytes = vec![self.fill; len];
        let (ino, model) = &mut self.files[file];
        let (done, _) = self.clients[client].write(&mut self.world, *ino, offset, &bytes, kill);
        let (at, done) = (
            usize::try_from(offset).unwrap(),
            usize::try_from(done).unwrap(),
        );
        if done > 0 {
            model.resize(model.len().max(at + done), 0);
            model[at..at + done].fill(self.fill);
        }
        if kill.is_some() {
            self.world.now_ns += 1;
            self.world
                .node()
                .gone(self.clients[client].id, self.world.now_ns);
            self.clients[client] = Client::new(&mut self.world);
        }
    }

    fn do_step(&mut self, step: &Step) {
        match *step {
            Step::Write {
                client,
                file,
                offset,
                len,
            } => self.write(client, file, offset, len, None),
            Step::Stream {
                client,
                file,
                len,
                stride,
                count,
            } => {
                let begin = self.files[file].1.len() as u64 % 150;
                let step = if stride == 0 {
                    len as u64
                } else {
                    3 * len as u64
                };
                for i in 0..count as u64 {
                    self.write(client, file, begin + i * step, len, None);
                }
            }
            Step::Killed {
                client,
                file,
                offset,
                len,
                kill,
            } => self.write(client, file, offset, len, Some(kill)),
            Step::Truncate { file, size } => {
                let ino = self.files[file].0;
                self.world
                    .call(Caller::Control, proto::Truncate { ino, size })
                    .unwrap();
                self.files[file].1.resize(usize::try_from(size).unwrap(), 0);
            }
            Step::Punch { file, offset, len } => {
                let (ino, model) = &mut self.files[file];
                let op = proto::Allocate {
                    ino: *ino,
                    offset,
                    length: len,
                    zero: true,
                    keep_size: true,
                };
                self.world.call(Caller::Control, op).unwrap();
                let to = usize::try_from(offset + len).unwrap().min(model.len());
                let from = usize::try_from(offset).unwrap().min(to);
                model[from..to].fill(0);
            }
            Step::Detach { client, file } => self.clients[client].detach(self.files[file].0),
            Step::Notes { client } => {
                self.world
                    .poll_client(self.clients[client].id, self.world.now_ns);
            }
            Step::Publish { client } => {
                let caller = self.clients[client].caller();
                self.world.call(caller, proto::HarvestRing {}).unwrap();
            }
            Step::Replace { file } => {
                let ino = self.files[file].0;
                self.clients
                    .iter_mut()
                    .for_each(|client| client.detach(ino));
                self.world.unlink(&name(file));
                self.files[file] = (self.world.create(&name(file)).unwrap(), Vec::new());
            }
            Step::Idle => self.world.node().idle(self.world.now_ns),
        }
    }

    fn check(&mut self) {
        for file in 0..FILES {
            let (ino, model) = &self.files[file];
            let size = self.world.size(&name(file));
            assert_eq!(size, model.len() as u64, "size of file {file}");
            assert_eq!(self.world.read(*ino, size), *model, "file {file}");
        }
    }

    fn end_all(mut self) {
        for file in 0..FILES {
            self.world.unlink(&name(file));
        }
        for client in &self.clients {
            self.world.node().gone(client.id, self.world.now_ns);
        }
        self.world.node().idle(self.world.now_ns);
        let (free, all) = self.world.store.free();
        assert_eq!(free, all, "space that nobody has");
        let status = self.world.call(Caller::Control, proto::Status {}).unwrap();
        assert_eq!((status.files, status.runs, status.clients), (0, 0, 0));
        assert!(status.rejected.is_empty(), "{:?}", status.rejected);
    }
}

proptest! {
    #[test]
    fn files_are_what_was_written(steps in proptest::collection::vec(step(), 1..60)) {
        let mut run = Run::new();
        for step in &steps {
            run.do_step(step);
            run.check();
        }
        run.end_all();
    }

    /// The same as above, but no reader looks (and so nothing is harvested) until the end.
    #[test]
    fn late_harvests_see_the_same(steps in proptest::collection::vec(step(), 1..60)) {
        let mut run = Run::new();
        for step in &steps {
            run.do_step(step);
        }
        run.check();
        run.end_all();
    }
}
