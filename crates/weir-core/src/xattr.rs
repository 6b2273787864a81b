//! The extended attributes of the user namespace of a server's inodes.
//!
//! They lie in a table of their own, which only requests look at: inodes without attributes cost
//! nothing, and no record of the shared tables grows.
//!
//! Limits, as each of a file system's has some: a name has at most [`NAME_MAX`] bytes and a value at
//! most [`VALUE_MAX`] (the kernel's own limits); all names and values of an inode together have at most
//! [`INODE_BYTES`], so that each reply fits a channel; those of a server have at most [`TABLE_BYTES`].
//!
//! Left out: permissions and other namespaces, which are the client's.

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::journal::Item;
use crate::proto::FsError;
use crate::types::Ino;

/// The longest name, bytes (XATTR_NAME_MAX).
pub const NAME_MAX: usize = 255;
/// The longest value, bytes (XATTR_SIZE_MAX).
pub const VALUE_MAX: usize = 64 << 10;
/// The most bytes that the names, each with its NUL, and the values of one inode have together.
pub const INODE_BYTES: usize = 60 << 10;
/// The most bytes that the attributes of all inodes of a server have together, with their overhead.
pub const TABLE_BYTES: usize = 256 << 20;
/// The approximate overhead of an attribute beside its name and value, bytes.
const OVERHEAD_BYTES: usize = 96;

/// The conditions of setxattr(2) on the attribute's existence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetFlags {
    /// XATTR_CREATE: EEXIST if it is there.
    pub create: bool,
    /// XATTR_REPLACE: ENODATA if it is not there.
    pub replace: bool,
}

/// The attributes of one inode, by name.
type Attributes = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The attributes of a server's inodes.
#[derive(Clone, Debug, Default)]
pub struct Xattrs {
    inodes: BTreeMap<Ino, Attributes>,
    used_bytes: usize,
}

impl Xattrs {
    /// Returns the value of an attribute; `NoAttribute`: there is none of the name.
    pub fn get(&self, ino: Ino, name: &[u8]) -> Result<&[u8], FsError> {
        let attributes = self.inodes.get(&ino);
        let value = attributes.and_then(|attributes| attributes.get(name));
        value.map(|value| &**value).ok_or(FsError::NoAttribute)
    }

    /// Returns the names of an inode's attributes, a NUL behind each, as listxattr(2) does.
    pub fn list(&self, ino: Ino) -> Vec<u8> {
        let mut names = Vec::new();
        for name in self.inodes.get(&ino).into_iter().flat_map(Attributes::keys) {
            names.extend_from_slice(name);
            names.push(0);
        }
        names
    }

    /// Checks if [`Xattrs::set`] would succeed.
    pub fn check(
        &self,
        ino: Ino,
        name: &[u8],
        value_bytes: usize,
        flags: SetFlags,
    ) -> Result<(), FsError> {
        let attributes = self.inodes.get(&ino);
        let old = attributes.and_then(|attributes| attributes.get(name));
        match old {
            Some(_) if flags.create => return Err(FsError::Exists),
            None if flags.replace => return Err(FsError::NoAttribute),
            _ => {}
        }
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) || value_bytes > VALUE_MAX
        {
            return Err(FsError::Invalid);
        }
        let of_inode: usize = attributes.map_or(0, |attributes| {
            let sizes = attributes
                .iter()
                .map(|(name, value)| size(name, value.len()));
            sizes.sum()
        });
        let before = old.map_or(0, |old| size(name, old.len()));
        let after = size(name, value_bytes);
        let of_inode = of_inode - before + after;
        let of_table = self.used_bytes + after + OVERHEAD_BYTES - before;
        match of_inode > INODE_BYTES || of_table > TABLE_BYTES {
            true => Err(FsError::NoSpace),
            false => Ok(()),
        }
    }

    /// Gives an attribute a value, without [`Xattrs::check`].
    pub fn set(&mut self, ino: Ino, name: &[u8], value: &[u8]) {
        let attributes = self.inodes.entry(ino).or_default();
        match attributes.entry(name.into()) {
            Entry::Occupied(mut old) => {
                self.used_bytes -= old.get().len();
                old.insert(value.into());
            }
            Entry::Vacant(new) => {
                self.used_bytes += name.len() + 1 + OVERHEAD_BYTES;
                new.insert(value.into());
            }
        }
        self.used_bytes += value.len();
    }

    /// Removes an attribute; `NoAttribute`: there is none of the name.
    pub fn remove(&mut self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let attributes = self.inodes.get_mut(&ino).ok_or(FsError::NoAttribute)?;
        let value = attributes.remove(name).ok_or(FsError::NoAttribute)?;
        self.used_bytes -= size(name, value.len()) + OVERHEAD_BYTES;
        if attributes.is_empty() {
            self.inodes.remove(&ino);
        }
        Ok(())
    }

    /// Removes all attributes of an inode, whose life is over.
    pub fn forget(&mut self, ino: Ino) {
        for (name, value) in self.inodes.remove(&ino).into_iter().flatten() {
            self.used_bytes -= size(&name, value.len()) + OVERHEAD_BYTES;
        }
    }

    /// Shows the attributes of inodes behind `after`, of at least `most` attributes if there are as
    /// many; returns the last inode that was shown, if there are more.
    pub fn show_some(
        &self,
        after: Option<Ino>,
        most: usize,
        visit: &mut dyn FnMut(&Item<'_>),
    ) -> Option<Ino> {
        use core::ops::Bound::{Excluded, Unbounded};
        let mut shown = 0;
        let from = after.map_or(Unbounded, Excluded);
        for (ino, attributes) in self.inodes.range((from, Unbounded)) {
            for (name, value) in attributes {
                visit(&Item::Xattr(*ino, name, value));
            }
            shown += attributes.len();
            if shown >= most {
                return Some(*ino);
            }
        }
        None
    }
}

