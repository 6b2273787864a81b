//! Write tokens: the order in which programs of several nodes read and write a raw file.
//!
//! **Intuition.** A node writes bytes of a raw file only while it holds a *token* for them, and
//! reads only under a lease. The file's home grants both, one request at a time: it grants a token
//! once no other node holds a token for these bytes or a lease, and a lease once no other node
//! holds a token. A node that has to give up a token publishes its bytes first. So unpublished
//! bytes are in one node at a time, publishes arrive in the order of the writes, and a lease is
//! never older than a write that returned. No clocks are compared. Byte-range tokens are GPFS's
//! (Schmuck and Haskin, FAST 2002, section 3).
//!
//! **Cost.** One request for each record, not for each write: a token is a claim
//! ([`Claim`](weir_core::node::claim::Claim)), a range that grows as the record does, or an arithmetic progression. A node that alone has the
//! file open for writing is granted all of it. In a phase in which all nodes write disjoint bytes,
//! or all read, each node asks once for each claim; between two phases every node gives up its
//! tokens once.
//!
//! **Races.** A program that writes reads its file's block, which says if the node holds the whole
//! file, and otherwise asks its server; it checks again when its bytes are in place
//! (`weir-client/src/data/stream.rs`). So a token that is taken away while its reply is on the way
//! may still be passed to the program: every write that returned before the program began was
//! published when the home granted the token, and the program asks once more before its write
//! returns.
//!
//! **Lost servers.** A node believes a token for the term of a lease
//! ([`crate::cluster::peers::session`]). If a home cannot tell a holder, requests for the holder's
//! bytes fail until the holder is back or [`AWAITED_NS`](crate::cluster::files::AWAITED_NS) have
//! passed: then its unpublished bytes count as lost. A server that begins a session names the files
//! of which it may have unpublished bytes; so does each other server to a restarted home, which
//! waits for that.
//!
//! `node` has the side of the writing node, `home` that of the file's home.
//!
//! Left out: leases for a part of a file; tokens in the journal (they are void after a restart).

mod home;
mod node;
mod share;

use std::collections::BTreeMap;

use weir_core::names::Policy;
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::files::{FileTokens, FilesNeeds};
use crate::cluster::visibility::is_raw;
use share::Share;

/// The tokens of this server's files, and those that this node holds.
#[derive(Debug, Default)]
pub(in crate::cluster) struct WriteTokens {
    granted: BTreeMap<Ino, BTreeMap<Rank, Grant>>,
    held: BTreeMap<Ino, Share>,
    /// For files whose tokens other nodes took away: the number of times, and the last time, ns
    /// since 1970.
    taken: BTreeMap<Ino, (usize, i64)>,
    /// Files for which the home is being asked; true if this node gave up its token meanwhile.
    asking: BTreeMap<Ino, bool>,
    /// The number of times that this node had to give up a token, of any file.
    revocations: u64,
}

/// The time after which a lost token does not count any more, ns.
const TAKEN_NS: i64 = 1_000_000_000;

impl WriteTokens {
    /// The number of times that this node's token of a file was taken away recently.
    fn times_taken(&self, ino: Ino, now_ns: i64) -> usize {
        let taken = self.taken.get(&ino);
        let of_late = taken.filter(|(_, last_ns)| now_ns - last_ns < TAKEN_NS);
        of_late.map_or(0, |(times, _)| *times)
    }

    /// Counts a loss of this node's token of a file to another node, if it holds one.
    fn count_taken(&mut self, ino: Ino, now_ns: i64) {
        if !self.held.contains_key(&ino) {
            return;
        }
        let times = self.times_taken(ino, now_ns);
        self.taken.insert(ino, (times + 1, now_ns));
    }

    /// Forgets the token of a file that this node no longer writes.
    fn forget_held(&mut self, ino: Ino) {
        self.held.remove(&ino);
        self.taken.remove(&ino);
    }
}

/// The token that one node was granted for a file.
#[derive(Debug)]
struct Grant {
    share: Share,
    /// Set if the node cannot be reached: the time until which others wait for it, ns since 1970.
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

impl<S: FilesNeeds> FileTokens<S> {
    /// Handles a file, of this server or another one, that becomes raw, or stops being raw. If it becomes raw, this
    /// node publishes its earlier bytes.
    pub(super) async fn sharing_changed(&self, ino: Ino, was: Policy) -> Result<(), FsError> {
        if self.server.has_all_extents() {
            return Ok(());
        }
        let Some(local) = self.server.local(ino) else {
            return Ok(());
        };
        let attr = self.server.node(|node| node.names().attr_of(local))?;
        if attr.policy.visibility == was.visibility {
            return Ok(());
        }
        if is_raw(&attr) {
            return self.revoke_here(ino).await;
        }
        self.forget_tokens(ino);
        if ino.rank() == self.server.rank() {
            self.server.node(|node| node.names().set_ask(ino, false));
        }
        self.renew_token_word(ino, local);
        Ok(())
    }

    /// Forgets all tokens of a file that is gone, or is not raw any more.
    pub(super) fn forget_tokens(&self, ino: Ino) {
        let mut tokens = self.state().write_tokens.borrow_mut();
        tokens.granted.remove(&ino);
        tokens.forget_held(ino);
    }
}
