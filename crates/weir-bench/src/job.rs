//! What the coordinator asks of its workers and what they answer, as JSON.
//!
//! A job is a list of steps. All ranks do the same steps, with a barrier before each clock starts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::calls::CallStep;
use crate::layout::Layout;

/// The steps of a group of workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// How many workers.
    pub ranks: u32,
    /// What each does, in order.
    pub steps: Vec<Step>,
    /// With nothing preloaded into the workers.
    #[serde(default)]
    pub bare: bool,
}

/// One step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Step {
    /// Reads or writes file data.
    Data(DataStep),
    /// Creates, looks at or removes many files.
    Meta(MetaStep),
    /// Copies to or from warm memory: the machine's limit.
    Copy(CopyStep),
    /// Times single calls.
    Call(CallStep),
}

/// What is done to file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataOp {
    /// Timed: all writes, the fsync if asked for, and close.
    Write,
    /// Timed: all reads, and close.
    Read,
    /// Not for timing: reads and compares every byte.
    Verify,
}

/// Reads or writes the share of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DataStep {
    /// What is done.
    pub op: DataOp,
    /// The shared file, or a file for each rank.
    pub paths: Vec<PathBuf>,
    /// Where the data of each rank lies.
    pub layout: Layout,
    /// Seed of the content; another for each run and round.
    pub seed: u64,
    /// A worker acts for the rank this far above its own, so that it reads what another wrote.
    pub shift: u32,
    /// With `O_DIRECT`.
    pub direct: bool,
    /// `fsync` before close, in the measured time.
    pub fsync: bool,
}

/// What is done to many files, in the manner of mdtest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaOp {
    /// `open(O_CREAT | O_EXCL)` and `close`.
    Create,
    /// `stat` by path.
    Stat,
    /// `open(O_RDONLY)` and `close`.
    Open,
    /// `unlink`.
    Remove,
}

/// Metadata operations of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MetaStep {
    /// What is done.
    pub op: MetaOp,
    /// The directory of each rank: `ranks` different ones, or one that all share.
    pub dirs: Vec<PathBuf>,
    /// How many files each rank has.
    pub files: u64,
}

/// Direction of a copy, seen from the file system that could at best be this fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CopyOp {
    /// From a small source into warm shared memory: the limit of a write.
    In,
    /// From warm shared memory into a small reused buffer: the limit of a read.
    Out,
}

/// How bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Method {
    /// The C library's `memcpy`.
    Memcpy,
    /// `rep movsb`.
    Movsb,
    /// The widest non-temporal stores that the processor has (into memory only).
    Streaming,
}

/// A copy over all of a rank's warm memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyStep {
    /// The direction.
    pub op: CopyOp,
    /// Bytes of one copy.
    pub transfer: u64,
    /// Bytes of warm memory for each rank.
    pub block: u64,
    /// In huge pages.
    pub huge: bool,
    /// How.
    pub method: Method,
}

/// When a rank did a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// `CLOCK_MONOTONIC` at the start, in ns: one clock for all processes of a node.
    pub start_ns: u64,
    /// The same at the end.
    pub end_ns: u64,
    /// Bytes moved or checked.
    pub bytes: u64,
    /// Calls made, or files treated; 0 if the machine cannot do this step.
    pub ops: u64,
}

/// What a worker answers on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    /// The timing of each step.
    Done(Vec<Timing>),
    /// It stopped because another did.
    Aborted,
    /// It failed.
    Failed {
        /// Why, in a sentence.
        message: String,
        /// Whether data was wrong, as against a call that failed.
        wrong_data: bool,
    },
}
