//! `fts(3)`: libc walks from inside, so this file implements it after its manual page, on top of the
//! interposed functions.
//!
//! The current directory never changes, as with FTS_NOCHDIR: the manual page allows it, and lets no
//! program rely on the current directory. A file is reached by its path, `fts_accpath`, which is never
//! longer than the kernel allows.

use core::alloc::Layout;
use core::ffi::{c_char, c_int, c_long, c_ushort, c_void, CStr};
use core::mem::offset_of;
use core::ptr::null_mut;
use std::alloc::{alloc_zeroed, dealloc};

use rustix::io::Errno;

use crate::{bytes_of, dir, raw, status};

/// `FTSENT`. The name extends past the end of the structure; the path follows it.
#[repr(C)]
pub struct Entry {
    cycle: *mut Entry,
    parent: *mut Entry,
    link: *mut Entry,
    number: c_long,
    pointer: *mut c_void,
    accpath: *mut c_char,
    path: *mut c_char,
    errno: c_int,
    symfd: c_int,
    pathlen: c_ushort,
    namelen: c_ushort,
    ino: libc::ino_t,
    dev: libc::dev_t,
    nlink: libc::nlink_t,
    level: i16,
    info: c_ushort,
    flags: c_ushort,
    instr: c_ushort,
    statp: *mut libc::stat,
    name: [c_char; 1],
}

/// `FTS`, whose fields programs do not know, and the state of this walk.
pub struct Fts {
    options: c_int,
    compare: Compare,
    current: *mut Entry,
    children: *mut Entry,
    children_are_names: bool,
    device: libc::dev_t,
}

type Compare =
    Option<unsafe extern "C-unwind" fn(*const *const Entry, *const *const Entry) -> c_int>;
type Paths = *const *const c_char;

mod next {
    use super::{c_int, Compare, Entry, Fts, Paths};

    crate::next::next_fn! {
        fts_open: fn(Paths, c_int, Compare) -> *mut Fts;
        fts64_open: fn(Paths, c_int, Compare) -> *mut Fts;
        fts_read: fn(*mut Fts) -> *mut Entry;
        fts64_read: fn(*mut Fts) -> *mut Entry;
        fts_children: fn(*mut Fts, c_int) -> *mut Entry;
        fts64_children: fn(*mut Fts, c_int) -> *mut Entry;
        fts_set: fn(*mut Fts, *mut Entry, c_int) -> c_int;
        fts64_set: fn(*mut Fts, *mut Entry, c_int) -> c_int;
        fts_close: fn(*mut Fts) -> c_int;
        fts64_close: fn(*mut Fts) -> c_int;
    }
}

pub use next::resolve_all as resolve;

const FTS_COMFOLLOW: c_int = 0x01;
const FTS_LOGICAL: c_int = 0x02;
const FTS_NOSTAT: c_int = 0x08;
const FTS_PHYSICAL: c_int = 0x10;
const FTS_SEEDOT: c_int = 0x20;
const FTS_XDEV: c_int = 0x40;
const ALL_OPTIONS: c_int = 0xff;
const FTS_NAMEONLY: c_int = 0x100;

const FTS_D: c_ushort = 1;
const FTS_DC: c_ushort = 2;
const FTS_DEFAULT: c_ushort = 3;
const FTS_DNR: c_ushort = 4;
const FTS_DOT: c_ushort = 5;
const FTS_DP: c_ushort = 6;
const FTS_ERR: c_ushort = 7;
const FTS_F: c_ushort = 8;
const FTS_INIT: c_ushort = 9;
const FTS_NS: c_ushort = 10;
const FTS_NSOK: c_ushort = 11;
const FTS_SL: c_ushort = 12;
const FTS_SLNONE: c_ushort = 13;

const FTS_AGAIN: c_ushort = 1;
const FTS_FOLLOW: c_ushort = 2;
const FTS_NOINSTR: c_ushort = 3;
const FTS_SKIP: c_ushort = 4;

