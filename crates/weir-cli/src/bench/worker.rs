//! `weir worker`: one process of `weir bench --hosts` on a node. Started by the agent of its
//! server, it moves plain bytes and starts more of itself with the client injected, which work on
//! files; all do what they are told over a connection of their own.

use std::fs::File;
use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use anyhow::{bail, Context, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use weir_bench::parts::WrongData;
use weir_config::Environment;
use weir_core::types::Rank;
use weir_instance::roster;
use weir_launch::errand::Task;
use weir_launch::server::read_line;

use super::calls::{self, Opened};
use super::files::{self, Prepared};
use super::link;
use super::mixed;
use super::pin::Pinned;
use super::wire::{receive, send, tend, Answer, Order, Place, Step};
use crate::inject;

/// Does what the task on standard input says, until the connection ends.
pub fn run() -> Result<()> {
    // Not to outlive what started it.
    set_pdeathsig(Signal::SIGKILL)?;
    let task: Task = read_line(&mut BufReader::new(std::io::stdin()))
        .context("weir worker is started by weir bench --hosts")?;
    let stream = task
        .errand
        .known()
        .come(task.errand.address, task.number)
        .context("coming to weir bench")?;
    tend(&stream)?;
    let mut worker = Worker {
        address: address(&task)?,
        task,
        opened: Opened::default(),
        file: None,
        pinned: Pinned::new()?,
    };
    worker.serve(&stream)
}

/// This node's address on the network of its server.
fn address(task: &Task) -> Result<IpAddr> {
    let Some(roster) = roster::read(&task.run_dir)? else {
        return Ok(Ipv4Addr::LOCALHOST.into());
    };
    // Processes have numbers above all ranks, and need no address.
    let member = roster.member(Rank(task.number));
    Ok(member.map_or(Ipv4Addr::LOCALHOST.into(), |member| member.address.ip()))
}

struct Worker {
    task: Task,
    address: IpAddr,
    opened: Opened,
    /// What was written and is not published yet.
    file: Option<File>,
    pinned: Pinned,
}

impl Worker {
    fn serve(&mut self, stream: &TcpStream) -> Result<()> {
        let mut from = BufReader::new(stream.try_clone()?);
        let mut to = stream;
        while let Some(order) = receive(&mut from)? {
            let answered = match order {
                Order::Spawn(numbers) => self.spawn(&numbers).map(|()| Answer::Ready(None)),
                Order::Prepare(step) => self.act(&step, &mut from, stream).map(Answer::Done),
                Order::Go => bail!("nothing is prepared"),
            };
            let answer = answered.unwrap_or_else(|e| match e.is::<WrongData>() {
                true => Answer::Wrong(e.to_string()),
                false => Answer::Failed(format!("{e:#}")),
            });
            send(&mut to, &answer)?;
        }
        Ok(())
    }

    /// A step, with the wait for the others between its halves.
    fn act(
        &mut self,
        step: &Step,
        from: &mut BufReader<TcpStream>,
        mut to: &TcpStream,
    ) -> Result<super::wire::Done> {
        let mut place = None;
        if let Step::Listen { libfabric } = step {
            place = Some(self.listen(*libfabric)?);
        }
        let prepared = self.prepare(step)?;
        send(&mut to, &Answer::Ready(place))?;
        match receive(from)? {
            Some(Order::Go) => prepared(),
            other => bail!("{other:?} instead of the start"),
        }
    }

    fn listen(&mut self, libfabric: bool) -> Result<Place> {
        let listener = link::listen(self.address)?;
        let address = listener.local_addr()?;
        let endpoint = libfabric.then(|| calls::open_libfabric(self.address));
        let endpoint = endpoint.transpose()?;
        let name = endpoint.as_ref().map(|bound| bound.name().to_vec());
        self.opened = Opened {
            listener: Some(listener),
            endpoint,
        };
        Ok(Place {
            address,
            endpoint: name,
            machine: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
        })
    }

    fn prepare<'a>(&'a mut self, step: &'a Step) -> Result<Prepared<'a>> {
        let listener = self.opened.listener.as_ref();
        match step {
            Step::Listen { .. } => Ok(Box::new(|| Ok(super::wire::Done::default()))),
            Step::Streams {
                to,
                from,
                bytes,
                token,
            } => link::streams(listener, to, *from, *bytes, token),
            Step::Echo { to, trips, token } => link::echo(listener, *to, *trips, token),
            Step::Calls {
                places,
                asks,
                trips,
                libfabric,
                secret,
            } => calls::calls(&mut self.opened, places, *asks, *trips, *libfabric, secret),
            Step::Write(data) => {
                data.check()?;
                files::write(data, &mut self.file)
            }
            Step::Publish => Ok(files::publish(&mut self.file)),
            Step::Read(data) => {
                data.check()?;
                files::read(data, false)
            }
            Step::Verify(data) => {
                data.check()?;
                files::read(data, true)
            }
            Step::Mixed(mixed) => {
                mixed.write.check()?;
                mixed.read.check()?;
                mixed::mixed(mixed)
            }
            Step::Barrier { from, times, token } => link::barrier(listener, *from, *times, token),
            Step::Names {
                call,
                directory,
                first,
                files,
            } => Ok(files::names(*call, directory, *first, *files)),
            Step::Directory(path) => Ok(files::make_directory(path)),
            Step::Visibility {
                directory,
                visibility,
            } => Ok(files::set_visibility(directory, visibility)),
            Step::Remove(path) => Ok(files::remove(path)),
            Step::Pin(which) => Ok(self.pinned.pin(&self.task.run_dir, *which)),
        }
    }

    fn spawn(&self, numbers: &[u16]) -> Result<()> {
        let env = Environment::of_process();
        let program = std::env::current_exe().context("finding the weir program")?;
        let library = inject::find_library(&env, &program)?;
        let variables = inject::variables(&self.task.run_dir, &library, &env)?;
        for number in numbers {
            let task = Task {
                number: *number,
                ..self.task.clone()
            };
            let mut child = task.start(&variables)?;
            std::thread::spawn(move || child.wait());
        }
        Ok(())
    }
}
