//! Several servers with names, the operations of their programs, and what must hold between operations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weir_core::journal::Item;
use weir_core::names::{FileType, Owner};
use weir_core::placement::home_of_entry;
use weir_core::proto::peer::What;
use weir_core::proto::{self, Caller, Child, FsError, HistoryPosition, Served};
use weir_core::types::{Ino, Rank};

use super::server::NamesServer;
use crate::cluster::abilities::{NameTables, OwnTables};
use crate::cluster::names::requests::NewEntry;
use crate::cluster::names::{InstanceNames, NameKey, NamesNeeds};
use crate::cluster::peers::fake::TestThread;
use crate::cluster::peers::fake_fabric::TestFabric;
use crate::cluster::ROOT;

/// A directory and a name in it.
pub(super) type EntryAt<'a> = (Ino, &'a [u8]);

/// The result of an operation that is under way.
pub(super) type Pending<T> = Rc<RefCell<Option<Result<T, FsError>>>>;

pub(super) struct NamesWorld {
    pub(super) fabric: Rc<TestFabric>,
    pub(super) servers: Vec<NamesServer>,
}

impl NamesWorld {
    pub(super) fn new(servers: u16) -> NamesWorld {
        NamesWorld::sized(servers, 100)
    }

    /// Servers with room for so many inodes each.
    pub(super) fn sized(servers: u16, files: u32) -> NamesWorld {
        let thread = TestThread::new();
        thread.clock().set(1_000_000_000);
        let fabric = TestFabric::new(&thread);
        let ranks = (0..servers).map(Rank);
        let servers = ranks.map(|rank| {
            let peers = fabric.peers(rank, servers);
            let server = NamesServer::new(&peers, files, thread.clock());
            fabric.join(&peers, server.clone());
            server
        });
        let servers = servers.collect();
        NamesWorld { fabric, servers }
    }

    /// The room of a server.
    pub(super) fn names(&self, rank: u16) -> InstanceNames<NamesServer> {
        self.servers[usize::from(rank)].names()
    }

    /// The `number`-th name whose hash in the directory is of the server.
    pub(super) fn name_at(&self, dir: Ino, rank: u16, number: usize) -> Vec<u8> {
        let servers = u16::try_from(self.servers.len()).expect("few");
        let names = (0..).map(|at: u32| format!("name{at}").into_bytes());
        let mut its = names.filter(|name| home_of_entry(dir, name, servers) == Rank(rank));
        its.nth(number).expect("each server has names")
    }

    fn make(&self, at: u16, place: EntryAt<'_>, what: What) -> Served<Result<Ino, FsError>> {
        self.names(at).make_for_client(NewEntry {
            parent: place.0,
            name: place.1.to_vec(),
            what,
            mode: 0o755,
            owner: Owner { uid: 0, gid: 0 },
        })
    }

    /// A program of a server makes a directory.
    pub(super) fn mkdir(&self, at: u16, place: EntryAt<'_>) -> Ino {
        let made = self.make(at, place, What::Dir);
        self.fabric.finish_served(made).expect("a directory")
    }

    /// A program of a server begins to make a file.
    pub(super) fn begin_create(&self, at: u16, place: EntryAt<'_>) -> Pending<proto::Created> {
        let create = proto::Create {
            parent: place.0,
            name: place.1.to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive: true,
            attach: false,
        };
        let created = self.names(at).create_for_client(Caller::Control, create);
        self.fabric.begin(created)
    }

    /// A program of a server makes a file.
    pub(super) fn create(&self, at: u16, place: EntryAt<'_>) -> Result<Ino, FsError> {
        let created = self.begin_create(at, place);
        self.fabric.settle();
        let created = created.borrow_mut().take().expect("an answer");
        created.map(|created| created.ino)
    }

    pub(super) fn unlink(&self, at: u16, place: EntryAt<'_>) -> Result<(), FsError> {
        let (parent, name) = (place.0, place.1.to_vec());
        let unlinked = self
            .names(at)
            .unlink_for_client(proto::Unlink { parent, name });
        self.fabric.finish_served(unlinked)
    }

    pub(super) fn rmdir(&self, at: u16, place: EntryAt<'_>) -> Result<(), FsError> {
        let (parent, name) = (place.0, place.1.to_vec());
        let removed = self
            .names(at)
            .rmdir_for_client(proto::Rmdir { parent, name });
        self.fabric.finish_served(removed)
    }

    /// A program of a server looks a name up.
    pub(super) fn begin_find(&self, at: u16, place: EntryAt<'_>) -> Pending<Option<Child>> {
        let (dir, name) = (place.0, place.1.to_vec());
        let found = self.names(at).find_for_client(proto::Find { dir, name });
        self.fabric.begin(found)
    }

