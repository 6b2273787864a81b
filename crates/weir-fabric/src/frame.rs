//! The wire format, and the proof that both ends know the secret.
//!
//! ```text
//! frame:   0        4        8                16       20       24
//!         +--------+--------+----------------+--------+--------+------+------+
//!         | magic  | kind   | call           | body   | bulk   | body | bulk |
//!         +--------+--------+----------------+--------+--------+------+------+
//!           u32      u32      u64              u32      u32        little-endian
//!
//! dialler                                    acceptor
//!   HELLO  version, instance, from, to,
//!          incarnation, nonce, plane    --->
//!                                       <--- CHALLENGE  the acceptor's greeting, and
//!                                                       proof("acceptor", both)
//!   PROOF  proof("dialler", both)       --->
//!   REQUEST, REPLY, REQUEST, ...        --->
//!                                       <--- REPLY, REQUEST, REPLY, ...
//! or, on a connection of the bulk plane:
//!   READ, READ, ...                     --->
//!                                       <--- BYTES or REFUSED, in any order
//! ```
//!
//! A proof is the keyed BLAKE3 hash of a word for the role and of both greetings, under the
//! instance's secret; the nonces make each handshake unique. REQUEST's body begins with the id
//! below which all calls of the caller have ended, so that the receiver can forget them. READ's
//! body is up to [`PIECES_MOST`] pieces of a log, each slab (u32), length (u32), position (u64),
//! [`READ_MOST`] bytes in all; BYTES has them as its bulk, one after the other.

use blake3::Hash;
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;

use crate::CallId;

/// The version of this format and of `proto::peer`.
pub const VERSION: u32 = 4;
/// "WFAB".
const MAGIC: u32 = u32::from_le_bytes(*b"WFAB");
/// The size of a frame's head.
pub const HEAD_BYTES: usize = 24;
/// The longest body.
pub const BODY_MOST: usize = 8 << 20;
/// The longest bulk.
pub const BULK_MOST: usize = 16 << 20;
/// The most bytes of files that one READ asks for.
pub const READ_MOST: usize = 1 << 20;
/// The most pieces of one READ.
pub const PIECES_MOST: usize = 4096;
/// The encoded size of a piece.
pub const PIECE_BYTES: usize = 16;
/// The encoded size of a greeting.
pub const GREETING_BYTES: usize = 4 + 16 + 2 + 2 + 8 + 32 + 4;
/// The size of a proof.
pub const PROOF_BYTES: usize = 32;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FrameKind {
    /// A dialler's greeting.
    Hello = 1,
    /// An acceptor's greeting and proof.
    Challenge = 2,
    /// A dialler's proof.
    Proof = 3,
    /// A call.
    Request = 4,
    /// A reply.
    Reply = 5,
    /// A request for bytes of the log.
    Read = 6,
    /// The bytes.
    Bytes = 7,
    /// There are no such bytes, or they cannot be read.
    Refused = 8,
}

impl FrameKind {
    /// Returns true if the frame is part of the handshake.
    pub fn is_of_handshake(self) -> bool {
        matches!(
            self,
            FrameKind::Hello | FrameKind::Challenge | FrameKind::Proof
        )
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Plane {
    /// Requests and replies.
    Control = 0,
    /// Bytes of logs, read without the service thread of either end.
    Bulk = 1,
}

/// A frame's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// The frame's kind.
    pub kind: FrameKind,
    /// The call, of requests and replies.
    pub call: CallId,
    /// Bytes of the body.
    pub body: usize,
    /// Bytes of the bulk.
    pub bulk: usize,
}

/// Bytes that are not a frame of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a frame")]
pub struct Malformed;

impl FrameHead {
    /// Encodes the head.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[8..16].copy_from_slice(&self.call.0.to_le_bytes());
        out[16..20].copy_from_slice(&length(self.body).to_le_bytes());
        out[20..24].copy_from_slice(&length(self.bulk).to_le_bytes());
        out
    }

    /// Decodes a head and checks its lengths against the limits; frames of a handshake have fixed
    /// lengths.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<FrameHead, Malformed> {
        let word = |at: usize| -> [u8; 4] { core::array::from_fn(|i| bytes[at + i]) };
        let number = |at| u32::from_le_bytes(word(at));
        let kind = match number(4) {
            1 => FrameKind::Hello,
            2 => FrameKind::Challenge,
            3 => FrameKind::Proof,
            4 => FrameKind::Request,
            5 => FrameKind::Reply,
            6 => FrameKind::Read,
            7 => FrameKind::Bytes,
            8 => FrameKind::Refused,
            _ => return Err(Malformed),
        };
        let head = FrameHead {
            kind,
            call: CallId(u64::from(number(8)) | u64::from(number(12)) << 32),
            body: usize::try_from(number(16)).map_err(|_| Malformed)?,
            bulk: usize::try_from(number(20)).map_err(|_| Malformed)?,
        };
        let good = match kind {
            FrameKind::Hello => (head.body, head.bulk) == (GREETING_BYTES, 0),
            FrameKind::Challenge => (head.body, head.bulk) == (GREETING_BYTES + PROOF_BYTES, 0),
            FrameKind::Proof => (head.body, head.bulk) == (PROOF_BYTES, 0),
            FrameKind::Request | FrameKind::Reply => {
                head.body <= BODY_MOST && head.bulk <= BULK_MOST
            }
            FrameKind::Read => {
                let pieces = head.body / PIECE_BYTES;
                head.bulk == 0
                    && head.body.is_multiple_of(PIECE_BYTES)
                    && (1..=PIECES_MOST).contains(&pieces)
            }
            FrameKind::Bytes => head.body == 0 && (1..=READ_MOST).contains(&head.bulk),
            FrameKind::Refused => (head.body, head.bulk) == (0, 0),
        };
        (number(0) == MAGIC && good)
            .then_some(head)
            .ok_or(Malformed)
    }
}

