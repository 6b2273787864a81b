//! The steps of a start, a checkpoint, and reads: who asks whom, and what for.
//!
//! As the server's `cluster/` has it: a name is looked up and an inode held at their homes, by
//! each process, but not by those of the home's own node; a publish is one request to each home
//! of a slice that it touches, and one to the file's; a node that reads has a lease, and asks the
//! homes of as many slices as [`AHEAD`] at once. Bytes come over the bulk plane from the server
//! whose log has them, past the threads that serve requests.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weir_core::extent::Run;
use weir_core::placement::home_of_entry;
use weir_core::placement::tree::shares;
use weir_core::proto::peer;
use weir_core::types::{Ino, Rank};

use crate::engine::{Asker, Engine, Machines, Message};
use crate::job::{ino_at, Job, Layout};
use crate::spread::Spread;
use crate::tell::Telling;
use crate::{real, Costs, Load};

/// Slices of one look-up, as in the server's `cluster/locate.rs`.
pub const AHEAD: u64 = 1024;
/// Runs of one message, as in `cluster/publish.rs`.
const RUNS: u64 = 8192;
/// Bytes of one read over the bulk plane, as clients ask for them.
const FETCH_BYTES: u64 = 1 << 20;
/// Look-ups of a node that are looked at; each stands for as many. All, if there are no more.
const WINDOWS: usize = 2;
/// Messages of a process's shuffled read that are looked at; each stands for as many calls.
const SAMPLES: u64 = 64;
/// Agents that one starts (launch.fanout).
const FANOUT: u32 = 32;

/// What a part of the job took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Phase {
    /// Which part.
    pub name: &'static str,
    /// How long it took, s.
    pub seconds: f64,
    /// Requests between servers, a server's own included.
    pub requests: Load,
    /// Bytes of links, both ways.
    pub wire_bytes: Load,
    /// How long a server's thread worked, s.
    pub work_s: Load,
    /// Requests by operation, of each server.
    #[serde(skip)]
    pub asked: BTreeMap<&'static str, Vec<u64>>,
}

/// What a job takes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// The job.
    pub job: Job,
    /// Starting the servers, s.
    pub start_s: f64,
    /// Its parts, in their order: open, write, publish, reopen, look-up, read, shuffled.
    pub phases: Vec<Phase>,
    /// Telling all nodes the same.
    pub telling: Telling,
    /// Extent records of a server.
    pub records: Load,
    /// Memory of a server for records, inodes and what its node looked up, bytes.
    pub memory_bytes: Load,
}

impl Prediction {
    /// A part by its name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Seconds of several parts together.
    pub fn seconds(&self, names: &[&str]) -> f64 {
        let found = names.iter().filter_map(|name| self.phase(name));
        found.map(|phase| phase.seconds).sum()
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

/// What a job takes on these machines.
pub fn predict(job: &Job, machines: Machines, costs: &Costs) -> Prediction {
    let mut model = Model::new(job, machines, costs);
    model.open("open", true);
    model.copy("write", costs.write_bytes_per_s);
    model.publish();
    model.open("reopen", false);
    let own = model.own_windows();
    model.look_up("look-up", &own);
    model.copy("read", costs.read_bytes_per_s);
    let all = model.other_windows(&own);
    model.look_up("look-up of all", &all);
    model.shuffled();
    let memory = |server: usize| {
        (model.records[server] + model.learned[server]) * costs.run_bytes
            + model.inodes[server] * costs.inode_bytes
    };
    Prediction {
        job: *job,
        start_s: start_s(job.nodes, costs),
        telling: Telling::of(job.nodes, costs),
        records: Load::of(model.records.iter().copied()),
        memory_bytes: Load::of((0..usize::from(job.nodes)).map(memory)),
        phases: model.phases,
    }
}

/// A file of the job.
struct File {
    name: Vec<u8>,
    ino: Ino,
    spread: Spread,
    /// What a look-up brings for a record.
    record_bytes: u64,
    tasks: std::ops::Range<u64>,
}

struct Model<'a> {
    job: &'a Job,
    costs: &'a Costs,
    engine: Engine<'a>,
    one_machine: bool,
    files: Vec<File>,
    phases: Vec<Phase>,
    asked: BTreeMap<&'static str, Vec<u64>>,
    now_ns: f64,
    records: Vec<f64>,
    learned: Vec<f64>,
    inodes: Vec<f64>,
}

const ROOT: Ino = Ino(1);

impl<'a> Model<'a> {
    fn new(job: &'a Job, machines: Machines, costs: &'a Costs) -> Model<'a> {
        let servers = usize::from(job.nodes);
        let groups: Vec<std::ops::Range<u64>> = match job.layout {
            Layout::Private => (0..job.tasks()).map(|task| task..task + 1).collect(),
            _ => std::iter::once(0..job.tasks()).collect(),
        };
        let mut inodes = vec![0.0; servers];
        let files = groups.into_iter().map(|tasks| {
            let name = job.name_of(tasks.start);
            // The home of a name makes the inode.
            let home = home_of_entry(ROOT, &name, job.nodes);
            inodes[usize::from(home.0)] += 1.0;
            let ino = ino_at(home, tasks.start);
            File {
                spread: Spread::new(ino, job.file_bytes(), job.nodes),
                record_bytes: record_bytes(job, tasks.end - 1),
                name,
                ino,
                tasks,
            }
        });
        Model {
            job,
            costs,
            engine: Engine::new(job.nodes, machines, costs),
            one_machine: machines != Machines::Each,
            files: files.collect(),
            phases: Vec::new(),
            asked: BTreeMap::new(),
            now_ns: 0.0,
            records: vec![0.0; servers],
            learned: vec![0.0; servers],
            inodes,
        }
    }

