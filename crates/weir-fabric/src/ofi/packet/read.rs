//! Decodes packets: every length is checked against the packet and the limits.

use blake3::Hash;
use weir_core::types::Rank;

use super::{OfferedMemory, PacketContent, PacketPart, PIECE_MOST};
use crate::frame::{Malformed, BODY_MOST, BULK_MOST};
use crate::CallId;

/// The remaining bytes.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn read_array<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, Malformed> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(first.to_vec())
    }

    /// A number of N bytes, at most 8.
    pub fn number<const N: usize>(&mut self) -> Result<u64, Malformed> {
        let bytes = self.read_array::<N>()?;
        let number = bytes.iter().rev();
        Ok(number.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub fn rank(&mut self) -> Result<Rank, Malformed> {
        Ok(Rank(u16::from_le_bytes(*self.read_array::<2>()?)))
    }

    fn length(&mut self, most: usize) -> Result<usize, Malformed> {
        let length = usize::try_from(self.number::<8>()?).map_err(|_| Malformed)?;
        (length <= most).then_some(length).ok_or(Malformed)
    }

    pub fn word(mut self, kind: u64) -> Result<PacketContent, Malformed> {
        let content = match kind {
            1 => PacketContent::Hello(self.bytes(self.0.len())?),
            2 => PacketContent::Welcome,
            3 => PacketContent::Redial,
            4 => {
                let (call, ended_below) = (CallId(self.number::<8>()?), self.number::<8>()?);
                let (body, bulk) = self.parts()?;
                PacketContent::Request {
                    call,
                    ended_below,
                    body,
                    bulk,
                }
            }
            5 => {
                let call = CallId(self.number::<8>()?);
                let (body, bulk) = self.parts()?;
                PacketContent::Reply { call, body, bulk }
            }
            6 => PacketContent::Ping {
                number: self.number::<8>()?,
                sent: self.number::<8>()?,
            },
            7 => PacketContent::Pong {
                number: self.number::<8>()?,
                received: self.number::<8>()?,
                replied: self.number::<8>()?,
            },
            8 => PacketContent::Got(CallId(self.number::<8>()?)),
            9 => PacketContent::Pull {
                ticket: self.number::<8>()?,
                key: self.number::<8>()?,
                offset: self.number::<8>()?,
                len: self.length(PIECE_MOST)?,
            },
            10 => PacketContent::Piece {
                ticket: self.number::<8>()?,
                offset: self.number::<8>()?,
                bytes: self.bytes(self.0.len())?,
            },
            _ => return Err(Malformed),
        };
        if self.0.is_empty() {
            Ok(content)
        } else {
            Err(Malformed)
        }
    }

    fn parts(&mut self) -> Result<(PacketPart, PacketPart), Malformed> {
        let body = self.part(BODY_MOST)?;
        let bulk = self.part(BULK_MOST)?;
        Ok((self.inline(body)?, self.inline(bulk)?))
    }

    /// Decodes a part's head: a length, or an offer.
    fn part(&mut self, most: usize) -> Result<Result<usize, OfferedMemory>, Malformed> {
        let len = usize::try_from(self.number::<4>()?).map_err(|_| Malformed)?;
        let offered = match self.number::<4>()? {
            0 => return Ok(Ok(len)),
            1 => OfferedMemory {
                len,
                key: self.number::<8>()?,
                address: self.number::<8>()?,
                hash: Hash::from_bytes(*self.read_array::<32>()?),
            },
            _ => return Err(Malformed),
        };
        (1..=most)
            .contains(&len)
            .then_some(Err(offered))
            .ok_or(Malformed)
    }

    fn inline(&mut self, part: Result<usize, OfferedMemory>) -> Result<PacketPart, Malformed> {
        match part {
            Ok(len) => Ok(PacketPart::Inline(self.bytes(len)?)),
            Err(offered) => Ok(PacketPart::Offered(offered)),
        }
    }
}
