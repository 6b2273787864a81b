//! Access to the other servers, and to this server's log for them. The runtime implements both.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weir_core::proto::peer::LogRange;
use weir_core::proto::FsError;
use weir_core::types::Rank;
use weir_fabric::bulk::Landing;

/// The answer of another server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// The encoded reply.
    pub body: Vec<u8>,
    /// Bytes of files, if any were asked for.
    pub bulk: Vec<u8>,
}

/// The error that a server did not answer in time, or is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("server {0:?} does not answer")]
pub struct Lost(pub Rank);

/// Communication with the other servers. A call acts once, however often it has to be repeated.
pub trait Net {
    /// Asks `to`, and waits for the answer.
    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>>;

    /// As [`Net::call`], but waits for as long as the server cannot be reached. The call is lost only if that server
    /// was restarted after it had been asked.
    fn call_without_deadline(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.call(to, request)
    }

    /// Reads bytes of another server's log without its logic, if the transport allows that.
    /// Otherwise gives the landing back, and the caller asks for the bytes by a call.
    fn read(
        &self,
        _to: Rank,
        _ranges: &[LogRange],
        landing: Box<dyn Landing>,
    ) -> Option<Box<dyn Landing>> {
        Some(landing)
    }

    /// The host name of a server's node.
    fn host(&self, rank: Rank) -> String {
        rank.0.to_string()
    }

    /// The longest time that [`Net::call`] waits.
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The refused input of this transport: the kinds that occurred, with their counts.
    fn refused(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// Reads bytes of the server's own log, for others.
pub trait LogBytes {
    /// Appends `len` bytes at `pos` of a slab to `out`.
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError>;
}

/// The way to the other servers of a server that is the only one.
#[derive(Debug)]
pub struct NoOthers;

impl Net for NoOthers {
    fn call(&self, to: Rank, _: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        Box::pin(std::future::ready(Err(Lost(to))))
    }
}
