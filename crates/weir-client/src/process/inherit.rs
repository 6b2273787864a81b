//! Descriptors that a process did not open itself, inherited over exec or received over a socket; and the
//! current directory that it has inherited.
//!
//! A descriptor is a file of weir's if it is a placeholder that carries a description's index (see
//! `descriptors/sharing.rs`). The placeholder's directory tells the server whose table the index refers to:
//!
//! | directory | use of the descriptor |
//! | --- | --- |
//! | of the own server | the description is used |
//! | of another server of the instance, on this machine | it is used, by way of an anchor |
//! | of another instance, of a server that is gone | every use of the file gives EIO; counted |
//! | not a placeholder, or without a mark | the kernel's |
//!
//! A placeholder is recognised by its lock, which no other directory has. The same is done if
//! `WEIR_INSTANCE` names no instance: then no descriptor of weir's can be used, and none must be
//! taken for a directory of the kernel's.

use core::cell::OnceCell;
use core::sync::atomic::Ordering;

use rustix::fd::AsFd;
use rustix::fs::{FileType as KernelFileType, Mode, OFlags};
use rustix::io::Errno;
use weir_core::node::ofd::{lock_byte, placeholder_offset, Ofd};
use weir_core::proto::beneath::OWN_DIR;
use weir_core::proto::{GetAttr, SHM_LINK};
use weir_core::types::Ino;

use super::current_dir::{kernel_cwd, named_by, CurrentDir};
use super::descriptors::Descriptors;
use super::environment::{variable, NOTHING_VARIABLE};
use super::first_call::FirstCall;
use super::forks::own_pid;
use super::inodes::InodeOperations;
use super::instance::Instance;
use super::open_files::OpenFileTable;
use super::open_flags::{writes, O_CLOEXEC};
use super::opener::InodeOpener;
use super::server_link::ServerLink;
use super::table::{self, Handle};
use super::{Outcome, ProcessState};
use crate::beneath::mount_of;
use crate::internal::{Internal, MAX_FDS};
use crate::kernel::{self, Fd};
use crate::neighbour::{memory_of, Description, KernelIdentity, Neighbours};
use crate::view::open::Target;

/// The adoption of descriptors and of a current directory that others left, or sent. It may touch the open files,
/// the current directory, neighbours, the opening of inodes, descriptors, inodes and the server.
#[derive(Debug)]
pub struct Inheritance {
    first_call: FirstCall,
    opener: InodeOpener,
    descriptors: Descriptors,
    server: &'static ServerLink,
    open_files: &'static OpenFileTable,
    cwd: &'static CurrentDir,
    neighbours: &'static Neighbours,
    inodes: InodeOperations,
}

impl Inheritance {
    pub(super) const fn over(state: &'static ProcessState) -> Inheritance {
        Inheritance {
            first_call: FirstCall::over(state),
            opener: InodeOpener::over(state),
            descriptors: Descriptors::over(state),
            server: &state.server,
            open_files: &state.open_files,
            cwd: &state.cwd,
            neighbours: &state.neighbours,
            inodes: InodeOperations::over(state),
        }
    }

    /// Takes over the descriptors of weir and the current directory that the program before this
    /// one left in the same process.
    pub(super) fn adopt(&self, instance: Option<&Instance>) {
        if !inherits_nothing() {
            self.adopt_fds(instance, open_descriptors().into_iter());
        }
        self.adopt_cwd(instance);
    }

    /// Takes over those of `fds` that are placeholders. Under the lock.
    fn adopt_fds(&self, instance: Option<&Instance>, fds: impl Iterator<Item = Fd>) {
        // Looked up when it is needed: most programs inherit nothing.
        let own = OnceCell::new();
        for fd in fds.filter(|fd| table::get(*fd).is_none()) {
            let Ok(stat) = kernel::borrow(fd).and_then(rustix::fs::fstat) else {
                continue;
            };
            if KernelFileType::from_raw_mode(stat.st_mode) != KernelFileType::Directory {
                continue;
            }
            let Some(index) = index_of(fd) else { continue };
            let own = own.get_or_init(|| instance.and_then(|_| self.placeholder_identity()));
            let handle = if Some(KernelIdentity::from_stat(&stat)) == *own {
                self.own_handle(index)
            } else if is_placeholder(fd, index) {
                Some(self.handle_elsewhere(fd, index))
            } else {
                None
            };
            if let Some(handle) = handle {
                handle.fds.fetch_add(1, Ordering::Relaxed);
                table::set(fd, Some(handle));
            }
        }
    }

