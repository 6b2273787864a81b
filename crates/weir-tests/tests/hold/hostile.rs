//! Strangers at the port and at the socket of running servers: each kind is refused, counted in `weir
//! status`, and logged in few lines; the calls of programs do not become slower or fail.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use weir_cluster::guard::wait_until;
use weir_core::proto::{self, ClientKind, Hello, Role};
use weir_core::roster::{Roster, Secret};
use weir_core::types::Rank;
use weir_fabric::frame::{
    self, FrameHead, FrameKind, Greeting, GREETING_BYTES, HEAD_BYTES, PROOF_BYTES,
};
use weir_fabric::CallId;

use super::local::Local;
use super::probes::{self, FILES};
use super::talk::Talk;

/// The number of connections in a flood.
const FLOOD: usize = 1000;

fn roster(local: &Local) -> Roster {
    let text = std::fs::read_to_string(local.run_dir(0).join("roster.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    stream
}

fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        kind,
        call: CallId(0),
        body: body.len(),
        bulk: 0,
    };
    [&head.encode(), body].concat()
}

/// The greeting that server 1 would send to server 0.
fn greeting(roster: &Roster) -> Greeting {
    Greeting {
        version: frame::VERSION,
        instance: roster.instance(),
        from: Rank(1),
        to: Rank(0),
        incarnation: u64::MAX,
        nonce: [7; 32],
        plane: 0,
    }
}

/// Reads until the other end hangs up; returns the bytes.
fn hung_up(stream: &mut impl Read) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut said);
    said
}

/// Sends bytes; the server must hang up without an answer.
fn refused(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    assert_eq!(hung_up(&mut stream), b"");
}

/// Knows all but the secret: greets, reads the challenge, and sends no valid proof.
fn guesses_the_secret(address: SocketAddr, hello: &Greeting) {
    let mut stream = connect(address);
    stream
        .write_all(&frame(FrameKind::Hello, &hello.encode()))
        .unwrap();
    let mut challenge = [0; HEAD_BYTES + GREETING_BYTES + PROOF_BYTES];
    stream.read_exact(&mut challenge).unwrap();
    let theirs = challenge[HEAD_BYTES..].first_chunk().unwrap();
    let theirs = Greeting::decode(theirs);
    let guess = Secret::new([1; 32]);
    let proof = frame::proof(&guess, frame::Role::Dialler, hello, &theirs);
    stream
        .write_all(&frame(FrameKind::Proof, proof.as_bytes()))
        .unwrap();
    assert_eq!(hung_up(&mut stream), b"");
}

/// Sends a byte now and then: the server must hang up before the greeting is whole.
fn dawdles(address: SocketAddr, hello: &Greeting) {
    let mut stream = connect(address);
    let refused = frame(FrameKind::Hello, &hello.encode())
        .into_iter()
        .any(|byte| {
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all(&[byte]).is_err()
        });
    assert!(refused, "it was waited for");
}

fn rejected(local: &Local, rank: usize, kind: &str) -> u64 {
    let status = local.status();
    status["each"][rank]["rejected"][kind].as_u64().unwrap_or(0)
}

/// The number of lines in the log about refused connections.
fn complaints(local: &Local) -> usize {
    let log = local.log();
    log.lines().filter(|line| line.contains("refused")).count()
}

/// All kinds of strangers at the port of server 0, while the probes go on.
fn strangers(local: &Local, address: SocketAddr, watch: &mut [Talk]) {
    let roster = roster(local);
    let hello = greeting(&roster);
    let with = |change: &dyn Fn(&mut Greeting)| {
        let mut changed = hello;
        change(&mut changed);
        frame(FrameKind::Hello, &changed.encode())
    };
    for _ in 0..20 {
        guesses_the_secret(address, &hello);
        refused(address, &with(&|hello| hello.version += 1));
        refused(address, &with(&|hello| hello.instance.0[0] ^= 1));
        refused(address, &with(&|hello| hello.to = Rank(2)));
        refused(address, &with(&|hello| hello.from = Rank(77)));
        refused(address, &[0xFF; 4096]);
        // A frame from the middle of a conversation, and one of no handshake at all.
        refused(address, &frame(FrameKind::Proof, &[0; PROOF_BYTES]));
        refused(address, &frame(FrameKind::Request, &[0; 64]));
    }
    // Half a handshake, held open, and less.
    let mut half = connect(address);
    half.write_all(&frame(FrameKind::Hello, &hello.encode()))
        .unwrap();
    let mut silent = connect(address);
    dawdles(address, &hello);
    assert_eq!(
        hung_up(&mut half).len(),
        HEAD_BYTES + GREETING_BYTES + PROOF_BYTES
    );
    assert_eq!(hung_up(&mut silent), b"");
    let flood: Vec<TcpStream> = (0..FLOOD)
        .filter_map(|_| TcpStream::connect(address).ok())
        .collect();
    wait_until("most of the flood is refused", || {
        rejected(local, 0, "network: no proof in time") >= (FLOOD / 2) as u64
    });
    probes::wait_for_calls(watch, FILES);
    drop(flood);
}

