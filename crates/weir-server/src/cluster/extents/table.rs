//! The extent indexes of all files, by inode index.
//!
//! The table is dense and divided into chunks: a million files need neither a hash table nor one
//! long move when the table grows. A chunk whose files are all empty costs nothing.

use weir_core::extent::ExtentIndex;
use weir_core::types::Ino;

const CHUNK: usize = 1024;

/// One [`ExtentIndex`] a file.
#[derive(Debug, Default)]
pub struct FileTable {
    chunks: Vec<Option<Box<[ExtentIndex]>>>,
}

impl FileTable {
    /// The index of `ino`; `None` if it never had data.
    pub fn get(&self, ino: Ino) -> Option<&ExtentIndex> {
        let at = ino.index() as usize;
        self.chunks.get(at / CHUNK)?.as_ref()?.get(at % CHUNK)
    }

    /// The slots of files that have extents.
    pub fn not_empty(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunks
            .iter()
            .enumerate()
            .filter_map(|(chunk, files)| Some((chunk, files.as_ref()?)))
            .flat_map(|(chunk, files)| {
                let all = files.iter().enumerate();
                all.filter(|(_, index)| !index.is_empty())
                    .filter_map(move |(at, _)| u32::try_from(chunk * CHUNK + at).ok())
            })
    }

    /// The index of `ino`, mutable.
    pub fn get_mut(&mut self, ino: Ino) -> &mut ExtentIndex {
        let at = ino.index() as usize;
        if self.chunks.len() <= at / CHUNK {
            self.chunks.resize_with(at / CHUNK + 1, || None);
        }
        let chunk = self.chunks[at / CHUNK]
            .get_or_insert_with(|| (0..CHUNK).map(|_| ExtentIndex::new()).collect());
        &mut chunk[at % CHUNK]
    }

    /// All indexes that are not empty.
    pub fn iter(&self) -> impl Iterator<Item = &ExtentIndex> {
        self.chunks
            .iter()
            .flatten()
            .flat_map(|chunk| chunk.iter())
            .filter(|index| !index.is_empty())
    }
}

const _: () = assert!(size_of::<ExtentIndex>() <= 16);

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::extent::Run;
    use weir_core::types::Rank;

    #[test]
    fn only_files_with_extents_are_listed_in_any_chunk() {
        let mut table = FileTable::default();
        let files = [1, 1023, 1024, 5000].map(|index| Ino::new(Rank(0), 3, index));
        assert!(table.get(files[3]).is_none(), "it never had data");
        for ino in files {
            let run = Run::extent(0, 8, 1, 0, 1, 0).unwrap();
            table.get_mut(ino).insert(run, &mut |_| ()).unwrap();
        }
        assert_eq!(table.not_empty().collect::<Vec<_>>(), [1, 1023, 1024, 5000]);
        assert_eq!(table.iter().count(), 4);
        table.get_mut(files[1]).clear(&mut |_| ());
        assert_eq!(table.not_empty().collect::<Vec<_>>(), [1, 1024, 5000]);
        assert!(table.get(files[1]).is_some_and(ExtentIndex::is_empty));
        let neighbour = Ino::new(Rank(0), 3, 1025);
        assert!(table.get(neighbour).is_some_and(ExtentIndex::is_empty));
    }
}
