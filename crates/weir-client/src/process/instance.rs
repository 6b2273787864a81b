//! The instance that this process uses: its directories, its memory, the session with its server.
//!
//! Each is there as soon as it was needed, and then for as long as the process lives; only a forked
//! child hangs up the session of its parent. What changes the connection is called under the lock
//! of the process.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_core::elevate_rule::{ElevateRule, RULE_FILE};
use weir_core::elevated::{self, ALIAS_LINK, MOST_OTHER_NAMES, MOST_TREES, TARGET_LINK};
use weir_core::proto::{ClientKind, PREFIX_LINK, SHM_LINK};

use super::environment::{variable, MIRROR_VARIABLE, PREFIX_VARIABLE};
use super::forks::ForkWatch;
use super::known_paths::{OpaqueDirectories, OutsidePaths};
use crate::beneath::{mount_of, sees_mirrors};
use crate::kernel::{Fd, Slot};
use crate::node::Node;
use crate::path::{ElevatedTree, Prefix, Roots};
use crate::session::Session;

/// The default mount prefix of instances.
const USUAL_PREFIX: &[u8] = b"/weir";

/// Slabs' descriptors are moved above this number where the limit of descriptors
/// allows (it is seldom less than 1024).
const LOWEST_SLAB_FD: Fd = 224;

/// The directories and the prefix of the instance.
#[derive(Debug)]
pub struct Instance {
    /// Its run directory.
    pub run_dir: Vec<u8>,
    /// Its directory of shared memory.
    pub shm_dir: Vec<u8>,
    /// The directories at which its trees are seen.
    pub roots: Roots,
    /// Directories of elevated trees that are known to be opaque.
    pub(super) opaque: OpaqueDirectories,
    /// Paths that are known to lead into no elevated tree.
    pub(super) outside: OutsidePaths,
}

impl Instance {
    /// An instance that is named but gone. The paths below its mount are not the kernel's: a
    /// program would write into a directory that has the mount's name by chance, and go on.
    pub(super) fn ended(run_dir: Vec<u8>) -> Instance {
        let named = variable(PREFIX_VARIABLE);
        let prefix = named.and_then(|named| Prefix::new(&named));
        Instance {
            // Nothing there is a region: a process that needs one learns that the server is gone.
            shm_dir: run_dir.clone(),
            run_dir,
            roots: Roots::of_mount(
                prefix.unwrap_or_else(|| Prefix::new(USUAL_PREFIX).expect("a good prefix")),
            ),
            opaque: OpaqueDirectories::new(),
            outside: OutsidePaths::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(roots: Roots) -> Instance {
        Instance {
            run_dir: Vec::new(),
            shm_dir: Vec::new(),
            roots,
            opaque: OpaqueDirectories::new(),
            outside: OutsidePaths::new(),
        }
    }
}

/// The target of a link in a run directory.
fn link_of(run_dir: &[u8], name: &str) -> Option<Vec<u8>> {
    let path = [run_dir, b"/", name.as_bytes()].concat();
    let target = rustix::fs::readlink(path, Vec::new()).ok()?;
    Some(target.into_bytes())
}

/// The rule of an elevated tree.
fn rule_of(run_dir: &[u8], number: usize) -> ElevateRule {
    let path = [run_dir, b"/", format!("{RULE_FILE}{number}").as_bytes()].concat();
    read_whole(&path).map_or_else(
        |_| ElevateRule::default(),
        |rule| ElevateRule::from_bytes(&rule),
    )
}

fn read_whole(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let size = rustix::fs::fstat(&file)?.st_size;
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::FBIG)?];
    let length = rustix::io::read(&file, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// The elevated trees of the instance with this run directory; none where mirrors lie over them: there the kernel finds the
/// whole trees.
pub(super) fn elevated_trees(run_dir: &[u8]) -> Box<[ElevatedTree]> {
    let tree = |number| {
        let target = link_of(run_dir, &format!("{TARGET_LINK}{number}"))?;
        let alias = link_of(run_dir, &format!("{ALIAS_LINK}{number}"));
        let other = |other| link_of(run_dir, &elevated::other_name_link(number, other));
        let others = (0..MOST_OTHER_NAMES).map_while(other);
        Some(ElevatedTree {
            root: elevated::root_of_tree(number),
            target: Prefix::new(&target)?.with_mounts(alias.into_iter().chain(others)),
            rule: rule_of(run_dir, number),
        })
    };
    let trees: Box<[ElevatedTree]> = (0..MOST_TREES).map_while(tree).collect();
    match !trees.is_empty() && sees_mirrors(run_dir) {
        true => Box::default(),
        false => trees,
    }
}

/// The kind of client that this process is.
fn client_kind() -> ClientKind {
    match variable(MIRROR_VARIABLE) {
        Some(_) => ClientKind::Mount,
        None => ClientKind::Program,
    }
}

/// The error for a process whose instance has lost its directories or its server.
fn ended(error: Errno) -> Errno {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED | Errno::CONNRESET => Errno::SHUTDOWN,
        error => error,
    }
}

/// The process's way to its instance.
#[derive(Debug)]
pub(super) struct InstanceConnection {
    instance: Slot<Instance>,
    node: Slot<Node>,
    session: Slot<Session>,
}

impl InstanceConnection {
    /// To no instance.
    pub(super) const fn new() -> InstanceConnection {
        InstanceConnection {
            instance: Slot::empty(),
            node: Slot::empty(),
            session: Slot::empty(),
        }
    }

