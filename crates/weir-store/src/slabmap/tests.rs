//! Slabs of both tiers, written and read back by several maps, threads and a child.

use std::io::{Read, Write};

use super::*;
use crate::backing::{slab_name, Backing, DirBacking};
use crate::slab::SlabDirectory;
use crate::testdir::TestDir;

const MEMORY: SlabDirectory = SlabDirectory::MEMORY;

struct Dirs {
    memory: TestDir,
    storage: TestDir,
}

impl Dirs {
    /// Directories with two slabs each.
    fn new(name: &str) -> Dirs {
        let dirs = Dirs {
            memory: TestDir::new(name),
            storage: TestDir::on_disk(name),
        };
        let mut backing = DirBacking::open(dirs.memory.path(), &[dirs.storage.path()]).unwrap();
        for directory in [MEMORY, SlabDirectory::storage(0).unwrap()] {
            for index in 0..2 {
                backing
                    .create(SlabId::new(directory, index), SLAB_BYTES)
                    .unwrap();
            }
        }
        dirs
    }

    fn map(&self) -> SlabMap {
        SlabMap::new(self.memory.path(), 3, &[(self.storage.path(), 3)])
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 7) % 251).unwrap())
        .collect()
}

#[test]
fn what_one_map_writes_another_reads() {
    let dirs = Dirs::new("slabmap");
    let (writer, reader) = (dirs.map(), dirs.map());
    for directory in [MEMORY, SlabDirectory::storage(0).unwrap()] {
        let slab = SlabId::new(directory, 1);
        for (at, len) in [(0, 64), (100, 1), (4095, 70_000), (1 << 20, 3 << 20)] {
            let data = bytes(len, at);
            writer.write_at(slab, at as u64, &data).unwrap();
            let mut back = vec![0; len];
            reader.read_at(slab, at as u64, &mut back).unwrap();
            assert!(back == data, "{directory:?} {at} {len}");
        }
        let mut last = [0; 1];
        reader.read_at(slab, SLAB_BYTES - 1, &mut last).unwrap();
        writer.sync(slab).unwrap();
    }
}

#[test]
fn slabs_and_ranges_that_are_not_there_are_errors() {
    let dirs = Dirs::new("slabmap-bad");
    let map = dirs.map();
    let mut one = [0; 1];
    let mut read = |slab, pos| map.read_at(slab, pos, &mut one);
    for directory in [MEMORY, SlabDirectory::storage(0).unwrap()] {
        assert_eq!(read(SlabId::new(directory, 0), SLAB_BYTES), Err(Errno::IO));
        assert_eq!(read(SlabId::new(directory, 0), u64::MAX), Err(Errno::IO));
        assert_eq!(read(SlabId::new(directory, 2), 0), Err(Errno::NOENT));
        assert_eq!(read(SlabId::new(directory, 3), 0), Err(Errno::IO));
    }
    assert_eq!(
        read(SlabId::new(SlabDirectory::storage(1).unwrap(), 0), 0),
        Err(Errno::IO)
    );
    let in_file = SlabId::new(SlabDirectory::storage(0).unwrap(), 0);
    assert_eq!(map.window(in_file, 0, 1).unwrap_err(), Errno::IO);
}

#[test]
fn a_cold_segment_is_written_without_touching_holes() {
    let dirs = Dirs::new("slabmap-cold");
    let (map, reader) = (dirs.map(), dirs.map());
    let slab = SlabId::new(MEMORY, 0);
    let writer = map.writer(slab, 2 << 20, 2 << 20, false).unwrap();
    let mut model = vec![0; 2 << 20];
    let mut at = 0;
    for len in [
        1, 64, 5000, 300_000, 64, 47_008, 100, 16_384, 16_383, 700_000,
    ] {
        let data = bytes(len, at);
        writer.write(&map, at, &data).unwrap();
        model[at..at + len].copy_from_slice(&data);
        at += len;
    }
    let mut back = vec![1; 2 << 20];
    reader.read_at(slab, 2 << 20, &mut back).unwrap();
    assert!(back == model);
    assert_eq!(writer.write(&map, (2 << 20) - 1, &[1, 2]), Err(Errno::IO));
    assert_eq!(writer.write(&map, usize::MAX, &[1, 2]), Err(Errno::IO));
    writer.write(&map, (2 << 20) - 1, &[9]).unwrap();
    reader.read_at(slab, (4 << 20) - 1, &mut back[..1]).unwrap();
    assert_eq!(back[0], 9);
}

#[test]
fn a_window_refuses_what_lies_outside() {
    let dirs = Dirs::new("slabmap-window");
    let map = dirs.map();
    let window = map.window(SlabId::new(MEMORY, 0), 4096, 100).unwrap();
    window.write(98, &[1, 2]);
    assert_eq!((window.len(), window.is_empty()), (100, false));
    for (at, len) in [(99, 2), (101, 0), (usize::MAX, 1)] {
        let wrote = std::panic::catch_unwind(|| window.write(at, &vec![0; len]));
        assert!(wrote.is_err(), "{at} {len}");
    }
}

#[test]
fn threads_that_are_first_at_once_share_one_mapping_and_one_descriptor() {
    let dirs = Dirs::new("slabmap-race");
    let map = dirs.map();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (map, barrier) = (&map, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for directory in [MEMORY, SlabDirectory::storage(0).unwrap()] {
                    let slab = SlabId::new(directory, 0);
                    map.write_at(slab, u64::from(thread) * 10, &[thread; 10])
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(map.kept_fds().count(), 1);
    let fd = map.kept_fds().next().unwrap();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(fd >= 700 || limit < 800, "descriptor {fd}");
    let mut back = [0; 40];
    for directory in [MEMORY, SlabDirectory::storage(0).unwrap()] {
        map.read_at(SlabId::new(directory, 0), 0, &mut back)
            .unwrap();
        assert!(back.iter().zip(0..).all(|(&byte, at)| byte == at / 10));
    }
}

#[test]
fn slab_paths_are_what_the_server_makes() {
    for index in [0, 7, 10, 4_194_303] {
        let slab = SlabId::new(MEMORY, index);
        let mut path = PathBuffer::new(b"/x").unwrap();
        path.push_slab(slab).unwrap();
        let expected = format!("/x/{}", slab_name(slab));
        assert_eq!(path.as_c_str().unwrap().to_bytes(), expected.as_bytes());
    }
    assert!(PathBuffer::new(&[b'x'; 4096]).is_err());
}

/// Another process sees the same bytes: the file itself is read.
#[test]
fn mapped_writes_are_in_the_file() {
    let dirs = Dirs::new("slabmap-file");
    let map = dirs.map();
    let data = bytes(100_000, 3);
    map.write_at(SlabId::new(MEMORY, 0), 0, &data).unwrap();
    let path = dirs.memory.path().join("slab-0");
    let mut back = vec![0; data.len()];
    std::fs::File::open(&path)
        .unwrap()
        .read_exact(&mut back)
        .unwrap();
    assert!(back == data);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(b"other").unwrap();
    map.read_at(SlabId::new(MEMORY, 0), 0, &mut back[..5])
        .unwrap();
    assert_eq!(&back[..5], b"other");
}
