//! Descriptors: close, dup, fcntl.
//!
//! The kernel's descriptor table stays authoritative: each call does the kernel's part on the
//! placeholder and then updates our table, under a lock. A child of vfork, which runs on its
//! parent's memory but has its own descriptors, does the kernel's part only.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::super::open_flags::{O_APPEND, O_PATH};
use super::super::table::{self, Handle};
use super::super::Outcome;
use super::Descriptors;
use crate::internal::{self, MAX_FDS};
use crate::kernel::{self, Fd};

const F_DUPFD: i32 = 0;
const F_GETFD: i32 = 1;
const F_SETFD: i32 = 2;
const F_GETFL: i32 = 3;
const F_SETFL: i32 = 4;
const F_SETOWN: i32 = 8;
const F_GETOWN: i32 = 9;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_SETLEASE: i32 = 1024;
const F_GETLEASE: i32 = 1025;
const F_NOTIFY: i32 = 1026;
const F_DUPFD_CLOEXEC: i32 = 1030;
const F_SETPIPE_SZ: i32 = 1031;
const F_GETPIPE_SZ: i32 = 1032;
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;
/// The flags that F_SETFL may change, of those that have a meaning here (O_NONBLOCK, O_NOATIME and
/// O_DIRECT are only stored and reported).
const SETTABLE: i32 = O_APPEND | 0o4000 | 0o1_000_000 | 0o40_000;
/// O_LARGEFILE, which a 64-bit kernel reports for every file.
const O_LARGEFILE: i32 = 0o100_000;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

impl Descriptors {
    /// close(2).
    pub fn close(&self, fd: Fd) -> Outcome<()> {
        if self.is_internal_fd(fd) {
            return Some(Err(Errno::BADF));
        }
        let published = self.before_close(self.handle(fd)?);
        let _held = self.server.lock.hold();
        if self.is_vfork_child() {
            return Some(kernel::close(fd));
        }
        let handle = table::set(fd, None)?;
        let closed = kernel::close(fd);
        let forgotten =
            self.open_files
                .forget_fd(self.server.connection.session(), handle, published);
        Some(closed.and(forgotten))
    }

    /// Does the part of closing a descriptor of `handle` that asks other servers, without the lock,
    /// for which other threads would have to wait: ends the locks of the process and publishes. An
    /// error says that not all nodes can see the written bytes.
    fn before_close(&self, handle: &'static Handle) -> Result<(), Errno> {
        if self.is_vfork_child() {
            return Ok(());
        }
        if let Some(file) = handle.file.get() {
            file.end_record_locks(self.server.connection.session());
        }
        self.publish_before_close(handle)
    }

    /// Publishes the bytes written to a file, without the lock, if this descriptor is its last one
    /// in this process.
    fn publish_before_close(&self, handle: &'static Handle) -> Result<(), Errno> {
        let Some((file, session)) = handle.file.get().zip(self.server.connection.session()) else {
            return Ok(());
        };
        let others = |count: &AtomicU32| count.load(Ordering::Relaxed) > 1;
        match others(&handle.fds) || others(&file.handles) {
            true => Ok(()),
            false => file.vnode.publish_written(session),
        }
    }

