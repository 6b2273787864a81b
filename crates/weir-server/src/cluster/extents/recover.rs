//! Recovery of the extents and the writers of a killed server.

use weir_core::extent::{Run, MAX_OFFSET};
use weir_core::journal::{PublishedBytes, State};
use weir_core::names::{FileType, SetAttr};
use weir_core::types::Ino;

use crate::cluster::extents::applied::Applied;
use crate::cluster::extents::writers::{OpenFile, Writer};
use crate::cluster::extents::{ExtentTables, NodeWrites};
use crate::node::{Accounts, Platform, RecoverError};

impl<P: Platform> NodeWrites<'_, '_, P> {
    pub(in crate::cluster) fn take_up_files(&mut self, state: &mut State) {
        for (ino, index) in state.extents.drain() {
            if self.names.regular(ino).is_ok() {
                *self.tables.indexes.get_mut(ino) = index;
                self.tables.changed.push(ino);
            }
        }
    }

    pub(in crate::cluster) fn take_up_cells(&mut self, state: &State) -> Result<(), RecoverError> {
        for (&cell, attached) in &state.cells {
            let (block, ino) = (attached.block, attached.ino);
            let bad = RecoverError::Attached { cell, block, ino };
            let room = (block as usize) < self.open.blocks.len()
                && (cell as usize) < self.open.cells.len();
            if !room {
                return Err(bad);
            }
            if self.names.regular(ino).is_err() || self.clients.get(attached.client).is_none() {
                continue;
            }
            if self.tables.blocks.get(block).is_none() {
                let file = OpenFile {
                    ino,
                    cells: Vec::new(),
                    settled: 0,
                };
                self.tables.blocks.put(block, file);
                let set = SetAttr {
                    block: Some(block + 1),
                    ..SetAttr::default()
                };
                let _ = self.names.setattr(ino, &set);
            }
            let file = self.tables.blocks.get_mut(block);
            let file = file.filter(|file| file.ino == ino);
            file.ok_or(bad)?.cells.push(cell);
            let noted = attached.noted.as_ref().map(Applied::of_mark);
            let noted = noted.unwrap_or_default();
            let writer = Writer {
                client: attached.client,
                block,
                lent_at: 0,
                applied: noted,
                noted,
            };
            self.tables.cells.put(cell, writer);
            if let Some(client) = self.clients.get_mut(attached.client) {
                client.cells.insert(cell);
            }
        }
        self.repeat_truncations();
        Ok(())
    }

    /// Repeats the newest truncation of each file that was open for writing: the killed server may have changed
    /// its size, which is in shared memory, and not have written to the journal that the bytes behind it are gone.
    fn repeat_truncations(&mut self) {
        let files = self.tables.blocks.iter();
        let files: Vec<(u32, Ino)> = files.map(|(block, file)| (block, file.ino)).collect();
        for (block, ino) in files {
            let truncated = self.open.blocks[block as usize].last_truncation();
            let hole = truncated.and_then(|(size, stamp)| Run::hole(size, MAX_OFFSET, stamp).ok());
            if let Some(hole) = hole {
                self.harvest(ino);
                self.lay_run(ino, hole, true);
            }
        }
    }

    /// Cuts bytes beyond the ends of files. A truncation may have been interrupted after the size
    /// changed and before the bytes were erased.
    pub(in crate::cluster) fn cut_beyond_ends(&mut self) {
        for slot in self.tables.indexes.not_empty().collect::<Vec<_>>() {
            let ino = self.names.ino_at(slot);
            let Ok(attr) = self.names.attr(ino) else {
                continue;
            };
            let own = attr.home == ino && attr.file_type() == FileType::File;
            let index = self.tables.indexes.get_mut(ino);
            if own && index.last_data() > attr.size {
                if let Ok(hole) = Run::hole(attr.size, MAX_OFFSET, u64::MAX) {
                    let _ = index.insert(hole, &mut |_| ());
                    index.settle();
                }
            }
        }
        self.announce_changes();
    }
}

impl ExtentTables {
    /// Restores the published part of the log.
    pub(in crate::cluster) fn take_up_published_log(&mut self, published: &mut PublishedBytes) {
        self.published_log = std::mem::take(published);
    }

    /// Adds the living bytes of this server's log to the accounts.
    pub(in crate::cluster) fn count_bytes(&self, rank: u16, accounts: &mut Accounts) {
        for index in self.indexes.iter() {
            index.for_each_run(&mut |run| {
                run.for_each_log_range(&mut |range| {
                    if range.rank == rank {
                        accounts.live.push((range.slab, range.pos, range.len));
                    }
                });
            });
        }
        accounts.amounts.extend(self.published_log.iter());
    }
}
