//! Items put together: the state of a server after some of its changes.

use std::collections::{BTreeMap, HashMap};

use super::item::{InodeImage, Item};
use super::Misfit;
use crate::extent::{ExtentIndex, Run};
use crate::names::FileType;
use crate::types::{ClientId, Ino, Rank, SegmentId};

/// A directory's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it names.
    pub child: Ino,
    /// The type of that.
    pub kind: FileType,
    /// Its place in the directory's order.
    pub sequence: u64,
}

/// A cell that somebody writes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Who.
    pub client: ClientId,
    /// The file, by its number in the server's table.
    pub ino: Ino,
    /// Its block.
    pub block: u32,
}

/// A segment that a client may write into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The client.
    pub client: ClientId,
    /// The slab.
    pub slab: u32,
    /// Where it begins there.
    pub pos: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// What a server knew.
#[derive(Clone, Debug)]
pub struct State {
    /// The server.
    pub rank: Rank,
    /// All inodes of its table.
    pub inodes: HashMap<Ino, InodeImage>,
    /// The last life of each slot that is free, by slot.
    pub ended: HashMap<u32, u16>,
    /// Targets of symbolic links.
    pub targets: HashMap<Ino, Vec<u8>>,
    /// Entries, by directory and name.
    pub entries: HashMap<(Ino, Vec<u8>), Entry>,
    /// What is known of the files' bytes, by their numbers in the server's table.
    pub extents: HashMap<Ino, ExtentIndex>,
    /// Client processes and their pids.
    pub clients: BTreeMap<ClientId, u32>,
    /// What they may write into.
    pub segments: BTreeMap<SegmentId, Lent>,
    /// The cells that they write through.
    pub cells: BTreeMap<u32, Attached>,
}

impl State {
    /// Nothing.
    pub fn new(rank: Rank) -> State {
        State {
            rank,
            inodes: HashMap::new(),
            ended: HashMap::new(),
            targets: HashMap::new(),
            entries: HashMap::new(),
            extents: HashMap::new(),
            clients: BTreeMap::new(),
            segments: BTreeMap::new(),
            cells: BTreeMap::new(),
        }
    }

    /// Takes an item in.
    pub fn apply(&mut self, item: &Item<'_>) -> Result<(), Misfit> {
        match item {
            Item::Whole => {}
            Item::Inode(image) => {
                self.ended.remove(&image.ino.index());
                self.inodes.insert(image.ino, *image);
            }
            Item::InodeGone(ino) => {
                self.inodes.remove(ino);
                self.targets.remove(ino);
                self.ended.insert(ino.index(), ino.generation());
            }
            Item::Target(ino, target) => {
                self.targets.insert(*ino, target.to_vec());
            }
            Item::Entry {
                dir,
                name,
                child,
                kind,
                sequence,
            } => {
                let entry = Entry {
                    child: *child,
                    kind: *kind,
                    sequence: *sequence,
                };
                self.entries.insert((*dir, name.to_vec()), entry);
            }
            Item::EntryGone { dir, name } => {
                let key = (*dir, name.to_vec());
                if self.entries.remove(&key).is_none() {
                    let (dir, name) = key;
                    return Err(Misfit::NoEntry { dir, name });
                }
            }
            Item::Laid(ino, runs) => self.lay(*ino, runs)?,
            Item::Settled(ino) => {
                if let Some(index) = self.extents.get_mut(ino) {
                    index.settle();
                }
            }
            Item::Cleared(ino) => {
                self.extents.remove(ino);
            }
            _ => self.apply_lending(item)?,
        }
        Ok(())
    }

    fn apply_lending(&mut self, item: &Item<'_>) -> Result<(), Misfit> {
        match *item {
            Item::Client { client, pid } => {
                self.clients.insert(client, pid);
            }
            Item::ClientGone(client) => {
                self.clients.remove(&client);
                self.segments.retain(|_, lent| lent.client != client);
                self.cells.retain(|_, attached| attached.client != client);
            }
            Item::Lent {
                client,
                segment,
                slab,
                pos,
                len,
            } => {
                self.known(client)?;
                let lent = Lent {
                    client,
                    slab,
                    pos,
                    len,
                };
                self.segments.insert(segment, lent);
            }
            Item::Returned(segment) => {
                self.segments.remove(&segment);
            }
            Item::Attached {
                cell,
                client,
                ino,
                block,
            } => {
                self.known(client)?;
                let attached = Attached { client, ino, block };
                self.cells.insert(cell, attached);
            }
            Item::Detached(cell) => {
                self.cells.remove(&cell).ok_or(Misfit::NotAttached(cell))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn known(&self, client: ClientId) -> Result<(), Misfit> {
        let known = self.clients.contains_key(&client);
        known.then_some(()).ok_or(Misfit::NoClient(client.0))
    }

    fn lay(&mut self, ino: Ino, runs: &[Run]) -> Result<(), Misfit> {
        let index = self.extents.entry(ino).or_default();
        for run in runs {
            // What is free is found at the end, from all that is left.
            index
                .insert(*run, &mut |_| ())
                .map_err(|error| Misfit::Run { ino, error })?;
        }
        Ok(())
    }
}
