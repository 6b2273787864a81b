//! Opening and creating.
//!
//! Opening an existing file sends no message: the path is walked in the shared tables, the
//! description comes from the batch that the server lent. After that, one more look checks that the
//! inode lives: the server frees an unnamed inode only after it looked for descriptions of it, so
//! one of the two sees the other.

use rustix::io::Errno;
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use weir_core::names::FileType;
use weir_core::proto::{Create, CreateUnnamed};
use weir_core::types::Ino;

use super::elevated::{FileTakeUp, LowerEntry};
use super::inodes::InodeOperations;
use super::open_flags::{
    writes, O_ACCMODE, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_TMPFILE, O_TRUNC,
};
use super::opener::InodeOpener;
use super::opener::Spare;
use super::outcome::{done, ours};
use super::paths::{NameInParent, PathLookup, ResolvedFile};
use super::user::ProcessUser;
use super::{outside, Outcome, ProcessState};
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;
use crate::path::walk::Names;
use crate::path::{access, Name};
use crate::view::open::Target;

/// The number of times that a create starts over because the name came and went.
const TRIES: u32 = 100;
/// The time by which each wait before the next try is longer, ns.
const STEP_NS: i64 = 10_000;

/// The next step of opening.
enum Way {
    Ours(Target),
    /// In the kernel, at this path.
    Outside(Vec<u8>),
    /// The same, of a file that is not to be made there if it is gone.
    Below(Vec<u8>),
    /// The same, of one that is made there.
    NewBelow(Ino, Box<Name>, Vec<u8>),
}

/// The next step of opening a file of the PFS that is truncated.
enum LowerOpening {
    /// It is not replaced: the kernel truncates it.
    Kernel(Vec<u8>),
    /// A new file of the tree has its name.
    Replaced(Target),
}

