//! Runs: the location of a file's bytes, as arithmetic progressions.
//!
//! A run is `count` pieces of `length` bytes, `stride` bytes apart in the file. Piece `i` lies
//! `i * pos_stride` bytes behind the first one in the log:
//!
//! ```text
//!           |<---- stride ---->|
//! file  ----[length]-----------[length]-----------[length]----
//!           ^ offset
//! slab  ----[length][length][length]----        here pos_stride == length, the usual case
//!           ^ pos
//! ```
//!
//! Invariants of a run that [`Run::validate`] passed (every run inside the index is one):
//! `length > 0`, `count > 0`, `stride >= length` and `pos_stride >= length` when there is more than
//! one piece, and neither the file range nor the log range passes `i64::MAX`. So no arithmetic
//! below can overflow, and no two pieces of a run share a byte of the file or of the log.
//!
//! Runs cross the wire (serde), so those that come from a client are hostile until validated. That
//! a run lies inside a slab that its sender was lent is not known here; the server checks it, with
//! [`Run::log_end`].

use serde::{Deserialize, Serialize};

/// The largest file offset, and the largest position in a slab: the maximum of `off_t`.
pub const MAX_OFFSET: u64 = i64::MAX as u64;

/// The rank that stands for a file's copy on the parallel file system, in place of a server's. The position of such
/// bytes is their offset in the copy ([`crate::elevated::TargetCopy`]). No server has this rank.
pub const COPY_RANK: u16 = u16::MAX;

/// The location of a run's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Source {
    /// Bytes in a slab: byte `k` of piece `i` is at `pos + i * pos_stride + k` of slab `slab` of
    /// server `rank`.
    Log {
        /// The server that owns the slab; [`COPY_RANK`] for bytes of the file's copy.
        rank: u16,
        /// The slab's number on that server.
        slab: u32,
        /// Position of the first byte in the slab.
        pos: u64,
        /// Distance in the slab from one piece to the next, in bytes; 0 when there is one piece.
        pos_stride: u64,
    },
    /// A hole (truncated or punched): reads as zeros. Kept only to order later arrivals by stamp.
    Hole,
}

/// An arithmetic progression of pieces of a file: piece `i` covers
/// `[offset + i * stride, + length)`, for `i < count`.
///
/// With one piece, `stride` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// File offset of the first piece.
    pub offset: u64,
    /// Bytes in each piece.
    pub length: u64,
    /// Bytes from the start of a piece to the start of the next; at least `length`, 0 when `count` is 1.
    pub stride: u64,
    /// Number of pieces.
    pub count: u64,
    /// Order of the write among the writes of its file: where runs overlap, the greater stamp wins.
    pub stamp: u64,
    /// The location of the bytes.
    pub source: Source,
}

/// The location of the bytes of one contiguous piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceSource {
    /// Bytes `[pos, pos + length)` of slab `slab` of server `rank`.
    Log {
        /// The server that owns the slab.
        rank: u16,
        /// The slab's number on that server.
        slab: u32,
        /// Position of the piece's first byte in the slab.
        pos: u64,
    },
    /// Zeros.
    Hole,
}

/// One contiguous piece of a file, as a read needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// File offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The location of the bytes.
    pub source: PieceSource,
    /// The stamp of the run that the piece belongs to.
    pub stamp: u64,
}

/// A contiguous range of log bytes that no file refers to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreedRange {
    /// The server that owns the slab.
    pub rank: u16,
    /// The slab's number on that server.
    pub slab: u32,
    /// Position of the first byte in the slab.
    pub pos: u64,
    /// Bytes.
    pub len: u64,
}

