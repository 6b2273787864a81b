//! For files: published extents, names, and this server's own tables.

use std::collections::BTreeSet;

use weir_core::extent::Run;
use weir_core::names::Attr;
use weir_core::proto::peer::{LogRange, PeerOperation};
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::{Ino, Rank};

use crate::cluster::clients::parties::NodeParties;
use crate::cluster::extents::locate::ExtentMap;
use crate::cluster::extents::publish::PublishCause;
use crate::cluster::extents::{ExtentsNeeds, PublishedExtents};
use crate::cluster::files::descriptions::OpenDescriptions;
use crate::cluster::files::{
    ExtentsForFiles, FileSteps, FilesNeeds, FilesState, NamesForFiles, NodeFiles,
};
use crate::cluster::keyed::Guard;
use crate::cluster::names::{InstanceNames, NamesNeeds};
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

impl<P: Platform> FilesNeeds for Cluster<P> {
    type Extents = PublishedExtents<Self>;
    type Names = InstanceNames<Self>;

    fn files_state(&self) -> &FilesState {
        &self.inner.files
    }

    fn extents(&self) -> PublishedExtents<Self> {
        self.extents()
    }

    fn names(&self) -> InstanceNames<Self> {
        self.names()
    }

    fn miss_file(&self, ino: Ino) {
        self.reads().miss_file(ino);
    }
}

impl<S: ExtentsNeeds> ExtentsForFiles for PublishedExtents<S> {
    fn is_in_flight(&self, ino: Ino) -> bool {
        self.is_in_flight(ino)
    }

    fn forget_map(&self, ino: Ino) {
        self.forget_map(ino);
    }

    async fn flush(&self, ino: Ino) -> Result<(), FsError> {
        self.flush(ino).await
    }

    fn end_sending(&self, ino: Ino) -> (u64, Vec<LogRange>) {
        self.end_sending(ino)
    }

    fn is_kept(&self, ino: Ino) -> bool {
        self.is_kept(ino)
    }

    async fn give_back(&self, freed: Vec<LogRange>) {
        self.give_back(freed).await;
    }

    fn homes_of(&self, ino: Ino, from: u64, to: u64) -> BTreeSet<Rank> {
        self.homes_of(ino, from, to)
    }

    async fn free_in_slices<O>(
        &self,
        ino: Ino,
        homes: BTreeSet<Rank>,
        op: O,
    ) -> Result<Vec<LogRange>, FsError>
    where
        O: PeerOperation<Reply = Vec<LogRange>> + Clone + 'static,
    {
        self.free_in_slices(ino, homes, op).await
    }

    fn in_flight(&self, ino: Ino) -> Vec<Run> {
        self.in_flight(ino)
    }

    fn dirty(&self) -> Vec<Ino> {
        self.dirty()
    }

    async fn erase_everywhere(
        &self,
        ino: Ino,
        from: u64,
        old_size: u64,
    ) -> Result<Vec<LogRange>, FsError> {
        self.erase_everywhere(ino, from, old_size).await
    }

    fn keep_map(&self, ino: Ino, map: ExtentMap) {
        self.keep_map(ino, map);
    }

    fn forget_here(&self, ino: Ino) {
        self.forget_here(ino);
    }

    async fn erase_untold(&self, ino: Ino, from: u64) {
        self.erase_untold(ino, from).await;
    }

    fn give_back_late(&self, ino: Ino, freed: Vec<LogRange>) {
        self.give_back_late(ino, freed);
    }

    fn end_in_flight(&self, ino: Ino) -> u64 {
        self.end_in_flight(ino)
    }

    fn cut_in_flight(&self, ino: Ino, size: u64) {
        self.cut_in_flight(ino, size);
    }

    async fn flush_as(&self, ino: Ino, cause: PublishCause) -> Result<(), FsError> {
        self.flush_as(ino, cause).await
    }

    async fn hold_publishing(&self, ino: Ino) -> Result<Guard<'_, Ino>, FsError> {
        self.hold_publishing(ino).await
    }

    async fn hold_publishing_surely(&self, ino: Ino) -> Guard<'_, Ino> {
        self.hold_publishing_surely(ino).await
    }
}

impl<S: NamesNeeds> NamesForFiles for InstanceNames<S> {
    async fn path_by_homes(&self, ino: Ino) -> Result<PathInTree, FsError> {
        self.path_by_homes(ino).await
    }

    fn has_lost_home(&self, ino: Ino) -> bool {
        self.has_lost_home(ino)
    }

    async fn attr_without_home(&self, dir: Ino) -> Result<Attr, FsError> {
        self.attr_without_home(dir).await
    }

    async fn dir_attr(&self, attr: Attr) -> Result<Attr, FsError> {
        self.dir_attr(attr).await
    }

    async fn tell_dir(&self, attr: &Attr, mtime_ns: Option<i64>) {
        self.tell_dir(attr, mtime_ns).await;
    }

    fn oldest_rename(&self) -> u64 {
        self.oldest_rename()
    }
}

impl<P: Platform> FileSteps for Node<'static, P> {
    fn files(&mut self) -> NodeFiles<'_, 'static> {
        self.files()
    }

    fn opened(&self) -> OpenDescriptions<'_, 'static> {
        self.files.opened(&self.open)
    }

    fn parties(&self) -> NodeParties<'_, P> {
        self.parties()
    }

    fn take_all_notes(&mut self) {
        self.take_all_notes();
    }

    fn sweep_one(&mut self, ino: Ino) {
        self.sweep_one(ino);
    }

    fn take_in(&mut self, ino: Ino) {
        self.take_in(ino);
    }

    fn unpin(&mut self, ino: Ino) {
        self.unpin(ino);
    }

    fn wake_mounts(&self, ino: Ino) {
        let mounts = self.files.mounts_with(ino);
        self.clients.wake_waiters(&self.platform, &mounts);
    }
}
