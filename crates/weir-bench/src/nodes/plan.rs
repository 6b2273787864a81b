//! The rows of `weir bench --hosts`, and their promises: one place for each number.

use crate::rows::Bar::{self, AtLeast, AtMost, Reported};
use crate::rows::PromiseRow;
use crate::rows::Unit::{self, Bytes, BytesPerSecond, FilesPerSecond, Number, Seconds};

/// How many processes look up one file.
pub const LOOKERS: usize = 32;

/// How many processes of each node create files.
pub const CREATORS: usize = 4;

/// A group of rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Measurement {
    /// N-1 and N-N, and the messages that a write costs.
    Writes,
    /// One node reads what another has, in streams and in lists of small pieces; over libfabric
    /// too.
    Reads,
    /// All read strided what all wrote segmented.
    Exchange,
    /// Writes, reads and both in turns, of raw files beside ras ones.
    Visibility,
    /// Where the pieces of a strided file are.
    LookUps,
    /// Request and reply, 64 B; over libfabric too.
    Calls,
    /// Create in one directory.
    Creates,
    /// Create, stat, open and remove, in directories of a process each and in one of all.
    Metadata,
}

/// The amounts of a run of `weir bench --hosts`.
#[derive(Clone, Debug)]
pub struct HostsPlan {
    /// The measurements.
    pub measurements: Vec<Measurement>,
    /// Rounds; each measures everything.
    pub rounds: u32,
    /// Bytes that a process writes, and that are read.
    pub bytes: u64,
    /// Pieces of the file that is looked up.
    pub pieces: u64,
    /// Files that a process creates.
    pub files: u64,
    /// Round trips.
    pub trips: u32,
    /// Turns of writing and reading.
    pub turns: u32,
    /// No progress.
    pub quiet: bool,
}

impl HostsPlan {
    /// The measurements that are made over libfabric, too.
    pub fn over_libfabric(&self) -> impl Iterator<Item = Measurement> + '_ {
        let told = |one: &Measurement| matches!(one, Measurement::Reads | Measurement::Calls);
        self.measurements.iter().copied().filter(told)
    }
}

fn row(what: impl Into<String>, unit: Unit, bar: Bar) -> PromiseRow {
    PromiseRow {
        what: what.into(),
        beside: String::new(),
        unit,
        bar,
    }
}

fn over(what: &str, libfabric: bool) -> String {
    let suffix = if libfabric { ", over libfabric" } else { "" };
    format!("{what}{suffix}")
}

/// One process a node writes; the rate of the slowest.
pub fn write(shared: bool) -> PromiseRow {
    let how = if shared { "N-1 segmented" } else { "N-N" };
    let what = format!("write {how}, 1 MiB, a process on each node");
    row(what, BytesPerSecond, AtLeast(0.9)).beside("at one server")
}

/// Requests of clients and servers that a write costs.
pub fn messages() -> PromiseRow {
    row("messages a write", Number, AtMost(0.001))
}

/// One node reads what another has.
pub fn read(streams: usize, size: u64, libfabric: bool) -> PromiseRow {
    let word = if streams == 1 { "stream" } else { "streams" };
    let what = format!("remote read, {} MiB, {streams} {word}", size >> 20);
    let bar = match (libfabric, streams) {
        (true, _) => Reported,
        (_, 1) => AtLeast(0.9),
        _ => AtLeast(0.95),
    };
    row(over(&what, libfabric), BytesPerSecond, bar).beside("plain TCP")
}

/// 4 KiB pieces in lists, beside one by one or the rate of large reads.
pub fn pieces(beside_one_by_one: bool) -> PromiseRow {
    let what = "remote read, every fourth 4 KiB, in lists of 256";
    if beside_one_by_one {
        return row(what, BytesPerSecond, AtLeast(10.0)).beside("one by one");
    }
    let what = format!("{what}: of large reads");
    row(what, BytesPerSecond, AtLeast(0.6)).beside("1 MiB reads")
}

/// Written segmented, read strided, by all nodes; bytes over links.
pub fn exchange(lists: bool) -> PromiseRow {
    let (how, bar) = match lists {
        true => ("one list a process", AtLeast(0.8)),
        false => ("one by one", Reported),
    };
    let what = format!("N-1 strided read of N-1 segmented, 1 MiB, {how}");
    row(what, BytesPerSecond, bar).beside("plain TCP, all to all")
}

/// How processes divide what they write among files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSharing {
    /// One file, a contiguous part each.
    Segmented,
    /// One file, pieces by turns.
    Strided,
    /// A file each.
    Apart,
}

impl WriteSharing {
    /// All.
    pub const ALL: [WriteSharing; 3] = [
        WriteSharing::Segmented,
        WriteSharing::Strided,
        WriteSharing::Apart,
    ];

