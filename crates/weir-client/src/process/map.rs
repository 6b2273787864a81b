//! Mapping a file. The kernel maps it through the kernel mount, if there is one; otherwise a
//! private mapping is of a memfd with a copy, and a shared one is refused. A program or library to
//! run becomes a memfd too.

use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::io::IoCalls;
use super::outcome::done;
use super::program_copies::memory_named_by;
use super::server_link::ServerLink;
use super::table::{Handle, PATH, READ, WRITE};
use super::{Outcome, ProcessState};
use crate::kernel::{self, Fd};
use crate::limits;

/// The number of bytes copied at a time.
const BUFFER: usize = 1 << 20;
/// The same on the stack.
const PIECE: usize = 4 << 10;
/// A shorter private mapping is a copy: that costs less than the kernel's look at the mount.
const LEAST_MAPPED: usize = 64 << 10;

/// The way in which a file is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// By the kernel, of this descriptor of the kernel mount.
    Kernel {
        /// The descriptor.
        fd: Fd,
        /// False: the caller closes it once it is mapped.
        is_kept: bool,
    },
    /// By a copy of the bytes ([`MappingCalls::copy_to_map`]).
    Copy,
}

/// The calls that map files, or copy them for it. They may touch descriptors, the calls on bytes, inodes and the
/// server.
#[derive(Debug)]
pub struct MappingCalls {
    descriptors: Descriptors,
    io: IoCalls,
    server: &'static ServerLink,
    inodes: InodeOperations,
}

impl MappingCalls {
    pub(super) const fn over(state: &'static ProcessState) -> MappingCalls {
        MappingCalls {
            descriptors: Descriptors::over(state),
            io: IoCalls::over(state),
            server: &state.server,
            inodes: InodeOperations::over(state),
        }
    }

    /// Chooses how a file is mapped. ENODEV, counted: shared mappings need the kernel mount.
    pub fn mmap(&self, fd: Fd, length: usize, shared: bool, write: bool) -> Outcome<Mapping> {
        let handle = self.descriptors.verified_handle(fd)?;
        let Some(file) = handle.file.get() else {
            if handle.has(PATH) {
                return Some(Err(Errno::BADF));
            }
            return Some(Err(Errno::NODEV));
        };
        if !handle.has(READ) || (shared && write && !handle.has(WRITE)) {
            return Some(Err(Errno::ACCESS));
        }
        if !shared && length < LEAST_MAPPED {
            return Some(Ok(Mapping::Copy));
        }
        done!(handle.intact());
        let session = done!(self.server.session());
        let opened = match shared {
            true if handle.has(WRITE) => session.open_mapped(handle.ino(), &file.vnode.beneath),
            true => session.open_readable(handle.ino()),
            false => session.open_private(handle.ino(), &file.vnode.beneath_private),
        };
        // The kernel learns the size by asking for it.
        let opened = opened.and_then(|(fd, is_kept)| {
            kernel::borrow(fd).and_then(rustix::fs::fstat)?;
            Ok((fd, is_kept))
        });
        match opened {
            Ok((fd, is_kept)) => Some(Ok(Mapping::Kernel { fd, is_kept })),
            Err(_) if !shared => Some(Ok(Mapping::Copy)),
            Err(_) => {
                self.server.count_refusal(if write {
                    "mmap-shared-write"
                } else {
                    "mmap-shared-read"
                });
                Some(Err(Errno::NODEV))
            }
        }
    }

    /// A memfd with a copy of the bytes that a private mapping of `length` bytes from `offset` on
    /// shows; the caller maps it, and closes it. It ends where the file ends: behind that is
    /// SIGBUS, as for the file. Pages that are given up (MADV_DONTNEED) show the copied bytes
    /// again. EFBIG: the process may not make files of that length ([`MappingCalls::fill_mapping`]
    /// anonymous memory).
    pub fn copy_to_map(&self, fd: Fd, offset: u64, length: usize) -> Outcome<Fd> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(self.copy_part(handle, offset, length))
    }

    /// Fills memory with the bytes of a file from `offset` on; returns how many there were.
    pub fn fill_mapping(&self, fd: Fd, offset: u64, bytes: &mut [u8]) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        let open = self.io.for_reading(handle);
        Some(open.and_then(|open| open.read_at(offset, bytes)))
    }

    fn copy_part(&self, handle: &'static Handle, offset: u64, length: usize) -> Result<Fd, Errno> {
        let open = self.io.for_reading(handle)?;
        // The last page shows the file's bytes, even those behind the mapping.
        let length = length.next_multiple_of(rustix::param::page_size());
        if length as u64 > limits::file_bytes() {
            return Err(Errno::FBIG);
        }
        let memory = rustix::fs::memfd_create(c"weir-private", MemfdFlags::CLOEXEC)?;
        // Not from the allocator, which maps memory itself.
        let mut buffer = [0; PIECE];
        let mut copied = 0;
        while copied < length {
            let piece = &mut buffer[..(length - copied).min(PIECE)];
            let got = open.read_at(offset + copied as u64, piece)?;
            if got == 0 {
                break;
            }
            write_all(&memory, &piece[..got])?;
            copied += got;
        }
        Ok(kernel::into_number(memory))
    }

    /// A descriptor of the kernel with a copy of the file (a memfd), for execve, dlopen.
    pub fn materialize(&self, fd: Fd) -> Outcome<Fd> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(self.copy_out(handle))
    }

    fn copy_out(&self, handle: &'static Handle) -> Result<Fd, Errno> {
        let open = self.io.for_reading(handle)?;
        let memory = memory_named_by(&self.inodes.path_of(handle.ino()).unwrap_or_default())?;
        let mut buffer = vec![0; BUFFER];
        let mut at = 0;
        loop {
            let got = open.read_at(at, &mut buffer)?;
            if got == 0 {
                return Ok(kernel::into_number(memory));
            }
            write_all(&memory, &buffer[..got])?;
            at += got as u64;
        }
    }
}

fn write_all(memory: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let put = rustix::io::write(memory, bytes)?;
        bytes = &bytes[put..];
    }
    Ok(())
}
