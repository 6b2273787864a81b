//! A file system of the kernel that does nothing but copy from and to memory: what the kernel mount
//! is measured against. One directory, regular files.
//!
//! `cargo run --release -p weir-fuse --example memory -- DIR` mounts it until it is unmounted.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    Session, TimeOrNow, WriteFlags,
};

const NEVER: Duration = Duration::ZERO;

type File = Arc<RwLock<Vec<u8>>>;

#[derive(Default)]
struct Tree {
    names: HashMap<OsString, u64>,
    files: HashMap<u64, File>,
    last: u64,
}

#[derive(Default)]
struct Memory(Mutex<Tree>);

impl Memory {
    fn tree(&self) -> std::sync::MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: INodeNo) -> Option<File> {
        self.tree().files.get(&number.0).cloned()
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, size, perm) = if number == INodeNo::ROOT {
            (FileType::Directory, 4096, 0o755)
        } else {
            let file = self.file(number)?;
            let size = file.read().unwrap_or_else(PoisonError::into_inner).len();
            (FileType::RegularFile, size as u64, 0o644)
        };
        Some(FileAttr {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            rdev: 0,
            blksize: 65536,
            flags: 0,
        })
    }
}

fn direct() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Memory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = self.tree().names.get(name).copied();
        match number.and_then(|number| self.attributes(INodeNo(number))) {
            Some(attributes) => reply.entry(&NEVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&NEVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(size), Some(file)) = (size, self.file(number)) {
            let size = usize::try_from(size).unwrap_or(0);
            let mut bytes = file.write().unwrap_or_else(PoisonError::into_inner);
            bytes.resize(size, 0);
        }
        match self.attributes(number) {
            Some(attributes) => reply.attr(&NEVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let number = {
            let mut tree = self.tree();
            tree.last += 1;
            let number = INodeNo::ROOT.0 + tree.last;
            tree.names.insert(name.to_owned(), number);
            tree.files.insert(number, File::default());
            INodeNo(number)
        };
        match self.attributes(number) {
            Some(attributes) => {
                let handle = FileHandle(number.0);
                reply.created(&NEVER, &attributes, Generation(0), handle, direct());
            }
            None => reply.error(Errno::EIO),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        const O_TRUNC: i32 = 0o1000;
        if let Some(file) = self.file(number).filter(|_| flags.0 & O_TRUNC != 0) {
            file.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
        reply.opened(FileHandle(number.0), direct());
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.file(number) else {
            return reply.error(Errno::EIO);
        };
        let bytes = file.read().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(offset).map_or(bytes.len(), |at| at.min(bytes.len()));
        let to = (from + size as usize).min(bytes.len());
        reply.data(&bytes[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (Some(file), Ok(from)) = (self.file(number), usize::try_from(offset)) else {
            return reply.error(Errno::EIO);
        };
        let mut bytes = file.write().unwrap_or_else(PoisonError::into_inner);
        let to = from + data.len();
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        bytes[from..to].copy_from_slice(data);
        reply.written(u32::try_from(data.len()).unwrap_or(0));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut tree = self.tree();
        let number = tree.names.remove(name);
        match number.and_then(|number| tree.files.remove(&number)) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, reply: ReplyDirectory) {
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let dir = std::env::args_os().nth(1);
    let dir = dir.ok_or_else(|| io::Error::other("usage: memory DIR"))?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("memory".to_owned())];
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    config.n_threads = Some(processors.clamp(2, 8));
    config.clone_fd = true;
    Session::new(Memory::default(), dir, &config)?.run()
}
