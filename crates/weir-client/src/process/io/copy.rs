//! Copies between descriptors of which at least one is weir's: copy_file_range and
//! sendfile, through a buffer.

use core::sync::atomic::Ordering;

use rustix::io::Errno;

use super::super::table::{Handle, DIR, PATH, READ, WRITE};
use super::super::Outcome;
use super::appends as appends_to_end;
use super::IoCalls;
use crate::kernel::{self, Fd};
use crate::operation;

/// The number of bytes copied at a time: it fits a processor's own cache, and needs no mapping of
/// its own that the kernel would have to zero for each call.
const BUFFER: usize = 64 << 10;

/// One side of a copy: a descriptor, and the offset at which it reads or writes, if not its own.
struct CopySide<'a> {
    io: &'a IoCalls,
    fd: Fd,
    at: Option<&'a mut i64>,
}

/// A side of a copy that is a file of weir's, and the offset at which it begins.
#[derive(Clone, Copy)]
struct OpenSide {
    handle: &'static Handle,
    begin: u64,
}

impl IoCalls {
    /// copy_file_range(2), where either side is ours.
    pub fn copy_file_range(
        &self,
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
        let _call = operation::begin();
        if flags != 0 {
            return Some(Err(Errno::INVAL));
        }
        let from = self.copy_side(from, from_offset);
        let to = self.copy_side(to, to_offset);
        // Two files of weir's are one file system. Otherwise the error is the kernel's from before
        // it could copy across file systems: callers then copy by themselves.
        let (Some(source), Some(target)) = (
            self.descriptors.handle(from.fd),
            self.descriptors.handle(to.fd),
        ) else {
            return Some(Err(across(&from, &to)));
        };
        let source = OpenSide {
            handle: source,
            begin: from.begin(source),
        };
        let target = OpenSide {
            handle: target,
            begin: to.begin(target),
        };
        let length = match self.length_of_copy(source, target, length) {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        Some(copy(from, to, length))
    }

    /// The number of bytes that copy_file_range(2) copies, of `length`; fails first where Linux
    /// refuses.
    fn length_of_copy(&self, from: OpenSide, to: OpenSide, length: usize) -> Result<usize, Errno> {
        let (source, target) = (from.handle, to.handle);
        if source.has(PATH) || target.has(PATH) {
            return Err(Errno::BADF);
        }
        if source.has(DIR) || target.has(DIR) {
            return Err(Errno::ISDIR);
        }
        let appends = target.ofd.get().is_some_and(appends_to_end);
        if !source.has(READ) || !target.has(WRITE) || appends {
            return Err(Errno::BADF);
        }
        let length = length as u64;
        let first = |at: u64| match at.checked_add(length) {
            Some(_) => Ok(at),
            None => Err(Errno::OVERFLOW),
        };
        let (from, to) = (first(from.begin)?, first(to.begin)?);
        let there = self.size(source)?.saturating_sub(from).min(length);
        let overlap = to.saturating_add(there) > from && to < from.saturating_add(there);
        if overlap && source.ino() == target.ino() {
            return Err(Errno::INVAL);
        }
        let room = (i64::MAX as u64).saturating_sub(to);
        if room == 0 && there > 0 {
            return Err(Errno::FBIG);
        }
        Ok(usize::try_from(there.min(room)).unwrap_or(usize::MAX))
    }

    /// sendfile(2), where either side is ours.
    pub fn sendfile(
        &self,
        to: Fd,
        from: Fd,
        offset: Option<&mut i64>,
        length: usize,
    ) -> Outcome<usize> {
        if self.neither_is_ours(from, to) {
            return None;
        }
        let is_negative = offset.as_ref().is_some_and(|offset| **offset < 0);
        if let Some(source) = self
            .descriptors
            .handle(from)
            .filter(|source| !source.has(PATH))
        {
            let written =
                self.descriptors
                    .handle(to)
                    .map_or(Ok(()), |target| match target.has(WRITE) {
                        true => Ok(()),
                        false => Err(Errno::BADF),
                    });
            let appends = self
                .descriptors
                .handle(to)
                .and_then(|target| target.ofd.get());
            let appends = appends.is_some_and(appends_to_end);
            if let Err(error) = written {
                return Some(Err(error));
            }
            if source.has(DIR) || appends || is_negative {
                return Some(Err(Errno::INVAL));
            }
        }
        Some(copy(
            self.copy_side(from, offset),
            self.copy_side(to, None),
            length,
        ))
    }

    fn copy_side<'a>(&'a self, fd: Fd, at: Option<&'a mut i64>) -> CopySide<'a> {
        CopySide { io: self, fd, at }
    }

    /// Makes sure of both, also where the first one is ours.
    fn neither_is_ours(&self, from: Fd, to: Fd) -> bool {
        let (from, to) = (
            self.descriptors.verified_handle(from),
            self.descriptors.verified_handle(to),
        );
        from.is_none() && to.is_none()
    }
}

/// Copies bytes from one side to the other.
fn copy(mut from: CopySide<'_>, mut to: CopySide<'_>, length: usize) -> Result<usize, Errno> {
    let mut buffer = vec![0; length.clamp(1, BUFFER)];
    let mut copied = 0;
    while copied < length {
        let want = (length - copied).min(buffer.len());
        let got = match from.read_some(&mut buffer[..want]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if copied == 0 => return Err(error),
            Err(_) => break,
        };
        let put = match to.write_all(&buffer[..got]) {
            Ok(n) => n,
            Err(error) if copied == 0 => return Err(error),
            Err(_) => 0,
        };
        copied += put;
        if put < got {
            // Bytes that were read but not written are read again by the next call.
            from.step_back(got - put);
            break;
        }
    }
    Ok(copied)
}

/// The error of a copy with one side that is not weir's.
fn across(from: &CopySide<'_>, to: &CopySide<'_>) -> Errno {
    use rustix::fs::FileType;
    for side in [from, to] {
        let kind = kernel::borrow(side.fd)
            .and_then(rustix::fs::fstat)
            .map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            // Weir's side is a directory for the kernel.
            Ok(FileType::RegularFile | FileType::Directory) => {}
            Ok(_) => return Errno::INVAL,
            Err(error) => return error,
        }
    }
    Errno::XDEV
}

