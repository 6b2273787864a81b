//! A whole server with its threads: clients that connect, work and are killed, and the leftovers when it
//! stops.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use crate::session::{options, Session};
use weir_cluster::guard::wait_until;
use weir_core::extent::Source;
use weir_core::proto::{self, FsError, ServerStatus};
use weir_core::types::Ino;
use weir_server::control::{Control, ControlError};
use weir_server::{serve, Options, ServerError};

const MIB: u64 = 1 << 20;

struct Server {
    dir: tempfile::TempDir,
    options: Options,
    thread: Option<JoinHandle<Result<ServerStatus, ServerError>>>,
}

impl Server {
    fn start() -> Server {
        Server::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut Options)) -> Server {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut options = options(dir.path());
        change(&mut options);
        let (told, ready) = channel();
        let thread = std::thread::Builder::new().name("service".into()).spawn({
            let options = options.clone();
            move || serve(&options, || told.send(()).unwrap())
        });
        let thread = thread.unwrap();
        assert!(ready.recv().is_ok(), "{:?}", thread.join().unwrap());
        Server {
            dir,
            options,
            thread: Some(thread),
        }
    }

    fn control(&self) -> Control {
        Control::connect(&self.options.run_dir).unwrap()
    }

    fn status(&self) -> ServerStatus {
        self.control().call(proto::Status {}).unwrap()
    }

    fn stop(mut self) -> ServerStatus {
        self.control().call(proto::Stop {}).unwrap();
        let status = self.thread.take().unwrap().join().unwrap().unwrap();
        let left: Vec<PathBuf> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        status
    }
}

#[test]
fn a_tool_is_answered_and_the_stop_leaves_nothing() {
    let server = Server::start();
    let mut control = server.control();
    assert_eq!(control.welcome().prefix, "/weir");
    control.call(proto::Ping {}).unwrap();
    let root = control.call(proto::Lookup { components: vec![] }).unwrap();
    assert_eq!(root.mode, 0o040_755);
    let refused = control.call(proto::Attach { ino: root.ino });
    assert!(matches!(
        refused,
        Err(ControlError::Refused(FsError::NotPermitted))
    ));
    let status = server.stop();
    assert_eq!((status.clients, status.files, status.servers), (0, 0, 1));
    assert_eq!(status.tiers.len(), 2);
}

#[test]
fn a_stop_is_never_slept_over() {
    // A request that came between the service thread's last look and its sleep was answered, and the
    // thread slept on. The case occurs if another tool has sent a request a moment before, and sends no
    // more.
    for round in 0..400_u32 {
        let mut server = Server::start_with(|options| options.spin_us = 0);
        let (mut asking, mut control) = (server.control(), server.control());
        let asker = std::thread::spawn(move || {
            for _ in 0..round % 8 {
                let _ = asking.call(proto::Status {});
            }
            asking
        });
        control.call(proto::Stop {}).unwrap();
        let thread = server.thread.take().unwrap();
        wait_until("the server has stopped", || thread.is_finished());
        thread.join().unwrap().unwrap();
        drop(asker.join().unwrap());
    }
}

#[test]
fn a_second_server_in_the_same_place_does_not_start() {
    let server = Server::start();
    let second = serve(&server.options, || panic!("it must not become ready"));
    assert!(second.is_err());
    server
        .control()
        .call(proto::Ping {})
        .expect("the first one goes on");
}

#[test]
fn what_one_client_writes_another_finds() {
    let server = Server::start();
    let mut a = Session::connect(&server.options.run_dir);
    let created = a.create(b"file");
    let attached = created.attached.unwrap();
    let lent = a.segment(MIB);
    a.put(&lent, 0, b"hello");
    a.write(attached, 0, &lent, 0, 5);
    let mut b = Session::connect(&server.options.run_dir);
    let located = b.locate(created.ino);
    assert_eq!(located.runs.len(), 1);
    let run = located.runs[0];
    assert_eq!((run.offset, run.length, run.count), (0, 5, 1));
    let Source::Log { slab, pos, .. } = run.source else {
        panic!("a hole");
    };
    assert_eq!(b.get(slab, pos, 5), b"hello");
    let entry = server
        .control()
        .call(proto::Lookup {
            components: vec![b"file".to_vec()],
        })
        .unwrap();
    assert_eq!((entry.ino, entry.size), (created.ino, 5));
    drop((a, b));
    assert_eq!(server.stop().clients_ever, 2);
}

