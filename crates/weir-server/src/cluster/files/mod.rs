//! Files: inodes that are open, their holders, leases and sharing.
//!
//! Keeps: stand-ins of other servers' files; the holders, leases and writers of this server's
//! files; write tokens, the offsets of appends, open file descriptions, attributes.
//!
//! Invariants: a file lives while it has a name, a holder or an open description. A lease is
//! recalled before anything that it covers changes.
//!
//! May use: the traits of [`needs`].
//!
//! Interface: the types of [`parts`]: `hold_here`, `hold_for` and `add_writer` (files that are opened); `recall_here`,
//! `recall_leases` (changes that others must not miss); the holds of a server that is lost or back (`forget_holder`,
//! `keep_held`, `ask_for_policies`); operations of clients and other servers. [`NodeFiles`]: the files of this node, with those
//! tables of other rooms that change with them; sweeping and sealing them stays on `Node`. `FilesState` and
//! `OpenFileTables` are for the journal.
//!
//! | file | subject |
//! | --- | --- |
//! | `needs`, `parts` | the parts of the server that files need; the types of this room |
//! | `stand_ins`, `inodes` | stand-ins, leases, truncation; the inodes of files here |
//! | `holders`, `published` | the holders and writers of this server's files; their sizes for other nodes |
//! | `sharing`, `laminate` | visibility, and lamination |
//! | `tokens`, `append` | the order of writes of several nodes; the offsets of their appends |
//! | `audit` | reads that came too early |
//! | `end`, `leaving`, `orphans` | files that no program needs any more |
//! | `descriptions` | open file descriptions |
//! | `evict`, `evict_part` | files whose bytes are only on the parallel file system, all or some |
//! | `mapped` | files of which the kernel keeps pages |
//! | `xattrs`, `xattr_tables` | extended attributes: at their home, and its table |

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};

use weir_core::journal;
use weir_core::names::{Attr, LaminateOn, Policy};
use weir_core::node::ofd::BATCH;
use weir_core::proto::audit::Finding;
use weir_core::types::{ClientId, Ino, Rank};
use weir_core::xattr::Xattrs;

use crate::cluster::changes::NotedChanges;
use crate::cluster::extents::{ExtentTables, NodeWriters};
use crate::cluster::keyed::Keyed;
use crate::cluster::node_names::NodeNames;
use crate::node::{Node, OpenRegion, Platform, SnapshotPosition, Visit};
use crate::rules::Rules;

mod append;
mod audit;
pub(super) mod descriptions;
mod end;
mod evict;
mod evict_part;
mod holders;
mod inodes;
mod laminate;
mod leaving;
mod mapped;
mod needs;
mod orphans;
mod parts;
mod published;
mod sharing;
mod stand_ins;
mod tokens;
mod xattr_tables;
mod xattrs;

/// The time for which appends wait for a node that may have placed some and cannot be reached, ns:
/// after that its unpublished bytes count as lost.
pub(in crate::cluster) const AWAITED_NS: i64 = 30_000_000_000;

pub(in crate::cluster) use needs::{FileSteps, FilesNeeds, NamesForFiles};
pub(in crate::cluster) use parts::{
    Eviction, ExtendedAttributes, FileEnds, FileParts, FileSharing, FileTokens, ReadAudit,
    SharedAppends, StandInFiles, Truncation,
};
use stand_ins::StandIn;

/// The tables of this room.
pub(in crate::cluster) struct OpenFileTables {
    ofds: descriptions::OfdTable,
    mapped: mapped::MappedFiles,
    /// Files and directories without a name that some process may still have open.
    orphans: BTreeSet<Ino>,
    /// True while unnamed files stay: the other nodes have not said yet which of them they have open.
    keeps_orphans: bool,
    /// Files that other nodes have open.
    pinned: HashSet<Ino>,
    /// Files that have ended; their bytes are still to be erased at the homes of their slices.
    gone: Vec<Ino>,
    /// Files to be laminated once no process has them open for writing.
    watched: BTreeSet<Ino>,
    /// Rules for how files are shared, by path.
    rules: Rules,
    xattrs: Xattrs,
    unfinished_xattrs: xattr_tables::Unfinished,
}

