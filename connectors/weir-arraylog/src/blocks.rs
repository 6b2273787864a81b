//! The bytes of one writer in a file of a log, whose blocks lie between those of the other writers ([`BlockMap`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use weir_arrays::log::BlockMap;

/// See above.
#[derive(Debug)]
pub struct WriterBlocks {
    /// The file.
    pub file: File,
    /// How its writers share it.
    pub map: BlockMap,
    /// This writer's number among them.
    pub writer: u32,
    /// Where the first block of the file begins, bytes.
    pub start: u64,
}

impl WriterBlocks {
    /// Reads bytes.
    ///
    /// # Errors
    ///
    /// Those of read(2); the file ends before.
    pub fn read_exact(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, length) in self.pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(in_memory(length));
            self.file.read_exact_at(piece, at)?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn write_all(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, length) in self.pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at(in_memory(length));
            self.file.write_all_at(piece, at)?;
            rest = behind;
        }
        Ok(())
    }

    /// The pieces of the file that have these bytes: offset and length.
    pub fn pieces(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let start = self.start;
        let pieces = self.map.pieces(self.writer, offset, bytes);
        pieces.map(move |(at, length)| (at.saturating_add(start), length))
    }
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a part of memory")
}