const ABOVE_ROOTS: i16 = -1;
const ROOTS: i16 = 0;

macro_rules! functions {
    ($($open:ident $read:ident $children:ident $set:ident $close:ident)*) => {$(
        /// `fts_open(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $open(paths: Paths, options: c_int, compare: Compare) -> *mut Fts {
            let _ends = crate::EndsByPanic;
            // SAFETY: `paths` is a null-terminated array of C strings, and `compare` is null or
            // takes two entries, by the caller.
            unsafe {
                match crate::is_active() {
                    true => Fts::open(paths, options, compare).unwrap_or_else(|errno| {
                        raw::set_errno(errno);
                        null_mut()
                    }),
                    false => next::$open().map_or(null_mut(), |f| f(paths, options, compare)),
                }
            }
        }

        /// `fts_read(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $read(fts: *mut Fts) -> *mut Entry {
            let _ends = crate::EndsByPanic;
            // SAFETY: `fts` comes from the function above and is not closed yet, by the caller, so
            // that it is a walk of this file while weir is active.
            unsafe {
                match crate::is_active() {
                    true => (*fts).read(),
                    false => next::$read().map_or(null_mut(), |f| f(fts)),
                }
            }
        }

        /// `fts_children(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $children(fts: *mut Fts, options: c_int) -> *mut Entry {
            let _ends = crate::EndsByPanic;
            // SAFETY: `fts` comes from the function above and is not closed yet, by the caller, so
            // that it is a walk of this file while weir is active.
            unsafe {
                match crate::is_active() {
                    true => (*fts).children(options),
                    false => next::$children().map_or(null_mut(), |f| f(fts, options)),
                }
            }
        }

        /// `fts_set(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $set(fts: *mut Fts, entry: *mut Entry, instruction: c_int) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `entry` is one that the walk gave and has not freed, by the caller.
            unsafe {
                match crate::is_active() {
                    true => instruct(entry, instruction),
                    false => next::$set().map_or(1, |f| f(fts, entry, instruction)),
                }
            }
        }

        /// `fts_close(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $close(fts: *mut Fts) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `fts` comes from the function above and is not closed yet, by the caller, so
            // that it is a walk of this file while weir is active. `Fts::open` boxed it.
            unsafe {
                match crate::is_active() {
                    true => {
                        let mut fts = Box::from_raw(fts);
                        fts.free_all();
                        0
                    }
                    false => next::$close().map_or(-1, |f| f(fts)),
                }
            }
        }
    )*};
}
functions! {
    fts_open fts_read fts_children fts_set fts_close
    fts64_open fts64_read fts64_children fts64_set fts64_close
}

/// # Safety
///
/// The caller meets the requirements of fts_set(3).
unsafe fn instruct(entry: *mut Entry, instruction: c_int) -> c_int {
    const ALL: [c_ushort; 5] = [0, FTS_AGAIN, FTS_FOLLOW, FTS_NOINSTR, FTS_SKIP];
    let known = c_ushort::try_from(instruction).ok();
    let Some(known) = known.filter(|known| ALL.contains(known)) else {
        raw::set_errno(Errno::INVAL);
        return 1;
    };
    // SAFETY: `entry` is one that the walk gave and has not freed, by the caller.
    unsafe { (*entry).instr = known };
    0
}

fn layout_with_stat_at(stat: usize) -> Layout {
    let layout = Layout::from_size_align(stat + size_of::<libc::stat>(), align_of::<Entry>());
    // A path's length is far below the size that a layout cannot have.
    layout.unwrap_or(Layout::new::<Entry>())
}

