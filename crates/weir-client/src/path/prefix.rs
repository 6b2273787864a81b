//! Separates weir's absolute paths from the kernel's.
//!
//! A path is ours if, taken literally, it leads to the mount prefix or below: `/weir`, `//weir/x`,
//! `/./weir`, `/tmp/../weir/x`, but not `/weirdo`. (Literally: the `/tmp` of `/tmp/../weir` is not
//! checked for being a symbolic link elsewhere. Links outside weir that lead into it are the
//! kernel's, which finds nothing.)
//!
//! Every path of the program passes here, so paths that have nothing to do with weir must be
//! recognised at once: unless a path begins with the prefix, it can be ours only if it contains
//! `//`, `/./` or `/../`; it is scanned for them many bytes at a time.

/// The mount prefix: absolute, without empty components and without a slash at its end. Kernel mounts
/// of the same tree elsewhere may be others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefix {
    path: Box<[u8]>,
    mounts: Box<[Box<[u8]>]>,
}

impl Prefix {
    /// The prefix `path`; `None` if it is not absolute, is `/`, or has `.` or `..`.
    pub fn new(path: &[u8]) -> Option<Prefix> {
        let clean = path.first() == Some(&b'/') && components(path).next().is_some();
        if !clean || components(path).any(|c| c == b"..") {
            return None;
        }
        let mut tidy = Vec::with_capacity(path.len());
        for component in components(path) {
            tidy.push(b'/');
            tidy.extend_from_slice(component);
        }
        Some(Prefix {
            path: tidy.into(),
            mounts: Box::default(),
        })
    }

    /// The same, with the directories of kernel mounts of the tree.
    #[must_use]
    pub fn with_mounts(self, mounts: impl IntoIterator<Item = Vec<u8>>) -> Prefix {
        let others = mounts
            .into_iter()
            .filter(|mount| mount[..] != self.path[..]);
        Prefix {
            mounts: others.map(Vec::into_boxed_slice).collect(),
            ..self
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.path
    }

    /// The directory of the kernel mount, if a path contains it.
    pub fn mount_in(&self, path: &[u8]) -> Option<&[u8]> {
        let mut mounts = self.mounts.iter();
        mounts.find_map(|mount| behind(mount, path).map(|_| &**mount))
    }

    /// Its parent directory: `/` for `/weir`.
    pub fn parent(&self) -> &[u8] {
        let slash = self.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        &self.path[..slash.max(1)]
    }

    /// The rest behind the prefix of an absolute path that is ours.
    #[inline]
    pub fn strip<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        if let Some(rest) = behind(&self.path, path) {
            return Some(rest);
        }
        if let Some(rest) = self.mounts.iter().find_map(|mount| behind(mount, path)) {
            return Some(rest);
        }
        if is_plain(path) || path.first() != Some(&b'/') {
            return None;
        }
        self.strip_literally(path)
    }

    /// As `strip`, component by component.
    #[cold]
    fn strip_literally<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let wanted = components(&self.path).count();
        let (mut depth, mut same) = (0, 0);
        let mut rest = path;
        while let Some((component, behind)) = split(rest) {
            rest = behind;
            if component == b".." {
                depth = usize::saturating_sub(depth, 1);
                same = same.min(depth);
            } else if component != b"." {
                let expected = components(&self.path).nth(same);
                if depth == same && expected == Some(component) {
                    same += 1;
                }
                depth += 1;
            }
            if same == wanted && depth == wanted {
                return Some(rest);
            }
        }
        None
    }
}

/// The rest of a path behind the directory `dir`; `None`: the path does not lead into it.
fn behind<'p>(dir: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(dir)?;
    rest.first().is_none_or(|b| *b == b'/').then_some(rest)
}

/// The first component and the rest behind it; `None` if there are only slashes.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let begin = path.iter().position(|b| *b != b'/')?;
    let path = &path[begin..];
    let end = path.iter().position(|b| *b == b'/').unwrap_or(path.len());
    Some(path.split_at(end))
}

/// Components, without empty ones and `.`.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/')
        .filter(|c| !c.is_empty() && *c != b".")
}

/// True if the path surely has no `//`, `/./` and `/../` (except perhaps at its end, where they do
/// not matter).
#[inline]
fn is_plain(path: &[u8]) -> bool {
    let Some(last) = path.len().checked_sub(BLOCK + 1) else {
        return !has_odd_step(path);
    };
    let mut at = 0;
    loop {
        let (here, next) = (&path[at..at + BLOCK], &path[at + 1..=at + BLOCK]);
        if is_odd_block(here, next) {
            return !has_odd_step(path);
        }
        if at == last {
            return true;
        }
        at = (at + BLOCK).min(last);
    }
}

/// Bytes that are looked at together.
const BLOCK: usize = 16;

