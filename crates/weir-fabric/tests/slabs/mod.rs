//! A log source and landings of plain vectors, for tests and benchmarks.

use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::Sender;
use std::sync::Arc;

use socket2::SockRef;
use weir_fabric::bulk::{Landing, LogSource, Medium, Piece, ReadError};

/// A slab in memory, number 0, and one on storage, number 1, with the same bytes.
pub struct Slabs(pub Arc<Vec<u8>>);

impl Slabs {
    fn bytes(&self, piece: &Piece) -> Option<&[u8]> {
        let from = usize::try_from(piece.pos).ok()?;
        let to = from.checked_add(usize::try_from(piece.len).ok()?)?;
        (piece.slab < 2).then_some(())?;
        self.0.get(from..to)
    }
}

impl LogSource for Slabs {
    fn find(&self, piece: &Piece) -> Option<Medium> {
        self.bytes(piece)?;
        Some(if piece.slab == 0 {
            Medium::Memory
        } else {
            Medium::Storage
        })
    }

    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize> {
        let pieces: Vec<Piece> = pieces.take(500).collect();
        let mut slices = vec![io::IoSlice::new(head)];
        for piece in &pieces {
            slices.push(io::IoSlice::new(
                self.bytes(piece).ok_or(io::ErrorKind::NotFound)?,
            ));
        }
        SockRef::from(&to).send_vectored(&slices)
    }

    fn copy(&self, piece: &Piece, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(self.bytes(piece).ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }
}

/// A landing that hands its vector back at the end, with a number to identify it.
pub struct VecLanding {
    pub number: usize,
    pub bytes: Vec<u8>,
    pub back: Sender<(usize, Vec<u8>, Result<(), ReadError>)>,
}

impl Landing for VecLanding {
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize> {
        (&*SockRef::from(&from)).read(&mut self.bytes[at..at + most])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn finish(self: Box<Self>, result: Result<(), ReadError>) {
        let _ = self.back.send((self.number, self.bytes, result));
    }
}
