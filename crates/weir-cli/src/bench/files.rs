//! What a worker with the client injected does to files: by the C library's calls, as any program.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use weir_bench::parts::{Content, Mismatch, WrongData};

use super::wire::{Data, Done, NameCall};

/// What is left to be done when all are ready.
pub type Prepared<'a> = Box<dyn FnOnce() -> Result<Done> + 'a>;

/// Opens for writing; the file stays in `open`.
pub fn write<'a>(data: &'a Data, open: &'a mut Option<File>) -> Result<Prepared<'a>> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true);
    let file = file
        .open(&data.path)
        .with_context(|| format!("creating {}", data.path.display()))?;
    let content = content(data)?;
    let file = open.insert(file);
    Ok(Box::new(move || {
        let size = size(data.size)?;
        let begin = Instant::now();
        for offset in data.offsets() {
            let at = content.position(offset);
            file.write_all_at(&content.bytes()[at..at + size], offset)?;
        }
        Ok(done(begin, data.bytes(), data.count))
    }))
}

/// Makes known what was written.
pub fn publish(open: &mut Option<File>) -> Prepared<'_> {
    Box::new(move || {
        let file = open.take().context("nothing is open")?;
        let begin = Instant::now();
        file.sync_all()?;
        drop(file);
        Ok(done(begin, 0, 1))
    })
}

/// Opens for reading, and makes the buffers.
pub fn read(data: &Data, check: bool) -> Result<Prepared<'_>> {
    let file = File::open(&data.path).with_context(|| data.path.display().to_string())?;
    let content = check.then(|| content(data)).transpose()?;
    let mut buffer = vec![1; size(data.size * data.list)?];
    Ok(Box::new(move || {
        let offsets: Vec<u64> = data.offsets().collect();
        let size = size(data.size)?;
        let begin = Instant::now();
        for list in offsets.chunks(usize::try_from(data.list)?) {
            let bytes = &mut buffer[..list.len() * size];
            match list {
                [offset] => file.read_exact_at(bytes, *offset)?,
                _ => read_list(&file, list, bytes, size)?,
            }
            let Some(content) = &content else { continue };
            for (offset, piece) in list.iter().zip(bytes.chunks(size)) {
                content
                    .check(*offset, piece)
                    .map_err(|wrong| differs(&data.path, wrong))?;
            }
        }
        Ok(done(begin, data.bytes(), data.count))
    }))
}

pub(super) fn differs(path: &Path, wrong: Mismatch) -> WrongData {
    WrongData(format!(
        "{}: byte {} is {:#04x}, and {:#04x} was written",
        path.display(),
        wrong.offset,
        wrong.found,
        wrong.expected
    ))
}

/// One `lio_listio` of pieces of `size` bytes.
fn read_list(file: &File, offsets: &[u64], bytes: &mut [u8], size: usize) -> Result<()> {
    let block = |(offset, piece): (&u64, &mut [u8])| {
        // SAFETY: a control block of zeros is one that asks for nothing yet.
        let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
        block.aio_fildes = file.as_raw_fd();
        block.aio_lio_opcode = libc::LIO_READ;
        block.aio_buf = piece.as_mut_ptr().cast();
        block.aio_nbytes = piece.len();
        block.aio_offset = i64::try_from(*offset)?;
        Ok(block)
    };
    let pieces = offsets.iter().zip(bytes.chunks_mut(size));
    let mut blocks: Vec<libc::aiocb> = pieces.map(block).collect::<Result<_>>()?;
    let pointers: Vec<*mut libc::aiocb> = blocks.iter_mut().map(|b| &raw mut *b).collect();
    let count = libc::c_int::try_from(pointers.len())?;
    let none = std::ptr::null_mut();
    // SAFETY: blocks and their buffers live until all is done, for which this waits.
    let failed = unsafe { libc::lio_listio(libc::LIO_WAIT, pointers.as_ptr(), count, none) };
    ensure!(
        failed == 0,
        "lio_listio: {}",
        std::io::Error::last_os_error()
    );
    for block in &mut blocks {
        // SAFETY: the list is done, and its result is asked for once.
        let read = unsafe { libc::aio_return(&raw mut *block) };
        ensure!(
            usize::try_from(read) == Ok(size),
            "lio_listio read {read} bytes of {size}"
        );
    }
    Ok(())
}

