//! Running the user's command as a good parent: signals pass through, stops are mirrored, and
//! the end is told as it was.
//!
//! The command stays in weir's process group, as under env(1) or nice(1), so a shell's job
//! control and a terminal's keys reach both. From that follows what is passed on:
//! - a signal that the kernel sent (a key of the terminal) has reached the command already;
//! - one that a process sent to weir alone is passed on;
//! - when the command stops, weir stops, so that the shell notices; SIGCONT is passed on.
//!
//! A signal that was ignored when weir began (nohup) stays ignored by both. If weir is killed,
//! the kernel sends the command SIGTERM: its file system is gone with weir.
//!
//! Left out: processes that the command leaves behind; they lose the instance with its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::prctl;
use nix::sys::signal::{kill, raise, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{siginfo, SfdFlags, SignalFd};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;

use crate::exit::Failure;

/// The signals that are passed on to the command.
const PASSED_ON: &[Signal] = &[
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals by which batch systems warn of the end of a job.
pub const WARNINGS: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGXCPU,
];

/// Those of them that end a job.
const ENDING: &[Signal] = &[
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// The signals that have come, as bits.
static HEARD: AtomicU64 = AtomicU64::new(0);

fn bit_of(signal: Signal) -> u64 {
    1 << (signal as u32 - 1)
}

/// True if a signal that ends a job has come while a command was waited for.
pub fn was_told_to_end() -> bool {
    let heard = HEARD.load(Ordering::Relaxed);
    ENDING.iter().any(|signal| heard & bit_of(*signal) != 0)
}

/// True if a code is that of a command that a signal has ended, or that says so, and weir got such a signal, too: the end of
/// the job ended it.
pub fn is_end_by_signal(code: u8) -> bool {
    let number = i32::from(code) - 128;
    let signal = Signal::try_from(number).ok();
    let signal = signal.filter(|signal| ENDING.contains(signal) || WARNINGS.contains(signal));
    signal.is_some_and(|signal| HEARD.load(Ordering::Relaxed) & bit_of(signal) != 0)
}

/// The exit code of `weir run` for a command that ended so.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code & 0xff).expect("masked")
}

/// Runs a command until it ends. It ignores the signals `deaf_to`.
///
/// Must be called from the main thread: the kernel's word that weir died goes by the thread
/// that started the command.
pub fn run(mut start: Command, deaf_to: &'static [Signal]) -> Result<ExitStatus, Failure> {
    let child = spawn(&mut start, deaf_to).map_err(|source| Failure::Command {
        command: start.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    Ok(wait_for(&child)?)
}

/// Starts a command that ignores the signals `deaf_to`, and gets SIGTERM if weir dies. From the main
/// thread, as [`run`].
pub fn spawn(start: &mut Command, deaf_to: &'static [Signal]) -> std::io::Result<Child> {
    let before = Signals::block().map_err(std::io::Error::other)?.before;
    // SAFETY: the closure makes system calls that are safe after fork (sigaction, sigprocmask); it
    // allocates nothing and takes no lock. No handler of this process is replaced.
    unsafe {
        start.pre_exec(move || {
            for deaf_to in deaf_to {
                nix::sys::signal::signal(*deaf_to, SigHandler::SigIgn)?;
            }
            nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
            Ok(())
        });
    }
    signal_at_end_of_parent(start, Signal::SIGTERM);
    start.spawn()
}

/// Has a command get a signal if the thread that starts it ends.
pub fn signal_at_end_of_parent(start: &mut Command, signal: Signal) {
    let parent = Pid::this();
    // SAFETY: the closure makes system calls that are safe after fork (prctl, getppid); it allocates
    // nothing and takes no lock.
    unsafe {
        start.pre_exec(move || {
            prctl::set_pdeathsig(signal)?;
            // The parent may have died before the line above.
            if Pid::parent() == parent {
                Ok(())
            } else {
                Err(Errno::ESRCH.into())
            }
        });
    }
}

/// Waits for a command, and passes signals on to it meanwhile.
pub fn wait_for(child: &Child) -> Result<ExitStatus> {
    let ended = Signals::block()?.wait_for(pid_of(child), None)?;
    Ok(ended.expect("nothing else ends it"))
}

/// The same, or until the command writes something to `output`: then `None`. A process does not end
/// before its last thread, which may be in a call of a file system that hangs.
pub fn wait_for_end_or_word(child: &Child, output: BorrowedFd<'_>) -> Result<Option<ExitStatus>> {
    Signals::block()?.wait_for(pid_of(child), Some(output))
}

/// The same for a process that is no child of this one: until there is something to read from
/// `output`, or nobody can write to it any more.
pub fn wait_for_word(process: u32, output: BorrowedFd<'_>) -> Result<()> {
    let process = Pid::from_raw(i32::try_from(process).context("the number of a process")?);
    Signals::block()?.wait_for_output(process, output)
}

/// True if there is something to read from a pipe.
pub fn is_readable(pipe: BorrowedFd<'_>) -> bool {
    let mut pipe = [PollFd::new(pipe, PollFlags::POLLIN)];
    let is_ready = poll(&mut pipe, PollTimeout::ZERO).is_ok();
    let events = pipe[0].revents();
    is_ready && events.is_some_and(|events| events.contains(PollFlags::POLLIN))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

/// The signals that were blocked when this process began, and so are in each command. Those that are
/// read here stay blocked between commands and after the last: none is lost, and none ends weir.
static BLOCKED_BEFORE: OnceLock<SigSet> = OnceLock::new();

/// The time of the first signal by which a batch system warns of the end of the job.
static WARNED_AT: OnceLock<SystemTime> = OnceLock::new();

/// The time at which the batch system has warned of the end of the job, by the first such signal.
pub fn warned_at() -> Option<SystemTime> {
    WARNED_AT.get().copied()
}

/// The signals, read from a descriptor instead of interrupting.
struct Signals {
    before: SigSet,
    fd: SignalFd,
}

impl Signals {
    fn block() -> Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        not_ignored(PASSED_ON).for_each(|signal| set.add(signal));
        let mut before = SigSet::empty();
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        let before = *BLOCKED_BEFORE.get_or_init(|| before);
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { before, fd })
    }

    /// `None`: there is something to read from `output`.
    fn wait_for(
        &self,
        child: Pid,
        mut output: Option<BorrowedFd<'_>>,
    ) -> Result<Option<ExitStatus>> {
        // It may have ended while another command was waited for.
        if let Some(status) = reap(child)? {
            return Ok(Some(status));
        }
        loop {
            let events = self.poll(output)?;
            if events.contains(PollFlags::POLLIN) {
                return Ok(None);
            }
            // It is closed: the command ends.
            if !events.is_empty() {
                output = None;
            }
            while let Some(signal) = self.pass_next(child)? {
                if signal != Signal::SIGCHLD {
                    continue;
                }
                if let Some(status) = reap(child)? {
                    return Ok(Some(status));
                }
            }
        }
    }

    fn wait_for_output(&self, process: Pid, output: BorrowedFd<'_>) -> Result<()> {
        while self.poll(Some(output))?.is_empty() {
            while self.pass_next(process)?.is_some() {}
        }
        Ok(())
    }

    /// Waits for a signal, or for something to read from `output`. Returns the events of `output`.
    fn poll(&self, output: Option<BorrowedFd<'_>>) -> Result<PollFlags> {
        let waited = [Some(self.fd.as_fd()), output].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = waited
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("waiting for the command"),
        }
        let events = fds.get(1).and_then(PollFd::revents);
        Ok(events.unwrap_or(PollFlags::empty()))
    }

    /// Reads the next signal, and passes it on; `None`: there is none now.
    fn pass_next(&self, process: Pid) -> Result<Option<Signal>> {
        let Some(info) = self.fd.read_signal()? else {
            return Ok(None);
        };
        let signal = Signal::try_from(i32::try_from(info.ssi_signo)?)?;
        if WARNINGS.contains(&signal) {
            WARNED_AT.get_or_init(SystemTime::now);
        }
        if signal != Signal::SIGCHLD {
            pass_on(signal, &info, process);
        }
        Ok(Some(signal))
    }
}

/// Those of the signals that this process does not ignore. From proc_pid_status(5), since sigaction(2)
/// can only be asked through unsafe code.
pub fn not_ignored(signals: &[Signal]) -> impl Iterator<Item = Signal> + '_ {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.unwrap_or(0);
    // Signal N is bit N - 1.
    let is_heard = move |signal: &Signal| mask >> (*signal as i32 - 1) & 1 == 0;
    signals.iter().copied().filter(is_heard)
}

