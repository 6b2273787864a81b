//! The format of a journal: its head, its frames, its end.
//!
//! ```text
//! head, 64 bytes:  magic "weirjrnl" | version u32 | rank u16 | servers u16 | instance, 16 bytes
//!                  | made_ns i64 | zeros | crc32c of the 60 bytes before, u32
//! end, 8 bytes:    the number of frames, 40 bits | crc32c of that, 24 bits
//!
//! frame, at a multiple of 8:
//!   0        4            8                16
//!  | length | crc32c     | sequence       | payload, `length` bytes | zeros up to 8 |
//!             of 8..16+length
//! ```
//!
//! All numbers are little-endian. The writer stores a frame's first eight bytes last, so that a
//! frame is there as a whole or not at all; then it updates the end. The last frame is followed by
//! zeros, or by a frame that was being written: that one is *torn*, and dropped. If a good frame
//! follows bad bytes, the journal is corrupt. If the end counts more frames than there are, the last
//! ones are missing, even if no frame is torn.

use super::JournalError;
use crate::types::Rank;

/// The first bytes of a journal.
pub const MAGIC: [u8; 8] = *b"weirjrnl";
/// The format's version; another one is refused.
pub const VERSION: u32 = 6;
/// The position of the end.
pub const END_AT: usize = 64;
/// Bytes of the head, with the end.
pub const HEAD_BYTES: usize = 72;
/// Bits of the end that count frames.
const COUNT_BITS: u32 = 40;
/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 16;
/// The longest payload, bytes. Writers cut longer ones between items.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// The contents of a journal's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The server that the journal belongs to.
    pub rank: Rank,
    /// The number of servers in its instance.
    pub servers: u16,
    /// The instance; zeros where there is one server.
    pub instance: [u8; 16],
    /// The time of its creation, ns since 1970.
    pub made_ns: i64,
}

impl Head {
    /// Encodes the head.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.rank.0.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.servers.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.instance);
        bytes[32..40].copy_from_slice(&self.made_ns.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..END_AT].copy_from_slice(&crc.to_le_bytes());
        bytes[END_AT..].copy_from_slice(&end_word(0).to_le_bytes());
        bytes
    }

    /// Decodes the head of a journal.
    pub fn decode(bytes: &[u8]) -> Result<Head, JournalError> {
        let bad = JournalError::NotAJournal {
            found_bytes: bytes.len(),
        };
        let head = bytes.get(..HEAD_BYTES).ok_or_else(|| bad.clone())?;
        if head[..8] != MAGIC || crc32c::crc32c(&head[..60]) != word(head, 60) {
            return Err(bad);
        }
        let found = word(head, 8);
        if found != VERSION {
            return Err(JournalError::Version { found });
        }
        let mut instance = [0; 16];
        instance.copy_from_slice(&head[16..32]);
        Ok(Head {
            rank: Rank(u16::from_le_bytes([head[12], head[13]])),
            servers: u16::from_le_bytes([head[14], head[15]]),
            instance,
            made_ns: long(head, 32).cast_signed(),
        })
    }
}

/// Returns the word at [`END_AT`] for this number of frames.
pub fn end_word(frames: u64) -> u64 {
    let count = frames & ((1 << COUNT_BITS) - 1);
    count | u64::from(crc32c::crc32c(&count.to_le_bytes())) << COUNT_BITS
}

/// Returns the number of frames that the end of a journal records.
pub fn recorded_frames(bytes: &[u8]) -> Result<u64, JournalError> {
    let told = bytes.get(END_AT..HEAD_BYTES).map(|word| long(word, 0));
    let count = told.map_or(0, |word| word & ((1 << COUNT_BITS) - 1));
    match told {
        Some(word) if word == end_word(count) => Ok(count),
        _ => Err(JournalError::NoEnd),
    }
}

/// Returns the two words before `payload` in its frame; the first must be stored last. `None`: the
/// payload is too long.
pub fn frame_words(sequence: u64, payload: &[u8]) -> Option<[u64; 2]> {
    let length = u32::try_from(payload.len()).ok()?;
    let crc = checksum(sequence, payload);
    Some([u64::from(length) | u64::from(crc) << 32, sequence])
}

/// Returns the size of the frame of such a payload.
pub fn frame_bytes(payload_bytes: usize) -> usize {
    (FRAME_HEAD_BYTES + payload_bytes).next_multiple_of(8)
}

fn checksum(sequence: u64, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&sequence.to_le_bytes()), payload)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// One whole frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The position of its first byte.
    pub at: usize,
    /// Its number; the first has 0.
    pub sequence: u64,
    /// Its contents.
    pub payload: &'a [u8],
}

/// The beginning of a frame that was being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TornFrame {
    /// The position of its first byte.
    pub at: usize,
    /// Bytes from there to the last one that is not zero.
    pub bytes: usize,
}

/// Reads the frames of a journal, one after the other.
pub fn frames(bytes: &[u8]) -> Frames<'_> {
    Frames {
        bytes,
        at: HEAD_BYTES,
        sequence: 0,
        torn: None,
    }
}

/// A reader of frames: see [`frames`].
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    sequence: u64,
    torn: Option<TornFrame>,
}

impl<'a> Frames<'a> {
    /// Returns the next whole frame; `None` behind the last.
    #[allow(clippy::should_implement_trait)] // an error ends it, which an iterator cannot say
    pub fn next(&mut self) -> Result<Option<Frame<'a>>, JournalError> {
        if let Some(frame) = self
            .frame_at(self.at)
            .filter(|f| f.sequence == self.sequence)
        {
            self.at += frame_bytes(frame.payload.len());
            self.sequence += 1;
            return Ok(Some(frame));
        }
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
            return Ok(None);
        };
        if let Some(good_at) = self.good_frame_after(self.at) {
            return Err(JournalError::Corrupt {
                at: self.at,
                good_at,
            });
        }
        self.torn = Some(TornFrame {
            at: self.at,
            bytes: last + 1,
        });
        Ok(None)
    }

    /// Returns the end of the last whole frame.
    pub fn end(&self) -> usize {
        self.at.min(self.bytes.len())
    }

    /// Returns the frame that was being written when the journal ended.
    pub fn torn(&self) -> Option<TornFrame> {
        self.torn
    }

    fn frame_at(&self, at: usize) -> Option<Frame<'a>> {
        let rest = self.bytes.get(at..)?;
        if rest.len() < FRAME_HEAD_BYTES {
            return None;
        }
        let length = word(rest, 0) as usize;
        let payload = rest[FRAME_HEAD_BYTES..].get(..length)?;
        if length == 0 || length > MAX_PAYLOAD_BYTES {
            return None;
        }
        let sequence = long(rest, 8);
        // An impossible sequence is not worth a checksum: this runs at every position behind bad
        // bytes.
        let frames_left = (self.bytes.len() / FRAME_HEAD_BYTES) as u64;
        if sequence.checked_sub(self.sequence)? > frames_left {
            return None;
        }
        (checksum(sequence, payload) == word(rest, 4)).then_some(Frame {
            at,
            sequence,
            payload,
        })
    }

    fn good_frame_after(&self, at: usize) -> Option<usize> {
        (at + 8..self.bytes.len())
            .step_by(8)
            .find(|place| self.frame_at(*place).is_some())
    }
}
