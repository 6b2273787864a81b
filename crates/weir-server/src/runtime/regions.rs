//! The instance's files: made at the start, mapped, and removed at the end.
//!
//! ```text
//! SHM_DIR/open names        shared by all        SHM_DIR/ph      placeholder of descriptors
//!         client-<id>       one a client         SHM_DIR/cwd/    working directories
//!         pool              bytes of other nodes         bell  wakes a server that waits for others
//!         slab-<n>          the memory tier      STORAGE/slab-<n>  the file tier
//!         journal           all changes          SHM_DIR/open.old  during a recovery
//! RUN_DIR/server.sock       RUN_DIR/shm, prefix  links to that directory and to the mount
//!                           RUN_DIR/elevated*    links to elevated directories
//! ```

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{
    chmod, fchmod, flock, mknodat, open, FileType, FlockOperation, Mode, OFlags, CWD,
};
use rustix::io::Errno;
use rustix::net::{
    bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use weir_core::elevate_rule::{ElevateRule, RULE_FILE};
use weir_core::elevated::{self, ALIAS_LINK, TARGET_LINK};
use weir_core::names::{
    layout, InodeRecord, NamesHeader, Owner, Section, Shard, Tables, TablesPrefix, MIN_BUCKETS,
    ROOT_INDEX,
};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::known::{KnownSlot, KNOWN_SLOTS};
use weir_core::node::landing::{POOL, POOL_BYTES};
use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::node::region::{client_layout, open_layout, Hub, BELL, MAGIC, SPECIAL};
use weir_core::proto::{PREFIX_LINK, SHM_LINK};
use weir_core::types::{ClientId, Rank};
use weir_store::acl;
use weir_store::journal::{JOURNAL, JOURNAL_NEW};
use weir_store::map::{create_sparse, open_shared, Access, MapError, Mapping, Region};
use weir_store::shm::ShmRecord;
use weir_store::slabmap::Window;

use super::clock::now_ns;
use super::ground::{SparseRegion, TableLayout};
use super::ServerError;
use crate::frame::SOCKET;
use crate::node::{ClientMemory, OpenRegion, Table};
use crate::options::{ElevatedDirectory, Options};

/// The directory that all virtual descriptors refer to, while it is made.
const PLACEHOLDER: &str = "ph";
const PLACEHOLDER_MODE: Mode = Mode::RWXU
    .union(Mode::RGRP)
    .union(Mode::XGRP)
    .union(Mode::ROTH)
    .union(Mode::XOTH);
/// The directory in which clients make the directories that stand for their current ones, and
/// remove them at once.
pub(super) const WORKING_DIRS: &str = "cwd";
pub(super) const OPEN: &str = "open";
const OPEN_BEFORE: &str = "open.old";
pub(super) const NAMES: &str = "names";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Open file descriptions, files open for writing, and writers that a node may have;
/// their tables are sparse.
const OFDS: usize = 1 << 20;
const BLOCKS: usize = 1 << 18;
const CELLS: usize = 1 << 19;
/// The pool for bytes of other nodes has this share of the machine's memory, with an upper limit.
const POOL_SHARE: u64 = 128;
const POOL_MOST: u64 = 512 << 20;
const _: () = assert!(OFDS.is_multiple_of(BATCH as usize));

/// The directories of one instance.
#[derive(Debug)]
pub struct Instance {
    run_dir: PathBuf,
    shm_dir: PathBuf,
    storage: Vec<PathBuf>,
    max_files: u32,
    prefix: String,
    elevated: Vec<ElevatedDirectory>,
    /// The directories that this server made.
    made: Vec<PathBuf>,
    /// Held for the server's life, so that no server takes over from one that lives.
    lock: Option<OwnedFd>,
    claim: Option<Region>,
    placeholder: Option<Arc<Placeholder>>,
}

/// The directory that all virtual descriptors of a server's clients refer to. It has no name any
/// more, so that no process, not even one of root, can make anything in it. A program without weir
/// that tries gets an error, and leaves no hidden file.
#[derive(Debug)]
pub struct Placeholder {
    /// For the locks of clients, which the server looks at.
    pub watched: OwnedFd,
    /// For clients, which open it anew: an O_PATH description, with which they can do no more.
    pub given: OwnedFd,
}

impl Placeholder {
    fn make(path: &Path) -> Result<Placeholder, ServerError> {
        let failed = |error: &std::io::Error| ServerError::path(path, error);
        // The parent is removed with it: then making anything by way of `..` is refused too.
        let inner = path.join(PLACEHOLDER);
        private_dir(path)?;
        private_dir(&inner)?;
        let open_as = |access: OFlags| {
            let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(inner.as_os_str().as_bytes(), flags, Mode::empty()).map_err(|e| failed(&e.into()))
        };
        let placeholder = Placeholder {
            watched: open_as(OFlags::RDONLY)?,
            given: open_as(OFlags::PATH)?,
        };
        std::fs::remove_dir(&inner).map_err(|error| failed(&error))?;
        // It has no path any more. A client that has changed its user opens it anew, too.
        fchmod(&placeholder.watched, PLACEHOLDER_MODE).map_err(|error| failed(&error.into()))?;
        std::fs::remove_dir(path).map_err(|error| failed(&error))?;
        Ok(placeholder)
    }
}

/// A client's region, mapped.
#[derive(Debug)]
pub struct ClientRegion(Mapping);

impl ClientMemory for ClientRegion {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T] {
        // Offsets and counts are of the layout with which the region was made.
        self.0
            .slice(offset, count)
            .expect("the layout fits the region")
    }
}

