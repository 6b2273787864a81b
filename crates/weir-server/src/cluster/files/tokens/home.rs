//! Write tokens and leases of raw files at their home.

use futures_util::future::join;
use weir_core::extent::MAX_OFFSET;
use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, News};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use super::share::Share;
use super::Grant;
use crate::cluster::abilities::NameTables;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{FileParts, FileTokens, FilesNeeds, AWAITED_NS};
use crate::cluster::peers::tell::all_of;
use crate::cluster::visibility::is_raw;

impl<S: FilesNeeds> FileTokens<S> {
    /// Grants the maker of a new file of this server all of it, if it is raw.
    pub(in crate::cluster) fn grant_new(&self, maker: Rank, attr: &Attr) -> bool {
        if !is_raw(attr) {
            return false;
        }
        let mut tokens = self.state().write_tokens.borrow_mut();
        let grants = tokens.granted.entry(attr.home).or_default();
        let is_first = grants.is_empty();
        if is_first {
            grants.insert(maker, Grant::new(Share::Whole));
        }
        drop(tokens);
        if maker != self.server.rank() {
            self.server
                .node(|node| node.names().set_ask(attr.home, true));
        }
        is_first
    }

    /// Grants a node a token for bytes of a raw file of this server.
    pub(in crate::cluster) async fn grant_token(
        &self,
        from: Rank,
        op: &peer::Grant,
    ) -> Result<Option<Claim>, FsError> {
        let ino = op.ino;
        if !(op.needed.is_sound(MAX_OFFSET) && op.wished.is_sound(MAX_OFFSET)) {
            return Err(FsError::Malformed);
        }
        self.server.announced().await;
        let _turn = self
            .server
            .peers()
            .hold_in_time(&self.state().granting, ino)
            .await?;
        if !is_raw(&self.server.node(|node| node.names().writable(ino))?) {
            return Ok(Some(op.wished));
        }
        if op.anew {
            self.end_token(ino, from);
        }
        self.end_readers(ino, from).await;
        let in_the_way = self.token_holders(ino, from, Some(&op.needed));
        self.take_back(ino, &in_the_way).await?;
        self.server.peers().check_session_of(from)?;
        let writers = self.server.stand_ins().writers_of(ino);
        let mut tokens = self.state().write_tokens.borrow_mut();
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
        } else {
            Some(op.wished.clip(&op.needed, is_free).unwrap_or(op.needed))
        };
        let grant = grants
            .entry(from)
            .or_insert_with(|| Grant::new(Share::none()));
        grant.awaited_until_ns = None;
        match granted {
            // A node that holds more claims than are recorded is asked to give up the whole file.
            Some(_) if grant.share.is_full() => grant.share = Share::Whole,
            Some(claim) => grant.share.add(claim),
            None => grant.share = Share::Whole,
        }
        Ok(granted)
    }

    /// Ends all leases of a raw file of this server except `writer`'s.
    async fn end_readers(&self, ino: Ino, writer: Rank) {
        if self.server.stand_ins().is_leased_to_others(ino, writer) {
            self.server
                .stand_ins()
                .recall_leases(ino, Some(writer))
                .await;
        }
        let reads_here = |attr: Attr| !attr.ask;
        if writer != self.server.rank()
            && self
                .server
                .node(|node| node.names().attr_of(ino))
                .is_ok_and(reads_here)
        {
            self.server.node(|node| node.names().set_ask(ino, true));
            self.server.stand_ins().recall_here(ino);
        }
    }

    /// Makes all nodes except the reader's publish their bytes of a raw file of this server, and ask before they write
    /// it again.
    pub(in crate::cluster::files) async fn end_writers(
        &self,
        ino: Ino,
        reader: Rank,
    ) -> Result<(), FsError> {
        let holders = self.token_holders(ino, reader, None);
        self.take_back(ino, &holders).await
    }

    /// Makes other nodes publish their bytes of a raw file of this server from `end` on, and ask before they
    /// write there again.
    pub(in crate::cluster::files) async fn end_writes_behind(
        &self,
        ino: Ino,
        writer: Rank,
        end: u64,
    ) -> Result<(), FsError> {
        if end >= MAX_OFFSET {
            return Ok(());
        }
        let _turn = self
            .server
            .peers()
            .hold_in_time(&self.state().granting, ino)
            .await?;
        let behind = Claim::range(end, MAX_OFFSET - end);
        let holders = self.token_holders(ino, writer, Some(&behind));
        self.take_back(ino, &holders).await
    }

    /// Allows programs of this node to read a raw file of this server.
    pub(in crate::cluster::files) async fn read_own(&self, ino: Ino) -> Result<(), FsError> {
        self.server.announced().await;
        let _turn = self
            .server
            .peers()
            .hold_in_time(&self.state().granting, ino)
            .await?;
        self.end_writers(ino, self.server.rank()).await?;
        self.server.node(|node| node.names().set_ask(ino, false));
        Ok(())
    }

    /// Returns true if a node other than `from` may write a raw file of this server. This node
    /// counts only while a program has the file open for writing, or bytes are unpublished.
    pub(in crate::cluster::files) fn others_write(&self, from: Rank, ino: Ino) -> bool {
        let holders = self.token_holders(ino, from, None);
        let writes = |rank: &Rank| {
            *rank != self.server.rank() || self.server.node(|node| node.writers().is_written(ino))
        };
        holders.iter().any(writes)
    }

    /// The nodes other than `from` that hold, or may hold, tokens of a file: for bytes of `claim`,
    /// or for any.
    fn token_holders(&self, ino: Ino, from: Rank, claim: Option<&Claim>) -> Vec<Rank> {
        let now_ns = self.server.peers().now_ns();
        let mut tokens = self.state().write_tokens.borrow_mut();
        let mut holders: Vec<Rank> = self.server.appends().silent_servers();
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

    /// Makes nodes publish their bytes of a file of this server, and ask before they write more.
    async fn take_back(&self, ino: Ino, holders: &[Rank]) -> Result<(), FsError> {
        if holders.is_empty() {
            return Ok(());
        }
        let others: Vec<Rank> = holders
            .iter()
            .copied()
            .filter(|rank| *rank != self.server.rank())
            .collect();
        let own = async {
            match holders.contains(&self.server.rank()) {
                true => self.revoke_here(ino).await,
                false => Ok(()),
            }
        };
        let news = News::Revoke(peer::Revoke { ino });
        let (own, told) = join(own, self.server.peers().tell(&others, &news)).await;
        // It is unknown what an unreachable node wrote: its token stays.
        own.and(all_of(told).map(drop))?;
        if let Some(grants) = self.state().write_tokens.borrow_mut().granted.get_mut(&ino) {
            grants.retain(|rank, _| !holders.contains(rank));
        }
        Ok(())
    }

    /// Makes nodes that write a raw file of this server publish, for a node that asks for its
    /// attributes. They may continue to write.
    pub(in crate::cluster::files) async fn publish_raw(
        &self,
        from: Rank,
        ino: Ino,
    ) -> Result<(), FsError> {
        if !self
            .server
            .node(|node| node.names().attr_of(ino))
            .is_ok_and(|attr| is_raw(&attr))
        {
            return Ok(());
        }
        let (own, others): (Vec<Rank>, Vec<Rank>) = self
            .token_holders(ino, from, None)
            .into_iter()
            .partition(|rank| *rank == self.server.rank());
        if !own.is_empty() {
            self.server.extents().publish(ino).await?;
        }
        let news = News::Publish(peer::Publish {
            ino,
            is_public: true,
        });
        all_of(self.server.peers().tell(&others, &news).await).map(drop)
    }

    /// Ends the token of a node that no longer writes a file of this server, and has published its bytes.
    pub(in crate::cluster::files) fn end_token(&self, ino: Ino, writer: Rank) {
        let mut tokens = self.state().write_tokens.borrow_mut();
        if writer == self.server.rank() {
            tokens.forget_held(ino);
        }
        if let Some(grants) = tokens.granted.get_mut(&ino) {
            grants.remove(&writer);
            if grants.is_empty() {
                tokens.granted.remove(&ino);
            }
        }
    }

    /// Waits for the bytes of a node that may write a file of this server and is given up.
    pub(in crate::cluster::files) fn await_token(&self, ino: Ino, writer: Rank) {
        let until_ns = self.server.peers().now_ns() + AWAITED_NS;
        let mut tokens = self.state().write_tokens.borrow_mut();
        let grants = tokens.granted.get_mut(&ino);
        if let Some(grant) = grants.and_then(|grants| grants.get_mut(&writer)) {
            grant.awaited_until_ns.get_or_insert(until_ns);
        }
    }

    /// Handles a server that begins a session: it holds no token, but may have to publish its bytes
    /// of these files of this server.
    pub(in crate::cluster) fn begin_tokens(&self, from: Rank, written: impl Iterator<Item = Ino>) {
        let mut tokens = self.state().write_tokens.borrow_mut();
        tokens.granted.retain(|_, grants| {
            grants.remove(&from);
            !grants.is_empty()
        });
        for ino in written {
            let grants = tokens.granted.entry(ino).or_default();
            grants.insert(from, Grant::new(Share::Whole));
        }
    }
}
