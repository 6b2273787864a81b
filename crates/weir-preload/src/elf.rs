//! The libraries that a program or library of this machine needs: DT_NEEDED, DT_RPATH and DT_RUNPATH of
//! elf(5).

use std::ffi::CString;

use crate::calls;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// The libraries that a file needs, and the directories in which it says that they are.
#[derive(Debug)]
pub struct Needs {
    /// The names of the libraries, without those that are paths.
    pub libraries: Vec<CString>,
    rpath: Vec<u8>,
    runpath: Vec<u8>,
}

/// Reads a part of an open file; the result is shorter at the end of the file.
fn read_at(fd: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    // SAFETY: so many bytes of room.
    let got = unsafe {
        let at = i64::try_from(at).ok()?;
        calls::pread(fd, bytes.as_mut_ptr().cast(), length, at)
    };
    bytes.truncate(usize::try_from(got).ok()?);
    Some(bytes)
}

/// The program headers, and the size of each, of the file that `read` reads; `None`: it is no program.
fn headers(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<(Vec<u8>, usize)> {
    let head = read(0, 64)?;
    // 64 bits, little-endian: the machines that weir supports.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size) = (long(&head, 32)?, u64::from(short(&head, 54)?));
    let count = u64::from(short(&head, 56)?);
    let table = read(table, usize::try_from(size * count).ok()?)?;
    Some((table, usize::try_from(size).ok()?.max(56)))
}

/// True if the open program is static: no loader adds libraries to it.
pub fn is_static(fd: i32) -> bool {
    let headers = headers(|at, length| read_at(fd, at, length));
    headers.is_some_and(|(table, size)| {
        let mut entries = table.chunks_exact(size);
        !entries.any(|entry| word(entry, 0) == Some(PT_INTERP))
    })
}

impl Needs {
    /// The needs of the library that is open; `None`: the file is no library.
    pub fn read_from(fd: i32) -> Option<Needs> {
        Needs::read_with(|at, length| read_at(fd, at, length))
    }

    fn read_with(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Needs> {
        let (table, size) = headers(&read)?;
        let entries: Vec<_> = table.chunks_exact(size).collect();
        let of_kind = |kind| entries.iter().filter(move |e| word(e, 0) == Some(kind));
        let place = |address: u64| {
            of_kind(PT_LOAD).find_map(|entry| {
                let within = address.checked_sub(long(entry, 16)?)?;
                (within < long(entry, 32)?).then_some(long(entry, 8)? + within)
            })
        };
        let dynamic = of_kind(PT_DYNAMIC).next()?;
        let dynamic = read(long(dynamic, 8)?, usize::try_from(long(dynamic, 32)?).ok()?)?;
        let tags = || {
            dynamic
                .chunks_exact(16)
                .filter_map(|e| Some((long(e, 0)?, long(e, 8)?)))
        };
        let strings = place(tags().find(|(tag, _)| *tag == DT_STRTAB)?.1)?;
        let string = |at: u64| {
            let bytes = read(strings + at, 4096)?;
            Some(bytes.split(|byte| *byte == 0).next()?.to_vec())
        };
        let one = |wanted| {
            let found = tags().find(|(tag, _)| *tag == wanted);
            found.and_then(|(_, at)| string(at)).unwrap_or_default()
        };
        let libraries = tags().filter(|(tag, _)| *tag == DT_NEEDED);
        let libraries = libraries.filter_map(|(_, at)| string(at));
        let libraries = libraries.filter(|name| !name.contains(&b'/'));
        Some(Needs {
            libraries: libraries
                .filter_map(|name| CString::new(name).ok())
                .collect(),
            rpath: one(DT_RPATH),
            runpath: one(DT_RUNPATH),
        })
    }

    /// The directories in which the loader looks for the libraries, in order. `own`: the directory of
    /// this file.
    pub fn directories(&self, own: &[u8], library_path: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let of = |path: &[u8]| {
            let dirs = path
                .split(|byte| *byte == b':')
                .filter(|dir| !dir.is_empty());
            dirs.map(|dir| with_origin(dir, own)).collect::<Vec<_>>()
        };
        // DT_RPATH counts only where there is no DT_RUNPATH.
        let rpath = if self.runpath.is_empty() {
            of(&self.rpath)
        } else {
            Vec::new()
        };
        [rpath, library_path.to_vec(), of(&self.runpath)].concat()
    }
}

fn with_origin(dir: &[u8], own: &[u8]) -> Vec<u8> {
    let rest = [&b"$ORIGIN"[..], b"${ORIGIN}"];
    let rest = rest.into_iter().find_map(|token| dir.strip_prefix(token));
    rest.map_or_else(|| dir.to_vec(), |rest| [own, rest].concat())
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
