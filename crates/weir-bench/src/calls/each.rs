//! The preparation and the timed part of each call.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::clock::{Clock, WorkDirectory};
use crate::error::{call_error, failed, StepError};
use crate::timing::Timing;

type CallResult = Result<Timing, StepError>;

const MIB: u64 = 1 << 20;
const SMALL: [u8; 64] = [7; 64];

impl WorkDirectory {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with as many bytes, open for reading and writing.
    fn file(&self, name: &str, bytes: usize) -> Result<OpenedPath, StepError> {
        let path = self.path(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let file = file.map_err(call_error("open", &path))?;
        file.write_all_at(&vec![7; bytes], 0)
            .map_err(call_error("write", &path))?;
        Ok(OpenedPath { file, path })
    }

    /// `count` files of 64 bytes.
    fn files(&self, count: usize) -> Result<(), StepError> {
        (0..count).try_for_each(|i| self.file(&format!("f{i}"), 64).map(drop))
    }
}

/// An open file and its path, for messages.
struct OpenedPath {
    file: File,
    path: PathBuf,
}

impl OpenedPath {
    fn fd(&self) -> libc::c_int {
        self.file.as_raw_fd()
    }

    /// The error of a C call on it, if that failed.
    fn check(&self, call: &'static str, result: i64) -> Result<(), StepError> {
        match result {
            ..0 => Err(failed(call, &self.path)),
            _ => Ok(()),
        }
    }

    /// The error of a method of its file, if that failed.
    fn done<T>(&self, call: &'static str, result: std::io::Result<T>) -> Result<(), StepError> {
        result.map(drop).map_err(call_error(call, &self.path))
    }
}

/// Makes a call on `path`.
fn call_on_path<T>(
    call: &'static str,
    path: &Path,
    act: impl FnOnce(&Path) -> std::io::Result<T>,
) -> Result<(), StepError> {
    act(path).map(drop).map_err(call_error(call, path))
}

pub(super) fn open_close(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let path = place.file("f", 64)?.path;
    clock.calls(20, |_| call_on_path("open", &path, |path| File::open(path)))
}

pub(super) fn create(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let paths: Vec<_> = (0..20).map(|i| place.path(&format!("f{i}"))).collect();
    let clear = || {
        for path in &paths {
            let _ = fs::remove_file(path);
        }
        Ok(())
    };
    clock.batches(20, clear, |number| {
        call_on_path("create", &paths[turn(number, 20)], |path| {
            File::create_new(path)
        })
    })
}

pub(super) fn unlink(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let paths: Vec<_> = (0..20).map(|i| place.path(&format!("f{i}"))).collect();
    let make = || place.files(20);
    clock.batches(20, make, |number| {
        call_on_path("unlink", &paths[turn(number, 20)], |path| {
            fs::remove_file(path)
        })
    })
}

/// The number of a call within a cycle of `length`.
fn turn(number: u64, length: usize) -> usize {
    usize::try_from(number).expect("64 bits") % length
}

pub(super) fn stat(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let path = place.file("f", 64)?.path;
    clock.calls(50, |_| {
        call_on_path("stat", &path, |path| fs::metadata(path))
    })
}

pub(super) fn fstat(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 64)?;
    clock.calls(100, |_| open.done("fstat", open.file.metadata()))
}

pub(super) fn pread(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 4096)?;
    let mut buffer = SMALL;
    clock.calls(100, |number| {
        open.done("pread", open.file.read_at(&mut buffer, number % 64 * 64))
    })
}

pub(super) fn pwrite(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 4096)?;
    clock.calls(100, |number| {
        open.done("pwrite", open.file.write_at(&SMALL, number % 64 * 64))
    })
}

pub(super) fn ftruncate(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 1 << 20)?;
    clock.calls(10, |number| {
        let length = (1 + (number + 1) % 2) * MIB;
        open.done("ftruncate", open.file.set_len(length))
    })
}

pub(super) fn ftruncate_data(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 1 << 20)?;
    let fill = || open.done("pwrite", open.file.write_at(&[7; 4096], MIB));
    clock.batches(1, fill, |_| open.done("ftruncate", open.file.set_len(MIB)))
}

pub(super) fn seek_data(clock: &Clock, place: &WorkDirectory) -> CallResult {
    const PIECES: u64 = 1000;
    let open = place.file("f", 0)?;
    for piece in 0..PIECES {
        // Not at equal distances, which would be one progression.
        let start = piece * 16384 + piece * piece % 3 * 4096;
        open.done("pwrite", open.file.write_at(&[7; 4096], start))?;
    }
    open.done("fsync", open.file.sync_all())?;
    clock.calls(10, |number| {
        let from = place_in_file(number * 7 % (PIECES - 1) * 16384);
        // SAFETY: no memory is involved.
        let found = unsafe {
            let data = libc::lseek(open.fd(), from, libc::SEEK_DATA);
            libc::lseek(open.fd(), data, libc::SEEK_HOLE)
        };
        open.check("lseek", found)
    })
}

fn place_in_file(offset: u64) -> libc::off_t {
    libc::off_t::try_from(offset).expect("small files")
}

pub(super) fn flock(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 64)?;
    clock.calls(10, |_| {
        for how in [libc::LOCK_EX, libc::LOCK_UN] {
            // SAFETY: no memory is involved.
            let locked = unsafe { libc::flock(open.fd(), how) };
            open.check("flock", locked.into())?;
        }
        Ok(())
    })
}

