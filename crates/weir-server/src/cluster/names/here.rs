//! Operations on names that concern this server alone: each is one change of its tables, at once.
//!
//! At the only server of an instance these are all operations. At one of several a name concerns this server alone if
//!
//! - all entries of its directory are here, and the directory is not being removed or split;
//! - no request has locked the name or is about to take it, and no other server keeps its entry;
//! - no other server has the file whose names change open, or a lease of it.
//!
//! All other operations wait for locks and other servers (`requests`, `home`, `rename`). Operations here need no
//! locks: between the checks and the change they await nothing, so no other request comes in between.

use weir_core::names::FileType;
use weir_core::proto::peer;
use weir_core::proto::{self, Caller, Child, Created, FsError, Served};
use weir_core::types::Ino;

use crate::cluster::abilities::NameTables;
use crate::cluster::names::rename::EXCHANGE;
use crate::cluster::names::{InstanceNames, NameKey, NameSteps, NamesNeeds};
use crate::cluster::owner;

impl<S: NamesNeeds> InstanceNames<S> {
    /// The directory of a name that concerns this server alone; `None` for any other name.
    fn find_dir_here(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        if self.server.has_all_names() {
            return Some(dir);
        }
        let dir = self.server.resolve(dir).ok()?;
        if !self.has_all_entries(dir) || !self.takes_entries(dir) {
            return None;
        }
        let key = NameKey::new(dir, name.to_vec());
        let is_here = !self.state().name_locks.is_held(&key)
            && !self.is_going(&key)
            && !self.state().entries.borrow().is_kept(&key);
        is_here.then_some(dir)
    }

    /// Returns true if only this server is concerned when a file, link or special file loses or gets a name.
    fn is_file_here(&self, child: Child) -> bool {
        self.server.has_all_names()
            || (child.kind != FileType::Dir
                && child.ino.rank() == self.server.rank()
                && self.server.is_private(child.ino))
    }

    fn find_here(&self, dir: Ino, name: &[u8]) -> Result<Option<Child>, FsError> {
        self.server.node(|node| node.names().find_child(dir, name))
    }

    /// Makes a file; the only server of an instance also finds an existing one. `None`: other servers are concerned.
    pub(super) fn create_here(
        &self,
        from: Caller,
        op: &proto::Create,
    ) -> Option<Result<Created, FsError>> {
        if self.server.has_all_names() {
            return Some(self.server.node(|node| node.create_file(from, op)));
        }
        let dir = self.find_dir_here(op.parent, &op.name)?;
        // The path of the directory, for the rules, may be at other servers.
        if !self.server.knows_all_writers() || self.server.node(|node| node.has_path_rules()) {
            return None;
        }
        // An existing file would be opened, which concerns its holders.
        if let Ok(Some(_)) = self.find_here(dir, &op.name) {
            return None;
        }
        let unattached = proto::Create {
            parent: dir,
            attach: false,
            ..op.clone()
        };
        let created = self.server.node(|node| node.create_file(from, &unattached));
        Some(created.and_then(|created| {
            let ino = created.ino;
            self.server.note_maker(ino, op.attach);
            let attached = match op.attach {
                true => self.attach_maker(from, ino, ino)?,
                false => None,
            };
            Ok(Created {
                attached,
                ..created
            })
        }))
    }

    /// Makes a directory, link or special file.
    pub(super) fn make_here(&self, make: &peer::Make) -> Option<Result<Ino, FsError>> {
        let dir = self.find_dir_here(make.dir, &make.name)?;
        let owner = owner(make.uid, make.gid);
        Some(self.server.node(|node| node.make(dir, make, owner)))
    }

    /// Removes the name of a file, link or special file.
    pub(super) fn unlink_here(&self, op: &proto::Unlink) -> Option<Served<Result<(), FsError>>> {
        let dir = self.find_dir_here(op.parent, &op.name)?;
        if !self.server.has_all_names() {
            let found = self.find_here(dir, &op.name).ok()?;
            if !self.is_file_here(found?) {
                return None;
            }
        }
        let removed = self.server.node(|node| node.remove_name(dir, &op.name));
        let removed = removed.map(|ino| {
            self.note_removal(dir, &op.name, ino);
            self.server.note_new_names(ino);
        });
        Some(self.erase_before(removed))
    }

    /// Frees the bytes of files that lost their last names before the reply: at once, if no other server has any of
    /// them.
    fn erase_before(&self, done: Result<(), FsError>) -> Served<Result<(), FsError>> {
        if !self.server.has_gone() {
            return Served::Now(done);
        }
        let this = self.clone();
        Served::run(async move {
            this.server.erase_gone().await;
            done
        })
    }

    /// Renames an entry.
    pub(super) fn rename_here(&self, op: &proto::Rename) -> Option<Served<Result<(), FsError>>> {
        let op = proto::Rename {
            parent: self.find_dir_here(op.parent, &op.name)?,
            new_parent: self.find_dir_here(op.new_parent, &op.new_name)?,
            ..op.clone()
        };
        let child = match self.find_here(op.parent, &op.name) {
            Ok(child) => child,
            Err(error) => return Some(Served::Now(Err(error))),
        };
        let other = match self.find_here(op.new_parent, &op.new_name) {
            Ok(other) => other,
            Err(error) => return Some(Served::Now(Err(error))),
        };
        let mut concerned = [child, other].into_iter().flatten();
        if !concerned.all(|child| self.is_file_here(child)) {
            return None;
        }
        Some(self.erase_before(self.rename_entry_here(&op, child, other)))
    }

    fn rename_entry_here(
        &self,
        op: &proto::Rename,
        child: Option<Child>,
        other: Option<Child>,
    ) -> Result<(), FsError> {
        let exchanged = other.filter(|_| op.flags == EXCHANGE);
        let _under_way = self.note_rename(op, [child, exchanged].into_iter().flatten());
        self.server.node(|node| node.rename_entry(op))?;
        let file = child.filter(|child| child.kind != FileType::Dir);
        let Some(file) = file else {
            return Ok(());
        };
        self.server.note_new_names(file.ino);
        // The old name is still there after an exchange, or if both are names of one file, which then stay.
        let is_there = self
            .find_here(op.parent, &op.name)
            .is_ok_and(|there| there.is_some());
        if is_there {
            if let Some(exchanged) = exchanged {
                self.server.note_new_names(exchanged.ino);
            }
            return Ok(());
        }
        self.note_removal(op.parent, &op.name, file.ino);
        if let Some(replaced) = other {
            self.note_replaced(op.new_parent, &op.new_name, replaced.ino);
            self.server.note_new_names(replaced.ino);
        }
        Ok(())
    }

    /// Gives a file another name.
    pub(super) fn link_here(&self, op: &proto::Link) -> Option<Result<(), FsError>> {
        let dir = self.find_dir_here(op.parent, &op.name)?;
        let op = proto::Link {
            ino: match self.server.has_all_names() {
                true => op.ino,
                false => self.find_private(op.ino)?,
            },
            parent: dir,
            name: op.name.clone(),
        };
        let linked = self.server.node(|node| node.make_link(&op));
        Some(linked.inspect(|()| self.server.note_new_names(op.ino)))
    }

    /// A file of this server that no other one has open.
    fn find_private(&self, ino: Ino) -> Option<Ino> {
        let ino = self.server.resolve(ino).ok()?;
        let is_own = ino.rank() == self.server.rank();
        (is_own && self.server.is_private(ino)).then_some(ino)
    }
}
