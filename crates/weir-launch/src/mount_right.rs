//! The right to mount, which `weir run` has by a namespace of its own (`mount.namespace`), and which
//! goes to servers, that hand it on to their mounts' processes.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::geteuid;
use rustix::thread::{
    capabilities, configure_capability_in_ambient_set, set_capabilities, CapabilitySet,
};

/// This process has made a user namespace, and has rights in it that are to be handed on.
static HAS_OWN: AtomicBool = AtomicBool::new(false);

/// Says that this process has made a user namespace, and has rights in it that are to be handed on.
pub fn note_own_namespace() {
    HAS_OWN.store(true, Ordering::Relaxed);
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
    /// Hands the right on. `None`: there is none, or it cannot be handed on (the mount says so then).
    pub fn hand_on() -> Option<MountRight> {
        if geteuid().is_root() || !HAS_OWN.load(Ordering::Relaxed) {
            return None;
        }
        let mut own = capabilities(None).ok()?;
        own.inheritable |= CapabilitySet::SYS_ADMIN;
        set_capabilities(None, own).ok()?;
        configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true).ok()?;
        Some(MountRight(()))
    }
}

impl Drop for MountRight {
    fn drop(&mut self) {
        let _ = configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, false);
        if let Ok(mut own) = capabilities(None) {
            own.inheritable -= CapabilitySet::SYS_ADMIN;
            let _ = set_capabilities(None, own);
        }
    }
}