impl Instance {
    /// Makes the directories.
    pub fn create(options: &Options) -> Result<Instance, ServerError> {
        let mut instance = Instance {
            run_dir: options.run_dir.clone(),
            shm_dir: options.shm_dir.clone(),
            storage: options.storage.iter().map(|dir| dir.path.clone()).collect(),
            max_files: options.max_files,
            prefix: options.prefix.clone(),
            elevated: options.elevated.clone(),
            made: Vec::new(),
            lock: None,
            claim: None,
            placeholder: None,
        };
        let made = instance.make_dirs();
        if made.is_err() {
            instance.remove();
        }
        made.map(|()| instance)
    }

    fn make_dirs(&mut self) -> Result<(), ServerError> {
        let tops = [&self.run_dir, &self.shm_dir]
            .into_iter()
            .chain(&self.storage);
        for dir in tops.cloned().collect::<Vec<_>>() {
            if private_dir(&dir)? {
                self.made.push(dir);
            }
        }
        let taken = |errno: Errno| ServerError::Taken {
            dir: self.shm_dir.clone(),
            errno,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(self.shm_dir.as_os_str().as_bytes(), flags, Mode::empty());
        let dir = dir.map_err(taken)?;
        flock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(taken)?;
        self.lock = Some(dir);
        Ok(())
    }

    /// Makes the `open` region and the other files that a server has once. If the remains of a
    /// killed server are to be taken up, sets them aside first.
    pub fn settle_in(&mut self, take_up: bool) -> Result<(), ServerError> {
        if take_up {
            self.set_aside()?;
        }
        let bytes = open_layout(OFDS, BLOCKS, CELLS).bytes as u64;
        self.claim = Some(self.map_new(OPEN, bytes)?.leak());
        self.open_ground()?.lay(0, size_of::<Hub>() as u64)?;
        let placeholder = Placeholder::make(&self.shm_dir.join(PLACEHOLDER))?;
        self.placeholder = Some(Arc::new(placeholder));
        private_dir(&self.shm_dir.join(WORKING_DIRS))?;
        private_dir(&self.shm_dir.join(SPECIAL))?;
        self.make_links();
        Ok(())
    }

    /// Makes links that save clients a connection. If they cannot be made (a file of that name is
    /// in the way), clients ask instead.
    fn make_links(&self) {
        self.remove_links();
        if self.shm_dir.is_absolute() {
            let _ = symlink(&self.shm_dir, self.run_dir.join(SHM_LINK));
            for (number, dir) in self.elevated.iter().enumerate() {
                let link = |name: &str| self.run_dir.join(format!("{name}{number}"));
                let _ = symlink(OsStr::from_bytes(&dir.tree.target), link(TARGET_LINK));
                let _ = symlink(&dir.path, link(ALIAS_LINK));
                let others = dir.other_names.iter().take(elevated::MOST_OTHER_NAMES);
                for (other, name) in others.enumerate() {
                    let link = elevated::other_name_link(number, other);
                    let _ = symlink(name, self.run_dir.join(link));
                }
                put_rule(&dir.rule, &link(RULE_FILE));
            }
            let _ = symlink(&self.prefix, self.run_dir.join(PREFIX_LINK));
        }
    }

    /// Makes room for new regions, and keeps the old ones that are needed.
    fn set_aside(&self) -> Result<(), ServerError> {
        let (now, before) = (self.shm_dir.join(OPEN), self.shm_dir.join(OPEN_BEFORE));
        let removed = |path: &Path, done: std::io::Result<()>| match done {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(ServerError::path(path, &error))
            }
            _ => Ok(()),
        };
        if before.exists() {
            // This region is of a server that was killed during its recovery: it had no clients.
            removed(&now, std::fs::remove_file(&now))?;
        } else {
            std::fs::rename(&now, &before).map_err(|error| ServerError::path(&now, &error))?;
        }
        let socket = self.run_dir.join(SOCKET);
        removed(&socket, std::fs::remove_file(&socket))?;
        for name in [PLACEHOLDER, WORKING_DIRS] {
            // Descriptors of earlier clients keep the old ones; locks on them must not meet new
            // ones.
            let path = self.shm_dir.join(name);
            removed(&path, std::fs::remove_dir_all(&path))?;
        }
        Ok(())
    }

