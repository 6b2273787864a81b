//! Two ends of a fabric over loopback: one calls, one serves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::bulk::{BulkReader, Piece};
use weir_fabric::{Event, Fabric, Membership, Message, PolledTcp, Timing};

use crate::plain::SMALL;
use crate::slabs::{Slabs, VecLanding};

/// Bytes asked for in one message.
const STEP: usize = 1 << 20;
/// Bytes that the server has.
pub const FILE: usize = 64 << 20;

pub struct Pair {
    near: PolledTcp,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

fn start(listener: TcpListener, membership: Membership, file: &Arc<Vec<u8>>) -> PolledTcp {
    let source = Arc::new(Slabs(Arc::clone(file)));
    let tcp = PolledTcp::start(listener, membership, Timing::default(), source);
    tcp.expect("the fabric starts")
}

impl Pair {
    pub fn new() -> Pair {
        let mut listeners: Vec<_> = (0..2)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback"))
            .collect();
        let addresses: Vec<_> = listeners
            .iter()
            .map(|l| l.local_addr().expect("an address"))
            .collect();
        let membership = |rank| Membership {
            instance: InstanceId([9; 16]),
            secret: Secret::new([1; 32]),
            rank: Rank(rank),
            incarnation: 1,
            addresses: addresses.clone(),
        };
        let file = Arc::new(vec![7; FILE]);
        let far = start(listeners.pop().expect("two"), membership(1), &file);
        let near = start(listeners.pop().expect("two"), membership(0), &file);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let server = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                while let Some(event) = far.next_event() {
                    if let Event::Request(token, message) = event {
                        far.reply(token, message);
                    }
                }
                far.wait(Some(Duration::from_millis(100)));
            }
        });
        Pair {
            near,
            stop,
            server: Some(server),
        }
    }

    fn next(&self) {
        loop {
            if let Some(event) = self.near.next_event() {
                if let Event::Done(_, result) = event {
                    result.expect("a reply");
                    return;
                }
            } else {
                self.near.wait(None);
            }
        }
    }

    /// Seconds for `count` calls, one after the other.
    pub fn trips(&self, count: u32) -> f64 {
        crate::timed(|| {
            for _ in 0..count {
                let body = vec![1; SMALL];
                self.near.call(
                    Rank(1),
                    Message {
                        body,
                        bulk: Vec::new(),
                    },
                );
                self.next();
            }
        })
    }

    /// Seconds for `bytes` in reads of `size`, by `streams` threads. A read longer than a message
    /// requests all its messages at once.
    pub fn read(&self, streams: usize, size: usize, bytes: usize) -> f64 {
        let each = bytes / streams / size;
        crate::timed(|| {
            std::thread::scope(|scope| {
                for stream in 0..streams {
                    let reads = self.near.reads().clone();
                    scope.spawn(move || run(&reads, stream * size, size, each));
                }
            });
        })
    }
}

fn run(reads: &BulkReader, from: usize, size: usize, count: usize) {
    let (back, landed) = channel();
    let mut buffers: Vec<Vec<u8>> = (0..size / STEP).map(|_| vec![0; STEP]).collect();
    for _ in 0..count {
        for (number, bytes) in buffers.drain(..).enumerate() {
            let piece = Piece {
                slab: 0,
                len: u32::try_from(STEP).expect("a step"),
                pos: ((from + number * STEP) % FILE) as u64,
            };
            let place = VecLanding {
                number,
                bytes,
                back: back.clone(),
            };
            reads.read(Rank(1), &[piece], Box::new(place));
        }
        for _ in 0..size / STEP {
            let (_, bytes, result) = landed.recv().expect("an end");
            result.expect("bytes");
            buffers.push(bytes);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
