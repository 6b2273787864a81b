//! The names of a tree as one walk saw them. A walk takes time: it may see or miss names that change meanwhile.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_client::process::mounted::{EvictedFile, Whiteout};
use weir_client::types::{Stat, Time};

use crate::content::ContentStamp;
use crate::error::MoveError;
use crate::filter::PathFilter;
use crate::publish::is_part;
use crate::replaceable::NodeMark;
use crate::tree::{kind_of, EvictionTable, FileTree, KeptAttributes, NodeKind};

/// The most directories that a walk lists again because their paths led to other directories meanwhile.
const RETRIES: u32 = 100;

/// The attributes that tell versions of a file apart. `ctime` is among them, since programs can set `mtime`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileVersion {
    pub dev: u64,
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
}

impl FileVersion {
    pub fn inode(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }
}

impl From<&Stat> for FileVersion {
    fn from(stat: &Stat) -> FileVersion {
        FileVersion {
            dev: stat.dev,
            ino: stat.ino,
            size: stat.size,
            mtime: stat.mtime,
            ctime: stat.ctime,
        }
    }
}

impl From<&FileVersion> for ContentStamp {
    fn from(version: &FileVersion) -> ContentStamp {
        ContentStamp::new(version.ino, version.size, version.mtime)
    }
}

/// Files, by inode. Inode numbers are used again: a file counts as the same if it still has its path, or its mtime after a
/// rename.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSet(HashMap<(u64, u64), (PathBuf, Time)>);

impl FileSet {
    pub fn insert(&mut self, path: &Path, version: &FileVersion) {
        let file = (path.to_owned(), version.mtime);
        self.0.insert(version.inode(), file);
    }

    pub fn add(&mut self, others: &FileSet) {
        let others = others.0.iter();
        self.0
            .extend(others.map(|(inode, file)| (*inode, file.clone())));
    }

    pub fn remove(&mut self, path: &Path, version: &FileVersion) {
        if self.contains(path, version) {
            self.0.remove(&version.inode());
        }
    }

