//! For files: published extents, names, and this server's own tables.

use weir_core::names::Attr;
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::clients::parties::NodeParties;
use crate::cluster::extents::PublishedExtents;
use crate::cluster::files::descriptions::OpenDescriptions;
use crate::cluster::files::{FileSteps, FilesNeeds, FilesState, NamesForFiles, NodeFiles};
use crate::cluster::names::{InstanceNames, NamesNeeds};
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

impl<P: Platform> FilesNeeds for Cluster<P> {
    type Extents = Self;
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