/// The reasons for refusing a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// A run of no bytes.
    #[error("a run of {count} pieces of {length} bytes has no bytes")]
    Empty {
        /// Bytes in each piece.
        length: u64,
        /// Number of pieces.
        count: u64,
    },
    /// Pieces that overlap in the file or in the log.
    #[error("pieces of {length} bytes overlap at a stride of {stride} in the file or {pos_stride} in the log")]
    Overlap {
        /// Bytes in each piece.
        length: u64,
        /// Distance of pieces in the file.
        stride: u64,
        /// Distance of pieces in the log.
        pos_stride: u64,
    },
    /// A file or log range that passes the greatest offset there is.
    #[error("the run at {offset} (or its log position) passes the greatest offset")]
    TooFar {
        /// File offset of the run.
        offset: u64,
    },
    /// The given earlier state of a record is not one.
    #[error("the run at {offset} with stamp {stamp} did not grow out of the one given")]
    NotGrown {
        /// File offset of the run.
        offset: u64,
        /// Its stamp.
        stamp: u64,
    },
}

impl Source {
    /// This source, `bytes` further on in the log.
    pub(super) fn advanced(self, bytes: u64) -> Source {
        match self {
            Source::Log {
                rank,
                slab,
                pos,
                pos_stride,
            } => Source::Log {
                rank,
                slab,
                pos: pos + bytes,
                pos_stride,
            },
            Source::Hole => Source::Hole,
        }
    }

    pub(super) fn with_stride(self, pos_stride: u64) -> Source {
        match self {
            Source::Log {
                rank, slab, pos, ..
            } => Source::Log {
                rank,
                slab,
                pos,
                pos_stride,
            },
            Source::Hole => Source::Hole,
        }
    }

    /// Distance of pieces in the log; 0 for a hole.
    pub(super) fn pos_stride(self) -> u64 {
        match self {
            Source::Log { pos_stride, .. } => pos_stride,
            Source::Hole => 0,
        }
    }
}

impl PieceSource {
    /// This source, `bytes` further on in the log.
    #[must_use]
    pub fn advanced(self, bytes: u64) -> PieceSource {
        match self {
            PieceSource::Log { rank, slab, pos } => PieceSource::Log {
                rank,
                slab,
                pos: pos + bytes,
            },
            PieceSource::Hole => PieceSource::Hole,
        }
    }

    /// This source as that of a run of one piece.
    pub fn into_source(self) -> Source {
        match self {
            PieceSource::Log { rank, slab, pos } => Source::Log {
                rank,
                slab,
                pos,
                pos_stride: 0,
            },
            PieceSource::Hole => Source::Hole,
        }
    }
}

impl Piece {
    /// The offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The part of this piece in `[start, end)`, which must meet it.
    #[must_use]
    pub fn clipped(&self, start: u64, end: u64) -> Piece {
        let from = self.offset.max(start);
        let to = self.end().min(end);
        debug_assert!(from < to, "a piece is clipped to a range that it meets");
        Piece {
            offset: from,
            length: to - from,
            source: self.source.advanced(from - self.offset),
            stamp: self.stamp,
        }
    }

    /// This piece as a run.
    pub fn into_run(self) -> Run {
        Run {
            offset: self.offset,
            length: self.length,
            stride: 0,
            count: 1,
            stamp: self.stamp,
            source: self.source.into_source(),
        }
    }
}

impl Run {
    /// One contiguous piece of log bytes, checked.
    pub fn extent(
        offset: u64,
        length: u64,
        stamp: u64,
        rank: u16,
        slab: u32,
        pos: u64,
    ) -> Result<Run, RunError> {
        let source = Source::Log {
            rank,
            slab,
            pos,
            pos_stride: 0,
        };
        Run {
            offset,
            length,
            stride: 0,
            count: 1,
            stamp,
            source,
        }
        .checked()
    }

    /// Bytes `[offset, end)` of the file's copy on the parallel file system, checked.
    pub fn of_copy(offset: u64, end: u64, stamp: u64) -> Result<Run, RunError> {
        let length = end.saturating_sub(offset);
        Run::extent(offset, length, stamp, COPY_RANK, 0, offset)
    }

