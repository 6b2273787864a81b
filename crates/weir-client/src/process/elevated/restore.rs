//! Bringing back the bytes of an evicted file, before it is opened for writing or cut.
//!
//! A server that is alone needs none of them: it has extents say which bytes are those of the copy, and programs
//! write over these. Of several, they are written into the file as by any writer, which waits for room if there is none, while the file
//! stays evicted: readers find the same bytes in the extents and in the copy. A process that is killed
//! meanwhile leaves a file that is evicted.

use core::sync::atomic::Ordering;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use weir_core::elevated::{name_of_inode, EVICTED};
use weir_core::names::{Attr, FileType};
use weir_core::proto::{BeginRestore, EndEviction, SetAttr, Truncate};
use weir_core::types::Ino;

use super::super::table::Handle;
use super::super::Process;
use super::name_lock::NameLock;
use super::take_up::for_each_piece;
use crate::errno::EVICTED as IS_EVICTED;
use crate::target_copy::open_copy;
use crate::view::open::{OpenAccess, Target};

/// O_RDWR.
const O_RDWR: i32 = 2;
/// The times that a file is restored, and evicted again, before its opening fails.
const TRIES: u32 = 20;

impl Process {
    /// Does something that needs the bytes of a file; brings them back as often as it says that the file was
    /// evicted. EBUSY: it is evicted again and again.
    pub(in super::super) fn with_bytes<T>(
        &'static self,
        ino: Ino,
        act: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for _ in 0..TRIES {
            match act() {
                Err(IS_EVICTED) => self.restore(ino)?,
                done => return done,
            }
        }
        Err(Errno::BUSY)
    }

    /// Cuts a file that no descriptor of this process need have open.
    pub(in super::super) fn truncate_inode(
        &'static self,
        ino: Ino,
        size: u64,
    ) -> Result<(), Errno> {
        let session = self.session()?;
        self.with_bytes(ino, || session.call(Truncate { ino, size }))
    }

    fn restore(&'static self, ino: Ino) -> Result<(), Errno> {
        let session = self.session()?;
        let before = self.inodes().attr(ino)?;
        let _lock = NameLock::hold(session, EVICTED, &name_of_inode(before.home))?;
        if !session.call(BeginRestore { ino })? {
            return Ok(());
        }
        let copy = open_copy(&self.inodes().view()?, before.home)?;
        let before = self.inodes().attr(ino)?;
        let handle = self.open_to_restore(ino)?;
        let restored = self.fill(handle, &copy, &before);
        let _held = self.server.lock.hold();
        let closed = self.close_handle(handle, Ok(()));
        restored.and(closed)
    }

    fn open_to_restore(&'static self, ino: Ino) -> Result<&'static Handle, Errno> {
        let target = Target::existing(ino, FileType::File);
        let attr = self.inodes().view()?.attr_to_open(&target, true)?;
        let _held = self.server.lock.hold();
        let handle = self.show_handle_for(&attr, attr.nlink > 0, O_RDWR, OpenAccess::Rewrite)?;
        handle.fds.store(1, Ordering::Relaxed);
        Ok(handle)
    }

    /// Writes all bytes of the copy into the file, and ends its eviction. The file keeps its times.
    fn fill(
        &'static self,
        handle: &'static Handle,
        copy: &OwnedFd,
        before: &Attr,
    ) -> Result<(), Errno> {
        let session = self.session()?;
        let vnode = &handle.file.get().ok_or(Errno::IO)?.vnode;
        for_each_piece(copy, |mut at, mut bytes| {
            while !bytes.is_empty() {
                let written = vnode.write_at(session, at, bytes)?;
                bytes = &bytes[written..];
                at += written as u64;
            }
            Ok(())
        })?;
        // Other nodes see it before they are told that the file has its bytes.
        vnode.publish_written(session)?;
        let ino = before.ino;
        session.call(SetAttr {
            atime_ns: Some(before.atime_ns),
            mtime_ns: Some(before.mtime_ns),
            ..SetAttr::nothing(ino)
        })?;
        session.call(EndEviction { ino })
    }
}
