//! The arguments of a stage: `SOURCE... DESTINATION`, with patterns. Their meaning is that of rsync(1): unlike that of
//! cp(1), it is the same when the command is repeated.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;
use weir_client::types::Stat;

use crate::tree::{kind_of, leads_to_directory, unless, FileTree, NodeKind};

/// A source, and the path that it gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagePair {
    /// A path of the source's tree.
    pub source: PathBuf,
    /// A path of the target's tree.
    pub target: PathBuf,
}

/// The reason why nothing is moved.
#[derive(Debug, thiserror::Error)]
pub enum SourcesRefused {
    /// There is no such source.
    #[error("{}: no such file or directory", .0.display())]
    NoSource(PathBuf),
    /// No name matches the pattern.
    #[error("{}: no file has a name like that", .0.display())]
    NoMatch(PathBuf),
    /// It is no pattern.
    #[error("{}: {source}", pattern.display())]
    Pattern {
        /// The pattern.
        pattern: PathBuf,
        /// The reason.
        source: globset::Error,
    },
    /// Several sources need a directory.
    #[error("{} is not a directory, and there are several sources", .0.display())]
    NotDirectory(PathBuf),
    /// The directory that is to hold the target does not exist.
    #[error("{} does not exist: create it first", .0.display())]
    NoParent(PathBuf),
    /// Two sources get one path.
    #[error("{} and {} would both become {}", one.display(), other.display(), target.display())]
    SameTarget {
        /// A source.
        one: PathBuf,
        /// Another one.
        other: PathBuf,
        /// The path.
        target: PathBuf,
    },
    /// A call of a tree failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn looking(path: &Path) -> impl FnOnce(io::Error) -> SourcesRefused {
    let path = path.to_owned();
    move |source| SourcesRefused::Io { path, source }
}

/// Pairs sources with their targets. A directory keeps its name below the destination; `DIR/` and `DIR/.` stand for its
/// contents. A file also keeps its name if the destination is a directory or ends with a slash, or if several sources are
/// given; otherwise the destination is its new path.
pub fn pair<S: FileTree, T: FileTree>(
    from: &S,
    sources: &[PathBuf],
    to: &T,
    destination: &Path,
) -> Result<Vec<StagePair>, SourcesRefused> {
    let mut found = Vec::new();
    for source in sources {
        found.extend(expand(from, source)?);
    }
    let there = to.look_up(destination).map_err(looking(destination))?;
    let is_directory = there.is_some_and(|stat| match kind_of(&stat) {
        NodeKind::Symlink => leads_to_directory(to, destination),
        kind => kind == NodeKind::Directory,
    });
    let wants_directory = found.len() > 1 || ends_with_slash(destination);
    if wants_directory && !is_directory && (there.is_some() || found.len() > 1) {
        return Err(SourcesRefused::NotDirectory(destination.to_owned()));
    }
    let mut pairs = Vec::new();
    for (source, stat) in found {
        let keeps_name = is_directory || wants_directory || kind_of(&stat) == NodeKind::Directory;
        let target = match name_of(&source) {
            Some(name) if keeps_name => destination.join(name),
            _ => destination.to_owned(),
        };
        pairs.push(StagePair { source, target });
    }
    check_targets(&pairs)?;
    Ok(pairs)
}

/// Checks that no two sources get one path.
pub fn check_targets(pairs: &[StagePair]) -> Result<(), SourcesRefused> {
    let mut taken: HashMap<&Path, &Path> = HashMap::new();
    for pair in pairs {
        if let Some(one) = taken.insert(&pair.target, &pair.source) {
            return Err(SourcesRefused::SameTarget {
                one: one.to_owned(),
                other: pair.source.clone(),
                target: pair.target.clone(),
            });
        }
    }
    Ok(())
}