impl OpenFileTables {
    pub(in crate::cluster) fn new(open: &OpenRegion<'_>) -> OpenFileTables {
        OpenFileTables {
            ofds: descriptions::OfdTable::new(open.ofds.len() / BATCH as usize),
            mapped: mapped::MappedFiles::default(),
            orphans: BTreeSet::new(),
            keeps_orphans: false,
            pinned: HashSet::new(),
            gone: Vec::new(),
            watched: BTreeSet::new(),
            rules: Rules::default(),
            xattrs: Xattrs::default(),
            unfinished_xattrs: xattr_tables::Unfinished::default(),
        }
    }

    /// Forgets all descriptions: another region is open, in which nothing is lent.
    pub(in crate::cluster) fn reopen(&mut self, open: &OpenRegion<'_>) {
        self.ofds = descriptions::OfdTable::new(open.ofds.len() / BATCH as usize);
    }

    /// Sets the rules for how files are shared, by path.
    pub(in crate::cluster) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Returns true if there are rules for how files are shared.
    pub(in crate::cluster) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The policy of a new file of this path, which inherited one from its directory.
    pub(in crate::cluster) fn policy_by_rules(&self, path: &[u8], inherited: Policy) -> Policy {
        self.rules.apply(path, inherited)
    }

    /// Notes that an inode has a name: it may be the first one of a file that was made without one.
    pub(in crate::cluster) fn drop_orphan(&mut self, ino: Ino) {
        self.orphans.remove(&ino);
    }

    /// Keeps a file of this server while other nodes have it open.
    fn pin(&mut self, ino: Ino) {
        self.pinned.insert(ino);
    }

    /// Returns true if files may end, or are to be laminated, without a message of a client.
    pub(in crate::cluster) fn has_work_to_come(&self) -> bool {
        self.has_gone() || !self.watched.is_empty() || self.ofds.awaits_closing()
    }

    /// Returns true if files of this server have ended since [`OpenFileTables::take_gone`].
    fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// The files of this server that have ended since the last call.
    fn take_gone(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.gone)
    }

    /// Watches a file that is laminated at the end of its last description, which may also come with the end of a
    /// process.
    pub(in crate::cluster) fn watch(&mut self, attr: &Attr) {
        if attr.policy.laminate_on == LaminateOn::Close {
            self.watched.insert(attr.ino);
        }
    }

    /// Visits some of the extended attributes of the inodes after one; returns the last inode that
    /// was shown, if there are more.
    pub(in crate::cluster) fn show_xattrs(
        &self,
        after: Option<Ino>,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<Ino> {
        self.xattrs.show_some(after, most, visit)
    }
}

/// The files of this node: the tables of this room, and those parts of other rooms that change with
/// them: inodes, stored bytes, the blocks of files that programs write.
pub(in crate::cluster) struct NodeFiles<'a, 'm> {
    tables: &'a mut OpenFileTables,
    names: &'a mut NodeNames<'m>,
    extents: &'a mut ExtentTables,
    changes: &'a mut NotedChanges,
    open: &'a OpenRegion<'m>,
}

impl<'m> NodeFiles<'_, 'm> {
    /// The writers, and the files with their current writes.
    fn writers(&self) -> NodeWriters<'_, 'm> {
        self.extents.writers(self.names, self.open)
    }

    /// Forgets a client that is gone: its pages, if it was a mount, and the values of extended
    /// attributes that it left unfinished.
    pub(in crate::cluster) fn forget_client(&mut self, id: ClientId) {
        self.forget_pages(id);
        self.tables.unfinished_xattrs.forget_client(id);
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// The files, to change them.
    pub(in crate::cluster) fn files(&mut self) -> NodeFiles<'_, 'm> {
        NodeFiles {
            tables: &mut self.files,
            names: &mut self.names,
            extents: &mut self.extents,
            changes: &mut self.changes,
            open: &self.open,
        }
    }
}

