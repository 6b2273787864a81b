//! The effects that faults may have on calls, and those that they may not have.

use std::collections::BTreeMap;

use super::*;

const TIMING: Timing = Timing {
    deadline: Duration::from_secs(30),
    give_up: Duration::from_millis(1500),
    handshake: Duration::from_secs(2),
};

const STORM: NetworkFaults = NetworkFaults {
    delay: (Duration::from_micros(10), Duration::from_millis(20)),
    breaks_per_mille: 30,
    notice: Duration::from_millis(20),
    twice_per_mille: 100,
    overtakes_per_mille: 100,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Two servers, of which the second answers each call with the call's own message.
struct Pair {
    network: Network,
    asker: SimulatedEndpoint,
    echo: Option<SimulatedEndpoint>,
    asked: BTreeMap<Vec<u8>, u32>,
    ended: BTreeMap<CallId, Result<Message, CallError>>,
    lost: Vec<Duration>,
}

impl Pair {
    fn new(faults: NetworkFaults, seed: u64) -> Pair {
        let network = Network::new(2, TIMING, faults, seed);
        Pair {
            asker: network.start(Rank(0), 1),
            echo: Some(network.start(Rank(1), 1)),
            network,
            asked: BTreeMap::new(),
            ended: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    fn ask(&self, number: u64) -> CallId {
        let body = number.to_le_bytes().to_vec();
        let bulk = Vec::new();
        self.asker.call(Rank(1), Message { body, bulk })
    }

    fn run_until(&mut self, at: Duration) {
        loop {
            while let Some(event) = self.echo.as_ref().and_then(SimulatedEndpoint::poll) {
                if let Event::Request(token, message) = event {
                    *self.asked.entry(message.body.clone()).or_default() += 1;
                    self.echo.as_ref().unwrap().reply(token, message);
                }
            }
            while let Some(event) = self.asker.poll() {
                match event {
                    Event::Done(id, how) => assert!(self.ended.insert(id, how).is_none()),
                    Event::PeerLost(_) => self.lost.push(self.network.now()),
                    Event::Request(..) => panic!("nobody asks"),
                }
            }
            match self.network.due().filter(|due| *due <= at) {
                Some(due) => self.network.run_until(due),
                None => return self.network.run_until(at),
            }
        }
    }
}

#[test]
fn in_any_weather_each_call_acts_once_and_has_its_own_answer() {
    let mut all = NetworkCounts::default();
    for seed in 0..50 {
        let mut pair = Pair::new(STORM, seed);
        let mut calls = Vec::new();
        for number in 0..100_u64 {
            calls.push((pair.ask(number), number));
            let then = pair.network.now() + ms(number % 30);
            pair.run_until(then);
        }
        pair.run_until(ms(60_000));
        for (id, number) in calls {
            let answer = pair.ended.remove(&id).expect("every call ends");
            assert_eq!(answer.unwrap().body, number.to_le_bytes(), "seed {seed}");
        }
        assert!(pair.asked.values().all(|times| *times == 1), "seed {seed}");
        let count = pair.network.count();
        all.broken += count.broken;
        all.twice += count.twice;
        all.overtook += count.overtook;
    }
    assert!(all.broken > 100 && all.twice > 100 && all.overtook > 100);
}

#[test]
fn a_cut_shorter_than_the_silence_delays_and_a_longer_one_breaks() {
    let mut pair = Pair::new(NetworkFaults::NONE, 1);
    let first = pair.ask(1);
    pair.run_until(ms(10));
    assert!(pair.ended.remove(&first).unwrap().is_ok());
    pair.network.cut(Rank(0), Rank(1));
    let held = pair.ask(2);
    pair.run_until(ms(1500));
    assert_eq!(pair.ended.len(), 0);
    pair.network.heal(Rank(0), Rank(1));
    pair.run_until(ms(1600));
    assert!(pair.ended.remove(&held).unwrap().is_ok());
    pair.network.cut(Rank(0), Rank(1));
    let lost = pair.ask(3);
    pair.run_until(ms(20_000));
    assert_eq!(pair.ended.remove(&lost), Some(Err(CallError::Unreachable)));
    assert_eq!(pair.lost.len(), 1);
    pair.network.heal(Rank(0), Rank(1));
    let again = pair.ask(4);
    pair.run_until(ms(30_000));
    assert!(pair.ended.remove(&again).unwrap().is_ok());
}

#[test]
fn a_process_that_dies_is_noticed_at_once_and_a_node_after_the_silence() {
    for (node, least, most) in [(false, 0, 2_000), (true, 2_000, 6_000)] {
        let mut pair = Pair::new(NetworkFaults::NONE, 2);
        pair.ask(1);
        pair.run_until(ms(100));
        if node {
            pair.network.vanish(Rank(1));
        }
        pair.echo = None;
        let asked = pair.ask(2);
        pair.run_until(ms(100 + least));
        assert_eq!(pair.lost.len(), 0);
        pair.run_until(ms(100 + most));
        assert_eq!(pair.ended[&asked], Err(CallError::Unreachable));
        assert_eq!(pair.lost.len(), 1);
        pair.echo = Some(pair.network.start(Rank(1), 2));
        let asked = pair.ask(3);
        pair.run_until(ms(200 + most));
        assert!(pair.ended[&asked].is_ok());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut pair = Pair::new(STORM, seed);
        for number in 0..50 {
            pair.ask(number);
            pair.run_until(ms(number * 7));
        }
        pair.run_until(ms(60_000));
        (pair.network.count(), format!("{:?}", pair.ended))
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).0, run(4).0);
}
