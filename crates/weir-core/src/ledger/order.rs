//! The rows of a tree in the order of the job's history, and the names that may be published now.
//!
//! A file gets its number when its last writer closes it. If it is written again before its bytes
//! were copied, it keeps its number, and its row then reaches to its last close: the older version
//! exists no more. The rows in between form a group with it, which is published in one go when all
//! of it is ready.
//!
//! ```text
//!  number   4          5            6           7          8
//!           close f    rename a b   close g     symlink s  close f, again
//!           |<---------------------- group ------------------------>|
//! ```

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::state::{DrainEvent, DrainRefused, DrainState, Generation};
use crate::types::Ino;

/// The work of a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// A file that was written.
    File {
        /// The file.
        ino: Ino,
        /// Its path below the tree when it was closed.
        path: Vec<u8>,
        /// Its state.
        state: DrainState,
        /// Its generation.
        generation: Generation,
        /// True if it is not moved before it was analysed.
        wants_analysis: bool,
    },
    /// A change of names, encoded by the caller. It is always ready.
    Names(Vec<u8>),
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerRow {
    /// The work.
    pub work: Work,
    /// The number of the last event of the row: its own number, or that of the file's last close.
    pub until: u64,
}

/// An event that the ledger does not accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerRefused {
    /// The file has no row.
    #[error("the file is not in the ledger")]
    Unknown,
    /// Its state forbids it.
    #[error(transparent)]
    State(#[from] DrainRefused),
    /// Rows before it are not published yet.
    #[error("earlier rows are not published yet")]
    OutOfOrder,
}

/// The rows that are not published yet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    rows: BTreeMap<u64, LedgerRow>,
    files: BTreeMap<Ino, u64>,
    /// The rest of the group that is being published. After a death it is published first: the target
    /// may be between two states of the job.
    publishing: VecDeque<u64>,
    /// The number of the last event.
    last: u64,
}

impl Ledger {
    /// Adds a change of names, and returns its number.
    pub fn change_names(&mut self, change: Vec<u8>) -> u64 {
        self.add(Work::Names(change))
    }

    /// Notes that a program opens a file for writing: the version that was not copied yet will not
    /// be published.
    pub fn open(&mut self, ino: Ino) -> Result<(), LedgerRefused> {
        match self.state(ino) {
            None | Some(DrainState::Ready | DrainState::Writing | DrainState::Lost) => Ok(()),
            Some(_) => self.note(ino, &DrainEvent::Reopened).map(drop),
        }
    }

    /// Notes that the last writer of a file closed it; returns the number of its row.
    pub fn close(
        &mut self,
        ino: Ino,
        path: &[u8],
        wants_analysis: bool,
    ) -> Result<u64, LedgerRefused> {
        self.open(ino)?;
        if self.state(ino) == Some(&DrainState::Writing) {
            return self.note(ino, &DrainEvent::Closed);
        }
        let number = self.add(Work::File {
            ino,
            path: path.to_vec(),
            state: DrainState::Written,
            generation: Generation::default(),
            wants_analysis,
        });
        self.files.insert(ino, number);
        Ok(number)
    }

    /// Notes an event of the newest row of a file, and returns its number.
    fn note(&mut self, ino: Ino, event: &DrainEvent) -> Result<u64, LedgerRefused> {
        let number = *self.files.get(&ino).ok_or(LedgerRefused::Unknown)?;
        self.note_of(number, event).map(|()| number)
    }

    /// Notes an event of the row of a file.
    pub fn note_of(&mut self, number: u64, event: &DrainEvent) -> Result<(), LedgerRefused> {
        if matches!(event, DrainEvent::Published(_)) {
            self.check_turn(number)?;
        }
        let row = self.rows.get_mut(&number).ok_or(LedgerRefused::Unknown)?;
        let Work::File {
            ino,
            state,
            generation,
            wants_analysis,
            ..
        } = &mut row.work
        else {
            return Err(LedgerRefused::Unknown);
        };
        let next = state.after(event, *generation, *wants_analysis)?;
        match event {
            DrainEvent::Reopened => generation.0 += 1,
            DrainEvent::Closed => {
                self.last += 1;
                row.until = self.last;
            }
            _ => {}
        }
        let ended = next == DrainState::Published;
        *state = next;
        if ended {
            if self.files.get(ino) == Some(&number) {
                self.files.remove(ino);
            }
            self.rows.remove(&number);
            self.publishing.pop_front();
        }
        Ok(())
    }

    /// Notes that a change of names was made on the target.
    pub fn changed_names(&mut self, number: u64) -> Result<(), LedgerRefused> {
        match self.rows.get(&number).map(|row| &row.work) {
            Some(Work::Names(_)) => self.check_turn(number)?,
            _ => return Err(LedgerRefused::Unknown),
        }
        self.rows.remove(&number);
        self.publishing.pop_front();
        Ok(())
    }

