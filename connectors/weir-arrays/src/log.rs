//! The records of a log of array writes.
//!
//! A log is a pair of files: the elements that were written, in the program's own representation, and the records that describe
//! them (the metadata). The metadata has a head of 64 bytes, then blocks:
//!
//! ```text
//! offset  0  "WEIRNCLG"
//!         8  u32  version, 2
//!        12  u32  writers: processes that share the pair
//!        16  u64  bytes of a block
//!        24       zeros
//!        64       block 0 of writer 0, block 0 of writer 1, ... block 1 of writer 0, ...
//! ```
//!
//! All numbers are little-endian. The blocks of a writer, one after the other, are its records. A record is: `u32` bytes of the
//! body, `u32` CRC32C of the body, the body (a [`LogRecord`], encoded by postcard). The first record that is cut off or damaged
//! ends them: its writer was killed while it wrote that one. The file of elements has blocks without a head.
//!
//! A reader checks each entry. One that lies outside its variable, or whose elements are not all there, ends the log.

use serde::{Deserialize, Serialize};

use crate::definitions::FileDefinitions;
use crate::element::{Conversion, ElementType};
use crate::subarray::{Range, Subarray};

/// Bytes of the head.
pub const HEAD_BYTES: u64 = 64;

const MAGIC: &[u8; 8] = b"WEIRNCLG";
const VERSION: u32 = 2;
/// Bytes before the body of a record.
const FRAME_BYTES: usize = 8;
/// The longest body. Definitions of 100,000 variables are shorter.
const MAX_BODY_BYTES: usize = 1 << 26;

/// A record of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogRecord {
    /// The first record.
    Opened {
        /// The file whose writes these are: its absolute path when it was opened.
        path: Vec<u8>,
        /// Its inode number (`st_ino`), which a rename does not change; 0: not known.
        inode: u64,
        /// The writer's rank among all processes that have the file open.
        rank: u32,
        /// The number of processes that have it open.
        processes: u32,
    },
    /// The variables, from here on.
    Defined(FileDefinitions),
    /// A write.
    Put(LogEntry),
    /// The entries of a variable so far are in the file.
    Flushed(u32),
}

/// A write of a part of a variable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogEntry {
    /// The variable's number.
    pub variable: u32,
    /// The type of its elements in the log.
    pub memory: ElementType,
    /// The part of the variable.
    pub part: Subarray,
    /// The offset of its elements in its writer's blocks, bytes.
    pub data: u64,
    /// Real time when it was written, ns since 1970: the order of entries of several writers.
    pub stamp_ns: u64,
}

/// A failure to read a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// It does not begin with a log's magic number.
    #[error("it is no log of array writes")]
    NoLog,
    /// Another version of the format.
    #[error("it is of version {0}; this program knows version {VERSION}")]
    Version(u32),
    /// No writers, or no blocks.
    #[error("its head is damaged")]
    Head,
}

/// The layout of a pair of files that several writers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMap {
    /// The number of writers, 1 or more.
    pub writers: u32,
    /// The bytes of a block, 1 or more.
    pub block_bytes: u64,
}

