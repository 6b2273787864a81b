//! The offsets that a process accesses, in order: the access patterns of IOR.
//!
//! Every byte of a file is written exactly once, whatever the pattern. With `n` processes (ranks),
//! `b` bytes a process and transfers of `t` bytes:
//!
//! ```text
//! segmented, 1 segment    | rank 0: b bytes | rank 1: b bytes | ...             one shared file
//! segmented, s segments   | r0: b/s | r1: b/s | ... | r0: b/s | r1: b/s | ...   one shared file
//! strided                 | r0: t | r1: t | ... | r0: t | r1: t | ...           one shared file
//! random                  every transfer of the shared file dealt to a rank by a seeded shuffle
//! nn                      | b bytes, in order |                                 a file a rank
//! ```

use serde::{Deserialize, Serialize};

/// An access pattern.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One shared file, each process a contiguous block (N-1 segmented).
    Segmented,
    /// One shared file, transfers of the processes interleaved (N-1 strided).
    Strided,
    /// A file for each process (N-N).
    Nn,
    /// One shared file, transfers dealt to the processes in random order.
    Random,
}

impl Pattern {
    /// The word used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Segmented => "segmented",
            Pattern::Strided => "strided",
            Pattern::Nn => "nn",
            Pattern::Random => "random",
        }
    }

    /// True if all processes share one file.
    pub fn is_shared(self) -> bool {
        self != Pattern::Nn
    }
}

/// The layout of the data of all processes over their file or files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The access pattern.
    pub pattern: Pattern,
    /// How many processes.
    pub ranks: u32,
    /// Bytes of one read or write call.
    pub transfer: u64,
    /// Bytes of each process: a multiple of `transfer * segments`.
    pub block: u64,
    /// Into how many pieces the block of a process is cut (segmented only).
    pub segments: u64,
    /// Seed of the shuffle (random only).
    pub seed: u64,
}

/// Equally spaced transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StridedTransfers {
    /// Offset of the first transfer, in bytes.
    pub first: u64,
    /// Distance from one transfer to the next, in bytes.
    pub stride: u64,
    /// How many transfers.
    pub count: u64,
}

impl StridedTransfers {
    /// Transfers of `size` bytes, one behind the other.
    pub fn contiguous(first: u64, bytes: u64, size: u64) -> StridedTransfers {
        StridedTransfers {
            first,
            stride: size,
            count: bytes / size,
        }
    }
}

/// The transfers of one process, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferSequence {
    /// Arithmetic progressions: nothing to look up while the clock runs.
    Runs(Vec<StridedTransfers>),
    /// Offsets computed beforehand.
    Scattered(Vec<u64>),
}

impl TransferSequence {
    /// The offset of each transfer.
    pub fn offsets(&self) -> Vec<u64> {
        match self {
            TransferSequence::Scattered(offsets) => offsets.clone(),
            TransferSequence::Runs(runs) => {
                let run = |run: &StridedTransfers| {
                    let (first, stride) = (run.first, run.stride);
                    (0..run.count).map(move |i| first + i * stride)
                };
                runs.iter().flat_map(run).collect()
            }
        }
    }

    /// How many transfers there are.
    pub fn transfers(&self) -> u64 {
        match self {
            TransferSequence::Runs(runs) => runs.iter().map(|r| r.count).sum(),
            TransferSequence::Scattered(offsets) => offsets.len() as u64,
        }
    }
}

impl Layout {
    /// The transfers of `rank`.
    pub fn transfers_of(&self, rank: u32) -> TransferSequence {
        let (n, r) = (u64::from(self.ranks), u64::from(rank));
        let (t, b) = (self.transfer, self.block);
        match self.pattern {
            Pattern::Nn => TransferSequence::Runs(vec![StridedTransfers::contiguous(0, b, t)]),
            Pattern::Segmented => {
                let piece = b / self.segments;
                let runs = (0..self.segments)
                    .map(|s| StridedTransfers::contiguous((s * n + r) * piece, piece, t));
                TransferSequence::Runs(runs.collect())
            }
            Pattern::Strided => TransferSequence::Runs(vec![StridedTransfers {
                first: r * t,
                stride: n * t,
                count: b / t,
            }]),
            Pattern::Random => TransferSequence::Scattered(self.dealt(rank)),
        }
    }

    /// The hand of `rank` after a Fisher-Yates shuffle that every rank computes alike.
    fn dealt(&self, rank: u32) -> Vec<u64> {
        let hand = self.block / self.transfer;
        let mut offsets: Vec<u64> = (0..hand * u64::from(self.ranks))
            .map(|i| i * self.transfer)
            .collect();
        let mut random = SplitMix64(self.seed);
        for i in (1..offsets.len()).rev() {
            // The remainder's bias (2^64 is huge beside the deck) does not matter here; both are usize-sized.
            let j = usize::try_from(random.next() % (i as u64 + 1)).expect("below the length");
            offsets.swap(i, j);
        }
        let hand = usize::try_from(hand).expect("fits memory");
        let from = hand * rank as usize;
        offsets[from..from + hand].to_vec()
    }
}

/// Steele, Lea and Flood's `SplitMix64` generator (OOPSLA 2014).
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(pattern: Pattern, segments: u64) -> Layout {
        Layout {
            pattern,
            ranks: 3,
            transfer: 8,
            block: 48,
            segments,
            seed: 5,
        }
    }

    #[test]
    fn shared_patterns_touch_every_transfer_of_the_file_once() {
        for (pattern, segments) in [
            (Pattern::Segmented, 1),
            (Pattern::Segmented, 3),
            (Pattern::Strided, 1),
            (Pattern::Random, 1),
        ] {
            let layout = layout(pattern, segments);
            let mut all: Vec<u64> = (0..3)
                .flat_map(|r| layout.transfers_of(r).offsets())
                .collect();
            all.sort_unstable();
            let expected: Vec<u64> = (0..18).map(|i| i * 8).collect();
            assert_eq!(all, expected, "{pattern:?} with {segments} segments");
        }
    }

    #[test]
    fn strided_interleaves_and_segmented_does_not() {
        assert_eq!(
            layout(Pattern::Strided, 1).transfers_of(1).offsets()[..3],
            [8, 32, 56]
        );
        assert_eq!(
            layout(Pattern::Segmented, 1).transfers_of(1).offsets()[..3],
            [48, 56, 64]
        );
        assert_eq!(
            layout(Pattern::Segmented, 2).transfers_of(1).offsets()[..4],
            [24, 32, 40, 96]
        );
        assert_eq!(
            layout(Pattern::Nn, 1).transfers_of(2).offsets()[..2],
            [0, 8]
        );
    }
}
