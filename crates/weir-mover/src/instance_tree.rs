//! The files of an instance, through a client of this node's server: no interposer, no kernel mount.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_client::path::ResolvedPath;
use weir_client::process::mounted::{
    elevated::TargetCopy, Changes, ContentVersion, CopyUse, Cover, EvictedFile, HistoryPosition,
    Ino, OpenFile, ReportRelief, Requester, RoomState, SettledExtents, Tree, Whiteout, WriteState,
};
use weir_client::types::{Stat, Time};

use crate::tree::{
    find_data, give_group, io_error, read_xattrs, EvictionTable, FileTree, KeptAttributes,
    LostName, NodeKind, TreeHistory,
};

/// The most bytes of a listing in one request.
const LISTING_BYTES: u32 = 256 << 10;
/// `RENAME_NOREPLACE` of renameat2(2).
const NO_REPLACE: u32 = 1;
/// Extended attributes that weir makes itself.
const OWN_XATTRS: &[u8] = b"user.weir.";

/// The tree of an instance. A process has at most one instance.
#[derive(Clone, Copy, Debug)]
pub struct InstanceTree {
    tree: Tree,
}

/// An open file of an instance.
#[derive(Debug)]
pub struct InstanceFile {
    tree: Tree,
    open: OpenFile,
}

impl Drop for InstanceFile {
    fn drop(&mut self) {
        // The mover calls `sync` before, which publishes the bytes and reports errors.
        let _ = self.tree.close(self.open);
    }
}

impl InstanceTree {
    /// Connects to the instance with this run directory.
    pub fn attach(run_dir: &Path) -> io::Result<InstanceTree> {
        let tree = Tree::attach(bytes(run_dir)).map_err(io_error)?;
        Ok(InstanceTree { tree })
    }

    /// Blocks until the server has ended.
    pub fn wait_for_server_end(&self) {
        self.tree.wait_for_end();
    }

    /// True if the server still answers.
    pub fn is_served(&self) -> bool {
        self.tree.is_served()
    }

    /// The tree over the elevated directory with this number, without the lower layer; `None`: there is no such number.
    pub fn elevated(&self, number: usize) -> Option<InstanceTree> {
        let tree = self.tree.elevated(number)?;
        Some(InstanceTree { tree })
    }

    /// The same tree, for an instance with lost servers: without these.
    #[must_use]
    pub fn without_lost_servers(&self) -> InstanceTree {
        let tree = self.tree.without_lost_servers();
        InstanceTree { tree }
    }

    /// The path below which programs see the tree.
    pub fn prefix(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.tree.prefix()))
    }

    /// Tells a server of the instance the outlook for more room; returns its present room.
    pub fn report_relief(&self, report: ReportRelief) -> io::Result<RoomState> {
        self.tree.report_relief(report).io()
    }

    /// The rank of this node's server.
    pub fn rank(&self) -> io::Result<u16> {
        self.tree.rank().io()
    }

    /// Makes an entry for the file at a path of the parallel file system in the elevated tree over it; false: the tree has
    /// the name already, or has removed it.
    pub fn take_up(&self, path: &Path) -> io::Result<bool> {
        self.tree.take_up(bytes(path)).io()
    }

    /// The bytes that this node's server can hold, and those that are free.
    pub fn room(&self) -> io::Result<(u64, u64)> {
        let state = self.tree.statfs().io()?;
        let unit = u64::from(state.bsize);
        Ok((state.blocks * unit, state.bfree * unit))
    }

    /// The number of servers.
    pub fn servers(&self) -> io::Result<u16> {
        self.tree.servers().io()
    }

    fn find(self, path: &Path) -> io::Result<Ino> {
        match self.tree.walk(bytes(path), false).io()? {
            ResolvedPath::Dir(ino)
            | ResolvedPath::Name {
                found: Some((ino, _)),
                ..
            } => Ok(ino),
            ResolvedPath::Name { .. } | ResolvedPath::Below { .. } => Err(io_error(Errno::NOENT)),
            ResolvedPath::Outside(_) => Err(io_error(Errno::XDEV)),
        }
    }

    fn change(self, ino: Ino, open: Option<OpenFile>, changes: &Changes) -> io::Result<()> {
        self.tree.set_attr(&user(), ino, open, changes).io()?;
        Ok(())
    }

    fn give_group(self, ino: Ino, gid: u32) -> io::Result<()> {
        let group = Changes {
            gid: Some(gid),
            ..Changes::default()
        };
        let there = || Ok(self.tree.stat(ino).io()?.gid);
        give_group(gid, there, || {
            self.tree.set_attr(&user(), ino, None, &group).map(drop)
        })
    }

    /// The directory and the name of a path.
    fn find_parent(self, path: &Path) -> io::Result<(Ino, Vec<u8>)> {
        match self.tree.walk(bytes(path), false).io()? {
            ResolvedPath::Name { parent, name, .. } => Ok((parent, name.to_vec())),
            ResolvedPath::Dir(_) => Err(io_error(Errno::EXIST)),
            ResolvedPath::Outside(_) | ResolvedPath::Below { .. } => Err(io_error(Errno::XDEV)),
        }
    }
}

