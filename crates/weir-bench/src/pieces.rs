//! The bytes of a file that a step moves.

use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, StridedTransfers, TransferSequence};

/// The most bytes of one call, and of a list of calls, that a step may have.
pub const BUFFER_MOST: u64 = 1 << 30;

/// Pieces of a file, all of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePieces {
    /// The file.
    pub path: PathBuf,
    /// The beginnings of the pieces.
    pub offsets: Offsets,
    /// Bytes of each.
    pub size: u64,
    /// Pieces that are read by one `lio_listio`; 1: one by one, by `pread`.
    pub list: u64,
    /// The seed of the content.
    pub seed: u64,
    /// With `O_DIRECT`.
    pub direct: bool,
}

/// The beginnings of pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Offsets {
    /// Equally spaced.
    Run(StridedTransfers),
    /// The share of one process of a layout.
    Share {
        /// The layout of all processes.
        layout: Layout,
        /// The process.
        rank: u32,
    },
}

impl FilePieces {
    /// A contiguous part of a file, in pieces of `size` bytes, each by a call of its own.
    pub fn contiguous(
        path: impl Into<PathBuf>,
        first: u64,
        bytes: u64,
        size: u64,
        seed: u64,
    ) -> FilePieces {
        FilePieces {
            path: path.into(),
            offsets: Offsets::Run(StridedTransfers::contiguous(first, bytes, size)),
            size,
            list: 1,
            seed,
            direct: false,
        }
    }

    /// The same pieces of the same file at other offsets.
    #[must_use]
    pub fn spread(self, first: u64, stride: u64, count: u64) -> FilePieces {
        let run = StridedTransfers {
            first,
            stride,
            count,
        };
        let offsets = Offsets::Run(run);
        FilePieces { offsets, ..self }
    }

    /// The pieces, in order.
    pub fn sequence(&self) -> TransferSequence {
        match &self.offsets {
            Offsets::Run(run) => TransferSequence::Runs(vec![*run]),
            Offsets::Share { layout, rank } => layout.transfers_of(*rank),
        }
    }

    /// Refuses what no run of the benchmark asks for.
    pub fn check(&self) -> Result<()> {
        if let Offsets::Run(run) = &self.offsets {
            let end = run
                .count
                .checked_mul(run.stride.max(self.size))
                .and_then(|length| length.checked_add(run.first));
            ensure!(
                end.is_some_and(|end| i64::try_from(end).is_ok()),
                "a file cannot be so long"
            );
        }
        let buffer = self.size.checked_mul(self.list);
        ensure!(
            self.size > 0 && self.list > 0 && buffer.is_some_and(|b| b <= BUFFER_MOST),
            "a buffer of {} pieces of {} bytes",
            self.list,
            self.size
        );
        Ok(())
    }

    /// Bytes of one piece, in memory.
    pub fn size(&self) -> Result<usize> {
        usize::try_from(self.size).context("a piece does not fit memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_pieces_are_refused() {
        let data = FilePieces::contiguous("/weir/f", 0, 12, 4, 1).spread(0, 8, 3);
        data.check().unwrap();
        let with = |size, list| FilePieces {
            size,
            list,
            ..data.clone()
        };
        for bad in [
            with(0, 1),
            with(4, 0),
            with(4, u64::MAX),
            data.clone().spread(0, 8, u64::MAX),
            data.clone().spread(u64::MAX, 8, 3),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
