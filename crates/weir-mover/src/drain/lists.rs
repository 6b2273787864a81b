//! Lists of files that are moved together, each by the node that has most of its bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use weir_client::types::Time;

use super::snapshot::FileVersion;
use super::team::DrainTeam;
use crate::list::move_files;
use crate::mover::{FileMover, FileToMove, MovedFile, MovedFiles, LIST_BYTES, LIST_FILES};
use crate::stage::{StageOptions, StageProgress};
use crate::tree::FileTree;

/// A file of a list.
#[derive(Debug)]
pub(super) struct ListedFile {
    pub file: FileToMove,
    /// Device and number.
    pub inode: (u64, u64),
    /// Bytes.
    pub size: u64,
    /// The rank of the server that has its bytes.
    pub rank: u16,
}

/// Cuts files into lists of their numbers, by the rank that has them. All names of one inode are in one list, so that its
/// mover sees that they are links.
pub(super) fn lists_of(files: &[ListedFile]) -> Vec<(u16, Vec<usize>)> {
    #[derive(Default)]
    struct OpenList {
        files: Vec<usize>,
        /// Bytes.
        size: u64,
    }
    let mut names: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for (number, file) in files.iter().enumerate() {
        names.entry(file.inode).or_default().push(number);
    }
    let mut lists = Vec::new();
    let mut open: BTreeMap<u16, OpenList> = BTreeMap::new();
    let mut seen = HashSet::new();
    for file in files.iter().filter(|file| seen.insert(file.inode)) {
        let list = open.entry(file.rank).or_default();
        list.files
            .append(names.get_mut(&file.inode).expect("it has a name"));
        list.size += file.size;
        if list.files.len() >= LIST_FILES || list.size >= LIST_BYTES {
            lists.push((file.rank, std::mem::take(list).files));
        }
    }
    let open = open.into_iter().map(|(rank, list)| (rank, list.files));
    lists.extend(open.filter(|(_, files)| !files.is_empty()));
    lists
}

/// The settings for the lists that the process of a drain moves itself.
#[derive(Debug)]
pub(super) struct OwnLists<'r, 't, S: FileTree, T: FileTree> {
    pub from: &'t S,
    pub to: &'t T,
    pub options: StageOptions,
    pub progress: &'r StageProgress,
}

/// A list that was moved.
#[derive(Debug)]
pub(super) struct MovedList {
    /// The numbers of its files.
    pub files: Vec<usize>,
    pub moved: MovedFiles,
    /// Another process has moved it.
    pub is_remote: bool,
}

/// Distributes lists of files to this process, which calls `here`, and to all movers, by `elsewhere`. Each takes lists of
/// files that its node has, then those of other nodes. A list has the numbers of files.
pub(super) fn share_lists<'m>(
    files: &[ListedFile],
    lists: Vec<(u16, Vec<usize>)>,
    team: &'m DrainTeam,
    progress: &StageProgress,
    here: impl Fn(&[usize], Vec<FileToMove>) + Sync,
    elsewhere: impl Fn(&'m dyn FileMover, &[usize], &[FileToMove]) -> io::Result<()> + Sync,
) {
    let lists = team.queue_tasks(lists.into_iter());
    let files_of = |list: &[usize]| -> Vec<FileToMove> {
        list.iter().map(|file| files[*file].file.clone()).collect()
    };
    let is_stopped = || progress.begins_no_more();
    let work_elsewhere = |mover: &'m dyn FileMover, list: Vec<usize>| {
        if is_stopped() {
            return Ok(());
        }
        if elsewhere(mover, &list, &files_of(&list)).is_err() {
            return Err(list);
        }
        let size = list.iter().map(|file| files[*file].size).sum();
        let number = list.len() as u64;
        progress.files_found.fetch_add(number, Ordering::Relaxed);
        progress.bytes_found.fetch_add(size, Ordering::Relaxed);
        progress.files_done.fetch_add(number, Ordering::Relaxed);
        progress.bytes_done.fetch_add(size, Ordering::Relaxed);
        Ok(())
    };
    let elsewhere =
        |mover: &'m dyn FileMover| lists.work(mover.rank(), |list| work_elsewhere(mover, list));
    team.work(&lists, 1, elsewhere, || {
        lists.work(team.rank, |list| {
            if !is_stopped() {
                here(&list, files_of(&list));
            }
            Ok(())
        });
    });
}

/// Moves files in no order: each gets its name when it is copied.
pub(super) fn share_files<S: FileTree, T: FileTree>(
    files: &[ListedFile],
    team: &DrainTeam,
    own: &OwnLists<'_, '_, S, T>,
) -> Vec<MovedList> {
    let done = Mutex::new(Vec::new());
    let keep = |files: &[usize], moved: MovedFiles, is_remote| {
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(MovedList {
            files: files.to_vec(),
            moved,
            is_remote,
        });
    };
    let here = |numbers: &[usize], list: Vec<FileToMove>| {
        let moved = move_files(own.from, own.to, &list, own.options, own.progress);
        keep(numbers, moved, false);
    };
    let elsewhere = |mover: &dyn FileMover, numbers: &[usize], list: &[FileToMove]| {
        keep(numbers, mover.move_files(list)?, true);
        Ok(())
    };
    share_lists(files, lists_of(files), team, own.progress, here, elsewhere);
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl MovedFile {
    /// The version that was copied, with the device number that the instance has on this node.
    pub(super) fn version_on(&self, dev: u64) -> Option<FileVersion> {
        let version = self.version?;
        Some(FileVersion {
            dev,
            ino: version.ino,
            size: version.size,
            mtime: Time {
                sec: version.mtime.0,
                nsec: version.mtime.1,
            },
            ctime: Time {
                sec: version.ctime.0,
                nsec: version.ctime.1,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::LikenessBy;
    use crate::replaceable::Replaceable;
    use crate::sources::StagePair;

    #[test]
    fn lists_have_all_files_once_and_links_together() {
        let file = |number: u64| ListedFile {
            file: FileToMove {
                pair: StagePair {
                    source: "a".into(),
                    target: "b".into(),
                },
                replaces: Replaceable::Any,
                content: None,
                likeness: LikenessBy::Times,
                is_ours: false,
            },
            inode: (0, number % 900),
            size: if number == 3 { LIST_BYTES } else { 1 },
            rank: u16::try_from(number % 900 % 3).unwrap(),
        };
        let files: Vec<_> = (0..1000).map(file).collect();
        let lists = lists_of(&files);
        let all = lists.iter().flat_map(|(_, list)| list);
        let mut all: Vec<usize> = all.copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        for (rank, list) in &lists {
            assert!(list.len() < 2 * LIST_FILES);
            assert!(list.iter().all(|number| files[*number].rank == *rank));
            for number in list.iter().filter(|number| **number < 100) {
                assert!(list.contains(&(number + 900)), "{number}");
            }
        }
        assert!(lists.len() >= 4);
    }
}
