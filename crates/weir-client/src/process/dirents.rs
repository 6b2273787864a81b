//! The buffer of getdents64(2).

use rustix::io::Errno;
use weir_core::types::Ino;

/// Bytes of `struct linux_dirent64` before the name.
const HEAD: usize = 19;
/// The most that an entry takes.
pub(super) const LONGEST: usize = HEAD + 256 + 8;

/// A buffer of `struct linux_dirent64`.
pub(super) struct DirentList<'a> {
    out: &'a mut [u8],
    filled: usize,
}

impl DirentList<'_> {
    /// An empty one.
    pub(super) fn new(out: &mut [u8]) -> DirentList<'_> {
        DirentList { out, filled: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The bytes that it holds.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The bytes that are left.
    pub(super) fn room(&self) -> usize {
        self.out.len() - self.filled
    }

    /// Appends an entry; EINVAL: there is no room for it.
    pub(super) fn put(&mut self, ino: Ino, next: u64, kind: u8, name: &[u8]) -> Result<(), Errno> {
        let length = (HEAD + name.len() + 1).next_multiple_of(8);
        let entry = self
            .out
            .get_mut(self.filled..self.filled + length)
            .ok_or(Errno::INVAL)?;
        let short = u16::try_from(length).map_err(|_| Errno::INVAL)?;
        entry[..8].copy_from_slice(&ino.0.to_ne_bytes());
        entry[8..16].copy_from_slice(&next.to_ne_bytes());
        entry[16..18].copy_from_slice(&short.to_ne_bytes());
        entry[18] = kind;
        entry[HEAD..HEAD + name.len()].copy_from_slice(name);
        entry[HEAD + name.len()..].fill(0);
        self.filled += length;
        Ok(())
    }
}
