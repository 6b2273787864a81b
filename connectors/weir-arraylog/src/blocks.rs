//! The bytes of one writer in a file of a log. Its blocks alternate with those of the other writers ([`BlockMap`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use weir_arrays::log::BlockMap;

/// The blocks of one writer in one file.
#[derive(Debug)]
pub struct WriterBlocks {
    /// The file.
    pub file: File,
    /// The layout of the writers' blocks.
    pub map: BlockMap,
    /// This writer's number among them.
    pub writer: u32,
    /// Where the first block of the file begins, bytes.
    pub start: u64,
}

impl WriterBlocks {
    /// Reads the writer's bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// Errors of read(2). `UnexpectedEof`: the file ends before the last byte.
    pub fn read_exact(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, length) in self.pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(in_memory(length));
            self.file.read_exact_at(piece, at)?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes the writer's bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// Errors of write(2).
    pub fn write_all(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, length) in self.pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at(in_memory(length));
            self.file.write_all_at(piece, at)?;
            rest = behind;
        }
        Ok(())
    }

    /// The pieces of the file that hold these bytes of the writer: offset and length.
    pub fn pieces(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let start = self.start;
        let pieces = self.map.pieces(self.writer, offset, bytes);
        pieces.map(move |(at, length)| (at.saturating_add(start), length))
    }
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a part of memory")
}
