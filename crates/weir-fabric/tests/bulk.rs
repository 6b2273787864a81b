//! Reads of logs between servers over loopback: all sizes, both media, a slow device, servers that
//! stop and restart, malformed requests.

mod slabs;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slabs::{Slabs, VecLanding};
use weir_cluster::guard::HANG;
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::bulk::{EmptyLogSource, LogSource, Medium, Piece, ReadError};
use weir_fabric::{CallError, Membership, Tcp, Timing};

const TIMING: Timing = Timing {
    deadline: Duration::from_secs(20),
    give_up: Duration::from_millis(400),
    handshake: Duration::from_millis(400),
};

fn start(
    listener: TcpListener,
    rank: u16,
    addresses: &[SocketAddr],
    timing: Timing,
    source: Arc<dyn LogSource>,
) -> Tcp {
    let membership = Membership {
        instance: InstanceId([9; 16]),
        secret: Secret::new([1; 32]),
        rank: Rank(rank),
        incarnation: 1,
        addresses: addresses.to_vec(),
    };
    Tcp::with_log_source(listener, membership, timing, source, || {}).unwrap()
}

fn listeners() -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let all: Vec<_> = (0..2)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = all.iter().map(|l| l.local_addr().unwrap()).collect();
    (all, addresses)
}

/// The reader and the target.
fn pair(source: Arc<dyn LogSource>) -> (Tcp, Tcp) {
    let (mut listeners, addresses) = listeners();
    let target = start(listeners.pop().unwrap(), 1, &addresses, TIMING, source);
    let asker = listeners.pop().unwrap();
    (
        start(asker, 0, &addresses, TIMING, Arc::new(EmptyLogSource)),
        target,
    )
}

fn bytes(count: usize) -> Arc<Vec<u8>> {
    let byte = |i: usize| u8::try_from((i * 7 + i / 251) % 256).unwrap();
    Arc::new((0..count).map(byte).collect())
}

type Ended = (usize, Vec<u8>, Result<(), ReadError>);

struct Reads {
    back: Sender<Ended>,
    ends: Receiver<Ended>,
}

impl Reads {
    fn new() -> Reads {
        let (back, ends) = channel();
        Reads { back, ends }
    }

    fn ask(&self, asker: &Tcp, number: usize, pieces: &[Piece]) {
        let place = VecLanding {
            number,
            bytes: vec![0; pieces.iter().map(|p| p.len as usize).sum()],
            back: self.back.clone(),
        };
        asker.reads().read(Rank(1), pieces, Box::new(place));
    }

