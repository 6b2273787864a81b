//! The requests of a checkpoint and its restart: which server asks which, and for what.
//!
//! As the server's `cluster/` has it: a name is looked up and an inode held at their homes, by
//! each process, but not by those of the home's own node; a publish is one request to each home
//! of a slice that it touches, and one to the file's; a node that reads has a lease, and asks the
//! homes of as many slices as [`AHEAD`] at once. Bytes come over the bulk plane from the server
//! whose log has them, past the threads that serve requests, and are no requests.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weir_core::extent::Run;
use weir_core::placement::home_of_entry;
use weir_core::placement::tree::{shares, FAN_OUT};
use weir_core::types::{Ino, Rank};

use crate::job::{ino_at, Job, Layout};
use crate::load::Load;
use crate::spread::Spread;

/// Slices of one look-up, as in the server's `cluster/extents/locate.rs`.
pub const AHEAD: u64 = 1024;
/// Runs of one message, as in `cluster/extents/publish.rs`.
const RUNS: u64 = 8192;
/// Look-ups of a node that are looked at; each stands for as many. All, if there are no more.
const WINDOWS: usize = 2;
/// Agents that one starts (launch.fanout).
const LAUNCH_FAN_OUT: u32 = 32;

/// The requests of one part of the job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Phase {
    /// The part.
    pub name: &'static str,
    /// Requests between servers, a server's own included.
    pub requests: Load,
    /// Requests by operation, of each server.
    #[serde(skip)]
    pub asked: BTreeMap<&'static str, Vec<u64>>,
}

/// A tree over all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MessageTree {
    /// The messages of the first node.
    pub width: u64,
    /// The steps from the first node to the last ones.
    pub depth: u32,
}

impl MessageTree {
    /// The tree over so many nodes in which each passes on to at most `fan_out`.
    fn over(nodes: u16, fan_out: u32) -> MessageTree {
        fn depth(ranks: &[u16], fan_out: u32) -> u32 {
            let below = shares(ranks, fan_out);
            below
                .map(|share| 1 + depth(&share[1..], fan_out))
                .max()
                .unwrap_or(0)
        }
        let others: Vec<u16> = (1..nodes).collect();
        MessageTree {
            width: shares(&others, fan_out).count() as u64,
            depth: depth(&others, fan_out),
        }
    }
}

/// The requests of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// The job.
    pub job: Job,
    /// Starting the servers.
    pub start: MessageTree,
    /// Telling all nodes that have a file open the same: a recall, a truncation, an unlink.
    pub telling: MessageTree,
    /// Its parts, in their order: open, publish, reopen, look-up, look-up of all.
    pub phases: Vec<Phase>,
    /// Extent records of a server.
    pub records: Load,
}

impl Prediction {
    /// A part by its name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Requests of several parts together, by server.
    pub fn requests(&self, names: &[&str]) -> Load {
        let mut sums = vec![0; usize::from(self.job.nodes)];
        let named = self
            .phases
            .iter()
            .filter(|phase| names.contains(&phase.name));
        for counts in named.flat_map(|phase| phase.asked.values()) {
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        Load::sum(&sums)
    }

    /// How often one server was asked for one thing in all parts.
    pub fn asked(&self, operation: &str, server: usize) -> u64 {
        let counts = self
            .phases
            .iter()
            .filter_map(|phase| phase.asked.get(operation));
        counts.map(|count| count[server]).sum()
    }
}

/// Counts the requests of a job.
pub fn predict(job: &Job) -> Prediction {
    let mut model = Model::new(job);
    model.open("open", true);
    model.publish();
    model.open("reopen", false);
    let own = model.own_windows();
    model.look_up("look-up", &own);
    let all = model.other_windows(&own);
    model.look_up("look-up of all", &all);
    Prediction {
        job: *job,
        start: MessageTree::over(job.nodes, LAUNCH_FAN_OUT),
        telling: MessageTree::over(job.nodes, FAN_OUT),
        records: Load::sum(&model.records),
        phases: model.phases,
    }
}

/// A file of the job.
struct File {
    ino: Ino,
    spread: Spread,
    tasks: std::ops::Range<u64>,
}

struct Model<'a> {
    job: &'a Job,
    files: Vec<File>,
    phases: Vec<Phase>,
    asked: BTreeMap<&'static str, Vec<u64>>,
    records: Vec<u64>,
}

