//! Servers over loopback: calls, bytes, deadlines, kills, restarts, strangers.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::frame::{Greeting, Head, Kind, VERSION};
use weir_fabric::{CallId, Event, Lost, Membership, Message, Tcp, Timing, Token};

const TIMING: Timing = Timing {
    deadline: Duration::from_secs(20),
    give_up: Duration::from_millis(400),
    handshake: Duration::from_millis(400),
};

struct End {
    tcp: Tcp,
    woken: Receiver<()>,
    done: HashMap<CallId, Result<Message, Lost>>,
    lost: Vec<Rank>,
}

fn listeners(count: u16) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let all: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = all.iter().map(|l| l.local_addr().unwrap()).collect();
    (all, addresses)
}

fn membership(rank: u16, incarnation: u64, addresses: &[SocketAddr]) -> Membership {
    Membership {
        instance: InstanceId([9; 16]),
        secret: Secret::new([1; 32]),
        rank: Rank(rank),
        incarnation,
        addresses: addresses.to_vec(),
    }
}

impl End {
    fn start(listener: TcpListener, membership: Membership, timing: Timing) -> End {
        let (wake, woken) = channel();
        let tcp = Tcp::start(listener, membership, timing, move || {
            let _ = wake.send(());
        })
        .unwrap();
        End {
            tcp,
            woken,
            done: HashMap::new(),
            lost: Vec::new(),
        }
    }

    /// Takes in what happened; requests are given to `serve`.
    fn take(&mut self, serve: &mut dyn FnMut(&Tcp, Token, Message)) -> bool {
        let mut any = false;
        while let Some(event) = self.tcp.poll() {
            any = true;
            match event {
                Event::Request(token, message) => serve(&self.tcp, token, message),
                Event::Done(id, result) => assert!(self.done.insert(id, result).is_none()),
                Event::PeerLost(rank) => self.lost.push(rank),
            }
        }
        any
    }

    /// Waits for a call's end, serving nothing.
    fn wait(&mut self, id: CallId) -> Result<Message, Lost> {
        loop {
            self.take(&mut |_, _, _| panic!("nobody asks here"));
            if let Some(result) = self.done.remove(&id) {
                return result;
            }
            self.woken.recv_timeout(Duration::from_secs(30)).unwrap();
        }
    }
}

/// A server that answers with what it was asked until it is told to stop.
struct Echo {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<u64>,
}

