//! The content of files: bytes that are a function of (file, offset), so that a misplaced piece is seen.
//!
//! Filling a buffer before each write would be measured with the write, so the content is periodic:
//! `byte(file, offset) = noise(file)[offset mod PERIOD]`, and one buffer of `PERIOD + transfer`
//! bytes holds the source of every transfer at some position, filled and touched beforehand.
//!
//! ```text
//! buffer  | noise[0 .. PERIOD) | noise[0 ..) again, `transfer` bytes |
//!                  ^-- source of the transfer at `offset`: position = offset mod PERIOD
//! ```
//!
//! `PERIOD` is 64 times a prime: cache-line aligned offsets have aligned sources, and a piece in the
//! wrong place is unseen only if it is off by a multiple of `PERIOD` bytes, which for pieces of
//! 2^k bytes means off by a multiple of 4093 pieces. The noise is seeded by file, round and run, so that
//! stale bytes of another file or an earlier round are seen wherever they are. The buffer is small
//! enough (1.25 MiB for transfers of 1 MiB) for a core's own cache, like the one buffer of IOR.

use crate::layout::SplitMix64;
use crate::memory::Buffer;

/// Length of the noise for buffered I/O, in bytes.
pub const PERIOD: usize = 64 * 4093;

/// Length of the noise for `O_DIRECT`, where sources must be page aligned, in bytes.
pub const DIRECT_PERIOD: usize = 4096 * 61;

/// The content of one file.
pub struct Content {
    buffer: Buffer,
    period: usize,
    transfer: usize,
}

/// A byte that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The byte that was written.
    pub expected: u8,
    /// The byte that was read.
    pub found: u8,
    /// Where, modulo the period, the eight bytes found here belong, if they are of this file at all.
    pub belongs_at: Option<u64>,
}

impl Content {
    /// Content seeded by `seed`, for transfers of `transfer` bytes; `direct` for `O_DIRECT`.
    pub fn new(seed: u64, transfer: usize, direct: bool) -> std::io::Result<Self> {
        let period = if direct { DIRECT_PERIOD } else { PERIOD };
        let mut buffer = Buffer::new(period + transfer)?;
        let mut random = SplitMix64(seed);
        let bytes = buffer.bytes_mut();
        for word in bytes[..period].chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        for start in (period..bytes.len()).step_by(period) {
            let length = period.min(bytes.len() - start);
            bytes.copy_within(..length, start);
        }
        Ok(Content {
            buffer,
            period,
            transfer,
        })
    }

    /// Bytes of one transfer.
    pub fn transfer(&self) -> usize {
        self.transfer
    }

    /// Length of the noise, in bytes.
    pub fn period(&self) -> usize {
        self.period
    }

    /// Position in the buffer of the source of the transfer at `offset`; also: how far the position
    /// moves when the offset moves by this much (modulo the period).
    pub fn position(&self, offset: u64) -> usize {
        usize::try_from(offset % self.period as u64).expect("below the period")
    }

    /// The buffer; `position` indexes it, and `transfer` bytes follow every position.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Compares what was read at `offset`.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(&self, offset: u64, found: &[u8]) -> Result<(), Mismatch> {
        let position = self.position(offset);
        let expected = &self.bytes()[position..position + found.len()];
        if expected == found {
            return Ok(());
        }
        let at = (0..found.len())
            .find(|&i| expected[i] != found[i])
            .expect("they differ");
        Err(Mismatch {
            offset: offset + at as u64,
            expected: expected[at],
            found: found[at],
            belongs_at: self.place_of(&found[at..]),
        })
    }

    fn place_of(&self, found: &[u8]) -> Option<u64> {
        let key = found.get(..8)?;
        let bytes = &self.bytes()[..self.period];
        bytes.windows(8).position(|w| w == key).map(|p| p as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_repeats_only_after_the_period() {
        let content = Content::new(1, 3 << 20, false).unwrap();
        let bytes = content.bytes();
        assert_eq!(bytes.len(), PERIOD + (3 << 20));
        assert_eq!(bytes[5], bytes[PERIOD + 5]);
        assert_eq!(bytes[PERIOD - 1], bytes[2 * PERIOD - 1]);
        assert_ne!(bytes[..64], bytes[64..128]);
    }

    #[test]
    fn misplaced_and_stale_pieces_are_found() {
        let content = Content::new(1, 4096, false).unwrap();
        let piece = |offset| {
            let p = content.position(offset);
            content.bytes()[p..p + 4096].to_vec()
        };
        assert_eq!(content.check(1 << 30, &piece(1 << 30)), Ok(()));
        for wrong in [0, 4096, 1 << 20, 64 << 20, (1 << 30) + 4096] {
            let found = content.check(1 << 30, &piece(wrong)).unwrap_err();
            assert_eq!(found.offset, 1 << 30);
            assert_eq!(found.belongs_at, Some(content.position(wrong) as u64));
        }
        let earlier = Content::new(2, 4096, false).unwrap();
        assert!(content.check(0, &earlier.bytes()[..4096]).is_err());
    }

    #[test]
    fn one_wrong_byte_is_found_at_its_offset() {
        let content = Content::new(7, 4096, false).unwrap();
        let mut piece = content.bytes()[..4096].to_vec();
        piece[4095] ^= 1;
        let found = content.check(0, &piece).unwrap_err();
        assert_eq!((found.offset, found.found), (4095, found.expected ^ 1));
        assert_eq!(found.belongs_at, None);
    }
}