impl BlockMap {
    /// The head of the metadata.
    pub fn head(self) -> [u8; 64] {
        let mut head = [0; 64];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&self.writers.to_le_bytes());
        head[16..24].copy_from_slice(&self.block_bytes.to_le_bytes());
        head
    }

    /// Decodes a head.
    ///
    /// # Errors
    ///
    /// The head is that of another file or another version, or has no writers or no bytes in a block.
    pub fn from_head(head: &[u8]) -> Result<BlockMap, LogError> {
        let head: &[u8; 64] = head.first_chunk().ok_or(LogError::NoLog)?;
        if head[..8] != *MAGIC {
            return Err(LogError::NoLog);
        }
        let number =
            |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if number(8) != VERSION {
            return Err(LogError::Version(number(8)));
        }
        let map = BlockMap {
            writers: number(12),
            block_bytes: u64::from_le_bytes(head[16..24].try_into().expect("eight bytes")),
        };
        match map.writers == 0 || map.block_bytes == 0 {
            true => Err(LogError::Head),
            false => Ok(map),
        }
    }

    /// The bytes of one writer, gathered from the blocks of a whole file.
    pub fn stream(self, writer: u32, blocks: &[u8]) -> Vec<u8> {
        let length = self.stream_bytes(writer, blocks.len() as u64);
        let mut stream = Vec::new();
        for (at, bytes) in self.pieces(writer, 0, length) {
            let range = usize::try_from(at).ok().zip(usize::try_from(bytes).ok());
            let piece = range.and_then(|(at, bytes)| blocks.get(at..at.checked_add(bytes)?));
            stream.extend(piece.unwrap_or(&[]));
        }
        stream
    }

    /// The most bytes that one writer has in a file with `bytes` bytes of blocks.
    pub fn stream_bytes(self, writer: u32, bytes: u64) -> u64 {
        if self.writers == 1 {
            return bytes;
        }
        let row = self.block_bytes.saturating_mul(self.writers.into());
        let before = self.block_bytes.saturating_mul(writer.into());
        let last = (bytes % row).saturating_sub(before).min(self.block_bytes);
        bytes / row * self.block_bytes + last
    }

    /// The pieces of a range of a writer's bytes: offset among the blocks of the file, and length. Saturates where a number
    /// is too large for any file.
    pub fn pieces(self, writer: u32, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (block, within) = (at / self.block_bytes, at % self.block_bytes);
            // The blocks of a single writer are contiguous.
            let length = match self.writers {
                1 => end - at,
                _ => (self.block_bytes - within).min(end - at),
            };
            let block = block.saturating_mul(self.writers.into());
            let block = block.saturating_add(writer.into());
            at += length;
            Some((
                block
                    .saturating_mul(self.block_bytes)
                    .saturating_add(within),
                length,
            ))
        })
    }
}

fn begin_frame(out: &mut Vec<u8>) -> usize {
    out.extend([0; FRAME_BYTES]);
    out.len() - FRAME_BYTES
}

/// Fills in the frame of a record that ends here.
fn end_frame(out: &mut [u8], start: usize) {
    let body = &out[start + FRAME_BYTES..];
    let bytes = u32::try_from(body.len()).expect("definitions are shorter");
    let sum = crc32c::crc32c(body);
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
    out[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
}

impl LogRecord {
    /// Appends its encoding.
    pub fn append(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let body = postcard::to_extend(self, core::mem::take(out));
        *out = body.expect("records have nothing that cannot be encoded");
        end_frame(out, start);
    }

    /// Appends a frame around any body, for tests with damaged logs.
    pub fn append_body(body: &[u8], out: &mut Vec<u8>) {
        let start = begin_frame(out);
        out.extend_from_slice(body);
        end_frame(out, start);
    }

    /// Decodes the record at the beginning of `bytes`. Returns it with its length; `None`: no whole record is there.
    pub fn read(bytes: &[u8]) -> Option<(LogRecord, usize)> {
        let length = u32::from_le_bytes(*bytes.first_chunk()?);
        let sum = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
        let length = usize::try_from(length).ok()?;
        if length > MAX_BODY_BYTES {
            return None;
        }
        let body = bytes.get(FRAME_BYTES..FRAME_BYTES + length)?;
        if crc32c::crc32c(body) != sum {
            return None;
        }
        match postcard::take_from_bytes(body) {
            Ok((record, [])) => Some((record, FRAME_BYTES + length)),
            _ => None,
        }
    }
}

/// The decoded records of one writer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogContents {
    /// The path of the file when it was opened.
    pub path: Vec<u8>,
    /// The inode number of the file; 0: not known.
    pub inode: u64,
    /// The writer's rank.
    pub rank: u32,
    /// The number of processes that had the file open.
    pub processes: u32,
    /// The variables.
    pub definitions: FileDefinitions,
    /// The writes that are not in the file yet, in their order.
    pub entries: Vec<LogEntry>,
    /// True if the log is not whole: its writer was killed within a record, or the log is damaged.
    pub is_cut: bool,
}

