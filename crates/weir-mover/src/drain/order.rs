//! The order in which files get their names on the target: that of their last changes.
//!
//! A program writes `ckpt.8`, closes it, and then writes 8 into `progress`. Whenever the drain ends, `progress` on the
//! target must refer only to checkpoints that are there. So the files of a round are copied in any order, but get their
//! names one after the other, in the order of their times of change (`ctime`, which programs cannot set). If one fails, the
//! files after it wait for the next round.
//!
//! Files also wait for nodes that changed before them and do not have their names yet:
//! - a file that a walk has seen closed, if a program has it open again, or has changed it just now: both files may belong
//!   to the next iteration of a loop by then;
//! - a file that could not be moved in the last round;
//! - a directory that was renamed ([`naming`](super::naming)).
//!
//! Other files wait for a file for some rounds only. A file that has waited for many rounds gets its name with all files
//! that changed before it: programs may rename new directories faster than walks follow. While a write waits for room, no
//! file waits. The order leaves out files in directories without names, which nobody sees, and files whose bytes wait for
//! an analysis or a lamination. Files that are to be moved first have an order of their own, before the others.
//!
//! The order is that of the clocks of the nodes that write. A file that changed after the walk had begun is left to the
//! next round: the walk may have missed files that changed before it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use weir_client::types::Time;

use super::snapshot::FileVersion;

/// The rounds after which a directory does not wait for other files any more, and a file for directories.
pub(super) const LONGEST_WAIT: u32 = 12;
/// The rounds in which others wait for a file: a program may change it all the time.
pub(super) const MOST_ROUNDS: u32 = 4;

/// The rule for the names of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NameOrder {
    /// In the order of the last changes of the files.
    #[default]
    Changes,
    /// Each file gets its name when it is copied; small ones are copied first.
    None,
}

/// Device and number.
type InodeId = (u64, u64);
/// The inode of no file.
const NO_INODE: InodeId = (0, 0);

/// A file or directory that the target does not have under its name.
#[derive(Clone, Copy, Debug)]
struct UnnamedNode {
    /// Its time of change when a walk first saw it without its name.
    since: Time,
    /// Files that changed after this time wait for it, as long as it is awaited.
    awaited_from: Time,
    /// It could not be moved in this round.
    has_failed: bool,
    /// It changed after the walk of this round had begun.
    is_late: bool,
    /// The rounds in which files waited for it.
    rounds: u32,
}

/// Files that wait for directories, by their paths, with their times of change.
pub(super) type WaitingFiles = BTreeMap<PathBuf, Time>;

/// The nodes that files may wait for, between rounds.
#[derive(Debug, Default)]
pub(super) struct FileOrder {
    pub rule: NameOrder,
    /// A write waits for room: no file waits for another.
    pub is_hurried: bool,
    unnamed: HashMap<InodeId, UnnamedNode>,
    /// The files that programs changed in this round before their copies had ended.
    overtaken: HashSet<InodeId>,
    /// The files that were overtaken in the previous round.
    overtaken_before: HashSet<InodeId>,
    /// In this round, files that changed until then get their names even if files before them have failed.
    pub released: Option<Time>,
    /// The rounds in a row in which files waited because a walk may have missed others.
    pub rounds_in_doubt: u32,
    /// By path, the rounds in which a file has waited or has changed too late, since one was moved.
    waiting: HashMap<PathBuf, u32>,
}

impl FileOrder {
    /// True if files get their names in order now.
    pub(super) fn is_in_force(&self) -> bool {
        self.rule == NameOrder::Changes && !self.is_hurried
    }

    /// True if other files wait for this one.
    pub(super) fn is_awaited(&self, inode: InodeId) -> bool {
        let node = self.unnamed.get(&inode);
        !self.is_hurried && node.is_none_or(|node| node.rounds < MOST_ROUNDS)
    }

    /// True if a file is moved in the version that it has when it is copied: programs may change it all the time.
    pub(super) fn takes_any_version(&self, inode: InodeId) -> bool {
        self.overtaken_before.contains(&inode)
    }

    /// Notes that a program changed a file before its copy had ended, and that it cannot be copied before the walk
    /// ([`early`](super::early)).
    pub(super) fn note_overtaken(&mut self, inode: InodeId) {
        self.overtaken.insert(inode);
    }

