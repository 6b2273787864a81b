//! Checks of the arguments from C: null pointers, long paths, lists.

use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;

use rustix::io::Errno;
use weir_client::library::{FileTransfer, Piece, Whence};
use weir_client::sys::is_address;

use crate::types::{removes_source, Io, TransferEntry};

/// The longest path, with its NUL, bytes.
const PATH_MAX: usize = 4096;
/// The most pieces of a list.
const MAX_PIECES: usize = 1 << 20;

/// A path's bytes. No more than [`PATH_MAX`] are read.
///
/// # Safety
///
/// `path` is no address of the program's, or a C string that lives as long as the result is used.
pub unsafe fn path<'a>(path: *const c_char) -> Result<&'a [u8], Errno> {
    if !is_address(path) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the address can be the program's, so a C string is there, by the caller; no byte behind its NUL is
    // read, and `length` bytes are before it.
    unsafe {
        let length = libc::strnlen(path, PATH_MAX);
        if length == PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(core::slice::from_raw_parts(path.cast(), length))
    }
}

/// The elements of a caller's list of pieces.
///
/// # Safety
///
/// As for [`elements`]; no other code uses them while the result is used.
pub unsafe fn list<'a>(list: *mut Io, count: usize) -> Result<&'a mut [Io], Errno> {
    match checked_count(list, count, MAX_PIECES)? {
        0 => Ok(&mut []),
        // SAFETY: the address is aligned and can be the program's, so `count` pieces are there that no other code
        // uses, by the caller.
        count => Ok(unsafe { core::slice::from_raw_parts_mut(list, count) }),
    }
}

/// Room for up to `count` results.
///
/// # Safety
///
/// `room` is no address of the program's, or has room for `count` of them, which no other code uses while the
/// result is used.
pub unsafe fn room<'a, T>(room: *mut T, count: usize) -> Result<&'a mut [MaybeUninit<T>], Errno> {
    let most = isize::MAX.unsigned_abs() / size_of::<T>().max(1);
    match checked_count(room, count.min(most), most)? {
        0 => Ok(&mut []),
        // SAFETY: the address is aligned and can be the program's, so there is room for `count`, by the caller; no
        // slice is longer than isize::MAX.
        count => Ok(unsafe { core::slice::from_raw_parts_mut(room.cast(), count) }),
    }
}

/// The number of a list's elements. EFAULT: no element can be at its address. EINVAL: there are more than `most`,
/// or the address is not aligned.
fn checked_count<T>(list: *const T, count: usize, most: usize) -> Result<usize, Errno> {
    match is_address(list) {
        _ if count == 0 => Ok(0),
        false => Err(Errno::FAULT),
        true if count > most || !list.is_aligned() => Err(Errno::INVAL),
        true => Ok(count),
    }
}

/// The elements of a caller's list of anything. EINVAL: there are more than `most`.
///
/// # Safety
///
/// `list` is no address of the program's, or `count` elements are there while the result is used.
pub unsafe fn elements<'a, T>(list: *const T, count: usize, most: usize) -> Result<&'a [T], Errno> {
    match checked_count(list, count, most)? {
        0 => Ok(&[]),
        // SAFETY: the address is aligned and can be the program's, so `count` elements are there, by the caller.
        count => Ok(unsafe { core::slice::from_raw_parts(list, count) }),
    }
}

/// The files of a transfer.
///
/// # Safety
///
/// The paths of each entry are as for [`path`].
pub unsafe fn transfers(list: &[TransferEntry]) -> Result<Vec<FileTransfer>, Errno> {
    // SAFETY: the paths of an entry are no address of the program's or C strings, by the caller.
    let copied = |name: *const c_char| unsafe { path(name) }.map(<[u8]>::to_vec);
    let file = |transfer: &TransferEntry| {
        let removes_source = removes_source(transfer.mode);
        Ok(FileTransfer {
            source: copied(transfer.source)?,
            target: copied(transfer.destination)?,
            removes_source: removes_source
                .filter(|_| transfer.reserved == 0)
                .ok_or(Errno::INVAL)?,
        })
    };
    list.iter().map(file).collect()
}

/// A time limit in milliseconds; `None`: there is none.
pub fn time_limit(timeout_ms: c_int) -> Result<Option<u32>, Errno> {
    match timeout_ms {
        -1 => Ok(None),
        ms => u32::try_from(ms).map(Some).map_err(|_| Errno::INVAL),
    }
}