pub(super) fn fcntl_lock(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 64)?;
    clock.calls(10, |_| {
        for kind in [libc::F_WRLCK, libc::F_UNLCK] {
            // SAFETY: all zero is a value of it.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = kind.try_into().expect("a small number");
            lock.l_len = 1;
            // SAFETY: the lock is one, as F_SETLK demands.
            let locked = unsafe { libc::fcntl(open.fd(), libc::F_SETLK, &raw const lock) };
            open.check("fcntl", locked.into())?;
        }
        Ok(())
    })
}

pub(super) fn fsync(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 4096)?;
    clock.calls(10, |_| open.done("fsync", open.file.sync_all()))
}

pub(super) fn fsync_data(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 4096)?;
    let fill = || open.done("pwrite", open.file.write_at(&SMALL, 64));
    clock.batches(1, fill, |_| open.done("fsync", open.file.sync_all()))
}

pub(super) fn chdir(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let below = place.path("d");
    call_on_path("mkdir", &below, |path| fs::create_dir(path))?;
    let paths = [place.0.clone(), below];
    clock.calls(20, |number| {
        call_on_path("chdir", &paths[turn(number, 2)], |path| {
            std::env::set_current_dir(path)
        })
    })
}

pub(super) fn getcwd(clock: &Clock, place: &WorkDirectory) -> CallResult {
    call_on_path("chdir", &place.0, |path| std::env::set_current_dir(path))?;
    clock.calls(20, |_| {
        call_on_path("getcwd", &place.0, |_| std::env::current_dir())
    })
}

pub(super) fn mkdir_rmdir(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let path = place.path("d");
    clock.calls(10, |_| {
        call_on_path("mkdir", &path, |path| fs::create_dir(path))?;
        call_on_path("rmdir", &path, |path| fs::remove_dir(path))
    })
}

pub(super) fn rename(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let paths = [place.file("a", 64)?.path, place.path("b")];
    clock.calls(10, |number| {
        let (from, to) = (&paths[turn(number, 2)], &paths[turn(number + 1, 2)]);
        call_on_path("rename", from, |from| fs::rename(from, to))
    })
}

pub(super) fn readdir(clock: &Clock, place: &WorkDirectory) -> CallResult {
    place.files(100)?;
    clock.calls(1, |_| {
        call_on_path("readdir", &place.0, |path| {
            fs::read_dir(path).map(Iterator::count)
        })
    })
}

pub(super) fn fork(clock: &Clock, place: &WorkDirectory) -> CallResult {
    use_place(place)?;
    clock.calls(1, |_| {
        // SAFETY: no memory is involved.
        spawn(place, || unsafe { libc::_exit(0) })
    })
}

pub(super) fn fork_exec(clock: &Clock, place: &WorkDirectory) -> CallResult {
    use_place(place)?;
    let program = CString::new("/bin/true").expect("no NUL");
    let arguments = [program.as_ptr(), std::ptr::null()];
    clock.calls(1, |_| {
        spawn(place, || {
            // SAFETY: this process has one thread; the program's name and its arguments are C's.
            unsafe {
                libc::execv(program.as_ptr(), arguments.as_ptr());
            }
        })
    })
}

/// As a program that works there: it has written a file, and has it open.
fn use_place(place: &WorkDirectory) -> Result<(), StepError> {
    let open = place.file("f", 4096)?;
    std::mem::forget(open);
    Ok(())
}

/// Runs a child and waits for its end.
fn spawn(place: &WorkDirectory, child: impl FnOnce()) -> Result<(), StepError> {
    // SAFETY: this process has one thread, so that the child finds every lock free.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: no memory is involved.
        unsafe { libc::_exit(127) };
    }
    let mut status = 0;
    // SAFETY: `status` is a place for the result.
    if pid < 0 || unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(failed("fork", &place.0));
    }
    if status != 0 {
        let source = std::io::Error::other(format!("the child ended with status {status:#x}"));
        return Err(call_error("fork", &place.0)(source));
    }
    Ok(())
}

pub(super) fn copy_file_range(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let (from, to) = (place.file("a", 1 << 20)?, place.file("b", 0)?);
    let clear = || to.done("ftruncate", to.file.set_len(0));
    clock.batches(1, clear, |_| {
        let (mut read, mut written, mut left) = (0, 0, 1 << 20);
        while left > 0 {
            // SAFETY: the offsets are places for results.
            let copied = unsafe {
                libc::copy_file_range(from.fd(), &raw mut read, to.fd(), &raw mut written, left, 0)
            };
            from.check("copy_file_range", copied as i64)?;
            left -= usize::try_from(copied).expect("not negative").max(1);
        }
        Ok(())
    })
}

pub(super) fn mmap_private(clock: &Clock, place: &WorkDirectory) -> CallResult {
    let open = place.file("f", 1 << 20)?;
    // SAFETY: the descriptor is open for as long as `open` lives.
    let fd = unsafe { BorrowedFd::borrow_raw(open.fd()) };
    clock.calls(1, |_| {
        let sum = sum_of_mapped(fd).ok_or_else(|| failed("mmap", &open.path))?;
        assert_eq!(sum, 7 * 256, "a byte of each page");
        Ok(())
    })
}

/// The sum of one byte of each page of the first MiB.
fn sum_of_mapped(fd: BorrowedFd<'_>) -> Option<u64> {
    const LENGTH: usize = 1 << 20;
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
    // SAFETY: a new mapping, at an address of the kernel's choice, read within its bounds and unmapped here.
    unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            read,
            private,
            fd.as_raw_fd(),
            0,
        );
        if address == libc::MAP_FAILED {
            return None;
        }
        let pages = (0..LENGTH).step_by(4096);
        let sum = pages.map(|page| u64::from(address.cast::<u8>().add(page).read_volatile()));
        let sum = sum.sum();
        libc::munmap(address, LENGTH);
        Some(sum)
    }
}
