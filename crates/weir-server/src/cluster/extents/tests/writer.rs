//! This server's own tables of files, extents and clients; and clients that write by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_core::extent::{PieceSource, MAX_OFFSET};
use weir_core::journal::{Item, State};
use weir_core::names::Owner;
use weir_core::node::cell;
use weir_core::node::known::KnownNames;
use weir_core::node::ring::Record;
use weir_core::proto::{Attached, ClientKind, FsError};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::changes::NotedChanges;
use crate::cluster::clients::stats::Stats;
use crate::cluster::clients::table::{Client, Clients};
use crate::cluster::clock::ServerClock;
use crate::cluster::extents::{ExtentSteps, ExtentTables, NodeWriters, NodeWrites, WriteTables};
use crate::cluster::fake::{new_tables, replay, LogSpace, MappedMemory, QuietPlatform};
use crate::cluster::node_names::NodeNames;
use crate::cluster::storage::SegmentTables;
use crate::cluster::ROOT;
use crate::node::{Accounts, ClientMemory, OpenRegion, Space, Visit};

/// The bytes that each client was lent.
const LENT: u64 = 4096;

/// The bytes of a file: for each offset, the server, slab and position of its byte.
pub(super) type ByteMap = BTreeMap<u64, (u16, u32, u64)>;

pub(super) struct WriterTables {
    rank: u16,
    pub(super) names: NodeNames<'static>,
    pub(super) extents: ExtentTables,
    segments: SegmentTables<LogSpace>,
    pub(super) clients: Clients<MappedMemory>,
    pub(super) stats: Stats,
    pub(super) changes: NotedChanges,
    pub(super) space: LogSpace,
    open: OpenRegion<'static>,
    /// The state that the committed changes describe.
    pub(super) journal: State,
}

impl WriterTables {
    /// A new server with two clients.
    pub(super) fn new(rank: u16, clock: ServerClock) -> WriterTables {
        let (open, shard) = new_tables(Rank(rank));
        let mut names = NodeNames::new(shard, clock);
        names.join(ROOT);
        let mut clients = Clients::new(8);
        for id in [0, 1] {
            let mut client = Client::new(Arc::new(MappedMemory::new()), id, ClientKind::Program);
            let mut space = LogSpace::default();
            client.lease(&space.grant(ClientId(id), LENT, LENT).expect("room"));
            clients.insert(ClientId(id), client);
        }
        let space = LogSpace::default();
        WriterTables::with(rank, names, clients, open, space, State::new(Rank(rank)))
    }

    fn with(
        rank: u16,
        names: NodeNames<'static>,
        clients: Clients<MappedMemory>,
        open: OpenRegion<'static>,
        space: LogSpace,
        journal: State,
    ) -> WriterTables {
        let mut changes = NotedChanges::default();
        changes.keep();
        for (client, entry) in clients.iter() {
            changes.note(&Item::ClientCame {
                client,
                pid: entry.pid,
            });
        }
        WriterTables {
            rank,
            names,
            extents: ExtentTables::new(&open),
            segments: SegmentTables::new(space.clone()),
            clients,
            stats: Stats::default(),
            changes,
            space,
            open,
            journal,
        }
    }

    /// Commits the changes, as the room `journal` does.
    pub(super) fn commit(&mut self) {
        let items = std::mem::take(self.changes.items());
        replay(&items, &mut self.journal);
        for id in self.changes.take_drained() {
            let client = self.clients.get_mut(id).expect("a client");
            let taken = std::mem::take(&mut client.taken);
            client.memory.header().records.consumed(taken);
        }
    }

    /// Commits, and begins the journal anew with a snapshot.
    pub(super) fn renew_journal(&mut self) {
        self.commit();
        let mut state = State::new(Rank(self.rank));
        let visit: Visit<'_> = &mut |item| state.apply(item).expect("an item");
        self.clients.show_clients(visit);
        self.extents.show_files(&self.names, visit);
        self.extents.show_writers(true, visit);
        self.journal = state;
    }

    /// Kills this server; returns a new one that has taken up the extents and the writers from the journal, in the
    /// order of `Node::take_up`.
    pub(super) fn restarted(self) -> WriterTables {
        let mut clients = Clients::new(8);
        for id in self.clients.ids() {
            let before = self.clients.get(id).expect("a client");
            let mut client = Client::new(Arc::clone(&before.memory), before.pid, before.kind);
            client.leases.clone_from(&before.leases);
            clients.insert(id, client);
        }
        let (mut journal, space) = (self.journal, LogSpace::recovering());
        let before = journal.clone();
        let mut tables =
            WriterTables::with(self.rank, self.names, clients, self.open, space, before);
        tables.writes().take_up_files(&mut journal);
        let taken_up = tables.writes().take_up_cells(&journal);
        taken_up.expect("the cells are those of the killed server");
        for id in tables.clients.ids() {
            tables.writes().harvest_client(id);
            tables.writes().detach_cells_of(id);
        }
        tables.writes().cut_beyond_ends();
        tables
            .extents
            .take_up_published_log(&mut journal.published_log);
        let mut accounts = Accounts::default();
        tables.extents.count_bytes(tables.rank, &mut accounts);
        tables.segments.resume(&accounts).expect("an account");
        tables
    }