    pub(super) fn find(&self, at: u16, place: EntryAt<'_>) -> Result<Option<Child>, FsError> {
        let found = self.begin_find(at, place);
        self.fabric.settle();
        let found = found.borrow_mut().take();
        found.expect("an answer")
    }

    /// A program of a server begins a rename.
    pub(super) fn begin_rename(
        &self,
        at: u16,
        from: EntryAt<'_>,
        to: EntryAt<'_>,
        flags: u32,
    ) -> Pending<()> {
        let renamed = self.names(at).rename_for_client(proto::Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            flags,
        });
        self.fabric.begin(renamed)
    }

    pub(super) fn rename(
        &self,
        at: u16,
        from: EntryAt<'_>,
        to: EntryAt<'_>,
        flags: u32,
    ) -> Result<(), FsError> {
        let renamed = self.begin_rename(at, from, to, flags);
        self.fabric.settle();
        let renamed = renamed.borrow_mut().take();
        renamed.expect("an answer")
    }

    /// The entry at a server, without asking any other.
    pub(super) fn entry_at(&self, rank: u16, place: EntryAt<'_>) -> Option<Child> {
        let server = &self.servers[usize::from(rank)];
        let found = server.node(|node| node.names().find_child(place.0, place.1));
        found.expect("tables")
    }

    /// All names of these directories, with the server of each entry and its inode.
    pub(super) fn entries_of(&self, dirs: &[Ino]) -> BTreeMap<(Ino, Vec<u8>, u16), Ino> {
        let mut entries = BTreeMap::new();
        for (rank, server) in (0..).zip(&self.servers) {
            for dir in dirs {
                for name in server.node(|node| node.names().names_of(*dir)) {
                    let child = self.entry_at(rank, (*dir, &name)).expect("listed");
                    entries.insert((*dir, name, rank), child.ino);
                }
            }
        }
        entries
    }

    pub(super) fn nlink(&self, ino: Ino) -> u32 {
        let server = &self.servers[usize::from(ino.rank().0)];
        let attr = server.node(|node| node.names().attr_of(ino));
        attr.expect("an inode").nlink
    }

    /// The recorded location of a directory.
    pub(super) fn whereabouts(&self, dir: Ino) -> (Ino, Vec<u8>) {
        let found = self.names(dir.rank().0).whereabouts(dir);
        found.expect("it is there").expect("it has a name")
    }

    /// Checks that each of these directories has one name, that its recorded location is that name, and that all
    /// paths begin at the root.
    pub(super) fn check_tree(&self, dirs: &[Ino]) {
        let mut all = dirs.to_vec();
        all.push(ROOT);
        let entries = self.entries_of(&all);
        for dir in dirs {
            let mut its = entries.iter().filter(|(_, ino)| *ino == dir);
            let ((parent, name, _), _) = its.next().expect("it has a name");
            assert_eq!(its.next(), None, "it has one name");
            assert_eq!(self.whereabouts(*dir), (*parent, name.clone()));
            let mut at = *dir;
            for _ in dirs {
                if at != ROOT {
                    at = self.whereabouts(at).0;
                }
            }
            assert_eq!(at, ROOT, "{dir:?} is in a cycle");
        }
    }

    /// Checks that no rename is under way at any server or in any journal. Those that a home has called off stay until
    /// their leader is restarted.
    pub(super) fn check_no_rename(&self, dirs: &[Ino]) {
        for server in &self.servers {
            let (state, names) = (server.names_state(), server.names());
            assert_eq!(state.name_locks.first_held(|_| true), None);
            assert!(!state.dir_moves.is_held(&()), "the permit is free");
            state.show_renames(&mut |item| {
                let is_over = matches!(item, Item::RenameCalledOff(..));
                assert!(is_over, "{item:?} is left");
            });
            assert_eq!(names.oldest_rename(), u64::MAX, "none is led");
            for dir in dirs {
                assert!(!names.has_loose_moves(*dir));
                for (_, name, _) in self.entries_of(&[*dir]).into_keys() {
                    assert!(!names.is_going(&NameKey::new(*dir, name)));
                }
            }
            let history = names.history_since(HistoryPosition::default());
            assert_eq!(history.begun, history.ended);
            let journalled = server.journalled();
            assert!(journalled.locked.is_empty() && journalled.changes.is_empty());
        }
    }

    /// The number of renames that servers have called off.
    pub(super) fn called_off(&self) -> usize {
        let servers = self.servers.iter();
        servers
            .map(|server| server.journalled().called_off.len())
            .sum()
    }
}

/// A directory as an entry shows it.
pub(super) fn dir_child(ino: Ino) -> Child {
    Child {
        ino,
        kind: FileType::Dir,
    }
}

/// A file as an entry shows it.
pub(super) fn file_child(ino: Ino) -> Child {
    Child {
        ino,
        kind: FileType::File,
    }
}
