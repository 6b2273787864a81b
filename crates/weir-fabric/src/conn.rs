//! The bytes of one connection: outgoing and incoming frames. It has no socket of its own, so that
//! tests can pass pieces of any size.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Duration;

use crate::frame::{FrameHead, Malformed, HEAD_BYTES};
use crate::Message;

/// The size of one read for small messages.
const BUFFER_BYTES: usize = 4 << 10;
/// Buffers in one write.
const BATCH: usize = 16;

/// A connection over which nothing is acknowledged for this long is broken.
pub(crate) const SILENCE: Duration = Duration::from_millis(1500);

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The peer closed it, or the network broke it.
    #[error("the connection ended: {0}")]
    Ended(std::io::Error),
    /// The bytes are not a frame.
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// Returns true if an error says that nothing was received for long.
pub(crate) fn is_silence(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::TimedOut
}

/// Frames to be sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    buffers: VecDeque<Vec<u8>>,
    /// Bytes of the first buffer that were written.
    sent: usize,
}

impl Outgoing {
    /// Adds a frame.
    pub fn push(&mut self, head: &FrameHead, prefix: &[u8], message: Message) {
        let mut first = Vec::with_capacity(HEAD_BYTES + prefix.len() + message.body.len());
        first.extend_from_slice(&head.encode());
        first.extend_from_slice(prefix);
        first.extend_from_slice(&message.body);
        self.buffers.push_back(first);
        if !message.bulk.is_empty() {
            self.buffers.push_back(message.bulk);
        }
    }

    /// Returns true if everything was written.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Writes as much as possible without waiting; returns true if everything was written.
    pub fn write_to(&mut self, to: &mut impl Write) -> Result<bool, ConnectionError> {
        while !self.buffers.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .buffers
                .iter()
                .take(BATCH)
                .enumerate()
                .map(|(i, buffer)| IoSlice::new(&buffer[if i == 0 { self.sent } else { 0 }..]))
                .collect();
            match to.write_vectored(&slices) {
                Ok(0) => return Err(ConnectionError::Ended(ErrorKind::WriteZero.into())),
                Ok(done) => self.advance(done),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ConnectionError::Ended(e)),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, mut done: usize) {
        while let Some(first) = self.buffers.front() {
            let left = first.len() - self.sent;
            if done < left {
                self.sent += done;
                return;
            }
            done -= left;
            self.sent = 0;
            self.buffers.pop_front();
        }
    }
}

/// Frames being received.
#[derive(Debug)]
pub struct Incoming {
    head: [u8; HEAD_BYTES],
    got: usize,
    frame: Option<(FrameHead, Message)>,
    /// The peer has proved its identity. Before that, no memory is allocated for the lengths that
    /// it announces.
    admitted: bool,
    /// Bytes read ahead, if reading ahead is allowed.
    ahead: Option<ReadAhead>,
    /// The peer closed the connection: the rest is to be read.
    closed: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        Incoming {
            head: [0; HEAD_BYTES],
            got: 0,
            frame: None,
            admitted: false,
            ahead: None,
            closed: false,
        }
    }
}

impl Incoming {
    /// The peer has proved its identity. With `ahead`, several small messages may be read at a
    /// time, so that the socket can no longer be handed over.
    pub fn admit(&mut self, ahead: bool) {
        self.admitted = true;
        self.ahead = ahead.then(ReadAhead::default);
    }

    /// The poll reported more bytes, or the end of the connection.
    pub fn happened(&mut self, closed: bool) {
        if let Some(ahead) = &mut self.ahead {
            ahead.drained = false;
        }
        self.closed |= closed;
    }

    /// Reads on: returns the next whole frame, or `None` if no more bytes are there now.
    pub fn read_from(
        &mut self,
        from: &mut impl Read,
    ) -> Result<Option<(FrameHead, Message)>, ConnectionError> {
        loop {
            let got = self.got;
            let rest = match &mut self.frame {
                None => &mut self.head[got..],
                Some((head, message)) if got < head.body => &mut message.body[got..],
                Some((head, message)) => &mut message.bulk[got - head.body..],
            };
            if !rest.is_empty() {
                let read = match &mut self.ahead {
                    None => from.read(rest),
                    Some(ahead) => {
                        let read = ahead.read(from, rest);
                        // Bytes that came before the peer closed are read to the end.
                        ahead.drained &= !self.closed;
                        read
                    }
                };
                match read {
                    Ok(0) => return Err(ConnectionError::Ended(ErrorKind::UnexpectedEof.into())),
                    Ok(more) => self.got += more,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return Err(ConnectionError::Ended(e)),
                }
            }
            if let Some(whole) = self.step()? {
                return Ok(Some(whole));
            }
        }
    }

    /// Goes from the head to the frame, and from the frame to its end.
    fn step(&mut self) -> Result<Option<(FrameHead, Message)>, ConnectionError> {
        match &self.frame {
            None if self.got == HEAD_BYTES => {
                let head = FrameHead::decode(&self.head)?;
                if !self.admitted && !head.kind.is_of_handshake() {
                    return Err(Malformed.into());
                }
                let message = Message {
                    body: vec![0; head.body],
                    bulk: vec![0; head.bulk],
                };
                self.got = 0;
                self.frame = Some((head, message));
                self.finish()
            }
            None => Ok(None),
            Some(_) => self.finish(),
        }
    }

