//! The packets of the libfabric transport: the layout, and the MAC of each.
//!
//! ```text
//!  0        4    6      8          24     26   28        32            40            48     56
//! +--------+----+------+----------+------+----+---------+-------------+-------------+------+----
//! | magic  | v  | kind | instance | from | to | 0       | incarnation | incarnation | line | ...
//! +--------+----+------+----------+------+----+---------+-------------+-------------+------+----
//!   u32      u16  u16    16 bytes   u16   u16   u32       of `from`     of `to`       u64
//!                                                                     little-endian
//! ... the content ... | MAC, 32 bytes
//! ```
//!
//! | kind | content |
//! | --- | --- |
//! | HELLO | the sender's libfabric name; `to`'s incarnation is 0: not known yet |
//! | WELCOME, REDIAL | nothing |
//! | REQUEST | call, ended below (u64); the parts body and bulk |
//! | REPLY | call (u64); the parts body and bulk |
//! | PING | number, requests sent (u64) |
//! | PONG | number, requests received, replies sent (u64) |
//! | GOT | call (u64): the reply's offered memory has been read |
//! | PULL | ticket, key, offset, length (u64) |
//! | PIECE | ticket, offset (u64), bytes |
//!
//! A part is its length (u32) and 0 (u32), with its bytes after both parts; or its length and 1,
//! with the key, the address (u64) and the BLAKE3 hash of memory that the receiver is to read.
//!
//! The MAC is BLAKE3 over all bytes before it, keyed with a key that is derived from the instance's
//! secret for this purpose alone. It covers the sender and the receiver, the incarnations of both,
//! and the line, which is new with each greeting. So a replayed packet is either a known duplicate,
//! or of an incarnation or a line that has ended, and has no effect.

mod read;
#[cfg(test)]
mod tests;

use blake3::Hash;
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;

use crate::frame::Malformed;
use crate::CallId;
use read::Reader;

/// The version of this format and of `proto::peer`.
pub const VERSION: u16 = 1;
/// "WFOF".
const MAGIC: u32 = u32::from_le_bytes(*b"WFOF");
/// The longest packet: shorter than one message of the providers' own (16 KiB at rxm).
pub const PACKET_MOST: usize = 12 << 10;
/// The most bytes of body and bulk that travel in the packet itself.
pub const INLINE_MOST: usize = 11 << 10;
/// The most bytes of a piece.
pub const PIECE_MOST: usize = INLINE_MOST;
const HEAD_BYTES: usize = 56;
const MAC_BYTES: usize = 32;

/// The key of MACs.
#[derive(Clone)]
pub struct MacKey([u8; 32]);

impl MacKey {
    /// Derives the key of an instance.
    pub fn derive(secret: &Secret) -> MacKey {
        let context = "weir fabric, packets of the libfabric transport, 1";
        MacKey(blake3::derive_key(context, secret.expose()))
    }

    /// The MAC of the bytes before it.
    pub fn mac(&self, said: &[u8]) -> Hash {
        blake3::keyed_hash(&self.0, said)
    }
}

impl std::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MacKey(..)")
    }
}

/// The sender and receiver of a packet, their incarnations, and the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketHead {
    /// The instance.
    pub instance: InstanceId,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The sender's incarnation.
    pub from_life: u64,
    /// The receiver's incarnation; 0 in greetings.
    pub to_life: u64,
    /// A number of the dialler, greater with each greeting.
    pub line: u64,
}

/// A body or bulk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketPart {
    /// The bytes.
    Inline(Vec<u8>),
    /// Memory that the receiver reads.
    Offered(OfferedMemory),
}

/// Memory of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfferedMemory {
    /// The length in bytes.
    pub len: usize,
    /// The key that permits the read.
    pub key: u64,
    /// The start address.
    pub address: u64,
    /// The hash of the bytes.
    pub hash: Hash,
}

/// The content of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketContent {
    /// The dialler greets, with its libfabric name.
    Hello(Vec<u8>),
    /// The line is open.
    Welcome,
    /// The line is not open: the receiver has another incarnation.
    Redial,
    /// A call.
    Request {
        /// Its id.
        call: CallId,
        /// All calls below it have ended.
        ended_below: u64,
        /// The operation.
        body: PacketPart,
        /// Bytes of files.
        bulk: PacketPart,
    },
    /// A reply.
    Reply {
        /// The call's id.
        call: CallId,
        /// The result.
        body: PacketPart,
        /// Bytes of files.
        bulk: PacketPart,
    },
    /// The dialler asks for the counts of received messages.
    Ping {
        /// The ping's number.
        number: u64,
        /// Requests sent on the line so far.
        sent: u64,
    },
    /// The counts.
    Pong {
        /// The ping's number.
        number: u64,
        /// Requests received.
        received: u64,
        /// Replies sent.
        replied: u64,
    },
    /// The caller has read the reply's offered memory.
    Got(CallId),
    /// A request for a piece of offered memory.
    Pull {
        /// Returned with the piece.
        ticket: u64,
        /// The key that permits the read.
        key: u64,
        /// The offset of the piece in bytes.
        offset: u64,
        /// The length in bytes.
        len: usize,
    },
    /// A piece of offered memory.
    Piece {
        /// The request's ticket.
        ticket: u64,
        /// The offset in bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// The reason why a packet is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Not a packet of this protocol.
    Malformed,
    /// Another version.
    Version,
    /// Another instance.
    Instance,
    /// Another receiver, or an unknown sender.
    Rank,
    /// A wrong MAC.
    Secret,
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Refused {
        Refused::Malformed
    }
}

