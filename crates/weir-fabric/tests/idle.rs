//! Servers without pending calls sleep, over every transport. The test is alone in its process,
//! whose threads it looks at.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::Duration;

use weir_cluster::threads::wakes_in;
use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::ofi::{BoundEndpoint, EndpointOptions};
use weir_fabric::{Event, Fabric, Libfabric, Membership, Message, Tcp, Timing};

const SERVERS: u16 = 8;

fn membership(rank: u16, addresses: &[SocketAddr]) -> Membership {
    Membership {
        instance: InstanceId([9; 16]),
        secret: Secret::new([1; 32]),
        rank: Rank(rank),
        incarnation: 1,
        addresses: addresses.to_vec(),
    }
}

fn over_tcp(wake: &Sender<()>) -> Vec<Box<dyn Fabric>> {
    let all = (0..SERVERS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let all: Vec<_> = all.collect();
    let addresses: Vec<_> = all.iter().map(|l| l.local_addr().unwrap()).collect();
    let start = |(rank, listener)| {
        let (wake, me) = (wake.clone(), membership(rank, &addresses));
        // The test has ended.
        let wake = move || wake.send(()).unwrap_or(());
        let end: Box<dyn Fabric> =
            Box::new(Tcp::start(listener, me, Timing::default(), wake).unwrap());
        end
    };
    (0..).zip(all).map(start).collect()
}

fn over_libfabric(wake: &Sender<()>) -> Result<Vec<Box<dyn Fabric>>, String> {
    let choice = EndpointOptions {
        provider: Some("tcp;ofi_rxm".to_owned()),
        source: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        reads: true,
    };
    let all = (0..SERVERS).map(|_| BoundEndpoint::open(&choice));
    let all: Vec<BoundEndpoint> = all.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let names: Vec<_> = all.iter().map(|bound| bound.name().to_vec()).collect();
    let start = |(rank, bound)| {
        let (wake, me) = (wake.clone(), membership(rank, &[]));
        // The test has ended.
        let wake = move || wake.send(()).unwrap_or(());
        let started = Libfabric::start(bound, me, names.clone(), Timing::default(), wake);
        let end: Box<dyn Fabric> = Box::new(started.unwrap());
        end
    };
    Ok((0..).zip(all).map(start).collect())
}

/// Lets all servers call each other, and then counts how often they wake in a second.
fn wakes_when_idle(ends: &[Box<dyn Fabric>], woken: &Receiver<()>) -> u64 {
    let mut waiting = 0;
    for from in 0..SERVERS {
        for to in (0..SERVERS).filter(|to| *to != from) {
            let bulk = vec![1; 1 << 20];
            let body = Vec::new();
            ends[usize::from(from)].call(Rank(to), Message { body, bulk });
            waiting += 1;
        }
    }
    while waiting > 0 {
        for end in ends {
            while let Some(event) = end.poll() {
                match event {
                    Event::Request(token, message) => end.reply(token, message),
                    Event::Done(_, result) => {
                        result.unwrap();
                        waiting -= 1;
                    }
                    Event::PeerLost(rank) => panic!("{rank:?} is lost"),
                }
            }
        }
        let _ = woken.recv_timeout(Duration::from_millis(5));
    }
    // The best of some seconds counts, since the calls have late effects: memory is freed,
    // connections are checked once more.
    let seconds = (0..3).map(|_| wakes_in(Duration::from_secs(1)).unwrap());
    seconds.min().unwrap()
}

#[test]
fn servers_of_which_nothing_is_asked_sleep() {
    let (wake, woken) = channel();
    let tcp = wakes_when_idle(&over_tcp(&wake), &woken);
    println!("{SERVERS} idle servers: TCP {tcp} wakes a second");
    assert!(tcp <= u64::from(SERVERS) * 4, "TCP: {tcp} wakes a second");
    match over_libfabric(&wake) {
        Ok(ends) => {
            let libfabric = wakes_when_idle(&ends, &woken);
            println!("{SERVERS} idle servers: libfabric {libfabric} wakes a second");
            assert!(
                libfabric <= u64::from(SERVERS) * 4,
                "libfabric: {libfabric} wakes a second"
            );
        }
        Err(why) => weir_cluster::skip("idle servers over libfabric", &why),
    }
}
