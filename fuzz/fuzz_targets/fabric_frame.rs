//! The fabric's frames, cut into pieces of any size.
#![no_main]

use std::io::{ErrorKind, Read};

use weir_fabric::conn::Incoming;
use weir_fabric::frame::{FrameHead, Greeting, GREETING_BYTES, HEAD_BYTES};

/// Yields the bytes in pieces of `step`, with "would block" between them.
struct Pieces<'a> {
    bytes: &'a [u8],
    step: usize,
    ready: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.ready = !self.ready;
        if self.ready {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = self.step.min(out.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(n);
        out[..n].copy_from_slice(now);
        self.bytes = later;
        Ok(n)
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [step, bytes @ ..] = data else { return };
    if let Some(head) = bytes.first_chunk::<HEAD_BYTES>() {
        if let Ok(head) = FrameHead::decode(head) {
            assert_eq!(FrameHead::decode(&head.encode()), Ok(head));
        }
    }
    if let Some(greeting) = bytes.first_chunk::<GREETING_BYTES>() {
        assert_eq!(&Greeting::decode(greeting).encode(), greeting);
    }
    let mut from = Pieces {
        bytes,
        step: usize::from(*step / 2) + 1,
        ready: false,
    };
    let mut incoming = Incoming::default();
    let admitted = step % 2 == 0;
    if admitted {
        incoming.admit(step % 4 == 0);
    }
    let mut taken = 0;
    loop {
        match incoming.read_from(&mut from) {
            Ok(Some((head, message))) => {
                assert_eq!(
                    (head.body, head.bulk),
                    (message.body.len(), message.bulk.len())
                );
                assert!(admitted || head.kind.is_of_handshake());
                taken += HEAD_BYTES + head.body + head.bulk;
            }
            Ok(None) => incoming.happened(false),
            Err(_) => break,
        }
    }
    assert!(taken <= bytes.len(), "frames are made of what came");
});
