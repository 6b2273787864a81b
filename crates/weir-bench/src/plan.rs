//! The measurements: operations, cases (one set-up that yields several numbers) and metrics (one number each).

use serde::Serialize;

use crate::calls::Call;
use crate::copy::{CopyOp, Method};
use crate::layout::Pattern;
use crate::size::show_size;

/// The name of the device's series.
pub const DEVICE: &str = "device";

/// The operations that a user can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Write data.
    Write,
    /// Read back by the processes that wrote.
    ReadSame,
    /// Read by new processes, each what another wrote.
    ReadOther,
    /// Create, stat, open and remove files, in own and shared directories.
    Meta,
}

/// The operation of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// The first write that a run makes in a target.
    FirstWrite,
    /// Write.
    Write,
    /// Read by the process that wrote.
    ReadSame,
    /// Read by another process than wrote.
    ReadOther,
    /// Create and close.
    Create,
    /// Stat by path.
    Stat,
    /// Open and close.
    Open,
    /// Unlink.
    Remove,
    /// A single call.
    Call(Call),
    /// The machine: copy into warm shared memory.
    CopyIn,
    /// The machine: copy out of warm shared memory.
    CopyOut,
    /// The machine: `O_DIRECT` writes and fsync.
    DeviceWrite,
    /// The machine: `O_DIRECT` reads.
    DeviceRead,
}

impl Op {
    /// Words for people.
    pub fn words(self) -> &'static str {
        match self {
            Op::FirstWrite => "first write",
            Op::Write => "write",
            Op::ReadSame => "read, same process",
            Op::ReadOther => "read, other process",
            Op::Create => "create",
            Op::Stat => "stat",
            Op::Open => "open+close",
            Op::Remove => "unlink",
            Op::Call(call) => call.words(),
            Op::CopyIn => "limit: copy in",
            Op::CopyOut => "limit: copy out",
            Op::DeviceWrite => "limit: device write",
            Op::DeviceRead => "limit: device read",
        }
    }

    /// True if it counts files or calls instead of bytes.
    pub fn is_metadata(self) -> bool {
        matches!(
            self,
            Op::Create | Op::Stat | Op::Open | Op::Remove | Op::Call(_)
        )
    }

    /// True if it is about the machine and not about a target.
    pub fn is_limit(self) -> bool {
        matches!(
            self,
            Op::CopyIn | Op::CopyOut | Op::DeviceWrite | Op::DeviceRead
        )
    }

    /// True if it is about single calls, which have a table of their own.
    pub fn is_call(self) -> bool {
        matches!(self, Op::Call(_))
    }

    /// The copy that bounds it on this machine.
    pub fn copy_limit(self) -> Option<Op> {
        match self {
            Op::Write | Op::FirstWrite => Some(Op::CopyIn),
            Op::ReadSame | Op::ReadOther => Some(Op::CopyOut),
            _ => None,
        }
    }
}

/// Where metadata operations put their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dirs {
    /// Each process in a directory of its own.
    Own,
    /// All processes in one directory.
    Shared,
}

/// Names one measured number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Metric {
    /// The operation.
    pub op: Op,
    /// The access pattern, where there is one.
    pub pattern: Option<Pattern>,
    /// Bytes a call; 0 for metadata.
    pub transfer: u64,
    /// Processes at the same time.
    pub processes: u32,
    /// True if fsync is part of it.
    pub fsync: bool,
    /// Own or shared directories, for metadata.
    pub dirs: Option<Dirs>,
}

impl Metric {
    /// An operation of so many processes, without data and directories.
    pub fn new(op: Op, processes: u32) -> Metric {
        Metric {
            op,
            pattern: None,
            transfer: 0,
            processes,
            fsync: false,
            dirs: None,
        }
    }

    /// The metric of the copy limit of this one; with fsync it is not copying that limits.
    pub fn copy_limit(&self) -> Option<Metric> {
        let op = self.op.copy_limit().filter(|_| !self.fsync)?;
        Some(Metric {
            op,
            pattern: None,
            ..self.clone()
        })
    }

    /// All of it in one line: `write segmented 1 MiB x 4`.
    pub fn label(&self) -> String {
        let processes = format!("x {}", self.processes);
        let parts = [self.op.words(), &self.how(), &self.size(), &processes];
        let parts = parts.into_iter().filter(|p| !p.is_empty());
        parts.collect::<Vec<_>>().join(" ")
    }

