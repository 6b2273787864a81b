//! The workers of a run, seen from who measures: let in, told what to do, heard.
//!
//! A group of workers does a step together: all prepare, and when all are ready all are told to go.
//! Each takes its own time. A worker that fails, goes away or says nothing ends the run with
//! the name of its node.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use weir_bench::parts::WrongData;
use weir_core::roster::{InstanceId, Secret};
use weir_launch::errand::Errand;
use weir_launch::random::random;

use super::wire::{receive, send, tend, Answer, Done, Order, Place, Step};

/// How long a step may take.
const STEP_MOST: Duration = Duration::from_secs(300);

/// A worker's number.
pub type Hand = u16;

/// What a group did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Each, in the order of the group.
    pub each: Vec<Done>,
}

impl Outcome {
    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.each.iter().map(|done| done.bytes).sum()
    }

    /// The slowest, by its own clock, s.
    pub fn slowest(&self) -> f64 {
        self.each
            .iter()
            .map(|done| done.seconds)
            .fold(0.0, f64::max)
    }
}

struct Connection {
    node: String,
    from: BufReader<TcpStream>,
    to: TcpStream,
}

/// Numbers that may come, and their nodes.
type Awaited = Arc<Mutex<BTreeMap<Hand, String>>>;

/// All workers.
pub struct Hands {
    errand: Errand,
    awaited: Awaited,
    came: Receiver<(Hand, String, TcpStream)>,
    connections: BTreeMap<Hand, Connection>,
    patience: Duration,
    /// Strangers that were turned away.
    turned_away: Arc<AtomicU64>,
}

impl Hands {
    /// Listens at `address`; workers may take `patience` to come.
    pub fn listen(address: IpAddr, patience: Duration) -> Result<Hands> {
        let listener = TcpListener::bind((address, 0)).context("listening for workers")?;
        let errand = Errand {
            address: listener.local_addr()?,
            run: InstanceId(random()?),
            secret: Secret::new(random()?),
        };
        let awaited = Awaited::default();
        let turned_away = Arc::new(AtomicU64::new(0));
        let (tell, came) = channel();
        let (known, names, away) = (
            errand.clone(),
            Arc::clone(&awaited),
            Arc::clone(&turned_away),
        );
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let (known, names, tell) = (known.clone(), Arc::clone(&names), tell.clone());
                let away = Arc::clone(&away);
                // Each in a thread: one that says nothing holds up nobody.
                std::thread::spawn(move || match let_in(&stream, &known, &names) {
                    Ok((number, node)) => drop(tell.send((number, node, stream))),
                    Err(e) => {
                        away.fetch_add(1, Ordering::Relaxed);
                        eprintln!("weir: turned away a connection: {e:#}");
                    }
                });
            }
        };
        std::thread::Builder::new()
            .name("weir-hands".into())
            .spawn(accept)?;
        Ok(Hands {
            errand,
            awaited,
            came,
            connections: BTreeMap::new(),
            patience,
            turned_away,
        })
    }

    /// What workers are told to find this.
    pub fn errand(&self) -> &Errand {
        &self.errand
    }

    /// How many connections were turned away.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Says who may come, before they are started.
    pub fn expect(&self, number: Hand, node: &str) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.insert(number, node.to_owned());
    }

    /// Waits until these have come.
    pub fn gather(&mut self, numbers: &[Hand]) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        let mut missing: BTreeSet<Hand> = numbers.iter().copied().collect();
        missing.retain(|number| !self.connections.contains_key(number));
        while let Some(first) = missing.first() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, node, stream)) = self.came.recv_timeout(left) else {
                let awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
                let node = awaited.get(first).cloned().unwrap_or_default();
                bail!(
                    "no worker came from {node} in {} s (launch.deadline_s); agent.log in the run \
                     directory there may say why",
                    self.patience.as_secs()
                );
            };
            tend(&stream)?;
            stream.set_read_timeout(Some(STEP_MOST))?;
            missing.remove(&number);
            let from = BufReader::new(stream.try_clone()?);
            let to = stream;
            self.connections
                .insert(number, Connection { node, from, to });
        }
        Ok(())
    }

    /// Has `parent` start processes with the client injected, and waits for them.
    pub fn spawn(&mut self, parent: Hand, numbers: &[Hand]) -> Result<()> {
        let node = self.connection(parent)?.node.clone();
        for number in numbers {
            self.expect(*number, &node);
        }
        self.tell(parent, &Order::Spawn(numbers.to_vec()))?;
        self.ready(parent)?;
        self.gather(numbers)
    }

    /// Has each do its step, all at once.
    pub fn run(&mut self, group: &[(Hand, Step)]) -> Result<Outcome> {
        self.prepare(group)?;
        self.go(group)
    }

    /// Has each get ready.
    pub fn prepare(&mut self, group: &[(Hand, Step)]) -> Result<()> {
        for (hand, step) in group {
            self.tell(*hand, &Order::Prepare(step.clone()))?;
        }
        for (hand, _) in group {
            self.ready(*hand)?;
        }
        Ok(())
    }

    /// Has each do what it is ready for.
    pub fn go(&mut self, group: &[(Hand, Step)]) -> Result<Outcome> {
        for (hand, _) in group {
            self.tell(*hand, &Order::Go)?;
        }
        let mut each = Vec::with_capacity(group.len());
        for (hand, _) in group {
            match self.hear(*hand)? {
                Answer::Done(done) => each.push(done),
                other => bail!("a worker said {other:?} at its end"),
            }
        }
        Ok(Outcome { each })
    }

    /// Has a worker listen.
    pub fn listen_at(&mut self, hand: Hand, libfabric: bool) -> Result<Place> {
        self.tell(hand, &Order::Prepare(Step::Listen { libfabric }))?;
        let place = self.ready(hand)?.context("a worker says no place")?;
        self.tell(hand, &Order::Go)?;
        self.hear(hand)?;
        Ok(place)
    }

    fn connection(&mut self, hand: Hand) -> Result<&mut Connection> {
        let connection = self.connections.get_mut(&hand);
        connection.with_context(|| format!("there is no worker {hand}"))
    }

    fn tell(&mut self, hand: Hand, order: &Order) -> Result<()> {
        let connection = self.connection(hand)?;
        send(&mut connection.to, order)
            .with_context(|| format!("the worker on {} went away", connection.node))
    }

    fn ready(&mut self, hand: Hand) -> Result<Option<Place>> {
        match self.hear(hand)? {
            Answer::Ready(place) => Ok(place),
            other => bail!("a worker said {other:?} before the start"),
        }
    }

    fn hear(&mut self, hand: Hand) -> Result<Answer> {
        let connection = self.connection(hand)?;
        let node = connection.node.clone();
        let answer = receive(&mut connection.from);
        match answer.with_context(|| format!("the worker on {node}"))? {
            Some(Answer::Wrong(what)) => bail!(WrongData(format!("{node}: {what}"))),
            Some(Answer::Failed(why)) => bail!("{node}: {why}"),
            Some(answer) => Ok(answer),
            None => bail!("the worker on {node} went away"),
        }
    }
}