impl Echo {
    fn start(listener: TcpListener, membership: Membership) -> Echo {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut end = End::start(listener, membership, TIMING);
            let mut served = 0;
            while stopped.try_recv().is_err() {
                end.take(&mut |tcp, token, message| {
                    served += 1;
                    tcp.reply(token, message);
                });
                let _ = end.woken.recv_timeout(Duration::from_millis(5));
            }
            served
        });
        Echo { stop, thread }
    }

    /// Ends it; how many requests it served.
    fn stop(self) -> u64 {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

fn byte(i: usize) -> u8 {
    u8::try_from(i % 251).unwrap()
}

fn message(body: usize, bulk: usize, seed: u8) -> Message {
    let bytes = |n: usize| (seed..=255).cycle().take(n).collect();
    Message {
        body: bytes(body),
        bulk: bytes(bulk),
    }
}

fn pair() -> (End, Echo, Vec<SocketAddr>) {
    let (mut listeners, addresses) = listeners(2);
    let echo = Echo::start(listeners.pop().unwrap(), membership(1, 1, &addresses));
    let mine = membership(0, 1, &addresses);
    (
        End::start(listeners.pop().unwrap(), mine, TIMING),
        echo,
        addresses,
    )
}

#[test]
fn messages_of_all_sizes_come_back() {
    let (mut end, echo, _) = pair();
    for (body, bulk) in [
        (0, 0),
        (1, 0),
        (64, 0),
        (70_000, 1),
        (10, 16 << 20),
        (4 << 20, 4 << 20),
    ] {
        let sent = message(body, bulk, 3);
        let id = end.tcp.call(Rank(1), sent.clone());
        assert_eq!(end.wait(id), Ok(sent), "{body} {bulk}");
    }
    let too_large = end.tcp.call(Rank(1), message(0, (16 << 20) + 1, 0));
    assert_eq!(end.wait(too_large), Err(Lost::Ended));
    assert_eq!(echo.stop(), 6);
}

#[test]
fn many_are_under_way_at_once() {
    let (mut end, echo, _) = pair();
    let calls: Vec<_> = (0..2000_usize)
        .map(|i| {
            let sent = message(8, i % 7 * 1000, byte(i));
            (end.tcp.call(Rank(1), sent.clone()), sent)
        })
        .collect();
    for (id, sent) in calls {
        assert_eq!(end.wait(id), Ok(sent));
    }
    assert_eq!(echo.stop(), 2000, "each acted once");
}

#[test]
fn a_server_that_is_gone_is_said_to_be_and_comes_back_with_a_new_life() {
    let (mut end, echo, addresses) = pair();
    let id = end.tcp.call(Rank(1), message(5, 0, 1));
    end.wait(id).unwrap();
    echo.stop();
    let begin = Instant::now();
    let id = end.tcp.call(Rank(1), message(5, 0, 1));
    assert_eq!(end.wait(id), Err(Lost::Unreachable));
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(end.lost, [Rank(1)]);
    // Once given up, it is not waited for again.
    let begin = Instant::now();
    let id = end.tcp.call(Rank(1), message(5, 0, 1));
    assert_eq!(end.wait(id), Err(Lost::Unreachable));
    assert!(begin.elapsed() < TIMING.give_up);
    let listener = TcpListener::bind(addresses[1]).unwrap();
    let echo = Echo::start(listener, membership(1, 2, &addresses));
    let id = end.tcp.call(Rank(1), message(5, 0, 2));
    assert_eq!(end.wait(id), Ok(message(5, 0, 2)));
    assert_eq!(end.lost, [Rank(1), Rank(1)], "its new life is told");
    echo.stop();
}

#[test]
fn a_call_that_nobody_answers_ends_at_its_deadline() {
    let (mut listeners, addresses) = listeners(2);
    let timing = Timing {
        deadline: Duration::from_millis(300),
        ..TIMING
    };
    let silent = End::start(
        listeners.pop().unwrap(),
        membership(1, 1, &addresses),
        TIMING,
    );
    let mut end = End::start(
        listeners.pop().unwrap(),
        membership(0, 1, &addresses),
        timing,
    );
    let id = end.tcp.call(Rank(1), message(1, 0, 0));
    assert_eq!(end.wait(id), Err(Lost::Deadline));
    let nobody = end.tcp.call(Rank(7), message(1, 0, 0));
    assert_eq!(end.wait(nobody), Err(Lost::Unreachable));
    drop(silent);
}

#[test]
fn a_broken_connection_makes_no_call_act_twice() {
    // Between the two a relay that breaks every connection after some bytes.
    let (mut listeners, mut addresses) = listeners(2);
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let behind = addresses[1];
    let echo = Echo::start(listeners.pop().unwrap(), membership(1, 1, &addresses));
    addresses[1] = relay.local_addr().unwrap();
    std::thread::spawn(move || {
        for (i, near) in relay.incoming().enumerate() {
            let Ok(near) = near else { return };
            let Ok(far) = TcpStream::connect(behind) else {
                return;
            };
            let bytes = 2000 + 3000 * i;
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || {
                    let mut left = bytes;
                    let mut buffer = [0; 500];
                    while left > 0 {
                        match from.read(&mut buffer) {
                            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => {
                                left = left.saturating_sub(n);
                            }
                            _ => break,
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    let timing = Timing {
        give_up: Duration::from_secs(20),
        ..TIMING
    };
    let mut end = End::start(
        listeners.pop().unwrap(),
        membership(0, 1, &addresses),
        timing,
    );
    let calls: Vec<_> = (0..300)
        .map(|i| end.tcp.call(Rank(1), message(40 + i, 0, byte(i))))
        .collect();
    for (i, id) in calls.into_iter().enumerate() {
        assert_eq!(end.wait(id), Ok(message(40 + i, 0, byte(i))));
    }
    assert_eq!(echo.stop(), 300);
}

/// What a stranger sends, and which counter it moves.
#[test]
fn strangers_are_refused_counted_and_disturb_nobody() {
    let (mut listeners, addresses) = listeners(2);
    let server = End::start(
        listeners.pop().unwrap(),
        membership(1, 1, &addresses),
        TIMING,
    );
    let greeting = Greeting {
        version: VERSION,
        instance: InstanceId([9; 16]),
        from: Rank(0),
        to: Rank(1),
        incarnation: 1,
        nonce: [5; 32],
    };
    let hello = |greeting: Greeting| {
        let body = greeting.encode();
        let head = Head {
            kind: Kind::Hello,
            call: CallId(0),
            body: body.len(),
            bulk: 0,
        };
        [&head.encode()[..], &body].concat()
    };
    let proof = {
        let head = Head {
            kind: Kind::Proof,
            call: CallId(0),
            body: 32,
            bulk: 0,
        };
        [&hello(greeting)[..], &head.encode(), &[0; 32]].concat()
    };
    let version = Greeting {
        version: 77,
        ..greeting
    };
    let instance = Greeting {
        instance: InstanceId([8; 16]),
        ..greeting
    };
    let rank = Greeting {
        to: Rank(0),
        ..greeting
    };
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        vec![0xFF; 4096],
        hello(version),
        hello(instance),
        hello(rank),
        proof,
        Vec::new(), // says nothing
    ] {
        let mut stranger = TcpStream::connect(addresses[1]).unwrap();
        stranger.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        // Whatever it is told, it is hung up on.
        stranger
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        match stranger.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    let counters = server.tcp.counters();
    assert_eq!(counters.version, 1);
    assert_eq!(counters.instance, 1);
    assert_eq!(counters.rank, 1);
    assert_eq!(counters.secret, 1);
    assert_eq!(counters.slow, 1);
    assert!(counters.garbage >= 2);
    // Whoever has another secret learns nothing, and is told nothing but that.
    let mut other = membership(0, 1, &addresses);
    other.secret = Secret::new([2; 32]);
    let mut end = End::start(listeners.pop().unwrap(), other, TIMING);
    let id = end.tcp.call(Rank(1), message(1, 0, 0));
    assert_eq!(end.wait(id), Err(Lost::Unreachable));
    assert!(server.tcp.poll().is_none());
}

#[test]
fn sixty_four_servers_ask_each_other() {
    let (listeners, addresses) = listeners(64);
    let mut ends: Vec<End> = (0..)
        .zip(listeners)
        .map(|(rank, listener)| End::start(listener, membership(rank, 1, &addresses), TIMING))
        .collect();
    let mut waiting = 0;
    for from in 0..64_u16 {
        for step in [1, 7, 31] {
            let to = Rank((from + step) % 64);
            ends[usize::from(from)].tcp.call(to, message(100, 10, 1));
            waiting += 1;
        }
    }
    let begin = Instant::now();
    while waiting > 0 {
        for end in &mut ends {
            end.take(&mut |tcp, token, message| tcp.reply(token, message));
            waiting -= end.done.len();
            assert!(end.done.drain().all(|(_, result)| result.is_ok()));
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
}
