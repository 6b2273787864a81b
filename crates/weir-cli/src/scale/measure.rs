//! Costs of steps, measured on this machine, a second or two in all.
//!
//! Two ends of the fabric over loopback, blocked while idle as servers are; the real index,
//! encoding and placement; copies by as many threads as there are cores. Medians of rounds, for
//! the machine may be shared. The link between nodes and the starting of agents are not
//! measured: they are taken as the model's defaults have them.

use std::hint::black_box;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use weir_core::extent::{ExtentIndex, Run};
use weir_core::placement::home_of_extents;
use weir_core::proto::peer::{self, Find, Request};
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::{Ino, Rank};
use weir_fabric::{Event, Fabric, Membership, Message, Tcp, Timing};
use weir_scale::Costs;

const ROUNDS: usize = 5;
/// Runs of one measurement.
const RUNS: u64 = 100_000;
/// Bytes that a thread copies at a time: more than caches hold.
const COPY_BYTES: usize = 64 << 20;
/// Bytes of one fetch.
const FETCH_BYTES: usize = 1 << 20;

/// Measures.
pub fn costs() -> Result<Costs> {
    let pair = Pair::start()?;
    let round_trip = median(|| pair.calls(1, 1000, 0))? / 1000.0;
    let many = median(|| pair.calls(64, 20_000, 0))? / 20_000.0;
    let fetch = median(|| pair.calls(4, 200, FETCH_BYTES))? / 200.0;
    drop(pair);
    let copy = median(|| Ok(copies()))?;
    Ok(Costs {
        latency_ns: (round_trip / 2.0 - many).max(1.0),
        request_ns: many,
        // Both ends work at once, each in two threads, and the slower one counts.
        reply_ns: many,
        lay_ns: median(|| Ok(lay()))?,
        say_ns: median(|| say().context("runs in a message"))?,
        slice_ns: median(|| Ok(slices()))?,
        write_bytes_per_s: copy,
        read_bytes_per_s: copy,
        fetch_bytes_per_s: 1e9 * as_number(FETCH_BYTES) / fetch,
        ..Costs::default()
    })
}

fn median(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut found = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        found.push(measure()?);
    }
    found.sort_by(f64::total_cmp);
    Ok(found[ROUNDS / 2])
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn as_number(count: usize) -> f64 {
    count as f64
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e9
}

/// Two ends of the fabric; the second one answers.
struct Pair {
    asker: Tcp,
    woken: Receiver<()>,
    stop: Arc<AtomicBool>,
    server: Option<std::thread::JoinHandle<()>>,
    wake_server: std::sync::mpsc::Sender<()>,
}

impl Pair {
    fn start() -> Result<Pair> {
        let bind = || TcpListener::bind("127.0.0.1:0").context("loopback");
        let (here, there) = (bind()?, bind()?);
        let addresses = vec![here.local_addr()?, there.local_addr()?];
        let end = |rank, listener, wake: std::sync::mpsc::Sender<()>| {
            let membership = Membership {
                instance: InstanceId([1; 16]),
                secret: Secret::new([2; 32]),
                rank: Rank(rank),
                incarnation: 1,
                addresses: addresses.clone(),
            };
            Tcp::start(listener, membership, Timing::default(), move || {
                // Who has gone need not be woken.
                let _ = wake.send(());
            })
            .context("a fabric over loopback")
        };
        let (wake, woken) = channel();
        let asker = end(0, here, wake)?;
        let (wake_server, rung) = channel();
        let server = end(1, there, wake_server.clone())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let server = std::thread::spawn(move || {
            while rung.recv().is_ok() && !stopped.load(Ordering::Acquire) {
                while let Some(event) = server.poll() {
                    answer(&server, event);
                }
            }
        });
        Ok(Pair {
            asker,
            woken,
            stop,
            server: Some(server),
            wake_server,
        })
    }

    /// So many calls, some of them under way at a time; what they take together, ns.
    fn calls(&self, at_once: usize, count: usize, reply_bytes: usize) -> Result<f64> {
        let body = peer::request(Find {
            dir: Ino(1),
            name: reply_bytes.to_string().into_bytes(),
        });
        let ask = || {
            let body = body.clone();
            self.asker.call(
                Rank(1),
                Message {
                    body,
                    bulk: Vec::new(),
                },
            )
        };
        let begun = Instant::now();
        let mut asked = at_once.min(count);
        for _ in 0..asked {
            ask();
        }
        let mut done = 0;
        while done < count {
            while let Some(event) = self.asker.poll() {
                match event {
                    Event::Done(_, Ok(reply)) => drop(black_box(reply)),
                    Event::Done(_, Err(lost)) => bail!("a call over loopback: {lost}"),
                    Event::Request(..) | Event::PeerLost(_) => continue,
                }
                done += 1;
                if asked < count {
                    asked += 1;
                    ask();
                }
            }
            if done < count {
                let patience = Duration::from_secs(30);
                self.woken
                    .recv_timeout(patience)
                    .context("no reply over loopback")?;
            }
        }
        Ok(nanoseconds(begun))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake_server.send(());
        if let Some(server) = self.server.take() {
            // If it panicked it has said so.
            let _ = server.join();
        }
    }
}

/// The name that is looked for says how long the reply is to be.
fn answer(server: &Tcp, event: Event) {
    let Event::Request(token, message) = event else {
        return;
    };
    let Ok(Request::Find(op)) = postcard::from_bytes::<Request>(&message.body) else {
        return;
    };
    let bytes = String::from_utf8_lossy(&op.name).parse().unwrap_or(0);
    let reply = Message {
        body: op.name,
        bulk: vec![1; bytes],
    };
    server.reply(token, reply);
}

fn runs() -> Vec<Run> {
    (0..RUNS)
        .filter_map(|i| Run::extent(i * 7919 % RUNS * (2 << 20), 1 << 20, i + 1, 0, 1, 0).ok())
        .collect()
}

/// Laying a run, ns.
fn lay() -> f64 {
    let runs = runs();
    let mut index = ExtentIndex::new();
    let begun = Instant::now();
    for run in &runs {
        let _ = black_box(index.insert(*run, &mut |_| ()));
    }
    nanoseconds(begun) / as_number(runs.len())
}

/// Encoding and decoding a run, ns.
fn say() -> Option<f64> {
    let op = peer::Put {
        ino: Ino(2),
        runs: runs(),
        publish: 1,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    };
    let count = op.runs.len();
    let begun = Instant::now();
    let bytes = black_box(peer::request(op));
    let Ok(Request::Put(back)) = postcard::from_bytes::<Request>(&bytes) else {
        return None;
    };
    (back.runs.len() == count).then(|| nanoseconds(begun) / as_number(count))
}

/// The home of a slice, ns.
fn slices() -> f64 {
    let begun = Instant::now();
    for slice in 0..RUNS {
        black_box(home_of_extents(Ino(2), black_box(slice), 1024));
    }
    nanoseconds(begun) / 1e5
}

/// What all cores copy together, bytes/s.
fn copies() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = || {
        let (from, mut to) = (vec![1_u8; COPY_BYTES], vec![0_u8; COPY_BYTES]);
        to.copy_from_slice(&from);
        let begun = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        as_number(COPY_BYTES) / begun.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(each)).collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(0.0));
        rates.sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_are_costs() {
        let pair = Pair::start().unwrap();
        assert!(pair.calls(4, 50, 100).unwrap() > 0.0);
        drop(pair);
        let costs = Costs {
            lay_ns: lay(),
            say_ns: say().unwrap(),
            slice_ns: slices(),
            ..Costs::default()
        };
        assert_eq!(costs.check(), Ok(()));
    }
}
