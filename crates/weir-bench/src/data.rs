//! Data steps of a worker: the loops of `pwrite` and `pread` that are measured.
//!
//! Calls go through the C library's symbols, as an application's do, so that a preloaded file system sees
//! them. Between two calls there are a few additions and a compare: less than a nanosecond.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::error::{call_error, failed, StepError};
use crate::layout::{StridedTransfers, TransferSequence};
use crate::memory::Buffer;
use crate::pieces::FilePieces;
use crate::timing::{now_ns, timed, timing_since, Prepared, Timing};

/// The end of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterWrite {
    /// `close`, in the measured time.
    Close,
    /// `fsync` and `close`, in the measured time.
    Sync,
    /// Nothing: the file stays open for a step of its own.
    KeepOpen,
}

/// An offset as the calls take it; sizes are checked on the command line to fit.
#[allow(clippy::cast_possible_wrap)] // Below 2^63, as said.
fn place_in_file(offset: u64) -> libc::off_t {
    offset as libc::off_t
}

/// An open file and its path, for messages.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
}

impl OpenFile {
    fn open(data: &FilePieces, access: &mut OpenOptions) -> Result<OpenFile, StepError> {
        let direct = if data.direct { libc::O_DIRECT } else { 0 };
        let opened = access.mode(0o600).custom_flags(direct).open(&data.path);
        Ok(OpenFile {
            file: opened.map_err(call_error("open", &data.path))?,
            path: data.path.clone(),
        })
    }

    /// Closes the file, which may carry work and errors.
    fn close(self) -> Result<(), StepError> {
        // SAFETY: the descriptor is given up here, and only here.
        match unsafe { libc::close(self.file.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(failed("close", &self.path)),
        }
    }

    fn sync(&self) -> Result<(), StepError> {
        self.file
            .sync_all()
            .map_err(call_error("fsync", &self.path))
    }

    /// The bytes that a call moved before it ended early, which is legal and rare.
    fn moved(&self, call: &'static str, result: isize) -> Result<usize, StepError> {
        match usize::try_from(result) {
            Ok(moved) => Ok(moved),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(_) => Err(failed(call, &self.path)),
        }
    }
}

/// Opens for writing. A file that stays open is put into `kept`.
pub fn write<'a>(
    data: &'a FilePieces,
    after: AfterWrite,
    kept: &'a mut Option<OpenFile>,
) -> anyhow::Result<Prepared<'a>> {
    let file = OpenFile::open(data, OpenOptions::new().write(true).create(true))?;
    let content = Content::new(data.seed, data.size()?, data.direct)?;
    let walk = data.sequence();
    Ok(Box::new(move || {
        let start_ns = now_ns();
        write_walk(&file, &walk, &content)?;
        match after {
            AfterWrite::Close => file.close()?,
            AfterWrite::Sync => {
                file.sync()?;
                file.close()?;
            }
            AfterWrite::KeepOpen => *kept = Some(file),
        }
        Ok(timing(start_ns, data, &walk))
    }))
}

/// Opens a new file, writes it and closes it, all in the measured time.
pub fn create(data: &FilePieces) -> anyhow::Result<Prepared<'_>> {
    let content = Content::new(data.seed, data.size()?, data.direct)?;
    let walk = data.sequence();
    Ok(Box::new(move || {
        let start_ns = now_ns();
        let file = OpenFile::open(data, OpenOptions::new().write(true).create_new(true))?;
        write_walk(&file, &walk, &content)?;
        file.close()?;
        Ok(timing(start_ns, data, &walk))
    }))
}

/// `fsync` and `close` of the file that a write left open.
pub fn publish(kept: &mut Option<OpenFile>) -> Prepared<'_> {
    timed(move || {
        let file = kept.take().context("nothing is open")?;
        file.sync()?;
        Ok(file.close()?)
    })
}

/// Opens for reading, and makes the buffers. `compares`: each byte is compared with what was written.
pub fn read(data: &FilePieces, compares: bool) -> anyhow::Result<Prepared<'_>> {
    let file = OpenFile::open(data, OpenOptions::new().read(true))?;
    let content = compares
        .then(|| Content::new(data.seed, data.size()?, data.direct).map_err(anyhow::Error::from));
    let content = content.transpose()?;
    let walk = data.sequence();
    let list = usize::try_from(data.list)?;
    let size = data.size()?;
    let mut buffer = Buffer::new(size * list)?;
    let listed = (list > 1).then(|| walk.offsets());
    Ok(Box::new(move || {
        let start_ns = now_ns();
        match (&listed, &content) {
            (Some(offsets), content) => {
                for list in offsets.chunks(list) {
                    read_list(&file, list, size, buffer.bytes_mut(), content.as_ref())?;
                }
            }
            (None, None) => read_walk(&file, &walk, &mut buffer)?,
            (None, Some(content)) => verify_walk(&file, &walk, content, &mut buffer)?,
        }
        file.close()?;
        Ok(timing(start_ns, data, &walk))
    }))
}

