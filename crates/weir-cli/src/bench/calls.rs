//! Requests and replies of 64 bytes over weir's fabric, between two workers that do nothing else:
//! what a server does with each is left out, and both ends sleep while they wait.
//!
//! Each has the fabric in the shape that servers have it in: TCP's sockets are turned over by who
//! asks and answers ([`weir_fabric::PolledTcp`]), libfabric's endpoint by a thread.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use weir_bench::{now_ns, timing_since, FabricCalls, Prepared, SMALL};
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::bulk::EmptyLogSource;
use weir_fabric::ofi::{BoundEndpoint, EndpointOptions};
use weir_fabric::{Event, Fabric, Libfabric, Membership, Message, PolledTcp, Timing};

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(20);

/// An endpoint of libfabric at this node's address.
pub fn open_libfabric(address: IpAddr) -> Result<BoundEndpoint> {
    let choice = EndpointOptions {
        provider: None,
        source: SocketAddr::new(address, 0),
        reads: true,
    };
    BoundEndpoint::open(&choice).context("libfabric")
}

/// The listener of a worker.
#[derive(Debug, Default)]
pub struct OpenedFabric {
    /// TCP.
    pub listener: Option<TcpListener>,
    /// libfabric, if that was asked for.
    pub endpoint: Option<BoundEndpoint>,
}

/// One end of a fabric of two.
enum FabricEnd {
    /// It turns its sockets over itself.
    Tcp(Box<PolledTcp>),
    /// A thread does, and wakes it.
    Libfabric(Libfabric, Receiver<()>),
}

impl FabricEnd {
    fn start(opened: &mut OpenedFabric, calls: &FabricCalls) -> Result<FabricEnd> {
        let endpoints = &calls.endpoints;
        let membership = Membership {
            instance: InstanceId([0; 16]),
            secret: Secret::new(calls.secret),
            rank: Rank(u16::from(!calls.asks)),
            incarnation: 1,
            addresses: endpoints.iter().map(|one| one.address).collect(),
        };
        let timing = Timing::default();
        if !calls.libfabric {
            let listener = opened.listener.take().context("nothing listens")?;
            let driven = PolledTcp::start(listener, membership, timing, Arc::new(EmptyLogSource))?;
            return Ok(FabricEnd::Tcp(Box::new(driven)));
        }
        let names = endpoints.iter().map(|one| one.endpoint.clone());
        let names: Option<Vec<Vec<u8>>> = names.collect();
        let names = names.context("an end has no endpoint of libfabric")?;
        let bound = opened.endpoint.take().context("no endpoint is open")?;
        let (wake, woken) = channel();
        let wake = move || {
            let _ = wake.send(());
        };
        let fabric = Libfabric::start(bound, membership, names, timing, wake)?;
        Ok(FabricEnd::Libfabric(fabric, woken))
    }

    fn fabric(&self) -> &dyn Fabric {
        match self {
            FabricEnd::Tcp(fabric) => fabric.as_ref(),
            FabricEnd::Libfabric(fabric, _) => fabric,
        }
    }

    /// Sends what is to be sent, and sleeps until something may have happened; false if nothing did
    /// for so long.
    fn wait(&self, most: Duration) -> Result<bool> {
        match self {
            FabricEnd::Tcp(fabric) => {
                let begin = Instant::now();
                fabric.wait(Some(most));
                Ok(begin.elapsed() < most)
            }
            FabricEnd::Libfabric(_, woken) => match woken.recv_timeout(most) {
                Ok(()) => Ok(true),
                Err(RecvTimeoutError::Timeout) => Ok(false),
                Err(RecvTimeoutError::Disconnected) => bail!("the fabric has ended"),
            },
        }
    }

    fn event(&self) -> Option<Event> {
        match self {
            FabricEnd::Tcp(fabric) => fabric.next_event(),
            FabricEnd::Libfabric(fabric, _) => fabric.poll(),
        }
    }

    fn next(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.event() {
                return Ok(event);
            }
            ensure!(self.wait(PATIENCE)?, "nothing came over the fabric");
        }
    }

    fn ask(&self) -> Result<()> {
        let body = vec![1; SMALL];
        let bulk = Vec::new();
        self.fabric().call(Rank(1), Message { body, bulk });
        loop {
            if let Event::Done(_, answer) = self.next()? {
                ensure!(answer?.body.len() == SMALL, "an answer of another length");
                return Ok(());
            }
        }
    }

    fn answer(&self) -> Result<()> {
        loop {
            if let Event::Request(token, message) = self.next()? {
                self.fabric().reply(token, message);
                return Ok(());
            }
        }
    }
}

/// Asks `trips` times, or answers as often; once more before, which connects.
pub fn calls<'a>(opened: &mut OpenedFabric, calls: &FabricCalls) -> Result<Prepared<'a>> {
    let end = FabricEnd::start(opened, calls)?;
    let (asks, trips) = (calls.asks, calls.trips);
    Ok(Box::new(move || {
        let act = if asks {
            FabricEnd::ask
        } else {
            FabricEnd::answer
        };
        act(&end)?;
        let start_ns = now_ns();
        for _ in 0..trips {
            act(&end)?;
        }
        let bytes = 2 * SMALL as u64 * u64::from(trips);
        let took = timing_since(start_ns, bytes, u64::from(trips));
        if !asks {
            // The last reply is on its way until the end that asked has it and leaves.
            let _ = end.wait(LINGER);
        }
        Ok(took)
    }))
}

/// How long the end that answered stays at most.
const LINGER: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use weir_bench::WorkerEndpoint;

    #[test]
    fn two_ends_that_know_the_secret_call() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let open = || OpenedFabric {
            listener: Some(weir_bench::listen(local).unwrap()),
            endpoint: None,
        };
        let (mut near, mut far) = (open(), open());
        let endpoint = |opened: &OpenedFabric| WorkerEndpoint {
            address: opened.listener.as_ref().unwrap().local_addr().unwrap(),
            endpoint: None,
            machine: String::new(),
        };
        let asking = FabricCalls {
            endpoints: [endpoint(&near), endpoint(&far)],
            asks: true,
            trips: 10,
            libfabric: false,
            secret: [4; 32],
        };
        let answering = FabricCalls {
            asks: false,
            ..asking.clone()
        };
        let answers = std::thread::spawn(move || calls(&mut far, &answering).unwrap()());
        let asked = calls(&mut near, &asking).unwrap()().unwrap();
        assert_eq!((asked.ops, asked.bytes), (10, 1280));
        assert_eq!(answers.join().unwrap().unwrap().ops, 10);
    }
}
