//! The measurements of `weir bench --hosts`: one round of each, the links' limits beside them.

use anyhow::{Context, Result};

use super::instance::{increase, is_request, TestInstance};
use super::plan::{self, HostsPlan, Measurement};
use crate::data::AfterWrite;
use crate::links::Streams;
use crate::names::NameCall;
use crate::pieces::FilePieces;
use crate::random::random;
use crate::rows::PromiseTable;
use crate::timing::Timing;
use crate::wire::{FabricCalls, Step};
use crate::workers::{Assignment, Timings, WorkerId};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// A scattered piece, and how far they are apart, bytes.
const PIECE: u64 = 4 * KIB;
const APART: u64 = 4 * PIECE;
/// Pieces of one list.
const LIST: u64 = 256;
/// Bytes of a piece of the file that is looked up, and in how many places each process looks.
const LOOKED: u64 = 64;
const LOOKS: u64 = 64;
/// Runs of the writes whose requests are counted.
const RUNS_OF_WRITES: usize = 3;

/// A run of `weir bench --hosts`.
pub struct HostsRun<'a> {
    /// The instance under test.
    pub instance: &'a mut TestInstance,
    /// The amounts.
    pub plan: &'a HostsPlan,
    /// The results.
    pub rows: &'a mut PromiseTable,
    /// The round, from 0.
    pub round: u32,
    /// Bytes read back and compared.
    pub verified: u64,
}

#[allow(clippy::cast_precision_loss)] // bytes and counts, far below 2^53
pub(super) fn per_second(amount: u64, seconds: f64) -> f64 {
    amount as f64 / seconds.max(1e-9)
}

#[allow(clippy::cast_precision_loss)] // counts, far below 2^53
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

/// A write of a file that stays open until it is published.
pub(super) fn write_kept(data: FilePieces) -> Step {
    Step::Write {
        data,
        after: AfterWrite::KeepOpen,
    }
}

/// Pieces for each of some workers, by the worker's place among them.
pub(super) fn group(
    workers: &[WorkerId],
    data: impl Fn(u64) -> FilePieces,
) -> Vec<(WorkerId, FilePieces)> {
    let numbered = (0..).zip(workers);
    numbered.map(|(i, worker)| (*worker, data(i))).collect()
}

