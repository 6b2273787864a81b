//! The state of a library in a program that the interposer is not in: beside
//! [`process`](super::process), and made for one instance.
//!
//! Nothing is adopted: inherited descriptors of weir belong to the process that opened them.
//! Credentials and umask are those at the time of attaching, since nothing reports changes; the
//! current directory is looked at when a path needs it.

use core::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_core::proto::ClientKind;

use super::first_call::READY;
use super::instance::{elevated_trees, Instance};
use super::known_paths::{OpaqueDirectories, OutsidePaths};
use super::{table, Process, ProcessState};
use crate::kernel;
use crate::node::Node;
use crate::path::{Prefix, Roots};
use crate::session::Session;

/// The umask if the kernel does not tell it: only the user has access.
const NARROW_UMASK: u32 = 0o077;

impl Process {
    /// Connects to the instance with this run directory. `mapped`: its memory, if this process
    /// has mapped it before. Lives as long as the process.
    pub fn attached(
        run_dir: &[u8],
        mapped: Option<&'static Node>,
        kind: ClientKind,
    ) -> Result<&'static Process, Errno> {
        let session = match mapped {
            Some(node) => Session::connect_to(run_dir, node, kind)?,
            None => Session::connect(run_dir, kind)?,
        };
        let Some(prefix) = Prefix::new(session.welcome().prefix.as_bytes()) else {
            session.hang_up();
            return Err(Errno::PROTO);
        };
        let instance = Instance {
            run_dir: run_dir.to_vec(),
            shm_dir: session.welcome().shm_dir.clone().into(),
            roots: Roots {
                main: prefix,
                elevated: elevated_trees(run_dir),
            },
            opaque: OpaqueDirectories::new(),
            outside: OutsidePaths::new(),
        };
        let state: &'static ProcessState = Box::leak(Box::new(ProcessState::new()));
        state.server.connection.set_session(session);
        state.server.forks.become_owner();
        state.user.set_umask(umask());
        state.user.read_credentials();
        state.server.connection.set_instance(instance);
        state.progress.store(READY, Ordering::Release);
        Ok(Box::leak(Box::new(Process::over(state))))
    }

    /// The node's memory, if it is mapped and its server has not stopped.
    pub fn living_node(&self) -> Option<&'static Node> {
        let node = self.server.connection.node()?;
        (node.hub().stopped.load(Ordering::Acquire) == 0).then_some(node)
    }

    /// True if the server can still be asked.
    pub fn is_served(&'static self) -> bool {
        self.server.is_served()
    }

    /// The run directory of the instance, if there is one. Looks no further than
    /// [`Process::init`] did.
    pub fn run_dir(&self) -> Option<&'static [u8]> {
        Some(&self.server.connection.instance()?.run_dir)
    }

    /// Closes all descriptors of weir's files; the first error, if there are any.
    pub fn close_all(&'static self) -> Result<(), Errno> {
        let mut outcome = Ok(());
        for (fd, _) in table::all() {
            outcome = outcome.and(self.descriptors.close(fd).unwrap_or(Ok(())));
        }
        outcome
    }

    /// In a forked child: the parent's state is not this process's. Closes only its copies of
    /// descriptors; the parent does not notice.
    pub fn abandon(&self) {
        for (fd, _) in table::all() {
            table::set(fd, None);
            let _ = kernel::close(fd);
        }
        self.server.connection.hang_up();
    }
}

/// The process's umask, without changing it for a moment, because other threads run: umask(2)
/// would.
fn umask() -> u32 {
    let status = read_start("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    octal
        .and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok())
        .unwrap_or(NARROW_UMASK)
}

/// The first bytes of a small file.
fn read_start(path: &str) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = kernel::into_number(rustix::fs::open(path, flags, Mode::empty())?);
    let mut bytes = vec![0; 1024];
    let read = kernel::borrow(file).and_then(|file| rustix::io::read(file, &mut bytes));
    let _ = kernel::close(file);
    bytes.truncate(read?);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_the_kernels() {
        // Asked by setting it, as every test of this program may.
        let asked = rustix::process::umask(Mode::from_bits_retain(0o22));
        rustix::process::umask(asked);
        assert_eq!(umask(), asked.bits());
    }
}