    /// The directory that all virtual descriptors refer to, once the server has settled in.
    pub fn placeholder(&self) -> Result<Arc<Placeholder>, ServerError> {
        let gone =
            || ServerError::path(&self.shm_dir.join(PLACEHOLDER), &ErrorKind::NotFound.into());
        self.placeholder.clone().ok_or_else(gone)
    }

    /// The `open` region of the killed server.
    pub fn open_of_before(&self) -> Result<OpenRegion<'static>, ServerError> {
        let layout = open_layout(OFDS, BLOCKS, CELLS);
        let parts = self.leak_existing(OPEN_BEFORE, layout.bytes)?;
        Ok(OpenRegion {
            hub: &parts.slice(0, 1)?[0],
            ofds: parts.slice::<Ofd>(layout.ofds, OFDS)?,
            blocks: parts.slice::<FileBlock>(layout.blocks, BLOCKS)?,
            cells: parts.slice::<Cell>(layout.cells, CELLS)?,
            known: parts.slice::<KnownSlot>(layout.known, KNOWN_SLOTS)?,
        })
    }

    fn leak_existing(&self, name: &str, len: usize) -> Result<Parts, ServerError> {
        let path = self.shm_dir.join(name);
        Ok(Parts {
            region: self.map_existing(name, len)?.leak(),
            path,
        })
    }

    fn map_existing(&self, name: &str, len: usize) -> Result<Mapping, ServerError> {
        let path = self.shm_dir.join(name);
        let failed = |error| ServerError::Map {
            path: path.clone(),
            error,
        };
        let bytes = path.as_os_str().as_bytes();
        let file = open_shared(CWD, bytes, Access::ReadWrite).map_err(failed)?;
        Mapping::new(&file, len).map_err(failed)
    }

    /// Makes the killed server's tables of names void, and removes them.
    pub fn condemn_names(&self) {
        let max_files = self.max_files_of_before();
        let condemned = max_files.and_then(|max_files| {
            let layout = layout(max_files);
            let len = usize::try_from(layout.file_bytes).ok()?;
            let parts = self.leak_existing(NAMES, len).ok()?;
            let tables = Tables::open(
                &parts.section(layout.header).ok()?[0],
                parts.section(layout.inodes).ok()?,
                parts.section(layout.arena).ok()?,
                parts.section(layout.buckets).ok()?,
            );
            tables.ok().map(|tables| tables.condemn())
        });
        if condemned.is_none() {
            tracing::debug!("there are no tables of names of before");
        }
        let _ = std::fs::remove_file(self.shm_dir.join(NAMES));
    }

    fn max_files_of_before(&self) -> Option<u32> {
        let head = self.map_existing(NAMES, size_of::<NamesHeader>()).ok()?;
        let header: &NamesHeader = &head.slice(0, 1).ok()?[0];
        Some(header.max_inodes())
    }

    /// The region of a client of the killed server.
    pub fn client_region_of_before(&self, id: ClientId) -> Option<ClientRegion> {
        let region = self.map_existing(&client_file(id), client_layout().bytes);
        region.ok().map(ClientRegion)
    }

    /// Removes the files that only the killed server needed, except the regions of `keep`.
    pub fn clear_what_was_before(&self, keep: &[ClientId]) {
        let _ = std::fs::remove_file(self.shm_dir.join(OPEN_BEFORE));
        let Ok(entries) = std::fs::read_dir(&self.shm_dir) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("client-"));
            let id = number.and_then(|number| number.parse().ok()).map(ClientId);
            if id.is_some_and(|id| !keep.contains(&id)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// The directory of the socket.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The directory of shared memory.
    pub fn shm_dir(&self) -> &Path {
        &self.shm_dir
    }

    /// The directories of file-tier slabs.
    pub fn storage_dirs(&self) -> &[PathBuf] {
        &self.storage
    }

    fn map_new(&self, name: &str, bytes: u64) -> Result<Mapping, ServerError> {
        let path = self.shm_dir.join(name);
        let failed = |error| ServerError::Map {
            path: path.clone(),
            error,
        };
        let file = create_sparse(CWD, path.as_os_str().as_bytes(), bytes).map_err(failed)?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        Mapping::new(&file, len).map_err(failed)
    }

    fn leak_new(&self, name: &str, bytes: u64) -> Result<Parts, ServerError> {
        Ok(Parts {
            region: self.map_new(name, bytes)?.leak(),
            path: self.shm_dir.join(name),
        })
    }

    /// The `open` region, with its head written.
    pub fn open_region(&self) -> Result<OpenRegion<'static>, ServerError> {
        let layout = open_layout(OFDS, BLOCKS, CELLS);
        let path = self.shm_dir.join(OPEN);
        let region = self
            .claim
            .ok_or_else(|| ServerError::Setting("not claimed".into()))?;
        let parts = Parts { region, path };
        let hub: &Hub = &parts.slice(0, 1)?[0];
        let open = OpenRegion {
            hub,
            ofds: parts.slice::<Ofd>(layout.ofds, OFDS)?,
            blocks: parts.slice::<FileBlock>(layout.blocks, BLOCKS)?,
            cells: parts.slice::<Cell>(layout.cells, CELLS)?,
            known: parts.slice::<KnownSlot>(layout.known, KNOWN_SLOTS)?,
        };
        let counts = [
            (&hub.ofds, OFDS),
            (&hub.blocks, BLOCKS),
            (&hub.cells, CELLS),
        ];
        for (word, count) in counts {
            word.store(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
        }
        hub.incarnation
            .store(now_ns().cast_unsigned(), Ordering::Relaxed);
        hub.magic.store(MAGIC, Ordering::Release);
        Ok(open)
    }

    /// Memory behind the tables of the `open` region.
    fn open_ground(&self) -> Result<SparseRegion, ServerError> {
        let layout = open_layout(OFDS, BLOCKS, CELLS);
        let strip = |at: usize, entry: usize, count: usize| TableLayout {
            at: at as u64,
            entry: entry as u64,
            count: count as u64,
        };
        let tables = [
            (Table::Ofds, strip(layout.ofds, size_of::<Ofd>(), OFDS)),
            (
                Table::Blocks,
                strip(layout.blocks, size_of::<FileBlock>(), BLOCKS),
            ),
            (Table::Cells, strip(layout.cells, size_of::<Cell>(), CELLS)),
            (
                Table::Known,
                strip(layout.known, size_of::<KnownSlot>(), KNOWN_SLOTS),
            ),
        ];
        SparseRegion::open(&self.shm_dir.join(OPEN), &tables)
    }

    /// Memory behind the tables of names.
    fn names_ground(&self) -> Result<SparseRegion, ServerError> {
        let layout = layout(self.max_files);
        let strip = |section: &Section, entry: usize| TableLayout {
            at: section.offset_bytes,
            entry: entry as u64,
            count: section.len as u64,
        };
        let tables = [
            (
                Table::Inodes,
                strip(&layout.inodes, size_of::<InodeRecord>()),
            ),
            (Table::Arena, strip(&layout.arena, size_of::<u64>())),
            (Table::Buckets, strip(&layout.buckets, size_of::<u32>())),
        ];
        SparseRegion::open(&self.shm_dir.join(NAMES), &tables)
    }

    /// Memory behind everything that is shared with clients and grows.
    pub fn grounds(&self, pool_bytes: usize) -> Result<Vec<SparseRegion>, ServerError> {
        let pool = TableLayout {
            at: 0,
            entry: 1,
            count: pool_bytes as u64,
        };
        let pool = SparseRegion::open(&self.shm_dir.join(POOL), &[(Table::Pool, pool)])?;
        Ok(vec![self.open_ground()?, self.names_ground()?, pool])
    }

    /// Makes empty tables of names, with memory for `used`.
    pub fn new_names(
        &self,
        rank: Rank,
        used: TablesPrefix,
    ) -> Result<Tables<'static>, ServerError> {
        let layout = layout(self.max_files);
        let parts = self.leak_new(NAMES, layout.file_bytes)?;
        let ground = self.names_ground()?;
        ground.lay(layout.header.offset_bytes, size_of::<NamesHeader>() as u64)?;
        let buckets = layout.buckets.len.min(used.buckets as usize) * size_of::<u32>();
        ground.lay(layout.buckets.offset_bytes, buckets as u64)?;
        let inodes = layout.inodes.len.min(used.inodes as usize) * size_of::<InodeRecord>();
        ground.lay(layout.inodes.offset_bytes, inodes as u64)?;
        let words = (layout.arena.len as u64).min(used.arena_words);
        ground.lay(layout.arena.offset_bytes, words * size_of::<u64>() as u64)?;
        Tables::format(
            &parts.section(layout.header)?[0],
            parts.section(layout.inodes)?,
            parts.section(layout.arena)?,
            parts.section(layout.buckets)?,
            rank,
        )
        .map_err(|error| ServerError::Tables(error.to_string()))
    }

    /// Makes the namespace, with only the root in it.
    pub fn names(&self, rank: Rank) -> Result<Shard<'static>, ServerError> {
        let root = TablesPrefix {
            inodes: ROOT_INDEX + 1,
            arena_words: 0,
            buckets: MIN_BUCKETS,
        };
        let tables = self.new_names(rank, root)?;
        let owner = Owner {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        Shard::new(tables, 0o755, owner, now_ns())
            .map_err(|error| ServerError::Tables(error.to_string()))
    }

    /// Makes the pool for bytes of other nodes, or takes over that of the killed server, which
    /// processes have mapped.
    pub fn pool(&self) -> Result<Window, ServerError> {
        let before = std::fs::metadata(self.shm_dir.join(POOL)).ok();
        let before = before.and_then(|file| usize::try_from(file.len()).ok());
        let before = before.and_then(|len| self.map_existing(POOL, len).ok());
        let mapping = match before {
            Some(mapping) => mapping,
            None => self.map_new(POOL, pool_bytes())?,
        };
        Ok(mapping.leak_window())
    }

    /// Makes the bell, or takes over that of the killed server.
    pub fn bell(&self) -> Result<OwnedFd, ServerError> {
        let path = self.shm_dir.join(BELL);
        let name = path.as_os_str().as_bytes();
        let failed = |errno: Errno| ServerError::path(&path, &errno.into());
        let mode = Mode::RUSR | Mode::WUSR;
        match mknodat(CWD, name, FileType::Fifo, mode, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        // It is opened for writing too: a pipe with a writer has no end of file when the clients
        // are gone.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(name, flags, Mode::empty()).map_err(failed)
    }

    /// Makes a client's region.
    pub fn client_region(&self, id: ClientId) -> Result<ClientRegion, ServerError> {
        let layout = client_layout();
        let name = client_file(id);
        let region = self.map_new(&name, layout.bytes as u64)?;
        SparseRegion::open(&self.shm_dir.join(name), &[])?.lay(0, layout.first_bytes as u64)?;
        Ok(ClientRegion(region))
    }

    /// Removes a client's region.
    pub fn remove_client(&self, id: ClientId) {
        let path = self.shm_dir.join(client_file(id));
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot be removed");
        }
    }

    /// The socket that clients and tools connect to; it does not block.
    pub fn listen(&self) -> Result<OwnedFd, ServerError> {
        let path = self.run_dir.join(SOCKET);
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(path.as_os_str().as_bytes())?)?;
            chmod(path.as_os_str().as_bytes(), Mode::RUSR | Mode::WUSR)?;
            acl::share_path_with_admitted(path.as_os_str().as_bytes())?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        open().map_err(|errno| ServerError::Socket {
            path: path.clone(),
            errno,
        })
    }

    /// Removes the instance's files, and the directories that it made. Other files stay.
    pub fn remove(&self) {
        if self.claim.is_some() {
            self.remove_files();
        }
        for dir in self.made.iter().rev() {
            if let Err(error) = std::fs::remove_dir(dir) {
                tracing::warn!(dir = %dir.display(), %error, "cannot be removed");
            }
        }
    }
}