/// Greets who connects: one of those awaited, each once.
fn let_in(stream: &TcpStream, errand: &Errand, awaited: &Awaited) -> Result<(Hand, String)> {
    let mut node = None;
    let number = errand.known().let_in(stream, |number| {
        let mut awaited = awaited.lock().unwrap_or_else(PoisonError::into_inner);
        node = awaited.remove(&number);
        node.is_some()
    })?;
    Ok((number, node.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    fn hands(patience_ms: u64) -> Hands {
        let patience = Duration::from_millis(patience_ms);
        Hands::listen(Ipv4Addr::LOCALHOST.into(), patience).unwrap()
    }

    /// A worker that has come, and its connection.
    fn with_one(hands: &mut Hands) -> TcpStream {
        hands.expect(3, "n3");
        let stream = hands.errand.known().come(hands.errand.address, 3).unwrap();
        hands.gather(&[3]).unwrap();
        stream
    }

    fn turned_away(hands: &Hands, count: u64) {
        let begin = Instant::now();
        while hands.turned_away() < count {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }

    #[test]
    fn only_who_is_awaited_and_knows_the_secret_is_let_in_once() {
        let mut hands = hands(10_000);
        let errand = hands.errand.clone();
        // Somebody who found the port.
        let mut stranger = TcpStream::connect(errand.address).unwrap();
        stranger.write_all(&[0xff; 66]).unwrap();
        turned_away(&hands, 1);
        let mut more = Vec::new();
        stranger.read_to_end(&mut more).unwrap_or_default();
        assert_eq!(more.len(), 32, "nothing but the challenge is said to it");
        // Another run's worker.
        let other = Errand {
            secret: Secret::new([1; 32]),
            ..errand.clone()
        };
        hands.expect(3, "n3");
        assert!(other.known().come(errand.address, 3).is_err());
        turned_away(&hands, 2);
        // One that nobody asked for.
        assert!(errand.known().come(errand.address, 4).is_err());
        turned_away(&hands, 3);
        let kept = errand.known().come(errand.address, 3).unwrap();
        hands.gather(&[3]).unwrap();
        // Another under its name.
        assert!(errand.known().come(errand.address, 3).is_err());
        drop(kept);
    }

    #[test]
    fn one_that_does_not_come_is_named() {
        let mut hands = hands(10);
        hands.expect(3, "n3");
        let error = hands.gather(&[3]).unwrap_err().to_string();
        assert!(error.contains("no worker came from n3"), "{error}");
    }

    #[test]
    fn one_that_goes_away_or_talks_nonsense_ends_the_run() {
        for (says, expected) in [
            (&b""[..], "went away"),
            (b"hello\n", "makes no sense"),
            (b"\"go\"\n", "makes no sense"),
            (
                b"{\"done\":{\"seconds\":1,\"bytes\":-1,\"calls\":0}}\n",
                "makes no sense",
            ),
            (
                b"{\"done\":{\"seconds\":1,\"bytes\":1,\"calls\":0}}\n",
                "before the start",
            ),
            (b"{\"failed\":\"no such file\"}\n", "n3: no such file"),
            (b"{\"ready\":null", "cut off"),
        ] {
            let mut hands = hands(10_000);
            let mut stream = with_one(&mut hands);
            stream.write_all(says).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let error = hands.run(&[(3, Step::Publish)]).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