    #[allow(clippy::unnecessary_wraps)] // the caller returns it as is
    fn finish(&mut self) -> Result<Option<(FrameHead, Message)>, ConnectionError> {
        let whole = |(head, _): &(FrameHead, Message)| self.got == head.body + head.bulk;
        if !self.frame.as_ref().is_some_and(whole) {
            return Ok(None);
        }
        self.got = 0;
        Ok(self.frame.take())
    }
}

/// Bytes that were read beyond the end of a frame. A small message then costs one read, and an
/// empty socket is known without another read.
#[derive(Debug, Default)]
struct ReadAhead {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out.
    taken: usize,
    /// The last read emptied the socket; the poll reports more bytes.
    drained: bool,
}

impl ReadAhead {
    fn read(&mut self, from: &mut impl Read, out: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.buffer.len() {
            if self.drained {
                return Err(ErrorKind::WouldBlock.into());
            }
            if out.len() >= BUFFER_BYTES {
                return from.read(out);
            }
            self.buffer.resize(BUFFER_BYTES, 0);
            self.taken = BUFFER_BYTES;
            let read = from.read(&mut self.buffer)?;
            self.buffer.truncate(read);
            self.taken = 0;
            self.drained = read > 0 && read < BUFFER_BYTES;
        }
        let some = out.len().min(self.buffer.len() - self.taken);
        out[..some].copy_from_slice(&self.buffer[self.taken..self.taken + some]);
        self.taken += some;
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use crate::CallId;
    use proptest::prelude::*;

    /// Gives and takes a few bytes at a time, and would block in between.
    struct Trickle {
        bytes: VecDeque<u8>,
        steps: Vec<usize>,
        at: usize,
    }

    impl Trickle {
        fn step(&mut self) -> Option<usize> {
            self.at += 1;
            let step = self.steps[self.at % self.steps.len()];
            (step > 0).then_some(step)
        }
    }

    impl Read for Trickle {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let step = self.step().ok_or(ErrorKind::WouldBlock)?;
            let take = step.min(out.len()).min(self.bytes.len());
            if take == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            for (byte, next) in out.iter_mut().zip(self.bytes.drain(..take)) {
                *byte = next;
            }
            Ok(take)
        }
    }

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let step = self.step().ok_or(ErrorKind::WouldBlock)?;
            let take = step.min(bytes.len());
            self.bytes.extend(&bytes[..take]);
            Ok(take)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_pieces(
            sizes in proptest::collection::vec((0..300usize, 0..300usize), 1..8),
            mut steps in proptest::collection::vec(0..40usize, 1..9),
            ahead in any::<bool>(),
        ) {
            steps.push(7);
            let mut wire = Trickle { bytes: VecDeque::new(), steps, at: 0 };
            let mut out = Outgoing::default();
            let mut sent = Vec::new();
            for (i, (body, bulk)) in (0_u8..).zip(&sizes) {
                let message = Message { body: vec![i; *body], bulk: vec![!i; *bulk] };
                let head = FrameHead { kind: FrameKind::Reply, call: CallId(i.into()), body: *body, bulk: *bulk };
                out.push(&head, &[], message.clone());
                sent.push((head, message));
            }
            while !out.write_to(&mut wire).unwrap() {}
            let mut incoming = Incoming::default();
            incoming.admit(ahead);
            let mut came = Vec::new();
            while came.len() < sent.len() {
                incoming.happened(false);
                came.extend(incoming.read_from(&mut wire).unwrap());
            }
            prop_assert_eq!(came, sent);
        }

        #[test]
        fn garbage_is_an_error_at_its_head_or_where_it_ends(
            mut bytes in proptest::collection::vec(any::<u8>(), HEAD_BYTES..200),
            head in proptest::option::of((0..4_usize, 0..90_usize)),
        ) {
            // Half of them begin with a head, so that its lengths are believed.
            if let Some((body, bulk)) = head {
                let head = FrameHead { kind: FrameKind::Reply, call: CallId(7), body, bulk };
                bytes[..HEAD_BYTES].copy_from_slice(&head.encode());
            }
            let mut incoming = Incoming::default();
            incoming.admit(false);
            let mut left = &bytes[..];
            loop {
                let before = left;
                let head = before.first_chunk().map(FrameHead::decode);
                match (incoming.read_from(&mut left), head) {
                    (Ok(Some((head, message))), Some(Ok(sent))) => {
                        let end = HEAD_BYTES + head.body + head.bulk;
                        prop_assert_eq!(&head, &sent);
                        prop_assert_eq!(&[message.body, message.bulk].concat()[..], &before[HEAD_BYTES..end]);
                        prop_assert_eq!(left.len(), before.len() - end);
                    }
                    (Err(ConnectionError::Malformed(_)), Some(Err(_))) => {
                        prop_assert_eq!(left.len(), before.len() - HEAD_BYTES, "read on");
                        break;
                    }
                    (Err(ConnectionError::Ended(_)), None | Some(Ok(_))) => {
                        prop_assert_eq!(left.len(), 0);
                        break;
                    }
                    (read, head) => prop_assert!(false, "{read:?} of {head:?}"),
                }
            }
        }
    }
}
