//! Elevated directories as file systems of the kernel, for programs that the client cannot be in.
//!
//! ```text
//! weir run                                weir mount-process --elevated DIR RUN_DIR/mirror-PID.N
//!   | --- starts, with the client in it ---->| mounts, and serves the kernel by calls below DIR
//!   |
//!   | --- starts the command in a mount namespace of its own, in which RUN_DIR/mirror-PID.N lies over DIR
//! ```
//!
//! In the namespace all programs find the one tree at DIR: interposed ones as ever, others by the kernel. Outside it DIR is
//! the parallel file system, so that weir's own processes move files there.
//!
//! Invariant: a mirror ends before what it wrote is counted as safe, or with the instance.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{bail, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{kill, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use weir_client::process::MIRROR_VARIABLE;
use weir_config::{Config, Environment};
use weir_fuse::{unmount, Mounted};
use weir_instance::directories;

use crate::args::MountArgs;
use crate::exit::Failure;
use crate::inject::{self, InjectedLibraries};
use crate::locate::{elevated_directories, live_run_dir};
use crate::mount;
use crate::namespace::{BoundDirectory, PrivateMounts};

/// The time after which a mirror looks again for its instance.
const LOOK_AGAIN_MS: u16 = 1000;

/// The mirrors of a command.
#[derive(Debug)]
pub struct Mirrors {
    all: Vec<Mirror>,
}

#[derive(Debug)]
struct Mirror {
    process: Child,
    /// The directory at which it is mounted.
    at: PathBuf,
    /// The elevated directory.
    source: PathBuf,
}

impl Mirrors {
    /// Mounts mirrors of all elevated directories of an instance.
    pub fn start(run_dir: &Path, env: &Environment) -> Result<Mirrors> {
        let mut mirrors = Mirrors { all: Vec::new() };
        for (number, source) in elevated_directories(run_dir).into_iter().enumerate() {
            let at = run_dir.join(format!("mirror-{}.{number}", std::process::id()));
            fs::create_dir(&at).with_context(|| at.display().to_string())?;
            match start(run_dir, &source, &at, env) {
                Ok(process) => mirrors.all.push(Mirror {
                    process,
                    at,
                    source,
                }),
                Err(error) => {
                    let _ = fs::remove_dir(&at);
                    return Err(error);
                }
            }
        }
        Ok(mirrors)
    }

    /// Has a command begin in a mount namespace in which the mirrors lie over their directories.
    pub fn put_over(&self, command: &mut Command) -> Result<()> {
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let binds = self.all.iter().map(|mirror| {
            Ok(BoundDirectory {
                from: path(&mirror.at)?,
                over: path(&mirror.source)?,
            })
        });
        let binds = binds.collect::<Result<Vec<_>, std::ffi::NulError>>()?;
        if binds.is_empty() {
            return Ok(());
        }
        let mounts = Arc::new(PrivateMounts::new(binds)?);
        let mut probe = Command::new(std::env::current_exe()?);
        probe
            .arg("--version")
            .env("LD_PRELOAD", "")
            .stdout(Stdio::null());
        enter_first(&mut probe, &mounts);
        let refused = "a mount namespace with them, which the administrator may not allow \
                       (user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor)";
        probe.status().context(refused)?;
        enter_first(command, &mounts);
        Ok(())
    }
}

/// Has a command enter a mount namespace before it begins.
fn enter_first(command: &mut Command, mounts: &Arc<PrivateMounts>) {
    let mounts = Arc::clone(mounts);
    // SAFETY: the closure makes system calls that are safe after fork, by strings that were made before; it allocates nothing
    // and takes no lock.
    unsafe {
        command.pre_exec(move || mounts.enter());
    }
}

impl Drop for Mirrors {
    fn drop(&mut self) {
        for mirror in &mut self.all {
            let pid = i32::try_from(mirror.process.id()).expect("a pid");
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let _ = mirror.process.wait();
            // It has unmounted, unless it was killed.
            let _ = unmount(&mirror.at);
            let _ = fs::remove_dir(&mirror.at);
        }
    }
}

/// `weir mount --elevated`.
pub fn mount_by_hand(
    args: &MountArgs,
    elevated: &Path,
    config: &Config,
    env: &Environment,
) -> Result<(), Failure> {
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let dir = mount::free_directory(&args.dir)?;
    let elevated = find_elevated(&run_dir, elevated)?;
    start(&run_dir, &elevated, &dir, env)?;
    mount::tell_mounted(&elevated, &dir);
    Ok(())
}

/// The mirror's process, `weir mount-process --elevated`.
pub fn serve(run_dir: &Path, dir: &Path, elevated: &Path) -> Result<()> {
    let instance = run_dir.to_owned();
    mount::serve_mount(
        || Mounted::mirror(run_dir, elevated, dir),
        move |ends| await_end(&instance, ends),
    )
}

/// The elevated directory of an instance that a user means by a path.
fn find_elevated(run_dir: &Path, meant: &Path) -> Result<PathBuf> {
    let path = meant.canonicalize();
    let path = path.with_context(|| meant.display().to_string())?;
    let all = elevated_directories(run_dir);
    if all.contains(&path) {
        return Ok(path);
    }
    let all: Vec<_> = all.iter().map(|dir| dir.display().to_string()).collect();
    match all.is_empty() {
        true => bail!("the instance has no elevated directory"),
        false => bail!(
            "{} is not elevated; these are: {}",
            path.display(),
            all.join(", ")
        ),
    }
}

/// Starts the process of a mirror, with the client in it, and waits until the file system is mounted.
fn start(run_dir: &Path, source: &Path, at: &Path, env: &Environment) -> Result<Child> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let client = InjectedLibraries::client_alone(inject::find_library(env, &program)?);
    let mut process = mount::process_of(run_dir, at)?;
    process.arg("--elevated").arg(source);
    process.envs(inject::variables(run_dir, &client, env)?);
    process.env(MIRROR_VARIABLE, "1");
    mount::await_mount(process).with_context(|| format!("mirroring {}", source.display()))
}

/// Returns once one of the signals `ends` has come, which the caller has blocked, or the instance has ended.
fn await_end(run_dir: &Path, ends: &SigSet) {
    let signals = SignalFd::with_flags(ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    let Ok(signals) = signals else {
        let _ = ends.wait();
        return;
    };
    loop {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let came = poll(&mut fds, PollTimeout::from(LOOK_AGAIN_MS)).is_ok_and(|ready| ready > 0);
        if came || !directories::lives(run_dir) {
            return;
        }
    }
}
