//! A worker: a process that does the steps that the coordinator orders, and says when it did them.
//!
//! The coordinator starts a worker of a node's own as the same program with the same arguments, with a
//! variable in the environment and a socket as standard input, so that whatever is preloaded into programs
//! starts afresh in each. Workers on other nodes are started by a [`WorkerBackend`].

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{bail, Context, Result};

use crate::calls::time_call;
use crate::compute;
use crate::copy_limit::{self, Warm};
use crate::data::{self, OpenFile};
use crate::directories;
use crate::error::{StepError, WrongData};
use crate::links;
use crate::mixed;
use crate::names::call_names;
use crate::timing::{Prepared, Timing};
use crate::wire::{receive, send, FabricCalls, Step, WorkerAnswer, WorkerEndpoint, WorkerOrder};

/// The environment variable that makes a process a worker.
pub const WORKER_VARIABLE: &str = "WEIR_BENCH_WORKER_RANK";

/// The part of a worker that knows the file system under test and its servers.
pub trait WorkerBackend {
    /// Starts more workers, which connect under these numbers.
    fn spawn(&mut self, numbers: &[u16]) -> Result<()>;
    /// Listens for other workers, also over libfabric if so.
    fn listen(&mut self, libfabric: bool) -> Result<WorkerEndpoint>;
    /// The listener of TCP that [`WorkerBackend::listen`] made.
    fn listener(&self) -> Option<&TcpListener>;
    /// Prepares requests over the fabric of the servers.
    fn calls<'a>(&'a mut self, calls: &'a FabricCalls) -> Result<Prepared<'a>>;
    /// Prepares to run on one processor, with the server.
    fn pin(&mut self, processor: Option<usize>) -> Result<Prepared<'_>>;
}

/// The backend of workers that measure directories: there is no server.
struct NoBackend;

impl WorkerBackend for NoBackend {
    fn spawn(&mut self, _: &[u16]) -> Result<()> {
        bail!("this worker starts no others")
    }

    fn listen(&mut self, _: bool) -> Result<WorkerEndpoint> {
        bail!("this worker does not listen")
    }

    fn listener(&self) -> Option<&TcpListener> {
        None
    }

    fn calls<'a>(&'a mut self, _: &'a FabricCalls) -> Result<Prepared<'a>> {
        bail!("this worker has no fabric")
    }

    fn pin(&mut self, _: Option<usize>) -> Result<Prepared<'_>> {
        bail!("this worker has no server")
    }
}

/// True if this process was started as a worker of this node.
pub fn is_worker() -> bool {
    std::env::var_os(WORKER_VARIABLE).is_some()
}

/// Serves the coordinator at standard input.
pub fn run() -> Result<u8> {
    // SAFETY: no memory is involved. A worker must not outlive an interrupted coordinator.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    serve(&mut BufReader::new(&socket), &mut &socket, &mut NoBackend)?;
    Ok(0)
}

/// Does what is ordered until the connection ends.
pub fn serve(
    from: &mut impl BufRead,
    to: &mut impl Write,
    backend: &mut dyn WorkerBackend,
) -> Result<()> {
    let mut worker = Worker::default();
    while let Some(order) = receive(from)? {
        let answered = match order {
            WorkerOrder::Spawn(numbers) => {
                backend.spawn(&numbers).map(|()| WorkerAnswer::Ready(None))
            }
            WorkerOrder::Prepare(step) => {
                worker.act(&step, from, to, backend).map(WorkerAnswer::Done)
            }
            WorkerOrder::Go => bail!("nothing is prepared"),
        };
        send(to, &answered.unwrap_or_else(|e| refusal(&e)))?;
    }
    Ok(())
}

fn refusal(error: &anyhow::Error) -> WorkerAnswer {
    let is_wrong = match error.downcast_ref::<StepError>() {
        Some(error) => error.is_wrong_data(),
        None => error.is::<WrongData>(),
    };
    match is_wrong {
        true => WorkerAnswer::Wrong(error.to_string()),
        false => WorkerAnswer::Failed(format!("{error:#}")),
    }
}

/// The state of a worker between steps.
#[derive(Default)]
struct Worker {
    /// The file that was written and is not published yet.
    kept: Option<OpenFile>,
    warm: Warm,
}

impl Worker {
    /// A step, with the wait for the others between its halves.
    fn act(
        &mut self,
        step: &Step,
        from: &mut impl BufRead,
        to: &mut impl Write,
        backend: &mut dyn WorkerBackend,
    ) -> Result<Timing> {
        let endpoint = match step {
            Step::Listen { libfabric } => Some(backend.listen(*libfabric)?),
            _ => None,
        };
        let prepared = self.prepare(step, backend)?;
        send(to, &WorkerAnswer::Ready(endpoint))?;
        match receive(from)? {
            Some(WorkerOrder::Go) => prepared(),
            Some(other) => bail!("{other:?} instead of the start"),
            None => bail!("the coordinator has gone"),
        }
    }

    fn prepare<'a>(
        &'a mut self,
        step: &'a Step,
        backend: &'a mut dyn WorkerBackend,
    ) -> Result<Prepared<'a>> {
        match step {
            Step::Listen { .. } => Ok(Box::new(|| Ok(Timing::default()))),
            Step::Streams(streams) => links::streams(backend.listener(), streams),
            Step::Echo { to, trips, token } => links::echo(backend.listener(), *to, *trips, token),
            Step::Calls(calls) => backend.calls(calls),
            Step::Write { data, after } => {
                data.check()?;
                data::write(data, *after, &mut self.kept)
            }
            Step::Create(data) => {
                data.check()?;
                data::create(data)
            }
            Step::Compute(work) => Ok(compute::compute(*work)),
            Step::Publish => Ok(data::publish(&mut self.kept)),
            Step::Read(data) => {
                data.check()?;
                data::read(data, false)
            }
            Step::Verify(data) => {
                data.check()?;
                data::read(data, true)
            }
            Step::Mixed(step) => {
                step.write.check()?;
                step.read.check()?;
                mixed::mixed(step)
            }
            Step::Barrier { from, times, token } => {
                links::barrier(backend.listener(), *from, *times, token)
            }
            Step::Names(step) => call_names(step),
            Step::Copy(step) => copy_limit::copy(step, &mut self.warm),
            Step::Call(step) => Ok(time_call(step)),
            Step::Directory(path) => Ok(directories::make_directory(path)),
            Step::Visibility {
                directory,
                visibility,
            } => Ok(directories::set_visibility(directory, visibility)),
            Step::Remove(path) => Ok(directories::remove(path)),
            Step::Pin(processor) => backend.pin(*processor).context("processors"),
        }
    }
}
