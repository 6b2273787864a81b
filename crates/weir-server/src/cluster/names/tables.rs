//! Operations on this server's own names that change other tables too.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use weir_core::names::{
    Attr, EntryName, FileType, NamesError, Owner, Policy, RenameMode, UnlinkOutcome,
};
use weir_core::node::channel::REPLY_BYTES;
use weir_core::proto::peer::{self, What};
use weir_core::proto::{self, Caller, Child, Created, Entry, FsError, Listing};
use weir_core::types::{ClientId, Ino};

use crate::cluster::extents;
use crate::cluster::names::NameSteps;
use crate::cluster::node_names::NodeNames;
use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform};
use crate::rules::join;

/// Bytes that an entry takes besides its name, at most.
const ENTRY_BYTES: usize = 10 + 10 + 5 + 10 + 10 + 3;

impl<P: Platform> NameSteps for Node<'static, P> {
    fn forget_known(&self) {
        self.open.hub.recalls.fetch_add(1, Ordering::SeqCst);
    }

    fn attach_client(&mut self, id: ClientId, ino: Ino) -> Result<proto::Attached, FsError> {
        extents::ExtentSteps::attach_client(self, id, ino)
    }

    fn has_path_rules(&self) -> bool {
        self.files.has_rules()
    }

    fn apply_rules_of(&mut self, path: &[u8], file: &Attr) -> Result<Policy, FsError> {
        let policy = self.files.policy_by_rules(path, file.policy);
        self.names.set_policy(file.ino, policy)?;
        Ok(policy)
    }

    fn create_file(&mut self, from: Caller, op: &proto::Create) -> Result<Created, FsError> {
        let owner = Owner {
            uid: op.uid,
            gid: op.gid,
        };
        let made = self
            .with_room(|names, now_ns| names.create(op.parent, &op.name, op.mode, owner, now_ns));
        match made {
            Ok(ino) => {
                if self.files.has_rules() {
                    let path = join(&self.names.path_here(op.parent)?.path, &op.name);
                    let attr = self.names.attr_of(ino)?;
                    self.apply_rules_of(&path, &attr)?;
                }
                let attached = self.attach_new(from, op, ino)?;
                Ok(Created {
                    ino,
                    new: true,
                    held: true,
                    attached,
                })
            }
            Err(FsError::Exists) if !op.exclusive => {
                let (ino, kind) = self.names.lookup(op.parent, &op.name).map_err(refusal)?;
                Ok(Created {
                    ino,
                    new: false,
                    // A server alone holds nothing.
                    held: kind == FileType::File,
                    attached: None,
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file without a name, as in a directory with these attributes. The client may write
    /// it at once, so the file has an opener that keeps it.
    fn create_unnamed_file(
        &mut self,
        id: ClientId,
        op: &proto::CreateUnnamed,
        dir: &Attr,
    ) -> Result<Created, FsError> {
        if dir.file_type() != FileType::Dir {
            return Err(FsError::NotADirectory);
        }
        let owner = Owner {
            uid: op.uid,
            gid: op.gid,
        };
        let ino = self.with_room(|names, now_ns| {
            names.create_unnamed(dir, op.mode, owner, op.linkable, now_ns)
        })?;
        let attached = self.attach_client(id, ino);
        self.add_orphan(ino);
        if attached.is_err() {
            self.sweep_one(ino);
        }
        Ok(Created {
            ino,
            new: true,
            held: true,
            attached: Some(attached?),
        })
    }

    fn make_link(&mut self, op: &proto::Link) -> Result<(), FsError> {
        self.with_room(|names, now_ns| names.link(op.ino, op.parent, &op.name, now_ns))?;
        // The name may be the first of a file that was made without one.
        self.files.drop_orphan(op.ino);
        Ok(())
    }

    fn remove_name(&mut self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let now_ns = self.names.now_ns();
        let gone = self.names.unlink(parent, name, now_ns).map_err(refusal)?;
        self.unnamed(gone);
        Ok(gone.ino)
    }

    fn remove_dir(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let now_ns = self.names.now_ns();
        let gone = self.names.rmdir(parent, name, now_ns).map_err(refusal)?;
        self.unnamed(gone);
        Ok(())
    }

    fn rename_entry(&mut self, op: &proto::Rename) -> Result<(), FsError> {
        let mode = match op.flags {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            _ => return Err(FsError::Invalid),
        };
        let from = EntryName {
            parent: op.parent,
            name: &op.name,
        };
        let to = EntryName {
            parent: op.new_parent,
            name: &op.new_name,
        };
        let done = self.with_room(|names, now_ns| names.rename(from, to, mode, now_ns))?;
        if let Some(gone) = done.replaced {
            self.unnamed(gone);
        }
        Ok(())
    }

    fn list(&self, op: &proto::Readdir) -> Result<Listing, FsError> {
        let most = (op.budget_bytes as usize).min(REPLY_BYTES - 64);
        let until = match op.until {
            None => u64::MAX,
            Some(until) if until > 0 && op.cookie > 0 => until,
            // A listing begins, perhaps once more.
            Some(_) => self.names.last_cookie(op.ino).map_err(refusal)?,
        };
        let mut entries = Vec::new();
        let mut bytes = 0;
        let shown = self.names.readdir(op.ino, op.cookie, usize::MAX, |found| {
            bytes += found.name.len() + ENTRY_BYTES;
            if found.cookie > until || (bytes > most && !entries.is_empty()) {
                return ControlFlow::Break(());
            }
            entries.push((
                found.ino,
                found.file_type,
                found.cookie,
                found.name.to_vec(),
            ));
            ControlFlow::Continue(())
        });
        shown.map_err(refusal)?;
        let entries = entries.into_iter().map(|(ino, kind, cookie, name)| {
            if self.names.is_own(ino) {
                return Ok(entry(&self.writers().attr_now(ino)?, cookie, name));
            }
            // The inode is another server's: only its type is known here.
            Ok(Entry {
                ino,
                cookie,
                mode: kind.mode_bits(),
                size: 0,
                mtime_ns: 0,
                name,
            })
        });
        let entries = entries.collect::<Result<_, FsError>>()?;
        Ok(Listing { entries, until })
    }

    fn walk(&self, components: &[Vec<u8>]) -> Result<Entry, FsError> {
        let mut ino = self.names.root();
        for name in components {
            (ino, _) = self.names.lookup(ino, name).map_err(refusal)?;
        }
        let name = components.last().cloned().unwrap_or_default();
        Ok(entry(&self.writers().attr_now(ino)?, 0, name))
    }

    /// Ends a directory of this server that was removed.
    fn end_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        let now_ns = self.names.now_ns();
        self.names
            .change_links(dir, false, now_ns)
            .map_err(refusal)?;
        self.names.set_parent(dir, Ino::NONE)?;
        self.add_orphan(dir);
        Ok(())
    }

    fn make(&mut self, dir: Ino, op: &peer::Make, owner: Owner) -> Result<Ino, FsError> {
        self.with_room(|names, now_ns| match &op.what {
            What::File => names.create(dir, &op.name, op.mode, owner, now_ns),
            What::Dir => names.mkdir(dir, &op.name, op.mode, owner, now_ns),
            What::Special(kind) => names.make_special(dir, &op.name, *kind, op.mode, owner, now_ns),
            What::Symlink(target) => names.symlink(dir, &op.name, target, owner, now_ns),
        })
    }

    fn enter(&mut self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError> {
        let Child { ino, kind } = child;
        self.with_room(|names, now_ns| names.insert_entry(dir, name, ino, kind, now_ns))
    }

    /// Adds or removes a link of an inode of this server.
    fn relink(&mut self, ino: Ino, add: bool) -> Result<FileType, FsError> {
        let now_ns = self.names.now_ns();
        let left = self.names.change_links(ino, add, now_ns).map_err(refusal)?;
        let kind = self.names.attr_of(ino)?.file_type();
        if left == 0 {
            self.add_orphan(ino);
        } else if add {
            // It may be the first name of a file that was made without one.
            self.files.drop_orphan(ino);
        }
        Ok(kind)
    }
}

impl<P: Platform> Node<'static, P> {
    /// Attaches the creator if it requests that; if that fails, removes the file again.
    fn attach_new(
        &mut self,
        from: Caller,
        op: &proto::Create,
        ino: Ino,
    ) -> Result<Option<proto::Attached>, FsError> {
        let Caller::Client(id) = from else {
            return Ok(None);
        };
        if !op.attach {
            return Ok(None);
        }
        let attached = self.attach_client(id, ino);
        if attached.is_err() {
            let now_ns = self.names.now_ns();
            if let Ok(gone) = self.names.unlink(op.parent, &op.name, now_ns) {
                self.unnamed(gone);
            }
        }
        attached.map(Some)
    }

    /// Runs `act`; if the tables are full, frees the orphans that no program has open, and tries
    /// again.
    fn with_room<R>(
        &mut self,
        mut act: impl FnMut(&mut NodeNames<'_>, i64) -> Result<R, NamesError>,
    ) -> Result<R, FsError> {
        let now_ns = self.names.now_ns();
        match act(&mut self.names, now_ns) {
            Err(NamesError::NoSpace) => {
                self.take_all_notes();
                self.sweep();
                act(&mut self.names, now_ns).map_err(refusal)
            }
            done => done.map_err(refusal),
        }
    }

    /// Notes that an inode has one name less.
    fn unnamed(&mut self, gone: UnlinkOutcome) {
        if gone.nlink == 0 {
            self.add_orphan(gone.ino);
        }
    }
}

/// An entry for an inode with these attributes.
fn entry(attr: &Attr, cookie: u64, name: Vec<u8>) -> Entry {
    Entry {
        ino: attr.ino,
        cookie,
        mode: attr.mode,
        size: attr.size,
        mtime_ns: attr.mtime_ns,
        name,
    }
}
