//! libfabric's `tcp;ofi_rxm` beside TCP, over loopback, in interleaved pairs of one run:
//! `cargo bench -p weir-fabric --bench carriers`. Both ends sleep while they wait.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::ofi::{BoundEndpoint, EndpointOptions};
use weir_fabric::{Event, Fabric, Libfabric, Membership, Message, Tcp, Timing};

/// Pairs of measurements of each line.
const ROUNDS: usize = 9;
/// Bytes of one measurement of bulk.
const BYTES: usize = 256 << 20;
/// Round trips of one measurement of small calls.
const TRIPS: usize = 2000;

/// A server that replies with as many bytes of bulk as the body says, and one that calls it.
struct Pair {
    near: Box<dyn Fabric>,
    woken: Receiver<()>,
    _end: Sender<()>,
}

fn membership(rank: u16, addresses: Vec<SocketAddr>) -> Membership {
    Membership {
        instance: InstanceId([9; 16]),
        secret: Secret::new([1; 32]),
        rank: Rank(rank),
        incarnation: 1,
        addresses,
    }
}

type Waking = Box<dyn Fn() + Send>;

/// Starts both ends of a transport; `start` gets a waker for each.
fn pair(start: impl FnOnce(Waking, Waking) -> (Box<dyn Fabric>, Box<dyn Fabric + Send>)) -> Pair {
    let (wake_near, woken) = channel();
    let (wake_far, asked) = channel();
    let (end, ended) = channel();
    let waking = |wake: Sender<()>| -> Waking { Box::new(move || wake.send(()).unwrap_or(())) };
    let (near, far) = start(waking(wake_near), waking(wake_far));
    std::thread::spawn(move || {
        while ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            while let Some(event) = far.poll() {
                let Event::Request(token, Message { body, .. }) = event else {
                    continue;
                };
                let len = body.first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
                let bulk = vec![7; len as usize];
                far.reply(token, Message { body, bulk });
            }
            let _ = asked.recv_timeout(Duration::from_millis(100));
        }
    });
    Pair {
        near,
        woken,
        _end: end,
    }
}

fn over_tcp() -> Pair {
    pair(|near, far| {
        let all = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("loopback"));
        let addresses: Vec<_> = all
            .iter()
            .map(|l| l.local_addr().expect("an address"))
            .collect();
        let [a, b] = all;
        let start = |listener, rank, wake: Waking| {
            let me = membership(rank, addresses.clone());
            Tcp::start(listener, me, Timing::default(), wake).expect("TCP starts")
        };
        (Box::new(start(a, 0, near)), Box::new(start(b, 1, far)))
    })
}

fn over_libfabric() -> Option<Pair> {
    let choice = EndpointOptions {
        provider: Some("tcp;ofi_rxm".to_owned()),
        source: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        reads: true,
    };
    let bind = || BoundEndpoint::open(&choice).inspect_err(|why| println!("no libfabric: {why}"));
    let (a, b) = (bind().ok()?, bind().ok()?);
    let names = vec![a.name().to_vec(), b.name().to_vec()];
    Some(pair(|near, far| {
        let start = |bound, rank, wake: Waking| {
            let me = membership(rank, Vec::new());
            let started = Libfabric::start(bound, me, names.clone(), Timing::default(), wake);
            started.expect("libfabric starts")
        };
        (Box::new(start(a, 0, near)), Box::new(start(b, 1, far)))
    }))
}

impl Pair {
    /// Seconds for `count` calls, `depth` of them under way, each with a reply of `bulk` bytes.
    fn calls(&self, count: usize, depth: usize, bulk: u32) -> f64 {
        let begin = Instant::now();
        let (mut sent, mut done) = (0, 0);
        while done < count {
            while sent < count && sent < done + depth {
                let mut body = vec![1; 64];
                body[..4].copy_from_slice(&bulk.to_le_bytes());
                let bulk = Vec::new();
                self.near.call(Rank(1), Message { body, bulk });
                sent += 1;
            }
            match self.near.poll() {
                Some(Event::Done(_, result)) => {
                    assert_eq!(result.expect("a reply").bulk.len(), bulk as usize);
                    done += 1;
                }
                Some(_) => {}
                None => self.woken.recv().expect("the fabric runs"),
            }
        }
        begin.elapsed().as_secs_f64()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[allow(clippy::cast_precision_loss)] // rates
fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let Some(libfabric) = over_libfabric() else {
        return;
    };
    let tcp = over_tcp();
    let lines: [(&str, usize, usize, u32); 5] = [
        ("call, 64 B", TRIPS, 1, 0),
        ("1 MiB back, one", BYTES >> 20, 1, 1 << 20),
        ("1 MiB back, four", BYTES >> 20, 4, 1 << 20),
        ("16 MiB back, one", BYTES >> 24, 1, 16 << 20),
        ("16 MiB back, four", BYTES >> 24, 4, 16 << 20),
    ];
    for (name, count, depth, bulk) in lines {
        let value = |pair: &Pair| match (pair.calls(count, depth, bulk), bulk) {
            (seconds, 0) => seconds / count as f64 * 1e6,
            (seconds, _) => BYTES as f64 / seconds / 1e9,
        };
        let unit = if bulk == 0 { "us" } else { "GB/s" };
        let rounds: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| (value(&tcp), value(&libfabric)))
            .collect();
        let of = |get: fn(&(f64, f64)) -> f64| median(rounds.iter().map(get).collect());
        let (a, b, ratio) = (of(|r| r.0), of(|r| r.1), of(|r| r.1 / r.0));
        println!("{name:<18} TCP {a:8.2} {unit:<4}  libfabric {b:8.2} {unit:<4}  ratio {ratio:.2}");
    }
}
