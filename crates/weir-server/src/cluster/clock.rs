//! The time of a server: set by the runtime, read by all its rooms.

use std::cell::Cell;
use std::rc::Rc;

/// The time of the current call, ns since 1970. Clones show the same time.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct ServerClock(Rc<Cell<i64>>);

impl ServerClock {
    pub(in crate::cluster) fn at(now_ns: i64) -> ServerClock {
        ServerClock(Rc::new(Cell::new(now_ns)))
    }

    pub(in crate::cluster) fn now_ns(&self) -> i64 {
        self.0.get()
    }

    pub(in crate::cluster) fn set(&self, now_ns: i64) {
        self.0.set(now_ns);
    }
}
