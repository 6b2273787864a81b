//! The open files of an HDF5 that live in weir, by their numbers in HDF5. A number stands for one file while that is open, however
//! often it was opened, and no other file of the process gets it later.

use core::ffi::{c_int, c_ulong};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use weir_connect::mpi::{Direction, MpiHandle};
use weir_connect::symbols::{find_symbol, Search};

/// A file.
#[derive(Clone, Debug)]
pub enum FileAccess {
    /// By MPI.
    Parallel(ParallelFile),
    /// By this process alone, which writes it. The descriptor is our own, to publish the file: it works with every driver of HDF5,
    /// and after a rename.
    Written(Arc<File>),
}

/// A file of MPI.
#[derive(Clone, Copy, Debug)]
pub struct ParallelFile {
    /// Its `MPI_File`.
    pub handle: MpiHandle,
    /// True if it was created, not opened: parallel programs have made all its datasets.
    pub is_new: bool,
}

#[derive(Debug)]
struct CountedFile {
    access: FileAccess,
    /// The number of its opens that are not closed.
    count: usize,
}

/// The files of one HDF5.
#[derive(Debug, Default)]
pub struct FilesInWeir(RwLock<HashMap<c_ulong, CountedFile>>);

impl FilesInWeir {
    /// Notes a file that was opened.
    pub fn note(&self, number: c_ulong, access: impl FnOnce() -> Option<FileAccess>) {
        let mut files = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get_mut(&number) {
            file.count += 1;
        } else if let Some(access) = access() {
            files.insert(number, CountedFile { access, count: 1 });
        }
    }

    /// Notes that a file was closed once.
    pub fn forget(&self, number: c_ulong) {
        let mut files = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = files.get_mut(&number) else {
            return;
        };
        file.count -= 1;
        if file.count == 0 {
            files.remove(&number);
        }
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        let files = self.0.read().unwrap_or_else(PoisonError::into_inner);
        files.is_empty()
    }

    fn access(&self, number: c_ulong) -> Option<FileAccess> {
        let files = self.0.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&number).map(|file| file.access.clone())
    }

    /// Makes the file's data visible on all nodes. For a file of MPI nothing is to be done: its driver does that in `H5Fflush`
    /// itself.
    pub fn publish(&self, number: c_ulong) -> io::Result<()> {
        match self.access(number) {
            Some(FileAccess::Written(file)) => file.sync_all(),
            Some(FileAccess::Parallel(_)) | None => Ok(()),
        }
    }

    /// Begins a collective transfer of a file, in all its processes. Returns the file if the transfer becomes an independent one.
    /// The processes agree on that through the MPI-IO connector. It decides as for its own calls, by the user's hints, the servers
    /// and the mode of the file, and makes the processes wait for each other where reads follow writes, or writes reads.
    pub fn begin_collective(&self, number: c_ulong, direction: Direction) -> Option<ParallelFile> {
        type BeginCollective = extern "C" fn(MpiHandle, c_int) -> c_int;
        static FUNCTION: OnceLock<Option<BeginCollective>> = OnceLock::new();
        let Some(FileAccess::Parallel(file)) = self.access(number) else {
            return None;
        };
        let find = || {
            let address = find_symbol(Search::All, c"weir_mpiio_begin_collective")?;
            // SAFETY: `weir-mpiio` exports the function of this name with this type.
            Some(unsafe {
                core::mem::transmute::<*mut core::ffi::c_void, BeginCollective>(address)
            })
        };
        let begin = FUNCTION.get_or_init(find).as_ref()?;
        let is_write = c_int::from(direction == Direction::Write);
        (begin(file.handle, is_write) != 0).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_until_it_is_closed_as_often_as_it_was_opened() {
        let files = FilesInWeir::default();
        assert!(files.is_empty());
        let file = ParallelFile {
            handle: 7,
            is_new: true,
        };
        files.note(1, || Some(FileAccess::Parallel(file)));
        files.note(1, || unreachable!("it is open"));
        files.note(2, || None);
        files.forget(1);
        assert!(!files.is_empty());
        files.forget(1);
        files.forget(2);
        assert!(files.is_empty());
        assert!(files.publish(1).is_ok() && files.begin_collective(1, Direction::Write).is_none());
    }
}
