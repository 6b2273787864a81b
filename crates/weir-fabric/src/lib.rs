//! Requests and replies between the servers of an instance.
//!
//! ```text
//!  service thread                         its own sockets, or an I/O thread
//!   Fabric::call(rank, body) --------->   connection with that rank: proof, request
//!   Fabric::poll() <-------------------   reply, or: lost
//!   Event::Request(token, body)  <-----   request
//!   Fabric::reply(token, body) ------->   reply
//! ```
//!
//! A server dials another when it first asks it something, unless it was dialled by that one
//! before: a connection is used both ways. So 4,000 servers do not all connect at the start.
//!
//! Invariants:
//! - A call ends once: with its reply, or with [`CallError`] when its deadline passes, when the
//!   other server cannot be reached for [`Timing::give_up`], or when it was started anew.
//! - A call acts at most once. It keeps its id when it is sent again after a connection broke;
//!   the other server remembers the ids it has, and the replies that were not acknowledged.
//! - Nobody is believed before both have proved that they know the instance's secret. What does
//!   not prove it is refused, counted ([`RefusalCounters`]) and disturbs no one else.
//!
//! | module | subject |
//! | --- | --- |
//! | [`frame`] | the wire format, and the proof |
//! | [`links`] | calls, without a socket or clock: repetition, deadlines, lives |
//! | [`seen`] | calls that came, so that each acts once |
//! | [`tcp`] | TCP: the handles; `io`: its sockets and handshakes |
//! | [`ofi`] | libfabric, where it is |
//! | [`bulk`] | bytes of logs, past the service threads |
//! | [`sim`] | a network without one, for tests: seeded, one thread, a clock of its own |
//!
//! Left out: what is asked (`weir-core`, `proto::peer`), and encryption: the
//! network between the nodes of a job is trusted with the data, as MPI trusts it.
#![deny(unsafe_code)]

pub mod bulk;
pub mod conn;
pub mod frame;
mod io;
pub mod links;
mod mailbox;
#[allow(unsafe_code)] // calls into libfabric; see the invariants there
pub mod ofi;
pub mod received;
pub mod sim;
pub mod tcp;

use std::net::SocketAddr;
use std::time::Duration;

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;

pub use ofi::Libfabric;
pub use tcp::{PolledTcp, Tcp};

/// A call's number at the server that makes it; never used twice in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// What a reply is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// Who asked.
    pub from: Rank,
    /// Which life of that server.
    pub incarnation: u64,
    /// Its call.
    pub call: CallId,
}

/// A message: the encoded operation or reply, and bytes of files behind it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// At most [`frame::BODY_MOST`] bytes.
    pub body: Vec<u8>,
    /// At most [`frame::BULK_MOST`] bytes.
    pub bulk: Vec<u8>,
}

/// Why there is no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The time for it is over.
    #[error("no reply before the deadline")]
    Deadline,
    /// It cannot be connected to.
    #[error("the server cannot be reached")]
    Unreachable,
    /// It was started anew after it had been asked: whether it acted is not known.
    #[error("the server was started anew")]
    Restarted,
    /// The fabric has ended, or a message is too large.
    #[error("the fabric has ended")]
    Ended,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Another server asks something.
    Request(Token, Message),
    /// A call ended.
    Done(CallId, Result<Message, CallError>),
    /// A server that was reached before is not to be reached, or was started anew.
    PeerLost(Rank),
}

/// One server's end of a transport: what the service thread holds. All transports do the same
/// by it, which one suite of tests sees to (`tests/conformance`).
pub trait Fabric {
    /// Asks another server; the answer is an [`Event::Done`].
    fn call(&self, to: Rank, message: Message) -> CallId;

    /// As [`Fabric::call`], without a deadline, and however long the server cannot be reached:
    /// it ends without a reply only if the server was started anew after it had been asked, or
    /// the fabric ends. So what was begun can be ended or undone, whenever that may be.
    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId;

    /// Answers a request.
    fn reply(&self, token: Token, message: Message);

    /// What has happened, without waiting.
    fn poll(&self) -> Option<Event>;

    /// What was refused so far.
    fn counters(&self) -> RefusalCounters;
}

/// Who a server is, and who the others are.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The instance.
    pub instance: InstanceId,
    /// What its servers prove to know.
    pub secret: Secret,
    /// This server.
    pub rank: Rank,
    /// Which life of it this is: greater than every one before.
    pub incarnation: u64,
    /// Where each server is, by rank.
    pub addresses: Vec<SocketAddr>,
}

/// How long things may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A call without a reply for so long is lost.
    pub deadline: Duration,
    /// A server that cannot be reached for so long is lost, with all calls to it.
    pub give_up: Duration,
    /// Proving who one is may take so long.
    pub handshake: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            deadline: Duration::from_secs(30),
            give_up: Duration::from_millis(1500),
            handshake: Duration::from_secs(2),
        }
    }
}

impl RefusalCounters {
    /// Each count with its name.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("garbage", self.garbage),
            ("another version", self.version),
            ("another instance", self.instance),
            ("another rank", self.rank),
            ("wrong secret", self.secret),
            ("no proof in time", self.slow),
        ]
    }
}

/// What was refused, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RefusalCounters {
    /// Frames that make no sense.
    pub garbage: u64,
    /// Another version of the protocol.
    pub version: u64,
    /// Another instance.
    pub instance: u64,
    /// A rank that is not there, or not who was asked for.
    pub rank: u64,
    /// A proof that is wrong.
    pub secret: u64,
    /// Proofs that did not come in time, and connections beyond what may wait.
    pub slow: u64,
}
