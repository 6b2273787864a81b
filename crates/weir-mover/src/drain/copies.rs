//! The copies of evicted files: a table of them, the check that a node of the target is one, and hidden names for them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{ContentVersion, Ino};
use weir_client::types::Stat;

use super::snapshot::FileVersion;
use crate::copy::is_kept_time;
use crate::error::MoveError;
use crate::publish::{is_at_above_or_below, part_of};
use crate::side::MoveSide;
use crate::tree::{kind_of, EvictionTable, FileTree, NodeKind};

/// An evicted file, and its copy.
pub(super) struct DisplacedFile {
    pub ino: Ino,
    /// The path of the copy below the target.
    pub at: PathBuf,
    /// The identity of the copy.
    pub identity: CopyIdentity,
    /// The names of the file.
    pub names: Vec<PathBuf>,
    /// Its copy has been set aside, so that another one can have its name.
    pub is_aside: bool,
}

impl DisplacedFile {
    /// Checks that the copy is still where it was.
    pub fn check<T: FileTree>(&self, to: &MoveSide<'_, T>) -> Result<(), MoveError> {
        let target = to.join(&self.at);
        let there = to.find_node(&target)?;
        let is_it = there.is_some_and(|there| match self.identity {
            CopyIdentity::Content { size, mtime_ns } => {
                (there.size, there.mtime.since_epoch_ns()) == (size, mtime_ns)
            }
            CopyIdentity::Inode(inode) => there.ino == inode,
        });
        match is_it {
            true => Ok(()),
            // The file has lost the bytes of the copy.
            false => Err(MoveError::TargetChanged(target)),
        }
    }
}

/// The base of a file.
#[derive(Clone, Debug)]
pub(super) struct FileBase {
    /// Its path below the target.
    pub at: PathBuf,
    /// Its inode number on the target, if its name is hidden.
    pub inode: Option<u64>,
}

impl FileBase {
    /// True if this drain, or an earlier one, made it for ranges that go ahead.
    pub fn is_ahead(&self) -> bool {
        let name = self.at.file_name().unwrap_or_default().as_encoded_bytes();
        self.inode.is_some() && name.windows(AHEAD.len()).any(|part| part == AHEAD)
    }

    /// True if ranges can go ahead into it: it is not a version of the file yet.
    pub fn is_writable<T: FileTree>(&self, to: &MoveSide<'_, T>) -> bool {
        let found = to.find_node(&self.at);
        // A drain that was killed may have given it the name of the file already.
        self.is_ahead() && found.is_ok_and(|found| found.is_some_and(|found| found.nlink == 1))
    }
}

/// A part of the hidden name of a base that is written by ranges.
const AHEAD: &[u8] = b"-ahead";

/// The copies and bases of files on the target: a table without I/O, which each round makes anew. Keys are inode numbers;
/// paths are below the target.
#[derive(Debug)]
pub(super) struct EvictedCopies<F> {
    /// The copies of evicted files.
    evicted: HashMap<u64, PathBuf>,
    /// The bases of files: the target alone has a part of their bytes.
    bases: HashMap<u64, FileBase>,
    /// Open bases into which ranges go ahead. They outlive a round.
    open_bases: HashMap<u64, Arc<F>>,
    /// The end of the last range of a file that went ahead. It outlives a round.
    gone_ahead: HashMap<u64, u64>,
    /// The hidden names of bases.
    hidden: BTreeSet<PathBuf>,
    /// Copies that nothing replaces or removes.
    held: BTreeSet<PathBuf>,
}

