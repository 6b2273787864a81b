//! Opening and creating.
//!
//! Opening an existing file sends no message: the path is walked in the shared tables, the
//! description comes from the batch that the server lent. After that, one more look checks that the
//! inode lives: the server frees an unnamed inode only after it looked for descriptions of it, so
//! one of the two sees the other.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use weir_core::names::{Attr, FileType};
use weir_core::node::region::Counter;
use weir_core::proto::{Attached, Create, CreateUnnamed};
use weir_core::types::Ino;

use super::elevated::LowerEntry;
use super::inodes::InodeOperations;
use super::open_flags::{
    writes, O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_TMPFILE,
    O_TRUNC,
};
use super::outcome::{done, ours};
use super::paths::{NameInParent, ResolvedFile};
use super::table::{self, Handle};
use super::{outside, Outcome, Process};
use crate::kernel::{self, Fd, AT_FDCWD};
use crate::operation;
use crate::path::walk::Names;
use crate::path::{access, Name};
use crate::view::open::{OpenAccess, Opening, Target};

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

impl Process {
    /// openat(2); `mode` is used if a file is created.
    pub fn openat(&'static self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
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
                        return Some(self.open_target(&target, flags, &spare))
                    }
                    None => {}
                }
            }
        }
        self.paths
            .with_existing(dirfd, path, follow, false, |found| {
                let found = match writes(flags) {
                    true => self.prepare_update(dirfd, path, follow, found)?,
                    false => found,
                };
                match found {
                    ResolvedFile::Outside(path) => outside::open(&path, flags, mode),
                    ResolvedFile::Inode(ino, kind @ (FileType::Fifo | FileType::Socket)) => {
                        self.inodes.open_special(ino, kind, flags)
                    }
                    ResolvedFile::Inode(ino, kind) => {
                        self.open_target(&Target::existing(ino, kind), flags, &Spare::default())
                    }
                }
            })
    }

    /// truncate(2).
    pub fn truncate(&'static self, path: &[u8], length: i64) -> Outcome<()> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, true, false, |found| {
                let ino = match self.prepare_update(AT_FDCWD, path, true, found)? {
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
                let view = self.inodes.view()?;
                view.update(ino, || self.inodes.set_size(ino, length))
            })
    }

    /// Opens a new file without a name (`O_TMPFILE`), as if in the directory of this path.
    fn open_unnamed(&'static self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
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
                self.reserve(&spare, flags)?;
                let who = self.user.credentials();
                let made = self.inodes.view()?.create_unnamed(CreateUnnamed {
                    dir,
                    mode: self.user.apply_umask(mode & 0o7777),
                    uid: who.uid,
                    gid: who.gid,
                    linkable: flags & O_EXCL == 0,
                });
                self.open_target(&made?, flags & !O_TMPFILE, &spare)
            })
    }

    /// Opens the file, or makes it, even if it disappears between being found and being opened.
    fn open_or_create(&'static self, dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Outcome<Fd> {
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
                _ => self.open_target(&target, flags, &spare),
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
        &'static self,
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
                        if writes(flags) && self.take_for_update(&file) {
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
                    done!(self.reserve(spare, flags));
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

    /// Opens a file that was just made.
    pub(super) fn open_made(&'static self, made: &Target, flags: i32) -> Result<Fd, Errno> {
        self.open_target(made, flags, &Spare::default())
    }

    /// Makes a file in the place of one of the PFS that is truncated as it is opened; `None`: the name has
    /// become something else.
    fn replace_below(
        &'static self,
        parent: Ino,
        name: &Name,
        path: Vec<u8>,
        flags: i32,
        spare: &Spare,
    ) -> Result<Option<LowerOpening>, Errno> {
        if self.inodes.is_passed(parent, name.bytes())? {
            return Ok(Some(LowerOpening::Kernel(path)));
        }
        let Some(replaced) = Self::replaced_by_truncation(&path)? else {
            return Ok(Some(LowerOpening::Kernel(path)));
        };
        self.reserve(spare, flags)?;
        if !self.inodes.note_replaced(parent, name)? {
            return Ok(None);
        }
        let op = Create {
            mode: replaced.st_mode & 0o7777,
            uid: replaced.st_uid,
            gid: replaced.st_gid,
            ..self.inodes.create_op(parent, name, flags, 0)
        };
        for _ in 0..TRIES {
            if let Some(target) = self.inodes.view()?.create(op.clone())? {
                return Ok(Some(LowerOpening::Replaced(target)));
            }
        }
        Err(Errno::IO)
    }

    /// If there are several servers, asks the name's home, once, to make the file or to hold the
    /// existing one. `None`: there is more to do, step by step.
    fn create_at_once(
        &'static self,
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
        done!(self.reserve(spare, flags));
        let op = self.inodes.create_op(parent, &name, flags, mode);
        Some(done!(self.inodes.view()).create(op))
    }

    /// Reserves the resources that opening needs before a file is made, which would be left behind
    /// without them: a descriptor (the kernel takes that first, too), and a lent description.
    fn reserve(&'static self, spare: &Spare, flags: i32) -> Result<(), Errno> {
        if spare.0.get().is_some() {
            return Ok(());
        }
        {
            let _held = self.server.lock.hold();
            let handle = self.open_files.take_handle(self.session()?)?;
            self.open_files.return_handle(handle);
        }
        let placeholder = self.open_placeholder(flags & O_CLOEXEC != 0)?;
        spare.0.set(Some(placeholder));
        Ok(())
    }

    fn open_target(&'static self, target: &Target, flags: i32, spare: &Spare) -> Result<Fd, Errno> {
        check_kind(target.kind, flags)?;
        let descriptor = Descriptor {
            process: self,
            flags,
            spare,
            evicted: Cell::new(None),
        };
        let view = self.inodes.view()?;
        let fd = view.update(target.ino, || view.open(target, &descriptor))?;
        if let Some(generation) = descriptor.evicted.get() {
            let file = table::get(fd).and_then(|handle| handle.file.get());
            let ready = file.map(|file| file.vnode.prepare_copy(self.session()?, generation));
            if let Some(Err(error)) = ready {
                let now = self.inodes.attr(target.ino);
                // Else the eviction was called off, and reads look again.
                if now.map_or(true, |now| {
                    now.evicted && now.index_generation == generation
                }) {
                    descriptor.close(fd);
                    return Err(error);
                }
            }
        }
        let session = self.session()?;
        session.count(Counter::Opens, 1);
        if descriptor.truncates() && !target.new {
            // The file is already truncated and open.
            let _ = self.inodes.clear_set_ids(target.ino);
            if session.is_mapped(target.ino) {
                // Processes that have it mapped are to find it truncated too.
                if let Err(error) = self.inodes.set_size(target.ino, 0) {
                    descriptor.close(fd);
                    return Err(error);
                }
            }
        }
        Ok(fd)
    }

    /// A descriptor of an inode.
    fn open_inode(
        &'static self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
        spare: &Spare,
    ) -> Result<Fd, Errno> {
        let _held = self.server.lock.hold();
        let is_vfork_child = self.descriptors.is_vfork_child();
        // A program opens a file without a name by /proc/self/fd, and already has it open.
        let is_open = || table::all().any(|(_, handle)| handle.ino() == attr.ino);
        let by_name = by_name && (attr.nlink > 0 || !is_open());
        let (handle, fd) = self.open_entry_on(attr, by_name, flags, spare)?;
        handle.fds.store(1, Ordering::Relaxed);
        if is_vfork_child {
            // The table is the parent's. The descriptor is this child's alone; it serves the
            // purpose of such children, which is to pass it to a program.
            handle.mark_shared(fd);
            self.open_files.give_up(handle);
            return Ok(fd);
        }
        if let Some(before) = table::set(fd, Some(handle)) {
            // It had this number, and was closed behind our back.
            let _ = self
                .open_files
                .forget_fd(self.server.connection.session(), before, Ok(()));
        }
        Ok(fd)
    }

    /// A handle whose description, with its placeholder, shows that an inode is open here. Under
    /// the lock.
    pub(super) fn open_entry(
        &'static self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
    ) -> Result<(&'static Handle, Fd), Errno> {
        self.open_entry_on(attr, by_name, flags, &Spare::default())
    }

    /// The same, on a placeholder that is already open, if there is one.
    fn open_entry_on(
        &'static self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
        spare: &Spare,
    ) -> Result<(&'static Handle, Fd), Errno> {
        let placeholder = match spare.0.take() {
            Some(placeholder) => placeholder,
            None => self.open_placeholder(flags & O_CLOEXEC != 0)?,
        };
        match self.show_handle(attr, by_name, flags) {
            Ok(handle) => Ok((handle, placeholder)),
            Err(error) => {
                spare.0.set(Some(placeholder));
                Err(error)
            }
        }
    }

    /// A handle whose description shows that an inode is open here. Under the lock.
    pub(super) fn show_handle(
        &'static self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
    ) -> Result<&'static Handle, Errno> {
        let access = match writes(flags) {
            false => OpenAccess::Read,
            true if flags & O_TRUNC != 0 => OpenAccess::Rewrite,
            true => OpenAccess::Update,
        };
        self.show_handle_for(attr, by_name, flags, access)
    }

    /// The same, for an access that the flags do not tell.
    pub(super) fn show_handle_for(
        &'static self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
        access: OpenAccess,
    ) -> Result<&'static Handle, Errno> {
        let handle = self.open_files.take_handle(self.session()?)?;
        let kept = flags & !(O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
        let ofd = handle.ofd.get().ok_or(Errno::NFILE)?;
        let shown = self
            .inodes
            .view()
            .and_then(|view| view.show_open(ofd, attr.ino, by_name, kept.cast_unsigned(), access));
        match shown {
            Ok(()) => {
                self.open_files
                    .assign(handle, attr.ino, attr.file_type(), kept.cast_unsigned());
                Ok(handle)
            }
            Err(error) => {
                self.open_files.return_handle(handle);
                Err(error)
            }
        }
    }

    /// A new open description of the kernel's, which stands in for ours.
    fn open_placeholder(&'static self, cloexec: bool) -> Result<Fd, Errno> {
        let session = self.session()?;
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY;
        flags.set(OFlags::CLOEXEC, cloexec);
        let open = || {
            let dir = kernel::borrow(session.placeholder())?;
            rustix::fs::openat(dir, c".", flags, Mode::empty())
        };
        let opened = match open() {
            // A program may have changed the directory's mode by a descriptor of it,
            Err(Errno::ACCESS) => {
                let path = format!("/proc/self/fd/{}", session.placeholder());
                rustix::fs::chmod(path, Mode::from_raw_mode(0o755))?;
                open()
            }
            // or have closed ours unseen.
            Err(Errno::BADF | Errno::NOTDIR) => {
                let instance = self.server.connection.instance().ok_or(Errno::SHUTDOWN)?;
                session.renew_placeholder(&instance.run_dir)?;
                open()
            }
            opened => opened,
        };
        let fd = kernel::into_number(opened?);
        if usize::try_from(fd).is_ok_and(|fd| fd < crate::internal::MAX_FDS) {
            return Ok(fd);
        }
        let _ = kernel::close(fd);
        Err(Errno::MFILE)
    }
}

