//! A parallel file system for tests (FUSE): it passes through to a directory, and is slow, full, broken
//! or hangs on command.
//!
//! [`FaultFs::mount`] mounts it in the test's own process. [`FaultRule`]s say which requests fail, wait or
//! hang; [`FaultFs::requests`] has all that came, in their order.
//!
//! Invariants:
//! - a request that waits or hangs holds up no other: each has a thread of its own;
//! - the kernel keeps no name and no attribute, so that each call of a program is a request; data is in
//!   its page cache for reading, and written through;
//! - nothing hangs for good. The threads that serve have descriptors of their own, so that the kernel ends
//!   all requests if the process is killed, also those that its other threads wait for. Dropped, it
//!   lets all requests go and unmounts, also if a test failed.
//!
//! | file | subject |
//! | --- | --- |
//! | this file | mounting and unmounting |
//! | `rule` | faults, and the record of a request |
//! | `control` | rules in force, rate, latency, the record |
//! | `filesystem` | the kernel's requests |
//! | `backing` | the directory below |
//!
//! Left out: locks, which the kernel keeps itself for one machine, so that none fails; mknod; a mount
//! that a user other than the test's may enter, unless the test is root's.
#![forbid(unsafe_code)]

mod backing;
mod control;
mod filesystem;
mod rule;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use nix::mount::{umount2, MntFlags};
use rustix::process::Resource;

use backing::BackingTree;
use control::FaultControl;
use filesystem::FaultyFilesystem;
pub use rule::{FaultEffect, FaultRule, FsOperation, RecordedRequest, RuleId};

/// The most bytes of one write request. Kernels allow 1 MiB without an administrator's doing.
pub const MAX_WRITE_BYTES: u32 = 1 << 20;
/// The time in which the last requests of an unmounted file system are answered.
const END_TIME: Duration = Duration::from_secs(10);

/// The reason why this machine allows no kernel mount; `None`: it allows one.
pub fn why_no_mount() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_helper = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file());
    if !rustix::process::geteuid().is_root() && !has_helper {
        return Some("not root, and no fusermount3 (fuse3)".to_owned());
    }
    None
}

/// A mounted file system, and the control of it.
#[derive(Debug)]
pub struct FaultFs {
    mount_point: PathBuf,
    control: Arc<FaultControl>,
}

impl FaultFs {
    /// Mounts what is in `backing`, a directory of one file system, at an empty directory.
    pub fn mount(backing: &Path, mount_point: &Path) -> io::Result<FaultFs> {
        allow_open_files();
        let control = Arc::new(FaultControl::default());
        let (tell, mounted) = channel();
        let serve = {
            let (backing, mount_point) = (backing.to_owned(), mount_point.to_owned());
            let control = Arc::clone(&control);
            move || {
                let mounted = leave_descriptors().and_then(|()| {
                    let tree = BackingTree::open(&backing)?;
                    let filesystem = FaultyFilesystem::new(tree, Arc::clone(&control));
                    Session::new(filesystem, &mount_point, &config())
                });
                match mounted {
                    Ok(session) => {
                        let _ = tell.send(Ok(()));
                        // An error is that of a mount whose device is gone.
                        let _ = session.run();
                        control.note_end();
                    }
                    Err(error) => drop(tell.send(Err(error))),
                }
            }
        };
        std::thread::Builder::new()
            .name("faultfs".to_owned())
            .spawn(serve)?;
        mounted
            .recv()
            .map_err(|_| io::Error::other("the thread that serves has panicked"))??;
        Ok(FaultFs {
            mount_point: mount_point.to_owned(),
            control,
        })
    }

    /// The root of the mount.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Puts a rule into force, for requests that come from now on. Of several that fit, the first has its
    /// effect.
    pub fn inject(&self, rule: FaultRule) -> RuleId {
        self.control.add_rule(rule)
    }

    /// Takes a rule out of force; requests that hang by it go on.
    pub fn lift(&self, id: RuleId) {
        self.control.remove_rules(|rule| rule == id);
    }

    /// Takes all rules out of force.
    pub fn lift_all(&self) {
        self.control.remove_rules(|_| true);
    }

    /// Has each request wait for this time.
    pub fn set_latency(&self, latency: Duration) {
        self.control.set_latency(latency);
    }

    /// Limits all writes together, in bytes a second; `None`: no limit.
    pub fn set_write_rate(&self, rate: Option<u64>) {
        self.control.set_write_rate(rate.map(|rate| rate.max(1)));
    }

    /// Has each file have this value as its attribute `lustre.lov`, the layout of a file on Lustre; `None`: it has none.
    pub fn set_layout(&self, layout: Option<Vec<u8>>) {
        self.control.set_layout(layout);
    }

    /// The requests since the mount, or since they were forgotten.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.control.requests()
    }

    /// The same, of one operation.
    pub fn requests_of(&self, operation: FsOperation) -> Vec<RecordedRequest> {
        let mut requests = self.requests();
        requests.retain(|request| request.operation == operation);
        requests
    }

    /// Empties the record.
    pub fn forget_requests(&self) {
        self.control.forget_requests();
    }

    /// The number of requests that hang.
    pub fn hanging(&self) -> usize {
        self.control.hanging()
    }

    /// Waits until this many requests hang; false: they do not after `limit`.
    #[must_use]
    pub fn wait_for_hanging(&self, count: usize, limit: Duration) -> bool {
        self.control
            .wait_until(limit, |_, hanging| hanging >= count)
    }

    /// Waits until it is so of the requests on record; false: it is not after `limit`.
    #[must_use]
    pub fn wait_for_requests(
        &self,
        limit: Duration,
        is_so: impl Fn(&[RecordedRequest]) -> bool,
    ) -> bool {
        self.control
            .wait_until(limit, |requests, _| is_so(requests))
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        self.control.end_waiting();
        let detached = match umount2(&self.mount_point, MntFlags::MNT_DETACH) {
            Err(nix::errno::Errno::EPERM) => {
                let mut helper = Command::new("fusermount3");
                helper.args(["-u", "-z", "-q", "--"]).arg(&self.mount_point);
                let helper = helper.stdin(Stdio::null()).stderr(Stdio::null());
                helper.status().is_ok_and(|status| status.success())
            }
            detached => detached.is_ok(),
        };
        if detached {
            // It is over once nothing is open there any more; a program that has still something open
            // is served on.
            self.control.wait_for_end(END_TIME);
        }
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("weir-faultfs".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    if rustix::process::geteuid().is_root() {
        config.acl = SessionACL::All;
    }
    config
}

/// Gives the calling thread, and those that it will start, a table of descriptors of their own, with
/// standard input, output and error only.
///
/// Otherwise a thread of this process that waits for a request would keep the FUSE device open: if the
/// process is killed, the kernel ends the request once the device is closed.
fn leave_descriptors() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES)?;
    let numbers = std::fs::read_dir("/proc/thread-self/fd")?.map(|entry| {
        let name = entry?.file_name();
        Ok(name.to_string_lossy().parse::<i32>().unwrap_or(-1))
    });
    for number in numbers.collect::<io::Result<Vec<i32>>>()? {
        if number > 2 {
            // That of the listing is closed already.
            let _ = nix::unistd::close::<i32>(number);
        }
    }
    Ok(())
}

/// Lets this process have as many open files as it may: each node that the kernel knows is one.
fn allow_open_files() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it stays, fewer nodes can be known.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}