/// The calls that open files by path, make them, and cut them. They may touch the look-up of paths, files of the PFS
/// that they take up, the opening of inodes, the user, and inodes.
#[derive(Debug)]
pub struct OpenCalls {
    paths: PathLookup,
    take_up: FileTakeUp,
    opener: InodeOpener,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl OpenCalls {
    pub(super) const fn over(state: &'static ProcessState) -> OpenCalls {
        OpenCalls {
            paths: PathLookup::over(state),
            take_up: FileTakeUp::over(state),
            opener: InodeOpener::over(state),
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// openat(2); `mode` is used if a file is created.
    pub fn openat(&self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
        let _call = operation::begin();
        if flags & O_TMPFILE == O_TMPFILE {
            return self.open_unnamed(dirfd, path, flags, mode);
        }
        if flags & O_CREAT != 0 && flags & O_PATH == 0 {
            if flags & O_DIRECTORY != 0 {
                // EINVAL since Linux 6.4; older kernels ignored one of the two flags.
                return self
                    .paths
                    .is_our_path(dirfd, path)
                    .then_some(Err(Errno::INVAL));
            }
            return self.open_or_create(dirfd, path, flags, mode);
        }
        let follow = flags & O_NOFOLLOW == 0;
        if flags & O_TRUNC != 0 && flags & O_PATH == 0 && self.inodes.elevates() {
            if let Some(Ok(NameInParent::Below {
                parent, name, path, ..
            })) = self.paths.resolve_parent(dirfd, path, follow)
            {
                let spare = Spare::default();
                match done!(self.replace_below(parent, &name, path, flags, &spare)) {
                    Some(LowerOpening::Kernel(path)) => {
                        return Some(outside::open(&path, flags, mode))
                    }
                    Some(LowerOpening::Replaced(target)) => {
                        return Some(self.opener.open_target(&target, flags, &spare))
                    }
                    None => {}
                }
            }
        }
        self.paths
            .with_existing(dirfd, path, follow, false, |found| {
                let found = match writes(flags) {
                    true => self.take_up.prepare_update(dirfd, path, follow, found)?,
                    false => found,
                };
                match found {
                    ResolvedFile::Outside(path) => outside::open(&path, flags, mode),
                    ResolvedFile::Inode(ino, kind @ (FileType::Fifo | FileType::Socket)) => {
                        self.inodes.open_special(ino, kind, flags)
                    }
                    ResolvedFile::Inode(ino, kind) => self.opener.open_target(
                        &Target::existing(ino, kind),
                        flags,
                        &Spare::default(),
                    ),
                }
            })
    }

    /// truncate(2).
    pub fn truncate(&self, path: &[u8], length: i64) -> Outcome<()> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, true, false, |found| {
                let ino = match self.take_up.prepare_update(AT_FDCWD, path, true, found)? {
                    ResolvedFile::Outside(path) => {
                        let file = rustix::fs::open(
                            path,
                            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
                            rustix::fs::Mode::empty(),
                        )?;
                        let length = u64::try_from(length).map_err(|_| Errno::INVAL)?;
                        return rustix::fs::ftruncate(file, length);
                    }
                    ResolvedFile::Inode(_, FileType::Dir) => return Err(Errno::ISDIR),
                    ResolvedFile::Inode(ino, FileType::File) => ino,
                    ResolvedFile::Inode(..) => return Err(Errno::INVAL),
                };
                if !self
                    .user
                    .credentials()
                    .may(&self.inodes.attr(ino)?, access::WRITE)
                {
                    return Err(Errno::ACCESS);
                }
                u64::try_from(length).map_err(|_| Errno::INVAL)?;
                self.inodes.check_not_running(ino)?;
                let view = self.inodes.view()?;
                view.update(ino, || self.inodes.set_size(ino, length))
            })
    }

    /// Opens a new file without a name (`O_TMPFILE`), as if in the directory of this path.
    fn open_unnamed(&self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
        let spare = Spare::default();
        self.paths
            .with_existing(dirfd, path, flags & O_NOFOLLOW == 0, false, |found| {
                let dir = match found {
                    ResolvedFile::Outside(path) => return outside::open(&path, flags, mode),
                    _ if flags & (O_CREAT | O_PATH) != 0 || !writes(flags & O_ACCMODE) => {
                        return Err(Errno::INVAL)
                    }
                    ResolvedFile::Inode(dir, FileType::Dir) => dir,
                    ResolvedFile::Inode(..) => return Err(Errno::NOTDIR),
                };
                self.inodes.check_parent(dir)?;
                self.opener.reserve(&spare, flags)?;
                let who = self.user.credentials();
                let made = self.inodes.view()?.create_unnamed(CreateUnnamed {
                    dir,
                    mode: self.user.apply_umask(mode & 0o7777),
                    uid: who.uid,
                    gid: who.gid,
                    linkable: flags & O_EXCL == 0,
                });
                self.opener.open_target(&made?, flags & !O_TMPFILE, &spare)
            })
    }

    /// Opens the file, or makes it, even if it disappears between being found and being opened.
    fn open_or_create(&self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
        let spare = Spare::default();
        for tries in 0..TRIES {
            let target = match ours!(self.create_target(dirfd, path, flags, mode, &spare)) {
                Way::Outside(path) => return Some(outside::open(&path, flags, mode)),
                Way::Below(path) => match outside::open(&path, flags & !O_CREAT, mode) {
                    // Removed, or replaced, since it was found.
                    Err(Errno::NOENT) => continue,
                    opened => return Some(opened),
                },
                Way::NewBelow(parent, name, path) => {
                    let file = LowerEntry {
                        parent,
                        name: &name,
                        path: &path,
                    };
                    match done!(self.inodes.create_below(&file, flags, mode)) {
                        Some(fd) => return Some(Ok(fd)),
                        // Made in the tree, or removed, since it was looked for.
                        None => continue,
                    }
                }
                Way::Ours(target) => target,
            };
            let opened = match target.kind {
                FileType::Fifo | FileType::Socket => {
                    self.inodes.open_special(target.ino, target.kind, flags)
                }
                _ => self.opener.open_target(&target, flags, &spare),
            };
            match opened {
                // Also a file that this call made, and that has lost its name.
                Err(Errno::NOENT) => {}
                opened => return Some(opened),
            }
            // Another process may remove each one in step with this.
            let _ = nanosleep(&Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(tries) * STEP_NS,
            });
        }
        Some(Err(Errno::IO))
    }

    /// Finds or makes the file.
    fn create_target(
        &self,
        dirfd: Fd,
        path: &[u8],
        flags: i32,
        mode: u32,
        spare: &Spare,
    ) -> Outcome<Way> {
        let exclusive = flags & O_EXCL != 0;
        let follow = !exclusive && flags & O_NOFOLLOW == 0;
        let of_magic = |ino| {
            let attr = self.inodes.attr(ino)?;
            Ok(Way::Ours(Target::existing(ino, attr.file_type())))
        };
        if let Some(ino) = self.paths.magic_link_target(dirfd, path).filter(|_| follow) {
            return Some(of_magic(ino));
        }
        if path.ends_with(b"/") {
            // Like Linux, which does not look for the last name then.
            let parent = ours!(self.paths.resolve_parent(dirfd, path, false));
            if matches!(
                parent,
                NameInParent::Name { .. } | NameInParent::Below { .. }
            ) {
                return Some(Err(Errno::ISDIR));
            }
        }
        if let Some(target) = ours!(self.create_at_once(dirfd, path, flags, mode, spare)) {
            return Some(Ok(Way::Ours(target)));
        }
        for _ in 0..TRIES {
            match ours!(self.paths.resolve_parent(dirfd, path, follow)) {
                NameInParent::Outside(path) => {
                    let magic = self.paths.magic_link_target(AT_FDCWD, &path);
                    return Some(magic.map_or(Ok(Way::Outside(path)), of_magic));
                }
                NameInParent::Dir => return Some(Err(exists_or(exclusive, Errno::ISDIR))),
                NameInParent::Name { found: Some(_), .. } | NameInParent::Below { .. }
                    if exclusive =>
                {
                    return Some(Err(Errno::EXIST))
                }
                NameInParent::Below {
                    parent, name, path, ..
                } => {
                    if flags & O_TRUNC == 0 {
                        let file = LowerEntry {
                            parent,
                            name: &name,
                            path: &path,
                        };
                        if writes(flags) && self.take_up.take_for_update(&file) {
                            continue;
                        }
                        return Some(Ok(Way::Below(path)));
                    }
                    match done!(self.replace_below(parent, &name, path, flags, spare)) {
                        Some(LowerOpening::Kernel(path)) => return Some(Ok(Way::Below(path))),
                        Some(LowerOpening::Replaced(target)) => return Some(Ok(Way::Ours(target))),
                        None => {}
                    }
                }
                NameInParent::Name { slash: true, .. } => return Some(Err(Errno::ISDIR)),
                NameInParent::Name {
                    found: Some((ino, kind)),
                    ..
                } => return Some(Ok(Way::Ours(Target::existing(ino, kind)))),
                NameInParent::Name { parent, name, .. } => {
                    if let Some(path) = done!(self.inodes.path_to_create(parent, &name)) {
                        return Some(Ok(Way::NewBelow(parent, Box::new(name), path)));
                    }
                    done!(self.inodes.check_parent(parent));
                    done!(self.opener.reserve(spare, flags));
                    let op = self.inodes.create_op(parent, &name, flags, mode);
                    let made = done!(done!(self.inodes.view()).create(op));
                    if let Some(target) = made.filter(|target| target.new) {
                        return Some(Ok(Way::Ours(target)));
                    }
                    // Another process was faster: its file may be a link, so look again.
                }
            }
        }
        Some(Err(Errno::IO))
    }

