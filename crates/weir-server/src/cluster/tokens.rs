//! Write tokens: in which order programs of several nodes read and write a raw file.
//!
//! **Intuition.** A node writes bytes of a raw file only while it holds a *token* for them, and
//! reads only under a lease. The file's home grants both, one request at a time: it grants a token
//! once no other node holds one for these bytes or a lease, and a lease once no other node holds a
//! token. Who has to give up a token publishes what it wrote first. So bytes that are not
//! published are in one node at a time, publishes arrive in the order of the writes, and a lease
//! is never older than a write that returned. No clock is compared. Byte-range tokens are GPFS's
//! (Schmuck and Haskin, FAST 2002, section 3.2).
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
//! **Lost servers.** A token is believed for the term of a lease ([`super::session`]). A home that
//! cannot tell a holder gives an error to who wants these bytes, until the holder is back or
//! [`AWAITED_NS`] have passed: after that, what it had not published is taken for lost. A server
//! that begins a session names the files of which it may have something to publish; so does each
//! other server to a home that was started again, which waits for that.
//!
//! Left out: leases for a part of a file; tokens in the journal (they are void after a restart).

use std::collections::BTreeMap;

use futures_util::future::join;
use weir_core::extent::MAX_OFFSET;
use weir_core::names::{Attr, Lamination, Policy, Visibility};
use weir_core::node::block::{ASK, FREE, HELD};
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, News};
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{Ino, Rank};

use super::append::AWAITED_NS;
use super::tell::all_of;
use super::Cluster;
use crate::node::Platform;

/// A node that was granted so many claims of a file gives them up before it asks for more.
const CLAIMS_MOST: usize = 512;

/// The tokens of this server's files, and those that this node holds.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    granted: BTreeMap<Ino, BTreeMap<Rank, Grant>>,
    held: BTreeMap<Ino, Share>,
    /// Files for which the home is being asked; whether this node gave up its token meanwhile.
    asking: BTreeMap<Ino, bool>,
    /// How often this node was told to give up a token, of whatever file.
    revocations: u64,
}

/// What one node was granted of a file.
#[derive(Debug)]
struct Grant {
    share: Share,
    /// The node cannot be reached; until when it is waited for, ns since 1970.
    awaited_until_ns: Option<i64>,
}

impl Grant {
    fn of(share: Share) -> Grant {
        Grant {
            share,
            awaited_until_ns: None,
        }
    }
}

/// The bytes that a token is for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Share {
    Whole,
    Claims(Vec<Claim>),
}

impl Share {
    fn none() -> Share {
        Share::Claims(Vec::new())
    }

    fn overlaps(&self, claim: &Claim) -> bool {
        match self {
            Share::Whole => true,
            Share::Claims(claims) => claims.iter().any(|one| one.overlaps(claim)),
        }
    }

    fn contains(&self, claim: &Claim) -> bool {
        match self {
            Share::Whole => true,
            Share::Claims(claims) => claims.iter().any(|one| one.contains(claim)),
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Share::Claims(claims) if claims.len() >= CLAIMS_MOST)
    }

    /// Adds a claim, joined with a range that it continues.
    fn add(&mut self, claim: Claim) {
        let Share::Claims(claims) = self else {
            return;
        };
        if claims.iter().any(|one| one.contains(&claim)) {
            return;
        }
        claims.retain(|one| !claim.contains(one));
        let next = |one: &&mut Claim| one.count == 1 && claim.count == 1 && touch(one, &claim);
        match claims.iter_mut().find(next) {
            Some(one) => {
                let (from, to) = (one.offset.min(claim.offset), one.end().max(claim.end()));
                *one = Claim::range(from, to - from);
            }
            None => claims.push(claim),
        }
    }
}

/// Whether two ranges overlap or lie side by side.
fn touch(a: &Claim, b: &Claim) -> bool {
    a.offset <= b.end() && b.offset <= a.end()
}

/// Whether programs of all nodes see what is written to a file once the write returned.
pub(super) fn is_raw(attr: &Attr) -> bool {
    attr.policy.visibility == Visibility::ReadAfterWrite && attr.lamination != Lamination::Done
}

