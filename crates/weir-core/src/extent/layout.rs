//! The bytes of a file in each server's tiers.

use std::collections::BTreeMap;

use super::{Run, Source, COPY_RANK};

/// The bit of a slab's number that marks a file of a storage directory.
const FILE_TIER: u32 = 1 << 31;

/// Bytes of a file in each server's tiers, by rank. Holes count nothing, nor do bytes of the file's copy.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Layout(BTreeMap<u16, Tiers>);

/// Bytes in the tiers of one server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tiers {
    /// In memory.
    pub memory_bytes: u64,
    /// In files of a storage directory.
    pub file_bytes: u64,
}

impl Layout {
    /// Counts the bytes of runs in `[from, to)`.
    pub fn add(&mut self, runs: &[Run], from: u64, to: u64) {
        let mut inside = Vec::new();
        for run in runs {
            run.clip_to(from, to, &mut inside);
        }
        for run in inside {
            if let Source::Log { rank, slab, .. } = run.source {
                if rank == COPY_RANK {
                    continue;
                }
                let tiers = self.0.entry(rank).or_default();
                let sum = match slab & FILE_TIER {
                    0 => &mut tiers.memory_bytes,
                    _ => &mut tiers.file_bytes,
                };
                *sum = sum.saturating_add(run.log_bytes());
            }
        }
    }

    /// Returns the servers that have bytes of it, by rank.
    pub fn servers(&self) -> impl Iterator<Item = (u16, Tiers)> + '_ {
        self.0.iter().map(|(rank, tiers)| (*rank, *tiers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u64, count: u64, rank: u16, slab: u32) -> Run {
        Run {
            offset,
            length: 10,
            stride: if count > 1 { 100 } else { 0 },
            count,
            stamp: 0,
            source: Source::Log {
                rank,
                slab,
                pos: 0,
                pos_stride: if count > 1 { 10 } else { 0 },
            },
        }
    }

    #[test]
    fn bytes_are_counted_once_by_server_and_tier() {
        let mut layout = Layout::default();
        let runs = [run(0, 10, 1, 3), run(50, 1, 0, FILE_TIER | 1)];
        layout.add(&runs, 0, 505);
        layout.add(&runs, 505, 1000);
        let tiers = |memory_bytes, file_bytes| Tiers {
            memory_bytes,
            file_bytes,
        };
        let servers: Vec<_> = layout.servers().collect();
        assert_eq!(servers, [(0, tiers(0, 10)), (1, tiers(100, 0))]);
    }
}