fn pass_on(signal: Signal, info: &siginfo, child: Pid) {
    HEARD.fetch_or(bit_of(signal), Ordering::Relaxed);
    let from_kernel = info.ssi_code == libc::SI_KERNEL;
    let from_child = i32::try_from(info.ssi_pid) == Ok(child.as_raw());
    if !from_child && (!from_kernel || signal == Signal::SIGCONT) {
        // The child may have ended just now; its end is on the way.
        let _ = kill(child, signal);
    }
}

/// Takes note of the child's changes; its status once it has ended.
fn reap(child: Pid) -> Result<Option<ExitStatus>> {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Some(ExitStatus::from_raw(code << 8))),
            Ok(WaitStatus::Signaled(_, signal, core)) => {
                let raw = signal as i32 | if core { 0x80 } else { 0 };
                return Ok(Some(ExitStatus::from_raw(raw)));
            }
            Ok(WaitStatus::Stopped(_, signal)) => mirror_stop(signal)?,
            Ok(_) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("waiting for the command"),
        }
    }
}

/// Stops weir as its command stopped, until the shell continues both. SIGSTOP is not mirrored:
/// it is a debugger's, and the debugger continues only what it stopped.
fn mirror_stop(signal: Signal) -> Result<()> {
    let job_control = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
    if job_control.contains(&signal) {
        raise(Signal::SIGSTOP)?;
    }
    Ok(())
}