    /// All processes, ready at once.
    fn tasks(&self) -> Vec<Asker> {
        let task = |task| Asker {
            node: self.job.node_of(task),
            now_ns: self.now_ns,
        };
        (0..self.job.tasks()).map(task).collect()
    }

    fn file_of(&self, task: u64) -> &File {
        match self.job.layout {
            Layout::Private => &self.files[usize::try_from(task).unwrap_or(0)],
            _ => &self.files[0],
        }
    }

    /// Counts messages, for what real servers count.
    fn count(&mut self, operation: &'static str, messages: &[Vec<Message>]) {
        let servers = usize::from(self.job.nodes);
        let counts = self.asked.entry(operation);
        let counts = counts.or_insert_with(|| vec![0; servers]);
        for message in messages.iter().flatten() {
            counts[usize::from(message.to.0)] += message.calls;
        }
    }

    fn step(&mut self, operation: &'static str, askers: &mut [Asker], messages: &[Vec<Message>]) {
        self.count(operation, messages);
        self.engine.step(askers, |index| messages[index].clone());
    }

    /// Ends a part when the last asker has; the next begins then.
    fn end(&mut self, name: &'static str, askers: &[Asker]) {
        let last = askers.iter().map(|asker| asker.now_ns);
        let last = last.fold(self.now_ns, f64::max);
        self.phases.push(Phase {
            name,
            seconds: (last - self.now_ns) / 1e9,
            requests: self.engine.requests(),
            wire_bytes: self.engine.wire_bytes(),
            work_s: self.engine.work_s(),
            asked: std::mem::take(&mut self.asked),
        });
        self.now_ns = last;
        self.engine.begin(last);
    }

