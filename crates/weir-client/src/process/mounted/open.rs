//! Open files of a mount: opening, creating, reading, writing, syncing, closing.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::names::{Attr, FileType};
use weir_core::node::ofd::Ofd;
use weir_core::node::region::Counter;
use weir_core::proto::Attached;
use weir_core::types::Ino;

use super::names::create_op;
use super::{Requester, Tree, TreeComponents};
use crate::operation;
use crate::path::access;
use crate::path::walk::{retry_if_gone, Names};
use crate::process::open_flags::{writes, O_ACCMODE, O_APPEND, O_DSYNC, O_EXCL, O_TRUNC};
use crate::process::opener::check_kind;
use crate::process::table::{self, Handle};
use crate::types::Stat;
use crate::view::open::{Opening, Target};

/// A file that a program has open through the mount.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    pub(super) handle: &'static Handle,
}

impl OpenFile {
    /// The inode, by its number in this node's table.
    pub fn ino(&self) -> Ino {
        self.handle.ino()
    }

    /// True if it was opened for writing.
    pub fn may_write(&self) -> bool {
        self.handle.has(table::WRITE)
    }
}

impl Tree {
    /// open(2) of a regular file that exists, with `flags` of open(2).
    pub fn open(self, who: &Requester<'_>, ino: Ino, flags: i32) -> Result<OpenFile, Errno> {
        let _call = operation::begin();
        let kind = self.parts.inodes.attr(ino)?.file_type();
        self.open_target(who, &Target::existing(ino, kind), flags)
    }

    /// open(2) with O_CREAT: the file, which may be there already, and its attributes. `mode` has the
    /// umask applied.
    pub fn create(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
        flags: i32,
        mode: u32,
    ) -> Result<(OpenFile, Stat), Errno> {
        let _call = operation::begin();
        self.check_parent(who, parent, name)?;
        self.reserve()?;
        let open = retry_if_gone(|gone| {
            let view = self.parts.inodes.view()?;
            let mut op = create_op(who, parent, name, mode);
            op.exclusive = flags & O_EXCL != 0;
            op.attach = writes(flags);
            let target = if let Some(target) = view.create(op)? {
                target
            } else {
                let (ino, kind) = view.lookup(parent, name)?.ok_or(Errno::NOENT)?;
                Target::existing(ino, kind)
            };
            *gone = Some(target.ino);
            self.open_target(who, &target, flags)
        })?;
        let stat = self.parts.inodes.stat_of(open.ino());
        match stat {
            Ok(stat) => Ok((open, stat)),
            Err(error) => {
                let _ = self.close(open);
                Err(error)
            }
        }
    }

    /// Reserves an entry of the table of open file descriptions before a file is made: without one,
    /// the new file would be left behind.
    fn reserve(self) -> Result<(), Errno> {
        self.parts.opener.reserve_description()
    }

