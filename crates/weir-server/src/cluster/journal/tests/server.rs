//! A journal in memory, and a server that keeps it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::journal::{encode, Item, State};
use weir_core::names::Shard;
use weir_core::node::ring::Record;
use weir_core::proto::{self, Caller, ClientKind};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::extents::ExtentSteps;
use crate::cluster::fake::{new_tables, replay, LogSpace, MappedMemory, QuietPlatform};
use crate::cluster::names::NameSteps;
use crate::node::{ClientMemory, Identity, Journal, Node, OpenRegion};

pub(super) type TestNode = Node<'static, QuietPlatform>;

pub(super) const CLIENT: ClientId = ClientId(0);

/// A journal and the one that is to replace it.
#[derive(Default)]
pub(super) struct JournalParts {
    pub(super) records: Vec<Vec<u8>>,
    next: Option<Vec<Vec<u8>>>,
    /// The records of the journal before this one.
    pub(super) replaced: Vec<Vec<u8>>,
    /// The calls of this journal, in their order.
    calls: Vec<&'static str>,
    pub(super) is_long: bool,
    /// The journal cannot be begun anew.
    pub(super) is_stuck: bool,
    /// The number of parts that can be added.
    pub(super) room: usize,
    /// Work that is left after the last one.
    pub(super) to_tidy: u32,
    /// Called as a record is appended.
    pub(super) on_append: Option<Box<dyn Fn()>>,
}

#[derive(Clone, Default)]
pub(super) struct MemoryJournal(pub(super) Rc<RefCell<JournalParts>>);

impl MemoryJournal {
    pub(super) fn set(&self, act: impl FnOnce(&mut JournalParts)) {
        act(&mut self.0.borrow_mut());
    }

    pub(super) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.borrow_mut().calls)
    }

    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        self.0.borrow().records.clone()
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, items: &[u8]) {
        let mut parts = self.0.borrow_mut();
        parts.calls.push("append");
        parts.records.push(items.to_vec());
        if let Some(next) = &mut parts.next {
            next.push(items.to_vec());
        }
        if let Some(on_append) = &parts.on_append {
            on_append();
        }
    }

    fn is_long(&self) -> bool {
        self.0.borrow().is_long
    }

    fn is_whole(&self) -> bool {
        !self.0.borrow().is_stuck
    }

    fn begin_anew(&mut self) -> bool {
        let mut parts = self.0.borrow_mut();
        parts.calls.push("begin anew");
        if !parts.is_stuck {
            parts.next = Some(Vec::new());
        }
        !parts.is_stuck
    }

    fn add(&mut self, items: &[u8]) -> bool {
        let mut parts = self.0.borrow_mut();
        parts.calls.push("add");
        if parts.room == 0 {
            parts.next = None;
            return false;
        }
        parts.room -= 1;
        parts
            .next
            .as_mut()
            .expect("it was begun")
            .push(items.to_vec());
        true
    }

    fn take_over(&mut self) {
        let mut parts = self.0.borrow_mut();
        parts.calls.push("take over");
        let next = parts.next.take().expect("it was begun");
        parts.replaced = std::mem::replace(&mut parts.records, next);
        parts.is_long = false;
    }

    fn tidy(&mut self) -> bool {
        let mut parts = self.0.borrow_mut();
        parts.calls.push("tidy");
        let is_left = parts.to_tidy > 0;
        parts.to_tidy = parts.to_tidy.saturating_sub(1);
        is_left
    }
}

/// A server alone, or one of several, with these tables.
pub(super) fn node_with(servers: u16, tables: (OpenRegion<'static>, Shard<'static>)) -> TestNode {
    let (open, names) = tables;
    let identity = Identity {
        rank: Rank(0),
        servers,
        pid: 1,
        started_ns: 1,
    };
    Node::new(identity, open, names, LogSpace::default(), QuietPlatform, 4)
}

/// A new server that keeps a journal, which begins with the state of the server.
pub(super) fn journalled() -> (TestNode, MemoryJournal) {
    let mut node = node_with(1, new_tables(Rank(0)));
    let (journal, mut items) = (MemoryJournal::default(), Vec::new());
    node.for_each_item(&mut |item| encode(item, &mut items));
    encode(&Item::SnapshotEnd, &mut items);
    journal.set(|parts| {
        parts.records.push(items);
        parts.room = usize::MAX;
    });
    node.keep_journal(Box::new(journal.clone()));
    (node, journal)
}

pub(super) fn create(node: &mut TestNode, name: &str) -> Ino {
    let op = proto::Create {
        parent: node.names.root(),
        name: name.into(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        exclusive: true,
        attach: false,
    };
    node.create_file(Caller::Control, &op).expect("a file").ino
}

pub(super) fn admit(node: &mut TestNode) -> Arc<MappedMemory> {
    let memory = Arc::new(MappedMemory::new());
    node.admit(CLIENT, 100, ClientKind::Program, Arc::clone(&memory));
    node.lend_segment(CLIENT, 1, 1 << 10).expect("room");
    memory
}

/// The client closes a record of `len` bytes at `offset` of a file. Returns its cell.
pub(super) fn write(node: &mut TestNode, ino: Ino, offset: u64, len: u64) -> u32 {
    let attached = ExtentSteps::attach_client(node, CLIENT, ino).expect("a cell");
    let record = Record {
        cell: attached.cell,
        slab: CLIENT.0,
        offset,
        length: len,
        stride: 0,
        count: 1,
        pos: offset,
        stamp: node.open.blocks[attached.block as usize].stamp(),
    };
    let client = node.clients.get(CLIENT).expect("admitted");
    client.memory.records().push(&record).expect("room");
    node.writes().harvest(ino);
    node.open.blocks[attached.block as usize].raise(offset + len);
    attached.cell
}

pub(super) fn state_of(records: &[Vec<u8>]) -> State {
    let mut state = State::new(Rank(0));
    for record in records {
        replay(record, &mut state);
    }
    state
}

/// The names of the root, with the end of the data of each file.
pub(super) fn names_in(node: &TestNode) -> BTreeMap<Vec<u8>, (Ino, u64)> {
    let root = node.names.root();
    let names = node.names.names_of(root).into_iter();
    let ends = names.map(|name| {
        let child = node.names.find_child(root, &name).expect("tables");
        let ino = child.expect("listed").ino;
        (name, (ino, node.extents.end_of_data(ino)))
    });
    ends.collect()
}
