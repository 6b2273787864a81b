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
        let says = || Ok::<_, Errno>(self.view()?.text_at(parent, name)?.as_deref() == Some(text));
        match session.call(link(parent, name)) {
            Ok(_) => return Ok(LinkMade::New),
            Err(Errno::EXIST) if says()? => return Ok(LinkMade::Before),
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
}