/// Creates the directories above targets.
pub fn make_parents<T: FileTree>(to: &T, pairs: &[StagePair]) -> Result<(), SourcesRefused> {
    let parents: BTreeSet<&Path> = pairs
        .iter()
        .filter_map(|pair| pair.target.parent())
        .collect();
    for parent in parents {
        let missing = parent.ancestors().take_while(|dir| {
            !dir.as_os_str().is_empty() && to.look_up(dir).is_ok_and(|stat| stat.is_none())
        });
        let missing: Vec<&Path> = missing.collect();
        for dir in missing.into_iter().rev() {
            let made = to.make_directory(dir, 0o755);
            unless(made, io::ErrorKind::AlreadyExists).map_err(looking(dir))?;
        }
    }
    Ok(())
}

/// Checks that the directory that is to hold a target exists.
pub fn check_parent<T: FileTree>(to: &T, path: &Path) -> Result<(), SourcesRefused> {
    let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    else {
        return Ok(());
    };
    match to.look_up(parent).map_err(looking(parent))? {
        Some(_) => Ok(()),
        None => Err(SourcesRefused::NoParent(parent.to_owned())),
    }
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// The name of a source in its directory; `None`: it stands for its contents.
pub(crate) fn name_of(source: &Path) -> Option<&OsStr> {
    let bytes = source.as_os_str().as_bytes();
    let stands_for_contents = bytes.ends_with(b"/") || bytes.ends_with(b"/.") || bytes == b".";
    source.file_name().filter(|_| !stands_for_contents)
}

/// The paths that match a pattern, in order, with their attributes. A path that exists is not taken for a pattern.
fn expand<S: FileTree>(from: &S, pattern: &Path) -> Result<Vec<(PathBuf, Stat)>, SourcesRefused> {
    if let Some(stat) = from.look_up(pattern).map_err(looking(pattern))? {
        return Ok(vec![(pattern.to_owned(), stat)]);
    }
    let special = |part: &OsStr| part.as_bytes().iter().any(|byte| b"*?[{".contains(byte));
    if !special(pattern.as_os_str()) {
        return Err(SourcesRefused::NoSource(pattern.to_owned()));
    }
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let name = match component {
            Component::Normal(name) if special(name) => name,
            other => {
                for path in &mut found {
                    path.push(other);
                }
                continue;
            }
        };
        found = fitting(from, &found, name, pattern)?;
    }
    // A component after the last pattern need not exist below each match.
    let found = found.into_iter().filter_map(|path| {
        let stat = from.look_up(&path).ok()??;
        Some((path, stat))
    });
    let found: Vec<(PathBuf, Stat)> = found.collect();
    match found.is_empty() {
        true => Err(SourcesRefused::NoMatch(pattern.to_owned())),
        false => Ok(found),
    }
}

/// The paths in directories whose names match.
fn fitting<S: FileTree>(
    from: &S,
    dirs: &[PathBuf],
    name: &OsStr,
    pattern: &Path,
) -> Result<Vec<PathBuf>, SourcesRefused> {
    let text = name.to_string_lossy();
    let glob = GlobBuilder::new(&text).literal_separator(true).build();
    let glob = glob.map_err(|source| SourcesRefused::Pattern {
        pattern: pattern.to_owned(),
        source,
    })?;
    let matcher = glob.compile_matcher();
    let mut found = Vec::new();
    for dir in dirs {
        if !leads_to_directory(from, dir) {
            continue;
        }
        let shown = match dir.as_os_str().is_empty() {
            true => Path::new("."),
            false => dir,
        };
        let names = from.list(shown).map_err(looking(shown))?;
        // As a shell: a leading dot must be written.
        let is_shown =
            |name: &&OsString| text.starts_with('.') || !name.as_bytes().starts_with(b".");
        let mut fit: Vec<PathBuf> = names
            .iter()
            .filter(is_shown)
            .filter(|name| matcher.is_match(name))
            .map(|name| dir.join(name))
            .collect();
        fit.sort_unstable();
        found.extend(fit);
    }
    Ok(found)
}
