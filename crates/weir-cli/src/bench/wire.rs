//! What `weir bench --hosts` and its workers say to each other, once both have greeted
//! ([`weir_launch::greet`]): a line of JSON a message.
//!
//! ```text
//!  who measures                      worker
//!    | --- Prepare(step) ------------->|   opens, connects, makes buffers
//!    |<-- Ready(place) ----------------|
//!    | --- Go ------------------------>|   the start line: sent when all are ready
//!    |<-- Done(what it took) ----------|
//! ```
//!
//! `Wrong` or `Failed` may come instead of `Ready` and `Done`. What is no message of this form, or a line
//! longer than [`LINE_MOST`], ends the connection, and with it the run.

use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};

/// The longest line, bytes.
pub const LINE_MOST: u64 = 1 << 20;

/// The most bytes of one call, and of a list of calls, that a step may have.
pub const BUFFER_MOST: u64 = 1 << 30;

/// To a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Start processes with the client injected, which come under these numbers.
    Spawn(Vec<u16>),
    /// Get ready for a step.
    Prepare(Step),
    /// Do it.
    Go,
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// Ready for the step; where it listens, if the step says so.
    Ready(Option<Place>),
    /// It is done.
    Done(Done),
    /// Bytes are not what was written: which.
    Wrong(String),
    /// It cannot be: why.
    Failed(String),
}

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// By TCP.
    pub address: SocketAddr,
    /// By libfabric: its endpoint's name.
    pub endpoint: Option<Vec<u8>>,
    /// Which running kernel it is on: nodes of one machine say the same.
    pub machine: String,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// How long it took by its own clock, s.
    pub seconds: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// Calls made.
    pub calls: u64,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Listen for others, also by libfabric if so.
    Listen {
        /// Whether by libfabric.
        libfabric: bool,
    },
    /// Move bytes over plain TCP connections, as iperf3 does: 128 KiB a call, out of and into one
    /// buffer.
    Streams {
        /// Whom to connect and send to, a connection each.
        to: Vec<SocketAddr>,
        /// How many connect here.
        from: u32,
        /// Bytes of each connection.
        bytes: u64,
        /// What a connection begins with.
        token: [u8; 16],
    },
    /// Send 64 bytes and wait for them, or send back what comes, over one TCP connection.
    Echo {
        /// Whom to; `None` to answer.
        to: Option<SocketAddr>,
        /// How often.
        trips: u32,
        /// What the connection begins with.
        token: [u8; 16],
    },
    /// Ask the other of two servers 64 bytes, or answer, over weir's fabric.
    Calls {
        /// Where both listen: who asks, who answers.
        places: [Place; 2],
        /// Whether this one asks.
        asks: bool,
        /// How often.
        trips: u32,
        /// Whether over libfabric.
        libfabric: bool,
        /// What both prove to know.
        secret: String,
    },
    /// Write, and keep the file open.
    Write(Data),
    /// `fsync` and close what was written.
    Publish,
    /// Read.
    Read(Data),
    /// Read, and compare every byte.
    Verify(Data),
    /// Write and read in turns.
    Mixed(Mixed),
    /// Hold a barrier: each time, wait for a byte from every connection, then answer all.
    Barrier {
        /// How many connect here.
        from: u32,
        /// How often all meet.
        times: u32,
        /// The first bytes of each connection.
        token: [u8; 16],
    },
    /// One call for each of the files `FIRST`, `FIRST + 1`... of a directory.
    Names {
        /// Which call.
        call: NameCall,
        /// The directory.
        directory: PathBuf,
        /// The first name.
        first: u64,
        /// How many.
        files: u64,
    },
    /// Make a directory.
    Directory(PathBuf),
    /// Set the visibility of files that are made in a directory from now on.
    Visibility {
        /// The directory.
        directory: PathBuf,
        /// `raw`, `ras` or `ral`.
        visibility: String,
    },
    /// Remove a file, or a directory with all that is in it.
    Remove(PathBuf),
    /// Run on this one of the processors that it may use, its server too; `None`: on all again.
    Pin(Option<usize>),
}

/// The kind of call that a process makes on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameCall {
    /// Create an empty file, and close it.
    Create,
    /// `stat`.
    Stat,
    /// Open for reading, and close.
    Open,
    /// `unlink`.
    Remove,
}

impl NameCall {
    /// All, in the order in which a file knows them.
    pub const ALL: [NameCall; 4] = [
        NameCall::Create,
        NameCall::Stat,
        NameCall::Open,
        NameCall::Remove,
    ];
}

