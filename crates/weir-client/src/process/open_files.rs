//! The open files of this process: handles, the files that they refer to, and the descriptions that
//! the server has lent for new ones.
//!
//! All of it is changed under the lock of the process. Where the server may have to be told
//! something, the caller passes the session, if the process has one.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::node::ring::Note;
use weir_core::proto::OfdBatch;
use weir_core::types::Ino;

use super::open_flags::O_PATH;
use super::table::{self, File, FilesByInode, Handle, UnusedQueue, DIR, GONE, PATH, READ, WRITE};
use crate::kernel::Fd;
use crate::session::Session;
use crate::view::locks::{end_description_locks, end_process_locks};
use crate::view::View;

/// The open files of this process.
#[derive(Debug)]
pub(super) struct OpenFileTable {
    unused: UnusedQueue<Handle>,
    files: FilesByInode,
    /// The rest of the batch of descriptions that the server lent last.
    next_lent: AtomicU32,
    lent_end: AtomicU32,
}

impl OpenFileTable {
    /// None.
    pub(super) const fn new() -> OpenFileTable {
        OpenFileTable {
            unused: UnusedQueue::new(),
            files: FilesByInode::new(),
            next_lent: AtomicU32::new(0),
            lent_end: AtomicU32::new(0),
        }
    }

    /// A handle with a description that is free.
    pub(super) fn take_handle(&self, session: &'static Session) -> Result<&'static Handle, Errno> {
        // A few may wait for the server to see that no other process has their description.
        for _ in 0..8 {
            let Some(handle) = self.unused.take_oldest() else {
                break;
            };
            match handle.ofd.get() {
                Some(ofd) if ofd.ino.load(Ordering::Acquire) == 0 => return Ok(handle),
                Some(_) => self.unused.put(handle),
                None => return self.lend(session, handle),
            }
        }
        self.lend(session, self.unused.take_or_make())
    }

    /// Gives a handle the next description of the batch.
    fn lend(
        &self,
        session: &'static Session,
        handle: &'static Handle,
    ) -> Result<&'static Handle, Errno> {
        let lent = self.next_entry(session).and_then(|index| {
            Ok((
                index,
                session.ofds().get(index as usize).ok_or(Errno::NFILE)?,
            ))
        });
        match lent {
            Ok((index, ofd)) => {
                handle.index.store(index, Ordering::Relaxed);
                handle.ofd.set(Some(ofd));
                Ok(handle)
            }
            Err(error) => {
                self.unused.put(handle);
                Err(error)
            }
        }
    }

    fn next_entry(&self, session: &Session) -> Result<u32, Errno> {
        let next = self.next_lent.load(Ordering::Relaxed);
        let index = if next < self.lent_end.load(Ordering::Relaxed) {
            next
        } else {
            let first = session.call(OfdBatch {})?;
            self.lent_end.store(first + BATCH, Ordering::Relaxed);
            first
        };
        self.next_lent.store(index + 1, Ordering::Relaxed);
        Ok(index)
    }

    /// Puts back a handle that is not needed; its description stays with it.
    pub(super) fn return_handle(&self, handle: &'static Handle) {
        self.unused.put(handle);
    }

    /// A handle of a description of the own server that was inherited.
    pub(super) fn inherited_handle(&self, ofd: &'static Ofd, index: u32) -> &'static Handle {
        let handle = self.unused.take_or_make();
        handle.ofd.set(Some(ofd));
        handle.index.store(index, Ordering::Relaxed);
        handle.fds.store(0, Ordering::Relaxed);
        handle
    }

    /// The handle of a description that cannot be used.
    pub(super) fn unusable_handle(&self) -> &'static Handle {
        let handle = self.unused.take_or_make();
        handle.ofd.set(None);
        handle.file.set(None);
        handle.index.store(u32::MAX, Ordering::Relaxed);
        handle.fds.store(0, Ordering::Relaxed);
        handle.locked.store(false, Ordering::Relaxed);
        handle.ino.store(Ino::NONE.0, Ordering::Relaxed);
        handle.access.store(GONE, Ordering::Relaxed);
        handle
    }