    /// True if the last round left a file out because it had changed after the walk had begun.
    pub(super) fn was_late(&self, inode: InodeId) -> bool {
        let node = self.unnamed.get(&inode);
        node.is_some_and(|node| node.is_late)
    }

    /// Files that changed after this time wait for a node; `None`: no walk has seen it closed without its name.
    pub(super) fn awaited_from(&self, inode: InodeId) -> Option<Time> {
        self.unnamed.get(&inode).map(|node| node.awaited_from)
    }

    /// Counts the failure of a file to be moved.
    pub(super) fn count_failure(&mut self, inode: InodeId) {
        if let Some(node) = self.unnamed.get_mut(&inode) {
            node.has_failed = true;
            node.rounds += 1;
        }
    }

    /// Counts that a file has waited for another one that failed.
    pub(super) fn count_wait(&mut self, path: &Path) {
        let rounds = self.rounds_of(path) + 1;
        self.waiting.insert(path.to_owned(), rounds);
    }

    /// Forgets the waiting time of a path: its file was moved.
    pub(super) fn forget_waiting(&mut self, path: &Path) {
        self.waiting.remove(path);
    }

    /// The rounds in which the files of a path have waited.
    pub(super) fn rounds_of(&self, path: &Path) -> u32 {
        self.waiting.get(path).copied().unwrap_or(0)
    }

    /// Keeps for the next round the nodes that are not on the target yet. `chosen`: the paths of the files that do not
    /// wait.
    pub(super) fn end_round<'p>(
        &mut self,
        round: RoundOrder,
        chosen: impl Iterator<Item = &'p PathBuf>,
    ) {
        let waited = chosen.filter(|path| self.waiting.contains_key(*path));
        let waited = waited.map(|path| (path.clone(), self.rounds_of(path)));
        let left_out = round.left_out.iter();
        let left_out = left_out.map(|path| (path.clone(), self.rounds_of(path) + 1));
        self.waiting = waited.chain(left_out).collect();
        self.unnamed = round.count_round();
        self.overtaken_before = std::mem::take(&mut self.overtaken);
    }

    fn node(&self, version: &FileVersion) -> UnnamedNode {
        let new = UnnamedNode {
            since: version.ctime,
            awaited_from: version.ctime,
            has_failed: false,
            is_late: false,
            rounds: 0,
        };
        let known = self.unnamed.get(&version.inode()).copied();
        known.map_or(new, |known| UnnamedNode {
            awaited_from: known.since,
            has_failed: false,
            is_late: false,
            ..known
        })
    }
}

/// The two earliest of some times, with their inodes: a node does not wait for its own time.
#[derive(Debug, Default)]
struct EarliestTimes([Option<(Time, InodeId)>; 2]);

impl EarliestTimes {
    fn add(&mut self, inode: InodeId, time: Time) {
        let mut times = [self.0[0], self.0[1], Some((time, inode))];
        times.sort_by_key(|time| (time.is_none(), time.map(|(time, _)| time)));
        self.0 = [times[0], times[1]];
    }

    /// The earliest time of another inode than this one.
    fn of_others(&self, inode: InodeId) -> Option<Time> {
        let mut others = self.0.iter().flatten();
        let other = others.find(|(_, other)| *other != inode);
        other.map(|(time, _)| *time)
    }
}

/// The times from which on files wait.
#[derive(Debug, Default)]
struct AwaitedTimes {
    files: EarliestTimes,
    directories: EarliestTimes,
}

/// A node of a round, as its order sees it.
#[derive(Clone, Copy)]
pub(super) struct OrderedNode<'n> {
    pub path: &'n Path,
    pub version: &'n FileVersion,
    /// It is a file that is moved before all others, or a directory of such files.
    pub is_first: bool,
}

/// The nodes for which the files of a round wait.
#[derive(Debug, Default)]
pub(super) struct RoundOrder {
    unnamed: HashMap<InodeId, UnnamedNode>,
    /// First the times of all nodes, for files in general; then those of nodes that are moved first, for files that are
    /// moved first, too.
    times: [AwaitedTimes; 2],
    /// The inodes of changing files for which others wait, with the times from which on they wait.
    awaited: Vec<(InodeId, Time)>,
    /// The paths of files that wait, or have changed too late.
    left_out: Vec<PathBuf>,
    /// The last change of a file that waits.
    last_waiting: Option<Time>,
}

