//! Writes the corpus: for each target, valid inputs, made by the program's own encoders. Run it after a
//! format has changed (`tools/fuzz seeds`); inputs that once crashed are added by hand, as `found-*`,
//! and stay.

use std::fs;
use std::path::Path;

use weir_arrays::definitions::{FileDefinitions, Variable};
use weir_arrays::element::ElementType;
use weir_arrays::log::{BlockMap, LogEntry, LogRecord};
use weir_arrays::subarray::{Range, Subarray};
use weir_core::extent::{Run, Source};
use weir_core::journal::{InodeImage, Item, LockedName, NameChange};
use weir_core::names::{FileType, Lamination, Policy};
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, LockOwner, LockWish, LogRange, What};
use weir_core::proto::{
    self, Cause, Child, ClientKind, ContentVersion, Hello, HistoryPosition, Operation, Role,
    RoomOutlook, Welcome,
};
use weir_core::roster::{InstanceId, Member, Roster, Secret};
use weir_core::types::{ClientId, Ino, Rank, SegmentId};
use weir_fabric::frame::{FrameHead, FrameKind, Greeting, GREETING_BYTES, VERSION};
use weir_fabric::ofi::packet::{self, MacKey, PacketContent};
use weir_fabric::CallId;
use weir_fuzz::Parts;
use weir_launch::hosted_server::{HostedServer, OwnServers};
use weir_launch::message::{send_up, MessageDown, MessageUp, StartFailure};

const ROOT: Ino = Ino(1);
/// The first file that server 0 creates.
const FILE: Ino = Ino::new(Rank(0), 0, 2);
/// A file of another server.
const FOREIGN: Ino = Ino::new(Rank(1), 0, 2);
/// A version of that file.
const VERSION_OF_FILE: ContentVersion = ContentVersion {
    size: 1 << 20,
    mtime_ns: 5,
    ctime_ns: 6,
};
/// The claim of one of four ranks in a strided file.
const STRIDED: Claim = Claim {
    offset: 4096,
    length: 512,
    stride: 2048,
    count: 1 << 40,
};

fn main() {
    client();
    peer();
    memory();
    fabric();
    packets();
    texts();
    extents();
    journal();
    arrays();
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&dir).expect("the corpus can be written");
    fs::write(dir.join(name), bytes).expect("the corpus can be written");
}

fn asked<O: Operation>(op: O) -> Vec<u8> {
    let mut bytes = Vec::new();
    proto::request(op, &mut bytes);
    bytes
}

fn with_kind(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], bytes].concat()
}

/// An input of parts of one kind.
fn parts_of(kind: u8, all: &[Vec<u8>]) -> Vec<u8> {
    let add = |parts: Parts, bytes: &Vec<u8>| parts.with(kind, bytes);
    all.iter().fold(Parts::default(), add).0
}

fn post<T: serde::Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("a message of ours")
}

fn run(offset: u64, count: u64) -> Run {
    Run {
        offset,
        length: 64,
        stride: if count > 1 { 256 } else { 0 },
        count,
        stamp: 1,
        source: Source::Log {
            rank: 1,
            slab: 0,
            pos: 0,
            pos_stride: if count > 1 { 64 } else { 0 },
        },
    }
}

