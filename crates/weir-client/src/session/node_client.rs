//! The session as [`crate::view`] uses it: the [`NodeClient`] of a process that is connected.

use rustix::io::Errno;
use weir_core::names::NamesView;
use weir_core::node::block::FileBlock;
use weir_core::node::known::KnownNames;
use weir_core::node::region::Hub;
use weir_core::node::ring::Note;
use weir_core::proto::Operation;
use weir_core::types::Rank;

use super::Session;
use crate::sys::coarse_now_ns;
use crate::view::NodeClient;

impl NodeClient for Session {
    #[inline]
    fn names(&self) -> NamesView<'static> {
        Session::names(self)
    }

    #[inline]
    fn known(&self) -> KnownNames<'static> {
        self.node().known()
    }

    #[inline]
    fn hub(&self) -> &'static Hub {
        Session::hub(self)
    }

    #[inline]
    fn blocks(&self) -> &'static [FileBlock] {
        Session::blocks(self)
    }

    #[inline]
    fn several(&self) -> Option<(Rank, u16)> {
        self.node().several()
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        coarse_now_ns()
    }

    fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        Session::call(self, op)
    }

    fn note(&self, note: Note) {
        Session::note(self, note);
    }
}
