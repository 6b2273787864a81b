//! Write tokens at a node that writes files of any server.

use weir_core::extent::MAX_OFFSET;
use weir_core::names::{Lamination, Policy, Visibility};
use weir_core::node::block::{ASK, FREE, HELD};
use weir_core::node::claim::Claim;
use weir_core::proto::{self, peer, Caller, FsError};
use weir_core::types::Ino;

use super::share::Share;
use crate::cluster::abilities::NameTables;
use crate::cluster::extents::publish::PublishCause;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{FileTokens, FilesNeeds};
use crate::cluster::visibility::is_raw;

/// The factor by which a request exceeds the record's wish, by the number of times that the token
/// was taken away recently.
const GROWTH: [u64; 3] = [u64::MAX, 256, 16];

impl<S: FilesNeeds> FileTokens<S> {
    /// Gets a token for a program of this node to write bytes of a raw file; returns the claim that
    /// contains them.
    pub(in crate::cluster) async fn write_token(&self, op: proto::Token) -> Result<Claim, FsError> {
        if !(op.needed.is_sound(MAX_OFFSET) && op.wished.is_sound(MAX_OFFSET)) {
            return Err(FsError::Invalid);
        }
        if self.server.has_all_extents() {
            return Ok(op.wished);
        }
        let ino = self.server.resolve(op.ino)?;
        if let Some(claim) = self.held_with(ino, &op.needed) {
            return Ok(claim);
        }
        let _turn = self
            .server
            .peers()
            .hold_in_time(&self.state().asking_tokens, ino)
            .await?;
        if let Some(claim) = self.held_with(ino, &op.needed) {
            return Ok(claim);
        }
        let anew = {
            let held = &self.state().write_tokens.borrow().held;
            held.get(&ino).is_some_and(Share::is_full)
        };
        if anew {
            self.revoke_here(ino).await?;
        }
        self.state()
            .write_tokens
            .borrow_mut()
            .asking
            .insert(ino, false);
        let granted = self.ask_for_token(ino, &op, anew).await;
        self.state().write_tokens.borrow_mut().asking.remove(&ino);
        granted
    }

