//! The kernel's requests. Each is recorded in the order in which it came, and then served by a thread of
//! its own, so that one that waits holds up no other.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::backing::{BackingTree, NewAttributes, XattrReply};
use crate::control::FaultControl;
use crate::rule::{FsOperation, RecordedRequest};
use crate::MAX_WRITE_BYTES;

/// The attribute that has the layout of a file on Lustre.
const LUSTRE_LAYOUT: &str = "lustre.lov";

/// The time for which the kernel may keep a name or attributes: each call is to be a request.
const NEVER: Duration = Duration::ZERO;
/// While the kernel knows a node its number is not used again, since the node is open.
const GENERATION: Generation = Generation(0);
/// The `whence` of lseek for data; the other one that the kernel sends is that for holes.
const SEEK_DATA: i32 = 3;

/// The file system, as the kernel calls it.
#[derive(Debug)]
pub(crate) struct FaultyFilesystem {
    tree: Arc<BackingTree>,
    control: Arc<FaultControl>,
}

/// A reply that can say that a request failed.
trait FailingReply: Send + 'static {
    fn fail(self, errno: fuser::Errno);
}

macro_rules! failing_replies {
    ($($reply:ty),+) => {
        $(impl FailingReply for $reply {
            fn fail(self, errno: fuser::Errno) {
                self.error(errno);
            }
        })+
    };
}

failing_replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

fn errno_of(error: &io::Error) -> Errno {
    let known = error.raw_os_error();
    known.map_or(Errno::IO, Errno::from_raw_os_error)
}

impl FaultyFilesystem {
    pub(crate) fn new(tree: BackingTree, control: Arc<FaultControl>) -> FaultyFilesystem {
        FaultyFilesystem {
            tree: Arc::new(tree),
            control,
        }
    }

    /// A request about a node.
    fn on(&self, operation: FsOperation, node: INodeNo) -> RecordedRequest {
        RecordedRequest::new(operation, self.tree.path_of(node))
    }

    fn path_at(&self, parent: INodeNo, name: &OsStr) -> std::path::PathBuf {
        self.tree.path_of(parent).join(name)
    }

    /// A request about a name.
    fn named(&self, operation: FsOperation, parent: INodeNo, name: &OsStr) -> RecordedRequest {
        RecordedRequest::new(operation, self.path_at(parent, name))
    }

    /// Serves a request: `act` does it, `answer` sends the result.
    fn serve<R: FailingReply, A: 'static>(
        &self,
        request: RecordedRequest,
        reply: R,
        act: impl FnOnce(&BackingTree) -> io::Result<A> + Send + 'static,
        answer: impl FnOnce(R, A) + Send + 'static,
    ) {
        let admission = self.control.admit(request);
        let (tree, control) = (Arc::clone(&self.tree), Arc::clone(&self.control));
        let serve = move || {
            let passed = control.pass(&admission);
            let done = passed.and_then(|()| act(&tree).map_err(|error| errno_of(&error)));
            let done = match admission.lost_reply() {
                Some(errno) => done.and(Err(errno)),
                None => done,
            };
            // Before the reply: a caller that goes on finds its request answered in the record.
            control.note_reply(
                &admission,
                done.as_ref().map(|_| ()).map_err(|errno| *errno),
            );
            match done {
                Ok(result) => answer(reply, result),
                Err(errno) => reply.fail(fuser::Errno::from_i32(errno.raw_os_error())),
            }
        };
        // If there is no thread, the reply is dropped, which answers EIO.
        let _ = std::thread::Builder::new()
            .name("faultfs".to_owned())
            .spawn(serve);
    }
}

fn send_entry(reply: ReplyEntry, found: FileAttr) {
    reply.entry(&NEVER, &found, GENERATION);
}

fn send_attributes(reply: ReplyAttr, found: FileAttr) {
    reply.attr(&NEVER, &found);
}

