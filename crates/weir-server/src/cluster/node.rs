//! This server's own tables: making them, admitting clients, and operations of several rooms.
//!
//! One thread owns a [`Node`] and calls it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use weir_core::journal::{Given, Item};
use weir_core::names::{Policy, Reach, Shard};
use weir_core::node::channel;
use weir_core::node::known::KnownNames;
use weir_core::node::ofd::BATCH;
use weir_core::proto::{self, Caller, ClientKind, FsError};
use weir_core::types::{ClientId, Rank};
use weir_core::xattr::Xattrs;

use crate::cluster::clients::stats::Stats;
use crate::cluster::clients::table::{Client, Clients};
use crate::cluster::extents::table::FileTable;
use crate::cluster::files::descriptions::OfdTable;
use crate::cluster::locks::table::LockTable;
use crate::cluster::slots::Slots;
use crate::node::{ClientMemory, Identity, Node, OpenRegion, Platform, Table};
use crate::rules::Rules;

/// The least time between two tries to get memory for the table of known names, ns. The file system
/// may be full.
const KNOWN_AGAIN_NS: i64 = 1_000_000_000;

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
        let mut node = Node {
            identity,
            open,
            names,
            xattrs: Xattrs::default(),
            unfinished_xattrs: crate::cluster::files::xattr_tables::Unfinished::default(),
            admitted: BTreeSet::new(),
            space,
            platform,
            clients: Clients::new(max_clients),
            blocks: Slots::new(open.blocks.len()),
            cells: Slots::new(open.cells.len()),
            files: FileTable::default(),
            ofds: OfdTable::new(open.ofds.len() / BATCH as usize),
            mapped: crate::cluster::files::mapped::MappedFiles::default(),
            locks: LockTable::default(),
            orphans: BTreeSet::new(),
            watched: BTreeSet::new(),
            rules: Rules::default(),
            known_tried_ns: i64::MIN / 2,
            pinned: HashSet::new(),
            stored: HashMap::new(),
            gone: Vec::new(),
            changed: Vec::new(),
            notes: crate::cluster::journal::commit::Notes::default(),
            given: Given::default(),
            keeps_orphans: false,
            gaps_lent: crate::cluster::storage::space::LOOK_EVERY,
            stats: Stats::default(),
            now_ns: identity.started_ns,
            stopping: false,
            names_present: Reach {
                inodes: 0,
                arena_words: 0,
                buckets: 0,
            },
        };
        node.make_room_for_names();
        node
    }

    /// Sets how files are shared, before the file system is used. The root of a `fresh` file system
    /// gets this policy; the root of another one keeps its own.
    pub fn share(&mut self, policy: Policy, rules: Rules, fresh: bool) -> Result<(), FsError> {
        self.rules = rules;
        if fresh {
            self.set_policy(self.names.root(), policy)?;
        }
        Ok(())
    }

    /// Admits programs of another user as clients from now on.
    pub(crate) fn admit_user(&mut self, uid: u32) -> Result<(), FsError> {
        if self.admitted.contains(&uid) {
            return Ok(());
        }
        self.platform.admit(uid)?;
        tracing::info!(uid, "programs of another user are admitted");
        self.admitted.insert(uid);
        self.note(&Item::Admitted(uid));
        Ok(())
    }

    /// The number for the next client; `None`: there are too many.
    pub fn vacant_client(&self, kind: ClientKind) -> Option<ClientId> {
        self.clients.vacant(kind)
    }

    /// Adds a client, with the fresh region of its number.
    pub fn admit(&mut self, id: ClientId, pid: u32, kind: ClientKind, memory: Arc<P::Memory>) {
        let header = memory.header();
        header.id.store(id.0, Ordering::Relaxed);
        header.pid.store(pid, Ordering::Relaxed);
        let is_mount = u64::from(kind == ClientKind::Mount);
        header.mount.store(is_mount, Ordering::Relaxed);
        header.records.reset();
        header.notes.reset();
        header.tail.reset();
        let channels = channel::FIRST_CHANNEL;
        header.channels.store(channels, Ordering::Relaxed);
        header
            .magic
            .store(weir_core::node::region::MAGIC, Ordering::Release);
        self.stats.clients_ever += 1;
        self.clients.insert(id, Client::new(memory, pid, kind));
        self.note(&Item::Client { client: id, pid });
    }

    /// Returns the channels in which a client says that there are requests, one bit each. Lets the
    /// client use all channels, if it asks for that.
    pub(crate) fn take_asked(&mut self, id: ClientId) -> u64 {
        let Some(client) = self.clients.get_mut(id) else {
            return 0;
        };
        let header = client.memory.header();
        let asked = header.asked.swap(0, Ordering::SeqCst);
        if asked & channel::WIDEN != 0 {
            if client.channels == 1 && self.platform.lay_channels(id) {
                client.channels = channel::CHANNELS;
            }
            let word = match client.channels {
                1 => channel::NO_MORE_CHANNELS,
                _ => channel::ALL_CHANNELS,
            };
            header.channels.store(word, Ordering::SeqCst);
            self.platform.wake(&header.channels);
        }
        // The other channels may have no memory.
        asked & (u64::MAX >> (64 - client.channels))
    }

    /// Takes the request out of one of a client's channels. Returns `None` if there is none, else
    /// the time for which the client's call has already waited for servers, ms. The channel takes
    /// no other request before the reply is in it.
    pub(crate) fn take_request(
        &mut self,
        id: ClientId,
        channel: u32,
        request: &mut Vec<u8>,
    ) -> Option<u32> {
        let words = &self.clients.get(id)?.memory.channels()[channel as usize];
        if words.state.load(Ordering::Acquire) != channel::REQUEST {
            return None;
        }
        request.clear();
        words.take_request(request);
        let spent_ms = words.spent_ms.load(Ordering::Relaxed);
        self.clients.begin_request(id, channel).then_some(spent_ms)
    }

    /// The region of a client.
    pub(crate) fn memory_of(&self, id: ClientId) -> Option<Arc<P::Memory>> {
        Some(Arc::clone(&self.clients.get(id)?.memory))
    }

    /// Gives a client its reply. Does nothing if the client is gone.
    pub(crate) fn put_reply(&mut self, id: ClientId, channel: u32, reply: &mut Vec<u8>) {
        self.commit();
        self.clients.end_request(id, channel);
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let channel = &client.memory.channels()[channel as usize];
        if channel.put_reply(reply).is_err() {
            // Every reply is bounded below the channel's size. One that is not is a bug: log it.
            tracing::error!(
                client = id.0,
                bytes = reply.len(),
                "a reply does not fit the channel"
            );
            reply.clear();
            proto::encode(&Err::<(), FsError>(FsError::Io), reply);
            let _ = channel.put_reply(reply);
        }
        channel.state.store(channel::REPLY, Ordering::SeqCst);
        if channel.client_sleeps.load(Ordering::SeqCst) != 0 {
            self.platform.wake(&channel.state);
        }
    }

    /// The kernel, or its substitute.
    pub(crate) fn platform(&self) -> &P {
        &self.platform
    }

    /// Counts a request of a client or a tool to the cluster; `None`: it was malformed.
    pub(crate) fn count_asked(&mut self, from: Caller, name: Option<&'static str>, bytes: usize) {
        self.stats.count_request(name.unwrap_or("malformed"));
        if name.is_none() {
            self.stats
                .reject("request", || format!("{from:?}: {bytes} bytes"));
        }
    }

    /// Returns true if a process of this node writes, or if this node has unpublished extents.
    pub(crate) fn has_writers(&self) -> bool {
        self.blocks.iter().next().is_some() || self.files.not_empty().next().is_some()
    }

    pub(crate) fn time(&self) -> i64 {
        self.now_ns
    }

    /// Notes that a `Stop` was requested elsewhere.
    pub(crate) fn begin_stop(&mut self) {
        self.stopping = true;
    }

    /// Work for an idle server: takes notes that rang no bell, and sweeps files that no process has
    /// open any more.
    pub fn idle(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
        self.take_all_notes();
        self.sweep();
        self.commit();
    }

    /// The table of known names of other servers, to look up and to remove names.
    pub(crate) fn known(&self) -> KnownNames<'m> {
        KnownNames::new(self.open.hub, self.open.known)
    }

    /// The same table, to add a name. The first call gets memory for the table, if there is any.
    pub(crate) fn known_to_keep(&mut self) -> KnownNames<'m> {
        let OpenRegion { hub, known, .. } = self.open;
        let is_due = self.now_ns - self.known_tried_ns >= KNOWN_AGAIN_NS;
        if hub.known.load(Ordering::Relaxed) == 0 && is_due {
            self.known_tried_ns = self.now_ns;
            if self.platform.present(Table::Known, known.len()) >= known.len() {
                let slots = u32::try_from(known.len()).unwrap_or(0);
                hub.known.store(slots, Ordering::Release);
            }
        }
        self.known()
    }

    /// Makes all entries of the table of known names void.
    pub(crate) fn forget_known(&self) {
        self.open.hub.recalls.fetch_add(1, Ordering::SeqCst);
    }

    /// Sets the time until which clients may believe what they know of other servers, if this
    /// server says nothing more.
    pub(crate) fn set_believed_until(&self, until_ns: Option<i64>) {
        let until_ns = until_ns.map_or(0, |until_ns| u64::try_from(until_ns).unwrap_or(1));
        self.open
            .hub
            .believed_until_ns
            .store(until_ns, Ordering::SeqCst);
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
        for (block, _) in self.blocks.iter() {
            self.open.blocks[block as usize].end_claims();
        }
        self.names.condemn();
        for (_, client) in self.clients.iter() {
            let event = &client.memory.header().event;
            event.fetch_add(1, Ordering::SeqCst);
            for channel in &client.memory.channels()[..client.channels] {
                self.platform.wake(&channel.state);
            }
            self.platform.wake(event);
        }
    }

    /// Returns true if a client's connection stands.
    pub fn is_connected(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.connected)
    }

    /// This server's rank, and the number of servers.
    pub fn ranks(&self) -> (Rank, u16) {
        (self.identity.rank, self.identity.servers)
    }

    /// The numbers of all clients.
    pub fn client_ids(&self) -> Vec<ClientId> {
        self.clients.ids()
    }

    /// The process of a client.
    pub fn client_pid(&self, id: ClientId) -> Option<u32> {
        Some(self.clients.get(id)?.pid)
    }
}