/// The other process of the tests below: runs only when a parent asks for it.
#[test]
fn child_process() {
    let Ok(run_dir) = std::env::var("WEIR_TEST_CHILD") else {
        return;
    };
    let mut session = Session::connect(Path::new(&run_dir));
    let created = session.create(b"of-the-child");
    let lent = session.segment(MIB);
    session.put(&lent, 0, b"written");
    session.write(created.attached.unwrap(), 0, &lent, 0, 7);
    if std::env::var("WEIR_TEST_HANG_UP").is_ok() {
        session.hang_up();
    }
    println!("\nready {}", created.ino.0);
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn child(server: &Server, hang_up: bool) -> (Child, Ino) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "runtime::child_process", "--nocapture"])
        .env("WEIR_TEST_CHILD", &server.options.run_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if hang_up {
        command.env("WEIR_TEST_HANG_UP", "1");
    }
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let ino = out.find_map(|line| line.unwrap().strip_prefix("ready ")?.parse().ok());
    (child, Ino(ino.unwrap()))
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_client_loses_nothing_and_keeps_nothing() {
    let server = Server::start();
    let (child, ino) = child(&server, false);
    let mut me = Session::connect(&server.options.run_dir);
    assert_eq!(server.status().clients, 2);
    kill(child);
    wait_until("the child's end", || server.status().clients == 1);
    let located = me.locate(ino);
    assert_eq!(located.runs.len(), 1);
    assert_eq!(located.runs[0].length, 7);
    me.call(proto::Unlink {
        parent: me.root(),
        name: b"of-the-child".to_vec(),
    })
    .unwrap();
    let status = server.status();
    let taken: u64 = status
        .tiers
        .iter()
        .map(|tier| tier.lent_bytes + tier.live_bytes)
        .sum();
    assert_eq!((status.files, status.runs, taken), (0, 0, 0));
    assert!(status.rejected.is_empty(), "{:?}", status.rejected);
    drop(me);
    server.stop();
}

#[test]
fn a_client_that_only_hung_up_keeps_what_it_may_write_into() {
    let server = Server::start();
    let (child, _) = child(&server, true);
    let status = server.status();
    assert_eq!(status.clients, 1);
    assert!(status.tiers[0].lent_bytes >= MIB);
    kill(child);
    wait_until("the child's end", || server.status().clients == 0);
    assert_eq!(server.status().files, 1);
    server.stop();
}

#[test]
fn the_server_ends_with_the_process_it_watches() {
    let mut watched = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut server = Server::start_with(|options| options.watch_pid = Some(watched.id()));
    watched.kill().unwrap();
    watched.wait().unwrap();
    let status = server.thread.take().unwrap().join().unwrap().unwrap();
    assert_eq!(status.clients, 0);
}

#[test]
fn nonsense_on_the_socket_disturbs_nobody() {
    use std::os::unix::net::UnixStream;
    let server = Server::start();
    let path = server.options.run_dir.join("server.sock");
    for bytes in [
        &[0xFF; 64][..],
        &[5, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
        &[3, 0, 0, 0, u8::try_from(proto::VERSION).unwrap(), 9, 9],
        &[1],
        &[0, 0, 0, 0],
    ] {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.write_all(bytes).unwrap();
        if bytes.len() > 1 {
            let mut rest = Vec::new();
            // Closed, with or without unread bytes.
            let _ = std::io::Read::read_to_end(&mut socket, &mut rest);
            assert!(rest.is_empty());
        }
    }
    // The server understands only the number of another version, whatever follows it, and answers with
    // its own.
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.write_all(&[5, 0, 0, 0, 9, 9, 9, 9, 9]).unwrap();
    let mut told = Vec::new();
    let _ = std::io::Read::read_to_end(&mut socket, &mut told);
    assert!(!told.is_empty());
    let mut control = server.control();
    control.call(proto::Ping {}).unwrap();
    server.stop();
}

#[test]
fn more_clients_than_there_may_be_are_turned_away() {
    let server = Server::start();
    let sessions: Vec<Session> = (0..8)
        .map(|_| Session::connect(&server.options.run_dir))
        .collect();
    assert!(Session::try_connect(&server.options.run_dir).is_none());
    assert_eq!(server.status().clients, 8);
    drop(sessions);
    server.stop();
}
