//! The messages between the coordinator of a run and its workers: a line of JSON each, over a socket
//! pair to processes of this node, over TCP to those of other nodes.
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
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::calls::CallStep;
use crate::copy_limit::CopyStep;
use crate::data::AfterWrite;
use crate::links::Streams;
use crate::mixed::Mixed;
use crate::names::NameStep;
use crate::pieces::FilePieces;
use crate::timing::Timing;

/// The longest line, bytes.
pub const LINE_MOST: u64 = 1 << 20;

/// To a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkerOrder {
    /// Start processes with the client injected, which come under these numbers.
    Spawn(Vec<u16>),
    /// Get ready for a step.
    Prepare(Box<Step>),
    /// Do it.
    Go,
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkerAnswer {
    /// Ready for the step; where it listens, if the step says so.
    Ready(Option<WorkerEndpoint>),
    /// It is done: when, and how much.
    Done(Timing),
    /// Bytes are not what was written: which.
    Wrong(String),
    /// It cannot be: why.
    Failed(String),
}

/// The address of a worker that listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEndpoint {
    /// By TCP.
    pub address: SocketAddr,
    /// By libfabric: its endpoint's name.
    pub endpoint: Option<Vec<u8>>,
    /// Which running kernel it is on: nodes of one machine say the same.
    pub machine: String,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Listen for others, also by libfabric if so.
    Listen {
        /// By libfabric.
        libfabric: bool,
    },
    /// Move bytes over plain TCP connections.
    Streams(Streams),
    /// Send 64 bytes and wait for them, or send back what comes, over one TCP connection.
    Echo {
        /// The address that the bytes are sent to; `None`: this side answers.
        to: Option<SocketAddr>,
        /// How often.
        trips: u32,
        /// The first bytes of the connection.
        token: [u8; 16],
    },
    /// Ask the other of two workers 64 bytes, or answer, over the fabric of the servers.
    Calls(FabricCalls),
    /// Write.
    Write {
        /// The bytes.
        data: FilePieces,
        /// The end of it.
        after: AfterWrite,
    },
    /// Open a new file, write it and close it, all in the measured time.
    Create(FilePieces),
    /// Compute for so many turns.
    Compute(u64),
    /// `fsync` and close what was written and kept open.
    Publish,
    /// Read.
    Read(FilePieces),
    /// Read, and compare every byte.
    Verify(FilePieces),
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
    /// Call on the names of files.
    Names(NameStep),
    /// Copy to or from warm memory: the machine's limit.
    Copy(CopyStep),
    /// Time a single call.
    Call(CallStep),
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

/// Requests and replies of 64 bytes over the fabric of the servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricCalls {
    /// The addresses of both: of the one that asks, of the one that answers.
    pub endpoints: [WorkerEndpoint; 2],
    /// True of the one that asks.
    pub asks: bool,
    /// How often.
    pub trips: u32,
    /// Over libfabric instead of TCP.
    pub libfabric: bool,
    /// The secret that both prove to know.
    pub secret: [u8; 32],
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
    use crate::links::BarrierHolder;

    fn data() -> FilePieces {
        FilePieces::contiguous("/weir/f", 0, 12, 4, 1).spread(0, 8, 3)
    }

    #[test]
    fn messages_come_back_as_they_went() {
        let orders = [
            WorkerOrder::Go,
            WorkerOrder::Spawn(vec![7]),
            WorkerOrder::Prepare(Box::new(Step::Read(data()))),
            WorkerOrder::Prepare(Box::new(Step::Mixed(Mixed {
                write: data(),
                read: data(),
                turns: 3,
                fsync: true,
                barrier: Some(BarrierHolder {
                    address: ([127, 0, 0, 1], 9).into(),
                    token: [3; 16],
                }),
            }))),
        ];
        let mut bytes = Vec::new();
        for order in &orders {
            send(&mut bytes, order).unwrap();
        }
        let mut from = &bytes[..];
        for order in orders {
            assert_eq!(receive(&mut from).unwrap(), Some(order));
        }
        assert_eq!(receive::<WorkerOrder>(&mut from).unwrap(), None);
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
            assert!(receive::<WorkerOrder>(&mut &bad[..]).is_err(), "{bad:?}");
        }
        let long = vec![b'['; usize::try_from(LINE_MOST).unwrap() + 1];
        assert!(receive::<WorkerOrder>(&mut &long[..]).is_err());
    }
}
