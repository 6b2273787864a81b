//! What stands in for mapping a file: a private mapping becomes anonymous memory that
//! is filled, and a program or library to run becomes a memfd of the kernel's.

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::table::{Handle, READ, WRITE};
use super::{Outcome, Process};
use crate::kernel::{self, Fd};

/// How much is copied at a time.
const BUFFER: usize = 1 << 20;

impl Process {
    /// Whether a file may be mapped: shared mappings get ENODEV, counted.
    pub fn mmap(&'static self, fd: Fd, shared: bool, write: bool) -> Outcome<()> {
        let handle = self.sure_handle(fd)?;
        if handle.file.get().is_none() {
            return Some(Err(Errno::NODEV));
        }
        if !handle.has(READ) || (shared && write && !handle.has(WRITE)) {
            return Some(Err(Errno::ACCESS));
        }
        if shared {
            self.count_refusal(if write {
                "mmap-shared-write"
            } else {
                "mmap-shared-read"
            });
            return Some(Err(Errno::NODEV));
        }
        Some(Ok(()))
    }

    /// Fills anonymous memory that stands in for a private mapping from `offset` on;
    /// how many bytes the file had (the rest is left as it is).
    pub fn mmap_private_fill(
        &'static self,
        fd: Fd,
        offset: u64,
        bytes: &mut [u8],
    ) -> Outcome<usize> {
        let handle = self.sure_handle(fd)?;
        let open = match self.for_reading(handle) {
            Ok(open) => open,
            Err(error) => return Some(Err(error)),
        };
        Some(open.read_at(offset, bytes))
    }

    /// A descriptor of the kernel with a copy of the file (a memfd), for execve, dlopen.
    pub fn materialize(&'static self, fd: Fd) -> Outcome<Fd> {
        let handle = self.sure_handle(fd)?;
        Some(self.copy_out(handle))
    }

    /// As `materialize`, by path.
    pub fn materialize_at(&'static self, dirfd: Fd, path: &[u8], _flags: i32) -> Outcome<Fd> {
        let fd = match self.openat(dirfd, path, super::open::O_CLOEXEC, 0)? {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        if self.handle(fd).is_none() {
            return Some(Ok(fd));
        }
        let copy = self.materialize(fd);
        let _ = self.close(fd);
        copy
    }

    fn copy_out(&'static self, handle: &'static Handle) -> Result<Fd, Errno> {
        let open = self.for_reading(handle)?;
        let memory = rustix::fs::memfd_create("weir", MemfdFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        let mut at = 0;
        loop {
            let got = open.read_at(at, &mut buffer)?;
            if got == 0 {
                return Ok(kernel::into_number(memory));
            }
            let mut part = &buffer[..got];
            while !part.is_empty() {
                let put = rustix::io::write(&memory, part)?;
                part = &part[put..];
            }
            at += got as u64;
        }
    }
}
