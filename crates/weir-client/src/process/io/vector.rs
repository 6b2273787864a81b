//! Reading and writing of several pieces of memory with one call.
//!
//! A vectored write reserves its range of the file once, for all its pieces; if it appends, the
//! pieces go through one buffer, so that they stay together. The data path gets the pieces of a
//! read together: one look-up, and one request to other nodes.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;

use super::super::table::Handle;
use super::super::Outcome;
use super::{appends, IoCalls, Open};
use crate::data::Target;
use crate::kernel::Fd;
use crate::limits;

/// The most pieces (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// Flags of preadv2 and pwritev2.
const RWF_HIPRI: i32 = 1;
const RWF_DSYNC: i32 = 2;
const RWF_SYNC: i32 = 4;
const RWF_APPEND: i32 = 16;

impl IoCalls {
    /// readv(2).
    pub fn readv(&self, fd: Fd, slices: &mut [IoSliceMut<'_>]) -> Outcome<usize> {
        self.preadv2(fd, slices, -1, 0)
    }

    /// writev(2).
    pub fn writev(&self, fd: Fd, slices: &[IoSlice<'_>]) -> Outcome<usize> {
        self.pwritev2(fd, slices, -1, 0)
    }

    /// preadv(2).
    pub fn preadv(&self, fd: Fd, slices: &mut [IoSliceMut<'_>], offset: i64) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(match u64::try_from(offset) {
            Ok(offset) => self.read_pieces(handle, slices, Some(offset)),
            Err(_) => Err(Errno::INVAL),
        })
    }

    /// pwritev(2).
    pub fn pwritev(&self, fd: Fd, slices: &[IoSlice<'_>], offset: i64) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(match u64::try_from(offset) {
            Ok(offset) => self.write_pieces(handle, slices, Some(offset), false),
            Err(_) => Err(Errno::INVAL),
        })
    }

    /// preadv2(2); offset -1: the current one.
    pub fn preadv2(
        &self,
        fd: Fd,
        slices: &mut [IoSliceMut<'_>],
        offset: i64,
        flags: i32,
    ) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        if flags & !RWF_HIPRI != 0 {
            return Some(Err(Errno::OPNOTSUPP));
        }
        Some(match given(offset) {
            Ok(offset) => self.read_pieces(handle, slices, offset),
            Err(error) => Err(error),
        })
    }

    /// pwritev2(2); offset -1: the current one.
    pub fn pwritev2(
        &self,
        fd: Fd,
        slices: &[IoSlice<'_>],
        offset: i64,
        flags: i32,
    ) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        if flags & !(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND) != 0 {
            return Some(Err(Errno::OPNOTSUPP));
        }
        let done = given(offset)
            .and_then(|offset| self.write_pieces(handle, slices, offset, flags & RWF_APPEND != 0));
        if done.is_ok() && flags & (RWF_DSYNC | RWF_SYNC) != 0 {
            if let Some(Err(error)) = self.fsync(fd) {
                return Some(Err(error));
            }
        }
        Some(done)
    }

    /// Reads several ranges of a file, at any offsets; see [`Vnode::read_all`].
    ///
    /// [`Vnode::read_all`]: crate::data::Vnode::read_all
    pub fn read_all(&self, fd: Fd, targets: &mut [Target<'_>]) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        let open = self.for_reading(handle);
        Some(open.and_then(|open| open.file.vnode.read_all(open.session, targets)))
    }

    fn read_pieces(
        &self,
        handle: &'static Handle,
        slices: &mut [IoSliceMut<'_>],
        offset: Option<u64>,
    ) -> Result<usize, Errno> {
        let open = self.for_reading(handle)?;
        let length = total(slices.iter().map(|slice| slice.len()))?;
        let mut read = |open: Open, at: u64| {
            at.checked_add(length as u64).ok_or(Errno::INVAL)?;
            let mut next = at;
            let target = |slice| {
                let offset = next;
                let bytes: &mut [u8] = slice;
                next += bytes.len() as u64;
                Target { offset, bytes }
            };
            let slices = slices.iter_mut().map(|slice| &mut **slice);
            let mut targets: Vec<Target<'_>> = slices.map(target).collect();
            open.file.vnode.read_all(open.session, &mut targets)?;
            // Fewer only at the end of the file, and nothing behind it.
            Ok(targets.iter().map(|target| target.bytes.len()).sum())
        };
        match offset {
            Some(at) => read(open, at),
            None => open.read_with(read),
        }
    }

    fn write_pieces(
        &self,
        handle: &'static Handle,
        slices: &[IoSlice<'_>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        let open = self.for_writing(handle)?;
        let length = total(slices.iter().map(|slice| slice.len()))?;
        if append || appends(open.ofd) {
            let whole = || {
                slices
                    .iter()
                    .flat_map(|slice| slice.iter().copied())
                    .collect()
            };
            let bytes: Vec<u8> = whole();
            let written = match offset {
                None => open.append(&bytes)?,
                Some(_) => open.file.vnode.append(open.session, &bytes)?.1,
            };
            return open.synced(written);
        }
        if let Some(at) = offset {
            return open.synced(write_each(open, slices, at)?);
        }
        let at = open.reserve(length)?;
        let written = open.settle(at, length, write_each(open, slices, at))?;
        open.synced(written)
    }
}

fn write_each(open: Open, slices: &[IoSlice<'_>], at: u64) -> Result<usize, Errno> {
    let mut written = 0;
    for slice in slices.iter().filter(|slice| !slice.is_empty()) {
        let to = at.checked_add(written as u64).ok_or(Errno::FBIG)?;
        if written > 0 && to >= limits::file_bytes() {
            break; // the whole call is cut at the limit
        }
        let n = match open.file.vnode.write_at(open.session, to, slice) {
            Err(error) if written == 0 => return Err(error),
            n => n.unwrap_or(0),
        };
        written += n;
        if n < slice.len() {
            break;
        }
    }
    Ok(written)
}

/// The offset that a call gives; `None`: the description's.
fn given(offset: i64) -> Result<Option<u64>, Errno> {
    match offset {
        -1 => Ok(None),
        offset => u64::try_from(offset).map(Some).map_err(|_| Errno::INVAL),
    }
}

fn total(mut lengths: impl ExactSizeIterator<Item = usize>) -> Result<usize, Errno> {
    if lengths.len() > MAX_PIECES {
        return Err(Errno::INVAL);
    }
    let sum = lengths.try_fold(0usize, usize::checked_add);
    sum.filter(|sum| isize::try_from(*sum).is_ok())
        .ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_vectors_are_refused() {
        assert_eq!(total([1usize, 2].into_iter()), Ok(3));
        assert_eq!(total([usize::MAX, 1].into_iter()), Err(Errno::INVAL));
        assert_eq!(total(vec![0usize; 1025].into_iter()), Err(Errno::INVAL));
        assert_eq!(given(-1), Ok(None));
        assert_eq!(given(-2), Err(Errno::INVAL));
    }
}
