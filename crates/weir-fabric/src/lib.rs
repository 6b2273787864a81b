//! Requests and replies between the servers of an instance.
//!
//! ```text
//!  service thread                         its own sockets, or an I/O thread
//!   Fabric::call(rank, body) --------->   connection with that rank: proof, request
//!   Fabric::poll() <-------------------   reply, or an error
//!   Event::Request(token, body)  <-----   request
//!   Fabric::reply(token, body) ------->   reply
//! ```
//!
//! A server dials another server when it first calls it, unless the other server dialled before:
//! both ends use a connection. So 4,000 servers do not all connect at the start.
//!
//! Invariants:
//! - A call ends once: with its reply, or with a [`CallError`] when its deadline passes, when the
//!   other server cannot be reached for [`Timing::give_up`], or when it was restarted.
//! - A call acts at most once. A call that is sent again after a connection broke keeps its id. The
//!   other server remembers the ids that it received and the replies that were not acknowledged.
//! - A server trusts a connection only after both ends have proved that they know the instance's
//!   secret. It refuses and counts every other connection ([`RefusalCounters`]), which disturbs no
//!   other peer.
//!
//! | module | subject |
//! | --- | --- |
//! | [`frame`] | the wire format, and the proof |
//! | [`links`] | calls, without a socket or clock: repetition, deadlines, incarnations |
//! | [`received`] | received calls, so that each acts once |
//! | [`tcp`] | TCP: the handles; `io`: its sockets and handshakes |
//! | [`ofi`] | libfabric, where it is installed |
//! | [`bulk`] | bytes of logs, past the service threads |
//! | [`sim`] | a simulated network for tests: seeded, one thread, its own clock |
//!
//! Left out: the operations (`weir-core`, `proto::peer`), and encryption. The network between the
//! nodes of a job is trusted with the data, as MPI trusts it.
#![deny(unsafe_code)]

pub mod bulk;
mod command;
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

/// A call's number at the calling server, never reused in that server's incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// The call that a reply answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The calling server.
    pub from: Rank,
    /// The incarnation of the calling server.
    pub incarnation: u64,
    /// The call's id there.
    pub call: CallId,
}

/// A message: the encoded operation or reply, and bytes of files after it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// At most [`frame::BODY_MOST`] bytes.
    pub body: Vec<u8>,
    /// At most [`frame::BULK_MOST`] bytes.
    pub bulk: Vec<u8>,
}

/// The reason why a call has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The deadline has passed.
    #[error("no reply before the deadline")]
    Deadline,
    /// No connection can be made.
    #[error("the server cannot be reached")]
    Unreachable,
    /// The server was restarted after the call was sent; it may or may not have acted.
    #[error("the server was started anew")]
    Restarted,
    /// The fabric has ended, or a message is too large.
    #[error("the fabric has ended")]
    Ended,
}

/// An event for the service thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Another server called.
    Request(Token, Message),
    /// A call ended.
    Done(CallId, Result<Message, CallError>),
    /// A server that was reached before can no longer be reached, or was restarted.
    PeerLost(Rank),
}

/// One server's end of a transport, held by the service thread. One test suite checks that all
/// transports behave alike (`tests/conformance`).
pub trait Fabric {
    /// Calls another server; the result is an [`Event::Done`].
    fn call(&self, to: Rank, message: Message) -> CallId;

    /// Calls another server without a deadline, however long that server cannot be reached. The
    /// call ends without a reply only if the server was restarted after the call was sent, or if
    /// the fabric ends. So an operation that was begun can be finished or undone at any later time.
    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId;

    /// Answers a call.
    fn reply(&self, token: Token, message: Message);

    /// Returns the next event, without waiting.
    fn poll(&self) -> Option<Event>;

    /// The connections and packets refused so far.
    fn counters(&self) -> RefusalCounters;
}

/// This server's identity and the addresses of all servers.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The instance.
    pub instance: InstanceId,
    /// The secret that servers prove to know.
    pub secret: Secret,
    /// This server.
    pub rank: Rank,
    /// This server's incarnation, greater than every earlier one.
    pub incarnation: u64,
    /// The address of each server, by rank.
    pub addresses: Vec<SocketAddr>,
}

/// Time limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A call without a reply for this long fails.
    pub deadline: Duration,
    /// A server that cannot be reached for this long is lost, with all calls to it.
    pub give_up: Duration,
    /// The limit of a handshake.
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
    /// Each counter with its name.
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

/// Refused connections and packets, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RefusalCounters {
    /// Malformed frames.
    pub garbage: u64,
    /// Another protocol version.
    pub version: u64,
    /// Another instance.
    pub instance: u64,
    /// A rank that does not exist or is not the addressed one.
    pub rank: u64,
    /// A wrong proof.
    pub secret: u64,
    /// Proofs that did not come in time, and connections beyond the limit of unproven ones.
    pub slow: u64,
}
