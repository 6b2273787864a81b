//! Names of the target: a node is made as a *part*, a hidden one in the same directory, and then gets its
//! name in one step.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use weir_client::process::mounted::elevated::{self, PART_PREFIX, PART_SUFFIX};
use weir_client::types::Stat;

use crate::error::MoveError;
use crate::tree::{
    failed_with_any, identity, kind_of, unless, FileTree, KeptAttributes, NodeKind, PART_MODE,
};

/// The longest name, bytes.
const NAME_MAX: usize = 255;
/// The file that a process locks in a hidden directory while it fills it. No file has a part of this name.
pub(crate) const FILLING: &str = "...weir-part";

/// The path of the part of a file. It is the same for all movers, so that they find each other.
pub fn part_of(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let whole = [PART_PREFIX, name, PART_SUFFIX].concat();
    let name = if whole.len() <= NAME_MAX {
        whole
    } else {
        let sum = blake3::hash(name).to_hex();
        [PART_PREFIX, sum.as_bytes(), PART_SUFFIX].concat()
    };
    target.with_file_name(OsString::from_vec(name))
}

/// True if a name is that of a part.
pub fn is_part(name: &OsStr) -> bool {
    elevated::is_part(name.as_bytes())
}

/// True if nobody has replaced or written the node that has a name.
pub(crate) fn is_same(before: Option<&Stat>, now: Option<&Stat>) -> bool {
    let version = |stat: &Stat| (stat.dev, stat.ino, stat.size, stat.mtime);
    before.map(version) == now.map(version)
}

/// Checks that the node that has the target's name can be replaced by one of this kind.
pub(crate) fn check_kind(
    target: &Path,
    found: Option<&Stat>,
    wanted: NodeKind,
) -> Result<(), MoveError> {
    let Some(found) = found else {
        return Ok(());
    };
    let is_directory = kind_of(found) == NodeKind::Directory;
    match is_directory == (wanted == NodeKind::Directory) {
        true => Ok(()),
        false => Err(MoveError::OtherKind {
            path: target.to_owned(),
            is_directory,
        }),
    }
}

/// Refuses to replace a node that somebody else has put under the target's name.
pub(crate) fn check_replaceable(
    target: &Path,
    found: Option<&Stat>,
    may_replace: impl FnOnce(&Stat) -> bool,
) -> Result<(), MoveError> {
    match found {
        Some(found) if !may_replace(found) => Err(match kind_of(found) {
            NodeKind::Special => MoveError::Special(target.to_owned()),
            _ => MoveError::Foreign(target.to_owned()),
        }),
        _ => Ok(()),
    }
}

/// Removes a directory that is empty, or has only parts that interrupted moves have left; ENOTEMPTY or EEXIST: it has other
/// nodes.
pub(crate) fn remove_directory<T: FileTree>(to: &T, dir: &Path) -> io::Result<()> {
    let left = match to.remove_directory(dir) {
        Err(error) if failed_with_any(&error, &[Errno::NOTEMPTY, Errno::EXIST]) => error,
        removed => return removed,
    };
    let names = to.list(dir)?;
    if !names.iter().all(|name| is_part(name)) {
        return Err(left);
    }
    for part in names.iter().map(|name| dir.join(name)) {
        remove_part(to, &part)?;
    }
    to.remove_directory(dir)
}

/// The result of the removal of a name that the target has had. If the name was not found, checks that it is really gone.
pub(crate) fn unless_gone<T: FileTree>(
    to: &T,
    target: &Path,
    removed: io::Result<()>,
) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => check_gone(to, target),
        removed => removed,
    }
}

