//! The gate for workers on other nodes: a listener that lets in those that are expected and know the
//! run's secret, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use socket2::{SockRef, TcpKeepalive};
use weir_bench::{WorkerId, Workers};
use weir_core::roster::{InstanceId, Secret};
use weir_instance::errln;
use weir_launch::random::random;
use weir_launch::workers::{WorkerInvitation, WorkerProgram};

/// How long a step may take.
const STEP_MOST: Duration = Duration::from_secs(300);

/// Numbers that may come, and their nodes.
type ExpectedWorkers = Arc<Mutex<BTreeMap<WorkerId, String>>>;

/// A worker that was let in.
struct ArrivedWorker {
    id: WorkerId,
    node: String,
    stream: TcpStream,
}

/// The gate for workers.
pub struct WorkerGate {
    invitation: WorkerInvitation,
    expected: ExpectedWorkers,
    arrivals: Receiver<ArrivedWorker>,
    patience: Duration,
    /// Strangers that were turned away.
    turned_away: Arc<AtomicU64>,
}

impl WorkerGate {
    /// Listens at `address`; workers may take `patience` to come.
    pub fn listen(address: IpAddr, patience: Duration) -> Result<WorkerGate> {
        let listener = TcpListener::bind((address, 0)).context("listening for workers")?;
        let invitation = WorkerInvitation {
            program: WorkerProgram::Bench,
            address: listener.local_addr()?,
            run: InstanceId(random()?),
            secret: Secret::new(random()?),
        };
        let expected = ExpectedWorkers::default();
        let turned_away = Arc::new(AtomicU64::new(0));
        let (tell, arrivals) = channel();
        let (known, names, away) = (
            invitation.clone(),
            Arc::clone(&expected),
            Arc::clone(&turned_away),
        );
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let (known, names, tell) = (known.clone(), Arc::clone(&names), tell.clone());
                let away = Arc::clone(&away);
                // Each in a thread: one that says nothing holds up nobody.
                std::thread::spawn(move || match let_in(stream, &known, &names) {
                    Ok(arrival) => drop(tell.send(arrival)),
                    Err(e) => {
                        away.fetch_add(1, Ordering::Relaxed);
                        errln!("weir: turned away a connection: {e:#}");
                    }
                });
            }
        };
        std::thread::Builder::new()
            .name("weir-gate".into())
            .spawn(accept)?;
        Ok(WorkerGate {
            invitation,
            expected,
            arrivals,
            patience,
            turned_away,
        })
    }

    /// The address and the secret that workers are given.
    pub fn invitation(&self) -> &WorkerInvitation {
        &self.invitation
    }

    /// How many connections were turned away.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Names a worker that may come, before it is started.
    pub fn expect(&self, id: WorkerId, node: &str) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        expected.insert(id, node.to_owned());
    }

    /// Waits until these have come, and adds them to the workers.
    pub fn gather(&self, workers: &mut Workers, ids: &[WorkerId]) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        let mut missing: BTreeSet<WorkerId> = ids.iter().copied().collect();
        missing.retain(|id| !workers.has(*id));
        while let Some(first) = missing.first() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(arrival) = self.arrivals.recv_timeout(left) else {
                let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
                let node = expected.get(first).cloned().unwrap_or_default();
                bail!(
                    "no worker came from {node} in {} s (launch.deadline_s); agent.log in the run \
                     directory there may say why",
                    self.patience.as_secs()
                );
            };
            keep_alive(&arrival.stream)?;
            arrival.stream.set_read_timeout(Some(STEP_MOST))?;
            missing.remove(&arrival.id);
            workers.add(arrival.id, arrival.node, Box::new(arrival.stream));
        }
        Ok(())
    }
}

/// Sends at once what is sent, and finds out within some seconds that the other node is gone.
pub fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(Duration::from_secs(5));
    let probes = probes.with_interval(Duration::from_secs(2)).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Greets a connection: it must be of a worker that is expected, each once.
fn let_in(
    stream: TcpStream,
    invitation: &WorkerInvitation,
    expected: &ExpectedWorkers,
) -> Result<ArrivedWorker> {
    let mut node = None;
    let id = invitation.known().let_in(&stream, |id| {
        let mut expected = expected.lock().unwrap_or_else(PoisonError::into_inner);
        node = expected.remove(&id);
        node.is_some()
    })?;
    let node = node.unwrap_or_default();
    Ok(ArrivedWorker { id, node, stream })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;
    use weir_cluster::guard;

    fn gate(patience_ms: u64) -> WorkerGate {
        let patience = Duration::from_millis(patience_ms);
        WorkerGate::listen(Ipv4Addr::LOCALHOST.into(), patience).unwrap()
    }

    fn turned_away(gate: &WorkerGate, count: u64) {
        guard::wait_until("connections are turned away", || {
            gate.turned_away() >= count
        });
    }

    #[test]
    fn only_who_is_awaited_and_knows_the_secret_is_let_in_once() {
        let gate = gate(10_000);
        let invitation = gate.invitation.clone();
        // Somebody who found the port.
        let mut stranger = TcpStream::connect(invitation.address).unwrap();
        stranger.write_all(&[0xff; 66]).unwrap();
        turned_away(&gate, 1);
        let mut more = Vec::new();
        stranger.read_to_end(&mut more).unwrap_or_default();
        assert_eq!(more.len(), 32, "nothing but the challenge is said to it");
        // Another run's worker.
        let other = WorkerInvitation {
            secret: Secret::new([1; 32]),
            ..invitation.clone()
        };
        gate.expect(3, "n3");
        assert!(other.known().come(invitation.address, 3).is_err());
        turned_away(&gate, 2);
        // One that nobody asked for.
        assert!(invitation.known().come(invitation.address, 4).is_err());
        turned_away(&gate, 3);
        let kept = invitation.known().come(invitation.address, 3).unwrap();
        gate.gather(&mut Workers::default(), &[3]).unwrap();
        // Another under its name.
        assert!(invitation.known().come(invitation.address, 3).is_err());
        drop(kept);
    }

    #[test]
    fn one_that_does_not_come_is_named() {
        let gate = gate(10);
        gate.expect(3, "n3");
        let error = gate
            .gather(&mut Workers::default(), &[3])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no worker came from n3"), "{error}");
    }
}
