//! Opening a file, and the end of an open file description.
//!
//! A description names its inode in shared memory *before* the process checks that the inode still
//! exists. A server that lets go of an inode, or laminates it, first says so in the tables, and
//! then looks for descriptions that name it. So one of the two sees the other.

use core::sync::atomic::{fence, Ordering};

use rustix::io::Errno;
use weir_core::names::{Attr, FileType, InodeLife, LaminateOn, Lamination};
use weir_core::node::ofd::Ofd;
use weir_core::node::ring::Note;
use weir_core::proto::{
    Attached, BeginUpdate, Cause, Create, CreateUnnamed, Created, Hold, Laminate, Truncate,
};
use weir_core::types::Ino;

use super::{NodeClient, View};
use crate::errno::EVICTED;
use crate::path::walk::Names;

/// The times that an evicted file is prepared, and evicted again, before its change fails.
const UPDATE_TRIES: u32 = 20;

/// An inode that a program opens.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its number; of a file that is held, the number in this node's table.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileType,
    /// True if this call made the file: its mode does not bar its maker.
    pub new: bool,
    /// True if the file's server knows that it is open here.
    pub held: bool,
    /// The attachment, if its maker may write already.
    pub attached: Option<Attached>,
}

impl Target {
    /// A file that was found.
    pub fn existing(ino: Ino, kind: FileType) -> Target {
        Target {
            ino,
            kind,
            new: false,
            held: false,
            attached: None,
        }
    }

    /// A file that a server made, or held if it existed.
    fn created(made: &Created) -> Target {
        Target {
            ino: made.ino,
            kind: FileType::File,
            new: made.new,
            held: made.held,
            attached: made.attached,
        }
    }
}

/// The use of a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenAccess {
    /// Reading.
    Read,
    /// Writing, of a file that has its bytes.
    Update,
    /// Writing all bytes, or cutting the file to nothing.
    Rewrite,
}

/// The parameters with which a process opens a file: its descriptors, its credentials.
pub trait Opening {
    /// An open file.
    type Opened;
    /// True if the file is opened for writing, or to be truncated.
    fn writes(&self) -> bool;
    /// True if the file is to be truncated (`O_TRUNC`).
    fn truncates(&self) -> bool;
    /// EACCES: the process may not open a file with these attributes.
    fn check(&self, attr: &Attr) -> Result<(), Errno>;
    /// Makes a description of the file, by [`View::show_open`]. `by_name`: nothing else prevents
    /// the server from letting go of the file.
    fn open(&self, attr: &Attr, by_name: bool) -> Result<Self::Opened, Errno>;
    /// Lets the process write the file that it made; false if `opened` cannot be written.
    fn attach(&self, opened: &Self::Opened, at: Attached) -> bool;
    /// Closes an opened file.
    fn close(&self, opened: Self::Opened);
}

impl<C: NodeClient> View<C> {
    /// True if the client must send a request to hold a file that it opens. The server of this node
    /// finds the readers of its own files in shared memory.
    fn is_held_by_request(&self, ino: Ino, write: bool) -> bool {
        self.several.is_some() && (write || self.is_elsewhere(ino))
    }

    /// Makes a file, or holds the file that has the name, by one request. `None`: something else
    /// has the name, or the path must be walked step by step.
    pub fn create(&self, op: Create) -> Result<Option<Target>, Errno> {
        let made = self.client.call(op)?;
        Ok((made.new || made.held).then(|| Target::created(&made)))
    }

    /// Makes a file without a name.
    pub fn create_unnamed(&self, op: CreateUnnamed) -> Result<Target, Errno> {
        self.client.call(op).map(|made| Target::created(&made))
    }

    /// Opens a file or a directory.
    pub fn open<O: Opening>(&self, target: &Target, how: &O) -> Result<O::Opened, Errno> {
        if let Some(opened) = self.open_stand_in(target, how)? {
            return Ok(opened);
        }
        // By references: attributes are long, and each copy of them shows in the time of an open.
        let opened = match &self.attr_to_open(target, how.writes()) {
            Ok(attr) => {
                let checked = if target.new { Ok(()) } else { how.check(attr) };
                // The server does not let go of a file that its maker may write already.
                checked.and_then(|()| how.open(attr, target.attached.is_none()))
            }
            Err(error) => Err(*error),
        };
        if let Some(at) = target.attached {
            let attached = opened.as_ref().is_ok_and(|opened| how.attach(opened, at));
            if !attached {
                self.client.note(Note::Detach(at.cell));
            }
        }
        let opened = opened?;
        if how.truncates() && !target.new && target.kind == FileType::File {
            let (ino, size) = (target.ino, 0);
            if let Err(error) = self.client.call(Truncate { ino, size }) {
                how.close(opened);
                return Err(error);
            }
        }
        Ok(opened)
    }

