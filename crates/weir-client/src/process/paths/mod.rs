//! From the arguments of a call (descriptor, current directory and path) to an entry, and from an entry to
//! its path.
//!
//! | file | subject |
//! | --- | --- |
//! | this one | paths by their text |
//! | `magic` | paths by links of /proc |
//! | `entrance` | paths that lead into an elevated tree by links outside of it |
//! | `readlink` | paths of entries: readlink, realpath |

mod entrance;
mod magic;
mod readlink;

use std::borrow::Cow;

use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::types::Ino;

use super::current_dir::{kernel_cwd, CurrentDir};
use super::first_call::FirstCall;
use super::inodes::check_not_gone;
use super::inodes::InodeOperations;
use super::instance::Instance;
use super::outcome::{done, ours};
use super::server_link::ServerLink;
use super::table::GONE;
use super::user::ProcessUser;
use super::{Outcome, ProcessState};
use crate::errno::of_open;
use crate::kernel::{path_of, Fd, AT_FDCWD};
use crate::path::walk::{retry_if_gone, Names};
use crate::path::{Name, ResolvedPath, Walk};

/// A file that exists.
#[derive(Debug)]
pub enum ResolvedFile {
    /// An inode of weir's.
    Inode(Ino, FileType),
    /// A file of the kernel's, at this absolute path.
    Outside(Vec<u8>),
}

/// A name in a directory, to be made or removed.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // the name lies on the stack, so that looking allocates nothing
pub enum NameInParent {
    /// A name of weir's.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
        /// The inode that has the name.
        found: Option<(Ino, FileType)>,
        /// True if a slash follows it.
        slash: bool,
    },
    /// A directory that the path does not name: the root, `x/.`, `x/..`.
    Dir,
    /// A name that only the directory of the PFS has which an elevated one covers; not a directory's.
    Below {
        /// The elevated directory.
        parent: Ino,
        /// The name.
        name: Name,
        /// The file's path of the kernel's.
        path: Vec<u8>,
        /// True if a slash follows the name.
        slash: bool,
    },
    /// A file of the kernel's.
    Outside(Vec<u8>),
}

impl NameInParent {
    /// The directory of weir's that the name is in.
    pub(super) fn parent(&self) -> Option<Ino> {
        match self {
            NameInParent::Name { parent, .. } | NameInParent::Below { parent, .. } => Some(*parent),
            NameInParent::Dir | NameInParent::Outside(_) => None,
        }
    }
}

/// The longest path, with its NUL, bytes.
const PATH_MAX: usize = 4096;
/// The greatest number of links of /proc on a path.
const MAX_LINKS: u32 = 40;

/// The look-up of paths. It may touch the current directory, the user, inodes and the way to the server, and
/// has handles of descriptors by the first call. It makes no change that programs see.
#[derive(Debug)]
pub struct PathLookup {
    first_call: FirstCall,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    cwd: &'static CurrentDir,
    inodes: InodeOperations,
}

impl PathLookup {
    pub(super) const fn over(state: &'static ProcessState) -> PathLookup {
        PathLookup {
            first_call: FirstCall::over(state),
            server: &state.server,
            user: &state.user,
            cwd: &state.cwd,
            inodes: InodeOperations::over(state),
        }
    }

