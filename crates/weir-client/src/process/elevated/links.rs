//! The symbolic links in which an instance keeps what it knows of elevated trees.

use rustix::io::Errno;
use weir_core::elevated::NURSERY;
use weir_core::names::SYMLINK_MAX;
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
    /// Makes a link, or has the one of this name say something else, in one step.
    pub(in super::super) fn put_link(
        self,
        parent: Ino,
        name: &[u8],
        text: &[u8],
    ) -> Result<LinkMade, Errno> {
        let session = self.server.session()?;
        let who = self.user.credentials();
        let link = |parent: Ino, name: &[u8]| Symlink {
            parent,
            name: name.to_vec(),
            target: text.to_vec(),
            uid: who.uid,
            gid: who.gid,
        };
        match session.call(link(parent, name)) {
            Ok(_) => return Ok(LinkMade::New),
            Err(Errno::EXIST) if self.says(parent, name, text)? => return Ok(LinkMade::Before),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let beside = nursling();
        session.call(link(NURSERY, &beside))?;
        let renamed = session.call(Rename {
            parent: NURSERY,
            name: beside,
            new_parent: parent,
            new_name: name.to_vec(),
            flags: 0,
        });
        renamed.map(|()| LinkMade::Before)
    }

    /// True if a link has this text.
    fn says(self, parent: Ino, name: &[u8], text: &[u8]) -> Result<bool, Errno> {
        let Some((link, _)) = self.view()?.lookup(parent, name)? else {
            return Ok(false);
        };
        Ok(self.text_of(link)?.as_deref() == Some(text))
    }

    /// The text of a link; `None`: it was removed since it was found.
    pub(super) fn text_of(self, link: Ino) -> Result<Option<Vec<u8>>, Errno> {
        let mut text = [0; SYMLINK_MAX];
        match self.view()?.target(link, &mut text) {
            Ok(length) => Ok(Some(text[..length].to_vec())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
