//! Files mapped into memory for loads alone.
//!
//! A store to such memory kills the process, and storing to atomics in it is undefined behaviour.
//! So no safe function here gives out a reference that permits it. Bytes are read through a
//! [`ReadWindow`], the namespace through a [`NamesView`], which has loads only.

use rustix::fd::AsFd;
use weir_core::names::{self, InodeRecord, NamesHeader, NamesView, Section, Tables};

use crate::area::{Access, AddressRange, MapError, Mapped};
use crate::shm::ShmRecord;
use crate::window::ReadWindow;

/// A file (or its beginning) mapped shared, for loads; unmapped when dropped.
#[derive(Debug)]
pub struct ReadOnlyMapping(Mapped);

impl ReadOnlyMapping {
    /// Maps the first `len` bytes (at least one) of `file`, at any page boundary.
    pub fn new(file: impl AsFd, len: usize) -> Result<ReadOnlyMapping, MapError> {
        Mapped::new(file, len, Access::ReadOnly).map(ReadOnlyMapping)
    }

    /// Keeps the memory mapped until the process ends.
    pub fn leak(self) -> ReadOnlyRegion {
        ReadOnlyRegion(self.0.leak())
    }

    /// Keeps the memory mapped until the process ends, for copies out of it.
    pub fn leak_window(self) -> ReadWindow {
        let range = self.0.leak();
        // SAFETY: it stays mapped; a mapping that is given away by value has lent no
        // reference, and the region, which could, is not handed out.
        unsafe { ReadWindow::new(range.base().as_ptr(), range.len()) }
    }
}

/// Memory mapped for loads that stays until the process ends; a copyable handle.
#[derive(Debug, Clone, Copy)]
pub struct ReadOnlyRegion(AddressRange);

impl ReadOnlyRegion {
    /// The `count` records from byte `offset` on. Bounds and alignment are checked.
    ///
    /// # Safety
    ///
    /// Nothing is ever stored through the references: neither by the caller, nor by methods of `T`
    /// that it calls, nor by code to which it hands them.
    pub unsafe fn slice<T: ShmRecord>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&'static [T], MapError> {
        let records = self.0.records(offset, count)?;
        // SAFETY: the memory is mapped for loads until the process ends, the range was checked
        // by `records`, and the caller stores nothing.
        Ok(unsafe { &*records })
    }

    /// The namespace of a server, from its file. `None`: it is no namespace, or of another version.
    pub fn names(&self) -> Result<Option<NamesView<'static>>, MapError> {
        let at = |section: Section| usize::try_from(section.offset_bytes).unwrap_or(usize::MAX);
        // SAFETY: the header is asked for a number, and checking the tables and looking things
        // up in them by a `NamesView`, which does not give them away, are loads.
        unsafe {
            let header = &self.slice::<NamesHeader>(0, 1)?[0];
            let layout = names::layout(header.max_inodes());
            let inodes = self.slice::<InodeRecord>(at(layout.inodes), layout.inodes.len)?;
            let arena = self.slice(at(layout.arena), layout.arena.len)?;
            let buckets = self.slice(at(layout.buckets), layout.buckets.len)?;
            let tables = Tables::open(header, inodes, arena, buckets);
            Ok(tables.ok().map(NamesView::new))
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;
    use crate::map::{create_sparse, open_shared, Mapping};
    use crate::testdir::TestDir;

    #[test]
    fn what_is_written_elsewhere_is_read_here() {
        let dir = TestDir::new("readonly");
        let file = create_sparse(dir.fd(), "shared", 1 << 20).unwrap();
        let writer = Mapping::new(&file, 1 << 20).unwrap().leak();
        writer.slice::<AtomicU64>(4096, 8).unwrap()[3].store(77, SeqCst);
        let again = open_shared(dir.fd(), "shared", Access::ReadOnly).unwrap();
        let map = || ReadOnlyMapping::new(&again, 1 << 20).unwrap();
        // SAFETY: it is loaded from.
        let records = unsafe { map().leak().slice::<[AtomicU64; 4]>(4096, 2) };
        assert_eq!(records.unwrap()[0][3].load(SeqCst), 77);
        let mut bytes = [0; 2];
        map().leak_window().read(4096 + 24, &mut bytes);
        assert_eq!(bytes, [77, 0]);
    }

    #[test]
    fn what_is_no_namespace_is_told() {
        let dir = TestDir::new("readonly-names");
        let file = create_sparse(dir.fd(), "names", 4096).unwrap();
        let region = ReadOnlyMapping::new(&file, 4096).unwrap().leak();
        assert!(!matches!(region.names(), Ok(Some(_))));
        let file = create_sparse(dir.fd(), "short", 8).unwrap();
        let region = ReadOnlyMapping::new(&file, 8).unwrap().leak();
        assert!(matches!(region.names(), Err(MapError::OutOfBounds { .. })));
    }
}
