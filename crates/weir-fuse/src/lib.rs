//! `weir mount`: the tree of an instance as a file system of the kernel (FUSE).
//!
//! It serves programs without the interposer, and system calls that bypass it: they reach the same
//! tree through the kernel. A mount is one process, a client of its node's server.
//!
//! *Coherence.* The kernel caches no name and no attribute, and file data bypasses its page cache
//! (`FOPEN_DIRECT_IO`): each call is a request, and sees the changes of interposed programs. Pages
//! that programs have mapped are in the page cache, and then all calls go through the mount.
//!
//! *The end.* [`Mounted::wait`] returns when the server has ended or the file system was unmounted.
//! A mount whose process was killed answers ENOTCONN until it is unmounted ([`unmount`]).
//!
//! | file | subject |
//! | --- | --- |
//! | this file | mounting and unmounting |
//! | `filesystem` | the kernel's requests |
//! | `mirror` | an elevated directory, as interposed programs see it |
//! | `requester` | the process that made a request: its groups, its signals |
//! | `files` | open files by the kernel's handle numbers |
//! | `pages` | files of which the kernel keeps pages |
//! | `locks` | owners of locks, and waiting for locks |
//! | `convert` | attributes, times, error numbers |
//!
//! Left out: FUSE over io_uring, which the administrator has to turn on; the interruption of
//! requests other than waiting for a lock, which all end within the server's deadline.
#![deny(unsafe_code)]

mod convert;
mod files;
mod filesystem;
mod locks;
mod mirror;
mod pages;
mod requester;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use fuser::{Config, MountOption, Session, SessionACL};
use nix::fcntl::OFlag;
use nix::mount::{umount2, MntFlags};
use nix::sys::stat::Mode;
use weir_client::process::mounted::beneath::{name_of, DROP};
use weir_client::process::mounted::{Ino, Tree};

use filesystem::TreeFs;
use mirror::MirrorFs;

/// The types of mounts in /proc/self/mountinfo: mount(2) takes no subtype.
const FS_TYPES: [&str; 2] = ["fuse", "fuse.weir"];
/// The source of mounts in /proc/self/mountinfo.
const SOURCE: &str = "weir";

/// The most threads that serve requests. Each sleeps while there are none.
const MAX_THREADS: usize = 8;
/// The same, of a mirror: more, since a request may wait for a parallel file system.
const MIRROR_THREADS: usize = 32;

