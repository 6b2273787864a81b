//! The server's own slabs for other servers, sent straight from the mappings.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use weir_fabric::bulk::{LogSource, Medium, Piece};
use weir_store::slab::{SlabId, Tier, SLAB_BYTES};
use weir_store::slabmap::{SlabMap, Window};
use weir_store::socket;

/// The server's slabs.
pub struct OwnSlabs(pub Arc<SlabMap>);

impl OwnSlabs {
    fn window(&self, piece: &Piece) -> io::Result<Window> {
        let slab = SlabId::from_raw(piece.slab).ok_or(io::ErrorKind::NotFound)?;
        self.0
            .window(slab, piece.pos, piece.len.into())
            .map_err(error)
    }
}

impl LogSource for OwnSlabs {
    fn find(&self, piece: &Piece) -> Option<Medium> {
        let slab = SlabId::from_raw(piece.slab)?;
        match slab.tier() {
            Tier::Memory => self.window(piece).ok().map(|_| Medium::Memory),
            Tier::File => {
                let end = piece.pos.checked_add(piece.len.into())?;
                (end <= SLAB_BYTES).then_some(Medium::Storage)
            }
        }
    }

    fn send(
        &self,
        to: BorrowedFd<'_>,
        head: &[u8],
        pieces: &mut dyn Iterator<Item = Piece>,
    ) -> io::Result<usize> {
        socket::send(to, head, pieces.map(|piece| self.window(&piece)))
    }

    fn copy(&self, piece: &Piece, out: &mut [u8]) -> io::Result<()> {
        let slab = SlabId::from_raw(piece.slab).ok_or(io::ErrorKind::NotFound)?;
        self.0.read_at(slab, piece.pos, out).map_err(error)
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}
