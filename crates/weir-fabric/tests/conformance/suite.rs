//! The requirements of every transport. A case is a function of the transport; `cases` lists them
//! all.

use std::time::Duration;

use weir_core::types::Rank;
use weir_fabric::{CallError, Message, Timing};

use crate::servers::{Conduct, Servers, Transport, Wrong, SLOW_TIMING};

/// All cases by name.
pub fn cases<T: Transport>() -> Vec<(&'static str, fn())> {
    let mut cases: Vec<(&'static str, fn())> = vec![
        ("messages_of_all_sizes_come_back", sizes::<T>),
        ("many_calls_are_under_way_at_once", many_at_once::<T>),
        ("two_servers_ask_each_other_at_once", both_ways::<T>),
        ("many_servers_ask_each_other", many_servers::<T>),
        ("who_does_not_answer_costs_the_deadline", deadline::<T>),
        ("who_never_was_there_is_unreachable", nobody::<T>),
        ("who_hangs_holds_nobody_up", hung::<T>),
        ("who_was_killed_is_given_up_and_taken_back", killed::<T>),
        ("who_was_started_anew_is_not_asked_twice", restarted::<T>),
        ("a_life_that_has_ended_is_not_heard", old_life::<T>),
        ("a_slow_answer_is_asked_for_once", slow::<T>),
        ("a_troubled_network_makes_no_call_act_twice", trouble::<T>),
    ];
    if T::OPEN {
        cases.push(("strangers_are_refused_and_counted", strangers::<T>));
    }
    cases
}

fn byte(i: usize) -> u8 {
    u8::try_from(i % 251).unwrap()
}

fn message(body: usize, bulk: usize, seed: usize) -> Message {
    let bytes = |n: usize| (byte(seed)..=255).cycle().take(n).collect();
    Message {
        body: bytes(body),
        bulk: bytes(bulk),
    }
}

/// Returns true if a reply is the expected one; prints a difference without megabytes of bytes.
fn is(reply: &Result<Message, CallError>, expected: &Message) -> bool {
    match reply {
        Ok(reply) if reply == expected => return true,
        Ok(reply) => eprintln!("{} and {} bytes", reply.body.len(), reply.bulk.len()),
        Err(lost) => eprintln!("{lost:?}"),
    }
    false
}

fn sizes<T: Transport>() {
    let mut all = Servers::<T>::run(2);
    let sizes = [
        (0, 0),
        (1, 0),
        (0, 1),
        (64, 0),
        (5000, 5000),
        (70_000, 1),
        (10, 1 << 20),
        (10, (1 << 20) + 1),
        (10, 16 << 20),
        (4 << 20, 4 << 20),
    ];
    for (body, bulk) in sizes {
        let sent = message(body, bulk, 3);
        let reply = all.ask(0, 1, sent.clone());
        assert!(is(&reply, &sent), "{body} {bulk}");
    }
    let too_large = message(0, (16 << 20) + 1, 0);
    assert_eq!(all.ask(0, 1, too_large), Err(CallError::Ended));
    let plain = sizes.iter().filter(|(_, bulk)| *bulk == 0).count();
    assert_eq!(all.server(1).acted, plain);
}

fn many_at_once<T: Transport>() {
    let mut all = Servers::<T>::run(2);
    // A large one from time to time.
    let bulk = |i| i % 7 * 1000 + if i % 200 == 0 { 2 << 20 } else { 0 };
    let calls: Vec<_> = (0..2000)
        .map(|i| {
            let sent = message(8, bulk(i), i);
            (all.call(0, 1, sent.clone()), sent)
        })
        .collect();
    for (id, sent) in calls {
        assert!(is(&all.wait(0, id), &sent));
    }
    let plain = (0..2000).filter(|i| bulk(*i) == 0).count();
    assert_eq!(all.server(1).acted, plain, "each acted once");
}

