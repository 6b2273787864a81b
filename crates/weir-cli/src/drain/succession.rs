//! The next process of a drain, when this one hangs in calls of the target.
//!
//! It goes on as after one that was killed, without the paths of these calls ([`hung_calls`](super::hung_calls)). It has the
//! standard input and output of this one, and so the same parent, which learns of it by a [`DrainWord`].

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::{CallUnderWay, CallWatch};

use super::hung_calls::HungCalls;
use super::messages::{socket_of, starting_mark_of};
use super::orders::{begin_to_leave, leave, DrainWord, OrderInput};
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::exit::FAILED;
use crate::stage::SignalThread;

/// The time after which calls count as hanging, if none returns meanwhile. To sync a large file may take minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// The same while calls of an earlier process hang, but for syncs: more files may be on the part of the target that is away.
const LATER_PATIENCE: Duration = Duration::from_secs(60);
/// The longest time for which a path is avoided after its calls have returned.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// The most processes whose calls are avoided at the same time.
const MOST_LEFT: usize = 8;
/// The most of them after the command has ended: it may be all that a batch system still waits for.
const MOST_LEFT_AT_END: usize = 2;
/// The time after which a start of the next process that failed is tried again.
const RETRY_TIME: Duration = Duration::from_secs(60);
/// The time within which a target that does not hang as a whole answers.
const PROBE_TIME: Duration = Duration::from_secs(2);
/// The time for which this process closes its files.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// The threads that close them: some may hang.
const CLOSERS: usize = 32;
/// The time in which calls return that do not hang.
const RETURN_TIME: Duration = Duration::from_secs(2);
/// The interval between two checks for that.
const LOOK: Duration = Duration::from_millis(5);

/// The way to the next process.
#[derive(Debug)]
pub struct Succession {
    run_dir: PathBuf,
    target: PathBuf,
    /// The command lines of the next process: if this one begins anew, and if it leaves calls behind.
    words: [Vec<OsString>; 2],
    /// The number of processes of this drain that have left calls behind.
    generation: u32,
    /// The longest time without a call that returns, after the command has ended; `None`: no limit.
    limit: Option<Duration>,
    watch: Arc<CallWatch>,
    hung: Arc<HungCalls>,
    orders: Arc<OrderInput>,
    signals: OnceLock<SignalThread>,
    /// The end of a probe of the target that has not returned.
    probe: Mutex<Option<Receiver<()>>>,
    /// The time of the last start of a next process that failed.
    failed: Mutex<Option<Instant>>,
}

impl Succession {
    pub fn new(
        args: &DrainProcessArgs,
        watch: &Arc<CallWatch>,
        hung: &Arc<HungCalls>,
        orders: &Arc<OrderInput>,
    ) -> Succession {
        let before = match args.before {
            EarlierDrains::LostServers => EarlierDrains::LostServers,
            EarlierDrains::Ended | EarlierDrains::Killed => EarlierDrains::Killed,
        };
        let generations = [args.generation, args.generation.saturating_add(1)];
        Succession {
            run_dir: args.run_dir.clone(),
            target: args.target.clone(),
            words: generations.map(|generation| args.words_of_next(before, generation)),
            generation: args.generation,
            limit: args.stuck_limit(),
            watch: Arc::clone(watch),
            hung: Arc::clone(hung),
            orders: Arc::clone(orders),
            signals: OnceLock::new(),
            probe: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Sets the thread that hears signals.
    pub fn set_signals(&self, signals: SignalThread) {
        let _ = self.signals.set(signals);
    }

    /// The time after which the calls under way count as hanging while the command works.
    fn patience(&self) -> Duration {
        let calls = self.watch.calls_under_way();
        let is_sync = |call: &CallUnderWay| call.call.step == "syncing";
        let longest = self.limit.unwrap_or(PATIENCE).min(PATIENCE);
        if calls.iter().all(is_sync) {
            // A sync that takes so long must end some time, though another process begins the file anew.
            longest * 2_u32.saturating_pow(self.generation.min(4))
        } else if self.hung.count_left().0 > 0 {
            longest.min(LATER_PATIENCE)
        } else {
            longest
        }
    }

    /// Hands over if no call has returned for some time, though the target as a whole does not hang; returns otherwise.
    /// `limit`: that time, once the command has ended.
    pub fn hand_over_if_hung(&self, limit: Option<Duration>, name_calls: impl FnOnce()) {
        let without_return = self.watch.time_without_return();
        if without_return.is_zero() {
            return;
        }
        let patience = limit.unwrap_or_else(|| self.patience());
        let is_due = without_return >= patience
            && self.may_hand_over(limit.is_some())
            && self.does_target_answer();
        let _leaving = begin_to_leave();
        if !is_due || !self.watch.close_if_hung(patience) {
            return;
        }
        name_calls();
        let rest = match limit {
            // The end waits for no second try.
            Some(_) => LONGEST_REST,
            None => patience * 2_u32.saturating_pow(self.generation.min(16)),
        };
        let Err(error) = self.hand_over(rest.min(LONGEST_REST));
        errln!("weir: drain: cannot go on without these: {error}");
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.watch.open();
    }

    fn may_hand_over(&self, is_at_end: bool) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at_end) = self.hung.count_left();
        left < MOST_LEFT
            && (!is_at_end || at_end < MOST_LEFT_AT_END)
            && failed.is_none_or(|failed| failed.elapsed() >= RETRY_TIME)
    }