    /// The kernel's identity of the own server's placeholder.
    fn placeholder_identity(&self) -> Option<KernelIdentity> {
        Some(self.server.session().ok()?.placeholder_identity())
    }

    /// The handle of a description of the own server.
    fn own_handle(&self, index: u32) -> Option<&'static Handle> {
        let is_twin = |handle: &Handle| handle.index.load(Ordering::Relaxed) == index;
        if let Some((_, twin)) = table::all().find(|(_, handle)| is_twin(handle)) {
            return Some(twin);
        }
        let node = self.server.node().ok()?;
        let ofd = node.ofds().get(index as usize)?;
        let ino = Ino(ofd.ino.load(Ordering::Acquire));
        let elsewhere = node.several().is_some_and(|(rank, _)| ino.rank() != rank);
        let attr = if elsewhere {
            self.server.session().ok()?.call(GetAttr { ino }).ok()?
        } else {
            node.names().attr(ino).ok()??
        };
        let handle = self.open_files.inherited_handle(ofd, index);
        let flags = ofd.flags.load(Ordering::Relaxed);
        self.open_files.assign(handle, ino, attr.file_type(), flags);
        Some(handle)
    }

    /// The handle of a description that is not the own server's.
    fn handle_elsewhere(&self, fd: Fd, index: u32) -> &'static Handle {
        let found = self.description_elsewhere(fd, index);
        if let Ok(found) = found {
            let is_twin = |ofd: &'static Ofd| core::ptr::eq(ofd, found.ofd);
            if let Some((_, twin)) = table::all().find(|(_, h)| h.ofd.get().is_some_and(is_twin)) {
                return twin;
            }
        }
        found
            .and_then(|found| self.anchor(found))
            .unwrap_or_else(|_| {
                self.server.count_refusal("other-instance");
                self.open_files.unusable_handle()
            })
    }

    fn description_elsewhere(&self, fd: Fd, index: u32) -> Result<Description, Errno> {
        let memory = memory_of(kernel::borrow(fd)?, "../..")?;
        let neighbour = self.neighbours.at(memory.as_fd(), self.server.node()?)?;
        neighbour.description(index)
    }

    /// Opens the file of another server's description at the own server, so that both servers know
    /// that it is open here.
    fn anchor(&self, found: Description) -> Result<&'static Handle, Errno> {
        let kind = match found.kind {
            Some(kind) => kind,
            None => self.inodes.attr(found.ino)?.file_type(),
        };
        let flags = found.ofd.flags.load(Ordering::Relaxed);
        let target = Target::existing(found.ino, kind);
        let attr = self
            .inodes
            .view()?
            .attr_to_open(&target, writes(flags.cast_signed()))?;
        let (handle, fd) = self
            .opener
            .open_entry(&attr, false, flags.cast_signed() | O_CLOEXEC)?;
        handle.fds.store(0, Ordering::Relaxed);
        match Internal::adopt(fd) {
            Ok(placeholder) => handle.anchor_fd.set(placeholder),
            Err(error) => {
                let _ = self.descriptors.close_handle(handle, Ok(()));
                return Err(error);
            }
        }
        handle.anchor.set(handle.ofd.swap(Some(found.ofd)));
        Ok(handle)
    }

    /// After descriptors were received: takes over those that stand for files of ours.
    pub fn received(&self, fds: &[Fd]) {
        let Some(instance) = self.first_call.instance() else {
            return;
        };
        for fd in fds {
            self.descriptors.note_kernel_fd(*fd);
        }
        let _held = self.server.lock.hold();
        self.adopt_fds(Some(instance), fds.iter().copied());
    }

    /// Finds out if the inherited current directory is one of weir's.
    fn adopt_cwd(&self, instance: Option<&Instance>) {
        if let Some(path) = kernel_cwd() {
            // A directory that has a path is none of weir's, except those of a kernel mount.
            if let Some(dir) = instance.and_then(|instance| self.mounted_dir(instance, &path)) {
                self.cwd.set_named(true);
                match dir {
                    Ok(ino) => self.cwd.set_inode(ino),
                    Err(_) => self.cwd.set_foreign(),
                }
            }
            return;
        }
        let Ok(cwd) = rustix::fs::readlink("/proc/self/cwd", Vec::new()) else {
            return;
        };
        let Some((memory, ino)) = named_by(cwd.as_bytes()) else {
            return;
        };
        self.cwd.set_named(true);
        let own = instance.is_some_and(|instance| instance.shm_dir == memory);
        if own {
            self.cwd.set_inode(ino);
            return;
        }
        let Ok(memory) = memory_of(rustix::fs::CWD, "../../..") else {
            return;
        };
        let neighbour = self
            .server
            .node()
            .and_then(|node| self.neighbours.at(memory.as_fd(), node));
        if neighbour.is_ok() {
            self.cwd.set_inode(ino);
        } else {
            self.cwd.set_foreign();
            self.server.count_refusal("other-instance");
        }
    }

    /// The directory of weir's that is the current one, by a path of the kernel's: it lies in the
    /// kernel mount of the own server, or of another one of the instance on this machine. An error:
    /// it was removed, and the kernel has not noticed.
    fn mounted_dir(&self, instance: &Instance, path: &[u8]) -> Outcome<Ino> {
        if instance.roots.main.strip(path).is_none() && !self.is_mount_of_neighbour(path) {
            return None;
        }
        let is_fuse = rustix::fs::statfs(".").is_ok_and(|fs| fs.f_type == FUSE_SUPER_MAGIC);
        is_fuse.then(|| Ok(Ino(rustix::fs::stat(".")?.st_ino)))
    }

    /// True if a path lies in the kernel mount of another server of the instance on this machine.
    fn is_mount_of_neighbour(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut parents = ends.map(|(at, _)| path.split_at(at));
        parents.any(|(dir, below)| {
            is_at_or_below(&below[1..], OWN_DIR.as_bytes())
                && mount_of(dir).is_some_and(|mount| is_at_or_below(path, &mount))
                && self.is_run_dir_of_neighbour(dir)
        })
    }

    fn is_run_dir_of_neighbour(&self, run_dir: &[u8]) -> bool {
        let link = [run_dir, b"/", SHM_LINK.as_bytes()].concat();
        let known = memory_of(rustix::fs::CWD, link).and_then(|memory| {
            let node = self.server.node()?;
            self.neighbours.at(memory.as_fd(), node).map(drop)
        });
        known.is_ok()
    }
}

