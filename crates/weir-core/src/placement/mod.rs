//! The placement of names and extents on servers: every client and server computes it alone, from
//! the number of servers.
//!
//! Jump consistent hashing (Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash
//! Algorithm", 2014): no table, even to within chance, and when an instance is started with one
//! server more, only the share of that server moves.
//!
//! Here are homes of entries and slices; [`slices`] derives those of ranges and runs, and [`tree`]
//! the order in which a message is passed on to all.
//!
//! Left out: the addresses of servers, and the loss of one; ranks are 0 to `servers - 1`, for the
//! life of the instance.

pub mod slices;
pub mod tree;

use crate::splitmix::mix;
use crate::types::{Ino, Rank};

/// Bytes of a file's offsets whose extents are kept at one server.
pub const SLICE_BYTES: u64 = 64 << 20;

/// Returns the slice of a file that `offset` is in.
pub fn slice_of(offset: u64) -> u64 {
    offset / SLICE_BYTES
}

/// Returns the server that holds the entry `name` of the directory `parent`: a directory's entries
/// spread over all servers. `servers` is at least 1.
pub fn home_of_entry(parent: Ino, name: &[u8], servers: u16) -> Rank {
    jump(hash_of_name(parent, name), servers)
}

/// Returns the hash of a name in a directory.
pub fn hash_of_name(parent: Ino, name: &[u8]) -> u64 {
    let mut key = mix(parent.0 ^ ENTRY);
    for word in words_of(name) {
        key = mix(key ^ word);
    }
    mix(key ^ name.len() as u64)
}

/// The bytes of a name, eight in a word, the lowest first, and zeros behind them.
pub fn words_of(name: &[u8]) -> impl Iterator<Item = u64> + '_ {
    name.chunks(8).map(|chunk| match chunk.try_into() {
        Ok(whole) => u64::from_le_bytes(whole),
        // Not by way of memory: bytes that were just written, read as a word, make a CPU wait.
        Err(_) => chunk
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    })
}

/// Returns the server that holds the extents of one slice of a file. The first slice lives with the
/// inode, so that a small file has all of them in one place; the others spread.
pub fn home_of_extents(ino: Ino, slice: u64, servers: u16) -> Rank {
    if slice == 0 {
        return ino.rank();
    }
    jump(mix(mix(ino.0 ^ EXTENTS) ^ slice), servers)
}

/// Separates the two uses, so that a file's slices do not follow its entries.
const ENTRY: u64 = 0x656E_7472_7900_0000;
const EXTENTS: u64 = 0x6578_7465_6E74_7300;

/// The paper's figure 1, in integers: `(b + 1) * 2^31 / ((key >> 33) + 1)`, rounded down,
/// so that no machine's floating point can make two processes disagree.
fn jump(mut key: u64, servers: u16) -> Rank {
    let (mut bucket, mut next) = (0, 0_u64);
    while next < u64::from(servers.max(1)) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) << 31) / ((key >> 33) + 1);
    }
    Rank(u16::try_from(bucket).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the destinations of `items` and asserts that each server has its share within 10 %.
    fn assert_even(servers: u16, items: impl Iterator<Item = Rank>) {
        let mut load = vec![0_u32; usize::from(servers)];
        let mut all = 0;
        for rank in items {
            load[usize::from(rank.0)] += 1;
            all += 1;
        }
        let share = f64::from(all) / f64::from(servers);
        for (rank, have) in load.iter().enumerate() {
            let ratio = f64::from(*have) / share;
            assert!((0.9..1.1).contains(&ratio), "{rank} of {servers}: {ratio}");
        }
    }

    #[test]
    fn one_directory_spreads_evenly() {
        for servers in [1, 2, 3, 7, 16, 100] {
            let names = (0..200_000).map(|i| format!("rank{i:06}.h5"));
            let homes = names.map(|n| home_of_entry(Ino(1), n.as_bytes(), servers));
            assert_even(servers, homes);
        }
    }

    #[test]
    fn one_file_spreads_evenly_and_small_ones_stay_home() {
        let file = Ino::new(Rank(5), 3, 99);
        for servers in [1, 6, 64] {
            let slices = (1..100_000).map(|slice| home_of_extents(file, slice, servers));
            assert_even(servers, slices);
        }
        assert_eq!(
            home_of_extents(file, slice_of(SLICE_BYTES - 1), 64),
            Rank(5)
        );
    }

    #[test]
    fn one_more_server_moves_only_its_share() {
        let home = |i: u64, servers| home_of_extents(Ino(i), 1, servers);
        let moved = (0..10_000).filter(|i| home(*i, 8) != home(*i, 9));
        let moved: Vec<u64> = moved.collect();
        assert!(moved.iter().all(|i| home(*i, 9) == Rank(8)));
        assert!((1000..1230).contains(&moved.len()), "{}", moved.len());
    }
}
