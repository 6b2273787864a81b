//! Links of /proc to this process's files: `/proc/self/fd/N`, `/proc/self/cwd`, `/proc/self/exe`,
//! and their like in /dev.
//!
//! For the kernel they lead to placeholders and copies. A path through one of them, and the link
//! itself if a call follows it, is a path from the file of weir. The link as such (lstat) is the
//! kernel's.
//!
//! Of another process weir knows only its current directory, once it has started a program there,
//! and that its descriptors are placeholders. Such a link gives EIO; the kernel would show an empty
//! directory. Left out: `root`.

use std::borrow::Cow;

use super::super::current_dir::{kernel_cwd, named_by};
use super::super::program_copies::program_path;
use super::super::table::{self, Handle};
use super::PathLookup;
use crate::kernel::{path_of, Fd, AT_FDCWD};
use crate::neighbour::KernelIdentity;
use crate::path::prefix::split;
use crate::path::ResolvedPath;
use weir_core::types::Ino;

/// The target of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Cwd,
    Descriptor(Fd),
    /// The program, if it is run from a copy.
    Program,
    /// A descriptor of another process, which may be a placeholder.
    Others(Fd, Fd),
    /// The current directory of another process.
    OthersCwd(Fd),
}

/// `/proc/self/task/N/fd/N`.
const DEEPEST: usize = 6;

impl PathLookup {
    /// The inode of weir's behind a path that is one of these links.
    pub(in super::super) fn magic_link_target(&self, dirfd: Fd, path: &[u8]) -> Option<Ino> {
        let (ino, rest) = self.through_magic_link(dirfd, path)?;
        rest.is_empty().then_some(ino)
    }

    /// The inode of weir's behind one of these links that a path goes through, and the rest of the path.
    pub(super) fn through_magic_link<'p>(
        &self,
        dirfd: Fd,
        path: &'p [u8],
    ) -> Option<(Ino, Cow<'p, [u8]>)> {
        if path.first() == Some(&b'/') {
            if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
                return None;
            }
            let (link, rest) = link_in(path, || self.owner_pid())?;
            return Some((self.target_of(link)?, Cow::Borrowed(rest)));
        }
        if !may_be_of_proc(path) || self.first_call.instance().is_none() {
            return None;
        }
        let directory = match dirfd {
            AT_FDCWD if self.cwd.inode().is_some() => return None,
            AT_FDCWD => kernel_cwd()?,
            fd if table::get(fd).is_some() => return None,
            fd => path_of(fd).ok()?.into_bytes(),
        };
        let full = [&directory, &b"/"[..], path].concat();
        let (link, rest) = link_in(&full, || self.owner_pid())?;
        Some((self.target_of(link)?, Cow::Owned(rest.to_vec())))
    }

    /// The number of the process that the state is of.
    fn owner_pid(&self) -> u32 {
        self.first_call.ensure();
        self.server.forks.owner_pid()
    }

    fn target_of(&self, link: Link) -> Option<Ino> {
        self.first_call.ensure();
        match link {
            Link::Cwd => self.cwd.inode().map(|cwd| cwd.unwrap_or(Ino::NONE)),
            Link::Descriptor(fd) => table::get(fd).map(Handle::ino),
            Link::Others(pid, fd) => self.unknown_of_other(&format!("/proc/{pid}/fd/{fd}")),
            Link::OthersCwd(pid) => {
                let path = format!("/proc/{pid}/cwd");
                let shown = rustix::fs::readlink(&path, Vec::new()).ok()?;
                let instance = self.first_call.instance()?;
                match named_by(shown.as_bytes()) {
                    Some((memory, ino)) if memory == instance.shm_dir => Some(ino),
                    _ => self.unknown_of_other(&path),
                }
            }
            Link::Program => {
                let program = program_path(self.first_call.instance()?)?;
                match self.resolve(AT_FDCWD, &program, true)?.ok()? {
                    ResolvedPath::Name { found, .. } => found.map(|(ino, _)| ino),
                    _ => None,
                }
            }
        }
    }

    /// The target of another process's link to a placeholder: an inode that cannot be used.
    fn unknown_of_other(&self, path: &str) -> Option<Ino> {
        self.first_call.instance()?;
        let stat = rustix::fs::stat(path)
            .ok()
            .filter(|stat| stat.st_nlink == 0)?;
        let placeholder = self.server.session().ok()?.placeholder_identity();
        (KernelIdentity::from_stat(&stat) == placeholder).then(|| {
            self.server.count_refusal("other-process");
            Ino::NONE
        })
    }
}