/// Makes the file of a rule. Without one, the defaults hold.
fn put_rule(rule: &ElevateRule, path: &Path) {
    if *rule == ElevateRule::default() {
        return;
    }
    if let Err(error) = std::fs::write(path, rule.to_bytes()) {
        tracing::error!(file = %path.display(), %error, "programs do not find the rule of an elevated directory");
    }
}

impl Instance {
    fn remove_links(&self) {
        let numbers = 0..elevated::MOST_TREES;
        for number in numbers.clone() {
            let _ = std::fs::remove_file(self.run_dir.join(format!("{RULE_FILE}{number}")));
        }
        let others = numbers.clone().flat_map(|tree| {
            (0..elevated::MOST_OTHER_NAMES).map(move |other| elevated::other_name_link(tree, other))
        });
        let of_trees =
            numbers.flat_map(|n| [TARGET_LINK, ALIAS_LINK].map(|link| format!("{link}{n}")));
        for link in of_trees
            .chain(others)
            .chain([SHM_LINK, PREFIX_LINK].map(str::to_owned))
        {
            let link = self.run_dir.join(link);
            if link.is_symlink() {
                let _ = std::fs::remove_file(link);
            }
        }
    }

    fn remove_files(&self) {
        let _ = std::fs::remove_file(self.run_dir.join(SOCKET));
        self.remove_links();
        let own = [OPEN, OPEN_BEFORE, NAMES, JOURNAL, JOURNAL_NEW, POOL, BELL];
        remove_files(&self.shm_dir, &own, &["client-", "slab-"]);
        for dir in &self.storage {
            remove_files(dir, &[], &["slab-"]);
        }
        for name in [PLACEHOLDER, WORKING_DIRS, SPECIAL] {
            let _ = std::fs::remove_dir_all(self.shm_dir.join(name));
        }
    }
}