    /// The rows that are to be published now, in this order; none: the first ones are not ready. A
    /// group that was begun stays the same until all of it is published.
    pub fn begin_group(&mut self) -> &VecDeque<u64> {
        if self.publishing.is_empty() {
            self.publishing = self.group().into();
        }
        &self.publishing
    }

    /// The first rows, if all of them are ready that must be published together.
    fn group(&self) -> Vec<u64> {
        let mut end = match self.rows.first_key_value() {
            Some((_, row)) => row.until,
            None => return Vec::new(),
        };
        let mut group = Vec::new();
        for (number, row) in &self.rows {
            if *number > end {
                break;
            }
            if !row.is_ready() {
                return Vec::new();
            }
            end = end.max(row.until);
            group.push(*number);
        }
        group
    }

    /// A row.
    pub fn row(&self, number: u64) -> Option<&LedgerRow> {
        self.rows.get(&number)
    }

    /// The state of a file that is not published yet.
    pub fn state(&self, ino: Ino) -> Option<&DrainState> {
        match &self.rows.get(self.files.get(&ino)?)?.work {
            Work::File { state, .. } => Some(state),
            Work::Names(_) => None,
        }
    }

    /// Checks that a row is the next one of the group that was begun.
    fn check_turn(&self, number: u64) -> Result<(), LedgerRefused> {
        match self.publishing.front() == Some(&number) {
            true => Ok(()),
            false => Err(LedgerRefused::OutOfOrder),
        }
    }

    fn add(&mut self, work: Work) -> u64 {
        self.last += 1;
        let until = self.last;
        self.rows.insert(until, LedgerRow { work, until });
        until
    }
}

impl LedgerRow {
    fn is_ready(&self) -> bool {
        match &self.work {
            Work::File { state, .. } => *state == DrainState::Ready,
            Work::Names(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Rank;
    use proptest::prelude::*;

    fn ino(number: u8) -> Ino {
        Ino::new(Rank(0), 0, u32::from(number) + 1)
    }

    fn index(of: Ino) -> usize {
        of.index() as usize - 1
    }

    fn generation(ledger: &Ledger, number: u64) -> Option<Generation> {
        match &ledger.row(number)?.work {
            Work::File { generation, .. } => Some(*generation),
            Work::Names(_) => None,
        }
    }

    fn copy(ledger: &mut Ledger, number: u64) {
        let of = generation(ledger, number).unwrap();
        let moved = ledger.note_of(number, &DrainEvent::MoveBegan(of, Rank(0)));
        moved
            .and_then(|()| ledger.note_of(number, &DrainEvent::Copied(of)))
            .unwrap();
    }

    #[test]
    fn a_symlink_waits_for_the_file_before_it() {
        let mut ledger = Ledger::default();
        let file = ledger.close(ino(8), b"ckpt.8", false).unwrap();
        let latest = ledger.change_names(b"latest".to_vec());
        assert!(ledger.begin_group().is_empty());
        assert_eq!(ledger.changed_names(latest), Err(LedgerRefused::OutOfOrder));
        copy(&mut ledger, file);
        assert_eq!(*ledger.begin_group(), [file]);
        let published = DrainEvent::Published(Generation(0));
        ledger.note_of(file, &published).unwrap();
        assert_eq!(*ledger.begin_group(), [latest]);
    }

    #[test]
    fn a_file_that_is_written_again_takes_what_is_between_with_it() {
        let mut ledger = Ledger::default();
        let first = ledger.close(ino(1), b"a", false).unwrap();
        let change = ledger.change_names(b"rename".to_vec());
        ledger.open(ino(1)).unwrap();
        assert_eq!(ledger.close(ino(1), b"a", false), Ok(first));
        let other = ledger.close(ino(2), b"b", false).unwrap();
        copy(&mut ledger, first);
        assert_eq!(*ledger.begin_group(), [first, change]);
        copy(&mut ledger, other);
        assert_eq!(*ledger.begin_group(), [first, change]);
    }

    #[test]
    fn a_copy_that_is_ready_is_published_even_if_the_file_is_written_again() {
        let mut ledger = Ledger::default();
        let first = ledger.close(ino(1), b"a", false).unwrap();
        copy(&mut ledger, first);
        ledger.open(ino(1)).unwrap();
        assert_eq!(*ledger.begin_group(), [first]);
        let second = ledger.close(ino(1), b"a", false).unwrap();
        assert_ne!(first, second);
        assert_eq!(*ledger.begin_group(), [first]);
    }

    #[test]
    fn what_follows_a_lost_file_is_not_published() {
        let mut ledger = Ledger::default();
        let file = ledger.close(ino(8), b"ckpt.8", false).unwrap();
        let removal = ledger.change_names(b"ckpt.7".to_vec());
        ledger.note_of(file, &DrainEvent::Lost).unwrap();
        assert!(ledger.begin_group().is_empty());
        assert_eq!(
            ledger.changed_names(removal),
            Err(LedgerRefused::OutOfOrder)
        );
        assert_eq!(ledger.state(ino(8)), Some(&DrainState::Lost));
    }

    /// Something that a program or a mover does.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Write(u8),
        Open(u8),
        Names,
        BeginCopy(usize),
        EndCopy(usize),
        PublishOne,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..FILES).prop_map(Step::Write),
            (0..FILES).prop_map(Step::Open),
            Just(Step::Names),
            (0..3usize).prop_map(Step::BeginCopy),
            (0..3usize).prop_map(Step::EndCopy),
            (0..3usize).prop_map(Step::EndCopy),
            Just(Step::PublishOne),
            Just(Step::PublishOne),
        ]
    }

