//! Requests of this node's clients and tools: the part of each that is done here, and the home that
//! is asked for the rest.

use weir_core::names::{FileType, Owner};
use weir_core::proto::peer::{self, What};
use weir_core::proto::{self, Attached, Caller, Child, Created, Entry, FsError, Served};
use weir_core::types::{ClientId, Ino};

use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::names::placements::NameUse;
use crate::cluster::names::{InstanceNames, NameSteps, NamesNeeds};
use crate::cluster::ROOT;

/// A directory, link or special file to make.
pub(in crate::cluster) struct NewEntry {
    pub(in crate::cluster) parent: Ino,
    pub(in crate::cluster) name: Vec<u8>,
    pub(in crate::cluster) what: What,
    pub(in crate::cluster) mode: u32,
    pub(in crate::cluster) owner: Owner,
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// Makes a directory, link or special file; returns its inode.
    pub(in crate::cluster) fn make_for_client(
        &self,
        new: NewEntry,
    ) -> Served<Result<Ino, FsError>> {
        let NewEntry { mode, owner, .. } = new;
        let make = peer::Make {
            dir: new.parent,
            name: new.name,
            what: new.what,
            mode,
            uid: owner.uid,
            gid: owner.gid,
            exclusive: true,
            write: false,
            path: None,
        };
        if let Some(made) = self.make_here(&make) {
            return Served::Now(made);
        }
        self.later(|this| async move { this.make_at_home(make).await })
    }

    async fn make_at_home(&self, make: peer::Make) -> Result<Ino, FsError> {
        let (dir, name) = (self.server.resolve(make.dir)?, make.name.clone());
        let make = peer::Make { dir, ..make };
        let made = self.call_home(dir, &name, NameUse::New, make).await?;
        Ok(made.child.ino)
    }

    pub(in crate::cluster) fn unlink_for_client(
        &self,
        op: proto::Unlink,
    ) -> Served<Result<(), FsError>> {
        if let Some(removed) = self.unlink_here(&op) {
            return removed;
        }
        self.later(|this| async move { this.unlink_at_home(op).await })
    }

    async fn unlink_at_home(&self, op: proto::Unlink) -> Result<(), FsError> {
        let (dir, name) = (self.server.resolve(op.parent)?, op.name);
        let removal = peer::Unlink {
            dir,
            name: name.clone(),
        };
        let asked = self.call_home(dir, &name, NameUse::Existing, removal);
        if let Some(unnamed) = asked.await? {
            self.server.lost_its_name(unnamed).await;
        }
        Ok(())
    }

    pub(in crate::cluster) fn rmdir_for_client(
        &self,
        op: proto::Rmdir,
    ) -> Served<Result<(), FsError>> {
        if self.server.has_all_names() {
            return Served::Now(
                self.server
                    .node(|node| node.remove_dir(op.parent, &op.name)),
            );
        }
        self.later(|this| async move { this.rmdir_at_home(op).await })
    }

    async fn rmdir_at_home(&self, op: proto::Rmdir) -> Result<(), FsError> {
        let (dir, name) = (self.server.resolve(op.parent)?, op.name);
        let removal = peer::Rmdir {
            dir,
            name: name.clone(),
        };
        self.call_home(dir, &name, NameUse::Existing, removal).await
    }

    pub(in crate::cluster) fn create_for_client(
        &self,
        from: Caller,
        op: proto::Create,
    ) -> Served<Result<Created, FsError>> {
        if let Some(created) = self.create_here(from, &op) {
            return Served::Now(created);
        }
        self.later(|this| async move { this.create_at_home(from, op).await })
    }

    async fn create_at_home(&self, from: Caller, op: proto::Create) -> Result<Created, FsError> {
        let dir = self.server.resolve(op.parent)?;
        let path = self.server.path_for_rules(dir, &op.name).await?;
        let make = peer::Make {
            dir,
            name: op.name.clone(),
            what: What::File,
            mode: op.mode,
            uid: op.uid,
            gid: op.gid,
            exclusive: op.exclusive,
            write: op.attach,
            path,
        };
        let asked_ns = self.server.peers().now_ns();
        let revocations = self.server.revocations();
        let news = self.server.news();
        let made = self.ask_home(dir, &op.name, NameUse::New, make).await?;
        let (made, home, session) = made;
        if made.new && made.child.ino.rank() == self.server.rank() {
            self.server
                .add_writer(made.child.ino, self.server.rank())
                .await;
        }
        self.server.note_file_name(made.child.ino, dir, &op.name);
        let not_held = Created {
            ino: made.child.ino,
            new: false,
            held: false,
            attached: None,
        };
        let ino = match made.attr {
            None => return Ok(not_held),
            Some(attr) if attr.home.rank() == self.server.rank() => attr.home,
            Some(attr)
                if self.server.peers().is_session(home, session)
                    && self.server.holds_since(&news, made.new) =>
            {
                let seen = self.server.stand_in_for(&attr);
                let ino = seen
                    .inspect_err(|_| self.server.leave_unknown(attr.home))?
                    .ino;
                if op.attach {
                    self.server.may_reserve(attr.home, asked_ns);
                }
                ino
            }
            // After its answer, the home may have been told that this node lets go of the file, or
            // may have forgotten its holders; or a truncation, a lamination or the loss of the last
            // name overtook the answer.
            Some(attr) => match self.server.hold_here(attr.home, op.attach).await {
                Ok(attr) => attr.ino,
                Err(FsError::Stale) => return Ok(not_held),
                Err(error) => return Err(error),
            },
        };
        if made.granted
            && self.server.peers().is_session(home, session)
            && self.server.revocations() == revocations
        {
            self.server.hold_new(made.child.ino, asked_ns);
        }
        let attached = match op.attach && made.new {
            true => self.attach_maker(from, made.child.ino, ino)?,
            false => None,
        };
        Ok(Created {
            ino,
            new: made.new,
            held: true,
            attached,
        })
    }

