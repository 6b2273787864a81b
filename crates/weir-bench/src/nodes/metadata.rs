//! Calls on names at all servers, beside as many processes at one: how much an instance of many nodes
//! costs programs that make, look at and remove files.
//!
//! Each process has a directory of its own, as most programs do; then all look at the files of the
//! next one, twice, of which the second time counts; at last all use one directory.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::measure::{per_second, HostsRun};
use super::plan;
use crate::names::{NameCall, NameStep};
use crate::wire::Step;
use crate::workers::{Assignment, WorkerId};

/// The directory in which all of it happens.
const TOP: &str = "metadata";

/// The files on which one process calls.
#[derive(Clone)]
struct ProcessFiles {
    worker: WorkerId,
    directory: PathBuf,
    /// The number of the first one.
    first: u64,
}

impl HostsRun<'_> {
    /// All rows.
    pub(super) fn metadata(&mut self) -> Result<()> {
        let rows = plan::metadata();
        self.say(&rows[0][0].what);
        let over_all = self.one_each();
        let at_one = self.instance.alone[..over_all.len()].to_vec();
        let rates = self.rates(&over_all)?.concat();
        let beside = self.rates(&at_one)?.concat();
        for ((row, rate), beside) in rows.concat().iter().zip(rates).zip(beside) {
            self.rows.add(row, rate, Some(beside));
        }
        Ok(())
    }

    /// Files a second: in own directories, of others' files, in one directory.
    fn rates(&mut self, workers: &[WorkerId]) -> Result<[Vec<f64>; 3]> {
        let top = self.instance.path(TOP);
        self.make_directories(&[(workers[0], top.clone())])?;
        // Each makes its own, as most programs do.
        let directories: Vec<(WorkerId, PathBuf)> = (0..)
            .zip(workers)
            .map(|(i, worker): (u64, _)| (*worker, top.join(format!("own{i}"))))
            .collect();
        self.make_directories(&directories)?;
        let files_in = |(worker, directory): (&WorkerId, &PathBuf)| ProcessFiles {
            worker: *worker,
            directory: directory.clone(),
            first: 0,
        };
        let made = || directories.iter().map(|(_, directory)| directory);
        let own: Vec<ProcessFiles> = workers.iter().zip(made()).map(files_in).collect();
        let next = made().cycle().skip(1);
        let others: Vec<ProcessFiles> = workers.iter().zip(next).map(files_in).collect();
        let of_own = self.calls_on(&own, &NameCall::ALL)?;
        self.calls_on(&own, &[NameCall::Create])?;
        let looks = [NameCall::Stat, NameCall::Open];
        self.calls_on(&others, &looks)?;
        let of_others = self.calls_on(&others, &looks)?;
        let one = top.join("one");
        let of_all = self.in_one_directory(&one, workers, &[NameCall::Create, NameCall::Remove])?;
        self.remove(workers[0], TOP)?;
        Ok([of_own, of_others, of_all])
    }

    fn make_directories(&mut self, directories: &[(WorkerId, PathBuf)]) -> Result<()> {
        let steps = directories.iter();
        let steps: Vec<Assignment> = steps
            .map(|(worker, path)| (*worker, Step::Directory(path.clone())))
            .collect();
        self.instance.workers.run(&steps)?;
        Ok(())
    }

    /// All processes call on files of one directory, which is made for it; files a second of each
    /// kind of call.
    pub(super) fn in_one_directory(
        &mut self,
        directory: &Path,
        workers: &[WorkerId],
        calls: &[NameCall],
    ) -> Result<Vec<f64>> {
        self.make_directories(&[(workers[0], directory.to_owned())])?;
        let files = self.plan.files;
        let groups: Vec<ProcessFiles> = (0..)
            .zip(workers)
            .map(|(i, worker)| ProcessFiles {
                worker: *worker,
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
                let step = Step::Names(NameStep {
                    call: *call,
                    directory: of.directory.clone(),
                    first: of.first,
                    files,
                });
                (of.worker, step)
            };
            let steps: Vec<Assignment> = groups.iter().map(step).collect();
            let did = self.instance.workers.run(&steps)?;
            Ok(per_second(files * groups.len() as u64, did.slowest()))
        };
        calls.iter().map(rate).collect()
    }
}
