//! The server's side of the transfer service: its socket, and its process, which the first connection starts.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use weir_client::transfer::SOCKET;

/// The least time between two processes: each numbers its transfers by the second of its start.
const START_INTERVAL: Duration = Duration::from_secs(2);

/// The transfer service of a server.
#[derive(Debug)]
pub struct TransferStarter {
    socket: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_ending: AtomicBool,
    child: Mutex<Option<Child>>,
}

impl TransferStarter {
    /// Listens. `evict_percent`: the part of the storage that prefetching may fill.
    pub fn listen(run_dir: &Path, evict_percent: u32) -> Result<TransferStarter> {
        let socket = run_dir.join(SOCKET);
        // It was left by a server that was killed.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
        let shared = Arc::<Shared>::default();
        let starter = TransferStarter {
            socket,
            shared: Arc::clone(&shared),
        };
        let run_dir = run_dir.to_owned();
        // The kernel kills the process when the thread that started it ends, so this one stays.
        let thread = std::thread::Builder::new().name("weir-transfer".into());
        thread.spawn(move || {
            while let Err(error) = shared.start_and_wait(&listener, &run_dir, evict_percent) {
                tracing::error!("the transfer service: {error:#}");
                std::thread::sleep(START_INTERVAL);
            }
        })?;
        Ok(starter)
    }

    /// Ends the process, and does not wait for it: a call of it may hang.
    pub fn stop(self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        if let Some(child) = &mut *self.shared.child() {
            let _ = child.kill();
        }
        // Needed if the run directory stays.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Shared {
    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process for the first connection that waits, and returns an error when that process has ended; `Ok`: the
    /// server ends.
    fn start_and_wait(
        &self,
        listener: &UnixListener,
        run_dir: &Path,
        evict_percent: u32,
    ) -> Result<()> {
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        poll(&mut waiting, PollTimeout::NONE).context("waiting for a program")?;
        let listener = OwnedFd::from(listener.try_clone().context("the socket")?);
        let program = std::env::current_exe().context("finding the weir program")?;
        let pid = {
            let mut child = self.child();
            if self.is_ending.load(Ordering::Relaxed) {
                return Ok(());
            }
            let started = Command::new(program)
                .arg("transfer-process")
                .arg(format!("--evict-percent={evict_percent}"))
                .arg("--")
                .arg(run_dir)
                // The process must belong to no instance: it must not see its own file system below it.
                .env("LD_PRELOAD", "")
                .env("WEIR_INSTANCE", "")
                .stdin(Stdio::from(listener))
                .stdout(Stdio::null())
                .spawn();
            let started = started.context("starting its process")?;
            child.insert(started).id()
        };
        // Waits by the process number: `stop` needs the child's handle.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).context("a process")?);
        let ended = nix::sys::wait::waitid(
            nix::sys::wait::Id::Pid(pid),
            nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
        );
        let mut child = self.child();
        if let Some(mut child) = child.take() {
            // It has ended, so this does not wait.
            let _ = child.wait();
        }
        match self.is_ending.load(Ordering::Relaxed) {
            true => Ok(()),
            false => {
                anyhow::bail!("its process ended: {ended:?}; transfers that it had are given up")
            }
        }
    }
}
