//! The view that a process has of the file system: the tables that it shares with its node's server,
//! and requests to that server where the tables do not say enough.
//!
//! This is the part of a client that decides when the tables may be believed and when the server
//! must be asked. It is generic over the process around it ([`NodeClient`]), so that the cluster
//! simulation runs this very code: the real processes are [`crate::session::Session`] and, for a
//! process that has no session yet, [`crate::process::Process`].
//!
//! | file | subject |
//! | --- | --- |
//! | this one | names and attributes |
//! | [`open`] | opening a file, and the end of an open file description |
//! | [`locks`] | the requests of flock(2) and fcntl(2) |

pub mod locks;
pub mod open;

use rustix::io::Errno;
use weir_core::names::{Attr, FileType, InodeLife, NamesView, ViewError, ROOT_INDEX, SYMLINK_MAX};
use weir_core::node::block::FileBlock;
use weir_core::node::known::KnownNames;
use weir_core::node::region::Hub;
use weir_core::node::ring::Note;
use weir_core::placement::home_of_entry;
use weir_core::proto::{Find, GetAttr, Lease, Operation, Passage, Ping, Readlink};
use weir_core::types::{Ino, Rank};

use core::sync::atomic::Ordering;

use crate::path::walk::Names;
use crate::path::Guard;

/// A process, as a client of its node's server.
pub trait NodeClient {
    /// The node's namespace.
    fn names(&self) -> NamesView<'static>;
    /// Names of other servers that this node may believe.
    fn known(&self) -> KnownNames<'static>;
    /// The head of the node's shared memory.
    fn hub(&self) -> &'static Hub;
    /// The node's file blocks.
    fn blocks(&self) -> &'static [FileBlock];
    /// The rank of the node's server and the number of servers, if there are several.
    fn several(&self) -> Option<(Rank, u16)>;
    /// The clock in which the server says how long the tables are valid, in ns.
    fn now_ns(&self) -> u64;
    /// Sends a request to the server and waits for its reply.
    fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno>;
    /// Sends the server a note, without waiting.
    fn note(&self, note: Note);
}

impl<C: NodeClient> NodeClient for &C {
    fn names(&self) -> NamesView<'static> {
        (*self).names()
    }

    fn known(&self) -> KnownNames<'static> {
        (*self).known()
    }

    fn hub(&self) -> &'static Hub {
        (*self).hub()
    }

    fn blocks(&self) -> &'static [FileBlock] {
        (*self).blocks()
    }

    fn several(&self) -> Option<(Rank, u16)> {
        (*self).several()
    }

    fn now_ns(&self) -> u64 {
        (*self).now_ns()
    }

    fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        (*self).call(op)
    }

    fn note(&self, note: Note) {
        (*self).note(note);
    }
}

/// The number of times that the server is asked to finish a change of the tables.
pub const PATIENCE: u32 = 1000;

/// The file system as a process sees it.
#[derive(Clone, Copy)]
pub struct View<C> {
    client: C,
    names: NamesView<'static>,
    known: KnownNames<'static>,
    hub: &'static Hub,
    several: Option<(Rank, u16)>,
}

impl<C> core::fmt::Debug for View<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("View")
    }
}

impl<C: NodeClient> View<C> {
    /// The view of a process.
    #[inline]
    pub fn new(client: C) -> View<C> {
        View {
            names: client.names(),
            known: client.known(),
            hub: client.hub(),
            several: client.several(),
            client,
        }
    }

    /// True if there are other servers.
    pub fn is_of_several(&self) -> bool {
        self.several.is_some()
    }

    /// Asks until the tables are settled; asking the server lends it the CPU.
    #[inline]
    pub fn settled<T>(
        &self,
        mut ask: impl FnMut(&NamesView<'static>) -> Result<T, ViewError>,
    ) -> Result<T, Errno> {
        for _ in 0..PATIENCE {
            match ask(&self.names) {
                Ok(answer) => return Ok(answer),
                Err(error) => self.await_change(error)?,
            }
        }
        Err(Errno::IO)
    }

    #[cold]
    #[inline(never)]
    fn await_change(&self, error: ViewError) -> Result<(), Errno> {
        match error {
            ViewError::BufferTooSmall => Err(Errno::NAMETOOLONG),
            ViewError::Unsettled | ViewError::Renaming => self.client.call(Ping {}),
        }
    }

    /// True if another server has given the inode its number.
    fn is_elsewhere(&self, ino: Ino) -> bool {
        self.several.is_some_and(|(rank, _)| ino.rank() != rank)
    }

    /// True if these attributes may have expired, because the server has not renewed them.
    fn doubts(&self, attr: &Attr) -> bool {
        self.hub.doubts(attr, || self.client.now_ns())
    }

    /// The table of known names; `None` if the server has not confirmed it for too long.
    fn known(&self) -> Option<&KnownNames<'static>> {
        let is_in_doubt = self.hub.is_in_doubt(|| self.client.now_ns());
        (!is_in_doubt).then_some(&self.known)
    }

    /// As [`Names::lookup`], among the names of this node.
    fn lookup_here(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        let mut is_renaming = false;
        let here = self.settled(|names| {
            let found = names.lookup(dir, name);
            is_renaming = found == Err(ViewError::Renaming);
            if is_renaming {
                Ok(None)
            } else {
                found
            }
        })?;
        match is_renaming {
            true => self.ask_entry(dir, name),
            false => Ok(here),
        }
    }