    /// Each process opens its file; `creating`: the first makes it, and all attach to write.
    fn open(&mut self, name: &'static str, creating: bool) {
        let mut askers = self.tasks();
        let find = |model: &Model<'_>, task: u64| {
            let file = model.file_of(task);
            let op = peer::FindToKeep {
                dir: ROOT,
                name: file.name.clone(),
            };
            small(file.ino.rank(), peer::request(op).len())
        };
        let make = |model: &Model<'_>, task: u64| {
            let file = model.file_of(task);
            let op = peer::Make {
                dir: ROOT,
                name: file.name.clone(),
                what: peer::What::File,
                mode: 0o644,
                uid: 0,
                gid: 0,
                exclusive: false,
                write: true,
                path: None,
            };
            small(file.ino.rank(), peer::request(op).len())
        };
        let hold = |model: &Model<'_>, task: u64| {
            let file = model.file_of(task);
            small(
                file.ino.rank(),
                peer::request(peer::Hold {
                    ino: file.ino,
                    write: true,
                })
                .len(),
            )
        };
        let firsts: BTreeSet<u64> = match creating {
            true => self.files.iter().map(|file| file.tasks.start).collect(),
            false => BTreeSet::new(),
        };
        // Who is at the home looks into its tables.
        let foreign = |model: &Model<'_>, task: u64| {
            model.job.node_of(task) != model.file_of(task).ino.rank()
        };
        let each = |model: &Model<'_>, when: &dyn Fn(u64) -> Option<Message>| {
            (0..model.job.tasks())
                .map(|task| when(task).into_iter().collect())
                .collect::<Vec<Vec<Message>>>()
        };
        // The first of each file makes it.
        let made = each(self, &|task| {
            firsts.contains(&task).then(|| make(self, task))
        });
        self.step("make", &mut askers, &made);
        // The others open when it is there (MPI_File_open lets rank 0 go first).
        let ready = askers.iter().map(|asker| asker.now_ns).fold(0.0, f64::max);
        if self.job.layout != Layout::Private {
            for asker in &mut askers {
                asker.now_ns = ready;
            }
        }
        let other = |model: &Model<'_>, task: u64| !firsts.contains(&task) && foreign(model, task);
        let held = each(self, &|task| other(self, task).then(|| hold(self, task)));
        if creating {
            // What would make the file holds the one that is there. Attaching asks for its size
            // once more.
            let found = each(self, &|task| {
                (!firsts.contains(&task)).then(|| make(self, task))
            });
            self.step("make", &mut askers, &found);
        } else {
            let found = each(self, &|task| other(self, task).then(|| find(self, task)));
            self.step("find", &mut askers, &found);
        }
        self.step("hold", &mut askers, &held);
        self.end(name, &askers);
    }

    /// Each process moves its bytes between its memory and its node's.
    fn copy(&mut self, name: &'static str, bytes_per_s: f64) {
        let nodes_at_once = match self.one_machine {
            true => f64::from(self.job.nodes),
            false => 1.0,
        };
        let bytes = real(self.job.bytes) * f64::from(self.job.processes) * nodes_at_once;
        let done = Asker {
            node: Rank(0),
            now_ns: self.now_ns + bytes / bytes_per_s * 1e9,
        };
        self.end(name, &[done]);
    }

    /// Each node publishes what its processes wrote, all of a file at once.
    fn publish(&mut self) {
        let mut askers: Vec<Asker> = Vec::new();
        let (mut put, mut published) = (Vec::new(), Vec::new());
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
                put.push(self.puts(file, &runs));
                let size = self.job.file_bytes();
                let op = peer::Published {
                    ino: file.ino,
                    size,
                    mtime_ns: 1 << 60,
                    stored: 0,
                    publishes: vec![(1 << 60, 1 << 30)],
                    ended: false,
                };
                published.push(vec![small(file.ino.rank(), peer::request(op).len())]);
                askers.push(Asker {
                    node,
                    now_ns: self.now_ns,
                });
            }
        }
        self.files = files;
        self.step("put", &mut askers, &put);
        self.step("published", &mut askers, &published);
        self.end("publish", &askers);
    }

    /// The messages that bring runs to the homes of their slices.
    fn puts(&mut self, file: &mut File, runs: &[Run]) -> Vec<Message> {
        let mut homes: BTreeMap<Rank, (u64, u64, f64)> = BTreeMap::new();
        for run in runs {
            let bytes = encoded(run);
            let shares = file.spread.lay(run);
            for (home, records) in &shares.0 {
                let (count, length, work_ns) = homes.entry(*home).or_default();
                *count += 1;
                *length += bytes;
                *work_ns += self.costs.say_ns
                    + real(shares.1) * self.costs.slice_ns
                    + real(*records) * self.costs.lay_ns;
                self.records[usize::from(home.0)] += real(*records);
            }
        }
        let message = |(to, (count, bytes, work_ns)): (Rank, (u64, u64, f64))| Message {
            to,
            calls: count.div_ceil(RUNS),
            bulk: false,
            work_ns,
            request_bytes: bytes + 12,
            reply_bytes: 2,
        };
        homes.into_iter().map(message).collect()
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
        let mut askers: Vec<Asker> = Vec::new();
        let mut leases = Vec::new();
        for (node, index) in windows.keys() {
            let ino = self.files[*index].ino;
            let first = name == "look-up" && ino.rank() != *node;
            let request = peer::request(peer::Lease { ino }).len();
            leases.push(
                first
                    .then(|| small(ino.rank(), request))
                    .into_iter()
                    .collect(),
            );
            askers.push(Asker {
                node: *node,
                now_ns: self.now_ns,
            });
        }
        self.step("lease", &mut askers, &leases);
        // What one window brings is the same for all who ask for it.
        let mut known: BTreeMap<(usize, (u64, u64)), Vec<Message>> = BTreeMap::new();
        for round in 0..WINDOWS {
            let mut asked = Vec::with_capacity(askers.len());
            let mut brought = Vec::with_capacity(askers.len());
            for ((node, index), list) in windows {
                let (window, calls) = sample(list, round, usize::from(node.0));
                let file = &self.files[*index];
                let costs = self.costs;
                let mut messages = match window {
                    Some(window) => known
                        .entry((*index, window))
                        .or_insert_with(|| runs_messages(file, window, costs))
                        .clone(),
                    None => Vec::new(),
                };
                for message in &mut messages {
                    message.stand_for(calls);
                }
                let records: f64 = messages.iter().map(|m| m.work_ns / costs.say_ns).sum();
                self.learned[usize::from(node.0)] += records;
                brought.push(records * (costs.say_ns + costs.lay_ns));
                asked.push(messages);
            }
            self.step("runs", &mut askers, &asked);
            for (asker, work_ns) in askers.iter_mut().zip(brought) {
                asker.now_ns = self.engine.compute(asker.now_ns, work_ns);
            }
        }
        self.end(name, &askers);
    }

    /// Each process reads as much as it wrote, transfer by transfer, from anywhere in the file.
    fn shuffled(&mut self) {
        let mut askers = self.tasks();
        let samples = SAMPLES.min(self.job.pieces());
        let calls = real(self.job.pieces()) / real(samples);
        let (job, costs) = (self.job, self.costs);
        let bytes = calls * real(job.transfer);
        let messages = calls * real(job.transfer.div_ceil(FETCH_BYTES));
        let nodes: Vec<Rank> = askers.iter().map(|asker| asker.node).collect();
        let fetched = |index: usize, done: u64| {
            let dice = (index as u64) << 16 | done;
            let writer = mix(dice.wrapping_add(0x9E37_79B9_7F4A_7C15)) % job.tasks();
            let to = job.node_of(writer);
            let far = if to == nodes[index] { 0.0 } else { 1.0 };
            let message = Message {
                to,
                calls: whole(far * messages),
                bulk: true,
                work_ns: far * bytes / costs.fetch_bytes_per_s * 1e9,
                request_bytes: whole(far * messages * 24.0),
                reply_bytes: whole(far * bytes),
            };
            (done < samples).then_some(message)
        };
        self.engine.chain(&mut askers, fetched);
        self.end("shuffled", &askers);
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

fn runs_messages(file: &File, (from, to): (u64, u64), costs: &Costs) -> Vec<Message> {
    let records = file.spread.records_in(from, to);
    let message = |(home, count): (Rank, u64)| Message {
        to: home,
        calls: 1,
        bulk: false,
        work_ns: real(count) * costs.say_ns,
        request_bytes: 24,
        reply_bytes: count * file.record_bytes + 8,
    };
    records.into_iter().map(message).collect()
}

/// A record of one piece, far into the file, as it travels.
fn record_bytes(job: &Job, task: u64) -> u64 {
    let runs = job.runs_of(task);
    runs.last()
        .map_or(0, |run| encoded(&run.piece(0).into_run()))
}

fn encoded(run: &Run) -> u64 {
    postcard::to_stdvec(run).map_or(0, |bytes| bytes.len() as u64)
}

fn small(to: Rank, request_bytes: usize) -> Message {
    Message {
        to,
        calls: 1,
        bulk: false,
        work_ns: 0.0,
        request_bytes: request_bytes as u64,
        // About an inode's attributes.
        reply_bytes: 64,
    }
}

/// The finaliser of `SplitMix64`.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts and bytes, not negative
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// From `weir start` to all servers' being ready, over the launcher's tree, s.
fn start_s(nodes: u16, costs: &Costs) -> f64 {
    let seats: Vec<u16> = (1..nodes).collect();
    // Up come addresses, down goes the roster, up comes that all are ready.
    let (ready_ns, depth) = below(&seats, costs);
    let server_ns = costs.agent_ns.min(5e6);
    (ready_ns.max(server_ns) + f64::from(depth) * 3.0 * costs.latency_ns) / 1e9
}

/// When all agents below one are ready, and how many steps down they are.
fn below(seats: &[u16], costs: &Costs) -> (f64, u32) {
    let mut last = (0.0_f64, 0);
    let mut started = 0.0;
    for share in shares(seats, FANOUT) {
        started += costs.spawn_ns;
        let (ready, depth) = below(&share[1..], costs);
        last.0 = last.0.max(started + costs.agent_ns + ready);
        last.1 = last.1.max(depth + 1);
    }
    last
}

#[cfg(test)]
mod tests;
