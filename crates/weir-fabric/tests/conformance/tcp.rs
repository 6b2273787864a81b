//! TCP over loopback. A relay before each server breaks every connection after some bytes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::frame::{FrameHead, FrameKind, Greeting, Plane, VERSION};
use weir_fabric::{CallId, Membership, Tcp, Timing};

use crate::relay::relay;
use crate::servers::{Transport, Wrong};

/// A loopback network.
pub struct Loopback {
    timing: Timing,
    begin: Instant,
    /// The addresses at which servers listen.
    places: Vec<SocketAddr>,
    /// The addresses to which other servers connect.
    addresses: Vec<SocketAddr>,
    /// Servers that do not run yet.
    listeners: HashMap<Rank, TcpListener>,
    wake: Sender<()>,
    woken: Receiver<()>,
}

impl Loopback {
    /// The arguments with which a server is started.
    pub fn place(&mut self, rank: Rank, incarnation: u64) -> (TcpListener, Membership, Timing) {
        let place = self.places[usize::from(rank.0)];
        let listener = self.listeners.remove(&rank);
        let membership = Membership {
            instance: InstanceId([9; 16]),
            secret: Secret::new([1; 32]),
            rank,
            incarnation,
            addresses: self.addresses.clone(),
        };
        let listener = listener.unwrap_or_else(|| TcpListener::bind(place).unwrap());
        (listener, membership, self.timing)
    }
}

impl Transport for Loopback {
    type End = Tcp;

    fn new(servers: u16, timing: Timing) -> Loopback {
        let bind = |rank| (Rank(rank), TcpListener::bind("127.0.0.1:0").unwrap());
        let listeners: HashMap<_, _> = (0..servers).map(bind).collect();
        let place = |rank| listeners[&Rank(rank)].local_addr().unwrap();
        let places: Vec<_> = (0..servers).map(place).collect();
        let (wake, woken) = channel();
        Loopback {
            timing,
            begin: Instant::now(),
            addresses: places.clone(),
            places,
            listeners,
            wake,
            woken,
        }
    }

    fn troubled(servers: u16, timing: Timing) -> Loopback {
        let mut net = Loopback::new(servers, timing);
        net.addresses = net.places.iter().copied().map(relay).collect();
        net
    }

    fn start(&mut self, rank: Rank, incarnation: u64) -> Tcp {
        let (listener, membership, timing) = self.place(rank, incarnation);
        let wake = self.wake.clone();
        Tcp::start(listener, membership, timing, move || {
            // The test has ended.
            let _ = wake.send(());
        })
        .unwrap()
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn pass(&mut self) {
        let _ = self.woken.recv_timeout(Duration::from_millis(5));
    }

    fn stranger(&mut self, to: Rank, wrong: Wrong) {
        let mut stranger = TcpStream::connect(self.places[usize::from(to.0)]).unwrap();
        stranger.write_all(&words(to, wrong)).unwrap();
        // The server closes the connection in any case.
        stranger
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        match stranger.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

/// A frame of a stranger.
fn words(to: Rank, wrong: Wrong) -> Vec<u8> {
    let mut greeting = Greeting {
        version: VERSION,
        instance: InstanceId([9; 16]),
        from: Rank(0),
        to,
        incarnation: 1,
        nonce: [5; 32],
        plane: Plane::Control as u32,
    };
    let mut proof = Vec::new();
    match wrong {
        Wrong::Malformed => return b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        Wrong::Version => greeting.version += 1,
        Wrong::Instance => greeting.instance = InstanceId([8; 16]),
        Wrong::Rank => greeting.to = Rank(to.0 + 1),
        Wrong::Secret => proof = frame(FrameKind::Proof, &[0; 32]),
    }
    let mut words = frame(FrameKind::Hello, &greeting.encode());
    words.append(&mut proof);
    words
}

fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        kind,
        call: CallId(0),
        body: body.len(),
        bulk: 0,
    };
    [&head.encode()[..], body].concat()
}