/// Encodes a packet and adds its MAC.
pub fn seal(key: &MacKey, head: &PacketHead, content: &PacketContent) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend(MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend(kind(content).to_le_bytes());
    out.extend(head.instance.0);
    out.extend(head.from.0.to_le_bytes());
    out.extend(head.to.0.to_le_bytes());
    out.extend([0; 4]);
    for number in [head.from_life, head.to_life, head.line] {
        out.extend(number.to_le_bytes());
    }
    let mut numbers = |numbers: &[u64]| {
        out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    };
    match content {
        PacketContent::Hello(name) => out.extend(name),
        PacketContent::Welcome | PacketContent::Redial => {}
        PacketContent::Request {
            call,
            ended_below,
            body,
            bulk,
        } => {
            numbers(&[call.0, *ended_below]);
            put_parts(&mut out, body, bulk);
        }
        PacketContent::Reply { call, body, bulk } => {
            numbers(&[call.0]);
            put_parts(&mut out, body, bulk);
        }
        PacketContent::Ping { number, sent } => numbers(&[*number, *sent]),
        PacketContent::Pong {
            number,
            received,
            replied,
        } => numbers(&[*number, *received, *replied]),
        PacketContent::Got(call) => numbers(&[call.0]),
        PacketContent::Pull {
            ticket,
            key,
            offset,
            len,
        } => numbers(&[*ticket, *key, *offset, *len as u64]),
        PacketContent::Piece {
            ticket,
            offset,
            bytes,
        } => {
            numbers(&[*ticket, *offset]);
            out.extend(bytes);
        }
    }
    let mac = key.mac(&out);
    out.extend(mac.as_bytes());
    assert!(out.len() <= PACKET_MOST, "parts are offered when too long");
    out
}

/// Decodes a packet that came to server `me` of `servers`. Cheap checks come first; nothing is
/// trusted before the MAC is checked.
pub fn open(
    key: &MacKey,
    instance: InstanceId,
    me: Rank,
    servers: usize,
    packet: &[u8],
) -> Result<(PacketHead, PacketContent), Refused> {
    let mut rest = Reader(packet);
    if rest.number::<4>()? != u64::from(MAGIC) {
        return Err(Refused::Malformed);
    }
    if rest.number::<2>()? != u64::from(VERSION) {
        return Err(Refused::Version);
    }
    let kind = rest.number::<2>()?;
    let head = PacketHead {
        instance: InstanceId(*rest.read_array::<16>()?),
        from: rest.rank()?,
        to: rest.rank()?,
        from_life: {
            if rest.number::<4>()? != 0 {
                return Err(Refused::Malformed);
            }
            rest.number::<8>()?
        },
        to_life: rest.number::<8>()?,
        line: rest.number::<8>()?,
    };
    if head.instance != instance {
        return Err(Refused::Instance);
    }
    if head.to != me || head.from == me || usize::from(head.from.0) >= servers {
        return Err(Refused::Rank);
    }
    let end = packet.len().checked_sub(MAC_BYTES).ok_or(Malformed)?;
    if end < HEAD_BYTES {
        return Err(Refused::Malformed);
    }
    let (said, mac) = packet.split_at(end);
    let mac = mac.first_chunk::<MAC_BYTES>().ok_or(Malformed)?;
    // Hashes are compared in constant time.
    if key.mac(said) != *mac {
        return Err(Refused::Secret);
    }
    let content = Reader(&said[HEAD_BYTES..]).word(kind)?;
    Ok((head, content))
}

fn kind(content: &PacketContent) -> u16 {
    match content {
        PacketContent::Hello(_) => 1,
        PacketContent::Welcome => 2,
        PacketContent::Redial => 3,
        PacketContent::Request { .. } => 4,
        PacketContent::Reply { .. } => 5,
        PacketContent::Ping { .. } => 6,
        PacketContent::Pong { .. } => 7,
        PacketContent::Got(_) => 8,
        PacketContent::Pull { .. } => 9,
        PacketContent::Piece { .. } => 10,
    }
}

fn put_parts(out: &mut Vec<u8>, body: &PacketPart, bulk: &PacketPart) {
    // A part longer than a u32 is refused before this.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    for part in [body, bulk] {
        match part {
            PacketPart::Inline(bytes) => {
                out.extend(length(bytes.len()));
                out.extend(0_u32.to_le_bytes());
            }
            PacketPart::Offered(offered) => {
                out.extend(length(offered.len));
                out.extend(1_u32.to_le_bytes());
                out.extend(offered.key.to_le_bytes());
                out.extend(offered.address.to_le_bytes());
                out.extend(offered.hash.as_bytes());
            }
        }
    }
    for part in [body, bulk] {
        if let PacketPart::Inline(bytes) = part {
            out.extend(bytes);
        }
    }
}
