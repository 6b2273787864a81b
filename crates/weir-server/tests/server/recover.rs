//! A server that is killed and restarted in its directories: its state is kept.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::session::{options, Session};
use weir_core::extent::Source;
use weir_core::proto::{self, FsError, ServerStatus};
use weir_core::types::Ino;
use weir_server::control::Control;
use weir_server::serve;

const MIB: u64 = 1 << 20;

/// The server of the tests below: runs only when a parent asks for it.
#[test]
fn server_process() {
    let Ok(dir) = std::env::var("WEIR_TEST_SERVER") else {
        return;
    };
    let served = serve(&options(Path::new(&dir)), || println!("\nready"));
    if let Err(error) = served {
        println!("\nfailed {error}");
    }
}

/// A server in a process of its own.
struct Server<'a> {
    dir: &'a Path,
    child: Child,
}

impl Server<'_> {
    fn try_start(dir: &Path) -> Result<Server<'_>, String> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recover::server_process", "--nocapture"])
            .env("WEIR_TEST_SERVER", dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        for line in out.lines() {
            let line = line.unwrap();
            if line == "ready" {
                return Ok(Server { dir, child });
            }
            if let Some(why) = line.strip_prefix("failed ") {
                child.wait().unwrap();
                return Err(why.to_owned());
            }
        }
        child.wait().unwrap();
        panic!("the server ended without a word");
    }

    fn start(dir: &Path) -> Server<'_> {
        Server::try_start(dir).unwrap()
    }

    fn session(&self) -> Session {
        Session::connect(&options(self.dir).run_dir)
    }

    fn control(&self) -> Control {
        Control::connect(&options(self.dir).run_dir).unwrap()
    }

    fn status(&self) -> ServerStatus {
        self.control().call(proto::Status {}).unwrap()
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn stop(mut self) {
        self.control().call(proto::Stop {}).unwrap();
        self.child.wait().unwrap();
        // The directories stay: this server did not make them.
        for dir in ["run", "shm", "files"] {
            let left: Vec<_> = std::fs::read_dir(self.dir.join(dir)).unwrap().collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

fn room() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn find(session: &mut Session, path: &[&str]) -> Result<proto::Entry, FsError> {
    let components = path.iter().map(|name| name.as_bytes().to_vec()).collect();
    session.call(proto::Lookup { components })
}

/// The bytes of a file in the memory tier.
fn read(session: &mut Session, ino: Ino, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    for run in session.locate(ino).runs {
        let Source::Log { slab, pos, .. } = run.source else {
            continue;
        };
        for index in 0..run.count {
            let piece = run.piece(index);
            let from = usize::try_from(piece.offset).unwrap();
            let len = usize::try_from(piece.length).unwrap();
            let at = pos + index * run.length;
            bytes[from..from + len].copy_from_slice(&session.get(slab, at, len));
        }
    }
    bytes
}

#[test]
fn names_and_bytes_survive_a_kill() {
    let room = room();
    let server = Server::start(room.path());
    let mut client = server.session();
    let root = client.root();
    let file = client.create(b"file");
    let lent = client.segment(MIB);
    client.put(&lent, 0, b"in a cell");
    client.write(file.attached.unwrap(), 0, &lent, 0, 9);
    let mkdir = |name: &[u8]| proto::Mkdir {
        parent: root,
        name: name.to_vec(),
        mode: 0o750,
        uid: 3,
        gid: 4,
    };
    let dir = client.call(mkdir(b"dir")).unwrap();
    let inner = client.call(proto::Symlink {
        parent: dir,
        name: b"link".to_vec(),
        target: b"../file".to_vec(),
        uid: 3,
        gid: 4,
    });
    client.create(b"gone");
    let unlink = proto::Unlink {
        parent: root,
        name: b"gone".to_vec(),
    };
    client.call(unlink).unwrap();
    let rename = proto::Rename {
        parent: root,
        name: b"dir".to_vec(),
        new_parent: root,
        new_name: b"moved".to_vec(),
        flags: 0,
    };
    client.call(rename).unwrap();
    server.kill();

    for _ in 0..2 {
        // Killed right after its restart, it restarts again.
        Server::start(room.path()).kill();
    }
    let server = Server::start(room.path());
    let mut other = server.session();
    let found = find(&mut other, &["file"]).unwrap();
    assert_eq!(
        (found.ino, found.size, found.mode),
        (file.ino, 9, 0o100_644)
    );
    assert_eq!(read(&mut other, found.ino, 9), b"in a cell");
    assert_eq!(find(&mut other, &["moved"]).unwrap().mode, 0o040_750);
    assert_eq!(find(&mut other, &["dir"]).err(), Some(FsError::NotFound));
    assert_eq!(find(&mut other, &["gone"]).err(), Some(FsError::NotFound));
    let ino = inner.unwrap();
    let link = find(&mut other, &["moved", "link"]).unwrap();
    assert_eq!(link.ino, ino);
    assert_eq!(other.call(proto::Readlink { ino }).unwrap(), b"../file");
    // Numbers continue where they were: a new file is not mistaken for a removed one.
    let new = other.create(b"new");
    assert!(![file.ino, ino, dir].contains(&new.ino));
    // The earlier client lives: its segments are lent to no other client.
    let segment = other.segment(MIB);
    assert_ne!((segment.slab, segment.pos), (lent.slab, lent.pos));
    assert_eq!(server.status().clients, 2);
    server.stop();
}

/// A drain that begins after a kill removes names in their turn by these.
#[test]
fn names_that_files_have_lost_are_known_after_kills() {
    let room = room();
    let server = Server::start(room.path());
    let mut client = server.session();
    let parent = client.root();
    let [removed, renamed, replaced] =
        [b"removed", b"renamed", b"replace"].map(|name| client.create(name).ino);
    let history = |session: &mut Session| {
        let asked = proto::GetNameHistory {
            rank: 0,
            since: proto::HistoryPosition::default(),
        };
        session.call(asked).unwrap().removals
    };
    // From now on they are kept.
    assert_eq!(history(&mut client), []);
    let unlink = proto::Unlink {
        parent,
        name: b"removed".to_vec(),
    };
    client.call(unlink).unwrap();
    let rename = proto::Rename {
        parent,
        name: b"renamed".to_vec(),
        new_parent: parent,
        new_name: b"replace".to_vec(),
        flags: 0,
    };
    client.call(rename).unwrap();
    server.kill();
    let server = Server::start(room.path());
    let mut client = server.session();
    let before = history(&mut client);
    let names = before
        .iter()
        .map(|lost| (&*lost.name, lost.ino, lost.is_replaced));
    let expected = [
        (&b"removed"[..], removed, false),
        (b"renamed", renamed, false),
        (b"replace", replaced, true),
    ];
    assert!(names.eq(expected), "{before:?}");
    server.kill();
    // The second one has a journal that begins with what the first one took up.
    Server::start(room.path()).kill();
    let server = Server::start(room.path());
    let mut other = server.session();
    assert_eq!(history(&mut other), before);
    server.stop();
}

#[test]
fn freed_space_is_free_again_and_living_bytes_are_not_given_away() {
    let room = room();
    let server = Server::start(room.path());
    let mut client = server.session();
    let kept = client.create(b"kept");
    let lent = client.segment(MIB);
    client.put(&lent, 0, &[7; 4096]);
    client.write(kept.attached.unwrap(), 0, &lent, 0, 4096);
    let live = |server: &Server<'_>| -> u64 {
        let tiers = server.status().tiers;
        tiers.iter().map(|tier| tier.live_bytes).sum()
    };
    assert_eq!(live(&server), 4096);
    server.kill();
    drop(client);
    let server = Server::start(room.path());
    assert_eq!(live(&server), 4096);
    let mut client = server.session();
    let unlink = proto::Unlink {
        parent: client.root(),
        name: b"kept".to_vec(),
    };
    client.call(unlink).unwrap();
    assert_eq!(live(&server), 0);
    server.stop();
}

#[test]
fn a_journal_that_is_corrupt_is_refused_and_nothing_is_touched() {
    let room = room();
    let server = Server::start(room.path());
    let mut client = server.session();
    for i in 0..20 {
        client.create(format!("file-{i}").as_bytes());
    }
    server.kill();
    let path = options(room.path()).shm_dir.join("journal");
    let good = std::fs::read(&path).unwrap();
    let used = good.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut bad = good.clone();
    bad[used / 2] ^= 0x10;
    std::fs::write(&path, &bad).unwrap();
    let Err(why) = Server::try_start(room.path()) else {
        panic!("a corrupt journal was believed");
    };
    assert!(why.contains("bad bytes at"), "{why}");
    assert!(
        why.contains("remove") && why.contains("start again"),
        "{why}"
    );
    // A torn end is not corruption.
    let mut torn = good.clone();
    torn[used..used + 40].fill(0xA5);
    std::fs::write(&path, &torn).unwrap();
    let server = Server::start(room.path());
    let mut client = server.session();
    for i in 0..20 {
        find(&mut client, &[&format!("file-{i}")]).unwrap();
    }
    server.stop();
}