    /// Opens a file of another server for reading without a request, if this node believes the
    /// file's stand-in.
    fn open_stand_in<O: Opening>(
        &self,
        target: &Target,
        how: &O,
    ) -> Result<Option<O::Opened>, Errno> {
        let asks = self.is_held_by_request(target.ino, false) && !target.held;
        if target.kind != FileType::File || !asks || how.writes() {
            return Ok(None);
        }
        let Some(attr) = self.stand_in_attr(target.ino)? else {
            return Ok(None);
        };
        how.check(&attr)?;
        let opened = how.open(&attr, true)?;
        match self.attr(attr.ino) {
            Ok(Some(now)) if now.fresh => Ok(Some(opened)),
            other => {
                how.close(opened);
                other.map(|_| None)
            }
        }
    }

    /// The attributes of an inode that is to be opened, by its number in this node's table. If
    /// there are several servers, the inode's home may have to be told that the file is open here,
    /// and this node's server which process writes it.
    #[inline]
    pub fn attr_to_open(&self, target: &Target, write: bool) -> Result<Attr, Errno> {
        let ino = target.ino;
        let is_file = target.kind == FileType::File;
        if is_file && !target.held && self.is_held_by_request(ino, write) {
            return self.client.call(Hold { ino, write });
        }
        match self.attr(ino) {
            Ok(Some(attr)) => Ok(attr),
            Ok(None) => Err(Errno::NOENT),
            Err(error) => Err(error),
        }
    }

    /// Does something that changes the bytes of a file, as often as it says that the file was evicted. Before each
    /// further time the server prepares the file: its extents say from then on which bytes are those of its copy, and
    /// programs write over these. No byte moves. EBUSY: it is evicted again and again.
    pub fn update<T>(&self, ino: Ino, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        for _ in 0..UPDATE_TRIES {
            match act() {
                Err(EVICTED) => self.client.call(BeginUpdate { ino })?,
                done => return done,
            }
        }
        Err(Errno::BUSY)
    }

    /// Records in a description that an inode is open, with `flags` of open(2). ENOENT: the inode
    /// is gone, or has lost the name that was the only way to it: the server may have looked for
    /// descriptions before this one. For writing, EROFS: it was laminated meanwhile; [`EVICTED`]: it was
    /// evicted, and is to be updated. On an error the description is free again.
    pub fn show_open(
        &self,
        ofd: &Ofd,
        ino: Ino,
        by_name: bool,
        flags: u32,
        access: OpenAccess,
    ) -> Result<(), Errno> {
        let writes = access != OpenAccess::Read;
        ofd.open(ino.0, flags);
        fence(Ordering::SeqCst);
        let shown = match self.life(ino) {
            Ok(Some(now)) if by_name && self.has_no_name(&now) => Err(Errno::NOENT),
            Ok(Some(now)) if writes && is_sealed(&now) => Err(Errno::ROFS),
            Ok(Some(now)) if access == OpenAccess::Update && now.evicted => Err(EVICTED),
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Errno::NOENT),
            Err(error) => Err(error),
        };
        if shown.is_err() {
            ofd.close();
        }
        shown
    }

    /// True if no name leads to an inode any more. With several servers, a directory that another
    /// one replaces has none before its name has changed.
    fn has_no_name(&self, life: &InodeLife) -> bool {
        let is_dir = life.kind == FileType::Dir;
        life.nlink == 0 && !(is_dir && self.is_of_several())
    }

    /// Tells the server that a description has ended, if that matters: the file has no name any
    /// more, or is to be laminated now.
    pub fn tell_end(&self, ino: Ino, writes: bool) {
        if !self.laminate_if_due(ino, writes) {
            self.client.note(Note::Orphan(ino.0));
        }
    }

    /// Laminates a file whose description has ended, if that is due now; false if the file has no
    /// name any more.
    pub fn laminate_if_due(&self, ino: Ino, writes: bool) -> bool {
        let Some(life) = self.life(ino).ok().flatten() else {
            return false;
        };
        // A server that lets go of a stand-in shows it without a name for a moment.
        let may_have_name = life.nlink > 0 || life.is_stale;
        let due = match life.lamination {
            Lamination::Due => true,
            Lamination::No => life.laminate_on == LaminateOn::Close,
            Lamination::Sealing | Lamination::Done => false,
        };
        if due && writes && may_have_name {
            let cause = Cause::Close;
            // If that fails now, the server goes on trying.
            let _ = self.client.call(Laminate { ino, cause });
        }
        life.nlink > 0
    }
}

/// True if a file must not be opened for writing.
fn is_sealed(life: &InodeLife) -> bool {
    matches!(life.lamination, Lamination::Sealing | Lamination::Done)
}
