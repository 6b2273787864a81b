//! A client made by hand: the minimal protocol for tests, in safe code.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::thread::futex;
use weir_core::node::block::FileBlock;
use weir_core::node::cell::{Cell, State};
use weir_core::node::channel::{Channel, REQUEST};
use weir_core::node::region::{client_layout, open_layout, ClientHeader, Hub};
use weir_core::proto::{
    self, Attached, ClientKind, Created, FsError, Hello, Lent, Located, Operation, Role, Welcome,
};
use weir_core::types::{Ino, Rank};
use weir_server::{Options, StorageDir};
use weir_store::map::{file_bytes, open_shared, Access, Mapping, Region};

const MIB: u64 = 1 << 20;

/// A small server with its files in `dir`.
pub fn options(dir: &Path) -> Options {
    Options {
        run_dir: dir.join("run"),
        shm_dir: dir.join("shm"),
        storage: vec![StorageDir {
            path: dir.join("files"),
            budget_bytes: 128 * MIB,
        }],
        memory_budget_bytes: 64 * MIB,
        warm_bytes: 4 * MIB,
        warmers: 1,
        max_files: 10_000,
        max_clients: 8,
        spin_us: 20,
        prefix: "/weir".into(),
        elevated: Vec::new(),
        sharing: weir_server::rules::Sharing::default(),
        audit: false,
        io_uring: false,
        watch_pid: None,
    }
}

/// A connected client.
pub struct Session {
    socket: Option<UnixStream>,
    welcome: Welcome,
    hub: &'static Hub,
    blocks: &'static [FileBlock],
    cells: &'static [Cell],
    header: &'static ClientHeader,
    channel: &'static Channel,
}

fn map(dir: &str, name: &str) -> Region {
    let path = format!("{dir}/{name}");
    let file = open_shared(rustix::fs::CWD, path.as_str(), Access::ReadWrite).unwrap();
    let bytes = usize::try_from(file_bytes(&file).unwrap()).unwrap();
    Mapping::new(&file, bytes).unwrap().leak()
}

impl Session {
    pub fn connect(run_dir: &Path) -> Session {
        Session::try_connect(run_dir).expect("the server takes a client")
    }

    pub fn try_connect(run_dir: &Path) -> Option<Session> {
        let mut socket = UnixStream::connect(run_dir.join("server.sock")).unwrap();
        let mut message = vec![0; 4];
        let hello = Hello {
            version: proto::VERSION,
            role: Role::Client(ClientKind::Program),
        };
        proto::encode(&hello, &mut message);
        let length = u32::try_from(message.len() - 4).unwrap();
        message[..4].copy_from_slice(&length.to_le_bytes());
        socket.write_all(&message).unwrap();
        let mut head = [0; 4];
        socket.read_exact(&mut head).ok()?;
        let mut message = vec![0; u32::from_le_bytes(head) as usize];
        socket.read_exact(&mut message).unwrap();
        let welcome: Welcome = postcard::from_bytes(&message).unwrap();
        if welcome.client == proto::NO_CLIENT {
            return None;
        }
        let open = map(&welcome.shm_dir, "open");
        let hub: &Hub = open.record(0).unwrap();
        let count = |n: &std::sync::atomic::AtomicU32| n.load(Ordering::Relaxed) as usize;
        let (blocks, cells) = (count(&hub.blocks), count(&hub.cells));
        let layout = open_layout(count(&hub.ofds), blocks, cells);
        let own = map(&welcome.shm_dir, &format!("client-{}", welcome.client.0));
        Some(Session {
            socket: Some(socket),
            hub,
            blocks: open.slice(layout.blocks, blocks).unwrap(),
            cells: open.slice(layout.cells, cells).unwrap(),
            header: own.record(0).unwrap(),
            channel: own.record(client_layout().channels).unwrap(),
            welcome,
        })
    }

    pub fn hang_up(&mut self) {
        self.socket = None;
    }

    pub fn root(&self) -> Ino {
        Ino::new(Rank(self.welcome.rank), 0, 1)
    }

    pub fn call<O: Operation>(&mut self, op: O) -> Result<O::Reply, FsError> {
        let mut bytes = Vec::new();
        proto::request(op, &mut bytes);
        self.channel.begin_sleep();
        self.channel.put_request(&bytes, 0).unwrap();
        self.header.asked.fetch_or(1, Ordering::SeqCst);
        if self.hub.ring(self.welcome.client.0) {
            self.hub.server_sleeps.store(0, Ordering::SeqCst);
            futex::wake(&self.hub.server_sleeps, futex::Flags::empty(), 1).unwrap();
        }
        while !self.channel.has_reply() {
            let _ = futex::wait(self.channel.word(), futex::Flags::empty(), REQUEST, None);
        }
        bytes.clear();
        self.channel.take_reply(&mut bytes);
        proto::reply::<O>(&bytes)
    }

    pub fn create(&mut self, name: &[u8]) -> Created {
        let op = proto::Create {
            parent: self.root(),
            name: name.to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive: true,
            attach: true,
        };
        self.call(op).unwrap()
    }

    pub fn segment(&mut self, bytes: u64) -> Lent {
        let op = proto::Segment {
            min_bytes: bytes,
            want_bytes: bytes,
        };
        self.call(op).unwrap()
    }

    pub fn locate(&mut self, ino: Ino) -> Located {
        let op = proto::Locate {
            ino,
            offset: 0,
            length: 1,
        };
        self.call(op).unwrap()
    }

    fn slab(&self, slab: u32) -> std::fs::File {
        let path = format!("{}/slab-{slab}", self.welcome.shm_dir);
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }

    /// Puts bytes into a lent segment.
    pub fn put(&self, lent: &Lent, at: u64, bytes: &[u8]) {
        self.slab(lent.slab)
            .write_all_at(bytes, lent.pos + at)
            .unwrap();
    }

    /// Bytes of a memory slab.
    pub fn get(&self, slab: u32, pos: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.slab(slab).read_exact_at(&mut bytes, pos).unwrap();
        bytes
    }

    /// Reports that `length` bytes at `at` of a segment are the file's from `offset` on.
    pub fn write(&self, attached: Attached, offset: u64, lent: &Lent, at: u64, length: u64) {
        let block = &self.blocks[attached.block as usize];
        let cell = &self.cells[attached.cell as usize];
        let committed = cell.committed.load(Ordering::Relaxed);
        let mut state = State::begin(
            offset,
            lent.slab,
            lent.pos + at,
            block.stamp(),
            &cell.state(),
            block,
        );
        state.mark = committed;
        cell.replace(&state);
        cell.commit(committed + length);
    }
}
