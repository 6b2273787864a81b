//! Opening inodes: descriptions, and the descriptors that refer to them.
//!
//! A description is an entry of the batch that the server lent; a descriptor is a placeholder of the kernel's.
//! A caller that makes a file reserves both before, by a [`Spare`].

use core::cell::Cell;
use core::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_core::names::{Attr, FileType};
use weir_core::node::region::Counter;
use weir_core::proto::Attached;

use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::open_files::OpenFileTable;
use super::open_flags::{
    writes, O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_TRUNC,
};
use super::server_link::ServerLink;
use super::table::{self, Handle};
use super::ProcessState;
use crate::kernel::{self, Fd};
use crate::path::access;
use crate::view::open::{OpenAccess, Opening, Target};

/// The opening of inodes. It may touch the open files, descriptors, the way to the server, and inodes; it knows
/// no paths.
#[derive(Debug)]
pub(super) struct InodeOpener {
    descriptors: Descriptors,
    server: &'static ServerLink,
    open_files: &'static OpenFileTable,
    inodes: InodeOperations,
}

impl InodeOpener {
    pub(super) const fn over(state: &'static ProcessState) -> InodeOpener {
        InodeOpener {
            descriptors: Descriptors::over(state),
            server: &state.server,
            open_files: &state.open_files,
            inodes: InodeOperations::over(state),
        }
    }

    /// Opens a file that was just made.
    pub(super) fn open_made(&self, made: &Target, flags: i32) -> Result<Fd, Errno> {
        self.open_target(made, flags, &Spare::default())
    }

    /// Reserves the resources that opening needs before a file is made, which would be left behind
    /// without them: a descriptor (the kernel takes that first, too), and a lent description.
    pub(super) fn reserve(&self, spare: &Spare, flags: i32) -> Result<(), Errno> {
        if spare.0.get().is_some() {
            return Ok(());
        }
        self.reserve_description()?;
        let placeholder = self.open_placeholder(flags & O_CLOEXEC != 0)?;
        spare.0.set(Some(placeholder));
        Ok(())
    }

    /// Makes sure that there is a lent description.
    pub(super) fn reserve_description(&self) -> Result<(), Errno> {
        let _held = self.server.lock.hold();
        let handle = self.open_files.take_handle(self.server.session()?)?;
        self.open_files.return_handle(handle);
        Ok(())
    }

    pub(super) fn open_target(
        &self,
        target: &Target,
        flags: i32,
        spare: &Spare,
    ) -> Result<Fd, Errno> {
        check_kind(target.kind, flags)?;
        let descriptor = Descriptor {
            opener: self,
            flags,
            spare,
            evicted: Cell::new(None),
        };
        if writes(flags) && !target.new {
            self.inodes.check_not_running(target.ino)?;
        }
        let view = self.inodes.view()?;
        let fd = view.update(target.ino, || view.open(target, &descriptor))?;
        if let Some(generation) = descriptor.evicted.get() {
            let file = table::get(fd).and_then(|handle| handle.file.get());
            let ready =
                file.map(|file| file.vnode.prepare_copy(self.server.session()?, generation));
            if let Some(Err(error)) = ready {
                let now = self.inodes.attr(target.ino);
                // Else the eviction was cancelled, and reads look again.
                if now.map_or(true, |now| {
                    now.evicted && now.index_generation == generation
                }) {
                    descriptor.close(fd);
                    return Err(error);
                }
            }
        }
        let session = self.server.session()?;
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
        &self,
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
        &self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
    ) -> Result<(&'static Handle, Fd), Errno> {
        self.open_entry_on(attr, by_name, flags, &Spare::default())
    }

    /// The same, on a placeholder that is already open, if there is one.
    fn open_entry_on(
        &self,
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
        &self,
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
        &self,
        attr: &Attr,
        by_name: bool,
        flags: i32,
        access: OpenAccess,
    ) -> Result<&'static Handle, Errno> {
        let handle = self.open_files.take_handle(self.server.session()?)?;
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
    fn open_placeholder(&self, cloexec: bool) -> Result<Fd, Errno> {
        let session = self.server.session()?;
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
    /// Fails unless this process may open a file in this way.
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
}

/// A placeholder that was opened before its use was known; closed if it is not used. A program that
/// is forked meanwhile has it too, as a descriptor of an unknown directory.
#[derive(Default)]
pub(super) struct Spare(Cell<Option<Fd>>);

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let _ = kernel::close(fd);
        }
    }
}

/// A descriptor that is to be opened.
struct Descriptor<'s> {
    opener: &'s InodeOpener,
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
        self.opener.inodes.check_mode(attr, self.flags)
    }

    fn open(&self, attr: &Attr, by_name: bool) -> Result<Fd, Errno> {
        let is_read = attr.evicted && !self.writes() && self.flags & O_PATH == 0;
        self.evicted.set(is_read.then_some(attr.index_generation));
        self.opener
            .open_inode(attr, by_name, self.flags, self.spare)
    }

    fn attach(&self, fd: &Fd, at: Attached) -> bool {
        let file = table::get(*fd).and_then(|handle| handle.file.get());
        let session = self.opener.server.session();
        let Some((file, session)) = file.zip(session.ok()) else {
            return false;
        };
        file.vnode.attached(session, at.block, at.cell);
        true
    }

    fn close(&self, fd: Fd) {
        // The caller gets the error of the open.
        let _ = self.opener.descriptors.close(fd);
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