    const FILES: u8 = 2;

    /// The versions of the files, and the number of changes of names that were made.
    type Tree = ([u32; FILES as usize], u32);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// After each group, whatever the job does while it is published, the target is what the job had after one of its events, and never goes
        /// back.
        #[test]
        fn the_target_is_a_prefix_of_the_history(
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let mut ledger = Ledger::default();
            let (mut job, mut target): (Tree, Tree) = Default::default();
            let mut history: BTreeMap<u64, Tree> = BTreeMap::from([(0, job)]);
            // The version that the copy of a row has, and the copies under way.
            let mut copies: BTreeMap<u64, u32> = BTreeMap::new();
            let mut moving: Vec<(Ino, u64, Generation, u32)> = Vec::new();
            let mut reached = 0;
            // The last event of the group that is being published.
            let mut group_end = None;
            for step in steps {
                if let Step::Write(file) | Step::Open(file) = step {
                    // A copy that is being made of it is torn.
                    for copy in moving.iter_mut().filter(|copy| copy.0 == ino(file)) {
                        copy.3 = u32::MAX;
                    }
                }
                match step {
                    Step::Write(file) => {
                        ledger.open(ino(file)).unwrap();
                        job.0[usize::from(file)] += 1;
                        ledger.close(ino(file), b"f", false).unwrap();
                        history.insert(ledger.last, job);
                    }
                    Step::Open(file) => ledger.open(ino(file)).unwrap(),
                    Step::Names => {
                        ledger.change_names(Vec::new());
                        job.1 += 1;
                        history.insert(ledger.last, job);
                    }
                    Step::BeginCopy(nth) => {
                        let movable = |(number, row): (&u64, &LedgerRow)| match &row.work {
                            Work::File { ino, state: DrainState::Written, generation, .. } => {
                                Some((*number, *ino, *generation))
                            }
                            _ => None,
                        };
                        let found = ledger.rows.iter().filter_map(movable).nth(nth);
                        if let Some((number, of, generation)) = found {
                            moving.push((of, number, generation, job.0[index(of)]));
                            let begun = DrainEvent::MoveBegan(generation, Rank(0));
                            ledger.note_of(number, &begun).unwrap();
                        }
                    }
                    Step::EndCopy(nth) => {
                        if nth < moving.len() {
                            let (_, number, generation, version) = moving.remove(nth);
                            if ledger.note_of(number, &DrainEvent::Copied(generation)).is_ok() {
                                copies.insert(number, version);
                            }
                        }
                    }
                    Step::PublishOne => {
                        let group: Vec<u64> = ledger.begin_group().iter().copied().collect();
                        let Some(&number) = group.first() else { continue };
                        let ends = group.iter().map(|number| ledger.row(*number).unwrap().until);
                        let end = *group_end.get_or_insert_with(|| ends.max().unwrap());
                        for other in group.iter().skip(1) {
                            prop_assert!(ledger.changed_names(*other).is_err());
                        }
                        match ledger.row(number).unwrap().work.clone() {
                            Work::File { ino: of, generation, .. } => {
                                target.0[index(of)] = copies[&number];
                                let done = DrainEvent::Published(generation);
                                ledger.note_of(number, &done).unwrap();
                            }
                            Work::Names(_) => {
                                target.1 += 1;
                                ledger.changed_names(number).unwrap();
                            }
                        }
                        if group.len() == 1 {
                            prop_assert!(end > reached);
                            (reached, group_end) = (end, None);
                            prop_assert_eq!(target, history[&end]);
                        }
                    }
                }
            }
        }
    }
}