impl<P: Platform> Cluster<P> {
    /// Lets a program of this node write bytes of a raw file; what of its wish it may write.
    pub(super) async fn write_token(&self, op: proto::Token) -> Result<Claim, FsError> {
        if !(op.needed.is_sound(MAX_OFFSET) && op.wished.is_sound(MAX_OFFSET)) {
            return Err(FsError::Invalid);
        }
        let ino = self.global(op.ino);
        if let Some(claim) = self.held_of_wish(ino, &op) {
            return Ok(claim);
        }
        let _turn = self.hold_in_time(&self.inner.asking_tokens, ino).await?;
        if let Some(claim) = self.held_of_wish(ino, &op) {
            return Ok(claim);
        }
        let full = |tokens: &Tokens| tokens.held.get(&ino).is_some_and(Share::is_full);
        let anew = full(&self.inner.write_tokens.borrow());
        if anew {
            self.revoke_here(ino).await?;
        }
        self.inner
            .write_tokens
            .borrow_mut()
            .asking
            .insert(ino, false);
        let granted = self.ask_for_token(ino, &op, anew).await;
        self.inner.write_tokens.borrow_mut().asking.remove(&ino);
        granted
    }

    async fn ask_for_token(
        &self,
        ino: Ino,
        op: &proto::Token,
        anew: bool,
    ) -> Result<Claim, FsError> {
        let asked_ns = self.now_ns();
        let request = peer::Grant {
            ino,
            needed: op.needed,
            wished: op.wished,
            anew,
        };
        let (granted, session) = self.call_in(ino.rank(), request).await?;
        let local = self.local(ino).ok_or(FsError::Stale)?;
        let own = ino.rank() == self.rank();
        let holds =
            own || self.is_session(ino.rank(), session) && self.believe_lease(ino.rank(), asked_ns);
        let mut tokens = self.inner.write_tokens.borrow_mut();
        let given_up = tokens.asking.get(&ino).copied().unwrap_or(false);
        if holds && !given_up {
            let share = tokens.held.entry(ino).or_insert_with(Share::none);
            match granted {
                Some(claim) => share.add(claim),
                None => *share = Share::Whole,
            }
            drop(tokens);
            self.renew_token_word(ino, local);
        } else {
            // It held when the home granted it, which is enough for a write that looks again.
            drop(tokens);
            self.node(|node| node.revoke_writes(local));
        }
        Ok(granted.unwrap_or(op.wished))
    }

    /// Other nodes have published what they wrote to these bytes of a raw file: what this node does
    /// to them at their homes comes behind that.
    pub(super) async fn end_other_writes(&self, ino: Ino, claim: &Claim) -> Result<(), FsError> {
        let local = self.local(ino).ok_or(FsError::Stale)?;
        if !is_raw(&self.node(|node| node.attr_of(local))?) {
            return Ok(());
        }
        let op = proto::Token {
            ino: local,
            needed: *claim,
            wished: *claim,
        };
        self.write_token(op).await.map(drop)
    }

    /// What this node holds of a wish, if that is all that is needed.
    fn held_of_wish(&self, ino: Ino, op: &proto::Token) -> Option<Claim> {
        let tokens = self.inner.write_tokens.borrow();
        let held = tokens.held.get(&ino)?;
        let claims = [op.wished, op.needed].into_iter();
        let mut usable = claims.filter(|claim| claim.contains(&op.needed));
        let found = usable.find(|claim| held.contains(claim))?;
        drop(tokens);
        if ino.rank() != self.rank() {
            self.use_lease(ino.rank());
        }
        Some(found)
    }

    /// Says to this node's writers of a file what they ask.
    pub(super) fn renew_token_word(&self, ino: Ino, local: Ino) {
        let Ok(attr) = self.node(|node| node.attr_of(local)) else {
            return;
        };
        let held = &self.inner.write_tokens.borrow().held;
        let word = match held.get(&ino) {
            _ if !is_raw(&attr) => FREE,
            Some(Share::Whole) => HELD,
            _ => ASK,
        };
        self.node(|node| node.set_tokens(local, word));
    }

    /// This node may write nothing of a file any more without asking.
    pub(super) fn give_up_token(&self, ino: Ino) {
        {
            let mut tokens = self.inner.write_tokens.borrow_mut();
            tokens.revocations += 1;
            tokens.held.remove(&ino);
            if let Some(given_up) = tokens.asking.get_mut(&ino) {
                *given_up = true;
            }
        }
        let Some(local) = self.local(ino) else {
            return;
        };
        self.node(|node| {
            if node.attr_of(local).is_ok_and(|attr| is_raw(&attr)) {
                node.revoke_writes(local);
            }
        });
    }

