//! Strangers' attacks that only TCP knows. The behaviour of all transports is tested in
//! `conformance`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::frame::{FrameHead, FrameKind, Greeting, GREETING_BYTES, VERSION};
use weir_fabric::{CallError, CallId, Event, Fabric, Membership, Message, Tcp, Timing};

const TIMING: Timing = Timing {
    deadline: Duration::from_secs(20),
    give_up: Duration::from_millis(400),
    handshake: Duration::from_millis(400),
};

fn membership(rank: u16, secret: u8, addresses: &[SocketAddr]) -> Membership {
    Membership {
        instance: InstanceId([9; 16]),
        secret: Secret::new([secret; 32]),
        rank: Rank(rank),
        incarnation: 1,
        addresses: addresses.to_vec(),
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn who_says_nothing_or_breaks_off_is_hung_up_on() {
    let (listener, address) = listener();
    let server = Tcp::start(listener, membership(0, 1, &[address]), TIMING, || {}).unwrap();
    for said in [&b""[..], b"WFAB", &[0xFF; 4096]] {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(said).unwrap();
        let patience = Some(Duration::from_secs(10));
        stranger.set_read_timeout(patience).unwrap();
        match stranger.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    let counters = server.counters();
    assert_eq!((counters.slow, counters.garbage), (2, 1));
    assert_eq!(server.poll(), None);
}

#[test]
fn who_has_another_secret_learns_nothing_but_that() {
    let (there, address) = listener();
    let (here, other) = listener();
    let addresses = [address, other];
    let server = Tcp::start(there, membership(0, 1, &addresses), TIMING, || {}).unwrap();
    let (wake, woken) = channel();
    let asker = Tcp::start(here, membership(1, 2, &addresses), TIMING, move || {
        // The test has ended.
        let _ = wake.send(());
    })
    .unwrap();
    let id = asker.call(Rank(0), Message::default());
    let ended = loop {
        match asker.poll() {
            Some(Event::Done(ended, result)) => break (ended, result),
            Some(Event::PeerLost(_)) => {}
            Some(Event::Request(..)) => panic!("nobody asks here"),
            None => woken.recv_timeout(Duration::from_secs(30)).unwrap(),
        }
    };
    assert_eq!(ended, (id, Err(CallError::Unreachable)));
    assert_eq!(server.poll(), None);
}

/// Found by fuzzing: the greeting was taken for one of the server's own, and a home enrolled at
/// itself.
#[test]
fn who_claims_to_be_the_server_itself_is_refused() {
    let (listener, address) = listener();
    let server = Tcp::start(listener, membership(0, 1, &[address]), TIMING, || {}).unwrap();
    let hello = Greeting {
        version: VERSION,
        instance: InstanceId([9; 16]),
        from: Rank(0),
        to: Rank(0),
        incarnation: 1,
        nonce: [3; 32],
        plane: 0,
    };
    let head = FrameHead {
        kind: FrameKind::Hello,
        call: CallId(0),
        body: GREETING_BYTES,
        bulk: 0,
    };
    let mut stranger = TcpStream::connect(address).unwrap();
    let frame = [&head.encode()[..], &hello.encode()].concat();
    stranger.write_all(&frame).unwrap();
    assert_eq!(stranger.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!(server.counters().rank, 1);
}

/// The result of a call; the other server echoes.
fn asked(asker: &Tcp, to: (&Tcp, u16), body: u8) -> Result<Message, CallError> {
    let message = Message {
        body: vec![body],
        bulk: Vec::new(),
    };
    let id = asker.call(Rank(to.1), message);
    loop {
        if let Some(Event::Request(token, message)) = to.0.poll() {
            to.0.reply(token, message);
        }
        if let Some(Event::Done(ended, result)) = asker.poll() {
            assert_eq!(ended, id);
            return result;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_was_asked_asks_by_the_same_connection() {
    let ((near, near_at), (far, far_at)) = (listener(), listener());
    // The far server could not dial the near one.
    let (_, nowhere) = listener();
    let near = Tcp::start(near, membership(0, 1, &[near_at, far_at]), TIMING, || {}).unwrap();
    let far = Tcp::start(far, membership(1, 1, &[nowhere, far_at]), TIMING, || {}).unwrap();
    for body in 0..3 {
        assert_eq!(asked(&near, (&far, 1), body).unwrap().body, [body]);
        assert_eq!(asked(&far, (&near, 0), body).unwrap().body, [body]);
    }
}