    /// As [`Names::lookup`], for a name that this node does not have.
    fn lookup_elsewhere(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        let known = self.known().and_then(|known| known.entry(dir, name));
        if known.is_some() {
            return Ok(known);
        }
        self.ask_entry(dir, name)
    }

    /// Asks the server for a name.
    fn ask_entry(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        let name = name.to_vec();
        let found = if_there(self.client.call(Find { dir, name }))?;
        Ok(found.flatten().map(|child| (child.ino, child.kind)))
    }

    /// The attributes of a file of another server, if it has a stand-in in the shared tables that
    /// is up to date.
    fn stand_in_attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        let local = self.known().and_then(|known| known.stand_in(ino));
        let Some(local) = local else {
            return Ok(None);
        };
        let attr = self.settled(|names| names.attr(local))?;
        Ok(attr.filter(|attr| attr.is_leased_copy_of(ino) && !self.doubts(attr)))
    }

    /// The attributes of another server's inode or of a directory; `None`: it is gone.
    fn ask_attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        if let Some(attr) = self.stand_in_attr(ino)? {
            return Ok(Some(attr));
        }
        if_there(self.client.call(GetAttr { ino }))
    }

    /// The part of [`Names::attr`] that opening and closing need.
    #[inline]
    pub fn life(&self, ino: Ino) -> Result<Option<InodeLife>, Errno> {
        if self.is_elsewhere(ino) {
            return Ok(self.ask_attr(ino)?.as_ref().map(InodeLife::from));
        }
        self.settled(|names| names.life(ino))
    }

    /// As [`Names::attr`], with the knowledge of all servers of a directory, and with the published
    /// writes of all nodes.
    pub fn whole_attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        if !self.is_of_several() {
            return self.attr(ino);
        }
        if self.is_elsewhere(ino) {
            return self.ask_attr(ino);
        }
        let attr = self.settled(|names| names.attr(ino))?;
        if attr.is_some_and(|attr| !attr.fresh || attr.ask || self.doubts(&attr)) {
            // The file is open here: the answer is valid until it changes.
            return match if_there(self.client.call(Lease { ino }))? {
                Some(()) => self.settled(|names| names.attr(ino)),
                None => Ok(None),
            };
        }
        match attr {
            Some(attr) if attr.file_type() != FileType::Dir => Ok(Some(attr)),
            _ => self.ask_attr(ino),
        }
    }

    /// Looks at an inode at one moment: `ask` gets its attributes and, if a program has the file
    /// open for writing, the block with its size. ENOENT: it is gone.
    pub fn at_once<T>(
        &self,
        ino: Ino,
        ask: impl Fn(&Attr, Option<&'static FileBlock>) -> T,
    ) -> Result<T, Errno> {
        loop {
            let attr = self.whole_attr(ino)?.ok_or(Errno::NOENT)?;
            let block = attr.block.checked_sub(1);
            let block = block.and_then(|index| self.client.blocks().get(index as usize));
            let answer = ask(&attr, block);
            // The last writer may have left, or may have been killed, since the attributes were
            // read; then they are stale.
            if block.is_none_or(|block| block.ino.load(Ordering::Acquire) == attr.ino.0) {
                return Ok(answer);
            }
            core::hint::spin_loop();
        }
    }
}

impl<C: NodeClient> Names for View<C> {
    fn root(&self) -> Ino {
        match self.several {
            Some(_) => Ino::new(Rank(0), 0, ROOT_INDEX),
            None => self.names.root(),
        }
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        let here = self.lookup_here(dir, name)?;
        let Some((rank, servers)) = self.several.filter(|_| here.is_none()) else {
            return Ok(here); // an entry of this node: it is nowhere else, for entries do not move
        };
        if dir == self.root() && home_of_entry(dir, name, servers) == rank {
            return Ok(None);
        }
        let all_here = self.known().and_then(|known| known.all_here(dir));
        if let Some(all) = all_here {
            // Another node may have had entries when the table was looked at.
            let here = self.lookup_here(dir, name)?;
            if here.is_some() || self.known.still_holds(&all) {
                return Ok(here);
            }
        }
        self.lookup_elsewhere(dir, name)
    }

    #[inline]
    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        if self.is_elsewhere(ino) {
            return self.ask_attr(ino);
        }
        self.settled(|names| names.attr(ino))
    }

    fn passage(&self, dir: Ino) -> Result<Option<Guard>, Errno> {
        if !self.is_elsewhere(dir) {
            let attr = self.settled(|names| names.attr(dir))?;
            return Ok(attr.as_ref().map(Guard::from));
        }
        let known = self.known().and_then(|known| known.guard(dir));
        if known.is_some() {
            return Ok(known);
        }
        let attr = if_there(self.client.call(Passage { ino: dir }))?;
        Ok(attr.as_ref().map(Guard::from))
    }

    fn target(&self, ino: Ino, out: &mut [u8; SYMLINK_MAX]) -> Result<usize, Errno> {
        if self.is_elsewhere(ino) {
            let target = self.client.call(Readlink { ino })?;
            let out = out.get_mut(..target.len()).ok_or(Errno::NAMETOOLONG)?;
            out.copy_from_slice(&target);
            return Ok(target.len());
        }
        self.settled(|names| names.symlink_target(ino, out))?
            .ok_or(Errno::NOENT)
    }
}

/// `None` in place of ENOENT.
fn if_there<T>(asked: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match asked {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