/// Which bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// The file.
    pub path: PathBuf,
    /// Where the first piece begins.
    pub first: u64,
    /// From one piece to the next, bytes.
    pub stride: u64,
    /// Pieces.
    pub count: u64,
    /// Bytes of each.
    pub size: u64,
    /// Pieces that are read by one `lio_listio`; 1: one by one, by `pread`.
    pub list: u64,
    /// The content (`weir_bench::parts::Content`).
    pub seed: u64,
}

impl Data {
    /// Where each piece begins.
    pub fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.count).map(|i| self.first + i * self.stride)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.count * self.size
    }

    /// Refuses what no run of the benchmark asks for.
    pub fn check(&self) -> Result<()> {
        let end = self
            .count
            .checked_mul(self.stride.max(self.size))
            .and_then(|length| length.checked_add(self.first));
        ensure!(
            end.is_some_and(|end| i64::try_from(end).is_ok()),
            "a file cannot be so long"
        );
        let buffer = self.size.checked_mul(self.list);
        ensure!(
            self.size > 0 && self.list > 0 && buffer.is_some_and(|b| b <= BUFFER_MOST),
            "a buffer of {} pieces of {} bytes",
            self.list,
            self.size
        );
        Ok(())
    }
}

/// Writes and reads of a file in turns: in each, own bytes are written, then those of another
/// process are read and compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixed {
    /// The bytes that the process writes in each turn, in calls of `size`, without lists.
    pub write: Data,
    /// The bytes that the process reads in each turn, likewise.
    pub read: Data,
    /// Turns.
    pub turns: u32,
    /// Each turn's writes end with `fsync`.
    pub fsync: bool,
    /// The barrier at which all meet after the writes and after the reads of each turn. With it the
    /// content differs from turn to turn; without it, when nobody can tell of which turn the bytes
    /// are, it is always the same.
    pub barrier: Option<Meeting>,
}

/// Where a [`Step::Barrier`] is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// The address of the process that holds the barrier.
    pub address: SocketAddr,
    /// The first bytes of the connection.
    pub token: [u8; 16],
}

/// Sends at once what is sent, and finds out within some seconds that the other node is gone.
pub fn tend(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(Duration::from_secs(5));
    let probes = probes.with_interval(Duration::from_secs(2)).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Sends a message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(message).context("a message")?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    Ok(())
}

/// Reads a message; `None` at the end.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_MOST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    ensure!(
        line.ends_with(b"\n"),
        "a line was cut off, or is longer than {LINE_MOST} bytes"
    );
    Ok(Some(
        serde_json::from_slice(&line).context("a message that makes no sense")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        Data {
            path: "/weir/f".into(),
            first: 0,
            stride: 8,
            count: 3,
            size: 4,
            list: 1,
            seed: 1,
        }
    }

    #[test]
    fn messages_come_back_as_they_went() {
        let orders = [
            Order::Go,
            Order::Spawn(vec![7]),
            Order::Prepare(Step::Read(data())),
            Order::Prepare(Step::Mixed(Mixed {
                write: data(),
                read: data(),
                turns: 3,
                fsync: true,
                barrier: Some(Meeting {
                    address: ([127, 0, 0, 1], 9).into(),
                    token: [3; 16],
                }),
            })),
        ];
        let mut bytes = Vec::new();
        for order in &orders {
            send(&mut bytes, order).unwrap();
        }
        let mut from = &bytes[..];
        for order in orders {
            assert_eq!(receive(&mut from).unwrap(), Some(order));
        }
        assert_eq!(receive::<Order>(&mut from).unwrap(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            &b"\n"[..],
            b"{}\n",
            b"\"stop\"\n",
            b"{\"spawn\":[70000]}\n",
            b"{\"prepare\":{\"remove\":\"/\",\"more\":1}}\n",
            b"\"go\"",
            b"\xff\xfe\n",
        ] {
            assert!(receive::<Order>(&mut &bad[..]).is_err(), "{bad:?}");
        }
        let long = vec![b'['; usize::try_from(LINE_MOST).unwrap() + 1];
        assert!(receive::<Order>(&mut &long[..]).is_err());
    }

    #[test]
    fn impossible_pieces_are_refused() {
        data().check().unwrap();
        for bad in [
            Data { size: 0, ..data() },
            Data { list: 0, ..data() },
            Data {
                list: u64::MAX,
                ..data()
            },
            Data {
                count: u64::MAX,
                ..data()
            },
            Data {
                first: u64::MAX,
                ..data()
            },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
