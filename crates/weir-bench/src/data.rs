//! Data steps of a worker: the loops of `pwrite` and `pread` that are measured.
//!
//! Calls go through the C library's symbols, as an application's do, so that a preloaded file system sees
//! them. Between two calls there are a few additions and a compare: less than a nanosecond.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::content::{Content, Mismatch};
use crate::control::{Aborted, Control};
use crate::job::{DataOp, DataStep, Timing};
use crate::layout::{Run, Walk};
use crate::memory::Buffer;
use crate::worker::now_ns;

/// Why a data or metadata step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A call failed.
    #[error("{call} {path}: {source}", path = path.display())]
    Call {
        /// The call.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Fewer bytes than the file should have.
    #[error("{path}: end of file at offset {offset}, where data was written", path = path.display())]
    EndOfFile {
        /// The file.
        path: PathBuf,
        /// Where the file ended, in bytes.
        offset: u64,
    },
    /// A byte that is not what was written.
    #[error("{path}: wrong data at offset {}: found {:#04x}, wrote {:#04x}{}", found.offset, found.found,
        found.expected, place(found), path = path.display())]
    WrongData {
        /// The file.
        path: PathBuf,
        /// The first wrong byte.
        found: Mismatch,
    },
    /// Memory for buffers.
    #[error("buffers: {0}")]
    Memory(#[from] io::Error),
    /// Another process failed.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

fn place(found: &Mismatch) -> String {
    match found.belongs_at {
        Some(at) => {
            format!(" (a misplaced piece: these bytes belong at {at} modulo the content's period)")
        }
        None => String::new(),
    }
}

/// An offset as the calls take it; sizes are checked on the command line to fit.
#[allow(clippy::cast_possible_wrap)] // Below 2^63, as said.
fn place_in_file(offset: u64) -> libc::off_t {
    offset as libc::off_t
}

/// An open file and its path, for messages.
struct Target<'a> {
    fd: OwnedFd,
    path: &'a Path,
}

impl Target<'_> {
    fn error(&self, call: &'static str) -> StepError {
        failed(call, self.path)
    }
}

/// The error of the call that has just failed.
pub fn failed(call: &'static str, path: &Path) -> StepError {
    StepError::Call {
        call,
        path: path.to_owned(),
        source: io::Error::last_os_error(),
    }
}

/// A path for a C call.
pub fn c_path(path: &Path) -> Result<CString, StepError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| StepError::Call {
        call: "open",
        path: path.to_owned(),
        source: e.into(),
    })
}

/// Does `step` for `rank`.
pub fn run(step: &DataStep, rank: u32, control: &Control) -> Result<Timing, StepError> {
    let layout = &step.layout;
    let acts_for = (rank + step.shift) % layout.ranks;
    let shared = layout.pattern.is_shared();
    let which = if shared { 0 } else { acts_for };
    let walk = layout.walk(acts_for);
    let transfer = usize::try_from(layout.transfer).expect("checked by the coordinator");
    let content = Content::new(
        step.seed.wrapping_add(u64::from(which)),
        transfer,
        step.direct,
    )?;
    let mut buffer = Buffer::new(transfer)?;
    let target = open(step, &step.paths[which as usize])?;

    control.barrier()?;
    let start_ns = now_ns();
    match step.op {
        DataOp::Write => write_walk(&target, &walk, &content)?,
        DataOp::Read => read_walk(&target, &walk, &mut buffer)?,
        DataOp::Verify => verify_walk(&target, &walk, &content, &mut buffer)?,
    }
    finish(step, target)?;
    Ok(Timing {
        start_ns,
        end_ns: now_ns(),
        bytes: walk.transfers() * layout.transfer,
        ops: walk.transfers(),
    })
}

fn open<'a>(step: &DataStep, path: &'a Path) -> Result<Target<'a>, StepError> {
    let access = match step.op {
        DataOp::Write => libc::O_WRONLY | libc::O_CREAT,
        DataOp::Read | DataOp::Verify => libc::O_RDONLY,
    };
    let direct = if step.direct { libc::O_DIRECT } else { 0 };
    let name = c_path(path)?;
    // SAFETY: the path is nul-terminated.
    let fd = unsafe { libc::open(name.as_ptr(), access | direct | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(failed("open", path));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Target { fd, path })
}

/// The end of the measured time: data on the device if asked for, and close, which may carry work and errors.
fn finish(step: &DataStep, target: Target<'_>) -> Result<(), StepError> {
    // SAFETY: no memory is involved.
    if step.fsync && unsafe { libc::fsync(target.fd.as_raw_fd()) } != 0 {
        return Err(target.error("fsync"));
    }
    // SAFETY: the descriptor is given up here, and only here.
    if unsafe { libc::close(target.fd.into_raw_fd()) } != 0 {
        return Err(failed("close", target.path));
    }
    Ok(())
}

