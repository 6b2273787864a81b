//! Requests and replies of 64 bytes over weir's fabric, between two workers that do nothing else:
//! what a server does with each is left out, and both ends sleep while they wait.
//!
//! Each has the fabric in the shape that servers have it in: TCP's sockets are turned over by who
//! asks and answers ([`weir_fabric::Driven`]), libfabric's endpoint by a thread.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::bulk::NoShelf;
use weir_fabric::ofi::{Bound, Choice};
use weir_fabric::{Driven, Event, Fabric, Libfabric, Membership, Message, Timing};

use super::files::{done, Prepared};
use super::link::SMALL;
use super::wire::{Done, Place};

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(20);

/// An endpoint of libfabric at this node's address.
pub fn open_libfabric(address: IpAddr) -> Result<Bound> {
    let choice = Choice {
        provider: None,
        source: SocketAddr::new(address, 0),
        reads: true,
    };
    Bound::open(&choice).context("libfabric")
}

/// What a worker opened by [`super::wire::Step::Listen`].
#[derive(Debug, Default)]
pub struct Opened {
    /// TCP.
    pub listener: Option<TcpListener>,
    /// libfabric, if that was asked for.
    pub endpoint: Option<Bound>,
}

/// One end of a fabric of two.
enum End {
    /// It turns its sockets over itself.
    Tcp(Box<Driven>),
    /// A thread does, and wakes it.
    Libfabric(Libfabric, Receiver<()>),
}

impl End {
    fn start(
        opened: &mut Opened,
        places: &[Place; 2],
        rank: u16,
        libfabric: bool,
        secret: Secret,
    ) -> Result<End> {
        let membership = Membership {
            instance: InstanceId([0; 16]),
            secret,
            rank: Rank(rank),
            incarnation: 1,
            addresses: places.iter().map(|place| place.address).collect(),
        };
        let timing = Timing::default();
        if !libfabric {
            let listener = opened.listener.take().context("nothing listens")?;
            let driven = Driven::start(listener, membership, timing, Arc::new(NoShelf))?;
            return Ok(End::Tcp(Box::new(driven)));
        }
        let names = places.iter().map(|place| place.endpoint.clone());
        let names: Option<Vec<Vec<u8>>> = names.collect();
        let names = names.context("an end has no endpoint of libfabric")?;
        let bound = opened.endpoint.take().context("no endpoint is open")?;
        let (wake, woken) = channel();
        let wake = move || {
            let _ = wake.send(());
        };
        let fabric = Libfabric::start(bound, membership, names, timing, wake)?;
        Ok(End::Libfabric(fabric, woken))
    }

    fn fabric(&self) -> &dyn Fabric {
        match self {
            End::Tcp(fabric) => fabric.as_ref(),
            End::Libfabric(fabric, _) => fabric,
        }
    }

    /// Sends what is to be sent, and sleeps until something may have happened; false if nothing did
    /// for so long.
    fn wait(&self, most: Duration) -> Result<bool> {
        match self {
            End::Tcp(fabric) => {
                let begin = Instant::now();
                fabric.wait(Some(most));
                Ok(begin.elapsed() < most)
            }
            End::Libfabric(_, woken) => match woken.recv_timeout(most) {
                Ok(()) => Ok(true),
                Err(RecvTimeoutError::Timeout) => Ok(false),
                Err(RecvTimeoutError::Disconnected) => bail!("the fabric has ended"),
            },
        }
    }

    fn event(&self) -> Option<Event> {
        match self {
            End::Tcp(fabric) => fabric.next_event(),
            End::Libfabric(fabric, _) => fabric.poll(),
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
pub fn calls<'a>(
    opened: &mut Opened,
    places: &[Place; 2],
    asks: bool,
    trips: u32,
    libfabric: bool,
    secret: &str,
) -> Result<Prepared<'a>> {
    let secret = Secret::try_from(secret.to_owned()).ok();
    let secret = secret.context("that is no secret")?;
    let end = End::start(opened, places, u16::from(!asks), libfabric, secret)?;
    Ok(Box::new(move || {
        let act = if asks { End::ask } else { End::answer };
        act(&end)?;
        let begin = Instant::now();
        for _ in 0..trips {
            act(&end)?;
        }
        let took = Done {
            bytes: 2 * SMALL as u64 * u64::from(trips),
            calls: u64::from(trips),
            ..done(begin, 0, 0)
        };
        if !asks {
            // The last reply is on its way until who asked has it and leaves.
            let _ = end.wait(LINGER);
        }
        Ok(took)
    }))
}

/// How long who answered stays at most.
const LINGER: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn two_ends_that_know_the_secret_call() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let open = || Opened {
            listener: Some(super::super::link::listen(local).unwrap()),
            endpoint: None,
        };
        let (mut near, mut far) = (open(), open());
        let place = |opened: &Opened| Place {
            address: opened.listener.as_ref().unwrap().local_addr().unwrap(),
            endpoint: None,
            machine: String::new(),
        };
        let places = [place(&near), place(&far)];
        let secret = String::from(Secret::new([4; 32]));
        let there = places.clone();
        let known = secret.clone();
        let answers = std::thread::spawn(move || {
            calls(&mut far, &there, false, 10, false, &known).unwrap()()
        });
        let asked = calls(&mut near, &places, true, 10, false, &secret).unwrap()().unwrap();
        assert_eq!((asked.calls, asked.bytes), (10, 1280));
        assert_eq!(answers.join().unwrap().unwrap().calls, 10);
        assert!(
            calls(&mut near, &places, true, 1, false, "no").is_err(),
            "that is no secret"
        );
    }
}
