//! `ftw(3)` and `nftw(3)`: libc walks from inside, so this file implements them after their manual page,
//! on top of the interposed functions.
//!
//! A directory is read whole before its entries are visited, so that a tree can be removed while it is
//! walked. Its descriptor stays open below it as long as the caller's limit allows.

use core::ffi::{c_char, c_int, CStr};
use std::ffi::CString;

use rustix::io::Errno;

use crate::{bytes_of, calls, dir, names, raw, status};

/// `struct FTW`.
#[repr(C)]
pub struct Where {
    base: c_int,
    level: c_int,
}

type Visit =
    unsafe extern "C-unwind" fn(*const c_char, *const libc::stat, c_int, *mut Where) -> c_int;

mod next {
    use super::{c_char, c_int, Visit};

    crate::next::next_fn! {
        ftw: fn(*const c_char, Visit, c_int) -> c_int;
        ftw64: fn(*const c_char, Visit, c_int) -> c_int;
        nftw: fn(*const c_char, Visit, c_int, c_int) -> c_int;
        nftw64: fn(*const c_char, Visit, c_int, c_int) -> c_int;
    }
}

pub use next::resolve_all as resolve;

const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_SLN: c_int = 6;

const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const ALL_FLAGS: c_int = 31;

const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

macro_rules! walks {
    ($($plain:ident $full:ident)*) => {$(
        /// `ftw(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $plain(path: *const c_char, visit: Visit, open: c_int) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` is null or a C string, and `visit` takes ftw(3)'s arguments, by the
            // caller; a function of three does not look at the fourth.
            unsafe {
                match crate::is_active() {
                    true => Walk::begin(path, visit, open, 0, true),
                    false => next::$plain().map_or_else(crate::fail_with_enosys, |f| f(path, visit, open)),
                }
            }
        }

        /// `nftw(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $full(path: *const c_char, visit: Visit, open: c_int, flags: c_int) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `path` is null or a C string, and `visit` takes nftw(3)'s arguments, by the
            // caller.
            unsafe {
                match crate::is_active() {
                    true => Walk::begin(path, visit, open, flags, false),
                    false => next::$full().map_or_else(crate::fail_with_enosys, |f| f(path, visit, open, flags)),
                }
            }
        }
    )*};
}
walks! { ftw nftw ftw64 nftw64 }

/// An early end of a walk: the return value of the caller's function, or -1 with errno set.
struct WalkEnded(c_int);

struct Walk {
    visitor: Visit,
    flags: c_int,
    /// True for ftw(3), which knows fewer kinds of files.
    plain: bool,
    /// The number of directories that may be open at a time.
    open: usize,
    device: libc::dev_t,
    /// The directories that were walked, unless links are not followed.
    seen: Vec<(libc::dev_t, libc::ino_t)>,
    /// The path that is visited, and the offset of its last name.
    path: Vec<u8>,
    at: Where,
}

/// An open directory, closed when it is dropped.
struct OpenDirectory(c_int);

impl OpenDirectory {
    /// Makes it the current directory.
    fn enter(&self) -> Result<(), WalkEnded> {
        // SAFETY: a number.
        succeeded(unsafe { calls::fchdir(self.0) }).map(drop)
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        let saved = raw::errno();
        calls::close_fd(self.0);
        raw::restore_errno(saved);
    }
}

const DIRECTORY: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

