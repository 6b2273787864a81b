//! Lists: one call reads or writes many ranges of many files.
//!
//! The data path gets the reads of one file together: one look-up, and one request to each other
//! node (design 4: batches stay batches). Files named by path are opened once a list.

use rustix::io::Errno;

use super::current;
use crate::data::Target;
use crate::kernel::Fd;
use crate::process::Process;

const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;

/// The file of a piece.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Whence<'a> {
    /// A descriptor of weir's.
    Fd(Fd),
    /// The path of a file.
    Path(&'a [u8]),
}

/// A piece of a file, to be read into `bytes` or written from them.
#[derive(Debug)]
pub struct Piece<'a, B> {
    /// The file.
    pub whence: Whence<'a>,
    /// The offset in the file.
    pub offset: u64,
    /// The memory.
    pub bytes: B,
    /// The number of bytes moved, fewer at the end of the file (a read) or if room ended (a write);
    /// or the error, if none was.
    pub done: Result<usize, Errno>,
}

/// Reads all pieces. The error is that of the first piece, in the list's order, that has one; the
/// others are read all the same. EINVAL, with nothing done: an offset that no file has.
pub fn read_list(pieces: &mut [Piece<'_, &mut [u8]>]) -> Result<(), Errno> {
    by_file(pieces, O_RDONLY, |piece| piece.bytes.len(), read_one)
}

/// Writes all pieces, those of one file in the list's order; otherwise as [`read_list`]. Through a
/// descriptor with O_APPEND they are appended.
pub fn write_list(pieces: &mut [Piece<'_, &[u8]>]) -> Result<(), Errno> {
    let length = |piece: &Piece<'_, &[u8]>| piece.bytes.len();
    by_file(pieces, O_WRONLY, length, |process, fd, group| {
        for piece in group {
            let offset = piece.offset.cast_signed();
            let written = process.io.pwrite(fd, piece.bytes, offset);
            piece.done = written.unwrap_or(Err(Errno::BADF));
        }
    })
}

/// Does `work` on the pieces of each file; opens a file named by path with `flags` for it.
fn by_file<B>(
    pieces: &mut [Piece<'_, B>],
    flags: i32,
    length: impl Fn(&Piece<'_, B>) -> usize,
    work: impl Fn(&'static Process, Fd, &mut [&mut Piece<'_, B>]),
) -> Result<(), Errno> {
    let process = current()?;
    check(pieces.iter().map(|piece| (piece.offset, length(piece))))?;
    let mut sorted: Vec<&mut Piece<'_, B>> = pieces.iter_mut().collect();
    sorted.sort_by_key(|piece| piece.whence);
    for group in sorted.chunk_by_mut(|one, next| one.whence == next.whence) {
        let done = match group[0].whence {
            Whence::Fd(fd) if process.descriptors.is_ours(fd) => {
                work(process, fd, group);
                Ok(())
            }
            Whence::Fd(_) => Err(Errno::BADF),
            Whence::Path(path) => process.library.open_at(path, flags, 0).and_then(|fd| {
                work(process, fd, group);
                process.descriptors.close(fd).unwrap_or(Err(Errno::BADF))
            }),
        };
        if let Err(error) = done {
            for piece in group {
                piece.done = Err(error);
            }
        }
    }
    pieces.iter().try_for_each(|piece| piece.done.map(|_| ()))
}

/// Reads the pieces of one file at once; if that fails, one by one.
fn read_one(process: &'static Process, fd: Fd, group: &mut [&mut Piece<'_, &mut [u8]>]) {
    if let Ok(()) = read_together(process, fd, group) {
        return;
    }
    for piece in group {
        let alone = core::slice::from_mut(piece);
        if let Err(error) = read_together(process, fd, alone) {
            alone[0].done = Err(error);
        }
    }
}

fn read_together(
    process: &'static Process,
    fd: Fd,
    group: &mut [&mut Piece<'_, &mut [u8]>],
) -> Result<(), Errno> {
    let mut targets = Vec::with_capacity(group.len());
    for piece in group.iter_mut() {
        let (offset, bytes) = (piece.offset, &mut piece.bytes[..]);
        targets.push(Target { offset, bytes });
    }
    let read = process.io.read_all(fd, &mut targets);
    read.unwrap_or(Err(Errno::BADF))?;
    let lengths: Vec<usize> = targets.iter().map(|target| target.bytes.len()).collect();
    for (piece, length) in group.iter_mut().zip(lengths) {
        piece.done = Ok(length);
    }
    Ok(())
}

fn check(mut ranges: impl Iterator<Item = (u64, usize)>) -> Result<(), Errno> {
    let fits = |(offset, length): (u64, usize)| {
        let end = offset.checked_add(length as u64);
        end.is_some_and(|end| i64::try_from(end).is_ok())
    };
    ranges.all(fits).then_some(()).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_file_has_is_refused() {
        let most = i64::MAX.unsigned_abs();
        assert_eq!(check([(0, 0), (most - 1, 1)].into_iter()), Ok(()));
        assert_eq!(check([(most, 1)].into_iter()), Err(Errno::INVAL));
        assert_eq!(check([(u64::MAX, 1)].into_iter()), Err(Errno::INVAL));
        assert_eq!(check([(0, usize::MAX)].into_iter()), Err(Errno::INVAL));
    }
}