/// True if the process that began this program says that the program inherits no descriptor of
/// weir's. That process is this one, before execve(2), or its parent. A look at all descriptors
/// would take longer than the rest of weir's work at the start of a program.
fn inherits_nothing() -> bool {
    let named = variable(NOTHING_VARIABLE);
    let teller = named.and_then(|named| core::str::from_utf8(&named).ok()?.parse::<u32>().ok());
    teller.is_some_and(|teller| teller == own_pid() || teller == parent_pid())
}

fn parent_pid() -> u32 {
    let parent = rustix::process::getppid();
    parent.map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs())
}

/// The index of the description that a directory's descriptor carries, if it is a placeholder.
fn index_of(fd: Fd) -> Option<u32> {
    let at = kernel::lseek(fd, 0, 1).ok()?.checked_sub(1)?;
    u32::try_from(at).ok()
}

/// True if a directory's descriptor is a placeholder that was marked as description `index`.
fn is_placeholder(fd: Fd, index: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let again = kernel::borrow(fd)
        .and_then(|fd| rustix::fs::openat(fd, c".", flags, Mode::empty()))
        .map(kernel::into_number);
    // Another description of the same directory, because a lock does not conflict with its own
    // description.
    again.is_ok_and(|again| {
        let locked = kernel::is_byte_locked(again, lock_byte(index));
        let _ = kernel::close(again);
        locked == Ok(true)
    })
}

/// The open descriptors of this process below [`MAX_FDS`]; without /proc, those below
/// 1024.
fn open_descriptors() -> Vec<Fd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(list) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else {
        return (0..1024).collect();
    };
    let list = kernel::into_number(list);
    let mut numbers = Vec::new();
    if let Ok(borrowed) = kernel::borrow(list) {
        let mut buffer = Vec::with_capacity(4096);
        let mut entries = rustix::fs::RawDir::new(borrowed, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = core::str::from_utf8(entry.file_name().to_bytes()).unwrap_or("");
            numbers.extend(name.parse::<Fd>().ok());
        }
    }
    let _ = kernel::close(list);
    let most = Fd::try_from(MAX_FDS).unwrap_or(Fd::MAX);
    numbers.retain(|fd| *fd != list && *fd < most);
    numbers
}

const _: () = assert!(placeholder_offset(0) == 1);

/// The type that statfs(2) reports for a FUSE file system.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// True if a path is a directory or something below it.
fn is_at_or_below(path: &[u8], dir: &[u8]) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}