    /// How often this node gave up tokens: what it was granted by the way, without
    /// [`Cluster::write_token`], it holds only if that did not change meanwhile.
    pub(super) fn revocations(&self) -> u64 {
        self.inner.write_tokens.borrow().revocations
    }

    /// The maker of a new file of this server may write all of it, if it is raw.
    pub(super) fn grant_new(&self, maker: Rank, attr: &Attr) -> bool {
        if !is_raw(attr) {
            return false;
        }
        let mut tokens = self.inner.write_tokens.borrow_mut();
        let grants = tokens.granted.entry(attr.home).or_default();
        let is_first = grants.is_empty();
        if is_first {
            grants.insert(maker, Grant::of(Share::Whole));
        }
        drop(tokens);
        if maker != self.rank() {
            self.node(|node| node.set_ask(attr.home, true));
        }
        is_first
    }

    /// This node may write all of a file that it has made, as was asked for at `asked_ns`.
    pub(super) fn hold_new(&self, ino: Ino, asked_ns: i64) {
        if ino.rank() == self.rank() || self.believe_lease(ino.rank(), asked_ns) {
            let mut tokens = self.inner.write_tokens.borrow_mut();
            tokens.held.insert(ino, Share::Whole);
        }
    }

    /// A program of this node has closed a file that it wrote: publishes. If nobody else of this
    /// node writes it, the home is told that its token is given up, which spares the first reader
    /// elsewhere the wait for that.
    pub(super) async fn close_written(&self, from: Caller, ino: Ino) -> Result<(), FsError> {
        let ino = self.global(ino);
        let held = self.inner.write_tokens.borrow().held.contains_key(&ino);
        let (Some(local), Caller::Client(id), true) = (self.local(ino), from, held) else {
            return self.flush(ino).await;
        };
        if !self.node(|node| node.writes_alone(local, id)) {
            return self.flush(ino).await;
        }
        // No token is asked for meanwhile, which the home would take for the one that ends.
        let _turn = self.hold_in_time(&self.inner.asking_tokens, ino).await?;
        // Other threads may be writing: the program may be at its end, not at a close.
        self.give_up_token(ino);
        self.flush_as(ino, true).await
    }

    /// Another node wants to read a file, or to write bytes that this one holds.
    pub(super) async fn revoke_here(&self, ino: Ino) -> Result<(), FsError> {
        self.give_up_token(ino);
        self.flush(ino).await
    }

    /// The stand-in of a file ends: nobody of this node has it open.
    pub(super) fn forget_held_token(&self, ino: Ino) {
        self.inner.write_tokens.borrow_mut().held.remove(&ino);
    }

    /// Lets a node write bytes of a raw file of this server.
    pub(super) async fn grant_token(
        &self,
        from: Rank,
        op: &peer::Grant,
    ) -> Result<Option<Claim>, FsError> {
        let ino = op.ino;
        if !(op.needed.is_sound(MAX_OFFSET) && op.wished.is_sound(MAX_OFFSET)) {
            return Err(FsError::Malformed);
        }
        self.inner.returning.free((), self.token()).await;
        let _turn = self.hold_in_time(&self.inner.granting, ino).await?;
        if !is_raw(&self.node(|node| node.writable(ino))?) {
            return Ok(Some(op.wished));
        }
        if op.anew {
            self.end_token(ino, from);
        }
        self.end_readers(ino, from).await;
        let in_the_way = self.token_holders(ino, from, Some(&op.needed));
        self.take_back(ino, &in_the_way).await?;
        let writers = self.writers_of(ino);
        let mut tokens = self.inner.write_tokens.borrow_mut();
        let grants = tokens.granted.entry(ino).or_default();
        let alone = writers
            .iter()
            .chain(grants.keys())
            .all(|rank| *rank == from);
        let is_free = |claim: &Claim| {
            let mut others = grants.iter().filter(|(rank, _)| **rank != from);
            others.all(|(_, grant)| !grant.share.overlaps(claim))
        };
        let granted = if alone {
            None
        } else if op.wished.contains(&op.needed) && is_free(&op.wished) {
            Some(op.wished)
        } else {
            Some(op.needed)
        };
        let grant = grants
            .entry(from)
            .or_insert_with(|| Grant::of(Share::none()));
        grant.awaited_until_ns = None;
        match granted {
            // One that holds more than is kept of it is asked to give up more than it holds.
            Some(_) if grant.share.is_full() => grant.share = Share::Whole,
            Some(claim) => grant.share.add(claim),
            None => grant.share = Share::Whole,
        }
        Ok(granted)
    }

