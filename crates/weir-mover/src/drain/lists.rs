//! Lists of files that are moved together, and pieces of a large one, each for the node that has most of the bytes.
//!
//! A mover that has no task left takes those of nodes without a mover, then of the one that has most tasks
//! waiting. The last task of a mover stays its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::mover::{FileMover, FileToMove};

/// The most files of a list.
const LIST_FILES: usize = 256;
/// The bytes of a list, unless it is of one file.
const LIST_BYTES: u64 = 256 << 20;

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

/// The tasks that nobody has taken yet.
pub(super) struct RankQueue<K> {
    by_rank: Mutex<BTreeMap<u16, VecDeque<K>>>,
    /// The ranks with a mover.
    movers: BTreeSet<u16>,
}

impl<K> RankQueue<K> {
    /// Tasks, each with the rank of its node. `own`: the rank of this process.
    pub fn new(
        tasks: impl Iterator<Item = (u16, K)>,
        own: u16,
        movers: &[Box<dyn FileMover>],
    ) -> RankQueue<K> {
        let mut by_rank: BTreeMap<u16, VecDeque<K>> = BTreeMap::new();
        for (rank, task) in tasks {
            by_rank.entry(rank).or_default().push_back(task);
        }
        RankQueue {
            by_rank: Mutex::new(by_rank),
            movers: movers
                .iter()
                .map(|mover| mover.rank())
                .chain([own])
                .collect(),
        }
    }

    fn by_rank(&self) -> MutexGuard<'_, BTreeMap<u16, VecDeque<K>>> {
        self.by_rank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The movers that are worth asking: those whose nodes have tasks, and others for the rest of the tasks.
    pub fn choose_helpers<'m>(
        &self,
        movers: &'m [Box<dyn FileMover>],
    ) -> impl Iterator<Item = &'m dyn FileMover> {
        let by_rank = self.by_rank();
        let has_tasks = |mover: &dyn FileMover| by_rank.contains_key(&mover.rank());
        let mut movers: Vec<&dyn FileMover> = movers.iter().map(|mover| &**mover).collect();
        movers.sort_by_key(|mover| !has_tasks(*mover));
        let owners = movers.iter().filter(|mover| has_tasks(**mover)).count();
        let tasks = by_rank.values().map(VecDeque::len).sum::<usize>();
        movers.into_iter().take(owners.max(tasks.saturating_sub(1)))
    }

    /// The next task for a mover of this rank.
    pub fn take_next(&self, rank: u16) -> Option<K> {
        let mut by_rank = self.by_rank();
        if let Some(task) = by_rank.get_mut(&rank).and_then(VecDeque::pop_front) {
            return Some(task);
        }
        let waiting = by_rank.iter_mut().filter(|(owner, tasks)| {
            let kept = usize::from(self.movers.contains(owner));
            tasks.len() > kept
        });
        let longest = waiting.max_by_key(|(owner, tasks)| {
            let is_without_mover = !self.movers.contains(owner);
            (is_without_mover, tasks.len())
        });
        longest?.1.pop_front()
    }

    /// Gives back a task of a mover that is lost.
    pub fn give_back(&self, rank: u16, task: K) {
        self.by_rank().entry(rank).or_default().push_back(task);
    }

    /// Any task, once no mover takes more.
    pub fn take_any(&self) -> Option<K> {
        self.by_rank().values_mut().find_map(VecDeque::pop_front)
    }
}

/// Cuts files into lists of their numbers, by the rank that has them. The names of one file are in one list,
/// which so finds that they are links.
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::marks::Replaceable;
    use super::super::mover::MovedFiles;
    use super::*;
    use crate::piece::FilePiece;
    use crate::sources::StagePair;

    #[derive(Debug)]
    struct NamedMover(u16);

    impl FileMover for NamedMover {
        fn rank(&self) -> u16 {
            self.0
        }
        fn move_files(&self, _: &[FileToMove]) -> io::Result<MovedFiles> {
            unreachable!()
        }
        fn move_piece(&self, _: &FilePiece) -> io::Result<Result<(), String>> {
            unreachable!()
        }
    }

    fn movers(ranks: &[u16]) -> Vec<Box<dyn FileMover>> {
        let mover = |rank: &u16| -> Box<dyn FileMover> { Box::new(NamedMover(*rank)) };
        ranks.iter().map(mover).collect()
    }

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

    #[test]
    fn each_takes_its_own_tasks_and_then_those_that_wait_longest() {
        // Rank 2 has no mover.
        let tasks = [(0, 'a'), (1, 'b'), (1, 'c'), (1, 'd'), (2, 'e'), (2, 'f')];
        let queue = RankQueue::new(tasks.into_iter(), 0, &movers(&[1]));
        let taken = [1, 0, 0, 0, 0, 0, 1, 1].map(|rank| queue.take_next(rank));
        let wanted = [
            Some('b'),
            Some('a'),
            Some('e'),
            Some('f'),
            Some('c'),
            None,
            Some('d'),
            None,
        ];
        assert_eq!(taken, wanted);
        // The mover of rank 1 is lost.
        queue.give_back(1, 'd');
        assert_eq!(queue.take_next(0), None);
        assert_eq!(queue.take_any(), Some('d'));
        assert_eq!(queue.take_any(), None);
    }

    #[test]
    fn movers_with_tasks_are_asked_first() {
        let all = movers(&[1, 2, 3]);
        let asked = |tasks: &[(u16, ())]| -> Vec<u16> {
            let queue = RankQueue::new(tasks.iter().copied(), 0, &all);
            let helpers = queue.choose_helpers(&all);
            helpers.map(FileMover::rank).collect()
        };
        assert_eq!(asked(&[(0, ())]), [] as [u16; 0]);
        assert_eq!(asked(&[(3, ())]), [3]);
        assert_eq!(asked(&[(0, ()), (0, ()), (3, ())]), [3, 1]);
        assert_eq!(asked(&[(0, ()); 9]), [1, 2, 3]);
    }
}