/// The reason why an instance could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The server did not answer.
    #[error("cannot reach the server of {run_dir}: {source}")]
    Server {
        /// The run directory of the instance.
        run_dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory to mirror cannot be used.
    #[error("cannot mirror {dir}: {source}")]
    Source {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused the mount.
    #[error("cannot mount at {dir}: {source}")]
    Kernel {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl MountError {
    fn kernel(dir: &Path, source: io::Error) -> MountError {
        MountError::Kernel {
            dir: dir.to_owned(),
            source,
        }
    }
}

/// A mounted instance, or a mounted mirror of an elevated directory.
#[derive(Debug)]
pub struct Mounted {
    place: MountPoint,
    /// Of an instance.
    tree: Option<Tree>,
    serving: JoinHandle<io::Result<()>>,
}

impl Mounted {
    /// Mounts the instance of a run directory at the existing directory `dir`.
    ///
    /// Root mounts by mount(2), and all users may enter. Other users mount by fusermount3, and only
    /// they may enter.
    pub fn new(run_dir: &Path, dir: &Path) -> Result<Mounted, MountError> {
        let tree = Tree::attach(run_dir.as_os_str().as_bytes());
        let tree = tree.map_err(|errno| MountError::Server {
            run_dir: run_dir.to_owned(),
            source: io::Error::from_raw_os_error(errno.raw_os_error()),
        })?;
        let kernel = |source| MountError::kernel(dir, source);
        let mut config = config();
        if nix::unistd::geteuid().is_root() {
            config.acl = SessionACL::All;
        }
        let tree_fs = TreeFs::new(tree);
        let pages = tree_fs.pages();
        let session = Session::new(tree_fs, dir, &config).map_err(kernel)?;
        pages.tell_kernel_by(session.notifier());
        let serving = serve(session).map_err(kernel)?;
        let place = MountPoint {
            dir: dir.to_owned(),
            root: Some(open_root(dir).map_err(kernel)?),
        };
        if tree.has_other_nodes() {
            let root = open_root(dir).map_err(kernel)?;
            let follow = move || {
                let followed = let_go_of_device().and_then(|()| {
                    let followed = pages.follow(|ino| drop_pages(&root, ino));
                    followed.map_err(|errno| io::Error::from_raw_os_error(errno.raw_os_error()))
                });
                if let Err(error) = followed {
                    tracing::warn!("mappings do not follow other nodes any more: {error}");
                }
            };
            std::thread::Builder::new()
                .name("pages".to_owned())
                .spawn(follow)
                .map_err(kernel)?;
        }
        Ok(Mounted {
            place,
            tree: Some(tree),
            serving,
        })
    }

    /// Mounts a mirror of the elevated directory `source` at the existing directory `dir`. Only the user of this process may enter it.
    ///
    /// This process must have the interposer, by which it sees the directory as the programs of the instance do.
    pub fn mirror(source: &Path, dir: &Path) -> Result<Mounted, MountError> {
        let mirror = MirrorFs::new(source).map_err(|error| MountError::Source {
            dir: source.to_owned(),
            source: error,
        })?;
        let mut config = config();
        config.n_threads = Some(MIRROR_THREADS);
        let kernel = |source| MountError::kernel(dir, source);
        let session = Session::new(mirror, dir, &config).map_err(kernel)?;
        Ok(Mounted {
            place: MountPoint {
                dir: dir.to_owned(),
                root: None,
            },
            tree: None,
            serving: serve(session).map_err(kernel)?,
        })
    }

    /// Blocks until the server of an instance that is mounted has ended, `stopped` returns, or the file system was unmounted. Then
    /// it unmounts; files that programs still have open return ENOTCONN once this process has
    /// ended.
    pub fn wait(self, stopped: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Mounted {
            place,
            tree,
            serving,
        } = self;
        let (tell, ended) = std::sync::mpsc::channel();
        let when =
            |name: &str, tell: Sender<MountEnd>, event: Box<dyn FnOnce() -> MountEnd + Send>| {
                let thread = std::thread::Builder::new().name(name.to_owned());
                thread.spawn(move || {
                    // The receiver stops after the first event.
                    let _ = tell.send(event());
                })
            };
        let unmounted = move || {
            let served = serving.join();
            MountEnd::Unmounted(
                served.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))),
            )
        };
        if let Some(tree) = tree {
            when(
                "end",
                tell.clone(),
                Box::new(move || {
                    tree.wait_for_end();
                    MountEnd::Stopped
                }),
            )?;
        }
        when(
            "stop",
            tell.clone(),
            Box::new(move || {
                stopped();
                MountEnd::Stopped
            }),
        )?;
        when("unmounted", tell, Box::new(unmounted))?;
        match ended.recv() {
            Ok(MountEnd::Unmounted(served)) => served,
            Ok(MountEnd::Stopped) | Err(_) => {
                place.unmount();
                Ok(())
            }
        }
    }
}

fn serve<F: fuser::Filesystem + 'static>(
    session: Session<F>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let thread = std::thread::Builder::new().name("mount".to_owned());
    thread.spawn(move || session.run())
}

/// The reason why a mount ends.
enum MountEnd {
    /// The server has ended, or the mount was told to end.
    Stopped,
    /// The file system was unmounted, or the kernel's requests could not be read.
    Unmounted(io::Result<()>),
}

/// The mount that this process made, even if another file system is mounted over it.
#[derive(Debug)]
struct MountPoint {
    dir: PathBuf,
    /// The root directory, opened with O_PATH. A mirror does without: it ends with its last mount.
    root: Option<OwnedFd>,
}

/// Opens the root directory of a mount, with O_PATH.
fn open_root(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(dir, flags, Mode::empty())?)
}

impl MountPoint {
    /// Unmounts it, even while programs use it.
    fn unmount(&self) {
        let own = match &self.root {
            Some(root) => PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())),
            None => self.dir.clone(),
        };
        let done = match umount2(&own, MntFlags::MNT_DETACH) {
            // It was taken off before.
            Err(nix::errno::Errno::EINVAL) if self.root.is_none() => Ok(()),
            Err(nix::errno::Errno::EPERM) => unmount_by_helper(&self.dir),
            done => done.map_err(io::Error::from),
        };
        if let Err(error) = done {
            tracing::warn!("cannot unmount {}: {error}", self.dir.display());
        }
    }
}

