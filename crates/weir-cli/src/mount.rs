//! Kernel mounts of an instance: `weir mount`, and the one that a server brings up by itself.
//!
//! ```text
//! weir server / weir mount              weir mount-process
//!   | --- starts ----------------------->|
//!   |                                    | connects as a client, mounts
//!   |<-- stdout: Mounted or Failed ------|
//!   |                                    | serves the kernel; sleeps when idle
//! ```
//!
//! The process ends with the server's end of its session, with SIGTERM, or once somebody has
//! unmounted the file system. If it is killed, the server starts another one.
//!
//! Invariant: nobody removes a directory with something mounted below it ([`clear_below`]).

use std::io::{BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use weir_config::{Config, Environment, KernelMount};
use weir_core::proto::beneath::{MOUNT_LINK, OWN_DIR};
use weir_fuse::{MountError, Mounted};
use weir_instance::mounts::clear_below;
use weir_launch::mount_right;
use weir_launch::server::{read_line, to_line};

use crate::args::MountArgs;
use crate::exit::Failure;
use crate::linked::{ObstructedProgram, ProgramKind};
use crate::locate::live_run_dir;

/// A line that the process of a mount says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MountMessage {
    /// The kernel asks it from now on.
    Mounted,
    /// There is no mount; one line says why.
    Failed(String),
}

/// Where the server of this run directory has had the kernel mount the instance.
pub fn find_mount_point(run_dir: &Path) -> Option<PathBuf> {
    std::fs::read_link(run_dir.join(MOUNT_LINK)).ok()
}

/// Why the kernel cannot mount anything for this user, if it cannot.
pub fn obstacle() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helper = || std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file());
    let may = mount_right::may_mount() || helper();
    (!may).then_some("there is no fusermount3, which mounts for users")
}

/// Why a program finds no file of the instance under the prefix. It sees the kernel mount alone, which is elsewhere, or not
/// there. `None`: it is at the prefix.
pub fn explain_unseen(program: &ObstructedProgram, run_dir: &Path) -> Option<String> {
    let place = match find_mount_point(run_dir) {
        Some(dir) if !dir.starts_with(run_dir) => return None,
        // Which lets only its own user in, with no other rights.
        Some(dir) if program.kind != ProgramKind::Privileged => {
            let dir = dir.display();
            format!("it sees the instance only where that is mounted, at {dir}")
        }
        Some(_) => "it does not see the instance".to_owned(),
        None => "it does not see the instance, which is not mounted".to_owned(),
    };
    Some(format!(
        "{} {}: {place} (docs/GUIDE.md, \"Programs that need the kernel mount\")",
        program.path.display(),
        program.obstacle
    ))
}

/// `weir mount`.
pub fn by_hand(args: &MountArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let dir = free_directory(&args.dir)?;
    start(&run_dir, &dir)?;
    tell_mounted(&run_dir, &dir);
    Ok(())
}

/// Says what a user has mounted.
pub fn tell_mounted(mounted: &Path, dir: &Path) {
    outln!(
        "weir: {} is mounted at {}; umount or fusermount3 -u takes it off",
        mounted.display(),
        dir.display()
    );
}

/// The path of a directory of a user's at which nothing is hidden by a mount.
pub fn free_directory(named: &Path) -> Result<PathBuf> {
    let dir = named.canonicalize();
    let dir = dir.with_context(|| named.display().to_string())?;
    check_free(&dir)?;
    Ok(dir)
}

/// Checks that nothing is hidden by a mount at a directory.
fn check_free(dir: &Path) -> Result<()> {
    ensure!(dir.is_dir(), "{} is not a directory", dir.display());
    ensure!(
        !weir_fuse::is_mount(dir)?,
        "something of weir is mounted at {} already",
        dir.display()
    );
    let is_empty = std::fs::read_dir(dir)?.next().is_none();
    ensure!(is_empty, "{} is not empty", dir.display());
    Ok(())
}

