//! User and mount namespaces of `weir run`'s own (`mount.namespace`), in which the kernel mounts an
//! instance at its prefix without privileges: user_namespaces(7), mount_namespaces(7), pivot_root(2).
//!
//! ```text
//! /            a file system in memory, read-only
//! /usr ...     what is in / outside, bound
//! /weir        the prefix, an empty directory
//! ```
//!
//! The user stays the user, and nobody else is known there: setuid programs have no effect. The right to
//! mount goes to servers, which hand it on to their mounts' processes ([`MountRight`]), not to the command.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{bail, Context, Result};
use nix::errno::Errno;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{unshare, CloneFlags};
use nix::unistd::{getegid, geteuid, pivot_root};
use rustix::thread::{
    capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities, CapabilitySet,
};

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
    // What is mounted outside later is seen here, and not the other way around.
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
    Ok(())
}

/// Makes a root directory that has what is in the present one, and the prefix.
fn replace_root(prefix: &Path) -> Result<()> {
    let (root, whole) = (Path::new("/"), MsFlags::MS_BIND | MsFlags::MS_REC);
    let new = nix::unistd::mkdtemp(&std::env::temp_dir().join("weir-root-XXXXXX"))?;
    let new = new.as_path();
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
            // What the user may not even look at stays empty.
            Ok(()) | Err(Errno::EACCES | Errno::ENOENT) => {}
            Err(errno) => return Err(errno).with_context(|| from.display().to_string()),
        }
    }
    fs::create_dir(new.join(prefix.strip_prefix(root)?))?;
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(NONE, new, NONE, read_only, NONE).context("closing the root directory")?;
    // The old root is laid over the new one, and taken off: pivot_root(2).
    std::env::set_current_dir(new)?;
    pivot_root(".", ".").context("pivot_root")?;
    umount2(".", MntFlags::MNT_DETACH).context("taking the old root directory off")?;
    // Where the new root was made there is another mount of it, bound with the directory around it.
    match umount2(new, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL) => Ok(fs::remove_dir(new)?),
        Err(errno) => Err(errno).context("taking the new root directory off its place"),
    }
}

/// True if this process may mount.
pub fn may_mount() -> bool {
    geteuid().is_root()
        || capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// The right to mount, which programs that this thread starts have while this lives, if it has it
/// by a namespace of its own (capabilities(7), ambient set).
#[derive(Debug)]
pub struct MountRight(());

impl MountRight {
    /// Hands the right on.
    pub fn hand_on() -> Result<Option<MountRight>> {
        if geteuid().is_root() || !may_mount() {
            return Ok(None);
        }
        let mut own = capabilities(None)?;
        own.inheritable |= CapabilitySet::SYS_ADMIN;
        set_capabilities(None, own)?;
        configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
        Ok(Some(MountRight(())))
    }
}

impl Drop for MountRight {
    fn drop(&mut self) {
        let _ = clear_ambient_capability_set();
        if let Ok(mut own) = capabilities(None) {
            own.inheritable -= CapabilitySet::SYS_ADMIN;
            let _ = set_capabilities(None, own);
        }
    }
}