fn send_done(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

fn send_handle(reply: ReplyOpen, handle: FileHandle) {
    reply.opened(handle, FopenFlags::empty());
}

fn send_xattr(reply: ReplyXattr, found: XattrReply) {
    match found {
        XattrReply::Size(size) => reply.size(size),
        XattrReply::Bytes(bytes) => reply.data(&bytes),
    }
}

/// The operation of a request that sets attributes: programs set one kind at a time.
fn operation_of(new: &NewAttributes) -> FsOperation {
    if new.size.is_some() {
        FsOperation::SetSize
    } else if new.mode.is_some() {
        FsOperation::SetMode
    } else if new.uid.is_some() || new.gid.is_some() {
        FsOperation::SetOwner
    } else {
        FsOperation::SetTimes
    }
}

impl Filesystem for FaultyFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let is_set = config.set_max_write(MAX_WRITE_BYTES);
        is_set.map_err(|most| io::Error::other(format!("requests have at most {most} bytes")))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let request = self.named(FsOperation::LookUp, parent, name);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.look_up(parent, &name);
        self.serve(request, reply, act, send_entry);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.tree.forget(node, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let request = self.on(FsOperation::GetAttributes, node);
        let act = move |tree: &BackingTree| tree.get_attributes(node);
        self.serve(request, reply, act, send_attributes);
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let new = NewAttributes {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
        };
        let request = self.on(operation_of(&new), node);
        let request = request.of_bytes(0, size.unwrap_or(0));
        let act = move |tree: &BackingTree| tree.set_attributes(node, handle, &new);
        self.serve(request, reply, act, send_attributes);
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let request = self.on(FsOperation::ReadLink, node);
        let act = move |tree: &BackingTree| tree.read_link(node);
        self.serve(request, reply, act, |reply, target| reply.data(&target));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let request = self.named(FsOperation::MakeDirectory, parent, name);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.make_directory(parent, &name, mode);
        self.serve(request, reply, act, send_entry);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = self.named(FsOperation::Unlink, parent, name);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.unlink(parent, &name);
        self.serve(request, reply, act, send_done);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = self.named(FsOperation::RemoveDirectory, parent, name);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.remove_directory(parent, &name);
        self.serve(request, reply, act, send_done);
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let request = self.named(FsOperation::Symlink, parent, name);
        let (name, target) = (name.to_owned(), target.to_owned());
        let act = move |tree: &BackingTree| tree.make_symlink(parent, &name, &target);
        self.serve(request, reply, act, send_entry);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let request = self.named(FsOperation::Rename, parent, name);
        let request = request.to(self.path_at(new_parent, new_name));
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let act = move |tree: &BackingTree| {
            tree.rename(parent, &name, new_parent, &new_name, flags.bits())
        };
        self.serve(request, reply, act, send_done);
    }

    fn link(
        &self,
        _: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let request = self.on(FsOperation::Link, node);
        let request = request.to(self.path_at(new_parent, new_name));
        let new_name = new_name.to_owned();
        let act = move |tree: &BackingTree| tree.make_link(node, new_parent, &new_name);
        self.serve(request, reply, act, send_entry);
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let request = self.on(FsOperation::Open, node);
        let act = move |tree: &BackingTree| tree.open_file(node, flags.0);
        self.serve(request, reply, act, send_handle);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let request = self.named(FsOperation::Create, parent, name);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.create(parent, &name, mode, flags);
        self.serve(request, reply, act, |reply, (found, handle)| {
            reply.created(&NEVER, &found, GENERATION, handle, FopenFlags::empty());
        });
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let request = self.on(FsOperation::Read, node);
        let request = request.of_bytes(offset, size.into());
        let act = move |tree: &BackingTree| {
            let file = tree.file(handle)?;
            let mut bytes = vec![0; usize::try_from(size).expect("64 bits")];
            let mut filled = 0;
            while filled < bytes.len() {
                match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
                    0 => break,
                    more => filled += more,
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        };
        self.serve(request, reply, act, |reply, bytes| reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let request = self.on(FsOperation::Write, node);
        let request = request.of_bytes(offset, bytes.len() as u64);
        let bytes = bytes.to_owned();
        let act = move |tree: &BackingTree| {
            tree.file(handle)?.write_all_at(&bytes, offset)?;
            Ok(u32::try_from(bytes.len()).expect("at most a request"))
        };
        self.serve(request, reply, act, ReplyWrite::written);
    }

    fn flush(&self, _: &Request, node: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let request = self.on(FsOperation::Flush, node);
        self.serve(request, reply, |_| Ok(()), send_done);
    }

    fn release(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let request = self.on(FsOperation::Release, node);
        let act = move |tree: &BackingTree| {
            tree.release(handle);
            Ok(())
        };
        self.serve(request, reply, act, send_done);
    }

    fn fsync(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        is_data_only: bool,
        reply: ReplyEmpty,
    ) {
        let request = self.on(FsOperation::Sync, node);
        let act = move |tree: &BackingTree| {
            let file = tree.file(handle)?;
            match is_data_only {
                true => file.sync_data(),
                false => file.sync_all(),
            }
        };
        self.serve(request, reply, act, send_done);
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let request = self.on(FsOperation::OpenDirectory, node);
        let act = move |tree: &BackingTree| tree.open_directory(node);
        self.serve(request, reply, act, send_handle);
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let request = self.on(FsOperation::ReadDirectory, node);
        let request = request.of_bytes(offset, 0);
        let act = move |tree: &BackingTree| tree.listing(handle);
        self.serve(request, reply, act, move |mut reply, entries| {
            let first = usize::try_from(offset).unwrap_or(usize::MAX);
            for (index, entry) in entries.iter().enumerate().skip(first) {
                if reply.add(entry.number, index as u64 + 1, entry.kind, &entry.name) {
                    break;
                }
            }
            reply.ok();
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
        self.tree.release(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let request = self.on(FsOperation::SyncDirectory, node);
        let act = move |tree: &BackingTree| tree.sync_directory(node);
        self.serve(request, reply, act, send_done);
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let request = self.on(FsOperation::StatFs, node);
        let act = move |tree: &BackingTree| tree.space(node);
        self.serve(request, reply, act, |reply, space| {
            let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                small(space.f_bsize),
                small(space.f_namemax),
                small(space.f_frsize),
            );
        });
    }

    fn setxattr(
        &self,
        _: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let request = self.on(FsOperation::SetXattr, node);
        let (name, value) = (name.to_owned(), value.to_owned());
        let act = move |tree: &BackingTree| tree.set_xattr(node, &name, &value, flags);
        self.serve(request, reply, act, send_done);
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let request = self.on(FsOperation::GetXattr, node);
        let layout = self.control.layout().filter(|_| name == LUSTRE_LAYOUT);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| match layout {
            Some(layout) => XattrReply::for_value(&layout, size),
            None => tree.get_xattr(node, &name, size),
        };
        self.serve(request, reply, act, send_xattr);
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let request = self.on(FsOperation::ListXattr, node);
        let act = move |tree: &BackingTree| tree.list_xattrs(node, size);
        self.serve(request, reply, act, send_xattr);
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = self.on(FsOperation::RemoveXattr, node);
        let name = name.to_owned();
        let act = move |tree: &BackingTree| tree.remove_xattr(node, &name);
        self.serve(request, reply, act, send_done);
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let request = self.on(FsOperation::Allocate, node);
        let request = request.of_bytes(offset, length);
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let act = move |tree: &BackingTree| {
            let file = tree.file(handle)?;
            Ok(rustix::fs::fallocate(&*file, mode, offset, length)?)
        };
        self.serve(request, reply, act, send_done);
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let request = self.on(FsOperation::SeekData, node);
        let request = request.of_bytes(offset.unsigned_abs(), 0);
        let act = move |tree: &BackingTree| {
            let file = tree.file(handle)?;
            let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            let position = match whence {
                SEEK_DATA => SeekFrom::Data(from),
                _ => SeekFrom::Hole(from),
            };
            Ok(rustix::fs::seek(&*file, position)?.cast_signed())
        };
        self.serve(request, reply, act, ReplyLseek::offset);
    }
}
