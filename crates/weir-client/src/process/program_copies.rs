//! The copies from which programs and libraries of weir's are run: memfds, named by the paths of the files.

use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::current_dir::REMOVED;
use super::instance::Instance;
use crate::kernel::Fd;

/// The beginning of a copy's name; the path follows.
const COPY_OF: &[u8] = b"weir:";
/// The longest name that the kernel allows, in bytes.
const LONGEST_NAME: usize = 249;

/// A memfd whose name contains the path of the file that is to be copied there.
pub(super) fn memory_named_by(path: &[u8]) -> Result<OwnedFd, Errno> {
    let name = [COPY_OF, path].concat();
    let name = if name.len() < LONGEST_NAME {
        &name
    } else {
        COPY_OF
    };
    rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)
}

/// The path of weir's file from which this program was run: from a copy, or through the kernel
/// mount.
pub(super) fn program_path(instance: &Instance) -> Option<Vec<u8>> {
    if let Some(path) = path_of_copy_at("/proc/self/exe") {
        return Some(path);
    }
    let prefix = &instance.roots.main;
    let path = rustix::fs::readlink("/proc/self/exe", Vec::new()).ok()?;
    let below = prefix.strip(path.as_bytes())?;
    Some([prefix.bytes(), below].concat())
}

/// The path of the file of which a descriptor is a copy.
pub fn path_of_copy(fd: Fd) -> Option<Vec<u8>> {
    path_of_copy_at(&format!("/proc/self/fd/{fd}"))
}

fn path_of_copy_at(link: &str) -> Option<Vec<u8>> {
    let link = rustix::fs::readlink(link, Vec::new()).ok()?;
    let name = link.as_bytes().strip_prefix(b"/memfd:")?;
    let path = name.strip_prefix(COPY_OF)?.strip_suffix(REMOVED)?;
    (!path.is_empty()).then(|| path.to_vec())
}