/// Checks the buffers of a list: they are there, not absurd, and, if they are to be filled, share
/// no byte with each other or with the list.
pub fn check_buffers(list: &[Io], filled: bool) -> Result<(), Errno> {
    let mut ranges = vec![(list.as_ptr() as usize, size_of_val(list))];
    for io in list.iter().filter(|io| io.length > 0) {
        if !is_address(io.buffer) {
            return Err(Errno::FAULT);
        }
        if isize::try_from(io.length).is_err() {
            return Err(Errno::INVAL);
        }
        ranges.push((io.buffer as usize, io.length));
    }
    ranges.sort_unstable();
    let ends = |range: &(usize, usize)| range.0.checked_add(range.1).ok_or(Errno::INVAL);
    for range in &ranges {
        ends(range)?;
    }
    for pair in ranges.windows(2).filter(|_| filled) {
        if ends(&pair[0])? > pair[1].0 {
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

/// The file that an element names.
///
/// # Safety
///
/// Its path is as for [`path`].
pub unsafe fn whence<'a>(io: &Io) -> Result<Whence<'a>, Errno> {
    if io.path.is_null() {
        return Ok(Whence::Fd(io.fd));
    }
    // SAFETY: the path is no address of the program's or a C string, by the caller.
    unsafe { path(io.path) }.map(Whence::Path)
}

/// The pieces of a list; `bytes` makes an element's memory of it.
///
/// # Safety
///
/// Paths are as for [`path`].
pub unsafe fn pieces<'a, B>(
    list: &[Io],
    bytes: impl Fn(&Io) -> B,
) -> Result<Vec<Piece<'a, B>>, Errno> {
    list.iter()
        .map(|io| {
            Ok(Piece {
                // SAFETY: the element's path is as for `path`, by the caller.
                whence: unsafe { whence(io) }?,
                offset: io.offset,
                bytes: bytes(io),
                done: Ok(0),
            })
        })
        .collect()
}

/// A piece's outcome in C.
pub fn result(done: Result<usize, Errno>) -> isize {
    match done {
        Ok(moved) => moved.cast_signed(),
        Err(errno) => -(errno.raw_os_error() as isize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn io(buffer: usize, length: usize) -> Io {
        Io {
            path: ptr::null(),
            fd: 3,
            reserved: 0,
            offset: 0,
            buffer: ptr::without_provenance_mut(buffer),
            length,
            result: 0,
        }
    }

    #[test]
    fn paths_are_measured_no_further_than_they_may_be() {
        // SAFETY: null, or C strings, except the last, of which no more is read than is there.
        unsafe {
            assert_eq!(path(ptr::null()), Err(Errno::FAULT));
            assert_eq!(path(c"/weir/x".as_ptr()), Ok(&b"/weir/x"[..]));
            let endless = vec![b'x'; PATH_MAX];
            assert_eq!(path(endless.as_ptr().cast()), Err(Errno::NAMETOOLONG));
        }
    }

    #[test]
    fn buffers_that_share_bytes_are_only_written_from() {
        let apart = [io(10_000, 10), io(10_010, 5), io(5, 0), io(0, 0)];
        assert_eq!(check_buffers(&apart, true), Ok(()));
        let shared = [io(10_009, 2), io(10_000, 10)];
        assert_eq!(check_buffers(&shared, true), Err(Errno::INVAL));
        assert_eq!(check_buffers(&shared, false), Ok(()));
        let mut itself = [io(0, 4)];
        itself[0].buffer = itself.as_mut_ptr().cast();
        assert_eq!(check_buffers(&itself, true), Err(Errno::INVAL));
    }

    #[test]
    fn buffers_that_cannot_be_are_refused() {
        for nowhere in [0, 8, 4095, 1 << 63, usize::MAX - 5] {
            let refused = check_buffers(&[io(nowhere, 1)], false);
            assert_eq!(refused, Err(Errno::FAULT), "{nowhere:#x}");
        }
        let endless = [io(10_000, usize::MAX)];
        assert_eq!(check_buffers(&endless, false), Err(Errno::INVAL));
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let mut one = io(0, 0);
        // SAFETY: null, or one element; nothing of the longer one is read.
        unsafe {
            assert!(list(ptr::null_mut(), 0).unwrap().is_empty());
            assert_eq!(list(ptr::null_mut(), 1).err(), Some(Errno::FAULT));
            assert_eq!(list(&raw mut one, 1).unwrap().len(), 1);
            let many = list(&raw mut one, MAX_PIECES + 1);
            assert_eq!(many.err(), Some(Errno::INVAL));
        }
    }

    #[test]
    fn room_for_results_is_checked() {
        let mut results = [0u32; 4];
        let first = results.as_mut_ptr();
        // SAFETY: null, no address, or room for as many as are written.
        unsafe {
            assert!(room(ptr::null_mut::<u32>(), 0).unwrap().is_empty());
            assert_eq!(room(ptr::null_mut::<u32>(), 1).err(), Some(Errno::FAULT));
            assert_eq!(room(first.byte_add(1), 1).err(), Some(Errno::INVAL));
            room(first, 4).unwrap()[3].write(7);
        }
        assert_eq!(results, [0, 0, 0, 7]);
    }

    #[test]
    fn outcomes_have_a_c_form() {
        assert_eq!(result(Ok(5)), 5);
        assert_eq!(result(Err(Errno::BADF)), -9);
    }
}