fn create(name: &[u8]) -> proto::Create {
    proto::Create {
        parent: ROOT,
        name: name.to_vec(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        exclusive: false,
        attach: true,
    }
}

fn client() {
    let (ino, parent, name) = (FILE, ROOT, b"d".to_vec());
    let (uid, gid, mode) = (0, 0, 0o755);
    #[rustfmt::skip] // A table reads best as one.
    let all = [
        asked(create(b"a")),
        asked(proto::Mkdir { parent, name: name.clone(), mode, uid, gid }),
        asked(proto::Symlink { parent, name: b"l".to_vec(), target: b"a".to_vec(), uid, gid }),
        asked(proto::Link { ino, parent, name: b"b".to_vec() }),
        asked(proto::Rename { parent, name: b"a".to_vec(), new_parent: parent, new_name: b"c".to_vec(), flags: 0 }),
        asked(proto::SetAttr { ino, mode: Some(0o600), uid: None, gid: None, atime_ns: Some(1), mtime_ns: None,
            policy: Some(Policy::default()) }),
        asked(proto::Laminate { ino, cause: Cause::Request }),
        asked(proto::Evict { ino, version: VERSION_OF_FILE }),
        asked(proto::BeginUpdate { ino }),
        asked(proto::GetCopyUse { ino }),
        asked(proto::SettleExtents { ino }),
        asked(proto::EvictRanges {
            ino,
            settled: proto::SettledExtents {
                stamp: 3,
                generation: 4,
            },
            ranges: vec![proto::ByteRange { start: 0, end: 4096 }],
        }),
        asked(proto::AwaitRoom { ino, waited_ms: 1 << 40 }),
        asked(proto::ReportRelief { rank: 0, tree: 15, outlook: RoomOutlook::Hopeless, age_ms: 0,
            wait_ms: 1000 }),
        asked(proto::GetWriteState { ino }),
        asked(proto::GetNameHistory { rank: 1, since: HistoryPosition { renames: 1 << 40, removals: 3 } }),
        asked(proto::Truncate { ino, size: 1 << 40 }),
        asked(proto::Allocate { ino, offset: 10, length: 100, zero: true, keep_size: true }),
        asked(proto::Segment { min_bytes: 256, want_bytes: 512 }),
        asked(proto::Locate { ino, offset: 0, length: 100 }),
        asked(proto::Flock { ino, ofd: 1, operation: 2, wait: true }),
        asked(proto::RecordLock { ino, ofd: None, kind: 1, start: 0, end: u64::MAX, wait: true }),
        asked(proto::TestLock { ino, ofd: Some(1), kind: 1, start: 5, end: 6 }),
        asked(proto::Readdir { ino: parent, cookie: 0, until: Some(0), budget_bytes: 4096 }),
        asked(proto::Lookup { components: vec![b"d".to_vec(), b"x".to_vec()] }),
        asked(proto::Token { ino: FOREIGN, needed: Claim::range(4096, 512), wished: STRIDED }),
        asked(proto::Statfs {}),
        asked(proto::Status {}),
        asked(proto::OfdBatch {}),
        asked(proto::Unlink { parent, name: b"c".to_vec() }),
        asked(proto::Rmdir { parent, name }),
    ];
    for (i, request) in all.iter().enumerate() {
        write(
            "client_message",
            &format!("request-{i:02}"),
            &with_kind(0, request),
        );
    }
    write("client_request", "all", &parts_of(0, &all));
    write("client_request", "tool", &parts_of(1, &all));
    for (i, bytes) in all.iter().enumerate() {
        let one = Parts::default().with(0, &all[0]).with(0, bytes);
        write("client_request", &format!("one-{i:02}"), &one.0);
    }
    let hello = Hello {
        version: proto::VERSION,
        role: Role::Client(ClientKind::Program),
    };
    write("client_message", "hello", &with_kind(1, &post(&hello)));
    let welcome = Welcome {
        version: proto::VERSION,
        client: ClientId(3),
        rank: 0,
        servers: 2,
        shm_dir: "/dev/shm/weir".into(),
        storage_dirs: vec!["/tmp".into()],
        prefix: "/weir".into(),
        fences: false,
        spin_us: 20,
    };
    write("client_message", "welcome", &with_kind(2, &post(&welcome)));
    let located = proto::Located {
        generation: 1,
        known_from: 0,
        known_to: u64::MAX,
        runs: vec![run(0, 5), run(4096, 1)],
    };
    write(
        "client_message",
        "located",
        &with_kind(5, &post(&Ok::<_, proto::FsError>(located))),
    );
    let refused = post(&Err::<(), _>(proto::FsError::NoSpace));
    write("client_message", "refused", &with_kind(3, &refused));
}

#[rustfmt::skip] // A table reads best as one.
fn peer_requests() -> Vec<Vec<u8>> {
    let (ino, dir, name) = (FILE, ROOT, b"a".to_vec());
    let set = proto::SetAttr {
        ino,
        mode: None,
        uid: None,
        gid: None,
        atime_ns: None,
        mtime_ns: Some(7),
        policy: None,
    };
    let range = LogRange {
        rank: 0,
        slab: 0,
        pos: 0,
        len: 64,
    };
    let wish = LockWish {
        whole: false,
        owner: LockOwner::Client(1),
        kind: 1,
        start: 0,
        end: 10,
    };
    let child = Child {
        ino: FOREIGN,
        kind: FileType::File,
    };
    let make = |name: &[u8], what| peer::Make {
        dir,
        name: name.to_vec(),
        what,
        mode: 0o755,
        uid: 0,
        gid: 0,
        exclusive: true,
        write: true,
        path: Some(b"/d/a".to_vec()),
    };
    vec![
        peer::request(make(b"a", What::File)),
        peer::request(make(b"d", What::Dir)),
        peer::request(make(b"l", What::Symlink(b"a".to_vec()))),
        peer::request(peer::Find { dir, name: name.clone() }),
        peer::request(peer::FindToKeep { dir, name: name.clone() }),
        peer::request(peer::DropEntry { dir, name: name.clone() }),
        peer::request(peer::Passage { dir }),
        peer::request(peer::PlaceEntries { dir, query: peer::PlacementQuery::Split }),
        peer::request(peer::SplitDir { dir }),
        peer::request(peer::Enrol { dir }),
        peer::request(peer::Enrolled { dir }),
        peer::request(peer::Part { dir }),
        peer::request(peer::List { dir, cookie: 0, until: Some(0), budget_bytes: 4096 }),
        peer::request(peer::Link { ino: FOREIGN, dir, name: b"b".to_vec() }),
        peer::request(peer::Relink { ino, add: true }),
        peer::request(peer::LockName { dir, name: name.clone(), token: 1,
            to: Some(peer::Destination { home: Rank(1), dir, name: name.clone() }), swaps: true }),
        peer::request(peer::Leave { dir, name: name.clone(), leader: 2, token: 1, was: child, then: Some(child) }),
        peer::request(peer::EndMove { leader: 2, token: 1, over: false }),
        peer::request(peer::Assign { dir, name: name.clone(), token: 1, was: None,
            from: Some(peer::Origin { home: Rank(1), dir, name: name.clone(), then: Some(child) }), to: None,
            child: Some(child) }),
        peer::request(peer::UnlockName { dir, name: name.clone(), token: 1, left: peer::Left::Later }),
        peer::request(peer::Moved { ino, parent: dir, name: name.clone(), token: 1 }),
        peer::request(peer::Stayed { ino, parent: dir, name: name.clone(), leader: 2, token: 1, over: true }),
        peer::request(peer::LockMoves { token: 2 }),
        peer::request(peer::UnlockMoves { token: 2 }),
        peer::request(peer::Whereabouts { ino }),
        peer::request(peer::GetAttr { ino, keep: false }),
        peer::request(peer::SetAttr { set }),
        peer::request(peer::Hold { ino, write: true }),
        peer::request(peer::Grant { ino, needed: Claim::range(4096, 512), wished: STRIDED, anew: true }),
        peer::request(peer::Revoke { ino }),
        peer::request(peer::Seal { ino }),
        peer::request(peer::GetWriteState { ino }),
        peer::request(peer::GetNameHistory { since: HistoryPosition { renames: 7, removals: 1 << 20 } }),
        peer::request(peer::Writers { ino }),
        peer::request(peer::Laminate { ino, cause: Cause::Close }),
        peer::request(peer::Mark { ino, policy: Policy::default(), lamination: Lamination::Due, evicted: true,
            unnamed: true }),
        peer::request(peer::Evict { ino, version: VERSION_OF_FILE }),
        peer::request(peer::BeginUpdate { ino }),
        peer::request(peer::SettleExtents { ino }),
        peer::request(peer::EvictRanges {
            ino,
            settled: proto::SettledExtents {
                stamp: 3,
                generation: 0,
            },
            ranges: vec![proto::ByteRange { start: 0, end: 4096 }],
        }),
        peer::request(peer::SettleSlices { ino, number: 9 }),
        peer::request(peer::LayCopy {
            ino,
            settled: Some(9),
            ranges: vec![proto::ByteRange { start: 0, end: 4096 }],
        }),
        peer::request(peer::HasCopyRuns { ino }),
        peer::request(peer::GetCopyUse { ino }),
        peer::request(peer::ReportRelief { tree: 0, outlook: RoomOutlook::Failing { patience_ms: 1 << 20 }, age_ms: 5 }),
        peer::request(peer::Forget { ino }),
        peer::request(peer::Lease { ino }),
        peer::request(peer::Put { ino, runs: vec![run(0, 5), run(1 << 30, 1)], publish: 9, part: 1, cut: 1 << 40,
            ended_below: 9 }),
        peer::request(peer::Begin { held: vec![(ino, true)], renames_since: 1 << 33 }),
        peer::request(peer::Renew {}),
        peer::request(peer::Published { ino, size: 1 << 31, mtime_ns: 5, stored: 384, publishes: vec![(7, 384)],
            ended: false }),
        peer::request(peer::Runs { ino, from: 0, to: 1 << 31 }),
        peer::request(peer::Fetch { ranges: vec![range] }),
        peer::request(peer::Erase { ino, from: 0, to: 64 }),
        peer::request(peer::Truncate { ino, size: 100 }),
        peer::request(peer::Cut { ino, size: 10, number: 3 }),
        peer::request(peer::Recall { ino: FOREIGN }),
        peer::request(peer::Publish {
            ino,
            is_public: true,
        }),
        peer::request(peer::Freed { ranges: vec![range] }),
        peer::request(peer::Lock { ino, wish, number: 5 }),
        peer::request(peer::TestLock { ino, wish }),
        peer::request(peer::DeadOwners { ino }),
        peer::request(peer::DropLocks { ino, owners: vec![wish.owner] }),
        peer::request(peer::Release { inos: vec![ino] }),
        peer::request(peer::Settled { dir }),
        peer::request(peer::Retire { dir }),
        peer::request(peer::Unlink { dir, name: name.clone() }),
        peer::request(peer::Rmdir { dir, name: b"d".to_vec() }),
        peer::request(peer::Bury { dir }),
        peer::request(peer::Readlink { ino }),
        peer::request(peer::Status {}),
        peer::request(peer::Relay { news: peer::News::Recall(peer::Recall { ino: FOREIGN }),
            below: vec![Rank(1), Rank(2)] }),
    ]
}

fn peer() {
    let all = peer_requests();
    for (i, request) in all.iter().enumerate() {
        write(
            "peer_message",
            &format!("request-{i:02}"),
            &with_kind(0, request),
        );
        let made = Parts::default().with(0, &all[0]).with(4, request);
        write("peer_request", &format!("one-{i:02}"), &made.0);
    }
    // From rank 1, which is kind 0.
    write("peer_request", "all", &parts_of(0, &all));
    let refused = post(&Err::<(), _>(proto::FsError::WouldBlock));
    let nothing = post(&Ok::<(), proto::FsError>(()));
    let runs = post(&Ok::<_, proto::FsError>(vec![run(0, 5)]));
    write("peer_message", "runs", &with_kind(8, &runs));
    write("peer_message", "refused", &with_kind(7, &refused));
    let (ino, size) = (FILE, 1 << 62);
    let longer = asked(proto::Truncate { ino, size });
    let (ino, offset, length) = (FOREIGN, 0, 10);
    let locate = asked(proto::Locate {
        ino,
        offset,
        length,
    });
    // The answers of other servers to a client's create and lookup here.
    let tool = Parts::default()
        .with(3, &nothing)
        .with(3, &runs)
        .with(3, &refused)
        .with(1, &asked(create(b"a")))
        .with(1, &asked(create(b"b")))
        .with(3, &runs)
        .with(1, &locate)
        .with(1, &longer)
        .with(1, &asked(proto::Truncate { ino: FILE, size: 0 }))
        .with(2, b"");
    write("peer_request", "tool", &tool.0);
}

fn memory() {
    let words = |words: &[u64]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    // The cell of the second client is 1; its segment begins after the first one's.
    let record = words(&[1, 100, 10, 0, 1, 512, 1]);
    let cell = words(&[0, 0, 10, 20, 3, 512, 2, 100, 0, 0, 150]);
    let (note, request) = (words(&[0, 1]), asked(create(b"x")));
    let all = Parts::default()
        .with(0, &record)
        .with(1, &cell)
        .with(2, &note)
        .with(3, &request);
    write("shared_memory", "all", &all.0);
    write(
        "shared_memory",
        "record",
        &Parts::default().with(0, &record).0,
    );
    write("shared_memory", "cell", &Parts::default().with(1, &cell).0);
}

fn fabric() {
    let head = |kind, body, bulk| {
        FrameHead {
            kind,
            call: CallId(1),
            body,
            bulk,
        }
        .encode()
    };
    let greeting = Greeting {
        version: VERSION,
        instance: InstanceId([9; 16]),
        from: Rank(1),
        to: Rank(0),
        incarnation: 5,
        nonce: [3; 32],
        plane: 0,
    };
    let hello = [
        &head(FrameKind::Hello, GREETING_BYTES, 0)[..],
        &greeting.encode(),
    ]
    .concat();
    let body = [&0_u64.to_le_bytes()[..], b"hello"].concat();
    let request = [&head(FrameKind::Request, body.len(), 3)[..], &body, b"xyz"].concat();
    let reply = [&head(FrameKind::Reply, 2, 0)[..], b"ok"].concat();
    for (name, frame) in [("hello", &hello), ("request", &request), ("reply", &reply)] {
        write("fabric_frame", name, &with_kind(6, frame));
    }
    write(
        "fabric_frame",
        "several",
        &with_kind(3, &[&hello[..], &request, &reply].concat()),
    );
    // Two pieces: slab, length, position.
    let piece = |slab: u32, len: u32, pos: u64| {
        [
            &slab.to_le_bytes()[..],
            &len.to_le_bytes(),
            &pos.to_le_bytes(),
        ]
        .concat()
    };
    let pieces = [piece(0, 100, 5), piece(1, 8, 4088)].concat();
    let read = [&head(FrameKind::Read, pieces.len(), 0)[..], &pieces].concat();
    write("fabric_frame", "read", &with_kind(6, &read));
    write("fabric_stranger", "read", &with_kind(3, &read));
    write("fabric_stranger", "hello", &with_kind(0, &hello));
    write("fabric_stranger", "request", &with_kind(1, &request));
    write(
        "fabric_stranger",
        "twice",
        &with_kind(5, &[&request[..], &request].concat()),
    );
}

/// Packets of the libfabric transport, whole but without their MAC, which the target adds.
fn packets() {
    let key = MacKey::derive(&Secret::new([1; 32]));
    let head = packet::PacketHead {
        instance: InstanceId([7; 16]),
        from: Rank(2),
        to: Rank(1),
        from_life: 3,
        to_life: 4,
        line: 5,
    };
    let body = packet::PacketPart::Inline(vec![1, 2, 3]);
    let bulk = packet::PacketPart::Offered(packet::OfferedMemory {
        len: 1 << 20,
        key: 6,
        address: 7,
        hash: key.mac(b"bytes"),
    });
    #[rustfmt::skip] // A table reads best as one.
    let words = [
        ("hello", PacketContent::Hello(vec![9; 16])),
        ("welcome", PacketContent::Welcome),
        ("redial", PacketContent::Redial),
        ("request", PacketContent::Request { call: CallId(8), ended_below: 7, body: body.clone(),
            bulk: bulk.clone() }),
        ("reply", PacketContent::Reply { call: CallId(8), body, bulk }),
        ("ping", PacketContent::Ping { number: 1, sent: 2 }),
        ("pong", PacketContent::Pong { number: 1, received: 2, replied: 1 }),
        ("got", PacketContent::Got(CallId(8))),
        ("pull", PacketContent::Pull { ticket: 1, key: 2, offset: 3, len: 4 }),
        ("piece", PacketContent::Piece { ticket: 1, offset: 3, bytes: vec![4; 9] }),
    ];
    for (name, word) in words {
        let sealed = packet::seal(&key, &head, &word);
        write("fabric_packet", name, &with_kind(0, &sealed));
        let said = &sealed[..sealed.len() - 32];
        write(
            "fabric_packet",
            &format!("{name}-unsigned"),
            &with_kind(1, said),
        );
    }
}

fn texts() {
    let member = |rank: u16| Member {
        rank: Rank(rank),
        host: format!("n{rank}"),
        address: ([10, 0, 0, 1], 4000 + rank).into(),
        endpoint: None,
        is_mover: rank == 1,
    };
    let id = InstanceId([7; 16]);
    let roster = Roster::new(id, vec![member(0), member(1)]).expect("a valid roster");
    let json = serde_json::to_string(&roster).expect("a roster has a text");
    write("roster", "binary", &with_kind(0, &post(&roster)));
    write("roster", "json", &with_kind(1, json.as_bytes()));
    write("roster", "id", &with_kind(1, id.to_string().as_bytes()));
    write(
        "roster",
        "list",
        &with_kind(2, b"a,b[1-3,07]-ib,c[01-02][3]"),
    );
    write(
        "roster",
        "file",
        &with_kind(3, b"a slots=4\nb:2 # c\n\nd[1-2]\n"),
    );

    let environment: weir_config::Environment = [("HOME", "/home/u")].into_iter().collect();
    let defaults = weir_config::Loaded::from_toml("", &environment).expect("defaults are valid");
    let toml = defaults.toml();
    write("config", "all", toml.as_bytes());
    for (i, section) in toml.split("\n\n").enumerate() {
        write("config", &format!("section-{i}"), section.as_bytes());
    }

    for (name, path) in [
        ("plain", "/weir\n/weir/d/x\nd/y"),
        ("dots", "/weir/a\n/weir/./a/../a//d/../f/\n../.."),
        ("links", "/weir\n/weir/d/l/x\n/weir/d/../l/"),
        ("outside", "/weir\n/weir/../etc/passwd\n/"),
        ("below", "/weir\n/weir/bd/../bl/bf\n/pfs/d"),
        ("elevated", "/weir\n/pfs/d/../../weir/l\n/pfs"),
    ] {
        write("path", name, path.as_bytes());
    }

    let server = HostedServer::new(1, "n1".into());
    let failed = StartFailure {
        host: "n1".into(),
        rank: Some(1),
        why: "no".into(),
        lives: None,
        dead: false,
    };
    let ups = [
        MessageUp::Bound(vec![member(1)]),
        MessageUp::Failed(failed),
        MessageUp::Cleared(vec![(server.clone(), Err("no answer".into()))]),
        MessageUp::Lost {
            server,
            why: "killed".into(),
        },
        MessageUp::Stop,
        MessageUp::Ask(3),
    ];
    let mut all = vec![0];
    for (number, up) in (1..).zip(&ups) {
        all.extend(b"noise\n");
        send_up(&mut all, number, up).expect("into memory");
    }
    all.extend(b"weir-agent 7+\"st\nweir-agent 8.\"stop\"\nweir-agent 7.op\"\n");
    write("launch_message", "up", &all);
    let downs = [
        MessageDown::Roster(roster),
        MessageDown::Stop,
        MessageDown::Work(weir_launch::workers::WorkerInvitation {
            program: weir_launch::workers::WorkerProgram::Bench,
            address: "10.0.0.1:4000".parse().unwrap(),
            run: weir_core::roster::InstanceId([3; 16]),
            secret: weir_core::roster::Secret::new([4; 32]),
        }),
        MessageDown::Look(1),
        MessageDown::Answer(1, vec![]),
        MessageDown::Farewell(None),
    ];
    let mut all = vec![1];
    for down in &downs {
        all.extend(line(down));
    }
    let charge = weir_launch::message::AgentAssignment {
        version: "0.1.0".into(),
        instance: id,
        secret: weir_core::roster::Secret::new([1; 32]),
        name: "weir".into(),
        job: weir_launch::message::Job::default(),
        servers: 2,
        settings: toml,
        assigned: vec![HostedServer::new(0, "n0".into())],
        own: OwnServers::First,
        reach: weir_launch::reach::StartMethod::Nowhere,
        drain_to: Some("/pfs/run".into()),
        task: weir_launch::message::AgentTask::Recover {
            missing: vec![member(1)],
        },
        deadline_ms: 1000,
        root: true,
        lifeline: true,
        heed_signals: false,
    };
    all.extend(line(&MessageDown::Charge(Box::new(charge))));
    write("launch_message", "down", &all);
}

/// A message as a line of JSON.
fn line<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let text = serde_json::to_string(message).expect("a message of ours");
    format!("{text}\n").into_bytes()
}

