//! Finding the instance, mapping its memory, connecting.
//!
//! Each step is done when it is first needed: a process that uses nothing of weir reads two links
//! and its list of descriptors; one that only looks at files maps the tables; one that opens files
//! connects.

use core::sync::atomic::Ordering;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_core::proto::{ClientKind, PREFIX_LINK, SHM_LINK};
use weir_core::types::Ino;

use super::table::{Handle, DIR, PATH, READ, WRITE};
use super::Process;
use crate::beneath::mount_of;
use crate::kernel;
use crate::limits;
use crate::node::Node;
use crate::path::Prefix;
use crate::session::Session;
use crate::sys;

/// Nothing was looked at yet.
pub const UNKNOWN: u32 = 0;
/// There is no instance.
const ABSENT: u32 = 1;
/// There is one.
pub(super) const READY: u32 = 2;

/// The environment variable that names the instance by its run directory.
pub const INSTANCE_VARIABLE: &str = "WEIR_INSTANCE";
/// The environment variable that holds the mount prefix, even after the run directory is gone.
pub const PREFIX_VARIABLE: &str = "WEIR_AT";
/// The environment variable by which a process that begins a program tells it that it inherits no
/// descriptor of weir's: the process's number.
pub const NOTHING_VARIABLE: &str = "WEIR_NOTHING_INHERITED";
/// The default mount prefix of instances.
const USUAL_PREFIX: &[u8] = b"/weir";

/// The directories and the prefix of the instance.
#[derive(Debug)]
pub struct Instance {
    /// Its run directory.
    pub run_dir: Vec<u8>,
    /// Its directory of shared memory.
    pub shm_dir: Vec<u8>,
    /// Its mount prefix.
    pub prefix: Prefix,
}

impl Instance {
    /// An instance that is named but gone. The paths below its mount are not the kernel's: a
    /// program would write into a directory that has the mount's name by chance, and go on.
    fn ended(run_dir: Vec<u8>) -> Instance {
        let named = variable(PREFIX_VARIABLE);
        let prefix = named.and_then(|named| Prefix::new(&named));
        Instance {
            // Nothing there is a region: a process that needs one learns that the server is gone.
            shm_dir: run_dir.clone(),
            run_dir,
            prefix: prefix.unwrap_or_else(|| Prefix::new(USUAL_PREFIX).expect("a good prefix")),
        }
    }
}

/// The error for a process whose instance has lost its directories or its server.
fn ended(error: Errno) -> Errno {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED | Errno::CONNRESET => Errno::SHUTDOWN,
        error => error,
    }
}

impl Process {
    /// True if [`Process::start`] has nothing more to do.
    #[inline]
    pub(super) fn is_started(&self) -> bool {
        self.state.load(Ordering::Acquire) != UNKNOWN
    }

    /// Initialises, unless that has happened already: adopts the descriptors inherited over exec.
    pub fn init(&'static self) {
        if !self.is_started() {
            self.start();
        }
    }

