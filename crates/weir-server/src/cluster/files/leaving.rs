//! Files that this node lets go of, and those it asks to hold: a home must not be told of the one
//! while it is asked for the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use weir_core::types::{Ino, Rank};

use crate::cluster::keyed::{Keyed, Token};

/// Files that this node lets go of, and those it asks to hold.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Leaving {
    /// Their homes are being told.
    pub(super) told: Keyed<Ino>,
    /// Their homes are to be told of them together, by home, with who has them in `told`.
    pub(super) soon: RefCell<BTreeMap<Rank, (Token, Vec<Ino>)>>,
    /// Files that are being asked for.
    pub(super) asking: RefCell<HashMap<Ino, AskedFile>>,
    /// How often this node began to let go of a file, and how often its home knew.
    pub(super) times: Cell<(u64, u64)>,
}

/// A file that is being asked for.
#[derive(Debug, Default)]
pub(super) struct AskedFile {
    /// By how many.
    pub(super) count: u32,
    /// Changes of the file since, which an answer on its way may not contain.
    pub(super) news: u64,
}

impl Leaving {
    /// Counts a change of a file that an answer on its way may not contain.
    pub(in crate::cluster) fn add_news(&self, ino: Ino) {
        if let Some(asked) = self.asking.borrow_mut().get_mut(&ino) {
            asked.news += 1;
        }
    }

    /// Whether this node let go of no file since `before`, and is not about to. If it did, who
    /// was told that it holds one, without [`Cluster::begin_hold`], must ask for it.
    pub(in crate::cluster) fn none_since(&self, before: (u64, u64)) -> bool {
        before.0 == before.1 && self.times.get() == before
    }

    /// For [`Leaving::none_since`].
    pub(in crate::cluster) fn times(&self) -> (u64, u64) {
        self.times.get()
    }
}

/// A file is asked for, until this is dropped.
pub(in crate::cluster) struct Asking<'a> {
    pub(super) leaving: &'a Leaving,
    pub(super) ino: Ino,
}

impl Asking<'_> {
    /// How often something came of the file that an answer on its way may not know of: a recall, a
    /// truncation, a lamination, a publish of this node, whether it has a stand-in here or not.
    pub(in crate::cluster) fn news(&self) -> u64 {
        let asking = self.leaving.asking.borrow();
        asking.get(&self.ino).map_or(0, |asked| asked.news)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asking = self.leaving.asking.borrow_mut();
        if let Some(asked) = asking.get_mut(&self.ino) {
            asked.count -= 1;
            if asked.count == 0 {
                asking.remove(&self.ino);
            }
        }
    }
}