    /// Returns true if the bytes are those of the file's copy.
    pub fn is_of_copy(&self) -> bool {
        matches!(
            self.source,
            Source::Log {
                rank: COPY_RANK,
                ..
            }
        )
    }

    /// A hole over `[offset, end)`, checked. For a truncation, `end` is [`MAX_OFFSET`].
    pub fn hole(offset: u64, end: u64, stamp: u64) -> Result<Run, RunError> {
        let length = end.saturating_sub(offset);
        Run {
            offset,
            length,
            stride: 0,
            count: 1,
            stamp,
            source: Source::Hole,
        }
        .checked()
    }

    /// Checks a run whose fields may be anything.
    pub fn validate(&self) -> Result<(), RunError> {
        let &Run {
            offset,
            length,
            stride,
            count,
            source,
            ..
        } = self;
        if length == 0 || count == 0 {
            return Err(RunError::Empty { length, count });
        }
        let reaches = |start: u64, stride: u64| {
            let last = stride.checked_mul(count - 1)?.checked_add(start)?;
            last.checked_add(length).filter(|end| *end <= MAX_OFFSET)
        };
        let too_far = RunError::TooFar { offset };
        let several = u64::from(count > 1);
        reaches(offset, stride * several).ok_or(too_far)?;
        let mut overlap = count > 1 && stride < length;
        let mut log_stride = 0;
        if let Source::Log {
            pos, pos_stride, ..
        } = source
        {
            reaches(pos, pos_stride * several).ok_or(too_far)?;
            overlap |= count > 1 && pos_stride < length;
            log_stride = pos_stride;
        }
        if overlap {
            return Err(RunError::Overlap {
                length,
                stride,
                pos_stride: log_stride,
            });
        }
        Ok(())
    }

    /// Validates, and gives the run its simplest form: one piece where the pieces are contiguous in
    /// file and log, no strides where there is one piece.
    pub fn checked(mut self) -> Result<Run, RunError> {
        self.validate()?;
        let dense = match self.source {
            Source::Log { pos_stride, .. } => pos_stride == self.length,
            Source::Hole => true,
        };
        if self.count > 1 && dense && self.stride == self.length {
            self.length *= self.count;
            self.count = 1;
        }
        if self.count == 1 {
            self.stride = 0;
            self.source = self.source.with_stride(0);
        }
        Ok(self)
    }

    /// The offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.start_of(self.count - 1) + self.length
    }

    /// Bytes in all pieces.
    pub fn total_bytes(&self) -> u64 {
        self.length * self.count
    }

    /// Bytes of the log in all pieces: none for a hole.
    pub fn log_bytes(&self) -> u64 {
        match self.source {
            Source::Log { .. } => self.total_bytes(),
            Source::Hole => 0,
        }
    }

    /// The position behind the last byte in the slab; `None` for a hole.
    pub fn log_end(&self) -> Option<u64> {
        match self.source {
            Source::Log {
                pos, pos_stride, ..
            } => Some(pos + (self.count - 1) * pos_stride + self.length),
            Source::Hole => None,
        }
    }

    /// Piece `index`, which must be below `count`.
    pub fn piece(&self, index: u64) -> Piece {
        debug_assert!(index < self.count, "piece {index} of {}", self.count);
        let source = match self.source {
            Source::Log {
                rank,
                slab,
                pos,
                pos_stride,
            } => PieceSource::Log {
                rank,
                slab,
                pos: pos + index * pos_stride,
            },
            Source::Hole => PieceSource::Hole,
        };
        Piece {
            offset: self.start_of(index),
            length: self.length,
            source,
            stamp: self.stamp,
        }
    }

    /// The pieces that meet `[start, end)`, clipped to it, in order.
    pub fn pieces_in(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let range = if start < end {
            self.ending_after(start)..self.starting_from(end)
        } else {
            0..0
        };
        range.map(move |index| self.piece(index).clipped(start, end))
    }
}