/// Logs of array writes: bodies of records, a whole file of them, the header of a netCDF file.
fn arrays() {
    let variable = Variable {
        name: "v".into(),
        external: ElementType::F32,
        shape: vec![0, 8],
        is_record: true,
        begin: 64,
        fill: vec![0; 4],
    };
    let definitions = FileDefinitions {
        is_cdf5: true,
        record_bytes: 32,
        variables: vec![variable],
    };
    let put = |record, x, data| {
        LogRecord::Put(LogEntry {
            variable: 0,
            memory: ElementType::F64,
            part: Subarray([Range::new(record, 1), Range::new(x, 4)].into()),
            data,
            stamp_ns: 7,
        })
    };
    let opened = LogRecord::Opened {
        path: b"/weir/a.nc".to_vec(),
        inode: 9,
        rank: 1,
        processes: 4,
    };
    let records = [
        opened,
        LogRecord::Defined(definitions),
        put(0, 0, 0),
        put(1, 4, 32),
        put(1, 2, 64),
        LogRecord::Flushed(0),
        put(2, 0, 96),
    ];
    let bodies: Vec<Vec<u8>> = records.iter().map(post).collect();
    write("array_log", "records", &parts_of(2, &bodies));
    let map = BlockMap {
        writers: 1,
        block_bytes: 1 << 20,
    };
    let mut file = map.head().to_vec();
    for record in &records {
        record.append(&mut file);
    }
    write("array_log", "file", &with_kind(1, &file));
    // CDF-1 with one dimension and one variable of shorts.
    let mut header = b"CDF\x01".to_vec();
    let numbers = |header: &mut Vec<u8>, numbers: &[u32]| {
        header.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    };
    numbers(&mut header, &[0, 10, 1, 1]);
    header.extend(b"x\0\0\0");
    numbers(&mut header, &[3, 0, 0, 11, 1, 1]);
    header.extend(b"v\0\0\0");
    numbers(&mut header, &[1, 0, 0, 0, 3, 8, 80]);
    write("array_log", "header", &with_kind(0, &header));
}

