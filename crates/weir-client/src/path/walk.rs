//! Following a path, component by component.
//!
//! POSIX's rules: `.` and `..` are steps, not names; a trailing slash asks for a directory and
//! follows a link before it; each directory on the way must be searchable; at most 40 links.
//! Particular to weir: a path may leave weir (`..` of its root, a link to elsewhere), and then the
//! rest is a path for the kernel ([`ResolvedPath::Outside`]).

use std::borrow::Cow;

use rustix::io::Errno;
use smallvec::SmallVec;
use weir_core::names::{Attr, FileType, NAME_MAX, SYMLINK_MAX};
use weir_core::types::Ino;

use super::access::{Credentials, Guard, EXECUTE};
use super::prefix::split;
use super::roots::Roots;

/// The longest path with its NUL, bytes.
pub const PATH_MAX: usize = 4096;
/// The greatest number of links on a path.
const MAX_LINKS: u32 = 40;

/// The namespace as far as walking needs it.
pub trait Names {
    /// The root directory.
    fn root(&self) -> Ino;
    /// The inode of a name in a directory.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno>;
    /// The attributes; `None`: it is gone.
    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno>;
    /// Kind, mode and owner of a directory, which may cost less; `None`: it is gone.
    fn passage(&self, dir: Ino) -> Result<Option<Guard>, Errno> {
        Ok(self.attr(dir)?.as_ref().map(Guard::from))
    }
    /// The target of a symbolic link; ENOENT: it is gone.
    fn target(&self, ino: Ino, out: &mut [u8; SYMLINK_MAX]) -> Result<usize, Errno>;
    /// The target of a symbolic link; `None`: it was removed since it was found.
    fn text_of(&self, link: Ino) -> Result<Option<Vec<u8>>, Errno> {
        let mut text = [0; SYMLINK_MAX];
        match self.target(link, &mut text) {
            Ok(length) => Ok(Some(text[..length].to_vec())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
    /// The target of the symbolic link with a name in a directory; `None`: there is none.
    fn text_at(&self, dir: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self.lookup(dir, name)? {
            Some((link, _)) => self.text_of(link),
            None => Ok(None),
        }
    }
    /// Looks for a name that [`Names::lookup`] did not find in the directory that an elevated one
    /// covers.
    fn lookup_below(&self, _dir: Ino, _name: &[u8]) -> Result<Option<BelowEntry>, Errno> {
        Ok(None)
    }
}

/// The file of a name that an elevated directory does not have, and the directory that it covers has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BelowEntry {
    /// A directory; the elevated one has it now, too.
    Directory(Ino),
    /// A symbolic link.
    Link {
        /// Its path.
        path: Vec<u8>,
        /// Its target.
        target: Vec<u8>,
    },
    /// Another file, at this path of the kernel's.
    File(Vec<u8>),
}

/// The bytes of a name that need no allocation: results are moved from function to function, so more would cost each path
/// more than the few long names do.
const SHORT_NAME: usize = 32;

/// A file name. A short one needs no allocation.
#[derive(Clone)]
pub struct Name(SmallVec<[u8; SHORT_NAME]>);

impl Name {
    /// ENAMETOOLONG beyond 255 bytes.
    pub fn new(name: &[u8]) -> Result<Name, Errno> {
        match name.len() <= NAME_MAX {
            true => Ok(Name(SmallVec::from_slice(name))),
            false => Err(Errno::NAMETOOLONG),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes, for a message.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        String::from_utf8_lossy(self.bytes()).fmt(f)
    }
}

/// The end of a path.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // the name lies on the stack, so that looking allocates nothing
pub enum ResolvedPath {
    /// A directory that the path does not name: the root, `x/.`, `x/..`, an empty rest.
    Dir(Ino),
    /// A name in a directory, taken or free.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
        /// The inode that has the name; a link itself, if it was not to be followed.
        found: Option<(Ino, FileType)>,
        /// True if a slash follows: then only a directory will do.
        slash: bool,
    },
    /// A name that only the directory has which an elevated one covers, not a directory's.
    Below {
        /// The elevated directory.
        parent: Ino,
        /// The name.
        name: Name,
        /// The file's absolute path of the kernel's.
        path: Vec<u8>,
    },
    /// Outside of weir, at this absolute path of the kernel's.
    Outside(Vec<u8>),
}

/// The most times that [`retry_if_gone`] does something.
const TRIES: u32 = 100;

/// Does something to the inode that a path names, and repeats it on ENOENT if `gone` then holds the
/// inode that is gone: another inode may have the name now, as after a rename over it, or a server
/// that let go of it holds it again when asked. Ends when the same inode was gone three times.
pub fn retry_if_gone<K: PartialEq, T>(
    mut act: impl FnMut(&mut Option<K>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (mut before, mut same) = (None, 0);
    for _ in 0..TRIES {
        let mut gone = None;
        let done = act(&mut gone);
        if done.as_ref().err() != Some(&Errno::NOENT) || gone.is_none() {
            return done;
        }
        same = if gone == before { same + 1 } else { 1 };
        if same == 3 {
            return done;
        }
        before = gone;
    }
    Err(Errno::NOENT)
}

/// The parameters of a walk.
#[derive(Debug)]
pub struct Walk<'a, N> {
    /// The namespace.
    pub names: &'a N,
    /// The directories of the kernel's at which it is seen.
    pub roots: &'a Roots,
    /// The credentials of the caller.
    pub credentials: &'a Credentials,
    /// True if the last component is looked up; else the result is a free name.
    pub to_the_end: bool,
}

impl<N: Names> Walk<'_, N> {
    /// Walks `path` from the directory `start` (a leading slash has no meaning here). With `follow`
    /// a link at the end is followed too.
    pub fn walk(&self, start: Ino, path: &[u8], follow: bool) -> Result<ResolvedPath, Errno> {
        if path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if start != self.names.root() {
            self.check_dir(start)?;
        }
        retry_if_gone(|gone| {
            let mut state = State {
                dir: start,
                path: Cow::Borrowed(path),
                at: 0,
                links: 0,
                gone,
            };
            loop {
                if let Some(resolved) = self.step(&mut state, follow)? {
                    return Ok(resolved);
                }
            }
        })
    }

    fn step(&self, state: &mut State<'_, '_>, follow: bool) -> Result<Option<ResolvedPath>, Errno> {
        let rest = &state.path[state.at..];
        let Some((component, behind)) = split(rest) else {
            return Ok(Some(ResolvedPath::Dir(state.dir)));
        };
        let at = state.path.len() - behind.len();
        match component {
            b"." => {
                self.check_search(state)?;
                state.at = at;
                Ok(None)
            }
            b".." => self.step_up(state, at),
            name => {
                let name = Name::new(name)?;
                self.step_into(state, name, at, follow)
            }
        }
    }

    /// `..`; out of weir above its root.
    fn step_up(&self, state: &mut State<'_, '_>, at: usize) -> Result<Option<ResolvedPath>, Errno> {
        self.check_search(state)?;
        if state.dir == self.names.root() || self.roots.is_elevated_root(state.dir) {
            let above = self.above(state.dir, &state.path[at..]);
            return Ok(self.absolute(state, above));
        }
        let attr = self.names.attr(state.dir)?;
        let attr = state.there(state.dir, attr)?;
        if attr.parent == Ino::NONE {
            return Err(Errno::NOENT);
        }
        (state.dir, state.at) = (attr.parent, at);
        Ok(None)
    }

    /// The path of `behind` (empty, or beginning with a slash) above a root.
    fn above(&self, root: Ino, behind: &[u8]) -> Vec<u8> {
        match (self.roots.prefix_of(root).parent(), behind) {
            (b"/", b"") => b"/".to_vec(),
            (b"/", behind) => behind.to_vec(),
            (parent, behind) => [parent, behind].concat(),
        }
    }

    fn step_into(
        &self,
        state: &mut State<'_, '_>,
        name: Name,
        at: usize,
        follow: bool,
    ) -> Result<Option<ResolvedPath>, Errno> {
        self.check_search(state)?;
        let behind = &state.path[at..];
        let (last, slash) = (split(behind).is_none(), !behind.is_empty());
        if last && !self.to_the_end {
            return Ok(Some(ResolvedPath::Name {
                parent: state.dir,
                name,
                found: None,
                slash,
            }));
        }
        let mut found = self.names.lookup(state.dir, name.bytes())?;
        if found.is_none() {
            match self.names.lookup_below(state.dir, name.bytes())? {
                None => {}
                Some(BelowEntry::Directory(dir)) => found = Some((dir, FileType::Dir)),
                Some(BelowEntry::Link { target, .. }) if follow || slash => {
                    return self.step_along(state, &target, at);
                }
                Some(BelowEntry::Link { path, .. } | BelowEntry::File(path)) if last && !slash => {
                    return Ok(Some(ResolvedPath::Below {
                        parent: state.dir,
                        name,
                        path,
                    }));
                }
                Some(_) => return Err(Errno::NOTDIR),
            }
        }
        match found {
            Some((link, FileType::Symlink)) if follow || slash => self.step_over(state, link, at),
            _ if last => {
                if slash && matches!(found, Some((_, FileType::File))) {
                    return Err(Errno::NOTDIR);
                }
                Ok(Some(ResolvedPath::Name {
                    parent: state.dir,
                    name,
                    found,
                    slash,
                }))
            }
            Some((dir, FileType::Dir)) => {
                (state.dir, state.at) = (dir, at);
                Ok(None)
            }
            Some(_) => Err(Errno::NOTDIR),
            None => Err(Errno::NOENT),
        }
    }

    /// Continues along the target of a link.
    fn step_over(
        &self,
        state: &mut State<'_, '_>,
        link: Ino,
        at: usize,
    ) -> Result<Option<ResolvedPath>, Errno> {
        let mut target = [0; SYMLINK_MAX];
        let len = match self.names.target(link, &mut target) {
            Err(Errno::NOENT) => state.there(link, None)?,
            len => len?,
        };
        self.step_along(state, &target[..len], at)
    }

    /// Continues along this target of a link.
    fn step_along(
        &self,
        state: &mut State<'_, '_>,
        target: &[u8],
        at: usize,
    ) -> Result<Option<ResolvedPath>, Errno> {
        state.links += 1;
        if state.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let path = [target, &state.path[at..]].concat();
        if path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if path.first() == Some(&b'/') {
            return Ok(self.absolute(state, path));
        }
        (state.path, state.at) = (Cow::Owned(path), 0);
        Ok(None)
    }

    /// Continues along an absolute path: ours again, or the kernel's.
    fn absolute(&self, state: &mut State<'_, '_>, path: Vec<u8>) -> Option<ResolvedPath> {
        let Some((tree, rest)) = self.roots.strip(&path) else {
            return Some(ResolvedPath::Outside(path));
        };
        state.at = path.len() - rest.len();
        state.dir = tree.root(self.names.root());
        state.path = Cow::Owned(path);
        None
    }

    fn check_dir(&self, dir: Ino) -> Result<(), Errno> {
        let guard = self.names.passage(dir)?.ok_or(Errno::NOENT)?;
        guard.is_of_dir().then_some(()).ok_or(Errno::NOTDIR)
    }

    fn check_search(&self, state: &mut State<'_, '_>) -> Result<(), Errno> {
        if self.credentials.uid == 0 {
            return Ok(());
        }
        let guard = self.names.passage(state.dir)?;
        let guard = state.there(state.dir, guard)?;
        self.credentials.check(guard, EXECUTE)
    }
}

struct State<'p, 'g> {
    dir: Ino,
    path: Cow<'p, [u8]>,
    /// The offset in the path of the next component.
    at: usize,
    links: u32,
    /// See [`retry_if_gone`].
    gone: &'g mut Option<Ino>,
}

impl State<'_, '_> {
    /// Returns `found` of an inode. ENOENT: the inode is gone; `gone` is set to it.
    fn there<T>(&mut self, ino: Ino, found: Option<T>) -> Result<T, Errno> {
        if found.is_none() {
            *self.gone = Some(ino);
        }
        found.ok_or(Errno::NOENT)
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
