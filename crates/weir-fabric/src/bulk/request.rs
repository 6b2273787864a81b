//! A received READ, and the commands to the thread that sends the bytes: from the threads that read
//! storage, and from the I/O thread.

use std::net::TcpStream;

use mio::Token as Key;
use weir_core::types::Rank;

use super::Piece;
use crate::CallId;

/// A received READ.
#[derive(Debug)]
pub struct ReadRequest {
    /// The connection that it came by.
    pub(super) key: Key,
    /// The call.
    pub(super) id: CallId,
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// Bytes of all pieces.
    pub bytes: usize,
}

/// A command to the sending thread.
pub enum SenderCommand {
    /// Serve the reads of a server.
    Serve(Rank, TcpStream),
    /// A request was read from storage, or could not be.
    Staged(ReadRequest, Option<Vec<u8>>),
    /// End the thread.
    End,
}
