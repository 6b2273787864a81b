//! Extended attributes of this server's inodes.
//!
//! A value that does not fit into one request comes in parts, which wait here until the last one
//! arrives. An unfinished value is dropped with its client.

use std::collections::HashMap;

use weir_core::journal::Item;
use weir_core::proto::peer::SetXattr;
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{ClientId, Ino};
use weir_core::xattr::{SetFlags, VALUE_MAX};

use crate::cluster::files::{NodeFiles, OpenFileTables};
use crate::cluster::refusal::refusal;

/// Values with missing parts, by the client and the number of its call.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Unfinished(HashMap<(ClientId, u64), Vec<u8>>);

/// The most values that one client may have begun: as many as it can have calls under way, and a
/// few that failed.
const MOST_UNFINISHED: usize = 64;

impl Unfinished {
    /// Appends a part to the earlier ones; returns the value once it is complete.
    fn add(&mut self, from: Caller, op: &proto::SetXattr) -> Result<Option<Vec<u8>>, FsError> {
        if op.before == 0 && op.after == 0 {
            return Ok(Some(op.part.clone()));
        }
        let Caller::Client(client) = from else {
            return Err(FsError::NotPermitted);
        };
        let key = (client, op.call);
        let mut value = self.0.remove(&key).unwrap_or_default();
        if op.before == 0 {
            value.clear();
            let others = self.0.keys().filter(|(other, _)| *other == client);
            if others.count() >= MOST_UNFINISHED {
                return Err(FsError::NoSpace);
            }
        }
        if value.len() != op.before as usize || value.len() + op.part.len() > VALUE_MAX {
            return Err(FsError::Invalid);
        }
        value.extend_from_slice(&op.part);
        if op.after == 0 {
            return Ok(Some(value));
        }
        self.0.insert(key, value);
        Ok(None)
    }

    /// Drops the unfinished values of a client that is gone.
    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.0.retain(|(other, _), _| *other != client);
    }
}

impl OpenFileTables {
    /// Takes a part of a value; returns the operation once the value is complete.
    pub(super) fn take_xattr_part(
        &mut self,
        from: Caller,
        op: proto::SetXattr,
    ) -> Result<Option<SetXattr>, FsError> {
        let value = self.unfinished_xattrs.add(from, &op)?;
        Ok(value.map(|value| SetXattr {
            ino: op.ino,
            name: op.name,
            value,
            flags: op.flags,
        }))
    }
}

impl NodeFiles<'_, '_> {
    /// The value of an extended attribute.
    pub(in crate::cluster) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.names.attr(ino).map_err(refusal)?;
        self.tables.xattrs.get(ino, name).map(<[u8]>::to_vec)
    }

    /// The names of all extended attributes.
    pub(in crate::cluster) fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.names.attr(ino).map_err(refusal)?;
        Ok(self.tables.xattrs.list(ino))
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: SetFlags,
    ) -> Result<(), FsError> {
        self.names.attr(ino).map_err(refusal)?;
        self.tables.xattrs.check(ino, name, value.len(), flags)?;
        self.tables.xattrs.set(ino, name, value);
        self.changes.note(&Item::Xattr(ino, name, value));
        self.names.touch(ino, false)
    }

    /// Removes an extended attribute.
    pub(super) fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        self.names.attr(ino).map_err(refusal)?;
        self.tables.xattrs.remove(ino, name)?;
        self.changes.note(&Item::XattrGone(ino, name));
        self.names.touch(ino, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(call: u64, before: u32, part: &[u8], after: u32) -> proto::SetXattr {
        proto::SetXattr {
            ino: Ino(1),
            name: b"user.a".to_vec(),
            part: part.to_vec(),
            before,
            after,
            call,
            flags: SetFlags {
                create: false,
                replace: false,
            },
        }
    }

    #[test]
    fn parts_of_several_calls_do_not_mix() {
        let mut unfinished = Unfinished::default();
        let from = Caller::Client(ClientId(3));
        assert_eq!(unfinished.add(from, &part(1, 0, b"ab", 2)), Ok(None));
        assert_eq!(unfinished.add(from, &part(2, 0, b"xy", 1)), Ok(None));
        let other = Caller::Client(ClientId(4));
        let stray = unfinished.add(other, &part(1, 2, b"cd", 0));
        assert_eq!(stray, Err(FsError::Invalid));
        let whole = unfinished.add(from, &part(1, 2, b"cd", 0));
        assert_eq!(whole, Ok(Some(b"abcd".to_vec())));
        unfinished.forget_client(ClientId(3));
        assert!(unfinished.0.is_empty());
    }

    #[test]
    fn what_a_client_leaves_unfinished_is_bounded() {
        let mut unfinished = Unfinished::default();
        let from = Caller::Client(ClientId(3));
        for call in 0..MOST_UNFINISHED as u64 {
            assert_eq!(unfinished.add(from, &part(call, 0, b"a", 1)), Ok(None));
        }
        let more = unfinished.add(from, &part(1000, 0, b"a", 1));
        assert_eq!(more, Err(FsError::NoSpace));
        let long = vec![0; VALUE_MAX];
        let too_long = unfinished.add(from, &part(1, 1, &long, 1));
        assert_eq!(too_long, Err(FsError::Invalid));
    }
}