/// Returns the size of an attribute, bytes.
fn size(name: &[u8], value_bytes: usize) -> usize {
    name.len() + 1 + value_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Rank;

    const ANY: SetFlags = SetFlags {
        create: false,
        replace: false,
    };
    const CREATE: SetFlags = SetFlags {
        create: true,
        ..ANY
    };
    const REPLACE: SetFlags = SetFlags {
        replace: true,
        ..ANY
    };

    fn ino(index: u32) -> Ino {
        Ino::new(Rank(0), 0, index)
    }

    #[test]
    fn flags_say_whether_it_must_be_there() {
        let mut xattrs = Xattrs::default();
        let missing = xattrs.check(ino(1), b"user.a", 1, REPLACE);
        assert_eq!(missing, Err(FsError::NoAttribute));
        assert_eq!(xattrs.check(ino(1), b"user.a", 1, CREATE), Ok(()));
        xattrs.set(ino(1), b"user.a", b"1");
        let there = xattrs.check(ino(1), b"user.a", 1, CREATE);
        assert_eq!(there, Err(FsError::Exists));
        assert_eq!(xattrs.check(ino(1), b"user.a", 1, REPLACE), Ok(()));
        assert_eq!(xattrs.get(ino(1), b"user.a"), Ok(&b"1"[..]));
        assert_eq!(xattrs.get(ino(2), b"user.a"), Err(FsError::NoAttribute));
    }

    #[test]
    fn what_an_inode_and_the_table_may_have_is_bounded() {
        let mut xattrs = Xattrs::default();
        let name = b"user.a";
        let fits = INODE_BYTES - name.len() - 1;
        assert_eq!(xattrs.check(ino(1), name, fits, ANY), Ok(()));
        let over = xattrs.check(ino(1), name, fits + 1, ANY);
        assert_eq!(over, Err(FsError::NoSpace));
        xattrs.set(ino(1), name, &vec![0; fits]);
        // Its own bytes are free when it is replaced.
        assert_eq!(xattrs.check(ino(1), name, fits, ANY), Ok(()));
        let other = xattrs.check(ino(1), b"user.b", 0, ANY);
        assert_eq!(other, Err(FsError::NoSpace));
        let mut index = 2;
        while xattrs.check(ino(index), name, fits, ANY).is_ok() {
            xattrs.set(ino(index), name, &vec![0; fits]);
            index += 1;
        }
        assert!(xattrs.used_bytes <= TABLE_BYTES);
        (1..index).for_each(|index| xattrs.forget(ino(index)));
        assert_eq!(xattrs.used_bytes, 0);
    }

    #[test]
    fn names_are_listed_until_they_are_removed() {
        let mut xattrs = Xattrs::default();
        xattrs.set(ino(1), b"user.b", b"2");
        xattrs.set(ino(1), b"user.a", b"1");
        xattrs.set(ino(1), b"user.a", b"longer");
        assert_eq!(xattrs.list(ino(1)), b"user.a\0user.b\0");
        xattrs.remove(ino(1), b"user.a").unwrap();
        let again = xattrs.remove(ino(1), b"user.a");
        assert_eq!(again, Err(FsError::NoAttribute));
        xattrs.remove(ino(1), b"user.b").unwrap();
        assert_eq!(xattrs.list(ino(1)), b"");
        assert_eq!(xattrs.used_bytes, 0);
    }

    #[test]
    fn steps_show_everything_once() {
        let mut xattrs = Xattrs::default();
        for index in 1..=10 {
            xattrs.set(ino(index), b"user.a", b"1");
            xattrs.set(ino(index), b"user.b", b"2");
        }
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            after = xattrs.show_some(after, 3, &mut |item| match item {
                Item::Xattr(ino, name, _) => shown.push((*ino, name.to_vec())),
                other => panic!("{other:?}"),
            });
            if after.is_none() {
                break;
            }
        }
        assert_eq!(shown.len(), 20);
        shown.dedup();
        assert_eq!(shown.len(), 20);
    }
}