    fn contains(&self, path: &Path, version: &FileVersion) -> bool {
        let file = self.0.get(&version.inode());
        file.is_some_and(|(at, mtime)| at == path || *mtime == version.mtime)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn retain(&mut self, is_kept: impl Fn(&(u64, u64)) -> bool) {
        self.0.retain(|inode, _| is_kept(inode));
    }

    /// True if a walk saw all files, each under a name that it can get on the target.
    pub fn are_in(&self, snapshot: &TreeSnapshot, can_be_placed: impl Fn(&Path) -> bool) -> bool {
        if self.is_empty() {
            return true;
        }
        let files = snapshot.of_kind(NodeKind::File);
        let seen =
            files.filter(|(path, node)| self.contains(path, &node.version) && can_be_placed(path));
        let seen: HashSet<_> = seen.map(|(_, node)| node.version.inode()).collect();
        seen.len() == self.0.len()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    /// The number of the walk.
    pub walk: u64,
    pub kind: NodeKind,
    pub version: FileVersion,
    /// The time of its creation; `None`: not known.
    pub born: Option<Time>,
    /// It has several names.
    pub has_links: bool,
    pub kept: KeptAttributes,
    /// The target of a symbolic link; else empty.
    pub content: PathBuf,
}

impl SeenNode {
    /// The mark of this node's copy on the target.
    pub(super) fn mark(&self) -> NodeMark {
        let size = match self.content.as_os_str().len() {
            0 => self.version.size,
            text => text as u64,
        };
        NodeMark::new(size, self.version.mtime, self.version.ino)
    }
}

/// The files, directories and symbolic links below a directory, by their paths below it.
#[derive(Debug, Default)]
pub(crate) struct TreeSnapshot {
    /// The number of the walk.
    pub walk: u64,
    /// The time at which it began, since 1970.
    pub began: Duration,
    nodes: BTreeMap<PathBuf, SeenNode>,
    /// True if a listed name was gone when the walk examined it: the walk may have missed a renamed file.
    pub has_missed: bool,
    /// True if no file got another directory, and no directory another name, while the walk was under way.
    pub is_calm: bool,
    /// Names that were removed from an elevated tree, by their paths.
    pub whiteouts: BTreeMap<PathBuf, Whiteout>,
    /// Files of an elevated tree that were evicted.
    pub evicted: Vec<EvictedFile>,
    /// Paths that could not be examined.
    pub unread: Vec<(PathBuf, MoveError)>,
}

/// The tree that is walked.
#[derive(Debug)]
pub(crate) struct WalkedTree<'t, T: FileTree> {
    pub tree: &'t T,
    pub root: &'t Path,
    pub filter: &'t PathFilter,
}

impl<T: FileTree> WalkedTree<'_, T> {
    /// Walks a directory below the root. `walk` is the number of the walk.
    pub fn walk_below(&self, dir: &Path, walk: u64) -> TreeSnapshot {
        let mut snapshot = TreeSnapshot {
            walk,
            ..TreeSnapshot::default()
        };
        let mut open = vec![dir.to_owned()];
        let mut retries = RETRIES;
        while let Some(dir) = open.pop() {
            let whole = self.root.join(&dir);
            let first = open.len();
            let names = match self.tree.list(&whole) {
                Ok(names) => names,
                // The directory was removed after its name was listed.
                Err(error) if error.kind() == ErrorKind::NotFound && dir != Path::new("") => {
                    snapshot.has_missed = true;
                    snapshot.nodes.remove(&dir);
                    continue;
                }
                Err(error) => {
                    let error = MoveError::io("listing", &whole)(error);
                    snapshot.unread.push((dir, error));
                    continue;
                }
            };
            for name in names.iter().filter(|name| !is_part(name)) {
                let path = dir.join(name);
                match look_at(self.tree, &self.root.join(&path), walk) {
                    Ok(LookResult::Seen(node)) if !self.is_chosen(&path, node.kind) => {}
                    Ok(LookResult::Seen(node)) => {
                        if node.kind == NodeKind::Directory {
                            open.push(path.clone());
                        }
                        snapshot.nodes.insert(path, node);
                    }
                    Ok(LookResult::NotMoved) => {}
                    Ok(LookResult::Gone) => snapshot.has_missed = true,
                    Err(error) => snapshot.unread.push((path, error)),
                }
            }
            if self.is_replaced(&dir, &snapshot) && retries > 0 {
                // The names may be those of another directory that has the path now.
                retries -= 1;
                open.truncate(first);
                snapshot.look_again(&dir, look_at(self.tree, &whole, walk), &mut open);
            }
        }
        snapshot
    }

    /// True if the path of a listed directory leads to another node by now, or to none.
    fn is_replaced(&self, dir: &Path, snapshot: &TreeSnapshot) -> bool {
        let Some(seen) = snapshot.get(dir) else {
            return false; // the root
        };
        let now = self.tree.look_up(&self.root.join(dir));
        now.is_ok_and(|now| {
            now.is_none_or(|now| FileVersion::from(&now).inode() != seen.version.inode())
        })
    }

    /// The names that were removed from an elevated tree, or whose files it has replaced.
    pub fn whiteouts(&self) -> Result<BTreeMap<PathBuf, Whiteout>, MoveError> {
        let found = self.tree.whiteouts();
        let found = found.map_err(MoveError::io("looking for names removed below", self.root))?;
        let with_paths = found.into_iter().map(|whiteout| {
            let path = PathBuf::from(OsStr::from_bytes(whiteout.path()));
            (path, whiteout)
        });
        Ok(with_paths
            .filter(|(path, _)| self.filter.takes(&Path::new("/").join(path)))
            .collect())
    }

    /// The evicted files of an elevated tree.
    pub fn evicted_files(&self) -> Result<Vec<EvictedFile>, MoveError> {
        let found = self.tree.evictions().map(EvictionTable::list);
        let found = found.unwrap_or(Ok(Vec::new()));
        found.map_err(MoveError::io("looking for files evicted from", self.root))
    }

    fn is_chosen(&self, path: &Path, kind: NodeKind) -> bool {
        let path = Path::new("/").join(path);
        match kind {
            NodeKind::Directory => self.filter.enters(&path),
            _ => self.filter.takes(&path),
        }
    }
}

impl TreeSnapshot {
    /// True if the walk has seen all files that were there when it began.
    pub(super) fn has_all_files(&self) -> bool {
        self.is_calm && !self.has_missed && self.unread.is_empty()
    }