impl Walk {
    /// # Safety
    ///
    /// The caller meets the requirements of nftw(3).
    unsafe fn begin(
        path: *const c_char,
        visit: Visit,
        open: c_int,
        flags: c_int,
        plain: bool,
    ) -> c_int {
        // SAFETY: `path` is no address of the program or a C string, by the caller.
        let given = unsafe { bytes_of(path) }.unwrap_or_default();
        if flags & !ALL_FLAGS != 0 {
            raw::set_errno(Errno::INVAL);
            return -1;
        }
        if given.is_empty() {
            raw::set_errno(Errno::NOENT);
            return -1;
        }
        let end = given
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(1, |last| last + 1);
        let path = given[..end].to_vec();
        let base = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |slash| slash + 1);
        let mut walk = Walk {
            visitor: visit,
            flags,
            plain,
            open: usize::try_from(open).unwrap_or(1).max(1),
            device: 0,
            seen: Vec::new(),
            path,
            at: Where {
                base: base as c_int,
                level: 0,
            },
        };
        let walked = match walk.has_flag(FTW_CHDIR) {
            true => walk.with_directory_kept(Walk::root),
            false => walk.root(),
        };
        match walked {
            Ok(()) => 0,
            Err(WalkEnded(FTW_SKIP_SUBTREE | FTW_SKIP_SIBLINGS))
                if walk.has_flag(FTW_ACTIONRETVAL) =>
            {
                0
            }
            Err(WalkEnded(code)) => code,
        }
    }

    fn has_flag(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Restores the current directory after a walk that changes it.
    fn with_directory_kept(
        &mut self,
        walk: impl FnOnce(&mut Walk) -> Result<(), WalkEnded>,
    ) -> Result<(), WalkEnded> {
        let here = open_directory(libc::AT_FDCWD, c".")?;
        let parent = self.path[..self.at.base as usize].to_vec();
        if !parent.is_empty() {
            // SAFETY: a C string.
            succeeded(unsafe { names::chdir(c_string(&parent).as_ptr()) })?;
        }
        let walked = walk(self);
        let saved = raw::errno();
        here.enter()?;
        raw::restore_errno(saved);
        walked
    }

    /// The path by which the file is reached from the current directory.
    fn reachable(&self) -> CString {
        match &self.path[self.at.base as usize..] {
            _ if !self.has_flag(FTW_CHDIR) => c_string(&self.path),
            b"" => c".".to_owned(),
            name => c_string(name),
        }
    }

    fn root(&mut self) -> Result<(), WalkEnded> {
        let name = self.reachable();
        let (kind, stat) = self.look(libc::AT_FDCWD, &name);
        match kind {
            FTW_NS => Err(WalkEnded(-1)),
            FTW_D => {
                self.device = stat.st_dev;
                self.seen.push((stat.st_dev, stat.st_ino));
                self.directory(None, &name, &stat)
            }
            _ => self.visit(kind, &stat),
        }
    }

    /// The kind of a file, and its stat.
    fn look(&self, at: c_int, name: &CStr) -> (c_int, libc::stat) {
        // SAFETY: all zero is a value of it; C strings, and room for one.
        unsafe {
            let mut stat = core::mem::zeroed::<libc::stat>();
            let flags = match self.has_flag(FTW_PHYS) {
                true => libc::AT_SYMLINK_NOFOLLOW,
                false => 0,
            };
            if status::fstatat(at, name.as_ptr(), &raw mut stat, flags) == 0 {
                let kind = match stat.st_mode & libc::S_IFMT {
                    libc::S_IFDIR => FTW_D,
                    libc::S_IFLNK => FTW_SL,
                    _ => FTW_F,
                };
                return (kind, stat);
            }
            let saved = raw::errno();
            let link = libc::AT_SYMLINK_NOFOLLOW;
            let is_link = !self.has_flag(FTW_PHYS)
                && status::fstatat(at, name.as_ptr(), &raw mut stat, link) == 0
                && stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
            raw::restore_errno(saved);
            (if is_link { FTW_SLN } else { FTW_NS }, stat)
        }
    }

    /// Calls the caller's function for the path.
    fn visit(&mut self, kind: c_int, stat: &libc::stat) -> Result<(), WalkEnded> {
        let kind = match kind {
            FTW_SL if self.plain => FTW_F,
            FTW_DP if self.plain => FTW_D,
            FTW_SLN if self.plain => FTW_NS,
            kind => kind,
        };
        let path = c_string(&self.path);
        // SAFETY: `visitor` is the function that the caller of ftw(3) or nftw(3) passed, and takes
        // these arguments.
        match unsafe { (self.visitor)(path.as_ptr(), stat, kind, &raw mut self.at) } {
            0 => Ok(()),
            code => Err(WalkEnded(code)),
        }
    }

    /// Visits a directory and its entries. `name` leads there from `parent`, or from the current
    /// directory.
    fn directory(
        &mut self,
        parent: Option<&OpenDirectory>,
        name: &CStr,
        stat: &libc::stat,
    ) -> Result<(), WalkEnded> {
        let at = parent.map_or(libc::AT_FDCWD, |parent| parent.0);
        let opened = open_directory(at, name).and_then(|open| Ok((names_in(&open)?, open)));
        let (inside, open) = match opened {
            Ok(opened) => opened,
            Err(_) if raw::errno() == libc::EACCES => return self.visit(FTW_DNR, stat),
            Err(ended) => return Err(ended),
        };
        if !self.has_flag(FTW_DEPTH) {
            self.visit(FTW_D, stat)?;
        }
        if self.has_flag(FTW_CHDIR) {
            open.enter()?;
        }
        let keeps =
            self.has_flag(FTW_CHDIR) || (self.at.level as usize) < self.open.saturating_sub(1);
        let open = keeps.then_some(open);
        let (length, base) = (self.path.len(), self.at.base);
        if self.path.last() != Some(&b'/') {
            self.path.push(b'/');
        }
        self.at.base = self.path.len() as c_int;
        self.at.level += 1;
        let walked = self.entries(open.as_ref(), &inside);
        self.path.truncate(length);
        self.at.base = base;
        self.at.level -= 1;
        let walked = match walked {
            Err(WalkEnded(FTW_SKIP_SIBLINGS)) if self.has_flag(FTW_ACTIONRETVAL) => Ok(()),
            walked => walked,
        };
        // The caller's function finds the directory by its name, relative to its parent.
        if self.has_flag(FTW_CHDIR) {
            if let Some(parent) = parent {
                parent.enter()?;
            }
        }
        walked?;
        match self.has_flag(FTW_DEPTH) {
            true => self.visit(FTW_DP, stat),
            false => Ok(()),
        }
    }

    fn entries(
        &mut self,
        open: Option<&OpenDirectory>,
        inside: &[CString],
    ) -> Result<(), WalkEnded> {
        let base = self.path.len();
        for name in inside {
            self.path.truncate(base);
            self.path.extend_from_slice(name.to_bytes());
            self.at.base = base as c_int;
            match self.entry(open, name) {
                Err(WalkEnded(FTW_SKIP_SUBTREE)) if self.has_flag(FTW_ACTIONRETVAL) => {}
                walked => walked?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, open: Option<&OpenDirectory>, name: &CStr) -> Result<(), WalkEnded> {
        let whole = c_string(&self.path);
        let (at, name) = match open {
            Some(open) => (open.0, name),
            None => (libc::AT_FDCWD, &*whole),
        };
        let (kind, stat) = self.look(at, name);
        if kind == FTW_NS && !matches!(raw::errno(), libc::ENOENT | libc::EACCES) {
            return Err(WalkEnded(-1));
        }
        if kind != FTW_NS && self.has_flag(FTW_MOUNT) && stat.st_dev != self.device {
            return Ok(());
        }
        if kind != FTW_D {
            return self.visit(kind, &stat);
        }
        let file = (stat.st_dev, stat.st_ino);
        if !self.has_flag(FTW_PHYS) {
            if self.seen.contains(&file) {
                return Ok(());
            }
            self.seen.push(file);
        }
        self.directory(open, name, &stat)
    }
}

fn c_string(bytes: &[u8]) -> CString {
    // Parts of C strings have no 0.
    CString::new(bytes).unwrap_or_default()
}

fn succeeded(result: c_int) -> Result<c_int, WalkEnded> {
    match result {
        -1 => Err(WalkEnded(-1)),
        result => Ok(result),
    }
}

fn open_directory(at: c_int, name: &CStr) -> Result<OpenDirectory, WalkEnded> {
    // SAFETY: a C string.
    let fd = unsafe { names::openat(at, name.as_ptr(), DIRECTORY, 0) };
    Ok(OpenDirectory(succeeded(fd)?))
}

/// The names in a directory, without `.` and `..`.
fn names_in(open: &OpenDirectory) -> Result<Vec<CString>, WalkEnded> {
    // SAFETY: the stream is used here alone; its entries are C strings.
    unsafe {
        let stream = dir::fdopendir(succeeded(calls::fcntl(open.0, libc::F_DUPFD_CLOEXEC, 0))?);
        if stream.is_null() {
            return Err(WalkEnded(-1));
        }
        let mut names = Vec::new();
        loop {
            let entry = dir::readdir64(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
        dir::closedir(stream);
        Ok(names)
    }
}
