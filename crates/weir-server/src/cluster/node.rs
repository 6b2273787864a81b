//! This server's own tables: making them, their time and their end; requests in clients' channels.
//!
//! One thread owns a [`Node`] and calls it.

use std::sync::atomic::Ordering;

use weir_core::names::{Policy, Shard};
use weir_core::proto::{self, Caller, FsError, Request};
use weir_core::types::{ClientId, Ino};

use crate::cluster::changes::NotedChanges;
use crate::cluster::clients::admission::AdmittedUsers;
use crate::cluster::clients::stats::Stats;
use crate::cluster::clients::table::Clients;
use crate::cluster::clock::ServerClock;
use crate::cluster::extents::ExtentTables;
use crate::cluster::files::OpenFileTables;
use crate::cluster::journal::commit::NodeJournal;
use crate::cluster::locks::table::LockTable;
use crate::cluster::names::NamesMemory;
use crate::cluster::node_names::NodeNames;
use crate::cluster::storage::SegmentTables;
use crate::node::{ClientMemory, Identity, Node, OpenRegion, Platform};
use crate::rules::Rules;

/// A request from a client's channel.
pub(super) struct ChannelRequest {
    pub(super) request: Result<Request, FsError>,
    /// The time for which the client's call has already waited for servers, ms.
    pub(super) spent_ms: u32,
    /// An empty buffer for the reply.
    pub(super) reply: Vec<u8>,
}

/// The buffers of the last request and reply, whose memory is used again.
#[derive(Default)]
pub(super) struct RequestBuffers {
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl<'m, P: Platform> Node<'m, P> {
    /// A server of the namespace `names`, which is empty except for the root.
    pub fn new(
        identity: Identity,
        open: OpenRegion<'m>,
        names: Shard<'m>,
        space: P::Space,
        platform: P,
        max_clients: usize,
    ) -> Node<'m, P> {
        let clock = ServerClock::at(identity.started_ns);
        let mut node = Node {
            identity,
            open,
            names: NodeNames::new(names, clock.clone()),
            admitted_users: AdmittedUsers::default(),
            segments: SegmentTables::new(space),
            platform,
            clients: Clients::new(max_clients),
            extents: ExtentTables::new(&open),
            files: OpenFileTables::new(&open),
            locks: LockTable::default(),
            names_memory: NamesMemory::default(),
            changes: NotedChanges::default(),
            journal: NodeJournal::default(),
            stats: Stats::default(),
            clock,
            stopping: false,
            buffers: RequestBuffers::default(),
        };
        node.names_memory.make_room(&mut node.names, &node.platform);
        node
    }

    /// Sets how files are shared, before the file system is used. The root of a `fresh` file system
    /// gets this policy; the root of another one keeps its own.
    pub fn share(&mut self, policy: Policy, rules: Rules, fresh: bool) -> Result<(), FsError> {
        self.files.set_rules(rules);
        if fresh {
            self.names.set_policy(self.names.root(), policy)?;
        }
        Ok(())
    }

    /// Sets the size of a file only in the tables of its home, like a server that is killed during a truncation; for
    /// tests.
    pub fn set_size(&mut self, ino: Ino, size: u64) -> Result<(), FsError> {
        self.writes().set_size(ino, size)
    }

    /// Takes the request out of one of a client's channels, if there is one. The channel takes no
    /// other request before the reply is in it.
    pub(super) fn take_request(&mut self, id: ClientId, channel: u32) -> Option<ChannelRequest> {
        let words = &self.clients.get(id)?.memory.channels()[channel as usize];
        if !words.has_request() {
            return None;
        }
        let mut bytes = std::mem::take(&mut self.buffers.request);
        bytes.clear();
        let spent_ms = words.take_request(&mut bytes);
        let begins = self.clients.begin_request(id, channel);
        let request = begins.then(|| ChannelRequest {
            request: self.stats.decode_request(Caller::Client(id), &bytes),
            spent_ms,
            reply: std::mem::take(&mut self.buffers.reply),
        });
        self.buffers.request = bytes;
        request
    }

    /// Commits, and gives a client its reply. Does nothing if the client is gone.
    pub(super) fn put_reply(&mut self, id: ClientId, channel: u32, mut reply: Vec<u8>) {
        self.commit();
        self.clients.end_request(id, channel);
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let channel = &client.memory.channels()[channel as usize];
        let mut placed = channel.put_reply(&reply);
        if placed.is_err() {
            // Every reply is bounded below the channel's size. One that is not is a bug: log it.
            tracing::error!(
                client = id.0,
                bytes = reply.len(),
                "a reply does not fit the channel"
            );
            reply = proto::refusal(FsError::Io);
            placed = channel.put_reply(&reply);
        }
        if placed == Ok(true) {
            self.platform.wake(channel.word());
        }
        reply.clear();
        self.buffers.reply = reply;
    }

    /// Notes that a `Stop` was requested elsewhere.
    pub(crate) fn begin_stop(&mut self) {
        self.stopping = true;
    }

    /// Work for an idle server: takes notes that came without a doorbell, and sweeps files that no process has open any
    /// more.
    pub fn idle(&mut self, now_ns: i64) {
        self.clock.set(now_ns);
        self.take_all_notes();
        self.sweep();
        self.commit();
    }

    /// Returns true if a `Stop` was requested.
    pub fn stopping(&self) -> bool {
        self.stopping
    }

    /// Refuses everything from now on, and wakes all waiting clients. Operations that clients do
    /// without asking end as well: their writes would not be read, and their look-ups would be out
    /// of date.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.open.hub.stopped.store(1, Ordering::SeqCst);
        for block in self.extents.open_blocks() {
            self.open.blocks[block as usize].end_claims();
        }
        self.names.condemn();
        for (_, client) in self.clients.iter() {
            let event = &client.memory.header().event;
            event.fetch_add(1, Ordering::SeqCst);
            for channel in &client.memory.channels()[..client.channels] {
                self.platform.wake(channel.word());
            }
            self.platform.wake(event);
        }
    }
}
