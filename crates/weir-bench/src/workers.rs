//! The workers of a run, seen from the coordinator: told what to do, heard.
//!
//! A group of workers does a step together: all prepare, and when all are ready all are told to go.
//! Each takes its own time. A worker that fails, goes away or says nothing ends the run with
//! the name of its place.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};

use anyhow::{bail, Context, Result};

use crate::error::WrongData;
use crate::timing::Timing;
use crate::wire::{receive, send, Step, WorkerAnswer, WorkerEndpoint, WorkerOrder};

/// A worker's number.
pub type WorkerId = u16;

/// A step of one worker.
pub type Assignment = (WorkerId, Step);

/// The timings of a group.
#[derive(Clone, Debug)]
pub struct Timings {
    /// Each, in the order of the group.
    pub each: Vec<Timing>,
}

impl Timings {
    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.each.iter().map(|timing| timing.bytes).sum()
    }

    /// The slowest, by its own clock, s.
    pub fn slowest(&self) -> f64 {
        self.each.iter().map(Timing::seconds).fold(0.0, f64::max)
    }
}

/// Both directions of a connection.
pub trait Duplex: Read + Write + Send {}

impl<T: Read + Write + Send> Duplex for T {}

struct Connection {
    /// The node or the process, for messages.
    place: String,
    stream: BufReader<Box<dyn Duplex>>,
}

/// All workers that are connected.
#[derive(Default)]
pub struct Workers {
    connections: BTreeMap<WorkerId, Connection>,
}

impl Workers {
    /// Adds a worker that is connected; `place` names it in messages.
    pub fn add(&mut self, id: WorkerId, place: String, stream: Box<dyn Duplex>) {
        let stream = BufReader::new(stream);
        self.connections.insert(id, Connection { place, stream });
    }

    /// True if this worker is connected.
    pub fn has(&self, id: WorkerId) -> bool {
        self.connections.contains_key(&id)
    }

    /// The node or the process of a worker.
    pub fn place_of(&self, id: WorkerId) -> &str {
        self.connections.get(&id).map_or("", |known| &known.place)
    }

    /// Has `parent` start workers, which connect.
    pub fn spawn(&mut self, parent: WorkerId, ids: &[WorkerId]) -> Result<()> {
        self.send_order(parent, &WorkerOrder::Spawn(ids.to_vec()))?;
        self.await_ready(parent)?;
        Ok(())
    }

    /// Has each do its step, all at once.
    pub fn run(&mut self, group: &[Assignment]) -> Result<Timings> {
        self.prepare(group)?;
        self.go(group)
    }

    /// Has each get ready.
    pub fn prepare(&mut self, group: &[Assignment]) -> Result<()> {
        for (id, step) in group {
            self.send_order(*id, &WorkerOrder::Prepare(Box::new(step.clone())))?;
        }
        for (id, _) in group {
            self.await_ready(*id)?;
        }
        Ok(())
    }

    /// Has each do the step that it is ready for.
    pub fn go(&mut self, group: &[Assignment]) -> Result<Timings> {
        for (id, _) in group {
            self.send_order(*id, &WorkerOrder::Go)?;
        }
        let mut each = Vec::with_capacity(group.len());
        for (id, _) in group {
            match self.hear(*id)? {
                WorkerAnswer::Done(timing) => each.push(timing),
                other => bail!("a worker said {other:?} at its end"),
            }
        }
        Ok(Timings { each })
    }

    /// Has a worker listen.
    pub fn listen_at(&mut self, id: WorkerId, libfabric: bool) -> Result<WorkerEndpoint> {
        self.send_order(
            id,
            &WorkerOrder::Prepare(Box::new(Step::Listen { libfabric })),
        )?;
        let endpoint = self.await_ready(id)?;
        let endpoint = endpoint.context("a worker does not say its address")?;
        self.send_order(id, &WorkerOrder::Go)?;
        self.hear(id)?;
        Ok(endpoint)
    }

    fn connection(&mut self, id: WorkerId) -> Result<&mut Connection> {
        let connection = self.connections.get_mut(&id);
        connection.with_context(|| format!("there is no worker {id}"))
    }

    fn send_order(&mut self, id: WorkerId, order: &WorkerOrder) -> Result<()> {
        let connection = self.connection(id)?;
        send(connection.stream.get_mut(), order)
            .with_context(|| format!("{}: the worker went away", connection.place))
    }

    fn await_ready(&mut self, id: WorkerId) -> Result<Option<WorkerEndpoint>> {
        match self.hear(id)? {
            WorkerAnswer::Ready(endpoint) => Ok(endpoint),
            other => bail!("a worker said {other:?} before the start"),
        }
    }

    fn hear(&mut self, id: WorkerId) -> Result<WorkerAnswer> {
        let connection = self.connection(id)?;
        let answer = receive(&mut connection.stream);
        let place = &connection.place;
        match answer.with_context(|| format!("the worker on {place}"))? {
            Some(WorkerAnswer::Wrong(wrong)) => bail!(WrongData(format!("{place}: {wrong}"))),
            Some(WorkerAnswer::Failed(why)) => bail!("{place}: {why}"),
            Some(answer) => Ok(answer),
            None => bail!("{place}: the worker went away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_that_goes_away_or_talks_nonsense_ends_the_run() {
        for (says, expected) in [
            (&b""[..], "went away"),
            (b"hello\n", "makes no sense"),
            (b"\"go\"\n", "makes no sense"),
            (
                b"{\"done\":{\"start_ns\":1,\"end_ns\":1,\"bytes\":-1,\"ops\":0}}\n",
                "makes no sense",
            ),
            (
                b"{\"done\":{\"start_ns\":1,\"end_ns\":1,\"bytes\":1,\"ops\":0}}\n",
                "before the start",
            ),
            (b"{\"failed\":\"no such file\"}\n", "n3: no such file"),
            (b"{\"ready\":null", "cut off"),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut workers = Workers::default();
            workers.add(3, "n3".into(), Box::new(ours));
            theirs.write_all(says).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let error = workers.run(&[(3, Step::Publish)]).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
