//! Paths that lead into an elevated tree by a symbolic link outside of it, or by another name of a mount:
//! by their text they are the kernel's.
//!
//! The kernel says where the directory of a path is, and, for a call that follows links, what its last
//! name leads to. That costs system calls, so what led nowhere near a tree is remembered for a second, by a
//! hash of the path. Another path of the same hash would be taken for the kernel's, one in 2^64.

use std::borrow::Cow;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_core::names::hash_of_bytes;
use weir_core::types::Ino;

use super::super::current_dir::kernel_cwd;
use super::super::instance::Instance;
use super::super::outcome::done;
use super::super::Outcome;
use super::PathLookup;
use crate::kernel::{self, path_of, Fd, AT_FDCWD};
use crate::path::roots::TreeOf;
use crate::path::walk::Names;

/// The greatest number of links on a path.
const MAX_LINKS: u32 = 40;

impl PathLookup {
    /// The root of an elevated tree and the rest behind it, if a path of the kernel's leads there.
    /// `follow`: also by a symbolic link that is its last name.
    pub(super) fn find_entrance(
        &self,
        dirfd: Fd,
        path: &[u8],
        follow: bool,
    ) -> Outcome<(Ino, Vec<u8>)> {
        let instance = self.first_call.instance()?;
        if instance.roots.elevated.is_empty() {
            return None;
        }
        let is_absolute = path.first() == Some(&b'/');
        if path.is_empty() {
            return None;
        }
        let full: Cow<'_, [u8]> = match dirfd {
            _ if is_absolute => path.into(),
            AT_FDCWD if self.cwd.is_weirs() => return None,
            AT_FDCWD => path.into(),
            // A descriptor says nothing of its next use.
            fd => [path_of(fd).ok()?.as_bytes(), b"/", path].concat().into(),
        };
        let is_relative = full.first() != Some(&b'/');
        let epoch = if is_relative { self.cwd.epoch() } else { 0 };
        let hash = hash_of_bytes(epoch << 1 | u64::from(follow), &full);
        if instance.outside.contains(hash) {
            return None;
        }
        let full = match is_relative {
            false => full.into_owned(),
            true => [&kernel_cwd()?, &b"/"[..], path].concat(),
        };
        let Some((tree, below)) = entrance_of(instance, full, follow) else {
            instance.outside.insert(hash);
            return None;
        };
        let root = tree.root(done!(self.inodes.view()).root());
        Some(Ok((root, below)))
    }
}

/// The elevated tree that an absolute path of the kernel's leads into, and the rest behind its root.
fn entrance_of(instance: &Instance, mut path: Vec<u8>, follow: bool) -> Option<(TreeOf, Vec<u8>)> {
    for _ in 0..MAX_LINKS {
        let ends_in_slash = path.ends_with(b"/");
        while path.ends_with(b"/") && path.len() > 1 {
            path.pop();
        }
        let slash = path.iter().rposition(|byte| *byte == b'/')?;
        let (real, is_whole) = real_path_of(&path[..slash])?;
        let name = &path[slash..];
        let tail: &[u8] = if ends_in_slash { b"/" } else { b"" };
        let full = [&real[..], name, tail].concat();
        if let Some((tree @ TreeOf::Elevated(_), rest)) = instance.roots.strip(&full) {
            return Some((tree, rest.to_vec()));
        }
        if !is_whole || !(follow || ends_in_slash) {
            return None;
        }
        let link = [&real[..], name].concat();
        let target = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
        path = match target.first() {
            Some(b'/') => [&target[..], tail].concat(),
            _ => [&real[..], b"/", &target, tail].concat(),
        };
    }
    None
}

/// The path of a directory without symbolic links, and true; if it does not exist, that of the nearest
/// one above that does, with the rest as it is, and false. `None`: even `/` cannot be opened.
fn real_path_of(dir: &[u8]) -> Option<(Vec<u8>, bool)> {
    let mut end = dir.len();
    loop {
        let above = if end == 0 { b"/" } else { &dir[..end] };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(above, flags, Mode::empty()) {
            Ok(opened) => {
                let fd = kernel::into_number(opened);
                let real = path_of(fd);
                let _ = kernel::close(fd);
                let mut real = real.ok()?.into_bytes();
                if real == b"/" {
                    real.clear();
                }
                real.extend_from_slice(&dir[end..]);
                return Some((real, end == dir.len()));
            }
            Err(Errno::NOENT | Errno::NOTDIR) if end > 0 => {
                end = dir[..end].iter().rposition(|byte| *byte == b'/')?;
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::elevate_rule::ElevateRule;

    use super::*;
    use crate::path::{ElevatedTree, Prefix, Roots};

    #[test]
    fn links_and_missing_directories_lead_into_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let top = top.to_str().unwrap();
        std::fs::create_dir_all(format!("{top}/pfs/run/sub")).unwrap();
        std::fs::create_dir_all(format!("{top}/home")).unwrap();
        let link = |target: String, name: &str| {
            std::os::unix::fs::symlink(target, format!("{top}/home/{name}")).unwrap();
        };
        link(format!("{top}/pfs/run"), "run");
        link("../pfs".to_owned(), "relative");
        link("run/sub/file".to_owned(), "file");
        link("loop".to_owned(), "loop");
        let prefix = |path: String| Prefix::new(path.as_bytes()).unwrap();
        let root = Ino(6);
        let instance = Instance::for_tests(Roots {
            main: prefix("/weir".to_owned()),
            elevated: [ElevatedTree {
                root,
                target: prefix(format!("{top}/pfs/run")),
                rule: ElevateRule::default(),
            }]
            .into(),
        });
        let find = |path: &str, follow| {
            let found = entrance_of(&instance, format!("{top}{path}").into_bytes(), follow);
            found.map(|(_, rest)| String::from_utf8(rest).unwrap())
        };
        for (path, follow, rest) in [
            ("/home/run/x", false, Some("/x")),
            ("/home/run/new/deep/x", false, Some("/new/deep/x")),
            ("/home/relative/run/x", false, Some("/x")),
            ("/home/relative/run/", false, Some("/")),
            ("/home/run/..", false, Some("/..")),
            ("/home/run", true, Some("")),
            ("/home/run", false, None),
            ("/home/run/", false, Some("/")),
            ("/home/file", true, Some("/sub/file")),
            ("/home/file", false, None),
            ("/home/loop", true, None),
            ("/home/none/x", true, None),
            ("/pfs/other", true, None),
        ] {
            assert_eq!(find(path, follow).as_deref(), rest, "{path}");
        }
    }
}