    /// Makes a file.
    pub(super) fn create(&mut self, name: &str) -> Ino {
        let owner = Owner { uid: 0, gid: 0 };
        let root = self.names.root();
        let made = self.names.create(root, name.as_bytes(), 0o644, owner, 1);
        made.expect("a file")
    }

    /// The bytes of a file in the index.
    pub(super) fn bytes_of(&self, ino: Ino) -> ByteMap {
        let mut bytes = ByteMap::new();
        let Some(index) = self.extents.indexes.get(ino) else {
            return bytes;
        };
        index.for_each_piece_in(0, MAX_OFFSET, &mut |piece| {
            if let PieceSource::Log { rank, slab, pos } = piece.source {
                for at in 0..piece.length {
                    bytes.insert(piece.offset + at, (rank, slab, pos + at));
                }
            }
        });
        bytes
    }

    /// The bytes of this server's log to which any index refers.
    pub(super) fn bytes_of_all(&self) -> std::collections::BTreeSet<(u32, u64)> {
        let files = self.extents.indexes.not_empty();
        let files = files.map(|slot| self.names.ino_at(slot));
        let bytes = files.flat_map(|ino| self.bytes_of(ino).into_values());
        bytes.map(|(_, slab, pos)| (slab, pos)).collect()
    }
}

impl NameTables for WriterTables {
    fn names(&mut self) -> &mut NodeNames<'static> {
        &mut self.names
    }

    fn known(&self) -> KnownNames<'static> {
        KnownNames::new(self.open.hub, self.open.known)
    }

    fn known_to_keep(&mut self) -> KnownNames<'static> {
        self.known()
    }
}

impl WriteTables for WriterTables {
    type Platform = QuietPlatform;

    fn writers(&self) -> NodeWriters<'_, 'static> {
        self.extents.writers(&self.names, &self.open)
    }

    fn writes(&mut self) -> NodeWrites<'_, 'static, QuietPlatform> {
        NodeWrites {
            tables: &mut self.extents,
            names: &mut self.names,
            segments: &mut self.segments,
            clients: &mut self.clients,
            stats: &mut self.stats,
            changes: &mut self.changes,
            open: &self.open,
            platform: &QuietPlatform,
            rank: self.rank,
        }
    }
}

impl ExtentSteps for WriterTables {
    fn attach_client(&mut self, id: ClientId, local: Ino) -> Result<Attached, FsError> {
        let attr = self.names.writable(local)?;
        self.commit();
        self.writes().make_room_for_writer();
        self.writes().lend_cell(id, &attr)
    }
}

/// A program that writes one file, each write into a record of its own.
pub(super) struct HandWriter {
    client: ClientId,
    pub(super) attached: Attached,
    state: cell::State,
    committed: u64,
    /// The next free byte of its segment.
    next: u64,
}

impl HandWriter {
    /// Begins to write a file, with the bytes of the client's segment from `next` on.
    pub(super) fn new(tables: &mut WriterTables, client: u32, ino: Ino, next: u64) -> HandWriter {
        let client = ClientId(client);
        let attached = tables.attach_client(client, ino).expect("a cell");
        // Before the client hears of it.
        tables.commit();
        let cell = &tables.open.cells[attached.cell as usize];
        let (state, _) = cell.state();
        HandWriter {
            client,
            attached,
            committed: state.mark,
            state,
            next,
        }
    }

    /// The record in force, as it goes to the ring.
    fn record(&self) -> Option<Record> {
        let live = self.committed - self.state.mark;
        (self.state.stamp > 0 && live > 0).then_some(Record {
            cell: self.attached.cell,
            slab: self.state.slab,
            offset: self.state.offset,
            length: live,
            stride: 0,
            count: 1,
            pos: self.state.pos,
            stamp: self.state.stamp,
        })
    }

    /// Pushes a record to the client's ring.
    pub(super) fn push(&self, tables: &WriterTables, record: &Record) {
        let client = tables.clients.get(self.client).expect("a client");
        client.memory.records().push(record).expect("room");
    }

    /// Writes; returns the slab and the position of the first byte.
    pub(super) fn write(&mut self, tables: &WriterTables, offset: u64, len: u64) -> (u32, u64) {
        if let Some(record) = self.record() {
            self.push(tables, &record);
        }
        let block = &tables.open.blocks[self.attached.block as usize];
        let cell = &tables.open.cells[self.attached.cell as usize];
        let old = (self.state, self.committed - self.state.mark);
        let (slab, pos) = (self.client.0, self.next);
        self.state = cell::State::begin(offset, slab, pos, block.stamp(), &old, block);
        self.state.mark = self.committed;
        cell.replace(&self.state);
        self.committed += len;
        cell.commit(self.committed);
        self.next += len;
        (slab, pos)
    }

    /// A record like that in force, of which nothing is pushed yet.
    pub(super) fn shown(&self) -> Record {
        self.record().expect("it has written")
    }
}