fn both_ways<T: Transport>() {
    let mut all = Servers::<T>::run(2);
    let calls: Vec<_> = (0..200_u16)
        .map(|i| {
            let (from, to) = (i % 2, (i + 1) % 2);
            let sent = message(30, usize::from(i) * 3000, usize::from(i));
            (from, all.call(from, to, sent.clone()), sent)
        })
        .collect();
    for (from, id, sent) in calls {
        assert!(is(&all.wait(from, id), &sent));
    }
}

fn many_servers<T: Transport>() {
    let mut all = Servers::<T>::run(64);
    let mut calls = Vec::new();
    for from in 0..64 {
        for step in [1, 7, 31] {
            let id = all.call(from, (from + step) % 64, message(100, 10, 1));
            calls.push((from, id));
        }
    }
    for (from, id) in calls {
        assert!(is(&all.wait(from, id), &message(100, 10, 1)));
    }
}

fn deadline<T: Transport>() {
    let timing = Timing {
        deadline: Duration::from_secs(2),
        ..Timing::default()
    };
    let mut all = Servers::on(T::new(3, timing), 3);
    // Connecting is not measured.
    for to in [1, 2] {
        assert!(all.ask(0, to, message(1, 0, 0)).is_ok());
    }
    all.server(1).conduct = Conduct::Hold;
    let begin = all.net.now();
    let silent = all.call(0, 1, message(1, 0, 0));
    // Others are served meanwhile.
    assert!(all.ask(0, 2, message(1, 0, 0)).is_ok());
    assert_eq!(all.wait(0, silent), Err(CallError::Deadline));
    assert_eq!(all.server(1).held.len(), 1, "it ends without a reply");
    assert!(all.since(begin) >= timing.deadline);
    all.check_time(begin, timing.deadline * 3);
    assert_eq!(all.server(0).lost, [], "it does not answer, but it lives");
    // The late reply is not taken for the reply to another call.
    all.answer_held(1);
    all.server(1).conduct = Conduct::Echo;
    assert_eq!(all.ask(0, 1, message(9, 0, 4)), Ok(message(9, 0, 4)));
}

fn nobody<T: Transport>() {
    let mut all = Servers::on(T::new(1, Timing::default()), 1);
    let lost = all.ask(0, 7, message(1, 0, 0));
    assert_eq!(lost, Err(CallError::Unreachable));
    let itself = all.ask(0, 0, message(1, 0, 0));
    assert_eq!(itself, Err(CallError::Unreachable));
}

fn hung<T: Transport>() {
    // The port is bound, and no server listens.
    let timing = Timing::default();
    let mut all = Servers::on(T::new(3, timing), 2);
    let begin = all.net.now();
    let hangs = all.call(0, 2, message(1, 0, 0));
    let large = message(1, 1 << 20, 0);
    assert_eq!(all.ask(0, 1, large.clone()), Ok(large));
    assert_eq!(all.wait(0, hangs), Err(CallError::Unreachable));
    // One attempt shows that the server does not answer; another is under way when it is given up.
    all.check_time(begin, timing.handshake * 2 + timing.give_up);
}

fn killed<T: Transport>() {
    let mut all = Servers::on(T::new(3, Timing::default()), 3);
    assert!(all.ask(0, 1, message(5, 0, 1)).is_ok());
    all.kill(1);
    let begin = all.net.now();
    assert_eq!(all.ask(0, 1, message(5, 0, 1)), Err(CallError::Unreachable));
    all.check_time(begin, Timing::default().give_up * 2);
    assert_eq!(all.server(0).lost, [Rank(1)]);
    // A server that was given up is not waited for as long again.
    let begin = all.net.now();
    assert_eq!(all.ask(0, 1, message(5, 0, 1)), Err(CallError::Unreachable));
    all.check_time(begin, Timing::default().give_up);
    assert!(
        all.ask(0, 2, message(5, 0, 1)).is_ok(),
        "no one else's loss"
    );
    all.start(1, 2);
    let back = |all: &mut Servers<T>| all.ask(0, 1, message(5, 0, 2)).is_ok();
    all.until("it is taken back", back);
    assert_eq!(all.server(0).lost, [Rank(1), Rank(1)], "its new life too");
    assert!(all.ask(1, 0, message(5, 2 << 20, 3)).is_ok());
}

