//! The kernel's requests, each answered by a call of [`Tree`].

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;
use weir_client::process::mounted::beneath::{inode_of, DROP, PRIVATE, SHARED, SHARE_OFFSET};
use weir_client::process::mounted::{Changes, DirListing, OpenFile, Tree, Wish};
use weir_client::types::Stat;

use crate::convert::{attributes, errno, ino, kind, time};
use crate::files::{Open, OpenFiles};
use crate::locks::Locks;
use crate::pages::Pages;
use crate::requester::on_behalf;

/// Of open(2), on x86-64 and aarch64.
const O_APPEND: i32 = 0o2000;
/// The time for which the kernel may cache a name or an attribute: none.
pub const NEVER: Duration = Duration::ZERO;
/// Inode numbers are never reused: their bits include a generation.
pub const GENERATION: Generation = Generation(0);
/// The most bytes that one copy_file_range moves.
const MAX_COPY: u64 = 16 << 20;
/// The size of one request for directory entries: that of the kernel's buffer, in bytes.
const LISTING: u32 = 4096;

thread_local! {
    /// The read buffer of a thread of the mount.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system, as the kernel calls it.
#[derive(Debug)]
pub struct TreeFs {
    tree: Tree,
    files: OpenFiles,
    locks: Locks,
    pages: Arc<Pages>,
}

impl TreeFs {
    /// Creates the file system of an instance.
    pub fn new(tree: Tree) -> TreeFs {
        TreeFs {
            tree,
            files: OpenFiles::default(),
            locks: Locks::new(tree),
            pages: Arc::new(Pages::new(tree)),
        }
    }

    /// The files of which the kernel keeps pages.
    pub fn pages(&self) -> Arc<Pages> {
        Arc::clone(&self.pages)
    }

    /// Gives an opened file a number.
    fn opened(&self, file: OpenFile, flags: i32) -> FileHandle {
        let is_private = flags & PRIVATE == PRIVATE;
        self.pages.opened(file.ino(), is_private);
        self.files.insert(Open { file, is_private })
    }

    /// Releases the number of an open file, and closes the file.
    fn close(&self, handle: FileHandle) -> Result<(), Errno> {
        let Open { file, is_private } = self.files.remove(handle)?;
        self.pages.closed(file.ino(), is_private);
        self.tree.close(file)
    }

    /// The kernel's flags for a file that was opened with `flags`. Through a writable descriptor, a
    /// mapped file is read and written in the kernel's pages: if a write bypassed them, another
    /// program's store could write a page back with the old bytes. An appending descriptor does not
    /// know the offset of its bytes, so it cannot use pages.
    ///
    /// The kernel must not drop pages of a mapped file as it is opened: a page that is read again
    /// during a write of it has the old bytes, too.
    fn treatment(&self, file: OpenFile, flags: i32) -> Result<FopenFlags, Errno> {
        let ino = file.ino();
        if flags & DROP == DROP {
            return Ok(direct());
        }
        let are_kept = self.pages.are_kept(ino);
        let is_wanted = flags & PRIVATE == SHARED || are_kept;
        if file.may_write() && is_wanted && flags & O_APPEND == 0 {
            let is_old = !self.pages.keep(ino)? && self.pages.may_be_old(ino);
            return Ok(match is_old {
                true => FopenFlags::empty(),
                false => FopenFlags::FOPEN_KEEP_CACHE,
            });
        }
        Ok(match are_kept {
            true => direct() | FopenFlags::FOPEN_KEEP_CACHE,
            false => direct(),
        })
    }

    /// The open file of a request.
    fn file(&self, handle: FileHandle) -> Result<OpenFile, Errno> {
        Ok(self.files.get(handle)?.file)
    }
}

/// Replies to a request with a value or an error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

fn entry(reply: ReplyEntry, found: Result<Stat, Errno>) {
    answer!(reply, found, stat => reply.entry(&NEVER, &attributes(&stat), GENERATION));
}

fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    answer!(reply, done, () => reply.ok());
}

/// Replies to a request for a value of variable length: with its length, or with the value if there
/// is room.
fn give(reply: ReplyXattr, length: Result<usize, Errno>, value: &[u8]) {
    answer!(reply, length, length => match value.get(..length) {
        Some(value) if !value.is_empty() => reply.data(value),
        _ => reply.size(u32::try_from(length).unwrap_or(u32::MAX)),
    });
}

/// The flags of a file without kernel pages: each read and write is a request.
fn direct() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

/// The range of a lock; the protocol has the last byte instead of the end.
fn wish(kind: i32, start: u64, last: u64) -> Result<Wish, Errno> {
    let end = match last {
        last if last >= i64::MAX.unsigned_abs() => u64::MAX,
        last => last + 1,
    };
    let kind = u32::try_from(kind).map_err(|_| Errno::INVAL)?;
    Ok(Wish { kind, start, end })
}

