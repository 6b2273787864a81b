//! A server with names alone, and several of them on one fabric.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use futures_util::future::LocalBoxFuture;
use weir_core::journal::{self, Item};
use weir_core::names::{Attr, EntryName, FileType, Owner, Policy, RenameMode, Shard};
use weir_core::node::known::{KnownNames, KnownSlot};
use weir_core::node::region::Hub;
use weir_core::proto::peer::{self, PeerOperation, Request, Unnamed, What};
use weir_core::proto::{self, Attached, Caller, Child, Created, Entry, FsError, Listing};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fakes::{NodeRegions, TableSizes};

use crate::cluster::abilities::{InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::clock::ServerClock;
use crate::cluster::files::{FileNews, FilesState};
use crate::cluster::keyed::Token;
use crate::cluster::names::{
    FilesForNames, InstanceNames, NameKey, NameSteps, NamesNeeds, NamesState,
};
use crate::cluster::net::Answer;
use crate::cluster::node_names::NodeNames;
use crate::cluster::peers::calls::{Replied, ServerCalls};
use crate::cluster::peers::fake_fabric::{reply, RoomServer};
use crate::cluster::peers::PeerServers;
use crate::cluster::refusal::refusal;
use crate::cluster::{owner, ROOT};

/// A server's own tables: its names, and those that it shows its programs.
pub(super) struct NamesTables {
    names: NodeNames<'static>,
    hub: &'static Hub,
    known: &'static [KnownSlot],
}

impl NamesTables {
    fn new(rank: Rank, files: u32, clock: ServerClock) -> NamesTables {
        let sizes = TableSizes {
            files,
            descriptions: 1,
            blocks: 1,
            cells: 1,
        };
        let regions = NodeRegions::new(sizes);
        let root = Owner { uid: 0, gid: 0 };
        let shard = Shard::new(regions.format_names(rank), 0o755, root, 1).expect("a root");
        let mut names = NodeNames::new(shard, clock);
        names.join(ROOT);
        let open = regions.open();
        NamesTables {
            names,
            hub: open.hub,
            known: open.known,
        }
    }
}

impl NameTables for NamesTables {
    fn names(&mut self) -> &mut NodeNames<'static> {
        &mut self.names
    }

    fn known(&self) -> KnownNames<'static> {
        KnownNames::new(self.hub, self.known)
    }

    fn known_to_keep(&mut self) -> KnownNames<'static> {
        let slots = u32::try_from(self.known.len()).expect("few");
        self.hub.known.store(slots, Ordering::Release);
        self.known()
    }
}

impl NameSteps for NamesTables {
    fn forget_known(&self) {
        self.hub.recalls.fetch_add(1, Ordering::SeqCst);
    }

    fn create_file(&mut self, _: Caller, op: &proto::Create) -> Result<Created, FsError> {
        let (names, owner) = (&mut self.names, owner(op.uid, op.gid));
        let ino = names.create(op.parent, &op.name, op.mode, owner, 1);
        Ok(Created {
            ino: ino.map_err(refusal)?,
            new: true,
            held: true,
            attached: None,
        })
    }

    fn create_unnamed_file(
        &mut self,
        _: ClientId,
        _: &proto::CreateUnnamed,
        _: &Attr,
    ) -> Result<Created, FsError> {
        Err(FsError::NotSupported)
    }

    fn attach_client(&mut self, _: ClientId, _: Ino) -> Result<Attached, FsError> {
        Err(FsError::NotSupported)
    }

    fn has_path_rules(&self) -> bool {
        false
    }

    fn apply_rules_of(&mut self, _: &[u8], file: &Attr) -> Result<Policy, FsError> {
        Ok(file.policy)
    }

    fn make(&mut self, dir: Ino, op: &peer::Make, owner: Owner) -> Result<Ino, FsError> {
        let names = &mut self.names;
        let made = match op.what {
            What::File => names.create(dir, &op.name, op.mode, owner, 1),
            What::Dir => names.mkdir(dir, &op.name, op.mode, owner, 1),
            What::Symlink(_) | What::Special(_) => return Err(FsError::NotSupported),
        };
        made.map_err(refusal)
    }

    fn enter(&mut self, dir: Ino, name: &[u8], child: Child) -> Result<(), FsError> {
        let Child { ino, kind } = child;
        let entered = self.names.insert_entry(dir, name, ino, kind, 1);
        entered.map(drop).map_err(refusal)
    }

    fn make_link(&mut self, op: &proto::Link) -> Result<(), FsError> {
        let linked = self.names.link(op.ino, op.parent, &op.name, 1);
        linked.map(drop).map_err(refusal)
    }