fn restarted<T: Transport>() {
    // A start takes its time; nobody is to give up meanwhile.
    let timing = Timing {
        give_up: SLOW_TIMING.give_up,
        ..Timing::default()
    };
    let mut all = Servers::on(T::new(2, timing), 2);
    all.server(1).conduct = Conduct::Hold;
    let id = all.call(0, 1, message(5, 0, 1));
    all.until("it is asked", |all| all.server(1).held.len() == 1);
    all.kill(1);
    all.start(1, 2);
    assert_eq!(all.wait(0, id), Err(CallError::Restarted));
    assert_eq!(all.server(1).asked, 0, "its former life may have acted");
    assert_eq!(all.server(0).lost, [Rank(1)]);
    assert!(all.ask(0, 1, message(5, 0, 1)).is_ok());
}

fn old_life<T: Transport>() {
    let timing = Timing {
        deadline: Duration::from_secs(1),
        ..Timing::default()
    };
    let mut all = Servers::on(T::new(2, timing), 2);
    all.kill(0);
    all.start(0, 9);
    assert!(all.ask(0, 1, message(5, 0, 1)).is_ok());
    all.kill(0);
    all.start(0, 8);
    assert!(all.ask(0, 1, message(5, 0, 1)).is_err());
    assert_eq!(all.server(1).asked, 1);
}

fn slow<T: Transport>() {
    let mut all = Servers::on(T::new(2, Timing::default()), 2);
    all.server(1).conduct = Conduct::Hold;
    let sent = message(40, 100_000, 1);
    let id = all.call(0, 1, sent.clone());
    let begin = all.net.now();
    let late = Timing::default().give_up * 4;
    all.until("time passes", |all| all.since(begin) > late);
    assert_eq!(all.server(0).lost, [], "it lives");
    all.answer_held(1);
    assert!(is(&all.wait(0, id), &sent));
    assert_eq!(all.server(1).asked, 1);
}

fn trouble<T: Transport>() {
    let timing = Timing {
        handshake: Timing::default().handshake,
        ..SLOW_TIMING
    };
    let mut all = Servers::on(T::troubled(2, timing), 2);
    let calls: Vec<_> = (0..300)
        .map(|i| [0, 1].map(|from| all.call(from, 1 - from, message(40 + i, 0, i))))
        .collect();
    for (i, ids) in calls.into_iter().enumerate() {
        for (from, id) in (0..).zip(ids) {
            assert_eq!(all.wait(from, id), Ok(message(40 + i, 0, i)));
        }
    }
    for rank in [0, 1] {
        assert_eq!(all.server(rank).asked, 300);
        assert_eq!(all.server(rank).lost, []);
    }
}

fn strangers<T: Transport>() {
    let mut all = Servers::<T>::run(2);
    assert!(all.ask(0, 1, message(1, 0, 0)).is_ok());
    for wrong in [
        Wrong::Malformed,
        Wrong::Version,
        Wrong::Instance,
        Wrong::Rank,
        Wrong::Secret,
    ] {
        all.net.stranger(Rank(1), wrong);
        all.until("it is counted", |all| {
            let counters = all.counters(1);
            0 < match wrong {
                Wrong::Malformed => counters.garbage,
                Wrong::Version => counters.version,
                Wrong::Instance => counters.instance,
                Wrong::Rank => counters.rank,
                Wrong::Secret => counters.secret,
            }
        });
        assert!(all.ask(0, 1, message(1, 50_000, 0)).is_ok(), "{wrong:?}");
    }
    assert_eq!(all.server(1).asked, 6, "strangers ask nothing");
    assert_eq!(all.server(1).lost, []);
}
