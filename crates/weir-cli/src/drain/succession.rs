//! The next process of a drain, when this one hangs in calls of the target.
//!
//! It goes on as after one that was killed, without the paths of these calls ([`hung_calls`](super::hung_calls)). It has the
//! standard input and output of this one, and so the same parent, which learns of it by a [`DrainWord`].

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_instance::errln;
use weir_mover::CallWatch;

use super::hung_calls::HungCalls;
use super::messages::{socket_of, starting_mark_of};
use super::orders::{give_up, leave, DrainWord, OrderInput};
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::exit::FAILED;
use crate::stage::SignalThread;

/// The time after which calls count as hanging, if none returns meanwhile. To sync a large file may take minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// The same in a process that has come after another one: more files may be on the part of the target that is away.
const LATER_PATIENCE: Duration = Duration::from_secs(60);
/// The longest time for which a path is avoided after its calls have returned.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// The most processes that hang at the same time.
const MOST_HANGING: usize = 8;
/// The time for which this process closes its files.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// The time in which calls return that do not hang.
const RETURN_TIME: Duration = Duration::from_secs(2);
/// The interval between two checks for that.
const LOOK: Duration = Duration::from_millis(5);

/// The way to the next process.
#[derive(Debug)]
pub struct Succession {
    run_dir: PathBuf,
    target: PathBuf,
    /// The command line of the next process.
    words: Vec<OsString>,
    /// The number of processes of this drain that have left calls behind.
    generation: u32,
    patience: Duration,
    watch: Arc<CallWatch>,
    hung: Arc<HungCalls>,
    orders: Arc<OrderInput>,
    signals: SignalThread,
    /// Held by the thread that ends this process.
    leaving: Mutex<()>,
}

impl Succession {
    pub fn new(
        args: &DrainProcessArgs,
        watch: &Arc<CallWatch>,
        hung: &Arc<HungCalls>,
        orders: &Arc<OrderInput>,
        signals: SignalThread,
    ) -> Succession {
        let generation = args.generation;
        let patience = match generation {
            0 => PATIENCE,
            _ => LATER_PATIENCE,
        };
        Succession {
            run_dir: args.run_dir.clone(),
            target: args.target.clone(),
            words: args.words_after(earlier_drains(args), generation.saturating_add(1)),
            generation,
            patience: args.stuck_limit().unwrap_or(patience).min(patience),
            watch: Arc::clone(watch),
            hung: Arc::clone(hung),
            orders: Arc::clone(orders),
            signals,
            leaving: Mutex::default(),
        }
    }

    fn begin_to_leave(&self) -> MutexGuard<'_, ()> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over if no call has returned for some time, though the target as a whole does not hang. Returns otherwise.
    pub fn hand_over_if_hung(&self, name_calls: impl FnOnce()) {
        let _leaving = self.begin_to_leave();
        let is_due = self.watch.time_without_return() >= self.patience
            && self.watch.has_returned()
            && self.hung.hanging_processes() < MOST_HANGING;
        if !is_due || !self.watch.close_if_hung(self.patience) {
            return;
        }
        name_calls();
        let rest = self.patience * 2_u32.saturating_pow(self.generation.min(16));
        let Err(error) = self.hand_over(rest.min(LONGEST_REST));
        errln!("weir: drain: cannot go on without these: {error}");
        give_up();
    }

    /// Makes this process begin anew, since a new server has taken the place of the one that it knew.
    pub fn begin_anew(&self, args: &DrainProcessArgs) -> ! {
        let _leaving = self.begin_to_leave();
        // A call that hangs would hold up execve(2), which ends all other threads first.
        self.watch.close();
        let mut waits = RETURN_TIME.as_millis() / LOOK.as_millis();
        while waits > 0 && !self.watch.paths_under_way().is_empty() {
            std::thread::sleep(LOOK);
            waits -= 1;
        }
        let error = if self.watch.paths_under_way().is_empty() {
            let words = args.words_after(earlier_drains(args), self.generation);
            // With this mark `weir drain` waits for the new socket.
            self.mark_start(std::process::id());
            self.remove_socket();
            next_process(&words).exec()
        } else {
            let Err(error) = self.hand_over(Duration::ZERO);
            error
        };
        errln!("weir: drain: cannot begin anew: {error}");
        // The parent moves everything again.
        leave(DrainWord::Ended(FAILED))
    }