impl Filesystem for TreeFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            // Otherwise the kernel requests an attribute before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wanted {
            // A kernel that does not know it does without.
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes();
        let inode = inode_of(name).filter(|_| parent == INodeNo::ROOT);
        let found = match inode {
            Some(inode) => self.tree.lookup_inode(inode),
            None => on_behalf(request, |who| self.tree.lookup(who, ino(parent), name)),
        };
        entry(reply, found);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.tree.stat(ino(number)), stat => reply.attr(&NEVER, &attributes(&stat)));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        let open = handle.and_then(|handle| self.file(handle).ok());
        let changed = on_behalf(request, |who| {
            self.tree.set_attr(who, ino(number), open, &changes)
        });
        answer!(reply, changed, stat => reply.attr(&NEVER, &attributes(&stat)));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        answer!(reply, self.tree.readlink(ino(number)), target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = on_behalf(request, |who| {
            self.tree.mknod(who, ino(parent), name.as_bytes(), mode)
        });
        entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = on_behalf(request, |who| {
            self.tree.mkdir(who, ino(parent), name.as_bytes(), mode)
        });
        entry(reply, made);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = on_behalf(request, |who| {
            self.tree.unlink(who, ino(parent), name.as_bytes())
        });
        empty(reply, done);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = on_behalf(request, |who| {
            self.tree.rmdir(who, ino(parent), name.as_bytes())
        });
        empty(reply, done);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let made = on_behalf(request, |who| {
            self.tree.symlink(who, ino(parent), name.as_bytes(), target)
        });
        entry(reply, made);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (parent, name) = (ino(parent), name.as_bytes());
        let (new_parent, new_name) = (ino(new_parent), new_name.as_bytes());
        let flags = flags.bits();
        let done = on_behalf(request, |who| {
            self.tree
                .rename(who, parent, name, new_parent, new_name, flags)
        });
        empty(reply, done);
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let made = on_behalf(request, |who| {
            self.tree
                .link(who, ino(number), ino(new_parent), new_name.as_bytes())
        });
        entry(reply, made);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = on_behalf(request, |who| self.tree.open(who, ino(number), flags.0));
        let opened = opened.and_then(|file| {
            let handle = self.opened(file, flags.0);
            let how = self.treatment(file, flags.0).inspect_err(|_| {
                let _ = self.close(handle);
            })?;
            Ok((handle, how))
        });
        answer!(reply, opened, (handle, how) => reply.opened(handle, how));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (parent, name) = (ino(parent), name.as_bytes());
        let created = on_behalf(request, |who| {
            self.tree.create(who, parent, name, flags, mode)
        });
        answer!(reply, created, (file, stat) => {
            let handle = self.opened(file, flags);
            reply.created(&NEVER, &attributes(&stat), GENERATION, handle, direct());
        });
    }

    fn read(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Without a lock owner the kernel requests a page, not a process.
        let is_page = owner.is_none();
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let bytes = &mut buffer[..size];
            let got = self
                .files
                .get(handle)
                .and_then(|Open { file, is_private }| {
                    if is_page && is_private {
                        self.pages.keep_private(file.ino())?;
                    } else if is_page {
                        self.pages.keep(file.ino())?;
                    }
                    let got = self.tree.read(file, offset, bytes)?;
                    self.files.moved(handle, offset, got);
                    Ok(got)
                });
            answer!(reply, got, got => reply.data(&bytes[..got]));
        });
    }

    fn write(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Bytes from pages have their offset, whatever the descriptor's flags are.
        let flags = match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => 0,
            false => flags.0,
        };
        let put = self.file(handle).and_then(|file| {
            let put = self.tree.write(file, flags, offset, data)?;
            self.files.moved(handle, offset, put);
            Ok(put)
        });
        answer!(reply, put, put => reply.written(u32::try_from(put).unwrap_or(u32::MAX)));
    }

    fn flush(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let done = self.file(handle).and_then(|file| {
            self.locks.end_owner(file, owner.0);
            self.tree.publish(file)
        });
        empty(reply, done);
    }

    fn release(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let (Ok(file), Some(owner)) = (self.file(handle), owner) {
            self.locks.end_owner(file, owner.0);
        }
        empty(reply, self.close(handle));
    }

    fn fsync(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(
            reply,
            self.file(handle).and_then(|file| self.tree.sync(file)),
        );
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let may = on_behalf(request, |who| self.tree.check_listing(who, ino(number)));
        answer!(reply, may, () => {
            reply.opened(self.files.insert_directory(), FopenFlags::empty());
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.files.remove_directory(handle);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut at = offset;
        loop {
            let until = Some(self.files.listing_end(handle));
            let entries = match self.tree.readdir(ino(number), at, until, LISTING) {
                Ok(DirListing { entries, until }) => {
                    self.files.note_listing_end(handle, until);
                    entries
                }
                // Entries listed so far are returned; the next request gets the error.
                Err(error) if at == offset => return reply.error(errno(error)),
                Err(_) => return reply.ok(),
            };
            if entries.is_empty() {
                return reply.ok();
            }
            for entry in entries {
                let name = OsStr::from_bytes(&entry.name);
                let number = INodeNo(entry.ino.0);
                if reply.add(number, entry.next, kind(entry.mode), name) {
                    return reply.ok();
                }
                at = entry.next;
            }
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Each change of names is complete when its call returns.
        reply.ok();
    }

    fn statfs(&self, _: &Request, _number: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.tree.statfs(), state => reply.statfs(
            state.blocks,
            state.bfree,
            state.bfree,
            state.files,
            state.ffree,
            state.bsize,
            state.namelen,
            state.bsize,
        ));
    }

    fn access(&self, request: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let want = u32::try_from(mask.bits()).unwrap_or(0) & 7;
        let done = on_behalf(request, |who| self.tree.access(who, ino(number), want));
        empty(reply, done);
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let mut value = vec![0; size as usize];
        let length = xattr_name(name).and_then(|name| {
            on_behalf(request, |who| {
                self.tree.xattr(who, ino(number), name, &mut value)
            })
        });
        give(reply, length, &value);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let mut names = vec![0; size as usize];
        let length = self.tree.xattr_names(ino(number), &mut names);
        give(reply, length, &names);
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = xattr_name(name).and_then(|name| {
            let flags = flags.cast_unsigned();
            on_behalf(request, |who| {
                self.tree.set_xattr(who, ino(number), name, value, flags)
            })
        });
        empty(reply, set);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = xattr_name(name).and_then(|name| {
            on_behalf(request, |who| {
                self.tree.remove_xattr(who, ino(number), name)
            })
        });
        empty(reply, removed);
    }

    fn getlk(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let asked = self
            .file(handle)
            .and_then(|file| Ok((file, wish(kind, start, end)?)));
        answer!(reply, asked, (file, wish) => self.locks.test(file, owner.0, wish, reply));
    }

    fn setlk(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let waiter = sleep.then(|| request.pid());
        let asked = self
            .file(handle)
            .and_then(|file| Ok((file, wish(kind, start, end)?)));
        answer!(reply, asked, (file, wish) => self.locks.set(file, owner.0, wish, waiter, reply));
    }

    fn ioctl(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let followed = match (command, <[u8; 8]>::try_from(data)) {
            (SHARE_OFFSET, Ok(data)) => {
                let description = u64::from_ne_bytes(data);
                let file = self.file(handle);
                file.and_then(|file| self.tree.follow(file, description))
            }
            _ => Err(Errno::NOTTY),
        };
        answer!(reply, followed, followed => {
            self.files.follow(handle, followed);
            reply.ioctl(0, &[]);
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.file(handle).and_then(|file| {
            let signed = |n: u64| i64::try_from(n).map_err(|_| Errno::FBIG);
            self.tree
                .allocate(file, mode, signed(offset)?, signed(length)?)
        });
        empty(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let found = self.file(handle).and_then(|file| match whence {
            // The kernel may not have written back all stores yet, so the whole file counts as data.
            SEEK_DATA | SEEK_HOLE if self.pages.are_kept(file.ino()) => {
                let size = self.tree.stat(file.ino())?.size;
                let size = i64::try_from(size).map_err(|_| Errno::FBIG)?;
                match (0..size).contains(&offset) {
                    true if whence == SEEK_HOLE => Ok(size),
                    true => Ok(offset),
                    false => Err(Errno::NXIO),
                }
            }
            SEEK_DATA | SEEK_HOLE => self.tree.seek(file, offset, whence == SEEK_HOLE),
            _ => Err(Errno::INVAL),
        });
        answer!(reply, found, at => reply.offset(at));
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _from_number: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _to_number: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.file(from).and_then(|from| {
            let to = self.file(to)?;
            let length = length.min(MAX_COPY);
            self.tree.copy(from, from_offset, to, to_offset, length)
        });
        answer!(reply, copied, copied => reply.written(u32::try_from(copied).unwrap_or(0)));
    }
}

/// Checks the name of an extended attribute. EOPNOTSUPP: weir has no attributes of that namespace.
/// The kernel itself requests some of them, which are not counted.
fn xattr_name(name: &OsStr) -> Result<&[u8], Errno> {
    let name = name.as_bytes();
    match name.starts_with(b"user.") {
        true => Ok(name),
        false => Err(Errno::OPNOTSUPP),
    }
}
