//! The regions that a server shares with its clients: files on tmpfs, as in production. They have no
//! names, as every process here is in one address space.
//!
//! Invariant: a region stays mapped until the process ends, as the references of a server require.

use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fd::OwnedFd;
use weir_core::names::{layout, InodeRecord, NamesHeader, Section, Tables};
use weir_core::node::known::KNOWN_SLOTS;
use weir_core::node::region::open_layout;
use weir_core::types::Rank;
use weir_server::node::OpenRegion;
use weir_store::map::{create_sparse, Mapping, Region};

/// Panics here mean that a layout is longer than the region that was made for it.
const WHOLE: &str = "the region is that long";

/// A fresh file on tmpfs, mapped; it has no name.
pub fn map_file(bytes: usize) -> (OwnedFd, Mapping) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let path = dir.path().join("region");
    let file = create_sparse(rustix::fs::CWD, &path, bytes as u64).expect("a region");
    let mapping = Mapping::new(&file, bytes).expect("to map a region");
    (file, mapping)
}

/// A file that stays mapped until the process ends.
#[derive(Debug)]
struct LeakedFile {
    file: OwnedFd,
    region: Region,
}

impl LeakedFile {
    fn new(bytes: usize) -> LeakedFile {
        let (file, mapping) = map_file(bytes);
        let region = mapping.leak();
        LeakedFile { file, region }
    }

    fn clear(&self) {
        for bytes in [0, self.region.len() as u64] {
            rustix::fs::ftruncate(&self.file, bytes).expect("to clear a region");
        }
    }
}

/// The number of entries of each table of a node.
#[derive(Clone, Copy, Debug)]
pub struct TableSizes {
    /// Inodes.
    pub files: u32,
    /// Open file descriptions.
    pub descriptions: usize,
    /// Blocks of files that are open for writing.
    pub blocks: usize,
    /// Cells of writers.
    pub cells: usize,
}

/// The shared regions of a server.
#[derive(Debug)]
pub struct NodeRegions {
    sizes: TableSizes,
    open: LeakedFile,
    names: LeakedFile,
}

type NamesParts = (
    &'static NamesHeader,
    &'static [InodeRecord],
    &'static [AtomicU64],
    &'static [AtomicU32],
);

impl NodeRegions {
    /// Fresh regions for tables of these sizes.
    pub fn new(sizes: TableSizes) -> NodeRegions {
        let open = open_layout(sizes.descriptions, sizes.blocks, sizes.cells);
        let names = usize::try_from(layout(sizes.files).file_bytes).expect("fits");
        NodeRegions {
            sizes,
            open: LeakedFile::new(open.bytes),
            names: LeakedFile::new(names),
        }
    }

    /// Zeroes all of them, for another server.
    pub fn clear(&self) {
        self.open.clear();
        self.names.clear();
    }

    /// The tables of open files.
    pub fn open(&self) -> OpenRegion<'static> {
        let sizes = &self.sizes;
        let parts = open_layout(sizes.descriptions, sizes.blocks, sizes.cells);
        let region = &self.open.region;
        OpenRegion {
            hub: region.record(0).expect(WHOLE),
            ofds: region.slice(parts.ofds, sizes.descriptions).expect(WHOLE),
            blocks: region.slice(parts.blocks, sizes.blocks).expect(WHOLE),
            cells: region.slice(parts.cells, sizes.cells).expect(WHOLE),
            known: region.slice(parts.known, KNOWN_SLOTS).expect(WHOLE),
        }
    }

    fn names_parts(&self) -> NamesParts {
        let parts = layout(self.sizes.files);
        let region = &self.names.region;
        let at = |section: Section| usize::try_from(section.offset_bytes).expect("fits");
        let (inodes, arena, buckets) = (parts.inodes, parts.arena, parts.buckets);
        (
            region.record(at(parts.header)).expect(WHOLE),
            region.slice(at(inodes), inodes.len).expect(WHOLE),
            region.slice(at(arena), arena.len).expect(WHOLE),
            region.slice(at(buckets), buckets.len).expect(WHOLE),
        )
    }

    /// Makes the tables of names, for the server.
    pub fn format_names(&self, rank: Rank) -> Tables<'static> {
        let (header, inodes, arena, buckets) = self.names_parts();
        Tables::format(header, inodes, arena, buckets, rank).expect("tables")
    }

    /// The same tables, for clients.
    pub fn names(&self) -> Tables<'static> {
        let (header, inodes, arena, buckets) = self.names_parts();
        Tables::open(header, inodes, arena, buckets).expect("the same tables")
    }
}
