//! Evicted files of an elevated tree, for those who move it.

use core::ops::Range;

use rustix::io::Errno;
use weir_core::elevated::{inode_of_name, name_of_inode, TargetCopy, EVICTED};
use weir_core::extent::{ExtentIndex, PieceSource, COPY_RANK};
use weir_core::proto::{
    ByteRange, ContentVersion, CopyUse, Evict, EvictRanges, GetCopyUse, Hold, Locate, ReportRelief,
    SettleExtents, SettledExtents, Unlink, MOST_RANGES,
};
use weir_core::types::Ino;

use super::whiteouts::unless_gone;
use super::Tree;
use crate::operation;
use crate::path::walk::Names;
use crate::process::elevated::name_lock::NameLock;

/// A file of an elevated tree that was evicted, as a whole or in part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvictedFile {
    /// Its inode.
    pub ino: Ino,
    /// Its copy on the target.
    pub copy: TargetCopy,
}

impl Tree {
    /// Frees the storage of a file of this elevated tree that is on the target; false: it is another
    /// version, or a program has it open for writing, or it cannot be evicted.
    pub fn evict(self, evicted: &EvictedFile, version: ContentVersion) -> Result<bool, Errno> {
        let _call = operation::begin();
        let ino = evicted.ino;
        let name = name_of_inode(ino);
        let session = self.parts.server.session()?;
        let _lock = NameLock::hold(session, EVICTED, &name)?;
        if self.parts.inodes.attr(ino)?.evicted {
            return Ok(false);
        }
        match self.put_copy(evicted) {
            // The path of the copy is too long to be kept.
            Err(Errno::NAMETOOLONG) => return Ok(false),
            put => put?,
        }
        let done = session.call(Evict { ino, version });
        // If it has bytes of an earlier copy, this one has the same.
        if done == Ok(false) && self.copy_use(ino)? == CopyUse::None {
            self.unlink_copy(ino)?;
        }
        done
    }

    /// Has all that was written to a file of this tree be in extents of its own; `None`: ranges of it cannot be
    /// evicted.
    pub fn settle_extents(self, ino: Ino) -> Result<Option<SettledExtents>, Errno> {
        let _call = operation::begin();
        self.parts.server.session()?.call(SettleExtents { ino })
    }

