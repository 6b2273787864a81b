//! Names: making, removing, renaming, linking.

use rustix::fs::{AtFlags, Mode, CWD};
use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::proto::{Create, Link, Mkdir, Rename, Rmdir, Symlink, Unlink};
use weir_core::types::Ino;

use super::attributes::EMPTY_PATH;
use super::elevated::{FileTakeUp, LowerEntry, RenamedEntry};
use super::inodes::InodeOperations;
use super::outcome::{done, ours};
use super::paths::{retry_ours_if_gone, NameInParent, PathLookup, ResolvedFile};
use super::server_link::ServerLink;
use super::user::ProcessUser;
use super::{Outcome, ProcessState};
use crate::kernel::Fd;
use crate::operation;
use crate::path::walk::Names;
use crate::path::{Name, ResolvedPath};

/// `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const AT_REMOVEDIR: i32 = 0x200;
const AT_SYMLINK_FOLLOW: i32 = 0x400;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const S_ISVTX: u32 = 0o1000;

/// The calls that make, remove, rename and link names. They may touch the look-up of paths, files of the PFS that
/// they take up, the user, inodes and the server.
#[derive(Debug)]
pub struct NameCalls {
    paths: PathLookup,
    take_up: FileTakeUp,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl NameCalls {
    pub(super) const fn over(state: &'static ProcessState) -> NameCalls {
        NameCalls {
            paths: PathLookup::over(state),
            take_up: FileTakeUp::over(state),
            server: &state.server,
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// mkdirat(2).
    pub fn mkdirat(&self, dirfd: Fd, path: &[u8], mode: u32) -> Outcome<()> {
        let _call = operation::begin();
        let (parent, name) = match ours!(self.paths.resolve_parent(dirfd, path, false)) {
            NameInParent::Outside(path) => {
                let mode = Mode::from_bits_truncate(mode);
                return Some(rustix::fs::mkdir(path, mode));
            }
            NameInParent::Dir
            | NameInParent::Below { .. }
            | NameInParent::Name { found: Some(_), .. } => return Some(Err(Errno::EXIST)),
            NameInParent::Name { parent, name, .. } => (parent, name),
        };
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off(name.bytes());
        if done!(self.inodes.make_directory_below(parent, &name, mode)).is_some() {
            return Some(Ok(()));
        }
        done!(self.inodes.check_parent(parent));
        let op = Mkdir {
            parent,
            name: name.to_vec(),
            mode: self.user.apply_umask(mode & (0o777 | S_ISVTX)),
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
        };
        Some(done!(self.server.session()).call(op).map(|_| ()))
    }

    /// mknodat(2): no devices.
    pub fn mknodat(&self, dirfd: Fd, path: &[u8], mode: u32, _device: u64) -> Outcome<()> {
        let _call = operation::begin();
        let (parent, name) = match ours!(self.paths.resolve_parent(dirfd, path, false)) {
            NameInParent::Outside(_) => return Some(self.server.refuse("mknod")),
            NameInParent::Dir
            | NameInParent::Below { .. }
            | NameInParent::Name { found: Some(_), .. } => return Some(Err(Errno::EXIST)),
            NameInParent::Name { slash: true, .. } => return Some(Err(Errno::NOENT)),
            NameInParent::Name { parent, name, .. } => (parent, name),
        };
        match mode & S_IFMT {
            0 | S_IFREG => {}
            S_IFDIR => return Some(Err(Errno::PERM)),
            S_IFIFO => {
                let kind = FileType::Fifo;
                return Some(
                    self.inodes
                        .make_special(parent, &name, kind, mode)
                        .map(drop),
                );
            }
            S_IFSOCK => {
                let kind = FileType::Socket;
                return Some(
                    self.inodes
                        .make_special(parent, &name, kind, mode)
                        .map(drop),
                );
            }
            S_IFCHR | S_IFBLK => {
                self.server.count_refusal("mknod");
                return Some(Err(Errno::PERM));
            }
            _ => return Some(Err(Errno::INVAL)),
        }
        done!(self.inodes.check_parent(parent));
        let op = Create {
            parent,
            name: name.to_vec(),
            mode: self.user.apply_umask(mode & 0o7777),
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
            exclusive: true,
            attach: false,
        };
        Some(done!(self.server.session()).call(op).map(|_| ()))
    }

    /// unlinkat(2); rmdir(2) is AT_REMOVEDIR.
    pub fn unlinkat(&self, dirfd: Fd, path: &[u8], flags: i32) -> Outcome<()> {
        let _call = operation::begin();
        if flags & !AT_REMOVEDIR != 0 {
            let _ = ours!(self.paths.resolve_parent(dirfd, path, false));
            return Some(Err(Errno::INVAL));
        }
        let dir = flags & AT_REMOVEDIR != 0;
        if let Some(removed) = ours!(self.remove_at_once(dirfd, path, dir)) {
            return Some(removed);
        }
        retry_ours_if_gone(|gone| {
            Some(match ours!(self.paths.resolve_parent(dirfd, path, false)) {
                NameInParent::Outside(path) => {
                    let flags = if dir {
                        AtFlags::REMOVEDIR
                    } else {
                        AtFlags::empty()
                    };
                    rustix::fs::unlinkat(CWD, path, flags)
                }
                NameInParent::Dir => Err(last_dot(path, dir)),
                NameInParent::Below { slash, .. } if dir || slash => Err(Errno::NOTDIR),
                NameInParent::Below {
                    parent,
                    name,
                    path: below,
                    ..
                } => match self.inodes.remove_below(parent, &name, &below) {
                    Ok(false) => return self.unlinkat(dirfd, path, flags),
                    removed => removed.map(drop),
                },
                NameInParent::Name { found: None, .. } => Err(Errno::NOENT),
                NameInParent::Name {
                    parent,
                    name,
                    found: Some((ino, kind)),
                    slash,
                } => {
                    *gone = Some(ino);
                    self.remove(parent, &name, ino, kind, slash, dir)
                }
            })
        })
    }

    fn remove(
        &self,
        parent: Ino,
        name: &Name,
        ino: Ino,
        kind: FileType,
        slash: bool,
        dir: bool,
    ) -> Result<(), Errno> {
        match (dir, kind == FileType::Dir) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (false, false) if slash => return Err(Errno::NOTDIR),
            _ => {}
        }
        self.inodes.check_parent(parent)?;
        self.inodes.check_sticky(parent, ino)?;
        if dir {
            self.inodes.check_empty_below(ino)?;
        }
        self.inodes.white_out(parent, name.bytes(), Some(kind))?;
        self.inodes.remove_name(parent, name, dir)
    }

    /// If there are several servers, asks the name's home, once, to remove it: that server sees the
    /// inode. `None`: the inode matters here too, and must be looked at first.
    fn remove_at_once(
        &self,
        dirfd: Fd,
        path: &[u8],
        dir: bool,
    ) -> Outcome<Option<Result<(), Errno>>> {
        let Some((parent, name)) = ours!(self.paths.name_to_ask_for(dirfd, path)) else {
            return Some(Ok(None));
        };
        let may = self.user.credentials().uid == 0
            || self.inodes.check_parent(parent).is_ok() && done!(self.inodes.removes_any(parent));
        Some(Ok(may.then(|| self.inodes.remove_name(parent, &name, dir))))
    }

    /// renameat2(2).
    pub fn renameat2(
        &self,
        old_dirfd: Fd,
        old: &[u8],
        new_dirfd: Fd,
        new: &[u8],
        flags: u32,
    ) -> Outcome<()> {
        let _call = operation::begin();
        retry_ours_if_gone(|gone| self.rename_once(old_dirfd, old, new_dirfd, new, flags, gone))
    }

    fn rename_once(
        &self,
        old_dirfd: Fd,
        old: &[u8],
        new_dirfd: Fd,
        new: &[u8],
        flags: u32,
        gone: &mut Option<(Ino, Option<Ino>)>,
    ) -> Outcome<()> {
        let from = self.paths.resolve_parent(old_dirfd, old, false);
        if let Some(Err(error)) = from {
            return Some(Err(error));
        }
        let to = self.paths.resolve_parent(new_dirfd, new, false);
        let (from, to) = match (from, to) {
            (None, None) => return None,
            (Some(Err(error)), _) | (_, Some(Err(error))) => return Some(Err(error)),
            // One is weir's, the other is not: two file systems.
            (None, Some(Ok(_))) | (Some(Ok(_)), None) => return Some(Err(Errno::XDEV)),
            (Some(Ok(from)), Some(Ok(to))) => (from, to),
        };
        if flags > 2 {
            return Some(Err(Errno::INVAL));
        }
        match (from, to) {
            (NameInParent::Outside(from), NameInParent::Outside(to)) => {
                let flags = rustix::fs::RenameFlags::from_bits_retain(flags);
                Some(rustix::fs::renameat_with(CWD, from, CWD, to, flags))
            }
            (NameInParent::Outside(_), _) | (_, NameInParent::Outside(_)) => Some(Err(Errno::XDEV)),
            (NameInParent::Dir, _) | (_, NameInParent::Dir) => Some(Err(Errno::BUSY)),
            (NameInParent::Name { found: None, .. }, _) => Some(Err(Errno::NOENT)),
            (_, NameInParent::Below { .. }) if flags == NOREPLACE => Some(Err(Errno::EXIST)),
            (NameInParent::Below { slash: true, .. }, _)
            | (_, NameInParent::Below { slash: true, .. }) => Some(Err(Errno::NOTDIR)),
            (
                NameInParent::Below {
                    parent, name, path, ..
                },
                to,
            ) => {
                done!(self
                    .inodes
                    .check_same_tree(parent, to.parent().unwrap_or(parent)));
                done!(self.inodes.check_removal_below(parent, &path));
                if matches!(to, NameInParent::Name { found: Some(_), .. }) && flags == NOREPLACE {
                    return Some(Err(Errno::EXIST));
                }
                match &to {
                    NameInParent::Below { parent, path, .. } => {
                        done!(self.inodes.check_removal_below(*parent, path));
                    }
                    to => {
                        if let Some(dir) = to.parent() {
                            done!(self.inodes.check_parent(dir));
                        }
                    }
                }
                let file = LowerEntry {
                    parent,
                    name: &name,
                    path: &path,
                };
                if done!(self.inodes.rename_below(&file, &to, flags)) {
                    return Some(Ok(()));
                }
                done!(self.take_up.take_up_file(parent, &name, &path));
                self.rename_once(old_dirfd, old, new_dirfd, new, flags, gone)
            }
            (
                _,
                NameInParent::Below {
                    parent, name, path, ..
                },
            ) if flags == EXCHANGE => {
                done!(self.inodes.check_removal_below(parent, &path));
                done!(self.take_up.take_up_file(parent, &name, &path));
                self.rename_once(old_dirfd, old, new_dirfd, new, flags, gone)
            }
            (
                NameInParent::Name {
                    found: Some((dir, FileType::Dir)),
                    ..
                },
                NameInParent::Below { parent, .. },
            ) => {
                done!(self.inodes.check_not_below(parent, dir));
                Some(Err(Errno::NOTDIR))
            }
            (
                from,
                NameInParent::Below {
                    parent, name, path, ..
                },
            ) => {
                done!(self.inodes.check_removal_below(parent, &path));
                // The file of the PFS is replaced when this one is moved there.
                if !done!(self.inodes.note_replaced(parent, &name)) {
                    return self.rename_once(old_dirfd, old, new_dirfd, new, flags, gone);
                }
                let to = NameInParent::Name {
                    parent,
                    name,
                    found: None,
                    slash: false,
                };
                self.rename_in_trees(from, to, flags, gone)
            }
            (from, to) => self.rename_in_trees(from, to, flags, gone),
        }
    }

    /// Renames a name of a tree.
    fn rename_in_trees(
        &self,
        from: NameInParent,
        to: NameInParent,
        flags: u32,
        gone: &mut Option<(Ino, Option<Ino>)>,
    ) -> Outcome<()> {
        match (from, to) {
            (
                NameInParent::Name {
                    parent,
                    name,
                    found: Some(source),
                    slash,
                },
                NameInParent::Name {
                    parent: new_parent,
                    name: new_name,
                    found,
                    slash: new_slash,
                },
            ) => {
                *gone = Some((source.0, found.map(|(target, _)| target)));
                let kind = source.1;
                if (slash || new_slash) && kind != FileType::Dir {
                    return Some(Err(Errno::NOTDIR));
                }
                done!(self.inodes.check_same_tree(parent, new_parent));
                done!(self.inodes.check_parent(parent));
                done!(self.inodes.check_parent(new_parent));
                done!(self.inodes.check_sticky(parent, source.0));
                if let Some((target, _)) = found {
                    done!(self.inodes.check_sticky(new_parent, target));
                }
                done!(self.inodes.prepare_rename(
                    &RenamedEntry {
                        parent,
                        name: &name,
                        ino: source.0,
                        kind: source.1,
                    },
                    new_parent,
                    found.map(|(target, _)| target),
                    flags == EXCHANGE,
                ));
                Some(done!(self.server.session()).call(Rename {
                    parent,
                    name: name.to_vec(),
                    new_parent,
                    new_name: new_name.to_vec(),
                    flags,
                }))
            }
            // The caller has dealt with all others.
            _ => Some(Err(Errno::INVAL)),
        }
    }

    /// linkat(2).
    pub fn linkat(
        &self,
        old_dirfd: Fd,
        old: &[u8],
        new_dirfd: Fd,
        new: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        let _call = operation::begin();
        let (follow, empty) = (flags & AT_SYMLINK_FOLLOW != 0, flags & EMPTY_PATH != 0);
        if flags & !(AT_SYMLINK_FOLLOW | EMPTY_PATH) != 0 {
            let _ = ours!(self.paths.resolve_parent(new_dirfd, new, false));
            return Some(Err(Errno::INVAL));
        }
        if self.inodes.elevates() {
            if let Some(Ok(ResolvedPath::Below { parent, name, path })) =
                self.paths.resolve(old_dirfd, old, follow)
            {
                // Only for a link that can be made.
                let to = self.paths.resolve_parent(new_dirfd, new, false);
                match done!(to.unwrap_or(Err(Errno::XDEV))) {
                    NameInParent::Name {
                        parent: dir,
                        found: None,
                        slash: false,
                        ..
                    } => {
                        done!(self.inodes.check_same_tree(parent, dir));
                        done!(self.inodes.check_parent(dir));
                        done!(self.take_up.take_up_file(parent, &name, &path));
                    }
                    NameInParent::Outside(_) => return Some(Err(Errno::XDEV)),
                    NameInParent::Name { found: None, .. } => return Some(Err(Errno::NOENT)),
                    _ => return Some(Err(Errno::EXIST)),
                }
            }
        }
        let linked = self
            .paths
            .with_existing(old_dirfd, old, follow, empty, |from| {
                let to = self
                    .paths
                    .resolve_parent(new_dirfd, new, false)
                    .ok_or(Errno::XDEV)??;
                self.link(from, to)
            });
        // The old name is not weir's. If the new one is, they are on two file systems.
        linked.or_else(|| {
            Some(
                self.paths
                    .resolve_parent(new_dirfd, new, false)?
                    .and(Err(Errno::XDEV)),
            )
        })
    }

    fn link(&self, from: ResolvedFile, to: NameInParent) -> Result<(), Errno> {
        let (ino, parent, name) = match (from, to) {
            (ResolvedFile::Outside(from), NameInParent::Outside(to)) => {
                return rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())
            }
            (ResolvedFile::Outside(_), _) | (_, NameInParent::Outside(_)) => {
                return Err(Errno::XDEV)
            }
            (
                _,
                NameInParent::Dir
                | NameInParent::Below { .. }
                | NameInParent::Name { found: Some(_), .. },
            ) => return Err(Errno::EXIST),
            (_, NameInParent::Name { slash: true, .. }) => return Err(Errno::NOENT),
            (ResolvedFile::Inode(_, FileType::Dir), _) => return Err(Errno::PERM),
            (ResolvedFile::Inode(ino, _), NameInParent::Name { parent, name, .. }) => {
                (ino, parent, name)
            }
        };
        self.inodes.check_parent(parent)?;
        self.inodes.check_same_tree_as_file(ino, parent)?;
        let name = name.to_vec();
        self.server.session()?.call(Link { ino, parent, name })
    }

    /// symlinkat(2).
    pub fn symlinkat(&self, target: &[u8], dirfd: Fd, path: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        // Linux looks at the target before the path.
        let refusal = match target.len() {
            0 => Some(Errno::NOENT),
            length if length > weir_core::names::SYMLINK_MAX => Some(Errno::NAMETOOLONG),
            _ => None,
        };
        if let Some(errno) = refusal {
            return self.paths.is_our_path(dirfd, path).then_some(Err(errno));
        }
        let (parent, name) = match ours!(self.paths.resolve_parent(dirfd, path, false)) {
            NameInParent::Outside(path) => return Some(rustix::fs::symlink(target, path)),
            NameInParent::Dir
            | NameInParent::Below { .. }
            | NameInParent::Name { found: Some(_), .. } => return Some(Err(Errno::EXIST)),
            NameInParent::Name { slash: true, .. } => return Some(Err(Errno::NOENT)),
            NameInParent::Name { parent, name, .. } => (parent, name),
        };
        done!(self.inodes.check_parent(parent));
        let op = Symlink {
            parent,
            name: name.to_vec(),
            target: target.to_vec(),
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
        };
        Some(done!(self.server.session()).call(op).map(|_| ()))
    }
}

impl InodeOperations {
    fn remove_name(self, parent: Ino, name: &Name, dir: bool) -> Result<(), Errno> {
        let name = name.to_vec();
        let session = self.server.session()?;
        if dir {
            session.call(Rmdir { parent, name })
        } else {
            session.call(Unlink { parent, name })
        }
    }

    /// In a directory with the sticky bit, only owners remove names.
    fn check_sticky(self, parent: Ino, ino: Ino) -> Result<(), Errno> {
        if self.removes_any(parent)? || self.attr(ino)?.uid == self.user.credentials().uid {
            return Ok(());
        }
        Err(Errno::PERM)
    }

    /// True if the sticky bit keeps this process from no name of a directory.
    pub(super) fn removes_any(self, parent: Ino) -> Result<bool, Errno> {
        let uid = self.user.credentials().uid;
        let dir = self.view()?.passage(parent)?.ok_or(Errno::NOENT)?;
        Ok(uid == 0 || dir.mode & S_ISVTX == 0 || dir.uid == uid)
    }
}

/// The error of removing a directory without a name.
fn last_dot(path: &[u8], dir: bool) -> Errno {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match dir {
        false => Errno::ISDIR,
        true if path.ends_with(b"..") => Errno::NOTEMPTY,
        true if path.ends_with(b".") => Errno::INVAL,
        true => Errno::BUSY,
    }
}
