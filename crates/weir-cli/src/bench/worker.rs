//! `weir worker`: one process of `weir bench --hosts` on a node. Started by the agent of its
//! server, it moves plain bytes and starts more of itself with the client injected, which work on
//! files; all do what they are told over a connection of their own.

use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use anyhow::{Context, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use weir_bench::{FabricCalls, Prepared, WorkerBackend, WorkerEndpoint};
use weir_config::Environment;
use weir_core::types::Rank;
use weir_instance::roster;
use weir_launch::server::read_line;
use weir_launch::workers::Task;

use super::calls::{self, OpenedFabric};
use super::gate::keep_alive;
use super::pin::ProcessorSet;
use crate::inject::{self, InjectedLibraries};

/// Does what the task on standard input says, until the connection ends.
pub fn run() -> Result<()> {
    // Not to outlive what started it.
    set_pdeathsig(Signal::SIGKILL)?;
    let task: Task = read_line(&mut BufReader::new(std::io::stdin()))
        .context("weir worker is started by weir bench --hosts")?;
    let stream = task
        .invitation
        .known()
        .come(task.invitation.address, task.number)
        .context("coming to weir bench")?;
    keep_alive(&stream)?;
    let mut host = ServerBackend {
        address: address(&task)?,
        task,
        opened: OpenedFabric::default(),
        pinned: ProcessorSet::new()?,
    };
    weir_bench::serve(&mut BufReader::new(&stream), &mut &stream, &mut host)
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

/// The server beside this worker, and its network.
struct ServerBackend {
    task: Task,
    address: IpAddr,
    opened: OpenedFabric,
    pinned: ProcessorSet,
}

impl WorkerBackend for ServerBackend {
    fn spawn(&mut self, numbers: &[u16]) -> Result<()> {
        let env = Environment::of_process();
        let program = std::env::current_exe().context("finding the weir program")?;
        let library = InjectedLibraries::client_alone(inject::find_library(&env, &program)?);
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

    fn listen(&mut self, libfabric: bool) -> Result<WorkerEndpoint> {
        let listener = weir_bench::listen(self.address)?;
        let address = listener.local_addr()?;
        let endpoint = libfabric.then(|| calls::open_libfabric(self.address));
        let endpoint = endpoint.transpose()?;
        let name = endpoint.as_ref().map(|bound| bound.name().to_vec());
        self.opened = OpenedFabric {
            listener: Some(listener),
            endpoint,
        };
        Ok(WorkerEndpoint {
            address,
            endpoint: name,
            machine: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
        })
    }

    fn listener(&self) -> Option<&TcpListener> {
        self.opened.listener.as_ref()
    }

    fn calls<'a>(&'a mut self, calls: &'a FabricCalls) -> Result<Prepared<'a>> {
        calls::calls(&mut self.opened, calls)
    }

    fn pin(&mut self, processor: Option<usize>) -> Result<Prepared<'_>> {
        Ok(self.pinned.pin(&self.task.run_dir, processor))
    }
}
