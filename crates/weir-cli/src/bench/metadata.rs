//! Calls on names at all servers, beside as many processes at one: how much an instance of many nodes
//! costs programs that make, look at and remove files.
//!
//! Each process has a directory of its own, as most programs do; then all look at the files of the
//! next one, twice, of which the second time counts; at last all use one directory.

use std::path::PathBuf;

use anyhow::Result;

use super::hands::Hand;
use super::measure::{per_second, Run};
use super::plan;
use super::wire::{NameCall, Step};

/// The directory in which all of it happens.
const TOP: &str = "metadata";

/// A process, and the directory and first file that it calls on.
type Place = (Hand, PathBuf, u64);

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
        let make = |hand: &Hand, path: PathBuf| (*hand, Step::Directory(path));
        self.stage.hands.run(&[make(&hands[0], top.clone())])?;
        let own: Vec<Place> = (0..)
            .zip(hands)
            .map(|(i, hand): (u64, _)| (*hand, top.join(format!("own{i}")), 0))
            .collect();
        // Each makes its own, as most programs do.
        let makes: Vec<_> = own
            .iter()
            .map(|(hand, path, _)| make(hand, path.clone()))
            .collect();
        self.stage.hands.run(&makes)?;
        let mut others = own.clone();
        for (place, next) in others.iter_mut().zip(own.iter().cycle().skip(1)) {
            place.1.clone_from(&next.1);
        }
        let in_own = [NameCall::Create, NameCall::Stat, NameCall::Open];
        let mut of_own = self.calls_on(&own, &in_own)?;
        let looks = [NameCall::Stat, NameCall::Open];
        self.calls_on(&others, &looks)?;
        let of_others = self.calls_on(&others, &looks)?;
        of_own.extend(self.calls_on(&own, &[NameCall::Remove])?);
        let files = self.plan.files;
        let one = top.join("one");
        self.stage.hands.run(&[make(&hands[0], one.clone())])?;
        let shared: Vec<Place> = (0..)
            .zip(hands)
            .map(|(i, hand)| (*hand, one.clone(), i * files))
            .collect();
        let of_all = self.calls_on(&shared, &[NameCall::Create, NameCall::Remove])?;
        self.remove(hands[0], TOP)?;
        Ok([of_own, of_others, of_all])
    }

    /// All processes make one kind of call after the other; files a second of each.
    fn calls_on(&mut self, places: &[Place], calls: &[NameCall]) -> Result<Vec<f64>> {
        let files = self.plan.files;
        let rate = |call: &NameCall| {
            let step = |(hand, directory, first): &Place| {
                let step = Step::Names {
                    call: *call,
                    directory: directory.clone(),
                    first: *first,
                    files,
                };
                (*hand, step)
            };
            let group: Vec<(Hand, Step)> = places.iter().map(step).collect();
            let did = self.stage.hands.run(&group)?;
            Ok(per_second(files * places.len() as u64, did.slowest()))
        };
        calls.iter().map(rate).collect()
    }
}
