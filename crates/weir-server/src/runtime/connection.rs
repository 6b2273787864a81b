//! One connection to the server's socket: frames in, frames out, never blocking.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    recv, send, sendmsg, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use weir_core::proto::{ClientKind, Hello, Role, VERSION};

use super::regions::Placeholder;
use crate::frame::{self, MAX_REQUEST};

/// The most bytes that a connection may have to send: a tool that does not read is cut off.
const MAX_PENDING: usize = 4 << 20;

/// The kind of the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// It has not said its kind yet.
    Unknown,
    /// A client process, which says nothing more.
    Client,
    /// A tool.
    Tool,
}

/// A received message.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedMessage {
    /// It is a client.
    Client(ClientKind),
    /// It is a tool.
    Tool,
    /// A tool's request.
    Request(Vec<u8>),
    /// It speaks another version: the server says so and closes.
    OtherVersion,
}

/// The reason why a connection ends: the other side has gone, or sends nonsense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionEnd {
    /// Closed, or broken.
    Gone,
    /// It sent an invalid message.
    Garbled,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// The kind of the other side.
    pub peer: Peer,
    /// Its process.
    pub pid: u32,
    /// True if that is of the server's own user.
    pub is_own: bool,
    received: Vec<u8>,
    pending: Vec<u8>,
    /// A descriptor to be sent with the first bytes.
    gift: Option<Arc<Placeholder>>,
    /// The time of the connection's beginning.
    pub since: Instant,
    /// True if it is to be closed once all is sent.
    pub closing: bool,
}

impl Connection {
    /// A connection of process `pid`, whose socket does not block. `is_own` is true if that process
    /// is of the server's own user.
    pub fn new(socket: OwnedFd, pid: u32, is_own: bool) -> Connection {
        Connection {
            socket,
            peer: Peer::Unknown,
            pid,
            is_own,
            since: Instant::now(),
            received: Vec::new(),
            pending: Vec::new(),
            gift: None,
            closing: false,
        }
    }

    /// The socket, and the events to wait for.
    pub fn interest(&self) -> (&OwnedFd, PollFlags) {
        let write = if self.pending.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        (&self.socket, PollFlags::IN | write)
    }

    /// Returns true if bytes are still to be sent.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Reads the available bytes. Returns the whole messages among them.
    pub fn receive(&mut self) -> Result<Vec<ReceivedMessage>, ConnectionEnd> {
        let mut buffer = [0; 4096];
        let mut heard = Vec::new();
        loop {
            match recv(self.socket.as_fd(), &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => return Err(ConnectionEnd::Gone),
                Ok((n, _)) => self.received.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return Ok(heard),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConnectionEnd::Gone),
            }
            while let Some(message) = frame::take_frame(&mut self.received, MAX_REQUEST)
                .map_err(|_| ConnectionEnd::Garbled)?
            {
                heard.push(self.understand(message)?);
            }
        }
    }

    fn understand(&mut self, message: Vec<u8>) -> Result<ReceivedMessage, ConnectionEnd> {
        match self.peer {
            Peer::Tool => return Ok(ReceivedMessage::Request(message)),
            Peer::Client => return Err(ConnectionEnd::Garbled),
            Peer::Unknown => {}
        }
        // Of another version, only this part of the first message is known.
        let (version, _) =
            postcard::take_from_bytes::<u32>(&message).map_err(|_| ConnectionEnd::Garbled)?;
        if version != VERSION {
            return Ok(ReceivedMessage::OtherVersion);
        }
        let hello: Hello = postcard::from_bytes(&message).map_err(|_| ConnectionEnd::Garbled)?;
        match hello.role {
            Role::Client(kind) => {
                self.peer = Peer::Client;
                Ok(ReceivedMessage::Client(kind))
            }
            Role::Control => {
                self.peer = Peer::Tool;
                Ok(ReceivedMessage::Tool)
            }
        }
    }

    /// Sends a message, now or when the other side has room.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ConnectionEnd> {
        if self.pending.len() + message.len() > MAX_PENDING {
            return Err(ConnectionEnd::Gone);
        }
        self.pending.extend(frame::frame(message));
        self.flush()
    }

    /// Sends a descriptor with the first bytes that are sent.
    pub fn give(&mut self, gift: Arc<Placeholder>) {
        self.gift = Some(gift);
    }

    /// Sends as many bytes as the other side has room for.
    pub fn flush(&mut self) -> Result<(), ConnectionEnd> {
        while !self.pending.is_empty() {
            let sent = match &self.gift {
                Some(gift) => send_with(self.socket.as_fd(), &self.pending, gift.given.as_fd()),
                None => send(self.socket.as_fd(), &self.pending, SendFlags::NOSIGNAL),
            };
            match sent {
                Ok(n) => {
                    self.gift = None;
                    self.pending.drain(..n);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConnectionEnd::Gone),
            }
        }
        Ok(())
    }
}

/// Sends bytes with a descriptor (SCM_RIGHTS, unix(7)).
fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], gift: BorrowedFd<'_>) -> Result<usize, Errno> {
    let gifts = [gift];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&gifts)) {
        return Err(Errno::NOBUFS);
    }
    let bytes = [rustix::io::IoSlice::new(bytes)];
    sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)
}