impl LogContents {
    /// Decodes the records of a writer that has `data_bytes` bytes of elements.
    pub fn read(mut records: &[u8], data_bytes: u64) -> LogContents {
        let mut contents = LogContents::default();
        while !records.is_empty() {
            let Some((record, length)) = LogRecord::read(records) else {
                contents.is_cut = records.iter().any(|byte| *byte != 0);
                break;
            };
            records = &records[length..];
            match record {
                LogRecord::Opened {
                    path,
                    inode,
                    rank,
                    processes,
                } => {
                    (contents.path, contents.inode) = (path, inode);
                    (contents.rank, contents.processes) = (rank, processes);
                }
                LogRecord::Defined(definitions) => {
                    // A writer flushes before it defines anew. Entries that were valid may not be valid now.
                    let before = contents.entries.len();
                    let is_valid = |entry: &LogEntry| entry.is_valid(&definitions, data_bytes);
                    contents.entries.retain(is_valid);
                    contents.is_cut |= contents.entries.len() < before;
                    contents.definitions = definitions;
                }
                LogRecord::Put(entry) if entry.is_valid(&contents.definitions, data_bytes) => {
                    contents.entries.push(entry);
                }
                LogRecord::Put(_) => {
                    contents.is_cut = true;
                    break;
                }
                LogRecord::Flushed(variable) => {
                    contents.entries.retain(|entry| entry.variable != variable);
                }
            }
        }
        contents
    }
}

impl LogEntry {
    /// Bytes of its elements.
    pub fn bytes(&self) -> Option<u64> {
        self.part
            .elements()?
            .checked_mul(self.memory.bytes() as u64)
    }

    /// The conversion of its elements to those of its variable; `None`: there is none.
    pub fn conversion(&self, definitions: &FileDefinitions) -> Option<Conversion> {
        let variable = definitions
            .variables
            .get(usize::try_from(self.variable).ok()?)?;
        Conversion::new(self.memory, variable.external, definitions.is_cdf5)
    }

    /// The number of records that a file with this entry has at least; 0 if its variable has none.
    pub fn end_record(&self, definitions: &FileDefinitions) -> u64 {
        let is_record = definitions.variables[self.variable as usize].is_record;
        let records = self.part.0.first().filter(|_| is_record);
        records.and_then(|range| range.end_index()).unwrap_or(0)
    }

    /// The first element of its last record, as an entry of its own. The entry must have elements.
    #[must_use]
    pub fn first_of_last_record(&self) -> LogEntry {
        let mut entry = self.clone();
        let (mut position, mut step) = (0, 1);
        for (dimension, range) in entry.part.0.iter_mut().enumerate().rev() {
            let index = if dimension == 0 { range.count - 1 } else { 0 };
            position += index * step;
            step *= range.count;
            *range = Range::new(range.start + index * range.stride, 1);
        }
        entry.data += position * self.memory.bytes() as u64;
        entry
    }