#[test]
fn strangers_of_the_network_are_refused_and_disturb_nobody() {
    let local = Local::start("strange", &["--servers", "3"], &[]);
    let address = roster(&local).members()[0].address;
    probes::prepare(&local, 1);
    let mut watch = probes::start(&local, 2, "watch");
    strangers(&local, address, &mut watch);
    let outcomes = probes::stop_probes(watch);
    probes::judge(&outcomes, &[]);
    for (kind, least) in [
        ("wrong secret", 20),
        ("another version", 20),
        ("another instance", 20),
        ("another rank", 40),
        ("garbage", 60),
        ("no proof in time", 3),
    ] {
        let count = rejected(&local, 0, &format!("network: {kind}"));
        assert!(count >= least, "{kind}: {count}: {}", local.status());
    }
    assert!(complaints(&local) <= 80, "{}", local.log());
    assert!(!local.log().contains("panicked"));
    for rank in 0..3 {
        probes::all_good(&local, rank, &format!("after{rank}"));
    }
}

#[test]
fn strangers_at_libfabrics_port_disturb_nobody() {
    let settings = [
        ("WEIR_FABRIC_TRANSPORT", "libfabric"),
        ("WEIR_FABRIC_PROVIDER", "tcp;ofi_rxm"),
    ];
    let local = Local::start("ofi", &["--servers", "3"], &settings);
    if !local.log().contains("servers talk over libfabric") {
        weir_cluster::skip("strangers", "libfabric (apt-get install libfabric1)");
        return;
    }
    let listens = listening(local.status()["each"][0]["pid"].as_u64().unwrap());
    assert!(!listens.is_empty());
    probes::prepare(&local, 1);
    let mut watch = probes::start(&local, 2, "watch");
    for port in listens {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for garbage in [&[0xFF; 4096][..], &[0; 300], b"GET / HTTP/1.1\r\n\r\n"] {
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(garbage);
            }
        }
        // Held open while the others work.
        let held: Vec<_> = (0..100)
            .filter_map(|_| TcpStream::connect(address).ok())
            .collect();
        probes::all_good(&local, 1, &format!("port{port}"));
        probes::wait_for_calls(&mut watch, FILES);
        drop(held);
    }
    probes::judge(&probes::stop_probes(watch), &[]);
    assert!(!local.log().contains("panicked"));
    for rank in 0..3 {
        probes::all_good(&local, rank, &format!("after{rank}"));
    }
}

/// The TCP ports at which a process listens.
fn listening(pid: u64) -> Vec<u16> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten();
    let links = fds.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| {
            let link = link.to_string_lossy().into_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    // Column 1 is the local address in hexadecimal, 3 the state (0A: listening), 9 the inode.
    let ours = rows.filter(|row| row[3] == "0A" && sockets.iter().any(|s| s == row[9]));
    let port = |row: Vec<&str>| u16::from_str_radix(row[1].split_once(':')?.1, 16).ok();
    ours.filter_map(port).collect()
}

fn socket(run_dir: &Path) -> UnixStream {
    let stream = UnixStream::connect(run_dir.join("server.sock")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

fn said_hello(version: u32, role: Role) -> Vec<u8> {
    let mut message = Vec::new();
    proto::encode(&Hello { version, role }, &mut message);
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_le_bytes(), &message[..]].concat()
}

#[test]
fn strangers_at_the_socket_are_refused_and_disturb_nobody() {
    let local = Local::start("door", &[], &[("WEIR_SERVER_MAX_CLIENTS", "64")]);
    let run_dir = local.run_dir(0);
    probes::prepare(&local, 0);
    let mut watch = probes::start(&local, 0, "watch");
    let send = |bytes: &[u8]| {
        let mut stream = socket(&run_dir);
        let _ = stream.write_all(bytes);
        hung_up(&mut stream)
    };
    for _ in 0..20 {
        assert_eq!(send(&[0xFF; 64]), b"");
        assert_eq!(send(&[3, 0, 0, 0, 0xFF, 0xFF, 0xFF]), b"");
        // The server tells it the supported version.
        assert_ne!(
            send(&said_hello(
                proto::VERSION + 1,
                Role::Client(ClientKind::Program)
            )),
            b""
        );
    }
    // A tool with a senseless request gets an error.
    let mut tool = socket(&run_dir);
    let hello = said_hello(proto::VERSION, Role::Control);
    tool.write_all(&hello).unwrap();
    tool.write_all(&[2, 0, 0, 0, 0xEE, 0xEE]).unwrap();
    // A silent connection has to make room for one that sends.
    let silent: Vec<UnixStream> = (0..300)
        .filter_map(|_| UnixStream::connect(run_dir.join("server.sock")).ok())
        .collect();
    wait_until("there is room again", || {
        let output = super::probes::Place::run(&local, 0, "ls", &["/weir"])
            .output()
            .unwrap();
        output.status.success() && !output.stdout.is_empty()
    });
    probes::wait_for_calls(&mut watch, FILES);
    drop(silent);
    probes::judge(&probes::stop_probes(watch), &[]);
    let status = local.status();
    let counted = |kind: &str| status["rejected"][kind].as_u64().unwrap_or(0);
    assert_eq!(counted("socket: no message"), 40, "{status}");
    assert_eq!(counted("socket: another version"), 20, "{status}");
    assert_eq!(counted("request"), 1, "{status}");
    assert!(
        counted("socket: too many connections") + counted("socket: said nothing") > 0,
        "{status}"
    );
    assert!(complaints(&local) <= 60, "{}", local.log());
    probes::all_good(&local, 0, "after");
}