/// A mapped file with its name, for errors.
struct Parts {
    region: Region,
    path: PathBuf,
}

impl Parts {
    fn slice<T: ShmRecord>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&'static [T], ServerError> {
        self.region
            .slice(offset, count)
            .map_err(|error: MapError| ServerError::Map {
                path: self.path.clone(),
                error,
            })
    }

    fn section<T: ShmRecord>(&self, section: Section) -> Result<&'static [T], ServerError> {
        self.slice(
            usize::try_from(section.offset_bytes).unwrap_or(usize::MAX),
            section.len,
        )
    }
}

/// Makes a directory for this user alone; false if it existed.
fn private_dir(path: &Path) -> Result<bool, ServerError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(ServerError::path(path, &error)),
    }
}

fn remove_files(dir: &Path, names: &[&str], prefixes: &[&str]) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let numbered = |prefix: &&str| {
            name.strip_prefix(prefix)
                .is_some_and(|number| number.parse::<u32>().is_ok())
        };
        if names.contains(&name) || prefixes.iter().any(numbered) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The size of the pool for this machine. Its unused part takes no memory.
fn pool_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(info.mem_unit.into());
    let share = (memory / POOL_SHARE).clamp(POOL_BYTES as u64, POOL_MOST);
    share / (1 << 20) * (1 << 20)
}

pub(super) fn client_file(id: ClientId) -> String {
    format!("client-{}", id.0)
}

/// A path as text for a message to clients.
pub fn text(path: &Path) -> Result<String, ServerError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| ServerError::Setting(format!("{}: not UTF-8", path.display())))
}