fn extents() {
    let small = |bytes: &[u8]| (1, bytes.to_vec());
    let any = |run: Run| (0, post(&run));
    #[rustfmt::skip] // A table reads best as one.
    let cases = [
        ("wire", vec![any(run(0, 5)), any(run(10, 1)), any(run(1 << 40, 1 << 20))]),
        ("over", vec![small(&[0, 63, 0, 0, 0, 1]), small(&[2, 7, 9, 15, 4, 1])]),
        ("hole", vec![small(&[0, 15, 20, 15, 0, 1]), small(&[3, 60, 0, 3, 0, 0])]),
        ("weave", vec![small(&[0, 3, 4, 15, 0, 1]), small(&[1, 3, 4, 15, 9, 1]), small(&[0, 5, 6, 9, 0, 1])]),
    ];
    for (name, case) in cases {
        let parts = case.iter().fold(Parts::default(), |parts, (kind, bytes)| {
            parts.with(*kind, bytes)
        });
        write("extent_runs", name, &parts.0);
    }
}

fn journal() {
    let client = ClientId(1);
    let inode = InodeImage {
        ino: FILE,
        home: FILE,
        mode: 0o100_644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 64,
        atime_ns: 1,
        mtime_ns: 2,
        ctime_ns: 3,
        btime_ns: 3,
        parent: ROOT,
    };
    let entry = Item::Entry {
        dir: ROOT,
        name: b"a",
        child: FILE,
        kind: FileType::File,
        sequence: 1,
    };
    let lent = Item::SegmentLent {
        client,
        segment: SegmentId(1),
        slab: 0,
        pos: 0,
        len: 1 << 20,
    };
    let attached = Item::CellAttached {
        cell: 1,
        client,
        ino: FILE,
        block: 1,
    };
    let child = Child {
        ino: FOREIGN,
        kind: FileType::Dir,
    };
    let locked = LockedName {
        leader: Rank(1),
        token: 7,
        child,
        to: Some(peer::Destination {
            home: Rank(1),
            dir: ROOT,
            name: b"b".to_vec(),
        }),
    };
    let change = NameChange {
        dir: ROOT,
        name: b"b".to_vec(),
        was: None,
        child: Some(child),
        from: Some(peer::Origin {
            home: Rank(1),
            dir: ROOT,
            name: b"a".to_vec(),
            then: None,
        }),
        done: true,
    };
    let placed = peer::Placement::Spread(peer::FirstServer {
        rank: Rank(1),
        names: vec![7, 9],
    });
    #[rustfmt::skip] // A table reads best as one.
    let items = [
        Item::Inode(inode),
        entry,
        Item::Target(FILE, b"to"),
        Item::ClientCame { client, pid: 7 },
        lent,
        attached,
        Item::IndexRuns(FILE, vec![run(0, 5), run(4096, 1)]),
        Item::IndexSettled(FILE),
        Item::CellDetached(1),
        Item::SegmentReturned(SegmentId(1)),
        Item::ClientGone(client),
        Item::IndexCleared(FILE),
        Item::EntryGone { dir: ROOT, name: b"a" },
        Item::InodeGone(FILE),
        Item::NameLocked(ROOT, b"a", locked),
        Item::NameUnlocked(ROOT, b"a"),
        Item::NameChanging(Rank(1), 7, change),
        Item::NameChanged(Rank(1), 7),
        Item::RenameCalledOff(Rank(1), 8),
        Item::CalledOffForgotten(Rank(1)),
        Item::Placed(ROOT, placed),
        Item::HasAll(ROOT, true),
    ];
    let frames: Vec<Vec<u8>> = items.iter().map(post).collect();
    write("journal", "frames", &with_kind(1, &parts_of(0, &frames)));
    let one = items[..7].iter().flat_map(post).collect::<Vec<u8>>();
    write(
        "journal",
        "one-frame",
        &with_kind(0xFF, &Parts::default().with(0, &one).0),
    );
    let head = weir_core::journal::Head {
        rank: Rank(0),
        servers: 1,
        instance: [0; 16],
        made_ns: 1,
    };
    write("journal", "head", &with_kind(0, &head.encode()));
}
