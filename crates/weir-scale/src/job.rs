//! A job: its nodes and processes, and the bytes that they write, as the runs that the real server
//! would publish.

use serde::Serialize;
use weir_core::extent::{Run, Source};
use weir_core::types::{Ino, Rank};

/// The longest contiguous run: a segment of the log is at most so long.
const SEGMENT_BYTES: u64 = 64 << 20;
/// The most nodes.
pub const NODES_MOST: u16 = 10_000;

/// How processes share a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One file, each process's bytes in one block.
    Segmented,
    /// One file, processes take turns, a transfer each.
    Strided,
    /// A file for each process.
    Private,
}

/// A job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Job {
    /// Nodes, each with a server; 1 to [`NODES_MOST`].
    pub nodes: u16,
    /// Processes on each node.
    pub processes: u32,
    /// Bytes that each process writes and reads.
    pub bytes: u64,
    /// In calls of so many bytes.
    pub transfer: u64,
    /// The shares of processes in files.
    pub layout: Layout,
}

/// Why there is no such job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobError {
    /// None, or too many nodes.
    #[error("{0} nodes: the model has 1 to {NODES_MOST}")]
    Nodes(u16),
    /// No process, or so many that ranks of a job do not count them.
    #[error("{0} processes a node: the model has 1 to 1024")]
    Processes(u32),
    /// A process has no whole number of transfers, or none.
    #[error("{bytes} bytes are no whole number of transfers of {transfer}")]
    Transfer {
        /// The bytes of a process.
        bytes: u64,
        /// The bytes of a call.
        transfer: u64,
    },
    /// Beyond the greatest file, or more transfers than are worth a model.
    #[error(
        "a process writes {0} times: the model has 1 to 65536 transfers, of at most 1 TiB in all"
    )]
    Pieces(u64),
}

/// The name that stands for the shared file; those of private files have the process behind it.
pub const NAME: &[u8] = b"checkpoint";

impl Job {
    /// Checks it.
    pub fn check(&self) -> Result<(), JobError> {
        if !(1..=NODES_MOST).contains(&self.nodes) {
            return Err(JobError::Nodes(self.nodes));
        }
        if !(1..=1024).contains(&self.processes) {
            return Err(JobError::Processes(self.processes));
        }
        let (bytes, transfer) = (self.bytes, self.transfer);
        if transfer == 0 || bytes == 0 || !bytes.is_multiple_of(transfer) {
            return Err(JobError::Transfer { bytes, transfer });
        }
        if bytes > 1 << 40 || self.pieces() > 65_536 {
            return Err(JobError::Pieces(self.pieces()));
        }
        Ok(())
    }

    /// How often each process writes.
    pub fn pieces(&self) -> u64 {
        self.bytes / self.transfer
    }

    /// Processes of the job.
    pub fn tasks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.processes)
    }

    /// Bytes of the job.
    pub fn total_bytes(&self) -> u64 {
        self.tasks() * self.bytes
    }

    /// The node of a process: processes are dealt to nodes in blocks.
    pub fn node_of(&self, task: u64) -> Rank {
        let node = task / u64::from(self.processes);
        Rank(u16::try_from(node).unwrap_or(u16::MAX))
    }

    /// The processes of a node.
    pub fn tasks_of(&self, node: Rank) -> std::ops::Range<u64> {
        let first = u64::from(node.0) * u64::from(self.processes);
        first..first + u64::from(self.processes)
    }

    /// The name of the file that a process uses.
    pub fn name_of(&self, task: u64) -> Vec<u8> {
        match self.layout {
            Layout::Private => [NAME, b".", task.to_string().as_bytes()].concat(),
            _ => NAME.to_vec(),
        }
    }

    /// The file's length, of the file that a process uses.
    pub fn file_bytes(&self) -> u64 {
        match self.layout {
            Layout::Private => self.bytes,
            _ => self.total_bytes(),
        }
    }

    /// The bytes that a process wrote, as the records of its log. Positions in slabs do not matter here.
    pub fn runs_of(&self, task: u64) -> Vec<Run> {
        let rank = self.node_of(task).0;
        if self.layout == Layout::Strided && self.tasks() > 1 {
            let offset = task * self.transfer;
            let stride = self.tasks() * self.transfer;
            // A record does not go on in another segment.
            let pieces_a_segment = (SEGMENT_BYTES / self.transfer).max(1);
            return (0..self.pieces())
                .step_by(usize::try_from(pieces_a_segment).unwrap_or(usize::MAX))
                .map(|first| {
                    let count = pieces_a_segment.min(self.pieces() - first);
                    let mut run = contiguous(rank, offset + first * stride, self.transfer);
                    if count > 1 {
                        (run.stride, run.count) = (stride, count);
                        run.source = Source::Log {
                            rank,
                            slab: 1,
                            pos: 0,
                            pos_stride: self.transfer,
                        };
                    }
                    run
                })
                .collect();
        }
        let begin = match self.layout {
            Layout::Private => 0,
            _ => task * self.bytes,
        };
        let mut runs = Vec::new();
        let mut at = 0;
        while at < self.bytes {
            let length = SEGMENT_BYTES.min(self.bytes - at);
            runs.push(contiguous(rank, begin + at, length));
            at += length;
        }
        runs
    }
}

/// One contiguous run in a log.
fn contiguous(rank: u16, offset: u64, length: u64) -> Run {
    Run {
        offset,
        length,
        stride: 0,
        count: 1,
        stamp: 1,
        source: Source::Log {
            rank,
            slab: 1,
            pos: 0,
            pos_stride: 0,
        },
    }
}

/// An inode of a server, as good as any other.
pub fn ino_at(home: Rank, number: u64) -> Ino {
    let index = u32::try_from(number % (1 << 20)).unwrap_or(0) + 2;
    Ino::new(home, 0, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_all_that_is_written() {
        for layout in [Layout::Segmented, Layout::Strided, Layout::Private] {
            let job = Job {
                nodes: 3,
                processes: 2,
                bytes: 200 << 20,
                transfer: 1 << 20,
                layout,
            };
            job.check().unwrap();
            let runs: Vec<Run> = (0..job.tasks())
                .flat_map(|task| job.runs_of(task))
                .collect();
            assert!(runs.iter().all(|run| run.validate().is_ok()));
            let bytes: u64 = runs.iter().map(Run::total_bytes).sum();
            assert_eq!(bytes, job.total_bytes());
            // A strided process has a record a segment, whatever its pieces are.
            assert_eq!(runs.len(), 6 * 4, "{layout:?}");
        }
    }
}