impl RoundOrder {
    /// Notes a file that can be moved in this round.
    pub(super) fn note_movable(&mut self, order: &FileOrder, file: OrderedNode<'_>) {
        let inode = file.version.inode();
        let has_failed = |known: &UnnamedNode| known.has_failed;
        // Failures are counted where they happen.
        if order.unnamed.get(&inode).is_some_and(has_failed) && order.is_awaited(inode) {
            self.add_awaited(file, file.version.ctime);
        }
        let node = UnnamedNode {
            awaited_from: file.version.ctime,
            ..order.node(file.version)
        };
        self.unnamed.insert(inode, node);
    }

    /// Notes that a file has changed since it was copied: files that changed after this time wait for the next copy.
    pub(super) fn note_outdated(&mut self, file: OrderedNode<'_>, since: Time) {
        self.add_awaited(file, since);
    }

    /// Makes the files that changed after a removal wait for the next round.
    pub(super) fn note_removal(&mut self, at: Time) {
        self.times[0].files.add(NO_INODE, at);
    }

    /// Notes a file that a program has changed just now.
    pub(super) fn note_changing(&mut self, order: &FileOrder, file: OrderedNode<'_>) {
        let node = order.node(file.version);
        self.await_file(order, file, node.since);
        self.unnamed.insert(file.version.inode(), node);
    }

    /// The same for a file that a program has changed after the walk had begun.
    pub(super) fn note_late(&mut self, order: &FileOrder, file: OrderedNode<'_>) {
        self.note_changing(order, file);
        let node = self.unnamed.get_mut(&file.version.inode());
        node.expect("it was added").is_late = true;
        self.leave_out(file.path);
    }

    /// Notes a file that a program has open for writing.
    pub(super) fn note_open(&mut self, order: &FileOrder, file: OrderedNode<'_>) {
        // Otherwise no walk has seen it closed, and no file waits for it.
        if order.unnamed.contains_key(&file.version.inode()) {
            self.note_changing(order, file);
        }
    }

    /// The times for which files wait: those that are moved first, or the others.
    fn times(&self, is_first: bool) -> &AwaitedTimes {
        &self.times[usize::from(is_first)]
    }

    fn await_file(&mut self, order: &FileOrder, file: OrderedNode<'_>, since: Time) {
        if order.is_awaited(file.version.inode()) {
            self.add_awaited(file, since);
            self.awaited.push((file.version.inode(), since));
        }
    }

    fn add_awaited(&mut self, file: OrderedNode<'_>, since: Time) {
        for times in &mut self.times[..=usize::from(file.is_first)] {
            times.files.add(file.version.inode(), since);
        }
    }

    /// Notes a directory that does not have its name yet.
    pub(super) fn note_directory(&mut self, order: &FileOrder, directory: OrderedNode<'_>) {
        let (inode, node) = (directory.version.inode(), order.node(directory.version));
        self.unnamed.insert(inode, node);
        if !order.is_hurried {
            for times in &mut self.times[..=usize::from(directory.is_first)] {
                times.directories.add(inode, node.since);
            }
        }
    }

    /// True if a file waits for others; this is noted.
    pub(super) fn note_if_waiting(&mut self, file: OrderedNode<'_>) -> bool {
        let changed = file.version.ctime;
        let times = self.times(file.is_first);
        let first = times.files.of_others(file.version.inode());
        let is_waiting = first.is_some_and(|first| first < changed);
        if is_waiting {
            self.last_waiting = self.last_waiting.max(Some(changed));
        }
        is_waiting
    }

    /// True if a file waits for a directory. Equal times count, since the clock may be coarse.
    pub(super) fn is_behind(&self, file: OrderedNode<'_>) -> bool {
        let times = self.times(file.is_first);
        let first = times.directories.of_others(file.version.inode());
        first.is_some_and(|first| first <= file.version.ctime)
    }

    /// Leaves out a file that waits.
    pub(super) fn leave_out(&mut self, path: &Path) {
        self.left_out.push(path.to_owned());
    }

    /// Counts the round for the nodes for which files wait.
    fn count_round(mut self) -> HashMap<InodeId, UnnamedNode> {
        for (inode, since) in self.awaited {
            let is_awaited = self.last_waiting.is_some_and(|last| since < last);
            let node = self.unnamed.get_mut(&inode);
            if let Some(node) = node.filter(|_| is_awaited) {
                node.rounds += 1;
            }
        }
        self.unnamed
    }
}