/// A result of the client library as one of std.
trait IntoIoResult<T> {
    fn io(self) -> io::Result<T>;
}

impl<T> IntoIoResult<T> for Result<T, Errno> {
    fn io(self) -> io::Result<T> {
        self.map_err(io_error)
    }
}

/// The user of this process.
fn user() -> Requester<'static> {
    Requester {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: &own_groups,
    }
}

/// The user for reading files that are to be moved: root, since modes that programs have set must not stop the owner of the
/// instance.
fn reader() -> Requester<'static> {
    Requester {
        uid: 0,
        gid: 0,
        groups: &Vec::new,
    }
}

fn own_groups() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.iter().map(|group| group.as_raw()).collect()
}

fn changes(kind: NodeKind, kept: &KeptAttributes) -> Changes {
    Changes {
        mode: (kind != NodeKind::Symlink).then_some(kept.mode),
        ..changes_of_times(kept)
    }
}

fn changes_of_times(kept: &KeptAttributes) -> Changes {
    Changes {
        atime: Some(kept.atime),
        mtime: Some(kept.mtime),
        ..Changes::default()
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl EvictionTable for InstanceTree {
    fn list(&self) -> io::Result<Vec<EvictedFile>> {
        self.tree.evicted_files().io()
    }

    fn copy_use(&self, file: Ino) -> io::Result<CopyUse> {
        self.tree.copy_use(file).io()
    }

    fn copy_of(&self, file: Ino) -> io::Result<Option<TargetCopy>> {
        self.tree.copy_of(file).io()
    }

    fn settle_extents(&self, file: Ino) -> io::Result<Option<SettledExtents>> {
        self.tree.settle_extents(file).io()
    }

    fn stored_ranges(
        &self,
        file: Ino,
        within: Range<u64>,
        at: Option<u16>,
    ) -> io::Result<(Vec<Range<u64>>, u64)> {
        self.tree.stored_ranges(file, within, at).io()
    }

    fn evict_ranges(
        &self,
        file: &EvictedFile,
        settled: SettledExtents,
        ranges: &[Range<u64>],
    ) -> io::Result<u64> {
        self.tree.evict_ranges(file, settled, ranges).io()
    }

    fn evict(&self, file: &EvictedFile, version: ContentVersion) -> io::Result<bool> {
        match self.tree.evict(file, version) {
            // The file is gone.
            Err(Errno::NOENT) => Ok(false),
            evicted => evicted.io(),
        }
    }

    fn put_copy(&self, file: &EvictedFile) -> io::Result<()> {
        self.tree.put_copy(file).io()
    }

    fn forget_copy(&self, file: Ino) -> io::Result<()> {
        self.tree.forget_copy(file).io()
    }

    fn absolute(&self, below: &Path) -> Vec<u8> {
        self.prefix().join(below).into_os_string().into_vec()
    }

    fn path_below(&self, copy: &TargetCopy) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(&copy.path));
        Some(path.strip_prefix(self.prefix()).ok()?.to_owned())
    }
}

