//! The rows of `weir bench --hosts`, and their promises: one place for each number.

use super::rows::{Bar, Row, Unit};

/// How many processes look up one file.
pub const LOOKERS: usize = 32;

/// How many processes of each node create files.
pub const CREATORS: usize = 4;

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
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

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which rows.
    pub parts: Vec<Part>,
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

impl Plan {
    /// The parts that are measured over libfabric, too.
    pub fn over_libfabric(&self) -> impl Iterator<Item = Part> + '_ {
        let told = |part: &Part| matches!(part, Part::Reads | Part::Calls);
        self.parts.iter().copied().filter(told)
    }
}

fn row(what: impl Into<String>, beside: &str, unit: Unit, bar: Bar) -> Row {
    Row {
        what: what.into(),
        beside: beside.into(),
        unit,
        bar,
    }
}

fn over(what: String, libfabric: bool) -> String {
    if libfabric {
        format!("{what}, over libfabric")
    } else {
        what
    }
}

/// One process a node writes; the rate of the slowest.
pub fn write(shared: bool) -> Row {
    let how = if shared { "N-1 segmented" } else { "N-N" };
    let what = format!("write {how}, 1 MiB, a process on each node");
    row(
        what,
        "at one server",
        Unit::BytesPerSecond,
        Bar::AtLeast(0.9),
    )
}

/// Requests of clients and servers that a write costs.
pub fn messages() -> Row {
    row("messages a write", "", Unit::Number, Bar::AtMost(0.001))
}

/// One node reads what another has.
pub fn read(streams: usize, size: u64, libfabric: bool) -> Row {
    let word = if streams == 1 { "stream" } else { "streams" };
    let what = format!("remote read, {} MiB, {streams} {word}", size >> 20);
    let bar = match (libfabric, streams) {
        (true, _) => Bar::Reported,
        (_, 1) => Bar::AtLeast(0.9),
        _ => Bar::AtLeast(0.95),
    };
    row(
        over(what, libfabric),
        "plain TCP",
        Unit::BytesPerSecond,
        bar,
    )
}

/// 4 KiB pieces in lists, beside one by one or the rate of large reads.
pub fn pieces(beside_one_by_one: bool) -> Row {
    let what = "remote read, every fourth 4 KiB, in lists of 256";
    match beside_one_by_one {
        true => row(what, "one by one", Unit::BytesPerSecond, Bar::AtLeast(10.0)),
        false => row(
            format!("{what}: of large reads"),
            "1 MiB reads",
            Unit::BytesPerSecond,
            Bar::AtLeast(0.6),
        ),
    }
}

/// Written segmented, read strided, by all nodes; bytes over links.
pub fn exchange(lists: bool) -> Row {
    let (how, bar) = match lists {
        true => ("one list a process", Bar::AtLeast(0.8)),
        false => ("one by one", Bar::Reported),
    };
    row(
        format!("N-1 strided read of N-1 segmented, 1 MiB, {how}"),
        "plain TCP, all to all",
        Unit::BytesPerSecond,
        bar,
    )
}

/// How processes share what they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One file, a contiguous part each.
    Segmented,
    /// One file, pieces by turns.
    Strided,
    /// A file each.
    Apart,
}

impl Layout {
    /// All.
    pub const ALL: [Layout; 3] = [Layout::Segmented, Layout::Strided, Layout::Apart];

    fn name(self) -> &'static str {
        match self {
            Layout::Segmented => "N-1 segmented, 1 MiB",
            Layout::Strided => "N-1 strided, 64 KiB",
            Layout::Apart => "N-N, 1 MiB",
        }
    }
}

/// Raw files beside ras ones, a process on each node: writes, writes with the fsync after them, reads
/// of what another node wrote, requests of all that.
pub fn raw_phases(layout: Layout) -> [Row; 4] {
    let name = layout.name();
    let rate = |what: String, least| row(what, RAS, Unit::BytesPerSecond, Bar::AtLeast(least));
    [
        rate(format!("raw: write {name}"), 0.98),
        rate(format!("raw: write {name}, and fsync"), 0.98),
        rate(format!("raw: read another node's {name}"), 0.95),
        row(
            format!("raw: requests of both, {name}"),
            RAS,
            Unit::Number,
            Bar::Reported,
        ),
    ]
}

/// Beside what raw files are measured.
const RAS: &str = "ras";

