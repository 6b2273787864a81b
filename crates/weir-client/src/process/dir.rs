//! Listing a directory.
//!
//! The description's offset is the position in the listing: 0 is ".", 1 is "..", and each later one
//! is 2 more than the cookie of the entry before. Cookies stay valid while others create and remove
//! names. A listing ends with the last entry that there was when it began: one that showed what programs make
//! meanwhile might never end.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::node::ofd::Ofd;
use weir_core::proto::{Listing, Readdir};
use weir_core::types::Ino;

use super::descriptors::Descriptors;
use super::dirents::{DirentList, LONGEST};
use super::elevated::{ListingBelow, LowerListings, BELOW};
use super::inodes::InodeOperations;
use super::server_link::ServerLink;
use super::table::{Handle, DIR, GONE, PATH};
use super::{Outcome, ProcessState};
use crate::kernel::Fd;
use crate::operation;
use crate::path::walk::Names;

/// The offset of the first name's predecessor.
const DOTS: u64 = 2;
/// The most that one request asks for: it fits the channel.
const MOST: usize = 48 << 10;
const DT_DIR: u8 = 4;

/// The listing of directories. It may touch descriptors, listings of the PFS, inodes and the server.
#[derive(Debug)]
pub struct ListingCalls {
    descriptors: Descriptors,
    listings: &'static LowerListings,
    server: &'static ServerLink,
    inodes: InodeOperations,
}

impl ListingCalls {
    pub(super) const fn over(state: &'static ProcessState) -> ListingCalls {
        ListingCalls {
            descriptors: Descriptors::over(state),
            listings: &state.listings,
            server: &state.server,
            inodes: InodeOperations::over(state),
        }
    }

    /// getdents64(2): fills `out` with `struct linux_dirent64`.
    pub fn getdents64(&self, fd: Fd, out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        let handle = self.descriptors.verified_handle(fd)?;
        if handle.has(GONE) {
            return Some(Err(Errno::IO));
        }
        if handle.has(PATH) {
            return Some(Err(Errno::BADF));
        }
        if !handle.has(DIR) {
            return Some(Err(Errno::NOTDIR));
        }
        let Some(ofd) = handle.ofd.get() else {
            return Some(Err(Errno::BADF));
        };
        let mut at = ofd.offset.load(Ordering::Acquire);
        let mut list = DirentList::new(out);
        let done = self.list(handle, ofd, &mut at, &mut list);
        ofd.offset.store(at, Ordering::Release);
        let filled = list.filled();
        Some(match done {
            Err(error) if filled == 0 => Err(error),
            _ => Ok(filled),
        })
    }

    fn list(
        &self,
        handle: &'static Handle,
        ofd: &Ofd,
        at: &mut u64,
        list: &mut DirentList<'_>,
    ) -> Result<(), Errno> {
        let dir = handle.ino();
        let view = self.inodes.view()?;
        let attr = view.attr(dir)?.ok_or(Errno::NOENT)?;
        if attr.nlink == 0 {
            return Ok(());
        }
        while *at < DOTS {
            let (name, ino): (&[u8], Ino) = if *at == 0 {
                (b".", dir)
            } else {
                (b"..", parent_of(attr.parent, dir))
            };
            list.put(ino, *at + 1, DT_DIR, name)?;
            *at += 1;
        }
        let covered = self.inodes.covered_by(dir)?;
        while *at < BELOW {
            let room = list.room();
            // In a small buffer the first name is tried nevertheless.
            if room < LONGEST && !list.is_empty() {
                return Ok(());
            }
            let Listing { entries, until } = self.server.session()?.call(Readdir {
                ino: dir,
                cookie: *at - DOTS,
                until: Some(ofd.listed_until.load(Ordering::Relaxed)),
                budget_bytes: u32::try_from(room.min(MOST)).unwrap_or(0),
            })?;
            ofd.listed_until.store(until, Ordering::Relaxed);
            if entries.is_empty() {
                break;
            }
            for entry in &entries {
                let kind = u8::try_from((entry.mode >> 12) & 0o17).unwrap_or(0);
                let next = entry.cookie + DOTS;
                // One that was taken up is listed with the names of the PFS.
                let is_dir = covered.is_some() && kind == DT_DIR;
                if is_dir && self.inodes.covers(entry.ino)? {
                    *at = next;
                    continue;
                }
                match list.put(entry.ino, next, kind, &entry.name) {
                    Err(error) if list.is_empty() => return Err(error),
                    Err(_) => return Ok(()),
                    Ok(()) => {}
                }
                *at = next;
            }
        }
        let Some(covered) = covered else {
            return Ok(());
        };
        *at = (*at).max(BELOW);
        let what = ListingBelow {
            dir,
            covered: &covered,
            handle: core::ptr::from_ref(handle).addr(),
        };
        self.inodes.list_below(self.listings, &what, at, list)
    }
}

/// The root is its own parent.
fn parent_of(parent: Ino, dir: Ino) -> Ino {
    if parent == Ino::NONE {
        dir
    } else {
        parent
    }
}