    fn open_target(
        self,
        who: &Requester<'_>,
        target: &Target,
        flags: i32,
    ) -> Result<OpenFile, Errno> {
        check_kind(target.kind, flags)?;
        if target.kind != FileType::File {
            return Err(Errno::INVAL);
        }
        let parts = self.parts;
        let how = Description { parts, who, flags };
        let view = parts.inodes.view()?;
        let handle = view.update(target.ino, || view.open(target, &how))?;
        parts.server.session()?.count(Counter::Opens, 1);
        Ok(OpenFile { handle })
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read(self, open: OpenFile, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.parts
            .io
            .for_reading(open.handle)?
            .read_at(offset, bytes)
    }

    /// Writes as write(2) does through a descriptor with these `flags` of open(2): at the end with
    /// O_APPEND, else at `offset`; synced with O_DSYNC.
    pub fn write(
        self,
        open: OpenFile,
        flags: i32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let open = self.parts.io.for_writing(open.handle)?;
        let vnode = &open.file.vnode;
        let written = if flags & O_APPEND != 0 {
            vnode.append(open.session, bytes)?.1
        } else {
            vnode.write_at(open.session, offset, bytes)?
        };
        if written > 0 && flags & O_DSYNC != 0 {
            open.session.sync_file(vnode.ino())?;
        }
        Ok(written)
    }

    /// Copies bytes between two open files; fewer than asked for at the end of the first.
    pub fn copy(
        self,
        from: OpenFile,
        from_offset: u64,
        to: OpenFile,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, Errno> {
        const PIECE: usize = 1 << 20;
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let mut buffer = vec![0; length.min(PIECE)];
        let mut copied = 0;
        while copied < length {
            let piece = &mut buffer[..(length - copied).min(PIECE)];
            let got = self.read(from, from_offset + copied as u64, piece);
            let put = got.and_then(|got| match got {
                0 => Ok(0),
                got => self.write(to, 0, to_offset + copied as u64, &piece[..got]),
            });
            match put {
                Ok(0) => break,
                Ok(put) => copied += put,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(copied as u64)
    }

    /// lseek(2), SEEK_DATA and SEEK_HOLE. ENXIO: there is none behind `offset`.
    pub fn seek(self, open: OpenFile, offset: i64, hole: bool) -> Result<i64, Errno> {
        let _call = operation::begin();
        self.parts.io.seek_data(open.handle, offset, hole)
    }

    /// Makes the offset of an open file description follow the reads and writes of an open file
    /// that stands for it; see [`weir_core::proto::beneath::SHARE_OFFSET`]. EINVAL: it is of
    /// another file.
    pub fn follow(self, open: OpenFile, description: u64) -> Result<Followed, Errno> {
        let index = description & u64::from(u32::MAX);
        let ofds = self.parts.server.session()?.ofds();
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let ofd = ofds.get(index).ok_or(Errno::INVAL)?;
        let followed = Followed {
            ofd,
            ino: open.ino(),
            life: description >> 32,
        };
        followed.is_same().then_some(followed).ok_or(Errno::INVAL)
    }

    /// fsync(2).
    pub fn sync(self, open: OpenFile) -> Result<(), Errno> {
        let _call = operation::begin();
        self.parts.server.session()?.sync_file(open.ino())
    }

    /// The part of close(2) that shows other nodes the written bytes. The description lives on
    /// while others have it.
    pub fn publish(self, open: OpenFile) -> Result<(), Errno> {
        let _call = operation::begin();
        // A read-only descriptor publishes nothing: the writers do so when they close.
        match open.handle.file.get().filter(|_| open.may_write()) {
            Some(file) => file.vnode.publish_written(self.parts.server.session()?),
            None => Ok(()),
        }
    }

    /// Closes the file: its last descriptor was closed.
    pub fn close(self, open: OpenFile) -> Result<(), Errno> {
        let published = self.publish(open);
        let _held = self.parts.server.lock.hold();
        self.parts.descriptors.close_handle(open.handle, published)
    }
}

/// An open file description of an interposed program, for which an open file of the mount stands.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    ofd: &'static Ofd,
    ino: Ino,
    life: u64,
}

impl Followed {
    /// False once the description has ended.
    fn is_same(&self) -> bool {
        let life = u64::from(self.ofd.generation.load(Ordering::Acquire));
        self.ofd.ino.load(Ordering::Acquire) == self.ino.0 && life == self.life
    }

    /// Notes that bytes were moved from `offset` on. If the description was there, it continues
    /// behind them: the kernel does not tell if a program moved them by the description's offset or
    /// by an explicit one.
    pub fn moved(&self, offset: u64, bytes: usize) {
        if self.is_same() {
            let to = offset + bytes as u64;
            let at = &self.ofd.offset;
            let _ = at.compare_exchange(offset, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A description that is to be opened for a requester.
struct Description<'r> {
    parts: &'static TreeComponents,
    who: &'r Requester<'r>,
    flags: i32,
}

impl Opening for Description<'_> {
    type Opened = &'static Handle;

    fn writes(&self) -> bool {
        writes(self.flags)
    }

    fn truncates(&self) -> bool {
        self.flags & O_TRUNC != 0
    }

    fn check(&self, attr: &Attr) -> Result<(), Errno> {
        /// Linux's mark of an open to execute the file, which needs no permission to read.
        const FMODE_EXEC: i32 = 0x20;
        let mut want = match self.flags & O_ACCMODE {
            0 if self.flags & FMODE_EXEC != 0 => access::EXECUTE,
            0 => access::READ,
            1 => access::WRITE,
            _ => access::READ | access::WRITE,
        };
        if self.truncates() {
            want |= access::WRITE;
        }
        self.who.check(attr, want)
    }

    fn open(&self, attr: &Attr, by_name: bool) -> Result<&'static Handle, Errno> {
        let _held = self.parts.server.lock.hold();
        // A file without a name is opened by its inode, or through procfs: a program has it open.
        let by_name = by_name && attr.nlink > 0;
        let handle = self.parts.opener.show_handle(attr, by_name, self.flags)?;
        handle.fds.store(1, Ordering::Relaxed);
        Ok(handle)
    }

    fn attach(&self, handle: &&'static Handle, at: Attached) -> bool {
        let session = self.parts.server.session();
        let Some((file, session)) = handle.file.get().zip(session.ok()) else {
            return false;
        };
        file.vnode.attached(session, at.block, at.cell);
        true
    }

    fn close(&self, handle: &'static Handle) {
        let _held = self.parts.server.lock.hold();
        let _ = self.parts.descriptors.close_handle(handle, Ok(()));
    }
}
