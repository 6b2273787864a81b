//! Names: finding, making, removing and linking them, at the home of the entry.
//!
//! The home of an entry makes the inode too, so that creating a file takes one request. If an entry
//! names an inode of another server (after a rename or a link), that server counts its links, by a
//! second request.

use weir_core::journal::NameChange;
use weir_core::names::FileType;
use weir_core::proto::peer::{self, Made, Unnamed, What};
use weir_core::proto::{Child, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::keyed::Guard;
use crate::cluster::names::{InstanceNames, NameKey, NameSteps, NamesNeeds};
use crate::cluster::owner;
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::outcome::PendingOutcome;

impl<S: NamesNeeds> InstanceNames<S> {
    /// Finds a name, once no request is changing it. If a rename has hidden the entry from programs of this node, they
    /// may then believe it again.
    pub(in crate::cluster) async fn find(&self, op: peer::Find) -> Result<Option<Child>, FsError> {
        let key = NameKey::new(op.dir, op.name);
        let mut locked = None;
        loop {
            if self.state().name_locks.is_held(&key) {
                locked = Some(self.hold_name(&key).await?);
            }
            self.check_home(&key).await?;
            // Another request may have locked it meanwhile.
            if locked.is_some() || !self.state().name_locks.is_held(&key) {
                break;
            }
        }
        self.server.node(|node| {
            node.names().set_renaming(key.dir, &key.name, false);
            node.names().find_child(key.dir, &key.name)
        })
    }

    /// Locks a name of this server, to change it or to rely on it; fails if that takes too long.
    /// `Elsewhere` if the name is another server's.
    pub(super) async fn name_lock(&self, key: &NameKey) -> Result<Guard<'_, NameKey>, FsError> {
        let lock = self.hold_name(key).await?;
        self.check_home(key).await?;
        self.have_name(key);
        Ok(lock)
    }

    /// Like [`InstanceNames::name_lock`], without the check that this server is the name's home.
    pub(super) async fn hold_name(&self, key: &NameKey) -> Result<Guard<'_, NameKey>, FsError> {
        let locked = self
            .state()
            .name_locks
            .try_hold(key.clone(), self.server.peers().token());
        self.server.peers().in_time(locked).await
    }

    pub(in crate::cluster) async fn make(
        &self,
        from: Rank,
        op: peer::Make,
    ) -> Result<Made, FsError> {
        let key = NameKey::new(op.dir, op.name.clone());
        let _name = self.name_lock(&key).await?;
        let found = self
            .server
            .node(|node| node.names().find_child(op.dir, &op.name))?;
        if found.is_none() {
            self.refuse_to_split(from, op.dir)?;
        }
        if let Some(child) = found {
            if op.exclusive {
                return Err(FsError::Exists);
            }
            let is_file = child.kind == FileType::File && matches!(op.what, What::File);
            let attr = match is_file && child.ino.rank() == self.server.rank() {
                true => Some(self.server.hold_for(from, child.ino, op.write).await?),
                false => None,
            };
            return Ok(Made {
                child,
                new: false,
                attr,
                granted: false,
            });
        }
        let ino = loop {
            match self.try_make(&op).await {
                Err(FsError::WouldBlock) => {
                    let dir = op.dir;
                    self.server.call(dir.rank(), peer::Settled { dir }).await?;
                }
                made => break made?,
            }
        };
        let mut attr = self.server.node(|node| node.names().attr_of(ino))?;
        if let Some(path) = op.path.filter(|_| matches!(op.what, What::File)) {
            attr.policy = self.server.node(|node| node.apply_rules_of(&path, &attr))?;
        }
        // The inode is made. If the asker's session has ended meanwhile, the asker does not hold
        // it, and is not refused either.
        let asks_still = self.server.peers().check_session_of(from).is_ok();
        if matches!(op.what, What::File) && asks_still {
            self.server.add_holder(ino, from);
            if from != self.server.rank() {
                self.server.add_writer(ino, from).await;
            }
        }
        let kind = attr.file_type();
        Ok(Made {
            child: Child { ino, kind },
            new: true,
            attr: Some(attr),
            granted: asks_still
                && op.write
                && kind == FileType::File
                && self.server.grant_new(from, &attr),
        })
    }

    async fn try_make(&self, op: &peer::Make) -> Result<Ino, FsError> {
        let _stand = self
            .state()
            .stands
            .hold(op.dir, self.server.peers().token())
            .await;
        self.stand_in(op.dir).await?;
        self.server
            .node(|node| node.make(op.dir, op, owner(op.uid, op.gid)))
    }

    pub(in crate::cluster) async fn unlink(
        &self,
        from: Rank,
        op: peer::Unlink,
    ) -> Result<Option<Unnamed>, FsError> {
        let key = NameKey::new(op.dir, op.name.clone());
        let _name = self.name_lock(&key).await?;
        let found = self
            .server
            .node(|node| node.names().find_child(op.dir, &op.name))?;
        let child = found.ok_or(FsError::NotFound)?;
        if child.kind == FileType::Dir {
            return Err(FsError::IsADirectory);
        }
        self.recall_entry(&key).await;
        if child.ino.rank() == self.server.rank() {
            self.server
                .node(|node| node.remove_name(op.dir, &op.name))?;
            self.note_removal(op.dir, &op.name, child.ino);
            return Ok(self.link_gone(child.ino, from).await);
        }
        // Links are counted before there is a name and until there is none, so that a named inode
        // always exists. So the name goes first, and the link later.
        self.server
            .node(|node| node.names().withdraw(op.dir, &op.name))?;
        let ino = child.ino;
        self.note_removal(op.dir, &op.name, ino);
        self.server.peers().owe(ino.rank(), Debt::Link(ino)).await;
        Ok(None)
    }

    pub(in crate::cluster) async fn rmdir(&self, op: peer::Rmdir) -> Result<(), FsError> {
        let this = self.clone();
        let act = |outcome| async move { this.rmdir_to_the_end(op, outcome).await };
        self.server.peers().to_the_end(act).await
    }

    /// Removes a directory to the end: its name may be used again only once it is known if the directory was buried.
    async fn rmdir_to_the_end(
        &self,
        op: peer::Rmdir,
        outcome: PendingOutcome,
    ) -> Result<(), FsError> {
        let key = NameKey::new(op.dir, op.name.clone());
        let _name = self.name_lock(&key).await?;
        let found = self
            .server
            .node(|node| node.names().find_child(op.dir, &op.name))?;
        let child = found.ok_or(FsError::NotFound)?;
        if child.kind != FileType::Dir {
            return Err(FsError::NotADirectory);
        }
        let dir = child.ino;
        let token = self.server.peers().token();
        let change = NameChange {
            dir: op.dir,
            name: op.name.clone(),
            was: Some(child),
            child: None,
            from: None,
            done: false,
        };
        self.begin_change(token, change);
        let (this, stuck) = (self.clone(), key.clone());
        let outcome = outcome.late(move || this.state().stick_name(&stuck));
        let buried = loop {
            let told = self
                .server
                .see_through(dir.rank(), peer::Bury { dir }, &outcome);
            if let Some(told) = told.await {
                break told;
            }
        };
        let mut done = buried.or_else(|error| match error {
            FsError::Stale => Ok(()),
            error => Err(error),
        });
        if done.is_ok() {
            self.recall_entry(&key).await;
            done = self
                .server
                .node(|node| node.names().withdraw(op.dir, &op.name))
                .map(drop);
        }
        self.end_change(token);
        done
    }

    pub(in crate::cluster) async fn link(&self, op: peer::Link) -> Result<(), FsError> {
        let key = NameKey::new(op.dir, op.name.clone());
        let _name = self.name_lock(&key).await?;
        if self
            .server
            .node(|node| node.names().find_child(op.dir, &op.name))?
            .is_some()
        {
            return Err(FsError::Exists);
        }
        let added = peer::Relink {
            ino: op.ino,
            add: true,
        };
        let ino = op.ino;
        let kind = self.add_link(ino, added).await?;
        let child = Child { ino, kind };
        let entered = self.enter(op.dir, &op.name, child).await;
        if entered.is_err() {
            self.server.peers().owe(ino.rank(), Debt::Link(ino)).await;
        }
        entered
    }

    /// Counts a link that is about to be made; takes it back if the answer comes too late.
    pub(super) async fn add_link(
        &self,
        ino: Ino,
        added: peer::Relink,
    ) -> Result<FileType, FsError> {
        let late = move |server: &S, added: Result<FileType, FsError>| {
            if added.is_ok() {
                server.peers().owe_soon(ino.rank(), Debt::Link(ino));
            }
        };
        self.server.surely_or(ino.rank(), added, late).await
    }

    /// Adds an entry of this server to a directory of any server.
    pub(super) async fn enter(&self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError> {
        loop {
            let tried = {
                let _stand = self
                    .state()
                    .stands
                    .hold(dir, self.server.peers().token())
                    .await;
                match self.stand_in(dir).await {
                    Ok(()) => self.server.node(|node| node.enter(dir, name, child)),
                    Err(error) => Err(error),
                }
            };
            match tried {
                Err(FsError::WouldBlock) => {
                    self.server.call(dir.rank(), peer::Settled { dir }).await?;
                }
                done => return done,
            }
        }
    }

    /// Adds or removes a link of an inode of this server.
    pub(in crate::cluster) async fn relink(
        &self,
        ino: Ino,
        add: bool,
    ) -> Result<FileType, FsError> {
        let kind = self.server.node(|node| node.relink(ino, add))?;
        if add {
            self.server.recall_leases(ino, None).await;
        } else {
            self.link_gone(ino, self.server.rank()).await;
        }
        Ok(kind)
    }

    /// Handles the loss of one name of an inode of this server; see [`FilesForNames::end_unnamed`](crate::cluster::names::FilesForNames::end_unnamed).
    async fn link_gone(&self, ino: Ino, asker: Rank) -> Option<Unnamed> {
        // Lease holders rely on the number of links, too.
        self.server.recall_leases(ino, None).await;
        let attr = self.server.node(|node| node.names().attr_of(ino)).ok()?;
        match attr.nlink {
            0 => self.server.end_unnamed(ino, asker).await,
            _ => None,
        }
    }
}