impl InodeOperations {
    /// Fails unless names may be made and removed in a directory.
    pub(super) fn check_parent(self, parent: Ino) -> Result<(), Errno> {
        let guard = self.view()?.passage(parent)?.ok_or(Errno::NOENT)?;
        self.user
            .credentials()
            .check(guard, access::WRITE | access::EXECUTE)
    }

    pub(super) fn check_mode(self, attr: &Attr, flags: i32) -> Result<(), Errno> {
        if flags & O_PATH != 0 {
            return Ok(());
        }
        let mut want = match flags & O_ACCMODE {
            0 => access::READ,
            1 => access::WRITE,
            _ => access::READ | access::WRITE,
        };
        if flags & O_TRUNC != 0 {
            want |= access::WRITE;
        }
        self.user.credentials().check(attr, want)
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

/// A placeholder that was opened before its use was known; closed if it is not used. A program that
/// is forked meanwhile has it too, as a descriptor of an unknown directory.
#[derive(Default)]
struct Spare(Cell<Option<Fd>>);

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let _ = kernel::close(fd);
        }
    }
}

/// A descriptor that is to be opened.
struct Descriptor<'s> {
    process: &'static Process,
    flags: i32,
    spare: &'s Spare,
    /// The generation of the extents of an evicted file that is opened for reading.
    evicted: Cell<Option<u64>>,
}