    /// Starts the next process, and ends this one. No call begins any more.
    fn hand_over(&self, rest: Duration) -> io::Result<Infallible> {
        let paths = self.watch.paths_under_way();
        let (_reading, order) = self.orders.stop_reading();
        let kept = self.hung.note(&self.watch, rest, order.is_some())?;
        let mut next = next_process(&self.words);
        next.stdin(match order {
            None => Stdio::inherit(),
            Some(_) => Stdio::piped(),
        });
        let mut next = next.spawn().inspect_err(|_| self.hung.take_back())?;
        self.mark_start(next.id());
        self.remove_socket();
        if let (Some(order), Some(input)) = (order, &mut next.stdin) {
            // If it is dead, the parent learns of it.
            let _ = input.write_all(&order.to_bytes());
        }
        errln!(
            "weir: drain: process {} moves the other files to {}",
            next.id(),
            self.target.display()
        );
        // Its thread would fail without its descriptors.
        self.signals.stop_hearing();
        close_files(kept.as_raw_fd(), paths);
        leave(DrainWord::HandedOver(next.id()))
    }

    fn mark_start(&self, process: u32) {
        let _ = std::fs::write(starting_mark_of(&self.run_dir, process), "");
    }

    /// Removes the socket of this process.
    pub fn remove_socket(&self) {
        let _ = std::fs::remove_file(socket_of(&self.run_dir, std::process::id()));
    }
}

/// The drains before the next process.
fn earlier_drains(args: &DrainProcessArgs) -> EarlierDrains {
    match args.before {
        EarlierDrains::LostServers => EarlierDrains::LostServers,
        EarlierDrains::Ended | EarlierDrains::Killed => EarlierDrains::Killed,
    }
}

/// This program, even if its file was replaced meanwhile.
fn next_process(words: &[OsString]) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg("drain-process").args(words);
    program
}

/// Closes all files, sockets and pipes of this process but one and the standard ones: a thread in a call that hangs keeps
/// them open, with their locks. Those at `paths` stay, too: to close them may hang. Nothing but the end of the process may
/// follow.
fn close_files(kept: RawFd, paths: Vec<PathBuf>) {
    let (done, closed) = channel();
    std::thread::spawn(move || {
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
        let entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        for entry in entries {
            let number = entry
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            let Some(fd) = number.filter(|fd: &RawFd| *fd > 2 && *fd != kept) else {
                continue;
            };
            let is_hung = |link: PathBuf| paths.iter().any(|path| is_of(&link, path));
            if !std::fs::read_link(&entry).is_ok_and(is_hung) {
                let _ = nix::unistd::close(fd);
            }
        }
        let _ = done.send(());
    });
    let _ = closed.recv_timeout(CLOSE_TIME);
}

/// True if a link of /proc/self/fd may be that of a path, which may lead through symbolic links.
fn is_of(link: &Path, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let link = link.file_name().unwrap_or_default();
    // The kernel appends " (deleted)" to the path of a file that has lost its name.
    link.as_bytes().starts_with(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_name() {
        let path = Path::new("/pfs/.a.weir-part");
        for (link, is_it) in [
            ("/mnt/pfs/.a.weir-part", true),
            ("/mnt/pfs/.a.weir-part (deleted)", true),
            ("/mnt/pfs/.b.weir-part", false),
            ("socket:[7]", false),
        ] {
            assert_eq!(is_of(Path::new(link), path), is_it, "{link}");
        }
    }
}