    fn relink(&mut self, ino: Ino, add: bool) -> Result<FileType, FsError> {
        self.names.change_links(ino, add, 1).map_err(refusal)?;
        Ok(self.names.attr_of(ino)?.file_type())
    }

    fn remove_name(&mut self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let gone = self.names.unlink(parent, name, 1).map_err(refusal)?;
        Ok(gone.ino)
    }

    fn remove_dir(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let gone = self.names.rmdir(parent, name, 1);
        gone.map(drop).map_err(refusal)
    }

    fn end_dir(&mut self, dir: Ino) -> Result<(), FsError> {
        self.names.change_links(dir, false, 1).map_err(refusal)?;
        self.names.set_parent(dir, Ino::NONE)
    }

    fn rename_entry(&mut self, op: &proto::Rename) -> Result<(), FsError> {
        let [from, to] = [(op.parent, &op.name), (op.new_parent, &op.new_name)]
            .map(|(parent, name)| EntryName { parent, name });
        let mode = match op.flags {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            _ => RenameMode::Exchange,
        };
        let renamed = self.names.rename(from, to, mode, 1);
        renamed.map(drop).map_err(refusal)
    }

    fn list(&self, _: &proto::Readdir) -> Result<Listing, FsError> {
        Err(FsError::NotSupported)
    }

    fn walk(&self, _: &[Vec<u8>]) -> Result<Entry, FsError> {
        Err(FsError::NotSupported)
    }
}

/// A server whose files nobody opens.
#[derive(Clone)]
pub(super) struct NamesServer(Rc<ServerParts>);

struct ServerParts {
    peers: PeerServers,
    state: NamesState,
    tables: RefCell<NamesTables>,
    journal: RefCell<journal::State>,
    files: FilesState,
    /// Files that lost their last names.
    ended: RefCell<Vec<Ino>>,
}

impl NamesServer {
    /// A server with room for so many inodes.
    pub(super) fn new(peers: &PeerServers, files: u32, clock: &ServerClock) -> NamesServer {
        let rank = peers.rank();
        NamesServer(Rc::new(ServerParts {
            peers: peers.clone(),
            state: NamesState::new(rank, peers.servers()),
            tables: RefCell::new(NamesTables::new(rank, files, clock.clone())),
            journal: RefCell::new(journal::State::new(rank)),
            files: FilesState::default(),
            ended: RefCell::default(),
        }))
    }

    /// The room.
    pub(super) fn names(&self) -> InstanceNames<NamesServer> {
        InstanceNames::new(self)
    }

    /// The state that its journal describes.
    pub(super) fn journalled(&self) -> journal::Cluster {
        self.0.journal.borrow().cluster.clone()
    }

    /// The files that lost their last names here.
    pub(super) fn ended(&self) -> Vec<Ino> {
        self.0.ended.borrow().clone()
    }

    async fn served(&self, from: Rank, request: Request) -> Answer {
        let names = self.names();
        match request {
            Request::Find(op) => reply(&names.find(op).await),
            Request::FindToKeep(op) => reply(&names.find_to_keep(from, op).await),
            Request::DropEntry(op) => {
                names.drop_entry(&NameKey::new(op.dir, op.name));
                reply(&Ok(()))
            }
            Request::PlaceEntries(op) => reply(&names.place_entries(from, op).await),
            Request::SplitDir(op) => reply(&names.split_dir(op.dir).await),
            Request::Passage(op) => reply(&names.passage_for_peer(op.dir)),
            Request::Make(op) => reply(&names.make(from, op).await),
            Request::Enrol(op) => reply(&names.enrol(from, op.dir)),
            Request::Settled(op) => {
                names.settle(op.dir).await;
                reply(&Ok(()))
            }
            Request::Retire(op) => reply(&names.retire(op.dir).await),
            Request::Bury(op) => reply(&names.bury(op.dir).await),
            Request::Unlink(op) => reply(&names.unlink(from, op).await),
            Request::Rmdir(op) => reply(&names.rmdir(op).await),
            Request::Link(op) => reply(&names.link(op).await),
            Request::Relink(op) => reply(&names.relink(op.ino, op.add).await),
            Request::LockName(op) => reply(&names.lock_name(from, op).await),
            Request::UnlockName(op) => {
                let (rank, number) = (from, op.token);
                let key = NameKey::new(op.dir, op.name);
                names.unlock_name_of(&key, Token { rank, number }, op.left);
                reply(&Ok(()))
            }
            Request::Assign(op) => reply(&names.assign_name(from, op).await),
            Request::Leave(op) => reply(&names.leave_old(op).await),
            Request::EndMove(op) => reply(&names.end_move(op).await),
            Request::Moved(op) => reply(&names.moves_to(from, op)),
            Request::Stayed(op) => reply(&names.stayed(op)),
            Request::LockMoves(op) => reply(&names.lock_dir_moves(from, op.token).await),
            Request::UnlockMoves(op) => {
                names.unlock_dir_moves(from, op.token);
                reply(&Ok(()))
            }
            Request::Whereabouts(op) => reply(&names.whereabouts(op.ino)),
            Request::Begin(op) => {
                names.drop_names_of(from);
                names.forget_steps(from, op.renames_since);
                names.forget_kept(from);
                reply(&Ok(Vec::<(Ino, u64)>::new()))
            }
            Request::Renew(_) => reply(&Ok(())),
            other => panic!("a question that names do not ask: {other:?}"),
        }
    }
}