    /// Nobody but `writer` believes what it knows of a raw file of this server.
    async fn end_readers(&self, ino: Ino, writer: Rank) {
        if self.is_leased_to_others(ino, writer) {
            self.recall_leases(ino, Some(writer)).await;
        }
        let reads_here = |attr: Attr| !attr.ask;
        if writer != self.rank() && self.node(|node| node.attr_of(ino)).is_ok_and(reads_here) {
            self.node(|node| node.set_ask(ino, true));
            self.recall_here(ino);
        }
    }

    /// All nodes but the reader's have published what they wrote to a raw file of this server, and
    /// write no more of it without asking.
    pub(super) async fn end_writers(&self, ino: Ino, reader: Rank) -> Result<(), FsError> {
        let holders = self.token_holders(ino, reader, None);
        self.take_back(ino, &holders).await
    }

    /// Other nodes have published what they wrote to a raw file of this server from `end` on, and
    /// write no more there without asking.
    pub(super) async fn end_writes_behind(
        &self,
        ino: Ino,
        writer: Rank,
        end: u64,
    ) -> Result<(), FsError> {
        if end >= MAX_OFFSET {
            return Ok(());
        }
        let _turn = self.hold_in_time(&self.inner.granting, ino).await?;
        let behind = Claim::range(end, MAX_OFFSET - end);
        let holders = self.token_holders(ino, writer, Some(&behind));
        self.take_back(ino, &holders).await
    }

    /// Lets programs of this node read a raw file of this server.
    pub(super) async fn read_own(&self, ino: Ino) -> Result<(), FsError> {
        self.inner.returning.free((), self.token()).await;
        let _turn = self.hold_in_time(&self.inner.granting, ino).await?;
        self.end_writers(ino, self.rank()).await?;
        self.node(|node| node.set_ask(ino, false));
        Ok(())
    }

