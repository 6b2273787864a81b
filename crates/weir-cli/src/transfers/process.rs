//! The process of the transfer service, `weir transfer-process`: threads that move files, and one thread for each request
//! of a program.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use weir_client::socket::{receive_with, send};
use weir_client::transfer::{TransferId, TransferReply, TransferRequest, BEGUN};
use weir_mover::transfer::TransferTable;
use weir_mover::InstanceTree;

use super::work::{FileWork, TransferTrees};
use crate::args::TransferProcessArgs;
use crate::share;

/// The timeout of a read or a write on a connection.
const TALK_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks that a waiting program is alive.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Longer than any transfer takes.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// `weir transfer-process`: serves the socket that is its standard input until its server ends.
pub fn serve(args: &TransferProcessArgs) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let _ = set_name(c"weir-transfer");
    // Replaces the signal mask inherited from the server. These stay blocked: a batch system sends them to all processes of
    // a job, also while a program waits for its transfers.
    let ignored = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    let blocked: SigSet = ignored.into_iter().collect();
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
    let listener: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let listener = UnixListener::from(listener);
    let run_dir = &args.run_dir;
    let instance = InstanceTree::attach(run_dir)
        .with_context(|| format!("cannot reach the server of {}", run_dir.display()))?;
    share::allow_open_files();
    share::give_way();
    let service = Arc::new(TransferService {
        trees: TransferTrees::new(run_dir, instance, args.evict_percent),
        table: TransferTable::new(life_number(), FileWork::leaves_instance),
    });
    for _ in 0..share::threads_beside() {
        let service = Arc::clone(&service);
        std::thread::Builder::new().spawn(move || service.work())?;
    }
    // Without this file the end of the instance does not wait for transfers.
    let _ = std::fs::write(run_dir.join(BEGUN), "");
    for caller in listener.incoming().flatten() {
        let service = Arc::clone(&service);
        // A caller that goes away, or does not read, ends its thread. If no thread can be started, its connection is
        // closed.
        let answer = move || drop(service.answer(&caller));
        let _ = std::thread::Builder::new().spawn(answer);
    }
    Ok(())
}

/// The number before the first transfer of this process.
fn life_number() -> TransferId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.unwrap_or_default().as_secs() & 0x7fff_ffff) << 32
}

#[derive(Debug)]
struct TransferService {
    trees: TransferTrees,
    table: TransferTable<FileWork>,
}

impl TransferService {
    /// Moves files, for ever.
    fn work(&self) {
        loop {
            let task = self.table.next();
            let moved = self.trees.move_file(&task.work, &task.progress);
            self.table.end_file(&task, moved);
        }
    }

    fn answer(&self, caller: &UnixStream) -> Result<()> {
        caller.set_read_timeout(Some(TALK_TIME))?;
        caller.set_write_timeout(Some(TALK_TIME))?;
        let (request, _) = receive_with::<TransferRequest>(caller)?;
        let reply = match request {
            TransferRequest::Copy(files) => {
                let files = files.into_iter().map(|file| self.trees.plan_copy(file));
                self.add(files)
            }
            TransferRequest::Prefetch(paths) => {
                let files = paths.into_iter().map(|path| self.trees.plan_prefetch(path));
                self.add(files)
            }
            TransferRequest::Await { id, wait_ms } => self.report(caller, id, wait_ms),
            TransferRequest::Cancel(id) => self.table.cancel(id).map(|()| TransferReply::Done),
            TransferRequest::FindUnfinished { wait_ms } => {
                let wait = Duration::from_millis(wait_ms.into());
                Ok(TransferReply::Unfinished(self.table.find_unfinished(wait)))
            }
            TransferRequest::FindDrainState(path) => {
                let found = self.trees.find_drain_state(path);
                found.map(TransferReply::Drain)
            }
            TransferRequest::Drain { path, wait_ms } => {
                let goes_on = || !has_hung_up(caller);
                let drained = self.trees.drain_first(path, end_of_wait(wait_ms), goes_on);
                drained.map(TransferReply::Drained)
            }
        };
        let refused = |errno: Errno| TransferReply::Refused(errno.raw_os_error());
        Ok(send(caller, &reply.unwrap_or_else(refused))?)
    }

    /// Adds a transfer, unless one of its files is refused.
    fn add(
        &self,
        files: impl Iterator<Item = Result<FileWork, Errno>>,
    ) -> Result<TransferReply, Errno> {
        let files = files.collect::<Result<Vec<_>, _>>()?;
        self.table.add(files).map(TransferReply::Started)
    }

    /// Waits for the end of a transfer, as long as the program that asks stays connected.
    fn report(
        &self,
        caller: &UnixStream,
        id: TransferId,
        wait_ms: Option<u32>,
    ) -> Result<TransferReply, Errno> {
        let until = end_of_wait(wait_ms);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let report = self.table.report(id, left.min(LOOK_INTERVAL))?;
            let is_over = Instant::now() >= until;
            if report.has_ended || is_over || has_hung_up(caller) {
                return Ok(TransferReply::Report(report));
            }
        }
    }
}

fn end_of_wait(wait_ms: Option<u32>) -> Instant {
    let wait = wait_ms.map_or(FOREVER, |ms| Duration::from_millis(ms.into()));
    Instant::now() + wait
}

/// True if the other side of a connection is gone.
fn has_hung_up(caller: &UnixStream) -> bool {
    let mut looked = [PollFd::new(caller, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut looked, Some(&now)), Ok(1..))
}