    fn name(self) -> &'static str {
        match self {
            WriteSharing::Segmented => "N-1 segmented, 1 MiB",
            WriteSharing::Strided => "N-1 strided, 64 KiB",
            WriteSharing::Apart => "N-N, 1 MiB",
        }
    }
}

/// Raw files beside ras ones, a process on each node: writes, writes with the fsync after them, reads
/// of what another node wrote, requests of all that.
pub fn raw_phases(layout: WriteSharing) -> [PromiseRow; 4] {
    let name = layout.name();
    let rate = |what, least| row(what, BytesPerSecond, AtLeast(least));
    let rows = [
        rate(format!("raw: write {name}"), 0.98),
        rate(format!("raw: write {name}, and fsync"), 0.98),
        rate(format!("raw: read another node's {name}"), 0.95),
        row(format!("raw: requests of both, {name}"), Number, Reported),
    ];
    rows.map(|row| row.beside("ras"))
}

/// Rows of processes that write, and read what a neighbour writes, in turns.
pub struct MixedRows {
    /// With a barrier after each write and each read; a turn.
    pub lock_step: PromiseRow,
    /// Requests of a turn of all.
    pub requests: PromiseRow,
    /// The duration of a turn's barriers alone.
    pub barriers: PromiseRow,
    /// Without barriers, beside ras that syncs as often.
    pub free: PromiseRow,
    /// Without barriers, beside ras that leaves it to time.
    pub unsynced: PromiseRow,
}

/// Those of raw files beside ras ones. What they may cost is not promised.
pub fn raw_mixed() -> MixedRows {
    let told = |what: &str, unit| row(what, unit, Reported);
    let synced = "ras, fsync before the barrier";
    let lock_step = "raw: exchange of 64 KiB in lock-step";
    let free = "raw: write 64 KiB, read a neighbour's, no barrier";
    MixedRows {
        lock_step: told(lock_step, Seconds).beside(synced),
        requests: told(&format!("{lock_step}: requests"), Number).beside(synced),
        barriers: told(&format!("{lock_step}: its two barriers alone"), Seconds),
        free: told(free, Seconds).beside("ras, fsync after each write"),
        unsynced: told(&format!("{free}, beside ras unsynced"), Seconds).beside("ras, no fsync"),
    }
}

/// After the first, bytes moved, the first.
pub fn look_ups(pieces: u64, lookers: usize) -> [PromiseRow; 3] {
    let what = format!("look-up of {pieces} strided pieces by {lookers} processes");
    [
        row(format!("{what}: after the first"), Seconds, AtMost(10e-3)),
        row(format!("{what}: moved"), Bytes, AtMost(1e6)),
        row(format!("{what}: the first"), Seconds, Reported),
    ]
}

/// A request and its reply, both ends asleep.
pub fn calls(libfabric: bool) -> PromiseRow {
    let bar = if libfabric { Reported } else { AtMost(1.3) };
    let what = over("request and reply, 64 B", libfabric);
    row(what, Seconds, bar).beside("plain TCP echo")
}

/// Calls on names, one process a node, beside as many processes at one server: create, stat, open and
/// remove in a directory that one process uses; stat and open of files that another node's process
/// made; create and remove in one directory of all.
pub fn metadata() -> [Vec<PromiseRow>; 3] {
    let rows = |calls: &[&str], least| -> Vec<PromiseRow> {
        let what = calls
            .iter()
            .map(|call| format!("{call}, a process on each node"));
        let rows = what.map(|what| row(what, FilesPerSecond, AtLeast(least)));
        rows.map(|row| row.beside("at one server")).collect()
    };
    let own = [
        "create in a directory of its own",
        "stat in a directory of its own",
        "open in a directory of its own",
        "remove in a directory of its own",
    ];
    let others = [
        "stat another's files, the second time",
        "open another's files, the second time",
    ];
    let shared = ["create in one directory", "remove in one directory"];
    [rows(&own, 0.8), rows(&others, 0.8), rows(&shared, 0.5)]
}

/// Creates, the same with a core for each server and its processes, and how far the busiest server is
/// above the mean. With cores of its own each server is to add its part; on one machine the same
/// cores do it all, and more servers are to cost nothing.
pub fn creates(servers: usize, one_machine: bool) -> [PromiseRow; 3] {
    let servers = u32::try_from(servers).unwrap_or(u32::MAX);
    let least = match one_machine {
        true => 1.0,
        false => 0.8 * f64::from(servers.min(4)),
    };
    let all = format!("create in one directory, {CREATORS} processes a node");
    let by_core = "the same, a core for each server and its processes";
    let least_by_core = 0.4 * f64::from(servers);
    let spread = "the same: busiest server above the mean";
    [
        row(all, FilesPerSecond, AtLeast(least)).beside("at one server"),
        row(by_core, FilesPerSecond, AtLeast(least_by_core)).beside("one server, one core"),
        row(spread, Number, AtMost(0.1)),
    ]
}
