//! User and mount namespaces of `weir run`'s own (`mount.namespace`), in which the kernel mounts an
//! instance at its prefix without privileges: user_namespaces(7), mount_namespaces(7), pivot_root(2).
//!
//! ```text
//! /            a file system in memory, read-only
//! /usr ...     what is in / outside, bound
//! /weir        the prefix, an empty directory
//! ```
//!
//! The user stays the user, and no other user or group is mapped there: setuid programs have no effect. The right to
//! mount goes to servers, which hand it on to their mounts' processes ([`mount_right::MountRight`]), not to the command.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use anyhow::{bail, Context, Result};
use nix::errno::Errno;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{unshare, CloneFlags};
use nix::unistd::{chroot, getegid, geteuid, pivot_root};
use rustix::mount::{mount_bind, mount_change, MountPropagationFlags};
use weir_instance::errln;
use weir_launch::mount_right;

const NONE: Option<&str> = None;

/// Moves this process, which has one thread, into namespaces of its own, where `prefix` is an empty
/// directory.
pub fn enter(prefix: &Path) -> Result<()> {
    let cwd = std::env::current_dir().context("finding the current directory")?;
    let is_there = match fs::read_dir(prefix).map(Iterator::count) {
        Ok(0) => true,
        Ok(_) => bail!("{} is not empty", prefix.display()),
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => return Err(e).with_context(|| prefix.display().to_string()),
    };
    if !is_there && prefix.parent() != Some(Path::new("/")) {
        bail!(
            "there is no directory {}: make it, or take a prefix in the root directory",
            prefix.display()
        );
    }
    leave_namespaces()?;
    // Later mounts outside appear here; mounts made here do not appear outside.
    let all_follow = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(NONE, "/", NONE, all_follow, NONE).context("separating the mounts")?;
    if !is_there {
        replace_root(prefix).context("making a root directory")?;
    }
    std::env::set_current_dir(&cwd).with_context(|| cwd.display().to_string())
}

fn leave_namespaces() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context(
        "making a user namespace, which the administrator may not allow \
         (user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor)",
    )?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        let path = Path::new("/proc/self").join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    mount_right::note_own_namespace();
    Ok(())
}

/// Directories that a command is to find at other directories, in a mount namespace of its own; and in a user namespace, if
/// its user may not make one otherwise. The user stays the user, and no other is mapped there.
#[derive(Debug)]
pub struct PrivateMounts {
    binds: Vec<BoundDirectory>,
    cwd: CString,
    maps: [ProcText; 3],
}

/// A directory or file, and the one that it is to lie over.
#[derive(Debug)]
pub struct BoundDirectory {
    pub from: CString,
    pub over: CString,
}

/// A file of /proc, and its new text.
#[derive(Debug)]
struct ProcText {
    file: &'static CStr,
    text: String,
}

impl PrivateMounts {
    /// Prepares everything that needs memory.
    pub fn new(binds: Vec<BoundDirectory>) -> Result<PrivateMounts> {
        let cwd = std::env::current_dir().context("finding the current directory")?;
        let (uid, gid) = (geteuid(), getegid());
        let text = |file, text| ProcText { file, text };
        Ok(PrivateMounts {
            binds,
            cwd: CString::new(cwd.into_os_string().into_vec())?,
            maps: [
                text(c"/proc/self/setgroups", "deny".to_owned()),
                text(c"/proc/self/uid_map", format!("{uid} {uid} 1")),
                text(c"/proc/self/gid_map", format!("{gid} {gid} 1")),
            ],
        })
    }

    /// Moves the calling process, which has one thread, into the namespaces. Allocates nothing, and calls the kernel past an
    /// interposer that this process may have, so that it may be called between fork and exec.
    pub fn enter(&self) -> std::io::Result<()> {
        if !geteuid().is_root() || unshare(CloneFlags::CLONE_NEWNS).is_err() {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            for map in &self.maps {
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
                let file = rustix::fs::open(map.file, flags, rustix::fs::Mode::empty())?;
                rustix::io::write(&file, map.text.as_bytes())?;
            }
        }
        // Later mounts outside appear here; mounts made here do not appear outside.
        let all_follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change(c"/", all_follow)?;
        for bound in &self.binds {
            mount_bind(&*bound.from, &*bound.over)?;
        }
        // It may be below what is hidden now.
        Ok(rustix::process::chdir(&*self.cwd)?)
    }
}

/// Makes a root directory that has what is in the present one, and the prefix.
fn replace_root(prefix: &Path) -> Result<()> {
    let new = nix::unistd::mkdtemp(&std::env::temp_dir().join("weir-root-XXXXXX"))?;
    let replaced = replace_root_by(&new, prefix);
    // Where the new root was made there is another mount of it, bound with the directory around it.
    let _ = umount2(&new, MntFlags::MNT_DETACH);
    let removed = fs::remove_dir(&new);
    replaced?;
    Ok(removed?)
}

fn replace_root_by(new: &Path, prefix: &Path) -> Result<()> {
    let (root, whole) = (Path::new("/"), MsFlags::MS_BIND | MsFlags::MS_REC);
    let few = Some("mode=755,size=1m");
    mount(Some("weir"), new, Some("tmpfs"), MsFlags::empty(), few).context("mounting tmpfs")?;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else {
            fs::File::create(&to)?;
        }
        match mount(Some(&from), &to, NONE, whole, NONE) {
            // A directory that the user may not search stays empty.
            Ok(()) | Err(Errno::EACCES | Errno::ENOENT) => {}
            // So does a file system that is out of reach, on a server that does not answer.
            Err(errno) => {
                errln!(
                    "weir: {} is empty in the namespace: {errno}",
                    from.display()
                );
            }
        }
    }
    fs::create_dir(new.join(prefix.strip_prefix(root)?))?;
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(NONE, new, NONE, read_only, NONE).context("closing the root directory")?;
    // The old root is laid over the new one, and taken off: pivot_root(2).
    std::env::set_current_dir(new)?;
    match pivot_root(".", ".") {
        Ok(()) => umount2(".", MntFlags::MNT_DETACH).context("taking the old root directory off"),
        // The root is the initial one of a node without disks.
        Err(Errno::EINVAL) => {
            mount(Some("."), "/", NONE, MsFlags::MS_MOVE, NONE).context("moving the root")?;
            Ok(chroot(".")?)
        }
        Err(errno) => Err(errno).context("pivot_root"),
    }
}
