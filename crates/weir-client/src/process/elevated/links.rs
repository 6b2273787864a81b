//! The symbolic links in which an instance keeps what it knows of elevated trees.

use rustix::io::Errno;
use weir_core::elevated::NURSERY;
use weir_core::proto::{Rename, Symlink};
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::take_up::nursling;
use crate::path::walk::Names;

/// The outcome of giving a link its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum LinkMade {
    /// There was none.
    New,
    /// There was one, with this text or another.
    Before,
}

impl InodeOperations {
    /// Makes a link, unless there is one of this name.
    pub(super) fn add_link(self, parent: Ino, name: &[u8], text: &[u8]) -> Result<LinkMade, Errno> {
        let who = self.user.credentials();
        let made = self.server.session()?.call(Symlink {
            parent,
            name: name.to_vec(),
            target: text.to_vec(),
            uid: who.uid,
            gid: who.gid,
        });
        match made {
            Ok(_) => Ok(LinkMade::New),
            Err(Errno::EXIST) => Ok(LinkMade::Before),
            Err(error) => Err(error),
        }
    }

    /// Makes a link, or has the one of this name say something else, in one step.
    pub(in super::super) fn put_link(
        self,
        parent: Ino,
        name: &[u8],
        text: &[u8],
    ) -> Result<LinkMade, Errno> {
        if self.add_link(parent, name, text)? == LinkMade::New {
            return Ok(LinkMade::New);
        }
        if self.view()?.text_at(parent, name)?.as_deref() == Some(text) {
            return Ok(LinkMade::Before);
        }
        let beside = nursling();
        self.add_link(NURSERY, &beside, text)?;
        let renamed = self.server.session()?.call(Rename {
            parent: NURSERY,
            name: beside,
            new_parent: parent,
            new_name: name.to_vec(),
            flags: 0,
        });
        renamed.map(|()| LinkMade::Before)
    }
}