    async fn ask_for_token(
        &self,
        ino: Ino,
        op: &proto::Token,
        anew: bool,
    ) -> Result<Claim, FsError> {
        let asked_ns = self.server.peers().now_ns();
        let request = peer::Grant {
            ino,
            needed: op.needed,
            wished: self.wish_for(ino, op),
            anew,
        };
        let (granted, session) = self.server.call_in(ino.rank(), request).await?;
        let local = self.server.local(ino).ok_or(FsError::Stale)?;
        let own = ino.rank() == self.server.rank();
        let holds = own
            || self.server.peers().is_session(ino.rank(), session)
                && self.server.peers().believe_lease(ino.rank(), asked_ns);
        let mut tokens = self.state().write_tokens.borrow_mut();
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
            // The token held when the home granted it, which is enough for a write that checks
            // again.
            drop(tokens);
            self.server.node(|node| node.writes().revoke_writes(local));
        }
        Ok(granted.unwrap_or(Claim::range(0, MAX_OFFSET)))
    }

    /// Makes other nodes publish their bytes in this range of a raw file, so that this node's
    /// change at the homes comes after them.
    pub(in crate::cluster) async fn end_other_writes(
        &self,
        ino: Ino,
        claim: &Claim,
    ) -> Result<(), FsError> {
        let local = self.server.local(ino).ok_or(FsError::Stale)?;
        if !is_raw(&self.server.node(|node| node.names().attr_of(local))?) {
            return Ok(());
        }
        let op = proto::Token {
            ino: local,
            needed: *claim,
            wished: *claim,
        };
        self.write_token(op).await.map(drop)
    }

    /// The claim of this node that contains these bytes.
    fn held_with(&self, ino: Ino, needed: &Claim) -> Option<Claim> {
        let tokens = self.state().write_tokens.borrow();
        let found = tokens.held.get(&ino)?.claim_with(needed)?;
        drop(tokens);
        if ino.rank() != self.server.rank() {
            self.server.peers().use_lease(ino.rank());
        }
        Some(found)
    }

    /// The claim that this node asks the home for. For a growing record the node asks for all bytes
    /// behind it; the home grants them up to the bytes that another node writes. Each time another
    /// node takes such a token away, this node asks for fewer bytes, and in the end only for the
    /// record's wish.
    fn wish_for(&self, ino: Ino, op: &proto::Token) -> Claim {
        if op.wished.count != 1 || op.wished.end() <= op.needed.end() {
            return op.wished;
        }
        let times = self
            .state()
            .write_tokens
            .borrow()
            .times_taken(ino, self.server.peers().now_ns());
        let factor = GROWTH.get(times).copied().unwrap_or(1);
        let most = MAX_OFFSET - op.wished.offset;
        let length = op.wished.length.saturating_mul(factor).min(most);
        Claim::range(op.wished.offset, length)
    }

    /// Updates the word that tells this node's writers of a file if they must ask.
    pub(in crate::cluster::files) fn renew_token_word(&self, ino: Ino, local: Ino) {
        let Ok(attr) = self.server.node(|node| node.names().attr_of(local)) else {
            return;
        };
        let held = &self.state().write_tokens.borrow().held;
        let word = match held.get(&ino) {
            _ if !is_raw(&attr) => FREE,
            Some(Share::Whole) => HELD,
            _ => ASK,
        };
        self.server
            .node(|node| node.writers().set_tokens(local, word));
    }

    /// Gives up this node's token of a file: it writes nothing more without asking.
    pub(in crate::cluster) fn give_up_token(&self, ino: Ino) {
        {
            let mut tokens = self.state().write_tokens.borrow_mut();
            tokens.revocations += 1;
            tokens.held.remove(&ino);
            if let Some(given_up) = tokens.asking.get_mut(&ino) {
                *given_up = true;
            }
        }
        let Some(local) = self.server.local(ino) else {
            return;
        };
        self.server.node(|node| {
            if node.names().attr_of(local).is_ok_and(|attr| is_raw(&attr)) {
                node.writes().revoke_writes(local);
            }
        });
    }

    /// The number of times that this node gave up tokens. A token granted without
    /// [`FileTokens::write_token`] is held only if the number did not change meanwhile.
    pub(in crate::cluster) fn revocations(&self) -> u64 {
        self.state().write_tokens.borrow().revocations
    }

    /// Notes that this node may write all of a file that it has made, as requested at `asked_ns`.
    pub(in crate::cluster) fn hold_new(&self, ino: Ino, asked_ns: i64) {
        if ino.rank() == self.server.rank()
            || self.server.peers().believe_lease(ino.rank(), asked_ns)
        {
            let mut tokens = self.state().write_tokens.borrow_mut();
            tokens.held.insert(ino, Share::Whole);
        }
    }

    /// Publishes for a program of this node that closed a file it wrote. If no other program of
    /// this node writes it, the home is told that the token is given up, which spares the first
    /// reader elsewhere the wait for that.
    pub(in crate::cluster) async fn close_written(
        &self,
        from: Caller,
        ino: Ino,
    ) -> Result<(), FsError> {
        let ino = self.server.resolve(ino)?;
        let held = self.state().write_tokens.borrow().held.contains_key(&ino);
        let (Some(local), Caller::Client(id), true) = (self.server.local(ino), from, held) else {
            return self.server.extents().publish(ino).await;
        };
        if !self
            .server
            .node(|node| node.writers().writes_alone(local, id))
        {
            return self.server.extents().publish(ino).await;
        }
        // No token is requested meanwhile: the home would take it for the one that ends.
        let _turn = self
            .server
            .peers()
            .hold_in_time(&self.state().asking_tokens, ino)
            .await?;
        // Other threads may be writing: the program may be at its end, not at a close.
        self.give_up_token(ino);
        self.server
            .extents()
            .publish_as(ino, PublishCause::TokenEnded)
            .await
    }

    /// Gives up this node's token: another node wants to read the file, or to write bytes that this
    /// one holds.
    pub(in crate::cluster) async fn revoke_here(&self, ino: Ino) -> Result<(), FsError> {
        let now_ns = self.server.peers().now_ns();
        self.state()
            .write_tokens
            .borrow_mut()
            .count_taken(ino, now_ns);
        self.learn_that_raw(ino)?;
        self.give_up_token(ino);
        self.server.extents().publish(ino).await
    }

    /// Only raw files have tokens. If a file was made raw while this node could not be told, its
    /// programs now publish what they held back, and ask before they write.
    fn learn_that_raw(&self, ino: Ino) -> Result<(), FsError> {
        let Some(local) = self.server.local(ino).filter(|local| *local != ino) else {
            return Ok(());
        };
        let attr = self.server.node(|node| node.names().attr_of(local))?;
        if is_raw(&attr) || attr.lamination == Lamination::Done {
            return Ok(());
        }
        let policy = Policy {
            visibility: Visibility::ReadAfterWrite,
            ..attr.policy
        };
        self.server
            .node(|node| node.names().set_policy(local, policy))?;
        self.renew_token_word(ino, local);
        Ok(())
    }

    /// Forgets the token of a file whose stand-in ends: no program of this node has it open.
    pub(in crate::cluster::files) fn forget_held_token(&self, ino: Ino) {
        self.state().write_tokens.borrow_mut().forget_held(ino);
    }
}