    fn next(&self) -> Ended {
        self.ends.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

fn piece(slab: u32, pos: usize, len: usize) -> Piece {
    Piece {
        slab,
        len: u32::try_from(len).unwrap(),
        pos: pos as u64,
    }
}

fn expected(file: &[u8], pieces: &[Piece]) -> Vec<u8> {
    let part = |p: &Piece| {
        let from = usize::try_from(p.pos).unwrap();
        file[from..from + p.len as usize].to_vec()
    };
    pieces.iter().flat_map(part).collect()
}

#[test]
fn pieces_of_all_sizes_and_of_both_tiers_come() {
    let file = bytes(3 << 20);
    let (asker, _target) = pair(Arc::new(Slabs(Arc::clone(&file))));
    let mut all = Vec::new();
    for slab in 0..2 {
        all.push(vec![piece(slab, 0, 1)]);
        all.push(vec![piece(slab, 5, 1 << 20)]);
        all.push((0..4096).map(|i| piece(slab, i * 300, 256)).collect());
        all.push((1..900).map(|i| piece(slab, (900 - i) * 3000, i)).collect());
    }
    all.push(vec![piece(0, 77, 70_000), piece(1, 10, 3), piece(0, 0, 5)]);
    let reads = Reads::new();
    for round in 0..5 {
        for (number, pieces) in all.iter().enumerate() {
            reads.ask(&asker, number, pieces);
        }
        for _ in 0..all.len() {
            let (number, bytes, result) = reads.next();
            assert_eq!(result, Ok(()));
            assert!(bytes == expected(&file, &all[number]), "{round} {number}");
        }
    }
}

#[test]
fn what_is_not_there_or_too_much_is_refused_and_disturbs_no_other() {
    let file = bytes(1 << 20);
    let (asker, _target) = pair(Arc::new(Slabs(Arc::clone(&file))));
    let reads = Reads::new();
    for (number, (pieces, why)) in [
        (vec![piece(2, 0, 1)], ReadError::Refused),
        (
            vec![piece(0, 0, 1), piece(0, 1 << 20, 1)],
            ReadError::Refused,
        ),
        (vec![piece(1, (1 << 20) - 1, 2)], ReadError::Refused),
        (vec![], ReadError::Malformed),
        (vec![piece(0, 0, 0)], ReadError::Malformed),
        (
            vec![piece(0, 0, 1 << 20), piece(0, 0, 1)],
            ReadError::Malformed,
        ),
        (
            (0..4097).map(|i| piece(0, i, 1)).collect(),
            ReadError::Malformed,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        reads.ask(&asker, number, &pieces);
        let (got, _, result) = reads.next();
        assert_eq!((got, result), (number, Err(why)));
        reads.ask(&asker, 99, &[piece(0, 3, 9)]);
        assert_eq!(reads.next(), (99, file[3..12].to_vec(), Ok(())));
    }
}

/// Storage that blocks until it is told to continue.
struct Slow(Slabs, Mutex<Receiver<()>>);

impl LogSource for Slow {
    fn find(&self, piece: &Piece) -> Option<Medium> {
        self.0.find(piece)
    }

    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize> {
        self.0.send(to, head, pieces)
    }

    fn copy(&self, piece: &Piece, out: &mut [u8]) -> io::Result<()> {
        let told = self.1.lock().unwrap().recv();
        told.map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.0.copy(piece, out)
    }
}

#[test]
fn a_slow_device_holds_up_no_bytes_in_memory() {
    let file = bytes(1 << 20);
    let (go, waits) = channel();
    let slow = Slow(Slabs(Arc::clone(&file)), Mutex::new(waits));
    let (asker, _target) = pair(Arc::new(slow));
    let reads = Reads::new();
    // More than may be read at a time.
    for number in 0..40 {
        reads.ask(&asker, number, &[piece(1, number, 1000)]);
    }
    for number in 100..200 {
        reads.ask(&asker, number, &[piece(0, number, 50_000)]);
        let (got, bytes, result) = reads.next();
        assert_eq!((got, result), (number, Ok(())));
        assert!(bytes == file[number..number + 50_000]);
    }
    for _ in 0..39 {
        go.send(()).unwrap();
    }
    drop(go); // the last one fails
    let mut refused = 0;
    for _ in 0..40 {
        let (number, bytes, result) = reads.next();
        if result == Err(ReadError::Refused) {
            refused += 1;
        } else {
            assert!(bytes == file[number..number + 1000]);
        }
    }
    assert_eq!(refused, 1);
}

#[test]
fn a_server_that_goes_loses_its_reads_and_one_that_comes_back_is_read_from() {
    let file = bytes(1 << 20);
    let (mut listeners, addresses) = listeners();
    let source = || Arc::new(Slabs(Arc::clone(&file)));
    let target = start(listeners.pop().unwrap(), 1, &addresses, TIMING, source());
    let mine = listeners.pop().unwrap();
    let asker = start(mine, 0, &addresses, TIMING, Arc::new(EmptyLogSource));
    let reads = Reads::new();
    reads.ask(&asker, 0, &[piece(0, 0, 100)]);
    assert_eq!(reads.next().2, Ok(()));
    drop(target);
    reads.ask(&asker, 1, &[piece(0, 0, 100)]);
    assert_eq!(reads.next().2, Err(CallError::Unreachable.into()));
    // Once it was given up, the first attempt that fails ends a read: it is not tried again.
    let listener = TcpListener::bind(addresses[1]).unwrap();
    let (attempted, attempts) = channel();
    let hang_up_once = std::thread::spawn(move || {
        let attempt = listener.accept().map(drop);
        attempted.send(()).unwrap();
        attempt.map(|()| listener)
    });
    reads.ask(&asker, 2, &[piece(0, 0, 100)]);
    assert_eq!(reads.next().2, Err(CallError::Unreachable.into()));
    attempts.recv_timeout(HANG).expect("an attempt");
    let listener = hang_up_once.join().unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    let again = listener.accept().unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
    let _target = start(listener, 1, &addresses, TIMING, source());
    reads.ask(&asker, 3, &[piece(0, 7, 100)]);
    assert_eq!(reads.next(), (3, file[7..107].to_vec(), Ok(())));
}

#[test]
fn a_read_ends_at_its_deadline_and_with_the_fabric() {
    let file = bytes(1 << 20);
    let (go, waits) = channel::<()>();
    let slow = Slow(Slabs(file), Mutex::new(waits));
    let (mut listeners, addresses) = listeners();
    let timing = Timing {
        deadline: Duration::from_millis(300),
        ..TIMING
    };
    let slow = Arc::new(slow);
    let target = start(listeners.pop().unwrap(), 1, &addresses, TIMING, slow);
    let mine = listeners.pop().unwrap();
    let asker = start(mine, 0, &addresses, timing, Arc::new(EmptyLogSource));
    let reads = Reads::new();
    reads.ask(&asker, 0, &[piece(1, 0, 100)]);
    assert_eq!(reads.next().2, Err(CallError::Deadline.into()));
    reads.ask(&asker, 1, &[piece(1, 0, 100)]);
    drop(asker);
    assert_eq!(reads.next().2, Err(CallError::Ended.into()));
    drop(go);
    drop(target);
}
