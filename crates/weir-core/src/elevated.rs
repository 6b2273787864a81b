//! The directories of an instance that elevates directories of the parallel file system (PFS).
//!
//! An *elevated tree* is a tree of weir's own, the upper layer of a union whose lower layer is a
//! directory of the PFS, its *target*. A name that the tree does not have is looked for there. So the
//! tree has what the job made, and these directories say what is below it:
//!
//! ```text
//!  PARENT                            its own parent; no path leads to it
//!    covers/<directory>              a symbolic link: the directory of the PFS that it covers. Its own permission bits are
//!                                    those that that directory had when it was last taken over from there, or set there
//!    whiteouts/<directory>/<name>    a name of the PFS that the job has removed, or whose file it has
//!                                    replaced: a symbolic link, whose text says which file that was
//!                                    ([`LowerName`])
//!    whiteouts/links-<device>-<file>  a symbolic link: the number of names that a file of the PFS with several of them
//!                                    has left for the job, which has removed or taken the others
//!    nursery/<any name>              a directory that is being made
//!    evicted/<file>                  a symbolic link, whose text says where on the PFS the bytes of a file are
//!                                    that was evicted, as a whole or in part ([`TargetCopy`])
//!    tree0, tree1, ...               the trees' roots
//! ```
//!
//! `<directory>` and `<file>` are the numbers of inodes of a tree, in hexadecimal. A directory that is not in
//! `covers` is *opaque*: all its names are in the tree, and the PFS is not asked. A whiteout counts only
//! while the tree does not have the name: it is made before the name is removed, and may stay when the
//! name is made again. It says also which file of the PFS may be replaced when the file of the tree is moved
//! there: what else has the name then was put there by somebody else. All of these are ordinary directories, with the journal, the atomicity and the
//! placement of any other.
//!
//! The inodes have fixed numbers, since they are the first that a server makes.

use crate::types::{Ino, Rank};

/// The parent of all these directories.
pub const PARENT: Ino = fixed(1);
/// See the module.
pub const COVERS: Ino = fixed(2);
/// See the module.
pub const WHITEOUTS: Ino = fixed(3);
/// See the module.
pub const NURSERY: Ino = fixed(4);
/// See the module.
pub const EVICTED: Ino = fixed(5);

/// The most trees of an instance.
pub const MOST_TREES: usize = 16;

/// In the run directory, followed by the number of a tree: a symbolic link with the path of its target,
/// canonical.
pub const TARGET_LINK: &str = "elevated";
/// The same, followed by the number of a tree: the path by which its user names the target, if that is
/// another one.
pub const ALIAS_LINK: &str = "elevated-as";

/// The most other names of a target: paths by which other mounts of its file system show it.
pub const MOST_OTHER_NAMES: usize = 8;

/// The link in the run directory to another name of the target of a tree. `other` is below [`MOST_OTHER_NAMES`]; the links
/// have the numbers from 0 on.
pub fn other_name_link(tree: usize, other: usize) -> String {
    format!("{ALIAS_LINK}{tree}.{other}")
}

/// The prefix of the hidden name under which a file of the PFS is written.
pub const PART_PREFIX: &[u8] = b".";
/// The suffix of that name.
pub const PART_SUFFIX: &[u8] = b".weir-part";

/// The slot of the root directory of the instance.
const ROOT_SLOT: u32 = 1;

const fn fixed(number: u32) -> Ino {
    Ino::new(Rank(0), 0, ROOT_SLOT + number)
}

/// The root of a tree, which is not checked to exist. `number` is below [`MOST_TREES`].
#[allow(clippy::cast_possible_truncation)] // there are few
pub const fn root_of_tree(number: usize) -> Ino {
    assert!(number < MOST_TREES);
    fixed(6 + number as u32)
}

/// The name of an inode in `covers`, `whiteouts` and `evicted`.
pub fn name_of_inode(ino: Ino) -> [u8; 16] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = [0; 16];
    for (at, digit) in name.iter_mut().enumerate() {
        *digit = DIGITS[(ino.0 >> (60 - 4 * at) & 0xF) as usize];
    }
    name
}

/// The name in `whiteouts` of a file of the PFS that has several names.
pub fn name_of_links(device: u64, file: u64) -> Vec<u8> {
    format!("links-{device:x}-{file:x}").into_bytes()
}

/// The inode with this name.
pub fn inode_of_name(name: &[u8]) -> Option<Ino> {
    let text = core::str::from_utf8(name).ok()?;
    let number = u64::from_str_radix(text, 16).ok()?;
    (name_of_inode(Ino(number)) == name).then_some(Ino(number))
}

/// A file of the PFS: what else has its name later, and what somebody else has written into it since, is
/// another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerFile {
    /// Its inode.
    pub ino: u64,
    /// The time of its last change of any kind, ns since 1970.
    pub ctime_ns: i64,
}

/// A name of the PFS that the job has removed or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LowerName {
    /// Removed: the union does not show it. None: the PFS had no file of this name.
    Removed(Option<LowerFile>),
    /// A file of the tree replaces this one, which shows until the tree has the name: noted before, so that
    /// a process which is killed in between leaves the name as it was.
    Replaced(LowerFile),
}

impl LowerName {
    /// The text of its link in `whiteouts`.
    pub fn text(&self) -> Vec<u8> {
        let text = match self {
            LowerName::Removed(None) => "-".to_owned(),
            LowerName::Removed(Some(file)) => format!("{} {}", file.ino, file.ctime_ns),
            LowerName::Replaced(file) => format!("+{} {}", file.ino, file.ctime_ns),
        };
        text.into_bytes()
    }

