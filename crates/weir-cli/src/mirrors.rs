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
//! Invariants:
//! - what moves files runs outside of the namespace: in it an instance has no elevated directories ([`MIRRORED_MARK`]);
//! - the mirrors of a command are unmounted before what it wrote is counted as safe. If its run was killed, they end with their
//!   last user; those that are mounted by hand, with the instance.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{kill, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use weir_client::process::mounted::beneath::MIRRORED_MARK;
use weir_client::process::MIRROR_VARIABLE;
use weir_config::{Config, Environment};
use weir_fuse::{unmount, Mounted};
use weir_instance::directories;
use weir_launch::mount_right::MountRight;

use crate::args::MountArgs;
use crate::exit::Failure;
use crate::inject::{self, InjectedLibraries};
use crate::locate::{
    elevated_directories, elevated_targets, live_run_dir, other_names_of, refuse_under_mirrors,
};
use crate::namespace::{BoundDirectory, PrivateMounts};
use crate::{mount, share, supervise};

/// The signal to a mirror whose `weir run` has died: the command may still work.
const DETACH: Signal = Signal::SIGHUP;
/// The longest time for which the end of a mirror's process is awaited.
const LONGEST_END: Duration = Duration::from_secs(10);
/// The time between looks at it.
const LOOK_AT_END: Duration = Duration::from_millis(2);
/// The time after which a mirror looks again for its instance.
const LOOK_AGAIN_MS: u16 = 1000;

/// The mirrors of a command.
#[derive(Debug)]
pub struct Mirrors {
    all: Vec<Mirror>,
    run_dir: PathBuf,
}

#[derive(Debug)]
struct Mirror {
    process: Child,
    /// The directory at which it is mounted.
    at: PathBuf,
    /// The elevated directory.
    source: PathBuf,
    /// Its paths by other mounts.
    other_names: Vec<PathBuf>,
}

