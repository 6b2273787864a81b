//! A live end of the fabric, and its dialers: strangers with arbitrary bytes, and a peer that proves
//! that it knows the secret and then sends nonsense, on either plane.
#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fd::BorrowedFd;
use rustix::net::SendFlags;
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::bulk::{LogSource, Medium, Piece};
use weir_fabric::frame::{
    proof, FrameHead, FrameKind, Greeting, Plane, Role, GREETING_BYTES, HEAD_BYTES, PROOF_BYTES,
    VERSION,
};
use weir_fabric::{CallId, Fabric, Membership, Tcp, Timing};

static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();

fn secret() -> Secret {
    Secret::new([1; 32])
}

/// Two slabs of zeros, one in memory and one on storage.
struct Zeros;

const SLAB: [u8; 4096] = [0; 4096];

fn bytes_of(piece: &Piece) -> Option<&'static [u8]> {
    let begin = usize::try_from(piece.pos).ok()?;
    let end = begin.checked_add(piece.len as usize)?;
    SLAB.get(begin..end)
}

impl LogSource for Zeros {
    fn find(&self, piece: &Piece) -> Option<Medium> {
        bytes_of(piece)?;
        match piece.slab {
            0 => Some(Medium::Memory),
            1 => Some(Medium::Storage),
            _ => None,
        }
    }

    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> std::io::Result<usize> {
        let mut all = head.to_vec();
        for piece in pieces {
            all.extend(bytes_of(&piece).expect("only what was found is sent"));
        }
        Ok(rustix::net::send(to, &all, SendFlags::NOSIGNAL)?)
    }

    fn copy(&self, piece: &Piece, out: &mut [u8]) -> std::io::Result<()> {
        out.copy_from_slice(bytes_of(piece).expect("only what was found is copied"));
        Ok(())
    }
}

/// Starts the end that is dialled, for the life of the process.
fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let membership = Membership {
        instance: InstanceId([9; 16]),
        secret: secret(),
        rank: Rank(0),
        incarnation: 1,
        addresses: vec![address; 3],
    };
    let timing = Timing {
        handshake: Duration::from_millis(200),
        ..Timing::default()
    };
    let shelf = Arc::new(Zeros);
    let tcp = Tcp::with_log_source(listener, membership, timing, shelf, || ()).expect("threads");
    // Requests are dropped unanswered: the code under test is the one that reads them.
    std::thread::spawn(move || loop {
        while tcp.poll().is_some() {}
        std::thread::park_timeout(Duration::from_millis(1));
    });
    address
}

/// Authenticates as rank 1, with a new incarnation for each input.
fn prove(stream: &mut TcpStream, incarnation: u64, plane: Plane) -> std::io::Result<()> {
    let hello = Greeting {
        version: VERSION,
        instance: InstanceId([9; 16]),
        from: Rank(1),
        to: Rank(0),
        incarnation,
        nonce: [7; 32],
        plane: plane as u32,
    };
    let head = |kind, body| FrameHead {
        kind,
        call: CallId(0),
        body,
        bulk: 0,
    };
    stream.write_all(&head(FrameKind::Hello, GREETING_BYTES).encode())?;
    stream.write_all(&hello.encode())?;
    let mut challenge = [0; HEAD_BYTES + GREETING_BYTES + PROOF_BYTES];
    stream.read_exact(&mut challenge)?;
    let theirs: &[u8; GREETING_BYTES] = challenge[HEAD_BYTES..]
        .first_chunk()
        .expect("a challenge begins with a greeting");
    let proof = proof(&secret(), Role::Dialler, &hello, &Greeting::decode(theirs));
    stream.write_all(&head(FrameKind::Proof, PROOF_BYTES).encode())?;
    stream.write_all(proof.as_bytes())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let address = *ADDRESS.get_or_init(start);
    let [kind, bytes @ ..] = data else { return };
    let mut stream = TcpStream::connect(address).expect("it still listens");
    let proves = kind % 2 == 1;
    let plane = match kind / 2 % 2 {
        0 => Plane::Control,
        _ => Plane::Bulk,
    };
    // Both ends may find the other gone at any time.
    if proves && prove(&mut stream, u64::from(*kind / 4), plane).is_err() {
        return;
    }
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
});