    /// The directories of the instance, if there is one.
    #[inline]
    pub(super) fn instance(&self) -> Option<&'static Instance> {
        self.instance.get()
    }

    /// The node's memory, if it is mapped.
    #[inline]
    pub(super) fn node(&self) -> Option<&'static Node> {
        self.node.get()
    }

    /// The session, if this process has one.
    #[inline]
    pub(super) fn session(&self) -> Option<&'static Session> {
        self.session.get()
    }

    /// The directory at which the kernel has mounted the instance, if it has.
    pub(super) fn mount(&self) -> Option<Vec<u8>> {
        mount_of(&self.instance()?.run_dir)
    }

    /// From now on the process is one of this instance.
    pub(super) fn set_instance(&self, instance: Instance) -> &'static Instance {
        let instance: &'static Instance = Box::leak(Box::new(instance));
        self.instance.set(Some(instance));
        instance
    }

    /// From now on this is the session.
    pub(super) fn set_session(&self, session: Session) -> &'static Session {
        let session: &'static Session = Box::leak(Box::new(session));
        self.node.set(Some(session.node()));
        self.session.set(Some(session));
        session
    }

    /// Reads the directories of the instance; asks the server if the run directory does not name
    /// them.
    pub(super) fn find_instance(&self, run_dir: Vec<u8>, forks: &ForkWatch) -> Option<Instance> {
        let link = |name: &str| link_of(&run_dir, name);
        let known = link(SHM_LINK).zip(link(PREFIX_LINK));
        let (shm_dir, prefix) = if let Some(known) = known {
            known
        } else {
            let session = Session::connect(&run_dir, client_kind()).ok()?;
            forks.detect_forks();
            let welcome = self.set_session(session).welcome();
            let shm_dir = welcome.shm_dir.clone().into();
            (shm_dir, welcome.prefix.clone().into())
        };
        Some(Instance {
            shm_dir,
            roots: Roots {
                main: Prefix::new(&prefix)?.with_mounts(mount_of(&run_dir)),
                elevated: elevated_trees(&run_dir),
            },
            opaque: OpaqueDirectories::new(),
            outside: OutsidePaths::new(),
            run_dir,
        })
    }

    /// The node's memory, mapped if need be.
    pub(super) fn map_node(&self) -> Result<&'static Node, Errno> {
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let instance = self.instance.get().ok_or(Errno::SHUTDOWN)?;
        let node: &'static Node = Box::leak(Box::new(Node::map(&instance.shm_dir).map_err(ended)?));
        self.node.set(Some(node));
        Ok(node)
    }

    /// The session, connected if need be.
    pub(super) fn connect(&self, forks: &ForkWatch) -> Result<&'static Session, Errno> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        let instance = self.instance.get().ok_or(Errno::SHUTDOWN)?;
        let node = self.map_node()?;
        let session = Session::connect_to(&instance.run_dir, node, client_kind());
        let session = session.map_err(ended)?;
        forks.detect_forks();
        Ok(self.set_session(session))
    }

    /// In a forked child: the session is the parent's.
    pub(super) fn hang_up(&self) {
        if let Some(session) = self.session.swap(None) {
            session.hang_up();
        }
    }

    /// True if the descriptor is that of a slab of the file tier. They are few and at high numbers,
    /// and the table of all slabs is long.
    #[inline]
    pub(super) fn is_slab_fd(&self, fd: Fd) -> bool {
        fd >= LOWEST_SLAB_FD
            && self
                .node
                .get()
                .is_some_and(|node| node.kept_fds().any(|kept| kept == fd))
    }

    /// Forgets the descriptor of a slab, because it was closed behind our back.
    pub(super) fn disown_slab_fd(&self, fd: Fd) {
        if let Some(slabs) = self.node.get().and_then(Node::slabs_in_use) {
            slabs.disown(fd);
        }
    }
}