impl Mirrors {
    /// Mounts mirrors of all elevated directories of an instance.
    pub fn start(run_dir: &Path, env: &Environment) -> Result<Mirrors> {
        let mut mirrors = Mirrors {
            all: Vec::new(),
            run_dir: run_dir.to_owned(),
        };
        let _right = MountRight::hand_on();
        for (number, source) in elevated_directories(run_dir).into_iter().enumerate() {
            let at = run_dir.join(format!("mirror-{}.{number}", std::process::id()));
            fs::create_dir(&at).with_context(|| at.display().to_string())?;
            let started = process_of(run_dir, &source, &at, env).and_then(|mut process| {
                supervise::signal_at_end_of_parent(&mut process, DETACH);
                start(process, &source)
            });
            match started {
                Ok(process) => mirrors.all.push(Mirror {
                    process,
                    at,
                    source,
                    other_names: other_names_of(run_dir, number),
                }),
                Err(error) => {
                    let _ = unmount(&at);
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
        let binds = self.all.iter().flat_map(|mirror| {
            let names = std::iter::once(&mirror.source).chain(&mirror.other_names);
            names.map(|name| {
                Ok(BoundDirectory {
                    from: path(&mirror.at)?,
                    over: path(name)?,
                })
            })
        });
        let mut binds = binds.collect::<Result<Vec<_>, std::ffi::NulError>>()?;
        // Tells what runs there that its elevated directories are mirrors.
        let (mark, set) = (MIRRORED_MARK, format!("{MIRRORED_MARK}-set"));
        let [mark, set] = [mark, &set].map(|name| self.run_dir.join(name));
        for (file, text) in [(&mark, ""), (&set, "1")] {
            // It may lie in namespaces already, and is never shortened.
            let opened = OpenOptions::new().append(true).create(true).open(file);
            let written = opened.and_then(|mut file| match file.metadata()?.len() {
                0 => file.write_all(text.as_bytes()),
                _ => Ok(()),
            });
            written.with_context(|| file.display().to_string())?;
        }
        binds.push(BoundDirectory {
            from: path(&set)?,
            over: path(&mark)?,
        });
        let mounts = Arc::new(PrivateMounts::new(binds)?);
        let mut probe = Command::new(std::env::current_exe()?);
        probe
            .arg("--version")
            .env("LD_PRELOAD", "")
            .stdout(Stdio::null());
        enter_first(&mut probe, &mounts);
        let refused = "mounting them over their directories in a namespace, which the administrator may not allow \
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
            // It unmounts, unless it was killed. It does not end while a call of the PFS hangs.
            let until = Instant::now() + LONGEST_END;
            while matches!(mirror.process.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK_AT_END);
            }
            let _ = mirror.process.kill();
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
    refuse_under_mirrors(&run_dir)?;
    let dir = mount::free_directory(&args.dir)?;
    let elevated = find_elevated(&run_dir, elevated)?;
    if elevated_targets(&run_dir)
        .iter()
        .any(|target| dir.starts_with(target))
    {
        return Err(Failure::Refused(format!(
            "{} is in an elevated directory, where weir itself would find the mirror: take a directory elsewhere",
            dir.display()
        )));
    }
    let mut process = process_of(&run_dir, &elevated, &dir, env)?;
    // It may stay: then it does not keep the instance from being stopped.
    process.env(MIRROR_VARIABLE, "1");
    start(process, &elevated)?;
    mount::tell_mounted(&elevated, &dir);
    Ok(())
}

/// The mirror's process, `weir mount-process --elevated`.
pub fn serve(run_dir: &Path, dir: &Path, elevated: &Path) -> Result<()> {
    // Without it this would be a mirror of the PFS alone.
    ensure!(has_client()?, "the client is not in the mirror's process");
    // Programs may have many files open, and larger limits than the shell of weir run.
    share::allow_open_files();
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_FSIZE) {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, most, most);
    }
    let (instance, at) = (run_dir.to_owned(), dir.to_owned());
    mount::serve_mount(
        || Mounted::mirror(elevated, dir),
        move |ends| await_end(&instance, &at, ends),
    )
}

/// True if the loader has put the library of LD_PRELOAD into this process.
fn has_client() -> Result<bool> {
    let library = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let library = Path::new(&library).canonicalize().context("LD_PRELOAD")?;
    let maps = fs::read("/proc/self/maps")?;
    let is_it = |line: &[u8]| line.ends_with(library.as_os_str().as_bytes());
    Ok(maps.split(|byte| *byte == b'\n').any(is_it))
}

/// The elevated directory of an instance that a user means by a path.
fn find_elevated(run_dir: &Path, meant: &Path) -> Result<PathBuf> {
    let path = meant.canonicalize();
    let path = path.with_context(|| meant.display().to_string())?;
    let all = elevated_targets(run_dir);
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

/// The process of a mirror, with the client in it.
fn process_of(run_dir: &Path, source: &Path, at: &Path, env: &Environment) -> Result<Command> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let library = inject::find_library(env, &program)?;
    let client = InjectedLibraries::client_alone(library.clone());
    let mut process = mount::process_of(run_dir, at)?;
    process.arg("--elevated").arg(source);
    process.envs(inject::variables(run_dir, &client, env)?);
    // Nothing else that the user preloads.
    process.env("LD_PRELOAD", inject::preload_list(&[library], None)?);
    Ok(process)
}

/// Starts the process of a mirror, and waits until the file system is mounted.
fn start(process: Command, source: &Path) -> Result<Child> {
    mount::await_mount(process).with_context(|| format!("mirroring {}", source.display()))
}

/// Returns once one of the signals `ends` has come, which the caller has blocked, or the instance has ended. At [`DETACH`] it
/// unmounts the mirror at `at`: where that lies over the directory of a command, it is served as long as there are users.
fn await_end(run_dir: &Path, at: &Path, ends: &SigSet) {
    let signals = SignalFd::with_flags(ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    let Ok(signals) = signals else {
        let _ = ends.wait();
        return;
    };
    loop {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(LOOK_AGAIN_MS));
        while let Ok(Some(signal)) = signals.read_signal() {
            if i32::try_from(signal.ssi_signo) != Ok(DETACH as i32) {
                return;
            }
            let _ = unmount(at);
            if at.parent() == Some(run_dir) {
                let _ = fs::remove_dir(at);
            }
        }
        if !directories::lives(run_dir) {
            return;
        }
    }
}