/// Rows of processes that write, and read what a neighbour writes, in turns.
pub struct MixedRows {
    /// With a barrier after each write and each read; a turn.
    pub lock_step: Row,
    /// Requests of a turn of all.
    pub requests: Row,
    /// The duration of a turn's barriers alone.
    pub barriers: Row,
    /// Without barriers, beside ras that syncs as often.
    pub free: Row,
    /// Without barriers, beside ras that leaves it to time.
    pub unsynced: Row,
}

/// Those of raw files beside ras ones. What they may cost is not promised.
pub fn raw_mixed() -> MixedRows {
    let told = |what: &str, beside, unit| row(what, beside, unit, Bar::Reported);
    let synced = "ras, fsync before the barrier";
    let lock_step = "raw: exchange of 64 KiB in lock-step";
    let free = "raw: write 64 KiB, read a neighbour's, no barrier";
    MixedRows {
        lock_step: told(lock_step, synced, Unit::Seconds),
        requests: told(&format!("{lock_step}: requests"), synced, Unit::Number),
        barriers: told(
            &format!("{lock_step}: its two barriers alone"),
            "",
            Unit::Seconds,
        ),
        free: told(free, "ras, fsync after each write", Unit::Seconds),
        unsynced: told(
            &format!("{free}, beside ras unsynced"),
            "ras, no fsync",
            Unit::Seconds,
        ),
    }
}

/// After the first, bytes moved, the first.
pub fn look_ups(pieces: u64, lookers: usize) -> [Row; 3] {
    let what = format!("look-up of {pieces} strided pieces by {lookers} processes");
    [
        row(
            format!("{what}: after the first"),
            "",
            Unit::Seconds,
            Bar::AtMost(10e-3),
        ),
        row(format!("{what}: moved"), "", Unit::Bytes, Bar::AtMost(1e6)),
        row(
            format!("{what}: the first"),
            "",
            Unit::Seconds,
            Bar::Reported,
        ),
    ]
}

/// A request and its reply, both ends asleep.
pub fn calls(libfabric: bool) -> Row {
    let bar = match libfabric {
        true => Bar::Reported,
        false => Bar::AtMost(1.3),
    };
    row(
        over("request and reply, 64 B".to_owned(), libfabric),
        "plain TCP echo",
        Unit::Seconds,
        bar,
    )
}

/// Calls on names, one process a node: in directories that one process uses, on files that another
/// node's process made, and in one directory of all.
pub struct MetadataRows {
    /// Create, stat, open, remove, in a directory a process.
    pub own: [Row; 4],
    /// Stat, open, of files that another process made, the second time.
    pub others: [Row; 2],
    /// Create, remove, in one directory.
    pub shared: [Row; 2],
}

/// Beside as many processes at one server.
pub fn metadata() -> MetadataRows {
    let rate = |what: &str, least| {
        let what = format!("{what}, a process on each node");
        let bar = Bar::AtLeast(least);
        row(what, "at one server", Unit::FilesPerSecond, bar)
    };
    MetadataRows {
        own: ["create", "stat", "open", "remove"]
            .map(|call| rate(&format!("{call} in a directory of its own"), 0.8)),
        others: ["stat", "open"]
            .map(|call| rate(&format!("{call} another's files, the second time"), 0.8)),
        shared: ["create", "remove"].map(|call| rate(&format!("{call} in one directory"), 0.5)),
    }
}

/// Creates, the same with a core for each server and its processes, and how far the busiest server is
/// above the mean. With cores of its own each server is to add its part; on one machine the same
/// cores do it all, and more servers are to cost nothing.
pub fn creates(servers: usize, one_machine: bool) -> [Row; 3] {
    let servers = u32::try_from(servers).unwrap_or(u32::MAX);
    let least = match one_machine {
        true => 1.0,
        false => 0.8 * f64::from(servers.min(4)),
    };
    [
        row(
            format!("create in one directory, {CREATORS} processes a node"),
            "at one server",
            Unit::FilesPerSecond,
            Bar::AtLeast(least),
        ),
        row(
            "the same, a core for each server and its processes",
            "one server, one core",
            Unit::FilesPerSecond,
            Bar::AtLeast(0.4 * f64::from(servers)),
        ),
        row(
            "the same: busiest server above the mean",
            "",
            Unit::Number,
            Bar::AtMost(0.1),
        ),
    ]
}
