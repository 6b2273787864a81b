//! The directories that the target has under other names than the tree, by their paths in the tree and on the target.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::ops::Index;
use std::path::{Path, PathBuf};

use super::snapshot::{at_and_below, TreeSnapshot};
use crate::publish::{is_at_above_or_below, is_part, part_of};
use crate::tree::NodeKind;

/// A directory that the target has under another name.
#[derive(Debug)]
pub(super) struct RelocatedDirectory<F> {
    /// Its path below the target.
    at: PathBuf,
    /// Its inode in the tree; `None`: it is retired.
    pub inode: Option<(u64, u64)>,
    /// The rounds since it was relocated.
    pub rounds: u32,
    /// The lock that shows that this process fills a hidden directory.
    pub lock: Option<F>,
}

impl<F> RelocatedDirectory<F> {
    /// A directory with this inode in the tree that the target has at this path.
    pub fn new(at: PathBuf, inode: Option<(u64, u64)>, lock: Option<F>) -> RelocatedDirectory<F> {
        RelocatedDirectory {
            at,
            inode,
            rounds: 0,
            lock,
        }
    }

    /// A retired directory that the target has at this path.
    pub fn new_retired(at: &Path) -> RelocatedDirectory<F> {
        RelocatedDirectory::new(at.to_owned(), None, None)
    }

    /// Its path below the target.
    pub fn at(&self) -> &Path {
        &self.at
    }

    pub fn is_hidden(&self) -> bool {
        self.at.file_name().is_some_and(is_part)
    }

    pub fn is_retired(&self) -> bool {
        self.inode.is_none()
    }
}

/// The directory on the target whose name another one is to get.
pub(super) enum Occupant {
    None,
    /// A retired directory, with its path in the tables.
    Retired(PathBuf),
    /// A directory that must get another name first, with its path in the tree.
    Relocated(PathBuf),
}

/// The relocated directories, by their paths in the tree.
#[derive(Debug)]
pub(super) struct RelocatedDirectories<F> {
    by_path: BTreeMap<PathBuf, RelocatedDirectory<F>>,
    /// Their paths below the target, each with the path in the tree.
    places: BTreeSet<(PathBuf, PathBuf)>,
    /// The inodes in the tree of directories whose names somebody else has taken on the target.
    merged: HashSet<(u64, u64)>,
}