/// Starts a mount's process and waits until the file system is mounted.
fn start(run_dir: &Path, dir: &Path) -> Result<Child> {
    let mut process = process_of(run_dir, dir)?;
    // The process is of no instance, or its own file system would be beneath it.
    process.env("LD_PRELOAD", "").env("WEIR_INSTANCE", "");
    await_mount(process)
}

/// The process of a mount, to be started by [`await_mount`].
pub fn process_of(run_dir: &Path, dir: &Path) -> Result<Command> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let mut process = Command::new(program);
    process.arg("mount-process").args([run_dir, dir]);
    Ok(process)
}

/// Starts a mount's process and waits until the file system is mounted.
pub fn await_mount(mut process: Command) -> Result<Child> {
    let process = process.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = process.spawn().context("starting the mount's process")?;
    let mut words = BufReader::new(child.stdout.take().expect("piped"));
    let word = read_line(&mut words);
    let why = match word {
        Ok(MountMessage::Mounted) => return Ok(child),
        Ok(MountMessage::Failed(why)) => why,
        Err(e) => format!("its process ended: {e:#}"),
    };
    let _ = child.wait();
    bail!(why)
}

/// The mount's process, `weir mount-process`.
pub fn serve(run_dir: &Path, dir: &Path) -> Result<()> {
    let stopped = |ends: &SigSet| {
        let _ = ends.wait();
    };
    serve_mount(|| Mounted::new(run_dir, dir), stopped)?;
    if dir == run_dir.join(OWN_DIR) {
        // Files made there from now on would belong to no instance.
        let _ = std::fs::remove_dir(dir);
    }
    Ok(())
}

/// Serves what `mount` mounts until it is unmounted, its server has ended, or `stopped` returns, which gets the signals that are
/// to end the process, blocked.
pub fn serve_mount(
    mount: impl FnOnce() -> Result<Mounted, MountError>,
    stopped: impl FnOnce(&SigSet) + Send + 'static,
) -> Result<()> {
    let _ = nix::unistd::setsid();
    // By this name weir stop says what uses the instance.
    let _ = nix::sys::prctl::set_name(c"weir-mount");
    std::env::set_current_dir("/")?;
    // A terminal's keys are not for it; who starts it may have had signals blocked.
    let ends: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .into_iter()
        .collect();
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&ends), None)?;
    let mounted = match mount() {
        Ok(mounted) => mounted,
        Err(e) => {
            say(&MountMessage::Failed(e.to_string()));
            return Ok(());
        }
    };
    say(&MountMessage::Mounted);
    release_streams()?;
    Ok(mounted.wait(move || stopped(&ends))?)
}

/// Tells the process that has started this one, unless it is gone: then so is the server, and the mount ends with that.
fn say(message: &MountMessage) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", to_line(message)).and_then(|()| out.flush());
}

/// Lets go of the streams of who started it, which may wait for their end.
fn release_streams() -> Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}

/// The kernel mount that a server has brought up beneath the interposer.
#[derive(Debug)]
pub struct ServerMount {
    /// The directory that it is mounted at.
    dir: PathBuf,
    run_dir: PathBuf,
    state: Arc<Mutex<State>>,
    watch: Option<JoinHandle<()>>,
}

/// The state that the server shares with the thread that watches the mount's process.
#[derive(Debug)]
struct State {
    pid: Pid,
    is_stopping: bool,
}

/// A mount's process that was killed is started again; after less than this, only a few times in a row.
const SHORT: Duration = Duration::from_secs(10);
/// How often.
const MAX_RESTARTS: u32 = 20;

