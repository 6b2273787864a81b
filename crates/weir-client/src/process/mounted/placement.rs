//! The servers of an instance, and the bytes that they have.

use core::ops::Range;

use rustix::io::Errno;
use weir_core::proto::{GetNameHistory, HistoryPosition, Hold, NameHistory};
use weir_core::types::Ino;

use super::super::middleware::layout_of;
use super::Tree;
use crate::operation;

impl Tree {
    /// The rank of the server that it is attached to.
    pub fn rank(self) -> Result<u16, Errno> {
        Ok(self.parts.server.session()?.welcome().rank)
    }

    /// The number of servers.
    pub fn servers(self) -> Result<u16, Errno> {
        Ok(self.parts.server.session()?.welcome().servers)
    }

    /// The names that a server has renamed and removed since a position.
    pub fn name_history(self, rank: u16, since: HistoryPosition) -> Result<NameHistory, Errno> {
        let _call = operation::begin();
        self.parts
            .server
            .session()?
            .call(GetNameHistory { rank, since })
    }

    /// The rank of the server that has most of the bytes of a range of a file; `None`: there are none.
    pub fn holder_of(self, ino: Ino, range: Range<u64>) -> Result<Option<u16>, Errno> {
        let _call = operation::begin();
        let session = self.parts.server.session()?;
        let held = session.call(Hold { ino, write: false })?;
        let layout = layout_of(session, ino, range.start..range.end.min(held.size))?;
        let most = layout
            .servers()
            .max_by_key(|(_, tiers)| tiers.memory_bytes.saturating_add(tiers.file_bytes));
        Ok(most.map(|(rank, _)| rank))
    }
}