    /// The ranges in `within` whose bytes the instance has, without those of the file's copy, sorted, as far as one look
    /// reaches; and the offset up to which that is. `at`: only those that the server of this rank has.
    pub fn stored_ranges(
        self,
        ino: Ino,
        within: Range<u64>,
        at: Option<u16>,
    ) -> Result<(Vec<Range<u64>>, u64), Errno> {
        let _call = operation::begin();
        let session = self.parts.server.session()?;
        let held = session.call(Hold { ino, write: false })?;
        let located = session.call(Locate {
            ino: held.ino,
            offset: within.start,
            length: within.end.saturating_sub(within.start),
        })?;
        let end = located.known_to.min(within.end);
        let mut index = ExtentIndex::new();
        for run in &located.runs {
            let run = run.checked().map_err(|_| Errno::IO)?;
            index.insert(run, &mut |_| ()).map_err(|_| Errno::IO)?;
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        index.for_each_piece_in(within.start, end, &mut |piece| {
            let PieceSource::Log { rank, .. } = piece.source else {
                return;
            };
            if rank == COPY_RANK || at.is_some_and(|at| at != rank) {
                return;
            }
            match ranges.last_mut() {
                Some(last) if last.end == piece.offset => last.end = piece.end(),
                _ => ranges.push(piece.offset..piece.end()),
            }
        });
        Ok((ranges, end))
    }

    /// Frees the storage of ranges of a file that its copy has, as they were when its extents were settled. Returns the
    /// bytes of those that have not changed since.
    pub fn evict_ranges(
        self,
        file: &EvictedFile,
        settled: SettledExtents,
        ranges: &[Range<u64>],
    ) -> Result<u64, Errno> {
        let _call = operation::begin();
        let session = self.parts.server.session()?;
        let name = name_of_inode(file.ino);
        let _lock = NameLock::hold(session, EVICTED, &name)?;
        let known = self.parts.inodes.view()?.text_at(EVICTED, &name)?;
        if known.is_none_or(|text| text != file.copy.text()) {
            self.put_copy(file)?;
        }
        let ranges = ranges.iter().take(MOST_RANGES);
        session.call(EvictRanges {
            ino: file.ino,
            settled,
            ranges: ranges
                .map(|range| ByteRange {
                    start: range.start,
                    end: range.end,
                })
                .collect(),
        })
    }

    /// The copy of a file of any elevated tree, if there is one.
    pub fn copy_of(self, ino: Ino) -> Result<Option<TargetCopy>, Errno> {
        let _call = operation::begin();
        let names = self.parts.inodes.view()?;
        let text = names.text_at(EVICTED, &name_of_inode(ino))?;
        Ok(text.as_deref().and_then(TargetCopy::of_text))
    }

    /// The evicted files whose copies are on the target of this tree.
    pub fn evicted_files(self) -> Result<Vec<EvictedFile>, Errno> {
        let _call = operation::begin();
        let mut found = Vec::new();
        if self.elevated.is_none() {
            return Ok(found);
        }
        let names = self.parts.inodes.view()?;
        for name in self.names_in(EVICTED)? {
            let Some(ino) = inode_of_name(&name) else {
                continue;
            };
            // Forgotten meanwhile, perhaps.
            let text = names.text_at(EVICTED, &name)?;
            let copy = text.as_deref().and_then(TargetCopy::of_text);
            let is_of_target = |copy: &TargetCopy| {
                let below = copy.path.strip_prefix(self.prefix());
                below.is_some_and(|below| below.first() == Some(&b'/'))
            };
            if let Some(copy) = copy.filter(is_of_target) {
                found.push(EvictedFile { ino, copy });
            }
        }
        Ok(found)
    }

    /// The part of a file that its copy alone has: none, if the file is gone.
    pub fn copy_use(self, ino: Ino) -> Result<CopyUse, Errno> {
        let _call = operation::begin();
        let used = match self.parts.inodes.attr(ino) {
            // Known without a request.
            Ok(attr) if attr.evicted => Ok(CopyUse::Whole),
            Ok(_) => self.parts.server.session()?.call(GetCopyUse { ino }),
            Err(error) => Err(error),
        };
        match used {
            Err(Errno::NOENT) => Ok(CopyUse::None),
            used => used,
        }
    }

    /// Notes that the copy of an evicted file has another path.
    pub fn put_copy(self, evicted: &EvictedFile) -> Result<(), Errno> {
        let name = name_of_inode(evicted.ino);
        let made = self
            .parts
            .inodes
            .put_link(EVICTED, &name, &evicted.copy.text());
        made.map(drop)
    }

    /// Forgets the copy of a file, unless the file needs it.
    pub fn forget_copy(self, ino: Ino) -> Result<(), Errno> {
        let name = name_of_inode(ino);
        let session = self.parts.server.session()?;
        let _lock = NameLock::hold(session, EVICTED, &name)?;
        if self.copy_use(ino)? != CopyUse::None {
            return Ok(());
        }
        self.unlink_copy(ino)
    }

    fn unlink_copy(self, ino: Ino) -> Result<(), Errno> {
        let gone = self.parts.server.session()?.call(Unlink {
            parent: EVICTED,
            name: name_of_inode(ino).to_vec(),
        });
        unless_gone(gone)
    }

    /// Tells a server of the instance whether room can be made, and returns how much there is.
    pub fn report_relief(self, report: ReportRelief) -> Result<super::RoomState, Errno> {
        self.parts.server.session()?.call(report)
    }
}