/// A new entry with a path that leads to the file.
fn new_entry(name: &[u8], path: &[u8]) -> Result<*mut Entry, Errno> {
    let lengths =
        c_ushort::try_from(name.len()).and_then(|n| Ok((n, c_ushort::try_from(path.len())?)));
    let (namelen, pathlen) = lengths.map_err(|_| Errno::NAMETOOLONG)?;
    let bytes = offset_of!(Entry, name) + name.len() + 1 + path.len() + 1;
    let stat = bytes.next_multiple_of(align_of::<libc::stat>());
    let layout = layout_with_stat_at(stat);
    // SAFETY: the block has room for the entry, both strings with a NUL, and stat's structure.
    unsafe {
        let block = alloc_zeroed(layout);
        if block.is_null() {
            return Err(Errno::NOMEM);
        }
        let entry = block.cast::<Entry>();
        let own_name = block.add(offset_of!(Entry, name));
        let own_path = own_name.add(name.len() + 1);
        core::ptr::copy_nonoverlapping(name.as_ptr(), own_name, name.len());
        core::ptr::copy_nonoverlapping(path.as_ptr(), own_path, path.len());
        (*entry).namelen = namelen;
        (*entry).pathlen = pathlen;
        (*entry).path = own_path.cast();
        (*entry).accpath = own_path.cast();
        (*entry).statp = block.add(stat).cast();
        (*entry).instr = FTS_NOINSTR;
        Ok(entry)
    }
}

/// # Safety
///
/// [`new_entry`] made the entry, and no code uses it any more.
unsafe fn free_entry(entry: *mut Entry) {
    // SAFETY: `new_entry` made it, by the caller, with stat's structure at the end.
    unsafe {
        let block = entry.cast::<u8>();
        let stat = (*entry).statp.cast::<u8>().offset_from(block) as usize;
        dealloc(block, layout_with_stat_at(stat));
    }
}

/// # Safety
///
/// `entry` is null or of [`new_entry`], as are those that its links lead to; no code uses them any more.
unsafe fn free_list(mut entry: *mut Entry) {
    while !entry.is_null() {
        // SAFETY: the entries are those of `new_entry`, by the caller; each link is read before its
        // entry is freed.
        unsafe {
            let next = (*entry).link;
            free_entry(entry);
            entry = next;
        }
    }
}

/// Links entries in order: sorted by the caller's function, if there is one.
///
/// # Safety
///
/// Entries that [`new_entry`] made, each of them once, which nothing else uses meanwhile; `compare` is null or
/// a function of fts_open(3) that takes them.
unsafe fn in_order(entries: &mut [*mut Entry], compare: Compare) -> *mut Entry {
    if let Some(compare) = compare {
        type Plain = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;
        // SAFETY: an array of pointers to living entries, of which the function takes two by their addresses.
        unsafe {
            let compare = core::mem::transmute::<
                unsafe extern "C-unwind" fn(*const *const Entry, *const *const Entry) -> c_int,
                Plain,
            >(compare);
            let size = size_of::<*mut Entry>();
            libc::qsort(
                entries.as_mut_ptr().cast(),
                entries.len(),
                size,
                Some(compare),
            );
        }
    }
    let mut first = null_mut();
    for entry in entries.iter().rev() {
        // SAFETY: `entry` is alive, and nothing else uses it.
        unsafe { (**entry).link = first };
        first = *entry;
    }
    first
}

impl Fts {
    /// # Safety
    ///
    /// The caller meets the requirements of fts_open(3).
    unsafe fn open(paths: Paths, options: c_int, compare: Compare) -> Result<*mut Fts, Errno> {
        if options & !ALL_OPTIONS != 0 {
            return Err(Errno::INVAL);
        }
        let mut fts = Fts {
            options,
            compare,
            current: new_entry(b"", b"")?,
            children: null_mut(),
            children_are_names: false,
            device: 0,
        };
        // SAFETY: `paths` and `compare` are those of fts_open(3), by the caller; the entries are
        // made here.
        unsafe {
            let above = new_entry(b"", b"")?;
            (*above).level = ABOVE_ROOTS;
            (*fts.current).info = FTS_INIT;
            (*fts.current).parent = above;
            let roots = fts.roots(paths, above);
            match roots {
                Ok(first) => (*fts.current).link = first,
                Err(errno) => {
                    fts.free_all();
                    return Err(errno);
                }
            }
        }
        Ok(Box::into_raw(Box::new(fts)))
    }