impl ServerMount {
    /// Mounts the instance as `mount.kernel` says. `None`: it is not to be mounted, or it cannot be,
    /// and the log says why. `is_first`: this server has the first choice of places among those of
    /// this machine.
    pub fn bring_up(
        config: &Config,
        run_dir: &Path,
        is_first: bool,
    ) -> Result<Option<ServerMount>> {
        let own = run_dir.join(OWN_DIR);
        let (places, is_required) = match &config.mount.kernel {
            KernelMount::Never => return Ok(None),
            KernelMount::At(dir) if is_first => (vec![dir.clone()], true),
            KernelMount::At(_) => (vec![own.clone()], true),
            // The prefix is an empty directory there, in which programs would write past weir.
            KernelMount::Auto if config.mount.namespace => {
                (vec![config.mount.prefix.as_path().to_owned()], true)
            }
            KernelMount::Auto if is_first => {
                let prefix = config.mount.prefix.as_path().to_owned();
                (vec![prefix, own.clone()], false)
            }
            KernelMount::Auto => (vec![own.clone()], false),
        };
        let mut failed = anyhow::anyhow!("no place to mount at");
        for dir in places {
            let started = prepare(&dir, dir == own).and_then(|()| start(run_dir, &dir));
            match started {
                Ok(child) => return Ok(Some(Self::watch(child, dir, run_dir)?)),
                Err(e) => failed = e,
            }
            if dir == own {
                // Files made in that directory would belong to no instance.
                let _ = std::fs::remove_dir(&dir);
            }
        }
        if is_required {
            return Err(failed.context("mount.kernel"));
        }
        tracing::info!("no kernel mount beneath the interposer: {failed:#}");
        Ok(None)
    }

    /// Watches the mount's process, and starts another one if it is killed.
    fn watch(child: Child, dir: PathBuf, run_dir: &Path) -> Result<ServerMount> {
        let link = run_dir.join(MOUNT_LINK);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&dir, &link)?;
        let state = Arc::new(Mutex::new(State {
            pid: pid_of(&child),
            is_stopping: false,
        }));
        let beneath = ServerMount {
            dir: dir.clone(),
            run_dir: run_dir.to_owned(),
            state: Arc::clone(&state),
            watch: None,
        };
        let run_dir = run_dir.to_owned();
        let watch = std::thread::Builder::new().name("weir-mount".into());
        let watch = watch.spawn(move || keep_mounted(child, &dir, &run_dir, &state))?;
        Ok(ServerMount {
            watch: Some(watch),
            ..beneath
        })
    }

    /// The directory at which the instance is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts the file system and waits for its process.
    pub fn stop(mut self) {
        let _ = std::fs::remove_file(self.run_dir.join(MOUNT_LINK));
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_stopping = true;
            let _ = kill(state.pid, Signal::SIGTERM);
        }
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Makes a place ready for a mount. The own directory of an instance may have a mount of a process
/// that was killed together with its server.
fn prepare(dir: &Path, is_own: bool) -> Result<()> {
    if is_own {
        clear_below(dir)?;
        match std::fs::create_dir(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e.into()),
            _ => {}
        }
    }
    check_free(dir)
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

/// Waits for the mount's process. One that was killed is replaced, unless the server is stopping.
fn keep_mounted(mut child: Child, dir: &Path, run_dir: &Path, state: &Mutex<State>) {
    let mut restarts = 0;
    loop {
        let begun = Instant::now();
        let status = child.wait();
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_stopping {
            return;
        }
        restarts = match begun.elapsed() < SHORT {
            true => restarts + 1,
            false => 0,
        };
        let was_killed = status
            .as_ref()
            .is_ok_and(|status| status.signal().is_some());
        let again = match was_killed && restarts <= MAX_RESTARTS {
            true => clear_below(dir).and_then(|()| start(run_dir, dir)),
            false => Err(anyhow::anyhow!("its process ended: {status:?}")),
        };
        child = match again {
            Ok(child) => child,
            Err(e) => {
                tracing::warn!("the kernel mount at {} is lost: {e:#}", dir.display());
                let _ = std::fs::remove_file(run_dir.join(MOUNT_LINK));
                return;
            }
        };
        tracing::warn!("the process of the kernel mount was killed; another one took over");
        state.pid = pid_of(&child);
    }
}