impl CopySide<'_> {
    fn read_some(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let ours = self.io.descriptors.handle(self.fd).is_some();
        let n = match (&self.at, ours) {
            (Some(at), true) => self
                .io
                .pread(self.fd, bytes, **at)
                .unwrap_or(Err(Errno::BADF)),
            (None, true) => self.io.read(self.fd, bytes).unwrap_or(Err(Errno::BADF)),
            (Some(at), false) => {
                let at = u64::try_from(**at).map_err(|_| Errno::INVAL)?;
                rustix::io::pread(kernel::borrow(self.fd)?, bytes, at)
            }
            (None, false) => rustix::io::read(kernel::borrow(self.fd)?, bytes),
        }?;
        self.advance(n);
        Ok(n)
    }

    /// Writes all bytes; fewer only if an error followed the first ones.
    fn write_all(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let put = match (&self.at, self.io.descriptors.handle(self.fd).is_some()) {
                (Some(at), true) => self
                    .io
                    .pwrite(self.fd, rest, **at)
                    .unwrap_or(Err(Errno::BADF)),
                (None, true) => self.io.write(self.fd, rest).unwrap_or(Err(Errno::BADF)),
                (Some(_), false) => Err(Errno::INVAL),
                (None, false) => rustix::io::write(kernel::borrow(self.fd)?, rest),
            };
            match put {
                Ok(0) => break,
                Ok(n) => {
                    let short = n < rest.len();
                    self.advance(n);
                    done += n;
                    if short {
                        // There is no more room, or the file may not grow: the next call reports
                        // it.
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn step_back(&mut self, n: usize) {
        let by = -i64::try_from(n).unwrap_or(0);
        match &mut self.at {
            Some(at) => **at += by,
            None if self.io.descriptors.handle(self.fd).is_some() => {
                let _ = self.io.lseek(self.fd, by, 1);
            }
            None => {
                let _ = kernel::lseek(self.fd, by, 1);
            }
        }
    }

    /// The offset at which it begins: a negative one is far out.
    fn begin(&self, handle: &Handle) -> u64 {
        if let Some(at) = &self.at {
            return at.cast_unsigned();
        }
        let ofd = handle.ofd.get();
        ofd.map_or(0, |ofd| ofd.offset.load(Ordering::Acquire))
    }

    fn advance(&mut self, n: usize) {
        if let Some(at) = &mut self.at {
            **at += i64::try_from(n).unwrap_or(0);
        }
    }
}