/// The state of this room that concerns several servers.
#[derive(Default)]
pub(in crate::cluster) struct FilesState {
    /// Files of other servers that are known here, by their global numbers.
    stand_ins: RefCell<BTreeMap<Ino, stand_ins::StandIn>>,
    /// The servers that have files of this one open.
    holders: RefCell<holders::FileHolders>,
    /// This server's files as other nodes see them.
    published: RefCell<published::PublishedSizes>,
    /// The number of recalls here, of any file.
    recalled: Cell<u64>,
    /// The number of messages of homes about files that have no stand-in here. A stand-in that is
    /// being made may be of such a file, which may be laminated or unnamed by now.
    news_of_unknown: Cell<u64>,
    leaving: leaving::Leaving,
    /// Files of this server that are being cut or laminated.
    changing: Keyed<Ino>,
    /// The number of the last truncation of a file of this server.
    cuts: Cell<u64>,
    write_tokens: RefCell<tokens::WriteTokens>,
    /// Raw files of this server for which a token or a lease is being granted.
    granting: Keyed<Ino>,
    /// Raw files for which this node asks for a token.
    asking_tokens: Keyed<Ino>,
    /// Files of this server that several nodes write.
    appends: RefCell<BTreeMap<Ino, append::Appends>>,
    /// Files, of any server, whose home assigns the positions of appends by programs of this node.
    shared_appends: RefCell<BTreeSet<Ino>>,
    /// Files of this server whose writers are being told to ask for the positions of appends.
    sharing_appends: Keyed<Ino>,
    /// Servers that have not said, since this one is back, which of its files they write; with the time until which
    /// this server waits for them, ns since 1970.
    silent_servers: RefCell<BTreeMap<Rank, i64>>,
    paths: RefCell<sharing::Paths>,
    becoming_raw: sharing::BecomingRaw,
    findings: RefCell<Vec<Finding>>,
}

/// The counts of news about files at one moment. They show if an answer of a home, on its way since then, is outdated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct FileNews {
    /// See [`leaving::Leaving::counts`].
    left: leaving::LeavingCounts,
    recalled: u64,
    news_of_unknown: u64,
}

impl FilesState {
    /// The number of a file of another server in this node's table, if it is known here.
    pub(in crate::cluster) fn local_of(&self, ino: Ino) -> Option<Ino> {
        let stand_ins = self.stand_ins.borrow();
        stand_ins.get(&ino).map(|known| known.local)
    }

    /// The counts of news now.
    pub(in crate::cluster) fn news(&self) -> FileNews {
        FileNews {
            left: self.leaving.counts(),
            recalled: self.recalled.get(),
            news_of_unknown: self.news_of_unknown.get(),
        }
    }

    /// Returns true if no news since `before` has outdated a home's answer that this node holds a file. `is_new`: the
    /// home made the file for the same request.
    pub(in crate::cluster) fn holds_since(&self, before: &FileNews, is_new: bool) -> bool {
        is_new && self.news_of_unknown.get() == before.news_of_unknown
            || self.leaving.none_since(before.left) && self.recalled.get() == before.recalled
    }

    /// Restores the stand-ins, whose inodes are in the node's tables, and the published sizes from the journal.
    pub(in crate::cluster) fn take_up(
        &self,
        state: &mut journal::Cluster,
        stand_ins: Vec<(Ino, Ino)>,
        now_ns: i64,
    ) {
        let taken_up = stand_ins.into_iter();
        let taken_up = taken_up.map(|(home, local)| (home, StandIn::taken_up(local, now_ns)));
        self.stand_ins.borrow_mut().extend(taken_up);
        self.published.borrow_mut().take_up(state);
    }

    /// Visits some of the published sizes of this server's files; returns the position to go on
    /// from.
    pub(in crate::cluster) fn show_published(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        self.published.borrow().show_sizes(from, most, visit)
    }

    /// Visits the last counted publish of each file and server.
    pub(in crate::cluster) fn show_counted(&self, visit: Visit<'_>) {
        self.published.borrow().show_counted(visit);
    }
}
