//! Calls on names at all servers, beside as many processes at one: how much an instance of many nodes
//! costs programs that make, look at and remove files.
//!
//! Each process has a directory of its own, as most programs do; then all look at the files of the
//! next one, twice, of which the second time counts; at last all use one directory.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::hands::Hand;
use super::measure::{per_second, Run};
use super::plan;
use super::wire::{NameCall, Step};

/// The directory in which all of it happens.
const TOP: &str = "metadata";

/// The files on which one process calls.
#[derive(Clone)]
struct ProcessFiles {
    hand: Hand,
    directory: PathBuf,
    /// The number of the first one.
    first: u64,
}

impl Run<'_> {
    /// All rows.
    pub(super) fn metadata(&mut self) -> Result<()> {
        let rows = plan::metadata();
        self.say(&rows.own[0].what);
        let over_all = self.one_each();
        let at_one = self.stage.alone[..over_all.len()].to_vec();
        let [own, others, shared] = self.rates(&over_all)?;
        let beside = self.rates(&at_one)?;
        let rows = [&rows.own[..], &rows.others, &rows.shared];
        for ((rows, rates), beside) in rows.iter().zip([own, others, shared]).zip(beside) {
            for ((row, rate), beside) in rows.iter().zip(rates).zip(beside) {
                self.rows.add(row, rate, Some(beside));
            }
        }
        Ok(())
    }

    /// Files a second: in own directories, of others' files, in one directory.
    fn rates(&mut self, hands: &[Hand]) -> Result<[Vec<f64>; 3]> {
        let top = self.stage.path(TOP);
        self.make_directories(&[(hands[0], top.clone())])?;
        // Each makes its own, as most programs do.
        let directories: Vec<(Hand, PathBuf)> = (0..)
            .zip(hands)
            .map(|(i, hand): (u64, _)| (*hand, top.join(format!("own{i}"))))
            .collect();
        self.make_directories(&directories)?;
        let files_of = |hand: &Hand, directory: &Path| ProcessFiles {
            hand: *hand,
            directory: directory.to_owned(),
            first: 0,
        };
        let with_own = directories.iter();
        let own: Vec<ProcessFiles> = with_own.map(|(hand, own)| files_of(hand, own)).collect();
        let next = directories.iter().cycle().skip(1);
        let with_next = hands.iter().zip(next);
        let others: Vec<ProcessFiles> = with_next
            .map(|(hand, (_, next))| files_of(hand, next))
            .collect();
        let of_own = self.calls_on(&own, &NameCall::ALL)?;
        self.calls_on(&own, &[NameCall::Create])?;
        let looks = [NameCall::Stat, NameCall::Open];
        self.calls_on(&others, &looks)?;
        let of_others = self.calls_on(&others, &looks)?;
        let one = top.join("one");
        let of_all = self.in_one_directory(&one, hands, &[NameCall::Create, NameCall::Remove])?;
        self.remove(hands[0], TOP)?;
        Ok([of_own, of_others, of_all])
    }

    fn make_directories(&mut self, directories: &[(Hand, PathBuf)]) -> Result<()> {
        let steps = directories.iter();
        let steps: Vec<(Hand, Step)> = steps
            .map(|(hand, path)| (*hand, Step::Directory(path.clone())))
            .collect();
        self.stage.hands.run(&steps)?;
        Ok(())
    }

    /// All processes call on files of one directory, which is made for it; files a second of each
    /// kind of call.
    pub(super) fn in_one_directory(
        &mut self,
        directory: &Path,
        hands: &[Hand],
        calls: &[NameCall],
    ) -> Result<Vec<f64>> {
        self.make_directories(&[(hands[0], directory.to_owned())])?;
        let files = self.plan.files;
        let groups: Vec<ProcessFiles> = (0..)
            .zip(hands)
            .map(|(i, hand)| ProcessFiles {
                hand: *hand,
                directory: directory.to_owned(),
                first: i * files,
            })
            .collect();
        self.calls_on(&groups, calls)
    }

    /// All processes make one kind of call after the other; files a second of each.
    fn calls_on(&mut self, groups: &[ProcessFiles], calls: &[NameCall]) -> Result<Vec<f64>> {
        let files = self.plan.files;
        let rate = |call: &NameCall| {
            let step = |of: &ProcessFiles| {
                let step = Step::Names {
                    call: *call,
                    directory: of.directory.clone(),
                    first: of.first,
                    files,
                };
                (of.hand, step)
            };
            let steps: Vec<(Hand, Step)> = groups.iter().map(step).collect();
            let did = self.stage.hands.run(&steps)?;
            Ok(per_second(files * groups.len() as u64, did.slowest()))
        };
        calls.iter().map(rate).collect()
    }
}