    /// The directory at which a path of weir's begins, and the part of the path to walk from there.
    fn begin<'p>(&self, dirfd: Fd, path: &'p [u8]) -> Outcome<(Ino, Cow<'p, [u8]>)> {
        let instance = self.first_call.instance();
        if path.first() == Some(&b'/') {
            let instance = instance?;
            let Some((tree, rest)) = instance.roots.strip(path) else {
                return self.begin_behind_magic_link(dirfd, path);
            };
            if path.len() >= PATH_MAX {
                return Some(Err(Errno::NAMETOOLONG));
            }
            let root = tree.root(done!(self.inodes.view()).root());
            return Some(Ok((root, Cow::Borrowed(rest))));
        }
        let start = match dirfd {
            AT_FDCWD => match self.cwd.inode() {
                None => {
                    let behind = self.begin_behind_magic_link(dirfd, path);
                    return behind.or_else(|| self.begin_in_kernel_cwd(instance?, path));
                }
                Some(cwd) => done!(cwd),
            },
            fd => match self.first_call.handle(fd) {
                Some(handle) if handle.has(GONE) => return Some(Err(Errno::IO)),
                Some(handle) => handle.ino(),
                None => {
                    let behind = self.begin_behind_magic_link(dirfd, path);
                    return behind.or_else(|| self.begin_in_kernel_dir(instance?, fd, path));
                }
            },
        };
        if path.is_empty() {
            return Some(Err(Errno::NOENT));
        }
        Some(Ok((start, Cow::Borrowed(path))))
    }

    /// A path through a link of /proc to a file of weir's.
    fn begin_behind_magic_link<'p>(
        &self,
        dirfd: Fd,
        path: &'p [u8],
    ) -> Outcome<(Ino, Cow<'p, [u8]>)> {
        let (ino, rest) = self.through_magic_link(dirfd, path)?;
        if rest.is_empty() {
            return None;
        }
        Some(match ino {
            Ino::NONE => Err(Errno::NOENT),
            ino => Ok((ino, rest)),
        })
    }

    /// A relative path from a directory of the kernel's: it is ours only if the directory is one
    /// above a tree's, or in an elevated one, or through `..`.
    fn begin_in_kernel_cwd<'p>(
        &self,
        instance: &Instance,
        path: &'p [u8],
    ) -> Outcome<(Ino, Cow<'p, [u8]>)> {
        if !self.cwd.may_lead_to(&instance.roots) && !path.starts_with(b"..") {
            return None;
        }
        self.begin_by_full_path(instance, &kernel_cwd()?, path)
    }

    /// A path relative to a descriptor of the kernel's: some programs walk from `/` component by
    /// component. It can lead to the mount only if it contains the mount's own name, which is the
    /// only check for others.
    fn begin_in_kernel_dir<'p>(
        &self,
        instance: &Instance,
        fd: Fd,
        path: &'p [u8],
    ) -> Outcome<(Ino, Cow<'p, [u8]>)> {
        let mut prefixes = instance.roots.prefixes();
        let is_mentioned = prefixes.any(|prefix| {
            let name = prefix.bytes().rsplit(|b| *b == b'/').next();
            path.split(|b| *b == b'/').any(|part| Some(part) == name)
        });
        if !is_mentioned {
            return None;
        }
        let dir = path_of(fd).ok()?;
        self.begin_by_full_path(instance, dir.as_bytes(), path)
    }

    fn begin_by_full_path<'p>(
        &self,
        instance: &Instance,
        dir: &[u8],
        path: &[u8],
    ) -> Outcome<(Ino, Cow<'p, [u8]>)> {
        let full = [dir, b"/", path].concat();
        let (tree, rest) = instance.roots.strip(&full)?;
        if path.is_empty() {
            return Some(Err(Errno::NOENT));
        }
        let root = tree.root(done!(self.inodes.view()).root());
        Some(Ok((root, Cow::Owned(rest.to_vec()))))
    }

    /// The end of a path, if it is weir's.
    pub(super) fn resolve(&self, dirfd: Fd, path: &[u8], follow: bool) -> Outcome<ResolvedPath> {
        self.walk(dirfd, path, follow, true)
    }

    /// If there are several servers: the directory and the last name of a path, so that the name's
    /// home can be asked to do all the work. `None`: the path must be walked step by step.
    pub(super) fn name_to_ask_for(&self, dirfd: Fd, path: &[u8]) -> Outcome<Option<(Ino, Name)>> {
        // Without the tables it is not known yet if the path is weir's.
        let node = self
            .first_call
            .instance()
            .and_then(|_| self.server.node().ok());
        if node.is_none_or(|node| node.several().is_none()) {
            return Some(Ok(None));
        }
        Some(match ours!(self.last_name(dirfd, path)) {
            ResolvedPath::Name {
                parent,
                name,
                slash: false,
                ..
            } => match self.inodes.covered_by(parent) {
                Ok(covered) => Ok(covered.is_none().then_some((parent, name))),
                Err(error) => Err(error),
            },
            _ => Ok(None),
        })
    }

    /// The last name of a path, without a check if it is taken.
    fn last_name(&self, dirfd: Fd, path: &[u8]) -> Outcome<ResolvedPath> {
        self.walk(dirfd, path, false, false)
    }

    fn walk(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
        to_the_end: bool,
    ) -> Outcome<ResolvedPath> {
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off_by_path(path);
        let begun = self.begin(dirfd, path).or_else(|| {
            let entrance = self.find_entrance(dirfd, path, follow)?;
            Some(entrance.map(|(root, rest)| (root, Cow::Owned(rest))))
        });
        let (start, rest) = ours!(begun);
        let instance = self.server.connection.instance()?;
        let names = done!(self.inodes.union());
        let walk = Walk {
            names: &names,
            roots: &instance.roots,
            credentials: self.user.credentials(),
            to_the_end,
        };
        let mut resolved = done!(walk.walk(start, &rest, follow));
        for _ in 0..MAX_LINKS {
            let ResolvedPath::Outside(path) = &resolved else {
                return Some(Ok(resolved));
            };
            // Out of weir, by a link or `..`, to a link of /proc, or to one into an elevated tree.
            let (start, rest) = match self.through_magic_link(AT_FDCWD, path) {
                Some((_, rest)) if rest.is_empty() => return Some(Ok(resolved)),
                Some((start, rest)) => {
                    done!(check_not_gone(start));
                    (start, rest)
                }
                None => match self.find_entrance(AT_FDCWD, path, follow) {
                    None => return Some(Ok(resolved)),
                    Some(entrance) => {
                        let (root, rest) = done!(entrance);
                        (root, Cow::Owned(rest))
                    }
                },
            };
            resolved = done!(walk.walk(start, &rest, follow));
        }
        Some(Err(Errno::LOOP))
    }

    /// True if a path is weir's: for wrappers that do more than one call.
    pub fn is_our_path(&self, dirfd: Fd, path: &[u8]) -> bool {
        if self.magic_link_target(dirfd, path).is_some() {
            return true;
        }
        self.resolve(dirfd, path, true).is_some()
    }

    /// The existing file that a path names. With `empty`, an empty path means the descriptor itself
    /// (AT_EMPTY_PATH).
    pub(super) fn resolve_existing(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
        empty: bool,
    ) -> Outcome<ResolvedFile> {
        if path.is_empty() && empty {
            return self.existing_fd(dirfd);
        }
        if let Some(magic) = self.magic_link_target(dirfd, path).filter(|_| follow) {
            return Some(self.resolved_inode(magic));
        }
        let found = match ours!(self.resolve(dirfd, path, follow)) {
            ResolvedPath::Dir(dir) => Ok(ResolvedFile::Inode(dir, FileType::Dir)),
            ResolvedPath::Below { path, .. } => Ok(ResolvedFile::Outside(path)),
            ResolvedPath::Outside(path) => {
                match self.magic_link_target(AT_FDCWD, &path).filter(|_| follow) {
                    Some(magic) => self.resolved_inode(magic),
                    None => Ok(ResolvedFile::Outside(path)),
                }
            }
            ResolvedPath::Name { found, .. } => found
                .map(|(ino, kind)| ResolvedFile::Inode(ino, kind))
                .ok_or(Errno::NOENT),
        };
        Some(found)
    }

    /// As [`PathLookup::resolve_existing`], and does something to the file, which returns ENOENT if it is
    /// gone; see [`retry_if_gone`].
    pub(super) fn with_existing<T>(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
        empty: bool,
        mut act: impl FnMut(ResolvedFile) -> Result<T, Errno>,
    ) -> Outcome<T> {
        let once = |gone: &mut Option<Ino>| {
            let found = ours!(self.resolve_existing(dirfd, path, follow, empty));
            if let ResolvedFile::Inode(ino, _) = found {
                *gone = Some(ino);
            }
            Some(act(found))
        };
        retry_ours_if_gone(once)
    }

    fn existing_fd(&self, dirfd: Fd) -> Outcome<ResolvedFile> {
        let ino = match dirfd {
            AT_FDCWD => match self.cwd.inode() {
                Some(cwd) => done!(cwd),
                // The kernel's may be the directory of the PFS that one of a tree covers.
                None => return self.resolve_existing(dirfd, b".", true, false),
            },
            fd => self.first_call.handle(fd)?.ino(),
        };
        Some(of_open(self.resolved_inode(ino)))
    }

    fn resolved_inode(&self, ino: Ino) -> Result<ResolvedFile, Errno> {
        Ok(ResolvedFile::Inode(ino, self.inodes.attr(ino)?.file_type()))
    }

    /// The last name of a path, for making or removing it.
    pub(super) fn resolve_parent(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
    ) -> Outcome<NameInParent> {
        // A slash behind the last name does not follow a link of that name.
        let bare = match path.iter().rposition(|byte| *byte != b'/') {
            Some(last) if !follow => &path[..=last],
            _ => path,
        };
        let slash_behind = bare.len() < path.len();
        let name = match ours!(self.resolve(dirfd, bare, follow)) {
            ResolvedPath::Dir(_) => NameInParent::Dir,
            ResolvedPath::Outside(path) => NameInParent::Outside(path),
            ResolvedPath::Below { parent, name, path } => NameInParent::Below {
                parent,
                name,
                path,
                slash: slash_behind,
            },
            ResolvedPath::Name {
                parent,
                name,
                found,
                slash,
            } => NameInParent::Name {
                parent,
                name,
                found,
                slash: slash || slash_behind,
            },
        };
        Some(Ok(name))
    }
}

/// As [`retry_if_gone`], for a path that may not be weir's.
pub(super) fn retry_ours_if_gone<K: PartialEq, T>(
    mut act: impl FnMut(&mut Option<K>) -> Outcome<T>,
) -> Outcome<T> {
    retry_if_gone(|gone| act(gone).transpose()).transpose()
}