    /// Replaces the version of a file by an earlier one.
    pub(super) fn set_back(&mut self, path: &Path, version: FileVersion) {
        if let Some(node) = self.nodes.get_mut(path) {
            if node.version.inode() != version.inode() {
                node.born = None;
            }
            node.version = version;
        }
    }

    /// Forgets a directory and the nodes below it. If its path leads to a directory now, that one is listed next.
    fn look_again(
        &mut self,
        dir: &Path,
        now: Result<LookResult, MoveError>,
        open: &mut Vec<PathBuf>,
    ) {
        self.has_missed = true;
        self.nodes.retain(|path, _| !path.starts_with(dir));
        match now {
            Ok(LookResult::Seen(node)) => {
                if node.kind == NodeKind::Directory {
                    open.push(dir.to_owned());
                }
                self.nodes.insert(dir.to_owned(), node);
            }
            Ok(LookResult::NotMoved | LookResult::Gone) => {}
            Err(error) => self.unread.push((dir.to_owned(), error)),
        }
    }

    pub fn get(&self, path: &Path) -> Option<&SeenNode> {
        self.nodes.get(path)
    }

    pub fn of_kind(&self, kind: NodeKind) -> impl Iterator<Item = (&PathBuf, &SeenNode)> {
        self.nodes.iter().filter(move |(_, node)| node.kind == kind)
    }

    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.nodes.keys()
    }

    /// The node of this path, and all below it.
    pub fn at_and_below<'s>(
        &'s self,
        path: &'s Path,
    ) -> impl Iterator<Item = (&'s PathBuf, &'s SeenNode)> {
        at_and_below(&self.nodes, path)
    }
}

/// The nodes of a table at a path and below it.
pub(super) fn at_and_below<'n, N>(
    nodes: &'n BTreeMap<PathBuf, N>,
    path: &'n Path,
) -> impl Iterator<Item = (&'n PathBuf, &'n N)> {
    let from_there = nodes.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
    from_there.take_while(move |(below, _)| below.starts_with(path))
}

enum LookResult {
    Seen(SeenNode),
    /// A device, fifo or socket.
    NotMoved,
    Gone,
}

fn look_at<T: FileTree>(tree: &T, path: &Path, walk: u64) -> Result<LookResult, MoveError> {
    let stat = tree.look_up(path);
    let Some(stat) = stat.map_err(MoveError::io("looking for", path))? else {
        return Ok(LookResult::Gone);
    };
    let kind = kind_of(&stat);
    let content = match kind {
        NodeKind::Special => return Ok(LookResult::NotMoved),
        NodeKind::File | NodeKind::Directory => PathBuf::new(),
        NodeKind::Symlink => match tree.read_link(path) {
            // Another kind of node may have the name now.
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::InvalidInput].contains(&error.kind()) =>
            {
                return Ok(LookResult::Gone)
            }
            content => content.map_err(MoveError::io("reading", path))?,
        },
    };
    Ok(LookResult::Seen(SeenNode {
        walk,
        kind,
        version: FileVersion::from(&stat),
        born: stat.btime,
        has_links: stat.nlink > 1,
        kept: KeptAttributes::from(&stat),
        content,
    }))
}

#[cfg(test)]
impl TreeSnapshot {
    /// A walk that saw nodes of these paths, kinds and inode numbers, each of its number of bytes and time.
    pub(super) fn from_nodes(walk: u64, nodes: &[(&str, NodeKind, u64)]) -> TreeSnapshot {
        let seen = nodes.iter().map(|(path, kind, ino)| {
            let time = Time {
                sec: ino.cast_signed(),
                nsec: 0,
            };
            let stat = Stat {
                ino: *ino,
                size: *ino,
                mtime: time,
                ctime: time,
                ..Stat::default()
            };
            let node = SeenNode {
                walk,
                kind: *kind,
                version: FileVersion::from(&stat),
                born: None,
                has_links: false,
                kept: KeptAttributes::from(&stat),
                content: PathBuf::new(),
            };
            (PathBuf::from(path), node)
        });
        TreeSnapshot {
            walk,
            nodes: seen.collect(),
            ..TreeSnapshot::default()
        }
    }
}