impl FileTree for InstanceTree {
    type File = InstanceFile;

    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>> {
        let found = self
            .find(path)
            .and_then(|ino| self.tree.stat(ino).map_err(io_error));
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let dir = self.find(path)?;
        let mut names = Vec::new();
        let mut at = 0;
        loop {
            // Reads to the end: otherwise a file that a program renames meanwhile could be missed, and would be gone for a
            // drain.
            let listing = self.tree.readdir(dir, at, None, LISTING_BYTES);
            let entries = listing.io()?.entries;
            let Some(last) = entries.last() else {
                return Ok(names);
            };
            at = last.next;
            let real = entries
                .into_iter()
                .filter(|entry| entry.name != b"." && entry.name != b"..");
            names.extend(real.map(|entry| OsString::from_vec(entry.name)));
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let target = self.tree.readlink(self.find(path)?).io()?;
        Ok(OsString::from_vec(target).into())
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let ino = self.find(path)?;
        read_xattrs(
            |buffer| self.tree.xattr_names(ino, buffer),
            |name, buffer| self.tree.xattr(&reader(), ino, name, buffer),
            |name| !name.starts_with(OWN_XATTRS),
        )
    }

    fn cover_of(&self, path: &Path) -> io::Result<Cover> {
        self.tree.cover_of(self.find(path)?).io()
    }

    fn cover(&self, target: &Path, path: &Path, mode: u32) -> io::Result<()> {
        self.tree.cover(self.find(path)?, bytes(target), mode).io()
    }

    fn note_covered_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.tree.note_covered_mode(self.find(path)?, mode).io()
    }

    fn whiteouts(&self) -> io::Result<Vec<Whiteout>> {
        self.tree.whiteouts().io()
    }

    fn removed_at(&self, whiteout: &Whiteout) -> io::Result<Option<Time>> {
        self.tree.removed_at(whiteout).io()
    }

    fn forget(&self, whiteout: &Whiteout) -> io::Result<()> {
        self.tree.forget(whiteout).io()
    }

    fn holder_of(&self, path: &Path, range: Range<u64>) -> io::Result<Option<u16>> {
        let ino = self.find(path)?;
        self.tree.holder_of(ino, range).io()
    }

    fn name_history(&self, known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        let servers = self.servers()?;
        // If a server does not answer, `known` stays as it is, and the reports of the others are requested again.
        let mut told = known.clone();
        told.resize(servers.into(), HistoryPosition::default());
        let mut found = TreeHistory::default();
        let mut missing = None;
        // All servers are asked, also behind one that does not answer: from then on they keep the names that files lose.
        for (rank, known) in (0..servers).zip(&mut told) {
            loop {
                let history = match self.tree.name_history(rank, *known).io() {
                    Ok(history) => history,
                    Err(error) => {
                        missing = Some(error);
                        break;
                    }
                };
                *known = history.position;
                found.is_cut |= history.is_cut;
                let directories = history.directories.iter();
                found.directories.extend(directories.map(|ino| ino.0));
                let lost = history.removals.into_iter().map(|removal| LostName {
                    dir: removal.dir.0,
                    name: OsString::from_vec(removal.name),
                    ino: removal.ino.0,
                    at: Time::from_epoch_ns(removal.removed_ns),
                    is_replaced: removal.is_replaced,
                });
                found.lost.extend(lost);
                if !history.has_more {
                    found.counts.push((history.begun, history.ended));
                    break;
                }
            }
        }
        if let Some(error) = missing {
            return Err(error);
        }
        *known = told;
        Ok(found)
    }

    fn evictions(&self) -> Option<&dyn EvictionTable> {
        self.tree.is_elevated().then_some(self)
    }

    fn write_state(&self, path: &Path) -> io::Result<WriteState> {
        self.tree.write_state(self.find(path)?).io()
    }

    fn laminate(&self, path: &Path) -> io::Result<()> {
        self.set_xattr(path, OsStr::new("user.weir.laminated"), b"1")
    }

    fn open(&self, path: &Path) -> io::Result<InstanceFile> {
        let tree = self.tree;
        let open = tree.open(&reader(), self.find(path)?, 0).io()?;
        Ok(InstanceFile { tree, open })
    }