    /// Which nodes but `from` hold tokens of a file, or may: for bytes of `claim`, or for any.
    fn token_holders(&self, ino: Ino, from: Rank, claim: Option<&Claim>) -> Vec<Rank> {
        let now_ns = self.now_ns();
        let mut tokens = self.inner.write_tokens.borrow_mut();
        let mut holders: Vec<Rank> = self.unheard();
        if let Some(grants) = tokens.granted.get_mut(&ino) {
            grants.retain(|_, grant| grant.awaited_until_ns.is_none_or(|until| now_ns < until));
            let wanted = |grant: &Grant| claim.is_none_or(|claim| grant.share.overlaps(claim));
            let wanted = grants.iter().filter(|(_, grant)| wanted(grant));
            holders.extend(wanted.map(|(rank, _)| *rank));
        }
        holders.retain(|rank| *rank != from);
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Has nodes publish what they wrote to a file of this server, and ask before they write more.
    async fn take_back(&self, ino: Ino, holders: &[Rank]) -> Result<(), FsError> {
        if holders.is_empty() {
            return Ok(());
        }
        let others: Vec<Rank> = holders
            .iter()
            .copied()
            .filter(|rank| *rank != self.rank())
            .collect();
        let own = async {
            match holders.contains(&self.rank()) {
                true => self.revoke_here(ino).await,
                false => Ok(()),
            }
        };
        let news = News::Revoke(peer::Revoke { ino });
        let (own, told) = join(own, self.tell(&others, &news)).await;
        // Of a node that is not reached nobody knows what it wrote: its token stays.
        own.and(all_of(told).map(drop))?;
        if let Some(grants) = self.inner.write_tokens.borrow_mut().granted.get_mut(&ino) {
            grants.retain(|rank, _| !holders.contains(rank));
        }
        Ok(())
    }

    /// Nodes that write a raw file of this server publish, and may go on writing: for one that asks
    /// for its attributes.
    pub(super) async fn publish_raw(&self, from: Rank, ino: Ino) -> Result<(), FsError> {
        if !self
            .node(|node| node.attr_of(ino))
            .is_ok_and(|attr| is_raw(&attr))
        {
            return Ok(());
        }
        let (own, others): (Vec<Rank>, Vec<Rank>) = self
            .token_holders(ino, from, None)
            .into_iter()
            .partition(|rank| *rank == self.rank());
        if !own.is_empty() {
            self.flush(ino).await?;
        }
        let news = News::Flush(peer::Flush { ino });
        all_of(self.tell(&others, &news).await).map(drop)
    }

    /// A file of this server or of another one is raw from now on, or no more. What this node
    /// wrote before is published.
    pub(super) async fn sharing_changed(&self, ino: Ino, was: Policy) -> Result<(), FsError> {
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
        let mut tokens = self.inner.write_tokens.borrow_mut();
        tokens.held.remove(&ino);
        tokens.granted.remove(&ino);
        drop(tokens);
        if ino.rank() == self.rank() {
            self.node(|node| node.set_ask(ino, false));
        }
        self.renew_token_word(ino, local);
        Ok(())
    }

    /// A node writes a file of this server no more, and has published what it wrote.
    pub(super) fn end_token(&self, ino: Ino, writer: Rank) {
        let mut tokens = self.inner.write_tokens.borrow_mut();
        if writer == self.rank() {
            tokens.held.remove(&ino);
        }
        if let Some(grants) = tokens.granted.get_mut(&ino) {
            grants.remove(&writer);
            if grants.is_empty() {
                tokens.granted.remove(&ino);
            }
        }
    }

    /// A node that may write a file of this server is given up; what it wrote is waited for.
    pub(super) fn await_token(&self, ino: Ino, writer: Rank) {
        let until_ns = self.now_ns() + AWAITED_NS;
        let mut tokens = self.inner.write_tokens.borrow_mut();
        let grants = tokens.granted.get_mut(&ino);
        if let Some(grant) = grants.and_then(|grants| grants.get_mut(&writer)) {
            grant.awaited_until_ns.get_or_insert(until_ns);
        }
    }

    /// A server begins a session: it holds no token, but may have to publish what it wrote to
    /// these files of this server.
    pub(super) fn begin_tokens(&self, from: Rank, written: impl Iterator<Item = Ino>) {
        let mut tokens = self.inner.write_tokens.borrow_mut();
        tokens.granted.retain(|_, grants| {
            grants.remove(&from);
            !grants.is_empty()
        });
        for ino in written {
            let grants = tokens.granted.entry(ino).or_default();
            grants.insert(from, Grant::of(Share::Whole));
        }
    }

    /// A file of this server is gone.
    pub(super) fn forget_tokens(&self, ino: Ino) {
        let mut tokens = self.inner.write_tokens.borrow_mut();
        tokens.granted.remove(&ino);
        tokens.held.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_continue_each_other_are_one_claim() {
        let mut share = Share::none();
        for (offset, length) in [(0, 10), (20, 10), (10, 10), (5, 2)] {
            share.add(Claim::range(offset, length));
        }
        assert!(share.contains(&Claim::range(0, 20)) && share.contains(&Claim::range(20, 10)));
        assert!(!share.overlaps(&Claim::range(30, 1)) && share.overlaps(&Claim::range(29, 1)));
        share.add(Claim::range(0, 100));
        assert_eq!(share, Share::Claims(vec![Claim::range(0, 100)]));
    }

    #[test]
    fn progressions_of_neighbours_do_not_meet() {
        let of = |rank: u64| Claim {
            offset: rank * 8,
            length: 8,
            stride: 32,
            count: u64::MAX / 32,
        };
        let mut share = Share::none();
        share.add(of(0));
        share.add(of(2));
        assert!(!share.overlaps(&of(1)) && share.overlaps(&of(2)));
        assert!(share.contains(&Claim::range(64, 8)) && !share.contains(&Claim::range(64, 9)));
    }

    #[test]
    fn what_holds_too_many_claims_is_full() {
        let mut share = Share::none();
        for number in 0..CLAIMS_MOST as u64 {
            assert!(!share.is_full());
            share.add(Claim::range(number * 10, 1));
        }
        assert!(share.is_full());
    }
}