/// The first of these links in an absolute path, and the rest behind it.
fn link_in(path: &[u8], own_pid: impl Fn() -> u32) -> Option<(Link, &[u8])> {
    let mut steps: [&[u8]; DEEPEST] = [b""; DEEPEST];
    let (mut depth, mut rest) = (0, path);
    while let Some((component, behind)) = split(rest) {
        match component {
            b"." => {}
            b".." => depth = usize::saturating_sub(depth, 1),
            name => {
                *steps.get_mut(depth)? = name;
                depth += 1;
            }
        }
        rest = behind;
        if let Some(link) = link_at(&steps[..depth], &own_pid) {
            return Some((link, rest));
        }
    }
    None
}

fn link_at(steps: &[&[u8]], own_pid: impl Fn() -> u32) -> Option<Link> {
    let below = match steps {
        [b"dev", b"stdin"] => return Some(Link::Descriptor(0)),
        [b"dev", b"stdout"] => return Some(Link::Descriptor(1)),
        [b"dev", b"stderr"] => return Some(Link::Descriptor(2)),
        [b"dev", below @ ..] => below,
        [b"proc", who, b"task", _, below @ ..] | [b"proc", who, below @ ..]
            if is_own(who, &own_pid) =>
        {
            below
        }
        [b"proc", pid, b"cwd"] => return as_number(pid).map(Link::OthersCwd),
        [b"proc", pid, b"fd", fd] => return Some(Link::Others(as_number(pid)?, as_number(fd)?)),
        _ => return None,
    };
    match below {
        [b"cwd"] if steps[0] == b"proc" => Some(Link::Cwd),
        [b"exe"] if steps[0] == b"proc" => Some(Link::Program),
        [b"fd", number] => as_number(number).map(Link::Descriptor),
        _ => None,
    }
}

/// True if a directory of /proc is that of this process.
fn is_own(name: &[u8], own_pid: impl Fn() -> u32) -> bool {
    match name {
        b"self" | b"thread-self" => true,
        _ => as_number(name).is_some_and(|pid| pid.cast_unsigned() == own_pid()),
    }
}

/// A number as /proc writes it.
fn as_number(text: &[u8]) -> Option<Fd> {
    let plain =
        text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first() != Some(&b'0'));
    let number = core::str::from_utf8(text).ok().filter(|_| plain)?;
    number.parse().ok()
}

/// True if a relative path may continue below a directory of /proc: most do not, and cost nothing
/// more.
fn may_be_of_proc(path: &[u8]) -> bool {
    const NAMES: [&[u8]; 9] = [
        b"cwd",
        b"exe",
        b"fd",
        b"self",
        b"thread-self",
        b"task",
        b"proc",
        b"dev",
        b"..",
    ];
    let Some((first, _)) = split(path) else {
        return false;
    };
    first.iter().all(u8::is_ascii_digit) || first == b"." || NAMES.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> Option<(Link, &str)> {
        let (link, rest) = link_in(path.as_bytes(), std::process::id)?;
        Some((link, core::str::from_utf8(rest).expect("as it was given")))
    }

    #[test]
    fn links_to_what_the_process_has() {
        assert_eq!(parsed("/proc/self/cwd"), Some((Link::Cwd, "")));
        assert_eq!(parsed("/proc/self/cwd/a/b"), Some((Link::Cwd, "/a/b")));
        assert_eq!(
            parsed("/proc/thread-self/fd/17/"),
            Some((Link::Descriptor(17), "/"))
        );
        assert_eq!(
            parsed("/proc/self/task/9/fd/3/x"),
            Some((Link::Descriptor(3), "/x"))
        );
        assert_eq!(
            parsed("/proc//self/../self/./fd/3"),
            Some((Link::Descriptor(3), ""))
        );
        assert_eq!(parsed("/dev/fd/0"), Some((Link::Descriptor(0), "")));
        assert_eq!(parsed("/dev/stderr"), Some((Link::Descriptor(2), "")));
    }

    #[test]
    fn what_is_none() {
        for path in [
            "/proc/self/fd",
            "/proc/self/fd/03",
            "/proc/self/fd/+3",
            "/proc/self/fd/x",
            "/proc/self/status",
            "/proc/1/fdinfo/3",
            "/dev/cwd",
            "/home/proc/self/cwd",
        ] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }
}