    /// # Safety
    ///
    /// The caller meets the requirements of fts_open(3).
    unsafe fn roots(&self, paths: Paths, above: *mut Entry) -> Result<*mut Entry, Errno> {
        let mut roots = Vec::new();
        // SAFETY: `paths` is an array of C strings that ends with null, by the caller; `new_entry`
        // made the entry.
        let made = unsafe {
            let mut at = paths;
            loop {
                let path = at.read();
                let Some(path) = bytes_of(path) else {
                    break Ok(());
                };
                if path.is_empty() {
                    break Err(Errno::NOENT);
                }
                match new_entry(path, path) {
                    Ok(entry) => {
                        (*entry).level = ROOTS;
                        (*entry).parent = above;
                        (*entry).info = self.look(entry, self.has(FTS_COMFOLLOW));
                        if (*entry).info == FTS_DOT {
                            (*entry).info = FTS_D;
                        }
                        roots.push(entry);
                    }
                    Err(errno) => break Err(errno),
                }
                at = at.add(1);
            }
        };
        // SAFETY: made just above, each once; `fts_open` got the function.
        let first = unsafe { in_order(&mut roots, self.compare) };
        made.map(|()| first).inspect_err(|_| {
            // SAFETY: nobody else has them.
            unsafe { free_list(first) }
        })
    }

    fn has(&self, option: c_int) -> bool {
        self.options & option != 0
    }

    /// Frees the current entry, those that are still to come, and those above.
    ///
    /// # Safety
    ///
    /// No code uses an entry of this walk any more.
    unsafe fn free_all(&mut self) {
        // SAFETY: `current`, its siblings, those above and the children are entries of this walk,
        // and the program is done with them, by the caller.
        unsafe {
            free_list(self.children);
            let mut entry = self.current;
            while !entry.is_null() {
                let parent = (*entry).parent;
                free_list(entry);
                entry = parent;
            }
        }
        (self.current, self.children) = (null_mut(), null_mut());
    }