/// Lengths above the limits are refused before this.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The sender and the receiver of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// [`VERSION`].
    pub version: u32,
    /// The instance.
    pub instance: InstanceId,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The sender's incarnation.
    pub incarnation: u64,
    /// A random number, never repeated.
    pub nonce: [u8; 32],
    /// The purpose of the connection; unchecked as received.
    pub plane: u32,
}

impl Greeting {
    /// Decodes the purpose of the connection.
    pub fn plane(&self) -> Result<Plane, Malformed> {
        match self.plane {
            0 => Ok(Plane::Control),
            1 => Ok(Plane::Bulk),
            _ => Err(Malformed),
        }
    }

    /// Encodes the greeting.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[0..4].copy_from_slice(&self.version.to_le_bytes());
        out[4..20].copy_from_slice(&self.instance.0);
        out[20..22].copy_from_slice(&self.from.0.to_le_bytes());
        out[22..24].copy_from_slice(&self.to.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        out[32..64].copy_from_slice(&self.nonce);
        out[64..68].copy_from_slice(&self.plane.to_le_bytes());
        out
    }

    /// Decodes a greeting.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Greeting {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            core::array::from_fn(|i| bytes[at + i])
        }
        Greeting {
            version: u32::from_le_bytes(part(bytes, 0)),
            instance: InstanceId(part(bytes, 4)),
            from: Rank(u16::from_le_bytes(part(bytes, 20))),
            to: Rank(u16::from_le_bytes(part(bytes, 22))),
            incarnation: u64::from_le_bytes(part(bytes, 24)),
            nonce: part(bytes, 32),
            plane: u32::from_le_bytes(part(bytes, 64)),
        }
    }
}

/// The end that proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The end that dialled.
    Dialler,
    /// The end that was dialled.
    Acceptor,
}

/// Computes the proof of one end. Compare with `==`: [`struct@Hash`] compares in constant time.
pub fn proof(secret: &Secret, role: Role, dialler: &Greeting, acceptor: &Greeting) -> Hash {
    let word: &[u8] = match role {
        Role::Dialler => b"weir fabric dialler 1",
        Role::Acceptor => b"weir fabric acceptor 1",
    };
    let mut hasher = blake3::Hasher::new_keyed(secret.expose());
    hasher.update(word);
    hasher.update(&dialler.encode());
    hasher.update(&acceptor.encode());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn greeting(from: u16, to: u16, nonce: u8) -> Greeting {
        Greeting {
            version: VERSION,
            instance: InstanceId([7; 16]),
            from: Rank(from),
            to: Rank(to),
            incarnation: u64::from(nonce),
            nonce: [nonce; 32],
            plane: Plane::Control as u32,
        }
    }

    #[test]
    fn a_proof_is_of_one_secret_role_and_handshake() {
        let (secret, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let (a, b) = (greeting(0, 1, 3), greeting(1, 0, 4));
        let good = proof(&secret, Role::Dialler, &a, &b);
        assert_eq!(good, proof(&secret, Role::Dialler, &a, &b));
        for bad in [
            proof(&other, Role::Dialler, &a, &b),
            proof(&secret, Role::Acceptor, &a, &b),
            proof(&secret, Role::Dialler, &b, &a),
            proof(&secret, Role::Dialler, &a, &greeting(1, 0, 5)),
        ] {
            assert_ne!(good, bad);
        }
    }

    proptest! {
        #[test]
        fn heads_survive_and_garbage_is_refused(bytes in any::<[u8; HEAD_BYTES]>(), call in any::<u64>(), body in 0..=BODY_MOST, bulk in 0..=BULK_MOST) {
            let head = FrameHead { kind: FrameKind::Reply, call: CallId(call), body, bulk };
            prop_assert_eq!(FrameHead::decode(&head.encode()), Ok(head));
            if let Ok(read) = FrameHead::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }

        #[test]
        fn greetings_survive(version in any::<u32>(), instance in any::<[u8; 16]>(), from in any::<u16>(), to in any::<u16>(), incarnation in any::<u64>(), nonce in any::<[u8; 32]>(), plane in any::<u32>()) {
            let said = Greeting { version, instance: InstanceId(instance), from: Rank(from), to: Rank(to), incarnation, nonce, plane };
            prop_assert_eq!(Greeting::decode(&said.encode()), said);
        }
    }
}