impl<F> RelocatedDirectories<F> {
    pub fn new() -> RelocatedDirectories<F> {
        RelocatedDirectories {
            by_path: BTreeMap::new(),
            places: BTreeSet::new(),
            merged: HashSet::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PathBuf, &RelocatedDirectory<F>)> {
        self.by_path.iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &PathBuf> {
        self.by_path.keys()
    }

    pub fn contains_key(&self, path: &Path) -> bool {
        self.by_path.contains_key(path)
    }

    pub fn get(&self, path: &Path) -> Option<&RelocatedDirectory<F>> {
        self.by_path.get(path)
    }

    pub fn get_mut(&mut self, path: &Path) -> Option<&mut RelocatedDirectory<F>> {
        self.by_path.get_mut(path)
    }

    pub fn insert(&mut self, path: PathBuf, directory: RelocatedDirectory<F>) {
        self.remove(&path);
        self.places.insert((directory.at.clone(), path.clone()));
        self.by_path.insert(path, directory);
    }

    pub fn remove(&mut self, path: &Path) -> Option<RelocatedDirectory<F>> {
        let (path, directory) = self.by_path.remove_entry(path)?;
        let place = (directory.at, path);
        self.places.remove(&place);
        Some(RelocatedDirectory {
            at: place.0,
            ..directory
        })
    }

    /// Removes the directories at and below a path in the tree.
    pub fn remove_below(&mut self, path: &Path) -> Vec<(PathBuf, RelocatedDirectory<F>)> {
        let paths = at_and_below(&self.by_path, path).map(|(path, _)| path.clone());
        let paths: Vec<PathBuf> = paths.collect();
        let removed = paths.into_iter().filter_map(|path| {
            let directory = self.remove(&path)?;
            Some((path, directory))
        });
        removed.collect()
    }

    pub fn retain(&mut self, is_kept: impl Fn(&Path) -> bool) {
        let gone: Vec<PathBuf> = self.keys().filter(|path| !is_kept(path)).cloned().collect();
        for path in gone {
            self.remove(&path);
        }
    }

    /// Notes that the files of a directory, by its inode, are moved one by one.
    pub fn note_merged(&mut self, inode: (u64, u64)) {
        self.merged.insert(inode);
    }

    pub fn is_merged(&self, inode: (u64, u64)) -> bool {
        self.merged.contains(&inode)
    }

    /// Counts a round for each.
    pub fn count_round(&mut self) {
        for directory in self.by_path.values_mut() {
            directory.rounds += 1;
        }
    }

    /// The relocated directory at or above a path, with its path.
    pub fn find_above<'d>(
        &'d self,
        path: &'d Path,
    ) -> Option<(&'d Path, &'d RelocatedDirectory<F>)> {
        if self.is_empty() {
            return None;
        }
        let mut above = path.ancestors();
        above.find_map(|above| Some((above, self.get(above)?)))
    }

    /// True if the target has a node under another name for now.
    pub fn is_relocated(&self, path: &Path) -> bool {
        self.find_above(path).is_some()
    }

    /// The path of a node below the target.
    pub fn find_place(&self, path: &Path) -> PathBuf {
        match self.find_above(path) {
            Some((above, relocated)) => rebase(path, above, relocated.at()),
            None => path.to_owned(),
        }
    }

    /// True if a relocated directory has this path below the target, or the path of the part that a copy to it needs.
    pub fn has_in_place_of(&self, path: &Path) -> bool {
        !self.is_empty() && (self.has_at(path) || self.has_at(&part_of(path)))
    }

    /// True if a node is in a retired directory whose successor has not got the name yet.
    pub fn awaits_successor(&self, path: &Path) -> bool {
        self.find_above(path).is_some_and(|(_, one)| {
            let successor = self.get(one.at());
            one.is_retired() && successor.is_some_and(|successor| !successor.is_retired())
        })
    }

    /// The relocated directories that do not have their names yet.
    pub fn unnamed(&self) -> impl Iterator<Item = &PathBuf> {
        let unnamed = self.iter().filter(|(_, one)| !one.is_retired());
        unnamed.map(|(path, _)| path)
    }

    /// True if two walks saw a directory with a name that it has not got yet.
    pub fn awaits_name(&self, then: &TreeSnapshot, now: &TreeSnapshot) -> bool {
        self.seen_unnamed(then, now).next().is_some()
    }

    /// The names that directories have not got yet, with which two walks saw them.
    pub fn seen_unnamed<'a>(
        &'a self,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let unnamed = self.iter().filter(|(_, one)| !one.is_retired());
        let seen = unnamed.filter(move |(path, one)| {
            let is_seen = |walk: &TreeSnapshot| {
                let seen = walk
                    .get(path)
                    .filter(|seen| seen.kind == NodeKind::Directory);
                seen.map(|seen| seen.version.inode()) == one.inode
            };
            is_seen(then) && is_seen(now)
        });
        seen.map(|(path, _)| path)
    }

    /// True if an old link of the target leads to the directory, or to the present holder of its name.
    pub fn changes_old_links(
        &self,
        path: &Path,
        relocated: &RelocatedDirectory<F>,
        kept: &BTreeSet<PathBuf>,
    ) -> bool {
        let is_kept = |path: &Path| is_at_above_or_below(path, kept);
        let is_taken = !matches!(self.find_occupant(path), Occupant::None);
        !relocated.is_hidden() && is_kept(relocated.at()) || is_taken && is_kept(path)
    }

    pub fn find_occupant(&self, path: &Path) -> Occupant {
        match self.find_at(path) {
            None => Occupant::None,
            Some((old, one)) if one.is_retired() => Occupant::Retired(old.clone()),
            Some((other, _)) => Occupant::Relocated(other.clone()),
        }
    }

    /// True if a directory has this path below the target.
    pub fn has_at(&self, at: &Path) -> bool {
        self.find_at(at).is_some()
    }

    /// The directory that has this path below the target, with the one in the tree.
    pub fn find_at(&self, at: &Path) -> Option<(&PathBuf, &RelocatedDirectory<F>)> {
        let (_, path) = self
            .places_from(at)
            .next()
            .filter(|(place, _)| place == at)?;
        self.by_path.get_key_value(path)
    }

    /// True if a directory has this path below the target, or one above or below it.
    pub fn has_around(&self, at: &Path) -> bool {
        let has_below = self.places_at_and_below(at).next().is_some();
        has_below || at.ancestors().any(|above| self.find_at(above).is_some())
    }

    /// True if another relocated directory is at or below the place of this one.
    pub fn has_others_in(&self, path: &Path) -> bool {
        let mut places = self.places_at_and_below(&self[path].at);
        places.any(|(_, other)| other != path)
    }

