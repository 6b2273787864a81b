//! libfabric's provider `tcp;ofi_rxm` over loopback. A thread makes trouble by shutting down the
//! provider's sockets. (A relay does not work: the provider takes a server for another one if its
//! name leads elsewhere.)

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{getpeername, getsockname, shutdown, Shutdown, SocketAddrAny};
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::ofi::packet::{seal, MacKey, PacketContent, PacketHead};
use weir_fabric::ofi::{find, BoundEndpoint, EndpointOptions};
use weir_fabric::{Libfabric, Membership, Timing};

use crate::servers::{Transport, Wrong};

const PROVIDER: &str = "tcp;ofi_rxm";
const INSTANCE: InstanceId = InstanceId([9; 16]);

/// An error if the tests cannot run here.
pub fn usable() -> Result<(), String> {
    let found = find().map_err(|why| why.to_string())?;
    match found.usable.iter().any(|name| name == PROVIDER) {
        true => Ok(()),
        false => Err(format!("there is no {PROVIDER}, but {:?}", found.usable)),
    }
}

/// With remote reads.
pub type Reading = Endpoints<true>;
/// With messages alone.
pub type Messages = Endpoints<false>;

/// A loopback network.
pub struct Endpoints<const READS: bool> {
    timing: Timing,
    begin: Instant,
    names: Vec<Vec<u8>>,
    /// Servers that do not run yet.
    bound: HashMap<Rank, BoundEndpoint>,
    wake: Sender<()>,
    woken: Receiver<()>,
    trouble: Option<Trouble>,
}

/// An endpoint at a port, or at any.
fn bind(port: u16, reads: bool) -> BoundEndpoint {
    let choice = EndpointOptions {
        provider: Some(PROVIDER.to_owned()),
        source: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        reads,
    };
    BoundEndpoint::open(&choice).unwrap()
}

/// The port in a name, which is a `sockaddr_in`.
fn port(name: &[u8]) -> u16 {
    assert_eq!(name.len(), 16, "{name:?}");
    u16::from_be_bytes([name[2], name[3]])
}

impl<const READS: bool> Transport for Endpoints<READS> {
    type End = Libfabric;

    fn new(servers: u16, timing: Timing) -> Self {
        let all = (0..servers).map(|rank| (Rank(rank), bind(0, READS)));
        let bound: HashMap<_, _> = all.collect();
        let name = |rank| bound[&Rank(rank)].name().to_vec();
        let names: Vec<_> = (0..servers).map(name).collect();
        let (wake, woken) = channel();
        Endpoints {
            timing,
            begin: Instant::now(),
            names,
            bound,
            wake,
            woken,
            trouble: None,
        }
    }

    fn troubled(servers: u16, timing: Timing) -> Self {
        let mut net = Self::new(servers, timing);
        let ports = net.names.iter().map(|name| port(name)).collect();
        net.trouble = Some(Trouble::start(ports));
        net
    }

    fn start(&mut self, rank: Rank, incarnation: u64) -> Libfabric {
        let name = &self.names[usize::from(rank.0)];
        let bound = self.bound.remove(&rank);
        let membership = Membership {
            instance: INSTANCE,
            secret: Secret::new([1; 32]),
            rank,
            incarnation,
            addresses: Vec::new(),
        };
        let wake = self.wake.clone();
        Libfabric::start(
            bound.unwrap_or_else(|| bind(port(name), READS)),
            membership,
            self.names.clone(),
            self.timing,
            move || {
                // The test has ended.
                let _ = wake.send(());
            },
        )
        .unwrap()
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn pass(&mut self) {
        let _ = self.woken.recv_timeout(Duration::from_millis(5));
    }

    fn stranger(&mut self, to: Rank, wrong: Wrong) {
        let mut stranger = bind(0, READS);
        let place = &self.names[usize::from(to.0)];
        let said = stranger.send_unsealed(place, &words(to, wrong), Duration::from_secs(10));
        assert!(said.unwrap());
    }
}

/// A packet of a stranger.
fn words(to: Rank, wrong: Wrong) -> Vec<u8> {
    let mut head = PacketHead {
        instance: INSTANCE,
        from: Rank(0),
        to,
        from_life: 1,
        to_life: 1,
        line: 99,
    };
    let mut secret = Secret::new([1; 32]);
    match wrong {
        Wrong::Malformed => return vec![0xFF; 4096],
        Wrong::Version => {}
        Wrong::Instance => head.instance = InstanceId([8; 16]),
        Wrong::Rank => head.to = Rank(to.0 + 1),
        Wrong::Secret => secret = Secret::new([2; 32]),
    }
    let ping = PacketContent::Ping { number: 1, sent: 1 };
    let mut words = seal(&MacKey::derive(&secret), &head, &ping);
    if wrong == Wrong::Version {
        words[4] += 1;
    }
    words
}

/// Shuts down every connection of some ports in this process, again and again.
struct Trouble {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Trouble {
    fn start(ports: Vec<u16>) -> Trouble {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut pause_ms = 1;
            while !seen.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(pause_ms));
                // Some breaks hit messages under way, some a line that is being opened.
                pause_ms = pause_ms * 5 % 23;
                connections_of(&ports).for_each(|socket| {
                    let _ = shutdown(socket, Shutdown::Both);
                });
            }
        });
        Trouble {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Duplicates of this process's sockets that are connected from or to one of `ports`.
fn connections_of(ports: &[u16]) -> impl Iterator<Item = OwnedFd> + '_ {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let fds = fds.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let sockets = fds.filter_map(|fd| {
        // SAFETY: a descriptor that is closed meanwhile is not duplicated, and one that is
        // another by now is looked at below, as its duplicate.
        unsafe { BorrowedFd::borrow_raw(fd) }
            .try_clone_to_owned()
            .ok()
    });
    sockets.filter(|socket| {
        let port = |address: SocketAddrAny| SocketAddr::try_from(address).ok().map(|a| a.port());
        let theirs = getpeername(socket).ok().flatten().and_then(port);
        let ours = getsockname(socket).ok().and_then(port);
        theirs.is_some_and(|theirs| {
            ports.contains(&theirs) || ours.is_some_and(|ours| ports.contains(&ours))
        })
    })
}
