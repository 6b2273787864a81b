//! For names: files that get and lose names, and this server's own tables.

use weir_core::names::Attr;
use weir_core::proto::peer::Unnamed;
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::Journals;
use crate::cluster::files::{FileNews, FileParts};
use crate::cluster::names::{FilesForNames, InstanceNames, NamesNeeds, NamesState};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::Platform;

impl<P: Platform> Cluster<P> {
    /// The names of all servers, as this one knows them.
    pub(in crate::cluster) fn names(&self) -> InstanceNames<Self> {
        InstanceNames::new(self)
    }
}

impl<P: Platform> NamesNeeds for Cluster<P> {
    fn names_state(&self) -> &NamesState {
        &self.inner.names
    }

    fn note_file_name(&self, ino: Ino, dir: Ino, name: &[u8]) {
        self.reads().note_name(ino, dir, name);
    }
}

impl<P: Platform> FilesForNames for Cluster<P> {
    async fn path_for_rules(&self, dir: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        self.sharing().path_for_rules(dir, name).await
    }

    fn news(&self) -> FileNews {
        self.inner.files.news()
    }

    fn holds_since(&self, before: &FileNews, is_new: bool) -> bool {
        self.inner.files.holds_since(before, is_new)
    }

    fn add_holder(&self, ino: Ino, holder: Rank) {
        self.stand_ins().add_holder(ino, holder);
    }

    async fn add_writer(&self, ino: Ino, writer: Rank) {
        self.stand_ins().add_writer(ino, writer).await;
    }

    async fn hold_for(&self, from: Rank, ino: Ino, write: bool) -> Result<Attr, FsError> {
        self.stand_ins().hold_for(from, ino, write).await
    }

    fn grant_new(&self, maker: Rank, attr: &Attr) -> bool {
        self.tokens().grant_new(maker, attr)
    }

    async fn recall_leases(&self, ino: Ino, writer: Option<Rank>) {
        self.stand_ins().recall_leases(ino, writer).await;
    }

    async fn end_unnamed(&self, ino: Ino, asker: Rank) -> Option<Unnamed> {
        self.ends().end_unnamed(ino, asker).await
    }

    async fn hold_here(&self, ino: Ino, write: bool) -> Result<Attr, FsError> {
        self.stand_ins().hold_here(ino, write).await
    }

    fn stand_in_for(&self, attr: &Attr) -> Result<Attr, FsError> {
        self.stand_ins().stand_in_for(attr)
    }

    fn leave_unknown(&self, ino: Ino) {
        self.ends().leave_unknown(ino);
    }

    fn may_reserve(&self, ino: Ino, asked_ns: i64) {
        self.stand_ins().may_reserve(ino, asked_ns);
    }

    fn attached_here(&self, ino: Ino, local: Ino) {
        self.appends().attached_here(ino, local);
    }

    fn revocations(&self) -> u64 {
        self.tokens().revocations()
    }

    fn hold_new(&self, ino: Ino, asked_ns: i64) {
        self.tokens().hold_new(ino, asked_ns);
    }

    async fn lost_its_name(&self, unnamed: Unnamed) {
        self.ends().lost_its_name(unnamed).await;
    }

    fn is_private(&self, ino: Ino) -> bool {
        self.has_announced() && self.stand_ins().is_private(ino)
    }

    fn knows_all_writers(&self) -> bool {
        self.appends().knows_all_writers()
    }

    fn note_maker(&self, ino: Ino, writes: bool) {
        self.stand_ins().know_writer(ino, self.rank());
        let attr = self.node(|node| node.names.attr_of(ino));
        if writes && attr.is_ok_and(|attr| self.tokens().grant_new(self.rank(), &attr)) {
            self.tokens().hold_new(ino, self.peers().now_ns());
        }
    }

    fn note_new_names(&self, ino: Ino) {
        self.ends().note_new_names(ino);
    }

    fn has_gone(&self) -> bool {
        self.ends().has_gone()
    }

    async fn erase_gone(&self) {
        self.ends().erase_gone().await;
    }
}