fn write_walk(target: &Target<'_>, walk: &Walk, content: &Content) -> Result<(), StepError> {
    match walk {
        Walk::Runs(runs) => runs
            .iter()
            .try_for_each(|run| write_run(target, run, content)),
        Walk::Scattered(offsets) => {
            let (fd, source) = (target.fd.as_raw_fd(), content.bytes());
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

fn write_run(target: &Target<'_>, run: &Run, content: &Content) -> Result<(), StepError> {
    // Taken out of their structures here, since the compiler must suppose that a call changes those.
    let (fd, source, length) = (target.fd.as_raw_fd(), content.bytes(), content.transfer());
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

/// The rest of a transfer after a short write, which is legal and rare.
#[cold]
fn write_rest(
    target: &Target<'_>,
    offset: u64,
    first: isize,
    content: &Content,
) -> Result<(), StepError> {
    let position = content.position(offset);
    let mut rest = &content.bytes()[position..position + content.transfer()];
    let mut done = first;
    loop {
        if done == 0 {
            return Err(StepError::Call {
                call: "pwrite",
                path: target.path.to_owned(),
                source: io::ErrorKind::WriteZero.into(),
            });
        }
        if done < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(target.error("pwrite"));
        }
        rest = &rest[usize::try_from(done).unwrap_or(0)..];
        if rest.is_empty() {
            return Ok(());
        }
        let at = offset + (content.transfer() - rest.len()) as u64;
        let fd = target.fd.as_raw_fd();
        // SAFETY: `rest` is a valid slice.
        done = unsafe { libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), place_in_file(at)) };
    }
}

fn read_walk(target: &Target<'_>, walk: &Walk, buffer: &mut Buffer) -> Result<(), StepError> {
    for_each_offset(walk, |offset| read_one(target, offset, buffer.bytes_mut()))
}

fn verify_walk(
    target: &Target<'_>,
    walk: &Walk,
    content: &Content,
    buffer: &mut Buffer,
) -> Result<(), StepError> {
    for_each_offset(walk, |offset| {
        read_one(target, offset, buffer.bytes_mut())?;
        content
            .check(offset, buffer.bytes())
            .map_err(|found| StepError::WrongData {
                path: target.path.to_owned(),
                found,
            })
    })
}

#[inline]
fn for_each_offset(
    walk: &Walk,
    mut each: impl FnMut(u64) -> Result<(), StepError>,
) -> Result<(), StepError> {
    match walk {
        Walk::Scattered(offsets) => offsets.iter().try_for_each(|&offset| each(offset)),
        Walk::Runs(runs) => runs.iter().try_for_each(|run| {
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
fn read_one(target: &Target<'_>, offset: u64, buffer: &mut [u8]) -> Result<(), StepError> {
    let fd = target.fd.as_raw_fd();
    // SAFETY: `buffer` is a valid slice.
    let done = unsafe {
        libc::pread(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            place_in_file(offset),
        )
    };
    if usize::try_from(done) == Ok(buffer.len()) {
        return Ok(());
    }
    read_rest(target, offset, done, buffer)
}

#[cold]
fn read_rest(
    target: &Target<'_>,
    offset: u64,
    first: isize,
    buffer: &mut [u8],
) -> Result<(), StepError> {
    let (mut done, mut got) = (first, 0);
    loop {
        match usize::try_from(done) {
            Ok(0) => {
                return Err(StepError::EndOfFile {
                    path: target.path.to_owned(),
                    offset: offset + got as u64,
                })
            }
            Ok(more) => got += more,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(target.error("pread")),
        }
        let rest = &mut buffer[got..];
        if rest.is_empty() {
            return Ok(());
        }
        let at = offset + got as u64;
        let fd = target.fd.as_raw_fd();
        // SAFETY: `rest` is a valid slice.
        done = unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), place_in_file(at)) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::layout::{Layout, Pattern};

    fn step(op: DataOp, path: &Path, seed: u64) -> DataStep {
        DataStep {
            op,
            paths: vec![path.to_owned()],
            layout: Layout {
                pattern: Pattern::Random,
                ranks: 1,
                transfer: 47_008,
                block: 47_008 * 20,
                segments: 1,
                seed: 3,
            },
            seed,
            shift: 0,
            direct: false,
            fsync: op == DataOp::Write,
        }
    }

    #[test]
    fn one_corrupted_byte_is_found_at_its_offset() {
        let path = std::env::temp_dir().join(format!("weir-bench-data-{}", std::process::id()));
        let (control, _fd) = Control::create(1, b"").unwrap();
        let run = |op, seed| run(&step(op, &path, seed), 0, &control);
        let written = run(DataOp::Write, 9).unwrap();
        assert_eq!((written.bytes, written.ops), (47_008 * 20, 20));
        run(DataOp::Verify, 9).unwrap();
        assert!(matches!(
            run(DataOp::Verify, 10),
            Err(StepError::WrongData { .. })
        ));

        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 123_456).unwrap();
        file.write_all_at(&[byte[0] ^ 0x80], 123_456).unwrap();
        let error = run(DataOp::Verify, 9).unwrap_err();
        assert!(matches!(&error, StepError::WrongData { found, .. } if found.offset == 123_456));
        assert!(
            error.to_string().contains("wrong data at offset 123456"),
            "{error}"
        );

        file.set_len(47_008 * 7).unwrap();
        assert!(matches!(
            run(DataOp::Read, 9),
            Err(StepError::EndOfFile { .. })
        ));
        std::fs::remove_file(&path).unwrap();
    }
}
