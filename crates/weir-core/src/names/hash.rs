//! Names as 64-bit words, and the hash of a directory entry's key.
//!
//! Words are little-endian and padded with zeros, so that a name compares and hashes
//! eight bytes at a time, against the arena without any copy.
//!
//! The hash folds a 64 x 64 -> 128 bit product for each word, as wyhash (Wang Yi) does.
//! It is not keyed: the one user of an instance could only slow down their own job.

use super::{NamesError, NAME_MAX};
use crate::types::Ino;

/// Odd constants with about as many ones as zeros.
const K: [u64; 3] = [
    0x9E37_79B9_7F4A_7C15,
    0xD6E8_FEB8_6659_FD93,
    0xA076_1D64_78BD_642F,
];

#[inline]
#[allow(clippy::cast_possible_truncation)] // the low half is meant
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Returns the last, shorter word of `bytes`: their last `rest` (1 to 7).
#[inline]
fn tail(bytes: &[u8], rest: usize) -> u64 {
    if let Some(last) = bytes.last_chunk::<8>() {
        // Reads the last bytes of the word before too, and shifts them out.
        return u64::from_le_bytes(*last) >> (8 * (8 - rest));
    }
    let mut word = 0;
    for (i, byte) in bytes.iter().enumerate() {
        word |= u64::from(*byte) << (8 * i);
    }
    word
}

/// Returns `bytes` as words.
#[inline]
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let whole = bytes.chunks_exact(8);
    let rest = whole.remainder().len();
    whole
        .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()))
        .chain((rest > 0).then(|| tail(bytes, rest)))
}

/// Returns a hash of bytes, for a seed.
#[inline]
pub fn hash_of_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = fold(seed ^ K[0], bytes.len() as u64 ^ K[1]);
    for word in words(bytes) {
        hash = fold(hash ^ word, K[2]);
    }
    hash
}

/// The key of an entry: its directory and name.
#[derive(Clone, Copy)]
pub(super) struct EntryKey<'n> {
    pub(super) parent: Ino,
    /// 1 to [`NAME_MAX`] bytes.
    pub(super) name: &'n [u8],
    /// The low bits choose the bucket; all are kept in the entry.
    pub(super) hash: u32,
}

impl<'n> EntryKey<'n> {
    /// Makes a key for a look-up; `None` if no name has this length. There is no other check, because
    /// no entry has an invalid name.
    #[inline]
    pub(super) fn for_lookup(parent: Ino, name: &'n [u8]) -> Option<Self> {
        if name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let hash = hash_of_bytes(parent.0, name);
        let hash = (hash >> 32) as u32 ^ (hash & 0xFFFF_FFFF) as u32;
        Some(EntryKey { parent, name, hash })
    }

    /// Makes a key for a new entry, of a checked name.
    pub(super) fn for_new_entry(parent: Ino, name: &'n [u8]) -> Result<Self, NamesError> {
        if name.len() > NAME_MAX {
            return Err(NamesError::NameTooLong);
        }
        if matches!(name, b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(NamesError::InvalidName);
        }
        EntryKey::for_lookup(parent, name).ok_or(NamesError::InvalidName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_bytes_padded() {
        let bytes: Vec<u8> = (1..=40).collect();
        for len in 0..bytes.len() {
            let mut padded = bytes[..len].to_vec();
            padded.resize(len.next_multiple_of(8), 0);
            let back: Vec<u8> = words(&bytes[..len]).flat_map(u64::to_le_bytes).collect();
            assert_eq!(back, padded);
        }
    }

    /// The names that applications make: numbered files in few directories. Buckets must fill as if
    /// by chance (Poisson): at load 1, 26.4 % of buckets hold two or more.
    #[test]
    fn numbered_names_spread() {
        let count = 1 << 16;
        for pattern in ["f", "checkpoint-rank-", "plt00000/Level_0/Cell_D_"] {
            for parents in [1, 300] {
                let mut buckets = vec![0_u32; count];
                for i in 0..count {
                    let name = format!("{pattern}{:05}", i / parents);
                    let parent = Ino((1 + i % parents) as u64);
                    let key = EntryKey::for_lookup(parent, name.as_bytes()).unwrap();
                    buckets[key.hash as usize % count] += 1;
                }
                let crowded = buckets.iter().filter(|n| **n >= 2).count() * 1000 / count;
                let longest = buckets.iter().max().unwrap();
                assert!((250..280).contains(&crowded), "{pattern} {crowded}");
                assert!(*longest <= 12, "{pattern} {longest}");
            }
        }
    }

    #[test]
    fn bad_names_are_refused() {
        let check = |name: &[u8]| EntryKey::for_new_entry(Ino(1), name).map(|_| ());
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(check(bad), Err(NamesError::InvalidName));
        }
        assert_eq!(check(&[b'x'; 256]), Err(NamesError::NameTooLong));
        assert_eq!(check(&[b'x'; 255]), Ok(()));
        assert_eq!(check(b"..."), Ok(()));
    }
}
