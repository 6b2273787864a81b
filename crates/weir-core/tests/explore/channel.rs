//! A channel: requests and replies come out whole and in turn, and a client that sleeps is woken.
//!
//! The client fills the request and then changes the state; the server fills the reply, changes the state, and
//! then looks if the client sleeps. The client says that it sleeps before the kernel looks at the state for it.

use std::sync::Arc;

use loom::thread;
use weir_core::node::channel::REQUEST;
use weir_core::sync::spin_loop;

use super::{explore, explore_kills, Futex};

/// Messages have up to two words. The second one is shorter, so that an old length shows.
type Channel = weir_core::node::channel::Channel<2, 2>;
const REQUESTS: [&[u8]; 2] = [b"open a.dat", b"ping"];
const REPLIES: [&[u8]; 2] = [b"inode 4711", b"yes"];

#[derive(Default)]
struct Shared {
    channel: Channel,
    futex: Futex,
}

impl Shared {
    /// Sends request `number` and waits for its reply, as the client's `Session::exchange` does.
    fn call(&self, number: usize) {
        assert!(self.channel.is_idle());
        let spent_ms = u32::try_from(number).unwrap();
        self.channel
            .put_request(REQUESTS[number], spent_ms)
            .unwrap();
        if !self.channel.has_reply() {
            self.channel.begin_sleep();
            while !self.channel.has_reply() {
                self.futex.wait(self.channel.word(), REQUEST);
            }
            self.channel.end_sleep();
        }
        let mut reply = Vec::new();
        self.channel.take_reply(&mut reply);
        assert_eq!(reply, REPLIES[number]);
    }

    /// Answers request `number`, as the server's `Node` does.
    fn serve(&self, number: usize) {
        while !self.channel.has_request() {
            spin_loop();
        }
        assert_request(&self.channel, number);
        if self.channel.put_reply(REPLIES[number]) == Ok(true) {
            self.futex.wake();
        }
    }
}

/// Asserts that the channel has all of request `number`.
fn assert_request(channel: &Channel, number: usize) {
    let mut request = Vec::new();
    let spent_ms = channel.take_request(&mut request);
    assert_eq!(request, REQUESTS[number]);
    assert_eq!(usize::try_from(spent_ms), Ok(number));
}

#[test]
fn messages_come_whole_and_in_turn_and_the_sleeper_is_woken() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || [0, 1].map(|number| shared.call(number))
        });
        shared.serve(0);
        shared.serve(1);
        client.join().unwrap();
    });
}

/// The server looks at the channel without a ring, after a client's end too.
#[test]
fn a_killed_client_leaves_a_whole_request_or_none() {
    explore_kills(2, |victim| {
        let channel = Channel::default();
        let put = victim.run(|| channel.put_request(REQUESTS[1], 1).unwrap());
        assert_eq!(channel.has_request(), put.is_some());
        if channel.has_request() {
            assert_request(&channel, 1);
        }
    });
}

/// The client learns that its server is gone, and then looks again: `Session::await_reply`.
#[test]
fn a_killed_server_leaves_a_whole_reply_or_none() {
    explore_kills(2, |victim| {
        let channel = Arc::new(Channel::default());
        channel.put_request(REQUESTS[1], 1).unwrap();
        let server = thread::spawn({
            let (channel, victim) = (Arc::clone(&channel), victim.clone());
            move || victim.run(|| channel.put_reply(REPLIES[1]).unwrap())
        });
        let replied = channel.has_reply();
        if replied {
            let mut reply = Vec::new();
            channel.take_reply(&mut reply);
            assert_eq!(reply, REPLIES[1]);
        }
        let done = server.join().unwrap();
        assert!(replied || done.is_none() || channel.has_reply());
    });
}