/// True if a slash is followed by a slash or a dot. Branch-free, so that it compiles to a few
/// instructions on whole registers.
#[allow(clippy::needless_bitwise_bool)] // see above
#[inline]
fn is_odd_block(here: &[u8], next: &[u8]) -> bool {
    let pairs = here.iter().zip(next);
    pairs.fold(false, |odd, (a, b)| {
        odd | ((*a == b'/') & ((*b == b'/') | (*b == b'.')))
    })
}

/// As [`is_plain`] specifies it, byte by byte: names that begin with a dot are plain.
fn has_odd_step(path: &[u8]) -> bool {
    let step = |three: &[u8]| {
        three[0] == b'/'
            && (three[1] == b'/' || (three[1] == b'.' && matches!(three[2], b'/' | b'.')))
    };
    path.windows(3).any(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip<'p>(prefix: &str, path: &'p str) -> Option<&'p str> {
        let prefix = Prefix::new(prefix.as_bytes()).unwrap();
        let rest = prefix.strip(path.as_bytes())?;
        Some(core::str::from_utf8(rest).unwrap())
    }

    #[test]
    fn ours_and_not_ours() {
        for (path, rest) in [
            ("/weir", ""),
            ("/weir/", "/"),
            ("//weir", ""),
            ("/./weir", ""),
            ("/tmp/../weir/x", "/x"),
            ("/weir/../weir/x", "/../weir/x"),
            ("/a/b/c/.././../../weir//x/", "//x/"),
            ("/../../weir/x", "/x"),
            (
                "/a/long/path/of/plain/components/../../../../../../weir/x",
                "/x",
            ),
        ] {
            assert_eq!(strip("/weir", path), Some(rest), "{path}");
        }
        for path in [
            "/weirdo",
            "/wei",
            "/",
            "",
            "weir",
            "/tmp/weir",
            "/tmp/../weirdo",
            "/tmp/./weir",
            "/usr/lib/python3/dist-packages/.hidden/..weir/x",
            "/a/../b/weir",
        ] {
            assert_eq!(strip("/weir", path), None, "{path}");
        }
    }

    #[test]
    fn a_kernel_mount_is_a_second_name_of_the_tree() {
        let prefix = Prefix::new(b"/weir").unwrap();
        let prefix =
            prefix.with_mounts([b"/tmp/x/mount", b"/tmp/y/mount"].map(|mount| mount.to_vec()));
        assert_eq!(prefix.strip(b"/tmp/x/mount/a"), Some(&b"/a"[..]));
        assert_eq!(prefix.strip(b"/tmp/x/mount"), Some(&b""[..]));
        assert_eq!(prefix.strip(b"/tmp/y/mount/b"), Some(&b"/b"[..]));
        assert_eq!(
            prefix.mount_in(b"/tmp/y/mount/b"),
            Some(&b"/tmp/y/mount"[..])
        );
        assert_eq!(prefix.strip(b"/tmp/x/mounts"), None);
        assert_eq!(prefix.strip(b"/weir/a"), Some(&b"/a"[..]));
        assert_eq!(prefix.bytes(), b"/weir");
    }

    #[test]
    fn a_prefix_of_several_components() {
        assert_eq!(strip("/mnt//bb/./weir/", "/mnt/bb/weir/x"), Some("/x"));
        assert_eq!(strip("/mnt/bb", "/mnt/./bb/x"), Some("/x"));
        assert_eq!(strip("/mnt/bb", "/mnt/x/../bb"), Some(""));
        assert_eq!(strip("/mnt/bb", "/mnt/x/bb/../../bx"), None);
        assert_eq!(strip("/mnt/bb", "/mnt//b"), None);
        let prefix = Prefix::new(b"/mnt/bb").unwrap();
        assert_eq!(prefix.parent(), b"/mnt");
        assert_eq!(Prefix::new(b"/weir").unwrap().parent(), b"/");
        for bad in ["", "/", "weir", "/a/../b", "//"] {
            assert_eq!(Prefix::new(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_scan_agrees_with_looking_at_each_byte() {
        let alphabet = [b'/', b'.', b'a'];
        let mut random = 1_u64;
        for _ in 0..50_000 {
            let mut path = vec![b'/'];
            for _ in 0..30 {
                random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                let pick = (random >> 40) % 12;
                path.push(alphabet[usize::try_from(pick).unwrap().min(2)]);
                if pick == 11 {
                    path.extend_from_slice(b"/weir");
                }
            }
            let prefix = Prefix::new(b"/weir").unwrap();
            let text = String::from_utf8_lossy(&path).into_owned();
            let slow = prefix.strip_literally(&path).is_some();
            assert_eq!(prefix.strip(&path).is_some(), slow, "{text}");
        }
    }
}
