//! Write tokens: in which order programs of several nodes read and write a raw file.
//!
//! **Intuition.** A node writes bytes of a raw file only while it holds a *token* for them, and
//! reads only under a lease. The file's home grants both, one request at a time: it grants a token
//! once no other node holds one for these bytes or a lease, and a lease once no other node holds a
//! token. Who has to give up a token publishes what it wrote first. So bytes that are not
//! published are in one node at a time, publishes arrive in the order of the writes, and a lease
//! is never older than a write that returned. No clock is compared. Byte-range tokens are GPFS's
//! (Schmuck and Haskin, FAST 2002, section 3).
//!
//! **What it costs.** A request a record, not a write: a token is a claim ([`Claim`]), a range that
//! grows as the record does or an arithmetic progression. A node that alone has the file open for
//! writing is granted all of it. A phase in which all write disjoint bytes, or all read, asks once
//! a node and claim; between two phases everyone gives up once.
//!
//! **Races.** A program that writes looks at its file's block, which says whether the node holds
//! the whole file, and asks its server otherwise; it looks again when its bytes are in place
//! (`weir-client/src/data/stream.rs`). So a token that is taken away while its reply is on the way
//! may still be answered to the program: all that returned before the program began to write was
//! published when the home granted it, and the program asks once more before its write returns.
//!
//! **Lost servers.** A node believes a token for the term of a lease ([`crate::cluster::peers::session`]). If a home
//! cannot tell a holder, requests for the holder's bytes fail until the holder is back or
//! [`AWAITED_NS`](crate::cluster::files::AWAITED_NS) have passed: then its unpublished bytes count as lost.
//! A server that begins a session names the files of which it may have bytes to publish; so does
//! each other server to a home that was started again, which waits for that.
//!
//! `node` has the part of a node that writes, `home` that of a file's home.
//!
//! Left out: leases for a part of a file; tokens in the journal (they are void after a restart).

mod home;
mod node;
mod share;

use std::collections::BTreeMap;

use weir_core::names::Policy;
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::visibility::is_raw;
use crate::cluster::Cluster;
use crate::node::Platform;
use share::Share;

/// The tokens of this server's files, and those that this node holds.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Tokens {
    granted: BTreeMap<Ino, BTreeMap<Rank, Grant>>,
    held: BTreeMap<Ino, Share>,
    /// Of files whose tokens other nodes took away: how often, and when last, ns since 1970.
    taken: BTreeMap<Ino, (usize, i64)>,
    /// Files for which the home is being asked; whether this node gave up its token meanwhile.
    asking: BTreeMap<Ino, bool>,
    /// How often this node was told to give up a token, of whatever file.
    revocations: u64,
}

/// So long after a token was taken away it is as if that never was, ns.
const TAKEN_NS: i64 = 1_000_000_000;

impl Tokens {
    /// How often the token of a file that this node held was taken away of late.
    fn times_taken(&self, ino: Ino, now_ns: i64) -> usize {
        let taken = self.taken.get(&ino);
        let of_late = taken.filter(|(_, last_ns)| now_ns - last_ns < TAKEN_NS);
        of_late.map_or(0, |(times, _)| *times)
    }

    /// Another node takes the token of a file away, if this one holds it.
    fn count_taken(&mut self, ino: Ino, now_ns: i64) {
        if !self.held.contains_key(&ino) {
            return;
        }
        let times = self.times_taken(ino, now_ns);
        self.taken.insert(ino, (times + 1, now_ns));
    }

    /// This node writes a file no more.
    fn forget_held(&mut self, ino: Ino) {
        self.held.remove(&ino);
        self.taken.remove(&ino);
    }
}

/// What one node was granted of a file.
#[derive(Debug)]
struct Grant {
    share: Share,
    /// The node cannot be reached; until when it is waited for, ns since 1970.
    awaited_until_ns: Option<i64>,
}

impl Grant {
    fn new(share: Share) -> Grant {
        Grant {
            share,
            awaited_until_ns: None,
        }
    }
}

impl<P: Platform> Cluster<P> {
    /// A file of this server or of another one is raw from now on, or no more. What this node
    /// wrote before is published.
    pub(in crate::cluster) async fn sharing_changed(
        &self,
        ino: Ino,
        was: Policy,
    ) -> Result<(), FsError> {
        if self.has_all_extents() {
            return Ok(());
        }
        let Some(local) = self.local(ino) else {
            return Ok(());
        };
        let attr = self.node(|node| node.attr_of(local))?;
        if attr.policy.visibility == was.visibility {
            return Ok(());
        }
        if is_raw(&attr) {
            return self.revoke_here(ino).await;
        }
        self.forget_tokens(ino);
        if ino.rank() == self.rank() {
            self.node(|node| node.set_ask(ino, false));
        }
        self.renew_token_word(ino, local);
        Ok(())
    }

    /// Forgets all tokens of a file that is gone, or is not raw any more.
    pub(in crate::cluster) fn forget_tokens(&self, ino: Ino) {
        let mut tokens = self.inner.write_tokens.borrow_mut();
        tokens.granted.remove(&ino);
        tokens.forget_held(ino);
    }
}