    /// close_range(2). Concerns weir even if the range has none of its files, because its own
    /// descriptors must survive.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Outcome<()> {
        self.first_call.instance()?;
        let inside = |fd: &Fd| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
        let mut ours = internal::numbers();
        ours.extend(
            self.server
                .connection
                .node()
                .iter()
                .flat_map(|node| node.kept_fds()),
        );
        ours.sort_unstable();
        let touched = ours.iter().any(inside) || table::all().any(|(fd, _)| inside(&fd));
        if !touched || first > last {
            return None;
        }
        if flags & CLOSE_RANGE_CLOEXEC != 0 {
            // Ours are close-on-exec already, and before an exec descriptors are marked by this
            // flag.
            return None;
        }
        for fd in table::all().map(|(fd, _)| fd).filter(inside) {
            let _ = self.close(fd);
        }
        // The kernel's part, around our own.
        let mut from = first;
        for fd in ours.iter().filter(|fd| inside(fd)) {
            let fd = fd.unsigned_abs();
            if from < fd {
                close_all(from, fd - 1);
            }
            from = fd + 1;
        }
        if from <= last {
            close_all(from, last);
        }
        Some(Ok(()))
    }

    /// dup(2).
    pub fn dup(&self, fd: Fd) -> Outcome<Fd> {
        self.duplicate(fd, F_DUPFD, 0)
    }

    fn duplicate(&self, fd: Fd, command: i32, least: i32) -> Outcome<Fd> {
        let handle = self.verified_handle(fd)?;
        let _held = self.server.lock.hold();
        let is_vfork_child = self.is_vfork_child();
        let new = match kernel::fcntl(fd, command, least) {
            Ok(new) => new,
            Err(error) => return Some(Err(error)),
        };
        if is_vfork_child {
            return Some(Ok(new));
        }
        if usize::try_from(new).is_ok_and(|new| new >= MAX_FDS) {
            let _ = kernel::close(new);
            return Some(Err(Errno::MFILE));
        }
        self.install(new, Some(handle));
        Some(Ok(new))
    }

    /// dup2(2); ours if either number is.
    pub fn dup2(&self, old: Fd, new: Fd) -> Outcome<Fd> {
        if old == new {
            self.verified_handle(old)?;
            return Some(kernel::fcntl(old, F_GETFD, 0).map(|_| new));
        }
        self.dup_onto(old, new, 0)
    }

    /// dup3(2); ours if either number is.
    pub fn dup3(&self, old: Fd, new: Fd, flags: i32) -> Outcome<Fd> {
        if old == new {
            self.verified_handle(old)?;
            return Some(Err(Errno::INVAL));
        }
        self.dup_onto(old, new, flags)
    }

    fn dup_onto(&self, old: Fd, new: Fd, flags: i32) -> Outcome<Fd> {
        if self.is_internal_fd(old) {
            return Some(Err(Errno::BADF));
        }
        if self.server.connection.is_slab_fd(new) {
            // Bytes may be on their way there: it cannot give way.
            return Some(Err(Errno::BUSY));
        }
        let source = self.verified_handle(old);
        let aside = internal::is_internal(new);
        if source.is_none() && self.handle(new).is_none() && !aside {
            return None;
        }
        let replaced = self.handle(new);
        if let Some(replaced) = replaced.filter(|_| !self.is_vfork_child()) {
            // Its locks stay until the close, which may fail; an error of a close by dup2 is lost,
            // as dup2(2) says.
            let _ = self.publish_before_close(replaced);
        }
        let _held = self.server.lock.hold();
        let is_vfork_child = self.is_vfork_child();
        if aside && !is_vfork_child {
            if let Err(error) = internal::give_way(new) {
                return Some(Err(error));
            }
        }
        if source.is_some() && usize::try_from(new).is_ok_and(|new| new >= MAX_FDS) {
            return Some(Err(Errno::BADF));
        }
        let done = kernel::dup3(old, new, flags);
        if done.is_ok() && !is_vfork_child {
            self.install(new, source);
        }
        Some(done)
    }

    /// fcntl(2), commands with an integer argument or none.
    pub fn fcntl(&self, fd: Fd, command: i32, argument: i64) -> Outcome<i32> {
        let handle = self.verified_handle(fd)?;
        let number = i32::try_from(argument);
        Some(match command {
            F_DUPFD | F_DUPFD_CLOEXEC => match number {
                Ok(least) => return self.duplicate(fd, command, least),
                Err(_) => Err(Errno::INVAL),
            },
            F_GETFD => kernel::fcntl(fd, F_GETFD, 0),
            #[allow(clippy::cast_possible_truncation)] // flags; the kernel takes an int
            F_SETFD => kernel::fcntl(fd, F_SETFD, argument as i32),
            F_GETFL => Ok(status_flags(handle)),
            #[allow(clippy::cast_possible_truncation)] // flags; the kernel takes an int
            F_SETFL => set_status_flags(handle, argument as i32),
            _ if handle.has(table::PATH) => Err(Errno::BADF),
            // The process that the kernel signals about a descriptor: the kernel keeps it with its
            // description, and never signals about a file.
            F_SETOWN | F_GETOWN | F_SETSIG | F_GETSIG | F_SETOWN_EX | F_GETOWN_EX => return None,
            F_GETLEASE => Ok(F_UNLCK),
            #[allow(clippy::cast_possible_truncation)] // the kernel takes an int
            F_SETLEASE => self.refuse_lease(handle, argument as i32),
            F_SETPIPE_SZ | F_GETPIPE_SZ => Err(Errno::BADF),
            F_NOTIFY if handle.has(table::DIR) => {
                self.server.count_refusal("inotify");
                Err(Errno::INVAL)
            }
            F_NOTIFY => Err(Errno::NOTDIR),
            _ => Err(Errno::INVAL),
        })
    }

    fn refuse_lease(&self, handle: &Handle, kind: i32) -> Result<i32, Errno> {
        match kind {
            // There is no lease.
            F_UNLCK if !handle.has(table::DIR) => Err(Errno::AGAIN),
            F_RDLCK | F_WRLCK => {
                self.server.count_refusal("fcntl-lease");
                Err(Errno::INVAL)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// fcntl(2), F_GET_RW_HINT: the expected lifetime of written data, as this process has set it.
    pub fn write_life(&self, fd: Fd) -> Outcome<u64> {
        let handle = self.verified_handle(fd)?;
        if handle.has(table::PATH) {
            return Some(Err(Errno::BADF));
        }
        let file = handle.file.get();
        let life = file.map_or(0, |file| file.write_life.load(Ordering::Relaxed));
        Some(Ok(life.into()))
    }

    /// fcntl(2), F_SET_RW_HINT: a hint without effect here.
    pub fn set_write_life(&self, fd: Fd, life: u64) -> Outcome<i32> {
        /// RWH_WRITE_LIFE_EXTREME.
        const LONGEST: u32 = 5;
        let handle = self.verified_handle(fd)?;
        let life = u32::try_from(life).ok().filter(|life| *life <= LONGEST);
        Some(match (handle.file.get(), life) {
            _ if handle.has(table::PATH) => Err(Errno::BADF),
            (Some(file), Some(life)) => {
                file.write_life.store(life, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        })
    }

    /// Publishes the process's writes as if it had closed all files: it is about to end, or to
    /// become another program. An error cannot be reported; the server goes on trying.
    pub fn publish_written(&self) {
        // A child that nothing announced is detected before the lock is taken, which may be its
        // parent's.
        if self.server.connection.session().is_none() || self.is_vfork_child() {
            return;
        }
        let Some(session) = self
            .server
            .connection
            .session()
            .filter(|s| s.welcome().servers > 1)
        else {
            return;
        };
        let _held = self.server.lock.hold();
        self.open_files.publish_written(session);
    }
}

fn close_all(first: u32, last: u32) {
    if kernel::close_range(first, last, 0) == Err(Errno::NOSYS) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let last = u64::from(last).min(limit.unwrap_or(1 << 20));
        for fd in u64::from(first)..=last {
            let _ = kernel::close(Fd::try_from(fd).unwrap_or(-1));
        }
    }
}

fn status_flags(handle: &Handle) -> i32 {
    let flags = handle
        .ofd
        .get()
        .map_or(0, |ofd| ofd.flags.load(Ordering::Relaxed));
    match flags.cast_signed() {
        path if path & O_PATH != 0 => path,
        flags => flags | O_LARGEFILE,
    }
}

fn set_status_flags(handle: &Handle, flags: i32) -> Result<i32, Errno> {
    let ofd = handle.ofd.get().ok_or(Errno::BADF)?;
    if handle.has(table::PATH) {
        return Err(Errno::BADF);
    }
    let change =
        |old: u32| Some((old & !SETTABLE.cast_unsigned()) | (flags & SETTABLE).cast_unsigned());
    let _ = ofd
        .flags
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
    Ok(0)
}
