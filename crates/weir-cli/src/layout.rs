//! Where a file's bytes live: `weir ls --layout`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use weir_core::extent::{Run, Source};
use weir_core::names::Attr;
use weir_core::proto::{Hold, Locate};
use weir_core::types::Ino;

use crate::instance::Connection;
use crate::report::bytes;

/// The bit of a slab's number that says that it is a file of a storage directory.
const FILE_TIER: u32 = 1 << 31;

/// Bytes of a file in each server's tiers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layout(BTreeMap<u16, Tiers>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Tiers {
    memory_bytes: u64,
    file_bytes: u64,
}

impl Layout {
    /// Asks where the bytes of a regular file are: all that is published, and what programs of
    /// the asked server's node wrote.
    pub fn of(connection: &mut Connection, ino: Ino) -> Result<Layout> {
        let write = false;
        let Attr { ino, size, .. } = connection.call(Hold { ino, write })?;
        let mut layout = Layout::default();
        let mut offset = 0;
        while offset < size {
            let length = size - offset;
            let located = connection.call(Locate {
                ino,
                offset,
                length,
            })?;
            let end = located.known_to.min(size);
            layout.add(&located.runs, offset, end);
            offset = Some(end)
                .filter(|end| *end > offset)
                .context("the server does not say where bytes are")?;
        }
        Ok(layout)
    }

    /// Counts the bytes of `[from, to)`.
    fn add(&mut self, runs: &[Run], from: u64, to: u64) {
        let mut inside = Vec::new();
        for run in runs {
            run.clip_to(from, to, &mut inside);
        }
        for run in inside {
            if let Source::Log { rank, slab, .. } = run.source {
                let tiers = self.0.entry(rank).or_default();
                let sum = match slab & FILE_TIER {
                    0 => &mut tiers.memory_bytes,
                    _ => &mut tiers.file_bytes,
                };
                *sum = sum.saturating_add(run.log_bytes());
            }
        }
    }

    /// A line a server.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|(rank, tiers)| {
            let (memory, file) = (bytes(tiers.memory_bytes), bytes(tiers.file_bytes));
            format!("server {rank}: {memory} in memory, {file} in files")
        })
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
        let lines: Vec<String> = layout.lines().collect();
        assert_eq!(
            lines,
            [
                "server 0: 0 B in memory, 10 B in files",
                "server 1: 100 B in memory, 0 B in files"
            ]
        );
    }
}
