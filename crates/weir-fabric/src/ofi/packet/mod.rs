//! The packets of the libfabric transport: the layout, and the proof that each carries.
//!
//! ```text
//!  0        4    6      8          24     26   28        32            40            48     56
//! +--------+----+------+----------+------+----+---------+-------------+-------------+------+----
//! | magic  | v  | kind | instance | from | to | 0       | incarnation | incarnation | line | ...
//! +--------+----+------+----------+------+----+---------+-------------+-------------+------+----
//!   u32      u16  u16    16 bytes   u16   u16   u32       of `from`     of `to`       u64
//!                                                                     little-endian
//! ... what the kind says ... | MAC, 32 bytes
//! ```
//!
//! | kind | what follows |
//! | --- | --- |
//! | HELLO | the sender's libfabric name; `to`'s incarnation is 0: not known yet |
//! | WELCOME, REDIAL | nothing |
//! | REQUEST | call, ended below (u64); the parts body and bulk |
//! | REPLY | call (u64); the parts body and bulk |
//! | PING | number, requests sent (u64) |
//! | PONG | number, requests received, replies sent (u64) |
//! | GOT | call (u64): what the reply offered has been read |
//! | PULL | ticket, key, offset, length (u64) |
//! | PIECE | ticket, offset (u64), bytes |
//!
//! A part is its length (u32) and 0 (u32) with its bytes after both parts, or 1 and the key,
//! the address (u64) and the BLAKE3 hash of memory that the receiver is to read.
//!
//! The MAC is BLAKE3 over all before it, keyed with a key that is derived from the instance's
//! secret for this alone. It says who speaks and to whom, in which life of both; the line is
//! new with each greeting. So what is sent again by someone who listened is either known
//! already, or of a life or a line that has ended, and does nothing.

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
/// The longest packet. Below what providers send in one message of their own (16 KiB at rxm).
pub const PACKET_MOST: usize = 12 << 10;
/// Bytes of body and bulk that travel in the packet itself, at most.
pub const INLINE_MOST: usize = 11 << 10;
/// Bytes of a piece.
pub const PIECE_MOST: usize = INLINE_MOST;
const HEAD_BYTES: usize = 56;
const MAC_BYTES: usize = 32;

/// What MACs are made with.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// For one instance.
    pub fn derive(secret: &Secret) -> Key {
        let context = "weir fabric, packets of the libfabric transport, 1";
        Key(blake3::derive_key(context, secret.expose()))
    }

    /// The MAC of what is before it.
    pub fn mac(&self, said: &[u8]) -> Hash {
        blake3::keyed_hash(&self.0, said)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// From whom, to whom, in which lives, on which line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The instance.
    pub instance: InstanceId,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The sender's life.
    pub from_life: u64,
    /// The receiver's; 0 in greetings.
    pub to_life: u64,
    /// A number of who dialled, greater with each greeting.
    pub line: u64,
}

/// A body, or bulk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Here it is.
    Inline(Vec<u8>),
    /// It is to be read from the sender.
    Offered(Offered),
}

/// Memory of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offered {
    /// Its length in bytes.
    pub len: usize,
    /// What allows it to be read.
    pub key: u64,
    /// Where it begins.
    pub address: u64,
    /// Of its bytes.
    pub hash: Hash,
}

/// What a packet says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketContent {
    /// Who dials, by which name it is reached.
    Hello(Vec<u8>),
    /// The line stands.
    Welcome,
    /// The line does not stand: the receiver of it has another life.
    Redial,
    /// A call.
    Request {
        /// Its number.
        call: CallId,
        /// All calls below it have ended.
        ended_below: u64,
        /// What is asked.
        body: Part,
        /// Bytes of files.
        bulk: Part,
    },
    /// Its reply.
    Reply {
        /// Its number.
        call: CallId,
        /// What is answered.
        body: Part,
        /// Bytes of files.
        bulk: Part,
    },
    /// Who dialled asks what came.
    Ping {
        /// Of this ping.
        number: u64,
        /// Requests sent on the line so far.
        sent: u64,
    },
    /// This did.
    Pong {
        /// Of the ping.
        number: u64,
        /// Requests.
        received: u64,
        /// Replies that were sent.
        replied: u64,
    },
    /// What a reply offered has been read.
    Got(CallId),
    /// Send a piece of what is offered.
    Pull {
        /// Goes back with the piece.
        ticket: u64,
        /// What allows it.
        key: u64,
        /// Where the piece begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        len: usize,
    },
    /// The piece.
    Piece {
        /// Of the request for it.
        ticket: u64,
        /// Where it begins, in bytes.
        offset: u64,
        /// It.
        bytes: Vec<u8>,
    },
}

/// Why a packet is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No packet of this protocol.
    Malformed,
    /// Of another version.
    Version,
    /// Of another instance.
    Instance,
    /// For another server, or from none.
    Rank,
    /// Its MAC is wrong.
    Secret,
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Refused {
        Refused::Malformed
    }
}

/// A packet as it travels.
pub fn seal(key: &Key, head: &Head, content: &PacketContent) -> Vec<u8> {
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

/// Reads a packet that came to server `me` of `servers`. What is cheap to see is seen first;
/// nothing is believed before the MAC is right.
pub fn open(
    key: &Key,
    instance: InstanceId,
    me: Rank,
    servers: usize,
    packet: &[u8],
) -> Result<(Head, PacketContent), Refused> {
    let mut rest = Reader(packet);
    if rest.number::<4>()? != u64::from(MAGIC) {
        return Err(Refused::Malformed);
    }
    if rest.number::<2>()? != u64::from(VERSION) {
        return Err(Refused::Version);
    }
    let kind = rest.number::<2>()?;
    let head = Head {
        instance: InstanceId(*rest.take::<16>()?),
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
    // Comparing hashes takes the same time wherever they differ.
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

fn put_parts(out: &mut Vec<u8>, body: &Part, bulk: &Part) {
    // What is longer than a u32 says is refused before it gets here.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    for part in [body, bulk] {
        match part {
            Part::Inline(bytes) => {
                out.extend(length(bytes.len()));
                out.extend(0_u32.to_le_bytes());
            }
            Part::Offered(offered) => {
                out.extend(length(offered.len));
                out.extend(1_u32.to_le_bytes());
                out.extend(offered.key.to_le_bytes());
                out.extend(offered.address.to_le_bytes());
                out.extend(offered.hash.as_bytes());
            }
        }
    }
    for part in [body, bulk] {
        if let Part::Inline(bytes) = part {
            out.extend(bytes);
        }
    }
}