    /// The pattern or directories, in words.
    pub fn how(&self) -> String {
        match (self.pattern, self.dirs) {
            (Some(pattern), _) => {
                let fsync = if self.fsync { " + fsync" } else { "" };
                format!("{}{fsync}", pattern.name())
            }
            (_, Some(Dirs::Own)) => "own dir".into(),
            (_, Some(Dirs::Shared)) => "shared dir".into(),
            _ => String::new(),
        }
    }

    /// The transfer size, in words; empty for metadata.
    pub fn size(&self) -> String {
        if self.transfer == 0 {
            String::new()
        } else {
            show_size(self.transfer)
        }
    }
}

/// Data written and read in one set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Independent switches, each an option of the command line.
pub struct DataCase {
    /// The access pattern.
    pub pattern: Pattern,
    /// Bytes a call.
    pub transfer: u64,
    /// Bytes for each process.
    pub block: u64,
    /// Segments of the block.
    pub segments: u64,
    /// Processes.
    pub processes: u32,
    /// fsync before close.
    pub fsync: bool,
    /// The first burst of the run: recorded as `FirstWrite`, once.
    pub first: bool,
    /// Read back by the same processes.
    pub read_same: bool,
    /// Read by other processes.
    pub read_other: bool,
}

impl DataCase {
    /// The metric of `op` in this case.
    pub fn metric(&self, op: Op) -> Metric {
        Metric {
            pattern: Some(self.pattern),
            transfer: self.transfer,
            fsync: self.fsync && op == Op::Write,
            ..Metric::new(op, self.processes)
        }
    }

    /// Bytes that the files of this case take.
    pub fn bytes(&self) -> u64 {
        self.block.saturating_mul(u64::from(self.processes))
    }
}

/// Files created, looked at and removed in one set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaCase {
    /// Own or shared directories.
    pub dirs: Dirs,
    /// Files of each process.
    pub files: u64,
    /// Processes.
    pub processes: u32,
}

impl MetaCase {
    /// The metric of `op` in this case.
    pub fn metric(&self, op: Op) -> Metric {
        Metric {
            dirs: Some(self.dirs),
            ..Metric::new(op, self.processes)
        }
    }
}

/// All cases of a run.
#[derive(Default)]
pub struct Cases {
    /// Measured once, before all others.
    pub first: Option<DataCase>,
    /// Data cases.
    pub data: Vec<DataCase>,
    /// Data cases for the durable targets, beside the device.
    pub durable: Vec<DataCase>,
    /// The device.
    pub device: Option<DataCase>,
    /// Metadata cases.
    pub meta: Vec<MetaCase>,
    /// Single calls.
    pub calls: Vec<Call>,
}

/// A limit of copying, measured in all variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitCase {
    /// Direction.
    pub op: CopyOp,
    /// Bytes of one copy.
    pub transfer: u64,
    /// Processes.
    pub processes: u32,
    /// Bytes of warm memory for each process.
    pub block: u64,
}

/// The most warm memory for each process: far beyond any cache. More does not change the result.
const LIMIT_BLOCK: u64 = 256 << 20;

impl LimitCase {
    /// The limit for `op` of a data case, if it has one.
    pub fn for_case(case: &DataCase, op: Op) -> Option<Self> {
        let copy = match op.copy_limit()? {
            Op::CopyIn => CopyOp::In,
            _ => CopyOp::Out,
        };
        let transfers = (case.block.min(LIMIT_BLOCK) / case.transfer).max(1);
        Some(LimitCase {
            op: copy,
            transfer: case.transfer,
            processes: case.processes,
            block: transfers * case.transfer,
        })
    }

    /// All variants: pages (huge or not) and method.
    pub fn variants() -> impl Iterator<Item = (bool, Method)> {
        [false, true].into_iter().flat_map(|huge| {
            [Method::Memcpy, Method::Movsb, Method::Streaming].map(|method| (huge, method))
        })
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        let op = match self.op {
            CopyOp::In => Op::CopyIn,
            CopyOp::Out => Op::CopyOut,
        };
        Metric {
            transfer: self.transfer,
            ..Metric::new(op, self.processes)
        }
    }
}