    /// Attaches the maker of a file, if it is a client. `local`: the file's number in this node's table. `None`:
    /// there is no room; the file exists all the same, and its first write may fail for lack of room.
    pub(super) fn attach_maker(
        &self,
        from: Caller,
        ino: Ino,
        local: Ino,
    ) -> Result<Option<Attached>, FsError> {
        let Caller::Client(id) = from else {
            return Ok(None);
        };
        match self.server.node(|node| node.attach_client(id, local)) {
            Err(FsError::NoSpace) => Ok(None),
            attached => {
                let attached = attached?;
                // The home may have told this node of the writer before it told it of the file.
                self.server.attached_here(ino, local);
                Ok(Some(attached))
            }
        }
    }

    /// Makes a file without a name. It lives at the server of the node that makes it.
    pub(in crate::cluster) async fn create_unnamed_file(
        &self,
        from: ClientId,
        op: proto::CreateUnnamed,
    ) -> Result<Created, FsError> {
        let dir = self.server.resolve(op.dir)?;
        let look = peer::GetAttr {
            ino: dir,
            keep: false,
        };
        let attr = self.server.call(dir.rank(), look).await?.what;
        let made = self
            .server
            .node(|node| node.create_unnamed_file(from, &op, &attr))?;
        self.server.add_writer(made.ino, self.server.rank()).await;
        self.server.attached_here(made.ino, made.ino);
        Ok(made)
    }

    pub(in crate::cluster) fn find_for_client(
        &self,
        op: proto::Find,
    ) -> Served<Result<Option<Child>, FsError>> {
        if self.server.has_all_names() {
            return Served::Now(
                self.server
                    .node(|node| node.names().find_child(op.dir, &op.name)),
            );
        }
        self.later(|this| async move { this.find_at_home(op).await })
    }

    async fn find_at_home(&self, op: proto::Find) -> Result<Option<Child>, FsError> {
        let (dir, name) = (self.server.resolve(op.dir)?, op.name.clone());
        let found = self.find_anywhere(op).await?;
        if let Some(file) = found.filter(|child| child.kind == FileType::File) {
            self.server.note_file_name(file.ino, dir, &name);
        }
        Ok(found)
    }

    pub(in crate::cluster) fn link_for_client(
        &self,
        op: proto::Link,
    ) -> Served<Result<(), FsError>> {
        if let Some(linked) = self.link_here(&op) {
            return Served::Now(linked);
        }
        self.later(|this| async move { this.link_at_home(op).await })
    }

    async fn link_at_home(&self, op: proto::Link) -> Result<(), FsError> {
        let (ino, dir) = (
            self.server.resolve(op.ino)?,
            self.server.resolve(op.parent)?,
        );
        let name = op.name;
        let link = peer::Link {
            ino,
            dir,
            name: name.clone(),
        };
        self.call_home(dir, &name, NameUse::New, link).await
    }

    pub(in crate::cluster) fn lookup_for_client(
        &self,
        components: Vec<Vec<u8>>,
    ) -> Served<Result<Entry, FsError>> {
        if self.server.has_all_names() {
            return Served::Now(self.server.node(|node| node.walk(&components)));
        }
        self.later(|this| async move { this.walk_homes(components).await })
    }

    async fn walk_homes(&self, components: Vec<Vec<u8>>) -> Result<Entry, FsError> {
        let mut ino = ROOT;
        for name in &components {
            let op = proto::Find {
                dir: ino,
                name: name.clone(),
            };
            let found = self.find_anywhere(op).await?;
            ino = found.ok_or(FsError::NotFound)?.ino;
        }
        let look = peer::GetAttr { ino, keep: false };
        let attr = self.server.call(ino.rank(), look).await?.what;
        Ok(Entry {
            ino,
            cookie: 0,
            mode: attr.mode,
            size: attr.size,
            mtime_ns: attr.mtime_ns,
            name: components.last().cloned().unwrap_or_default(),
        })
    }
}
