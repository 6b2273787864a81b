//! Files that this node lets go of, and files that it asks to hold: a home must not hear of the one
//! while the other is asked.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use weir_core::types::{Ino, Rank};

use crate::cluster::keyed::{Keyed, Token};

/// Files that this node lets go of, and those it asks to hold.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Leaving {
    /// Files whose homes are being told.
    pub(super) told: Keyed<Ino>,
    /// Files whose homes are to be told of them together, by home, with the token that holds them
    /// in `told`.
    pub(super) soon: RefCell<BTreeMap<Rank, (Token, Vec<Ino>)>>,
    /// Files that are being asked for.
    pub(super) asking: RefCell<HashMap<Ino, AskedFile>>,
    /// The number of times that this node began to let go of a file, and the number that the homes
    /// know of.
    pub(super) times: Cell<(u64, u64)>,
}

/// A file that is being asked for.
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

    /// Returns true if this node let go of no file since `before`, and is not about to. Otherwise a
    /// task that was told that this node holds a file, without `FileEnds::begin_hold`, must ask
    /// for it.
    pub(super) fn none_since(&self, before: (u64, u64)) -> bool {
        before.0 == before.1 && self.times.get() == before
    }

    /// The counts for [`Leaving::none_since`].
    pub(super) fn times(&self) -> (u64, u64) {
        self.times.get()
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
