//! The way to the other servers, and this server's log for them: the runtime implements both.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weir_core::proto::peer::LogRange;
use weir_core::proto::FsError;
use weir_core::types::Rank;
use weir_fabric::bulk::Landing;

/// What comes back from another server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// The encoded reply.
    pub body: Vec<u8>,
    /// Bytes of files, if any were asked for.
    pub bulk: Vec<u8>,
}

/// A server did not answer in time, or is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("server {0:?} does not answer")]
pub struct Lost(pub Rank);

/// The way to the other servers. A call acts once, however often it has to be repeated.
pub trait Net {
    /// Asks `to`, and waits for the answer.
    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>>;

    /// As [`Net::call`], for however long the server cannot be reached: lost only if it was
    /// started anew after it had been asked.
    fn call_without_deadline(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.call(to, request)
    }

    /// Reads bytes of another server's log past its logic, if this way to it allows that; else
    /// gives the landing back, and the bytes are asked for by a call.
    fn read(
        &self,
        _to: Rank,
        _ranges: &[LogRange],
        landing: Box<dyn Landing>,
    ) -> Option<Box<dyn Landing>> {
        Some(landing)
    }

    /// What the node of a server is called.
    fn host(&self, rank: Rank) -> String {
        rank.0.to_string()
    }

    /// How long [`Net::call`] waits at most.
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// What was refused on this way: kind and count, of what there was.
    fn refused(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// Reads bytes of the server's own log, for others.
pub trait LogBytes {
    /// Appends `len` bytes at `pos` of a slab to `out`.
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError>;
}
