//! Files whose storage is freed, as the process that moves an elevated tree does it: it copies files that are
//! written, and ranges of files that are open, to the parallel file system (PFS). Programs read the copies from
//! then on, and change such files. So all that they read is checked as ever.
//!
//! The simulated PFS loses nothing, and outlives the cluster. One program moves, as one process does in
//! production.

use rustix::io::Errno;
use weir_core::elevated::{name_of_inode, CopyIdentity, TargetCopy, EVICTED};
use weir_core::placement::SLICE_BYTES;
use weir_core::proto::{self, ByteRange, ContentVersion, CopyUse, Operation, WriteState};
use weir_core::types::Ino;
use weir_fabric::sim::rng::SeededRng;

use crate::bytes::{Block, BLOCK};
use crate::process::Access;
use crate::program::{Actor, OpenedFile, SLICES};

/// The blocks that are copied from the beginning of a slice on: programs use none behind them.
const WINDOW: u64 = 2048;
/// The blocks from the beginning of a slice on of which ranges go ahead.
const RANGE: u64 = 48;

impl Actor<'_> {
    /// Moves a file, or ranges of it, and has their storage freed; or forgets its copy.
    pub fn evict(&self, ino: Ino, rng: &SeededRng) {
        // Errors are recorded.
        match rng.chance(150) {
            true => drop(self.forget_copy(ino)),
            false => drop(self.try_evict(ino, rng)),
        }
    }

    /// Has a server do something with a file, which may be gone.
    fn ask<O: Operation>(&self, what: &str, ino: Ino, op: O) -> Result<O::Reply, Errno>
    where
        O::Reply: std::fmt::Debug,
    {
        let began = self.begin();
        let result = self.process.call(op);
        let usual = matches!(result, Err(Errno::NOENT | Errno::STALE | Errno::EXIST));
        self.record_result(began, &(what, ino), &result, usual);
        result
    }

    fn try_evict(&self, ino: Ino, rng: &SeededRng) -> Result<(), Errno> {
        let state = self.ask("write state", ino, proto::GetWriteState { ino })?;
        if state == WriteState::Hidden {
            return Ok(());
        }
        let opened = self.open(ino, Access::READ)?;
        let evicted = match state {
            WriteState::Open => self.evict_ranges(opened, rng).map(|()| None),
            _ => self.copy_whole(opened),
        };
        self.close(opened.file);
        match evicted? {
            // As the drain does it: a program that has it open keeps it.
            Some(version) => self.evict_whole(ino, version),
            None => Ok(()),
        }
    }

    fn version(&self, ino: Ino) -> Result<ContentVersion, Errno> {
        let (attr, size) = self.process.stat(ino)?;
        Ok(ContentVersion {
            size,
            mtime_ns: attr.mtime_ns,
            ctime_ns: attr.ctime_ns.max(attr.mtime_ns),
        })
    }

    /// Copies a file; returns its version, unless it changed meanwhile.
    fn copy_whole(&self, opened: OpenedFile) -> Result<Option<ContentVersion>, Errno> {
        let ino = opened.file.home;
        let before = self.version(ino)?;
        let mut slices = SLICES.to_vec();
        slices.dedup();
        for slice in slices {
            let first = slice * SLICE_BYTES / BLOCK;
            self.copy_blocks(opened, first, (before.size / BLOCK).min(first + WINDOW))?;
        }
        Ok((self.version(ino)? == before).then_some(before))
    }

    /// Copies the blocks `[first, end)`, and returns them.
    fn copy_blocks(&self, opened: OpenedFile, first: u64, end: u64) -> Result<Vec<Block>, Errno> {
        if first >= end {
            return Ok(Vec::new());
        }
        let blocks = self.read(opened, first, end - first);
        if blocks.is_empty() {
            return Err(Errno::IO);
        }
        let target = self.process.target();
        target.write(opened.file.home, first, &blocks)?;
        Ok(blocks)
    }

    fn put_copy(&self, ino: Ino) -> Result<(), Errno> {
        let name = name_of_inode(ino);
        let copy = TargetCopy {
            path: [&b"/"[..], &name].concat(),
            identity: CopyIdentity::Inode(1),
        };
        let link = proto::Symlink {
            parent: EVICTED,
            name: name.to_vec(),
            target: copy.text(),
            uid: 0,
            gid: 0,
        };
        match self.ask("put copy", ino, link) {
            Err(Errno::EXIST) => Ok(()),
            put => put.map(drop),
        }
    }

    fn evict_whole(&self, ino: Ino, version: ContentVersion) -> Result<(), Errno> {
        self.put_copy(ino)?;
        match self.ask("evict", ino, proto::Evict { ino, version })? {
            true => {
                self.record.count_evicted(true);
                Ok(())
            }
            false => self.forget_copy(ino),
        }
    }

    /// Forgets the copy of a file, unless the file needs it.
    pub fn forget_copy(&self, ino: Ino) -> Result<(), Errno> {
        let used = match self.ask("copy use", ino, proto::GetCopyUse { ino }) {
            Err(Errno::NOENT | Errno::STALE) => CopyUse::None,
            used => used?,
        };
        if used != CopyUse::None {
            return Ok(());
        }
        let link = proto::Unlink {
            parent: EVICTED,
            name: name_of_inode(ino).to_vec(),
        };
        match self.ask("forget copy", ino, link) {
            Err(Errno::NOENT) => Ok(()),
            gone => gone,
        }
    }

    /// Copies ranges of a file that programs write, and has their storage freed.
    fn evict_ranges(&self, opened: OpenedFile, rng: &SeededRng) -> Result<(), Errno> {
        let ino = opened.file.home;
        let settled = self.ask("settle", ino, proto::SettleExtents { ino })?;
        let Some(settled) = settled else {
            return Ok(());
        };
        let first = SLICES[rng.pick(SLICES.len())] * SLICE_BYTES / BLOCK;
        let end = (first + RANGE).min(self.version(ino)?.size / BLOCK);
        let blocks = self.copy_blocks(opened, first, end)?;
        let mut ranges: Vec<ByteRange> = Vec::new();
        for (at, block) in (first..).zip(blocks) {
            if block == Block::Empty || rng.chance(100) {
                continue;
            }
            let (start, end) = (at * BLOCK, (at + 1) * BLOCK);
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => ranges.push(ByteRange { start, end }),
            }
        }
        if ranges.is_empty() {
            return Ok(());
        }
        self.put_copy(ino)?;
        let evict = proto::EvictRanges {
            ino,
            settled,
            ranges,
        };
        let freed = self.ask("evict ranges", ino, evict)?;
        self.record.count_evicted(freed > 0);
        Ok(())
    }
}
