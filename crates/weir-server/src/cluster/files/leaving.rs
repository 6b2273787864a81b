//! Files that this node lets go of, and files that it asks to hold. A home must not hear of the one while this node
//! asks for the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use weir_core::types::{Ino, Rank};

use crate::cluster::keyed::{Keyed, Token};

/// Files that this node lets go of, and those it asks to hold.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Leaving {
    /// Files whose homes are being told.
    pub(super) told: Keyed<Ino>,
    /// Files of which this node tells their homes soon, those of a home together; by home, with the token that holds
    /// them in `told`.
    pub(super) soon: RefCell<BTreeMap<Rank, (Token, Vec<Ino>)>>,
    /// Files for which this node asks.
    pub(super) asking: RefCell<HashMap<Ino, AskedFile>>,
    counts: Cell<LeavingCounts>,
}

/// Counts of the files that this node has let go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LeavingCounts {
    /// The number of times that it began to.
    pub(super) begun: u64,
    /// The number of those that the homes know of.
    pub(super) told: u64,
}

/// A file for which this node asks.
#[derive(Debug, Default)]
pub(super) struct AskedFile {
    /// The number of tasks that ask for it.
    pub(super) count: u32,
    /// Changes of the file since, which an answer on its way may not contain.
    pub(super) news: u64,
}

impl Leaving {
    /// Counts a change of a file that an answer on its way may not contain.
    pub(super) fn add_news(&self, ino: Ino) {
        if let Some(asked) = self.asking.borrow_mut().get_mut(&ino) {
            asked.news += 1;
        }
    }

    /// Returns true if this node has let go of no file since `before`, and is not about to. Otherwise a task that
    /// learned, without `FileEnds::begin_hold`, that this node holds a file must ask the home.
    pub(super) fn none_since(&self, before: LeavingCounts) -> bool {
        before.begun == before.told && self.counts.get() == before
    }

    /// The counts for [`Leaving::none_since`].
    pub(super) fn counts(&self) -> LeavingCounts {
        self.counts.get()
    }

    /// Counts a file that this node begins to let go of.
    pub(super) fn count_begun(&self) {
        let LeavingCounts { begun, told } = self.counts.get();
        self.counts.set(LeavingCounts {
            begun: begun + 1,
            told,
        });
    }

    /// Counts files whose home was told.
    pub(super) fn count_told(&self, files: u64) {
        let LeavingCounts { begun, told } = self.counts.get();
        self.counts.set(LeavingCounts {
            begun,
            told: told + files,
        });
    }
}

/// A request for a file, until this is dropped.
pub(in crate::cluster) struct HoldRequest<'a> {
    pub(super) leaving: &'a Leaving,
    pub(super) ino: Ino,
}

impl HoldRequest<'_> {
    /// The number of changes of the file that an answer on its way may not contain: a recall, a
    /// truncation, a lamination, a publish of this node, with a stand-in here or without.
    pub(super) fn news(&self) -> u64 {
        let asking = self.leaving.asking.borrow();
        asking.get(&self.ino).map_or(0, |asked| asked.news)
    }
}

impl Drop for HoldRequest<'_> {
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
