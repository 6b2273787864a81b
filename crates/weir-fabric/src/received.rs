//! Calls that came from one server: each acts once, however often it is sent.
//!
//! Kept until the asker says that the call has ended; it does so with every request. Replies
//! with bulk are not kept: what is answered with bytes of files only reads, and is done again.

use std::collections::BTreeMap;

use crate::{CallId, Message};

/// What is to be done with a call that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// It is new: have it done.
    New,
    /// It is being done: its reply will go out.
    Pending,
    /// It was done: this was the reply.
    Answered(Message),
    /// It has ended for the asker: an echo of the network's.
    Ended,
}

/// The calls of one life of one server.
#[derive(Debug, Default)]
pub struct ReceivedCalls {
    /// Which life.
    pub incarnation: u64,
    /// It came after another one.
    pub follows: bool,
    calls: BTreeMap<CallId, Option<Message>>,
    ended_below: CallIdFloor,
}

/// Below it all calls have ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct CallIdFloor(u64);

impl ReceivedCalls {
    /// None yet, of that life.
    pub fn new(incarnation: u64) -> ReceivedCalls {
        ReceivedCalls {
            incarnation,
            ..ReceivedCalls::default()
        }
    }

    /// A call came, with word that all below `ended_below` have ended.
    pub fn receive(&mut self, call: CallId, ended_below: u64) -> Disposition {
        if ended_below > self.ended_below.0 {
            self.ended_below = CallIdFloor(ended_below);
            self.calls = self.calls.split_off(&CallId(ended_below));
        }
        if call.0 < self.ended_below.0 {
            return Disposition::Ended;
        }
        match self.calls.get(&call) {
            Some(Some(reply)) => Disposition::Answered(reply.clone()),
            Some(None) => Disposition::Pending,
            None => {
                self.calls.insert(call, None);
                Disposition::New
            }
        }
    }

    /// A call was done.
    pub fn record_reply(&mut self, call: CallId, reply: &Message) {
        if reply.bulk.is_empty() {
            if let Some(slot) = self.calls.get_mut(&call) {
                *slot = Some(reply.clone());
            }
        } else {
            self.calls.remove(&call);
        }
    }

    /// Calls remembered.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_acts_once_and_is_forgotten_when_it_has_ended() {
        let mut seen = ReceivedCalls::new(1);
        let reply = Message {
            body: vec![1],
            bulk: vec![],
        };
        assert_eq!(seen.receive(CallId(5), 5), Disposition::New);
        assert_eq!(seen.receive(CallId(5), 5), Disposition::Pending);
        seen.record_reply(CallId(5), &reply);
        assert_eq!(
            seen.receive(CallId(5), 5),
            Disposition::Answered(reply.clone())
        );
        assert_eq!(seen.receive(CallId(6), 6), Disposition::New);
        assert_eq!(seen.receive(CallId(5), 5), Disposition::Ended);
        assert_eq!(seen.len(), 1);
        let bytes = Message {
            body: vec![],
            bulk: vec![7],
        };
        seen.record_reply(CallId(6), &bytes);
        assert_eq!(
            seen.receive(CallId(6), 6),
            Disposition::New,
            "reading again is harmless"
        );
        seen.record_reply(CallId(5), &reply);
        assert_eq!(seen.len(), 1, "what has ended is not kept");
    }
}