    /// Notes that a directory, with all relocated directories inside, has another path on the target.
    pub fn change_place(&mut self, path: &Path, at: &Path) {
        let Some(was) = self.get(path).map(|one| one.at.clone()) else {
            return;
        };
        let moved: Vec<(PathBuf, PathBuf)> = self.places_at_and_below(&was).cloned().collect();
        for place in moved {
            self.places.remove(&place);
            let (place, path) = place;
            let place = rebase(&place, &was, at);
            if let Some(one) = self.by_path.get_mut(&path) {
                one.at.clone_from(&place);
            }
            self.places.insert((place, path));
        }
    }

    fn places_from(&self, at: &Path) -> impl Iterator<Item = &(PathBuf, PathBuf)> {
        self.places.range((at.to_owned(), PathBuf::new())..)
    }

    fn places_at_and_below<'d>(
        &'d self,
        at: &'d Path,
    ) -> impl Iterator<Item = &'d (PathBuf, PathBuf)> {
        self.places_from(at)
            .take_while(move |(place, _)| place.starts_with(at))
    }
}

impl<F> Extend<(PathBuf, RelocatedDirectory<F>)> for RelocatedDirectories<F> {
    fn extend<I: IntoIterator<Item = (PathBuf, RelocatedDirectory<F>)>>(&mut self, directories: I) {
        for (path, directory) in directories {
            self.insert(path, directory);
        }
    }
}

impl<F> Index<&Path> for RelocatedDirectories<F> {
    type Output = RelocatedDirectory<F>;

    fn index(&self, path: &Path) -> &RelocatedDirectory<F> {
        &self.by_path[path]
    }
}

/// A path with another beginning.
pub(super) fn rebase(path: &Path, from: &Path, to: &Path) -> PathBuf {
    match path.strip_prefix(from) {
        Ok(below) if below.as_os_str().is_empty() => to.to_owned(),
        Ok(below) => to.join(below),
        Err(_) => path.to_owned(),
    }
}

/// The path of a retired node, which no tree has.
pub(super) fn retired_path(path: &Path, ino: u64) -> PathBuf {
    let mut name = OsString::from(format!("retired-{ino:x}-"));
    name.push(path.file_name().unwrap_or_default());
    part_of(&path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(places: &[(&str, &str)]) -> RelocatedDirectories<()> {
        let mut table = RelocatedDirectories::new();
        for (path, at) in places {
            let one = RelocatedDirectory::new_retired(Path::new(at));
            table.insert(PathBuf::from(path), one);
        }
        table
    }

    fn places(table: &RelocatedDirectories<()>) -> Vec<(&str, &str)> {
        let all = table.iter();
        all.map(|(path, one)| (path.to_str().unwrap(), one.at().to_str().unwrap()))
            .collect()
    }

    #[test]
    fn paths_get_other_beginnings() {
        let rebased = |path| rebase(Path::new(path), Path::new("a/b"), Path::new("c"));
        assert_eq!(rebased("a/b"), Path::new("c"));
        assert_eq!(rebased("a/b/d/e"), Path::new("c/d/e"));
        assert_eq!(rebased("a/bd"), Path::new("a/bd"));
    }

    #[test]
    fn directories_are_found_by_their_places() {
        let mut table = table(&[("new", "old"), ("new/in", "old/inside"), ("other", "older")]);
        let found = |table: &RelocatedDirectories<()>, at: &str| {
            let found = table.find_at(Path::new(at));
            found.map(|(path, _)| path.to_str().unwrap().to_owned())
        };
        assert_eq!(found(&table, "old").as_deref(), Some("new"));
        assert_eq!(found(&table, "new"), None);
        for (at, is_around) in [
            ("old/inside/x", true),
            ("old/x", true),
            ("ol", false),
            ("", true),
        ] {
            assert_eq!(table.has_around(Path::new(at)), is_around, "{at}");
        }
        assert!(table.has_others_in(Path::new("new")) && !table.has_others_in(Path::new("other")));
        table.change_place(Path::new("new"), Path::new("new"));
        let changed = [("new", "new"), ("new/in", "new/inside"), ("other", "older")];
        assert_eq!(places(&table), changed);
        assert_eq!(
            (found(&table, "old"), found(&table, "new/inside").is_some()),
            (None, true)
        );
        let removed = table.remove_below(Path::new("new"));
        assert_eq!(
            (removed.len(), places(&table)),
            (2, vec![("other", "older")])
        );
        assert!(!table.has_around(Path::new("new")));
        table.retain(|_| false);
        assert!(table.is_empty() && found(&table, "older").is_none());
    }

    #[test]
    fn a_retired_path_is_hidden() {
        let retired = retired_path(Path::new("x/ckpt"), 18);
        assert_eq!(retired, Path::new("x/.retired-12-ckpt.weir-part"));
    }
}