const ROOT: Ino = Ino(1);

impl<'a> Model<'a> {
    fn new(job: &'a Job) -> Model<'a> {
        let groups: Vec<std::ops::Range<u64>> = match job.layout {
            Layout::Private => (0..job.tasks()).map(|task| task..task + 1).collect(),
            _ => std::iter::once(0..job.tasks()).collect(),
        };
        let files = groups.into_iter().map(|tasks| {
            // The home of a name makes the inode.
            let home = home_of_entry(ROOT, &job.name_of(tasks.start), job.nodes);
            let ino = ino_at(home, tasks.start);
            File {
                spread: Spread::new(ino, job.file_bytes(), job.nodes),
                ino,
                tasks,
            }
        });
        Model {
            job,
            files: files.collect(),
            phases: Vec::new(),
            asked: BTreeMap::new(),
            records: vec![0; usize::from(job.nodes)],
        }
    }

    fn file_of(&self, task: u64) -> &File {
        match self.job.layout {
            Layout::Private => &self.files[usize::try_from(task).unwrap_or(0)],
            _ => &self.files[0],
        }
    }

    /// Counts requests to one server.
    fn ask(&mut self, operation: &'static str, to: Rank, calls: u64) {
        let servers = usize::from(self.job.nodes);
        let counts = self.asked.entry(operation);
        let counts = counts.or_insert_with(|| vec![0; servers]);
        counts[usize::from(to.0)] += calls;
    }

    /// Ends a part; the next begins.
    fn end_phase(&mut self, name: &'static str) {
        let asked = std::mem::take(&mut self.asked);
        let servers = 0..usize::from(self.job.nodes);
        let sums = servers.map(|server| asked.values().map(|counts| counts[server]).sum());
        let sums: Vec<u64> = sums.collect();
        self.phases.push(Phase {
            name,
            requests: Load::sum(&sums),
            asked,
        });
    }

    /// Each process opens its file; `creating`: the first makes it, and all attach to write.
    fn open(&mut self, name: &'static str, creating: bool) {
        let firsts: BTreeSet<u64> = match creating {
            true => self.files.iter().map(|file| file.tasks.start).collect(),
            false => BTreeSet::new(),
        };
        for task in 0..self.job.tasks() {
            let home = self.file_of(task).ino.rank();
            let is_first = firsts.contains(&task);
            // A process at the home looks into its tables.
            let asks = !is_first && self.job.node_of(task) != home;
            if creating {
                // The first of each file makes it; to the others the same request opens it.
                self.ask("make", home, 1);
            } else if asks {
                self.ask("find_to_keep", home, 1);
            }
            // Attaching asks for the size once more.
            if asks {
                self.ask("hold", home, 1);
            }
        }
        self.end_phase(name);
    }

    /// Each node publishes what its processes wrote, all of a file at once.
    fn publish(&mut self) {
        let mut files = std::mem::take(&mut self.files);
        for file in &mut files {
            let nodes =
                self.job.node_of(file.tasks.start).0..=self.job.node_of(file.tasks.end - 1).0;
            for node in nodes.map(Rank) {
                let tasks = self.job.tasks_of(node);
                let runs = tasks
                    .filter(|task| file.tasks.contains(task))
                    .flat_map(|task| self.job.runs_of(task));
                let runs: Vec<Run> = runs.collect();
                self.put(file, &runs);
                self.ask("published", file.ino.rank(), 1);
            }
        }
        self.files = files;
        self.end_phase("publish");
    }

    /// The requests that bring runs to the homes of their slices.
    fn put(&mut self, file: &mut File, runs: &[Run]) {
        let mut homes: BTreeMap<Rank, u64> = BTreeMap::new();
        for run in runs {
            for (home, records) in file.spread.lay(run).iter() {
                *homes.entry(*home).or_default() += 1;
                self.records[usize::from(home.0)] += records;
            }
        }
        for (home, count) in homes {
            self.ask("put", home, count.div_ceil(RUNS));
        }
    }

    /// For each node and file, the look-ups that its processes' own bytes need.
    fn own_windows(&self) -> Windows {
        let mut windows = Windows::new();
        for (index, file) in self.files.iter().enumerate() {
            for task in file.tasks.clone() {
                let node = self.job.node_of(task);
                let known = windows.entry((node, index)).or_default();
                let runs = self.job.runs_of(task);
                let whole = self.job.layout == Layout::Strided;
                let (from, to) = match whole {
                    true => (0, file.spread.slices()),
                    false => slices_of(&runs),
                };
                cover(known, from, to, file.spread.slices());
            }
        }
        windows
    }

    /// The look-ups that are still missing when each node reads from all over the files.
    fn other_windows(&self, own: &Windows) -> Windows {
        let mut windows = Windows::new();
        if self.job.layout == Layout::Private {
            return windows;
        }
        for node in (0..self.job.nodes).map(Rank) {
            let mut known = own.get(&(node, 0)).cloned().unwrap_or_default();
            let before = known.clone();
            let slices = self.files[0].spread.slices();
            cover(&mut known, 0, slices, slices);
            known.retain(|window| !before.contains(window));
            windows.insert((node, 0), known);
        }
        windows
    }

    /// Each node takes leases, and asks the homes of slices window by window.
    fn look_up(&mut self, name: &'static str, windows: &Windows) {
        // One window asks the same servers whichever node asks for it.
        let mut known: BTreeMap<(usize, (u64, u64)), Vec<Rank>> = BTreeMap::new();
        for ((node, index), list) in windows {
            let ino = self.files[*index].ino;
            if name == "look-up" && ino.rank() != *node {
                self.ask("lease", ino.rank(), 1);
            }
            for round in 0..WINDOWS {
                let (window, calls) = sample(list, round, usize::from(node.0));
                let Some((from, to)) = window else { continue };
                let spread = &self.files[*index].spread;
                let homes = known
                    .entry((*index, (from, to)))
                    .or_insert_with(|| spread.homes_in(from, to).into_iter().collect());
                for home in homes.clone() {
                    self.ask("runs", home, calls);
                }
            }
        }
        self.end_phase(name);
    }
}

/// For each node and file: windows of slices to be looked up, in their order.
type Windows = BTreeMap<(Rank, usize), Vec<(u64, u64)>>;

/// Adds windows until `[from, to)` is known, as the server asks for them.
fn cover(known: &mut Vec<(u64, u64)>, from: u64, to: u64, slices: u64) {
    if slices <= AHEAD {
        if known.is_empty() {
            known.push((0, slices));
        }
        return;
    }
    let mut at = from;
    while at < to {
        let found = known
            .iter()
            .find(|(first, end)| (*first..*end).contains(&at));
        at = if let Some((_, end)) = found {
            *end
        } else {
            let end = (at + AHEAD).min(slices);
            known.push((at, end));
            end
        };
    }
}

/// The slices between the first and the last byte of runs.
fn slices_of(runs: &[Run]) -> (u64, u64) {
    use weir_core::placement::slice_of;
    let from = runs.iter().map(|run| slice_of(run.offset)).min();
    let to = runs.iter().map(|run| slice_of(run.end() - 1) + 1).max();
    (from.unwrap_or(0), to.unwrap_or(0))
}

/// The window that stands for a share of a node's look-ups, and for how many. Nodes begin at
/// different ones, so that all windows are looked at.
fn sample(list: &[(u64, u64)], round: usize, node: usize) -> (Option<(u64, u64)>, u64) {
    let share = |round: usize| list.len() * round / WINDOWS;
    let calls = share(round + 1) - share(round);
    let window = match calls {
        0 => None,
        _ => list.get(share(round) + node % calls).copied(),
    };
    (window, calls as u64)
}

#[cfg(test)]
mod tests;