    /// Returns the kind of an entry's file, and stores its stat in the entry.
    ///
    /// # Safety
    ///
    /// `entry` is alive, and its parents, up to that above the roots, are too.
    unsafe fn look(&self, entry: *mut Entry, follow: bool) -> c_ushort {
        // SAFETY: `entry` is one of this walk, by the caller; entries above it live as long, up to
        // that above the roots.
        unsafe {
            let (e, saved) = (&mut *entry, raw::errno());
            let stat = e.statp;
            if self.has(FTS_LOGICAL) || follow {
                if status::stat(e.accpath, stat) < 0 {
                    e.errno = raw::errno();
                    if status::lstat(e.accpath, stat) == 0 {
                        raw::restore_errno(saved);
                        return FTS_SLNONE;
                    }
                    stat.write_bytes(0, 1);
                    return FTS_NS;
                }
            } else if status::lstat(e.accpath, stat) < 0 {
                e.errno = raw::errno();
                stat.write_bytes(0, 1);
                return FTS_NS;
            }
            match (*stat).st_mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    (e.dev, e.ino, e.nlink) = ((*stat).st_dev, (*stat).st_ino, (*stat).st_nlink);
                    let name = CStr::from_ptr((&raw const (*entry).name).cast());
                    if name == c"." || name == c".." {
                        return FTS_DOT;
                    }
                    let mut above = e.parent;
                    while (*above).level >= ROOTS {
                        if (*above).ino == e.ino && (*above).dev == e.dev {
                            e.cycle = above;
                            return FTS_DC;
                        }
                        above = (*above).parent;
                    }
                    FTS_D
                }
                libc::S_IFLNK => FTS_SL,
                libc::S_IFREG => FTS_F,
                _ => FTS_DEFAULT,
            }
        }
    }

    /// The next entry of the walk.
    ///
    /// # Safety
    ///
    /// The caller meets the requirements of fts_read(3): it does not use the entry that was read before, unless
    /// that is of a directory which the walk has not left, nor the children that it listed.
    unsafe fn read(&mut self) -> *mut Entry {
        let entry = self.current;
        if entry.is_null() {
            return entry;
        }
        // SAFETY: `current` and `children` are entries of this walk; the program uses none that is
        // freed, by the caller.
        unsafe {
            let instr = core::mem::replace(&mut (*entry).instr, FTS_NOINSTR);
            match ((*entry).info, instr) {
                (_, FTS_AGAIN) => {
                    (*entry).info = self.look(entry, false);
                    return entry;
                }
                (FTS_SL | FTS_SLNONE, FTS_FOLLOW) => {
                    (*entry).info = self.look(entry, true);
                    return entry;
                }
                (FTS_D, FTS_SKIP) => return self.leave_unread(entry),
                (FTS_D, _) if self.has(FTS_XDEV) && (*entry).dev != self.device => {
                    return self.leave_unread(entry);
                }
                (FTS_D, _) => {
                    if !self.children.is_null() && self.children_are_names {
                        free_list(self.children);
                        self.children = null_mut();
                    }
                    if self.children.is_null() {
                        self.children = self.build(entry, false, true);
                        if self.children.is_null() {
                            return entry;
                        }
                    }
                    self.current = core::mem::replace(&mut self.children, null_mut());
                    return self.arrive();
                }
                _ => {}
            }
            self.go_on(entry)
        }
    }

    /// # Safety
    ///
    /// `entry` is the current one; see `read`.
    unsafe fn leave_unread(&mut self, entry: *mut Entry) -> *mut Entry {
        // SAFETY: `entry` and the children are of this walk; the program uses no child any more, by
        // the caller.
        unsafe {
            free_list(self.children);
            (*entry).info = FTS_DP;
        }
        self.children = null_mut();
        entry
    }

    /// Goes from an entry that is done to its next sibling, or to their directory.
    ///
    /// # Safety
    ///
    /// `entry` is the current one; see `read`.
    unsafe fn go_on(&mut self, mut entry: *mut Entry) -> *mut Entry {
        // SAFETY: `entry` is of this walk, as are its sibling and its directory; the program is
        // done with it, by the caller.
        unsafe {
            let parent = (*entry).parent;
            loop {
                let beside = (*entry).link;
                free_entry(entry);
                if beside.is_null() {
                    break;
                }
                self.current = beside;
                if (*beside).level == ROOTS || (*beside).instr != FTS_SKIP {
                    return self.arrive();
                }
                entry = beside;
            }
            if (*parent).level == ABOVE_ROOTS {
                free_entry(parent);
                self.current = null_mut();
                raw::restore_errno(0);
                return null_mut();
            }
            (*parent).info = match (*parent).errno {
                0 => FTS_DP,
                _ => FTS_ERR,
            };
            self.current = parent;
            parent
        }
    }

    /// Does the instruction that the program set on the entry before its turn came.
    ///
    /// # Safety
    ///
    /// There is a current entry; see `read`.
    unsafe fn arrive(&mut self) -> *mut Entry {
        // SAFETY: `current` is an entry of this walk.
        unsafe {
            let entry = self.current;
            if (*entry).level == ROOTS {
                self.device = (*entry).dev;
                only_last_name(entry);
                return entry;
            }
            match (*entry).instr {
                FTS_SKIP => return self.go_on(entry),
                FTS_FOLLOW => {
                    (*entry).info = self.look(entry, true);
                    (*entry).instr = FTS_NOINSTR;
                }
                _ => {}
            }
            entry
        }
    }

    /// The entries of a directory, in order; null if there are none. `reading`: the walk enters the
    /// directory, so an error is stored in the directory's entry.
    ///
    /// # Safety
    ///
    /// `of` is alive, as are its parents.
    unsafe fn build(&self, of: *mut Entry, names_only: bool, reading: bool) -> *mut Entry {
        // SAFETY: `of` is an entry of this walk, by the caller, with a path; the stream and the new
        // entries are used here alone.
        unsafe {
            let stream = dir::opendir((*of).accpath);
            if stream.is_null() {
                if reading {
                    (*of).info = FTS_DNR;
                    (*of).errno = raw::errno();
                }
                return null_mut();
            }
            let skips_stat = self.has(FTS_NOSTAT) && self.has(FTS_PHYSICAL);
            let mut found = Vec::new();
            loop {
                let entry = dir::readdir64(stream);
                if entry.is_null() {
                    break;
                }
                let name = CStr::from_ptr((*entry).d_name.as_ptr());
                let is_dot = name == c"." || name == c"..";
                if is_dot && !self.has(FTS_SEEDOT) {
                    continue;
                }
                let kind = (*entry).d_type;
                match inside(of, name.to_bytes()) {
                    Ok(new) => {
                        let known = kind != libc::DT_DIR && kind != libc::DT_UNKNOWN;
                        (*new).info = match names_only || (skips_stat && known) {
                            true => FTS_NSOK,
                            false => self.look(new, false),
                        };
                        found.push(new);
                    }
                    Err(errno) => (*of).errno = errno.raw_os_error(),
                }
            }
            dir::closedir(stream);
            if found.is_empty() && reading {
                (*of).info = FTS_DP;
            }
            in_order(&mut found, self.compare)
        }
    }

    /// The entries to which the walk comes next.
    ///
    /// # Safety
    ///
    /// The caller meets the requirements of fts_children(3): it does not use children listed before.
    unsafe fn children(&mut self, options: c_int) -> *mut Entry {
        // SAFETY: `current` and `children` are entries of this walk; the program uses no child any
        // more, by the caller.
        unsafe {
            if options != 0 && options != FTS_NAMEONLY {
                raw::set_errno(Errno::INVAL);
                return null_mut();
            }
            raw::restore_errno(0);
            let entry = self.current;
            if entry.is_null() {
                return null_mut();
            }
            match (*entry).info {
                FTS_INIT => return (*entry).link,
                FTS_D => {}
                _ => return null_mut(),
            }
            free_list(self.children);
            self.children_are_names = options == FTS_NAMEONLY;
            self.children = self.build(entry, self.children_are_names, false);
            self.children
        }
    }
}

