//! Copies between descriptors of which at least one is weir's: copy_file_range and
//! sendfile, through a buffer.

use rustix::io::Errno;

use super::{Outcome, Process};
use crate::kernel::{self, Fd};

/// How much is copied at a time: what stays in a processor's own cache, and is no mapping of its own that
/// the kernel would have to fill with zeros for each call.
const BUFFER: usize = 64 << 10;

/// One side of a copy: a descriptor, and where it reads or writes if not at its own
/// offset.
struct Side<'a> {
    fd: Fd,
    at: Option<&'a mut i64>,
}

impl Process {
    /// copy_file_range(2), where either side is ours.
    pub fn copy_file_range(
        &'static self,
        from: Fd,
        from_offset: Option<&mut i64>,
        to: Fd,
        to_offset: Option<&mut i64>,
        length: usize,
        flags: u32,
    ) -> Outcome<usize> {
        if self.neither_is_ours(from, to) {
            return None;
        }
        if flags != 0 {
            return Some(Err(Errno::INVAL));
        }
        // Both within weir is one file system; else say so, as the kernel did before it
        // could copy across: callers then copy by themselves.
        if self.handle(from).is_none() || self.handle(to).is_none() {
            return Some(Err(Errno::XDEV));
        }
        let from = Side {
            fd: from,
            at: from_offset,
        };
        let to = Side {
            fd: to,
            at: to_offset,
        };
        Some(self.copy(from, to, length))
    }

    /// sendfile(2), where either side is ours.
    pub fn sendfile(
        &'static self,
        to: Fd,
        from: Fd,
        offset: Option<&mut i64>,
        length: usize,
    ) -> Outcome<usize> {
        if self.neither_is_ours(from, to) {
            return None;
        }
        let from = Side {
            fd: from,
            at: offset,
        };
        Some(self.copy(from, Side { fd: to, at: None }, length))
    }

    fn copy(
        &'static self,
        mut from: Side<'_>,
        mut to: Side<'_>,
        length: usize,
    ) -> Result<usize, Errno> {
        let mut buffer = vec![0; length.clamp(1, BUFFER)];
        let mut copied = 0;
        while copied < length {
            let want = (length - copied).min(buffer.len());
            let got = match self.take(&mut from, &mut buffer[..want]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            };
            let put = match self.give(&mut to, &buffer[..got]) {
                Ok(n) => n,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => 0,
            };
            copied += put;
            if put < got {
                // What was read and has no place is read again by the next call.
                self.step_back(&mut from, got - put);
                break;
            }
        }
        Ok(copied)
    }

    /// Makes sure of both, also where the first one is ours.
    fn neither_is_ours(&'static self, from: Fd, to: Fd) -> bool {
        let (from, to) = (self.sure_handle(from), self.sure_handle(to));
        from.is_none() && to.is_none()
    }

    fn take(&'static self, side: &mut Side<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
        let ours = self.handle(side.fd).is_some();
        let n = match (&side.at, ours) {
            (Some(at), true) => self.pread(side.fd, bytes, **at).unwrap_or(Err(Errno::BADF)),
            (None, true) => self.read(side.fd, bytes).unwrap_or(Err(Errno::BADF)),
            (Some(at), false) => {
                let at = u64::try_from(**at).map_err(|_| Errno::INVAL)?;
                rustix::io::pread(kernel::borrow(side.fd)?, bytes, at)
            }
            (None, false) => rustix::io::read(kernel::borrow(side.fd)?, bytes),
        }?;
        side.advance(n);
        Ok(n)
    }

    fn give(&'static self, side: &mut Side<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let put = match (&side.at, self.handle(side.fd).is_some()) {
                (Some(at), true) => self.pwrite(side.fd, rest, **at).unwrap_or(Err(Errno::BADF)),
                (None, true) => self.write(side.fd, rest).unwrap_or(Err(Errno::BADF)),
                (Some(_), false) => Err(Errno::INVAL),
                (None, false) => rustix::io::write(kernel::borrow(side.fd)?, rest),
            };
            match put {
                Ok(0) => break,
                Ok(n) => {
                    let short = n < rest.len();
                    side.advance(n);
                    done += n;
                    if short {
                        // There is no room for more, or it may not grow: the next call says so.
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn step_back(&'static self, side: &mut Side<'_>, n: usize) {
        let by = -i64::try_from(n).unwrap_or(0);
        match &mut side.at {
            Some(at) => **at += by,
            None if self.handle(side.fd).is_some() => {
                let _ = self.lseek(side.fd, by, 1);
            }
            None => {
                let _ = kernel::lseek(side.fd, by, 1);
            }
        }
    }
}

impl Side<'_> {
    fn advance(&mut self, n: usize) {
        if let Some(at) = &mut self.at {
            **at += i64::try_from(n).unwrap_or(0);
        }
    }
}