/// Fails if a name that the target has had, and that was not found, may still be there.
///
/// A file system of several servers may report that a name does not exist while the server that has it is away (GlusterFS
/// does). Then no file can be made on that server either. The name of the part belongs to the same server, by GlusterFS's
/// rule for hidden names with a suffix.
pub(crate) fn check_gone<T: FileTree>(to: &T, target: &Path) -> io::Result<()> {
    let part = part_of(target);
    let answers = [
        Errno::ACCESS,
        Errno::PERM,
        Errno::ROFS,
        Errno::NOSPC,
        Errno::DQUOT,
    ];
    match to.create_part(&part, PART_MODE) {
        // Its directory is gone, too.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Its server answers, but does not let a file be made; or a hidden directory was left there.
        Err(error) if failed_with_any(&error, &answers) || is_directory_there(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(_made) => unless(to.remove(&part), ErrorKind::NotFound),
    }
}

/// True if a call for a file failed because a directory has its name. POSIX has EPERM for unlink(2).
fn is_directory_there(error: &io::Error) -> bool {
    failed_with_any(error, &[Errno::ISDIR, Errno::PERM])
}

/// Makes a part. Removes a hidden directory that an interrupted move has left under its name.
pub(crate) fn create_part<T: FileTree>(to: &T, part: &Path, mode: u32) -> io::Result<T::File> {
    match to.create_part(part, mode) {
        Err(error) if is_directory_there(&error) => {
            remove_hidden_tree(to, part)?;
            to.create_part(part, mode)
        }
        made => made,
    }
}

/// Removes a part that an interrupted move has left; EBUSY: a living process writes it.
pub(crate) fn remove_part<T: FileTree>(to: &T, part: &Path) -> io::Result<()> {
    let is_directory = |found: Stat| kind_of(&found) == NodeKind::Directory;
    if to.look_up(part)?.is_some_and(is_directory) {
        return remove_hidden_tree(to, part);
    }
    match to.create_part(part, PART_MODE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        made => drop(made?),
    }
    unless(to.remove(part), ErrorKind::NotFound)
}

/// Removes a hidden directory with its content, unless a living process fills it (EBUSY).
pub(crate) fn remove_hidden_tree<T: FileTree>(to: &T, dir: &Path) -> io::Result<()> {
    assert!(dir.file_name().is_some_and(is_part), "a hidden directory");
    let lock = dir.join(FILLING);
    let filling = match to.create_part(&lock, PART_MODE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        made => made?,
    };
    let mut open = vec![dir.to_owned()];
    // A directory is removed after its content.
    while let Some(at) = open.last().cloned() {
        let mut directories = Vec::new();
        for name in to.list(&at)? {
            let path = at.join(name);
            match to.look_up(&path)?.map(|found| kind_of(&found)) {
                _ if path == lock => {}
                Some(NodeKind::Directory) => directories.push(path),
                Some(_) => unless(to.remove(&path), ErrorKind::NotFound)?,
                None => {}
            }
        }
        if directories.is_empty() {
            open.pop();
            if !open.is_empty() {
                unless(to.remove_directory(&at), ErrorKind::NotFound)?;
            }
        }
        open.append(&mut directories);
    }
    // Other processes keep away until here. A file that is open may keep a name in its directory (NFS).
    drop(filling);
    unless(to.remove(&lock), ErrorKind::NotFound)?;
    unless(to.remove_directory(dir), ErrorKind::NotFound)
}

/// Gives a part its name, unless somebody else has changed the node with this name, which was `replaced` when the move
/// began. `is_part`: true if a node that was found is the part.
pub(crate) fn publish_name<T: FileTree>(
    to: &T,
    part: &Path,
    target: &Path,
    replaced: Option<&Stat>,
    is_part: impl Fn(&Stat) -> bool,
) -> Result<(), MoveError> {
    let naming = || MoveError::io("naming", target);
    // If nothing had the name, the rename itself detects a new node.
    if replaced.is_some() {
        let now = to.look_up(target).map_err(naming())?;
        if !is_same(replaced, now.as_ref()) {
            return Err(MoveError::TargetChanged(target.to_owned()));
        }
    }
    // Somebody else may have given the part its name meanwhile. If both names are those of one file, rename(2) does nothing
    // and succeeds, or fails with EEXIST; then the name of the part must be removed. A network file system may have done
    // the rename and lost the reply: then the call fails, or is repeated, and finds no part.
    let is_named = |found: Option<Stat>| found.is_some_and(|found| is_part(&found));
    let remove_other = || match to.look_up(part).map(&is_named) {
        Ok(true) => unless(to.remove(part), ErrorKind::NotFound),
        _ => Ok(()),
    };
    match to.rename(part, target, replaced.is_some()) {
        Ok(()) if is_named(replaced.copied()) => remove_other().map_err(naming()),
        Err(_) if to.look_up(target).is_ok_and(is_named) => remove_other().map_err(naming()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(MoveError::TargetChanged(target.to_owned()))
        }
        done => done.map_err(naming()),
    }
}

/// Makes a node that needs no copying. `is_made`: true if a node is the one that `make` makes.
pub(crate) fn make_named<T: FileTree>(
    to: &T,
    target: &Path,
    replaced: Option<&Stat>,
    make: impl FnOnce(&Path) -> io::Result<()>,
    is_made: impl Fn(&Stat) -> bool,
) -> Result<(), MoveError> {
    let part = part_of(target);
    // An interrupted move may have left a node there.
    match to.remove(&part) {
        Err(error) if is_directory_there(&error) => remove_hidden_tree(to, &part),
        removed => unless(removed, ErrorKind::NotFound),
    }
    .map_err(MoveError::io("removing", &part))?;
    make(&part)
        .map_err(MoveError::io("creating", &part))
        .and_then(|()| publish_name(to, &part, target, replaced, is_made))
        .inspect_err(|_| drop(to.remove(&part)))
}

/// The outcome of giving a file a further name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkOutcome {
    /// It has the name now.
    Made,
    /// It had the name already.
    There,
    /// The file system makes no such link.
    Refused,
    /// There is no such file.
    NoFile,
}