/// Makes the kernel read a file's size again and drop its pages, which it does as the file is
/// opened.
fn drop_pages(root: &OwnedFd, ino: Ino) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(DROP) | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    match nix::fcntl::openat(root, name_of(ino).as_str(), flags, Mode::empty()) {
        // The file is gone.
        Ok(_) | Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ESTALE) => Ok(()),
        // Its owner may not read it, and there is no other way to open it.
        Err(nix::errno::Errno::EACCES) => {
            tracing::warn!(
                "mappings of inode {:x} do not follow other nodes: EACCES",
                ino.0
            );
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Gives the calling thread its own table of descriptors, without those of the FUSE device.
///
/// The thread makes requests that this process answers. If the process is killed, the kernel ends
/// such a request once all threads that have the device have closed it.
fn let_go_of_device() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES)?;
    for entry in std::fs::read_dir("/proc/thread-self/fd")? {
        let entry = entry?;
        let Ok(target) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let number = entry.file_name().to_string_lossy().parse();
        if let (true, Ok(number)) = (target == Path::new("/dev/fuse"), number) {
            let _ = nix::unistd::close::<i32>(number);
        }
    }
    Ok(())
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(SOURCE.to_owned()),
        MountOption::Subtype("weir".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    config.n_threads = Some(processors.clamp(2, MAX_THREADS));
    config.clone_fd = nix::unistd::access("/dev/fuse", nix::unistd::AccessFlags::W_OK).is_ok();
    config
}

/// Unmounts a mount of weir, even if it is in use or its process was killed.
pub fn unmount(dir: &Path) -> io::Result<()> {
    match umount2(dir, MntFlags::MNT_DETACH) {
        // EINVAL: it is not a mount any more.
        Ok(()) | Err(nix::errno::Errno::EINVAL) => Ok(()),
        Err(nix::errno::Errno::EPERM) => unmount_by_helper(dir),
        Err(errno) => Err(errno.into()),
    }
}

/// Unmounts without privileges, by fusermount3.
fn unmount_by_helper(dir: &Path) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    helper.args(["-u", "-z", "-q", "--"]).arg(dir);
    let status = helper.stdin(Stdio::null()).stderr(Stdio::null()).status()?;
    match status.success() || !is_mount(dir)? {
        true => Ok(()),
        false => Err(io::Error::other(format!("fusermount3: {status}"))),
    }
}

/// Returns true if a file system of weir is mounted at exactly this directory, even if its process
/// is dead.
pub fn is_mount(dir: &Path) -> io::Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let is_at = |line: &str| mounted_at(line).is_some_and(|at| at.as_os_str() == dir.as_os_str());
    Ok(mounts.lines().any(is_at))
}

/// The directories of this mount namespace at which a file system of weir is mounted.
pub fn mounts() -> io::Result<Vec<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().filter_map(mounted_at).collect())
}

/// The directory in a line of /proc/self/mountinfo, if its file system is weir's: see
/// proc_pid_mountinfo(5).
fn mounted_at(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let is_fuse = right.next().is_some_and(|kind| FS_TYPES.contains(&kind));
    if !is_fuse || right.next() != Some(SOURCE) {
        return None;
    }
    let escaped = left.split(' ').nth(4)?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&unescaped(
        escaped,
    ))))
}

/// Decodes the octal escapes in which the kernel writes blanks and backslashes of a path.
pub fn unescaped(path: &str) -> Vec<u8> {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        let octal = part.get(..3).and_then(|o| u8::from_str_radix(o, 8).ok());
        if let Some(byte) = octal {
            bytes.push(byte);
            bytes.extend_from_slice(&part.as_bytes()[3..]);
        } else {
            bytes.push(b'\\');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_weir_are_told_from_others() {
        let line = "36 25 0:32 / /tmp/a\\040b rw,nosuid shared:1 - fuse.weir weir rw,user_id=0";
        assert_eq!(mounted_at(line), Some(PathBuf::from("/tmp/a b")));
        let line = "36 25 0:32 / /tmp/a rw - fuse weir rw,user_id=0";
        assert_eq!(mounted_at(line), Some(PathBuf::from("/tmp/a")));
        for other in ["fuse.sshfs weir", "fuse other", "ext4 weir"] {
            let line = format!("36 25 0:32 / /tmp/a rw - {other} rw");
            assert_eq!(mounted_at(&line), None, "{other}");
        }
        assert_eq!(mounted_at(""), None);
        assert_eq!(mounted_at("1 2 - fuse.weir"), None);
    }

    #[test]
    fn a_path_is_unescaped() {
        assert_eq!(unescaped("/a\\134b\\011"), b"/a\\b\t");
        assert_eq!(unescaped("/a\\x"), b"/a\\x");
        assert_eq!(unescaped(""), b"");
    }
}