    /// The name that a text says. Any other text hides it, and says of no file that it may be removed.
    pub fn of_text(text: &[u8]) -> LowerName {
        let (is_replaced, numbers) = match text.strip_prefix(b"+") {
            Some(numbers) => (true, numbers),
            None => (false, text),
        };
        match (file_of_numbers(numbers), is_replaced) {
            (Some(file), true) => LowerName::Replaced(file),
            (file, false) => LowerName::Removed(file),
            (None, true) => LowerName::Removed(None),
        }
    }

    /// The file of the PFS that the job has removed or replaced.
    pub fn file(&self) -> Option<LowerFile> {
        match *self {
            LowerName::Removed(file) => file,
            LowerName::Replaced(file) => Some(file),
        }
    }
}

fn file_of_numbers(text: &[u8]) -> Option<LowerFile> {
    let (ino, ctime_ns) = core::str::from_utf8(text).ok()?.split_once(' ')?;
    let is_number = |text: &str| text.bytes().next().is_some_and(|first| first != b'+');
    (is_number(ino) && is_number(ctime_ns)).then_some(())?;
    Some(LowerFile {
        ino: ino.parse().ok()?,
        ctime_ns: ctime_ns.parse().ok()?,
    })
}

/// The copy on the PFS of a file that was evicted: a regular file that is known by this, or the bytes of the
/// file are lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetCopy {
    /// Its absolute path.
    pub path: Vec<u8>,
    /// How it is known.
    pub identity: CopyIdentity,
}

/// How a copy is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyIdentity {
    /// It has a name that others may use, and its bytes are those of one version of the file.
    Content {
        /// Bytes.
        size: u64,
        /// The time of the last change of its contents as the PFS has it, ns since 1970.
        mtime_ns: i64,
    },
    /// It has a hidden name. The drain may write to it: bytes that are the file's stay.
    Inode(u64),
}

impl TargetCopy {
    /// The text of the link in `evicted`.
    pub fn text(&self) -> Vec<u8> {
        let identity = match self.identity {
            CopyIdentity::Content { size, mtime_ns } => format!("{size} {mtime_ns} "),
            CopyIdentity::Inode(ino) => format!("@ {ino} "),
        };
        [identity.as_bytes(), &self.path].concat()
    }

    /// The copy that a text says; none, if it says anything else.
    pub fn of_text(text: &[u8]) -> Option<TargetCopy> {
        let mut words = text.splitn(3, |byte| *byte == b' ');
        let mut number = || core::str::from_utf8(words.next()?).ok();
        let identity = match (number()?, number()?) {
            ("@", ino) => CopyIdentity::Inode(ino.parse().ok()?),
            (size, mtime_ns) => CopyIdentity::Content {
                size: size.parse().ok()?,
                mtime_ns: mtime_ns.parse().ok()?,
            },
        };
        let path = words.next().filter(|path| path.first() == Some(&b'/'))?;
        Some(TargetCopy {
            path: path.to_vec(),
            identity,
        })
    }
}

/// True if a name of the PFS is that of a file which a mover is writing.
pub fn is_part(name: &[u8]) -> bool {
    name.len() > PART_PREFIX.len() + PART_SUFFIX.len()
        && name.starts_with(PART_PREFIX)
        && name.ends_with(PART_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_has_one_name() {
        let ino = Ino::new(Rank(3), 7, 0xABC);
        assert_eq!(&name_of_inode(ino), b"0003000700000abc");
        assert_eq!(inode_of_name(b"0003000700000abc"), Some(ino));
        for bad in [
            &b"0003000700000ABC"[..],
            b"3000700000abc",
            b"+003000700000abc",
            b"",
        ] {
            assert_eq!(inode_of_name(bad), None);
        }
    }

    #[test]
    fn a_whiteout_says_which_file_was_there() {
        let file = LowerFile {
            ino: 7,
            ctime_ns: -3,
        };
        for name in [
            LowerName::Removed(None),
            LowerName::Removed(Some(file)),
            LowerName::Replaced(file),
        ] {
            assert_eq!(LowerName::of_text(&name.text()), name);
        }
        for bad in [
            &b""[..],
            b"x",
            b"1",
            b"1 x",
            b"-1 1",
            b"1 2 3",
            b"+",
            b"+1",
            b"++1 2",
            b"1 +2",
        ] {
            assert_eq!(LowerName::of_text(bad), LowerName::Removed(None));
        }
    }

    #[test]
    fn an_evicted_file_says_where_its_copy_is() {
        let content = CopyIdentity::Content {
            size: u64::MAX,
            mtime_ns: -1,
        };
        for path in ["/pfs/a", "/pfs/a b  c", "/ \n"] {
            for identity in [content, CopyIdentity::Inode(u64::MAX)] {
                let path = path.into();
                let copy = TargetCopy { path, identity };
                assert_eq!(TargetCopy::of_text(&copy.text()), Some(copy));
            }
        }
        for bad in [
            &b""[..],
            b"1 2",
            b"1 2 ",
            b"1 2 a",
            b"-1 2 /a",
            b"1  2 /a",
            b"@ 1",
            b"@ -1 /a",
            b"@1 2 /a",
        ] {
            assert_eq!(TargetCopy::of_text(bad), None);
        }
    }

    #[test]
    fn parts_are_known_by_their_names() {
        assert!(is_part(b".a.weir-part"));
        assert!(!is_part(b"..weir-part"));
        assert!(!is_part(b"a.weir-part"));
    }
}