/// Gives a file of the target a further name. Replaces the node that has the name, if that is allowed.
pub(crate) fn make_hard_link<T: FileTree>(
    to: &T,
    existing: &Path,
    target: &Path,
    may_replace: &dyn Fn(&Stat) -> bool,
) -> Result<LinkOutcome, MoveError> {
    let looking = |path| MoveError::io("looking for", path);
    let Some(file) = to.look_up(existing).map_err(looking(existing))? else {
        return Ok(LinkOutcome::NoFile);
    };
    let there = to.look_up(target).map_err(looking(target))?;
    let is_file = |found: &Stat| identity(found) == identity(&file);
    if there.as_ref().is_some_and(is_file) {
        return Ok(LinkOutcome::There);
    }
    check_kind(target, there.as_ref(), NodeKind::File)?;
    check_replaceable(target, there.as_ref(), may_replace)?;
    let make = |part: &Path| to.make_link(existing, part);
    match make_named(to, target, there.as_ref(), make, is_file) {
        Err(MoveError::Io { source, .. }) if has_no_links(&source) => Ok(LinkOutcome::Refused),
        made => made.map(|()| LinkOutcome::Made),
    }
}

/// True if a file system makes no further name. FAT and many FUSE file systems make no hard links; others make none between
/// some directories, or no more for one file.
fn has_no_links(error: &io::Error) -> bool {
    const REFUSALS: [Errno; 5] = [
        Errno::PERM,
        Errno::XDEV,
        Errno::MLINK,
        Errno::NOTSUP,
        Errno::NOSYS,
    ];
    failed_with_any(error, &REFUSALS)
}

/// Makes a symbolic link. Replaces the node that has its name.
pub(crate) fn make_symlink<T: FileTree>(
    to: &T,
    content: &Path,
    target: &Path,
    replaced: Option<&Stat>,
    kept: &KeptAttributes,
) -> Result<(), MoveError> {
    let make = |part: &Path| {
        to.make_symlink(content, part)?;
        to.set_attributes(part, NodeKind::Symlink, kept)
    };
    make_named(to, target, replaced, make, |found| {
        is_symlink_to(to, target, Some(found), content)
    })
}

/// True if the node that was found under a name is a symbolic link with this content.
pub(crate) fn is_symlink_to<T: FileTree>(
    to: &T,
    target: &Path,
    found: Option<&Stat>,
    content: &Path,
) -> bool {
    found.is_some_and(|found| kind_of(found) == NodeKind::Symlink)
        && to.read_link(target).is_ok_and(|there| there == content)
}

/// The path to which a symbolic link leads, by its text alone.
pub(crate) fn destination(link: &Path, content: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    let dir = link.parent().unwrap_or(Path::new(""));
    for component in dir.join(content).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            named => path.push(named),
        }
    }
    path
}

/// True if a path, one above it or one below it is among others.
pub(crate) fn is_at_above_or_below(path: &Path, others: &BTreeSet<PathBuf>) -> bool {
    // In the order of paths, the entries of a directory follow the directory.
    let mut behind = others.range(path.to_owned()..);
    path.ancestors().any(|above| others.contains(above))
        || behind.next().is_some_and(|below| below.starts_with(path))
}