    /// Makes a file in the place of one of the PFS that is truncated as it is opened; `None`: the name has
    /// become something else.
    fn replace_below(
        &self,
        parent: Ino,
        name: &Name,
        path: Vec<u8>,
        flags: i32,
        spare: &Spare,
    ) -> Result<Option<LowerOpening>, Errno> {
        if self.inodes.is_passed(parent, name.bytes())? {
            return Ok(Some(LowerOpening::Kernel(path)));
        }
        let Some(replaced) = self.inodes.replaced_by_truncation(parent, &path)? else {
            return Ok(Some(LowerOpening::Kernel(path)));
        };
        self.opener.reserve(spare, flags)?;
        if !self.inodes.note_replaced(parent, name)? {
            return Ok(None);
        }
        let op = Create {
            mode: replaced.mode,
            uid: replaced.uid,
            gid: replaced.gid,
            ..self.inodes.create_op(parent, name, flags, 0)
        };
        for _ in 0..TRIES {
            if let Some(target) = self.inodes.view()?.create(op.clone())? {
                let kept = match target.new {
                    true => self.inodes.keep_replaced_xattrs(target.ino, &replaced),
                    false => Ok(()),
                };
                if let Err(error) = kept {
                    self.inodes.discard_replacement(parent, name);
                    return Err(error);
                }
                return Ok(Some(LowerOpening::Replaced(target)));
            }
        }
        Err(Errno::IO)
    }

    /// If there are several servers, asks the name's home, once, to make the file or to hold the
    /// existing one. `None`: there is more to do, step by step.
    fn create_at_once(
        &self,
        dirfd: Fd,
        path: &[u8],
        flags: i32,
        mode: u32,
        spare: &Spare,
    ) -> Outcome<Option<Target>> {
        // A file that is only truncated is not held like one that is written.
        let only_cut = flags & O_ACCMODE == 0 && flags & O_TRUNC != 0;
        if only_cut {
            return Some(Ok(None));
        }
        let Some((parent, name)) = ours!(self.paths.name_to_ask_for(dirfd, path)) else {
            return Some(Ok(None));
        };
        if self.user.credentials().uid != 0 && self.inodes.check_parent(parent).is_err() {
            return Some(Ok(None));
        }
        done!(self.opener.reserve(spare, flags));
        let op = self.inodes.create_op(parent, &name, flags, mode);
        Some(done!(self.inodes.view()).create(op))
    }
}

impl InodeOperations {
    /// Fails unless names may be made and removed in a directory.
    pub(super) fn check_parent(self, parent: Ino) -> Result<(), Errno> {
        let guard = self.view()?.passage(parent)?.ok_or(Errno::NOENT)?;
        self.user
            .credentials()
            .check(guard, access::WRITE | access::EXECUTE)?;
        self.check_not_read_only(parent)
    }

    fn create_op(self, parent: Ino, name: &Name, flags: i32, mode: u32) -> Create {
        Create {
            parent,
            name: name.to_vec(),
            mode: self.user.apply_umask(mode & 0o7777),
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
            exclusive: flags & O_EXCL != 0,
            attach: flags & O_ACCMODE != 0,
        }
    }
}

fn exists_or(exclusive: bool, error: Errno) -> Errno {
    if exclusive {
        Errno::EXIST
    } else {
        error
    }
}