fn timing(start_ns: u64, data: &FilePieces, walk: &TransferSequence) -> Timing {
    let transfers = walk.transfers();
    timing_since(start_ns, transfers * data.size, transfers)
}

/// One `lio_listio` of pieces of `size` bytes, which are compared with `content` if that is given.
fn read_list(
    file: &OpenFile,
    offsets: &[u64],
    size: usize,
    buffer: &mut [u8],
    content: Option<&Content>,
) -> anyhow::Result<()> {
    let buffer = &mut buffer[..offsets.len() * size];
    read_pieces(file, offsets, buffer, size)?;
    let Some(content) = content else {
        return Ok(());
    };
    for (offset, piece) in offsets.iter().zip(buffer.chunks(size)) {
        compare(file, content, *offset, piece)?;
    }
    Ok(())
}

fn compare(file: &OpenFile, content: &Content, offset: u64, piece: &[u8]) -> Result<(), StepError> {
    let compared = content.check(offset, piece);
    compared.map_err(|found| StepError::WrongData {
        path: file.path.clone(),
        found,
    })
}

/// One `lio_listio` of pieces of `size` bytes.
fn read_pieces(
    file: &OpenFile,
    offsets: &[u64],
    bytes: &mut [u8],
    size: usize,
) -> anyhow::Result<()> {
    let block = |(offset, piece): (&u64, &mut [u8])| {
        // SAFETY: a control block of zeros is one that asks for nothing yet.
        let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
        block.aio_fildes = file.file.as_raw_fd();
        block.aio_lio_opcode = libc::LIO_READ;
        block.aio_buf = piece.as_mut_ptr().cast();
        block.aio_nbytes = piece.len();
        block.aio_offset = i64::try_from(*offset)?;
        Ok(block)
    };
    let pieces = offsets.iter().zip(bytes.chunks_mut(size));
    let mut blocks: Vec<libc::aiocb> = pieces.map(block).collect::<anyhow::Result<_>>()?;
    let pointers: Vec<*mut libc::aiocb> = blocks.iter_mut().map(|b| &raw mut *b).collect();
    let count = libc::c_int::try_from(pointers.len())?;
    let none = std::ptr::null_mut();
    // SAFETY: blocks and their buffers live until all is done, for which this waits.
    let failed = unsafe { libc::lio_listio(libc::LIO_WAIT, pointers.as_ptr(), count, none) };
    anyhow::ensure!(failed == 0, "lio_listio: {}", io::Error::last_os_error());
    for block in &mut blocks {
        // SAFETY: the list is done, and its result is asked for once.
        let read = unsafe { libc::aio_return(&raw mut *block) };
        anyhow::ensure!(
            usize::try_from(read) == Ok(size),
            "lio_listio read {read} bytes of {size}"
        );
    }
    Ok(())
}

fn write_walk(
    target: &OpenFile,
    walk: &TransferSequence,
    content: &Content,
) -> Result<(), StepError> {
    match walk {
        TransferSequence::Runs(runs) => runs
            .iter()
            .try_for_each(|run| write_run(target, run, content)),
        TransferSequence::Scattered(offsets) => {
            let (fd, source) = (target.file.as_raw_fd(), content.bytes());
            for &offset in offsets {
                let position = content.position(offset);
                if let Err(done) = write_one(fd, offset, source, position, content.transfer()) {
                    write_rest(target, offset, done, content)?;
                }
            }
            Ok(())
        }
    }
}

fn write_run(
    target: &OpenFile,
    run: &StridedTransfers,
    content: &Content,
) -> Result<(), StepError> {
    // Taken out of their structures here, since the compiler must suppose that a call changes those.
    let (fd, source, length) = (target.file.as_raw_fd(), content.bytes(), content.transfer());
    let (period, step) = (content.period(), content.position(run.stride));
    let (mut offset, mut position) = (run.first, content.position(run.first));
    for _ in 0..run.count {
        if let Err(done) = write_one(fd, offset, source, position, length) {
            write_rest(target, offset, done, content)?;
        }
        offset += run.stride;
        position += step;
        if position >= period {
            position -= period;
        }
    }
    Ok(())
}

/// One write of a whole transfer; what the call returned if it was not whole.
#[inline]
fn write_one(
    fd: RawFd,
    offset: u64,
    source: &[u8],
    position: usize,
    length: usize,
) -> Result<(), isize> {
    debug_assert!(position + length <= source.len());
    // SAFETY: `length` bytes follow every position below the period (see `content`).
    let done = unsafe {
        let from = source.as_ptr().add(position);
        libc::pwrite(fd, from.cast(), length, place_in_file(offset))
    };
    if usize::try_from(done) == Ok(length) {
        Ok(())
    } else {
        Err(done)
    }
}

/// The rest of a transfer after a short write.
#[cold]
fn write_rest(
    target: &OpenFile,
    offset: u64,
    first: isize,
    content: &Content,
) -> Result<(), StepError> {
    let done = target.moved("pwrite", first)?;
    let position = content.position(offset);
    let rest = &content.bytes()[position + done..position + content.transfer()];
    let written = target.file.write_all_at(rest, offset + done as u64);
    written.map_err(call_error("pwrite", &target.path))
}