/// A new entry for a name in a directory.
///
/// # Safety
///
/// `of` is an entry that [`new_entry`] made.
unsafe fn inside(of: *mut Entry, name: &[u8]) -> Result<*mut Entry, Errno> {
    // SAFETY: `of` is an entry of `new_entry`, by the caller, with a C string at `path`.
    unsafe {
        let above = CStr::from_ptr((*of).path).to_bytes();
        let slash = match above.last() {
            Some(b'/') => &b""[..],
            _ => b"/",
        };
        let entry = new_entry(name, &[above, slash, name].concat())?;
        (*entry).level = (*of).level + 1;
        (*entry).parent = of;
        Ok(entry)
    }
}

/// Shortens a root's name to the part after its last slash.
///
/// # Safety
///
/// [`new_entry`] made the entry.
unsafe fn only_last_name(entry: *mut Entry) {
    // SAFETY: `entry` is one of `new_entry`, by the caller, whose name is a C string; the rest of
    // it is moved within it.
    unsafe {
        let name = (&raw mut (*entry).name).cast::<u8>();
        let bytes = CStr::from_ptr(name.cast()).to_bytes();
        let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else {
            return;
        };
        let left = bytes.len() - slash - 1;
        if slash > 0 || left > 0 {
            core::ptr::copy(name.add(slash + 1), name, left + 1);
            (*entry).namelen = left as c_ushort;
        }
    }
}