    /// Makes `handle` one of the file `ino`, opened with `flags`.
    pub(super) fn assign(&self, handle: &'static Handle, ino: Ino, kind: FileType, flags: u32) {
        let path_only = flags & O_PATH.cast_unsigned() != 0;
        let mut access = match flags & 3 {
            _ if path_only => PATH,
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        if kind == FileType::Dir {
            access |= DIR;
        }
        handle.ino.store(ino.0, Ordering::Relaxed);
        handle.access.store(access, Ordering::Relaxed);
        handle.locked.store(false, Ordering::Relaxed);
        let file = (kind == FileType::File && !path_only).then(|| self.files.open(ino));
        handle.file.set(file);
    }

    /// Makes a descriptor, which the kernel has just made, refer to `handle`.
    pub(super) fn install(
        &self,
        session: Option<&'static Session>,
        fd: Fd,
        handle: Option<&'static Handle>,
    ) {
        if let Some(handle) = handle {
            handle.fds.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(before) = table::set(fd, handle) {
            // As dup2(2) says: errors of a close by dup2 are lost.
            let _ = self.forget_fd(session, before, Ok(()));
        }
    }

    /// Notes that one descriptor less refers to `handle`; the kernel has already closed it. An
    /// error says that not all nodes can see the written bytes, as [`super::Descriptors::close`] may
    /// have found.
    pub(super) fn forget_fd(
        &self,
        session: Option<&'static Session>,
        handle: &'static Handle,
        published: Result<(), Errno>,
    ) -> Result<(), Errno> {
        if let Some(file) = handle.file.get() {
            file.end_record_locks(session);
        }
        if handle.fds.fetch_sub(1, Ordering::Relaxed) == 1 {
            return self.close(session, handle, published);
        }
        published
    }

    /// Closes a handle to which no descriptor of this process refers any more.
    pub(super) fn close(
        &self,
        session: Option<&'static Session>,
        handle: &'static Handle,
        published: Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (ino, index) = (handle.ino(), handle.index.load(Ordering::Relaxed));
        let mut done = published;
        if let Some(file) = handle.file.get().filter(|file| self.files.close(file)) {
            if let Some(session) = session {
                // Usually that has been done already; if it failed, it is not tried again.
                done = done.and_then(|()| file.vnode.publish_written(session));
                file.vnode.detach(session);
            }
            self.files.retire(file);
        }
        handle.file.set(None);
        if let Some(placeholder) = handle.anchor_fd.take_descriptor() {
            // The description is another server's, which detects by itself that no process has it.
            placeholder.close();
            handle.ofd.set(handle.anchor.swap(None));
        }
        let Some(ofd) = handle.ofd.get() else {
            self.unused.put(handle);
            return done;
        };
        if ofd.is_shared() {
            // Other processes may have it: the server finds out and frees it.
            if let Some(session) = session {
                session.note(Note::Closed(index));
                View::new(session).laminate_if_due(ino, handle.has(table::WRITE));
            }
        } else {
            if let Some(session) = session.filter(|_| handle.locked.load(Ordering::Relaxed)) {
                // The server frees locks that it is not told of.
                let _ = end_description_locks(session, ino, index);
            }
            ofd.close();
            if let Some(session) = session {
                View::new(session).tell_end(ino, handle.has(table::WRITE));
            }
        }
        let own = session.is_some_and(|s| ofd.owner.load(Ordering::Relaxed) == s.client_id().0);
        if own {
            self.unused.put(handle);
        } else {
            self.give_up(handle);
        }
        done
    }

    /// Puts back a handle whose description must not be reused by this process.
    pub(super) fn give_up(&self, handle: &'static Handle) {
        handle.ofd.set(None);
        handle.index.store(u32::MAX, Ordering::Relaxed);
        self.unused.put(handle);
    }

    /// Publishes the bytes that the process wrote to all files. An error cannot be reported; the
    /// server goes on trying.
    pub(super) fn publish_written(&self, session: &'static Session) {
        for file in self.files.iter() {
            let _ = file.vnode.publish_written(session);
        }
    }

    /// Makes the next write of each file need a decision about its limits.
    pub(super) fn decide_limits_anew(&self) {
        self.files.iter().for_each(|file| file.vnode.decide_anew());
    }

    /// In a forked child: it does not get the loans of the parent.
    pub(super) fn forget_loans(&self) {
        for file in self.files.iter() {
            file.vnode.forget_after_fork();
            file.record_locks.store(false, Ordering::Relaxed);
        }
        for handle in self.unused.iter() {
            handle.ofd.set(None);
        }
        self.next_lent.store(0, Ordering::Relaxed);
        self.lent_end.store(0, Ordering::Relaxed);
    }
}

impl File {
    /// Ends this process's record locks of the file, if it took any: a descriptor of the file was
    /// closed.
    pub(super) fn end_record_locks(&self, session: Option<&Session>) {
        if !self.record_locks.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(session) = session {
            let _ = end_process_locks(session, self.vnode.ino());
        }
    }
}