/// One call for each of some files.
pub fn names(call: NameCall, directory: &Path, first: u64, files: u64) -> Prepared<'_> {
    let path = |number: u64| directory.join(format!("f{number}"));
    Box::new(move || {
        let begin = Instant::now();
        for number in first..first + files {
            let path = path(number);
            let made = match call {
                NameCall::Create => File::create_new(&path).map(drop),
                NameCall::Stat => fs::symlink_metadata(&path).map(drop),
                NameCall::Open => File::open(&path).map(drop),
                NameCall::Remove => fs::remove_file(&path),
            };
            made.with_context(|| format!("{call:?} {}", path.display()))?;
        }
        Ok(done(begin, 0, files))
    })
}

/// Makes a directory.
pub fn make_directory(path: &Path) -> Prepared<'_> {
    Box::new(move || {
        let begin = Instant::now();
        fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        Ok(done(begin, 0, 1))
    })
}

/// Sets the visibility of files that are made in a directory.
pub fn set_visibility<'a>(directory: &'a Path, visibility: &'a str) -> Prepared<'a> {
    Box::new(move || {
        let begin = Instant::now();
        let path = CString::new(directory.as_os_str().as_bytes())?;
        let (name, value) = (c"user.weir.visibility", visibility.as_bytes());
        // SAFETY: path and name end with a zero byte, and `value` has as many bytes as is said.
        let failed = unsafe {
            libc::setxattr(
                path.as_ptr(),
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                0,
            )
        };
        ensure!(
            failed == 0,
            "{}: setting the visibility: {}",
            directory.display(),
            std::io::Error::last_os_error()
        );
        Ok(done(begin, 0, 1))
    })
}

/// Removes a file or a tree.
pub fn remove(path: &Path) -> Prepared<'_> {
    Box::new(move || {
        let begin = Instant::now();
        let removed = match fs::symlink_metadata(path)?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        removed.with_context(|| path.display().to_string())?;
        Ok(done(begin, 0, 1))
    })
}

/// What was done since `begin`.
pub fn done(begin: Instant, bytes: u64, calls: u64) -> Done {
    Done {
        seconds: begin.elapsed().as_secs_f64(),
        bytes,
        calls,
    }
}

pub(super) fn content(data: &Data) -> Result<Content> {
    Ok(Content::new(data.seed, size(data.size)?, false)?)
}

pub(super) fn size(bytes: u64) -> Result<usize> {
    Ok(usize::try_from(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data {
            path: dir.path().join("f"),
            first: 4096,
            stride: 3 * 4096,
            count: 10,
            size: 4096,
            list: 1,
            seed: 7,
        };
        let mut open = None;
        let wrote = write(&data, &mut open).unwrap()().unwrap();
        assert_eq!((wrote.bytes, wrote.calls), (40_960, 10));
        publish(&mut open)().unwrap();
        assert!(publish(&mut open)().is_err());
        for list in [1, 4] {
            let data = Data {
                list,
                ..data.clone()
            };
            assert_eq!(read(&data, true).unwrap()().unwrap().bytes, 40_960);
            let other = Data { seed: 8, ..data };
            let wrong = read(&other, true).unwrap()().unwrap_err();
            assert!(wrong.to_string().contains("byte 4096 is"), "{wrong}");
        }
        let beyond = Data { count: 11, ..data };
        assert!(read(&beyond, false).unwrap()().is_err());
        names(NameCall::Create, dir.path(), 5, 2)().unwrap();
        assert!(dir.path().join("f6").exists());
        assert!(
            names(NameCall::Create, dir.path(), 6, 1)().is_err(),
            "a name that is there is not made again"
        );
        for (call, files) in [
            (NameCall::Stat, 2),
            (NameCall::Open, 2),
            (NameCall::Remove, 1),
        ] {
            assert_eq!(names(call, dir.path(), 5, files)().unwrap().calls, files);
        }
        let gone = names(NameCall::Stat, dir.path(), 5, 1)().unwrap_err();
        assert!(gone.to_string().ends_with("f5"), "{gone}");
        let nowhere = dir.path().join("nowhere");
        let refused = set_visibility(&nowhere, "raw")().unwrap_err().to_string();
        assert!(
            refused.contains("nowhere: setting the visibility"),
            "{refused}"
        );
    }
}