    fn stat(&self, file: &InstanceFile) -> io::Result<Stat> {
        self.tree.stat(file.open.ino()).io()
    }

    fn read_at(&self, file: &InstanceFile, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        match self.tree.read(file.open, offset, bytes) {
            Err(Errno::STALE) => Err(io::Error::other(
                "its bytes are lost: it was evicted, and its copy on the parallel file system is not there as weir \
                 left it",
            )),
            read => read.io(),
        }
    }

    fn next_data(&self, file: &InstanceFile, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
        find_data(within, |from, hole| {
            match self.tree.seek(file.open, from, hole) {
                Ok(at) => Ok(Some(at)),
                Err(Errno::NXIO) => Ok(None),
                Err(error) => Err(io_error(error)),
            }
        })
    }

    fn create_part(&self, path: &Path, mode: u32) -> io::Result<InstanceFile> {
        let (parent, name) = self.find_parent(path)?;
        match self.tree.unlink(&user(), parent, &name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io_error(error)),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let flags = flags.bits().cast_signed();
        let made = self.tree.create(&user(), parent, &name, flags, mode);
        let (open, _) = made.io()?;
        Ok(InstanceFile {
            tree: self.tree,
            open,
        })
    }

    fn open_part(&self, path: &Path) -> io::Result<InstanceFile> {
        let tree = self.tree;
        let flags = OFlags::RDWR.bits().cast_signed();
        let open = tree.open(&user(), self.find(path)?, flags).io()?;
        Ok(InstanceFile { tree, open })
    }

    fn write_at(&self, file: &InstanceFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            match self
                .tree
                .write(file.open, 0, offset + written as u64, rest)
                .io()?
            {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                more => written += more,
            }
        }
        Ok(())
    }

    fn set_size(&self, file: &InstanceFile, size: u64) -> io::Result<()> {
        let size = Changes {
            size: Some(size),
            ..Changes::default()
        };
        self.change(file.open.ino(), Some(file.open), &size)
    }

    fn begin_sync(&self, _: &InstanceFile) {}

    fn sync(&self, file: &InstanceFile) -> io::Result<()> {
        self.tree.sync(file.open).io()
    }

    fn set_mode(&self, file: &InstanceFile, mode: u32) -> io::Result<()> {
        let mode = Changes {
            mode: Some(mode),
            ..Changes::default()
        };
        self.change(file.open.ino(), Some(file.open), &mode)
    }

    fn set_group(&self, file: &InstanceFile, gid: u32) -> io::Result<()> {
        let ino = file.open.ino();
        self.give_group(ino, gid)
    }

    fn set_times(&self, file: &InstanceFile, kept: &KeptAttributes) -> io::Result<()> {
        self.change(file.open.ino(), Some(file.open), &changes_of_times(kept))
    }

    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()> {
        let ino = self.find(path)?;
        if kind != NodeKind::Symlink {
            self.give_group(ino, kept.gid)?;
        }
        self.change(ino, None, &changes(kind, kept))
    }

    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        let ino = self.find(path)?;
        self.tree
            .set_xattr(&user(), ino, name.as_bytes(), value, 0)
            .io()
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        let ino = self.find(path)?;
        let removed = self.tree.remove_xattr(&user(), ino, name.as_bytes());
        removed.io()
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        self.tree.mkdir(&user(), parent, &name, mode).io()?;
        Ok(())
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        self.tree
            .symlink(&user(), parent, &name, bytes(target))
            .io()?;
        Ok(())
    }

    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        let existing = self.find(existing)?;
        self.tree.link(&user(), existing, parent, &name).io()?;
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let (parent, name) = self.find_parent(from)?;
        let (new_parent, new_name) = self.find_parent(to)?;
        let flags = if replace { 0 } else { NO_REPLACE };
        self.tree
            .rename(&user(), parent, &name, new_parent, &new_name, flags)
            .io()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        self.tree.unlink(&user(), parent, &name).io()
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        self.tree.rmdir(&user(), parent, &name).io()
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        // Names are in the server's journal before a call returns.
        Ok(())
    }
}