    /// The instance, if there is one.
    #[inline]
    pub(super) fn instance(&'static self) -> Option<&'static Instance> {
        if !self.is_started() {
            self.start();
        }
        self.instance.get()
    }

    #[cold]
    pub(super) fn start(&'static self) {
        // A call from within (an allocator that opens files) is the kernel's.
        if self.lock.is_mine() {
            return;
        }
        let _held = self.lock.hold();
        if self.is_started() {
            return;
        }
        let Some(named) = named_instance() else {
            self.state.store(ABSENT, Ordering::Release);
            return;
        };
        self.forks.become_owner();
        let found = self.find(named.clone());
        let instance = found.unwrap_or_else(|| Instance::ended(named));
        let mask = rustix::process::umask(Mode::empty());
        rustix::process::umask(mask);
        self.user.set_umask(mask.bits());
        self.look_at_credentials();
        let instance: &'static Instance = Box::leak(Box::new(instance));
        self.instance.set(Some(instance));
        self.adopt(Some(instance));
        self.state.store(READY, Ordering::Release);
    }

    /// Reads the directories of the instance; asks the server if the run directory does not name
    /// them.
    fn find(&self, run_dir: Vec<u8>) -> Option<Instance> {
        let link = |name: &str| {
            let path = [&run_dir, &b"/"[..], name.as_bytes()].concat();
            let target = rustix::fs::readlink(path, Vec::new()).ok()?;
            Some(target.into_bytes())
        };
        let known = link(SHM_LINK).zip(link(PREFIX_LINK));
        let (shm_dir, prefix) = if let Some(known) = known {
            known
        } else {
            let session: &'static Session = Box::leak(Box::new(
                Session::connect(&run_dir, ClientKind::Program).ok()?,
            ));
            self.forks.detect_forks();
            self.node.set(Some(session.node()));
            self.session.set(Some(session));
            let welcome = session.welcome();
            let shm_dir = welcome.shm_dir.clone().into();
            (shm_dir, welcome.prefix.clone().into())
        };
        Some(Instance {
            shm_dir,
            prefix: Prefix::new(&prefix)?.with_mount(mount_of(&run_dir)),
            run_dir,
        })
    }

    /// The node's memory, mapped if need be.
    #[inline]
    pub(super) fn node(&self) -> Result<&'static Node, Errno> {
        match self.node.get() {
            Some(node) => Ok(node),
            None => self.map_node(),
        }
    }

    #[cold]
    fn map_node(&self) -> Result<&'static Node, Errno> {
        let _held = self.lock.hold();
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let instance = self.instance.get().ok_or(Errno::SHUTDOWN)?;
        let node: &'static Node = Box::leak(Box::new(Node::map(&instance.shm_dir).map_err(ended)?));
        self.node.set(Some(node));
        Ok(node)
    }

    #[cold]
    pub(super) fn connect(&self) -> Result<&'static Session, Errno> {
        let _held = self.lock.hold();
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        let instance = self.instance.get().ok_or(Errno::SHUTDOWN)?;
        let session = Session::connect_to(&instance.run_dir, self.node()?, ClientKind::Program)
            .map_err(ended)?;
        let session: &'static Session = Box::leak(Box::new(session));
        self.forks.detect_forks();
        self.session.set(Some(session));
        Ok(session)
    }

    /// Called after setuid(2) or one of its kin.
    pub fn credentials_changed(&self) {
        if self.instance.get().is_some() {
            self.look_at_credentials();
        }
    }

    pub(super) fn look_at_credentials(&self) {
        let _held = self.lock.hold();
        self.user.read_credentials();
    }

    /// Called after setrlimit(2) or prlimit(2): makes the next writes need a decision.
    pub fn limits_changed(&self) {
        limits::look();
        if self.session.get().is_none() {
            return;
        }
        let _held = self.lock.hold();
        self.files.iter().for_each(|file| file.vnode.decide_anew());
    }

    /// Called after umask(2) with `mask`.
    pub fn umask_changed(&self, mask: u32) {
        self.user.set_umask(mask & 0o777);
    }

    /// Makes `handle` one of the file `ino`, opened with `flags`.
    pub(super) fn fill(
        &self,
        handle: &'static Handle,
        ino: Ino,
        kind: weir_core::names::FileType,
        flags: u32,
    ) {
        use weir_core::names::FileType;
        let path_only = flags & super::open::O_PATH.cast_unsigned() != 0;
        let mut access = match flags & 3 {
            _ if path_only => PATH,
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        if kind == FileType::Dir {
            access |= DIR;
        }
        handle.ino.store(ino.0, Ordering::Relaxed);
        handle.access.store(access, Ordering::Relaxed);
        handle.locked.store(false, Ordering::Relaxed);
        let file = (kind == FileType::File && !path_only).then(|| self.files.open(ino));
        handle.file.set(file);
    }
}

/// The run directory that the environment names.
fn named_instance() -> Option<Vec<u8>> {
    variable(INSTANCE_VARIABLE)
}

/// An environment variable, if it is not empty. Before libc has set up the environment, it is read
/// from the kernel's.
pub(super) fn variable(name: &str) -> Option<Vec<u8>> {
    let value = match sys::has_environment() {
        true => std::env::var_os(name)?.into_vec(),
        false => first_environment()?
            .split(|byte| *byte == 0)
            .find_map(|variable| {
                let value = variable.strip_prefix(name.as_bytes())?;
                value.strip_prefix(b"=").map(<[u8]>::to_vec)
            })?,
    };
    (!value.is_empty()).then_some(value)
}

/// The environment that this program was started with.
fn first_environment() -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/proc/self/environ", flags, Mode::empty()).ok()?;
    let fd = kernel::into_number(fd);
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    let read = loop {
        let read = kernel::borrow(fd).and_then(|file| rustix::io::read(file, &mut bytes));
        match read {
            Ok(0) => break Some(all),
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(_) => break None,
        }
    };
    let _ = kernel::close(fd);
    read
}