impl<'a> HostsRun<'a> {
    /// Measures all rounds of a plan; returns the bytes read back and compared.
    pub fn rounds(
        instance: &'a mut TestInstance,
        plan: &'a HostsPlan,
        rows: &'a mut PromiseTable,
        measure: impl Fn(&mut HostsRun<'a>) -> Result<()>,
    ) -> Result<u64> {
        let mut run = HostsRun {
            instance,
            plan,
            rows,
            round: 0,
            verified: 0,
        };
        for round in 0..plan.rounds {
            run.round = round;
            measure(&mut run)?;
        }
        Ok(run.verified)
    }

    /// Makes all measurements once.
    pub fn all(&mut self) -> Result<()> {
        for measurement in self.plan.measurements.iter().copied() {
            self.measure(measurement, false)?;
        }
        Ok(())
    }

    /// Makes the measurements over libfabric.
    pub fn over_libfabric(&mut self) -> Result<()> {
        for measurement in self.plan.over_libfabric() {
            self.measure(measurement, true)?;
        }
        Ok(())
    }

    fn measure(&mut self, measurement: Measurement, libfabric: bool) -> Result<()> {
        match measurement {
            Measurement::Writes => {
                self.writes().context("writes")?;
                self.messages().context("messages a write")
            }
            Measurement::Reads => self.remote_reads(libfabric).context("remote reads"),
            Measurement::Exchange => self.exchange().context("reads of all by all"),
            Measurement::Visibility => self.visibility().context("raw beside ras"),
            Measurement::LookUps => self.look_ups().context("look-ups"),
            Measurement::Calls => self.calls(libfabric).context("requests"),
            Measurement::Creates => self.creates().context("creates"),
            Measurement::Metadata => self.metadata().context("calls on names"),
        }
    }

    pub(super) fn say(&self, what: &str) {
        if !self.plan.quiet {
            let (round, rounds) = (self.round + 1, self.plan.rounds);
            eprintln!("round {round}/{rounds}  {what}");
        }
    }

    pub(super) fn servers(&self) -> u64 {
        self.instance.nodes.len() as u64
    }

    /// The first process of each node.
    pub(super) fn one_each(&self) -> Vec<WorkerId> {
        (0..self.instance.nodes.len())
            .map(|node| self.instance.process(node, 0))
            .collect()
    }

    /// All of a contiguous part of a file, in calls of `size`.
    pub(super) fn part(&self, name: &str, first: u64, bytes: u64, size: u64) -> FilePieces {
        let seed = u64::from(self.round) + 1;
        FilePieces::contiguous(self.instance.path(name), first, bytes, size, seed)
    }

    /// Writes by all of `group`, then publishes; how long the slowest wrote, s.
    fn write(&mut self, group: &[(WorkerId, FilePieces)]) -> Result<f64> {
        let wrote = self.each(group, write_kept)?;
        self.each(group, |_| Step::Publish)?;
        Ok(wrote.slowest())
    }

    /// The same step of each, with its own data.
    pub(super) fn each(
        &mut self,
        group: &[(WorkerId, FilePieces)],
        step: fn(FilePieces) -> Step,
    ) -> Result<Timings> {
        let steps = group
            .iter()
            .map(|(worker, data)| (*worker, step(data.clone())));
        let steps: Vec<Assignment> = steps.collect();
        self.instance.workers.run(&steps)
    }

    /// Reads by all of `group`, and again with every byte compared; how long the slowest took, s.
    fn read(&mut self, group: &[(WorkerId, FilePieces)]) -> Result<f64> {
        let read = self.each(group, Step::Read)?;
        let compared = self.each(group, Step::Verify)?;
        self.verified += compared.bytes();
        Ok(read.slowest())
    }

    pub(super) fn remove(&mut self, worker: WorkerId, name: &str) -> Result<()> {
        let path = self.instance.path(name);
        self.instance.workers.run(&[(worker, Step::Remove(path))])?;
        Ok(())
    }

    fn writes(&mut self) -> Result<()> {
        let bytes = self.plan.bytes;
        for (shared, row) in [(true, plan::write(true)), (false, plan::write(false))] {
            self.say(&row.what);
            let all = self.one_each();
            let beside = match self.instance.one_machine {
                true => self.instance.alone[..all.len()].to_vec(),
                false => self.instance.alone[..1].to_vec(),
            };
            let mut rates = Vec::new();
            for workers in [&all, &beside] {
                let group = group(workers, |i| match shared {
                    true => self.part("write", i * bytes, bytes, MIB),
                    false => self.part(&format!("write.{i}"), 0, bytes, MIB),
                });
                rates.push(per_second(bytes, self.write(&group)?));
                let names = match shared {
                    true => vec!["write".to_owned()],
                    false => (0..workers.len()).map(|i| format!("write.{i}")).collect(),
                };
                for name in names {
                    self.remove(workers[0], &name)?;
                }
            }
            self.rows.add(&row, rates[0], Some(rates[1]));
        }
        Ok(())
    }

    /// Counts the requests of any kind that more and smaller writes of the same bytes cost. Servers
    /// also publish by the clock, so the least of some runs counts: what writes cost is in each.
    fn messages(&mut self) -> Result<()> {
        let row = plan::messages();
        self.say(&row.what);
        let bytes = self.plan.bytes.min(16 * MIB);
        let mut counted = Vec::new();
        for size in [64 * KIB, 4 * KIB] {
            let mut least = u64::MAX;
            for _ in 0..RUNS_OF_WRITES {
                least = least.min(self.requests_of_writes(bytes, size)?);
            }
            counted.push((least, bytes / size * self.one_each().len() as u64));
        }
        let [(few, of_few), (many, of_many)] = counted[..] else {
            unreachable!("two sizes");
        };
        let more = number(many.saturating_sub(few)) / number(of_many - of_few);
        self.rows.add(&row, more, None);
        Ok(())
    }

    /// The requests between servers while a process on each node writes `bytes`, `size` at a time.
    fn requests_of_writes(&mut self, bytes: u64, size: u64) -> Result<u64> {
        let workers = self.one_each();
        let data = |i| self.part("messages", i * bytes, bytes, size);
        let group = group(&workers, data).into_iter();
        let group: Vec<Assignment> = group.map(|(id, data)| (id, write_kept(data))).collect();
        let instance = &mut *self.instance;
        instance.workers.prepare(&group)?;
        let before = instance.counters()?;
        instance.workers.go(&group)?;
        let after = instance.counters()?;
        let publish: Vec<_> = workers
            .iter()
            .map(|worker| (*worker, Step::Publish))
            .collect();
        self.instance.workers.run(&publish)?;
        self.remove(workers[0], "messages")?;
        Ok(increase(&before, &after, is_request).iter().sum())
    }

    /// Bytes over plain connections from each of `from` to each of `to`, but to itself; s.
    fn plain(&mut self, from: &[usize], to: &[usize], streams: usize, bytes: u64) -> Result<f64> {
        let token: [u8; 16] = random()?;
        let mut places = Vec::new();
        for node in to {
            let worker = self.instance.nodes[*node].worker;
            places.push((
                *node,
                self.instance.workers.listen_at(worker, false)?.address,
            ));
        }
        let step = |node: usize| -> Result<Step> {
            let others = places.iter().filter(|(at, _)| *at != node);
            let sends = from.contains(&node);
            let targets = others.flat_map(|(_, place)| std::iter::repeat_n(*place, streams));
            let senders = from.iter().filter(|at| **at != node).count();
            let coming = if to.contains(&node) {
                senders * streams
            } else {
                0
            };
            Ok(Step::Streams(Streams {
                to: if sends { targets.collect() } else { Vec::new() },
                from: u32::try_from(coming)?,
                bytes,
                token,
            }))
        };
        // Who receives is told to go first: its clock is the one that counts.
        let mut nodes = to.to_vec();
        nodes.extend(from.iter().filter(|node| !to.contains(node)));
        let group = nodes
            .iter()
            .map(|node| Ok((self.instance.nodes[*node].worker, step(*node)?)));
        let group: Vec<Assignment> = group.collect::<Result<_>>()?;
        let moved = self.instance.workers.run(&group)?;
        let seconds = moved.each[..to.len()].iter().map(Timing::seconds);
        Ok(seconds.fold(0.0, f64::max))
    }

    /// Node 0 reads what node 1 wrote.
    fn remote_reads(&mut self, libfabric: bool) -> Result<()> {
        let bytes = self.plan.bytes;
        let writer = self.instance.process(1, 0);
        let whole = self.part("remote", 0, bytes, MIB);
        self.write(&[(writer, whole)])?;
        let mut one_mib = None;
        for (streams, size) in [(1, MIB), (1, 16 * MIB), (4, MIB), (4, 16 * MIB)] {
            let row = plan::read(streams, size, libfabric);
            self.say(&row.what);
            let each = bytes / streams as u64;
            let size = size.min(each);
            let readers = (0..streams).map(|i| self.instance.process(0, i + 1));
            let readers: Vec<WorkerId> = readers.collect();
            let group = group(&readers, |i| self.part("remote", i * each, each, size));
            let (link, weir) = if self.round.is_multiple_of(2) {
                let link = self.plain(&[1], &[0], streams, each)?;
                (link, self.read(&group)?)
            } else {
                let weir = self.read(&group)?;
                (self.plain(&[1], &[0], streams, each)?, weir)
            };
            let rate = per_second(bytes, weir);
            one_mib = one_mib.or(Some(rate));
            self.rows.add(&row, rate, Some(per_second(bytes, link)));
        }
        if !libfabric {
            self.pieces(one_mib)?;
        }
        self.remove(writer, "remote")
    }

    /// Every fourth piece of the file of the remote reads.
    fn pieces(&mut self, one_mib: Option<f64>) -> Result<()> {
        let mut rates = Vec::new();
        let [row, beside_large] = [plan::pieces(true), plan::pieces(false)];
        self.say(&row.what);
        let all = self.plan.bytes / APART;
        for (list, count) in [(1, (all / 16).max(LIST.min(all))), (LIST, all)] {
            let pieces = self.part("remote", 0, PIECE, PIECE);
            let data = FilePieces {
                list,
                ..pieces.spread(0, APART, count)
            };
            let seconds = self.read(&[(self.instance.process(0, 1), data)])?;
            rates.push(per_second(count * PIECE, seconds));
        }
        self.rows.add(&row, rates[1], Some(rates[0]));
        self.rows.add(&beside_large, rates[1], one_mib);
        Ok(())
    }

    /// Written segmented by all nodes, read strided by all.
    fn exchange(&mut self) -> Result<()> {
        let (servers, bytes) = (self.servers(), self.plan.bytes);
        // So that every process has a whole number of pieces in every other's part.
        let bytes = bytes / (servers * MIB) * (servers * MIB);
        let workers = self.one_each();
        let written = |i| self.part("exchange", i * bytes, bytes, MIB);
        self.write(&group(&workers, written))?;
        let nodes: Vec<usize> = (0..workers.len()).collect();
        let over_links = bytes * (servers - 1);
        for list in [bytes / MIB, 1] {
            let row = plan::exchange(list > 1);
            self.say(&row.what);
            let link = self.plain(&nodes, &nodes, 1, bytes / servers)?;
            let pieces = self.part("exchange", 0, bytes, MIB);
            let pieces = FilePieces { list, ..pieces };
            let strided = |i| {
                let pieces = pieces.clone();
                pieces.spread(i * MIB, servers * MIB, bytes / MIB)
            };
            let seconds = self.read(&group(&workers, strided))?;
            let rate = per_second(over_links, seconds);
            let link = per_second(over_links, link);
            self.rows.add(&row, rate, Some(link));
        }
        self.remove(workers[0], "exchange")
    }

    /// Where a strided file of very many pieces is, asked by many processes. Each reads pieces all
    /// over it that are on its own node, so that nothing but locations moves.
    fn look_ups(&mut self) -> Result<()> {
        let rows = plan::look_ups(self.plan.pieces, plan::LOOKERS);
        self.say(&rows[0].what);
        let servers = self.servers();
        let each = self.plan.pieces / servers;
        let workers = self.one_each();
        let all = self.part("look", 0, LOOKED, LOOKED);
        let data = |i: u64| all.clone().spread(i * LOOKED, servers * LOOKED, each);
        let group = group(&workers, data);
        self.write(&group)?;
        let look = |i: usize| {
            let (node, number) = (i % workers.len(), 1 + i / workers.len());
            let stride = each / LOOKS * servers * LOOKED;
            let spread = all.clone().spread(node as u64 * LOOKED, stride, LOOKS);
            (self.instance.process(node, number), Step::Read(spread))
        };
        let lookers: Vec<Assignment> = (0..plan::LOOKERS).map(look).collect();
        let before = self.instance.counters()?;
        let first = self.instance.workers.run(&lookers[..1])?;
        let others = self.instance.workers.run(&lookers[1..])?;
        let after = self.instance.counters()?;
        let moved = increase(&before, &after, |name| name == "fabric_bytes");
        self.rows.add(&rows[0], others.slowest(), None);
        self.rows.add(&rows[1], number(moved.iter().sum()), None);
        self.rows.add(&rows[2], first.slowest(), None);
        let in_lists = |data| Step::Verify(FilePieces { list: LIST, ..data });
        self.verified += self.each(&group, in_lists)?.bytes();
        self.remove(workers[0], "look")
    }

    fn calls(&mut self, libfabric: bool) -> Result<()> {
        let row = plan::calls(libfabric);
        self.say(&row.what);
        let [near, far] = [0, 1].map(|node: usize| self.instance.nodes[node].worker);
        let trips = self.plan.trips;
        let trip = |did: &Timings| did.each[1].seconds() / f64::from(trips);
        let token = random()?;
        let to = self.instance.workers.listen_at(far, false)?.address;
        let echo = |to| Step::Echo { to, trips, token };
        let group = [(far, echo(None)), (near, echo(Some(to)))];
        let plain = trip(&self.instance.workers.run(&group)?);
        let workers = &mut self.instance.workers;
        let endpoints = [
            workers.listen_at(near, libfabric)?,
            workers.listen_at(far, libfabric)?,
        ];
        let secret = random()?;
        let call = |asks| {
            Step::Calls(FabricCalls {
                endpoints: endpoints.clone(),
                asks,
                trips,
                libfabric,
                secret,
            })
        };
        let group = [(far, call(false)), (near, call(true))];
        let called = trip(&workers.run(&group)?);
        self.rows.add(&row, called, Some(plain));
        Ok(())
    }

    /// Processes create files in one directory, at all servers and at one alone.
    fn creates(&mut self) -> Result<()> {
        let (servers, one_machine) = (self.instance.nodes.len(), self.instance.one_machine);
        let [row, by_core, spread] = plan::creates(servers, one_machine);
        self.say(&row.what);
        self.rows.declare(&row);
        self.rows.declare(&by_core);
        let over_all: Vec<WorkerId> = (0..servers * plan::CREATORS)
            .map(|i| self.instance.process(i % servers, 1 + i / servers))
            .collect();
        let at_one = self.instance.alone.clone();
        let before = self.instance.counters()?;
        let rate = self.create(&over_all)?;
        let asked = increase(&before, &self.instance.counters()?, is_request);
        let most = number(asked.iter().copied().max().unwrap_or(0));
        let mean = number(asked.iter().sum::<u64>().max(1)) / number(asked.len() as u64);
        self.rows.add(&spread, most / mean - 1.0, None);
        self.remove(over_all[0], "create")?;
        let beside = self.create(&at_one)?;
        self.remove(at_one[0], "create")?;
        self.rows.add(&row, rate, Some(beside));
        // A core for each server and its processes: on one machine they are of the same one.
        let cores = std::thread::available_parallelism()?.get();
        if one_machine && cores < servers {
            let why = format!("{servers} servers, and {cores} processors");
            self.rows.why_not(&by_core, &why);
            return Ok(());
        }
        let core = |i: usize| if one_machine { i % servers } else { 0 };
        let cores: Vec<(WorkerId, usize)> = over_all.into_iter().zip((0..).map(core)).collect();
        let rate = self.create_on_cores(&cores)?;
        let at_one = at_one.into_iter().take(plan::CREATORS);
        let cores: Vec<(WorkerId, usize)> = at_one.map(|worker| (worker, 0)).collect();
        let beside = self.create_on_cores(&cores)?;
        self.rows.add(&by_core, rate, Some(beside));
        Ok(())
    }

    /// All create files, each on a core that its server is on too; files a second.
    fn create_on_cores(&mut self, on: &[(WorkerId, usize)]) -> Result<f64> {
        let pin = |which: fn(usize) -> Option<usize>| -> Vec<Assignment> {
            let pins = on
                .iter()
                .map(|(worker, core)| (*worker, Step::Pin(which(*core))));
            pins.collect()
        };
        self.instance.workers.run(&pin(Some))?;
        let workers: Vec<WorkerId> = on.iter().map(|(worker, _)| *worker).collect();
        let rate = self.create(&workers)?;
        self.instance.workers.run(&pin(|_| None))?;
        self.remove(workers[0], "create")?;
        Ok(rate)
    }

    /// All create files in a directory that is made for it; files a second.
    fn create(&mut self, workers: &[WorkerId]) -> Result<f64> {
        let directory = self.instance.path("create");
        Ok(self.in_one_directory(&directory, workers, &[NameCall::Create])?[0])
    }
}