    fn is_valid(&self, definitions: &FileDefinitions, data_bytes: u64) -> bool {
        let variable = usize::try_from(self.variable).ok();
        let variable = variable.and_then(|number| definitions.variables.get(number));
        let Some(variable) = variable.filter(|_| self.conversion(definitions).is_some()) else {
            return false;
        };
        let within = self.part.0.iter().zip(&variable.shape).enumerate();
        let is_within = within.into_iter().all(|(dimension, (range, length))| {
            let is_open = dimension == 0 && variable.is_record;
            range.stride > 0
                && range
                    .end_index()
                    .is_some_and(|end| is_open || end <= *length)
        });
        let end = self.bytes().and_then(|bytes| bytes.checked_add(self.data));
        self.part.0.len() == variable.shape.len()
            && is_within
            && end.is_some_and(|end| end <= data_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definitions::Variable;

    fn definitions() -> FileDefinitions {
        let variable = Variable {
            name: "v".into(),
            external: ElementType::F32,
            shape: vec![0, 8],
            is_record: true,
            begin: 64,
            fill: vec![0; 4],
        };
        FileDefinitions {
            is_cdf5: true,
            record_bytes: 32,
            variables: vec![variable],
        }
    }

    fn entry(record: u64, x: u64, data: u64) -> LogEntry {
        LogEntry {
            variable: 0,
            memory: ElementType::F64,
            part: Subarray([Range::new(record, 1), Range::new(x, 4)].into()),
            data,
            stamp_ns: 7,
        }
    }

    fn log(records: &[LogRecord]) -> Vec<u8> {
        let mut out = Vec::new();
        for record in records {
            record.append(&mut out);
        }
        out
    }

    #[test]
    fn entries_that_are_flushed_are_gone() {
        let put = |record| LogRecord::Put(entry(record, 0, record * 32));
        let opened = LogRecord::Opened {
            path: b"/weir/a".into(),
            inode: 9,
            rank: 1,
            processes: 4,
        };
        let records = [
            opened,
            LogRecord::Defined(definitions()),
            put(0),
            LogRecord::Flushed(0),
            put(2),
        ];
        let contents = LogContents::read(&log(&records), 96);
        assert_eq!(contents.entries, [entry(2, 0, 64)]);
        assert_eq!(
            (contents.path.as_slice(), contents.inode, contents.is_cut),
            (&b"/weir/a"[..], 9, false)
        );
    }

    #[test]
    fn the_last_record_is_one_element() {
        let every_third = Range {
            start: 2,
            count: 4,
            stride: 3,
        };
        let mut all = entry(0, 0, 100);
        all.part = Subarray([every_third, Range::new(3, 5)].into());
        let last = all.first_of_last_record();
        assert_eq!(*last.part.0, [Range::new(11, 1), Range::new(3, 1)]);
        assert_eq!(last.data, 100 + 3 * 5 * 8);
        assert_eq!(
            last.end_record(&definitions()),
            all.end_record(&definitions())
        );
    }

    #[test]
    fn definitions_that_an_entry_does_not_fit_drop_it() {
        let without = FileDefinitions {
            variables: Vec::new(),
            ..definitions()
        };
        let put = || LogRecord::Put(entry(0, 0, 0));
        for (second, left) in [(definitions(), 1), (without, 0)] {
            let defined = [definitions(), second].map(LogRecord::Defined);
            let [first, second] = defined;
            let contents = LogContents::read(&log(&[first, put(), second]), 32);
            assert_eq!((contents.entries.len(), contents.is_cut), (left, left == 0));
        }
    }

    #[test]
    fn a_log_ends_before_a_record_that_is_cut_off() {
        let records = log(&[
            LogRecord::Defined(definitions()),
            LogRecord::Put(entry(0, 0, 0)),
            LogRecord::Put(entry(1, 0, 32)),
        ]);
        for end in 0..records.len() {
            let contents = LogContents::read(&records[..end], 64);
            assert!(contents.entries.len() < 2);
        }
        let mut damaged = records.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        let contents = LogContents::read(&damaged, 64);
        assert_eq!((contents.entries.len(), contents.is_cut), (1, true));
        // Room that was never written.
        let contents = LogContents::read(&[records, vec![0; 100]].concat(), 64);
        assert_eq!((contents.entries.len(), contents.is_cut), (2, false));
    }

    #[test]
    fn an_entry_outside_of_its_variable_ends_the_log() {
        let with = |entry| {
            LogContents::read(
                &log(&[LogRecord::Defined(definitions()), LogRecord::Put(entry)]),
                32,
            )
        };
        assert_eq!(with(entry(0, 4, 0)).entries.len(), 1);
        assert!(with(entry(0, 5, 0)).is_cut);
        assert!(with(entry(0, 0, 1)).is_cut);
        assert!(
            with(LogEntry {
                variable: 1,
                ..entry(0, 0, 0)
            })
            .is_cut
        );
        assert!(
            with(LogEntry {
                memory: ElementType::Text,
                ..entry(0, 0, 0)
            })
            .is_cut
        );
        assert!(
            with(LogEntry {
                part: Subarray([].into()),
                ..entry(0, 0, 0)
            })
            .is_cut
        );
    }

    #[test]
    fn writers_share_a_file_block_by_block() {
        let map = BlockMap {
            writers: 3,
            block_bytes: 10,
        };
        let pieces: Vec<_> = map.pieces(1, 5, 20).collect();
        assert_eq!(pieces, [(15, 5), (40, 10), (70, 5)]);
        let alone = BlockMap { writers: 1, ..map };
        assert_eq!(alone.pieces(0, 5, 20).collect::<Vec<_>>(), [(5, 20)]);
        let blocks: Vec<u8> = (0..75).collect();
        let stream = map.stream(1, &blocks);
        assert_eq!(
            stream,
            [&blocks[10..20], &blocks[40..50], &blocks[70..]].concat()
        );
        assert_eq!(map.stream_bytes(0, 75), 30);
        assert_eq!(map.stream_bytes(2, 75), 20);
        assert_eq!(BlockMap::from_head(&map.head()), Ok(map));
        assert_eq!(BlockMap::from_head(b"x"), Err(LogError::NoLog));
        let other = BlockMap { writers: 0, ..map };
        assert_eq!(BlockMap::from_head(&other.head()), Err(LogError::Head));
    }
}
