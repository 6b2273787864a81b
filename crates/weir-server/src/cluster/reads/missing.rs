//! Messages about files that a lost server keeps from being read or published. A message names the
//! file, the node and the remedy, once a file and not once a read.
//!
//! A read ends on a thread of the fabric, which notes the file. `Cluster::catch_up` then looks up
//! its path, perhaps at other servers, and logs it. It does not mention the file again until its
//! server can be reached, or the file could be published after all.
//!
//! For most files that a node has made, the lost server also has the file's name. Then the message
//! uses the name by which programs of this node found the file.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};
use weir_fabric::bulk;

use crate::cluster::reads::fetch::watched;
use crate::cluster::reads::{ReadsNeeds, RemoteReads};
use crate::rules::join;

/// The most files that are named; further ones share one line.
const MOST: usize = 1000;
/// The most files of other servers whose names are kept. When there are that many, all names are
/// forgotten.
const FOUND_MOST: usize = 1 << 16;

/// Files whose bytes a server did not send; any thread that notices adds to it.
type UnreadFiles = Arc<Mutex<BTreeSet<(Ino, Rank)>>>;

/// The files that cannot be read or published.
#[derive(Debug, Default)]
pub(in crate::cluster) struct UnreachableFiles {
    found: UnreadFiles,
    told: BTreeSet<(Ino, Rank)>,
    unpublished: BTreeSet<Ino>,
    /// The directory and the name by which programs of this node found files of other servers.
    names: HashMap<Ino, (Ino, Vec<u8>)>,
}

fn lock_unread(found: &UnreadFiles) -> std::sync::MutexGuard<'_, BTreeSet<(Ino, Rank)>> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: ReadsNeeds> RemoteReads<S> {
    /// Wraps a read, so that a message follows if bytes of this file do not come from this server.
    pub(super) fn watch_file(
        &self,
        ino: Ino,
        from: Rank,
        landing: Box<dyn bulk::Landing>,
    ) -> Box<dyn bulk::Landing> {
        let file = (self.server.global(ino), from);
        let found = Arc::clone(&self.state().missing.borrow().found);
        watched(landing, move |all| {
            if !all {
                let mut found = lock_unread(&found);
                if found.len() < MOST {
                    found.insert(file);
                }
            }
        })
    }

    /// Notes that a program of this node cannot read a file that it has open, because its home
    /// cannot be reached.
    pub(in crate::cluster) fn miss_file(&self, ino: Ino) {
        let missing = self.state().missing.borrow();
        let mut found = lock_unread(&missing.found);
        if self.server.peers().is_refused(ino.rank()) && found.len() < MOST {
            found.insert((ino, ino.rank()));
        }
    }

    /// Returns true if there is something to tell.
    pub(in crate::cluster) fn has_missing(&self) -> bool {
        !lock_unread(&self.state().missing.borrow().found).is_empty()
    }

    /// Logs the files whose bytes did not come since the last call.
    pub(in crate::cluster) fn tell_of_missing(&self) {
        let found = std::mem::take(&mut *lock_unread(&self.state().missing.borrow().found));
        for file in found {
            let told = self.state().missing.borrow().told.len();
            if told > MOST || !self.state().missing.borrow_mut().told.insert(file) {
                continue;
            }
            if told == MOST {
                tracing::error!("bytes of more files than are named here cannot be read");
                continue;
            }
            let (ino, rank) = file;
            let this = self.clone();
            self.server.peers().spawn(async move {
                let path = this
                    .server
                    .peers()
                    .by(this.server.peers().next_deadline(), this.name_of(ino));
                let (path, node) = (path.await, this.server.peers().net().host(rank));
                tracing::error!(
                    file = path,
                    rank = rank.0,
                    node,
                    "bytes of a file that only this node has cannot be read: its readers get EIO. \
                     `weir status` shows if its server is lost. If it does not come back, the \
                     bytes are lost, too: write the file or stage it in again"
                );
            });
        }
    }

    /// Takes the result of publishing a file. An error is logged once, until the file could be
    /// published.
    pub(in crate::cluster) fn tell_of_publishing(&self, ino: Ino, done: Result<(), FsError>) {
        let Err(error) = done else {
            self.state().missing.borrow_mut().unpublished.remove(&ino);
            return;
        };
        if !self.state().missing.borrow_mut().unpublished.insert(ino) {
            return;
        }
        let this = self.clone();
        self.server.peers().spawn(async move {
            let path = this
                .server
                .peers()
                .by(this.server.peers().next_deadline(), this.name_of(ino));
            let (file, home) = (path.await, this.server.peers().net().host(ino.rank()));
            tracing::error!(
                file,
                home,
                %error,
                "writes of this node to a file cannot be published: programs of other nodes do \
                 not see them. The server tries again, and keeps the bytes until then"
            );
        });
    }

    /// Notes the name by which programs of this node found a file of another server.
    pub(in crate::cluster) fn note_name(&self, ino: Ino, dir: Ino, name: &[u8]) {
        if ino.rank() == self.server.rank() {
            return;
        }
        let names = &mut self.state().missing.borrow_mut().names;
        if names.len() >= FOUND_MOST {
            names.clear();
        }
        names.insert(ino, (dir, name.to_vec()));
    }

    /// The name of a file for messages, even if its path cannot be found.
    async fn name_of(&self, ino: Ino) -> String {
        if !self.server.peers().is_refused(ino.rank()) {
            return self.server.path_of_file(ino).await;
        }
        let found = self.state().missing.borrow().names.get(&ino).cloned();
        if let Some((dir, name)) = found {
            if let Ok(dir) = self.server.path_by_homes(dir).await {
                return String::from_utf8_lossy(&join(&dir.path, &name)).into_owned();
            }
        }
        let node = self.server.peers().net().host(ino.rank());
        format!("{ino:?}, whose name is at {node}")
    }

    /// Handles a server that can be reached again: later failures to read from it are logged anew.
    pub(in crate::cluster) fn expect_again(&self, rank: Rank) {
        let mut missing = self.state().missing.borrow_mut();
        missing.told.retain(|(_, from)| *from != rank);
    }
}