fn read_walk(
    target: &OpenFile,
    walk: &TransferSequence,
    buffer: &mut Buffer,
) -> Result<(), StepError> {
    for_each_offset(walk, |offset| read_one(target, offset, buffer.bytes_mut()))
}

fn verify_walk(
    target: &OpenFile,
    walk: &TransferSequence,
    content: &Content,
    buffer: &mut Buffer,
) -> Result<(), StepError> {
    for_each_offset(walk, |offset| {
        read_one(target, offset, buffer.bytes_mut())?;
        compare(target, content, offset, buffer.bytes())
    })
}

#[inline]
fn for_each_offset(
    walk: &TransferSequence,
    mut each: impl FnMut(u64) -> Result<(), StepError>,
) -> Result<(), StepError> {
    match walk {
        TransferSequence::Scattered(offsets) => offsets.iter().try_for_each(|&offset| each(offset)),
        TransferSequence::Runs(runs) => runs.iter().try_for_each(|run| {
            let mut offset = run.first;
            for _ in 0..run.count {
                each(offset)?;
                offset += run.stride;
            }
            Ok(())
        }),
    }
}

/// Reads a whole transfer at `offset`.
#[inline]
fn read_one(target: &OpenFile, offset: u64, buffer: &mut [u8]) -> Result<(), StepError> {
    let (fd, at) = (target.file.as_raw_fd(), place_in_file(offset));
    // SAFETY: `buffer` is a valid slice.
    let done = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), at) };
    if usize::try_from(done) == Ok(buffer.len()) {
        return Ok(());
    }
    read_rest(target, offset, done, buffer)
}

/// The rest of a transfer after a short read.
#[cold]
fn read_rest(
    target: &OpenFile,
    offset: u64,
    first: isize,
    buffer: &mut [u8],
) -> Result<(), StepError> {
    let done = target.moved("pread", first)?;
    let read = target
        .file
        .read_exact_at(&mut buffer[done..], offset + done as u64);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => StepError::EndOfFile {
            path: target.path.clone(),
            offset: offset.max(target.file.metadata().map_or(0, |found| found.len())),
        },
        _ => call_error("pread", &target.path)(error),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::layout::{Layout, Pattern};
    use crate::pieces::Offsets;

    fn data(path: &Path, seed: u64) -> FilePieces {
        let layout = Layout {
            pattern: Pattern::Random,
            ranks: 1,
            transfer: 47_008,
            block: 47_008 * 20,
            segments: 1,
            seed: 3,
        };
        FilePieces {
            offsets: Offsets::Share { layout, rank: 0 },
            ..FilePieces::contiguous(path, 0, 47_008, 47_008, seed)
        }
    }

    fn wrong(data: &FilePieces) -> StepError {
        let error = read(data, true).unwrap()().unwrap_err();
        error.downcast().unwrap()
    }

    #[test]
    fn one_corrupted_byte_is_found_at_its_offset() {
        let path = std::env::temp_dir().join(format!("weir-bench-data-{}", std::process::id()));
        let ours = data(&path, 9);
        let written = write(&ours, AfterWrite::Sync, &mut None).unwrap()().unwrap();
        assert_eq!((written.bytes, written.ops), (47_008 * 20, 20));
        read(&ours, true).unwrap()().unwrap();
        assert!(matches!(
            wrong(&data(&path, 10)),
            StepError::WrongData { .. }
        ));

        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 123_456).unwrap();
        file.write_all_at(&[byte[0] ^ 0x80], 123_456).unwrap();
        let error = wrong(&ours);
        assert!(matches!(&error, StepError::WrongData { found, .. } if found.offset == 123_456));
        assert!(
            error.to_string().contains("wrong data at offset 123456"),
            "{error}"
        );

        file.set_len(47_008 * 7).unwrap();
        let error = read(&ours, false).unwrap()().unwrap_err();
        let error: StepError = error.downcast().unwrap();
        assert!(matches!(error, StepError::EndOfFile { .. }));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_stays_open_is_published_once_and_read_in_lists() {
        let path = std::env::temp_dir().join(format!("weir-bench-list-{}", std::process::id()));
        let ours = FilePieces {
            size: 4096,
            ..data(&path, 7).spread(4096, 3 * 4096, 10)
        };
        let mut kept = None;
        let wrote = write(&ours, AfterWrite::KeepOpen, &mut kept).unwrap()().unwrap();
        assert_eq!((wrote.bytes, wrote.ops), (40_960, 10));
        publish(&mut kept)().unwrap();
        assert!(publish(&mut kept)().is_err());
        for list in [1, 4] {
            let ours = FilePieces {
                list,
                ..ours.clone()
            };
            assert_eq!(read(&ours, true).unwrap()().unwrap().bytes, 40_960);
            let other = FilePieces { seed: 8, ..ours };
            let error = wrong(&other);
            assert!(error.to_string().contains("offset 4096"), "{error}");
        }
        let beyond = ours.spread(4096, 3 * 4096, 11);
        assert!(read(&beyond, false).unwrap()().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