impl Opening for Descriptor<'_> {
    type Opened = Fd;

    fn writes(&self) -> bool {
        writes(self.flags)
    }

    fn truncates(&self) -> bool {
        self.flags & O_TRUNC != 0 && self.flags & O_PATH == 0
    }

    fn check(&self, attr: &Attr) -> Result<(), Errno> {
        self.process.inodes.check_mode(attr, self.flags)
    }

    fn open(&self, attr: &Attr, by_name: bool) -> Result<Fd, Errno> {
        let is_read = attr.evicted && !self.writes() && self.flags & O_PATH == 0;
        self.evicted.set(is_read.then_some(attr.index_generation));
        self.process
            .open_inode(attr, by_name, self.flags, self.spare)
    }

    fn attach(&self, fd: &Fd, at: Attached) -> bool {
        let file = table::get(*fd).and_then(|handle| handle.file.get());
        let session = self.process.session();
        let Some((file, session)) = file.zip(session.ok()) else {
            return false;
        };
        file.vnode.attached(session, at.block, at.cell);
        true
    }

    fn close(&self, fd: Fd) {
        // The caller gets the error of the open.
        let _ = self.process.descriptors.close(fd);
    }
}

fn exists_or(exclusive: bool, error: Errno) -> Errno {
    if exclusive {
        Errno::EXIST
    } else {
        error
    }
}

/// Fails unless a file of this kind can be opened with `flags`.
pub(super) fn check_kind(kind: FileType, flags: i32) -> Result<(), Errno> {
    let writes = flags & O_ACCMODE != 0 || flags & (O_TRUNC | O_CREAT) != 0;
    match kind {
        FileType::Dir if writes && flags & O_PATH == 0 => Err(Errno::ISDIR),
        FileType::Dir => Ok(()),
        _ if flags & O_DIRECTORY != 0 => Err(Errno::NOTDIR),
        FileType::Symlink if flags & O_PATH == 0 => Err(Errno::LOOP),
        _ => Ok(()),
    }
}
