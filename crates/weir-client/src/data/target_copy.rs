//! Reading an evicted file: the bytes that no extent covers are those of its copy on the parallel file system.

use rustix::io::Errno;
use weir_core::types::Ino;

use super::host::Host;
use crate::internal::Internal;
use crate::kernel::{self, Fd};
use crate::siglock::SigLock;

/// The copy of an evicted file, as one process reads it. Its descriptor is kept until the process closes the
/// file, so that a thread that reads by it does not lose it to another one.
#[derive(Debug, Default)]
pub(super) struct CopyReader(SigLock<KeptDescriptor>);

/// A descriptor, and the generation of the file's extents as of which it is the copy's.
#[derive(Debug, Default)]
struct KeptDescriptor(Option<(Internal, u64)>);

/// A descriptor that is used; closed by dropping, unless it is kept.
struct UsedDescriptor {
    fd: Fd,
    is_kept: bool,
}

impl Drop for UsedDescriptor {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = kernel::close(self.fd);
        }
    }
}

impl CopyReader {
    /// Opens the copy of an evicted file as of this generation of its extents, for later reads. ESTALE:
    /// it is not there as it was left.
    pub(super) fn prepare<H: Host>(
        &self,
        host: &H,
        ino: Ino,
        generation: u64,
    ) -> Result<(), Errno> {
        self.open(host, ino, generation).map(drop)
    }

    /// Reads bytes of the copy; zeros behind its end.
    pub(super) fn read<H: Host>(
        &self,
        host: &H,
        ino: Ino,
        generation: u64,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), Errno> {
        let copy = self.open(host, ino, generation)?;
        let file = kernel::borrow(copy.fd)?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(file, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    fn open<H: Host>(&self, host: &H, ino: Ino, generation: u64) -> Result<UsedDescriptor, Errno> {
        let known = self.0.lock().and_then(|kept| kept.0);
        if let Some((descriptor, _)) = known.filter(|(_, of)| *of == generation) {
            if let Some(fd) = descriptor.sure() {
                return Ok(UsedDescriptor { fd, is_kept: true });
            }
        }
        let fd = host.open_copy(ino)?;
        let mut used = UsedDescriptor { fd, is_kept: false };
        // Another thread may read by the one that is kept, though it is of an earlier eviction.
        let kept = self.0.lock().filter(|kept| kept.0.is_none());
        if let Some(mut kept) = kept {
            match Internal::adopt_spare(fd) {
                Ok(descriptor) => {
                    kept.0 = Some((descriptor, generation));
                    used.fd = descriptor.number();
                    used.is_kept = true;
                }
                // The table has no room to keep one more.
                Err(fd) => used.fd = fd,
            }
        }
        Ok(used)
    }

    /// Closes the descriptor: the process has closed the file.
    pub(super) fn close(&self) {
        let kept = self.0.lock().and_then(|mut kept| kept.0.take());
        if let Some((descriptor, _)) = kept {
            descriptor.close();
        }
    }

    /// Makes it usable in a child after fork, which has no other threads.
    ///
    /// # Safety
    ///
    /// No guard of the lock is used again.
    pub(super) unsafe fn break_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.break_after_fork() };
    }
}