impl<F> EvictedCopies<F> {
    pub fn new() -> EvictedCopies<F> {
        EvictedCopies {
            evicted: HashMap::new(),
            bases: HashMap::new(),
            open_bases: HashMap::new(),
            gone_ahead: HashMap::new(),
            hidden: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// Forgets the last round.
    pub fn clear(&mut self) {
        self.held.clear();
        self.evicted.clear();
        self.bases.clear();
        self.hidden.clear();
    }

    pub fn is_evicted(&self, ino: u64) -> bool {
        self.evicted.contains_key(&ino)
    }

    /// True if a file is evicted, and its copy has this path.
    pub fn is_copy_at(&self, ino: u64, path: &Path) -> bool {
        let copy = self.evicted.get(&ino);
        copy.is_some_and(|at| at == path)
    }

    /// Notes that a file is evicted, and where its copy is.
    pub fn note_evicted(&mut self, ino: u64, at: &Path) {
        self.evicted.insert(ino, at.to_owned());
    }

    pub fn find_base(&self, ino: u64) -> Option<&FileBase> {
        self.bases.get(&ino)
    }

    pub fn has_base(&self, ino: u64) -> bool {
        self.bases.contains_key(&ino)
    }

    pub fn add_base(&mut self, ino: u64, base: FileBase) {
        self.hidden.insert(base.at.clone());
        self.bases.insert(ino, base);
    }

    /// Forgets the base of a file that has another copy.
    pub fn forget_base(&mut self, ino: u64) {
        self.open_bases.remove(&ino);
        if let Some(base) = self.bases.remove(&ino) {
            self.hidden.remove(&base.at);
        }
    }

    /// Forgets the name of a base that another one has replaced.
    pub fn forget_hidden(&mut self, at: &Path) {
        self.hidden.remove(at);
    }

    /// The base into which ranges of a file go ahead, if this process has it open.
    pub fn find_open_base(&self, ino: u64) -> Option<&Arc<F>> {
        self.open_bases.get(&ino)
    }

    pub fn keep_open(&mut self, ino: u64, base: Arc<F>) {
        self.open_bases.insert(ino, base);
    }

    pub fn close_base(&mut self, ino: u64) {
        self.open_bases.remove(&ino);
    }

    /// The end of the last range of a file that went ahead.
    pub fn end_of_last_range(&self, ino: u64) -> u64 {
        self.gone_ahead.get(&ino).copied().unwrap_or(0)
    }

    pub fn note_gone_ahead(&mut self, ino: u64, end: u64) {
        self.gone_ahead.insert(ino, end);
    }

    /// Forgets the ranges of files that have no bases any more.
    pub fn forget_ranges(&mut self) {
        let bases = &self.bases;
        self.gone_ahead.retain(|ino, _| bases.contains_key(ino));
        self.open_bases.retain(|ino, _| bases.contains_key(ino));
    }

    /// Makes a copy stay where it is.
    pub fn hold(&mut self, at: &Path) {
        self.held.insert(at.to_owned());
    }

    pub fn release(&mut self, at: &Path) {
        self.held.remove(at);
    }

    pub fn is_held(&self, path: &Path) -> bool {
        self.held.contains(path)
    }

    /// The copies that stay where they are.
    pub fn held(&self) -> &BTreeSet<PathBuf> {
        &self.held
    }

    /// True if a path, or one above or below it, is that of a held copy or of a hidden base.
    pub fn has_around(&self, path: &Path) -> bool {
        is_at_above_or_below(path, &self.held) || is_at_above_or_below(path, &self.hidden)
    }
}

/// The hidden name of a base of a file in a directory. No two instances choose the same.
pub(super) fn hidden_name(dir: &Path, ino: Ino, is_ahead: bool) -> PathBuf {
    let unique = RandomState::new().hash_one(ino.0);
    let suffix = if is_ahead { "-ahead" } else { "" };
    part_of(&dir.join(OsString::from(format!("{:x}-{unique:x}{suffix}", ino.0))))
}

/// The description of a node of the target as a copy.
pub(super) fn copy_at(table: &dyn EvictionTable, path: &Path, there: &Stat) -> TargetCopy {
    TargetCopy {
        path: table.absolute(path),
        identity: CopyIdentity::Content {
            size: there.size,
            mtime_ns: there.mtime.since_epoch_ns(),
        },
    }
}

/// True if a node of the target may be the result of a move of this version.
pub(super) fn is_copy(version: &FileVersion, there: &Stat) -> bool {
    kind_of(there) == NodeKind::File
        && there.size == version.size
        && is_kept_time(version.mtime, there.mtime)
}

pub(super) fn content_of(version: &FileVersion) -> ContentVersion {
    ContentVersion {
        size: version.size,
        mtime_ns: version.mtime.since_epoch_ns(),
        ctime_ns: version.ctime.since_epoch_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(at: &str) -> FileBase {
        let (at, inode) = (at.into(), Some(9));
        FileBase { at, inode }
    }

    #[test]
    fn a_base_protects_its_name_until_it_is_forgotten() {
        let mut copies = EvictedCopies::<()>::new();
        let at = Path::new("d/.5.weir-part");
        copies.add_base(5, base("d/.5.weir-part"));
        copies.keep_open(5, Arc::new(()));
        copies.note_gone_ahead(5, 70);
        assert!(copies.has_around(at) && copies.has_around(Path::new("d")));
        assert!(!copies.has_around(Path::new("d/x")) && !copies.is_held(at));
        copies.forget_base(5);
        assert!(!copies.has_around(at) && copies.find_open_base(5).is_none());
    }

    #[test]
    fn open_bases_and_their_ranges_outlive_a_round_that_finds_the_base_again() {
        let mut copies = EvictedCopies::<()>::new();
        for ino in [5, 6] {
            copies.add_base(ino, base("x"));
            copies.keep_open(ino, Arc::new(()));
            copies.note_gone_ahead(ino, 70);
        }
        copies.clear();
        copies.add_base(6, base("x"));
        copies.forget_ranges();
        assert!(copies.find_open_base(5).is_none() && copies.find_open_base(6).is_some());
        assert_eq!([5, 6].map(|ino| copies.end_of_last_range(ino)), [0, 70]);
    }

    #[test]
    fn a_base_is_ahead_by_its_hidden_name_alone() {
        let hidden = hidden_name(Path::new("d"), Ino(5), true);
        let ahead = |at, inode| FileBase { at, inode }.is_ahead();
        assert!(ahead(hidden.clone(), Some(9)) && !ahead(hidden, None));
        assert!(!ahead(hidden_name(Path::new("d"), Ino(5), false), Some(9)));
    }
}