    /// True if the target as a whole does not hang. Linux may know its attributes, but no new name in it; if a call that
    /// changes names in it hangs, Linux looks for no name there.
    fn does_target_answer(&self) -> bool {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let hangs = |probe: &Receiver<()>| probe.try_recv() == Err(TryRecvError::Empty);
        if probe.as_ref().is_some_and(hangs) {
            return false;
        }
        let (done, answered) = channel();
        let name = format!(".weir-{:x}", RandomState::new().hash_one(0));
        let target = self.target.clone();
        let is_locked = |call: &CallUnderWay| {
            let mut paths = call.paths();
            call.changes_names && paths.any(|path| path.parent() == Some(&target))
        };
        let is_locked = self.watch.calls_under_way().iter().any(is_locked);
        std::thread::spawn(move || {
            match is_locked {
                true => drop(rustix::fs::statvfs(&target)),
                false => drop(target.join(name).symlink_metadata()),
            }
            let _ = done.send(());
        });
        let is_answered = answered.recv_timeout(PROBE_TIME).is_ok();
        *probe = (!is_answered).then_some(answered);
        is_answered
    }

    /// Makes a new process begin anew, since a new server has taken the place of the one that this one knew.
    pub fn begin_anew(&self) -> ! {
        errln!("weir: drain: the server was started again; the drain begins anew");
        let _leaving = begin_to_leave();
        self.watch.close();
        let mut waits = RETURN_TIME.as_millis() / LOOK.as_millis();
        while waits > 0 && !self.watch.calls_under_way().is_empty() {
            std::thread::sleep(LOOK);
            waits -= 1;
        }
        let Err(error) = self.hand_over(Duration::ZERO);
        errln!("weir: drain: cannot begin anew: {error}");
        // The parent moves everything again.
        leave(DrainWord::Ended(FAILED))
    }

    /// Ends this process: not everything is safe. If a call hangs, later drains avoid its path.
    pub fn give_up(&self) -> ! {
        let _leaving = begin_to_leave();
        self.watch.close();
        self.remove_socket();
        let kept = self.note(Duration::ZERO, true).ok().flatten();
        self.leave_calls(DrainWord::GaveUp, kept.as_ref())
    }

    /// Starts the next process, and ends this one. No call begins any more.
    fn hand_over(&self, rest: Duration) -> io::Result<Infallible> {
        let (_reading, order) = self.orders.stop_reading();
        let kept = self.note(rest, order.is_some())?;
        let mut next = Command::new("/proc/self/exe");
        // This program, even if its file was replaced meanwhile.
        next.arg("drain-process");
        next.args(&self.words[usize::from(kept.is_some())]);
        next.stdin(match order {
            None => Stdio::inherit(),
            Some(_) => Stdio::piped(),
        });
        let mut next = next.spawn().inspect_err(|_| self.hung.take_back())?;
        // With this mark `weir drain` waits for the new socket.
        let _ = std::fs::write(starting_mark_of(&self.run_dir, next.id()), "");
        self.remove_socket();
        if let (Some(order), Some(input)) = (order, &mut next.stdin) {
            // If it is dead, the parent learns of it.
            let _ = input.write_all(&order.to_bytes());
        }
        if kept.is_some() {
            errln!(
                "weir: drain: process {} moves the other files to {}",
                next.id(),
                self.target.display()
            );
        }
        self.leave_calls(DrainWord::HandedOver(next.id()), kept.as_ref())
    }

    /// Notes the calls under way, if there are some.
    fn note(&self, rest: Duration, is_of_end: bool) -> io::Result<Option<File>> {
        let has_calls = !self.watch.calls_under_way().is_empty();
        let note = || self.hung.note(&self.watch, rest, is_of_end);
        has_calls.then(note).transpose()
    }

    /// Ends this process with a word, and closes all its files but the standard ones, and `kept`: a thread in a call that
    /// hangs keeps them open, with their locks.
    fn leave_calls(&self, word: DrainWord, kept: Option<&File>) -> ! {
        word.say_last();
        if let Some(kept) = kept {
            // Its thread would fail without its descriptors.
            if let Some(signals) = self.signals.get() {
                signals.stop_hearing();
            }
            close_files(kept.as_raw_fd());
        }
        std::process::exit(word.exit_code())
    }

    /// Removes the socket of this process.
    pub fn remove_socket(&self) {
        let _ = std::fs::remove_file(socket_of(&self.run_dir, std::process::id()));
    }
}

/// Closes all files, sockets and pipes of this process but one and the standard ones: first those that are not files, then
/// the files by several threads, since a close may hang. Nothing but the end of the process may follow.
fn close_files(kept: RawFd) {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let open = entries.iter().filter_map(|entry| {
        let fd: RawFd = entry.file_name()?.to_str()?.parse().ok()?;
        let is_file = std::fs::read_link(entry).is_ok_and(|link| link.is_absolute());
        (fd > 2 && fd != kept).then_some((fd, is_file))
    });
    let (files, others): (Vec<_>, Vec<_>) = open.partition(|(_, is_file)| *is_file);
    for (fd, _) in others {
        let _ = nix::unistd::close(fd);
    }
    let files = Arc::new(Mutex::new(files));
    let (done, closed) = channel::<()>();
    for _ in 0..CLOSERS {
        let (files, done) = (Arc::clone(&files), done.clone());
        std::thread::spawn(move || {
            let next = || files.lock().unwrap_or_else(PoisonError::into_inner).pop();
            while let Some((fd, _)) = next() {
                let _ = nix::unistd::close(fd);
            }
            drop(done);
        });
    }
    drop(done);
    // Until all threads have ended.
    let _ = closed.recv_timeout(CLOSE_TIME);
}