impl RoomServer for NamesServer {
    fn answer(&self, from: Rank, request: Request) -> LocalBoxFuture<'static, Answer> {
        let this = self.clone();
        Box::pin(async move { this.served(from, request).await })
    }

    fn doubt(&self, home: Rank) {
        self.names().forget_known(home);
    }
}

impl ServerCalls for NamesServer {
    fn peers(&self) -> &PeerServers {
        &self.0.peers
    }

    fn do_here<O: PeerOperation + 'static>(&self, op: O) -> LocalBoxFuture<'_, Replied<O>> {
        let served = self.answer(self.rank(), op.into());
        Box::pin(async move { Ok((peer::reply::<O>(&served.await.body)?, Vec::new())) })
    }
}

impl InodeNumbers for NamesServer {
    fn global(&self, ino: Ino) -> Ino {
        ino
    }

    fn local(&self, ino: Ino) -> Option<Ino> {
        (ino.rank() == self.rank()).then_some(ino)
    }
}

impl Journals for NamesServer {
    fn note(&self, item: &Item<'_>) {
        self.0.journal.borrow_mut().apply(item).expect("an item");
    }

    async fn announced(&self) {}

    fn has_announced(&self) -> bool {
        true
    }
}

impl OwnTables for NamesServer {
    type Node = NamesTables;

    fn node<R>(&self, act: impl FnOnce(&mut NamesTables) -> R) -> R {
        act(&mut self.0.tables.borrow_mut())
    }
}

impl NamesNeeds for NamesServer {
    fn names_state(&self) -> &NamesState {
        &self.0.state
    }

    fn note_file_name(&self, _: Ino, _: Ino, _: &[u8]) {}
}

impl FilesForNames for NamesServer {
    async fn path_for_rules(&self, _: Ino, _: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        Ok(None)
    }

    fn news(&self) -> FileNews {
        self.0.files.news()
    }

    fn holds_since(&self, _: &FileNews, _: bool) -> bool {
        true
    }

    fn add_holder(&self, _: Ino, _: Rank) {}

    async fn add_writer(&self, _: Ino, _: Rank) {}

    async fn hold_for(&self, _: Rank, ino: Ino, _: bool) -> Result<Attr, FsError> {
        self.node(|node| node.names.attr_of(ino))
    }

    fn grant_new(&self, _: Rank, _: &Attr) -> bool {
        false
    }

    async fn recall_leases(&self, _: Ino, _: Option<Rank>) {}

    async fn end_unnamed(&self, ino: Ino, _: Rank) -> Option<Unnamed> {
        self.0.ended.borrow_mut().push(ino);
        None
    }

    async fn hold_here(&self, ino: Ino, _: bool) -> Result<Attr, FsError> {
        self.node(|node| node.names.attr_of(ino))
    }

    fn stand_in_for(&self, attr: &Attr) -> Result<Attr, FsError> {
        Ok(*attr)
    }

    fn leave_unknown(&self, _: Ino) {}

    fn may_reserve(&self, _: Ino, _: i64) {}

    fn attached_here(&self, _: Ino, _: Ino) {}

    fn revocations(&self) -> u64 {
        0
    }

    fn hold_new(&self, _: Ino, _: i64) {}

    async fn lost_its_name(&self, _: Unnamed) {}

    fn is_private(&self, _: Ino) -> bool {
        true
    }

    fn knows_all_writers(&self) -> bool {
        true
    }

    fn note_maker(&self, _: Ino, _: bool) {}

    fn note_new_names(&self, ino: Ino) {
        let attr = self.node(|node| node.names.attr_of(ino));
        if attr.is_ok_and(|attr| attr.nlink == 0) {
            self.0.ended.borrow_mut().push(ino);
        }
    }

    fn has_gone(&self) -> bool {
        false
    }

    async fn erase_gone(&self) {}
}
